//! The real control of a stack: handshakes over simulated TCP, link groups, LLC.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use arrayvec::ArrayVec;
use pollux_control::config::{DeviceConfig, InlineProbe};
use pollux_control::plane::{
    Census as Held, Config, ConnKey, Event, MAILBOX_SLOTS, Patience, Plane, PoolId, Rings, Syn,
    Tenant, Wanted, WorkerSpec,
};
use pollux_proto::clc::{BareCredits, GidRule, Local, MaxConns};
use pollux_proto::link::Role;
use pollux_proto::time::Instant;
use pollux_provider::soft::Census;
use pollux_ring::{Pages, Wake};
use pollux_wire::clc::VendorOptions;
use pollux_wire::field::{Gid, Mac, MtuCode, PeerId, Ueid};
use pollux_worker::{InlineRule, WaitSpec, WorkerLimits};

use super::{LINKS, NoStack, SimWorker, Word, or};
use crate::book::{Book, Event as Noted, Shared, lock};
use crate::checker::stream::Tag;
use crate::clock::SimClock;
use crate::device::SimDevice;
use crate::net::{End, Net};
use crate::numbers::Numbers;
use crate::options::{Credits, Ns, StackOptions};
use crate::player::{Order, Player};

/// How long a server looks for the first bytes of CLC.
const PEEK_WAIT: Duration = Duration::from_millis(500);

type SimPlane = Plane<SimDevice, Player, End, Tag>;

/// A stack's plane and what its owner has to remember.
pub(crate) struct Managed {
    plane: SimPlane,
    index: usize,
    book: Shared<Book>,
    net: Shared<Net>,
    conns: BTreeMap<Tag, ConnKey>,
    /// Before the worker was made.
    at_rest: Census,
    course: Course,
}

/// Where a stack is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    Serves,
    /// The plane was told to stop.
    Stops,
    /// The worker has stopped. Handshakes may still have a last message to send.
    Parts,
    /// Nothing is left to do.
    Over,
}

/// What this stack brings to every handshake.
fn local(index: usize, life: u32, options: &StackOptions) -> Result<Local, NoStack> {
    let mut ueids = ArrayVec::new();
    ueids.push(Ueid::new("SIM.POLLUX").map_err(or("a UEID"))?);
    let [_, b1, b2, b3] = life.to_be_bytes();
    let number = index as u8 + 1;
    let vendor = match options.credits {
        Credits::On => VendorOptions::VALID.union(VendorOptions::CREDITS),
        Credits::Off => VendorOptions::NONE,
    };
    Ok(Local {
        peer_id: PeerId([number, 0, 0, 0, 0, b1, b2, b3]),
        gid: Gid(crate::device::gid(index)),
        mac: Mac([2, 0, 0, 0, 0, number]),
        mtu: MtuCode::B1024,
        host_name: pollux_wire::clc::host_name("sim"),
        ueids,
        max_conns: MaxConns::new(options.max_conns).unwrap_or(MaxConns::MAX),
        wait: Duration::from_secs(6),
        gid_rule: GidRule::Any,
        options: vendor,
        bare_credits: BareCredits::Off,
        v1: None,
    })
}

fn instant(now: Ns) -> Instant {
    Instant(now)
}

impl Managed {
    pub(crate) fn new(
        (index, life): (usize, u32),
        device: SimDevice,
        (player, clock): (Player, SimClock),
        options: &StackOptions,
        (book, net, mut numbers): (Shared<Book>, Shared<Net>, Numbers),
    ) -> Result<(Managed, SimWorker), NoStack> {
        let at_rest = device.census();
        let config = Config {
            send_wr: options.send_wr,
            recv_wr: options.recv_wr,
            inline_bytes: options.inline_bytes,
            inline_probe: InlineProbe::Ladder,
            pages: Pages::Off,
            patience: Patience::from(&DeviceConfig::default()),
            peek_wait: PEEK_WAIT,
            app_rings: Rings {
                slots: options.slots,
                sndbuf_bytes: options.sndbuf_bytes,
                rmbe_bytes: options.rmbe_bytes,
            },
        };
        let mut plane = Plane::new(device, config, Box::new(move || numbers.word() as u32));
        let spec = WorkerSpec {
            limits: WorkerLimits {
                conns: options.places,
                links: LINKS,
                sessions: 1,
            },
            wait: WaitSpec::default(),
            cq_entries: 1 << 16,
            mailbox: (options.mailbox.0, MAILBOX_SLOTS),
            local: local(index, life, options)?,
        };
        let news = Wake::new().map_err(or("a wake descriptor"))?;
        let worker = plane
            .add_worker(spec, (player, clock), &news)
            .map_err(or("a worker"))?;
        plane.set_inline(0, options.inline);
        let managed = Managed {
            plane,
            index,
            book,
            net,
            conns: BTreeMap::new(),
            at_rest,
            course: Course::Serves,
        };
        Ok((managed, worker))
    }

    /// Begins a handshake for one end of a connection.
    pub(crate) fn begin(&mut self, now: Ns, end: End, tag: Tag, role: Role) {
        let address = |last: usize, port: u16| {
            SocketAddr::from((Ipv4Addr::new(10, 0, 0, last as u8 + 1), port))
        };
        let wanted = Wanted {
            user: tag,
            role,
            worker: 0,
            pool: PoolId::Worker(0),
            tenant: Tenant::App { tag: tag.0 },
            local: address(self.index, 1),
            peer: address(100, 2),
            syn: Syn::Plain,
        };
        self.plane.begin(instant(now), end, wanted);
    }

    pub(crate) fn order(&mut self, order: Order) {
        self.plane.order(0, order);
    }

    pub(crate) fn set_inline(&mut self, rule: InlineRule) {
        self.plane.set_inline(0, rule);
    }

    pub(crate) fn ask_snapshot(&mut self) {
        self.plane.ask_snapshots();
    }

    pub(crate) fn abort(&mut self, tag: Tag) {
        if let Some(conn) = self.conns.get(&tag) {
            self.plane.abort(*conn);
        }
    }

    /// Begins the orderly end of the stack.
    pub(crate) fn stop(&mut self, now: Ns) {
        if self.course == Course::Serves {
            self.course = Course::Stops;
            self.plane.stop(instant(now));
        }
    }

    /// Whether it is on its way to its end.
    pub(crate) fn stops(&self) -> bool {
        self.course != Course::Serves
    }

    /// Link groups that there are.
    pub(crate) fn groups(&self) -> usize {
        self.plane.census().groups
    }

    /// Whether something waits for control: streams, timers.
    pub(crate) fn has_mail(&self, now: Ns) -> bool {
        !lock(&self.net).ready(self.index).is_empty()
            || self
                .plane
                .poll_timeout()
                .is_some_and(|due| due <= instant(now))
    }

    pub(crate) fn next_due(&self) -> Option<Ns> {
        let timer = self.plane.poll_timeout().map(|due| due.0);
        let net = lock(&self.net).next_due(self.index);
        timer.into_iter().chain(net).min()
    }

    /// What is ready and what is held, in words.
    pub(crate) fn state(&self) -> String {
        let ready = lock(&self.net).ready(self.index);
        format!(
            "ready are {ready:?}; the plane holds {:?}",
            self.plane.census()
        )
    }

    /// Control's turn, as the loop of `polluxd` takes it: the device, streams, timers, then news.
    pub(crate) fn control(&mut self, now: Ns, most: usize) -> Vec<Word> {
        let at = instant(now);
        self.plane.handle_device_events(at);
        let ready = lock(&self.net).ready(self.index);
        for id in ready.into_iter().take(most) {
            self.plane.handle_ready(at, id);
        }
        self.plane.handle_timeouts(at);
        let mut words = Vec::new();
        while let Some(event) = self.plane.poll_event(at) {
            words.extend(self.handle(event));
        }
        if self.course == Course::Parts && self.plane.census().handshakes == 0 {
            self.course = Course::Over;
            words.push(Word::Stopped);
        }
        words
    }

    fn note(&self, values: &[u64], text: impl FnOnce() -> String) {
        lock(&self.book).note(Noted::Report, self.index, values, text);
    }

    fn handle(&mut self, event: Event<Player, End, Tag>) -> Option<Word> {
        match event {
            Event::Opened { conn, user, .. } => {
                self.note(&[0, user.0], || format!("{user:?} is {conn:?}"));
                self.conns.insert(user, conn);
                None
            }
            Event::FellBack { user, text, .. } => {
                self.note(&[1, user.0], || format!("{user:?} stays on TCP: {text}"));
                Some(Word::Refused(user, text))
            }
            Event::Failed { user, error } => {
                let text = error.to_string();
                self.note(&[2, user.0], || format!("{user:?} fails: {text}"));
                Some(Word::Refused(user, text))
            }
            Event::Closed {
                conn,
                user,
                outcome,
                peer_done,
            } => {
                let values = [3, user.0, outcome as u64, peer_done as u64];
                self.note(&values, || {
                    format!("{user:?} ({conn:?}) ended: {outcome:?}, peer done: {peer_done:?}")
                });
                self.conns.remove(&user);
                None
            }
            Event::Snapshot { snapshot, .. } => Some(Word::Snapshot(snapshot)),
            Event::WorkerStopped { .. } => {
                self.note(&[4], || "stopped".to_owned());
                self.course = Course::Parts;
                None
            }
            Event::Released { .. } | Event::SessionFault { .. } | Event::SessionDetached { .. } => {
                None
            }
            Event::App { report, .. } => never(report),
        }
    }

    /// What is left after the end.
    pub(crate) fn leftovers(&self) -> Option<String> {
        let held = self.plane.census();
        // The rings of the worker's own pool stay registered for the next connection.
        let clean = Held {
            registrations: held.registrations,
            ..Held::default()
        };
        let census = self.plane.device().census();
        let device = Census {
            peers: self.at_rest.peers,
            create_qp_calls: self.at_rest.create_qp_calls,
            ..self.at_rest
        };
        let rest = Census {
            peers: device.peers,
            create_qp_calls: device.create_qp_calls,
            mrs: census.mrs - held.registrations,
            exports: census.exports - usize::from(held.registrations > 0),
            ..census
        };
        let is_clean = held == clean && rest == device && self.conns.is_empty();
        (!is_clean).then(|| {
            format!(
                "the plane holds {held:?}; the device {census:?} (at the start {:?}); open are {:?}",
                self.at_rest, self.conns
            )
        })
    }
}

fn never(report: Infallible) -> Option<Word> {
    match report {}
}
