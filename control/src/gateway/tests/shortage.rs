//! What the thread does when it can do nothing. Limits and processor time belong to a process, so
//! these stories run in one of their own.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::appliance::{Appliance, Policy};
use super::support::*;

/// Tells the process that it is the one.
const ALONE: &str = "POLLUX_TEST_ALONE";

/// Runs the test `name` of this file in a process of its own; returns whether this is it.
fn is_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let name = format!(
        "{}::{name}",
        module_path!().split_once("::").expect("a crate").1
    );
    let output = Command::new(std::env::current_exe().expect("program"))
        .args(["--exact", &name, "--nocapture"])
        .env(ALONE, "1")
        .stdin(Stdio::null())
        .output()
        .expect("process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{output:?}"
    );
    false
}

/// Processor time that the process uses while it has nothing to do.
fn busy_time(within: Duration) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("a time");
    let before = now();
    std::thread::sleep(within);
    now() - before
}

#[test]
fn an_idle_connection_costs_no_time() {
    if !is_alone("an_idle_connection_costs_no_time") {
        return;
    }
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (client, server) = chain.connect();
        exchange(&client, &server, 1, 10);
        let (_idle, _other) = chain.connect();
        chain.settle_to(1);
        let used = busy_time(Duration::from_millis(400));
        assert!(used < Duration::from_millis(100), "{used:?}");
    }
}

#[test]
fn a_shortage_of_descriptors_neither_spins_nor_loses_connections() {
    if !is_alone("a_shortage_of_descriptors_neither_spins_nor_loses_connections") {
        return;
    }
    let appliance = Appliance::start(plan(Policy::Echo));
    let peer = TcpListener::bind("127.0.0.1:0").expect("listener");
    let near = start(
        &appliance,
        "tcp:127.0.0.1:0",
        &format!("smc:{}", address(&peer)),
    );
    let open = || TcpStream::connect(listening(&near)).expect("connect");
    let first = open();
    until(&near, |figures| figures.accepted == 1);
    let roundtrip = |client: &TcpStream| {
        (&mut &*client).write_all(b"ping").expect("write");
        (&mut &*client).read_exact(&mut [0; 4]).expect("read");
    };
    roundtrip(&first);

    let old = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(128),
            ..old
        },
    )
    .expect("limit");
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // One is left for this end of the connection and none for the other.
    files.pop();
    let second = open();
    let used = busy_time(Duration::from_millis(400));
    assert!(used < Duration::from_millis(100), "{used:?}");
    assert_eq!(figures(&near).accepted, 1);
    roundtrip(&first);
    setrlimit(Resource::Nofile, old).expect("limit");
    roundtrip(&second);
    assert_eq!(figures(&near).accepted, 2);
}
