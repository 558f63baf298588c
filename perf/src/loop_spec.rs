//! The message sizes of a run, written as qperf's `--loop` has them: `VARIABLE:FIRST:LAST:STEP`.
//!
//! `msg_size:1:2K:*2` is 1, 2, 4 and so on up to 2048 bytes; `msg_size:64:1K:64` (or `+64`) adds 64
//! each time. An empty FIRST is 1. A step is needed: qperf would stay at the first size for ever.
//!
//! Sizes are in bytes. `K`, `M` and `G` (or `kib`, `mib`, `gib`) multiply by powers of 1024; `k`,
//! `m` and `g` (or `kb`, `mb`, `gb`) by powers of 1000.
//!
//! Several loops give one table: their sizes in the order given, each once. (qperf nests them, but
//! then the inner loop over the same variable wins.)

use std::str::FromStr;

use thiserror::Error;

/// Largest message, in bytes. More is no latency but a transfer.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Most sizes in one run.
pub const SIZES_MAX: usize = 1024;

/// The only variable that can be looped over.
const VARIABLE: &str = "msg_size";

/// One loop over message sizes; not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopSpec {
    first: u32,
    last: u32,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Adds this many bytes; 1 or more.
    Add(u32),
    /// Multiplies by this; 2 or more.
    Multiply(u32),
}

/// Why a text is no loop.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoopError {
    /// Not four parts.
    #[error("`{0}` is no loop: write msg_size:FIRST:LAST:STEP, such as msg_size:1:2K:*2")]
    Form(String),
    /// Another variable.
    #[error("cannot loop over `{0}`: only msg_size can be looped over")]
    Variable(String),
    /// One of the numbers.
    #[error("in the loop `{0}`: {1}")]
    Number(String, #[source] SizeError),
    /// A step that never arrives.
    #[error("the step `{1}` of the loop `{0}` never arrives: use *2 or more, or +1 or more")]
    Step(String, String),
    /// The wrong way round.
    #[error("the loop `{0}` is empty: it begins above its last size")]
    Empty(String),
    /// Far too long.
    #[error("the loop `{0}` has more than {SIZES_MAX} sizes: use a larger step")]
    TooMany(String),
}

/// Why a text is no message size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// No digits, or an unknown unit.
    #[error("`{0}` is no size: write digits, and K, M or G (or kib, kb and so on) if need be")]
    Form(String),
    /// Zero or too large.
    #[error("{0} is out of range: messages have 1 to {MESSAGE_BYTES_MAX} bytes")]
    Range(String),
}

impl LoopSpec {
    /// The sizes, in ascending order; at least one and at most [`SIZES_MAX`].
    pub fn sizes(&self) -> impl Iterator<Item = u32> + use<> {
        let LoopSpec { first, last, step } = *self;
        std::iter::successors(Some(first), move |&size| match step {
            Step::Add(bytes) => size.checked_add(bytes),
            Step::Multiply(factor) => size.checked_mul(factor),
        })
        .take_while(move |&size| size <= last)
    }
}

impl FromStr for LoopSpec {
    type Err = LoopError;

    fn from_str(text: &str) -> Result<LoopSpec, LoopError> {
        let parts: Vec<&str> = text.split(':').collect();
        let &[variable, first, last, step] = parts.as_slice() else {
            return Err(LoopError::Form(text.to_owned()));
        };
        if variable != VARIABLE {
            return Err(LoopError::Variable(variable.to_owned()));
        }
        let number = |part: &str| {
            parse_size(part).map_err(|error| LoopError::Number(text.to_owned(), error))
        };
        let spec = LoopSpec {
            first: if first.is_empty() { 1 } else { number(first)? },
            last: number(last)?,
            step: parse_step(step, text, number)?,
        };
        match spec.sizes().take(SIZES_MAX + 1).count() {
            0 => Err(LoopError::Empty(text.to_owned())),
            count if count > SIZES_MAX => Err(LoopError::TooMany(text.to_owned())),
            _ => Ok(spec),
        }
    }
}

fn parse_step(
    step: &str,
    text: &str,
    number: impl Fn(&str) -> Result<u32, LoopError>,
) -> Result<Step, LoopError> {
    let never = || LoopError::Step(text.to_owned(), step.to_owned());
    if matches!(step, "0" | "+0" | "*0" | "*1") {
        return Err(never());
    }
    match step.strip_prefix('*') {
        Some(factor) => match number(factor)? {
            0 | 1 => Err(never()),
            factor => Ok(Step::Multiply(factor)),
        },
        None => number(step.strip_prefix('+').unwrap_or(step)).map(Step::Add),
    }
}

/// A message size in bytes, with a unit if there is one.
///
/// # Errors
///
/// [`SizeError`] for anything but 1 to [`MESSAGE_BYTES_MAX`].
pub fn parse_size(text: &str) -> Result<u32, SizeError> {
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let form = || SizeError::Form(text.to_owned());
    let range = || SizeError::Range(text.to_owned());
    let factor: u64 = match unit {
        "" => 1,
        "K" | "kib" => 1 << 10,
        "M" | "mib" => 1 << 20,
        "G" | "gib" => 1 << 30,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        _ => return Err(form()),
    };
    if digits.is_empty() {
        return Err(form());
    }
    let number: u64 = digits.parse().map_err(|_| range())?;
    let bytes = number
        .checked_mul(factor)
        .and_then(|bytes| u32::try_from(bytes).ok());
    match bytes {
        Some(bytes) if (1..=MESSAGE_BYTES_MAX).contains(&bytes) => Ok(bytes),
        _ => Err(range()),
    }
}

/// The sizes of several loops in the order given, each once.
#[must_use]
pub fn sizes_of(loops: &[LoopSpec]) -> Vec<u32> {
    let mut sizes = Vec::new();
    for size in loops.iter().flat_map(LoopSpec::sizes) {
        if !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(text: &str) -> Vec<u32> {
        text.parse::<LoopSpec>().unwrap().sizes().collect()
    }

    fn error(text: &str) -> LoopError {
        text.parse::<LoopSpec>().unwrap_err()
    }

    #[test]
    fn doubling_reaches_the_last_size() {
        assert_eq!(
            sizes("msg_size:1:2K:*2"),
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
        );
    }

    #[test]
    fn a_last_size_between_two_steps_is_not_reached() {
        assert_eq!(sizes("msg_size:3:20:*2"), [3, 6, 12]);
        assert_eq!(sizes("msg_size:3:20:+8"), [3, 11, 19]);
    }

    #[test]
    fn adding_is_written_with_and_without_a_plus() {
        assert_eq!(sizes("msg_size:64:256:+64"), [64, 128, 192, 256]);
        assert_eq!(sizes("msg_size:64:256:64"), [64, 128, 192, 256]);
    }

    #[test]
    fn an_empty_first_size_is_one_byte_and_one_size_is_a_loop() {
        assert_eq!(sizes("msg_size::4:*2"), [1, 2, 4]);
        assert_eq!(sizes("msg_size:1M:1M:*4"), [1 << 20]);
    }

    #[test]
    fn units_are_binary_in_capitals_and_decimal_in_small_letters() {
        for (text, bytes) in [
            ("1", 1),
            ("2K", 2048),
            ("2kib", 2048),
            ("2k", 2000),
            ("2kb", 2000),
            ("1M", 1_048_576),
            ("1mib", 1_048_576),
            ("1m", 1_000_000),
            ("1mb", 1_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_out_of_form_or_range_are_refused() {
        for text in ["", "K", "-1", "1.5", "2KB", "2 K", "0x10", "1T"] {
            assert_eq!(
                parse_size(text),
                Err(SizeError::Form(text.to_owned())),
                "{text}"
            );
        }
        for text in [
            "0",
            "0K",
            "2M",
            "1G",
            "1gib",
            "4294967296",
            "99999999999999999999999",
            "1g",
        ] {
            assert_eq!(
                parse_size(text),
                Err(SizeError::Range(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn broken_loops_say_what_is_wrong() {
        assert!(matches!(error("msg_size:1:2K"), LoopError::Form(_)));
        assert!(matches!(error("msg_size:1:2K:*2:3"), LoopError::Form(_)));
        assert_eq!(error("mtu:1:2:+1"), LoopError::Variable("mtu".to_owned()));
        assert!(matches!(error("msg_size:1:x:*2"), LoopError::Number(_, _)));
        assert!(matches!(error("msg_size:1::*2"), LoopError::Number(_, _)));
        assert!(matches!(error("msg_size:1:4:"), LoopError::Number(_, _)));
        for step in ["*1", "*0", "0", "+0"] {
            assert!(matches!(
                error(&format!("msg_size:1:4:{step}")),
                LoopError::Step(_, _)
            ));
        }
        assert!(matches!(error("msg_size:8:4:*2"), LoopError::Empty(_)));
        assert!(matches!(error("msg_size:1:1M:+1"), LoopError::TooMany(_)));
    }

    #[test]
    fn several_loops_make_one_list_without_repetition() {
        let loops = ["msg_size:1:8:*2", "msg_size:6:10:+2"].map(|text| text.parse().unwrap());
        assert_eq!(sizes_of(&loops), [1, 2, 4, 8, 6, 10]);
    }

    proptest! {
        #[test]
        fn any_text_is_judged_without_panic(text in "(msg_size)?[:*+0-9KMkibg]{0,24}") {
            if let Ok(spec) = text.parse::<LoopSpec>() {
                let sizes: Vec<u32> = spec.sizes().collect();
                prop_assert!((1..=SIZES_MAX).contains(&sizes.len()));
                prop_assert!(sizes.is_sorted_by(|a, b| a < b));
                prop_assert!(sizes.iter().all(|size| (1..=MESSAGE_BYTES_MAX).contains(size)));
            }
        }
    }
}
