//! CONFIRM RKEY and DELETE RKEY: the peer learns and forgets our RMBs, and we its.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use pollux_wire::field::Rkey;
use pollux_wire::llc::{
    ConfirmRkey, DeleteRkey, Direction, Form, LinkRtoken, Message, RkeyAnswer, Verdict,
};

use super::{
    Engine, EngineError, Output, RESPONSE_WAIT, RKEY_QUEUE_MAX, RKEY_RETRY_WAIT, RKEY_TRIES,
    RkeyFailure, RkeyTag, Stage,
};
use crate::link::{Learned, RToken};
use crate::time::Instant;

/// A request for an rkey.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wish {
    tag: RkeyTag,
    ask: Ask,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    Confirm(RToken),
    Delete(Rkey),
}

impl Wish {
    pub(super) const fn confirm(tag: RkeyTag, rtoken: RToken) -> Wish {
        Wish {
            tag,
            ask: Ask::Confirm(rtoken),
        }
    }

    pub(super) const fn delete(tag: RkeyTag, rkey: Rkey) -> Wish {
        Wish {
            tag,
            ask: Ask::Delete(rkey),
        }
    }
}

/// The request under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Current {
    wish: Wish,
    /// How often it was sent.
    tries: u8,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Sent; the answer is due.
    AnswerDue { until: Instant },
    /// Refused for now; sent again then.
    Resting { until: Instant },
}

/// At most one request under way, the others in order behind it.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    current: Option<Current>,
    waiting: VecDeque<Wish>,
}

impl Flow {
    pub(super) fn new() -> Flow {
        Flow {
            current: None,
            waiting: VecDeque::with_capacity(RKEY_QUEUE_MAX),
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.current.map(|current| match current.step {
            Step::AnswerDue { until } | Step::Resting { until } => until,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.current.is_some())
    }

    /// Takes out one request, the current one first.
    pub(super) fn take_any(&mut self) -> Option<RkeyTag> {
        let wish = self.current.take().map(|current| current.wish);
        wish.or_else(|| self.waiting.pop_front())
            .map(|wish| wish.tag)
    }

    /// The wish whose answer is due.
    fn answer_due(&self) -> Option<Wish> {
        self.current.and_then(|current| match current.step {
            Step::AnswerDue { .. } => Some(current.wish),
            Step::Resting { .. } => None,
        })
    }
}

impl Engine {
    pub(super) fn enqueue(&mut self, wish: Wish) -> Result<(), EngineError> {
        if self.stage == Stage::Ended {
            return Err(EngineError::Ended);
        }
        if self.flow.waiting.len() >= RKEY_QUEUE_MAX {
            return Err(EngineError::QueueFull);
        }
        self.flow.waiting.push_back(wish);
        Ok(())
    }

    /// Sends the next waiting request, if none is under way.
    pub(super) fn start_next_flow(&mut self, now: Instant) {
        if self.flow.current.is_none()
            && let Some(wish) = self.flow.waiting.pop_front()
        {
            self.ask(now, wish, 1);
        }
    }

    fn ask(&mut self, now: Instant, wish: Wish, tries: u8) {
        let step = Step::AnswerDue {
            until: now.after(RESPONSE_WAIT),
        };
        self.flow.current = Some(Current { wish, tries, step });
        let direction = Direction::Request;
        match wish.ask {
            Ask::Confirm(RToken { rkey, address }) => {
                let message = ConfirmRkey {
                    direction,
                    answer: RkeyAnswer::Positive,
                    rkey,
                    address,
                    others_count: 0,
                    others: [LinkRtoken::default(); 2],
                };
                self.send(&Message::ConfirmRkey(message));
            }
            Ask::Delete(rkey) => {
                let rkeys = ArrayVec::from_iter([rkey]);
                let verdict = Verdict::Positive;
                let message = DeleteRkey {
                    direction,
                    verdict,
                    errors: 0,
                    rkeys,
                };
                self.send(&Message::DeleteRkey(message));
            }
        }
    }

    pub(super) fn on_flow_timeout(&mut self, now: Instant) {
        match self.flow.current {
            Some(Current {
                wish,
                step: Step::AnswerDue { until },
                ..
            }) if until <= now => {
                self.finish(Output::RkeyFailed {
                    tag: wish.tag,
                    why: RkeyFailure::TimedOut,
                });
            }
            Some(Current {
                wish,
                tries,
                step: Step::Resting { until },
            }) if until <= now => {
                self.ask(now, wish, tries + 1);
            }
            Some(_) | None => {}
        }
    }

    /// Ends the request under way.
    fn finish(&mut self, result: Output) {
        self.flow.current = None;
        self.put(result);
    }

    pub(super) fn on_confirm_rkey(&mut self, now: Instant, message: ConfirmRkey) {
        match message.direction {
            Direction::Request => self.on_peer_confirms(message),
            Direction::Response => self.on_confirm_answered(now, &message),
        }
    }

    /// The peer announces an RMB: the answer is its message with the response flag. RMBs on other
    /// links do not concern a single one.
    fn on_peer_confirms(&mut self, request: ConfirmRkey) {
        let rtoken = RToken {
            rkey: request.rkey,
            address: request.address,
        };
        let is_bad_count = usize::from(request.others_count) > request.others.len();
        let learned = if is_bad_count {
            Learned::Full
        } else {
            self.peer_rtokens.learn(rtoken)
        };
        let answer = match learned {
            Learned::Added | Learned::Known => RkeyAnswer::Positive,
            Learned::Full => RkeyAnswer::Retry,
        };
        if learned == Learned::Added {
            self.put(Output::PeerRkey(rtoken));
        }
        let direction = Direction::Response;
        self.send(&Message::ConfirmRkey(ConfirmRkey {
            direction,
            answer,
            ..request
        }));
    }

    /// Answers repeat the key, so a late answer to an earlier request can be told from the one that
    /// is due.
    fn on_confirm_answered(&mut self, now: Instant, message: &ConfirmRkey) {
        let Some(Wish {
            tag,
            ask: Ask::Confirm(rtoken),
        }) = self.flow.answer_due()
        else {
            return self.ignore();
        };
        if rtoken
            != (RToken {
                rkey: message.rkey,
                address: message.address,
            })
        {
            return self.ignore();
        }
        match message.answer {
            RkeyAnswer::Positive => self.finish(Output::RkeyConfirmed { tag }),
            RkeyAnswer::Negative => {
                self.finish(Output::RkeyFailed {
                    tag,
                    why: RkeyFailure::Refused,
                });
            }
            RkeyAnswer::Retry => self.rest_or_give_up(now, tag),
        }
    }

    fn rest_or_give_up(&mut self, now: Instant, tag: RkeyTag) {
        match &mut self.flow.current {
            Some(current) if current.tries < RKEY_TRIES => {
                current.step = Step::Resting {
                    until: now.after(RKEY_RETRY_WAIT),
                };
            }
            Some(_) | None => {
                self.finish(Output::RkeyFailed {
                    tag,
                    why: RkeyFailure::RefusedForNow,
                });
            }
        }
    }

    pub(super) fn on_delete_rkey(&mut self, message: DeleteRkey) {
        match message.direction {
            Direction::Request => self.on_peer_deletes(message),
            Direction::Response => self.on_delete_answered(message.verdict),
        }
    }

    /// The peer withdraws RMBs. Unknown keys are reported in the answer: by a mask whose highest
    /// bit is the first key in version 1, by their number in version 2, where Linux also clears the
    /// keys.
    fn on_peer_deletes(&mut self, request: DeleteRkey) {
        let (mut mask, mut unknown) = (0u8, 0u8);
        for (index, rkey) in request.rkeys.iter().enumerate() {
            match self.peer_rtokens.delete(*rkey) {
                Some(rtoken) => self.put(Output::PeerDeletedRkey(rtoken)),
                None => {
                    mask |= 0x80 >> index;
                    unknown += 1;
                }
            }
        }
        let (errors, rkeys) = match self.params.form {
            Form::V1 => (mask, request.rkeys),
            Form::V2 => (unknown, request.rkeys.iter().map(|_| Rkey(0)).collect()),
        };
        let verdict = if unknown == 0 {
            Verdict::Positive
        } else {
            Verdict::Negative
        };
        let direction = Direction::Response;
        self.send(&Message::DeleteRkey(DeleteRkey {
            direction,
            verdict,
            errors,
            rkeys,
        }));
    }

    fn on_delete_answered(&mut self, verdict: Verdict) {
        let Some(Wish {
            tag,
            ask: Ask::Delete(_),
        }) = self.flow.answer_due()
        else {
            return self.ignore();
        };
        self.finish(match verdict {
            Verdict::Positive => Output::RkeyDeleted { tag },
            Verdict::Negative => Output::RkeyFailed {
                tag,
                why: RkeyFailure::Refused,
            },
        });
    }
}
