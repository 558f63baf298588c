//! A worker in busy mode makes no system call for a message: two runs of very different length
//! make the same number of them.
//!
//! A million messages go through passes of one thread, because two busy threads wait for each other
//! whenever the machine has something else to run; the loops themselves, in threads of their own,
//! have fewer.

mod common;

use common::{Node, Sizes, connect, pair, ping};
use pollux_proto::event::EventSet;
use pollux_worker::{
    App, Builtin, Command, ConnId, ConnOutcome, Io, PingEnd, PingRun, PollMode, Report, TAG_ECHO,
    TAG_PING, Tsc, WaitSpec,
};
use std::thread::Thread;

/// The built-in application, which also wakes a thread when it has something to report.
struct Waking {
    inner: Builtin,
    waiting: Thread,
}

impl Waking {
    fn new() -> Waking {
        Waking {
            inner: Builtin::default(),
            waiting: std::thread::current(),
        }
    }

    fn wake(&self, report: Option<Box<PingRun>>) -> Option<Box<PingRun>> {
        if report.is_some() {
            self.waiting.unpark();
        }
        report
    }
}

impl App for Waking {
    type Order = Box<PingRun>;
    type Report = Box<PingRun>;

    fn order<I: Io>(&mut self, run: Box<PingRun>, io: &mut I) -> Option<Box<PingRun>> {
        self.inner.order(run, io)
    }

    fn opened<I: Io>(&mut self, conn: ConnId, tag: u64, io: &mut I) {
        self.inner.opened(conn, tag, io);
    }

    fn ready<I: Io>(
        &mut self,
        conn: ConnId,
        tag: u64,
        events: EventSet,
        io: &mut I,
    ) -> Option<Box<PingRun>> {
        let report = self.inner.ready(conn, tag, events, io);
        self.wake(report)
    }

    fn closed(&mut self, conn: ConnId, tag: u64, outcome: ConnOutcome) -> Option<Box<PingRun>> {
        let report = self.inner.closed(conn, tag, outcome);
        self.wake(report)
    }
}

/// Two workers in their own threads in busy mode exchange `rounds` messages each way, while this
/// thread is parked.
fn exchange(rounds: usize) {
    let wait = WaitSpec {
        mode: PollMode::Busy,
        ..WaitSpec::default()
    };
    let apps = [Waking::new(), Waking::new()];
    let mut nodes = pair(Sizes::default(), apps, &Tsc::new(), wait);
    connect(&mut nodes, 0, [TAG_PING, TAG_ECHO]);
    nodes[0].send(Command::App(ping(64, rounds)));
    let [a, b]: [Node<Waking, Tsc>; 2] = nodes;
    let (mut orders_a, mut news_a, worker_a) = (a.orders, a.news, a.worker);
    let (mut orders_b, worker_b) = (b.orders, b.worker);
    std::thread::scope(|scope| {
        scope.spawn(|| worker_a.run());
        scope.spawn(|| worker_b.run());
        let run = loop {
            match news_a.pop() {
                Some(Report::App(run)) => break run,
                Some(_) => {}
                // The application unparks just before its report is in the ring: a look that
                // comes in between is repeated a second later.
                None => std::thread::park_timeout(std::time::Duration::from_secs(1)),
            }
        };
        assert_eq!((run.end, run.samples.len()), (PingEnd::Done, rounds));
        assert!(orders_a.push(Command::Stop).is_ok());
        assert!(orders_b.push(Command::Stop).is_ok());
    });
}

/// The same with the passes of both workers in this thread.
fn exchange_in_turns(rounds: usize) {
    let wait = WaitSpec {
        mode: PollMode::Busy,
        ..WaitSpec::default()
    };
    let apps = [Builtin::default(), Builtin::default()];
    let mut nodes = pair(Sizes::default(), apps, &Tsc::new(), wait);
    connect(&mut nodes, 0, [TAG_PING, TAG_ECHO]);
    nodes[0].send(Command::App(ping(64, rounds)));
    let run = loop {
        for node in &mut nodes {
            let _ = node.worker.pass();
        }
        if let Some(Report::App(run)) = nodes[0].news.pop() {
            break run;
        }
    };
    assert_eq!((run.end, run.samples.len()), (PingEnd::Done, rounds));
}

/// Not a story of its own but the program that the other tests run under strace, twice. The test
/// runner takes any text as a filter, which is how the program is told its number of rounds;
/// without one there is nothing to do.
#[test]
fn program_that_is_traced() {
    for word in std::env::args() {
        if let Some(rounds) = word.strip_prefix("threads=") {
            exchange(rounds.parse().expect("a number"));
        }
        if let Some(rounds) = word.strip_prefix("turns=") {
            exchange_in_turns(rounds.parse().expect("a number"));
        }
    }
}

mod needs_strace {
    use std::process::{Command, Stdio};

    /// System calls of a whole run of this program with so many rounds, and strace's table.
    fn syscalls(how: &str, rounds: usize) -> (u64, String) {
        let output = Command::new("strace")
            .args(["-f", "-c", "-o", "/dev/stdout"])
            .arg(std::env::current_exe().expect("this program"))
            .args(["--exact", "program_that_is_traced"])
            .arg(format!("{how}={rounds}"))
            .stdin(Stdio::null())
            .output()
            .expect("strace starts");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{out}{err}");
        assert!(out.contains("1 passed"), "{out}{err}");
        // "100.00    0.001234           5       246        12 total"
        let total = out.lines().find(|line| line.trim_end().ends_with(" total"));
        let calls = total.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
        (calls.unwrap_or_else(|| panic!("no total: {out}")), out)
    }

    fn assert_independent(how: &str, few: usize, many: usize) {
        let (calls_of_few, table_of_few) = syscalls(how, few);
        let (calls_of_many, table_of_many) = syscalls(how, many);
        // Memory of the samples, and locks of the runner; a call for each hundredth message shows.
        let slack = 40;
        assert!(
            calls_of_many.abs_diff(calls_of_few) <= slack,
            "{calls_of_few} and {calls_of_many} calls\n{table_of_few}\n{table_of_many}"
        );
    }

    #[test]
    fn a_million_messages_make_as_many_system_calls_as_ten_thousand() {
        // Each round is a message there and one back.
        assert_independent("turns", 5000, 500_000);
    }

    #[test]
    fn busy_loops_in_two_threads_make_as_many_for_many_messages_as_for_few() {
        assert_independent("threads", 50, 1500);
    }
}
