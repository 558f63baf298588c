//! What an operator's word on inline data means for the workers.

use super::Appliance;
use crate::config::InlineThreshold;
use crate::rpc::{InlineSetting, InlineUse};
use pollux_provider::Device;
use pollux_worker::InlineRule;

/// The rule that a setting stands for. A number of bytes is taken at its word, so that a
/// threshold can be searched for above the one in force.
fn rule(setting: InlineSetting, threshold: u32) -> InlineRule {
    match setting {
        InlineSetting::Use(InlineUse::On) => InlineRule {
            writes: threshold,
            ..InlineRule::ALL
        },
        InlineSetting::Use(InlineUse::Messages) => InlineRule {
            writes: 0,
            ..InlineRule::ALL
        },
        InlineSetting::Use(InlineUse::Off) => InlineRule::OFF,
        InlineSetting::Bytes(bytes) => InlineRule {
            messages: bytes,
            writes: bytes,
        },
    }
}

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// Longest WRITE that is worth sending inline: as configured, or as the driver knows it; without
    /// either, whatever fits.
    fn inline_threshold(&self) -> u32 {
        match self.config.device.inline_threshold {
            InlineThreshold::Auto => {
                let known = self.plane.device().limits().inline_worth_bytes;
                known.unwrap_or(u32::MAX)
            }
            InlineThreshold::Bytes(bytes) => bytes,
        }
    }

    /// All workers do so from now on.
    pub(super) fn set_inline(&mut self, setting: InlineSetting) {
        self.inline_rule = rule(setting, self.inline_threshold());
        for worker in 0..self.plane.workers() {
            self.plane.set_inline(worker, self.inline_rule);
        }
    }
}
