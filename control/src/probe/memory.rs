//! What devices have accepted, so that later queue pairs need one creation each.

use pollux_provider::{CreateQpError, Device, GroupId, Qp};

use super::outcome::{Answer, Outcome, Trial, errno_name};
use super::search::{ProbeError, search_after};
use super::steps::limits_of;
use super::{Shape, Wish};
use crate::view::{Found, InlineView};

/// Remembers, for each device and shape of queue pair, the inline size that was *asked for* when
/// the device accepted. What it grants is read anew from each queue pair.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// A handful: an appliance has one device and one shape.
    known: Vec<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    device: String,
    gid: [u8; 16],
    shape: Shape,
    wished_bytes: u32,
    /// What to ask for.
    asked_bytes: u32,
}

impl Memory {
    /// Creates a queue pair: with the remembered size, or with one that is searched for and then
    /// remembered.
    ///
    /// A remembered size that the device refuses now is forgotten and searched for anew. A
    /// failure for another reason, or of a queue pair without inline data, says nothing about the
    /// size and leaves the memory as it is.
    ///
    /// Each creation is logged at debug level, each search with its result at info level.
    ///
    /// # Errors
    /// [`ProbeError`], as of [`super::search`].
    pub fn create<D: Device>(
        &mut self,
        device: &D,
        group: GroupId,
        wish: &Wish,
    ) -> Result<(D::Qp, Outcome), ProbeError> {
        let identity = device.identity();
        let name = identity.name.as_str();
        let create = |asked_bytes| {
            let created = device.create_qp(group, &wish.shape.spec(asked_bytes));
            log_trial(name, asked_bytes, &created);
            created
        };
        let mut trials = Vec::new();
        let place = self.known.iter().position(|known| {
            (known.device.as_str(), known.gid) == (name, identity.gid)
                && (known.shape, known.wished_bytes) == (wish.shape, wish.inline_bytes)
        });
        if let Some(place) = place {
            let asked_bytes = self.known[place].asked_bytes;
            match create(asked_bytes) {
                Ok(qp) => {
                    let outcome = remembered(wish, asked_bytes, &qp);
                    return Ok((qp, outcome));
                }
                Err(error) if error.may_be_inline() => {
                    self.known.swap_remove(place);
                    tracing::info!("{name}: inline {asked_bytes} is refused now ({error})");
                    trials.push(Trial {
                        asked_bytes,
                        answer: Answer::Refused(error.errno),
                    });
                }
                Err(error) => return Err(ProbeError { error, attempts: 1 }),
            }
        }
        let (qp, outcome) = search_after(wish, limits_of(identity.vendor_id), create, trials)?;
        self.known.push(Known {
            device: name.to_string(),
            gid: identity.gid,
            shape: wish.shape,
            wished_bytes: wish.inline_bytes,
            asked_bytes: outcome.asked_bytes,
        });
        let view = InlineView::from(&outcome);
        tracing::info!("{name}: inline {view}");
        for note in view.notes() {
            tracing::info!("{name}: {note}");
        }
        Ok((qp, outcome))
    }
}

fn log_trial<Q: Qp>(device: &str, asked_bytes: u32, created: &Result<Q, CreateQpError>) {
    match created {
        Ok(qp) => {
            tracing::debug!(device, asked_bytes, granted = %qp.caps(), "created a queue pair");
        }
        Err(error) => {
            let errno = errno_name(error.errno);
            tracing::debug!(
                device,
                asked_bytes,
                errno,
                hint = error.hint,
                "no queue pair"
            );
        }
    }
}

fn remembered(wish: &Wish, asked_bytes: u32, qp: &impl Qp) -> Outcome {
    let granted = qp.caps();
    Outcome {
        wish: *wish,
        asked_bytes,
        granted,
        found: Found::Remembered,
        trials: vec![Trial {
            asked_bytes,
            answer: Answer::Granted(granted.inline_bytes),
        }],
    }
}
