//! Running the two programs, and a stand-in for an appliance.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use pollux_control::cores;
use pollux_control::reactor::Reactor;
use pollux_control::rpc::{Call, Methods, Reply, Request, RpcError, RpcServer};
use pollux_control::unix_socket::{SocketKind, listen_on};
use pollux_control::view::{
    ConnView, LatencyRow, LatencyTable, OwnerView, Role, StatsView, Transport, VersionView,
};
use serde_json::json;

/// What a program left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit status; `None` after a signal.
    pub(crate) status: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            status: output.status.code(),
            out: String::from_utf8(output.stdout).expect("text"),
            err: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

/// The first and the last core that this process may use.
pub(crate) fn first_and_last_core() -> (u32, u32) {
    let allowed = cores::allowed().expect("a mask");
    let mut cores = allowed.iter();
    let first = cores.next().expect("a core");
    (first, cores.next_back().unwrap_or(first))
}

/// `polluxd` with arguments.
pub(crate) fn polluxd(args: &[&str]) -> Ended {
    run(Command::new(env!("CARGO_BIN_EXE_polluxd")).args(args))
}

/// `pollux` with arguments.
pub(crate) fn pollux(args: &[&str]) -> Ended {
    run(Command::new(env!("CARGO_BIN_EXE_pollux")).args(args))
}

/// Starts `polluxd` with a configuration that it refuses, and sees that `pollux doctor` foretold its
/// words and its status.
pub(crate) fn refused(config: &str) -> Ended {
    let told = pollux(&["doctor", "--config", config]);
    let ended = polluxd(&["--config", config]);
    assert_eq!(told.status, ended.status, "{told:?} {ended:?}");
    let last = |ended: &Ended, program: &str| {
        let last = ended.err.lines().last().unwrap_or_default();
        last.strip_prefix(program).map(str::to_string)
    };
    let said = last(&ended, "polluxd: ");
    assert!(said.is_some(), "{ended:?}");
    assert_eq!(last(&told, "pollux: "), said, "{told:?}");
    assert!(told.out.contains("\n  failure  "), "{told:?}");
    ended
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> Ended {
    command
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
        .into()
}

/// A folder with a configuration in it that uses only this folder.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// An empty one.
    pub(crate) fn new() -> Place {
        Place {
            dir: tempfile::tempdir().expect("temporary folder"),
        }
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a configuration: everything in this folder, and what `more` says.
    pub(crate) fn config(&self, more: &str) -> String {
        self.write("pollux", "run", more)
    }

    /// Writes the configuration of an appliance called `name`, with a runtime folder of its name;
    /// those of one place share fabric and core locks.
    pub(crate) fn config_of(&self, name: &str, more: &str) -> String {
        self.write(name, name, more)
    }

    /// As [`Place::config_of`], with keys of the section `[device]`.
    pub(crate) fn config_with(&self, name: &str, device: &str, more: &str) -> String {
        self.write_all((name, name), device, more)
    }

    fn write(&self, name: &str, run: &str, more: &str) -> String {
        self.write_all((name, run), "", more)
    }

    fn write_all(&self, (name, run): (&str, &str), device: &str, more: &str) -> String {
        let path = self.path(&format!("{name}.toml"));
        let at = self.dir.path().display();
        let text = format!(
            "[appliance]\nname = \"{name}\"\nruntime_dir = \"{at}/{run}\"\n\
             [device]\nfabric_dir = \"{at}/fabric\"\n{device}[workers]\nlock_dir = \"{at}\"\n{more}"
        );
        std::fs::write(&path, text).expect("write");
        text_of(&path)
    }
}

/// A path as an argument.
pub(crate) fn text_of(path: &Path) -> String {
    path.to_str().expect("text").to_string()
}

/// A thread that answers on a control socket like an appliance, with fixed answers.
pub(crate) struct FakeAppliance {
    /// The control socket.
    pub(crate) socket: String,
    stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl FakeAppliance {
    /// Begins to answer on `socket`.
    pub(crate) fn start(socket: &Path) -> FakeAppliance {
        let bound = listen_on(socket, SocketKind::Stream, "control.socket").expect("a free path");
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let reactor = Reactor::new().expect("epoll");
            let mut server = RpcServer::new(bound.listener, 1);
            server.start(&reactor).expect("add");
            let mut events = Vec::new();
            // The channel closes when the test ends.
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                reactor
                    .wait(Some(Duration::from_millis(20)), &mut events)
                    .expect("wait");
                for event in &events {
                    server.handle(&reactor, event, &mut Answers);
                }
            }
            drop(bound.path);
        });
        FakeAppliance {
            socket: text_of(socket),
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for FakeAppliance {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The fixed answers.
struct Answers;

impl Methods for Answers {
    fn call(&mut self, call: Call) -> Reply {
        match call.request {
            Request::Version => Reply::of(&VersionView {
                name: "fake".into(),
                version: "1".into(),
                pid: std::process::id(),
                uptime_s: 61,
            }),
            Request::ConnList => Reply::of(&conns()),
            Request::StatsShow => Reply::of(&StatsView {
                elapsed_ns: 1,
                values: [("worker.0.passes".to_string(), 5)].into(),
            }),
            Request::LatencyRun(request) => Reply::of(&latency(&request.connect.to_string())),
            Request::SetPoll(request) if request.worker == Some(9) => Reply::Now(Err(
                RpcError::not_found("worker 9 does not exist; there is worker 0"),
            )),
            Request::StatsClear => Reply::Now(Err(RpcError::busy("a measurement runs"))),
            Request::Stop | Request::SetPoll(_) | Request::SetLog(_) | Request::SetInline(_) => {
                Reply::Now(Ok(json!(true)))
            }
            _ => Reply::Now(Ok(json!([]))),
        }
    }
}

/// Enough connections to fill a pipe several times.
fn conns() -> Vec<ConnView> {
    let conn = |conn| ConnView {
        conn,
        link: 1,
        worker: 0,
        token: 0x0001_0001,
        peer_token: 0x0001_0002,
        role: Role::Client,
        state: "ACTIVE".into(),
        local: "127.0.0.1:40000".parse().expect("address"),
        peer: "127.0.0.1:7001".parse().expect("address"),
        sndbuf_bytes: 65536,
        rmbe_bytes: 65536,
        peer_rmbe_bytes: 65536,
        bytes_in: 1,
        bytes_out: 2,
        owner: OwnerView::App {
            name: "ping".into(),
        },
    };
    (0..5000).map(conn).collect()
}

fn latency(connect: &str) -> LatencyTable {
    let mut samples: Vec<u64> = (1..=100).map(|us| us * 2000).collect();
    LatencyTable {
        connect: connect.to_string(),
        transport: Transport::SmcR,
        fallback: String::new(),
        mode: "adaptive".into(),
        local_core: Some(1),
        peer_core: None,
        inline_message_bytes: 256,
        inline_write_bytes: 256,
        bounce_ns: None,
        rows: LatencyRow::of(64, &mut samples).into_iter().collect(),
    }
}

/// Whether a text is one line.
pub(crate) fn is_one_line(text: &str) -> bool {
    text.ends_with('\n') && text.lines().count() == 1
}
