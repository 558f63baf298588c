//! Processor cores.

use super::Examination;
use super::report::{Check, Group, Verdict};
use crate::config::PollMode;
use crate::core_lock::{CoreLock, CoreLockError};
use crate::cores::{self, CoreSet};
use crate::start::rehearsal::Step;

const GROUP: Group = Group::Cores;

pub(super) fn checks(examination: &Examination<'_>) -> Vec<Check> {
    let mut checks = vec![allowed(examination)];
    checks.push(isolated(examination));
    checks.extend(locks(examination));
    checks.extend(workers(examination));
    checks
}

fn allowed(examination: &Examination<'_>) -> Check {
    const NAME: &str = "allowed cores";
    let machine = examination.machine;
    let cpuset = cores::cpuset_of(&machine.root);
    let affinity = match &machine.affinity {
        Ok(affinity) => affinity.to_string(),
        Err(error) => error.to_string(),
    };
    let told = cpuset
        .as_ref()
        .map_or("none".to_string(), CoreSet::to_string);
    let check = match (&machine.allowed, examination.step(Step::Cores)) {
        (Err(error), _) => Check::failed(
            GROUP,
            NAME,
            error.to_string(),
            "taskset -p shows the mask; the unit's AllowedCPUs= or the container's --cpuset-cpus",
        ),
        (Ok(allowed), Some(Err(fatal))) => Check::failed(
            GROUP,
            NAME,
            fatal.message(),
            format!("choose workers.cores from {allowed}, or allow the process more"),
        ),
        (Ok(allowed), Some(Ok(())) | None) => Check::ok(
            GROUP,
            NAME,
            format!("{allowed} (affinity mask {affinity}, cpuset {told})"),
        ),
    };
    let check = check
        .value("affinity", affinity)
        .value("cpuset", cpuset.map(|c| c.to_string()));
    check.value(
        "allowed",
        machine.allowed.as_ref().ok().map(CoreSet::to_string),
    )
}

fn isolated(examination: &Examination<'_>) -> Check {
    const NAME: &str = "isolated cores";
    let root = &examination.machine.root;
    let (isolated, quiet) = (cores::isolated(root), cores::without_ticks(root));
    let found = format!("isolcpus {isolated}, nohz_full {quiet}");
    let plan = examination.rehearsal.as_ref().and_then(|r| r.plan.as_ref());
    let workers = plan.map_or(CoreSet::default(), |plan| {
        CoreSet::of(plan.workers.iter().copied())
    });
    let open = workers.without(&isolated);
    let last = examination.machine.allowed.as_ref().ok();
    let last = last.and_then(|allowed| allowed.iter().next_back());
    let for_boot = match (workers.is_empty(), last) {
        (true, Some(last)) => last.to_string(),
        (true, None) => "LIST".to_string(),
        (false, _) => workers.to_string(),
    };
    let cure = format!("boot the kernel with isolcpus={for_boot} nohz_full={for_boot}");
    let check = if isolated.is_empty() {
        let found = format!("{found}: the scheduler puts other threads beside workers");
        Check::warning(GROUP, NAME, found, cure)
    } else if !open.is_empty() {
        let found = format!("{found}; core {open} of the workers is not among them");
        Check::warning(GROUP, NAME, found, cure)
    } else {
        Check::ok(GROUP, NAME, found)
    };
    check
        .value("isolated", isolated.to_string())
        .value("nohz_full", quiet.to_string())
}

/// Who holds which core.
fn locks(examination: &Examination<'_>) -> Vec<Check> {
    const NAME: &str = "core locks";
    let machine = examination.machine;
    let Ok(allowed) = &machine.allowed else {
        return Vec::new();
    };
    let folder = match examination
        .rehearsal
        .as_ref()
        .and_then(|r| r.paths.as_ref())
    {
        Some(paths) => paths.lock_dir.clone(),
        None => examination
            .config
            .workers
            .lock_dir
            .or(machine.host.lock_dir()),
    };
    let mut checks = Vec::new();
    let cure = "pollux --name NAME stop ends one of them; or choose others with workers.cores";
    for step in [Step::LockFolder, Step::CoreLocks] {
        if let Some(Err(fatal)) = examination.step(step) {
            checks.push(Check::failed(GROUP, NAME, fatal.message(), cure));
        }
    }
    let seen = |core| (core, CoreLock::look(&folder, core, &machine.root));
    let owned: Vec<_> = allowed
        .iter()
        .map(seen)
        .filter_map(|(core, seen)| match seen {
            Err(CoreLockError::Owned { holder, .. }) => Some((core, holder)),
            Ok(())
            | Err(
                CoreLockError::OpenFolder { .. }
                | CoreLockError::Foreign { .. }
                | CoreLockError::Io { .. },
            ) => None,
        })
        .collect();
    for (core, holder) in &owned {
        let found = format!("core {core} is owned by {holder}");
        let check = Check::of(GROUP, NAME, Verdict::NotApplicable, found).value("core", *core);
        checks.push(match holder {
            crate::core_lock::Holder::Known { name, pid } => {
                check.value("name", name.clone()).value("pid", *pid)
            }
            crate::core_lock::Holder::Unknown(_) => check,
        });
    }
    if checks.is_empty() {
        let found = format!(
            "no appliance owns a core of {allowed} (by {})",
            folder.display()
        );
        checks.push(Check::ok(GROUP, NAME, found));
    }
    checks
}

/// Which core each worker would have, and what is to be known of it; without a configuration, of
/// every allowed core.
fn workers(examination: &Examination<'_>) -> Vec<Check> {
    let machine = examination.machine;
    let mut checks = Vec::new();
    let Some(rehearsal) = &examination.rehearsal else {
        let allowed = machine.allowed.as_ref().ok();
        let each = allowed.into_iter().flat_map(CoreSet::iter);
        return each
            .map(|core| core_check(examination, core, None))
            .collect();
    };
    let Some(plan) = &rehearsal.plan else {
        return checks;
    };
    for (worker, (core, poll)) in plan.workers.iter().zip(&rehearsal.poll).enumerate() {
        checks.push(core_check(examination, *core, Some((worker, *poll))));
    }
    let others = plan.others();
    checks.push(Check::ok(
        GROUP,
        "control thread",
        format!("cores {others}"),
    ));
    for warning in plan.warnings(&machine.root) {
        let cure = match warning.contains("governor") {
            true => "cpupower frequency-set -g performance",
            false => "choose others with workers.cores",
        };
        checks.push(Check::warning(GROUP, "workers", warning, cure));
    }
    checks
}

fn core_check(
    examination: &Examination<'_>,
    core: u32,
    worker: Option<(usize, PollMode)>,
) -> Check {
    let root = &examination.machine.root;
    let threads = cores::siblings(root, core);
    let siblings = threads.without(&CoreSet::of([core]));
    let shares = if threads.is_empty() {
        "the kernel does not tell with which others it shares a physical core".to_string()
    } else if siblings.is_empty() {
        "shares its physical core with no other".to_string()
    } else {
        format!("shares its physical core with {siblings}")
    };
    let governor = cores::governor(root, core);
    let told = match &governor {
        Some(governor) => format!("frequency governor {governor}"),
        None => "no frequency governor to be read".to_string(),
    };
    let (name, wait) = match worker {
        Some((worker, poll)) => (format!("worker {worker}"), format!("core {core}, {poll}: ")),
        None => (format!("core {core}"), String::new()),
    };
    let check = Check::ok(GROUP, name, format!("{wait}{shares}; {told}"))
        .value("core", core)
        .value("siblings", siblings.to_string())
        .value("governor", governor);
    match worker {
        Some((worker, poll)) => check.value("worker", worker).value("poll", poll.as_str()),
        None => check,
    }
}
