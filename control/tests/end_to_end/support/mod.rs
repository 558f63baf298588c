//! Starting appliances and waiting for what they do.

pub(crate) mod wire;

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a test waits for something that must happen, before it fails instead of hanging. Far
/// beyond what the slowest machine needs: reaching it is a failure, never a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again and again until `look` gives something. Fails the test by the name `what` if it
/// never does.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::yield_now();
    }
}

/// A folder for the appliances of one test.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    /// An empty one.
    pub(crate) fn new() -> Place {
        Place(tempfile::tempdir().expect("temporary folder"))
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Every file below it but configurations and logs, sorted.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.path("")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let ours = path.extension().is_some_and(|e| e == "toml" || e == "log");
                if path.is_dir() {
                    folders.push(path);
                } else if !ours {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }
}

/// A running `polluxd`. Killed when dropped; its log is printed if the test fails.
pub(crate) struct Appliance {
    child: Child,
    name: String,
    config: PathBuf,
    log: PathBuf,
    runtime_dir: PathBuf,
}

impl Appliance {
    /// Starts one named `name` in `place`; `more` follows the part of the configuration that
    /// keeps it inside the place.
    pub(crate) fn start(place: &Place, name: &str, more: &str) -> Appliance {
        Appliance::start_with(place, name, "", more)
    }

    /// As [`Appliance::start`], with more keys of the section `[appliance]`.
    pub(crate) fn start_with(place: &Place, name: &str, keys: &str, more: &str) -> Appliance {
        let at = place.path("");
        let at = at.display();
        let config = place.path(&format!("{name}.toml"));
        let text = format!(
            "[appliance]\nname = \"{name}\"\nruntime_dir = \"{at}{name}\"\n{keys}\n\
             [device]\nfabric_dir = \"{at}fabric\"\n\
             [workers]\nlock_dir = \"{at}\"\npoll = \"adaptive\"\n{more}"
        );
        fs::write(&config, text).expect("write");
        Appliance::start_from(place, name, config)
    }

    fn start_from(place: &Place, name: &str, config: PathBuf) -> Appliance {
        let log = place.path(&format!("{name}.log"));
        let out = fs::File::create(&log).expect("a log");
        let child = Command::new(env!("CARGO_BIN_EXE_polluxd"))
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(out)
            .spawn()
            .expect("polluxd starts");
        let mut appliance = Appliance {
            child,
            name: name.to_string(),
            config,
            log,
            runtime_dir: place.path(name),
        };
        until(&format!("polluxd {name} is ready"), || {
            let ended = appliance.child.try_wait().expect("a child");
            assert_eq!(
                ended,
                None,
                "{name} ended at its start:\n{}",
                appliance.log()
            );
            let answers = UnixStream::connect(appliance.control_socket()).is_ok();
            (answers && appliance.log().contains(" ready ")).then_some(())
        });
        appliance
    }

    /// Starts the same one again after its end.
    pub(crate) fn start_again(mut self, place: &Place) -> Appliance {
        self.kill();
        let (name, config) = (self.name.clone(), self.config.clone());
        drop(self);
        Appliance::start_from(place, &name, config)
    }

    /// What it has said so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its control socket.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.runtime_dir.join("control.sock")
    }

    /// Its socket for programs.
    pub(crate) fn attach_socket(&self) -> PathBuf {
        self.runtime_dir.join("attach.sock")
    }

    /// Where its forward `name` listens, with the port that the kernel chose.
    pub(crate) fn listens(&self, forward: &str) -> SocketAddr {
        let log = self.log();
        let wanted = format!("forward=\"{forward}\"");
        let line = log.lines().find(|line| line.contains(&wanted));
        let address = line
            .and_then(|line| line.split("listen=").nth(1))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|endpoint| endpoint.split_once(':'))
            .and_then(|(_, address)| address.parse().ok());
        address.unwrap_or_else(|| panic!("no listener of {forward:?} in the log:\n{log}"))
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        signal_process(self.pid(), signal);
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        until(&format!("{} ends", self.name), || {
            self.child.try_wait().expect("a child")
        })
    }

    /// What `pollux --json` says.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_pollux"))
            .arg("--socket")
            .arg(self.control_socket())
            .arg("--json")
            .args(args)
            .stdin(Stdio::null())
            .output()
            .expect("pollux starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// All counters.
    pub(crate) fn stats(&self) -> BTreeMap<String, u64> {
        serde_json::from_value(self.json(&["stats"])["values"].clone()).expect("counters")
    }

    /// One counter; fails for one that does not exist.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = self.stats();
        *stats
            .get(name)
            .unwrap_or_else(|| panic!("no counter {name} in {stats:#?}"))
    }

    /// Waits until a counter has a value.
    pub(crate) fn until_stat(&self, name: &str, value: u64) {
        let mut last = None;
        until(&format!("{name} of {} is {value}", self.name), || {
            let now = self.stat(name);
            if last != Some(now) {
                last = Some(now);
                eprintln!("{}: {name} is {now}", self.name);
            }
            (now == value).then_some(())
        });
    }

    /// Why connections stayed on TCP: name of the reason, who decided, text.
    pub(crate) fn fallbacks(&self) -> Vec<(String, String, String)> {
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or("").to_string();
        let shown = self.json(&["show", "fallbacks"]);
        let rows = shown.as_array().expect("a list").iter();
        rows.map(|row| (text(row, "name"), text(row, "by"), text(row, "text")))
            .collect()
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.name, self.log());
        }
    }
}

/// Sends a signal to a process of this test.
pub(crate) fn signal_process(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a pid"), signal).expect("it runs");
}

/// A process that is killed when dropped.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a configuration says besides the place: rings and what the way out leads to.
pub(crate) struct Shape<'a> {
    /// `[attach]` ring size, as `64K`.
    pub(crate) ring: &'a str,
    /// Where A listens: `tcp:127.0.0.1:0` or `unix:PATH`.
    pub(crate) listen: String,
    /// Where B leads to.
    pub(crate) target: String,
}

impl Shape<'_> {
    /// From a TCP listener of A to a TCP target.
    pub(crate) fn to(target: SocketAddr) -> Shape<'static> {
        Shape {
            ring: "64K",
            listen: "tcp:127.0.0.1:0".to_string(),
            target: format!("tcp:{target}"),
        }
    }
}

/// A and B: a client of A's forward `in` reaches the target of B's forward `out`.
pub(crate) struct Pair {
    pub(crate) a: Appliance,
    pub(crate) b: Appliance,
    pub(crate) place: Place,
}

impl Pair {
    /// Starts both.
    pub(crate) fn start(shape: &Shape<'_>) -> Pair {
        Pair::start_in(Place::new(), shape, "", "")
    }

    /// Starts both in `place`, with more lines for A and B at the end of their configurations.
    pub(crate) fn start_in(place: Place, shape: &Shape<'_>, more_a: &str, more_b: &str) -> Pair {
        let attach = format!("[attach]\nsndbuf = \"{0}\"\nrmb = \"{0}\"\n", shape.ring);
        let out = forward("out", "smc:127.0.0.1:0", &shape.target);
        let b = Appliance::start(&place, "b", &format!("{attach}{out}{more_b}"));
        let middle = format!("smc:{}", b.listens("out"));
        let way_in = forward("in", &shape.listen, &middle);
        let a = Appliance::start(&place, "a", &format!("{attach}{PEER}{way_in}{more_a}"));
        Pair { a, b, place }
    }

    /// Where clients connect.
    pub(crate) fn entry(&self) -> SocketAddr {
        self.a.listens("in")
    }

    /// Asserts that nothing stayed on TCP, at either side.
    pub(crate) fn assert_accelerated(&self) {
        for appliance in [&self.a, &self.b] {
            assert_eq!(appliance.fallbacks(), []);
            assert_eq!(appliance.stat("fallbacks.total"), 0);
        }
    }
}

/// The whole of 127.0.0.1 speaks SMC.
pub(crate) const PEER: &str = "[[peer]]\naddress = \"127.0.0.1\"\n";

/// The lines of a forward.
pub(crate) fn forward(name: &str, listen: &str, connect: &str) -> String {
    format!("[[forward]]\nname = \"{name}\"\nlisten = \"{listen}\"\nconnect = \"{connect}\"\n")
}

/// A listener on a port of the kernel's choice.
pub(crate) fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Mode bits of a file.
pub(crate) fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .permissions()
        .mode()
        & 0o7777
}
