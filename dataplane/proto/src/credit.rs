//! Receive-queue credits of one link: never more messages than the peer has receives for them.
//!
//! Every SEND, a CDC message as well as an LLC message of any length, uses up one receive of the peer.
//! Without one the adapter answers "receiver not ready" and everything behind waits for its timer.
//! Sides that agreed on credits (`clc`) count instead:
//!
//! 1. A side starts with as many credits as the peer said it has posted receives. A SEND takes one.
//! 2. A receive that was used up and is posted anew is a credit to be *returned*. Returned credits
//!    ride on every CDC message, as many as a byte holds.
//! 3. What nothing carried goes out by itself, in an ANNOUNCE CREDITS, once it is a third of our
//!    receives; half of that already when we have used up a third of the peer's, because then there
//!    is traffic both ways and the peer may be as short of credits as we are. But a single one never
//!    goes out by itself: an announcement uses up a receive as well, and two sides with nothing to
//!    say would announce each other's announcements for ever.
//! 4. The last credit is reserved for an announcement. Without that rule both sides could use up all
//!    their credits and each hold those of the other, and wait for ever.
//! 5. A post that failed gives back the credit it took and the returns it carried.
//!
//! ```text
//!   ours at the peer = credits we hold + messages under way + receives used up, not posted anew
//!                    + returned ones the peer holds + returns under way
//! ```
//!
//! This sum never changes. Once nothing is under way a side keeps back less than a third, or one, of
//! at least [`RECEIVES_MIN`], so the other holds a credit beside the reserve. And all of it gets
//! under way: one side could hold nothing only if its last message was an announcement, and that
//! brought the other a credit. `tests/credit_exploration.rs` visits every state of two such sides:
//! every run ends, with everything delivered.
//!
//! Sources: the patches of January 2022 for Linux and the Anolis kernel (fields and thresholds of
//! receives/3 and two thirds); the reserve is ours, and both understand it.

use core::fmt;

/// Credits that only an announcement may take.
pub const RESERVE: u32 = 1;

/// Fewest receives a side must have posted for credits to work: one for a message, one for an
/// announcement, and one whose return waits for another.
pub const RECEIVES_MIN: u8 = 3;

/// Fewest returns that are worth an announcement, which takes one credit itself.
const RETURNS_MIN: u32 = 2;

/// What a message is, as far as credits go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A CDC message. Carries returns.
    Cdc,
    /// An LLC message of any length, but an announcement.
    Llc,
    /// An ANNOUNCE CREDITS. Carries returns, and may take the reserved credit.
    Announcement,
}

/// A credit that was taken, with the returns that go along. Comes back to [`Credits::give_back`] if
/// the message was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub struct Taken {
    /// Returns that the message has to carry.
    pub carried: u8,
}

/// Whether [`Credits`] wants an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Announcing {
    /// Nobody has been asked.
    No,
    /// One has been asked for and is not sent yet.
    Asked,
}

/// The peer returned more credits than we ever took. It has lost count, and so have we.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooMany {
    /// Credits returned.
    pub returned: u8,
    /// Credits held before.
    pub held: u32,
    /// Credits that the peer gave in the beginning, the most there can be.
    pub initial: u32,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooMany {
            returned,
            held,
            initial,
        } = self;
        write!(
            f,
            "the peer returned {returned} credits; {held} of {initial} were held, so at most {} can \
             have been used up",
            initial - held
        )
    }
}

impl core::error::Error for TooMany {}

/// Both directions of a link's credits, `KEPT` of them for announcements alone.
///
/// A link's type is `Credits`, and [`Credits::new`] makes no other. The number is a parameter so that
/// a proof can show what the very same rules do without a reserve: they deadlock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Credits<const KEPT: u32 = RESERVE> {
    /// Messages the peer can take.
    held: u32,
    initial: u32,
    /// Receives posted anew and not returned yet.
    to_return: u32,
    announcing: Announcing,
    /// Credits held from which on downwards they are few.
    low: u32,
    /// Returns that are worth a message of their own.
    worthwhile: u32,
    /// The same while the credits held are few; never more than otherwise.
    worthwhile_when_low: u32,
}

impl Credits {
    /// A new link: the peer has announced `peer_receives`, we have announced `own_receives` and
    /// posted at least as many. `None` if either is below [`RECEIVES_MIN`]: the two would either
    /// run out of credits or never come to rest.
    #[must_use]
    pub fn new(peer_receives: u8, own_receives: u8) -> Option<Credits> {
        Credits::with_reserve(peer_receives, own_receives)
    }
}

impl<const KEPT: u32> Credits<KEPT> {
    /// As [`Credits::new`], with another reserve than links have.
    #[must_use]
    pub fn with_reserve(peer_receives: u8, own_receives: u8) -> Option<Credits<KEPT>> {
        if peer_receives.min(own_receives) < RECEIVES_MIN {
            return None;
        }
        let (initial, receives) = (u32::from(peer_receives), u32::from(own_receives));
        Some(Credits {
            held: initial,
            initial,
            to_return: 0,
            announcing: Announcing::No,
            low: initial * 2 / 3,
            worthwhile: (receives / 3).max(RETURNS_MIN),
            worthwhile_when_low: (receives / 6).max(RETURNS_MIN),
        })
    }

    /// Whether a message may be sent now.
    #[inline]
    #[must_use]
    pub fn may_send(&self, kind: Kind) -> bool {
        match kind {
            Kind::Cdc | Kind::Llc => self.held > KEPT,
            Kind::Announcement => self.held > 0 && self.to_return > 0,
        }
    }

    /// Takes a credit for a message that is about to be posted; `None` if it may not be sent.
    #[inline]
    pub fn take(&mut self, kind: Kind) -> Option<Taken> {
        if !self.may_send(kind) {
            return None;
        }
        self.held -= 1;
        let carried = match kind {
            Kind::Cdc | Kind::Announcement => self.to_return.min(u32::from(u8::MAX)) as u8,
            Kind::Llc => 0,
        };
        self.to_return -= u32::from(carried);
        if kind == Kind::Announcement {
            self.announcing = Announcing::No;
        }
        Some(Taken { carried })
    }

    /// A message was not posted after all. What it would have carried may be worth an announcement
    /// now.
    #[cold]
    pub fn give_back(&mut self, taken: Taken) {
        self.held += 1;
        self.to_return += u32::from(taken.carried);
    }

    /// A receive that a message had used up is posted anew. Whether an announcement may have become
    /// due by it, so that [`ask_for_announcement`](Self::ask_for_announcement) has to be called once
    /// the message is dealt with: what it returns and what it lets us send decide.
    #[inline]
    pub fn handle_receive_posted(&mut self) -> bool {
        self.to_return += 1;
        self.to_return >= self.worthwhile_when_low
    }

    /// A message of the peer returned credits. Those waiting for credits may go on.
    ///
    /// # Errors
    ///
    /// [`TooMany`]; nothing is changed then, and the link should be given up: the peer's count of our
    /// messages is wrong.
    #[inline]
    pub fn handle_returned(&mut self, credits: u8) -> Result<(), TooMany> {
        let held = self.held + u32::from(credits);
        if held > self.initial {
            return Err(TooMany {
                returned: credits,
                held: self.held,
                initial: self.initial,
            });
        }
        self.held = held;
        Ok(())
    }

    /// Whether somebody should be asked for an announcement; true once until it was sent or called
    /// off.
    ///
    /// To be looked at after receives were posted anew, after [`give_back`](Self::give_back), and
    /// after an announcement was called off because there was no room; each of these may be the last
    /// thing that happens on the link. A look at any other time does no harm. After credits came back
    /// none is needed: the message that brought them used up a receive, which will be posted anew.
    #[inline]
    pub fn ask_for_announcement(&mut self) -> bool {
        let is_due = self.announcing == Announcing::No
            && self.to_return >= self.threshold()
            && self.may_send(Kind::Announcement);
        if is_due {
            self.announcing = Announcing::Asked;
        }
        is_due
    }

    /// The announcement asked for is not sent: nothing was left to return, or there was no room.
    pub fn call_off(&mut self) {
        self.announcing = Announcing::No;
    }

    /// Whether no more than two thirds of the peer's receives are left.
    #[inline]
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.held <= self.low
    }

    /// Whether the credit taken last was the one with which two thirds were reached.
    #[inline]
    #[must_use]
    pub fn is_at_low_water(&self) -> bool {
        self.held == self.low
    }

    /// Credits held: messages the peer can take.
    #[inline]
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Credits in the beginning.
    #[must_use]
    pub fn initial(&self) -> u32 {
        self.initial
    }

    /// Receives posted anew and not returned yet.
    #[inline]
    #[must_use]
    pub fn to_return(&self) -> u32 {
        self.to_return
    }

    /// Returns that are worth a message of their own now.
    #[inline]
    fn threshold(&self) -> u32 {
        if self.is_low() {
            self.worthwhile_when_low
        } else {
            self.worthwhile
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credits(peer: u8, own: u8) -> Credits {
        Credits::new(peer, own).expect("enough receives")
    }

    #[test]
    fn two_receives_are_not_enough_for_either_side() {
        assert_eq!(Credits::new(2, 48), None);
        assert_eq!(Credits::new(48, 2), None);
        assert!(Credits::new(3, 3).is_some());
    }

    #[test]
    fn the_receive_of_an_announcement_is_not_worth_another_announcement() {
        for receives in [3, 5, 6, 11] {
            let mut side = credits(receives, receives);
            while side.may_send(Kind::Llc) {
                let _ = side.take(Kind::Llc);
            }
            side.handle_receive_posted();
            assert!(!side.ask_for_announcement(), "{receives}");
            side.handle_receive_posted();
            assert!(side.ask_for_announcement(), "{receives}");
        }
    }

    #[test]
    fn the_last_credit_is_kept_for_an_announcement() {
        let mut side = credits(3, 3);
        assert_eq!(side.take(Kind::Cdc), Some(Taken { carried: 0 }));
        assert_eq!(side.take(Kind::Llc), Some(Taken { carried: 0 }));
        assert_eq!(side.take(Kind::Cdc), None);
        assert_eq!(side.take(Kind::Llc), None);
        assert_eq!(side.take(Kind::Announcement), None, "nothing to return");
        side.handle_receive_posted();
        assert_eq!(side.take(Kind::Announcement), Some(Taken { carried: 1 }));
        side.handle_receive_posted();
        assert_eq!(side.take(Kind::Announcement), None, "no credit at all");
    }

    #[test]
    fn returns_ride_on_cdc_messages_and_not_on_other_llc_messages() {
        let mut side = credits(10, 10);
        for _ in 0..3 {
            side.handle_receive_posted();
        }
        assert_eq!(side.take(Kind::Llc), Some(Taken { carried: 0 }));
        assert_eq!(side.take(Kind::Cdc), Some(Taken { carried: 3 }));
        assert_eq!(side.to_return(), 0);
    }

    #[test]
    fn more_than_a_byte_holds_is_returned_in_parts() {
        let mut side = credits(255, 255);
        for _ in 0..300 {
            side.handle_receive_posted();
        }
        assert_eq!(side.take(Kind::Cdc), Some(Taken { carried: 255 }));
        assert_eq!(side.take(Kind::Cdc), Some(Taken { carried: 45 }));
    }

    #[test]
    fn a_post_that_failed_gives_both_back() {
        let mut side = credits(5, 5);
        side.handle_receive_posted();
        let before = side.clone();
        let taken = side.take(Kind::Cdc).expect("a credit");
        assert_ne!(side, before);
        side.give_back(taken);
        assert_eq!(side, before);
    }

    #[test]
    fn an_announcement_is_asked_for_once_at_a_third_of_our_receives_or_a_sixth_when_low() {
        let mut side = credits(48, 48);
        for _ in 0..15 {
            side.handle_receive_posted();
            assert!(!side.ask_for_announcement());
        }
        side.handle_receive_posted();
        assert!(side.ask_for_announcement());
        assert!(!side.ask_for_announcement(), "only once");
        side.call_off();
        assert!(side.ask_for_announcement());
        let _ = side.take(Kind::Announcement);
        // Down to two thirds of what the peer had.
        while side.held() > 32 {
            assert!(!side.is_low());
            let _ = side.take(Kind::Llc);
        }
        assert!(side.is_low());
        for _ in 0..7 {
            side.handle_receive_posted();
            assert!(!side.ask_for_announcement());
        }
        side.handle_receive_posted();
        assert!(side.ask_for_announcement());
    }

    #[test]
    fn a_receive_that_is_posted_anew_says_when_an_announcement_may_be_due() {
        let mut side = credits(48, 48);
        let answers: Vec<bool> = (0..9).map(|_| side.handle_receive_posted()).collect();
        let first = answers.iter().position(|may_be_due| *may_be_due);
        assert_eq!(first, Some(7), "the eighth of a sixth of 48");
        assert!(
            !side.ask_for_announcement(),
            "not as long as credits are many"
        );
    }

    #[test]
    fn the_low_water_mark_is_met_once_on_the_way_down() {
        let mut side = credits(6, 6);
        let mut met = Vec::new();
        while let Some(taken) = side.take(Kind::Cdc) {
            assert_eq!(taken.carried, 0);
            met.push(side.is_at_low_water());
        }
        assert_eq!(met, [false, true, false, false, false]);
    }

    #[test]
    fn a_peer_that_returns_more_than_was_taken_is_told_off_and_nothing_changes() {
        let mut side = credits(4, 4);
        let _ = side.take(Kind::Cdc);
        let before = side.clone();
        assert_eq!(
            side.handle_returned(2),
            Err(TooMany {
                returned: 2,
                held: 3,
                initial: 4
            })
        );
        assert_eq!(side, before);
        assert_eq!(side.handle_returned(1), Ok(()));
        assert_eq!(side.held(), 4);
    }
}
