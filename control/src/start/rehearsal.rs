//! What a start would find out, step by step in its order, without taking anything: no lock, no socket,
//! no folder, no queue. Each step asks the function that the start itself asks, so it says the same
//! words and ends with the same status.
//!
//! What only trying tells is left out: queues and memory of the workers, and whether somebody else is
//! quicker in between.

use std::path::Path;

use pollux_provider::verbs::Survey;
use pollux_ring::HugepageInfo;

use super::{check_hugepages, poll_modes, take_cores};
use crate::appliance::{devices, look_at_service};
use crate::config::{Config, Driver, Paths, PollMode, SynOptionChoice};
use crate::core_lock::CoreLock;
use crate::cores::{AllowedError, CorePlan, CoreSet};
use crate::exit::Fatal;
use crate::gateway;
use crate::host::{Host, Root};
use crate::runtime_dir::RuntimeDir;
use crate::syn_marks::SynMarks;
use crate::unix_socket::{self, SocketKind};

/// What a start looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Whether the paths of the sockets fit.
    Paths,
    /// Whether another instance has this one's control socket.
    Instance,
    /// Which cores the process may use.
    AllowedCores,
    /// Whether the cores of the configuration are among them.
    Cores,
    /// Whether there are the hugepages that it requires.
    Hugepages,
    /// The folder of the core locks.
    LockFolder,
    /// Whether enough cores are free.
    CoreLocks,
    /// The folder of the sockets.
    RuntimeFolder,
    /// The folder in which soft devices meet.
    FabricFolder,
    /// The control socket.
    ControlSocket,
    /// The socket of attached programs.
    AttachSocket,
    /// The device.
    Device,
    /// The SMC option, where it is required.
    SynOption,
    /// The service of this number.
    Service(usize),
    /// The forward of this number.
    Forward(usize),
}

/// What a start would see of the host.
pub(crate) struct Scene<'a> {
    pub(crate) host: &'a Host,
    pub(crate) root: &'a Root,
    pub(crate) allowed: &'a Result<CoreSet, AllowedError>,
    pub(crate) hugepages: HugepageInfo,
    pub(crate) survey: &'a Survey,
}

/// How each step would go.
#[derive(Debug, Default)]
pub(crate) struct Rehearsal {
    outcomes: Vec<(Step, Result<(), Fatal>)>,
    /// Where things would lie.
    pub(crate) paths: Option<Paths>,
    /// Which cores would do what.
    pub(crate) plan: Option<CorePlan>,
    /// How each worker would wait at first.
    pub(crate) poll: Vec<PollMode>,
}

impl Rehearsal {
    /// Goes through all steps, also those behind one that fails, as far as they can be tried then.
    pub(crate) fn of(config: &Config, scene: &Scene<'_>) -> Rehearsal {
        let mut rehearsal = Rehearsal::default();
        let paths = config.paths(scene.host).map_err(Fatal::from);
        let Some(paths) = rehearsal.note(Step::Paths, paths) else {
            return rehearsal;
        };
        let control = &paths.control_socket;
        let instance = unix_socket::probe(control, SocketKind::Stream, "control.socket");
        rehearsal.note(Step::Instance, instance.map_err(Fatal::from));
        rehearsal.cores(config, scene, &paths);
        rehearsal.sockets(&paths);
        let device = match config.device.driver {
            Driver::Soft => devices::look_soft(config, &paths),
            Driver::Verbs => scene
                .survey
                .choose(&devices::verbs_options(config))
                .map(|_| ())
                .map_err(|error| devices::verbs_refused(&error)),
        };
        rehearsal.note(Step::Device, device);
        if config.handshake.syn_option == SynOptionChoice::Required {
            // What nobody has marked anything for changes nothing, and is gone at once.
            rehearsal.note(Step::SynOption, SynMarks::attach(&config.handshake));
        }
        for (number, service) in config.services.iter().enumerate() {
            rehearsal.note(Step::Service(number), look_at_service(service.listen));
        }
        let made = made(&paths);
        for (number, forward) in config.forwards.iter().enumerate() {
            let seen = gateway::look(forward, &made).map_err(Fatal::from);
            rehearsal.note(Step::Forward(number), seen);
        }
        rehearsal.paths = Some(paths);
        rehearsal
    }

    fn cores(&mut self, config: &Config, scene: &Scene<'_>, paths: &Paths) {
        let allowed = scene.allowed.clone().map_err(Fatal::from);
        let allowed = self.note(Step::AllowedCores, allowed);
        let candidates = allowed.as_ref().and_then(|allowed| {
            let candidates = config.workers.cores.candidates(allowed);
            self.note(Step::Cores, candidates.map_err(Fatal::from))
        });
        let hugepages = check_hugepages(config, scene.hugepages);
        self.note(Step::Hugepages, hugepages);
        let lock_dir = look_at_shared(&paths.lock_dir, "workers.lock_dir");
        self.note(Step::LockFolder, lock_dir);
        let (Some(allowed), Some(candidates)) = (allowed, candidates) else {
            return;
        };
        let look = |core| CoreLock::look(&paths.lock_dir, core, scene.root).map(|()| core);
        if let Some(workers) = self.note(Step::CoreLocks, take_cores(&candidates, look)) {
            let plan = CorePlan { allowed, workers };
            self.poll = poll_modes(config, &plan, scene.root);
            self.plan = Some(plan);
        }
    }

    fn sockets(&mut self, paths: &Paths) {
        let runtime = RuntimeDir::look(&paths.runtime_dir, "appliance.runtime_dir");
        self.note(Step::RuntimeFolder, runtime.map_err(Fatal::from));
        let fabric = look_at_shared(&paths.fabric_dir, "device.fabric_dir");
        self.note(Step::FabricFolder, fabric);
        let made = made(paths);
        let sockets = [
            (
                Step::ControlSocket,
                &paths.control_socket,
                SocketKind::Stream,
                "control.socket",
            ),
            (
                Step::AttachSocket,
                &paths.attach_socket,
                SocketKind::SeqPacket,
                "attach.socket",
            ),
        ];
        for (step, path, kind, key) in sockets {
            let seen = unix_socket::look(path, kind, key, &made);
            self.note(step, seen.map_err(Fatal::from));
        }
    }

    /// Keeps how a step went, and gives what came of it.
    fn note<T>(&mut self, step: Step, outcome: Result<T, Fatal>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.outcomes.push((step, Ok(())));
                Some(value)
            }
            Err(fatal) => {
                self.outcomes.push((step, Err(fatal)));
                None
            }
        }
    }

    /// What would end the start.
    pub(crate) fn end(&self) -> Option<&Fatal> {
        self.outcomes
            .iter()
            .find_map(|(_, outcome)| outcome.as_ref().err())
    }

    /// How a step would go; `None` if one before it keeps it from being tried.
    pub(crate) fn outcome(&self, step: Step) -> Option<Result<(), &Fatal>> {
        let found = self.outcomes.iter().find(|(at, _)| *at == step);
        found.map(|(_, outcome)| outcome.as_ref().copied())
    }
}

/// Folders that a start has made before it makes sockets.
fn made(paths: &Paths) -> [&Path; 3] {
    [&paths.runtime_dir, &paths.fabric_dir, &paths.lock_dir]
}

/// What [`super::make_shared`] would find.
fn look_at_shared(path: &Path, key: &'static str) -> Result<(), Fatal> {
    if !path.is_dir() {
        RuntimeDir::look(path, key)?;
    }
    Ok(())
}
