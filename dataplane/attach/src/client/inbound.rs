//! What comes in: events of the worker, answers of the appliance, and who waits for them.

use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;
use std::sync::Arc;

use pollux_ring::{Wake, WakeError};

use super::error::UpgradeError;
use super::session::{RequestId, Shared};
use super::slot::SlotCell;
use super::stream::Stream;
use crate::message::Reply;
use crate::packet::{self, ReceiveError};
use crate::shared::{Event, EventReader, Inline, SlotState};

/// Longest read that is copied while the lock is held, in bytes.
const LOCKED_COPY_BYTES: u64 = 4096;

/// Most events taken at a time: an appliance that never stops is no reason to stay.
const EVENTS_PER_PUMP: usize = 256;

/// What a stream can do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    /// Bytes that a read would give at once.
    pub readable: usize,
    /// Bytes that a write would take at once.
    pub writable: usize,
    /// Facts about the connection; after [`SlotState::RESET`] reads and writes fail, after
    /// [`SlotState::END_OF_STREAM`] reads end behind the readable bytes.
    pub state: SlotState,
}

/// What an event loop learns from [`super::Session::poll_events`].
#[derive(Debug)]
pub enum StreamEvent {
    /// Something has changed on a watched stream: try again what would have blocked.
    Ready {
        /// The token given to [`super::Stream::watch`].
        token: u64,
        /// How things stand.
        readiness: Readiness,
    },
    /// An upgrade begun by [`super::Session::upgrade_start`] has its answer.
    Upgraded {
        /// Which one.
        request: RequestId,
        /// The stream, accelerated or not, or why the connection is lost.
        stream: Result<Stream, UpgradeError>,
    },
    /// The appliance is gone: every accelerated stream of the session is reset.
    Gone,
}

/// Who waits for an answer to an upgrade.
#[derive(Debug)]
pub(super) enum Asker {
    /// A thread, which has the socket.
    Thread,
    /// The event loop.
    Loop(TcpStream),
    /// A listener, by number.
    Listener(u64, TcpStream),
}

/// The appliance's answer to an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Accelerated { slot: u16 },
    Fallback { code: u32, text: String },
    Failed(UpgradeError),
}

/// What a sleeping thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interest {
    Readable(u16),
    Writable(u16),
    Answer(u32),
    Listener(u64),
}

/// A thread that sleeps.
#[derive(Debug)]
struct Waiter {
    id: u64,
    interest: Interest,
    wake: Arc<Wake>,
}

/// A slot's incoming direction.
#[derive(Debug, Clone, Copy)]
struct InSlot {
    /// The last bytes received, if they came in the line, and the total behind them.
    inline: Inline,
    inline_end: u64,
    copying: Copying,
    /// Token for the event loop.
    watch: Option<u64>,
    queued: Queued,
}

/// Whether a thread copies out of the RMBE without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copying {
    No,
    Yes,
}

/// Whether the slot stands in the event loop's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queued {
    No,
    Yes,
}

/// Whether the event loop sleeps or is about to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoopState {
    Awake,
    Armed,
}

/// Whether a listener has got a connection since the event loop was last told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListenerNews {
    None,
    Untold,
}

/// How a read went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadStep {
    /// So many bytes were copied.
    Bytes(usize),
    /// So many bytes from this total on are to be copied without the lock, followed by
    /// [`Inbound::finish_copy`].
    Copy { from: u64, bytes: usize },
    /// Nothing is there.
    Empty,
    /// Another thread reads the same stream.
    Busy,
}

/// Everything under the inbound lock.
#[derive(Debug)]
pub(super) struct Inbound {
    events: EventReader,
    slots: Box<[InSlot]>,
    requests: HashMap<u32, Asker>,
    answers: HashMap<u32, Answer>,
    listeners: HashMap<u64, VecDeque<(TcpStream, Answer)>>,
    waiters: Vec<Waiter>,
    spare_wakes: Vec<Arc<Wake>>,
    leader: Option<u64>,
    event_loop: LoopState,
    loop_slots: VecDeque<u16>,
    loop_events: VecDeque<(RequestId, TcpStream, Answer)>,
    loop_told_gone: bool,
    listener_news: ListenerNews,
    next_number: u64,
}

const SLOT: InSlot = InSlot {
    inline: Inline::NONE,
    inline_end: 0,
    copying: Copying::No,
    watch: None,
    queued: Queued::No,
};

impl Inbound {
    pub(super) fn new(events: EventReader, slots: u16) -> Inbound {
        Inbound {
            events,
            slots: vec![SLOT; usize::from(slots)].into_boxed_slice(),
            requests: HashMap::new(),
            answers: HashMap::new(),
            listeners: HashMap::new(),
            waiters: Vec::new(),
            spare_wakes: Vec::new(),
            leader: None,
            event_loop: LoopState::Awake,
            loop_slots: VecDeque::new(),
            loop_events: VecDeque::new(),
            loop_told_gone: false,
            listener_news: ListenerNews::None,
            next_number: 0,
        }
    }

    /// A number that no waiter and no listener has.
    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Takes the events out of the ring and distributes them. Returns whether there was any.
    #[inline]
    pub(super) fn pump(&mut self, shared: &Shared) -> bool {
        let mut any = false;
        for _ in 0..EVENTS_PER_PUMP {
            let Some(event) = self.events.take() else {
                break;
            };
            any = true;
            self.distribute(shared, &event);
        }
        any
    }

    #[inline]
    fn distribute(&mut self, shared: &Shared, event: &Event) {
        let slot = event.slot;
        let index = usize::from(slot);
        let (Some(cell), Some(place)) = (shared.cells.get(index), self.slots.get_mut(index)) else {
            return;
        };
        if cell.generation() != event.generation {
            // The worker was quicker than the answer on the control socket.
            cell.begin(event.generation);
            *place = SLOT;
        }
        if event.inline != Inline::NONE {
            place.inline = event.inline;
            place.inline_end = event.news.produced;
        }
        cell.set_news(&event.news);
        if !self.waiters.is_empty() || place.watch.is_some() {
            self.notify_slot(shared, slot);
        }
    }

    /// Tells whoever waits for a slot.
    pub(super) fn notify_slot(&mut self, shared: &Shared, slot: u16) {
        self.wake_waiters(|interest| match interest {
            Interest::Readable(other) | Interest::Writable(other) => other == slot,
            Interest::Answer(_) | Interest::Listener(_) => false,
        });
        self.queue_for_loop(shared, slot);
    }

    fn wake_waiters(&self, concerns: impl Fn(Interest) -> bool) {
        for waiter in self
            .waiters
            .iter()
            .filter(|waiter| concerns(waiter.interest))
        {
            // An eventfd of our own cannot fail; if it did, the sleeper's death check remains.
            let _ = waiter.wake.signal();
        }
    }

    fn queue_for_loop(&mut self, shared: &Shared, slot: u16) {
        if let Some(place) = self.slots.get_mut(usize::from(slot))
            && place.watch.is_some()
            && place.queued == Queued::No
        {
            place.queued = Queued::Yes;
            self.loop_slots.push_back(slot);
            self.nudge_loop(shared);
        }
    }

    fn nudge_loop(&self, shared: &Shared) {
        if self.event_loop == LoopState::Armed {
            let _ = shared.loop_nudge.signal();
        }
    }

    /// Reads what the appliance has said on the control socket.
    pub(super) fn pump_control(&mut self, shared: &Shared) {
        while !shared.is_gone() {
            match packet::receive(&shared.control) {
                Ok(packet) => match Reply::parse(&packet.bytes, packet.fds.len()) {
                    Ok(reply) => self.handle_reply(shared, reply),
                    Err(_) => self.gone(shared),
                },
                Err(ReceiveError::WouldBlock) => return,
                Err(
                    ReceiveError::Closed
                    | ReceiveError::TooLarge
                    // No message after the first one has descriptors.
                    | ReceiveError::NoDescriptor { .. }
                    | ReceiveError::System(_),
                ) => {
                    self.gone(shared);
                }
            }
        }
    }

    fn handle_reply(&mut self, shared: &Shared, reply: Reply) {
        match reply {
            Reply::Accelerated {
                request,
                slot,
                generation,
            } => {
                if usize::from(slot) < self.slots.len() {
                    self.adopt(shared, slot, generation);
                    self.answer(shared, request, Answer::Accelerated { slot });
                } else {
                    // The session does not have such a slot: the appliance is mistaken.
                    self.gone(shared);
                }
            }
            Reply::Fallback {
                request,
                code,
                text,
            } => {
                self.answer(shared, request, Answer::Fallback { code, text });
            }
            Reply::Failed {
                request,
                errno,
                text,
            } => {
                let failed = UpgradeError::Failed {
                    errno,
                    reason: text,
                };
                self.answer(shared, request, Answer::Failed(failed));
            }
            Reply::Released { slot, generation } => {
                // What the worker said last may still stand in the ring.
                self.pump(shared);
                let cell = shared.cells.get(usize::from(slot));
                if let Some(cell) = cell.filter(|cell| cell.generation() == generation) {
                    cell.set_closed();
                    self.notify_slot(shared, slot);
                }
            }
            // An appliance that says Hello twice is none.
            Reply::Welcome { .. } | Reply::Refused { .. } => self.gone(shared),
        }
    }

    /// Begins a connection in a slot, unless an event of the worker has done so.
    fn adopt(&mut self, shared: &Shared, slot: u16, generation: u16) {
        let Some(cell) = shared.cells.get(usize::from(slot)) else {
            return;
        };
        if cell.generation() != generation {
            cell.begin(generation);
            if let Some(place) = self.slots.get_mut(usize::from(slot)) {
                *place = SLOT;
            }
        }
        shared.outbound().begin(slot, generation, cell);
    }

    fn answer(&mut self, shared: &Shared, request: u32, answer: Answer) {
        match self.requests.remove(&request) {
            None => shared.abandon(&answer),
            Some(Asker::Thread) => {
                self.answers.insert(request, answer);
                self.wake_waiters(|interest| interest == Interest::Answer(request));
            }
            Some(Asker::Loop(tcp)) => {
                self.loop_events
                    .push_back((RequestId(request), tcp, answer));
                self.nudge_loop(shared);
            }
            Some(Asker::Listener(number, tcp)) => match self.listeners.get_mut(&number) {
                Some(done) => {
                    done.push_back((tcp, answer));
                    self.listener_news = ListenerNews::Untold;
                    self.wake_waiters(|interest| interest == Interest::Listener(number));
                    self.nudge_loop(shared);
                }
                None => shared.abandon(&answer),
            },
        }
    }

    /// The appliance is gone, or nothing can be said to it: nobody must wait any more.
    pub(super) fn gone(&mut self, shared: &Shared) {
        shared.set_gone();
        let requests: Vec<u32> = self.requests.keys().copied().collect();
        for request in requests {
            self.answer(shared, request, Answer::Failed(UpgradeError::Gone));
        }
        self.wake_waiters(|_| true);
        for slot in 0..self.slots.len() {
            self.queue_for_loop(shared, slot as u16);
        }
        self.nudge_loop(shared);
    }

    pub(super) fn ask(&mut self, request: u32, asker: Asker) {
        self.requests.insert(request, asker);
    }

    /// Gives up waiting for an answer; one that comes later is abandoned.
    pub(super) fn forget(&mut self, request: u32) {
        self.requests.remove(&request);
        self.answers.remove(&request);
    }

    pub(super) fn take_answer(&mut self, request: u32) -> Option<Answer> {
        self.answers.remove(&request)
    }

    pub(super) fn add_listener(&mut self) -> u64 {
        let number = self.number();
        self.listeners.insert(number, VecDeque::new());
        number
    }

    pub(super) fn take_accepted(&mut self, listener: u64) -> Option<(TcpStream, Answer)> {
        self.listeners.get_mut(&listener)?.pop_front()
    }

    /// Ends a listener and returns what nobody has accepted.
    pub(super) fn remove_listener(&mut self, listener: u64) -> VecDeque<(TcpStream, Answer)> {
        self.listeners.remove(&listener).unwrap_or_default()
    }

    /// Whether a thread with this interest has something to do.
    pub(super) fn is_ready(&self, shared: &Shared, interest: Interest) -> bool {
        shared.is_gone()
            || match interest {
                Interest::Readable(_) | Interest::Writable(_) => shared.is_slot_ready(interest),
                Interest::Answer(request) => self.answers.contains_key(&request),
                Interest::Listener(number) => self
                    .listeners
                    .get(&number)
                    .is_none_or(|done| !done.is_empty()),
            }
    }

    /// Copies what is there, unless that is much: then the caller copies without the lock.
    #[inline]
    pub(super) fn read(
        &mut self,
        cell: &SlotCell,
        slot: u16,
        rmbe_bytes: u32,
        into: &mut [u8],
    ) -> ReadStep {
        let Some(place) = self.slots.get_mut(usize::from(slot)) else {
            return ReadStep::Empty;
        };
        if place.copying == Copying::Yes {
            return ReadStep::Busy;
        }
        let bytes = cell.readable(rmbe_bytes).min(into.len() as u64);
        if bytes == 0 {
            return ReadStep::Empty;
        }
        let from = cell.consumed();
        let kept = place.inline.as_slice();
        if let Some(start) = place.inline_end.checked_sub(kept.len() as u64)
            && from >= start
            && from + bytes <= place.inline_end
        {
            let at = (from - start) as usize;
            let bytes = bytes as usize;
            into[..bytes].copy_from_slice(&kept[at..at + bytes]);
            return ReadStep::Bytes(bytes);
        }
        if bytes > LOCKED_COPY_BYTES {
            place.copying = Copying::Yes;
        }
        ReadStep::Copy {
            from,
            bytes: bytes as usize,
        }
    }

    /// Whether the bytes of [`ReadStep::Copy`] are to be copied with the lock released.
    #[inline]
    pub(super) fn is_copying(&self, slot: u16) -> bool {
        self.slots
            .get(usize::from(slot))
            .is_some_and(|place| place.copying == Copying::Yes)
    }

    /// Ends a copy without the lock.
    #[inline]
    pub(super) fn finish_copy(&mut self, slot: u16) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.copying = Copying::No;
        }
    }

    /// Gives a stream a token, and reports it once if it is ready already.
    pub(super) fn watch(&mut self, shared: &Shared, slot: u16, token: u64) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.watch = Some(token);
        }
        self.queue_for_loop(shared, slot);
    }

    /// Takes the token of a slot whose stream goes.
    pub(super) fn unwatch(&mut self, slot: u16) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.watch = None;
            if place.queued == Queued::Yes {
                place.queued = Queued::No;
                self.loop_slots.retain(|&queued| queued != slot);
            }
        }
    }

    /// Gives the event loop everything that has happened.
    pub(super) fn take_loop_events(&mut self, shared: &Arc<Shared>, into: &mut Vec<StreamEvent>) {
        while let Some((request, tcp, answer)) = self.loop_events.pop_front() {
            let stream = Stream::from_answer(shared, tcp, answer);
            into.push(StreamEvent::Upgraded { request, stream });
        }
        while let Some(slot) = self.loop_slots.pop_front() {
            let Some(place) = self.slots.get_mut(usize::from(slot)) else {
                continue;
            };
            place.queued = Queued::No;
            let Some(token) = place.watch else { continue };
            into.push(StreamEvent::Ready {
                token,
                readiness: shared.readiness(slot),
            });
        }
        if shared.is_gone() && !self.loop_told_gone {
            self.loop_told_gone = true;
            into.push(StreamEvent::Gone);
        }
    }

    /// Whether the event loop has something to take.
    fn has_loop_events(&self, shared: &Shared) -> bool {
        let gone = shared.is_gone() && !self.loop_told_gone;
        gone || !self.loop_slots.is_empty() || !self.loop_events.is_empty()
    }

    /// Announces that the event loop sleeps, unless there is something for it.
    pub(super) fn arm_loop(&mut self, shared: &Shared) -> bool {
        let news = std::mem::replace(&mut self.listener_news, ListenerNews::None);
        if self.has_loop_events(shared) || news == ListenerNews::Untold {
            return false;
        }
        self.event_loop = LoopState::Armed;
        self.events.arm();
        if !self.events.has_event() {
            return true;
        }
        self.disarm_loop();
        false
    }

    /// The event loop is awake. Returns whether it had been armed.
    pub(super) fn disarm_loop(&mut self) -> bool {
        let was = self.event_loop;
        self.event_loop = LoopState::Awake;
        self.disarm_if_all_are_awake();
        was == LoopState::Armed
    }

    fn disarm_if_all_are_awake(&self) {
        if self.leader.is_none() && self.event_loop == LoopState::Awake {
            self.events.disarm();
        }
    }

    /// Registers a thread that may have to sleep.
    pub(super) fn add_waiter(&mut self, interest: Interest) -> Result<(u64, Arc<Wake>), WakeError> {
        let wake = match self.spare_wakes.pop() {
            Some(wake) => wake,
            None => Arc::new(Wake::new()?),
        };
        let id = self.number();
        self.waiters.push(Waiter {
            id,
            interest,
            wake: Arc::clone(&wake),
        });
        Ok((id, wake))
    }

    /// Takes a thread out again, and has another one lead if nobody does.
    pub(super) fn remove_waiter(&mut self, id: u64) {
        if let Some(index) = self.waiters.iter().position(|waiter| waiter.id == id) {
            let waiter = self.waiters.swap_remove(index);
            // A signal that came late must not end the sleep of the next user.
            let _ = waiter.wake.drain();
            self.spare_wakes.push(waiter.wake);
        }
        if self.leader.is_none()
            && let Some(next) = self.waiters.first()
        {
            let _ = next.wake.signal();
        }
    }

    /// Makes a thread the leader if nobody leads.
    pub(super) fn lead(&mut self, id: u64) -> Lead {
        if self.leader.is_some() {
            return Lead::Another;
        }
        self.leader = Some(id);
        self.events.arm();
        if self.events.has_event() {
            self.stop_leading();
            return Lead::EventsCame;
        }
        Lead::Me
    }

    pub(super) fn stop_leading(&mut self) {
        self.leader = None;
        self.disarm_if_all_are_awake();
    }
}

/// The outcome of wanting to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lead {
    Me,
    Another,
    EventsCame,
}
