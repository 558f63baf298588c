//! Processor cores: sets of them as text, what this process may use, and who gets which.
//!
//! A worker in busy mode takes a core for itself, so the choice must be right before the first
//! thread is pinned: inside the affinity mask of the process *and* inside the cpuset of its
//! control group (a pin outside the cpuset can succeed and disturb a neighbour), on cores that no
//! other appliance holds, and with a core left for the control thread whenever there is one.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::host::Root;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Highest core number accepted (Linux builds for at most 8192 processors).
pub const CORE_MAX: u32 = 8191;

/// A set of core numbers, written as a list (`"0,2-5"`) or as a mask (`"0x3d"`) of any length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CoreSet(BTreeSet<u32>);

/// Why a text is no set of cores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreSetError {
    /// Nothing is named, or a mask of zeros.
    #[error("names no core")]
    Empty,
    /// A part of the list is no number and no range.
    #[error("{0:?} is no core number and no range like 2-5")]
    BadPart(String),
    /// A range runs backwards.
    #[error("the range {first}-{last} runs backwards")]
    Backwards {
        /// First core of the range as written.
        first: u32,
        /// Last core of the range as written.
        last: u32,
    },
    /// A mask holds something else than hexadecimal digits.
    #[error("{0:?} is no hexadecimal mask like 0x3d")]
    BadMask(String),
    /// A number beyond [`CORE_MAX`].
    #[error("core {0} is beyond the highest core number {CORE_MAX}")]
    TooHigh(String),
}

impl CoreSet {
    /// The set of the given cores.
    pub fn of(cores: impl IntoIterator<Item = u32>) -> CoreSet {
        CoreSet(cores.into_iter().collect())
    }

    /// Whether `core` is in the set.
    #[must_use]
    pub fn contains(&self, core: u32) -> bool {
        self.0.contains(&core)
    }

    /// How many cores the set has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set has no core.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cores, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The cores of this set that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &CoreSet) -> CoreSet {
        CoreSet(self.0.difference(&other.0).copied().collect())
    }

    /// The cores that both sets have.
    #[must_use]
    pub fn common(&self, other: &CoreSet) -> CoreSet {
        CoreSet(self.0.intersection(&other.0).copied().collect())
    }

    fn from_mask(digits: &str) -> Result<CoreSet, CoreSetError> {
        let bad = || CoreSetError::BadMask(format!("0x{digits}"));
        // Kernel files group masks with commas; a person may use the underscore of numbers.
        let plain: Vec<char> = digits.chars().filter(|c| !matches!(c, ',' | '_')).collect();
        if plain.is_empty() {
            return Err(bad());
        }
        let mut cores = BTreeSet::new();
        for (place, digit) in plain.iter().rev().enumerate() {
            let bits = digit.to_digit(16).ok_or_else(bad)?;
            for bit in (0..4).filter(|bit| bits >> bit & 1 == 1) {
                let core = place * 4 + bit;
                match u32::try_from(core) {
                    Ok(core) if core <= CORE_MAX => cores.insert(core),
                    _ => return Err(CoreSetError::TooHigh(core.to_string())),
                };
            }
        }
        if cores.is_empty() {
            Err(CoreSetError::Empty)
        } else {
            Ok(CoreSet(cores))
        }
    }
}

impl FromStr for CoreSet {
    type Err = CoreSetError;

    fn from_str(text: &str) -> Result<CoreSet, CoreSetError> {
        let text = text.trim();
        if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            return CoreSet::from_mask(digits);
        }
        if text.is_empty() {
            return Err(CoreSetError::Empty);
        }
        let mut cores = BTreeSet::new();
        for part in text.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (core_number(first, part)?, core_number(last, part)?);
            if first > last {
                return Err(CoreSetError::Backwards { first, last });
            }
            cores.extend(first..=last);
        }
        Ok(CoreSet(cores))
    }
}

fn core_number(text: &str, part: &str) -> Result<u32, CoreSetError> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CoreSetError::BadPart(part.to_string()));
    }
    match text.parse::<u32>() {
        Ok(core) if core <= CORE_MAX => Ok(core),
        _ => Err(CoreSetError::TooHigh(text.to_string())),
    }
}

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let mut cores = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cores.next() {
            let mut last = first;
            while let Some(next) = cores.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

/// The allowed set could not be found out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowedError {
    /// Neither the scheduler nor `/proc` tells the affinity mask.
    #[error("cannot read this process's affinity mask: {0}")]
    Affinity(rustix::io::Errno),
    /// Affinity mask and cpuset have no core in common.
    #[error("affinity mask {affinity} and cpuset {cpuset} have no core in common")]
    Disjoint {
        /// What the scheduler says.
        affinity: CoreSet,
        /// What the control group says.
        cpuset: CoreSet,
    },
}

/// Asks which cores this process may use: its affinity mask, cut to the cpuset of its control
/// group. To be called before any thread of the process is pinned, because a pin narrows what the
/// scheduler reports.
///
/// # Errors
/// The affinity mask cannot be read, or it has nothing in common with the cpuset.
pub fn allowed() -> Result<CoreSet, AllowedError> {
    allowed_of(affinity()?, &Root::system())
}

/// The cores of an affinity mask that the cpuset of a host lets this process use as well.
///
/// # Errors
/// There is none.
pub fn allowed_of(affinity: CoreSet, root: &Root) -> Result<CoreSet, AllowedError> {
    let Some(cpuset) = cpuset_of(root) else {
        return Ok(affinity);
    };
    let common = affinity.common(&cpuset);
    if common.is_empty() {
        return Err(AllowedError::Disjoint { affinity, cpuset });
    }
    Ok(common)
}

/// The cpuset of this process's control group on a host; `None` if no controller keeps one.
#[must_use]
pub fn cpuset_of(root: &Root) -> Option<CoreSet> {
    cpuset(
        &root.path("/proc/self/cgroup"),
        &root.path("/sys/fs/cgroup"),
    )
}

/// The affinity mask of this thread: by `core_affinity`, whose fixed mask sees the first 1024
/// cores, completed by `/proc/thread-self/status`, which sees all of them.
///
/// # Errors
/// Neither the scheduler nor `/proc` tells it.
pub fn affinity() -> Result<CoreSet, AllowedError> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    let mut cores: BTreeSet<u32> = ids
        .iter()
        .filter_map(|id| u32::try_from(id.id).ok())
        .collect();
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let listed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    if let Some(listed) = listed.and_then(|text| text.parse::<CoreSet>().ok()) {
        cores.extend(
            listed
                .iter()
                .filter(|core| *core as usize >= CpuSet::MAX_CPU),
        );
        if cores.is_empty() {
            return Ok(listed);
        }
    }
    if !cores.is_empty() {
        return Ok(CoreSet(cores));
    }
    let set = sched_getaffinity(None).map_err(AllowedError::Affinity)?;
    Ok(CoreSet::of((0..CORE_MAX).filter(|core| {
        let core = *core as usize;
        core < CpuSet::MAX_CPU && set.is_set(core)
    })))
}

/// The effective cpuset of the control group that `membership` (`/proc/self/cgroup`) names, below
/// `mount`; of the nearest parent that has one when the group itself has no cpuset controller.
fn cpuset(membership: &Path, mount: &Path) -> Option<CoreSet> {
    let membership = fs::read_to_string(membership).ok()?;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => (mount.to_path_buf(), "cpuset.cpus.effective"),
            list if list.split(',').any(|name| name == "cpuset") => {
                (mount.join("cpuset"), "cpuset.effective_cpus")
            }
            _ => continue,
        };
        let mut dir: PathBuf = root.join(group.trim_start_matches('/'));
        loop {
            let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
            if let Ok(cores) = text.parse::<CoreSet>() {
                return Some(cores);
            }
            if dir == root || !dir.pop() {
                break;
            }
        }
    }
    None
}

/// Which cores the configuration asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CoreChoice {
    /// One worker, on the last core that is allowed and free, so that the first is left for
    /// the control thread and for everything else.
    #[default]
    Auto,
    /// One worker on each of these cores.
    Listed(CoreSet),
}

impl fmt::Display for CoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoreChoice::Auto => f.write_str("auto"),
            CoreChoice::Listed(cores) => cores.fmt(f),
        }
    }
}

impl FromStr for CoreChoice {
    type Err = CoreSetError;

    fn from_str(text: &str) -> Result<CoreChoice, CoreSetError> {
        match text {
            "auto" => Ok(CoreChoice::Auto),
            list => list.parse().map(CoreChoice::Listed),
        }
    }
}

/// A listed core is outside the allowed set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("core {core} is not in this process's allowed set {allowed}")]
pub struct NotAllowed {
    /// The first core that is not allowed.
    pub core: u32,
    /// What is allowed.
    pub allowed: CoreSet,
}

impl CoreChoice {
    /// The cores to try, in this order, and how many of them are wanted: all of a list, one of
    /// the automatic candidates.
    ///
    /// # Errors
    /// A listed core is outside `allowed`.
    pub fn candidates(&self, allowed: &CoreSet) -> Result<Candidates, NotAllowed> {
        match self {
            CoreChoice::Auto => Ok(Candidates {
                cores: allowed.iter().rev().collect(),
                wanted: 1,
            }),
            CoreChoice::Listed(cores) => match cores.without(allowed).iter().next() {
                Some(core) => Err(NotAllowed {
                    core,
                    allowed: allowed.clone(),
                }),
                None => Ok(Candidates {
                    cores: cores.iter().collect(),
                    wanted: cores.len(),
                }),
            },
        }
    }
}

/// Cores to try for workers; see [`CoreChoice::candidates`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// Allowed cores in the order of preference.
    pub cores: Vec<u32>,
    /// How many of them become workers.
    pub wanted: usize,
}

/// Which cores do what, decided at start-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorePlan {
    /// What the process may use.
    pub allowed: CoreSet,
    /// One worker on each, in the order of worker numbers.
    pub workers: Vec<u32>,
}

impl CorePlan {
    /// Where control and helper threads run: everything allowed that no worker has, or everything
    /// allowed when the workers have it all.
    #[must_use]
    pub fn others(&self) -> CoreSet {
        let rest = self
            .allowed
            .without(&CoreSet::of(self.workers.iter().copied()));
        if rest.is_empty() {
            self.allowed.clone()
        } else {
            rest
        }
    }

    /// Whether worker number `worker` has its core for itself: the kernel was told to keep other
    /// threads off it (`isolcpus`).
    #[must_use]
    pub fn is_dedicated(&self, worker: usize, root: &Root) -> bool {
        let isolated = isolated(root);
        self.workers
            .get(worker)
            .is_some_and(|core| isolated.contains(*core))
    }

    /// What an operator who wants low latency should know about the chosen cores; one line each.
    #[must_use]
    pub fn warnings(&self, root: &Root) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, core) in self.workers.iter().enumerate() {
            let siblings = siblings(root, *core);
            for other in self.workers[index + 1..]
                .iter()
                .filter(|o| siblings.contains(**o))
            {
                lines.push(format!(
                    "cores {core} and {other} are two threads of one physical core; their workers \
                     slow each other down"
                ));
            }
            if let Some(governor) = governor(root, *core)
                && governor != "performance"
            {
                lines.push(format!(
                    "core {core} has the frequency governor {governor:?}; latency is steadier with \
                     \"performance\""
                ));
            }
        }
        if self.workers.len() == self.allowed.len() {
            lines.push(format!(
                "workers have every allowed core ({}); the control thread shares with them",
                self.allowed
            ));
        }
        lines
    }
}

/// The folder of what the kernel says about processors.
const CPUS: &str = "/sys/devices/system/cpu";

/// Cores that the kernel was told to keep other threads off (`isolcpus`).
#[must_use]
pub fn isolated(root: &Root) -> CoreSet {
    read_list(root, &format!("{CPUS}/isolated"))
}

/// Cores that the kernel does not interrupt with its clock while one thread runs (`nohz_full`).
#[must_use]
pub fn without_ticks(root: &Root) -> CoreSet {
    read_list(root, &format!("{CPUS}/nohz_full"))
}

/// The threads of the physical core that `core` is one of.
#[must_use]
pub fn siblings(root: &Root, core: u32) -> CoreSet {
    read_list(
        root,
        &format!("{CPUS}/cpu{core}/topology/thread_siblings_list"),
    )
}

/// How the frequency of a core is chosen; `None` where the kernel does not tell, as in most virtual
/// machines.
#[must_use]
pub fn governor(root: &Root, core: u32) -> Option<String> {
    root.text(&format!("{CPUS}/cpu{core}/cpufreq/scaling_governor"))
}

fn read_list(root: &Root, path: &str) -> CoreSet {
    let list = root.text(path).and_then(|text| text.parse().ok());
    list.unwrap_or_default()
}

/// Lets the calling thread, and every thread that it starts from now on, run on `cores` only.
/// Cores beyond 1023 do not fit into the system call's fixed mask and are left out.
///
/// # Errors
/// The kernel's refusal; `EINVAL` when no core is left, or none of them exists for this process.
pub fn run_this_thread_on(cores: &CoreSet) -> Result<(), rustix::io::Errno> {
    let mut set = CpuSet::new();
    for core in cores
        .iter()
        .map(|core| core as usize)
        .filter(|core| *core < CpuSet::MAX_CPU)
    {
        set.set(core);
    }
    sched_setaffinity(None, &set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CoreSet {
        text.parse().expect("a legal set")
    }

    #[test]
    fn lists_and_masks_of_any_length_name_the_same_cores() {
        assert_eq!(set("0,2-5"), CoreSet::of([0, 2, 3, 4, 5]));
        assert_eq!(set(" 0x3D "), set("0,2-5"));
        assert_eq!(set(&format!("0x1{}", "0".repeat(20))), CoreSet::of([80]));
        assert_eq!(set("70-71"), CoreSet::of([70, 71]));
        assert_eq!(set("0-1023").len(), 1024);
        assert_eq!(set("0x1,00000000"), CoreSet::of([32]));
    }

    #[test]
    fn what_is_no_set_is_refused_with_the_part_that_is_wrong() {
        let refused = |text: &str| text.parse::<CoreSet>().expect_err(text);
        assert_eq!(refused(""), CoreSetError::Empty);
        assert_eq!(refused("0x0"), CoreSetError::Empty);
        assert_eq!(refused("1,,2"), CoreSetError::BadPart(String::new()));
        assert_eq!(refused("1,x-2"), CoreSetError::BadPart("x-2".into()));
        assert_eq!(refused("-1"), CoreSetError::BadPart("-1".into()));
        assert_eq!(refused("+1"), CoreSetError::BadPart("+1".into()));
        assert_eq!(
            refused("5-2"),
            CoreSetError::Backwards { first: 5, last: 2 }
        );
        assert_eq!(refused("0xfg"), CoreSetError::BadMask("0xfg".into()));
        assert_eq!(refused("0x"), CoreSetError::BadMask("0x".into()));
        assert_eq!(
            refused("0-4294967295"),
            CoreSetError::TooHigh("4294967295".into())
        );
        assert_eq!(
            refused(&format!("0x1{}", "0".repeat(2048))),
            CoreSetError::TooHigh("8192".into())
        );
    }

    #[test]
    fn a_set_prints_as_the_shortest_list() {
        assert_eq!(CoreSet::of([5, 0, 2, 3, 4]).to_string(), "0,2-5");
        assert_eq!(CoreSet::of([]).to_string(), "none");
        assert_eq!(CoreSet::of([7]).to_string(), "7");
    }

    #[test]
    fn auto_prefers_the_last_core_and_never_asks_for_more_than_one() {
        let candidates = CoreChoice::Auto
            .candidates(&set("0-3"))
            .expect("auto always fits");
        assert_eq!(
            candidates,
            Candidates {
                cores: vec![3, 2, 1, 0],
                wanted: 1
            }
        );
        let alone = CoreChoice::Auto
            .candidates(&set("4"))
            .expect("auto always fits");
        assert_eq!(
            alone,
            Candidates {
                cores: vec![4],
                wanted: 1
            }
        );
    }

    #[test]
    fn a_listed_core_outside_the_allowed_set_is_named_with_the_set() {
        let refused = CoreChoice::Listed(set("0,9"))
            .candidates(&set("0-3"))
            .expect_err("core 9");
        assert_eq!(
            refused.to_string(),
            "core 9 is not in this process's allowed set 0-3"
        );
    }

    #[test]
    fn the_control_thread_gets_what_the_workers_leave() {
        let plan = CorePlan {
            allowed: set("0-3"),
            workers: vec![1, 3],
        };
        assert_eq!(plan.others(), set("0,2"));
        let full = CorePlan {
            allowed: set("0-1"),
            workers: vec![0, 1],
        };
        assert_eq!(full.others(), set("0-1"));
        assert!(
            full.warnings(&Root::system())
                .iter()
                .any(|line| line.contains("every allowed core (0-1)"))
        );
    }

    #[test]
    fn a_cpuset_is_read_from_the_group_or_its_nearest_parent_in_both_versions() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let membership = dir.path().join("membership");
        fs::create_dir_all(dir.path().join("a/b")).expect("folder");
        fs::create_dir_all(dir.path().join("cpuset/c")).expect("folder");
        fs::write(dir.path().join("a/cpuset.cpus.effective"), "2-3\n").expect("file");
        fs::write(dir.path().join("cpuset/c/cpuset.effective_cpus"), "1\n").expect("file");

        fs::write(&membership, "0::/a/b\n").expect("file");
        assert_eq!(cpuset(&membership, dir.path()), Some(set("2-3")));
        fs::write(&membership, "5:cpu,cpuset:/c\n0::/\n").expect("file");
        assert_eq!(cpuset(&membership, dir.path()), Some(set("1")));
        fs::write(&membership, "0::/elsewhere\n").expect("file");
        assert_eq!(cpuset(&membership, dir.path()), None);
    }

    #[test]
    fn the_allowed_set_of_this_process_has_a_core() {
        assert!(!allowed().expect("a readable mask").is_empty());
    }
}
