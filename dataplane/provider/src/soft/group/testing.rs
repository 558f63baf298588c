//! A queue pair's own memory, behind the driver's back.

use super::SoftGroup;
use crate::QpIndex;

impl SoftGroup {
    /// Writes into the port of a queue pair of this group, as a process could that does not keep to the
    /// driver. The peer reads what stands there. Nothing happens outside the port.
    pub fn scribble(&self, qp: QpIndex, offset: usize, bytes: &[u8]) {
        if let Some(core) = self.core(qp) {
            // Behind the end of the memory there is nothing that could be scribbled over.
            let _ = core.port.segment().copy_in(offset, bytes);
        }
    }
}
