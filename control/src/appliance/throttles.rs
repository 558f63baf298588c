//! What programs and peers can make the appliance say, each in few lines.

use crate::throttle::Throttle;

/// Everything that programs and peers can cause.
#[derive(Debug)]
pub(crate) struct Throttles {
    /// Programs that broke a rule.
    pub(crate) faults: Throttle,
    /// Programs that were refused or turned away.
    pub(crate) refusals: Throttle,
    /// Programs that come and go.
    pub(crate) sessions: Throttle,
    /// Connections that stay on TCP.
    pub(crate) fallbacks: Throttle,
    /// Connections that are lost.
    pub(crate) losses: Throttle,
}

impl Default for Throttles {
    fn default() -> Self {
        Throttles {
            faults: Throttle::new(1),
            refusals: Throttle::new(1),
            sessions: Throttle::new(20),
            fallbacks: Throttle::new(20),
            losses: Throttle::new(1),
        }
    }
}
