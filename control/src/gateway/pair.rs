//! A forwarded connection from accept to end, and the table of them.

use std::net::SocketAddr;
use std::time::Instant;

use super::flow::End;
use super::socket::Socket;
use crate::reactor::TimerId;

/// A connection of a forward.
#[derive(Debug)]
pub(super) struct Pair {
    /// Which forward, by index.
    pub(super) front: usize,
    /// Where the accepted connection comes from; Unix sockets do not tell.
    pub(super) from: Option<SocketAddr>,
    pub(super) stage: Stage,
    pub(super) queued: Queued,
}

/// How far a connection has come. On the way in: dialing, upgrading, open; on the way out:
/// upgrading, dialing, open.
#[derive(Debug)]
pub(super) enum Stage {
    /// The connecting side is being connected.
    Dialing(Dialing),
    /// The appliance decides; `plain` is the accepted side on the way in, `None` on the way out.
    Upgrading {
        /// The plain side.
        plain: Option<Socket>,
    },
    /// Bytes are moved.
    Open(Box<Open>),
}

/// A connection whose connecting side is being connected.
#[derive(Debug)]
pub(super) struct Dialing {
    /// The accepted side.
    pub(super) accepted: Socket,
    /// The connecting side; `None` while its target's queue is full.
    pub(super) dialed: Option<Socket>,
    /// When to give up.
    pub(super) deadline: Instant,
    /// The alarm of the deadline or of the next try.
    pub(super) timer: TimerId,
}

/// A connection whose bytes are moved.
#[derive(Debug)]
pub(super) struct Open {
    /// The accepted side.
    pub(super) near: End,
    /// The connecting side.
    pub(super) far: End,
}

/// Whether the connection stands in the queue of those that have something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queued {
    No,
    Yes,
}

/// Names a connection; not valid for the next one in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PairKey {
    index: u32,
    generation: u32,
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Near,
    Far,
}

/// What a descriptor of the event loop or a stream of the session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The gateway's own wake descriptor.
    Wake,
    /// The session.
    Session,
    /// The listener of a forward, by index.
    Front(usize),
    /// An end of a connection.
    End(PairKey, Which),
}

/// Bits of a generation; a token has room for no more.
const GENERATION_BITS: u32 = 28;
const KIND_SHIFT: u32 = 62;
const WHICH_SHIFT: u32 = 61;

impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        match token {
            Token::Wake => 0,
            Token::Session => 1 << KIND_SHIFT,
            Token::Front(index) => 2 << KIND_SHIFT | index as u64,
            Token::End(key, which) => {
                let which = match which {
                    Which::Near => 0,
                    Which::Far => 1 << WHICH_SHIFT,
                };
                let generation = u64::from(key.generation) << u32::BITS;
                3 << KIND_SHIFT | which | generation | u64::from(key.index)
            }
        }
    }
}

impl From<u64> for Token {
    fn from(token: u64) -> Token {
        match token >> KIND_SHIFT {
            0 => Token::Wake,
            1 => Token::Session,
            2 => Token::Front((token & ((1 << KIND_SHIFT) - 1)) as usize),
            _ => {
                let which = if token >> WHICH_SHIFT & 1 == 0 {
                    Which::Near
                } else {
                    Which::Far
                };
                let generation = (token >> u32::BITS) as u32 & ((1 << GENERATION_BITS) - 1);
                Token::End(
                    PairKey {
                        index: token as u32,
                        generation,
                    },
                    which,
                )
            }
        }
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    pair: Option<Pair>,
}

impl Pairs {
    /// The name that the next connection will have.
    pub(super) fn next_key(&self) -> PairKey {
        match self.free.last() {
            Some(&index) => PairKey {
                index,
                generation: self.places[index as usize].generation,
            },
            None => PairKey {
                index: self.places.len() as u32,
                generation: 0,
            },
        }
    }

    /// Adds a connection under the name of [`Pairs::next_key`].
    pub(super) fn insert(&mut self, pair: Pair) -> PairKey {
        let key = self.next_key();
        match self.free.pop() {
            Some(index) => self.places[index as usize].pair = Some(pair),
            None => self.places.push(Place {
                generation: 0,
                pair: Some(pair),
            }),
        }
        key
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: PairKey) -> Option<&mut Pair> {
        let place = self.places.get_mut(key.index as usize)?;
        place
            .pair
            .as_mut()
            .filter(|_| place.generation == key.generation)
    }

    pub(super) fn remove(&mut self, key: PairKey) -> Option<Pair> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let pair = place.pair.take()?;
        place.generation = (place.generation + 1) & ((1 << GENERATION_BITS) - 1);
        self.free.push(key.index);
        Some(pair)
    }

    /// The names of all connections that are as asked.
    pub(super) fn keys(&self, are: impl Fn(&Pair) -> bool) -> Vec<PairKey> {
        let key = |(index, place): (usize, &Place)| {
            let asked = place.pair.as_ref().is_some_and(&are);
            asked.then_some(PairKey {
                index: index as u32,
                generation: place.generation,
            })
        };
        self.places.iter().enumerate().filter_map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(front: usize) -> Pair {
        let stage = Stage::Upgrading { plain: None };
        Pair {
            front,
            from: None,
            stage,
            queued: Queued::No,
        }
    }

    #[test]
    fn a_token_comes_back_as_what_it_was() {
        let key = PairKey {
            index: u32::MAX,
            generation: (1 << GENERATION_BITS) - 1,
        };
        let zero = PairKey {
            index: 0,
            generation: 0,
        };
        for token in [
            Token::Wake,
            Token::Session,
            Token::Front(0),
            Token::Front(70_000),
            Token::End(key, Which::Near),
            Token::End(key, Which::Far),
            Token::End(zero, Which::Near),
            Token::End(zero, Which::Far),
        ] {
            assert_eq!(Token::from(u64::from(token)), token);
        }
    }

    #[test]
    fn the_name_of_a_connection_does_not_fit_its_successor() {
        let mut pairs = Pairs::default();
        let expected = pairs.next_key();
        let first = pairs.insert(pair(1));
        assert_eq!(first, expected);
        let other = pairs.insert(pair(2));
        assert!(pairs.remove(first).is_some());
        assert!(pairs.remove(first).is_none());
        let expected = pairs.next_key();
        let second = pairs.insert(pair(3));
        assert_eq!((second, second.index), (expected, first.index));
        assert!(pairs.get_mut(first).is_none());
        assert!(pairs.remove(first).is_none());
        assert_eq!(pairs.get_mut(second).map(|pair| pair.front), Some(3));
        assert_eq!(pairs.keys(|_| true), [second, other]);
        assert_eq!(pairs.keys(|pair| pair.front == 2), [other]);
    }
}
