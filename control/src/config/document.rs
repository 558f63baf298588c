//! From [`Config`] to text: a file that loads again, the documented default, and rows for
//! `show config`.

use std::fmt::Write;

use super::Config;
use super::drafts::{Draft, ForwardDraft, PeerDraft, ServiceDraft};
use super::keys::{FORWARD, Key, PEER, SECTIONS, SERVICE, Section};

/// One key with its value, as `pollux show config` tells it. Texts of values are TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key with its section, as `attach.slots` or `peer[0].address`.
    pub key: String,
    /// The value.
    pub value: String,
    /// The default; `None` for keys of repeated tables, which have none.
    pub default: Option<String>,
    /// What the value counts.
    pub unit: &'static str,
    /// What is legal.
    pub limits: String,
}

/// Widest line of the documented default, in characters.
const COLUMNS: usize = 98;

const HEAD: &str = "\
# Pollux: the documented default.
#
# Every key stands here with its default, so this file and an empty one configure the same
# appliance. Each comment names the unit, the default and what is legal. Sizes are numbers of
# bytes or texts with a suffix, \"64K\", \"1M\", also hexadecimal. An unknown key is an error.
#
#   polluxd --config FILE            start
#   polluxd --config FILE --check    look for mistakes, start nothing
";

impl Config {
    /// The configuration as TOML. [`Config::from_toml_str`] gives the same configuration again.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for section in SECTIONS {
            push(&mut text, format_args!("[{}]\n", section.name));
            push_keys(&mut text, section.keys, self);
            text.push('\n');
        }
        push_entries(&mut text, &PEER, &self.peers);
        push_entries(&mut text, &SERVICE, &self.services);
        push_entries(&mut text, &FORWARD, &self.forwards);
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }

    /// The default configuration with every key documented: the text of `conf/pollux.toml`.
    #[must_use]
    pub fn documented_default() -> String {
        let default = Config::default();
        let mut text = HEAD.to_string();
        for section in SECTIONS {
            push(
                &mut text,
                format_args!("\n# {}\n[{}]\n", section.about, section.name),
            );
            for (index, key) in section.keys.iter().enumerate() {
                if index > 0 {
                    text.push('\n');
                }
                push_comment(&mut text, key.about);
                let value = (key.get)(&default)
                    .map(|value| value.to_string())
                    .unwrap_or_default();
                let facts = format!(
                    "Unit: {}. Default: {value}. Legal: {}.",
                    key.unit, key.limits
                );
                push_comment(&mut text, &facts);
                push(&mut text, format_args!("{} = {value}\n", key.name));
            }
        }
        push_example(&mut text, &PEER, &["\"192.0.2.7\""]);
        push_example(&mut text, &SERVICE, &["\"echo\"", "\"127.0.0.1:7001\""]);
        let forward = [
            "\"redis-in\"",
            "\"tcp:127.0.0.1:6380\"",
            "\"smc:192.0.2.7:6379\"",
        ];
        push_example(&mut text, &FORWARD, &forward);
        text
    }

    /// Every key with its value, in the order of the documented default.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let default = Config::default();
        let mut entries = Vec::new();
        for section in SECTIONS {
            for key in section.keys {
                let Some(value) = (key.get)(self) else {
                    continue;
                };
                entries.push(Entry {
                    key: format!("{}.{}", section.name, key.name),
                    value: value.to_string(),
                    default: (key.get)(&default).map(|value| value.to_string()),
                    unit: key.unit,
                    limits: key.limits.to_string(),
                });
            }
        }
        add_entries(&mut entries, &PEER, self.peers.iter().map(PeerDraft::of));
        add_entries(
            &mut entries,
            &SERVICE,
            self.services.iter().map(ServiceDraft::of),
        );
        add_entries(
            &mut entries,
            &FORWARD,
            self.forwards.iter().map(ForwardDraft::of),
        );
        entries
    }
}

fn add_entries<D>(entries: &mut Vec<Entry>, section: &Section<D>, drafts: impl Iterator<Item = D>) {
    for (index, draft) in drafts.enumerate() {
        for key in section.keys {
            let Some(value) = (key.get)(&draft) else {
                continue;
            };
            entries.push(Entry {
                key: format!("{}[{index}].{}", section.name, key.name),
                value: value.to_string(),
                default: None,
                unit: key.unit,
                limits: key.limits.to_string(),
            });
        }
    }
}

/// Appends; writing into a `String` cannot fail.
fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
}

fn push_keys<T>(text: &mut String, keys: &[Key<T>], from: &T) {
    for key in keys {
        if let Some(value) = (key.get)(from) {
            push(text, format_args!("{} = {value}\n", key.name));
        }
    }
}

fn push_entries<D: Draft>(text: &mut String, section: &Section<D>, entries: &[D::Entry]) {
    for entry in entries {
        push(text, format_args!("[[{}]]\n", section.name));
        push_keys(text, section.keys, &D::of(entry));
        text.push('\n');
    }
}

/// A repeated table as a commented example: `#` without a blank before what can be uncommented.
fn push_example<D>(text: &mut String, section: &Section<D>, values: &[&str]) {
    text.push('\n');
    push_comment(text, section.about);
    push(text, format_args!("#[[{}]]\n", section.name));
    for (key, value) in section.keys.iter().zip(values) {
        push_comment(text, key.about);
        push_comment(
            text,
            &format!("Unit: {}. No default. Legal: {}.", key.unit, key.limits),
        );
        push(text, format_args!("#{} = {value}\n", key.name));
    }
}

/// A comment, broken into lines.
fn push_comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            push(text, format_args!("{line}\n"));
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    push(text, format_args!("{line}\n"));
}
