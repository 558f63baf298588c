//! Registered memory: message slots of links, and the ring buffers of connections.

use super::state::GroupKey;
use pollux_attach::layout::Layout;
use pollux_provider::{Access, Device, Mr, QpCaps, RegisterError, Rkey};
use pollux_ring::{PageKind, Pages, Pool, Region, Segment};
use pollux_worker::{BufferSpan, MessageSlots};

/// Bytes of a receive slot. LLC messages of version 2 may be longer than 44 bytes: ADD LINK with
/// a handful of rtokens must fit, since a receive that is too short kills the queue pair.
const RECEIVE_SLOT_BYTES: u32 = 256;
/// Bytes of a send slot: the longest message that this side sends fits.
const SEND_SLOT_BYTES: u32 = 128;

/// Bytes of the message slots of one link, all of which are registered.
#[must_use]
pub fn link_memory_bytes(send_wr: u32, recv_wr: u32) -> u64 {
    u64::from(send_wr) * u64::from(SEND_SLOT_BYTES)
        + u64::from(recv_wr) * u64::from(RECEIVE_SLOT_BYTES)
}

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
    /// A pool of that name exists.
    #[error("there is a pool {pool:?} of ring buffers already; retire it first")]
    PoolInUse {
        /// Its name.
        pool: super::PoolId,
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
    _registrations: [Mr; LinkMemory::REGISTRATIONS],
}

impl LinkMemory {
    /// Registrations of one link.
    pub(crate) const REGISTRATIONS: usize = 2;

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
                span: BufferSpan {
                    region: receive,
                    offset: 0,
                    lkey: receive_mr.lkey(),
                },
                bytes: RECEIVE_SLOT_BYTES,
                count: caps.recv_wr,
            },
            send: MessageSlots {
                span: BufferSpan {
                    region: send,
                    offset: 0,
                    lkey: send_mr.lkey(),
                },
                bytes: SEND_SLOT_BYTES,
                count: caps.send_wr,
            },
            _registrations: [receive_mr, send_mr],
        })
    }

    pub(crate) fn notes(&self) -> [MemoryNote; 2] {
        let note = |what: &str, region: &Region| MemoryNote {
            purpose: format!("{what} of links"),
            bytes: region.len(),
            pages: region.page_kind(),
        };
        [
            note("receive slots", &self.receive.span.region),
            note("send slots", &self.send.span.region),
        ]
    }
}

/// The ring buffers of a session, or of the workers' own application: one segment, a slot for
/// each connection.
#[derive(Debug)]
pub(crate) struct BufferPool {
    region: Region,
    layout: Layout,
    sndbufs: Mr,
    /// Registered on first use, each with a key of its own: DELETE RKEY names a buffer by its key
    /// alone. A key is known to the peer of one group and dies before another's gets the buffer, so
    /// that a peer that writes after its time can reach nobody else's bytes.
    rmbs: Vec<Option<(GroupKey, Mr)>>,
}

/// The buffers of one connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnBuffers {
    pub(crate) sndbuf: BufferSpan,
    pub(crate) sndbuf_bytes: u32,
    pub(crate) rmbe: BufferSpan,
    pub(crate) rmbe_bytes: u32,
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
}

impl BufferPool {
    /// A pool over `segment`, which has this layout.
    pub(crate) fn create<D: Device>(
        device: &D,
        segment: Segment,
        layout: Layout,
    ) -> Result<Self, MemoryError> {
        let region = Region::from(segment);
        let (offset, bytes) = layout.sndbufs();
        let sndbufs = device
            .register(&region, offset, bytes, Access::LocalOnly)
            .map_err(|error| MemoryError::Register {
                purpose: "send buffers",
                error,
            })?;
        let rmbs = std::iter::repeat_with(|| None)
            .take(usize::from(layout.shape().slots()))
            .collect();
        Ok(BufferPool {
            region,
            layout,
            sndbufs,
            rmbs,
        })
    }

    /// The buffers of a slot, registered for the WRITEs of the peer of `group` if they are not yet.
    ///
    /// `None` for a slot that the pool does not have.
    pub(crate) fn buffers<D: Device>(
        &mut self,
        device: &D,
        slot: u16,
        group: GroupKey,
    ) -> Result<Option<ConnBuffers>, MemoryError> {
        let (Some(sndbuf), Some(rmbe), Some(rmb)) = (
            self.layout.sndbuf_offset(slot),
            self.layout.rmbe_offset(slot),
            self.rmbs.get_mut(usize::from(slot)),
        ) else {
            return Ok(None);
        };
        let shape = self.layout.shape();
        let purpose = "a receive buffer";
        let rmb = match rmb {
            Some((known_to, rmb)) if *known_to == group => rmb,
            place => {
                *place = None;
                let bytes = shape.rmbe_bytes() as usize;
                let mr = device
                    .register(&self.region, rmbe, bytes, Access::RemoteWrite)
                    .map_err(|error| MemoryError::Register { purpose, error })?;
                &mut place.insert((group, mr)).1
            }
        };
        let span = |offset, lkey| BufferSpan {
            region: self.region.clone(),
            offset,
            lkey,
        };
        Ok(Some(ConnBuffers {
            sndbuf: span(sndbuf, self.sndbufs.lkey()),
            sndbuf_bytes: shape.sndbuf_bytes(),
            rmbe: span(rmbe, rmb.lkey()),
            rmbe_bytes: shape.rmbe_bytes(),
            rkey: rmb.rkey(),
            addr: rmb.addr(),
        }))
    }

    /// Registrations held.
    pub(crate) fn registrations(&self) -> usize {
        1 + self.rmbs.iter().flatten().count()
    }

    pub(crate) fn note(&self, purpose: String) -> MemoryNote {
        MemoryNote {
            purpose,
            bytes: self.region.len(),
            pages: self.region.page_kind(),
        }
    }
}
