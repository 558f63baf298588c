//! The threads in which workers run, each on its core.

use pollux_provider::PollGroup;
use pollux_worker::{App, Clock, Worker};
use std::thread::JoinHandle;

/// A worker's thread.
#[derive(Debug)]
pub(crate) struct WorkerThread {
    pub(crate) core: usize,
    worker: usize,
    handle: Option<JoinHandle<()>>,
}

impl WorkerThread {
    /// Runs the worker with this number on a core.
    ///
    /// # Errors
    /// The system refused a thread.
    pub(crate) fn start<G, A, C>(
        worker: usize,
        core: usize,
        running: Worker<G, A, C>,
    ) -> std::io::Result<Self>
    where
        G: PollGroup + Send + 'static,
        G::Qp: Send + 'static,
        A: App + 'static,
        C: Clock + 'static,
    {
        let handle = std::thread::Builder::new()
            .name(format!("pollux-w{worker}"))
            .spawn(move || {
                // The core was checked against the allowed set before; a refusal here means that
                // the set has shrunk since, and the worker then runs wherever it may.
                if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
                    tracing::warn!(worker, core, "cannot pin the worker to its core any more");
                }
                running.run();
            })?;
        Ok(WorkerThread {
            core,
            worker,
            handle: Some(handle),
        })
    }

    /// Waits for the thread, which ends after its last report.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.handle.take()
            && thread.join().is_err()
        {
            tracing::error!(
                worker = self.worker,
                "the worker's thread ended with a panic"
            );
        }
    }
}
