//! A program that writes whatever it likes over all of its session's memory, all the time, while it
//! sends, beside a stream of another program on the same worker. It can harm nobody but itself.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pollux_attach::client::{Session, SessionOptions, Stream};
use pollux_attach::packet::{self, ReceiveError};
use pollux_ring::{Access, Pages, Segment};

use crate::support::wire::Numbers;
use crate::support::{Appliance, Killed, PEER, Place};

/// Longest session memory that is mapped.
const SEGMENT_MAX: usize = 1 << 30;
/// The part of the memory that both sides poll: most of the scribbling goes here.
const LINES_BYTES: usize = 40 << 10;
/// Longest message of the stream that must not suffer.
const MESSAGE_MAX: usize = 3000;
/// Sessions that must have been ended for what was scribbled: otherwise no harm was tried.
const FAULTS_MIN: u64 = 3;
/// Length of a phase of one conduct.
const PHASE: Duration = Duration::from_millis(250);
/// Longest life of a session of the scribbling program.
const SESSION_LIFE: Duration = Duration::from_millis(100);

/// What the scribbling program does beside the stream that must not suffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conduct {
    /// Nothing.
    Still,
    /// All that it does otherwise, but over its own memory.
    Peace,
    /// It scribbles over its session's memory.
    Harm,
}

impl Conduct {
    const ALL: [Conduct; 3] = [Conduct::Still, Conduct::Peace, Conduct::Harm];

    fn word(self) -> &'static str {
        match self {
            Conduct::Still => "still",
            Conduct::Peace => "peace",
            Conduct::Harm => "harm",
        }
    }
}

/// What the scribbling thread writes over: the session's memory, or as much of its own.
struct Target {
    session: Mutex<Option<Segment>>,
    own: Segment,
}

impl Target {
    fn scribble(&self, numbers: &mut Numbers) {
        let session = self.session.lock().expect("no panic").clone();
        let segment = session.as_ref().unwrap_or(&self.own);
        for _ in 0..512 {
            let reach = match numbers.next() % 4 {
                0 => segment.len(),
                _ => LINES_BYTES.min(segment.len()),
            };
            let word = match numbers.next() % 3 {
                0 => numbers.next(),
                // Small numbers look more like what belongs there.
                1 => numbers.next() % 512,
                _ => u64::MAX,
            };
            let at = (numbers.next() as usize % (reach - 8)) & !7;
            segment.copy_in(at, &word.to_le_bytes()).expect("inside");
        }
    }
}

/// Passes packets both ways between the library and the appliance, and keeps a second mapping of
/// the session's memory, which comes by.
fn stand_between(
    (ours, theirs): (&OwnedFd, &OwnedFd),
    memory: &Mutex<Option<Segment>>,
    gone: &AtomicBool,
) {
    while !gone.load(Ordering::Relaxed) {
        for (from, to) in [(ours, theirs), (theirs, ours)] {
            match packet::receive(from) {
                Ok(packet) => {
                    // The welcome is the only one with three.
                    if let [fd, _, _] = packet.fds.as_slice() {
                        let fd = fd.try_clone().expect("a descriptor");
                        let segment = Segment::from_fd(fd, Access::ReadWrite, SEGMENT_MAX);
                        *memory.lock().expect("no panic") = segment.ok();
                    }
                    let fds: Vec<_> = packet.fds.iter().map(AsFd::as_fd).collect();
                    if packet::send(to, &packet.bytes, &fds).is_err() {
                        return;
                    }
                }
                Err(ReceiveError::WouldBlock) => std::thread::yield_now(),
                Err(_) => return,
            }
        }
    }
}

/// Whether a stream may carry more.
fn is_alive(result: io::Result<usize>) -> bool {
    match result {
        Ok(count) => count > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// One session, from its Hello until it has lived long enough, or the appliance has had enough of it.
fn session(
    attach: &Path,
    through: SocketAddr,
    target: &Target,
    conduct: Conduct,
    numbers: &mut Numbers,
) {
    let Ok(theirs) = packet::connect(attach) else {
        return;
    };
    let (library, ours) = packet::pair().expect("a pair");
    let gone = AtomicBool::new(false);
    let memory = Mutex::new(None);
    // From the beginning, or only when there is something to harm: most connections need some peace
    // to come about.
    let from_the_beginning = numbers.next().is_multiple_of(4);
    std::thread::scope(|scope| {
        scope.spawn(|| stand_between((&ours, &theirs), &memory, &gone));
        let scribble = || {
            if conduct != Conduct::Harm {
                return;
            }
            let segment = memory.lock().expect("no panic").clone();
            *target.session.lock().expect("no panic") = segment;
        };
        let options = SessionOptions {
            name: "scribbler".to_string(),
            slots: 4,
            // Never sleeps, in peace neither: what is compared is what is done to the appliance, not
            // what such a program leaves of a small machine's cores.
            spin: Duration::from_secs(1),
            upgrade_timeout: Duration::from_millis(200),
            ..SessionOptions::default()
        };
        if let Ok(session) = Session::open_connected(library, &options) {
            if from_the_beginning {
                scribble();
            }
            let streams: Vec<Stream> = (0..3)
                .filter_map(|_| session.connect(through).ok())
                .collect();
            scribble();
            let timeout = Some(Duration::from_millis(5));
            for stream in &streams {
                let _ = stream.set_write_timeout(timeout);
                let _ = stream.set_read_timeout(timeout);
            }
            let begun = Instant::now();
            let mut alive = !streams.is_empty();
            while alive && begun.elapsed() < SESSION_LIFE {
                alive = false;
                for mut stream in &streams {
                    let bytes = vec![7; 1 + numbers.next() as usize % 9000];
                    alive |= is_alive(stream.write(&bytes));
                    alive |= is_alive(stream.read(&mut [0; 4096]));
                }
            }
        }
        gone.store(true, Ordering::Relaxed);
    });
    *target.session.lock().expect("no panic") = None;
}

/// Not a story of its own: the program that
/// `a_program_that_scribbles_over_its_memory_harms_no_stream_of_another` starts. Its words come as
/// filters, as those of `death::program_that_is_killed`. A line on its standard input, the word of a
/// [`Conduct`], says what to do from then on.
#[test]
fn program_that_scribbles() {
    let word = |name: &str| {
        let mut all = std::env::args();
        all.find_map(|word| word.strip_prefix(name).map(str::to_string))
    };
    let (Some(attach), Some(address)) = (word("attach="), word("harm-through=")) else {
        return;
    };
    let (attach, through) = (PathBuf::from(attach), address.parse().expect("an address"));
    let target = Arc::new(Target {
        session: Mutex::new(None),
        own: Segment::create("own", 4 << 20, Pages::Off).expect("memory"),
    });
    let busy = Arc::new(AtomicBool::new(false));
    let (scribbled, is_busy) = (Arc::clone(&target), Arc::clone(&busy));
    let scribbling = std::thread::spawn(move || {
        let mut numbers = Numbers::new(1);
        loop {
            if is_busy.load(Ordering::Relaxed) {
                scribbled.scribble(&mut numbers);
                std::thread::yield_now();
            } else {
                std::thread::park();
            }
        }
    });
    let (tell, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let conduct = Conduct::ALL.into_iter().find(|c| c.word() == line);
            tell.send(conduct.expect("a word")).expect("it listens");
        }
    });
    println!("\nready");
    let (mut conduct, mut numbers) = (Conduct::Still, Numbers::new(2));
    loop {
        let order = match conduct {
            Conduct::Still => match orders.recv() {
                Ok(order) => Some(order),
                Err(_) => return,
            },
            _ => orders.try_recv().ok(),
        };
        if let Some(order) = order {
            conduct = order;
            busy.store(conduct != Conduct::Still, Ordering::Relaxed);
            scribbling.thread().unpark();
            println!("done");
        }
        if conduct != Conduct::Still {
            session(&attach, through, &target, conduct, &mut numbers);
        }
    }
}

/// The program, and how it is told what to do.
struct Scribbler {
    _process: Killed,
    orders: ChildStdin,
    answers: BufReader<std::process::ChildStdout>,
}

impl Scribbler {
    fn start(appliance: &Appliance, through: SocketAddr) -> Scribbler {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "scribble::program_that_scribbles", "--nocapture"])
            .arg(format!("attach={}", appliance.attach_socket().display()))
            .arg(format!("harm-through={through}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let orders = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut scribbler = Scribbler {
            _process: Killed(child),
            orders,
            answers,
        };
        scribbler.until("ready");
        scribbler
    }

    fn until(&mut self, wanted: &str) {
        let lines = (&mut self.answers).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line == wanted), "the scribbler is gone");
    }

    fn order(&mut self, conduct: Conduct) {
        writeln!(self.orders, "{}", conduct.word()).expect("it listens");
        self.until("done");
    }
}

fn open(appliance: &Appliance, name: &str) -> Session {
    let options = SessionOptions {
        name: name.to_string(),
        ..SessionOptions::default()
    };
    Session::open(appliance.attach_socket(), &options).expect("a session")
}

/// Sends back all that comes on any connection, until the process ends.
fn echo_all(session: &Session) -> SocketAddr {
    let listener = session.listen("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = (&stream).read(&mut bytes) {
                    if (&stream).write_all(&bytes[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Messages of random length there and back for a while, every byte checked; how long each took.
fn exchange(mut stream: &Stream, numbers: &mut Numbers, time: Duration) -> Vec<Duration> {
    let mut took = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < time {
        let len = 1 + numbers.next() as usize % MESSAGE_MAX;
        let message: Vec<u8> = (0..len).map(|_| numbers.next() as u8).collect();
        let mut got = vec![0; len];
        let asked = Instant::now();
        stream.write_all(&message).expect("write");
        stream.read_exact(&mut got).expect("read");
        took.push(asked.elapsed());
        assert!(
            got == message,
            "a byte of another program's stream is wrong"
        );
    }
    took
}

/// Median and 99th percentile.
fn quantiles(took: &mut [Duration]) -> (Duration, Duration) {
    took.sort();
    (took[took.len() / 2], took[took.len() * 99 / 100])
}

#[test]
fn a_program_that_scribbles_over_its_memory_harms_no_stream_of_another() {
    let seconds: f64 = std::env::var("POLLUX_SCRIBBLE_SECONDS")
        .map_or(3.0, |text| text.parse().expect("a number"));
    let place = Place::new();
    let b = Appliance::start(&place, "b", PEER);
    let a = Appliance::start(&place, "a", PEER);
    let (client, server) = (open(&a, "client"), open(&b, "server"));
    let through = echo_all(&server);
    let stream = client.connect(through).expect("connect");
    assert!(stream.is_accelerated());
    let mut scribbler = Scribbler::start(&a, through);
    let mut numbers = Numbers::new(3);
    let mut took = Conduct::ALL.map(|_| Vec::new());
    let faults = || a.stat("sessions.faults");
    let begun = Instant::now();
    // The test runner ends a run in which nothing is ever noticed.
    while begun.elapsed().as_secs_f64() < seconds || faults() < FAULTS_MIN {
        for (conduct, took) in Conduct::ALL.into_iter().zip(&mut took) {
            scribbler.order(conduct);
            took.extend(exchange(&stream, &mut numbers, PHASE));
        }
    }
    drop(scribbler);
    let faults = faults();
    eprintln!(
        "{faults} sessions ended for what they had scribbled; the other program's stream beside it:"
    );
    let mut peace = [1.0, 1.0];
    for (conduct, took) in Conduct::ALL.into_iter().zip(&mut took) {
        let (p50, p99) = quantiles(took);
        let now = [p50, p99].map(|time| time.as_secs_f64());
        if conduct == Conduct::Peace {
            peace = now;
        }
        let (word, count) = (conduct.word(), took.len());
        let [p50_ratio, p99_ratio] = [now[0] / peace[0], now[1] / peace[1]];
        match conduct {
            Conduct::Harm => eprintln!(
                "  {word}: median {p50:?}, p99 {p99:?} of {count} messages: x{p50_ratio:.2} and \
                 x{p99_ratio:.2} of peace"
            ),
            _ => eprintln!("  {word}: median {p50:?}, p99 {p99:?} of {count} messages"),
        }
    }
    // A line a second at most, however often it happens.
    let lines = a.log().matches("a program broke the rules").count();
    let seconds = begun.elapsed().as_secs() as usize;
    assert!(
        (1..=seconds + 2).contains(&lines),
        "{lines} lines in {seconds} s"
    );
    // The stream goes on, and all that the program had is gone.
    assert!(!exchange(&stream, &mut numbers, PHASE).is_empty());
    a.until_stat("sessions.open", 1);
    a.until_stat("conns.open", 1);
    b.until_stat("conns.open", 1);
}
