//! The hints on processors for which we know none: nothing.

/// Would move the line outwards; nothing here.
#[inline(always)]
pub fn cldemote(_line: *const u8) {}

/// Would fetch the line in order to write it; nothing here.
#[inline(always)]
pub fn prefetchw(_line: *const u8) {}
