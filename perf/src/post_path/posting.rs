//! The driver's part: one WRITE and the message behind it, posted and made visible.

use anyhow::{Context, Result, anyhow, ensure};
use pollux_control::rpc::InlineUse;
use pollux_provider::soft::{Fabric, SoftDevice, SoftGroup};
use pollux_provider::{
    Access, Completion, Device, Mr, Payload, Piece, PollGroup, PollGroupSpec, Qp, QpIndex, QpKind,
    QpSpec, Region, RemoteSpan, Sge, Signal, Wake, WcStatus, WrId,
};
use pollux_ring::{Pages, Pool, Segment};
use pollux_wire::cdc::CDC_BYTES;

use super::{CAPS, MESSAGE_BYTES};
use crate::pair::{DEVICES, RNR_TIMER, connect, device};

/// Bytes of each memory: a page.
const MEMORY_BYTES: usize = 4096;
/// Where a CDC message to be sent by reference lies, behind the bytes of the stream.
const MESSAGE_OFFSET: usize = MESSAGE_BYTES;
/// A completion is asked for as often as a worker asks: once in a quarter of the queue.
const MESSAGES_PER_SIGNAL: u64 = CAPS.send_wr as u64 / 4 / 2;
/// Turns of both ends until a message must have arrived.
const TURNS_MAX: u32 = 1000;

/// One end.
struct End {
    group: SoftGroup,
    qp: QpIndex,
    /// What is sent.
    source: Region,
    source_mr: Mr,
    /// What the peer writes into.
    target: Region,
    target_mr: Mr,
    /// What receives take.
    pool_mr: Mr,
}

/// What is posted for each message.
struct Job<'a> {
    /// The bytes of the stream, as the adapter finds them and as the processor does.
    bytes: [Sge; 1],
    piece: [Piece<'a>; 1],
    to: RemoteSpan,
    /// The message in registered memory.
    message_at: [Sge; 1],
    /// The message itself.
    message: [u8; CDC_BYTES],
    mode: InlineUse,
}

/// What is counted. Everything that knows how the driver is called stands here.
#[inline(never)]
fn counted_posting(
    group: &mut SoftGroup,
    qp: QpIndex,
    job: &Job<'_>,
    number: u64,
    signal: Signal,
) -> Result<()> {
    let wr = WrId(2 * number);
    match job.mode {
        InlineUse::On => {
            let payload = Payload::Inline(&job.piece);
            group.post_write(qp, wr, payload, job.to, Signal::Unsignaled)?;
        }
        InlineUse::Messages | InlineUse::Off => {
            let payload = Payload::ByReference(&job.bytes);
            group.post_write(qp, wr, payload, job.to, Signal::Unsignaled)?;
        }
    }
    let wr = WrId(2 * number + 1);
    let payload = match job.mode {
        InlineUse::On | InlineUse::Messages => Payload::InlineBytes(&job.message),
        InlineUse::Off => Payload::ByReference(&job.message_at),
    };
    group.post_send(qp, wr, payload, signal)?;
    group.flush(qp)?;
    Ok(())
}

/// Sends `messages` messages.
pub(super) fn run(mode: InlineUse, messages: u64) -> Result<()> {
    let fabric = Fabric::new();
    let [mut sender, mut receiver] =
        connected([device(&fabric, DEVICES[0])?, device(&fabric, DEVICES[1])?])?;
    let message = [0x5a; CDC_BYTES];
    sender.source.copy_in(MESSAGE_OFFSET, &message)?;
    let source = sender.source.clone();
    let job = Job {
        bytes: [sender.piece(0, MESSAGE_BYTES)],
        piece: [Piece {
            region: &source,
            offset: 0,
            length: MESSAGE_BYTES as u32,
        }],
        to: RemoteSpan {
            addr: receiver.target_mr.addr(),
            rkey: receiver.target_mr.rkey(),
        },
        message_at: [sender.piece(MESSAGE_OFFSET, CDC_BYTES)],
        message,
        mode,
    };
    let mut completions = 0;
    for number in 0..messages {
        let bytes = [number as u8; MESSAGE_BYTES];
        sender.source.copy_in(0, &bytes)?;
        receiver.receive(number)?;
        let signal = if (number + 1).is_multiple_of(MESSAGES_PER_SIGNAL) {
            Signal::Signaled
        } else {
            Signal::Unsignaled
        };
        counted_posting(&mut sender.group, sender.qp, &job, number, signal)?;
        completions += arrived(&mut sender, &mut receiver)?;
        let mut came = [0; MESSAGE_BYTES];
        receiver.target.copy_out(0, &mut came)?;
        ensure!(came == bytes, "message {number} arrived as something else");
    }
    let expected = messages / MESSAGES_PER_SIGNAL;
    ensure!(
        completions <= expected && expected - completions <= 1,
        "{completions} completions instead of {expected}"
    );
    Ok(())
}

/// Lets both ends work until the message has come, and once more each, so that the sender learns
/// of it. Gives the number of completions at the sender.
fn arrived(sender: &mut End, receiver: &mut End) -> Result<u64> {
    let mut completions = 0;
    for _ in 0..TURNS_MAX {
        let has_come = receiver.reap()? > 0;
        completions += sender.reap()?;
        if has_come {
            receiver.reap()?;
            return Ok(completions + sender.reap()?);
        }
    }
    Err(anyhow!("a message did not arrive in {TURNS_MAX} turns"))
}

fn connected(devices: [SoftDevice; 2]) -> Result<[End; 2]> {
    let spec = QpSpec {
        kind: QpKind::Rc,
        caps: CAPS,
    };
    let mut parts = Vec::with_capacity(2);
    for device in &devices {
        let group = device.create_poll_group(&PollGroupSpec {
            cq_entries: 4096,
            wake: Wake::new()?,
        })?;
        let qp = device.create_qp(group.id(), &spec)?;
        parts.push((group, qp));
    }
    let qpns: Vec<u32> = parts.iter().map(|(_, qp)| qp.qpn()).collect();
    let mut ends = Vec::with_capacity(2);
    for (index, ((mut group, mut qp), device)) in parts.into_iter().zip(&devices).enumerate() {
        let peer = (DEVICES[1 - index], qpns[1 - index]);
        connect(device, &mut qp, RNR_TIMER, peer)?;
        let adopted = group.adopt(qp);
        let qp = adopted.map_err(|error| anyhow!("the group refuses its queue pair: {error}"))?;
        ends.push(End::new(device, group, qp)?);
    }
    let ends: Result<[End; 2], _> = ends.try_into();
    ends.ok().context("two devices have two ends")
}

impl End {
    fn new(device: &SoftDevice, group: SoftGroup, qp: QpIndex) -> Result<End> {
        let source = Region::from(Segment::create("source", MEMORY_BYTES, Pages::Off)?);
        let target = Region::from(Segment::create("target", MEMORY_BYTES, Pages::Off)?);
        let pool = Region::from(Pool::create(MEMORY_BYTES, Pages::Off)?);
        let register = |region, access| device.register(region, 0, MEMORY_BYTES, access);
        Ok(End {
            group,
            qp,
            source_mr: register(&source, Access::LocalOnly)?,
            target_mr: register(&target, Access::RemoteWrite)?,
            pool_mr: register(&pool, Access::LocalOnly)?,
            source,
            target,
        })
    }

    fn piece(&self, offset: usize, length: usize) -> Sge {
        Sge {
            addr: self.source_mr.addr() + offset as u64,
            length: length as u32,
            lkey: self.source_mr.lkey(),
        }
    }

    fn receive(&mut self, number: u64) -> Result<()> {
        let into = Sge {
            addr: self.pool_mr.addr(),
            length: MEMORY_BYTES as u32,
            lkey: self.pool_mr.lkey(),
        };
        Ok(self.group.post_recv(self.qp, WrId(number), into)?)
    }

    /// Takes completions; each must be a success.
    fn reap(&mut self) -> Result<u64> {
        let mut into = [Completion::EMPTY; 8];
        let count = self.group.reap(0, &mut into);
        let failed = into[..count]
            .iter()
            .find(|done| done.status != WcStatus::Success);
        match failed {
            None => Ok(count as u64),
            Some(failed) => Err(anyhow!("a work request failed: {failed:?}")),
        }
    }
}
