//! Names by which an adapter knows our work requests (`wr_id`).

/// Positions are told by their low bits; at most as many requests are under way as a queue holds.
const POSITION_BITS: u32 = 32;
const POSITIONS: u64 = 1 << POSITION_BITS;
/// How often a place of a group can be used before its lives repeat.
pub(super) const LIVES: u16 = 1 << 14;

/// Which queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// SENDs and WRITEs.
    Send,
    /// Receives.
    Recv,
    /// The request behind everything that was rung before a failure.
    Marker,
}

/// Names a request: 2 bits of queue, 14 of life, 16 of place, 32 of position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) queue: Queue,
    /// Tells the queue pairs apart that had the place one after the other.
    pub(super) life: u16,
    /// Place in the group.
    pub(super) place: u16,
    /// Low bits of the position in the queue.
    pub(super) position: u32,
}

impl Name {
    #[inline(always)]
    pub(super) fn to_bits(self) -> u64 {
        let queue = match self.queue {
            Queue::Send => 0u64,
            Queue::Recv => 1,
            Queue::Marker => 2,
        };
        let life = u64::from(self.life % LIVES);
        queue << 62 | life << 48 | u64::from(self.place) << 32 | u64::from(self.position)
    }

    /// The name of these bits; none for bits that nobody gave out.
    #[inline(always)]
    pub(super) fn from_bits(bits: u64) -> Option<Name> {
        let queue = match bits >> 62 {
            0 => Queue::Send,
            1 => Queue::Recv,
            2 => Queue::Marker,
            _ => return None,
        };
        Some(Name {
            queue,
            life: (bits >> 48) as u16 % LIVES,
            place: (bits >> 32) as u16,
            position: bits as u32,
        })
    }
}

/// The position with these low bits that is nearest behind `first`, or `first` itself.
#[inline(always)]
pub(super) fn position(first: u64, low: u32) -> u64 {
    let ahead = (u64::from(low) + POSITIONS - first % POSITIONS) % POSITIONS;
    first + ahead
}

#[cfg(test)]
mod tests {
    use super::{LIVES, Name, Queue, position};

    #[test]
    fn names_come_back_as_they_went() {
        for queue in [Queue::Send, Queue::Recv, Queue::Marker] {
            for (life, place, position) in [(0, 0, 0), (LIVES - 1, u16::MAX, u32::MAX), (5, 7, 9)] {
                let name = Name {
                    queue,
                    life,
                    place,
                    position,
                };
                assert_eq!(Name::from_bits(name.to_bits()), Some(name));
            }
        }
        assert_eq!(Name::from_bits(u64::MAX), None);
    }

    #[test]
    fn position_is_found_across_the_end_of_its_low_bits() {
        assert_eq!(position(0, 0), 0);
        assert_eq!(position(5, 7), 7);
        let first = (1 << 32) - 2;
        assert_eq!(position(first, u32::MAX - 1), first);
        assert_eq!(position(first, 3), (1 << 32) + 3);
        assert_eq!(position((9 << 32) + 4, 4), (9 << 32) + 4);
    }
}
