//! Receive-queue credits of a link under lists of operations.
//!
//! 1. The credits of each direction are conserved: held by the sender, on messages under way, used up
//!    and not posted anew, to be returned, or on their way back. The sum never changes.
//! 2. A message that arrives always finds a receive.
//! 3. The last credit goes to an announcement only, and only to one that returns something.
//! 4. A failed post leaves everything as it was.
//! 5. A peer that returns more than was taken is refused, and nothing changes.
//! 6. Once posts work, receives are posted and announcements are sent when asked for, every message that
//!    waits is sent: the two never wait for each other for ever, and fall silent.

use std::collections::VecDeque;

use pollux_proto::credit::{Credits, Kind, RESERVE, TooMany};

use crate::Input;

/// A message under way, with the returns that it carries.
#[derive(Clone, Copy)]
struct Message {
    carried: u8,
}

struct End {
    credits: Credits,
    /// Receives that the peer can use up.
    posted: u32,
    receives: u32,
    /// Receives used up and not posted anew.
    used: u32,
    inbox: VecDeque<Message>,
    /// Messages that wait for a credit.
    waiting: VecDeque<Kind>,
    is_asked: bool,
}

struct World {
    ends: [End; 2],
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let depths = [input.byte(), input.byte()];
    let [left, right] = depths;
    let (Some(of_left), Some(of_right)) = (Credits::new(right, left), Credits::new(left, right))
    else {
        assert!(left.min(right) < pollux_proto::credit::RECEIVES_MIN);
        return;
    };
    let end = |credits, own: u8| End {
        credits,
        posted: own.into(),
        receives: own.into(),
        used: 0,
        inbox: VecDeque::new(),
        waiting: VecDeque::new(),
        is_asked: false,
    };
    let mut world = World {
        ends: [end(of_left, left), end(of_right, right)],
    };
    while !input.is_empty() {
        world.step(&mut input);
        world.judge();
    }
    world.finish();
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        let side = usize::from(op >> 4 & 1);
        let kind = if op & 0x20 == 0 { Kind::Cdc } else { Kind::Llc };
        match op & 0x0f {
            0..=3 => drop(self.send(side, kind)),
            4 => self.send_in_vain(side, kind),
            5 => self.send_in_vain(side, Kind::Announcement),
            6..=8 => drop(self.receive(side)),
            9..=11 => drop(self.post(side)),
            12 => drop(self.announce(side)),
            13 => {
                self.ends[side].credits.call_off();
                self.ends[side].is_asked = false;
                self.ask(side);
            }
            14 => self.ends[side].waiting.push_back(kind),
            _ => self.lie(side, input.byte()),
        }
    }

    fn judge(&self) {
        for side in 0..2 {
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            let returning: u32 = end.inbox.iter().map(|m| u32::from(m.carried)).sum();
            let under_way = peer.inbox.len() as u32;
            let sum =
                end.credits.held() + under_way + peer.used + peer.credits.to_return() + returning;
            assert_eq!(
                sum, peer.receives,
                "credits of side {side} are not conserved"
            );
            assert_eq!(peer.posted + peer.used, peer.receives);
            assert!(under_way <= peer.posted, "more messages than receives");
            assert_eq!(end.credits.initial(), peer.receives);
        }
    }

    /// Whether a message may go now, by the rules and not by the code.
    fn may_send(&self, side: usize, kind: Kind) -> bool {
        let credits = &self.ends[side].credits;
        match kind {
            Kind::Cdc | Kind::Llc => credits.held() > RESERVE,
            Kind::Announcement => credits.held() > 0 && credits.to_return() > 0,
        }
    }

    fn send(&mut self, side: usize, kind: Kind) -> bool {
        let may = self.may_send(side, kind);
        let end = &mut self.ends[side];
        let to_return = end.credits.to_return();
        assert_eq!(end.credits.may_send(kind), may);
        let taken = end.credits.take(kind);
        assert_eq!(taken.is_some(), may);
        let Some(taken) = taken else { return false };
        let carried = match kind {
            Kind::Llc => 0,
            Kind::Cdc | Kind::Announcement => to_return.min(255),
        };
        assert_eq!(u32::from(taken.carried), carried);
        assert_eq!(end.credits.to_return(), to_return - carried);
        if kind == Kind::Announcement {
            assert!(carried > 0);
            end.is_asked = false;
        }
        let carried = taken.carried;
        self.ends[1 - side].inbox.push_back(Message { carried });
        true
    }

    /// A post that fails.
    fn send_in_vain(&mut self, side: usize, kind: Kind) {
        let end = &mut self.ends[side];
        let before = (end.credits.held(), end.credits.to_return());
        if let Some(taken) = end.credits.take(kind) {
            end.credits.give_back(taken);
        }
        assert_eq!((end.credits.held(), end.credits.to_return()), before);
        if kind == Kind::Announcement {
            end.credits.call_off();
            end.is_asked = false;
        }
        self.ask(side);
    }

    fn receive(&mut self, side: usize) -> bool {
        let end = &mut self.ends[side];
        let Some(message) = end.inbox.pop_front() else {
            return false;
        };
        assert!(end.posted > 0, "no receive for a message");
        end.posted -= 1;
        end.used += 1;
        assert_eq!(end.credits.handle_returned(message.carried), Ok(()));
        true
    }

    /// Posts a used receive anew.
    fn post(&mut self, side: usize) -> bool {
        let end = &mut self.ends[side];
        if end.used == 0 {
            return false;
        }
        end.used -= 1;
        end.posted += 1;
        end.credits.handle_receive_posted();
        self.ask(side);
        true
    }

    /// A look at whether somebody should be asked for an announcement.
    fn ask(&mut self, side: usize) {
        let end = &mut self.ends[side];
        if end.credits.ask_for_announcement() {
            assert!(!end.is_asked, "asked twice");
            assert!(end.credits.may_send(Kind::Announcement));
            assert!(
                end.credits.to_return() >= 2,
                "an announcement that costs what it brings"
            );
            end.is_asked = true;
        }
    }

    /// Sends the announcement that was asked for.
    fn announce(&mut self, side: usize) -> bool {
        if !self.ends[side].is_asked {
            return false;
        }
        if !self.send(side, Kind::Announcement) {
            // A CDC message has carried everything meanwhile.
            self.ends[side].credits.call_off();
            self.ends[side].is_asked = false;
            self.ask(side);
        }
        true
    }

    /// The peer returns what nobody took.
    fn lie(&mut self, side: usize, credits: u8) {
        let end = &mut self.ends[side];
        let (held, initial) = (end.credits.held(), end.credits.initial());
        if held + u32::from(credits) <= initial {
            return;
        }
        let before = end.credits.clone();
        let refused = end.credits.handle_returned(credits);
        let returned = credits;
        assert_eq!(
            refused,
            Err(TooMany {
                returned,
                held,
                initial
            })
        );
        assert_eq!(end.credits, before);
    }

    fn finish(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            for side in 0..2 {
                if let Some(kind) = self.ends[side].waiting.front().copied()
                    && self.send(side, kind)
                {
                    self.ends[side].waiting.pop_front();
                    moved = true;
                }
                moved |= self.receive(side);
                moved |= self.post(side);
                moved |= self.announce(side);
                self.judge();
            }
            if !moved {
                break;
            }
        }
        for end in &self.ends {
            assert!(end.waiting.is_empty(), "a message waits for ever");
            assert!(end.inbox.is_empty(), "the two never fall silent");
            assert!(end.credits.held() > RESERVE);
        }
    }
}
