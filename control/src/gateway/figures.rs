//! What is counted for each forward.

use pollux_ring::counters::{CounterReader, CounterWriter, counters};

const ACCEPTED: usize = 0;
const ACTIVE: usize = 1;
const FALLBACKS: usize = 2;
const FAILED: usize = 3;
const RESETS: usize = 4;
const BYTES_TO_TARGET: usize = 5;
const BYTES_TO_CLIENT: usize = 6;
const COUNT: usize = 7;

/// The counters of one forward at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardFigures {
    /// The forward.
    pub name: String,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections that exist now.
    pub active: u64,
    /// Connections that stayed on TCP.
    pub fallbacks: u64,
    /// Connections that were never forwarded: the target was not reached, or the upgrade failed.
    pub failed: u64,
    /// Connections that were forwarded and ended by a reset, from either side or by the stop.
    pub resets: u64,
    /// Bytes written from the listening side to the connecting side.
    pub bytes_to_target: u64,
    /// Bytes written from the connecting side to the listening side.
    pub bytes_to_client: u64,
}

impl ForwardFigures {
    /// The counters with their names.
    #[must_use]
    pub fn values(&self) -> [(&'static str, u64); COUNT] {
        [
            ("accepted", self.accepted),
            ("active", self.active),
            ("fallbacks", self.fallbacks),
            ("failed", self.failed),
            ("resets", self.resets),
            ("bytes_to_target", self.bytes_to_target),
            ("bytes_to_client", self.bytes_to_client),
        ]
    }
}

/// The thread's handle of the counters of a forward.
#[derive(Debug)]
pub(super) struct Figures {
    writer: CounterWriter<COUNT>,
    reader: CounterReader<COUNT>,
}

/// Another thread's handle of the counters of a forward.
#[derive(Debug)]
pub(super) struct Reader(CounterReader<COUNT>);

impl Figures {
    pub(super) fn new() -> Figures {
        let (writer, reader) = counters();
        Figures { writer, reader }
    }

    pub(super) fn reader(&self) -> Reader {
        Reader(self.reader.clone())
    }

    /// A connection was accepted.
    pub(super) fn accepted(&self) {
        self.writer.add(ACCEPTED, 1);
        self.writer.add(ACTIVE, 1);
    }

    /// A connection is no more, whatever became of it.
    pub(super) fn ended(&self) {
        self.writer
            .set(ACTIVE, self.writer.get(ACTIVE).saturating_sub(1));
    }

    pub(super) fn fell_back(&self) {
        self.writer.add(FALLBACKS, 1);
    }

    pub(super) fn failed(&self) {
        self.writer.add(FAILED, 1);
    }

    pub(super) fn was_reset(&self) {
        self.writer.add(RESETS, 1);
    }

    /// So many bytes were written to each side.
    #[inline]
    pub(super) fn moved(&self, to_target: u64, to_client: u64) {
        self.writer.add(BYTES_TO_TARGET, to_target);
        self.writer.add(BYTES_TO_CLIENT, to_client);
    }
}

impl Reader {
    pub(super) fn figures(&self, name: &str) -> ForwardFigures {
        let counted = self.0.snapshot();
        ForwardFigures {
            name: name.to_string(),
            accepted: counted[ACCEPTED],
            active: counted[ACTIVE],
            fallbacks: counted[FALLBACKS],
            failed: counted[FAILED],
            resets: counted[RESETS],
            bytes_to_target: counted[BYTES_TO_TARGET],
            bytes_to_client: counted[BYTES_TO_CLIENT],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_told_under_its_own_name() {
        let figures = Figures::new();
        let reader = figures.reader();
        for _ in 0..6 {
            figures.accepted();
        }
        figures.ended();
        (0..4).for_each(|_| figures.fell_back());
        (0..3).for_each(|_| figures.failed());
        (0..2).for_each(|_| figures.was_reset());
        figures.moved(70, 80);
        let told = reader.figures("f");
        assert_eq!(told.name, "f");
        assert_eq!(
            told.values().map(|(_, value)| value),
            [6, 5, 4, 3, 2, 70, 80]
        );
    }
}
