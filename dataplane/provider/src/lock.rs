//! Mutexes of the slow path.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a slow-path mutex. A thread that panicked while it held one has left the data usable: every change
/// is a single insertion or removal.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
