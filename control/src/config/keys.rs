//! The table of keys: for each its unit, limits, meaning, and the way into and out of a
//! [`Config`].
//!
//! Everything that knows the keys reads this table: the reader and its suggestions, the writer,
//! the documented default in `conf/pollux.toml`, `pollux show config`. A key that is not here
//! does not exist.

mod handshake;

use std::fmt;
use std::str::FromStr;

use self::handshake::HANDSHAKE;
use super::drafts::{ForwardDraft, PeerDraft, ServiceDraft};
use super::found::{Found, Limits, Problem};
use super::size::format_size;
use super::values::{
    Driver, Hugepages, InlineProbe, InlineThreshold, LogLevel, PlainAddress, PollChoice,
    ServiceKind,
};
use super::{Config, Personality};
use crate::nearest::nearest;

/// A value on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    /// A whole number.
    Integer(u64),
    /// A text.
    Text(String),
    /// A list of texts.
    List(Vec<String>),
}

impl Setting {
    fn text(value: impl fmt::Display) -> Option<Setting> {
        Some(Setting::Text(value.to_string()))
    }

    fn size(bytes: impl Into<u64>) -> Option<Setting> {
        Some(Setting::Text(format_size(bytes.into())))
    }

    fn count(number: impl Into<u64>) -> Option<Setting> {
        Some(Setting::Integer(number.into()))
    }

    fn to_toml(&self) -> toml::Value {
        match self {
            // Counts of this table fit into 32 bits.
            Setting::Integer(number) => toml::Value::Integer(i64::try_from(*number).unwrap_or(0)),
            Setting::Text(text) => toml::Value::String(text.clone()),
            Setting::List(items) => {
                toml::Value::Array(items.iter().cloned().map(toml::Value::String).collect())
            }
        }
    }
}

impl fmt::Display for Setting {
    /// The value as TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_toml().fmt(f)
    }
}

/// One key of a section whose values go into a `T`.
pub(super) struct Key<T> {
    pub(super) name: &'static str,
    /// What a value counts.
    pub(super) unit: &'static str,
    pub(super) limits: Limits,
    /// What the key is for and what it costs.
    pub(super) about: &'static str,
    pub(super) get: fn(&T) -> Option<Setting>,
    pub(super) set: fn(&mut T, &Found<'_>, &Limits) -> Result<(), Problem>,
}

/// A table of the file.
pub(super) struct Section<T: 'static> {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) keys: &'static [Key<T>],
}

/// The names of every table that a file may have, repeated ones at the end.
pub(super) fn section_names() -> impl Iterator<Item = &'static str> {
    let single = SECTIONS.iter().map(|section| section.name);
    single.chain([PEER.name, SERVICE.name, FORWARD.name])
}

/// A name of an appliance or a forward: a word that can be a file name.
pub(super) struct Name(pub(super) String);

impl FromStr for Name {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Name, Self::Err> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty() || text.len() > 32 || !text.chars().all(legal) {
            return Err("not a name");
        }
        if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err("a name begins with a letter or a digit");
        }
        Ok(Name(text.to_string()))
    }
}

/// A user defined enterprise id, as the Linux kernel accepts it.
pub(super) struct Ueid(pub(super) String);

impl FromStr for Ueid {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Ueid, Self::Err> {
        let first = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
        let rest = |c: char| first(c) || matches!(c, '.' | '-');
        if text.len() > 32 || !text.starts_with(first) || !text.chars().all(rest) {
            return Err("is no UEID");
        }
        Ok(Ueid(text.to_string()))
    }
}

/// A personality of a soft device.
struct Adapter(Personality);

impl FromStr for Adapter {
    type Err = String;

    fn from_str(text: &str) -> Result<Adapter, Self::Err> {
        text.parse().map(Adapter).map_err(|_| {
            let names = Personality::NAMED.map(|personality| personality.to_string());
            match nearest(text, names.iter().map(String::as_str)) {
                Some(name) => format!("no such adapter, did you mean {name:?}?"),
                None => "no such adapter".to_string(),
            }
        })
    }
}

/// Greatest inline size that a configuration may name, in bytes.
const INLINE_BYTES_MAX: u64 = 1024;

/// Ring sizes that the CLC messages can name: 16K << n, n up to 5.
const RING_SIZES: &[u64] = &[
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
];

/// Path MTUs of InfiniBand and RoCE, in bytes.
const MTUS: &[u64] = &[256, 512, 1024, 2048, 4096];

/// Most UEIDs that a CLC proposal holds.
const UEIDS_MAX: usize = 8;

const NAME: Limits =
    Limits::Form("1 to 32 letters, digits, '.', '_' and '-', beginning with a letter or a digit");
const PATH: Limits = Limits::Form("\"auto\" or an absolute path");
const SOCKET_PATH: Limits = Limits::Form("\"auto\" or an absolute path of at most 107 bytes");
const ADDRESS: Limits =
    Limits::Form("ADDRESS:PORT; port 0 takes any free one, which the log then names");
const ENDPOINT: Limits =
    Limits::Form("\"tcp:ADDRESS:PORT\", \"unix:/PATH\" or \"smc:ADDRESS:PORT\"");

/// The tables that occur once.
pub(super) static SECTIONS: &[Section<Config>] = &[
    Section {
        name: "appliance",
        about: "The appliance as a whole.",
        keys: &[
            Key {
                name: "name",
                unit: "name",
                limits: NAME,
                about: "Tells the appliances of one host apart: it names the runtime folder, the \
                        holder of a core, and is what `pollux --name` takes.",
                get: |c| Setting::text(&c.appliance.name),
                set: |c, found, limits| {
                    found.text(limits).map(|Name(name)| c.appliance.name = name)
                },
            },
            Key {
                name: "runtime_dir",
                unit: "path",
                limits: PATH,
                about: "Folder of the sockets, made with mode 0700. \"auto\" is BASE/NAME, where \
                        BASE is /run/pollux for root, else $XDG_RUNTIME_DIR/pollux, else \
                        /tmp/pollux-UID.",
                get: |c| Setting::text(&c.appliance.runtime_dir),
                set: |c, found, limits| {
                    found
                        .text(limits)
                        .map(|path| c.appliance.runtime_dir = path)
                },
            },
            Key {
                name: "ueids",
                unit: "list of UEIDs",
                limits: Limits::Form(
                    "1 to 8 different UEIDs of at most 32 characters: A-Z, 0-9, '.' and '-', \
                     beginning with a letter or a digit",
                ),
                about: "User defined enterprise ids, best first: two hosts speak SMC-Rv2 only if \
                        they have one in common. On a Linux peer: smcr ueid add NAME.",
                get: |c| Some(Setting::List(c.appliance.ueids.clone())),
                set: |c, found, limits| {
                    let ueids: Vec<Ueid> = found.list(1..=UEIDS_MAX, limits)?;
                    c.appliance.ueids = ueids.into_iter().map(|Ueid(ueid)| ueid).collect();
                    Ok(())
                },
            },
            Key {
                name: "log",
                unit: "level",
                limits: Limits::Words(LogLevel::WORDS),
                about: "How much goes to standard error; -v adds one level, -vv two. pollux set log \
                        changes it at run time.",
                get: |c| Setting::text(c.appliance.log),
                set: |c, found, limits| found.word(limits).map(|level| c.appliance.log = level),
            },
        ],
    },
    Section {
        name: "control",
        about: "The control socket, for the pollux command and other operators' tools.",
        keys: &[Key {
            name: "socket",
            unit: "path",
            limits: SOCKET_PATH,
            about: "JSON-RPC 2.0, one message a line, mode 0600. \"auto\" is control.sock in the \
                    runtime folder.",
            get: |c| Setting::text(&c.control.socket),
            set: |c, found, limits| found.text(limits).map(|path| c.control.socket = path),
        }],
    },
    Section {
        name: "attach",
        about: "The socket and the memory of attached programs.",
        keys: ATTACH,
    },
    Section {
        name: "device",
        about: "The RDMA device.",
        keys: DEVICE,
    },
    Section {
        name: "workers",
        about: "The polling threads.",
        keys: WORKERS,
    },
    Section {
        name: "memory",
        about: "Where ring and buffer memory comes from.",
        keys: &[Key {
            name: "hugepages",
            unit: "mode",
            limits: Limits::Words(Hugepages::WORDS),
            about: "\"auto\" takes hugepages when the pool has them, \"required\" refuses to start \
                    without, \"off\" never asks.",
            get: |c| Setting::text(c.memory.hugepages),
            set: |c, found, limits| found.word(limits).map(|mode| c.memory.hugepages = mode),
        }],
    },
    Section {
        name: "handshake",
        about: "The agreement over TCP (CLC) at the begin of each connection.",
        keys: HANDSHAKE,
    },
];

const ATTACH: &[Key<Config>] = &[
    Key {
        name: "socket",
        unit: "path",
        limits: SOCKET_PATH,
        about: "Where programs open sessions, mode 0600. \"auto\" is attach.sock in the runtime \
                folder.",
        get: |c| Setting::text(&c.attach.socket),
        set: |c, found, limits| found.text(limits).map(|path| c.attach.socket = path),
    },
    Key {
        name: "slots",
        unit: "connections per session",
        limits: Limits::Count { min: 1, max: 4096 },
        about: "Connections that one session may have at a time; a program that asks for more is \
                refused. A session's memory is slots x (sndbuf + rmb); pages that were never used \
                cost nothing.",
        get: |c| Setting::count(c.attach.slots),
        set: |c, found, limits| found.count(limits).map(|slots| c.attach.slots = slots),
    },
    Key {
        name: "sndbuf",
        unit: "bytes per connection",
        limits: Limits::OneSize(RING_SIZES),
        about: "Send ring of each connection.",
        get: |c| Setting::size(c.attach.sndbuf_bytes),
        set: |c, found, limits| {
            found
                .size(limits)
                .map(|bytes| c.attach.sndbuf_bytes = bytes)
        },
    },
    Key {
        name: "rmb",
        unit: "bytes per connection",
        limits: Limits::OneSize(RING_SIZES),
        about: "Receive ring of each connection (RMBE), into which the peer writes.",
        get: |c| Setting::size(c.attach.rmb_bytes),
        set: |c, found, limits| found.size(limits).map(|bytes| c.attach.rmb_bytes = bytes),
    },
    Key {
        name: "session_memory_max",
        unit: "bytes per session",
        limits: Limits::Size {
            min: 32 << 10,
            max: 1 << 40,
        },
        about: "Memory that the rings of one session may have: a program may ask for larger or smaller \
                rings than those above, and is refused when slots x (sndbuf + rmb) is more than this.",
        get: |c| Setting::size(c.attach.session_memory_max_bytes),
        set: |c, found, limits| {
            found
                .size(limits)
                .map(|bytes| c.attach.session_memory_max_bytes = bytes)
        },
    },
    Key {
        name: "memory_max",
        unit: "bytes",
        limits: Limits::Size {
            min: 32 << 10,
            max: 1 << 40,
        },
        about: "Memory that the rings of all sessions may have together.",
        get: |c| Setting::size(c.attach.memory_max_bytes),
        set: |c, found, limits| {
            found
                .size(limits)
                .map(|bytes| c.attach.memory_max_bytes = bytes)
        },
    },
    Key {
        name: "sessions_max",
        unit: "sessions",
        limits: Limits::Count { min: 1, max: 1024 },
        about: "Sessions that may be open at a time; a program has one, more if it wants.",
        get: |c| Setting::count(c.attach.sessions_max),
        set: |c, found, limits| found.count(limits).map(|max| c.attach.sessions_max = max),
    },
    Key {
        name: "sessions_per_process_max",
        unit: "sessions per process",
        limits: Limits::Count { min: 1, max: 1024 },
        about: "Sessions that one process may have at a time, so that one that opens them in a loop \
                leaves some for others.",
        get: |c| Setting::count(c.attach.sessions_per_process_max),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|max| c.attach.sessions_per_process_max = max)
        },
    },
    Key {
        name: "spin_us",
        unit: "microseconds",
        limits: Limits::Count {
            min: 0,
            max: 1_000_000,
        },
        about: "How long an attached program polls for news before it sleeps; 0 sleeps at once. A \
                wake-up across cores costs tens of microseconds.",
        get: |c| Setting::count(c.attach.spin_us),
        set: |c, found, limits| found.count(limits).map(|spin| c.attach.spin_us = spin),
    },
];

const DEVICE: &[Key<Config>] = &[
    Key {
        name: "driver",
        unit: "driver",
        limits: Limits::Words(Driver::WORDS),
        about: "\"soft\" is the embedded fabric between appliances of one host; \"verbs\" is the RDMA \
                device called name (RoCE), through libibverbs.",
        get: |c| Setting::text(c.device.driver),
        set: |c, found, limits| found.word(limits).map(|driver| c.device.driver = driver),
    },
    Key {
        name: "name",
        unit: "name",
        limits: NAME,
        about: "Name of the device in tables and logs. With \"verbs\" the name by which the kernel knows \
                it, such as mlx5_0 or rxe0: see `rdma link`.",
        get: |c| Setting::text(&c.device.name),
        set: |c, found, limits| found.text(limits).map(|Name(name)| c.device.name = name),
    },
    Key {
        name: "port",
        unit: "port",
        limits: Limits::Count { min: 1, max: 255 },
        about: "Port of the adapter, with \"verbs\".",
        get: |c| Setting::count(c.device.port),
        set: |c, found, limits| found.count(limits).map(|port| c.device.port = port),
    },
    Key {
        name: "gid",
        unit: "GID",
        limits: Limits::Form("\"auto\" or an IPv6 address such as ::ffff:192.0.2.7"),
        about: "Address of the device on the fabric, different for each. \"auto\" makes one from \
                the runtime folder. With \"verbs\" the local address of the TCP connections, for \
                which the port must have a RoCEv2 GID; \"auto\" takes that of a service or an smc \
                forward, else the port's only IPv4 address, or without any its only IPv6 address \
                that is not link-local.",
        get: |c| Setting::text(c.device.gid),
        set: |c, found, limits| found.text(limits).map(|gid| c.device.gid = gid),
    },
    Key {
        name: "fabric_dir",
        unit: "path",
        limits: PATH,
        about: "Folder in which soft devices of this host find each other; must be the same for \
                all that shall meet. \"auto\" is BASE/fabric (see runtime_dir).",
        get: |c| Setting::text(&c.device.fabric_dir),
        set: |c, found, limits| found.text(limits).map(|path| c.device.fabric_dir = path),
    },
    Key {
        name: "personality",
        unit: "adapter",
        limits: Limits::Form(
            "\"generic\", \"mlx5\", \"irdma-gen1\", \"irdma-gen2\", \"irdma-gen3\", \"erdma\", \
             \"none\", \"gives-N\" with N up to 4096 or \"budget-N\"",
        ),
        about: "Which adapter's identity and inline limit the soft device shows. For tests: \
                \"gives-N\" accepts every inline size and gives N bytes; \"budget-N\" refuses where \
                send_wr x (inline + 64) is more than N bytes.",
        get: |c| Setting::text(c.device.personality),
        set: |c, found, limits| {
            found
                .text(limits)
                .map(|Adapter(personality)| c.device.personality = personality)
        },
    },
    Key {
        name: "mtu",
        unit: "bytes",
        limits: Limits::OneCount(MTUS),
        about: "Path MTU offered; both ends use the lower one.",
        get: |c| Setting::count(c.device.mtu_bytes),
        set: |c, found, limits| found.count(limits).map(|bytes| c.device.mtu_bytes = bytes),
    },
    Key {
        name: "send_wr",
        unit: "work requests per link",
        limits: Limits::Count { min: 16, max: 2048 },
        about: "Depth of the send queue of each link.",
        get: |c| Setting::count(c.device.send_wr),
        set: |c, found, limits| found.count(limits).map(|depth| c.device.send_wr = depth),
    },
    Key {
        name: "recv_wr",
        unit: "work requests per link",
        limits: Limits::Count { min: 8, max: 2048 },
        about: "Depth of the receive queue of each link: messages that may arrive before the \
                worker looks.",
        get: |c| Setting::count(c.device.recv_wr),
        set: |c, found, limits| found.count(limits).map(|depth| c.device.recv_wr = depth),
    },
    Key {
        name: "inline",
        unit: "bytes",
        limits: Limits::Count {
            min: 0,
            max: INLINE_BYTES_MAX,
        },
        about: "Inline size to ask for first, cut to what the adapter's maker is known to have; a \
                device that refuses is asked for less. What it grants counts, be it more or less: \
                `pollux show devices` tells. 0 asks for none.",
        get: |c| Setting::count(c.device.inline_bytes),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|bytes| c.device.inline_bytes = bytes)
        },
    },
    Key {
        name: "inline_probe",
        unit: "mode",
        limits: Limits::Words(InlineProbe::WORDS),
        about: "How a smaller size is found after a refusal, once for each shape of queue pair. \
                \"ladder\" asks for the known sizes of the maker, then for 16 bytes less each time: \
                at most 17 queue pairs from 256 bytes on. \"bisect\" halves the same list: at most 6, \
                but it relies on a device that accepts every size below one that it accepts.",
        get: |c| Setting::text(c.device.inline_probe),
        set: |c, found, limits| found.word(limits).map(|mode| c.device.inline_probe = mode),
    },
    Key {
        name: "inline_threshold",
        unit: "bytes",
        limits: Limits::AutoOrCount {
            max: INLINE_BYTES_MAX,
        },
        about: "Longest WRITE that is sent inline where the queue pair grants more; longer ones go \
                by reference, which wins from some size on. \"auto\": what was measured for the \
                driver.",
        get: |c| match c.device.inline_threshold {
            InlineThreshold::Auto => Setting::text("auto"),
            InlineThreshold::Bytes(bytes) => Setting::count(bytes),
        },
        set: |c, found, limits| {
            let bytes = found.auto_or_count(limits)?;
            c.device.inline_threshold = bytes.map_or(InlineThreshold::Auto, InlineThreshold::Bytes);
            Ok(())
        },
    },
    Key {
        name: "ack_timeout",
        unit: "exponent N, for 4.096 us x 2^N",
        limits: Limits::Count { min: 8, max: 22 },
        about: "How long an acknowledgement of the peer's adapter may take, with \"verbs\": 15 is \
                134 ms, 17 0.5 s, 20 4.3 s. Adapters may wait up to four times as long.",
        get: |c| Setting::count(c.device.ack_timeout),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|exponent| c.device.ack_timeout = exponent)
        },
    },
    Key {
        name: "retries",
        unit: "retries",
        limits: Limits::Count { min: 0, max: 7 },
        about: "How often work without an acknowledgement is tried again, with \"verbs\". After the \
                last one the peer counts as dead and its connections are reset: with 6 and an \
                ack_timeout of 15 after about a second. Soft-RoCE takes 7 for ever.",
        get: |c| Setting::count(c.device.retries),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|retries| c.device.retries = retries)
        },
    },
    Key {
        name: "test_link_s",
        unit: "seconds",
        limits: Limits::Count { min: 1, max: 3600 },
        about: "How long nothing is received on a link before the peer is asked whether it lives \
                (TEST LINK). Without an answer within 2 s its connections are reset.",
        get: |c| Setting::count(c.device.test_link_s),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|period| c.device.test_link_s = period)
        },
    },
];

const WORKERS: &[Key<Config>] = &[
    Key {
        name: "cores",
        unit: "cores",
        limits: Limits::Form("\"auto\", a list like \"0,2-3\" or a mask like \"0x5\""),
        about: "One worker on each core. \"auto\" is one worker, on the last core that is allowed \
                and not owned by another appliance.",
        get: |c| Setting::text(&c.workers.cores),
        set: |c, found, limits| found.text(limits).map(|cores| c.workers.cores = cores),
    },
    Key {
        name: "poll",
        unit: "mode",
        limits: Limits::Words(PollChoice::WORDS),
        about: "\"busy\" polls without end and shows 100 % of its core as used, \"adaptive\" sleeps \
                after spin_us without work, \"interrupt\" sleeps at once. \"auto\" is busy on an \
                isolated core (isolcpus), else adaptive. pollux set poll changes it at run time.",
        get: |c| Setting::text(c.workers.poll),
        set: |c, found, limits| found.word(limits).map(|poll| c.workers.poll = poll),
    },
    Key {
        name: "spin_us",
        unit: "microseconds",
        limits: Limits::Count {
            min: 0,
            max: 1_000_000,
        },
        about: "How long an adaptive worker polls after its last work before it sleeps.",
        get: |c| Setting::count(c.workers.spin_us),
        set: |c, found, limits| found.count(limits).map(|spin| c.workers.spin_us = spin),
    },
    Key {
        name: "conns_max",
        unit: "connections per worker",
        limits: Limits::Count {
            min: 1,
            max: 65_535,
        },
        about: "Connections that a worker has room for; its tables are made at start and take about 100 \
bytes each.",
        get: |c| Setting::count(c.workers.conns_max),
        set: |c, found, limits| found.count(limits).map(|max| c.workers.conns_max = max),
    },
    Key {
        name: "links_max",
        unit: "links per worker",
        limits: Limits::Count { min: 1, max: 1024 },
        about: "Links that a worker has room for.",
        get: |c| Setting::count(c.workers.links_max),
        set: |c, found, limits| found.count(limits).map(|max| c.workers.links_max = max),
    },
    Key {
        name: "lock_dir",
        unit: "path",
        limits: PATH,
        about: "Folder of the core locks (pollux_core_NNN.lock), the same for every appliance of \
                the host. \"auto\" is /run/lock (or /var/lock) for root, else BASE (see \
                runtime_dir).",
        get: |c| Setting::text(&c.workers.lock_dir),
        set: |c, found, limits| found.text(limits).map(|path| c.workers.lock_dir = path),
    },
];

/// `[[peer]]`
pub(super) static PEER: Section<PeerDraft> = Section {
    name: "peer",
    about: "Destinations to which the client side speaks SMC. Without an entry a connection stays \
            on plain TCP, unless the target says by the SMC option that it speaks SMC.",
    keys: &[Key {
        name: "address",
        unit: "address",
        limits: Limits::Form("an address, a network (192.0.2.0/24) or ADDRESS:PORT"),
        about: "Address, network, or address with a port.",
        get: |d| d.address.as_ref().and_then(Setting::text),
        set: |d, found, limits| found.text(limits).map(|address| d.address = Some(address)),
    }],
};

/// `[[service]]`
pub(super) static SERVICE: Section<ServiceDraft> = Section {
    name: "service",
    about: "Responders that run inside a worker, for measurements.",
    keys: &[
        Key {
            name: "kind",
            unit: "kind",
            limits: Limits::Words(ServiceKind::WORDS),
            about: "\"echo\" sends back what it gets.",
            get: |d| d.kind.and_then(Setting::text),
            set: |d, found, limits| found.word(limits).map(|kind| d.kind = Some(kind)),
        },
        Key {
            name: "listen",
            unit: "address",
            limits: ADDRESS,
            about: "TCP address to listen on; a client that does not speak SMC is served over TCP.",
            get: |d| d.listen.and_then(Setting::text),
            set: |d, found, limits| {
                found
                    .text(limits)
                    .map(|PlainAddress(listen)| d.listen = Some(listen))
            },
        },
    ],
};

/// `[[forward]]`
pub(super) static FORWARD: Section<ForwardDraft> = Section {
    name: "forward",
    about: "Gateways for programs that cannot attach. From tcp: or unix: to smc: it is the way \
            in, from smc: to tcp: or unix: the way out.",
    keys: &[
        Key {
            name: "name",
            unit: "name",
            limits: NAME,
            about: "Name in tables and logs, different for each forward.",
            get: |d| d.name.as_ref().and_then(Setting::text),
            set: |d, found, limits| found.text(limits).map(|Name(name)| d.name = Some(name)),
        },
        Key {
            name: "listen",
            unit: "endpoint",
            limits: ENDPOINT,
            about: "Where clients connect; port 0 takes any free one.",
            get: |d| d.listen.as_ref().and_then(Setting::text),
            set: |d, found, limits| found.text(limits).map(|listen| d.listen = Some(listen)),
        },
        Key {
            name: "connect",
            unit: "endpoint",
            limits: ENDPOINT,
            about: "Where their bytes go.",
            get: |d| d.connect.as_ref().and_then(Setting::text),
            set: |d, found, limits| found.text(limits).map(|connect| d.connect = Some(connect)),
        },
    ],
};
