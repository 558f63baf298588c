//! The search: asks for one size after the other until the answer is known.

use pollux_provider::{CreateQpError, Errno, Qp};

use super::outcome::{Answer, Outcome, Trial};
use super::steps::{Origin, Step, steps};
use super::{InlineProbe, Wish};
use crate::view::Found;

/// Why there is no queue pair. Nothing is left of the trials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}{}; {}", before(*attempts), cure(error.errno))]
pub struct ProbeError {
    /// The last answer: a refusal that is not about the inline size, because none was asked for
    /// or because of its kind.
    pub error: CreateQpError,
    /// Creations in all.
    pub attempts: usize,
}

fn before(attempts: usize) -> String {
    match attempts {
        0 | 1 => String::new(),
        2 => "; a larger inline size was refused before".to_string(),
        many => format!("; {} larger inline sizes were refused before", many - 1),
    }
}

/// What somebody can do about a refusal.
fn cure(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            "let this user use the device: the rights of its device file and of its namespace"
        }
        Errno::NOMEM => {
            "lower device.send_wr or device.recv_wr, or raise the limit of locked memory \
             (ulimit -l)"
        }
        Errno::INVAL | Errno::NOSPC | Errno::OPNOTSUPP => {
            "lower device.send_wr, device.recv_wr or workers.links_max"
        }
        _ => "the device may be gone or broken: see the kernel's log",
    }
}

/// Creates a queue pair with the largest inline size of [`steps`] that the device accepts.
///
/// `limits` are the known sizes of the device's maker ([`super::limits_of`]); `create` creates a
/// queue pair of the wished shape with the inline size given, in bytes. At most one queue pair
/// is alive at a time, and each is dropped before the next creation: a second one could itself
/// meet a limit of the device, or of the room in its completion queue.
///
/// With n sizes [`InlineProbe::Ladder`] needs at most n creations; [`InlineProbe::Bisect`] the
/// first one, the logarithm (base 2, rounded up) of n - 1, and one to create the answer again:
/// 6 for up to 256 bytes, 8 for up to 1024. Should that last one be refused, although it was
/// accepted a moment ago, the search goes on downwards from there.
///
/// # Errors
/// [`ProbeError`]: refused even without inline data, or for a reason that is not the size.
pub fn search<Q: Qp>(
    wish: &Wish,
    limits: &[u32],
    create: impl FnMut(u32) -> Result<Q, CreateQpError>,
) -> Result<(Q, Outcome), ProbeError> {
    search_after(wish, limits, create, Vec::new())
}

/// As [`search`], after trials that were made already and count as part of it.
pub(super) fn search_after<Q: Qp>(
    wish: &Wish,
    limits: &[u32],
    create: impl FnMut(u32) -> Result<Q, CreateQpError>,
    trials: Vec<Trial>,
) -> Result<(Q, Outcome), ProbeError> {
    let steps = steps(limits, wish.inline_bytes);
    let mut search = Search {
        steps: &steps,
        create,
        trials,
    };
    let (qp, accepted) = match wish.mode {
        InlineProbe::Ladder => search.ladder(0)?,
        InlineProbe::Bisect => search.bisect()?,
    };
    let granted = qp.caps();
    let outcome = Outcome {
        wish: *wish,
        asked_bytes: steps[accepted].bytes,
        granted,
        found: found(wish.mode, &steps, accepted, granted.inline_bytes),
        trials: search.trials,
    };
    Ok((qp, outcome))
}

fn found(mode: InlineProbe, steps: &[Step], accepted: usize, granted_bytes: u32) -> Found {
    if granted_bytes == 0 {
        return Found::Nothing;
    }
    match (steps[accepted].origin, mode) {
        (Origin::Wish, InlineProbe::Ladder | InlineProbe::Bisect) => Found::FirstTry,
        (Origin::VendorLimit | Origin::Less, InlineProbe::Bisect) if accepted > 0 => Found::Bisect,
        (Origin::VendorLimit, InlineProbe::Ladder | InlineProbe::Bisect) => Found::VendorLadder,
        (Origin::Less, InlineProbe::Ladder | InlineProbe::Bisect) => Found::Steps,
    }
}

struct Search<'a, F> {
    /// What to ask for; never empty, the last size is 0.
    steps: &'a [Step],
    create: F,
    trials: Vec<Trial>,
}

impl<F> Search<'_, F> {
    /// Creates one queue pair; `None` if the device refuses its inline size.
    fn attempt<Q: Qp>(&mut self, index: usize) -> Result<Option<Q>, ProbeError>
    where
        F: FnMut(u32) -> Result<Q, CreateQpError>,
    {
        let asked_bytes = self.steps[index].bytes;
        match (self.create)(asked_bytes) {
            Ok(qp) => {
                let answer = Answer::Granted(qp.caps().inline_bytes);
                self.trials.push(Trial {
                    asked_bytes,
                    answer,
                });
                Ok(Some(qp))
            }
            // After the last size there is nothing less to ask for, whatever the error says.
            Err(error) if index + 1 < self.steps.len() && error.may_be_inline() => {
                let answer = Answer::Refused(error.errno);
                self.trials.push(Trial {
                    asked_bytes,
                    answer,
                });
                Ok(None)
            }
            Err(error) => Err(ProbeError {
                error,
                attempts: self.trials.len() + 1,
            }),
        }
    }

    /// From a step downwards, one after the other. Gives the step that was accepted.
    fn ladder<Q: Qp>(&mut self, from: usize) -> Result<(Q, usize), ProbeError>
    where
        F: FnMut(u32) -> Result<Q, CreateQpError>,
    {
        let mut index = from;
        loop {
            // The last step is accepted or an error.
            match self.attempt(index)? {
                Some(qp) => return Ok((qp, index)),
                None => index += 1,
            }
        }
    }

    /// The first step, which is the usual answer, then halves of the rest.
    fn bisect<Q: Qp>(&mut self) -> Result<(Q, usize), ProbeError>
    where
        F: FnMut(u32) -> Result<Q, CreateQpError>,
    {
        if let Some(qp) = self.attempt(0)? {
            return Ok((qp, 0));
        }
        // The answer is one of these steps. No inline at all is the last one, and is taken to be
        // accepted until it is asked for at the end.
        let (mut first, mut last) = (1, self.steps.len() - 1);
        // The queue pair of the step `last`, if it is alive.
        let mut held = None;
        while first < last {
            let middle = first.midpoint(last);
            drop(held.take());
            held = self.attempt(middle)?;
            match held {
                Some(_) => last = middle,
                None => first = middle + 1,
            }
        }
        match held {
            Some(qp) => Ok((qp, last)),
            None => self.ladder(last),
        }
    }
}
