//! The application of `polluxd`'s workers: an echo responder and a ping-pong latency meter.

use crate::app::{App, Io};
use crate::mailbox::{ConnId, ConnOutcome};
use pollux_proto::event::EventSet;

/// Tag of connections that answer every byte with the same byte.
pub const TAG_ECHO: u64 = 1;
/// Tag of connections that measure round trips when ordered to.
pub const TAG_PING: u64 = 2;

/// Longest message of a ping-pong run, in bytes.
pub const PING_BYTES_MAX: usize = 64 * 1024;

/// One ping-pong measurement; made by control with all its memory, filled by the worker.
#[derive(Debug)]
pub struct PingRun {
    /// The connection, opened with [`TAG_PING`].
    pub conn: ConnId,
    /// Bytes of each message, 1 to [`PING_BYTES_MAX`] and at most the smaller ring of the two.
    pub message_bytes: usize,
    /// Round trips before the first one that counts.
    pub warmup: u32,
    /// End of the run, in nanoseconds after the warm-up; one sample is taken whatever it takes.
    pub duration_ns: u64,
    /// Round-trip times in nanoseconds; the run also ends when its capacity is used up.
    pub samples: Vec<u32>,
    /// How the run ended; set by the worker.
    pub end: PingEnd,
}

/// How a ping-pong run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PingEnd {
    /// Still running.
    Running,
    /// The time was up or the samples were full.
    Done,
    /// The connection was not there, was busy with another run, or ended during the run.
    Lost,
    /// The peer's answer was not what had been sent.
    Corrupt,
}

/// The run that is going on.
struct Going {
    run: Box<PingRun>,
    started: u64,
    sent_at: u64,
    to_send: usize,
    to_receive: usize,
    rounds: u64,
}

/// The built-in application.
pub struct Builtin {
    buffer: Box<[u8]>,
    going: Option<Going>,
}

impl std::fmt::Debug for Builtin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builtin")
            .field("pinging", &self.going.is_some())
            .finish_non_exhaustive()
    }
}

impl Default for Builtin {
    fn default() -> Self {
        Builtin {
            buffer: vec![0; PING_BYTES_MAX].into_boxed_slice(),
            going: None,
        }
    }
}

impl Builtin {
    fn echo<I: Io>(&mut self, conn: ConnId, events: EventSet, io: &mut I) {
        loop {
            let len = io
                .readable(conn)
                .min(io.writable(conn))
                .min(self.buffer.len());
            if len == 0 {
                break;
            }
            let got = io.read(conn, &mut self.buffer[..len]);
            io.write(conn, &self.buffer[..got]);
        }
        if events.contains(EventSet::RESET)
            || (events.contains(EventSet::END_OF_STREAM) && io.readable(conn) == 0)
        {
            io.close(conn);
        }
    }

    /// Sends what is left of the current message.
    fn send<I: Io>(buffer: &[u8], going: &mut Going, io: &mut I) {
        while going.to_send > 0 {
            let from = going.run.message_bytes - going.to_send;
            let sent = io.write(going.run.conn, &buffer[from..going.run.message_bytes]);
            if sent == 0 {
                return;
            }
            going.to_send -= sent;
        }
    }

    fn begin_round<I: Io>(buffer: &mut [u8], going: &mut Going, io: &mut I) {
        // The first byte names the round, so that an answer to an earlier one cannot be taken
        // for this one's.
        buffer[0] = going.rounds as u8;
        going.to_send = going.run.message_bytes;
        going.to_receive = going.run.message_bytes;
        Self::send(buffer, going, io);
    }

    fn ping<I: Io>(&mut self, io: &mut I) -> PingEnd {
        let Some(going) = self.going.as_mut() else {
            return PingEnd::Running;
        };
        Self::send(&self.buffer, going, io);
        let bytes = going.run.message_bytes;
        while going.to_receive > 0 {
            let from = bytes - going.to_receive;
            let got = io.read(going.run.conn, &mut self.buffer[from..bytes]);
            if got == 0 {
                return PingEnd::Running;
            }
            going.to_receive -= got;
        }
        if self.buffer[0] != going.rounds as u8 {
            return PingEnd::Corrupt;
        }
        let now = io.now();
        if going.rounds >= u64::from(going.run.warmup) {
            let round_trip = u32::try_from(now - going.sent_at).unwrap_or(u32::MAX);
            going.run.samples.push(round_trip);
        }
        going.rounds += 1;
        if going.rounds == u64::from(going.run.warmup) {
            going.started = now;
        }
        let samples = &going.run.samples;
        let full = samples.len() == samples.capacity();
        // On a machine so busy that one round trip takes all the time, it is still a sample.
        let late = !samples.is_empty() && now - going.started >= going.run.duration_ns;
        if full || late {
            return PingEnd::Done;
        }
        going.sent_at = now;
        Self::begin_round(&mut self.buffer, going, io);
        PingEnd::Running
    }

    fn finish(&mut self, end: PingEnd) -> Option<Box<PingRun>> {
        let mut run = self.going.take()?.run;
        run.end = end;
        Some(run)
    }
}

impl App for Builtin {
    type Order = Box<PingRun>;
    type Report = Box<PingRun>;

    fn order<I: Io>(&mut self, mut run: Box<PingRun>, io: &mut I) -> Option<Box<PingRun>> {
        let fits = (1..=self.buffer.len()).contains(&run.message_bytes);
        if !fits || run.samples.capacity() == 0 || self.going.is_some() {
            run.end = PingEnd::Lost;
            return Some(run);
        }
        let bytes = run.message_bytes;
        for (index, byte) in self.buffer[..bytes].iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
        let now = io.now();
        let mut going = Going {
            run,
            started: now,
            sent_at: now,
            to_send: 0,
            to_receive: 0,
            rounds: 0,
        };
        Self::begin_round(&mut self.buffer, &mut going, io);
        self.going = Some(going);
        None
    }

    fn opened<I: Io>(&mut self, _conn: ConnId, _tag: u64, _io: &mut I) {}

    #[inline]
    fn ready<I: Io>(
        &mut self,
        conn: ConnId,
        tag: u64,
        events: EventSet,
        io: &mut I,
    ) -> Option<Box<PingRun>> {
        if tag == TAG_ECHO {
            self.echo(conn, events, io);
            return None;
        }
        let ours = self
            .going
            .as_ref()
            .is_some_and(|going| going.run.conn == conn);
        let end = if ours {
            self.ping(io)
        } else {
            PingEnd::Running
        };
        if events.contains(EventSet::RESET) || events.contains(EventSet::END_OF_STREAM) {
            io.close(conn);
            return if ours {
                self.finish(PingEnd::Lost)
            } else {
                None
            };
        }
        if end == PingEnd::Running {
            None
        } else {
            self.finish(end)
        }
    }

    fn closed(&mut self, conn: ConnId, _tag: u64, _outcome: ConnOutcome) -> Option<Box<PingRun>> {
        if self
            .going
            .as_ref()
            .is_some_and(|going| going.run.conn == conn)
        {
            return self.finish(PingEnd::Lost);
        }
        None
    }
}
