//! The configuration: read from TOML, checked as a whole, written back.
//!
//! A value of [`Config`] is plain data and can be made by a program as well ([`Config::default`]
//! and assignments, then [`Config::validate`]). Reading collects every finding, each on one line
//! `FILE:LINE: KEY: what is wrong (value); what is legal`. The keys, their units, limits and
//! meaning are one table (`config/keys.rs`), from which also `conf/pollux.toml` is made.

mod check;
mod document;
mod drafts;
mod error;
mod found;
mod keys;
mod paths;
mod reader;
mod size;
mod values;

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

pub use self::document::Entry;
pub use self::error::{ConfigError, ConfigErrors};
pub use self::paths::{PathError, Paths};
use self::reader::Reader;
pub use self::size::{SizeError, format_size, parse_size};
pub use self::values::{
    CoreUse, CreditChoice, Driver, Endpoint, GidChoice, Hugepages, InlineProbe, InlineThreshold,
    LogLevel, PathChoice, PeerPattern, PlainAddress, PollChoice, PollMode, ServiceKind,
    SynOptionChoice, ValueError,
};
use crate::cores::CoreChoice;
pub use pollux_provider::soft::Personality;

/// Longest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 512 << 10;

/// Everything an appliance is told at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `[appliance]`
    pub appliance: ApplianceConfig,
    /// `[control]`
    pub control: ControlConfig,
    /// `[attach]`
    pub attach: AttachConfig,
    /// `[device]`
    pub device: DeviceConfig,
    /// `[workers]`
    pub workers: WorkersConfig,
    /// `[memory]`
    pub memory: MemoryConfig,
    /// `[handshake]`
    pub handshake: HandshakeConfig,
    /// `[[peer]]`
    pub peers: Vec<Peer>,
    /// `[[service]]`
    pub services: Vec<Service>,
    /// `[[forward]]`
    pub forwards: Vec<Forward>,
}

/// `[appliance]`: the appliance as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplianceConfig {
    /// Tells the appliances of one host apart.
    pub name: String,
    /// Folder of the sockets.
    pub runtime_dir: PathChoice,
    /// User defined enterprise ids, best first; 1 to 8.
    pub ueids: Vec<String>,
    /// How much the log tells.
    pub log: LogLevel,
}

impl Default for ApplianceConfig {
    fn default() -> ApplianceConfig {
        ApplianceConfig {
            name: "pollux".to_string(),
            runtime_dir: PathChoice::Auto,
            ueids: vec!["POLLUX-DEFAULT".to_string()],
            log: LogLevel::Info,
        }
    }
}

/// `[control]`: the control socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlConfig {
    /// Path of the socket.
    pub socket: PathChoice,
}

/// `[attach]`: socket and memory of attached programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachConfig {
    /// Path of the socket.
    pub socket: PathChoice,
    /// Connections per session.
    pub slots: u16,
    /// Send ring of each connection, in bytes: 16K << n up to 512K.
    pub sndbuf_bytes: u32,
    /// Receive ring of each connection, in bytes: 16K << n up to 512K.
    pub rmb_bytes: u32,
    /// Memory of one session's rings, in bytes.
    pub session_memory_max_bytes: u64,
    /// Memory of all sessions' rings, in bytes.
    pub memory_max_bytes: u64,
    /// Sessions at a time.
    pub sessions_max: u16,
    /// Sessions of one process at a time.
    pub sessions_per_process_max: u16,
    /// How long a program polls before it sleeps, in microseconds.
    pub spin_us: u32,
}

impl Default for AttachConfig {
    fn default() -> AttachConfig {
        AttachConfig {
            socket: PathChoice::Auto,
            slots: 256,
            sndbuf_bytes: 64 << 10,
            rmb_bytes: 64 << 10,
            session_memory_max_bytes: 1 << 30,
            memory_max_bytes: 4 << 30,
            sessions_max: 32,
            sessions_per_process_max: 16,
            spin_us: 50,
        }
    }
}

/// `[device]`: the RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// What carries the work requests.
    pub driver: Driver,
    /// Name in tables and logs; with an adapter, its name.
    pub name: String,
    /// Port of an adapter.
    pub port: u8,
    /// Address on the fabric.
    pub gid: GidChoice,
    /// Folder in which soft devices meet.
    pub fabric_dir: PathChoice,
    /// Which adapter the soft driver plays.
    pub personality: Personality,
    /// Path MTU offered, in bytes.
    pub mtu_bytes: u32,
    /// Send queue depth of each link.
    pub send_wr: u32,
    /// Receive queue depth of each link.
    pub recv_wr: u32,
    /// Inline size asked for first, in bytes.
    pub inline_bytes: u32,
    /// How the size is found that the device grants.
    pub inline_probe: InlineProbe,
    /// Longest WRITE that goes inline.
    pub inline_threshold: InlineThreshold,
    /// How long an acknowledgement may take: 4.096 us x 2^N.
    pub ack_timeout: u8,
    /// How often work without an acknowledgement is tried again.
    pub retries: u8,
    /// How long a link is idle before the peer is asked whether it lives, in seconds.
    pub test_link_s: u32,
}

impl Default for DeviceConfig {
    fn default() -> DeviceConfig {
        DeviceConfig {
            driver: Driver::Soft,
            name: "soft0".to_string(),
            port: 1,
            gid: GidChoice::Auto,
            fabric_dir: PathChoice::Auto,
            personality: Personality::Generic,
            mtu_bytes: 4096,
            send_wr: 256,
            recv_wr: 256,
            inline_bytes: 256,
            inline_probe: InlineProbe::Ladder,
            inline_threshold: InlineThreshold::Auto,
            ack_timeout: 15,
            retries: 6,
            test_link_s: 30,
        }
    }
}

/// `[workers]`: the polling threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkersConfig {
    /// One worker on each core.
    pub cores: CoreChoice,
    /// How they wait.
    pub poll: PollChoice,
    /// How long an adaptive worker polls after its last work, in microseconds.
    pub spin_us: u32,
    /// Connections per worker.
    pub conns_max: u16,
    /// Links per worker.
    pub links_max: u16,
    /// Folder of the core locks.
    pub lock_dir: PathChoice,
}

impl Default for WorkersConfig {
    fn default() -> WorkersConfig {
        WorkersConfig {
            cores: CoreChoice::Auto,
            poll: PollChoice::Auto,
            spin_us: 50,
            conns_max: 16_384,
            links_max: 256,
            lock_dir: PathChoice::Auto,
        }
    }
}

/// `[memory]`: where ring and buffer memory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Whether from the hugepage pool.
    pub hugepages: Hugepages,
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig {
            hugepages: Hugepages::Auto,
        }
    }
}

/// `[handshake]`: the agreement over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeConfig {
    /// Limit of a whole handshake, in milliseconds.
    pub timeout_ms: u32,
    /// How long a listener waits for the first bytes, in milliseconds.
    pub peek_timeout_ms: u32,
    /// Handshakes under way with one peer address.
    pub per_peer_max: u16,
    /// Handshakes under way in all.
    pub under_way_max: u16,
    /// Connections that share one link group.
    pub conns_per_group_max: u8,
    /// Whether receive-queue credits are agreed on.
    pub credits: CreditChoice,
    /// Whether TCP handshakes carry the SMC option.
    pub syn_option: SynOptionChoice,
    /// The cgroup whose sockets may carry it.
    pub cgroup: PathChoice,
}

impl Default for HandshakeConfig {
    fn default() -> HandshakeConfig {
        HandshakeConfig {
            timeout_ms: 6000,
            peek_timeout_ms: 250,
            per_peer_max: 512,
            under_way_max: 2048,
            conns_per_group_max: 255,
            credits: CreditChoice::On,
            syn_option: SynOptionChoice::Auto,
            cgroup: PathChoice::Auto,
        }
    }
}

/// `[[peer]]`: destinations to which the client side speaks SMC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address, network, or address with a port.
    pub address: PeerPattern,
}

/// `[[service]]`: a responder inside a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// What it does with the bytes.
    pub kind: ServiceKind,
    /// TCP address to listen on; port 0 takes any free one.
    pub listen: SocketAddr,
}

/// `[[forward]]`: a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Name in tables and logs.
    pub name: String,
    /// Where clients connect.
    pub listen: Endpoint,
    /// Where their bytes go. Exactly one of the two ends is [`Endpoint::Smc`].
    pub connect: Endpoint,
}

impl Config {
    /// Reads a configuration. `origin` stands for the file in the findings.
    ///
    /// # Errors
    /// Everything that is wrong with the text.
    pub fn from_toml_str(text: &str, origin: &str) -> Result<Config, ConfigErrors> {
        let mut reader = Reader::new(text, origin);
        let config = reader.read();
        if reader.is_clean() {
            check::check(&config, &mut |key, problem| reader.report_key(key, problem));
        }
        ConfigErrors::check(reader.finish())?;
        Ok(config)
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// The file cannot be read, or everything that is wrong with it.
    pub fn from_file(path: &Path) -> Result<Config, ConfigErrors> {
        let origin = path.display().to_string();
        let unreadable = |problem: String| {
            let key = String::new();
            ConfigErrors::one(ConfigError {
                origin: origin.clone(),
                line: 0,
                key,
                problem,
            })
        };
        let mut text = String::new();
        let read = File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
        match read {
            Ok(count) if count as u64 > FILE_BYTES_MAX => {
                Err(unreadable(format!("is longer than {FILE_BYTES_MAX} bytes")))
            }
            Ok(_) => Config::from_toml_str(&text, &origin),
            Err(error) => Err(unreadable(format!(
                "cannot read the configuration: {error}"
            ))),
        }
    }

    /// Checks a configuration that a program has made, with the rules of the files. `origin`
    /// stands for the program in the findings, which have no line numbers.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn validate(&self, origin: &str) -> Result<(), ConfigErrors> {
        let result = Config::from_toml_str(&self.to_toml(), origin);
        result.map(|_| ()).map_err(ConfigErrors::without_lines)
    }

    /// Whether the client side speaks SMC to `address`.
    #[must_use]
    pub fn is_peer(&self, address: SocketAddr) -> bool {
        self.peers.iter().any(|peer| peer.address.matches(address))
    }
}

#[cfg(test)]
mod tests;
