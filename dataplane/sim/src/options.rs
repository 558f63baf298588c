//! What a world is like: drawn from its seed, so that worlds differ in kind and not only in their dice.

use std::fmt;

use pollux_proto::credit::RECEIVES_MIN;
use pollux_worker::{InlineRule, SEND_QUEUE_MIN};

use crate::numbers::Numbers;

/// Nanoseconds.
pub type Ns = u64;

/// One microsecond.
pub const US: Ns = 1_000;
/// One millisecond.
pub const MS: Ns = 1_000_000;
/// One second.
pub const S: Ns = 1_000_000_000;

/// One stack: an appliance with one worker.
#[derive(Clone, Debug)]
pub struct StackOptions {
    /// Receives of each link.
    pub recv_wr: u32,
    /// Send slots of each link.
    pub send_wr: u32,
    /// Inline bytes that the device grants.
    pub inline_bytes: u32,
    /// The operator's word on inline data.
    pub inline: InlineRule,
    /// Whether it speaks credits.
    pub credits: Credits,
    /// Work requests under way on a link without credits.
    pub under_way: u32,
    /// Bytes of each sndbuf.
    pub sndbuf_bytes: u32,
    /// Bytes of each RMBE.
    pub rmbe_bytes: u32,
    /// Places for orders and for news in the mailbox.
    pub mailbox: (usize, usize),
    /// Completions that the adapter hands out at most per reap.
    pub completions_per_reap: usize,
    /// Places in the worker's table of connections.
    pub places: u16,
    /// Pairs of rings.
    pub slots: u16,
    /// Most connections of a link group, as the handshake agrees on.
    pub max_conns: u8,
    /// "Receiver not ready" code asked of peers.
    pub rnr_timer: u8,
    /// Chance that the worker goes to sleep when a pass found nothing.
    pub sleep_chance: u32,
}

/// Who makes links and connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// Nobody: they appear at both ends at once. Rings may have any size.
    Direct,
    /// The plane of `pollux-control`, by handshakes over simulated TCP.
    Managed,
}

/// Simulated TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetOptions {
    /// Longest time that bytes are under way.
    pub delay_max: Ns,
    /// Most bytes of a piece.
    pub piece: u64,
    /// Bytes that a connection takes before it is full.
    pub room: usize,
}

/// Whether a stack speaks credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credits {
    /// It does, with a peer that does too.
    On,
    /// It does not.
    Off,
}

/// Whether both ends of a link count credits.
#[must_use]
pub fn counts_credits(own: &StackOptions, peer: &StackOptions) -> bool {
    own.credits == Credits::On
        && peer.credits == Credits::On
        && own.recv_wr.min(peer.recv_wr) >= u32::from(RECEIVES_MIN)
}

/// The faults of a world. Chances are in a million, means are in nanoseconds of simulated time; 0 is
/// never.
#[derive(Clone, Debug, Default)]
pub struct FaultOptions {
    /// Mean time between two pauses of a stack, which then is not polled.
    pub pause_every: Ns,
    /// The longest pause.
    pub pause_max: Ns,
    /// Mean time between two times in which an adapter keeps completions to itself.
    pub withhold_every: Ns,
    /// The longest such time.
    pub withhold_max: Ns,
    /// Executions of what has come that an adapter does for one poll, so that receives run out.
    pub eager: u32,
    /// Chance per post or poll that the link breaks.
    pub break_chance: u32,
    /// Chance per post that it is refused.
    pub refuse_chance: u32,
    /// Chance per doorbell that it rings later.
    pub late_bell_chance: u32,
    /// Chance per post that the doorbell rings at once, so that a chain is seen in pieces.
    pub early_bell_chance: u32,
    /// Chance per receive that it is posted late (only without credits).
    pub late_receive_chance: u32,
    /// Mean time between two crashes of a stack.
    pub crash_every: Ns,
    /// How long a stack that crashed or was stopped stays away at most.
    pub crash_max: Ns,
    /// Mean time between two orderly stops of a stack (only with handshakes).
    pub stop_every: Ns,
    /// Chance per connection that its TCP connection is reset at some time (only with handshakes).
    pub reset_chance: u32,
    /// Mean time between two times in which a stack stands still for seconds, so that its peers give
    /// it up (only with handshakes).
    pub freeze_every: Ns,
    /// Chance per call that a device refuses a queue pair, a registration or a path (only with
    /// handshakes).
    pub device_chance: u32,
    /// Mean time between two changes of the operator's word on inline data.
    pub tune_every: Ns,
    /// How long control leaves news lying at most.
    pub control_delay: Ns,
    /// Chance per connection that control aborts it at some time.
    pub abort_chance: u32,
    /// The stack that lies, if any.
    pub liar: Option<usize>,
    /// Chance per message of the liar that it is altered.
    pub lie_chance: u32,
}

/// A world.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where everything comes from.
    pub seed: u64,
    /// Who makes links and connections.
    pub control: Control,
    /// The stacks.
    pub stacks: Vec<StackOptions>,
    /// TCP, for handshakes.
    pub net: NetOptions,
    /// Links between each two stacks (without handshakes).
    pub cables: u32,
    /// Connections in all.
    pub conns: u32,
    /// Within this time they are opened.
    pub arrivals_within: Ns,
    /// Most bytes that one side of a connection writes.
    pub bytes_max: u64,
    /// Shortest and longest simulated time of a pass.
    pub pass: (Ns, Ns),
    /// Until then faults happen.
    pub faults_until: Ns,
    /// The faults.
    pub faults: FaultOptions,
}

const RING_BYTES: [u32; 20] = [
    1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 64, 100, 255, 256, 1000, 1024, 4096, 5000, 16_384, 65_536,
];
const RECEIVES: [u32; 10] = [3, 3, 4, 5, 6, 8, 11, 16, 33, 64];
const INLINE: [u32; 12] = [0, 0, 1, 7, 43, 44, 48, 64, 96, 101, 216, 256];

impl Options {
    /// The world of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Options {
        let mut numbers = Numbers::new(seed);
        let count = [2, 3, 4][numbers.weighted(&[8, 2, 1])];
        let liar = numbers.chance(150_000);
        let control = if numbers.flip() {
            Control::Direct
        } else {
            Control::Managed
        };
        let stacks: Vec<StackOptions> = (0..count).map(|_| stack(&mut numbers, control)).collect();
        let faults = faults(&mut numbers, liar.then_some(count - 1));
        let net = NetOptions {
            delay_max: numbers.pick(&[0, 20 * US, MS, 20 * MS]),
            piece: numbers.pick(&[1, 7, 100, 4096]),
            room: numbers.pick(&[4, 60, 4096]),
        };
        let conns = [1, 4, 12, 40][numbers.weighted(&[3, 5, 4, 1])];
        let bytes_max = [50, 600, 8_000, 60_000][numbers.weighted(&[3, 4, 4, 1])];
        let slow = numbers.pick(&[300, 1_000, 5_000]);
        let mut options = Options {
            seed,
            control,
            stacks,
            net,
            cables: 1 + u32::from(numbers.chance(200_000)),
            conns: numbers.between(1, conns) as u32,
            arrivals_within: numbers.pick(&[1, 100 * US, 2 * MS, 20 * MS]),
            bytes_max,
            pass: (numbers.between(50, 300), slow),
            faults_until: numbers.pick(&[200 * US, 2 * MS, 10 * MS, 40 * MS]),
            faults,
        };
        options.make_fit();
        options
    }

    /// Whether anything may end a connection that its programs did not want to end.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let faults = &self.faults;
        faults.break_chance == 0
            && faults.refuse_chance == 0
            && faults.crash_every == 0
            && faults.abort_chance == 0
            && faults.stop_every == 0
            && faults.reset_chance == 0
            && faults.freeze_every == 0
            && faults.device_chance == 0
            && faults.liar.is_none()
    }

    /// Whether there is room for every connection at once, so that none may stay on TCP.
    #[must_use]
    pub fn is_ample(&self) -> bool {
        let has_room = |stack: &StackOptions| {
            u32::from(stack.places.min(stack.slots)) >= self.conns && stack.recv_wr >= 3
        };
        self.stacks.iter().all(has_room)
    }

    /// Relations between options that a real appliance keeps as well.
    fn make_fit(&mut self) {
        if self.control == Control::Direct {
            self.faults.stop_every = 0;
            self.faults.reset_chance = 0;
            self.faults.freeze_every = 0;
            self.faults.device_chance = 0;
        }
        for stack in &mut self.stacks {
            // A byte at a time is slow: a world has to end.
            let smallest = stack.sndbuf_bytes.min(stack.rmbe_bytes);
            self.bytes_max = self.bytes_max.min(30 + 24 * u64::from(smallest));
        }
        if let Some(liar) = self.faults.liar {
            // Its messages are altered on their way, which has to be inline.
            let liar = &mut self.stacks[liar];
            liar.inline_bytes = liar.inline_bytes.max(128);
            liar.inline.messages = u32::MAX;
        }
    }
}

fn stack(numbers: &mut Numbers, control: Control) -> StackOptions {
    let inline_bytes = numbers.pick(&INLINE);
    let inline = inline_rule(numbers);
    let credits = if numbers.chance(600_000) {
        Credits::On
    } else {
        Credits::Off
    };
    let any = numbers.pick(&RING_BYTES);
    let other = numbers.pick(&RING_BYTES);
    let (sndbuf_bytes, rmbe_bytes) = match control {
        Control::Direct if numbers.flip() => (any, any),
        Control::Direct => (any, other),
        Control::Managed => (
            numbers.pick(&[4096, 4096, 16_384, 65_536]),
            numbers.pick(&[16_384, 16_384, 32_768, 65_536]),
        ),
    };
    let places = numbers.pick(&[1, 2, 4, 16, 64]);
    let slots = numbers.pick(&[places, places, 1, 3, 64]);
    StackOptions {
        recv_wr: numbers.pick(&RECEIVES),
        send_wr: SEND_QUEUE_MIN + numbers.pick(&[0, 0, 1, 2, 5, 18, 50]),
        inline_bytes,
        inline,
        credits,
        under_way: numbers.pick(&[1, 16, 48, 48]),
        sndbuf_bytes,
        rmbe_bytes,
        mailbox: (
            numbers.pick(&[1, 2, 8, 64]),
            numbers.pick(&[1, 2, 8, 64, 256]),
        ),
        completions_per_reap: numbers.pick(&[1, 2, 3, 16, 16, 16]),
        places,
        slots: match control {
            Control::Direct => places,
            Control::Managed => slots,
        },
        max_conns: numbers.pick(&[16, 16, 32, 255]),
        rnr_timer: numbers.pick(&[1, 5, 12]),
        sleep_chance: numbers.pick(&[0, 20_000, 300_000, 1_000_000]),
    }
}

/// What an operator may say of inline data.
pub(crate) fn inline_rule(numbers: &mut Numbers) -> InlineRule {
    match numbers.below(4) {
        0 => InlineRule::OFF,
        1 => InlineRule {
            messages: numbers.between(0, 128) as u32,
            writes: numbers.between(0, 256) as u32,
        },
        _ => InlineRule::ALL,
    }
}

fn faults(numbers: &mut Numbers, liar: Option<usize>) -> FaultOptions {
    let often = numbers.pick(&[20 * US, 200 * US, 2 * MS]);
    let mut some = |share: u32, value: Ns| if numbers.chance(share) { value } else { 0 };
    let pause_every = some(400_000, often);
    let withhold_every = some(300_000, often);
    let crash_every = some(120_000, often * 20);
    let eager = some(600_000, 8) as u32;
    let break_chance = some(200_000, 1) as u32;
    let refuse_chance = some(80_000, 1) as u32;
    let late_bell = some(250_000, 1) as u32;
    let early_bell = some(250_000, 1) as u32;
    let late_receive = some(250_000, 1) as u32;
    let control_delay = some(400_000, 1);
    let abort = some(200_000, 1) as u32;
    let stop_every = some(120_000, often * 20);
    let reset = some(150_000, 1) as u32;
    let freeze_every = some(80_000, often * 50);
    let device = some(100_000, 1) as u32;
    let tune_every = some(200_000, often);
    FaultOptions {
        pause_every,
        pause_max: numbers.pick(&[10 * US, 500 * US, 20 * MS]),
        withhold_every,
        withhold_max: numbers.pick(&[5 * US, 100 * US, 5 * MS]),
        eager,
        break_chance: break_chance * numbers.pick(&[100, 1_000, 10_000]),
        refuse_chance: refuse_chance * numbers.pick(&[200, 5_000]),
        late_bell_chance: late_bell * numbers.pick(&[10_000, 200_000]),
        early_bell_chance: early_bell * numbers.pick(&[50_000, 400_000]),
        late_receive_chance: late_receive * numbers.pick(&[20_000, 300_000]),
        crash_every,
        crash_max: numbers.pick(&[100 * US, 5 * MS]),
        control_delay: control_delay * numbers.pick(&[20 * US, MS, 10 * MS]),
        stop_every,
        freeze_every,
        device_chance: device * numbers.pick(&[10_000, 200_000]),
        tune_every,
        reset_chance: reset * numbers.pick(&[100_000, 500_000]),
        abort_chance: abort * numbers.pick(&[100_000, 500_000]),
        liar,
        lie_chance: numbers.pick(&[5_000, 50_000, 300_000]),
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {:?} control, {} stacks, {} link(s) between each two, {} connections of up to {} B each way, \
             opened within {} us; a pass takes {} to {} ns; faults until {} us",
            self.seed,
            self.control,
            self.stacks.len(),
            self.cables,
            self.conns,
            self.bytes_max,
            self.arrivals_within / US,
            self.pass.0,
            self.pass.1,
            self.faults_until / US
        )?;
        for (index, stack) in self.stacks.iter().enumerate() {
            writeln!(f, "  stack {index}: {stack:?}")?;
        }
        writeln!(f, "  {:?}", self.net)?;
        write!(f, "  {:?}", self.faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_options_again() {
        for seed in 0..50 {
            let options = format!("{:?}", Options::draw(seed));
            assert_eq!(options, format!("{:?}", Options::draw(seed)));
        }
    }

    #[test]
    fn quiet_and_faulty_worlds_are_both_common() {
        let quiet = (0..1000).filter(|seed| Options::draw(*seed).is_quiet());
        assert!((200..800).contains(&quiet.count()));
    }
}
