//! TEST LINK: a link on which nothing was received for a while is asked whether it lives.

use core::time::Duration;

use pollux_wire::llc::{Direction, Message, TestLink};

use super::{Engine, LinkFailure, RESPONSE_WAIT};
use crate::time::Instant;

/// Where the test stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Test {
    /// Links are not tested.
    Off,
    /// The test is due unless something is received.
    Resting { period: Duration, due: Instant },
    /// The peer was asked. Anything received shows that it lives.
    Asked { period: Duration, until: Instant },
}

impl Test {
    pub(super) fn new(period: Option<Duration>, now: Instant) -> Test {
        match period {
            Some(period) => Test::Resting {
                period,
                due: now.after(period),
            },
            None => Test::Off,
        }
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        match self {
            Test::Off => None,
            Test::Resting { due, .. } => Some(*due),
            Test::Asked { until, .. } => Some(*until),
        }
    }

    pub(super) fn note_activity(&mut self, now: Instant) {
        match *self {
            Test::Off => {}
            Test::Resting { period, .. } | Test::Asked { period, .. } => {
                *self = Test::Resting {
                    period,
                    due: now.after(period),
                };
            }
        }
    }
}

impl Engine {
    pub(super) fn on_test_timeout(&mut self, now: Instant) {
        match self.test {
            Test::Resting { period, due } if due <= now => {
                self.test = Test::Asked {
                    period,
                    until: now.after(RESPONSE_WAIT),
                };
                let (direction, user_data) = (Direction::Request, [0; 16]);
                self.send(&Message::TestLink(TestLink {
                    direction,
                    user_data,
                }));
            }
            Test::Asked { until, .. } if until <= now => self.fail(LinkFailure::Silent),
            Test::Off | Test::Resting { .. } | Test::Asked { .. } => {}
        }
    }

    /// A request is echoed; a response has done its work by being received.
    pub(super) fn on_test_link(&mut self, message: &TestLink) {
        match message.direction {
            Direction::Request => {
                let echo = TestLink {
                    direction: Direction::Response,
                    ..*message
                };
                self.send(&Message::TestLink(echo));
            }
            Direction::Response => {}
        }
    }
}
