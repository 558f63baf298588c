//! A value found in the text, and how it becomes what its key takes.

use std::fmt::{self, Display};
use std::str::FromStr;

use toml::de::DeValue;

use super::size::{format_size, parse_size};

/// What a key accepts; prints as the "what is legal" of an error and of the documentation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limits {
    /// A whole number in this closed range.
    Count {
        /// Least legal number.
        min: u64,
        /// Greatest legal number.
        max: u64,
    },
    /// A whole number up to this one, or the word `"auto"`.
    AutoOrCount {
        /// Greatest legal number.
        max: u64,
    },
    /// One of these numbers.
    OneCount(&'static [u64]),
    /// A size in this closed range, as a number of bytes or a text like `"64K"`.
    Size {
        /// Least legal size.
        min: u64,
        /// Greatest legal size.
        max: u64,
    },
    /// One of these sizes, as a number of bytes or a text like `"64K"`.
    OneSize(&'static [u64]),
    /// One of these words.
    Words(&'static [&'static str]),
    /// A text of the described form.
    Form(&'static str),
}

impl Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limits::Count { min, max } => write!(f, "{min} to {max}"),
            Limits::AutoOrCount { max } => write!(f, "\"auto\" or 0 to {max}"),
            Limits::Size { min, max } => {
                write!(f, "{} to {}", format_size(*min), format_size(*max))
            }
            Limits::OneCount(counts) => f.write_str(&either(counts.iter())),
            Limits::OneSize(sizes) => {
                f.write_str(&either(sizes.iter().map(|bytes| format_size(*bytes))))
            }
            Limits::Words(words) => f.write_str(&either(words.iter().map(|w| format!("{w:?}")))),
            Limits::Form(form) => f.write_str(form),
        }
    }
}

/// "a, b or c".
fn either(items: impl Iterator<Item = impl Display>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    match items.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => items.join(""),
    }
}

/// What is wrong with a value: "what is wrong (value); legal: ...", one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem(pub(super) String);

/// A value of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    /// The value as the TOML reader understood it.
    pub(super) value: &'a DeValue<'a>,
    /// The same as written.
    pub(super) source: &'a str,
}

impl Found<'_> {
    fn problem(&self, what: impl Display, limits: &Limits) -> Problem {
        Problem(format!("{what} ({}); legal: {limits}", quote(self.source)))
    }

    fn wrong_type(&self, wanted: &str, limits: &Limits) -> Problem {
        self.problem(format!("needs {wanted}, not {}", kind(self.value)), limits)
    }

    /// A whole number within the limits.
    pub(super) fn count<N: TryFrom<u64>>(&self, limits: &Limits) -> Result<N, Problem> {
        let DeValue::Integer(integer) = self.value else {
            return Err(self.wrong_type("a whole number", limits));
        };
        u64::from_str_radix(integer.as_str(), integer.radix())
            .ok()
            .filter(|number| admits(limits, *number))
            .and_then(|number| N::try_from(number).ok())
            .ok_or_else(|| self.problem("out of range", limits))
    }

    /// A whole number within the limits, or `"auto"`, which is `None`.
    pub(super) fn auto_or_count<N: TryFrom<u64>>(
        &self,
        limits: &Limits,
    ) -> Result<Option<N>, Problem> {
        match self.value {
            DeValue::String(text) if text == "auto" => Ok(None),
            DeValue::Integer(_) => self.count(limits).map(Some),
            DeValue::String(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => Err(self.wrong_type("\"auto\" or a whole number", limits)),
        }
    }

    /// A size within the limits: a number of bytes or a text with a suffix.
    pub(super) fn size<N: TryFrom<u64>>(&self, limits: &Limits) -> Result<N, Problem> {
        let bytes = match self.value {
            DeValue::Integer(integer) => {
                u64::from_str_radix(integer.as_str(), integer.radix()).ok()
            }
            DeValue::String(text) => {
                Some(parse_size(text).map_err(|error| self.problem(error, limits))?)
            }
            DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => {
                return Err(self.wrong_type("a size", limits));
            }
        };
        bytes
            .filter(|bytes| admits(limits, *bytes))
            .and_then(|bytes| N::try_from(bytes).ok())
            .ok_or_else(|| self.problem("not a legal size", limits))
    }

    /// A text that the type reads.
    pub(super) fn text<T>(&self, limits: &Limits) -> Result<T, Problem>
    where
        T: FromStr,
        T::Err: Display,
    {
        let DeValue::String(text) = self.value else {
            return Err(self.wrong_type("a text", limits));
        };
        text.parse()
            .map_err(|error: T::Err| self.problem(error, limits))
    }

    /// One of the words in `limits`.
    pub(super) fn word<T: FromStr>(&self, limits: &Limits) -> Result<T, Problem> {
        let DeValue::String(text) = self.value else {
            return Err(self.wrong_type("a word", limits));
        };
        let Limits::Words(words) = limits else {
            return Err(self.wrong_type("a word", limits));
        };
        text.parse().map_err(|_| {
            let what = match crate::nearest::nearest(text, words.iter().copied()) {
                Some(word) => format!("unknown word, did you mean {word:?}?"),
                None => "unknown word".to_string(),
            };
            self.problem(what, limits)
        })
    }

    /// A list of texts that the type reads, of a length in `lengths`.
    pub(super) fn list<T>(
        &self,
        lengths: std::ops::RangeInclusive<usize>,
        limits: &Limits,
    ) -> Result<Vec<T>, Problem>
    where
        T: FromStr,
        T::Err: Display,
    {
        let DeValue::Array(array) = self.value else {
            return Err(self.wrong_type("a list of texts", limits));
        };
        if !lengths.contains(&array.len()) {
            return Err(self.problem(format!("a list of {}", array.len()), limits));
        }
        let items = array.iter().map(|item| match item.get_ref() {
            DeValue::String(text) => text
                .parse()
                .map_err(|error: T::Err| self.problem(format!("{text:?} {error}"), limits)),
            other => {
                let what = format!("needs a list of texts, but holds {}", kind(other));
                Err(self.problem(what, limits))
            }
        });
        items.collect()
    }
}

fn admits(limits: &Limits, number: u64) -> bool {
    match limits {
        Limits::Count { min, max } | Limits::Size { min, max } => (*min..=*max).contains(&number),
        Limits::AutoOrCount { max } => number <= *max,
        Limits::OneCount(numbers) | Limits::OneSize(numbers) => numbers.contains(&number),
        Limits::Words(_) | Limits::Form(_) => true,
    }
}

/// What a TOML value is, in words.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Most characters of a value that an error repeats.
const QUOTE_CHARS_MAX: usize = 80;

/// The source text on one line, cut to a readable length.
pub(super) fn quote(source: &str) -> String {
    let flat: Vec<&str> = source.split_whitespace().collect();
    let flat = flat.join(" ");
    match flat.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &flat[..end]),
        None => flat,
    }
}
