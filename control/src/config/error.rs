//! What can be wrong with a configuration, one line for each finding.

use std::fmt;

/// One finding: `FILE:LINE: KEY: what is wrong (value); what is legal`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, or what else the text came from.
    pub origin: String,
    /// Line number from 1; 0 when the finding has no line (a key that is not there, a
    /// configuration made by a program, a file that cannot be read).
    pub line: usize,
    /// The key with its section, as `attach.slots` or `forward[0].listen`; empty when the text
    /// is no TOML at all.
    pub key: String,
    /// What is wrong, with the value, and what is legal. One line.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// Every finding of one configuration, in the order of the lines; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// The findings as an error, or `Ok` when there is none.
    ///
    /// # Errors
    /// There is at least one finding.
    pub fn check(mut found: Vec<ConfigError>) -> Result<(), ConfigErrors> {
        if found.is_empty() {
            return Ok(());
        }
        found.sort_by_key(|error| error.line);
        Err(ConfigErrors(found))
    }

    pub(super) fn one(error: ConfigError) -> ConfigErrors {
        ConfigErrors(vec![error])
    }

    /// The findings without the lines of a text that nobody has seen.
    pub(super) fn without_lines(mut self) -> ConfigErrors {
        for error in &mut self.0 {
            error.line = 0;
        }
        self
    }

    /// The findings.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }

    /// The first finding on one line, and how many more there are.
    #[must_use]
    pub fn summary(&self) -> String {
        let first = self.0.first().map(ToString::to_string).unwrap_or_default();
        match self.0.len() {
            0 | 1 => first,
            2 => format!("{first} (and 1 more; --check shows all)"),
            many => format!("{first} (and {} more; --check shows all)", many - 1),
        }
    }
}

impl fmt::Display for ConfigErrors {
    /// One finding a line, without a final line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
