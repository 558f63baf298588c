//! The log of `polluxd`: lines on standard error, for a service manager to collect.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::reload;

use crate::config::LogLevel;
use crate::throttle::Throttle;

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
    let subscriber = tracing_subscriber::registry()
        .with(filter)
        .with(Flood::new())
        .with(lines);
    // Fails only when somebody, such as a test, logs already.
    match tracing::subscriber::set_global_default(subscriber) {
        Ok(()) => Log {
            change: Some(Box::new(move |filter| handle.reload(filter))),
        },
        Err(_) => Log::default(),
    }
}

/// Lines a second of one place in the code. What a program or a peer can cause in a loop, it can
/// cause without end: whoever reads the log learns no more from the second hundred, and a disk is full
/// some day.
const LINES_MAX: u32 = 50;

/// Keeps single places of the code from filling the log. What is logged for debugging is let through.
struct Flood {
    started: Instant,
    places: Mutex<HashMap<Identifier, Throttle>>,
}

impl Flood {
    fn new() -> Self {
        Flood {
            started: Instant::now(),
            places: Mutex::new(HashMap::new()),
        }
    }

    /// Whether a place may write a line, and then how many lines of it were left out.
    fn admit(&self, place: Identifier) -> Option<u64> {
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(place);
        let throttle = place.or_insert_with(|| Throttle::new(LINES_MAX));
        throttle.admit(pollux_proto::time::Instant(now))
    }
}

impl<S: Subscriber> Layer<S> for Flood {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let about = event.metadata();
        if *about.level() > Level::INFO {
            return true;
        }
        match self.admit(about.callsite()) {
            None => false,
            Some(0) => true,
            Some(left_out) => {
                // A line that cannot be written is lost like any other of the log.
                let _ = writeln!(
                    io::stderr().lock(),
                    "{left_out} lines like the next one were left out"
                );
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts what gets through.
    struct Count(Arc<AtomicU64>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_place_that_says_the_same_without_end_leaves_room_for_others() {
        let seen = Arc::new(AtomicU64::new(0));
        let subscriber = tracing_subscriber::registry()
            .with(Flood::new())
            .with(Count(Arc::clone(&seen)));
        let count = || seen.load(Ordering::Relaxed);
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..10_000 {
                tracing::warn!("again");
            }
            // However slow this machine is, it does not take a second for each fifty.
            let again = count();
            assert!((50..5000).contains(&again), "{again}");
            tracing::info!("another place");
            assert_eq!(count(), again + 1);
            for _ in 0..100 {
                tracing::debug!("asked for");
            }
            assert_eq!(count(), again + 101);
        });
    }

    #[test]
    fn each_v_raises_the_level_up_to_the_last() {
        assert_eq!(level(LogLevel::Info, 0), LogLevel::Info);
        assert_eq!(level(LogLevel::Info, 1), LogLevel::Debug);
        assert_eq!(level(LogLevel::Error, 2), LogLevel::Info);
        assert_eq!(level(LogLevel::Info, 255), LogLevel::Trace);
    }
}
