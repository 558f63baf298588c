//! Everything that the appliance shows of itself, as data and as text.
//!
//! The structs are the results of the JSON-RPC methods: the control thread fills them, `pollux`
//! prints them. Names, units and words are the same in both, so that a reader of a table finds
//! the column in the JSON. [`View::text`] gives the table.
//!
//! Fields that a newer appliance adds are ignored by an older `pollux`; a missing field is an
//! error, because a zero that was never counted would lie.

mod latency;
mod tables;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use self::latency::{LATENCY_COLUMNS, LatencyRow, LatencyTable, Transport};
pub use self::text::View;
use crate::config::{Config, PollMode};
use crate::words::words;

words! {
    /// Who opened the TCP connection.
    pub enum Role {
        /// This side opened it.
        Client = "client",
        /// The peer opened it.
        Server = "server",
    }
}

/// Result of `appliance.version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionView {
    /// `appliance.name`
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_s: u64,
}

words! {
    /// How an inline size was found.
    pub enum Found {
        /// The size of `device.inline` was accepted as it is.
        FirstTry = "first try",
        /// A known limit of the adapter's maker was accepted: at once, since `device.inline` is
        /// cut to the largest, or after refusals.
        VendorLadder = "vendor ladder",
        /// A size 16 bytes below a refused one was accepted.
        Steps = "steps",
        /// A smaller size was found by halves.
        Bisect = "bisect",
        /// A queue pair of this shape was created before.
        Remembered = "remembered",
        /// Nothing is sent inline: the device has none, or gives none.
        Nothing = "none",
    }
}

/// How the inline size of a device or link came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineView {
    /// Bytes wished for: `device.inline`.
    pub asked_bytes: u32,
    /// Bytes that a send may carry inline.
    pub granted_bytes: u32,
    /// How the granted size was found.
    pub found: Found,
    /// Queue pairs that were asked for to find it.
    pub attempts: u32,
    /// Each of them, in order.
    pub tries: Vec<InlineTry>,
    /// What the device had no room for beside the depth of the send queue.
    pub trade: Option<InlineTrade>,
    /// Depths, where those granted are not those asked for.
    pub depths: Option<InlineDepths>,
}

/// One queue pair that was asked for: granted or refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineTry {
    /// Inline bytes asked for.
    pub asked_bytes: u32,
    /// Inline bytes of the queue pair; `None` if it was refused.
    pub granted_bytes: Option<u32>,
    /// Why it was refused, as `EINVAL`.
    pub errno: Option<String>,
}

/// Inline size against queue depth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineTrade {
    /// Depth of the send queue that was asked for.
    pub send_wr: u32,
    /// Largest inline size that was refused for lack of room, in bytes.
    pub refused_bytes: u32,
    /// How: `ENOMEM` or `ENOSPC`.
    pub errno: String,
}

/// Depths of the queues of a queue pair, in work requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineDepths {
    /// Send queue, as asked for.
    pub asked_send_wr: u32,
    /// Receive queue, as asked for.
    pub asked_recv_wr: u32,
    /// Send queue, as granted.
    pub granted_send_wr: u32,
    /// Receive queue, as granted.
    pub granted_recv_wr: u32,
}

impl fmt::Display for InlineView {
    /// Granted, wished for, how found: `101 of 256 (vendor ladder, 2 tries)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InlineView {
            asked_bytes,
            granted_bytes,
            found,
            attempts,
            ..
        } = self;
        let tries = if *attempts == 1 { "try" } else { "tries" };
        write!(
            f,
            "{granted_bytes} of {asked_bytes} ({found}, {attempts} {tries})"
        )
    }
}

impl InlineView {
    /// What an operator should know besides, one line each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let trade = self.trade.as_ref().map(|trade| {
            format!(
                "no room for {} bytes inline at a depth of {} ({}): {} granted; a smaller \
                 device.send_wr may allow more",
                trade.refused_bytes, trade.send_wr, trade.errno, self.granted_bytes
            )
        });
        let depths = self.depths.as_ref().map(|depths| {
            format!(
                "queues of {} sends and {} receives were asked for (device.send_wr, \
                 device.recv_wr), {} and {} granted",
                depths.asked_send_wr,
                depths.asked_recv_wr,
                depths.granted_send_wr,
                depths.granted_recv_wr
            )
        });
        trade.into_iter().chain(depths).collect()
    }
}

/// One RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceView {
    /// `device.name`
    pub name: String,
    /// `device.driver`
    pub driver: String,
    /// `device.personality`
    pub personality: String,
    /// PCI vendor id.
    pub vendor_id: u32,
    /// Vendor's part id.
    pub vendor_part_id: u32,
    /// GID in the form of an IPv6 address.
    pub gid: String,
    /// MAC address, six hexadecimal bytes with colons.
    pub mac: String,
    /// Port number.
    pub port: u8,
    /// Path MTU in bytes.
    pub mtu_bytes: u32,
    /// Inline size, as found by the last search.
    pub inline: InlineView,
    /// Limits by name, such as `send_wr_max`.
    pub limits: BTreeMap<String, u64>,
}

/// What was counted on a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Work requests posted, without receives.
    pub work_requests: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// WRITEs whose bytes went inline.
    pub writes_inline: u64,
    /// WRITEs whose bytes the device fetched.
    pub writes_by_reference: u64,
    /// SENDs that went inline.
    pub sends_inline: u64,
    /// SENDs that the device fetched.
    pub sends_by_reference: u64,
    /// Completions that were asked for and reaped.
    pub signaled_completions: u64,
    /// Receiver-not-ready answers given to the peer.
    pub rnr_naks_sent: u64,
    /// Receiver-not-ready answers got from the peer.
    pub rnr_naks_received: u64,
}

/// The receive-queue credits of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditView {
    /// Messages the peer can take now.
    pub held: u32,
    /// The same in the beginning: receives the peer had posted.
    pub initial: u32,
    /// Receives posted anew that the peer has not been told of.
    pub to_return: u32,
    /// Times the credits held fell to two thirds of the initial ones.
    pub low_water: u64,
    /// Announcements sent.
    pub announcements_sent: u64,
    /// Announcements received.
    pub announcements_received: u64,
    /// Credits returned on CDC messages.
    pub returned_by_cdc: u64,
    /// Credits returned by announcements.
    pub returned_by_announcement: u64,
    /// Times the link ran out of credits while somebody had something to send.
    pub waits: u64,
    /// Time spent without, in nanoseconds.
    pub waited_ns: u64,
}

/// One link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkView {
    /// Number of the link in this appliance.
    pub link: u32,
    /// Number of its link group.
    pub group: u32,
    /// Worker that polls it.
    pub worker: u32,
    /// This side's role in the group.
    pub role: Role,
    /// Device that carries it.
    pub device: String,
    /// The peer's GID.
    pub peer_gid: String,
    /// Queue pair number of this side.
    pub local_qpn: u32,
    /// Queue pair number of the peer.
    pub peer_qpn: u32,
    /// State, as `active` or `confirming`.
    pub state: String,
    /// Path MTU in bytes.
    pub mtu_bytes: u32,
    /// Depth of the send queue, as granted.
    pub send_depth: u32,
    /// Depth of the receive queue, as granted.
    pub recv_depth: u32,
    /// Inline size.
    pub inline: InlineView,
    /// Longest message (CDC, LLC) that goes inline now.
    pub inline_message_bytes: u32,
    /// Longest WRITE that goes inline now.
    pub inline_write_bytes: u32,
    /// Connections that use it.
    pub conns: u32,
    /// Receive-queue credits; `None` where they were not agreed on.
    pub credits: Option<CreditView>,
    /// What was counted.
    pub counters: LinkCounters,
}

/// One link group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// Number of the group in this appliance.
    pub group: u32,
    /// This side's role.
    pub role: Role,
    /// The peer's id, from its CLC messages.
    pub peer_id: String,
    /// What the peer is, as far as its messages tell: `Pollux`, or its operating system (`Linux` for the
    /// kernel's AF_SMC, and for Pollux where the vendor options are off on either side).
    pub peer_kind: String,
    /// The peer's host name, as it said it on first contact; empty with SMC-Rv1.
    pub peer_host: String,
    /// The UEID that both have; empty with SMC-Rv1.
    pub ueid: String,
    /// Version and release of SMC-R, as `1` or `2.1`.
    pub version: String,
    /// What both agreed on beyond that, as `credits`.
    pub features: Vec<String>,
    /// Worker that has its links.
    pub worker: u32,
    /// Links in it.
    pub links: u32,
    /// Connections in it.
    pub conns: u32,
    /// Most connections that it takes.
    pub conns_max: u32,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnView {
    /// Number of the connection in this appliance.
    pub conn: u32,
    /// Link that it uses.
    pub link: u32,
    /// Worker that has it.
    pub worker: u32,
    /// Alert token of this side.
    pub token: u32,
    /// Alert token of the peer.
    pub peer_token: u32,
    /// Who opened it.
    pub role: Role,
    /// State, with the names that the kernel's `smcss` uses, as `ACTIVE` or `PEERCLOSEWAIT1`.
    pub state: String,
    /// Address of this side.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Send ring in bytes.
    pub sndbuf_bytes: u32,
    /// Receive ring of this side in bytes.
    pub rmbe_bytes: u32,
    /// Receive ring of the peer in bytes.
    pub peer_rmbe_bytes: u32,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Whose it is.
    pub owner: OwnerView,
}

/// Whose connection it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum OwnerView {
    /// An attached program's.
    Session {
        /// Number of the session.
        session: u32,
        /// Process id of the program.
        pid: u32,
        /// Name that the program gave.
        program: String,
    },
    /// A service's or a measurement's, inside the worker.
    App {
        /// What it is.
        name: String,
    },
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerView {
    /// Number of the worker.
    pub worker: u32,
    /// Core that it is pinned to.
    pub core: u32,
    /// How it waits.
    pub poll: PollMode,
    /// Passes of its loop.
    pub passes: u64,
    /// Passes that found something to do.
    pub busy_passes: u64,
    /// Passes that found nothing.
    pub idle_passes: u64,
    /// Connections that it has.
    pub conns: u32,
    /// Links that it polls.
    pub links: u32,
    /// Sessions attached to it.
    pub sessions: u32,
    /// Messages received.
    pub messages_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Times that it slept.
    pub sleeps: u64,
}

/// One use of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// What it is for.
    pub purpose: String,
    /// How many such pieces there are.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Size of its pages: `"2M"` or `"4K"`.
    pub pages: String,
}

/// Memory, hugepages and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryView {
    /// Uses of memory.
    pub pools: Vec<PoolView>,
    /// Hugepages that nobody uses.
    pub hugepages_free: u64,
    /// Hugepages of the host.
    pub hugepages_total: u64,
    /// Bytes of one hugepage.
    pub hugepage_bytes: u64,
    /// Limit of locked memory in bytes; `None`: no limit.
    pub memlock_limit_bytes: Option<u64>,
}

/// Why connections stayed on TCP: one line for each peer and reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackView {
    /// Seconds since 1970 of the last time.
    pub time_s: u64,
    /// Peer of the last time.
    pub peer: SocketAddr,
    /// This side's role.
    pub role: Role,
    /// Peer diagnosis of the CLC Decline, or 0 when there was none.
    pub code: u32,
    /// Short name of the reason.
    pub name: String,
    /// Who decided: `"local"` or `"peer"`.
    pub by: String,
    /// The reason in words.
    pub text: String,
    /// How often.
    pub count: u64,
}

/// All counters, flat, named `scope.number.counter` as `worker.0.passes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsView {
    /// Nanoseconds since the start, or since the last `stats.clear`.
    pub elapsed_ns: u64,
    /// The counters by name.
    pub values: BTreeMap<String, u64>,
}

/// One key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRow {
    /// The key with its section.
    pub key: String,
    /// The value as TOML.
    pub value: String,
    /// The default as TOML; `None` for keys that have none.
    pub default: Option<String>,
    /// What the value counts.
    pub unit: String,
    /// What is legal.
    pub legal: String,
}

/// The configuration in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigView {
    /// The file that it came from; empty for the built-in default.
    pub file: String,
    /// A file that configures the same.
    pub toml: String,
    /// Every key.
    pub rows: Vec<ConfigRow>,
}

/// A worker that would run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedWorker {
    /// Number of the worker.
    pub worker: usize,
    /// Its core.
    pub core: u32,
    /// How it would wait at first.
    pub poll: PollMode,
}

/// What an appliance with a configuration would do on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckView {
    /// The file; empty for the built-in default.
    pub file: String,
    /// The workers.
    pub workers: Vec<PlannedWorker>,
    /// Cores of control and helper threads, as a list.
    pub other_cores: String,
    /// Folder of the sockets.
    pub runtime_dir: String,
    /// The control socket.
    pub control_socket: String,
    /// The socket of attached programs.
    pub attach_socket: String,
    /// Where soft devices meet.
    pub fabric_dir: String,
    /// Folder of the core locks.
    pub lock_dir: String,
    /// Bytes of the rings of one session.
    pub session_bytes: u64,
    /// What an operator who wants low latency should know.
    pub warnings: Vec<String>,
}

impl ConfigView {
    /// Shows `config`, which was read from `file`.
    #[must_use]
    pub fn of(config: &Config, file: &str) -> ConfigView {
        let rows = config.entries().into_iter().map(|entry| ConfigRow {
            key: entry.key,
            value: entry.value,
            default: entry.default,
            unit: entry.unit.to_string(),
            legal: entry.limits,
        });
        ConfigView {
            file: file.to_string(),
            toml: config.to_toml(),
            rows: rows.collect(),
        }
    }
}
