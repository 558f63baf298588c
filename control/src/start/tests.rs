use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use super::*;
use crate::config::PollChoice;
use crate::cores::{CoreChoice, CoreSet};

/// A host of its own for each test, below a temporary folder.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        World {
            dir: tempfile::tempdir().expect("temporary folder"),
        }
    }

    fn host() -> Host {
        Host {
            uid: rustix::process::geteuid().as_raw(),
            xdg_runtime_dir: None,
        }
    }

    fn config(&self, name: &str) -> Config {
        let at = |sub: &str| PathChoice::At(self.dir.path().join(sub));
        let mut config = Config::default();
        config.appliance.name = name.into();
        config.appliance.runtime_dir = at(name);
        config.workers.lock_dir = at("locks");
        config.device.fabric_dir = at("fabric");
        config
    }

    /// Prepares on a thread of its own, because it changes where the thread may run.
    fn prepare(&self, config: Config) -> Result<Prepared, Fatal> {
        std::thread::scope(|scope| {
            let start = scope.spawn(|| prepare(config, String::new(), &World::host()));
            start.join().expect("no panic")
        })
    }

    fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        let mut folders = vec![self.dir.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("folder") {
                let path = entry.expect("entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    left.push(path);
                }
            }
        }
        left
    }
}

fn one_core() -> CoreSet {
    CoreSet::of(cores::allowed().expect("a mask").iter().next_back())
}

#[test]
fn everything_is_taken_and_given_back() {
    let world = World::new();
    let prepared = world.prepare(world.config("a")).expect("a free host");
    assert_eq!(prepared.locks.len(), 1);
    assert_eq!(prepared.cores.workers.len(), 1);
    UnixStream::connect(&prepared.paths.control_socket).expect("it listens");
    drop(prepared);
    assert_eq!(world.left(), Vec::<PathBuf>::new());
    assert!(!world.dir.path().join("a").exists());
    world.prepare(world.config("a")).expect("again");
}

#[test]
fn a_second_instance_with_the_same_name_is_told_who_is_there() {
    let world = World::new();
    let _first = world.prepare(world.config("a")).expect("a free host");
    let fatal = world.prepare(world.config("a")).expect_err("taken");
    assert_eq!(fatal.status(), ExitStatus::TempFail);
    let expected = format!("another instance (pid {}) answers on", std::process::id());
    assert!(fatal.message().starts_with(&expected), "{fatal}");
}

#[test]
fn a_listed_core_of_another_instance_is_refused_and_nothing_is_left() {
    let world = World::new();
    let mut config = world.config("a");
    config.workers.cores = CoreChoice::Listed(one_core());
    let first = world.prepare(config.clone()).expect("a free host");
    let held = world.left();
    config.appliance.name = "b".into();
    config.appliance.runtime_dir = PathChoice::At(world.dir.path().join("b"));
    let fatal = world.prepare(config).expect_err("taken");
    assert_eq!(fatal.status(), ExitStatus::TempFail);
    assert!(
        fatal
            .message()
            .contains("is already owned by polluxd \"a\"")
            && fatal
                .message()
                .ends_with("choose another with workers.cores"),
        "{fatal}"
    );
    assert_eq!(world.left(), held);
    drop(first);
}

#[test]
fn automatic_cores_pass_over_those_of_others_until_none_is_left() {
    let world = World::new();
    let allowed = cores::allowed().expect("a mask");
    let mut held = Vec::new();
    for (index, core) in allowed.iter().rev().enumerate() {
        let prepared = world
            .prepare(world.config(&format!("n{index}")))
            .expect("a free core");
        assert_eq!(prepared.cores.workers, [core]);
        held.push(prepared);
    }
    let fatal = world
        .prepare(world.config("late"))
        .expect_err("no core is left");
    assert_eq!(fatal.status(), ExitStatus::TempFail);
    assert!(fatal.message().contains("already owned"), "{fatal}");
}

#[test]
fn a_core_outside_the_allowed_set_is_a_wrong_configuration() {
    let world = World::new();
    let mut config = world.config("a");
    config.workers.cores = CoreChoice::Listed(CoreSet::of([8191]));
    let fatal = world.prepare(config.clone()).expect_err("no such core");
    assert_eq!(fatal.status(), ExitStatus::Config);
    let allowed = cores::allowed().expect("a mask");
    let expected = format!("core 8191 is not in this process's allowed set {allowed}");
    assert_eq!(fatal.message(), expected);
    let checked = check(&config, "x.toml", &World::host()).expect_err("no such core");
    assert_eq!(checked, fatal);
}

#[test]
fn a_file_in_the_place_of_a_socket_is_a_wrong_configuration() {
    let world = World::new();
    let mut config = world.config("a");
    let file = world.dir.path().join("file");
    std::fs::write(&file, "text").expect("file");
    config.attach.socket = PathChoice::At(file);
    let fatal = world.prepare(config).expect_err("a file");
    assert_eq!(fatal.status(), ExitStatus::Config);
    assert!(
        fatal
            .message()
            .contains("is an ordinary file, not a socket"),
        "{fatal}"
    );
    assert_eq!(world.left(), [world.dir.path().join("file")]);
}

#[test]
fn the_calling_thread_leaves_the_cores_of_the_workers() {
    let world = World::new();
    let config = world.config("a");
    std::thread::spawn(move || {
        let before = cores::allowed().expect("a mask");
        let prepared = prepare(config, String::new(), &World::host()).expect("a free host");
        let after = cores::allowed().expect("a mask");
        assert_eq!(after, prepared.cores.others());
        assert!(before.len() == 1 || !after.contains(prepared.cores.workers[0]));
    })
    .join()
    .expect("no panic");
}

#[test]
fn the_command_line_overrides_the_file_and_is_checked_as_well() {
    let options = Options {
        name: Some("b".into()),
        ..Options::default()
    };
    let (config, _) = load(&options).expect("a good name");
    assert_eq!(config.appliance.name, "b");
    let options = Options {
        name: Some("a/b".into()),
        ..Options::default()
    };
    let errors = load(&options).expect_err("a bad name").to_string();
    assert!(
        errors.starts_with("command line: appliance.name: not a name (\"a/b\")"),
        "{errors}"
    );
}

#[test]
fn a_check_takes_nothing_and_tells_the_plan() {
    let world = World::new();
    let mut config = world.config("a");
    config.workers.poll = PollChoice::Busy;
    let view = check(&config, "x.toml", &World::host()).expect("a good configuration");
    assert_eq!(view.workers.len(), 1);
    assert_eq!(view.workers[0].poll, PollMode::Busy);
    assert!(
        view.text()
            .starts_with("x.toml: no mistakes\nworker 0: core "),
        "{}",
        view.text()
    );
    assert_eq!(world.left(), Vec::<PathBuf>::new());
}
