//! The hints as x86-64 instructions. Both encodings are NOPs on processors that lack them.

use core::arch::asm;

/// Asks the processor to move the line at `line` outwards, to where another core finds it sooner.
///
/// For latency: after the last store into a line that another core polls. It costs in streams that
/// are not batched. A processor without CLDEMOTE executes it as a NOP.
#[inline(always)]
pub fn cldemote(line: *const u8) {
    // SAFETY: CLDEMOTE is a hint: it writes no register, no memory and no flags, and faults on no
    // address. As the block may touch memory for all the compiler knows, it stays behind the
    // stores that precede it.
    unsafe {
        asm!(
            "cldemote byte ptr [{line}]",
            line = in(reg) line,
            options(nostack, preserves_flags)
        );
    }
}

/// Asks the processor to fetch the line at `line` in order to write it.
#[inline(always)]
pub fn prefetchw(line: *const u8) {
    // SAFETY: PREFETCHW is a hint: it writes no register, no memory and no flags, and faults on no
    // address.
    unsafe {
        asm!(
            "prefetchw byte ptr [{line}]",
            line = in(reg) line,
            options(nostack, preserves_flags)
        );
    }
}
