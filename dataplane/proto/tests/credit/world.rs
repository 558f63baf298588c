//! Two sides of a link with credits, and all that can happen to them.
//!
//! A side is a worker and a control thread with an internal ring each way. What the worker does in
//! one go is cut into single steps, so that everything else may come in between. The link is a
//! reliable connection: messages keep their order, and none is lost.

use pollux_proto::credit::{Credits, Kind, Taken};
use pollux_proto::testing::Side;

/// Where the announcement stands that the worker has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Request {
    None,
    /// In the ring to control.
    Asked,
    /// In the ring to the worker.
    Ordered,
}

/// Whether the rules say that the worker has to look if an announcement is due.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Look {
    Free,
    Owed,
}

/// After what the rules want the worker to look if an announcement is due.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Occasion {
    /// A receive was posted anew.
    ReceivePosted,
    /// A post failed and gave back what it had taken.
    GivenBack,
    /// An announcement found no room.
    CalledOff,
}

/// What one side still has to do, and what may go wrong for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Plan {
    pub(crate) cdc: u16,
    pub(crate) llc: u16,
    /// Posts that fail.
    pub(crate) failures: u8,
    /// Times that a ring or the send queue has no room for an announcement.
    pub(crate) shortages: u8,
}

/// One side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct End<const KEPT: u32> {
    pub(crate) credits: Credits<KEPT>,
    pub(crate) plan: Plan,
    /// A message that has its credit and is not posted yet.
    hand: Option<(Kind, Taken)>,
    /// Receives that a message has used up. All others are posted.
    used: u8,
    look: Look,
    request: Request,
    /// After this the worker does not look, although it should.
    forgotten: Option<Occasion>,
    /// Returns that each message carries which is under way to the peer, the oldest first.
    way: Vec<u8>,
}

/// What may happen on a side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    /// The worker takes a credit for a message.
    Take(Kind),
    /// It posts the message.
    Post,
    /// It fails to post the message.
    FailToPost,
    /// The peer's oldest message arrives.
    Receive,
    /// The worker posts a used-up receive anew.
    PostReceive,
    /// The worker looks if an announcement is due, and asks for it.
    Ask,
    /// The same, but the ring to control is full.
    AskInVain,
    /// Control answers with an announcement.
    Order,
    /// The worker gets it and has nothing left to return.
    CallOff,
    /// The worker gets it and has no room for it.
    CallOffForRoom,
}

/// All of them.
pub(crate) const STEPS: [Step; 12] = [
    Step::Take(Kind::Llc),
    Step::Take(Kind::Cdc),
    Step::Take(Kind::Announcement),
    Step::Post,
    Step::FailToPost,
    Step::Receive,
    Step::PostReceive,
    Step::Ask,
    Step::AskInVain,
    Step::Order,
    Step::CallOff,
    Step::CallOffForRoom,
];

/// Nothing has to happen any more, and something is left to be sent.
pub(crate) const DEADLOCK: &str = "deadlock";

/// Both sides.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World<const KEPT: u32> {
    pub(crate) ends: [End<KEPT>; 2],
}

impl<const KEPT: u32> End<KEPT> {
    fn new(peer_receives: u8, own_receives: u8, plan: Plan) -> End<KEPT> {
        End {
            credits: Credits::with_reserve(peer_receives, own_receives).expect("enough receives"),
            plan,
            hand: None,
            used: 0,
            look: Look::Free,
            request: Request::None,
            forgotten: None,
            way: Vec::new(),
        }
    }

    fn owe_look(&mut self, after: Occasion) {
        if self.forgotten != Some(after) {
            self.look = Look::Owed;
        }
    }

    fn may_take(&self, kind: Kind) -> bool {
        let is_wanted = match kind {
            Kind::Cdc => self.plan.cdc > 0,
            Kind::Llc => self.plan.llc > 0,
            Kind::Announcement => self.request == Request::Ordered,
        };
        is_wanted && self.hand.is_none() && self.credits.may_send(kind)
    }

    fn take(&mut self, kind: Kind) -> Result<(), String> {
        match kind {
            Kind::Cdc => self.plan.cdc -= 1,
            Kind::Llc => self.plan.llc -= 1,
            Kind::Announcement => self.request = Request::None,
        }
        let taken = self
            .credits
            .take(kind)
            .ok_or("what may be sent gets no credit")?;
        self.hand = Some((kind, taken));
        if self.credits.held() < KEPT && kind != Kind::Announcement {
            return Err("a message took the reserve".into());
        }
        Ok(())
    }

    fn post(&mut self) {
        if let Some((_, taken)) = self.hand.take() {
            self.way.push(taken.carried);
        }
    }

    fn fail_to_post(&mut self) {
        let Some((kind, taken)) = self.hand.take() else {
            return;
        };
        self.plan.failures -= 1;
        self.credits.give_back(taken);
        self.owe_look(Occasion::GivenBack);
        match kind {
            Kind::Cdc => self.plan.cdc += 1,
            Kind::Llc => self.plan.llc += 1,
            Kind::Announcement => {}
        }
    }

    fn receive(&mut self, returned: u8) -> Result<(), String> {
        self.used += 1;
        let outcome = self.credits.handle_returned(returned);
        outcome.map_err(|error| error.to_string())
    }

    fn post_receive(&mut self) {
        self.used -= 1;
        if self.credits.handle_receive_posted() {
            self.owe_look(Occasion::ReceivePosted);
        }
    }

    /// Whether a look changes anything: it finds that an announcement is due, or it was owed.
    fn may_ask(&self) -> bool {
        self.look == Look::Owed || self.is_due()
    }

    fn is_due(&self) -> bool {
        self.credits.clone().ask_for_announcement()
    }

    fn ask(&mut self) -> Result<(), String> {
        self.look = Look::Free;
        if self.credits.ask_for_announcement() {
            if self.request != Request::None {
                return Err("a second announcement is asked for at the same time".into());
            }
            self.request = Request::Asked;
        }
        Ok(())
    }

    fn ask_in_vain(&mut self) {
        self.plan.shortages -= 1;
        self.owe_look(Occasion::CalledOff);
        if self.credits.ask_for_announcement() {
            self.credits.call_off();
        }
    }

    fn may_call_off(&self) -> bool {
        self.request == Request::Ordered
            && self.hand.is_none()
            && !self.credits.may_send(Kind::Announcement)
    }

    fn call_off(&mut self) -> Result<(), String> {
        if KEPT > 0 && self.credits.to_return() > 0 {
            return Err("an announcement was asked for, and its credit is gone".into());
        }
        self.request = Request::None;
        self.credits.call_off();
        Ok(())
    }

    fn call_off_for_room(&mut self) {
        self.request = Request::None;
        self.plan.shortages -= 1;
        self.credits.call_off();
        self.owe_look(Occasion::CalledOff);
    }

    /// Has nothing to send, to post, or to answer.
    fn is_at_rest(&self) -> bool {
        self.plan.cdc == 0
            && self.plan.llc == 0
            && self.hand.is_none()
            && self.used == 0
            && self.request == Request::None
            && self.way.is_empty()
    }
}

impl<const KEPT: u32> World<KEPT> {
    /// Both sides have just agreed on credits.
    pub(crate) fn new(receives: [u8; 2], plans: [Plan; 2]) -> World<KEPT> {
        let [left, right] = receives;
        World {
            ends: [
                End::new(right, left, plans[0]),
                End::new(left, right, plans[1]),
            ],
        }
    }

    /// The same with workers that do not look after `occasion`.
    pub(crate) fn forgetting(mut self, occasion: Occasion) -> World<KEPT> {
        for end in &mut self.ends {
            end.forgotten = Some(occasion);
        }
        self
    }

    /// Whether a step can be made and makes a difference.
    pub(crate) fn may(&self, side: Side, step: Step) -> bool {
        let end = &self.ends[side as usize];
        match step {
            Step::Take(kind) => end.may_take(kind),
            Step::Post => end.hand.is_some(),
            Step::FailToPost => end.hand.is_some() && end.plan.failures > 0,
            Step::Receive => !self.ends[side.peer() as usize].way.is_empty(),
            Step::PostReceive => end.used > 0,
            Step::Ask => end.may_ask(),
            Step::AskInVain => end.plan.shortages > 0 && end.is_due(),
            Step::Order => end.request == Request::Asked,
            Step::CallOff => end.may_call_off(),
            Step::CallOffForRoom => end.plan.shortages > 0 && end.request == Request::Ordered,
        }
    }

    /// Makes a step that may be made.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn make(&mut self, side: Side, step: Step) -> Result<(), String> {
        let end = &mut self.ends[side as usize];
        match step {
            Step::Take(kind) => end.take(kind)?,
            Step::Post => end.post(),
            Step::FailToPost => end.fail_to_post(),
            Step::Receive => {
                let returned = self.ends[side.peer() as usize].way.remove(0);
                self.ends[side as usize].receive(returned)?;
            }
            Step::PostReceive => end.post_receive(),
            Step::Ask => end.ask()?,
            Step::AskInVain => end.ask_in_vain(),
            Step::Order => end.request = Request::Ordered,
            Step::CallOff => end.call_off()?,
            Step::CallOffForRoom => end.call_off_for_room(),
        }
        Ok(())
    }

    /// Whether the worker and control do no less than this step. The others, mishaps and looks that
    /// are not owed, come as well, but nothing may depend on them.
    pub(crate) fn is_owed(&self, side: Side, step: Step) -> bool {
        match step {
            Step::Ask => self.ends[side as usize].look == Look::Owed,
            Step::FailToPost | Step::AskInVain | Step::CallOffForRoom => false,
            Step::Take(_)
            | Step::Post
            | Step::Receive
            | Step::PostReceive
            | Step::Order
            | Step::CallOff => true,
        }
    }

    /// All that may happen now.
    pub(crate) fn options(&self) -> Vec<(Side, Step)> {
        let mut options = Vec::new();
        for step in &STEPS {
            for side in Side::BOTH {
                if self.may(side, *step) {
                    options.push((side, *step));
                }
            }
        }
        options
    }

    /// What holds at any time.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_messages_of(Side::Left)?;
        self.check_messages_of(Side::Right)
    }

    fn check_messages_of(&self, side: Side) -> Result<(), String> {
        let (end, peer) = (&self.ends[side as usize], &self.ends[side.peer() as usize]);
        let initial = end.credits.initial();
        let in_hand = u32::from(end.hand.is_some());
        let under_way = end.way.len() as u32;
        let mut returning = peer.hand.map_or(0, |(_, taken)| taken.carried.into());
        for carried in &peer.way {
            returning += u32::from(*carried);
        }
        let used = u32::from(peer.used);
        let ours = end.credits.held() + in_hand + under_way;
        let sum = ours + used + peer.credits.to_return() + returning;
        if sum != initial {
            return Err(format!(
                "{side:?} had {initial} credits, now there are {sum}"
            ));
        }
        if under_way > initial - used {
            return Err(format!(
                "{side:?} has {under_way} messages under way, the peer {used} of {initial} receives in use"
            ));
        }
        Ok(())
    }

    /// Whether everything was delivered and both sides have come to rest.
    pub(crate) fn is_done(&self) -> bool {
        self.ends.iter().all(End::is_at_rest)
    }

    /// Adds the states that can come next to `successors`.
    ///
    /// # Errors
    ///
    /// What is wrong here or with a step from here; [`DEADLOCK`] if nothing has to happen any more
    /// and something is left to be sent.
    pub(crate) fn visit(&self, successors: &mut Vec<World<KEPT>>) -> Result<(), String> {
        self.check()?;
        let mut goes_on = false;
        for (side, step) in self.options() {
            goes_on |= self.is_owed(side, step);
            let mut world = self.clone();
            world.make(side, step)?;
            successors.push(world);
        }
        if goes_on || self.is_done() {
            Ok(())
        } else {
            Err(DEADLOCK.into())
        }
    }

    /// The step that leads from here to `next`, in words.
    pub(crate) fn explain(&self, next: &World<KEPT>) -> String {
        let leads_there = |(side, step): &(Side, Step)| {
            let mut world = self.clone();
            world.make(*side, *step).is_ok() && world == *next
        };
        match self.options().into_iter().find(leads_there) {
            Some((side, step)) => format!("{side:?}: {step:?}"),
            None => "no step leads on".into(),
        }
    }
}
