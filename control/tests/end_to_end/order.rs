//! Starting and stopping in order, and what is open to whom.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use pollux_attach::client::{Session, SessionOptions};
use rustix::process::Signal;

use crate::support::wire::{Plain, exchange, expect_reset, write_stream};
use crate::support::{Appliance, PEER, Pair, Place, Shape, listener, mode};

#[test]
fn sigterm_with_traffic_under_way_ends_in_order_and_the_peer_lives_on() {
    let (target, address) = listener();
    let mut pair = Pair::start(&Shape::to(address));
    let client = Plain::connect(pair.entry());
    let server = Plain::tcp(target.accept().expect("accept").0);
    std::thread::scope(|scope| {
        // Bytes in both directions, more than fit on the way.
        let writers = [(&client, 51), (&server, 52)].map(|(end, seed)| {
            let writer = scope.spawn(move || write_stream(end, seed, 64 << 20));
            (end, writer)
        });
        // Both are under way once one byte has come through each.
        for mut end in [&client, &server] {
            end.read_exact(&mut [0]).expect("read");
        }
        pair.b.signal(Signal::TERM);
        assert_eq!(pair.b.ended().code(), Some(0), "{}", pair.b.log());
        for (mut end, writer) in writers {
            // The kernel tells of a reset once, to whoever comes first.
            let read = std::io::copy(&mut end, &mut std::io::sink()).map(|_| ());
            let written = writer.join().expect("no panic");
            let told = |result: &std::io::Result<()>| {
                let reset = Some(ErrorKind::ConnectionReset);
                result.as_ref().err().map(|error| error.kind()) == reset
            };
            assert!(told(&read) || told(&written), "{read:?} {written:?}");
        }
    });
    assert!(!pair.place.path("b").exists());
    let left = pair.place.files();
    assert!(
        left.iter()
            .all(|path| !path.ends_with("pollux_core_b.lock"))
    );
    pair.a.until_stat("conns.open", 0);
    let links = pair.a.json(&["show", "links"]);
    assert_eq!(links.as_array().map(Vec::len), Some(0), "{links}");
    pair.a.signal(Signal::TERM);
    assert_eq!(pair.a.ended().code(), Some(0), "{}", pair.a.log());
    assert_eq!(pair.place.files(), Vec::<PathBuf>::new());
}

#[test]
fn a_server_appliance_that_was_stopped_and_started_serves_the_same_clients_again() {
    let (target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    // The same port again.
    let fixed = format!("smc:{}", pair.b.listens("out"));
    let Pair { place, a, mut b } = pair;
    let text = fs::read_to_string(place.path("b.toml")).expect("a configuration");
    for round in 0..3 {
        let client = Plain::connect(a.listens("in"));
        let server = Plain::tcp(target.accept().expect("accept").0);
        exchange(&client, &server, 53 + round, 1 << 20);
        b.signal(Signal::TERM);
        assert_eq!(b.ended().code(), Some(0), "{}", b.log());
        fs::write(
            place.path("b.toml"),
            text.replace("smc:127.0.0.1:0", &fixed),
        )
        .expect("write");
        b = b.start_again(&place);
    }
    assert_eq!(a.stat("fallbacks.total"), 0);
}

#[test]
fn a_second_instance_is_refused_and_a_stale_socket_is_taken_over() {
    let place = Place::new();
    let a = Appliance::start(&place, "a", "");
    let second = Command::new(env!("CARGO_BIN_EXE_polluxd"))
        .arg("--config")
        .arg(place.path("a.toml"))
        .stdin(Stdio::null())
        .output()
        .expect("polluxd starts");
    assert_eq!(second.status.code(), Some(75), "{second:?}");
    assert_eq!(a.json(&["show", "appliance"])["pid"], a.pid());
    a.signal(Signal::KILL);
    let (control, attach) = (a.control_socket(), a.attach_socket());
    let a = a.start_again(&place);
    assert!(control.exists() && attach.exists());
    assert_eq!(a.json(&["show", "appliance"])["pid"], a.pid());
    drop(a);
    // Sockets that somebody else left there.
    fs::remove_dir_all(place.path("a")).expect("remove");
    fs::create_dir(place.path("a")).expect("create");
    drop(UnixListener::bind(&control).expect("bind"));
    drop(UnixListener::bind(&attach).expect("bind"));
    let a = Appliance::start(&place, "a", "");
    assert_eq!(a.json(&["show", "appliance"])["pid"], a.pid());
}

#[test]
fn sockets_and_their_folder_are_for_the_owner_only() {
    let (_target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    for appliance in [&pair.a, &pair.b] {
        for socket in [appliance.control_socket(), appliance.attach_socket()] {
            assert_eq!(mode(&socket), 0o600, "{}", socket.display());
            assert_eq!(mode(socket.parent().expect("a folder")), 0o700);
        }
    }
    assert_eq!(mode(&pair.place.path("fabric")), 0o700);
    for entry in fs::read_dir(pair.place.path("fabric")).expect("a folder") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

/// Inodes of the sockets that a process holds.
fn socket_inodes(pid: u32) -> BTreeSet<u64> {
    let held = fs::read_dir(format!("/proc/{pid}/fd")).expect("a process");
    held.filter_map(|entry| {
        let target = fs::read_link(entry.ok()?.path()).ok()?;
        let inode = target
            .to_str()?
            .strip_prefix("socket:[")?
            .strip_suffix(']')?;
        inode.parse().ok()
    })
    .collect()
}

/// Rows of a table under /proc/PID/net, by their columns.
fn net_rows(pid: u32, table: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
    let rows = text.lines().skip(1);
    rows.map(|row| row.split_whitespace().map(str::to_string).collect())
        .collect()
}

/// Ports that a process listens on, over TCP and over anything else of the internet family.
fn listening_ports(pid: u32) -> BTreeSet<(String, u16)> {
    let ours = socket_inodes(pid);
    let mut found = BTreeSet::new();
    for table in ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"] {
        for row in net_rows(pid, table) {
            let listens = row[3] == "0A" || !table.starts_with("tcp");
            if listens && ours.contains(&row[9].parse().expect("an inode")) {
                let (ip, port) = row[1].split_once(':').expect("an address");
                let port = u16::from_str_radix(port, 16).expect("a port");
                found.insert((format!("{table} {ip}"), port));
            }
        }
    }
    found
}

/// Folders of the Unix sockets that a process listens on. Their names are no help: a socket keeps
/// the one that it had before it was moved to its place.
fn listening_folders(pid: u32) -> Vec<PathBuf> {
    let ours = socket_inodes(pid);
    let accepting = "00010000";
    let mut folders: Vec<PathBuf> = net_rows(pid, "unix")
        .into_iter()
        .filter(|row| row[3] == accepting && ours.contains(&row[6].parse().expect("an inode")))
        .map(|row| PathBuf::from(row.get(7).map_or("", String::as_str)))
        .map(|path| path.parent().map_or(path.clone(), PathBuf::from))
        .collect();
    folders.sort();
    folders
}

#[test]
fn nothing_listens_beyond_the_configuration() {
    let (target, address) = listener();
    let place = Place::new();
    let entry_folder = place.path("");
    let entry_folder = entry_folder.components().as_path().to_path_buf();
    let entry = place.path("entry.sock");
    let shape = Shape {
        listen: format!("unix:{}", entry.display()),
        ..Shape::to(address)
    };
    let pair = Pair::start_in(place, &shape, "", "");
    // Also not once connections have been made.
    let client = Plain::connect_unix(&entry);
    let server = Plain::tcp(target.accept().expect("accept").0);
    exchange(&client, &server, 57, 100_000);
    let loopback = "tcp 0100007F".to_string();
    let port = pair.b.listens("out").port();
    assert_eq!(listening_ports(pair.a.pid()), BTreeSet::new());
    assert_eq!(
        listening_ports(pair.b.pid()),
        BTreeSet::from([(loopback, port)])
    );
    let folder = |path: &str| pair.place.path(path);
    assert_eq!(
        listening_folders(pair.a.pid()),
        [entry_folder, folder("a"), folder("a"), folder("fabric")]
    );
    assert_eq!(
        listening_folders(pair.b.pid()),
        [folder("b"), folder("b"), folder("fabric")]
    );
}

#[test]
fn programs_of_an_appliance_that_stops_are_told_and_their_streams_end_in_a_reset() {
    let place = Place::new();
    let b = Appliance::start(&place, "b", PEER);
    let mut a = Appliance::start(&place, "a", PEER);
    let open = |appliance: &Appliance| {
        let options = SessionOptions::default();
        Session::open(appliance.attach_socket(), &options).expect("a session")
    };
    let (at_a, at_b) = (open(&a), open(&b));
    let listener = at_b.listen("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| at_a.connect(address).expect("connect"));
        let (far, _) = listener.accept().expect("accept");
        let near = connecting.join().expect("no panic");
        assert!(near.is_accelerated() && far.is_accelerated());
        a.signal(Signal::TERM);
        for stream in [&near, &far] {
            expect_reset(stream);
        }
    });
    assert_eq!(a.ended().code(), Some(0), "{}", a.log());
    assert!(at_a.connect(address).is_err() && at_a.is_gone());
    assert!(!at_b.is_gone());
    b.until_stat("conns.open", 0);
    assert!(!b.log().contains(" WARN "), "{}", b.log());
    assert_eq!(b.stat("sessions.open"), 1);
}
