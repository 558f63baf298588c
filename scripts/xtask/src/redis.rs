//! What redis-benchmark gets through Pollux with and without receive-queue credits, beside two plain
//! TCP proxies and the direct way.
//!
//! All ways lead to one redis-server on this machine. Pollux is two appliances, so the equal of it
//! is two proxies in a row. The ways take turns within each round, and the median of the rounds
//! counts. The figures are for a reader to compare with each other; they say nothing about another
//! machine.

mod shortage;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::shortage::{Appliances, Shortage};
use crate::metadata::Metadata;
use crate::process::{cargo, find, run};

/// How long a started program may take until it answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// Clients and requests under way per client, one run each.
const LOADS: [(u32, u32); 3] = [(50, 1), (200, 1), (200, 16)];

/// The ways, in the order of the columns.
const WAYS: [&str; 4] = [
    "pollux",
    "pollux, credits off",
    "two haproxy hops",
    "direct",
];

/// Bytes of a value, those of the measurement that credits were first shown with.
const VALUE_BYTES: &str = "10";

/// A program that ends with this run.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("pollux-redis-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Folder(path))
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays for the operator to see.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    set: f64,
    get: f64,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Requests of each run.
    pub requests: u32,
    /// Rounds; in each every way has its turn with every load.
    pub rounds: u32,
    /// Receive depth of the links.
    pub recv_depth: u32,
}

/// Builds polluxd for release, starts everything, and prints the table.
pub(crate) fn measure(root: &Path, plan: Plan) -> Result<()> {
    let build = ["build", "--release", "--locked", "-p", "pollux-control"];
    run(root, &cargo(), &build)?;
    let programs = Metadata::read(root)?.target_directory.join("release");
    let polluxd = programs.join("polluxd");
    let folder = Folder::create()?;
    let ports = free_ports()?;
    let [redis, on_in, on_out, off_in, off_out, proxy_in, proxy_out] = ports;
    let mut running = vec![start_redis(&folder, redis)?];
    let mut asked = Vec::new();
    for (credits, ports) in [
        ("on", [on_in, on_out, redis]),
        ("off", [off_in, off_out, redis]),
    ] {
        let pair = Pair {
            credits,
            recv_depth: plan.recv_depth,
        };
        running.extend(start_pollux(&folder, &polluxd, pair, ports)?);
        asked.push(Appliances {
            pollux: programs.join("pollux"),
            sockets: ["server", "client"]
                .map(|name| pair.folder(&folder).join(name).join("control.sock")),
        });
    }
    running.push(start_haproxy(&folder, [proxy_in, proxy_out, redis])?);
    let entries = [on_in, off_in, proxy_in, redis];
    let mut samples = vec![[const { Vec::new() }; WAYS.len()]; LOADS.len()];
    let mut shortages = vec![[Shortage::default(); 2]; LOADS.len()];
    for _ in 0..plan.rounds {
        for ((load, row), short) in LOADS.into_iter().zip(&mut samples).zip(&mut shortages) {
            for (index, (way, entry)) in WAYS.iter().zip(entries).enumerate() {
                let before = asked.get(index).map(Appliances::shortage).transpose()?;
                let figures = benchmark(entry, load, plan.requests)
                    .with_context(|| format!("{way}, {} clients", load.0))?;
                row[index].push(figures);
                if let (Some(asked), Some(before)) = (asked.get(index), before) {
                    short[index].add(asked.shortage()?.since(before));
                }
            }
        }
    }
    let rows = samples
        .iter()
        .map(|row| row.iter().map(|taken| median(taken)).collect());
    let table: Vec<_> = LOADS.into_iter().zip(rows).collect();
    println!(
        "redis-benchmark -t set,get -d {VALUE_BYTES} -n {}, requests per second (SET / GET), median \
         of {} rounds; receive depth {}",
        plan.requests, plan.rounds, plan.recv_depth
    );
    print!("{}", table_text(&table));
    print!("{}", shortages_text(&shortages));
    drop(running);
    Ok(())
}

/// The middle of each figure; of an even number the higher one.
fn median(samples: &[Figures]) -> Figures {
    let middle = |of: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Figures {
        set: middle(|figures| figures.set),
        get: middle(|figures| figures.get),
    }
}

fn table_text(table: &[((u32, u32), Vec<Figures>)]) -> String {
    let mut text = format!("{:<14}", "load");
    for way in WAYS {
        text.push_str(&format!("{way:>22}"));
    }
    text.push('\n');
    for ((clients, pipeline), row) in table {
        text.push_str(&format!("{:<14}", format!("-c {clients} -P {pipeline}")));
        for Figures { set, get } in row {
            text.push_str(&format!("{:>22}", format!("{set:.0} / {get:.0}")));
        }
        text.push('\n');
    }
    text
}

/// What the first two ways ran short of, with every load.
fn shortages_text(shortages: &[[Shortage; 2]]) -> String {
    let mut text = String::from("short of receives, all rounds together:\n");
    for ((clients, pipeline), [with, without]) in LOADS.iter().zip(shortages) {
        text.push_str(&format!(
            "{:<14}credits on: {} RNR NAKs, {} waits for credits, {:.1} ms in all; off: {} RNR NAKs\n",
            format!("-c {clients} -P {pipeline}"),
            with.rnr_naks,
            with.waits,
            with.waited_ns as f64 / 1e6,
            without.rnr_naks,
        ));
    }
    text
}

/// Ports that were free a moment ago: none of the three programs tells which one it got for 0.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn start(program: &Path, arguments: &[&str]) -> Result<Child> {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

fn located(program: &str) -> Result<PathBuf> {
    find(program).with_context(|| format!("{program} is not installed: cargo xtask setup"))
}

/// Waits until somebody accepts connections on a port; a program that ends instead is an error
/// that says what it said.
fn until_it_answers(mut child: Child, port: u16, name: &str) -> Result<Running> {
    let begun = Instant::now();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    loop {
        if let Some(status) = child.try_wait()? {
            let mut said = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                stderr.read_to_string(&mut said)?;
            }
            bail!("{name} ended with {status}: {}", said.trim());
        }
        if TcpStream::connect(address).is_ok() {
            break;
        }
        if begun.elapsed() > PATIENCE {
            bail!("{name} does not accept connections on port {port}");
        }
        std::thread::yield_now();
    }
    // Whoever reads nothing any more must not stop it by a full pipe.
    if let Some(said) = child.stderr.take() {
        std::thread::spawn(move || BufReader::new(said).lines().for_each(drop));
    }
    Ok(Running(child))
}

fn start_redis(folder: &Folder, port: u16) -> Result<Running> {
    let port_text = port.to_string();
    let dir = folder.0.to_string_lossy();
    let arguments = [
        "--bind",
        "127.0.0.1",
        "--port",
        &port_text,
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        &dir,
    ];
    let child = start(&located("redis-server")?, &arguments)?;
    until_it_answers(child, port, "redis-server")
}

/// How two appliances differ from the other two.
#[derive(Clone, Copy)]
struct Pair {
    credits: &'static str,
    recv_depth: u32,
}

impl Pair {
    /// What this pair alone uses.
    fn folder(self, of_all: &Folder) -> PathBuf {
        of_all.0.join(format!("credits-{}", self.credits))
    }
}

/// Both appliances; the server first, so that the client finds it. Each pair takes the cores as if
/// it were alone: it sleeps while another is measured.
fn start_pollux(
    folder: &Folder,
    polluxd: &Path,
    pair: Pair,
    [entry, middle, target]: [u16; 3],
) -> Result<[Running; 2]> {
    let Pair {
        credits,
        recv_depth,
    } = pair;
    let at = pair.folder(folder);
    fs::create_dir(&at).with_context(|| format!("cannot create {}", at.display()))?;
    let at = at.display();
    let config = |name: &str, listen: &str, connect: &str| {
        format!(
            "[appliance]\nname = \"{name}\"\nruntime_dir = \"{at}/{name}\"\nlog = \"warn\"\n\
             [attach]\nslots = 512\n\
             [device]\nfabric_dir = \"{at}/fabric\"\nrecv_wr = {recv_depth}\n\
             [workers]\nlock_dir = \"{at}\"\npoll = \"adaptive\"\n\
             [handshake]\ncredits = \"{credits}\"\n\
             [[peer]]\naddress = \"127.0.0.1\"\n\
             [[forward]]\nname = \"redis\"\nlisten = \"{listen}\"\nconnect = \"{connect}\"\n"
        )
    };
    let smc = format!("smc:127.0.0.1:{middle}");
    let server = config("server", &smc, &format!("tcp:127.0.0.1:{target}"));
    let client = config("client", &format!("tcp:127.0.0.1:{entry}"), &smc);
    let launch = |name: &str, text: &str, port: u16| {
        let file = folder.write(&format!("{name}-{credits}.toml"), text)?;
        let child = start(polluxd, &["--config", &file.to_string_lossy()])?;
        until_it_answers(child, port, name)
    };
    let server = launch("server", &server, middle)?;
    let client = launch("client", &client, entry)?;
    Ok([server, client])
}

/// Two hops in one process with two threads, which is kinder to haproxy than two processes.
fn start_haproxy(folder: &Folder, [entry, middle, target]: [u16; 3]) -> Result<Running> {
    let hop = |name: &str, from: u16, to: u16| {
        format!("listen {name}\n  bind 127.0.0.1:{from}\n  server next 127.0.0.1:{to}\n")
    };
    let text = format!(
        "global\n  nbthread 2\n  maxconn 4096\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
         {}{}",
        hop("first", entry, middle),
        hop("second", middle, target)
    );
    let file = folder.write("haproxy.cfg", &text)?;
    let arguments = ["-db", "-f", &file.to_string_lossy()];
    let child = start(&located("haproxy")?, &arguments)?;
    until_it_answers(child, entry, "haproxy")
}

fn benchmark(port: u16, (clients, pipeline): (u32, u32), requests: u32) -> Result<Figures> {
    let output = Command::new(located("redis-benchmark")?)
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "--csv"])
        .args(["-t", "set,get", "-d", VALUE_BYTES])
        .args(["-n", &requests.to_string()])
        .args(["-c", &clients.to_string(), "-P", &pipeline.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("cannot start redis-benchmark")?;
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() && !err.to_lowercase().contains("error"),
        "redis-benchmark ended with {}: {out}{err}",
        output.status
    );
    figures(&out).with_context(|| format!("no figures in: {out}"))
}

/// Reads `"SET","123456.00",...`, one line for each test.
fn figures(csv: &str) -> Option<Figures> {
    let of = |test: &str| {
        let name = format!("\"{test}\",\"");
        let line = csv.lines().find_map(|line| line.strip_prefix(&name))?;
        line.split('"').next()?.parse().ok()
    };
    Some(Figures {
        set: of("SET")?,
        get: of("GET")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_table_of_the_benchmark() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"51020.41\",\"0.9\"\n\
                   \"GET\",\"60000.00\",\"0.8\"\n";
        let expected = Figures {
            set: 51020.41,
            get: 60000.0,
        };
        assert_eq!(figures(csv), Some(expected));
        assert_eq!(figures("\"SET\",\"1.0\"\n"), None);
    }

    #[test]
    fn the_median_of_rounds_is_taken_for_each_figure() {
        let of = |set: f64, get: f64| Figures { set, get };
        let samples = [of(3.0, 10.0), of(1.0, 30.0), of(2.0, 20.0)];
        assert_eq!(median(&samples), of(2.0, 20.0));
    }

    #[test]
    fn a_row_names_its_load_and_every_way_has_a_column() {
        let figures = Figures {
            set: 1000.4,
            get: 2000.0,
        };
        let text = table_text(&[((50, 1), vec![figures; WAYS.len()])]);
        assert!(text.lines().nth(1).unwrap().starts_with("-c 50 -P 1"));
        assert_eq!(text.matches("1000 / 2000").count(), WAYS.len());
    }

    #[test]
    fn shortages_stand_beside_their_load() {
        let short = Shortage {
            rnr_naks: 7,
            waits: 3,
            waited_ns: 1_500_000,
        };
        let text = shortages_text(&[[short, short]; LOADS.len()]);
        let expected =
            "-c 200 -P 16  credits on: 7 RNR NAKs, 3 waits for credits, 1.5 ms in all; off: 7";
        assert!(text.contains(expected), "{text}");
    }
}
