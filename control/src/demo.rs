//! `pollux demo`: two appliances of its own on this host, from the handshake to a latency table.
//!
//! | module | is |
//! |---|---|
//! | `stage` | the folder and the two processes, given back in every case |
//! | `transfer` | random bytes both ways, and whether they arrive |
//! | `report` | what is printed |

mod report;
mod stage;
mod transfer;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pollux_attach::client::{Blocking, Session, SessionOptions, Stream};
use serde::de::DeserializeOwned;
use serde_json::json;

use self::report::Ratios;
use self::stage::{Afterwards, Stage};
use crate::bounce::{self, Bounce, CoreList};
use crate::cli::{DemoOptions, emit};
use crate::config::{
    Config, LogLevel, PathChoice, Peer, PollChoice, PollMode, Service, ServiceKind,
};
use crate::cores::{self, CoreChoice, CoreSet};
use crate::exit::{ExitStatus, Fatal};
use crate::host::Host;
use crate::measure;
use crate::rpc::{CALL_TIMEOUT, Client, InlineSetting, InlineUse, LatencyRequest, Method};
use crate::view::{GroupView, LatencyTable, LinkView, MemoryView, View};

/// Bytes that go each way.
const STREAM_BYTES: u64 = 64 << 20;
/// Bytes that go each way in a quick demonstration.
const STREAM_BYTES_QUICK: u64 = 4 << 20;
/// Seconds for each message size.
const SECONDS: f64 = 0.4;
/// Seconds for each message size of a quick demonstration.
const SECONDS_QUICK: f64 = 0.05;
/// Message sizes: 1 byte to 2 KiB, doubling.
const SIZES: [u32; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];
/// Message sizes of a quick demonstration.
const SIZES_QUICK: [u32; 4] = [1, 32, 256, 2048];

/// How long the accepting end may take.
const ACCEPT_WAIT: Duration = Duration::from_secs(10);
/// How often the listener is asked again.
const ACCEPT_RETRY: Duration = Duration::from_millis(1);

/// Where the two workers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Places {
    /// On a core each.
    Two([u32; 2]),
    /// On the only core there is, in turn.
    One(u32),
}

/// One of the two appliances.
struct Appliance {
    client: Client,
    attach: PathBuf,
}

/// Runs the demonstration.
///
/// # Errors
/// Whatever failed first, with its exit status. Nothing stays behind then.
pub fn run(options: &DemoOptions, host: &Host) -> Result<(), Fatal> {
    let places = places(options.cores.as_ref())?;
    let afterwards = if options.keep {
        Afterwards::Keep
    } else {
        Afterwards::End
    };
    let lock_dir = options.lock_dir.clone().unwrap_or_else(|| host.lock_dir());
    let locks_were_there = lock_dir.exists();
    let stage = Stage::new(afterwards)?;
    let result = perform(options, host, places, &stage);
    if afterwards == Afterwards::End && !locks_were_there {
        // Fails when somebody else uses it by now, as it should.
        let _ = std::fs::remove_dir(&lock_dir);
    }
    result
}

/// Plays, and clears the stage whatever happened.
fn perform(options: &DemoOptions, host: &Host, places: Places, stage: &Stage) -> Result<(), Fatal> {
    match play(options, host, places, stage) {
        Ok(()) => {
            stage.clear()?;
            emit(&match stage.afterwards() {
                Afterwards::Keep => report::kept(stage.dir()),
                Afterwards::End => "\nboth appliances have ended, nothing is left behind\n".into(),
            })
        }
        Err(error) => {
            stage.clear_anyway();
            Err(error)
        }
    }
}

fn play(options: &DemoOptions, host: &Host, places: Places, stage: &Stage) -> Result<(), Fatal> {
    let echo = free_address()?;
    let mut a = start(stage, host, "a", (places, options), |config| {
        let address = "127.0.0.1".parse();
        config.peers = address
            .map(|address| Peer { address })
            .into_iter()
            .collect();
    })?;
    let mut b = start(stage, host, "b", (places, options), |config| {
        config.services = vec![Service {
            kind: ServiceKind::Echo,
            listen: echo,
        }];
    })?;
    emit(&report::opening(places))?;
    let streams = connect(&a, &b)?;
    let groups: Vec<GroupView> = ask(&mut a.client, Method::GroupList)?;
    emit(&report::accelerated(&groups))?;
    let bytes = match options.quick {
        true => STREAM_BYTES_QUICK,
        false => STREAM_BYTES,
    };
    let transfer = transfer::both_ways(&streams.0, &streams.1, bytes)?;
    emit(&report::transfer(&transfer))?;

    let before = bounce_between(places);
    let [off, on] = latency(options, places, echo, (&mut a.client, &mut b.client))?;
    let after = bounce_between(places);
    for (table, title) in [(&off, "inline off"), (&on, "inline on")] {
        let mut table = table.clone();
        table.bounce_ns = before.as_ref().ok().map(|b| b.one_line.median_ns * 2.0);
        emit(&format!("\n# {title}\n{}", table.text()))?;
    }
    let ratios = Ratios {
        off: &off,
        on: &on,
        before: &before,
        after: &after,
    };
    emit(&ratios.text())?;

    for (name, appliance) in [("a", &mut a), ("b", &mut b)] {
        let links: Vec<LinkView> = ask(&mut appliance.client, Method::LinkList)?;
        emit(&format!(
            "\nshow links, appliance {name}:\n{}",
            links.text()
        ))?;
    }
    let memory: MemoryView = ask(&mut a.client, Method::MemoryShow)?;
    emit(&format!("\nshow memory, appliance a:\n{}", memory.text()))?;
    emit(&report::resources(places, &memory))?;
    drop(streams);
    Ok(())
}

/// The cores of the workers: those named, or two of the allowed ones, of two physical cores if
/// there are.
fn places(asked: Option<&CoreSet>) -> Result<Places, Fatal> {
    let allowed = cores::allowed().map_err(|error| Fatal::os(format!("demo: {error}")))?;
    let usable = match asked {
        Some(asked) => {
            CoreChoice::Listed(asked.clone()).candidates(&allowed)?;
            asked
        }
        None => &allowed,
    };
    let list: Vec<u32> = usable.iter().collect();
    match list.as_slice() {
        [] => Err(Fatal::os("demo: this process may run on no core")),
        [core] => Ok(Places::One(*core)),
        [first, second, ..] => {
            let cores = CoreList(list.iter().map(|core| *core as usize).collect());
            let chosen = bounce::choose(cores).ok();
            Ok(Places::Two(
                match chosen.map(|pair| pair.map(u32::try_from)) {
                    Some([Ok(first), Ok(second)]) => [first, second],
                    _ => [*first, *second],
                },
            ))
        }
    }
}

/// A loopback address with a port that nobody listens on.
fn free_address() -> Result<SocketAddr, Fatal> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|error| Fatal::os(format!("demo: cannot listen on 127.0.0.1: {error}")))
}

/// Starts an appliance that uses nothing outside the stage but its core.
fn start(
    stage: &Stage,
    host: &Host,
    name: &str,
    (places, options): (Places, &DemoOptions),
    more: impl FnOnce(&mut Config),
) -> Result<Appliance, Fatal> {
    let mut config = Config::default();
    config.appliance.name = name.to_string();
    config.appliance.runtime_dir = PathChoice::At(stage.dir().join(name));
    config.appliance.log = LogLevel::Warn;
    config.device.fabric_dir = PathChoice::At(stage.dir().join("fabric"));
    config.workers.poll = PollChoice::Adaptive;
    let core = match places {
        Places::One(core) => core,
        Places::Two([first, second]) => match name {
            "a" => first,
            _ => second,
        },
    };
    config.workers.cores = CoreChoice::Listed(CoreSet::of([core]));
    if let Some(dir) = &options.lock_dir {
        config.workers.lock_dir = PathChoice::At(dir.clone());
    }
    if let Places::One(_) = places {
        // Otherwise the second would rightly be refused the core of the first.
        config.workers.lock_dir = PathChoice::At(stage.dir().join(format!("locks-{name}")));
    }
    more(&mut config);
    let paths = config.paths(host)?;
    let client = stage.start(&config, &paths.control_socket)?;
    Ok(Appliance {
        client,
        attach: paths.attach_socket,
    })
}

/// Attaches to both and opens a connection from the one to the other, which has to be SMC-R.
fn connect(a: &Appliance, b: &Appliance) -> Result<(Stream, Stream), Fatal> {
    let options = SessionOptions {
        name: "pollux demo".to_string(),
        ..SessionOptions::default()
    };
    let attach = |path: &Path| {
        Session::open(path, &options).map_err(|error| {
            Fatal::new(
                ExitStatus::Failure,
                format!("demo: cannot attach to {}: {error}", path.display()),
            )
        })
    };
    let failed = |error: std::io::Error| {
        let text = format!("demo: no connection between the appliances: {error}");
        Fatal::new(ExitStatus::Failure, text)
    };
    let (near, far) = (attach(&a.attach)?, attach(&b.attach)?);
    let listener = far.listen((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    // Nobody may ever come, so that accepting must not wait for ever.
    listener.set_blocking(Blocking::Never);
    let has_failed = AtomicBool::new(false);
    let deadline = Instant::now() + ACCEPT_WAIT;
    let (near, far) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            loop {
                let is_hopeless = has_failed.load(Ordering::Relaxed) || Instant::now() >= deadline;
                match listener.accept() {
                    Err(error) if error.kind() == ErrorKind::WouldBlock && !is_hopeless => {
                        std::thread::sleep(ACCEPT_RETRY);
                    }
                    other => return other.map(|(stream, _)| stream),
                }
            }
        });
        let connected = near.connect(address);
        has_failed.store(connected.is_err(), Ordering::Relaxed);
        let lost = || std::io::Error::other("a thread stopped before its time");
        let accepted = accepting.join().unwrap_or_else(|_| Err(lost()));
        connected.and_then(|near| Ok((near, accepted?)))
    })
    .map_err(failed)?;
    for (name, stream) in [("a", &near), ("b", &far)] {
        if let Some(reason) = stream.fallback_reason() {
            return Err(Fatal::new(
                ExitStatus::Failure,
                format!(
                    "demo: the connection stayed on TCP at appliance {name}: {} ({:#x})",
                    reason.text, reason.code
                ),
            ));
        }
    }
    Ok((near, far))
}

/// The same measurement with inline off and on. Where each worker has a core, both poll without
/// a pause meanwhile.
fn latency(
    options: &DemoOptions,
    places: Places,
    echo: SocketAddr,
    (a, b): (&mut Client, &mut Client),
) -> Result<[LatencyTable; 2], Fatal> {
    let (sizes, seconds) = match options.quick {
        true => (&SIZES_QUICK[..], SECONDS_QUICK),
        false => (&SIZES[..], SECONDS),
    };
    let mode = match places {
        Places::Two(_) => PollMode::Busy,
        Places::One(_) => PollMode::Adaptive,
    };
    measure::set_poll(a, mode)?;
    measure::set_poll(b, mode)?;
    // Off and on in turn for each size: a machine that changes meanwhile changes for both.
    let mut tables: [Option<LatencyTable>; 2] = [None, None];
    for size in sizes {
        for (table, inline) in tables.iter_mut().zip([InlineUse::Off, InlineUse::On]) {
            let request = LatencyRequest {
                connect: echo,
                sizes: vec![*size],
                seconds: Some(options.seconds.unwrap_or(seconds)),
                iterations: None,
                inline,
            };
            // The echo as well, otherwise only one of the two ways would differ.
            measure::set_inline(b, InlineSetting::Use(inline))?;
            let measured = measure::run(a, &request)?;
            match table {
                Some(table) => table.rows.extend(measured.rows),
                None => *table = Some(measured),
            }
        }
    }
    let [Some(mut off), Some(mut on)] = tables else {
        return Err(Fatal::os("no message size was measured"));
    };
    measure::set_poll(a, PollMode::Adaptive)?;
    measure::set_poll(b, PollMode::Adaptive)?;
    let peer = match places {
        Places::Two([_, core]) | Places::One(core) => core,
    };
    off.peer_core = Some(peer);
    on.peer_core = Some(peer);
    Ok([off, on])
}

/// The bounce between the workers' cores, or why there is none.
fn bounce_between(places: Places) -> Result<Bounce, String> {
    match places {
        Places::Two(cores) => measure::bounce(cores),
        Places::One(core) => Err(format!("core {core} is the only one")),
    }
}

fn ask<T: DeserializeOwned>(client: &mut Client, method: Method) -> Result<T, Fatal> {
    let answer = client.call(method, json!({}), CALL_TIMEOUT)?;
    measure::typed(method, answer)
}
