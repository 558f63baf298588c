//! A soft device with a completion queue, and searches whose questions are written down.

use pollux_control::config::InlineProbe;
use pollux_control::probe::{Answer, Outcome, ProbeError, Shape, Wish, limits_of, search};
use pollux_provider::soft::{DeviceOptions, Fabric, Personality, SoftDevice, SoftGroup, SoftQp};
use pollux_provider::{Device, Errno, PollGroup, PollGroupSpec, QpKind};
use pollux_ring::Wake;

/// Both ways to search.
pub(crate) const MODES: [InlineProbe; 2] = [InlineProbe::Ladder, InlineProbe::Bisect];

/// A device of its own, with a completion queue that has room for just one queue pair of
/// [`wish`].
pub(crate) struct Bench {
    pub(crate) device: SoftDevice,
    pub(crate) group: SoftGroup,
    pub(crate) cq_entries: u32,
}

/// What was asked and what came of it.
pub(crate) struct Searched {
    /// Inline sizes, in bytes, in the order in which the device was asked for them.
    pub(crate) asked: Vec<u32>,
    pub(crate) result: Result<(SoftQp, Outcome), ProbeError>,
}

/// What is left alive on a device.
pub(crate) type Left = (usize, usize, usize, usize, usize);

impl Bench {
    pub(crate) fn new(personality: &str) -> Bench {
        Bench::with_gid(personality, 1)
    }

    /// As [`Bench::new`], with a completion queue for deep queue pairs.
    pub(crate) fn deep(personality: &str) -> Bench {
        Bench::open(personality, 1, 8192)
    }

    /// As [`Bench::new`], with another address.
    pub(crate) fn with_gid(personality: &str, last: u8) -> Bench {
        let cq_entries = wish(256, InlineProbe::Ladder).shape.cq_entries;
        Bench::open(personality, last, cq_entries)
    }

    fn open(personality: &str, last: u8, cq_entries: u32) -> Bench {
        let mut gid = [0; 16];
        gid[15] = last;
        let personality: Personality = personality.parse().expect("a personality");
        let options = DeviceOptions {
            personality,
            ..DeviceOptions::new(gid)
        };
        let device = Fabric::new().open(options).expect("a device");
        let spec = PollGroupSpec {
            cq_entries,
            wake: Wake::new().expect("a descriptor"),
        };
        let group = device.create_poll_group(&spec).expect("a group");
        Bench {
            device,
            group,
            cq_entries,
        }
    }

    /// Searches; between two creations no queue pair may be alive.
    pub(crate) fn search(&self, wish: &Wish) -> Searched {
        let mut asked = Vec::new();
        let limits = limits_of(self.device.identity().vendor_id);
        let result = search(wish, limits, |inline_bytes| {
            asked.push(inline_bytes);
            assert_eq!(self.device.census().qps, 0, "a queue pair is left");
            let spec = wish.shape.spec(inline_bytes);
            self.device.create_qp(self.group.id(), &spec)
        });
        Searched { asked, result }
    }

    /// What is alive.
    pub(crate) fn left(&self) -> Left {
        let census = self.device.census();
        let (qps, mrs, exports) = (census.qps, census.mrs, census.exports);
        (census.groups, qps, mrs, exports, census.peers)
    }

    /// Creations so far.
    pub(crate) fn creations(&self) -> u64 {
        self.device.census().create_qp_calls
    }
}

/// A queue pair as links have it, 256 deep.
pub(crate) fn wish(inline_bytes: u32, mode: InlineProbe) -> Wish {
    Wish {
        shape: Shape {
            kind: QpKind::Rc,
            send_wr: 256,
            recv_wr: 256,
            send_sge: 2,
            recv_sge: 1,
            cq_entries: 512,
        },
        inline_bytes,
        mode,
    }
}

/// The sizes of an outcome's trials, and why those were refused that were.
pub(crate) fn trials(outcome: &Outcome) -> (Vec<u32>, Vec<Errno>) {
    let asked = outcome.trials.iter().map(|trial| trial.asked_bytes);
    let refused = outcome
        .trials
        .iter()
        .filter_map(|trial| match trial.answer {
            Answer::Refused(errno) => Some(errno),
            Answer::Granted(_) => None,
        });
    (asked.collect(), refused.collect())
}
