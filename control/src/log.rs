//! The log of `polluxd`: lines on standard error, for a service manager to collect.

use std::io;

use tracing_subscriber::filter::LevelFilter;

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

/// Begins to log at `level`. For the whole process and once; a second call changes nothing.
pub fn init(level: LogLevel) {
    let filter = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(filter)
        .with_target(level >= LogLevel::Debug)
        .log_internal_errors(false)
        .finish();
    // Fails only when somebody, such as a test, logs already.
    let _ = tracing::subscriber::set_global_default(subscriber);
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
