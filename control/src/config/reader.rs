//! From text to [`Config`], collecting every finding instead of stopping at the first.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Config;
use super::drafts::Draft;
use super::error::ConfigError;
use super::found::{Found, Problem, kind, quote};
use super::keys::{FORWARD, Key, PEER, SECTIONS, SERVICE, Section, section_names};
use crate::nearest::nearest;

/// Reads one text.
pub(super) struct Reader<'a> {
    text: &'a str,
    origin: &'a str,
    /// The line of each key that was set, for findings that come later.
    lines: BTreeMap<String, usize>,
    found: Vec<ConfigError>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str, origin: &'a str) -> Reader<'a> {
        Reader {
            text,
            origin,
            lines: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    /// Reads everything. The configuration is only good when [`Reader::finish`] finds nothing.
    pub(super) fn read(&mut self) -> Config {
        let mut config = Config::default();
        let (document, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            let line = self.line(at);
            // What follows on the same line is mostly the echo of the first error, and the
            // reader's messages may have several lines.
            if self.found.last().is_none_or(|last| last.line != line) {
                self.report_at(at, String::new(), quote(error.message()));
            }
        }
        if !self.found.is_empty() {
            return config;
        }
        for (name, value) in document.get_ref() {
            self.read_section(&mut config, name, value);
        }
        config
    }

    /// Adds a finding about `key`, on the line where it was set.
    pub(super) fn report_key(&mut self, key: String, problem: String) {
        let line = self.lines.get(&key).copied().unwrap_or(0);
        self.found.push(ConfigError {
            origin: self.origin.to_string(),
            line,
            key,
            problem,
        });
    }

    /// Every finding.
    pub(super) fn finish(self) -> Vec<ConfigError> {
        self.found
    }

    /// Whether nothing was found so far.
    pub(super) fn is_clean(&self) -> bool {
        self.found.is_empty()
    }

    fn read_section(
        &mut self,
        config: &mut Config,
        name: &Spanned<toml::de::DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let text: &str = name.get_ref();
        if let Some(section) = SECTIONS.iter().find(|section| section.name == text) {
            match value.get_ref() {
                DeValue::Table(table) => self.read_keys(section, section.name, table, config),
                other => {
                    let problem = format!("needs a table [{text}], not {}", kind(other));
                    self.report_at(value.span().start, text.to_string(), problem);
                }
            }
        } else if text == PEER.name {
            config.peers = self.read_entries(&PEER, value);
        } else if text == SERVICE.name {
            config.services = self.read_entries(&SERVICE, value);
        } else if text == FORWARD.name {
            config.forwards = self.read_entries(&FORWARD, value);
        } else {
            let problem = unknown_section(text, value.get_ref());
            self.report_at(name.span().start, text.to_string(), problem);
        }
    }

    fn read_entries<D: Draft>(
        &mut self,
        section: &Section<D>,
        value: &Spanned<DeValue<'_>>,
    ) -> Vec<D::Entry> {
        let name = section.name;
        let DeValue::Array(array) = value.get_ref() else {
            let problem = format!("needs tables [[{name}]], not {}", kind(value.get_ref()));
            self.report_at(value.span().start, name.to_string(), problem);
            return Vec::new();
        };
        let mut entries = Vec::new();
        for (index, item) in array.iter().enumerate() {
            let path = format!("{name}[{index}]");
            let start = item.span().start;
            let DeValue::Table(table) = item.get_ref() else {
                let problem = format!("needs a table, not {}", kind(item.get_ref()));
                self.report_at(start, path, problem);
                continue;
            };
            let mut draft = D::default();
            let before = self.found.len();
            self.read_keys(section, &path, table, &mut draft);
            match draft.finish() {
                Ok(entry) => entries.push(entry),
                // A key that is there but wrong has been told already.
                Err(_) if self.found.len() > before => {}
                Err(key) => self.report_at(start, path, missing(section, key)),
            }
        }
        entries
    }

    fn read_keys<T>(
        &mut self,
        section: &Section<T>,
        path: &str,
        table: &DeTable<'_>,
        into: &mut T,
    ) {
        for (name, value) in table {
            let text: &str = name.get_ref();
            let full = format!("{path}.{}", quote(text));
            let Some(key) = section.keys.iter().find(|key| key.name == text) else {
                let problem = unknown_key(section, text);
                self.report_at(name.span().start, full, problem);
                continue;
            };
            let span = value.span();
            let found = Found {
                value: value.get_ref(),
                source: self.source(span),
            };
            match (key.set)(into, &found, &key.limits) {
                Ok(()) => {
                    let line = self.line(name.span().start);
                    self.lines.insert(full, line);
                }
                Err(Problem(problem)) => self.report_at(name.span().start, full, problem),
            }
        }
    }

    fn report_at(&mut self, at: usize, key: String, problem: String) {
        let line = self.line(at);
        self.found.push(ConfigError {
            origin: self.origin.to_string(),
            line,
            key,
            problem,
        });
    }

    fn line(&self, at: usize) -> usize {
        let before = self
            .text
            .as_bytes()
            .get(..at)
            .unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn source(&self, span: Range<usize>) -> &'a str {
        self.text.get(span).unwrap_or("")
    }
}

fn names<T>(section: &Section<T>) -> Vec<&'static str> {
    section.keys.iter().map(|key: &Key<T>| key.name).collect()
}

fn missing<T>(section: &Section<T>, key: &str) -> String {
    let limits = section
        .keys
        .iter()
        .find(|known| known.name == key)
        .map(|key| key.limits);
    match limits {
        Some(limits) => format!("the key {key:?} is missing; legal: {limits}"),
        None => format!("the key {key:?} is missing"),
    }
}

fn unknown_key<T>(section: &Section<T>, given: &str) -> String {
    let legal = names(section);
    let elsewhere = SECTIONS
        .iter()
        .find(|s| names(s).contains(&given))
        .map(|s| s.name);
    let hint = match (nearest(given, legal.iter().copied()), elsewhere) {
        (Some(word), _) => format!("did you mean {word:?}? "),
        (None, Some(other)) => format!("it belongs into [{other}]; "),
        (None, None) => String::new(),
    };
    format!("unknown key; {hint}legal keys: {}", legal.join(", "))
}

fn unknown_section(given: &str, value: &DeValue<'_>) -> String {
    let what = match value {
        DeValue::Table(_) | DeValue::Array(_) => "unknown table",
        _ => "a key outside of any table",
    };
    let hint = match nearest(given, section_names()) {
        Some(word) => format!("did you mean [{word}]? "),
        None => String::new(),
    };
    let legal: Vec<&str> = section_names().collect();
    format!("{what}; {hint}legal tables: {}", legal.join(", "))
}
