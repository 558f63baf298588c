//! `[handshake]`

use super::super::found::Limits;
use super::super::values::{CreditChoice, SynOptionChoice};
use super::{Config, Key, PATH, Setting};

pub(super) const HANDSHAKE: &[Key<Config>] = &[
    Key {
        name: "timeout_ms",
        unit: "milliseconds",
        limits: Limits::Count {
            min: 100,
            max: 60_000,
        },
        about: "How long a handshake may take before the connection stays on TCP.",
        get: |c| Setting::count(c.handshake.timeout_ms),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|time| c.handshake.timeout_ms = time)
        },
    },
    Key {
        name: "peek_timeout_ms",
        unit: "milliseconds",
        limits: Limits::Count {
            min: 10,
            max: 60_000,
        },
        about: "How long an smc: listener waits for the first bytes of a connection before it \
                takes the client for a plain TCP one that waits for the server to speak.",
        get: |c| Setting::count(c.handshake.peek_timeout_ms),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|time| c.handshake.peek_timeout_ms = time)
        },
    },
    Key {
        name: "per_peer_max",
        unit: "handshakes per peer address",
        limits: Limits::Count {
            min: 1,
            max: 16_384,
        },
        about: "Handshakes that may be under way with one peer address at a time. Beyond it no SMC is \
                offered, and a peer that offers it is declined: those connections stay on TCP.",
        get: |c| Setting::count(c.handshake.per_peer_max),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|max| c.handshake.per_peer_max = max)
        },
    },
    Key {
        name: "under_way_max",
        unit: "handshakes",
        limits: Limits::Count {
            min: 1,
            max: 16_384,
        },
        about: "Handshakes that may be under way in all, as per_peer_max for one peer. A server's \
                connections beyond twice as many are closed. Each needs a file descriptor.",
        get: |c| Setting::count(c.handshake.under_way_max),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|max| c.handshake.under_way_max = max)
        },
    },
    Key {
        name: "conns_per_group_max",
        unit: "connections per link group",
        limits: Limits::Count { min: 16, max: 255 },
        about: "Connections that share one link group before another is made; the lower number of both \
                ends counts.",
        get: |c| Setting::count(c.handshake.conns_per_group_max),
        set: |c, found, limits| {
            found
                .count(limits)
                .map(|max| c.handshake.conns_per_group_max = max)
        },
    },
    Key {
        name: "credits",
        unit: "mode",
        limits: Limits::Words(CreditChoice::WORDS),
        about: "Receive-queue credits: a peer that agrees is never sent more messages than it has \
                receives for. \"on\" offers them with the vendor word of SMC-Rv2.1, which Linux \
                ignores; \"bare\" also takes and gives them by byte 51 alone, as the Linux patches of \
                January 2022 do.",
        get: |c| Setting::text(c.handshake.credits),
        set: |c, found, limits| {
            found
                .word(limits)
                .map(|choice| c.handshake.credits = choice)
        },
    },
    Key {
        name: "syn_option",
        unit: "mode",
        limits: Limits::Words(SynOptionChoice::WORDS),
        about: "Whether the TCP handshakes of smc: listeners and smc: targets carry the SMC option,                 without which Linux's AF_SMC takes a host for one that speaks TCP only. A BPF program                 does it: \"auto\" loads it if this process may (CAP_BPF and CAP_NET_ADMIN, a cgroup2 file                 system), \"required\" refuses to start otherwise. A target whose SYN-ACK carries the                 option needs no [[peer]].",
        get: |c| Setting::text(c.handshake.syn_option),
        set: |c, found, limits| {
            found
                .word(limits)
                .map(|choice| c.handshake.syn_option = choice)
        },
    },
    Key {
        name: "cgroup",
        unit: "path",
        limits: PATH,
        about: "Folder of the cgroup2 whose sockets may carry the SMC option, with those below it. \"auto\" \
                is the one that polluxd is in.",
        get: |c| Setting::text(&c.handshake.cgroup),
        set: |c, found, limits| found.text(limits).map(|path| c.handshake.cgroup = path),
    },
];
