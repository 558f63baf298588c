//! What may go inline: the three modes that are compared, in the order of every table.

use pollux_control::rpc::InlineUse;

/// The modes in the order of the columns.
pub const MODES: [InlineUse; 3] = [InlineUse::Off, InlineUse::Messages, InlineUse::On];

/// What a mode is called where people read.
#[must_use]
pub const fn label(mode: InlineUse) -> &'static str {
    match mode {
        InlineUse::Off => "by reference",
        InlineUse::Messages => "inline messages",
        InlineUse::On => "all inline",
    }
}
