//! Cache hints and the one full fence, by the name of their use.
//!
//! Hints never fault and never change a value; on other processors they are nothing.

#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
pub use portable::{cldemote, prefetchw};
#[cfg(target_arch = "x86_64")]
pub use x86_64::{cldemote, prefetchw};

use crate::sync::{Ordering, fence};

/// Full fence between a store and the load that must not be read before the store is seen.
///
/// Both sides of a sleep need it: the sleeper stores "I sleep", then looks for work; the waker
/// stores the work, then looks whether anybody sleeps. Without the fence each may miss the other.
/// About 10 ns on x86-64.
#[inline(always)]
pub fn fence_before_sleep_check() {
    fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn hints_change_nothing_and_take_any_address() {
        let line = [7u64; 8];
        cldemote(line.as_ptr().cast());
        prefetchw(line.as_ptr().cast());
        cldemote(core::ptr::null());
        prefetchw(core::ptr::null());
        fence_before_sleep_check();
        assert_eq!(line, [7u64; 8]);
    }
}
