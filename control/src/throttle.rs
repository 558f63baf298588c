//! Lines of the log that somebody else can cause in a loop: a few a second, with a count of the rest.

use pollux_proto::time::Instant;
use std::time::Duration;

/// How long the lines of a throttle are counted together.
const PERIOD: Duration = Duration::from_secs(1);

/// Lets a number of lines a second through.
#[derive(Clone, Debug)]
pub(crate) struct Throttle {
    lines_max: u32,
    /// When the next period begins.
    until: Instant,
    lines: u32,
    left_out: u64,
}

impl Throttle {
    /// Lets `lines_max` lines through each second.
    pub(crate) const fn new(lines_max: u32) -> Self {
        Throttle {
            lines_max,
            until: Instant(0),
            lines: 0,
            left_out: 0,
        }
    }

    /// Whether a line may be written now; then how many were left out since the last one.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if now >= self.until {
            self.until = now.after(PERIOD);
            self.lines = 0;
        }
        if self.lines == self.lines_max {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_its_lines_and_the_next_one_tells_what_was_left_out() {
        let mut throttle = Throttle::new(2);
        let at = |ms: u64| Instant(7_000_000_000 + ms * 1_000_000);
        let told: Vec<_> = [0, 1, 2, 999, 1000, 1001, 1002, 5000]
            .map(|ms| throttle.admit(at(ms)))
            .into();
        assert_eq!(
            told,
            [
                Some(0),
                Some(0),
                None,
                None,
                Some(2),
                Some(0),
                None,
                Some(1)
            ]
        );
    }
}
