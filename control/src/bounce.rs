//! How long a cache line takes from one core to another and back.
//!
//! Two threads, each pinned to a core of its own, answer each other through ordinary memory. Two
//! figures come out, both one way (half of the round trip):
//!
//! - **one line**: both sides write the same line. Nothing that passes a message between these two
//!   cores is quicker.
//! - **two lines**: each direction has a line of its own, as any pair of rings has. This is the
//!   limit of a stream in each direction.
//!
//! The method is chosen so that a loaded machine gives the same answer as an idle one. Every line
//! is measured in short batches of some hundred round trips; the median of the batches discards
//! those in which a thread lost its core. Lines differ by where their home is in the cache, so many
//! are measured and the median of them is the result. The first batch of each line is thrown away:
//! it pays for the page and for the line's way into both caches.
//!
//! The waiting side polls without a pause instruction.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use std::{fmt, io, thread};

use crossbeam_utils::CachePadded;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BounceSpec {
    /// The two cores. `None` takes two of the allowed ones, of two physical cores if there are.
    pub cores: Option<[usize; 2]>,
    /// Number of different lines; 1 or more.
    pub lines: usize,
    /// Batches for each line that count; 1 or more.
    pub batches: usize,
    /// Round trips in a batch; 1 or more.
    pub round_trips: u64,
}

impl Default for BounceSpec {
    /// 24 lines, 5 batches of 400 round trips each: some tens of milliseconds in all.
    fn default() -> BounceSpec {
        BounceSpec {
            cores: None,
            lines: 24,
            batches: 5,
            round_trips: 400,
        }
    }
}

/// The result of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bounce {
    /// The cores of the asking and of the answering thread.
    pub cores: [usize; 2],
    /// Whether the system says that the two are threads of one physical core.
    pub siblings: Siblings,
    /// How many lines were measured.
    pub lines: usize,
    /// How many batches of each line counted.
    pub batches: usize,
    /// How many round trips a batch had.
    pub round_trips: u64,
    /// One way with one line that both sides write.
    pub one_line: Spread,
    /// One way with a line for each direction.
    pub two_lines: Spread,
}

/// How the lines differ: each line counts with the median of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The quickest line, in nanoseconds.
    pub min_ns: f64,
    /// The median of the lines, in nanoseconds.
    pub median_ns: f64,
    /// The slowest line, in nanoseconds.
    pub max_ns: f64,
}

/// Whether two cores, as the scheduler counts them, are threads of one physical core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Siblings {
    /// They are; the figures are those of a shared first-level cache.
    Yes,
    /// They are not.
    No,
    /// The system does not say.
    Unknown,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BounceError {
    /// A bounce needs two cores.
    #[error(
        "a line needs two cores to go between, but this process may run on core {allowed} only: \
         start it without taskset or name two cores (--cores A,B)"
    )]
    OneCore {
        /// The only allowed core, or those allowed.
        allowed: CoreList,
    },
    /// Both ends were asked for on one core.
    #[error("core {core} was named twice: a line needs two different cores to go between")]
    SameCore {
        /// That core.
        core: usize,
    },
    /// A number that no core can have.
    #[error("core {core} was named, but cores are numbered from 0 to {}", CpuSet::MAX_CPU - 1)]
    NoSuchNumber {
        /// The number.
        core: usize,
    },
    /// The system refused to pin a thread.
    #[error(
        "cannot run on core {core}: {error}; it may be absent, offline or outside the cpuset \
         (allowed here: {allowed})"
    )]
    Pin {
        /// The core.
        core: usize,
        /// What the system said.
        error: io::Error,
        /// The cores that this process may run on.
        allowed: CoreList,
    },
    /// The system did not say where this process may run.
    #[error("cannot ask on which cores this process may run: {0}")]
    Affinity(io::Error),
    /// A thread could not be started.
    #[error("cannot start a measuring thread: {0}")]
    Thread(io::Error),
    /// Nothing was to be measured.
    #[error("lines, batches and round trips must each be 1 or more, not {0}, {1} and {2}")]
    Nothing(usize, usize, u64),
    /// The numbers are so large that their product overflows.
    #[error("{0} lines of {1} batches of {2} round trips are too many to count")]
    TooMuch(usize, usize, u64),
    /// A measuring thread stopped early.
    #[error("a measuring thread stopped before its time; this is a defect of the program")]
    Lost,
}

/// Numbers of cores, shown as `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(pub Vec<usize>);

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut separator = "";
        while let Some(&first) = rest.first() {
            let run = rest
                .iter()
                .enumerate()
                .take_while(|&(i, &core)| core == first + i)
                .count();
            write!(f, "{separator}{first}")?;
            if run > 1 {
                write!(f, "-{}", first + run - 1)?;
            }
            rest = &rest[run..];
            separator = ",";
        }
        Ok(())
    }
}

/// The cores on which the calling thread may run, in ascending order.
///
/// # Errors
///
/// [`BounceError::Affinity`] if the system does not say.
pub fn allowed_cores() -> Result<CoreList, BounceError> {
    let set = sched_getaffinity(None).map_err(|error| BounceError::Affinity(error.into()))?;
    Ok(CoreList(
        (0..CpuSet::MAX_CPU)
            .filter(|&core| set.is_set(core))
            .collect(),
    ))
}

/// Lets the calling thread run on `core` only.
///
/// # Errors
///
/// [`BounceError::NoSuchNumber`] or [`BounceError::Pin`].
pub fn pin_to(core: usize) -> Result<(), BounceError> {
    if core >= CpuSet::MAX_CPU {
        return Err(BounceError::NoSuchNumber { core });
    }
    let allowed = allowed_cores()?;
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|error| BounceError::Pin {
        core,
        error: error.into(),
        allowed,
    })
}

/// Whether `cores` are threads of one physical core, by `/sys/devices/system/cpu`.
#[must_use]
pub fn siblings(cores: [usize; 2]) -> Siblings {
    let path = format!(
        "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list",
        cores[0]
    );
    match std::fs::read_to_string(path) {
        Ok(list) => siblings_of_list(list.trim(), cores[1]),
        Err(_) => Siblings::Unknown,
    }
}

/// Looks for `core` in a list such as `0,64` or `0-1`.
fn siblings_of_list(list: &str, core: usize) -> Siblings {
    let mut answer = Siblings::No;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) if (first..=last).contains(&core) => answer = Siblings::Yes,
            (Ok(_), Ok(_)) => {}
            _ => return Siblings::Unknown,
        }
    }
    answer
}

/// Measures both bounces. The calling thread keeps its own cores.
///
/// # Errors
///
/// See [`BounceError`]; nothing is measured then.
pub fn measure(spec: &BounceSpec) -> Result<Bounce, BounceError> {
    if spec.lines == 0 || spec.batches == 0 || spec.round_trips == 0 {
        return Err(BounceError::Nothing(
            spec.lines,
            spec.batches,
            spec.round_trips,
        ));
    }
    let cores = match spec.cores {
        Some([a, b]) if a == b => return Err(BounceError::SameCore { core: a }),
        Some(cores) => cores,
        None => choose(allowed_cores()?)?,
    };
    let plan = Plan::of(spec)?;
    Ok(Bounce {
        cores,
        siblings: siblings(cores),
        lines: spec.lines,
        batches: spec.batches,
        round_trips: spec.round_trips,
        one_line: measure_lines(&plan, cores, Layout::OneLine)?,
        two_lines: measure_lines(&plan, cores, Layout::TwoLines)?,
    })
}

/// The first allowed core and the first after it that is another physical core, or simply the
/// second where there is none.
///
/// # Errors
///
/// [`BounceError::OneCore`].
pub fn choose(allowed: CoreList) -> Result<[usize; 2], BounceError> {
    let [first, others @ ..] = allowed.0.as_slice() else {
        return Err(BounceError::OneCore { allowed });
    };
    let is_apart = |core: &&usize| siblings([*first, **core]) != Siblings::Yes;
    match others.iter().find(is_apart).or(others.first()) {
        Some(other) => Ok([*first, *other]),
        None => Err(BounceError::OneCore { allowed }),
    }
}

/// The numbers of a spec, checked.
struct Plan {
    lines: usize,
    batches: usize,
    round_trips: u64,
    /// Round trips of the whole run over one line, the batch that does not count included.
    round_trips_per_line: u64,
}

impl Plan {
    fn of(spec: &BounceSpec) -> Result<Plan, BounceError> {
        let too_much = || BounceError::TooMuch(spec.lines, spec.batches, spec.round_trips);
        let all = u64::try_from(spec.batches)
            .ok()
            .and_then(|batches| batches.checked_add(1));
        let per_line = all.and_then(|all| all.checked_mul(spec.round_trips));
        // A line counts two steps for each round trip, so twice the number has to fit as well.
        let fits = per_line.and_then(|count| count.checked_mul(2));
        let lines_fit = spec
            .lines
            .checked_mul(2)
            .is_some_and(|lines| lines <= LINES_MAX);
        match (per_line, fits) {
            (Some(round_trips_per_line), Some(_)) if lines_fit => Ok(Plan {
                lines: spec.lines,
                batches: spec.batches,
                round_trips: spec.round_trips,
                round_trips_per_line,
            }),
            _ => Err(too_much()),
        }
    }
}

/// Most lines of one measurement: 8 MiB of memory.
const LINES_MAX: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    OneLine,
    TwoLines,
}

/// A line of its own for each number, as many as the neighbour that is fetched along needs.
type Line = CachePadded<AtomicU64>;

/// The lines of question and answer.
struct Pair<'a> {
    question: &'a Line,
    answer: &'a Line,
}

fn measure_lines(plan: &Plan, cores: [usize; 2], layout: Layout) -> Result<Spread, BounceError> {
    let memory: Vec<Line> = (0..plan.lines * 2)
        .map(|_| CachePadded::default())
        .collect();
    let pairs: Vec<Pair<'_>> = memory
        .chunks_exact(2)
        .map(|lines| match layout {
            Layout::OneLine => Pair {
                question: &lines[0],
                answer: &lines[0],
            },
            Layout::TwoLines => Pair {
                question: &lines[0],
                answer: &lines[1],
            },
        })
        .collect();
    let pairs = pairs.as_slice();
    // Each side tells the other that it is pinned before either spins, so that a refused core is
    // an error and no endless wait.
    let (asker_ready, asker_is_ready) = mpsc::channel();
    let (answerer_ready, answerer_is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let answerer = thread::Builder::new()
            .name("bounce-answer".to_owned())
            .spawn_scoped(scope, move || {
                pin_to(cores[1])?;
                answerer_ready.send(()).map_err(|_| BounceError::Lost)?;
                asker_is_ready.recv().map_err(|_| BounceError::Lost)?;
                pairs
                    .iter()
                    .for_each(|pair| answer(pair, plan.round_trips_per_line));
                Ok(())
            })
            .map_err(BounceError::Thread)?;
        let asker = thread::Builder::new()
            .name("bounce-ask".to_owned())
            .spawn_scoped(scope, move || {
                pin_to(cores[0])?;
                answerer_is_ready.recv().map_err(|_| BounceError::Lost)?;
                asker_ready.send(()).map_err(|_| BounceError::Lost)?;
                Ok(pairs
                    .iter()
                    .map(|pair| ask(pair, plan))
                    .collect::<Vec<f64>>())
            })
            .map_err(BounceError::Thread)?;
        let asked: Result<Vec<f64>, BounceError> = asker.join().unwrap_or(Err(BounceError::Lost));
        let answered: Result<(), BounceError> = answerer.join().unwrap_or(Err(BounceError::Lost));
        match (asked, answered) {
            (Ok(medians), Ok(())) => spread(medians).ok_or(BounceError::Lost),
            // The side that was refused its core has the reason; the other only lost its partner.
            (Err(BounceError::Lost), Err(error)) | (Err(error), _) | (Ok(_), Err(error)) => {
                Err(error)
            }
        }
    })
}

/// Asks over one pair of lines; the median of the batches, one way in nanoseconds.
fn ask(pair: &Pair<'_>, plan: &Plan) -> f64 {
    let mut step = 1;
    let mut batches = Vec::with_capacity(plan.batches);
    for batch in 0..=plan.batches {
        let started = Instant::now();
        for _ in 0..plan.round_trips {
            pair.question.store(step, Ordering::Release);
            while pair.answer.load(Ordering::Acquire) != step + 1 {}
            step += 2;
        }
        let elapsed = started.elapsed();
        if batch > 0 {
            batches.push(elapsed.as_secs_f64() * 1e9 / (2.0 * plan.round_trips as f64));
        }
    }
    spread(batches).map_or(0.0, |spread| spread.median_ns)
}

/// Answers over one pair of lines: odd numbers are questions, the next even one is the answer.
fn answer(pair: &Pair<'_>, round_trips: u64) {
    for round_trip in 0..round_trips {
        let step = 2 * round_trip + 1;
        while pair.question.load(Ordering::Acquire) != step {}
        pair.answer.store(step + 1, Ordering::Release);
    }
}

/// Least, median and largest; nothing of nothing. Of an even number the median is the mean of the
/// middle two.
fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let (min_ns, max_ns) = (*values.first()?, *values.last()?);
    let middle = values.len() / 2;
    let median_ns = match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    };
    Some(Spread {
        min_ns,
        median_ns,
        max_ns,
    })
}

impl fmt::Display for Bounce {
    /// One line for the head of a table: `cores 0,1: one line 1.0 ns (0.9 to 1.2), ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cores {},{}: one line {}, two lines {}",
            self.cores[0], self.cores[1], self.one_line, self.two_lines
        )?;
        match self.siblings {
            Siblings::Yes => write!(f, "; the two are threads of one physical core"),
            Siblings::No | Siblings::Unknown => Ok(()),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} ns ({:.1} to {:.1})",
            self.median_ns, self.min_ns, self.max_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(cores: Option<[usize; 2]>) -> BounceSpec {
        BounceSpec {
            cores,
            lines: 3,
            batches: 2,
            round_trips: 20,
        }
    }

    #[test]
    fn two_cores_give_two_positive_figures_in_order() {
        if allowed_cores().unwrap().0.len() < 2 {
            let error = measure(&small(None)).unwrap_err();
            assert!(matches!(error, BounceError::OneCore { .. }), "{error}");
            return;
        }
        let bounce = measure(&small(None)).unwrap();
        assert_ne!(bounce.cores[0], bounce.cores[1]);
        for spread in [bounce.one_line, bounce.two_lines] {
            assert!(spread.min_ns > 0.0, "{spread:?}");
            assert!(spread.min_ns <= spread.median_ns, "{spread:?}");
            assert!(spread.median_ns <= spread.max_ns, "{spread:?}");
        }
    }

    #[test]
    fn the_caller_keeps_its_cores() {
        let before = allowed_cores().unwrap();
        let _ = measure(&small(None));
        assert_eq!(allowed_cores().unwrap(), before);
    }

    #[test]
    fn one_core_twice_is_refused() {
        let error = measure(&small(Some([1, 1]))).unwrap_err();
        assert!(
            matches!(error, BounceError::SameCore { core: 1 }),
            "{error}"
        );
    }

    #[test]
    fn an_allowed_set_of_one_is_refused_with_its_core() {
        let error = choose(CoreList(vec![3])).unwrap_err().to_string();
        assert!(error.contains("core 3 only"), "{error}");
    }

    #[test]
    fn a_core_that_is_not_there_is_named_and_nobody_waits_for_it() {
        let here = allowed_cores().unwrap().0[0];
        let absent = CpuSet::MAX_CPU - 1;
        for cores in [[here, absent], [absent, here]] {
            match measure(&small(Some(cores))).unwrap_err() {
                BounceError::Pin { core, .. } => assert_eq!(core, absent),
                error => panic!("{error}"),
            }
        }
        let error = measure(&small(Some([here, CpuSet::MAX_CPU]))).unwrap_err();
        assert!(matches!(error, BounceError::NoSuchNumber { .. }), "{error}");
    }

    #[test]
    fn nothing_to_measure_and_too_much_are_refused() {
        let nothing = BounceSpec {
            lines: 0,
            ..small(None)
        };
        assert!(matches!(
            measure(&nothing).unwrap_err(),
            BounceError::Nothing(0, 2, 20)
        ));
        for spec in [
            BounceSpec {
                round_trips: u64::MAX,
                ..small(None)
            },
            BounceSpec {
                batches: usize::MAX,
                ..small(None)
            },
            BounceSpec {
                lines: usize::MAX,
                ..small(None)
            },
        ] {
            assert!(matches!(Plan::of(&spec), Err(BounceError::TooMuch(..))));
        }
    }

    #[test]
    fn siblings_are_read_from_both_forms() {
        assert_eq!(siblings_of_list("0,64", 64), Siblings::Yes);
        assert_eq!(siblings_of_list("0-1", 1), Siblings::Yes);
        assert_eq!(siblings_of_list("0-1,8-9", 2), Siblings::No);
        assert_eq!(siblings_of_list("0", 1), Siblings::No);
        assert_eq!(siblings_of_list("", 1), Siblings::Unknown);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(spread(vec![4.0, 1.0, 3.0, 2.0]).unwrap().median_ns, 2.5);
        assert_eq!(spread(vec![9.0, 1.0, 3.0]).unwrap().median_ns, 3.0);
        assert_eq!(spread(Vec::new()), None);
    }

    #[test]
    fn runs_of_cores_are_shown_short() {
        assert_eq!(CoreList(vec![0, 2, 3, 4, 7]).to_string(), "0,2-4,7");
        assert_eq!(CoreList(vec![]).to_string(), "");
    }
}
