//! The client library against an appliance that says and writes whatever it likes.
//!
//! A program must come out of it with errors, never with a panic, a hang or a descriptor too many: it is
//! somebody else's process. What it reads is at most what it asked for, what it can read or write at
//! once is at most a ring, and once the appliance is known to be gone it stays gone.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pollux_attach::client::{Blocking, RequestId, Session, SessionOptions, Stream, StreamEvent};
use pollux_attach::layout::VERSION;
use pollux_attach::message::{Reply, Role};
use pollux_attach::packet;
use pollux_ring::{LineWriter, Segment, Wake, WakeSender, wake_channel};

use super::{BUFFER, EVENT_LINES, EVENTS, LINES_END, layout};
use crate::{Input, fds};

/// Most steps of a run: the submission ring, which nobody empties here, must not fill, or the library
/// waits for it as it should.
const STEPS_MAX: usize = 40;

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    let before = fds::lowest_free();
    let mut input = Input::new(bytes);
    if let Some(mut world) = World::open(&mut input) {
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                break;
            }
            world.step(&mut input);
        }
        world.finish();
    }
    assert_eq!(fds::lowest_free(), before, "a descriptor was left open");
}

struct World {
    session: Session,
    /// The appliance's end.
    control: OwnedFd,
    segment: Segment,
    lines: LineWriter,
    /// Wakes the program.
    wake: WakeSender,
    streams: Vec<Stream>,
    requests: Vec<RequestId>,
    events: Vec<StreamEvent>,
    buffer: Vec<u8>,
    was_gone: bool,
}

/// A TCP socket that leads nowhere: the library passes its descriptor on and asks it nothing.
fn tcp() -> TcpStream {
    let (inet, stream) = (
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
    );
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(inet, stream, flags, None).expect("a socket");
    TcpStream::from(socket)
}

impl World {
    /// Joins an appliance whose welcome is mostly a good one.
    fn open(input: &mut Input<'_>) -> Option<World> {
        let how = input.byte();
        let (here, control) = packet::pair().expect("a pair");
        let segment = layout().create_segment("fuzz").expect("memory");
        if how & 1 != 0 {
            // The header is not what the segment is.
            let at = usize::from(input.byte() % 8) * 8;
            segment.word(at).expect("inside").store(input.number());
        }
        let (wake, receiver) = wake_channel().expect("a pipe");
        let worker_wake = Wake::new().expect("an eventfd");
        let (version, session) = (VERSION + u32::from(how & 6 == 6), input.byte().into());
        let mut welcome = Reply::Welcome { version, session }.emit();
        if how & 0x18 == 0x18 {
            let at = usize::from(input.byte()) % welcome.len();
            welcome[at] ^= input.byte();
        }
        let mut fds = [segment.fd(), worker_wake.fd(), receiver.fd()];
        if how & 0xe0 == 0xe0 {
            fds.rotate_left(usize::from(how >> 1 & 3));
        }
        let count = if how & 0x70 == 0x60 {
            usize::from(input.byte() % 3)
        } else {
            3
        };
        packet::send(&control, &welcome, &fds[..count]).expect("welcome");
        let options = SessionOptions {
            name: "fuzz".to_owned(),
            spin: Duration::ZERO,
            ..SessionOptions::default()
        };
        let session = match Session::open_connected(here, &options) {
            Ok(session) => session,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return None;
            }
        };
        let lines = LineWriter::new(segment.clone(), EVENTS, EVENT_LINES).expect("lines");
        Some(World {
            session,
            control,
            segment,
            lines,
            wake,
            streams: Vec::new(),
            requests: Vec::new(),
            events: Vec::new(),
            buffer: vec![0; 2 * BUFFER as usize],
            was_gone: false,
        })
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        match op & 0x0f {
            0..=3 => self.event(op >> 4, input),
            4 => self.scribble(input),
            5 | 6 => self.reply(op >> 4, input),
            7 => {
                let bytes = input.bytes(usize::from(op >> 4) * 4 + 1).to_vec();
                self.say(&bytes);
            }
            8 => self.upgrade(op >> 4),
            9 | 10 => self.read(op >> 4, input.byte()),
            11 | 12 => self.write(op >> 4, input.byte()),
            13 => self.rare(op >> 4),
            14 => self.poll(),
            _ => {
                let _ = self.wake.signal();
                let none = Some(Duration::ZERO);
                self.session
                    .wait(&mut self.events, none)
                    .expect("waiting fails for nothing");
                self.take_events();
            }
        }
        self.judge();
    }

    /// A line of the worker.
    fn event(&mut self, how: u8, input: &mut Input<'_>) {
        let (slot, generation) = (u64::from(how & 3), u64::from(how >> 2 & 1) + 1);
        let (len, state) = (u64::from(input.byte() % 40), u64::from(input.byte()));
        let word = len << 8 | slot << 16 | generation << 32 | state << 48;
        let (produced, reclaimed) = (input.number(), input.number());
        self.lines.write(&[word, produced, reclaimed, 1, 2, 3, 4]);
        // Whatever the program has taken.
        let _ = self.lines.refresh(self.lines.written());
    }

    fn scribble(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.u16()) % (LINES_END / 8) * 8;
        self.segment.word(at).expect("inside").store(input.number());
    }

    /// A legal message, whether it fits or not.
    fn reply(&mut self, how: u8, input: &mut Input<'_>) {
        let request = u32::from(input.byte() % 8);
        let (slot, generation) = (u16::from(how & 3), u16::from(how >> 2 & 1) + 1);
        let text = String::new();
        let reply = match input.byte() {
            0..=0x7f => Reply::Accelerated {
                request,
                slot,
                generation,
            },
            0x80..=0x9f => Reply::Fallback {
                request,
                code: 3,
                text,
            },
            0xa0..=0xbf => Reply::Failed {
                request,
                errno: input.u32().cast_signed(),
                text,
            },
            0xc0..=0xdf => Reply::Released { slot, generation },
            0xe0 => Reply::Refused { text },
            0xe1 => Reply::Welcome {
                version: VERSION,
                session: 1,
            },
            slot => Reply::Accelerated {
                request,
                slot: slot.into(),
                generation,
            },
        };
        self.say(&reply.emit());
    }

    fn say(&self, bytes: &[u8]) {
        // A program that is not told its messages any more does not read them.
        let _ = packet::send(self.control.as_fd(), bytes, &[]);
    }

    fn upgrade(&mut self, how: u8) {
        let role = if how & 1 == 0 {
            Role::Client
        } else {
            Role::Server
        };
        match self.session.upgrade_start(tcp(), role) {
            Ok(request) => {
                assert!(!self.requests.contains(&request));
                self.requests.push(request);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }

    fn read(&mut self, which: u8, len: u8) {
        let Some(mut stream) = self
            .streams
            .get(usize::from(which) % self.streams.len().max(1))
        else {
            return;
        };
        let len = usize::from(len) * 40 % self.buffer.len();
        let into = &mut self.buffer[..len];
        let read = if which & 8 == 0 {
            stream.read(into)
        } else {
            stream.peek(into)
        };
        assert!(read.is_err() || read.is_ok_and(|read| read <= len));
    }

    fn write(&mut self, which: u8, len: u8) {
        let Some(mut stream) = self
            .streams
            .get(usize::from(which) % self.streams.len().max(1))
        else {
            return;
        };
        let len = usize::from(len) * 40 % self.buffer.len();
        let from = &self.buffer[..len];
        let written = if which & 8 == 0 {
            stream.write(from)
        } else {
            stream.write_urgent(from)
        };
        assert!(written.is_err() || written.is_ok_and(|written| written <= len));
    }

    fn rare(&mut self, which: u8) {
        if self.streams.is_empty() {
            return;
        }
        let at = usize::from(which & 3) % self.streams.len();
        match which >> 2 {
            0 => drop(self.streams.swap_remove(at)),
            1 => self.streams.swap_remove(at).abort(),
            2 => {
                let _ = self.streams[at].shutdown(Shutdown::Write);
            }
            _ => {
                let _ = self.streams[at].shutdown(Shutdown::Both);
            }
        }
    }

    fn poll(&mut self) {
        let _ = self.session.arm();
        self.session.poll_events(&mut self.events);
        self.take_events();
    }

    fn take_events(&mut self) {
        for event in std::mem::take(&mut self.events) {
            match event {
                StreamEvent::Ready { readiness, .. } => {
                    assert!(readiness.readable <= BUFFER as usize);
                    assert!(readiness.writable <= BUFFER as usize);
                }
                StreamEvent::Upgraded { request, stream } => {
                    let at = self.requests.iter().position(|asked| *asked == request);
                    self.requests
                        .swap_remove(at.expect("an answer to a question"));
                    if let Ok(stream) = stream {
                        if stream.is_accelerated() {
                            stream
                                .set_blocking(Blocking::Never)
                                .expect("no system call");
                        }
                        stream.watch(self.streams.len() as u64);
                        // What stays on TCP is the kernel's affair.
                        if stream.is_accelerated() {
                            self.streams.push(stream);
                        }
                    }
                }
                StreamEvent::Gone => assert!(self.session.is_gone()),
            }
        }
    }

    fn judge(&mut self) {
        assert!(
            self.session.is_gone() || !self.was_gone,
            "a dead appliance rose"
        );
        self.was_gone = self.session.is_gone();
        for stream in &self.streams {
            let readiness = stream.readiness().expect("accelerated");
            assert!(readiness.readable <= BUFFER as usize);
            assert!(readiness.writable <= BUFFER as usize);
        }
    }

    /// The appliance dies, and every question has its answer.
    fn finish(mut self) {
        let World { control, .. } = &self;
        rustix::net::shutdown(control, rustix::net::Shutdown::Both).expect("a connected socket");
        for _ in 0..4 {
            self.poll();
        }
        assert!(self.session.is_gone());
        assert!(self.requests.is_empty(), "a question without an answer");
        self.judge();
        for which in 0..self.streams.len() as u8 {
            self.read(which, 200);
            self.write(which, 200);
        }
    }
}
