//! One layer below the worker in which an adapter misbehaves, as far as the contract allows it.
//!
//! [`FaultyGroup`] is the soft driver's poll group with [`Faults`] over it. It keeps the books of
//! `checker/work.rs` and `checker/cursors.rs` and does the following, as drawn for its world:
//!
//! * executes what has come although the worker does not poll, as an adapter does, so that receives
//!   run out;
//! * keeps completions to itself for a while, and hands them out a few at a time;
//! * rings doorbells late, or in the middle of a chain;
//! * posts receives late (on links without credits);
//! * refuses a post; fails a queue pair; poisons it with a WRITE that the peer must refuse; fails it
//!   and loses the last acknowledgements, so that work that was executed is reported as flushed;
//! * alters the messages of a liar (`faults/lies.rs`).

mod lies;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use pollux_provider::soft::{SoftGroup, SoftQp};
use pollux_provider::{
    AdoptError, Completion, FlushError, Layer, Layered, Payload, PollGroup, PostError, Qp, QpIndex,
    QpState, RemoteSpan, Rkey, Sge, Signal, WcOpcode, WcStatus, WrId,
};
use pollux_wire::cdc;
use pollux_worker::Clock;

use crate::book::{Book, Event, Shared, lock};
use crate::checker::links::EndPoint;
use crate::checker::stream::Honesty;
use crate::checker::work::{Piece, QpBook, Sent};
use crate::clock::SimClock;
use crate::device::Registry;
use crate::numbers::Numbers;
use crate::options::{FaultOptions, Ns, StackOptions, counts_credits};

/// A poll group of the soft driver with faults.
pub type FaultyGroup = Layered<SoftGroup, Faults>;

/// The layer; the world holds the other end of the same [`Adapter`].
#[derive(Debug)]
pub struct Faults(pub(crate) Shared<Adapter>);

/// Completions taken from the driver at once by an adapter that goes on by itself.
const BATCH: usize = 64;
/// Marks the work requests that the layer itself posts.
const OWN_WORK: u64 = 1 << 62;
/// A key that no device gives out: its places start at the low end.
const FOREIGN_KEY: Rkey = Rkey(0xffff_ff01);

/// Whether faults are still injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Temper {
    /// Yes.
    Faulty,
    /// No: the adapter does what it is told, at once.
    Calm,
}

/// How a link breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Break {
    /// The port fails.
    Fails,
    /// The port fails, and what the peer acknowledged last is not known.
    LosesAcks,
    /// The peer refuses a WRITE.
    Poisoned,
}

/// What everybody in a world knows of everybody else.
#[derive(Debug, Default)]
pub(crate) struct Board {
    pub(crate) stacks: Vec<StackOptions>,
    pub(crate) liar: Option<usize>,
    /// The adapters of the stacks that live.
    pub(crate) adapters: Vec<Option<Shared<Adapter>>>,
}

/// What the layer knows of a link.
#[derive(Clone, Copy, Debug)]
struct LinkKnowledge {
    cable: usize,
    peer: EndPoint,
    counting: Counting,
    honesty: Honesty,
}

/// Whether receives may run out on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counting {
    /// Both ends count credits: never.
    Credits,
    /// Yes.
    Nothing,
}

/// The simulated adapter of one poll group.
#[derive(Debug)]
pub(crate) struct Adapter {
    stack: usize,
    book: Shared<Book>,
    clock: SimClock,
    numbers: Numbers,
    registry: Shared<Registry>,
    temper: Temper,
    faults: FaultOptions,
    completions_per_reap: usize,
    lies: bool,
    qps: Vec<Option<QpBook>>,
    /// Queue pairs whose link is broken already, by number.
    broken: HashSet<u32>,
    /// Links, by the number of our queue pair.
    links: HashMap<u32, LinkKnowledge>,
    board: Shared<Board>,
    queue: VecDeque<Completion>,
    batch: Box<[Completion]>,
    withheld_until: Ns,
    bells: VecDeque<(Ns, QpIndex)>,
    late_receives: VecDeque<(Ns, QpIndex, WrId, Sge)>,
    own_work: u64,
}

impl Adapter {
    pub(crate) fn new(
        stack: usize,
        (book, board): (Shared<Book>, Shared<Board>),
        clock: SimClock,
        numbers: Numbers,
        faults: &FaultOptions,
    ) -> Shared<Adapter> {
        let completions_per_reap = lock(&board).stacks[stack].completions_per_reap;
        Arc::new(Mutex::new(Adapter {
            stack,
            book,
            clock,
            numbers,
            registry: Shared::default(),
            temper: Temper::Faulty,
            faults: faults.clone(),
            completions_per_reap,
            lies: faults.liar == Some(stack),
            qps: Vec::new(),
            broken: HashSet::new(),
            links: HashMap::new(),
            board,
            queue: VecDeque::new(),
            batch: vec![Completion::EMPTY; BATCH].into_boxed_slice(),
            withheld_until: 0,
            bells: VecDeque::new(),
            late_receives: VecDeque::new(),
            own_work: 0,
        }))
    }

    pub(crate) fn registry(&self) -> Shared<Registry> {
        self.registry.clone()
    }

    /// A queue pair of ours hears of its peer.
    pub(crate) fn connect(&mut self, qpn: u32, peer: EndPoint) {
        let cable = lock(&self.book).connect((self.stack, qpn), peer);
        let (counting, honesty) = {
            let board = lock(&self.board);
            let ends = [self.stack, peer.0].map(|index| &board.stacks[index]);
            let is_honest = [self.stack, peer.0]
                .iter()
                .all(|index| Some(*index) != board.liar);
            if !is_honest {
                (Counting::Nothing, Honesty::Hostile)
            } else if counts_credits(ends[0], ends[1]) {
                (Counting::Credits, Honesty::Honest)
            } else {
                (Counting::Nothing, Honesty::Honest)
            }
        };
        if honesty == Honesty::Hostile {
            lock(&self.book).break_cable(cable, "one of its ends lies");
        }
        let knowledge = LinkKnowledge {
            cable,
            peer,
            counting,
            honesty,
        };
        self.links.insert(qpn, knowledge);
    }

    /// The link of a queue pair that is adopted.
    pub(crate) fn cable(&self, qp: QpIndex) -> Option<usize> {
        let qpn = self.qp(qp)?.qpn;
        Some(self.links.get(&qpn)?.cable)
    }

    fn counting(&self, qpn: u32) -> Counting {
        let link = self.links.get(&qpn);
        link.map_or(Counting::Nothing, |link| link.counting)
    }

    /// From now on faults are injected or not.
    pub(crate) fn set_temper(&mut self, temper: Temper) {
        self.temper = temper;
        if temper == Temper::Calm {
            self.withheld_until = 0;
        }
    }

    /// Keeps completions back until then.
    pub(crate) fn withhold(&mut self, until: Ns) {
        self.withheld_until = until;
    }

    /// When something that is held back goes on by itself, if anything is.
    pub(crate) fn next_due(&self) -> Option<Ns> {
        let queued = (!self.queue.is_empty()).then_some(self.withheld_until);
        let bells = self.bells.iter().map(|(due, ..)| *due);
        let receives = self.late_receives.iter().map(|(due, ..)| *due);
        queued.into_iter().chain(bells).chain(receives).min()
    }

    /// Whether the device refuses what control asks of it, if it is time: nobody's connections have to
    /// come about or last then.
    pub(crate) fn refuses(&mut self, kind: &'static str) -> bool {
        let refuses = self.is_faulty() && self.numbers.chance(self.faults.device_chance);
        if refuses {
            let mut book = lock(&self.book);
            book.excuse_stack(self.stack, "a device refused something");
            book.fault(kind, self.stack, String::new);
        }
        refuses
    }

    fn is_faulty(&self) -> bool {
        self.temper == Temper::Faulty
    }

    fn object(&self, qp: QpIndex, what: &str) {
        let qpn = self.qp(qp).map_or(0, |book| book.qpn);
        let stack = self.stack;
        lock(&self.book).object(|| format!("stack {stack}, queue pair {qpn:#x}: {what}"));
    }

    fn qp(&self, qp: QpIndex) -> Option<&QpBook> {
        self.qps.get(usize::from(qp.0))?.as_ref()
    }

    fn qp_mut(&mut self, qp: QpIndex) -> Option<&mut QpBook> {
        self.qps.get_mut(usize::from(qp.0))?.as_mut()
    }

    fn pieces(&self, payload: &Payload<'_>) -> Vec<Piece> {
        match payload {
            Payload::Inline(_) | Payload::InlineBytes(_) => Vec::new(),
            Payload::ByReference(sges) => sges
                .iter()
                .filter_map(|sge| Piece::of(&self.registry, sge))
                .collect(),
        }
    }

    /// Notes work that the driver has taken.
    fn posted(&mut self, qp: QpIndex, sent: Sent, bytes: u64) {
        let (stack, wr) = (self.stack, sent.wr);
        let event = match sent.opcode {
            WcOpcode::Send => Event::Send,
            WcOpcode::Write | WcOpcode::Recv | WcOpcode::RecvWithImm => Event::Write,
        };
        let inline = sent.pieces.is_empty();
        let signal = sent.signal;
        {
            let mut book = lock(&self.book);
            book.figures.posts += 1;
            let values = [u64::from(qp.0), wr.0, bytes, inline.into(), signal as u64];
            book.note(event, stack, &values, || {
                let how = if inline { "inline" } else { "by reference" };
                format!("{qp:?} {wr:?}: {bytes} B {how}, {signal:?}")
            });
        }
        let Some(book) = self.qp_mut(qp) else { return };
        book.sends.push_back(sent);
        if book.sends.len() > book.send_wr {
            self.object(qp, "more is outstanding than there are send slots");
        }
    }

    /// Breaks the link of a queue pair, if it is time. Afterwards the link is not broken again.
    fn maybe_break(&mut self, group: &mut SoftGroup, qp: QpIndex) {
        if !self.is_faulty() || !self.numbers.chance(self.faults.break_chance) {
            return;
        }
        let Some(qpn) = self.qp(qp).map(|book| book.qpn) else {
            return;
        };
        if group.state(qp) != QpState::Rts || !self.broken.insert(qpn) {
            return;
        }
        let how = self
            .numbers
            .pick(&[Break::Fails, Break::LosesAcks, Break::Poisoned]);
        let kind = match how {
            Break::Fails => "link fails",
            Break::LosesAcks => "link fails, acknowledgements lost",
            Break::Poisoned => "link poisoned",
        };
        self.excuse(qpn, "its link was broken");
        lock(&self.book).fault(kind, self.stack, || format!("queue pair {qpn:#x}"));
        match how {
            Break::Fails => group.fail(qp, WcStatus::RetryExceeded),
            Break::LosesAcks => {
                // What has been executed is in the queue as a success: it never came back.
                self.take_from_driver(group, BATCH);
                group.fail(qp, WcStatus::RetryExceeded);
                self.lose_acks(qp);
            }
            Break::Poisoned => {
                let wr = WrId(OWN_WORK | self.own_work);
                self.own_work += 1;
                let to = RemoteSpan {
                    addr: 4096,
                    rkey: FOREIGN_KEY,
                };
                // Without inline data there is nothing to be had that both sides would take.
                let payload: &[u8] = &[0xee];
                let signal = Signal::Unsignaled;
                if group
                    .post_write(qp, wr, Payload::InlineBytes(payload), to, signal)
                    .is_ok()
                {
                    let sent = Sent {
                        wr,
                        opcode: WcOpcode::Write,
                        signal,
                        executed: false,
                        pieces: Vec::new(),
                    };
                    self.posted(qp, sent, 1);
                    let _ = group.flush(qp);
                } else {
                    group.fail(qp, WcStatus::RetryExceeded);
                }
            }
        }
    }

    /// Successes that the worker has not seen turn into failures.
    fn lose_acks(&mut self, qp: QpIndex) {
        let mut first = true;
        for completion in &mut self.queue {
            let is_ours = completion.qp == qp && !completion.opcode.is_receive();
            if is_ours && completion.status == WcStatus::Success {
                completion.status = if first {
                    WcStatus::RetryExceeded
                } else {
                    WcStatus::WrFlush
                };
                first = false;
            }
        }
    }

    fn excuse(&self, qpn: u32, why: &'static str) {
        if let Some(link) = self.links.get(&qpn) {
            lock(&self.book).break_cable(link.cable, why);
        }
    }

    /// Refuses a post, if it is time: something that no adapter should do, and some have done.
    fn maybe_refuse(&mut self, qp: QpIndex) -> Result<(), PostError> {
        if !self.is_faulty() || !self.numbers.chance(self.faults.refuse_chance) {
            return Ok(());
        }
        let Some(qpn) = self.qp(qp).map(|book| book.qpn) else {
            return Ok(());
        };
        self.broken.insert(qpn);
        self.excuse(qpn, "a post was refused");
        lock(&self.book).fault("post refused", self.stack, || {
            format!("queue pair {qpn:#x}")
        });
        let refusals = [
            PostError::SendQueueFull,
            PostError::WrongState(QpState::Error),
        ];
        Err(self.numbers.pick(&refusals))
    }

    fn maybe_ring(&mut self, group: &mut SoftGroup, qp: QpIndex) {
        if self.is_faulty() && self.numbers.chance(self.faults.early_bell_chance) {
            lock(&self.book).fault("doorbell early", self.stack, String::new);
            let _ = group.flush(qp);
        }
    }

    /// Rings the bells and posts the receives whose time has come.
    fn catch_up(&mut self, group: &mut SoftGroup, now: Ns) {
        let is_due = |due: Ns, temper| due <= now || temper == Temper::Calm;
        while let Some((due, qp)) = self.bells.front().copied() {
            if !is_due(due, self.temper) {
                break;
            }
            self.bells.pop_front();
            lock(&self.book).stirred += 1;
            let _ = group.flush(qp);
        }
        while let Some((due, qp, wr, into)) = self.late_receives.front().copied() {
            if !is_due(due, self.temper) {
                break;
            }
            self.late_receives.pop_front();
            lock(&self.book).stirred += 1;
            self.post_receive(group, qp, wr, into);
        }
    }

    /// A receive that the worker believes posted: in the error state it is flushed by never coming.
    fn post_receive(&mut self, group: &mut SoftGroup, qp: QpIndex, wr: WrId, into: Sge) {
        match group.post_recv(qp, wr, into) {
            Ok(()) => {
                if let Some(book) = self.qp_mut(qp) {
                    book.receives.push_back(wr);
                }
            }
            Err(PostError::WrongState(QpState::Error)) => {}
            Err(error) => self.object(qp, &format!("a receive is refused: {error}")),
        }
    }

    /// Lets the driver work, and keeps the books of what it says.
    fn take_from_driver(&mut self, group: &mut SoftGroup, most: usize) -> usize {
        let now = self.clock.now();
        let mut batch = std::mem::take(&mut self.batch);
        let most = most.min(batch.len());
        let count = group.reap(now, &mut batch[..most]);
        for completion in &batch[..count] {
            self.account(completion);
            self.queue.push_back(*completion);
        }
        self.batch = batch;
        count
    }

    fn account(&mut self, completion: &Completion) {
        let qp = completion.qp;
        if completion.opcode == WcOpcode::Recv && completion.status == WcStatus::Success {
            self.executed_send(qp);
        }
        let Some(book) = self.qp_mut(qp) else {
            return self.object(qp, "a completion for a queue pair that nobody adopted");
        };
        let qpn = book.qpn;
        match book.complete(completion) {
            Ok(over) if self.is_honest(qpn) => {
                let untold = over.iter().filter(|sent| !sent.executed);
                let mut pieces = untold.flat_map(|sent| &sent.pieces);
                if let Some(piece) = pieces.find(|piece| !piece.is_unchanged()) {
                    let what = changed(piece);
                    self.object(qp, &what);
                }
            }
            Ok(_) => {}
            Err(what) => self.object(qp, &what),
        }
    }

    /// What a liar says it has read is believed to its own loss: then memory is used again that has
    /// not gone out.
    fn is_honest(&self, qpn: u32) -> bool {
        let link = self.links.get(&qpn);
        link.is_some_and(|link| link.honesty == Honesty::Honest)
    }

    /// The peer's SEND has been executed here: the peer's books say which memory that was.
    fn executed_send(&mut self, qp: QpIndex) {
        let qpn = self.qp(qp).map_or(0, |book| book.qpn);
        let Some(link) = self.links.get(&qpn).copied() else {
            return;
        };
        let (peer, peer_qpn) = link.peer;
        let adapter = lock(&self.board).adapters[peer].clone();
        let Some(adapter) = adapter.filter(|_| link.honesty == Honesty::Honest) else {
            return;
        };
        let peer = &mut *lock(&adapter);
        let of_number = |book: &&mut QpBook| book.qpn == peer_qpn;
        let changed_piece = peer
            .qps
            .iter_mut()
            .flatten()
            .find(of_number)
            .and_then(QpBook::executed_send);
        if let Some(piece) = changed_piece {
            self.object(qp, &changed(&piece));
        }
    }

    fn count_rnrs(&mut self, group: &SoftGroup) {
        for index in 0..self.qps.len() {
            let qp = QpIndex(index as u16);
            let Some(book) = self.qps[index].as_mut() else {
                continue;
            };
            let rnrs = group.stats(qp).rnr_naks_sent;
            let fresh = rnrs - book.rnrs;
            if fresh == 0 {
                continue;
            }
            book.rnrs = rnrs;
            let qpn = book.qpn;
            let (stack, counting) = (self.stack, self.counting(qpn));
            let mut pages = lock(&self.book);
            pages.figures.rnrs += fresh;
            pages.note(Event::Fault, stack, &[fresh], || {
                format!("queue pair {qpn:#x} is not ready to receive")
            });
            if counting == Counting::Credits {
                pages.object(|| {
                    format!("stack {stack}, queue pair {qpn:#x}: receives ran out despite credits")
                });
            }
        }
    }

    /// What an honest worker says has to fit together.
    fn check_message(&mut self, qp: QpIndex, message: &[u8]) {
        let Ok(message) = cdc::Repr::parse(message) else {
            return; // LLC
        };
        let Some(book) = self.qp_mut(qp) else { return };
        if let Err(what) = book.said.on_cdc(&message) {
            self.object(qp, &what);
        }
    }

    /// The bytes of a message, wherever they are.
    fn message(&mut self, payload: &Payload<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        match payload {
            Payload::InlineBytes(message) => bytes.extend_from_slice(message),
            Payload::Inline(pieces) => {
                for piece in *pieces {
                    let start = bytes.len();
                    bytes.resize(start + piece.length as usize, 0);
                    let _ = piece.region.copy_out(piece.offset, &mut bytes[start..]);
                }
            }
            Payload::ByReference(sges) => {
                for sge in *sges {
                    let start = bytes.len();
                    bytes.resize(start + sge.length as usize, 0);
                    lock(&self.registry).copy_out(sge.lkey.0, sge.addr, &mut bytes[start..]);
                }
            }
        }
        bytes
    }
}

fn changed(piece: &Piece) -> String {
    let length = piece.length;
    format!("{length} B that went by reference were changed before they were executed")
}

fn length(payload: &Payload<'_>) -> u32 {
    match payload {
        Payload::Inline(pieces) => pieces.iter().map(|piece| piece.length).sum(),
        Payload::InlineBytes(bytes) => bytes.len() as u32,
        Payload::ByReference(sges) => sges.iter().map(|sge| sge.length).sum(),
    }
}

impl Layer<SoftGroup> for Faults {
    fn adopt(&mut self, group: &mut SoftGroup, qp: SoftQp) -> Result<QpIndex, AdoptError<SoftQp>> {
        let (qpn, caps) = (qp.qpn(), qp.caps());
        let index = group.adopt(qp)?;
        let adapter = &mut *lock(&self.0);
        let at = usize::from(index.0);
        if adapter.qps.len() <= at {
            adapter.qps.resize_with(at + 1, || None);
        }
        adapter.qps[at] = Some(QpBook::new(qpn, caps.send_wr, caps.inline_bytes));
        Ok(index)
    }

    fn release(&mut self, group: &mut SoftGroup, qp: QpIndex) -> Option<SoftQp> {
        let adapter = &mut *lock(&self.0);
        // What was rung is under way; what was reaped is not told any more.
        if adapter.bells.iter().any(|(_, of)| *of == qp) {
            let _ = group.flush(qp);
        }
        adapter.bells.retain(|(_, of)| *of != qp);
        adapter.late_receives.retain(|(_, of, ..)| *of != qp);
        adapter.queue.retain(|completion| completion.qp != qp);
        let place = adapter.qps.get_mut(usize::from(qp.0));
        if let Some(book) = place.and_then(Option::take) {
            adapter.links.remove(&book.qpn);
            lock(&adapter.book).release((adapter.stack, book.qpn));
        }
        group.release(qp)
    }

    fn post_write(
        &mut self,
        group: &mut SoftGroup,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        to: RemoteSpan,
        signal: Signal,
    ) -> Result<(), PostError> {
        let adapter = &mut *lock(&self.0);
        adapter.maybe_break(group, qp);
        adapter.maybe_refuse(qp)?;
        let bytes = length(&payload);
        let pieces = adapter.pieces(&payload);
        group.post_write(qp, wr, payload, to, signal)?;
        if let Some(book) = adapter.qp_mut(qp) {
            book.said.on_write(to, bytes);
        }
        let sent = Sent {
            wr,
            opcode: WcOpcode::Write,
            signal,
            executed: false,
            pieces,
        };
        adapter.posted(qp, sent, bytes.into());
        adapter.maybe_ring(group, qp);
        Ok(())
    }

    fn post_send(
        &mut self,
        group: &mut SoftGroup,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        signal: Signal,
    ) -> Result<(), PostError> {
        let adapter = &mut *lock(&self.0);
        adapter.maybe_break(group, qp);
        adapter.maybe_refuse(qp)?;
        let message = adapter.message(&payload);
        let bytes = message.len() as u64;
        let pieces = adapter.pieces(&payload);
        match adapter.lie(qp, &message) {
            Some(lie) => group.post_send(qp, wr, Payload::InlineBytes(&lie), signal)?,
            None => group.post_send(qp, wr, payload, signal)?,
        }
        adapter.check_message(qp, &message);
        let sent = Sent {
            wr,
            opcode: WcOpcode::Send,
            signal,
            executed: false,
            pieces,
        };
        adapter.posted(qp, sent, bytes);
        adapter.maybe_ring(group, qp);
        Ok(())
    }

    fn post_recv(
        &mut self,
        group: &mut SoftGroup,
        qp: QpIndex,
        wr: WrId,
        into: Sge,
    ) -> Result<(), PostError> {
        let adapter = &mut *lock(&self.0);
        let Some(qpn) = adapter.qp(qp).map(|book| book.qpn) else {
            return group.post_recv(qp, wr, into);
        };
        let is_late = adapter.is_faulty()
            && adapter.counting(qpn) == Counting::Nothing
            && adapter.numbers.chance(adapter.faults.late_receive_chance);
        let waits = adapter.late_receives.iter().any(|(_, of, ..)| *of == qp);
        if is_late || waits {
            // The order of receives is kept: the next ones wait behind a late one.
            let due = adapter.clock.now() + adapter.numbers.below(adapter.faults.pause_max + 1);
            adapter.late_receives.push_back((due, qp, wr, into));
            lock(&adapter.book).fault("receive late", adapter.stack, String::new);
            return Ok(());
        }
        group.post_recv(qp, wr, into)?;
        if let Some(book) = adapter.qp_mut(qp) {
            book.receives.push_back(wr);
        }
        Ok(())
    }

    fn flush(&mut self, group: &mut SoftGroup, qp: QpIndex) -> Result<(), FlushError> {
        let adapter = &mut *lock(&self.0);
        if adapter.is_faulty() && adapter.numbers.chance(adapter.faults.late_bell_chance) {
            let due = adapter.clock.now() + adapter.numbers.below(adapter.faults.withhold_max + 1);
            adapter.bells.push_back((due, qp));
            lock(&adapter.book).fault("doorbell late", adapter.stack, String::new);
            return Ok(());
        }
        group.flush(qp)
    }

    fn reap(&mut self, group: &mut SoftGroup, now: Ns, into: &mut [Completion]) -> usize {
        let adapter = &mut *lock(&self.0);
        adapter.catch_up(group, now);
        for index in 0..adapter.qps.len() {
            adapter.maybe_break(group, QpIndex(index as u16));
        }
        let eager = adapter.faults.eager;
        if eager > 0 && adapter.is_faulty() {
            for _ in 0..=adapter.numbers.below(eager.into()) {
                if adapter.take_from_driver(group, BATCH) == 0 {
                    break;
                }
            }
        } else if let wanted @ 1.. = into.len().saturating_sub(adapter.queue.len()) {
            adapter.take_from_driver(group, wanted);
        }
        adapter.count_rnrs(group);
        if now < adapter.withheld_until {
            return 0;
        }
        let most = into.len().min(adapter.completions_per_reap);
        let count = most.min(adapter.queue.len());
        for (place, completion) in into.iter_mut().zip(adapter.queue.drain(..count)) {
            let Completion { wr_id, status, .. } = completion;
            let values = [wr_id.0, u64::from(completion.qp.0), status as u64];
            lock(&adapter.book).note(Event::Completion, adapter.stack, &values, || {
                format!(
                    "{:?} {wr_id:?}: {:?} {status:?}",
                    completion.qp, completion.opcode
                )
            });
            *place = completion;
        }
        count
    }
}
