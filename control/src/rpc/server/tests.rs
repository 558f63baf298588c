use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::super::{Call, Reply, Request};
use super::*;

const FIRST_TOKEN: u64 = 100;

/// A server driven by hand in the test's own thread.
struct World {
    reactor: Reactor,
    server: RpcServer,
    methods: Fake,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

#[derive(Default)]
struct Fake {
    tickets: Vec<Ticket>,
    abandoned: Vec<Ticket>,
    calls: usize,
}

impl Methods for Fake {
    fn call(&mut self, call: Call) -> Reply {
        self.calls += 1;
        match call.request {
            Request::LatencyRun(_) => {
                self.tickets.push(call.ticket);
                Reply::Later(call.ticket)
            }
            Request::ConnList => Reply::Now(Ok(json!("x".repeat(1 << 20)))),
            _ => Reply::Now(Ok(json!("done"))),
        }
    }

    fn abandoned(&mut self, ticket: Ticket) {
        self.abandoned.push(ticket);
    }
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).expect("bind");
        listener.set_nonblocking(true).expect("fcntl");
        let reactor = Reactor::new().expect("epoll");
        let mut server = RpcServer::new(listener.into(), FIRST_TOKEN);
        server.start(&reactor).expect("add");
        World {
            reactor,
            server,
            methods: Fake::default(),
            path,
            _dir: dir,
        }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).expect("connect")
    }

    /// Handles events until there is none.
    fn run(&mut self) {
        let mut events = Vec::new();
        loop {
            self.reactor
                .wait(Some(Duration::ZERO), &mut events)
                .expect("wait");
            if events.is_empty() {
                return;
            }
            for event in &events {
                assert!(self.server.owns(event.token));
                self.server.handle(&self.reactor, event, &mut self.methods);
            }
        }
    }

    fn complete(&mut self, ticket: Ticket, value: Value) {
        self.server.complete(&self.reactor, ticket, Ok(value));
    }
}

fn ask(id: u64, method: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\"}}\n")
}

fn latency(id: u64) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"latency.run\",\
         \"params\":[\"127.0.0.1:1\"]}}\n"
    )
}

fn line(client: &UnixStream) -> Value {
    client.set_nonblocking(true).expect("fcntl");
    let mut text = Vec::new();
    let mut byte = [0];
    while (&mut &*client)
        .read(&mut byte)
        .expect("a whole reply is there")
        == 1
        && byte != *b"\n"
    {
        text.push(byte[0]);
    }
    serde_json::from_slice(&text).expect("JSON")
}

fn is_over(client: &UnixStream) -> bool {
    client.set_nonblocking(true).expect("fcntl");
    matches!((&mut &*client).read(&mut [0]), Ok(0))
}

#[test]
fn many_clients_are_answered_each_with_its_own() {
    let mut world = World::new();
    let mut clients: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| world.connect()).collect();
    for (id, client) in clients.iter_mut().enumerate() {
        client
            .write_all(ask(id as u64, "link.list").as_bytes())
            .expect("write");
    }
    world.run();
    for (id, client) in clients.iter().enumerate() {
        assert_eq!(line(client)["id"], json!(id));
    }
    assert_eq!(world.server.client_count(), CLIENTS_MAX);
}

#[test]
fn one_client_too_many_is_told_so_and_closed() {
    let mut world = World::new();
    let mut clients: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| world.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        // Half a request is under way as well.
        let text = latency(1);
        let text = &text.as_bytes()[..text.len() - number % 2];
        client.write_all(text).expect("write");
    }
    world.run();
    let late = world.connect();
    world.run();
    assert_eq!(line(&late)["error"]["code"], RpcError::BUSY);
    assert!(is_over(&late));
    drop(clients);
    world.run();
    assert_eq!(world.server.client_count(), 0);
}

#[test]
fn the_client_that_was_silent_for_longest_makes_room() {
    let mut world = World::new();
    let mut clients: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| world.connect()).collect();
    world.run();
    // All have spoken since the second one did.
    for number in (1..CLIENTS_MAX).chain([0]) {
        let client = &mut clients[number];
        client
            .write_all(ask(7, "link.list").as_bytes())
            .expect("write");
        world.run();
        assert_eq!(line(client)["id"], 7);
    }
    let mut late = world.connect();
    late.write_all(ask(8, "link.list").as_bytes())
        .expect("write");
    world.run();
    assert_eq!(line(&late)["id"], 8);
    assert_eq!(line(&clients[1])["error"]["code"], RpcError::BUSY);
    assert!(is_over(&clients[1]));
    // Nobody else has noticed.
    for number in (2..CLIENTS_MAX).chain([0]) {
        let client = &mut clients[number];
        client
            .write_all(ask(9, "link.list").as_bytes())
            .expect("write");
        world.run();
        assert_eq!(line(client)["id"], 9);
    }
    assert_eq!(world.server.client_count(), CLIENTS_MAX);
}

#[test]
fn a_request_in_pieces_is_answered_when_its_last_byte_is_there() {
    let mut world = World::new();
    let mut client = world.connect();
    let text = ask(1, "link.list");
    for byte in text.as_bytes() {
        assert_eq!(world.methods.calls, 0);
        client.write_all(&[*byte]).expect("write");
        world.run();
    }
    assert_eq!(line(&client)["result"], "done");
}

#[test]
fn a_client_that_closes_its_half_still_gets_its_answers() {
    let mut world = World::new();
    let mut client = world.connect();
    client.write_all(latency(1).as_bytes()).expect("write");
    client
        .write_all(ask(2, "link.list").trim_end().as_bytes())
        .expect("write");
    client.shutdown(Shutdown::Write).expect("shutdown");
    world.run();
    assert_eq!(line(&client)["id"], 2);
    assert_eq!(world.server.client_count(), 1);
    assert!(!world.server.is_idle());
    let ticket = world.methods.tickets[0];
    world.complete(ticket, json!("late"));
    assert_eq!(line(&client)["result"], "late");
    assert!(is_over(&client));
    assert_eq!(world.server.client_count(), 0);
    assert!(world.server.is_idle());
}

#[test]
fn a_half_written_request_of_a_client_that_dies_is_dropped() {
    let mut world = World::new();
    let mut client = world.connect();
    client
        .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"met")
        .expect("write");
    drop(client);
    world.run();
    assert_eq!((world.server.client_count(), world.methods.calls), (0, 0));
}

#[test]
fn what_a_dead_client_asked_for_is_abandoned() {
    let mut world = World::new();
    let mut client = world.connect();
    client.write_all(latency(1).as_bytes()).expect("write");
    world.run();
    drop(client);
    world.run();
    assert_eq!(world.methods.abandoned, world.methods.tickets);
    assert_eq!(world.server.client_count(), 0);
    let ticket = world.methods.tickets[0];
    world.complete(ticket, json!("nobody reads this"));
}

#[test]
fn an_answer_to_a_dead_client_abandons_its_other_questions() {
    let mut world = World::new();
    let mut client = world.connect();
    client.write_all(latency(1).as_bytes()).expect("write");
    client.write_all(latency(2).as_bytes()).expect("write");
    world.run();
    drop(client);
    let tickets = world.methods.tickets.clone();
    world.complete(tickets[0], json!("nobody reads this"));
    world.run();
    assert_eq!(world.methods.abandoned, tickets[1..]);
    assert_eq!(world.server.client_count(), 0);
}

#[test]
fn a_line_too_long_is_refused_and_the_next_one_is_answered() {
    let mut world = World::new();
    let mut client = world.connect();
    client.set_nonblocking(true).expect("fcntl");
    let text = format!(
        "{}\n{}",
        "x".repeat(REQUEST_BYTES_MAX * 2),
        ask(7, "link.list")
    );
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match client.write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        world.run();
    }
    assert_eq!(line(&client)["error"]["code"], RpcError::INVALID_REQUEST);
    assert_eq!(line(&client)["id"], 7);
}

#[test]
fn a_client_that_does_not_read_is_not_served_beyond_its_outbox() {
    let mut world = World::new();
    let mut client = world.connect();
    for id in 0..20 {
        client
            .write_all(ask(id, "conn.list").as_bytes())
            .expect("write");
    }
    world.run();
    let served = world.methods.calls;
    assert!(
        served < 10,
        "{served} answers of 1 MiB for a client that reads none"
    );
    // Another client is not held up.
    let mut other = world.connect();
    other
        .write_all(ask(1, "link.list").as_bytes())
        .expect("write");
    world.run();
    assert_eq!(line(&other)["result"], "done");
    // When it reads, everything comes, in order.
    client.set_nonblocking(true).expect("fcntl");
    let mut text = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    let mut lines = 0;
    while lines < 20 {
        match client.read(&mut chunk) {
            Ok(count) => {
                lines += chunk[..count].iter().filter(|byte| **byte == b'\n').count();
                text.extend_from_slice(&chunk[..count]);
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        world.run();
    }
    for (id, line) in BufReader::new(&text[..]).lines().enumerate() {
        let reply: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        assert_eq!(reply["id"], json!(id));
    }
}

#[test]
fn a_client_waits_for_a_bounded_number_of_answers() {
    let mut world = World::new();
    let mut client = world.connect();
    for id in 0..=WAITING_MAX as u64 {
        client.write_all(latency(id).as_bytes()).expect("write");
    }
    world.run();
    assert_eq!(world.methods.tickets.len(), WAITING_MAX);
    let ticket = world.methods.tickets[0];
    world.complete(ticket, json!("first"));
    world.run();
    assert_eq!(world.methods.tickets.len(), WAITING_MAX + 1);
    assert_eq!(line(&client)["result"], "first");
}

#[test]
fn requests_held_back_behind_calls_without_an_answer_of_their_own_go_on() {
    let notifications = latency(0).replace("\"id\":0,", "").repeat(WAITING_MAX);
    let batch = format!("[{},{}]\n", latency(1).trim(), latency(2).trim());
    let with_batch = batch + &latency(3).repeat(WAITING_MAX - 2);
    for calls in [notifications, with_batch] {
        let mut world = World::new();
        let mut client = world.connect();
        let text = calls + &ask(9, "link.list");
        client.write_all(text.as_bytes()).expect("write");
        world.run();
        assert_eq!(world.methods.tickets.len(), WAITING_MAX);
        // Nothing is said to the client, but there is room for what it asked next.
        let ticket = world.methods.tickets[0];
        world.complete(ticket, json!("table"));
        world.run();
        assert_eq!(line(&client)["id"], json!(9));
    }
}

#[test]
fn an_event_of_a_client_that_is_gone_is_ignored() {
    let mut world = World::new();
    let event = Event {
        token: FIRST_TOKEN + 3,
        readable: true,
        writable: true,
        closed: true,
    };
    world
        .server
        .handle(&world.reactor, &event, &mut world.methods);
    assert_eq!(world.server.client_count(), 0);
}
