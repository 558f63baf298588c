//! A peer that scribbles over its own port: the worst it can do is to end its own connection.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use pollux_ring::{LINE_BYTES, Pages, Region, Segment, Wake};
use proptest::prelude::*;

use super::SoftGroup;
use crate::fifo::Fifo;
use crate::soft::barrier::Fence;
use crate::soft::line_format::tests::to_words;
use crate::soft::line_format::{EMPTY_LINE, LineBytes, Verb, continue_chain, emit_carried};
use crate::soft::port::line_offset;
use crate::soft::{DeviceOptions, Fabric, SoftDevice};
use crate::{
    Access, Armed, Completion, Device, Mr, Payload, PollGroup, PollGroupSpec, Qp, QpCaps, QpIndex,
    QpKind, QpSpec, QpState, RtrAttr, RtsAttr, Sge, Signal, Sleep, WcStatus, WrId,
};

const MEMORY: usize = 8192;
/// The part of the target's memory that the peer may write.
const OPEN: std::ops::Range<usize> = 1024..2048;
/// Where a port has which word (see the module text of `port`).
const RUN: usize = 24;
const CONSUMED: usize = 128;
const VERDICT: usize = 136;
const MAY_SLEEP: usize = 256;

struct End {
    device: SoftDevice,
    group: SoftGroup,
    qp: QpIndex,
    memory: Region,
    open: Mr,
    slots: Mr,
}

impl End {
    fn new(fabric: &Fabric, gid: u8) -> End {
        let device = fabric.open(DeviceOptions::new([gid; 16])).unwrap();
        let spec = PollGroupSpec {
            cq_entries: 1000,
            wake: Wake::new().unwrap(),
        };
        let group = device.create_poll_group(&spec).unwrap();
        let memory = Region::from(Segment::create("test", MEMORY, Pages::Off).unwrap());
        let open = device
            .register(&memory, OPEN.start, OPEN.len(), Access::RemoteWrite)
            .unwrap();
        let slots = device
            .register(&memory, 4096, 4096, Access::LocalOnly)
            .unwrap();
        End {
            device,
            group,
            qp: QpIndex(0),
            memory,
            open,
            slots,
        }
    }

    fn reap(&mut self, now: u64) -> Vec<Completion> {
        let mut into = [Completion::EMPTY; 16];
        let count = self.group.reap(now, &mut into);
        into[..count].to_vec()
    }

    fn recv(&mut self, slot: u64) {
        let (addr, lkey) = (self.slots.addr() + slot * 64, self.slots.lkey());
        let into = Sge {
            addr,
            length: 64,
            lkey,
        };
        self.group.post_recv(self.qp, WrId(slot), into).unwrap();
    }

    /// Writes into the port behind the driver's back.
    fn scribble(&self, offset: usize, bytes: &[u8]) {
        let core = self.group.cores[usize::from(self.qp.0)].as_ref().unwrap();
        core.port.segment().copy_in(offset, bytes).unwrap();
    }

    fn scribble_word(&self, offset: usize, word: u64) {
        self.scribble(offset, &word.to_le_bytes());
    }

    /// Writes a line with the sequence number that the target expects at this position.
    fn scribble_line(&self, position: u64, line: &[u64; 7]) {
        let bytes: Vec<u8> = line
            .iter()
            .chain([&(position + 1)])
            .flat_map(|word| word.to_le_bytes())
            .collect();
        assert_eq!(bytes.len(), LINE_BYTES);
        self.scribble(line_offset(position, 256), &bytes);
    }

    /// Memory that no peer may have touched: all but the open part and the receive slots.
    fn untouched(&self) -> bool {
        let mut bytes = [0; 4096];
        self.memory.copy_out(0, &mut bytes).unwrap();
        bytes[..OPEN.start]
            .iter()
            .chain(&bytes[OPEN.end..])
            .all(|byte| *byte == 0)
    }
}

/// A liar and its honest target.
fn pair() -> (End, End) {
    let fabric = Fabric::new();
    let (mut liar, mut honest) = (End::new(&fabric, 1), End::new(&fabric, 2));
    let caps = QpCaps {
        send_wr: 8,
        recv_wr: 16,
        send_sge: 2,
        recv_sge: 1,
        inline_bytes: 256,
    };
    let create = |end: &End| {
        let spec = QpSpec {
            kind: QpKind::Rc,
            caps,
        };
        end.device.create_qp(end.group.id(), &spec).unwrap()
    };
    let (mut qp_l, mut qp_h) = (create(&liar), create(&honest));
    let (qpn_l, qpn_h) = (qp_l.qpn(), qp_h.qpn());
    for (end, qp, gid, peer_qpn) in [(&liar, &mut qp_l, 2, qpn_h), (&honest, &mut qp_h, 1, qpn_l)] {
        end.device.to_init(qp).unwrap();
        let attr = RtrAttr {
            path_mtu: 1024,
            peer_qpn,
            rq_psn: 77,
            min_rnr_timer: 1,
            peer_gid: [gid; 16],
            peer_mac: [0; 6],
            hop_limit: 1,
        };
        end.device.to_rtr(qp, &attr).unwrap();
        let attr = RtsAttr {
            sq_psn: 77,
            timeout: 15,
            retry_count: 7,
            rnr_retry: 7,
        };
        end.device.to_rts(qp, &attr).unwrap();
    }
    liar.qp = liar.group.adopt(qp_l).unwrap();
    honest.qp = honest.group.adopt(qp_h).unwrap();
    (liar, honest)
}

/// A line to be written: honest but for its address, and perhaps one bit.
#[derive(Debug, Clone)]
struct Lie {
    opcode: u64,
    len: u64,
    /// From the beginning of the open part.
    at: i64,
    flip: Option<(usize, u32)>,
    rubbish: Option<[u64; 7]>,
}

impl Lie {
    fn line(&self, honest: &End) -> [u64; 7] {
        if let Some(rubbish) = self.rubbish {
            return rubbish;
        }
        let (rkey, addr) = match self.opcode {
            1 => (0, 0),
            _ => (
                u64::from(honest.open.rkey().0),
                honest.open.addr().saturating_add_signed(self.at),
            ),
        };
        let head = self.opcode | self.len << 16 | rkey << 32;
        let mut line = [head, addr, 3, 4, 5, 6, 7];
        if let Some((word, bit)) = self.flip {
            line[word] ^= 1 << bit;
        }
        line
    }
}

fn lies() -> impl Strategy<Value = Vec<Lie>> {
    let at = prop_oneof![20 => 0..900i64, 1 => -100..1100i64, 1 => any::<i64>()];
    let flip = proptest::option::weighted(0.1, (0..3usize, 0..64u32));
    let rubbish = proptest::option::weighted(0.02, any::<[u64; 7]>());
    let lie =
        (1..4u64, 0..33u64, at, flip, rubbish).prop_map(|(opcode, len, at, flip, rubbish)| Lie {
            opcode,
            len,
            at,
            flip,
            rubbish,
        });
    prop::collection::vec(lie, 1..60)
}

#[test]
fn lines_of_a_liar_never_leave_what_it_may_write() {
    let config = proptest::test_runner::Config {
        cases: 400,
        failure_persistence: None,
        ..Default::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let (executed, refused) = (Cell::new(0), Cell::new(0));
    let outcome = runner.run(&lies(), |lies| {
        let (liar, mut honest) = pair();
        (0..16).for_each(|slot| honest.recv(slot));
        for (position, lie) in lies.iter().enumerate() {
            liar.scribble_line(position as u64, &lie.line(&honest));
            for done in honest.reap(position as u64 * 1_000_000) {
                prop_assert!(done.opcode.is_receive());
            }
        }
        prop_assert!(honest.untouched());
        executed.set(executed.get() + honest.group.stats(honest.qp).writes_executed);
        refused.set(refused.get() + u32::from(honest.group.state(honest.qp) == QpState::Error));
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    // The lines were worth something.
    assert!(
        executed.get() > 100 && refused.get() > 100,
        "{executed:?} {refused:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn port_full_of_rubbish_ends_at_most_its_own_connection(
        seed in any::<u64>(), plausible in any::<bool>()
    ) {
        let (liar, mut honest) = pair();
        let mut random = seed;
        let mut next = || {
            random = crate::table::mix(random);
            random
        };
        for round in 0..400u64 {
            let offset = (next() as usize % (512 + 256 * LINE_BYTES - 8)) & !7;
            let word = if plausible { next() % 600 } else { next() };
            liar.scribble_word(offset, word);
            if honest.group.state(honest.qp) == QpState::Rts {
                let _ = honest.group.post_send(honest.qp, WrId(round), Payload::InlineBytes(&[1; 44]), Signal::Signaled);
                let _ = honest.group.flush(honest.qp);
            }
            honest.reap(round * 1000);
            let _ = honest.group.stats(honest.qp);
        }
        prop_assert!(honest.untouched());
    }
}

#[test]
fn endless_requests_take_a_bounded_share_of_a_pass() {
    let (liar, mut honest) = pair();
    let verb = Verb::Write {
        addr: honest.open.addr(),
        rkey: honest.open.rkey().0,
    };
    let mut staged: Fifo<LineBytes> = Fifo::new(1, EMPTY_LINE);
    emit_carried(verb, 8, &mut staged, |place| place.fill(7));
    let mut line = *staged.front().unwrap();
    // The chain never ends.
    continue_chain(&mut line);
    let line = to_words(&line);
    for round in 0..20u64 {
        for position in 0..256 {
            liar.scribble_line(round * 256 + position, &line);
        }
        let before = honest.group.stats(honest.qp).writes_executed;
        for passes in 1..=4 {
            honest.reap(0);
            let executed = honest.group.stats(honest.qp).writes_executed - before;
            assert_eq!(executed, passes * 64);
        }
    }
}

#[test]
fn a_single_chain_is_executed_in_one_pass_and_all_that_follow_at_once_in_the_next() {
    let (mut requester, mut target) = pair();
    (0..16).for_each(|slot| target.recv(slot));
    for _ in 0..2 {
        // A pass that finds nothing: from now on a chain is expected to be the only one.
        assert!(target.reap(0).is_empty());
        for _ in 0..3 {
            for message in 0..2 {
                let payload = Payload::InlineBytes(b"chain");
                let wr = WrId(message);
                let posted = requester
                    .group
                    .post_send(requester.qp, wr, payload, Signal::Signaled);
                assert_eq!(posted, Ok(()));
            }
            requester.group.flush(requester.qp).unwrap();
        }
        assert_eq!(target.reap(0).len(), 2);
        // This pass comes after one that has found something.
        assert_eq!(target.reap(0).len(), 4);
        assert_eq!(requester.reap(0).len(), 6);
    }
}

#[test]
fn requests_behind_a_missing_one_are_looked_at_and_wait_for_it() {
    let (liar, mut honest) = pair();
    let write = |position: u64, honest: &End| {
        let verb = Verb::Write {
            addr: honest.open.addr(),
            rkey: honest.open.rkey().0,
        };
        let mut staged: Fifo<LineBytes> = Fifo::new(1, EMPTY_LINE);
        emit_carried(verb, 1, &mut staged, |place| place.fill(position as u8));
        to_words(staged.front().unwrap())
    };
    // More than two turns of the ring, so that its end comes between them in every way.
    for first in (0..600).step_by(3) {
        for position in [first + 1, first + 2] {
            liar.scribble_line(position, &write(position, &honest));
        }
        for _ in 0..3 {
            assert!(honest.reap(0).is_empty());
        }
        assert_eq!(honest.group.stats(honest.qp).writes_executed, first);
        liar.scribble_line(first, &write(first, &honest));
        for _ in 0..3 {
            assert!(honest.reap(0).is_empty());
        }
        assert_eq!(honest.group.stats(honest.qp).writes_executed, first + 3);
        let mut last = [0];
        honest.memory.copy_out(OPEN.start, &mut last).unwrap();
        assert_eq!(last, [(first + 2) as u8]);
    }
}

#[test]
fn message_that_never_becomes_whole_waits_without_end_and_without_harm() {
    let (liar, mut honest) = pair();
    let verb = Verb::Write {
        addr: honest.open.addr(),
        rkey: honest.open.rkey().0,
    };
    let mut staged: Fifo<LineBytes> = Fifo::new(256, EMPTY_LINE);
    emit_carried(verb, 1000, &mut staged, |place| place.fill(7));
    liar.scribble_line(0, &to_words(staged.front().unwrap()));
    for _ in 0..1000 {
        assert!(honest.reap(0).is_empty());
    }
    assert_eq!(honest.group.state(honest.qp), QpState::Rts);
    assert_eq!(honest.group.stats(honest.qp).writes_executed, 0);
}

#[test]
fn longest_lie_about_the_length_is_refused_not_awaited() {
    let (liar, mut honest) = pair();
    // A SEND of 0xffff carried bytes.
    liar.scribble_line(0, &[1 | 0xffff << 16, 0, 0, 0, 0, 0, 0]);
    honest.recv(0);
    let done = honest.reap(0);
    assert_eq!((done.len(), done[0].status), (1, WcStatus::WrFlush));
    assert_eq!(honest.group.state(honest.qp), QpState::Error);
}

#[test]
fn request_of_a_peer_that_never_started_to_send_is_refused() {
    let (mut liar, mut honest) = pair();
    liar.scribble_word(RUN, 0);
    liar.group
        .post_send(
            liar.qp,
            WrId(1),
            Payload::InlineBytes(b"early"),
            Signal::Signaled,
        )
        .unwrap();
    liar.group.flush(liar.qp).unwrap();
    honest.recv(0);
    let done = honest.reap(0);
    assert_eq!((done.len(), done[0].status), (1, WcStatus::WrFlush));
    let done = liar.reap(0);
    assert_eq!(
        (done.len(), done[0].status),
        (1, WcStatus::RemoteInvalidRequest)
    );
}

#[test]
fn impossible_acknowledgements_fail_the_requester_with_a_general_error() {
    // Ahead of what was written, and going back.
    for lies in [&[2u64][..], &[u64::MAX], &[1, 0]] {
        let (liar, mut honest) = pair();
        let mut statuses = Vec::new();
        for (wr, lie) in lies.iter().enumerate() {
            let wr = WrId(wr as u64);
            honest
                .group
                .post_send(honest.qp, wr, Payload::InlineBytes(b"x"), Signal::Signaled)
                .unwrap();
            honest.group.flush(honest.qp).unwrap();
            liar.scribble_word(CONSUMED, *lie);
            statuses.extend(honest.reap(0).iter().map(|done| done.status));
        }
        assert_eq!(statuses.last(), Some(&WcStatus::General), "{lies:?}");
        assert_eq!(honest.group.state(honest.qp), QpState::Error);
        assert!(honest.device.take_events().iter().any(|event| {
            matches!(event, crate::DeviceEvent::PeerRefused { what } if what.contains("lines"))
        }));
    }
}

#[test]
fn unknown_verdicts_fail_outstanding_work_and_nothing_else() {
    for verdict in [2, 7, 8, 999, u64::MAX] {
        let (liar, mut honest) = pair();
        honest
            .group
            .post_send(
                honest.qp,
                WrId(1),
                Payload::InlineBytes(b"x"),
                Signal::Signaled,
            )
            .unwrap();
        honest.group.flush(honest.qp).unwrap();
        liar.scribble_word(VERDICT, verdict);
        let done = honest.reap(0);
        assert_eq!((done.len(), done[0].wr_id), (1, WrId(1)));
        assert_ne!(done[0].status, WcStatus::Success);
        if verdict > 7 {
            assert_eq!(done[0].status, WcStatus::General);
        }
    }
}

#[test]
fn verdict_without_outstanding_work_fails_the_next_one() {
    let (liar, mut honest) = pair();
    liar.scribble_word(VERDICT, 2);
    assert!(honest.reap(0).is_empty());
    assert_eq!(honest.group.state(honest.qp), QpState::Rts);
    honest
        .group
        .post_send(
            honest.qp,
            WrId(1),
            Payload::InlineBytes(b"x"),
            Signal::Signaled,
        )
        .unwrap();
    honest.group.flush(honest.qp).unwrap();
    let done = honest.reap(0);
    assert_eq!((done.len(), done[0].wr_id), (1, WrId(1)));
    assert_ne!(done[0].status, WcStatus::Success);
}

#[test]
fn nonsense_about_sleep_costs_a_signal_at_most() {
    let (liar, mut honest) = pair();
    for word in [0, 1, 2, 3, 5, u64::MAX] {
        liar.scribble_word(MAY_SLEEP, word);
        liar.scribble_word(MAY_SLEEP + 8, word.rotate_left(7));
        let posted = honest.group.post_send(
            honest.qp,
            WrId(word),
            Payload::InlineBytes(b"x"),
            Signal::Unsignaled,
        );
        assert_eq!(posted, Ok(()));
        honest.group.flush(honest.qp).unwrap();
        assert!(honest.reap(0).is_empty());
    }
    assert_eq!(honest.group.state(honest.qp), QpState::Rts);
}

/// A group changes its mind about sleep: its peers leave out their fences only while it says that
/// it never sleeps.
#[test]
fn whether_a_group_may_sleep_stands_in_its_port_as_often_as_it_changes() {
    let (_peer, mut end) = pair();
    let said = |end: &End| {
        let core = end.group.cores[usize::from(end.qp.0)].as_ref().unwrap();
        let word = core.port.segment().read_word(MAY_SLEEP).unwrap();
        word.load() != 0
    };
    if end.group.fence == Fence::Always {
        // Where the barrier is not to be had it says so once and for all.
        assert_eq!(end.group.arm(Sleep::Never), Armed::Pending);
        assert!(said(&end));
        return;
    }
    assert!(end.reap(0).is_empty() && !said(&end));
    for _ in 0..3 {
        assert_eq!(end.group.arm(Sleep::May), Armed::Idle);
        assert!(said(&end));
        // Also out of a sleep.
        assert_eq!(end.group.arm(Sleep::Never), Armed::Pending);
        assert!(!said(&end) && !end.group.armed.load(Ordering::SeqCst));
    }
}
