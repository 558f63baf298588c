//! Counts of tests, read from the closing lines of the test runners.

use std::fmt;

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Ended well.
    pub passed: u64,
    /// Failed, timed out, or could not be started.
    pub failed: u64,
    /// Not run: filtered out or marked so.
    pub skipped: u64,
}

impl Tally {
    /// The sum of two runs.
    pub(crate) fn and(self, other: Tally) -> Tally {
        Tally {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }

    /// The counts of a runner's closing line, or nothing if the line is another one. Knows
    /// nextest's `Summary [...] N tests run: ...` and cargo test's `test result: ...`.
    pub(crate) fn from_line(line: &str) -> Option<Tally> {
        let line = without_escapes(line);
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("test result:") {
            return Some(Tally::from_counts(rest.split(['.', ';'])));
        }
        let rest = line.strip_prefix("Summary [")?;
        let (_, counts) = rest.split_once(" run:")?;
        Some(Tally::from_counts(without_parentheses(counts).split(',')))
    }

    /// Adds up `3 passed`, `1 failed`, `2 timed out`, `4 filtered out` and the like.
    fn from_counts<'a>(counts: impl Iterator<Item = &'a str>) -> Tally {
        let mut tally = Tally::default();
        for count in counts {
            let Some((number, what)) = count.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what.trim() {
                "passed" => tally.passed += number,
                "failed" | "timed out" | "exec failed" => tally.failed += number,
                "skipped" | "ignored" | "filtered out" => tally.skipped += number,
                _ => {}
            }
        }
        tally
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// The line without terminal colour sequences.
fn without_escapes(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            let _ = chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

/// The text without its remarks in parentheses, such as `(1 slow, 2 leaky)`.
fn without_parentheses(text: &str) -> String {
    let mut depth = 0_u32;
    text.chars()
        .filter(|&c| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => return depth == 0,
            }
            false
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(line: &str) -> (u64, u64, u64) {
        let tally = Tally::from_line(line).unwrap();
        (tally.passed, tally.failed, tally.skipped)
    }

    #[test]
    fn cargo_test_lines_are_read() {
        let line = "test result: ok. 41 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; \
                    finished in 0.05s";
        assert_eq!(counted(line), (41, 0, 3));
    }

    #[test]
    fn nextest_lines_are_read() {
        let line = "     Summary [   2.500s] 9 tests run: 6 passed (1 slow, 1 leaky), 2 failed, \
                    1 timed out, 4 skipped";
        assert_eq!(counted(line), (6, 3, 4));
    }

    #[test]
    fn a_cancelled_nextest_run_is_read() {
        let line = "     Summary [   0.010s] 3/9 tests run: 2 passed, 1 failed, 0 skipped";
        assert_eq!(counted(line), (2, 1, 0));
    }

    #[test]
    fn colours_do_not_hide_a_result() {
        let line = "\u{1b}[32;1m Summary\u{1b}[0m [ 0.1s] \u{1b}[1m2\u{1b}[0m tests run: \
                    \u{1b}[1m2\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, 0 skipped";
        assert_eq!(counted(line), (2, 0, 0));
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(Tally::from_line("test ring::wraps ... ok"), None);
        assert_eq!(Tally::from_line("Summary of changes"), None);
    }

    #[test]
    fn the_closing_line_is_plain() {
        let tally = Tally {
            passed: 3,
            failed: 0,
            skipped: 0,
        };
        assert_eq!(tally.to_string(), "3 passed, 0 failed");
        let tally = Tally {
            passed: 3,
            failed: 1,
            skipped: 2,
        };
        assert_eq!(tally.to_string(), "3 passed, 1 failed, 2 skipped");
    }
}
