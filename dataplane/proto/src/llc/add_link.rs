//! ADD LINK and REQUEST ADD LINK: a second link is refused, always and at once.

use arrayvec::ArrayVec;
use pollux_wire::clc::Attachment;
use pollux_wire::field::{LinkNumber, Psn};
use pollux_wire::llc::{
    AddLink, AddLinkV2, Answer, Direction, Form, Message, RejectReason, RequestAddLink,
};

use super::Engine;
use crate::link::Role;

impl Engine {
    /// A request is answered by its own fields with the rejected flag; 44 bytes also in version 2.
    /// A response needs no reaction: it can only refuse what [`Engine::send_add_link_without_mtu`]
    /// sent.
    pub(super) fn on_add_link(&mut self, message: &AddLink<'_>) {
        match message.direction {
            Direction::Request => {
                let rejection = AddLink {
                    direction: Direction::Response,
                    answer: Answer::Rejected(RejectReason::NO_ALTERNATE_PATH),
                    v2: None,
                    ..*message
                };
                self.send(&Message::AddLink(rejection));
            }
            Direction::Response => {}
        }
    }

    /// A client names its GIDs: the server has none to match them.
    pub(super) fn on_request_add_link(&mut self, direction: Direction) {
        match (self.params.role, direction) {
            (Role::Server, Direction::Request) => {
                let (direction, gids) = (Direction::Response, ArrayVec::new());
                self.send(&Message::RequestAddLink(RequestAddLink { direction, gids }));
            }
            (Role::Server, Direction::Response)
            | (Role::Client, Direction::Request | Direction::Response) => self.ignore(),
        }
    }

    /// Ends the wait of a client that could not be told in CLC that there is one link only: it
    /// refuses an ADD LINK without an MTU without looking at the rest.
    pub(super) fn send_add_link_without_mtu(&mut self) {
        let params = &self.params;
        let v2 = match params.form {
            Form::V1 => None,
            Form::V2 => Some(AddLinkV2 {
                attachment: Attachment::Direct,
                target_gid: params.local.gid,
                rtokens: &[],
            }),
        };
        let message = AddLink {
            direction: Direction::Request,
            answer: Answer::Accepted,
            mac: params.local.mac,
            gid: params.local.gid,
            qpn: params.local.qpn,
            link_number: LinkNumber(params.link_number.0.saturating_add(1)),
            mtu: None,
            psn: Psn::from_low_bits(0),
            credits: 0,
            v2,
        };
        self.send(&Message::AddLink(message));
    }
}
