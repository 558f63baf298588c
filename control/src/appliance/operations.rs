//! What operators ask for: the methods of the control socket.

use super::Appliance;
use super::handshakes::Origin;
use crate::config::{LogLevel, PollChoice, PollMode};
use crate::plane::{LinkPhase, MemoryNote, PoolId};
use crate::rpc::{Call, Methods, Reply, Request, RpcError, Ticket};
use crate::view::{
    ConfigView, ConnView, CreditView, DeviceView, FallbackView, GroupView, LinkCounters, LinkView,
    MemoryView, OwnerView, PoolView, Role, StatsView, VersionView, WorkerView,
};
use pollux_proto::clc::{Agreed, Terms};
use pollux_proto::link::Role as LinkRole;
use pollux_provider::{Device, QpStats};
use pollux_ring::{PageKind, hugepages_free};
use pollux_wire::clc::{VendorOptions, Version};
use pollux_worker::{CreditFigures, PollMode as WorkerPoll, Snapshot, WorkerFigures};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

/// A question that needs the workers' figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Links,
    Conns,
    Workers,
    Stats,
}

/// Questions that wait for the snapshots of all workers.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    waiting: Vec<(Ticket, Wanted)>,
    taken: BTreeMap<usize, Box<Snapshot>>,
    outstanding: usize,
}

fn role(role: LinkRole) -> Role {
    match role {
        LinkRole::Client => Role::Client,
        LinkRole::Server => Role::Server,
    }
}

fn gid_text(gid: [u8; 16]) -> String {
    Ipv6Addr::from(gid).to_string()
}

/// What the peer of a group is, as far as its messages tell.
fn peer_kind(agreed: &Agreed) -> String {
    if agreed.terms.options.contains(VendorOptions::VALID) {
        return "Pollux".to_string();
    }
    agreed
        .peer_host
        .map_or(String::new(), |host| host.os.to_string())
}

/// Version and release, as people write them.
fn release(terms: &Terms) -> String {
    match (terms.version, terms.release) {
        (Version::V1, _) => "1".to_string(),
        (Version::V2, 0) => "2".to_string(),
        (Version::V2, release) => format!("2.{release}"),
    }
}

/// What both agreed on beyond the release.
fn features(agreed: &Agreed) -> Vec<String> {
    let credits = agreed.peer_receives.map(|_| "credits".to_string());
    credits.into_iter().collect()
}

/// A name that a peer has said, padded with blanks: what cannot be printed is escaped.
fn printable(name: &[u8]) -> String {
    name.trim_ascii_end().escape_ascii().to_string()
}

fn hex(bytes: &[u8], between: &str) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(between)
}

fn pages_text(kind: PageKind) -> &'static str {
    match kind {
        PageKind::Huge2M => "2M",
        PageKind::Base => "4K",
    }
}

fn poll(mode: WorkerPoll) -> PollMode {
    match mode {
        WorkerPoll::Busy => PollMode::Busy,
        WorkerPoll::Adaptive => PollMode::Adaptive,
        WorkerPoll::Interrupt => PollMode::Interrupt,
    }
}

fn credits(figures: &CreditFigures) -> CreditView {
    CreditView {
        held: figures.held,
        initial: figures.initial,
        to_return: figures.to_return,
        low_water: figures.low_water,
        announcements_sent: figures.announcements_sent,
        announcements_received: figures.announcements_received,
        returned_by_cdc: figures.returned_by_cdc,
        returned_by_announcement: figures.returned_by_announcement,
        waits: figures.waits,
        waited_ns: figures.waited_ns,
    }
}

fn counters(stats: &QpStats) -> LinkCounters {
    let writes = stats.writes_inline + stats.writes_by_reference;
    let sends = stats.sends_inline + stats.sends_by_reference;
    LinkCounters {
        work_requests: writes + sends,
        doorbells: stats.doorbells,
        writes_inline: stats.writes_inline,
        writes_by_reference: stats.writes_by_reference,
        sends_inline: stats.sends_inline,
        sends_by_reference: stats.sends_by_reference,
        signaled_completions: stats.send_completions,
        rnr_naks_sent: stats.rnr_naks_sent,
        rnr_naks_received: stats.rnr_naks_received,
    }
}

impl<D> Methods for Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    fn call(&mut self, call: Call) -> Reply {
        let Call { request, ticket } = call;
        match request {
            Request::Version => Reply::of(&VersionView {
                name: self.config.appliance.name.clone(),
                version: env!("CARGO_PKG_VERSION").to_string(),
                pid: std::process::id(),
                uptime_s: self.started.elapsed().as_secs(),
            }),
            Request::Stop => {
                if self.stopping == super::Stopping::No {
                    self.stopping = super::Stopping::Asked;
                }
                Reply::Now(Ok(Value::Bool(true)))
            }
            Request::ConfigShow => Reply::of(&ConfigView::of(&self.config, &self.config_file)),
            Request::DeviceList => Reply::of(&[self.device_view()]),
            Request::GroupList => Reply::of(&self.group_views()),
            Request::MemoryShow => Reply::of(&self.memory_view()),
            Request::FallbackList => Reply::of(&self.fallback_views()),
            Request::LinkList => self.with_snapshots(ticket, Wanted::Links),
            Request::ConnList => self.with_snapshots(ticket, Wanted::Conns),
            Request::WorkerList => self.with_snapshots(ticket, Wanted::Workers),
            Request::StatsShow => self.with_snapshots(ticket, Wanted::Stats),
            Request::StatsClear => {
                self.cleared = std::time::Instant::now();
                self.plane.clear_stats();
                self.figures = super::Figures::default();
                self.admission.clear();
                Reply::Now(Ok(Value::Bool(true)))
            }
            Request::SetPoll(request) => Reply::Now(self.set_poll(request.mode, request.worker)),
            Request::SetLog(level) => Reply::Now(self.set_log(level)),
            Request::SetInline(setting) => {
                self.set_inline(setting);
                Reply::Now(Ok(Value::Bool(true)))
            }
            Request::LatencyRun(request) => match self.start_latency(ticket, request) {
                Ok(()) => Reply::Later(ticket),
                Err(error) => Reply::Now(Err(error)),
            },
        }
    }

    fn abandoned(&mut self, ticket: Ticket) {
        self.abandon_latency(ticket);
    }
}

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    fn set_poll(&mut self, mode: PollMode, worker: Option<u32>) -> Result<Value, RpcError> {
        let count = self.plane.workers();
        if let Some(worker) = worker
            && worker as usize >= count
        {
            return Err(RpcError::not_found(format!(
                "worker: there is no worker {worker}; legal: 0 to {}",
                count.saturating_sub(1)
            )));
        }
        if worker.is_none() {
            // So that the configuration that is shown is the one in force.
            self.config.workers.poll = match mode {
                PollMode::Busy => PollChoice::Busy,
                PollMode::Adaptive => PollChoice::Adaptive,
                PollMode::Interrupt => PollChoice::Interrupt,
            };
        }
        for index in 0..count {
            if worker.is_none_or(|worker| worker as usize == index) {
                self.plane.set_poll_mode(index, super::worker_poll(mode));
            }
        }
        self.tell_of_busy_cores();
        Ok(Value::Bool(true))
    }

    /// Says once that workers which never sleep have every core.
    fn tell_of_busy_cores(&mut self) {
        let is_busy = |worker| self.plane.poll_mode(worker) == Some(WorkerPoll::Busy);
        let all = self.cores.workers.len() == self.cores.allowed.len()
            && (0..self.plane.workers()).all(is_busy);
        if all && self.told_of_busy_cores == super::Told::No {
            self.told_of_busy_cores = super::Told::Yes;
            tracing::warn!(
                "busy workers have every allowed core ({}): the control thread and every program \
                 share with them; pollux set poll adaptive lets them sleep",
                self.cores.allowed
            );
        }
    }

    fn set_log(&mut self, level: LogLevel) -> Result<Value, RpcError> {
        let changed = self.log.set(level);
        changed.map_err(|error| RpcError::failed(error.to_string()))?;
        self.config.appliance.log = level;
        Ok(Value::Bool(true))
    }

    /// Answers once every worker has copied its tables.
    fn with_snapshots(&mut self, ticket: Ticket, wanted: Wanted) -> Reply {
        self.snapshots.waiting.push((ticket, wanted));
        if self.snapshots.outstanding == 0 {
            self.take_snapshots();
        }
        Reply::Later(ticket)
    }

    fn take_snapshots(&mut self) {
        self.snapshots.taken.clear();
        self.snapshots.outstanding = self.plane.workers();
        self.plane.ask_snapshots();
    }

    /// A worker has copied its tables.
    pub(crate) fn snapshot_taken(&mut self, worker: usize, snapshot: Box<Snapshot>) {
        self.snapshots.taken.insert(worker, snapshot);
        self.snapshots.outstanding = self.snapshots.outstanding.saturating_sub(1);
        if self.snapshots.outstanding > 0 {
            return;
        }
        let taken = std::mem::take(&mut self.snapshots.taken);
        for (ticket, wanted) in std::mem::take(&mut self.snapshots.waiting) {
            let answer = match wanted {
                Wanted::Links => serde_json::to_value(self.link_views(&taken)),
                Wanted::Conns => serde_json::to_value(self.conn_views(&taken)),
                Wanted::Workers => serde_json::to_value(self.worker_views(&taken)),
                Wanted::Stats => serde_json::to_value(self.stats_view(&taken)),
            };
            let answer = answer
                .map_err(|error| RpcError::internal(format!("cannot write the answer: {error}")));
            self.complete(ticket, answer);
        }
    }

    fn device_view(&self) -> DeviceView {
        let device = self.plane.device();
        let (identity, limits) = (device.identity(), device.limits());
        DeviceView {
            name: identity.name.clone(),
            driver: identity.driver.to_string(),
            personality: self.config.device.personality.to_string(),
            vendor_id: identity.vendor_id,
            vendor_part_id: identity.vendor_part_id,
            gid: gid_text(identity.gid),
            mac: hex(&identity.mac, ":"),
            port: identity.port,
            mtu_bytes: identity.mtu_bytes,
            inline: self.plane.inline_found().clone(),
            limits: [
                ("send_wr", Some(limits.send_wr_max)),
                ("recv_wr", Some(limits.recv_wr_max)),
                ("send_sge", Some(limits.send_sge_max)),
                ("recv_sge", Some(limits.recv_sge_max)),
                ("qp", Some(limits.qp_max)),
                ("cq_entries", Some(limits.cq_entries_max)),
                ("mr", Some(limits.mr_max)),
                ("inline_worth", limits.inline_worth_bytes),
            ]
            .into_iter()
            .filter_map(|(name, limit)| Some((name.to_string(), u64::from(limit?))))
            .collect(),
        }
    }

    fn link_number(&self, worker: usize, link: pollux_worker::LinkId) -> u32 {
        worker as u32 * u32::from(self.config.workers.links_max) + u32::from(link.0)
    }

    fn link_views(&self, taken: &BTreeMap<usize, Box<Snapshot>>) -> Vec<LinkView> {
        let mut views = Vec::new();
        for worker in 0..self.plane.workers() {
            for (link, group) in self.plane.links(worker) {
                let figures = taken
                    .get(&worker)
                    .and_then(|snapshot| snapshot.links.iter().find(|f| f.link == link.link));
                let phase = match (link.phase, figures.map(|figures| figures.up)) {
                    (LinkPhase::Made, _) => "made",
                    (LinkPhase::Adopting, _) => "adopting",
                    (LinkPhase::Running, Some(false)) => "failed",
                    (LinkPhase::Running, _) if link.first.is_some() => "confirming",
                    (LinkPhase::Running, _) => "active",
                    (LinkPhase::Releasing, _) => "releasing",
                };
                views.push(LinkView {
                    link: self.link_number(worker, link.link),
                    group: u32::from(link.link.0),
                    worker: worker as u32,
                    role: role(group.role()),
                    device: self.plane.device().identity().name.clone(),
                    peer_gid: gid_text(group.key().gid.0),
                    local_qpn: link.qpn,
                    peer_qpn: link.peer.map_or(0, |peer| peer.qpn.get()),
                    state: phase.to_string(),
                    mtu_bytes: link.peer.map_or(0, |peer| peer.mtu.bytes()),
                    send_depth: link.caps.send_wr,
                    recv_depth: link.caps.recv_wr,
                    inline: link.inline.clone(),
                    inline_message_bytes: figures.map_or(0, |f| f.inline.messages),
                    inline_write_bytes: figures.map_or(0, |f| f.inline.writes),
                    conns: group.conns() as u32,
                    credits: figures.and_then(|f| f.credits.as_ref()).map(credits),
                    counters: figures.map_or_else(LinkCounters::default, |f| counters(&f.stats)),
                });
            }
        }
        views
    }

    fn group_views(&self) -> Vec<GroupView> {
        let mut views = Vec::new();
        for worker in 0..self.plane.workers() {
            for (link, group) in self.plane.links(worker) {
                let agreed = link.agreed.as_ref();
                let host = agreed.and_then(|agreed| agreed.peer_host);
                let ueid = agreed.and_then(|agreed| agreed.terms.eid);
                // A Linux client says who it is in the last message only.
                let peer_id = agreed.map_or(group.key().peer_id, |agreed| agreed.peer.peer_id);
                views.push(GroupView {
                    group: u32::from(link.link.0),
                    role: role(group.role()),
                    peer_id: hex(&peer_id.0, ""),
                    peer_kind: agreed.map_or(String::new(), peer_kind),
                    peer_host: host.map_or(String::new(), |host| printable(&host.name)),
                    ueid: ueid.map_or(String::new(), |ueid| printable(&ueid.to_bytes())),
                    version: agreed.map_or(String::new(), |agreed| release(&agreed.terms)),
                    features: agreed.map_or(Vec::new(), features),
                    worker: worker as u32,
                    links: 1,
                    conns: group.conns() as u32,
                    conns_max: u32::from(group.max_conns()),
                });
            }
        }
        views
    }

    fn conn_views(&self, taken: &BTreeMap<usize, Box<Snapshot>>) -> Vec<ConnView> {
        let mut views = Vec::new();
        for (key, record) in self.plane.conns() {
            let figures = taken.get(&key.worker).and_then(|snapshot| {
                snapshot
                    .conns
                    .iter()
                    .find(|figures| figures.token == record.token)
            });
            let link = self.plane.link_of(*key);
            let link = link.map_or(0, |link| self.link_number(key.worker, link.link));
            let app = |name: &str| OwnerView::App {
                name: name.to_string(),
            };
            let wanted = &record.wanted;
            let owner = match wanted.user.origin {
                Origin::Program { session, .. } => {
                    let state = self.sessions.get(&session);
                    OwnerView::Session {
                        session,
                        pid: state.map_or(0, |state| state.pid),
                        program: state.map_or(String::new(), |state| state.program.clone()),
                    }
                }
                Origin::Latency(_) => app("latency"),
                Origin::Echo => app("echo"),
            };
            views.push(ConnView {
                conn: u32::from(key.conn),
                link,
                worker: key.worker as u32,
                token: record.token,
                peer_token: record.peer_token,
                role: role(wanted.role),
                state: figures.map_or("ENDED".to_string(), |f| f.state.to_string()),
                local: wanted.local,
                peer: wanted.peer,
                sndbuf_bytes: record.buffers.sndbuf_bytes,
                rmbe_bytes: record.buffers.rmbe_bytes,
                peer_rmbe_bytes: record.peer_rmbe_bytes,
                bytes_in: figures.map_or(0, |figures| figures.bytes_in),
                bytes_out: figures.map_or(0, |figures| figures.bytes_out),
                owner,
            });
        }
        views
    }

    fn worker_views(&self, taken: &BTreeMap<usize, Box<Snapshot>>) -> Vec<WorkerView> {
        let mut views = Vec::new();
        for (worker, thread) in self.threads.iter().enumerate() {
            let Some(snapshot) = taken.get(&worker) else {
                continue;
            };
            let figures = &snapshot.figures;
            views.push(WorkerView {
                worker: worker as u32,
                core: thread.core as u32,
                poll: poll(snapshot.poll),
                passes: figures.passes,
                busy_passes: figures.busy_passes,
                idle_passes: figures.passes - figures.busy_passes,
                conns: snapshot.conns.len() as u32,
                links: snapshot.links.len() as u32,
                sessions: snapshot.sessions.len() as u32,
                messages_in: figures.cdc_received + figures.llc_received,
                messages_out: figures.cdc_sent + figures.llc_sent,
                sleeps: figures.sleeps,
            });
        }
        views
    }

    fn memory_view(&self) -> MemoryView {
        let mut pools = BTreeMap::<(String, &'static str), (u64, u64)>::new();
        let mut add = |note: MemoryNote| {
            let entry = pools
                .entry((note.purpose, pages_text(note.pages)))
                .or_default();
            entry.0 += 1;
            entry.1 += note.bytes as u64;
        };
        for worker in 0..self.plane.workers() {
            for (link, _) in self.plane.links(worker) {
                link.memory.notes().into_iter().for_each(&mut add);
            }
            let purpose = "rings of the workers' own connections";
            let note = self.plane.pool_note(PoolId::Worker(worker), purpose);
            note.into_iter().for_each(&mut add);
        }
        for (id, session) in &self.sessions {
            let purpose = format!("rings of {}", session.program);
            let note = self.plane.pool_note(PoolId::Added(*id), &purpose);
            note.into_iter().for_each(&mut add);
        }
        let huge = hugepages_free();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        MemoryView {
            pools: pools
                .into_iter()
                .map(|((purpose, pages), (count, bytes))| PoolView {
                    purpose,
                    count,
                    bytes,
                    pages: pages.to_string(),
                })
                .collect(),
            hugepages_free: huge.free as u64,
            hugepages_total: huge.total as u64,
            hugepage_bytes: huge.page_bytes as u64,
            memlock_limit_bytes: limit,
        }
    }

    fn fallback_views(&self) -> Vec<FallbackView> {
        self.fallbacks
            .newest()
            .map(|fallback| FallbackView {
                time_s: fallback
                    .at
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |since| since.as_secs()),
                peer: fallback.peer,
                role: role(fallback.role),
                code: fallback.diagnosis.0,
                name: fallback.diagnosis.name().unwrap_or("unknown").to_string(),
                by: match fallback.by {
                    pollux_proto::diagnosis::DecidedBy::Local => "local".to_string(),
                    pollux_proto::diagnosis::DecidedBy::Peer => "peer".to_string(),
                },
                text: fallback.text.clone(),
                count: self.fallbacks.count(fallback.by, fallback.diagnosis),
            })
            .collect()
    }

    fn stats_view(&self, taken: &BTreeMap<usize, Box<Snapshot>>) -> StatsView {
        let mut values = BTreeMap::new();
        let mut add = |name: String, value: u64| *values.entry(name).or_insert(0) += value;
        for snapshot in taken.values() {
            for (name, value) in figure_names(&snapshot.figures) {
                add(format!("worker.{name}"), value);
            }
            for link in &snapshot.links {
                let counters = counters(&link.stats);
                if let Ok(Value::Object(fields)) = serde_json::to_value(&counters) {
                    for (name, value) in fields {
                        add(format!("link.{name}"), value.as_u64().unwrap_or(0));
                    }
                }
                let credits = link.credits.as_ref().map(credits);
                if let Ok(Value::Object(fields)) = serde_json::to_value(&credits) {
                    for (name, value) in fields {
                        add(format!("credit.{name}"), value.as_u64().unwrap_or(0));
                    }
                }
                add("link.bytes_posted".to_string(), link.stats.bytes_posted);
                add(
                    "link.writes_executed".to_string(),
                    link.stats.writes_executed,
                );
            }
        }
        add("conns.closed".to_string(), self.figures.closed);
        add("conns.reset".to_string(), self.figures.reset);
        add("conns.open".to_string(), self.plane.conns().count() as u64);
        add("fallbacks.total".to_string(), self.figures.fallbacks);
        let under_way = self.admission.under_way();
        add("handshakes.open".to_string(), under_way as u64);
        add("handshakes.refused".to_string(), self.admission.refused());
        add("handshakes.lost".to_string(), self.figures.lost);
        add("sessions.open".to_string(), self.sessions.len() as u64);
        add("sessions.faults".to_string(), self.figures.faults);
        add("sessions.refused".to_string(), self.figures.refused);
        for (name, value) in self.gateway_values() {
            add(name, value);
        }
        let elapsed_ns = u64::try_from(self.cleared.elapsed().as_nanos()).unwrap_or(u64::MAX);
        StatsView { elapsed_ns, values }
    }
}

fn figure_names(figures: &WorkerFigures) -> [(&'static str, u64); 15] {
    [
        ("passes", figures.passes),
        ("busy_passes", figures.busy_passes),
        ("sleeps", figures.sleeps),
        ("cdc_received", figures.cdc_received),
        ("cdc_sent", figures.cdc_sent),
        ("llc_received", figures.llc_received),
        ("llc_sent", figures.llc_sent),
        ("unknown_tokens", figures.unknown_tokens),
        ("malformed", figures.malformed),
        ("submissions", figures.submissions),
        ("conns_opened", figures.conns_opened),
        ("conns_closed", figures.conns_closed),
        ("conns_reset", figures.conns_reset),
        ("send_waits", figures.send_waits),
        ("credit_faults", figures.credit_faults),
    ]
}
