//! Whether descriptors are left open.

use std::os::fd::{AsFd, AsRawFd};

/// The lowest number that a new descriptor would get: the same before and after, unless one was left
/// open. Says nothing while other threads open and close some.
pub(crate) fn lowest_free() -> i32 {
    let copy = std::io::stdin().as_fd().try_clone_to_owned();
    copy.expect("room for a descriptor").as_raw_fd()
}
