//! The control socket: any bytes in any cuts from several clients, answers that come late, clients that
//! stop reading, half close, or go.
//!
//! 1. Every line that asks with an id gets exactly one answer with that id, every other line at most
//!    one; answers are JSON-RPC 2.0, one a line.
//! 2. A call that was begun is answered or abandoned, once.
//! 3. What is said is bounded by what was asked, however long a line is.
//! 4. When the clients are gone nothing of them is left: no client, no descriptor, no answer to come.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use pollux_control::reactor::{Event, Reactor};
use pollux_control::rpc::{
    CLIENTS_MAX, Call, Methods, REQUEST_BYTES_MAX, Reply, RpcError, RpcServer, Ticket,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};

use crate::{Input, fds};

const FIRST_TOKEN: u64 = 10;
/// Clients of a run.
const CLIENTS: usize = 3;
/// Most bytes that a client hears in a run.
const HEARD_BYTES_MAX: usize = 16 << 20;
/// Turns after which whatever was under way has come to an end.
const ROUNDS_MAX: usize = 64;

thread_local! {
    static BED: RefCell<Option<Bed>> = const { RefCell::new(None) };
}

/// The server and its reactor, made once.
struct Bed {
    reactor: Reactor,
    server: RpcServer,
    address: SocketAddrUnix,
}

/// Answers at once, later, or with an error, as the input has said.
#[derive(Default)]
struct Owner {
    later: u8,
    begun: BTreeSet<Ticket>,
    calls: u64,
    abandoned: u64,
}

impl Methods for Owner {
    fn call(&mut self, call: Call) -> Reply {
        self.calls += 1;
        let name = format!("{:?}", call.request);
        match self.later & 3 {
            0 => {
                self.later = self.later.rotate_right(2);
                assert!(
                    self.begun.insert(call.ticket),
                    "a ticket is given out twice"
                );
                Reply::Later(call.ticket)
            }
            1 => Reply::Now(Err(RpcError::failed(name))),
            2 => Reply::Now(Ok(json!([name, self.calls]))),
            _ => Reply::Now(Ok(Value::Bool(true))),
        }
    }

    fn abandoned(&mut self, ticket: Ticket) {
        self.abandoned += 1;
        assert!(self.begun.remove(&ticket), "an unknown call is abandoned");
    }
}

impl Bed {
    fn new() -> Bed {
        let kind = SocketType::STREAM;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
        let listener = listener.expect("a socket");
        // In the namespace without files, under a name that the kernel chooses.
        let name = format!("pollux-fuzz-rpc-{}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
        rustix::net::bind(&listener, &address).expect("a free name");
        rustix::net::listen(&listener, 16).expect("listening");
        let reactor = Reactor::new().expect("a reactor");
        let mut server = RpcServer::new(listener, FIRST_TOKEN);
        server.start(&reactor).expect("started");
        Bed {
            reactor,
            server,
            address,
        }
    }
}

/// One client: its end, and what it has said and heard.
struct Client {
    socket: Option<OwnedFd>,
    said: Vec<u8>,
    heard: Vec<u8>,
}

struct World<'a> {
    bed: &'a mut Bed,
    owner: Owner,
    clients: Vec<Client>,
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    BED.with_borrow_mut(|bed| {
        let bed = bed.get_or_insert_with(Bed::new);
        let before = fds::lowest_free();
        let mut input = Input::new(bytes);
        let mut world = World::new(bed, input.byte());
        while !input.is_empty() {
            world.step(&mut input);
        }
        world.finish();
        assert_eq!(fds::lowest_free(), before, "a descriptor was left open");
    });
}

impl World<'_> {
    fn new(bed: &mut Bed, later: u8) -> World<'_> {
        World {
            bed,
            owner: Owner {
                later,
                ..Owner::default()
            },
            clients: Vec::new(),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        let which = usize::from(op >> 4) % CLIENTS;
        match op & 0x0f {
            0..=5 => {
                let count = usize::from(input.byte());
                let bytes = input.bytes(count).to_vec();
                self.say(which, &bytes);
            }
            6 => self.say(which, b"\n"),
            7 => {
                // The first has by far the longest answer.
                let call = match usize::from(input.byte()) {
                    0xff => 0,
                    other => 1 + other % (CALLS.len() - 1),
                };
                self.say(which, CALLS[call].as_bytes());
            }
            8 => self.say_much(which, input.byte()),
            9 | 10 => {
                self.turn();
            }
            11 => self.hear(which),
            12 => self.complete(input.byte()),
            13 => {
                if let Some(socket) = self.client(which) {
                    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
                }
            }
            14 => self.owner.later = input.byte(),
            _ => {
                if let Some(client) = self.clients.get_mut(which) {
                    client.socket = None;
                }
            }
        }
    }

    /// The socket of a client that has not gone; connected when it is first needed.
    fn client(&mut self, which: usize) -> Option<&OwnedFd> {
        while self.clients.len() <= which {
            let kind = SocketType::STREAM;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
            let socket = socket.expect("a socket");
            rustix::net::connect(&socket, &self.bed.address).expect("room in the queue");
            self.clients.push(Client {
                socket: Some(socket),
                said: Vec::new(),
                heard: Vec::new(),
            });
        }
        self.clients[which].socket.as_ref()
    }

    fn say(&mut self, which: usize, bytes: &[u8]) {
        let Some(socket) = self.client(which) else {
            return;
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Ok(count) = rustix::net::send(socket, bytes, flags) {
            self.clients[which].said.extend_from_slice(&bytes[..count]);
        }
    }

    /// Much at once: a line too long, many short ones, or many calls.
    fn say_much(&mut self, which: usize, how: u8) {
        let (piece, bytes): (&[u8], usize) = match how & 3 {
            0 => (b"x", 128 << 10),
            1 => (b"\n", 4 << 10),
            2 => (b"[[[[", 8 << 10),
            _ => (CALLS[1].as_bytes(), 1 << 10),
        };
        // Mostly little of it: a byte here is a call of libFuzzer for each comparison that it meets.
        let bytes = match how >> 2 {
            0x3f => bytes,
            part => bytes * usize::from(part) / 1024,
        };
        let many = piece.repeat(bytes / piece.len() + 1);
        // Once in a while a line that is too long.
        let times = match how {
            0xfc => REQUEST_BYTES_MAX / bytes + 2,
            _ => 1,
        };
        for _ in 0..times {
            self.say(which, &many);
            self.turn();
        }
    }

    /// The reactor's events, until there are none; whether it came to that. Many lines at once take
    /// more than one turn, since the server carries out only so many of a client before others.
    fn turn(&mut self) -> bool {
        for _ in 0..ROUNDS_MAX {
            let mut events = Vec::new();
            self.bed
                .reactor
                .wait(Some(Duration::ZERO), &mut events)
                .expect("waiting");
            if events.is_empty() {
                return true;
            }
            for event in &events {
                assert!(self.bed.server.owns(event.token));
                self.handle(event);
            }
        }
        false
    }

    fn handle(&mut self, event: &Event) {
        self.bed
            .server
            .handle(&self.bed.reactor, event, &mut self.owner);
        assert!(self.bed.server.client_count() <= CLIENTS_MAX);
    }

    fn hear(&mut self, which: usize) {
        let Some(client) = self.clients.get_mut(which) else {
            return;
        };
        let Some(socket) = &client.socket else { return };
        let mut bytes = [0; 1 << 12];
        while let Ok((_, count @ 1..)) = rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT)
        {
            client.heard.extend_from_slice(&bytes[..count]);
            assert!(
                client.heard.len() < HEARD_BYTES_MAX,
                "more is said than was asked for"
            );
        }
    }

    /// Bytes that all clients together have heard.
    fn heard(&self) -> usize {
        self.clients.iter().map(|client| client.heard.len()).sum()
    }

    /// An answer that was promised, or one that nobody waits for.
    fn complete(&mut self, which: u8) {
        let Some(ticket) = self.owner.begun.iter().nth(usize::from(which & 7)).copied() else {
            return;
        };
        self.owner.begun.remove(&ticket);
        let answer = match which >> 7 {
            0 => Ok(json!({"which": which})),
            _ => Err(RpcError::busy("later")),
        };
        self.bed.server.complete(&self.bed.reactor, ticket, answer);
        // A second time it does nothing.
        self.bed
            .server
            .complete(&self.bed.reactor, ticket, Ok(Value::Null));
    }

    fn finish(mut self) {
        // A line takes a byte at least, and a turn that is cut short carries out a line a round.
        let said: usize = self.clients.iter().map(|client| client.said.len()).sum();
        let rounds_max = ROUNDS_MAX + said / ROUNDS_MAX;
        // Twice in which nothing is heard: an answer that was taken makes room for a request that was
        // held back.
        let (mut quiet, mut rounds) = (0, 0);
        while quiet < 2 {
            rounds += 1;
            assert!(rounds <= rounds_max, "it does not come to rest");
            let rests = self.turn();
            let before = self.heard();
            for which in 0..self.clients.len() {
                self.hear(which);
            }
            let is_silent = rests && self.heard() == before;
            let is_quiet = is_silent && self.owner.begun.is_empty() && self.bed.server.is_idle();
            quiet = if is_quiet { quiet + 1 } else { 0 };
            while !self.owner.begun.is_empty() {
                self.complete(0);
            }
        }
        for client in &self.clients {
            judge(client);
        }
        self.clients.clear();
        assert!(self.turn(), "clients that are gone keep it busy");
        assert_eq!(self.bed.server.client_count(), 0, "a client is left behind");
        assert!(self.owner.begun.is_empty(), "a call without an end");
    }
}

/// What a client heard against what it said.
fn judge(client: &Client) {
    let Client {
        said,
        heard,
        socket,
    } = client;
    if socket.is_none() {
        return;
    }
    assert!(heard.is_empty() || heard.ends_with(b"\n"), "half an answer");
    let answers: Vec<Value> = heard
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("answers are JSON"))
        .collect();
    for answer in &answers {
        match answer {
            Value::Array(answers) => {
                assert!(!answers.is_empty());
                answers.iter().for_each(judge_answer);
            }
            answer => judge_answer(answer),
        }
    }
    // What was read may end in half a line; the server has not answered that unless the client
    // ended its direction.
    let lines = said.split(|byte| *byte == b'\n');
    let questions = lines
        .filter(|line| !line.iter().all(u8::is_ascii_whitespace))
        .count();
    assert!(
        answers.len() <= questions,
        "{} answers to {questions}",
        answers.len()
    );
    judge_plain_calls(said, &answers);
}

/// Calls of the list that were said alone on their line have their answers.
fn judge_plain_calls(said: &[u8], answers: &[Value]) {
    let mut lines: Vec<&[u8]> = said.split_inclusive(|byte| *byte == b'\n').collect();
    lines.retain(|line| line.len() > 40);
    for (number, call) in CALLS.iter().enumerate() {
        let id = json!(100 + number);
        let asked = lines
            .iter()
            .filter(|line| **line == call.as_bytes())
            .count();
        let answered = answers.iter().filter(|answer| answer["id"] == id).count();
        let is_single = call.contains(&format!("\"id\":{id}"));
        assert!(
            !is_single || answered >= asked,
            "{asked} asked, {answered} answered: {call}"
        );
    }
}

fn judge_answer(answer: &Value) {
    let members = answer.as_object().expect("an answer is an object");
    assert_eq!(members.get("jsonrpc"), Some(&json!("2.0")));
    let id = members.get("id").expect("an answer has an id");
    assert!(id.is_null() || id.is_string() || id.is_number(), "{id}");
    let (result, error) = (members.get("result"), members.get("error"));
    assert!(result.is_some() != error.is_some(), "{answer}");
    assert_eq!(members.len(), 3);
    if let Some(error) = error {
        assert!(error["code"].is_i64() && error["message"].is_string());
    }
}

/// Calls that mean something; the n-th has id 100 + n.
const CALLS: &[&str] = &[
    "{\"jsonrpc\":\"2.0\",\"id\":100,\"method\":\"rpc.discover\"}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":101,\"method\":\"conn.list\"}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":102,\"method\":\"worker.set_poll\",\"params\":[\"busy\",1]}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":103,\"method\":\"inline.set\",\"params\":{\"inline\":64}}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":104,\"method\":\"latency.run\",\"params\":{\"connect\":\"127.0.0.1:1\"}}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":105,\"method\":\"config.check\",\"params\":{\"text\":\"[attach]\\nslots = 0\"}}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":106,\"method\":\"no.such\"}\n",
    "{\"jsonrpc\":\"2.0\",\"method\":\"stats.clear\"}\n",
    "[{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"link.list\"},{\"jsonrpc\":\"2.0\",\"id\":\"b\",\"method\":\"stats.show\"},7]\n",
];
