//! Registered memory: message slots of links, and the ring buffers of connections.

use pollux_provider::{Access, Device, Mr, QpCaps, RegisterError, Rkey};
use pollux_ring::{PageKind, Pages, Pool, Region, Segment};
use pollux_worker::{BufferSpan, MessageSlots};

/// Bytes of a receive slot. LLC messages of version 2 may be longer than 44 bytes: ADD LINK with
/// a handful of rtokens must fit, since a receive that is too short kills the queue pair.
const RECEIVE_SLOT_BYTES: u32 = 256;
/// Bytes of a send slot: the longest message that this side sends fits.
const SEND_SLOT_BYTES: u32 = 128;

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Shared memory was refused.
    #[error("cannot make shared memory for {purpose}: {error}")]
    Segment {
        /// What it was for.
        purpose: &'static str,
        /// The system's answer.
        #[source]
        error: pollux_ring::SegmentError,
    },
    /// Private memory was refused.
    #[error("cannot make memory for {purpose}: {error}")]
    Pool {
        /// What it was for.
        purpose: &'static str,
        /// The system's answer.
        #[source]
        error: pollux_ring::PoolError,
    },
    /// The device refused a registration.
    #[error("cannot register memory for {purpose}: {error}")]
    Register {
        /// What it was for.
        purpose: &'static str,
        /// The device's answer.
        #[source]
        error: RegisterError,
    },
}

/// What `show memory` tells of a piece of memory.
#[derive(Clone, Debug)]
pub(crate) struct MemoryNote {
    pub(crate) purpose: String,
    pub(crate) bytes: usize,
    pub(crate) pages: PageKind,
}

/// Message slots of one link; deregistered and freed when dropped.
#[derive(Debug)]
pub(crate) struct LinkMemory {
    pub(crate) receive: MessageSlots,
    pub(crate) send: MessageSlots,
    _registrations: [Mr; 2],
}

impl LinkMemory {
    /// Slots for a queue pair of the sizes `caps`.
    pub(crate) fn create<D: Device>(
        device: &D,
        caps: QpCaps,
        pages: Pages,
    ) -> Result<Self, MemoryError> {
        let purpose = "a link's receive slots";
        let bytes = (caps.recv_wr * RECEIVE_SLOT_BYTES) as usize;
        let pool =
            Pool::create(bytes, pages).map_err(|error| MemoryError::Pool { purpose, error })?;
        let receive = Region::from(pool);
        let receive_mr = device
            .register(&receive, 0, bytes, Access::LocalOnly)
            .map_err(|error| MemoryError::Register { purpose, error })?;

        // Send slots are read by the peer when a message is not posted inline, so they are shared.
        let purpose = "a link's send slots";
        let bytes = (caps.send_wr * SEND_SLOT_BYTES) as usize;
        let segment = Segment::create_owner_writes("pollux-send", bytes, pages)
            .map_err(|error| MemoryError::Segment { purpose, error })?;
        let send = Region::from(segment);
        let send_mr = device
            .register(&send, 0, bytes, Access::LocalOnly)
            .map_err(|error| MemoryError::Register { purpose, error })?;
        Ok(LinkMemory {
            receive: MessageSlots {
                span: BufferSpan { region: receive, offset: 0, lkey: receive_mr.lkey() },
                bytes: RECEIVE_SLOT_BYTES,
                count: caps.recv_wr,
            },
            send: MessageSlots {
                span: BufferSpan { region: send, offset: 0, lkey: send_mr.lkey() },
                bytes: SEND_SLOT_BYTES,
                count: caps.send_wr,
            },
            _registrations: [receive_mr, send_mr],
        })
    }

    pub(crate) fn notes(&self, link: &str) -> [MemoryNote; 2] {
        let note = |what: &str, region: &Region| MemoryNote {
            purpose: format!("{what} of {link}"),
            bytes: region.len(),
            pages: region.page_kind(),
        };
        [
            note("receive slots", &self.receive.span.region),
            note("send slots", &self.send.span.region),
        ]
    }
}

/// Where the rings of a slot lie in their segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotOffsets {
    pub(crate) sndbuf: usize,
    pub(crate) rmbe: usize,
}

/// What a slot of a pool is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    Free,
    /// A handshake or a connection uses it.
    InUse,
    /// The peer may still write into it.
    Quarantined,
}

#[derive(Debug)]
struct Slot {
    offsets: SlotOffsets,
    state: SlotState,
    /// Registered on first use, with a key of its own: DELETE RKEY names buffers by key alone.
    rmb: Option<Mr>,
}

/// The ring buffers of a session, or of the worker's own application: one segment, `n` slots.
#[derive(Debug)]
pub(crate) struct BufferPool {
    region: Region,
    sndbuf: Mr,
    sndbuf_bytes: u32,
    rmbe_bytes: u32,
    slots: Vec<Slot>,
}

/// The buffers of one connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnBuffers {
    pub(crate) sndbuf: BufferSpan,
    pub(crate) rmbe: BufferSpan,
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
}

impl BufferPool {
    /// A pool over `segment`, whose slots lie at `offsets`. Peers read the sndbufs, so the whole
    /// segment is registered for that.
    pub(crate) fn create<D: Device>(
        device: &D,
        segment: Segment,
        offsets: impl Iterator<Item = SlotOffsets>,
        (sndbuf_bytes, rmbe_bytes): (u32, u32),
    ) -> Result<Self, MemoryError> {
        let region = Region::from(segment);
        let sndbuf = device
            .register(&region, 0, region.len(), Access::LocalOnly)
            .map_err(|error| MemoryError::Register { purpose: "send buffers", error })?;
        let slots = offsets
            .map(|offsets| Slot { offsets, state: SlotState::Free, rmb: None })
            .collect();
        Ok(BufferPool { region, sndbuf, sndbuf_bytes, rmbe_bytes, slots })
    }

    /// Takes the first free slot.
    pub(crate) fn take(&mut self) -> Option<u16> {
        let index = self.slots.iter().position(|slot| slot.state == SlotState::Free)?;
        self.slots[index].state = SlotState::InUse;
        Some(index as u16)
    }

    /// Gives a slot back, or keeps it out of use until [`BufferPool::release_quarantined`].
    pub(crate) fn put(&mut self, slot: u16, state: SlotState) {
        if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
            slot.state = state;
        }
    }

    /// The buffers of a slot, registered for the peer's WRITEs if they are not yet.
    pub(crate) fn buffers<D: Device>(
        &mut self,
        device: &D,
        slot: u16,
    ) -> Result<ConnBuffers, MemoryError> {
        let purpose = "a receive buffer";
        let slot = &mut self.slots[usize::from(slot)];
        let rmb = match &mut slot.rmb {
            Some(rmb) => rmb,
            empty => empty.insert(
                device
                    .register(
                        &self.region,
                        slot.offsets.rmbe,
                        self.rmbe_bytes as usize,
                        Access::RemoteWrite,
                    )
                    .map_err(|error| MemoryError::Register { purpose, error })?,
            ),
        };
        Ok(ConnBuffers {
            sndbuf: BufferSpan {
                region: self.region.clone(),
                offset: slot.offsets.sndbuf,
                lkey: self.sndbuf.lkey(),
            },
            rmbe: BufferSpan {
                region: self.region.clone(),
                offset: slot.offsets.rmbe,
                lkey: rmb.lkey(),
            },
            rkey: rmb.rkey(),
            addr: rmb.addr(),
        })
    }

    pub(crate) fn sndbuf_bytes(&self) -> u32 {
        self.sndbuf_bytes
    }

    pub(crate) fn rmbe_bytes(&self) -> u32 {
        self.rmbe_bytes
    }

    /// Slots that are not free.
    pub(crate) fn used(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state != SlotState::Free).count()
    }

    pub(crate) fn note(&self, purpose: String) -> MemoryNote {
        MemoryNote { purpose, bytes: self.region.len(), pages: self.region.page_kind() }
    }
}
