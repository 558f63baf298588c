//! Work requests as lines of a port.
//!
//! A request starts with one line. Words are 64 bits; the ring keeps word 7 for itself.
//!
//! ```text
//! word 0   bits 0..7 opcode   7 end of chain   8..12 form   12..16 pieces   16..32 bytes carried   32..64 remote key
//!
//! SEND carried            1..7 payload (48 B), continued in lines of 56 B
//! WRITE carried           1 remote address   2..7 payload (40 B), continued
//! WRITE+IMM carried       1 remote address   2 immediate   3..7 payload (32 B), continued
//! any referenced          1 remote address   2,3 first piece   4,5 second piece   6 immediate
//!   piece                 export id in bits 0..32, bytes in 32..64; then the offset in the export
//! NOTICE                  nothing: "look at my acknowledgement line"
//! ```
//!
//! Everything here judges copies: a line that means nothing is [`Nonsense`], never a panic.

use pollux_ring::LINE_PAYLOAD;

use crate::fifo::Fifo;
use crate::table::Id;

/// Payload of a line of the ring.
pub(crate) type Line = [u64; LINE_PAYLOAD / 8];
/// The same as bytes, as lines wait for the ring.
pub(crate) type LineBytes = [u8; LINE_PAYLOAD];
/// A line without meaning.
pub(crate) const EMPTY_LINE: LineBytes = [0; LINE_PAYLOAD];

/// Longest message that lines carry: the longest LLC message, which lives in memory that only its
/// own process can see.
pub(crate) const CARRIED_BYTES_MAX: u32 = 8192;
/// Longest message by reference.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 1 << 30;
/// Pieces of a message by reference.
pub(crate) const PIECES_MAX: usize = 2;

const SEND: u64 = 1;
const WRITE: u64 = 2;
const WRITE_IMM: u64 = 3;
const NOTICE: u64 = 4;
/// In the byte of the opcode: the last request of a chain.
const CHAIN_END: u64 = 0x80;
const OPCODE: u64 = 0x7f;
const CARRIED: u64 = 0;
const REFERENCED: u64 = 1;

/// What a request does at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Send,
    Write { addr: u64, rkey: u32 },
    WriteImm { addr: u64, rkey: u32, imm: u32 },
}

/// A piece of a segment that the requester exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) export: Id,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Where the bytes of a request are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// In the line, behind the words of the verb, and in the lines that follow.
    Carried,
    /// In exported segments; the line names this many pieces.
    Referenced { pieces: usize },
}

/// Whether a requester rang for more than this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chain {
    /// The next request of the same chain follows at once.
    More,
    /// Nothing follows for now.
    End,
}

/// A request, as its first line tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    pub(crate) form: Form,
    /// Bytes of the message.
    pub(crate) len: u32,
    /// A hint for when to look; a lie only makes the liar's own requests wait.
    pub(crate) chain: Chain,
}

/// Says in the first line of a request that the chain goes on behind it.
#[inline(always)]
pub(crate) fn continue_chain(line: &mut LineBytes) {
    line[0] &= OPCODE as u8;
}

/// A line that starts something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Request(Request),
    Notice,
}

/// A line that no honest requester writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonsense;

impl Verb {
    /// Offset of the first payload byte in the first line of a carried request.
    #[inline(always)]
    pub(crate) fn head_bytes(self) -> usize {
        match self {
            Verb::Send => 8,
            Verb::Write { .. } => 16,
            Verb::WriteImm { .. } => 24,
        }
    }

    fn opcode(self) -> u64 {
        match self {
            Verb::Send => SEND,
            Verb::Write { .. } => WRITE,
            Verb::WriteImm { .. } => WRITE_IMM,
        }
    }

    fn addr_rkey(self) -> (u64, u32) {
        match self {
            Verb::Send => (0, 0),
            Verb::Write { addr, rkey } | Verb::WriteImm { addr, rkey, .. } => (addr, rkey),
        }
    }
}

/// Lines that a carried `verb` of `len` bytes takes.
#[inline(always)]
pub(crate) fn lines_of(verb: Verb, len: usize) -> usize {
    let first = LINE_PAYLOAD - verb.head_bytes();
    if len <= first {
        1
    } else {
        1 + (len - first).div_ceil(LINE_PAYLOAD)
    }
}

/// Appends a carried request to the lines that wait for the ring, which have room for it; `fill` gets the places
/// for the payload in order. The request is the end of a chain. Behind the payload a line keeps what it held before.
#[inline(always)]
pub(crate) fn emit_carried(
    verb: Verb,
    len: usize,
    lines: &mut Fifo<LineBytes>,
    mut fill: impl FnMut(&mut [u8]),
) {
    debug_assert!(len <= CARRIED_BYTES_MAX as usize);
    let (addr, rkey) = verb.addr_rkey();
    let line = lines.claim();
    let head =
        verb.opcode() | CHAIN_END | CARRIED << 8 | (len as u64) << 16 | u64::from(rkey) << 32;
    line[..8].copy_from_slice(&head.to_le_bytes());
    match verb {
        Verb::Send => {}
        Verb::Write { .. } => line[8..16].copy_from_slice(&addr.to_le_bytes()),
        Verb::WriteImm { imm, .. } => {
            line[8..16].copy_from_slice(&addr.to_le_bytes());
            line[16..24].copy_from_slice(&u64::from(imm).to_le_bytes());
        }
    }
    let start = verb.head_bytes();
    let first = len.min(LINE_PAYLOAD - start);
    fill(&mut line[start..start + first]);
    let mut left = len - first;
    while left > 0 {
        let next = left.min(LINE_PAYLOAD);
        fill(&mut lines.claim()[..next]);
        left -= next;
    }
}

/// The one line of a request by reference, the end of a chain.
#[inline]
pub(crate) fn emit_referenced(verb: Verb, sources: &[Source], line: &mut LineBytes) {
    debug_assert!(!sources.is_empty() && sources.len() <= PIECES_MAX);
    let (addr, rkey) = verb.addr_rkey();
    let head = verb.opcode()
        | CHAIN_END
        | REFERENCED << 8
        | (sources.len() as u64) << 12
        | u64::from(rkey) << 32;
    line[..8].copy_from_slice(&head.to_le_bytes());
    line[8..16].copy_from_slice(&addr.to_le_bytes());
    for (source, place) in sources.iter().zip(line[16..48].chunks_exact_mut(16)) {
        let name = u64::from(source.export.to_bits()) | u64::from(source.len) << 32;
        place[..8].copy_from_slice(&name.to_le_bytes());
        place[8..].copy_from_slice(&source.offset.to_le_bytes());
    }
    if let Verb::WriteImm { imm, .. } = verb {
        line[48..].copy_from_slice(&u64::from(imm).to_le_bytes());
    }
}

/// The line that asks the peer to look at our acknowledgements.
pub(crate) const NOTICE_LINE: LineBytes = {
    let mut line = EMPTY_LINE;
    line[0] = NOTICE as u8;
    line
};

/// Judges the first line of a request.
#[inline]
pub(crate) fn parse(line: &Line) -> Result<Entry, Nonsense> {
    let head = line[0];
    let (addr, rkey) = (line[1], (head >> 32) as u32);
    let form = head >> 8 & 0xf;
    let imm_word = match form {
        CARRIED => line[2],
        REFERENCED => line[6],
        _ => return Err(Nonsense),
    };
    let verb = match head & OPCODE {
        SEND if rkey == 0 => Verb::Send,
        WRITE => Verb::Write { addr, rkey },
        WRITE_IMM => {
            let imm = u32::try_from(imm_word).map_err(|_| Nonsense)?;
            Verb::WriteImm { addr, rkey, imm }
        }
        NOTICE if head == NOTICE => return Ok(Entry::Notice),
        _ => return Err(Nonsense),
    };
    let chain = if head & CHAIN_END == 0 {
        Chain::More
    } else {
        Chain::End
    };
    let pieces = (head >> 12 & 0xf) as usize;
    let carried = (head >> 16 & 0xffff) as u32;
    if form == CARRIED {
        if pieces != 0 || carried > CARRIED_BYTES_MAX {
            return Err(Nonsense);
        }
        return Ok(Entry::Request(Request {
            verb,
            form: Form::Carried,
            len: carried,
            chain,
        }));
    }
    if carried != 0 || pieces == 0 || pieces > PIECES_MAX {
        return Err(Nonsense);
    }
    let total: u64 = sources(line, pieces)
        .map(|source| u64::from(source.len))
        .sum();
    if total > u64::from(MESSAGE_BYTES_MAX) {
        return Err(Nonsense);
    }
    let len = total as u32;
    Ok(Entry::Request(Request {
        verb,
        form: Form::Referenced { pieces },
        len,
        chain,
    }))
}

/// The pieces that the line of a request by reference names.
#[inline]
pub(crate) fn sources(line: &Line, pieces: usize) -> impl Iterator<Item = Source> {
    line[2..6].chunks_exact(2).take(pieces).map(|words| Source {
        export: Id::from_bits(words[0] as u32),
        offset: words[1],
        len: (words[0] >> 32) as u32,
    })
}

impl Request {
    /// Lines of the request.
    #[inline(always)]
    pub(crate) fn lines(&self) -> usize {
        match self.form {
            Form::Carried => lines_of(self.verb, self.len as usize),
            Form::Referenced { .. } => 1,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The words of a line.
    pub(crate) fn to_words(bytes: &LineBytes) -> Line {
        let mut line = Line::default();
        for (word, place) in line.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(place);
            *word = u64::from_le_bytes(eight);
        }
        line
    }

    fn verbs() -> impl Strategy<Value = Verb> {
        prop_oneof![
            Just(Verb::Send),
            (any::<u64>(), any::<u32>()).prop_map(|(addr, rkey)| Verb::Write { addr, rkey }),
            (any::<u64>(), any::<u32>(), any::<u32>())
                .prop_map(|(addr, rkey, imm)| Verb::WriteImm { addr, rkey, imm }),
        ]
    }

    fn emit(verb: Verb, message: &[u8]) -> Vec<LineBytes> {
        let mut rest = message;
        let mut lines = Fifo::new(256, [0xee; LINE_PAYLOAD]);
        emit_carried(verb, message.len(), &mut lines, |place| {
            let (now, later) = rest.split_at(place.len());
            place.copy_from_slice(now);
            rest = later;
        });
        std::iter::from_fn(|| lines.pop()).collect()
    }

    #[test]
    fn smc_sizes_take_the_lines_that_the_layout_promises() {
        let write = Verb::Write { addr: 1, rkey: 1 };
        assert_eq!(emit(write, &[1; 40]).len(), 1);
        assert_eq!(emit(write, &[1; 41]).len(), 2);
        assert_eq!(emit(write, &[1; 96]).len(), 2);
        assert_eq!(emit(write, &[1; 97]).len(), 3);
        assert_eq!(emit(Verb::Send, &[1; 44]).len(), 1);
        assert_eq!(emit(Verb::Send, &[1; 48]).len(), 1);
        assert_eq!(emit(Verb::Send, &[]).len(), 1);
        assert_eq!(
            emit(Verb::Send, &[1; 8192]).len(),
            1 + (8192 - 48usize).div_ceil(56)
        );
    }

    proptest! {
        #[test]
        fn carried_requests_come_back(
            verb in verbs(), message in proptest::collection::vec(any::<u8>(), 0..400)
        ) {
            let lines = emit(verb, &message);
            prop_assert_eq!(lines.len(), lines_of(verb, message.len()));
            let (form, len) = (Form::Carried, message.len() as u32);
            let request = Request { verb, form, len, chain: Chain::End };
            let mut line = lines[0];
            prop_assert_eq!(parse(&to_words(&line)), Ok(Entry::Request(request)));
            continue_chain(&mut line);
            let more = Request { chain: Chain::More, ..request };
            prop_assert_eq!(parse(&to_words(&line)), Ok(Entry::Request(more)));
            prop_assert_eq!(request.lines(), lines.len());
            let all = lines.concat();
            prop_assert_eq!(&all[verb.head_bytes()..][..message.len()], &message[..]);
        }

        #[test]
        fn referenced_requests_come_back(
            verb in verbs(),
            pieces in proptest::collection::vec((any::<u32>(), any::<u64>(), 0..1u32 << 29), 1..=2)
        ) {
            let named: Vec<Source> = pieces
                .into_iter()
                .map(|(bits, offset, len)| Source { export: Id::from_bits(bits), offset, len })
                .collect();
            let mut bytes = [0xee; LINE_PAYLOAD];
            emit_referenced(verb, &named, &mut bytes);
            let line = to_words(&bytes);
            let form = Form::Referenced { pieces: named.len() };
            let len = named.iter().map(|source| source.len).sum();
            let request = Request { verb, form, len, chain: Chain::End };
            prop_assert_eq!(request.lines(), 1);
            prop_assert_eq!(parse(&line), Ok(Entry::Request(request)));
            prop_assert_eq!(sources(&line, named.len()).collect::<Vec<_>>(), named);
        }

        #[test]
        fn any_line_is_judged_without_panic_and_within_limits(line in any::<Line>()) {
            if let Ok(Entry::Request(request)) = parse(&line) {
                prop_assert!(request.len <= MESSAGE_BYTES_MAX);
                prop_assert!(request.lines() <= 1 + 8192usize.div_ceil(56));
            }
        }

        #[test]
        fn lines_close_to_honest_ones_are_judged_without_panic(
            opcode in prop_oneof![0..8u64, 0x80..0x88u64], form in 0..3u64, pieces in 0..4u64, len in any::<u16>(),
            rest in any::<Line>()
        ) {
            let mut line = rest;
            line[0] = opcode | form << 8 | pieces << 12 | u64::from(len) << 16 | rest[0] << 32;
            if let Ok(Entry::Request(request)) = parse(&line) {
                prop_assert!(request.len <= MESSAGE_BYTES_MAX);
                prop_assert!(request.lines() <= 1 + 8192usize.div_ceil(56));
            }
        }
    }

    #[test]
    fn notice_is_nothing_else() {
        assert_eq!(parse(&to_words(&NOTICE_LINE)), Ok(Entry::Notice));
        assert_eq!(parse(&[NOTICE | 1 << 32, 0, 0, 0, 0, 0, 0]), Err(Nonsense));
        assert_eq!(parse(&[0; 7]), Err(Nonsense));
    }
}
