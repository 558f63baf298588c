//! A graph of states that is visited as a whole, so that questions about endless runs have answers.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Something that must not be, and the shortest way there from the start.
#[derive(Debug)]
pub(crate) struct Fault<S> {
    /// What is wrong in the last state of the way.
    pub(crate) what: String,
    /// States from the start to there.
    pub(crate) way: Vec<S>,
}

/// All states that can be reached, in the order in which they were found.
pub(crate) struct Graph<S> {
    numbers: HashMap<S, u32, BuildHasherDefault<Fold>>,
    /// From which state each was found first; the start from itself.
    parents: Vec<u32>,
    /// Successors, those of a state side by side.
    edges: Vec<u32>,
    /// Where the successors of each state begin, and one entry more for the end.
    firsts: Vec<u32>,
}

impl<S: Clone + Eq + Hash> Graph<S> {
    /// Visits every state that can be reached from `start`, breadth first. `visit` adds the
    /// successors of a state to a list, or says what is wrong with it.
    pub(crate) fn explore(
        start: S,
        mut visit: impl FnMut(&S, &mut Vec<S>) -> Result<(), String>,
    ) -> Result<Graph<S>, Fault<S>> {
        let mut graph = Graph {
            numbers: HashMap::from_iter([(start.clone(), 0)]),
            parents: vec![0],
            edges: Vec::new(),
            firsts: vec![0],
        };
        let mut queue = VecDeque::from([start]);
        let mut successors = Vec::new();
        while let Some(state) = queue.pop_front() {
            // States leave the queue in the order of their numbers.
            let number = graph.firsts.len() as u32 - 1;
            if let Err(what) = visit(&state, &mut successors) {
                let way = graph.way_to(number);
                return Err(Fault { what, way });
            }
            for successor in successors.drain(..) {
                let next = graph.parents.len() as u32;
                let found = match graph.numbers.get(&successor) {
                    Some(found) => *found,
                    None => {
                        graph.numbers.insert(successor.clone(), next);
                        graph.parents.push(number);
                        queue.push_back(successor);
                        next
                    }
                };
                graph.edges.push(found);
            }
            graph.firsts.push(graph.edges.len() as u32);
        }
        Ok(graph)
    }

    /// How many states there are.
    pub(crate) fn len(&self) -> usize {
        self.parents.len()
    }

    /// A way round that never ends: the states from the start to a circle, and once round it. `None`
    /// if every run ends.
    pub(crate) fn circle(&self) -> Option<Vec<S>> {
        let mut marks = vec![Mark::New; self.len()];
        // The states of the current run, each with the edges that are still to be tried.
        let mut run = vec![(0, self.successors(0))];
        marks[0] = Mark::InRun;
        while let Some((state, untried)) = run.last_mut() {
            let Some((next, rest)) = untried.split_first() else {
                marks[*state as usize] = Mark::Done;
                run.pop();
                continue;
            };
            *untried = rest;
            match marks[*next as usize] {
                Mark::Done => {}
                Mark::InRun => {
                    let begin = run.iter().position(|(state, _)| state == next)?;
                    let round = run[begin..].iter().map(|(state, _)| *state).chain([*next]);
                    let mut way = self.way_to(*next);
                    way.extend(self.states(&round.skip(1).collect::<Vec<_>>()));
                    return Some(way);
                }
                Mark::New => {
                    marks[*next as usize] = Mark::InRun;
                    run.push((*next, self.successors(*next)));
                }
            }
        }
        None
    }

    fn successors(&self, number: u32) -> &[u32] {
        let number = number as usize;
        &self.edges[self.firsts[number] as usize..self.firsts[number + 1] as usize]
    }

    fn way_to(&self, mut number: u32) -> Vec<S> {
        let mut way = vec![number];
        while number != 0 {
            number = self.parents[number as usize];
            way.push(number);
        }
        way.reverse();
        self.states(&way)
    }

    /// The states of a way. Slow; for what is printed.
    fn states(&self, way: &[u32]) -> Vec<S> {
        let by_number: HashMap<u32, &S> = self
            .numbers
            .iter()
            .map(|(state, number)| (*number, state))
            .collect();
        way.iter().map(|number| by_number[number].clone()).collect()
    }
}

/// How far the search for a circle has come with a state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    InRun,
    /// No circle can be reached from it.
    Done,
}

/// A plain and quick hash: without optimisation the usual one takes most of the time.
#[derive(Default)]
struct Fold(u64);

impl Fold {
    fn fold(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        // The upper bits of a product are the good ones; the table wants both.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.fold((*byte).into());
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.fold(word.into());
    }

    fn write_u16(&mut self, word: u16) {
        self.fold(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.fold(word.into());
    }

    /// Lengths.
    fn write_usize(&mut self, word: usize) {
        self.fold(word as u64);
    }

    /// Variants of enums.
    fn write_isize(&mut self, word: isize) {
        self.fold(word as u64);
    }
}
