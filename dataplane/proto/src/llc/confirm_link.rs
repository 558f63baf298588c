//! CONFIRM LINK: shows that the new link works, and how RMBEs begin.

use pollux_wire::field::LinkNumber;
use pollux_wire::llc::{ConfirmLink, Direction, Message, RmbeMark};

use super::{CONFIRM_LINK_REPEAT, Engine, LinkFailure, Output, SecondLink, Stage};
use crate::link::Role;
use crate::time::Instant;

impl Engine {
    /// The server's timer: sends the request, again and again, until the time is over.
    pub(super) fn on_asking_timeout(&mut self, now: Instant, send: Instant, until: Instant) {
        if until <= now {
            return self.fail(LinkFailure::NotConfirmed);
        }
        if send <= now {
            self.send_confirm_link(Direction::Request, self.params.link_number);
            self.stage = Stage::Asking {
                send: now.after(CONFIRM_LINK_REPEAT),
                until,
            };
        }
    }

    pub(super) fn on_confirm_link(&mut self, message: &ConfirmLink) {
        match (self.params.role, message.direction, self.stage) {
            (Role::Client, Direction::Request, Stage::Listening { .. }) => {
                if message.mark == RmbeMark::Present {
                    return self.fail(LinkFailure::WantsEyeCatcher);
                }
                self.params.link_number = message.link_number;
                self.send_confirm_link(Direction::Response, message.link_number);
                self.activate();
            }
            // The server repeats itself until our response reaches it; the first one may be under
            // way still.
            (Role::Client, Direction::Request, Stage::Active)
                if message.link_number == self.params.link_number =>
            {
                self.send_confirm_link(Direction::Response, message.link_number);
            }
            (Role::Server, Direction::Response, Stage::Asking { .. })
                if message.link_number == self.params.link_number =>
            {
                if message.mark == RmbeMark::Present {
                    return self.fail(LinkFailure::WantsEyeCatcher);
                }
                self.activate();
                self.wave_second_link();
            }
            (Role::Client | Role::Server, Direction::Request | Direction::Response, _) => {
                self.ignore();
            }
        }
    }

    fn activate(&mut self) {
        self.stage = Stage::Active;
        self.put(Output::LinkConfirmed);
    }

    fn wave_second_link(&mut self) {
        match self.params.second_link {
            SecondLink::Waved => self.send_add_link_without_mtu(),
            SecondLink::Excluded => {}
        }
    }

    fn send_confirm_link(&mut self, direction: Direction, link_number: LinkNumber) {
        let params = &self.params;
        let message = ConfirmLink {
            direction,
            mark: RmbeMark::Absent,
            mac: params.local.mac,
            gid: params.local.gid,
            qpn: params.local.qpn,
            link_number,
            link_user_id: params.link_user_id,
            max_links: params.max_links,
            max_conns: params.max_conns,
        };
        self.send(&Message::ConfirmLink(message));
    }
}
