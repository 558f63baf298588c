//! What the application has to learn about its connection.

/// A set of events. They add up until [`Conn::take_events`](crate::conn::Conn::take_events) takes
/// them.
///
/// Events are edges: each says that something changed. What is true now, the connection answers
/// itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EventSet(u16);

impl EventSet {
    /// Nothing happened.
    pub const NONE: EventSet = EventSet(0);
    /// Bytes arrived, or became readable behind an urgent byte.
    pub const READABLE: EventSet = EventSet(1);
    /// The send ring has more room than the application was told, and by that its ring was more
    /// than half full. An application that believes its ring to be full is always told.
    pub const WRITABLE: EventSet = EventSet(1 << 1);
    /// The peer will send an urgent byte; it is not here yet.
    pub const URGENT_PENDING: EventSet = EventSet(1 << 2);
    /// An urgent byte arrived. Out of line, the owner copies it now:
    /// [`Conn::take_urgent`](crate::conn::Conn::take_urgent).
    pub const URGENT: EventSet = EventSet(1 << 3);
    /// The peer consumed our urgent byte: the next one may be prepared.
    pub const URGENT_CONFIRMED: EventSet = EventSet(1 << 4);
    /// The peer sends no more: after the readable bytes comes the end of the stream.
    pub const END_OF_STREAM: EventSet = EventSet(1 << 5);
    /// The peer closed and takes no more bytes; unsent ones were discarded.
    pub const PEER_CLOSED: EventSet = EventSet(1 << 6);
    /// The connection was reset; [`Conn::abort_reason`](crate::conn::Conn::abort_reason) says why.
    pub const RESET: EventSet = EventSet(1 << 7);
    /// The connection is over on the wire: nothing will be sent and nothing is expected any more.
    pub const CLOSED: EventSet = EventSet(1 << 8);

    /// Names of all events, in the order of their bits.
    const NAMES: [(EventSet, &'static str); 9] = [
        (EventSet::READABLE, "readable"),
        (EventSet::WRITABLE, "writable"),
        (EventSet::URGENT_PENDING, "urgent-pending"),
        (EventSet::URGENT, "urgent"),
        (EventSet::URGENT_CONFIRMED, "urgent-confirmed"),
        (EventSet::END_OF_STREAM, "end-of-stream"),
        (EventSet::PEER_CLOSED, "peer-closed"),
        (EventSet::RESET, "reset"),
        (EventSet::CLOSED, "closed"),
    ];

    /// Whether nothing happened.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether every event of `events` is in the set.
    #[inline]
    #[must_use]
    pub const fn contains(self, events: EventSet) -> bool {
        self.0 & events.0 == events.0
    }

    /// Whether any event of `events` is in the set.
    #[inline]
    #[must_use]
    pub const fn intersects(self, events: EventSet) -> bool {
        self.0 & events.0 != 0
    }

    /// The events of both sets.
    #[inline]
    #[must_use]
    pub const fn union(self, events: EventSet) -> EventSet {
        EventSet(self.0 | events.0)
    }

    /// The set as bits, for a place where a program reads it.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Adds events.
    #[inline]
    pub(crate) fn raise(&mut self, events: EventSet) {
        self.0 |= events.0;
    }
}

impl core::fmt::Debug for EventSet {
    /// Names joined by `+`, or `-` for none.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.is_empty() {
            return f.write_str("-");
        }
        let mut between = "";
        for (event, name) in EventSet::NAMES {
            if self.contains(event) {
                write!(f, "{between}{name}")?;
                between = "+";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_prints_the_names_of_its_events() {
        assert_eq!(format!("{:?}", EventSet::NONE), "-");
        let set = EventSet::CLOSED.union(EventSet::READABLE);
        assert_eq!(format!("{set:?}"), "readable+closed");
        assert!(set.intersects(EventSet::CLOSED.union(EventSet::RESET)));
        assert!(!set.contains(EventSet::CLOSED.union(EventSet::RESET)));
    }
}
