//! The log of `polluxd`: lines on standard error, for a service manager to collect.

use std::io;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;

use crate::config::LogLevel;

/// The level of the configuration, raised by one for each `-v`.
#[must_use]
pub fn level(configured: LogLevel, verbose: u8) -> LogLevel {
    let at = LogLevel::ALL
        .iter()
        .position(|level| *level == configured)
        .unwrap_or(0);
    let raised = at
        .saturating_add(usize::from(verbose))
        .min(LogLevel::ALL.len() - 1);
    LogLevel::ALL[raised]
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// Changes what is let through from now on.
type Change = Box<dyn Fn(LevelFilter) -> Result<(), reload::Error> + Send>;

/// The log of this process, whose level can be changed; or, by default, somebody else's, which stays
/// as it is.
#[derive(Default)]
pub struct Log {
    change: Option<Change>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_ours = self.change.is_some();
        f.debug_struct("Log").field("is_ours", &is_ours).finish()
    }
}

/// The level cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Whatever started this appliance decides on the log.
    #[error("the log belongs to the program that started this appliance; change it there")]
    Foreign,
    /// The log does not take it.
    #[error("the log does not change its level: {0}")]
    Gone(#[source] reload::Error),
}

impl Log {
    /// Logs at `level` from now on, in the whole process.
    ///
    /// # Errors
    /// [`LogError`]: it stays as it was.
    pub fn set(&self, level: LogLevel) -> Result<(), LogError> {
        let change = self.change.as_ref().ok_or(LogError::Foreign)?;
        change(filter(level)).map_err(LogError::Gone)
    }
}

/// Begins to log at `level`. For the whole process and once: where somebody logs already, that log
/// stays.
pub fn init(level: LogLevel) -> Log {
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_target(level >= LogLevel::Debug)
        .log_internal_errors(false);
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    // Fails only when somebody, such as a test, logs already.
    match tracing::subscriber::set_global_default(subscriber) {
        Ok(()) => Log {
            change: Some(Box::new(move |filter| handle.reload(filter))),
        },
        Err(_) => Log::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_v_raises_the_level_up_to_the_last() {
        assert_eq!(level(LogLevel::Info, 0), LogLevel::Info);
        assert_eq!(level(LogLevel::Info, 1), LogLevel::Debug);
        assert_eq!(level(LogLevel::Error, 2), LogLevel::Info);
        assert_eq!(level(LogLevel::Info, 255), LogLevel::Trace);
    }
}
