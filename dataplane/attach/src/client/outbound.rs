//! What goes out: submissions, and releases of slots on the control socket.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use pollux_ring::Segment;
use rustix::io::Errno;

use super::slot::SlotCell;
use crate::layout::Layout;
use crate::message::Request;
use crate::packet;
use crate::shared::{INLINE_BYTES, Inline, Submission, SubmissionOp, Submitter, WakeNeeded};

/// Longest write that is copied while the lock is held, in bytes: about as long as a lock costs
/// when it is contended.
const LOCKED_COPY_BYTES: usize = 4096;

/// Everything under the outbound lock.
#[derive(Debug)]
pub(super) struct Outbound {
    submitter: Submitter,
    slots: Box<[OutSlot]>,
    /// Slots whose submission found the ring full, oldest first.
    held: VecDeque<u16>,
    /// Control messages that found the socket full.
    unsent: VecDeque<Vec<u8>>,
}

/// A slot's outgoing direction.
#[derive(Debug, Clone, Copy)]
struct OutSlot {
    generation: u16,
    direction: Direction,
    /// What is to be submitted once there is room.
    held: Option<SubmissionOp>,
}

/// What the outgoing direction is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// No stream has the slot.
    Vacant,
    Idle,
    /// A thread copies into the sndbuf without the lock.
    Copying,
    /// Nothing may be prepared any more.
    Ended,
    /// The stream is gone; Released is sent when nothing is held.
    Released,
}

/// How a write went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// So many bytes were prepared and submitted.
    Bytes(usize),
    /// There is no room.
    Full,
    /// Another thread writes to the same stream.
    Busy,
    /// The direction was ended.
    Ended,
    /// There is room for so many bytes, which are to be copied without the lock, followed by
    /// [`Outbound::finish_copy`].
    Copy(usize),
}

impl Outbound {
    pub(super) fn new(submitter: Submitter, slots: u16) -> Outbound {
        let slot = OutSlot {
            generation: 0,
            direction: Direction::Vacant,
            held: None,
        };
        Outbound {
            submitter,
            slots: vec![slot; usize::from(slots)].into_boxed_slice(),
            held: VecDeque::new(),
            unsent: VecDeque::new(),
        }
    }

    /// Begins a connection in a slot.
    pub(super) fn begin(&mut self, slot: u16, generation: u16, cell: &SlotCell) {
        cell.begin_outgoing();
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = OutSlot {
                generation,
                direction: Direction::Idle,
                held: None,
            };
        }
    }

    /// Writes as much of the pieces as there is room for, unless that is much: then the caller
    /// copies without the lock.
    pub(super) fn write(
        &mut self,
        target: &Target<'_>,
        pieces: &Pieces<'_>,
        op: SubmissionOp,
    ) -> Written {
        let slot = target.slot;
        let Some(place) = self.slots.get_mut(usize::from(slot)) else {
            return Written::Ended;
        };
        match place.direction {
            Direction::Idle => {}
            Direction::Copying => return Written::Busy,
            Direction::Vacant | Direction::Ended | Direction::Released => return Written::Ended,
        }
        let room = target.cell.writable(target.layout.shape().sndbuf_bytes());
        let bytes = usize::try_from(room)
            .unwrap_or(usize::MAX)
            .min(pieces.bytes());
        if bytes == 0 {
            return Written::Full;
        }
        if bytes > LOCKED_COPY_BYTES {
            place.direction = Direction::Copying;
            return Written::Copy(bytes);
        }
        let prepared = target.cell.prepared();
        let inline = pieces.inline(bytes);
        if inline == Inline::NONE {
            target.copy_in(prepared, pieces, bytes);
        }
        target.cell.set_prepared(prepared + bytes as u64);
        if !self.submit(slot, target.cell, op, inline) {
            // It goes out later without its bytes, so they must stand in the sndbuf.
            if inline != Inline::NONE {
                target.copy_in(prepared, pieces, bytes);
            }
            self.hold(slot, op);
        }
        Written::Bytes(bytes)
    }

    /// Submits bytes that were copied without the lock.
    pub(super) fn finish_copy(
        &mut self,
        slot: u16,
        cell: &SlotCell,
        bytes: usize,
        op: SubmissionOp,
    ) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.direction = Direction::Idle;
        }
        cell.set_prepared(cell.prepared() + bytes as u64);
        self.submit_or_hold(slot, cell, op);
    }

    /// Whether a thread is copying into the slot's sndbuf.
    pub(super) fn is_copying(&self, slot: u16) -> bool {
        self.slots
            .get(usize::from(slot))
            .is_some_and(|place| place.direction == Direction::Copying)
    }

    /// Whether the direction is ended.
    pub(super) fn is_ended(&self, slot: u16) -> bool {
        self.slots
            .get(usize::from(slot))
            .is_none_or(|place| match place.direction {
                Direction::Vacant | Direction::Ended | Direction::Released => true,
                Direction::Idle | Direction::Copying => false,
            })
    }

    /// Tells the worker the totals as they are.
    pub(super) fn kick(&mut self, slot: u16, cell: &SlotCell) {
        self.submit_or_hold(slot, cell, SubmissionOp::Kick);
    }

    /// Ends the direction. Not while a thread is copying.
    pub(super) fn end(&mut self, slot: u16, cell: &SlotCell) {
        debug_assert!(!self.is_copying(slot));
        if self.is_ended(slot) {
            return;
        }
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.direction = Direction::Ended;
        }
        cell.end_writing();
        self.submit_or_hold(slot, cell, SubmissionOp::ShutdownWrite);
    }

    /// Resets the connection; the slot is still to be released.
    pub(super) fn abort(&mut self, slot: u16, cell: &SlotCell) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.direction = Direction::Ended;
        }
        self.submit_or_hold(slot, cell, SubmissionOp::Abort);
    }

    /// Closes or aborts the connection and releases the slot.
    pub(super) fn release(
        &mut self,
        slot: u16,
        cell: &SlotCell,
        op: SubmissionOp,
        control: BorrowedFd<'_>,
    ) {
        self.submit_or_hold(slot, cell, op);
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.direction = Direction::Released;
            if place.held.is_none() {
                self.send_released(slot);
            }
        }
        self.flush_control(control);
    }

    /// Whether something could not be submitted or sent yet.
    #[inline]
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty() || !self.unsent.is_empty()
    }

    /// Submits what is held as far as there is room, and sends what is unsent.
    pub(super) fn flush(&mut self, cells: &[SlotCell], control: BorrowedFd<'_>) {
        while let Some(slot) = self.held.front().copied() {
            let place = self.slots.get(usize::from(slot)).copied();
            let (Some(place), Some(cell)) = (place, cells.get(usize::from(slot))) else {
                break;
            };
            let op = place.held.unwrap_or(SubmissionOp::Kick);
            if !self.submit(slot, cell, op, Inline::NONE) {
                break;
            }
            if place.direction == Direction::Released {
                self.send_released(slot);
            }
        }
        self.flush_control(control);
    }

    /// Whether nothing can be submitted any more, because the memory was written over.
    pub(super) fn is_damaged(&self) -> bool {
        self.submitter.is_damaged()
    }

    /// Whether the worker must be woken to see what was submitted. Contains a full fence.
    #[inline]
    pub(super) fn must_wake(&self) -> WakeNeeded {
        self.submitter.must_wake()
    }

    fn submit_or_hold(&mut self, slot: u16, cell: &SlotCell, op: SubmissionOp) {
        if !self.submit(slot, cell, op, Inline::NONE) {
            self.hold(slot, op);
        }
    }

    /// Submits the slot's totals, together with what is held of it; `false` if there is no room.
    fn submit(&mut self, slot: u16, cell: &SlotCell, op: SubmissionOp, inline: Inline) -> bool {
        let Some(place) = self.slots.get_mut(usize::from(slot)) else {
            return true;
        };
        let op = place.held.map_or(op, |held| stronger(held, op));
        let consumed_total = cell.consumed();
        let submission = Submission {
            op,
            slot,
            generation: place.generation,
            prepared_total: cell.prepared(),
            consumed_total,
        };
        if self.submitter.push(&submission, inline).is_err() {
            return false;
        }
        // Who writes after reading will wait for an answer; who only writes sends a stream.
        if consumed_total == cell.told() {
            self.submitter.skip_demotion();
        } else {
            self.submitter.demote_last();
            cell.set_told(consumed_total);
        }
        if place.held.take().is_some() {
            self.held.retain(|&held| held != slot);
        }
        true
    }

    fn hold(&mut self, slot: u16, op: SubmissionOp) {
        let Some(place) = self.slots.get_mut(usize::from(slot)) else {
            return;
        };
        match place.held {
            Some(held) => place.held = Some(stronger(held, op)),
            None => {
                place.held = Some(op);
                self.held.push_back(slot);
            }
        }
    }

    fn send_released(&mut self, slot: u16) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.direction = Direction::Vacant;
            let released = Request::Released {
                slot,
                generation: place.generation,
            };
            self.unsent.push_back(released.emit());
        }
    }

    fn flush_control(&mut self, control: BorrowedFd<'_>) {
        while let Some(message) = self.unsent.front() {
            match packet::send(control, message, &[]) {
                Err(Errno::AGAIN) => return,
                // An appliance that is gone needs no news.
                Ok(()) | Err(_) => {
                    self.unsent.pop_front();
                }
            }
        }
    }
}

/// Of two wishes of one connection the one that includes the other.
fn stronger(one: SubmissionOp, other: SubmissionOp) -> SubmissionOp {
    let strength = |op| match op {
        SubmissionOp::Kick => 0,
        SubmissionOp::Urgent => 1,
        SubmissionOp::ShutdownWrite => 2,
        SubmissionOp::Close => 3,
        SubmissionOp::Abort => 4,
    };
    if strength(one) >= strength(other) {
        one
    } else {
        other
    }
}

/// A slot's sndbuf.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) segment: &'a Segment,
    pub(super) layout: &'a Layout,
    pub(super) cell: &'a SlotCell,
    pub(super) slot: u16,
}

impl Target<'_> {
    /// Copies the first `bytes` bytes of the pieces to where total `prepared` stands.
    pub(super) fn copy_in(&self, prepared: u64, pieces: &Pieces<'_>, bytes: usize) {
        let Some(base) = self.layout.sndbuf_offset(self.slot) else {
            return;
        };
        let size = self.layout.shape().sndbuf_bytes() as usize;
        let mut at = prepared as usize & (size - 1);
        let mut left = bytes;
        for piece in pieces.0 {
            let piece = &piece[..piece.len().min(left)];
            let (first, second) = piece.split_at(piece.len().min(size - at));
            let copied = self
                .segment
                .copy_in(base + at, first)
                .and_then(|()| self.segment.copy_in(base, second));
            debug_assert_eq!(copied, Ok(()), "the layout lies inside the segment");
            at = (at + piece.len()) & (size - 1);
            left -= piece.len();
            if left == 0 {
                return;
            }
        }
    }
}

/// What an application wants to write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces<'a>(pub(super) &'a [IoSlice<'a>]);

impl Pieces<'_> {
    pub(super) fn bytes(&self) -> usize {
        self.0
            .iter()
            .fold(0, |sum, piece| sum.saturating_add(piece.len()))
    }

    /// The first `bytes` bytes if they fit into a line.
    #[inline]
    fn inline(&self, bytes: usize) -> Inline {
        if bytes > INLINE_BYTES {
            return Inline::NONE;
        }
        let mut inline = Inline::NONE;
        for piece in self.0 {
            let left = bytes - inline.len();
            inline.append(&piece[..piece.len().min(left)]);
        }
        inline
    }
}
