//! What becomes of a connection at each step: accepted, connected, upgraded, forwarded, ended.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use pollux_attach::client::{Blocking, Readiness, RequestId, Stream, UpgradeError};
use pollux_attach::message::Role;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::engine::{Alarm, Engine};
use super::flow::{End, Progress, pump, unwatch, watch_dialed};
use super::listen::{Pause, Way};
use super::pair::{Dialing, Open, Pair, PairKey, Queued, Stage, Token, Which};
use super::socket::{Dialed, Socket, dial};

/// Connections accepted from one listener before others get their turn.
const ACCEPTS_PER_TURN: usize = 32;

/// How long a listener rests when descriptors or memory are short.
const PAUSE: Duration = Duration::from_millis(100);

/// How long connecting to a target may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for room in the queue of a Unix socket.
const DIAL_RETRY: Duration = Duration::from_millis(10);

/// Why a connection was never forwarded.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot prepare the connection: {0}")]
    Prepare(io::Error),
    #[error("cannot reach {target}: {error}")]
    Unreachable { target: String, error: io::Error },
    #[error("cannot reach {target}: no answer within {DIAL_TIMEOUT:?}")]
    Late { target: String },
    #[error("cannot upgrade: {0}")]
    Upgrade(#[from] UpgradeError),
    #[error("cannot upgrade: the gateway has no session with the appliance")]
    NoSession,
    #[error("cannot watch the sockets: {0}")]
    Watch(io::Error),
}

/// How a forwarded connection has ended.
enum Outcome {
    Closed,
    Reset,
}

impl Engine {
    /// Accepts what waits at a listener.
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(front) = self.fronts.get_mut(index) else {
                return;
            };
            let error = match front.accept() {
                Ok((socket, from)) => {
                    front.pause = Pause::No;
                    front.figures.accepted();
                    self.begin(index, socket, from);
                    continue;
                }
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => return,
                // Of one connection that was gone before it was accepted.
                Some(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                Some(_) | None => {
                    if front.pause == Pause::No {
                        let forward = front.name.as_str();
                        tracing::warn!(forward, %error, "cannot accept; trying again");
                    }
                    front.pause = Pause::Yes;
                    self.timers
                        .insert(Instant::now() + PAUSE, Alarm::Resume(index));
                    self.watch_front(index);
                    return;
                }
            }
        }
    }

    /// A connection was accepted.
    fn begin(&mut self, front: usize, accepted: Socket, from: Option<SocketAddr>) {
        let way = self.fronts[front].way;
        // Replaced below at once; names the connection for whatever goes wrong.
        let stage = Stage::Upgrading { plain: None };
        let key = self.pairs.insert(Pair {
            front,
            from,
            stage,
            queued: Queued::No,
        });
        match (way, accepted) {
            (Way::In, plain) => self.dial(key, plain, None),
            (Way::Out, Socket::Tcp(tcp)) => self.upgrade(key, None, tcp, Role::Server),
            (Way::Out, socket @ (Socket::Unix(_) | Socket::Stream(_))) => {
                unreachable!("a forward listens for SMC on TCP, not on {socket:?}")
            }
        }
    }

    /// Begins to connect the connecting side, or tries again until `deadline`.
    fn dial(&mut self, key: PairKey, accepted: Socket, deadline: Option<Instant>) {
        let Some(front) = self.front_of(key) else {
            return;
        };
        let dialed = dial(&self.fronts[front].connect, &self.link.syn_marks);
        let now = Instant::now();
        let deadline = deadline.unwrap_or(now + DIAL_TIMEOUT);
        let (dialed, alarm) = match dialed {
            Ok(Dialed::Now(socket)) => return self.connected(key, accepted, socket),
            Ok(Dialed::Pending(socket)) => (Some(socket), deadline),
            Ok(Dialed::Full) if now >= deadline => {
                let failure = Failure::Late {
                    target: self.target(front),
                };
                return self.fail(key, [Some(accepted), None], &failure);
            }
            Ok(Dialed::Full) => (None, now + DIAL_RETRY),
            Err(error) => {
                let failure = Failure::Unreachable {
                    target: self.target(front),
                    error,
                };
                return self.fail(key, [Some(accepted), None], &failure);
            }
        };
        if let Some(fd) = dialed.as_ref().and_then(Socket::kernel_fd) {
            let token = Token::End(key, Which::Far).into();
            if let Err(error) = watch_dialed(&self.means.epoll, fd, token) {
                return self.fail(key, [Some(accepted), dialed], &Failure::Watch(error));
            }
        }
        let timer = self.timers.insert(alarm, Alarm::Dial(key));
        self.set_stage(
            key,
            Stage::Dialing(Dialing {
                accepted,
                dialed,
                deadline,
                timer,
            }),
        );
    }

    /// A connection attempt is late, or due again.
    pub(super) fn hear_dial_alarm(&mut self, key: PairKey, now: Instant) {
        let Some(Dialing {
            accepted,
            dialed,
            deadline,
            ..
        }) = self.take_dialing(key)
        else {
            return;
        };
        match dialed {
            None => self.dial(key, accepted, Some(deadline)),
            Some(dialed) => {
                debug_assert!(now >= deadline);
                let Some(front) = self.front_of(key) else {
                    return;
                };
                unwatch(&self.means.epoll, &dialed);
                let failure = Failure::Late {
                    target: self.target(front),
                };
                self.fail(key, [Some(accepted), Some(dialed)], &failure);
            }
        }
    }

    /// The kernel has news of an end.
    #[inline]
    pub(super) fn hear_end(&mut self, key: PairKey, which: Which, flags: EventFlags) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        match &mut pair.stage {
            Stage::Open(open) => {
                if open.end(which).hear(flags) {
                    self.enqueue(key);
                }
            }
            Stage::Dialing(_) => self.hear_dialed(key),
            // A late event of a socket that is not watched any more.
            Stage::Upgrading { .. } => {}
        }
    }

    /// A connection attempt is decided.
    fn hear_dialed(&mut self, key: PairKey) {
        let Some(Dialing {
            accepted,
            dialed,
            timer,
            ..
        }) = self.take_dialing(key)
        else {
            return;
        };
        self.timers.cancel(timer);
        let (Some(dialed), Some(front)) = (dialed, self.front_of(key)) else {
            return;
        };
        unwatch(&self.means.epoll, &dialed);
        match dialed.connect_result() {
            Ok(()) => self.connected(key, accepted, dialed),
            Err(error) => {
                let failure = Failure::Unreachable {
                    target: self.target(front),
                    error,
                };
                self.fail(key, [Some(accepted), Some(dialed)], &failure);
            }
        }
    }

    /// The connecting side is connected.
    fn connected(&mut self, key: PairKey, accepted: Socket, dialed: Socket) {
        let Some(front) = self.front_of(key) else {
            return;
        };
        match (self.fronts[front].way, dialed) {
            (Way::In, Socket::Tcp(tcp)) => self.upgrade(key, Some(accepted), tcp, Role::Client),
            (Way::Out, dialed) => self.open(key, accepted, dialed),
            (Way::In, socket @ (Socket::Unix(_) | Socket::Stream(_))) => {
                unreachable!("a forward connects to SMC by TCP, not by {socket:?}")
            }
        }
    }

    /// Hands a fresh TCP connection to the appliance.
    fn upgrade(&mut self, key: PairKey, plain: Option<Socket>, tcp: TcpStream, role: Role) {
        let Some(session) = &self.session else {
            return self.fail(key, [plain, Some(Socket::Tcp(tcp))], &Failure::NoSession);
        };
        // A second handle, because a failure does not give the first one back, and a connection
        // must not end as if it were complete.
        let request = tcp
            .try_clone()
            .map_err(Failure::Prepare)
            .and_then(|handle| Ok(session.upgrade_start(handle, role)?));
        match request {
            Ok(request) => {
                self.requests.insert(request, key);
                self.set_stage(key, Stage::Upgrading { plain });
            }
            Err(failure) => self.fail(key, [plain, Some(Socket::Tcp(tcp))], &failure),
        }
    }

    /// The appliance has decided.
    pub(super) fn hear_upgrade(
        &mut self,
        request: RequestId,
        stream: Result<Stream, UpgradeError>,
    ) {
        let Some(key) = self.requests.remove(&request) else {
            return;
        };
        let Some(Stage::Upgrading { plain }) = self.take_stage(key) else {
            return;
        };
        let Some(front) = self.front_of(key) else {
            return;
        };
        let ready = stream.map_err(Failure::from).and_then(|stream| {
            if let Some(reason) = stream.fallback_reason() {
                let front = &self.fronts[front];
                front.figures.fell_back();
                tracing::debug!(forward = front.name, reason = reason.text, "stays on TCP");
            }
            stream
                .set_blocking(Blocking::Never)
                .map_err(Failure::Prepare)?;
            Ok(Socket::Stream(stream))
        });
        match (ready, plain) {
            (Ok(stream), Some(plain)) => self.open(key, plain, stream),
            (Ok(stream), None) => self.dial(key, stream, None),
            (Err(failure), plain) => self.fail(key, [plain, None], &failure),
        }
    }

    /// Both sides are there: begins to forward.
    fn open(&mut self, key: PairKey, near: Socket, far: Socket) {
        let epoll = &self.means.epoll;
        let token = |which| u64::from(Token::End(key, which));
        let near = match End::begin(near, token(Which::Near), epoll) {
            Ok(near) => near,
            Err((near, error)) => {
                return self.fail(key, [Some(near), Some(far)], &Failure::Watch(error));
            }
        };
        match End::begin(far, token(Which::Far), epoll) {
            Ok(far) => self.set_stage(key, Stage::Open(Box::new(Open { near, far }))),
            Err((far, error)) => {
                near.reset(&mut self.means);
                self.fail(key, [None, Some(far)], &Failure::Watch(error));
            }
        }
    }

    /// The session has news of an end.
    #[inline]
    pub(super) fn hear_stream(&mut self, key: PairKey, which: Which, readiness: &Readiness) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        match &mut pair.stage {
            Stage::Open(open) => {
                if open.end(which).hear_session(readiness) {
                    self.enqueue(key);
                }
            }
            // Not watched yet.
            Stage::Dialing(_) | Stage::Upgrading { .. } => {}
        }
    }

    /// Moves bytes of a connection for one turn, in both directions.
    #[inline]
    pub(super) fn serve(&mut self, key: PairKey) {
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        pair.queued = Queued::No;
        let Stage::Open(open) = &mut pair.stage else {
            return;
        };
        let Open { near, far } = &mut **open;
        let (mut to_target, mut to_client) = (0, 0);
        let forth = pump(near, far, &mut self.means, &mut to_target);
        let progress = forth.and_then(|forth| {
            let back = pump(far, near, &mut self.means, &mut to_client)?;
            Ok([forth, back])
        });
        let over = near.is_done() && far.is_done();
        self.fronts[pair.front].figures.moved(to_target, to_client);
        match progress {
            Err(error) => {
                tracing::debug!(forward = self.fronts[pair.front].name, %error, "reset");
                self.end(key, Outcome::Reset);
            }
            Ok(_) if over => self.end(key, Outcome::Closed),
            Ok([Progress::Waits, Progress::Waits]) => {}
            Ok([Progress::More, _] | [_, Progress::More]) => self.enqueue(key),
        }
    }

    /// Ends a forwarded connection.
    fn end(&mut self, key: PairKey, outcome: Outcome) {
        let Some(Stage::Open(open)) = self.take_stage(key) else {
            return;
        };
        let Open { near, far } = *open;
        let Some(pair) = self.pairs.remove(key) else {
            return;
        };
        let figures = &self.fronts[pair.front].figures;
        match outcome {
            Outcome::Closed => {
                near.close(&mut self.means);
                far.close(&mut self.means);
            }
            Outcome::Reset => {
                figures.was_reset();
                near.reset(&mut self.means);
                far.reset(&mut self.means);
            }
        }
        figures.ended();
    }

    /// Gives up a connection that was never forwarded.
    fn fail(&mut self, key: PairKey, sockets: [Option<Socket>; 2], failure: &Failure) {
        let Some(pair) = self.pairs.remove(key) else {
            return;
        };
        let front = &self.fronts[pair.front];
        let from = pair.from.map_or(Origin::Unix, Origin::Tcp);
        if !self.link.is_stopping() {
            tracing::warn!(
                forward = front.name, %from, reason = %failure, "a connection is reset"
            );
        }
        sockets.into_iter().flatten().for_each(Socket::reset);
        front.figures.failed();
        front.figures.ended();
    }

    /// Ends every connection that depends on the session.
    pub(super) fn end_accelerated(&mut self) {
        let depends = |pair: &Pair| match &pair.stage {
            Stage::Upgrading { .. } => true,
            Stage::Dialing(dialing) => dialing.accepted.accelerated().is_some(),
            Stage::Open(open) => open.near.is_accelerated() || open.far.is_accelerated(),
        };
        for key in self.pairs.keys(depends) {
            self.give_up(key);
        }
        self.requests.clear();
    }

    /// Ends every connection.
    pub(super) fn end_all(&mut self) {
        for key in self.pairs.keys(|_| true) {
            self.give_up(key);
        }
        self.requests.clear();
    }

    /// Resets a connection, however far it has come.
    fn give_up(&mut self, key: PairKey) {
        let failure = Failure::NoSession;
        match self.pairs.get_mut(key).map(|pair| &pair.stage) {
            None => {}
            Some(Stage::Open(_)) => self.end(key, Outcome::Reset),
            Some(Stage::Dialing(_)) => {
                if let Some(Dialing {
                    accepted,
                    dialed,
                    timer,
                    ..
                }) = self.take_dialing(key)
                {
                    self.timers.cancel(timer);
                    if let Some(dialed) = &dialed {
                        unwatch(&self.means.epoll, dialed);
                    }
                    self.fail(key, [Some(accepted), dialed], &failure);
                }
            }
            Some(Stage::Upgrading { .. }) => {
                if let Some(Stage::Upgrading { plain }) = self.take_stage(key) {
                    self.fail(key, [plain, None], &failure);
                }
            }
        }
    }

    fn front_of(&mut self, key: PairKey) -> Option<usize> {
        self.pairs.get_mut(key).map(|pair| pair.front)
    }

    fn target(&self, front: usize) -> String {
        self.fronts[front].connect.to_string()
    }

    fn set_stage(&mut self, key: PairKey, stage: Stage) {
        if let Some(pair) = self.pairs.get_mut(key) {
            pair.stage = stage;
        }
    }

    /// Takes the stage out of a connection; what is left has nothing and waits for a new one.
    fn take_stage(&mut self, key: PairKey) -> Option<Stage> {
        let pair = self.pairs.get_mut(key)?;
        Some(std::mem::replace(
            &mut pair.stage,
            Stage::Upgrading { plain: None },
        ))
    }

    fn take_dialing(&mut self, key: PairKey) -> Option<Dialing> {
        match self.pairs.get_mut(key)?.stage {
            Stage::Dialing(_) => {}
            Stage::Upgrading { .. } | Stage::Open(_) => return None,
        }
        match self.take_stage(key)? {
            Stage::Dialing(dialing) => Some(dialing),
            Stage::Upgrading { .. } | Stage::Open(_) => None,
        }
    }
}

impl Open {
    #[inline]
    fn end(&mut self, which: Which) -> &mut End {
        match which {
            Which::Near => &mut self.near,
            Which::Far => &mut self.far,
        }
    }
}

/// Where a connection comes from, for the log.
enum Origin {
    Tcp(SocketAddr),
    Unix,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Tcp(address) => address.fmt(f),
            Origin::Unix => f.write_str("a local program"),
        }
    }
}
