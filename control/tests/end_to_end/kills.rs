//! Anything dies at any moment, under traffic that is checked: appliances, the target of a gateway,
//! programs. The others notice, end what they had with it, and serve whoever comes next.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pollux_attach::client::{Session, SessionOptions};

use crate::support::wire::Numbers;

/// Longest value of a key.
const VALUE_MAX: usize = 4096;

/// Takes as long as it takes; reaching it is a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client has done.
#[derive(Default)]
struct Done {
    /// Exchanges that came back as they must.
    exchanges: AtomicU64,
    /// Connections that ended with an error.
    ends: AtomicU64,
    /// Longest time from a request to its answer or to an error, in microseconds.
    longest_us: AtomicU64,
}

/// Sets a key and gets it again; whatever comes must be exactly that. An error ends the connection.
fn exchange(stream: &mut (impl Read + Write), name: u64, numbers: &mut Numbers) -> io::Result<()> {
    let len = 1 + (numbers.next() as usize % VALUE_MAX);
    let first = numbers.next() as u8;
    let value: Vec<u8> = (0..len)
        .map(|at| b'a' + (first.wrapping_add(at as u8) % 26))
        .collect();
    let key = format!("key-{name}");
    let mut request =
        format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n", key.len()).into_bytes();
    request.extend_from_slice(&value);
    let get = format!("\r\n*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
    request.extend_from_slice(get.as_bytes());
    stream.write_all(&request)?;
    let mut expected = format!("+OK\r\n${len}\r\n").into_bytes();
    expected.extend_from_slice(&value);
    expected.extend_from_slice(b"\r\n");
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got)?;
    assert!(
        got == expected,
        "client {name}: a corrupted answer: {:?} instead of {:?}",
        String::from_utf8_lossy(&got),
        String::from_utf8_lossy(&expected)
    );
    Ok(())
}

/// Exchanges on one connection until it fails or `go_on` says no.
fn talk(
    mut stream: impl Read + Write,
    (name, numbers): (u64, &mut Numbers),
    done: &Done,
    mut go_on: impl FnMut() -> bool,
) {
    while go_on() {
        let begun = Instant::now();
        let ended = exchange(&mut stream, name, numbers);
        let took = begun.elapsed();
        done.longest_us
            .fetch_max(took.as_micros() as u64, Ordering::Relaxed);
        match ended {
            Ok(()) => drop(done.exchanges.fetch_add(1, Ordering::Relaxed)),
            Err(error) => {
                let hangs = matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                );
                assert!(!hangs, "client {name} hangs: {error} after {took:?}");
                done.ends.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Not a story of its own: the program that
/// `whatever_is_killed_under_traffic_the_others_go_on_and_nothing_is_left` starts and kills. Its words
/// come as filters, as those of `death::program_that_is_killed`.
#[test]
fn program_under_load() {
    let word = |name: &str| {
        let mut all = std::env::args();
        all.find_map(|word| word.strip_prefix(name).map(str::to_string))
    };
    let (Some(attach), Some(address)) = (word("attach="), word("through=")) else {
        return;
    };
    let address: SocketAddr = address.parse().expect("an address");
    let (done, mut numbers) = (Done::default(), Numbers::new(u64::from(std::process::id())));
    let options = SessionOptions {
        name: "under load".to_string(),
        ..SessionOptions::default()
    };
    let mut announced = false;
    loop {
        // The appliance may be on its way back.
        let Ok(session) = Session::open(Path::new(&attach), &options) else {
            std::thread::yield_now();
            continue;
        };
        while !session.is_gone() {
            let Ok(stream) = session.connect(address) else {
                std::thread::yield_now();
                continue;
            };
            stream.set_read_timeout(Some(PATIENCE)).expect("option");
            let before = done.exchanges.load(Ordering::Relaxed);
            talk(&stream, (1_000_000, &mut numbers), &done, || {
                let is_first = done.exchanges.load(Ordering::Relaxed) > before;
                if is_first && !announced {
                    println!("\nunder load");
                    announced = true;
                }
                true
            });
        }
    }
}

mod needs_redis {
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::net::TcpStream;
    use std::process::Child;
    use std::sync::atomic::AtomicBool;

    use rustix::process::Signal;

    use super::*;
    use crate::redis_server::Redis;
    use crate::support::{Appliance, Killed, Pair, Place, Shape, signal_process, until};

    /// Clients of the gateway, each with a thread of its own.
    const CLIENTS: u64 = 12;

    /// How many are killed, unless `cargo xtask kills` asks for more.
    fn rounds() -> u64 {
        std::env::var("POLLUX_KILL_ROUNDS").map_or(40, |text| text.parse().expect("a number"))
    }

    /// What is killed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Victim {
        /// The appliance of the clients.
        Near,
        /// The appliance of the target.
        Far,
        Target,
        Program,
    }

    const VICTIMS: [Victim; 4] = [Victim::Near, Victim::Far, Victim::Target, Victim::Program];

    /// Everything that can be killed, and where it lives.
    struct Stage {
        program: Killed,
        near: Option<Appliance>,
        far: Option<Appliance>,
        redis: Redis,
        entry: SocketAddr,
        middle: SocketAddr,
        place: Place,
    }

    impl Stage {
        fn build() -> Stage {
            let place = Place::new();
            let redis = Redis::start(&place);
            let pair = Pair::start_in(place, &Shape::to(redis.address), "", "");
            let (entry, middle) = (pair.entry(), pair.b.listens("out"));
            let Pair { place, a, b } = pair;
            // Whoever comes back has to be found where it was.
            fix_port(&place, "a", &format!("tcp:{entry}"));
            fix_port(&place, "b", &format!("smc:{middle}"));
            let program = start_program(&a, middle);
            Stage {
                place,
                near: Some(a),
                far: Some(b),
                redis,
                program,
                entry,
                middle,
            }
        }

        fn near(&self) -> &Appliance {
            self.near.as_ref().expect("it runs")
        }

        fn far(&self) -> &Appliance {
            self.far.as_ref().expect("it runs")
        }

        /// Kills one and starts it again.
        fn kill(&mut self, victim: Victim) {
            match victim {
                Victim::Near => {
                    self.near = self.near.take().map(|it| it.start_again(&self.place));
                }
                Victim::Far => {
                    self.far = self.far.take().map(|it| it.start_again(&self.place));
                }
                Victim::Target => self.redis.kill_and_start_again(&self.place),
                Victim::Program => {
                    signal_process(self.program.0.id(), Signal::KILL);
                    self.program = start_program(self.near(), self.middle);
                }
            }
        }
    }

    fn fix_port(place: &Place, name: &str, listen: &str) {
        let config = place.path(&format!("{name}.toml"));
        let text = fs::read_to_string(&config).expect("a configuration");
        let (kind, _) = listen.split_once(':').expect("an endpoint");
        let text = text.replace(
            &format!("listen = \"{kind}:127.0.0.1:0\""),
            &format!("listen = \"{listen}\""),
        );
        assert!(text.contains(listen), "{text}");
        fs::write(&config, text).expect("write");
    }

    /// Starts the attached program, and waits until it has had an answer.
    fn start_program(near: &Appliance, middle: SocketAddr) -> Killed {
        let child: Child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "kills::program_under_load", "--nocapture"])
            .arg(format!("attach={}", near.attach_socket().display()))
            .arg(format!("through={middle}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut program = Killed(child);
        let said = BufReader::new(program.0.stdout.take().expect("a pipe"));
        let is_ready = |line: io::Result<String>| line.is_ok_and(|line| line == "under load");
        assert!(said.lines().any(is_ready), "the program failed");
        program
    }

    /// A client: connects again whenever its connection ends, and stops when told.
    fn client(name: u64, entry: SocketAddr, done: &Done, stop: &AtomicBool) {
        let mut numbers = Numbers::new(name + 1);
        let go_on = || !stop.load(Ordering::Relaxed);
        while go_on() {
            let Ok(stream) = TcpStream::connect(entry) else {
                std::thread::yield_now();
                continue;
            };
            stream.set_nodelay(true).expect("option");
            stream.set_read_timeout(Some(PATIENCE)).expect("option");
            stream.set_write_timeout(Some(PATIENCE)).expect("option");
            talk(&stream, (name, &mut numbers), done, go_on);
        }
    }

    /// Waits until every client has made `more` exchanges: there is traffic everywhere again.
    fn until_all_go_on(clients: &[Done], more: u64) {
        let read = |done: &Done| done.exchanges.load(Ordering::Relaxed);
        let before: Vec<u64> = clients.iter().map(read).collect();
        until("every client gets answers", || {
            let mut both = clients.iter().zip(&before);
            both.all(|(done, before)| read(done) >= before + more)
                .then_some(())
        });
    }

    #[test]
    fn whatever_is_killed_under_traffic_the_others_go_on_and_nothing_is_left() {
        let mut stage = Stage::build();
        let files = stage.place.files();
        let (clients, stop) = (
            (0..CLIENTS).map(|_| Done::default()).collect::<Vec<_>>(),
            AtomicBool::new(false),
        );
        let seed = std::env::var("POLLUX_SEED").map_or(1, |text| text.parse().expect("a number"));
        let mut numbers = Numbers::new(seed);
        let mut killed = [0; VICTIMS.len()];
        std::thread::scope(|scope| {
            for (name, done) in (0..).zip(&clients) {
                let (entry, stop) = (stage.entry, &stop);
                scope.spawn(move || client(name, entry, done, stop));
            }
            // Whatever fails in here must end the clients too, or the scope never ends.
            let story = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for round in 0..rounds() {
                    // At another moment each time: while connections are made, or well under way.
                    until_all_go_on(&clients, 1 + numbers.next() % 20);
                    let which = (numbers.next() % VICTIMS.len() as u64) as usize;
                    eprintln!("round {round}: {:?}", VICTIMS[which]);
                    killed[which] += 1;
                    stage.kill(VICTIMS[which]);
                }
                until_all_go_on(&clients, 20);
            }));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = story {
                std::panic::resume_unwind(panic);
            }
        });
        signal_process(stage.program.0.id(), Signal::KILL);
        let sum = |of: fn(&Done) -> &AtomicU64| -> u64 {
            let each = clients.iter().map(|done| of(done).load(Ordering::Relaxed));
            each.sum()
        };
        let longest = clients
            .iter()
            .map(|done| done.longest_us.load(Ordering::Relaxed));
        eprintln!(
            "killed: {}; {} exchanges checked, {} connections ended with an error, longest wait for an \
             answer or an error {:.3} s",
            VICTIMS
                .iter()
                .zip(killed)
                .map(|(victim, count)| format!("{victim:?} {count}"))
                .collect::<Vec<_>>()
                .join(", "),
            sum(|done| &done.exchanges),
            sum(|done| &done.ends),
            longest.max().unwrap_or(0) as f64 / 1e6
        );
        for appliance in [stage.near(), stage.far()] {
            appliance.until_stat("conns.open", 0);
            // That of its gateway.
            appliance.until_stat("sessions.open", 1);
        }
        assert_eq!(stage.place.files(), files, "something was left behind");
    }
}
