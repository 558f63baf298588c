//! Folders, sockets, and what services and forwards listen on.

use std::path::Path;

use super::Examination;
use super::report::{Check, Group};
use crate::config::Endpoint;
use crate::exit::Fatal;
use crate::start::rehearsal::Step;

const GROUP: Group = Group::Sockets;

pub(super) fn checks(examination: &Examination<'_>) -> Vec<Check> {
    let Some(rehearsal) = &examination.rehearsal else {
        return Vec::new();
    };
    let mut checks = Vec::new();
    let Some(paths) = &rehearsal.paths else {
        checks.extend(
            examination
                .step(Step::Paths)
                .and_then(Result::err)
                .map(|fatal| {
                    let cure = "a shorter appliance.runtime_dir";
                    Check::failed(GROUP, "paths", fatal.message(), cure)
                }),
        );
        return checks;
    };
    let cure = "another appliance.name, or the key that the message names";
    let mut note = |step, name: &str, path: &Path, there: &str| {
        checks.extend(examination.step(step).map(|outcome| {
            judged(
                outcome,
                name.to_string(),
                format!("{}{there}", path.display()),
                cure,
            )
        }));
    };
    let state = |path: &Path| match path.exists() {
        true => " is there and safe",
        false => " can be made",
    };
    let (runtime, fabric) = (&paths.runtime_dir, &paths.fabric_dir);
    note(
        Step::RuntimeFolder,
        "runtime folder",
        runtime,
        state(runtime),
    );
    note(Step::FabricFolder, "fabric folder", fabric, state(fabric));
    // Both ask for the control socket, and the first goes first at the start.
    let control = match examination.step(Step::Instance) {
        Some(Err(_)) => Step::Instance,
        Some(Ok(())) | None => Step::ControlSocket,
    };
    note(control, "control socket", &paths.control_socket, " is free");
    note(
        Step::AttachSocket,
        "attach socket",
        &paths.attach_socket,
        " is free",
    );
    let option = examination.step(Step::SynOption);
    checks.extend(option.map(|outcome| {
        let found = "TCP handshakes can carry it".to_string();
        let cure = "the rights and the cgroup named there, or handshake.syn_option = \"auto\"";
        judged(outcome, "SMC option".to_string(), found, cure)
    }));
    checks.extend(listeners(examination));
    checks
}

fn listeners(examination: &Examination<'_>) -> Vec<Check> {
    let config = &examination.config;
    let mut checks = Vec::new();
    for (number, service) in config.services.iter().enumerate() {
        let address = service.listen;
        let outcome = examination.step(Step::Service(number));
        let cure = format!("ss -ltnp 'sport = :{}' shows who listens", address.port());
        checks.extend(outcome.map(|outcome| {
            judged(
                outcome,
                format!("service {}", service.kind),
                format!("{address} is free"),
                &cure,
            )
            .value("listen", address.to_string())
        }));
    }
    for (number, forward) in config.forwards.iter().enumerate() {
        let cure = match &forward.listen {
            Endpoint::Tcp(address) | Endpoint::Smc(address) => {
                format!("ss -ltnp 'sport = :{}' shows who listens", address.port())
            }
            Endpoint::Unix(path) => format!("ss -lxp src {} shows who listens", path.display()),
        };
        let outcome = examination.step(Step::Forward(number));
        checks.extend(outcome.map(|outcome| {
            let name = format!("forward {}", forward.name);
            judged(outcome, name, format!("{} is free", forward.listen), &cure)
                .value("listen", forward.listen.to_string())
        }));
    }
    checks
}

fn judged(outcome: Result<(), &Fatal>, name: String, found: String, cure: &str) -> Check {
    match outcome {
        Ok(()) => Check::ok(GROUP, name, found),
        Err(fatal) => Check::failed(GROUP, name, fatal.message(), cure),
    }
}
