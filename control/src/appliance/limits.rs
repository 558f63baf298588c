//! What a program may have: sessions, connections, memory. Who asks for more is told which limit it
//! meets and what to do.

use super::Appliance;
use crate::config::format_size;
use pollux_attach::layout::Shape;
use pollux_provider::Device;

/// Bytes of a session's rings.
pub(super) fn ring_bytes(shape: Shape) -> u64 {
    let slot = u64::from(shape.sndbuf_bytes()) + u64::from(shape.rmbe_bytes());
    u64::from(shape.slots()) * slot
}

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// What a program asked for, with the configuration's values where it asked for nothing.
    pub(super) fn session_shape(
        &self,
        (slots, sndbuf_bytes, rmbe_bytes): (u16, u32, u32),
    ) -> Result<Shape, String> {
        let or_default = |value, default| if value == 0 { default } else { value };
        let attach = &self.config.attach;
        if slots > attach.slots {
            return Err(format!(
                "{slots} connections at a time are too many; attach.slots allows {}: ask for fewer, or \
                 raise it",
                attach.slots
            ));
        }
        let shape = Shape::new(
            if slots == 0 { attach.slots } else { slots },
            or_default(sndbuf_bytes, attach.sndbuf_bytes),
            or_default(rmbe_bytes, attach.rmb_bytes),
        )
        .map_err(|error| error.to_string())?;
        if pollux_wire::field::BufferSizeCode::from_bytes(shape.rmbe_bytes()).is_none() {
            let bytes = shape.rmbe_bytes();
            return Err(format!(
                "a receive ring of {bytes} bytes has no code; ask for 16K << n"
            ));
        }
        Ok(shape)
    }

    /// Whether there is room for one more session of a process.
    pub(super) fn check_session(&self, pid: u32, shape: Shape) -> Result<(), String> {
        let attach = &self.config.attach;
        // Those whose number is not known, in other PID namespaces, are not told apart.
        let of_process = self.sessions.values().filter(|s| pid != 0 && s.pid == pid);
        let of_process = of_process.count();
        if of_process >= usize::from(attach.sessions_per_process_max) {
            return Err(format!(
                "the process {pid} has {of_process} sessions already; close one, or raise \
                 attach.sessions_per_process_max"
            ));
        }
        if self.sessions.len() >= usize::from(attach.sessions_max) {
            return Err(format!(
                "all {} sessions are in use; raise attach.sessions_max or close programs",
                self.sessions.len()
            ));
        }
        let (wanted, most) = (ring_bytes(shape), attach.session_memory_max_bytes);
        if wanted > most {
            return Err(format!(
                "a session of {} connections with rings of {} and {} needs {wanted} bytes; \
                 attach.session_memory_max allows {}: ask for fewer or smaller ones, or raise it",
                shape.slots(),
                format_size(shape.sndbuf_bytes().into()),
                format_size(shape.rmbe_bytes().into()),
                format_size(most)
            ));
        }
        let held: u64 = self.sessions.values().map(|s| ring_bytes(s.shape)).sum();
        // What a program leaves to a peer that does not say that it is done.
        let held = held.saturating_add(self.plane.retired_bytes());
        if held.saturating_add(wanted) > attach.memory_max_bytes {
            return Err(format!(
                "sessions hold {held} of {} bytes of ring memory, and this one needs {wanted} more; \
                 close programs, ask for fewer or smaller connections, or raise attach.memory_max",
                format_size(attach.memory_max_bytes)
            ));
        }
        Ok(())
    }

    /// The worker with the fewest sessions.
    pub(super) fn least_loaded_worker(&self) -> usize {
        let load = |worker: &usize| {
            let on_it = self.sessions.values().filter(|s| s.worker == *worker);
            on_it.count()
        };
        (0..self.plane.workers()).min_by_key(load).unwrap_or(0)
    }
}
