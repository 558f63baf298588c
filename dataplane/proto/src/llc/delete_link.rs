//! DELETE LINK: with a single link, the end of the group.

use pollux_wire::llc::{DeleteLink, DeleteReason, DeleteScope, Direction, Ending, Message};

use super::{EndedBy, Engine};
use crate::link::Role;

impl Engine {
    /// As in Linux: a client does not answer the deletion of a group, a server sends its own; a
    /// client answers the deletion of one link, a server takes it as a request to delete it.
    pub(super) fn on_delete_link(&mut self, message: &DeleteLink) {
        let DeleteLink {
            direction,
            scope,
            reason,
            ..
        } = *message;
        if direction == Direction::Response {
            return self.ignore();
        }
        match scope {
            DeleteScope::One(number) if number != self.params.link_number => {
                let unknown = DeleteReason::UNKNOWN_LINK;
                self.send_delete(Direction::Response, scope, Ending::Abrupt, unknown);
                return;
            }
            DeleteScope::One(_) | DeleteScope::All => {}
        }
        match (self.params.role, scope) {
            (Role::Client, DeleteScope::All) => {}
            (Role::Client, DeleteScope::One(_)) => {
                let none = DeleteReason::NONE;
                self.send_delete(Direction::Response, scope, message.ending, none);
            }
            (Role::Server, DeleteScope::All) => {
                self.send_delete(Direction::Request, scope, Ending::Orderly, reason);
            }
            (Role::Server, DeleteScope::One(_)) => {
                self.send_delete(Direction::Request, scope, message.ending, reason);
            }
        }
        self.end_deleted(reason, EndedBy::Peer);
    }

    pub(super) fn send_delete(
        &mut self,
        direction: Direction,
        scope: DeleteScope,
        ending: Ending,
        reason: DeleteReason,
    ) {
        let message = DeleteLink {
            direction,
            scope,
            ending,
            reason,
        };
        self.send(&Message::DeleteLink(message));
    }
}
