//! Every input that was ever worth keeping, tried on every build: the corpus, and what once failed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pollux_fuzz::TARGETS;

/// Most bytes of all inputs together: they are read and copied by everybody.
const BYTES_MAX: u64 = 1 << 20;
/// Most inputs of one target.
const FILES_MAX: usize = 250;

/// Some targets count the descriptors of the process: one test at a time, also where a test runner
/// starts them as threads.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    // A test that has failed leaves nothing behind.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files of a folder, in the order of their names; none if there is no such folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
}

/// Names of the folders in a folder.
fn folders(folder: &Path) -> Vec<String> {
    let names = files(folder).into_iter().filter(|path| path.is_dir());
    names
        .map(|path| {
            path.file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

/// Tries every input of a target, in a thread of its own: what a target keeps for its thread, devices and
/// sockets among it, is gone before the next test begins.
fn replay(name: &str) {
    let _alone = alone();
    let tried = std::thread::scope(|scope| scope.spawn(|| replay_here(name)).join());
    if let Err(panic) = tried {
        std::panic::resume_unwind(panic);
    }
}

/// The name of the file is printed first: it stands above the panic.
fn replay_here(name: &str) {
    let target = pollux_fuzz::find(name).expect("a target of that name");
    let mut count = 0;
    for kind in ["corpus", "regressions"] {
        for path in files(&package().join(kind).join(name)) {
            println!("{}", path.display());
            (target.run)(&fs::read(&path).expect("readable"));
            count += 1;
        }
    }
    assert!(
        count > 0,
        "{name} has no inputs: run `cargo xtask fuzz {name}` and `--minimise`"
    );
}

macro_rules! replays {
    ($($test:ident $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                replay($name);
            }
        )*

        const REPLAYED: &[&str] = &[$($name),*];
    };
}

replays! {
    wire_clc_stands_its_inputs "wire-clc",
    wire_llc_stands_its_inputs "wire-llc",
    wire_cdc_stands_its_inputs "wire-cdc",
    handshake_stands_its_inputs "handshake",
    llc_stands_its_inputs "llc",
    conn_pair_stands_its_inputs "conn-pair",
    conn_liar_stands_its_inputs "conn-liar",
    credit_stands_its_inputs "credit",
    attach_message_stands_its_inputs "attach-message",
    attach_worker_stands_its_inputs "attach-worker",
    attach_program_stands_its_inputs "attach-program",
    soft_format_stands_its_inputs "soft-format",
    soft_table_stands_its_inputs "soft-table",
    soft_peer_stands_its_inputs "soft-peer",
    soft_fabric_stands_its_inputs "soft-fabric",
    config_stands_its_inputs "config",
    rpc_stands_its_inputs "rpc",
}

#[test]
fn every_target_is_replayed_and_has_its_folder_of_inputs() {
    let _alone = alone();
    let mut names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    names.sort_unstable();
    let mut replayed = REPLAYED.to_vec();
    replayed.sort_unstable();
    assert_eq!(replayed, names);
    assert_eq!(folders(&package().join("corpus")), names);
    let regressions = folders(&package().join("regressions"));
    assert!(
        regressions
            .iter()
            .all(|name| names.contains(&name.as_str()))
    );
}

#[test]
fn the_inputs_of_the_repository_stay_few_and_small() {
    let _alone = alone();
    let mut all = 0;
    for target in TARGETS {
        for kind in ["corpus", "regressions"] {
            let files = files(&package().join(kind).join(target.name));
            assert!(
                files.len() <= FILES_MAX,
                "{} of {}: {}",
                kind,
                target.name,
                files.len()
            );
            all += files
                .iter()
                .map(|path| fs::metadata(path).expect("readable").len())
                .sum::<u64>();
        }
    }
    assert!(
        all <= BYTES_MAX,
        "{all} bytes; run `cargo xtask fuzz --minimise`"
    );
}

/// The golden messages of `wire` are inputs of its targets as well.
#[test]
fn golden_messages_stand_the_checks_of_the_wire() {
    let _alone = alone();
    let folder = package().join("../wire/tests/golden");
    let mut count = 0;
    for path in files(&folder) {
        if path.extension().is_some_and(|extension| extension == "hex") {
            println!("{}", path.display());
            let bytes = unhex(&fs::read_to_string(&path).expect("readable"));
            for name in ["wire-clc", "wire-llc", "wire-cdc"] {
                (pollux_fuzz::find(name).expect("a target").run)(&bytes);
            }
            count += 1;
        }
    }
    assert!(count >= 60, "{count} golden messages");
}

fn unhex(text: &str) -> Vec<u8> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let digits: String = lines.flat_map(str::split_whitespace).collect();
    let pairs = digits.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| {
            let pair = str::from_utf8(pair).expect("hexadecimal digits");
            u8::from_str_radix(pair, 16).expect("hexadecimal digits")
        })
        .collect()
}
