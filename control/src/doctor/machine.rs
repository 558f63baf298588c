//! The host: files below a root, and what only system calls tell.

use pollux_provider::verbs::Survey;
use pollux_ring::{HugepageInfo, Pages, Segment, Wake, hugepages_below};
use rustix::process::{Resource, getrlimit};

use crate::cores::{self, AllowedError, CoreSet};
use crate::host::{Host, Root};
use crate::start::rehearsal::Scene;

/// Number of the capability to lock memory without a limit (linux/capability.h).
const CAP_IPC_LOCK: u32 = 14;
/// Number of the capability to listen on low ports.
const CAP_NET_BIND_SERVICE: u32 = 10;

/// A limit of the process; `None`: there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// In force.
    pub soft: Option<u64>,
    /// Up to which the process may raise it.
    pub hard: Option<u64>,
}

impl Limit {
    fn of(resource: Resource) -> Limit {
        let limit = getrlimit(resource);
        Limit {
            soft: limit.current,
            hard: limit.maximum,
        }
    }
}

/// What there is to be looked at.
#[derive(Debug)]
pub struct Machine {
    /// User and folders.
    pub host: Host,
    /// Where `/proc` and `/sys` are.
    pub root: Root,
    /// The affinity mask of the process.
    pub affinity: Result<CoreSet, AllowedError>,
    /// Cores that the process may use.
    pub allowed: Result<CoreSet, AllowedError>,
    /// Locked memory, in bytes.
    pub memlock: Limit,
    /// File descriptors.
    pub descriptors: Limit,
    /// RDMA devices.
    pub survey: Survey,
    /// Whether shared memory can be made, and the refusal.
    pub shared_memory: Result<(), String>,
    /// Whether wake-up descriptors can be made, and the refusal.
    pub wake_ups: Result<(), String>,
}

impl Machine {
    /// This host, for this process.
    #[must_use]
    pub fn current() -> Machine {
        let root = Root::system();
        let page = Segment::create("pollux-doctor", 4096, Pages::Off);
        Machine {
            memlock: Limit::of(Resource::Memlock),
            descriptors: Limit::of(Resource::Nofile),
            survey: Survey::take(),
            shared_memory: page.map(|_| ()).map_err(|error| error.to_string()),
            wake_ups: Wake::new().map(|_| ()).map_err(|error| error.to_string()),
            ..Machine::below(root, Host::current(), cores::affinity())
        }
    }

    /// What the files below a root say, for a process with this affinity mask. Limits are none, the
    /// library is missing, and shared memory works.
    #[must_use]
    pub fn below(root: Root, host: Host, affinity: Result<CoreSet, AllowedError>) -> Machine {
        let allowed = affinity
            .clone()
            .and_then(|affinity| cores::allowed_of(affinity, &root));
        let none = Limit {
            soft: None,
            hard: None,
        };
        let missing = pollux_provider::verbs::LoadError::NotFound {
            cause: "not looked for".to_string(),
        };
        Machine {
            survey: Survey::below(root.folder(), Err(missing)),
            host,
            affinity,
            allowed,
            memlock: none,
            descriptors: none,
            shared_memory: Ok(()),
            wake_ups: Ok(()),
            root,
        }
    }

    pub(super) fn scene(&self) -> Scene<'_> {
        Scene {
            host: &self.host,
            root: &self.root,
            allowed: &self.allowed,
            hugepages: self.hugepages(),
            survey: &self.survey,
        }
    }

    pub(super) fn hugepages(&self) -> HugepageInfo {
        hugepages_below(self.root.folder())
    }

    /// A number in a file; `None` if there is none.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.root.text(path)?.parse().ok()
    }

    /// Bytes in a line of `/proc/meminfo`.
    pub(super) fn meminfo_bytes(&self, name: &str) -> Option<u64> {
        let text = self.root.text("/proc/meminfo")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Whether the locked-memory limit does not count for this process.
    pub(super) fn may_lock_all(&self) -> bool {
        self.capabilities() >> CAP_IPC_LOCK & 1 == 1
    }

    /// The capabilities in force that count here, by name.
    pub(super) fn capability_names(&self) -> Vec<&'static str> {
        let bits = self.capabilities();
        [
            (CAP_IPC_LOCK, "CAP_IPC_LOCK"),
            (CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"),
        ]
        .into_iter()
        .filter(|(bit, _)| bits >> bit & 1 == 1)
        .map(|(_, name)| name)
        .collect()
    }

    fn capabilities(&self) -> u64 {
        let status = self.root.text("/proc/self/status").unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .unwrap_or_default();
        u64::from_str_radix(line.trim(), 16).unwrap_or_default()
    }
}
