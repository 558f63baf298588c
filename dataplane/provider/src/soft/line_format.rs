//! Work requests as lines of a port.
//!
//! A request starts with one line. Words are 64 bits; the ring keeps word 7 for itself.
//!
//! ```text
//! word 0   bits 0..8 opcode   8..12 form   12..16 pieces   16..32 bytes carried   32..64 remote key
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

use arrayvec::ArrayVec;
use pollux_ring::LINE_PAYLOAD;

use super::table::Id;

/// Payload of a line of the ring.
pub(crate) type Line = [u64; LINE_PAYLOAD / 8];

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    /// In the line, from word `first_word` on, and in `lines - 1` lines behind it.
    Carried { first_word: usize, len: u32 },
    /// In exported segments.
    Referenced(ArrayVec<Source, PIECES_MAX>),
}

/// A line that starts something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Request { verb: Verb, payload: Payload },
    Notice,
}

/// A line that no honest requester writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonsense;

impl Verb {
    /// First payload word of a carried request.
    fn first_word(self) -> usize {
        match self {
            Verb::Send => 1,
            Verb::Write { .. } => 2,
            Verb::WriteImm { .. } => 3,
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

/// Lines that a carried request of `len` bytes takes, with `first_word` as [`Payload::Carried`] has it.
#[inline]
pub(crate) fn carried_lines(first_word: usize, len: usize) -> usize {
    let first = LINE_PAYLOAD - first_word * 8;
    1 + len.saturating_sub(first).div_ceil(LINE_PAYLOAD)
}

/// Lines that a carried `verb` of `len` bytes takes.
#[inline]
pub(crate) fn lines_of(verb: Verb, len: usize) -> usize {
    carried_lines(verb.first_word(), len)
}

/// Emits a carried request: `put` gets the lines in order, `fill` gets the places for the payload in order.
#[inline(always)]
pub(crate) fn emit_carried(
    verb: Verb,
    len: usize,
    mut fill: impl FnMut(&mut [u8]),
    mut put: impl FnMut(Line),
) {
    debug_assert!(len <= CARRIED_BYTES_MAX as usize);
    let (addr, rkey) = verb.addr_rkey();
    let mut bytes = [0; LINE_PAYLOAD];
    let head = verb.opcode() | CARRIED << 8 | (len as u64) << 16 | u64::from(rkey) << 32;
    bytes[..8].copy_from_slice(&head.to_le_bytes());
    match verb {
        Verb::Send => {}
        Verb::Write { .. } => bytes[8..16].copy_from_slice(&addr.to_le_bytes()),
        Verb::WriteImm { imm, .. } => {
            bytes[8..16].copy_from_slice(&addr.to_le_bytes());
            bytes[16..24].copy_from_slice(&u64::from(imm).to_le_bytes());
        }
    }
    let start = verb.first_word() * 8;
    let mut end = LINE_PAYLOAD.min(start + len);
    fill(&mut bytes[start..end]);
    put(to_words(&bytes));
    let mut left = len - (end - start);
    while left > 0 {
        end = LINE_PAYLOAD.min(left);
        fill(&mut bytes[..end]);
        put(to_words(&bytes));
        left -= end;
    }
}

/// The one line of a request by reference.
pub(crate) fn emit_referenced(verb: Verb, sources: &[Source]) -> Line {
    debug_assert!(!sources.is_empty() && sources.len() <= PIECES_MAX);
    let (addr, rkey) = verb.addr_rkey();
    let mut line = Line::default();
    line[0] =
        verb.opcode() | REFERENCED << 8 | (sources.len() as u64) << 12 | u64::from(rkey) << 32;
    line[1] = addr;
    for (source, words) in sources.iter().zip(line[2..6].chunks_exact_mut(2)) {
        words[0] = u64::from(source.export.to_bits()) | u64::from(source.len) << 32;
        words[1] = source.offset;
    }
    if let Verb::WriteImm { imm, .. } = verb {
        line[6] = u64::from(imm);
    }
    line
}

/// The line that asks the peer to look at our acknowledgements.
pub(crate) const NOTICE_LINE: Line = [NOTICE, 0, 0, 0, 0, 0, 0];

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
    let verb = match head & 0xff {
        SEND if rkey == 0 => Verb::Send,
        WRITE => Verb::Write { addr, rkey },
        WRITE_IMM => {
            let imm = u32::try_from(imm_word).map_err(|_| Nonsense)?;
            Verb::WriteImm { addr, rkey, imm }
        }
        NOTICE if head == NOTICE => return Ok(Entry::Notice),
        _ => return Err(Nonsense),
    };
    let pieces = (head >> 12 & 0xf) as usize;
    let len = (head >> 16 & 0xffff) as u32;
    let payload = if form == CARRIED {
        if pieces != 0 || len > CARRIED_BYTES_MAX {
            return Err(Nonsense);
        }
        Payload::Carried {
            first_word: verb.first_word(),
            len,
        }
    } else {
        if len != 0 {
            return Err(Nonsense);
        }
        Payload::Referenced(parse_sources(line, pieces)?)
    };
    Ok(Entry::Request { verb, payload })
}

fn parse_sources(line: &Line, pieces: usize) -> Result<ArrayVec<Source, PIECES_MAX>, Nonsense> {
    if pieces == 0 || pieces > PIECES_MAX {
        return Err(Nonsense);
    }
    let sources: ArrayVec<Source, PIECES_MAX> = line[2..6]
        .chunks_exact(2)
        .take(pieces)
        .map(|words| Source {
            export: Id::from_bits(words[0] as u32),
            offset: words[1],
            len: (words[0] >> 32) as u32,
        })
        .collect();
    let total: u64 = sources.iter().map(|source| u64::from(source.len)).sum();
    if total > u64::from(MESSAGE_BYTES_MAX) {
        Err(Nonsense)
    } else {
        Ok(sources)
    }
}

impl Payload {
    /// Bytes of the message.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        match self {
            Payload::Carried { len, .. } => *len,
            Payload::Referenced(sources) => sources.iter().map(|source| source.len).sum(),
        }
    }

    /// Lines of the request.
    #[inline]
    pub(crate) fn lines(&self) -> usize {
        match self {
            Payload::Carried { first_word, len } => carried_lines(*first_word, *len as usize),
            Payload::Referenced(_) => 1,
        }
    }
}

/// The bytes of a line.
#[inline(always)]
pub(crate) fn to_bytes(line: &Line) -> [u8; LINE_PAYLOAD] {
    let mut bytes = [0; LINE_PAYLOAD];
    for (word, place) in line.iter().zip(bytes.chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[inline(always)]
fn to_words(bytes: &[u8; LINE_PAYLOAD]) -> Line {
    let mut line = Line::default();
    for (word, place) in line.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(place);
        *word = u64::from_le_bytes(eight);
    }
    line
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verbs() -> impl Strategy<Value = Verb> {
        prop_oneof![
            Just(Verb::Send),
            (any::<u64>(), any::<u32>()).prop_map(|(addr, rkey)| Verb::Write { addr, rkey }),
            (any::<u64>(), any::<u32>(), any::<u32>())
                .prop_map(|(addr, rkey, imm)| Verb::WriteImm { addr, rkey, imm }),
        ]
    }

    fn emit(verb: Verb, message: &[u8]) -> Vec<Line> {
        let mut rest = message;
        let mut lines = Vec::new();
        let fill = |place: &mut [u8]| {
            let (now, later) = rest.split_at(place.len());
            place.copy_from_slice(now);
            rest = later;
        };
        emit_carried(verb, message.len(), fill, |line| lines.push(line));
        lines
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
            let Ok(Entry::Request { verb: parsed, payload }) = parse(&lines[0]) else {
                panic!("refused");
            };
            prop_assert_eq!(parsed, verb);
            prop_assert_eq!(payload.lines(), lines.len());
            prop_assert_eq!(payload.len() as usize, message.len());
            let Payload::Carried { first_word, .. } = payload else { panic!("not carried") };
            let all: Vec<u8> = lines.iter().flat_map(to_bytes).skip(first_word * 8).collect();
            prop_assert_eq!(&all[..message.len()], &message[..]);
        }

        #[test]
        fn referenced_requests_come_back(
            verb in verbs(),
            pieces in proptest::collection::vec((any::<u32>(), any::<u64>(), 0..1u32 << 29), 1..=2)
        ) {
            let sources: Vec<Source> = pieces
                .into_iter()
                .map(|(bits, offset, len)| Source { export: Id::from_bits(bits), offset, len })
                .collect();
            let entry = parse(&emit_referenced(verb, &sources));
            let payload = Payload::Referenced(sources.into_iter().collect());
            prop_assert_eq!(payload.lines(), 1);
            prop_assert_eq!(entry, Ok(Entry::Request { verb, payload }));
        }

        #[test]
        fn any_line_is_judged_without_panic_and_within_limits(line in any::<Line>()) {
            if let Ok(Entry::Request { payload, .. }) = parse(&line) {
                prop_assert!(payload.len() <= MESSAGE_BYTES_MAX);
                prop_assert!(payload.lines() <= carried_lines(3, CARRIED_BYTES_MAX as usize));
            }
        }

        #[test]
        fn lines_close_to_honest_ones_are_judged_without_panic(
            opcode in 0..8u64, form in 0..3u64, pieces in 0..4u64, len in any::<u16>(),
            rest in any::<Line>()
        ) {
            let mut line = rest;
            line[0] = opcode | form << 8 | pieces << 12 | u64::from(len) << 16 | rest[0] << 32;
            if let Ok(Entry::Request { payload, .. }) = parse(&line) {
                prop_assert!(payload.len() <= MESSAGE_BYTES_MAX);
            }
        }
    }

    #[test]
    fn notice_is_nothing_else() {
        assert_eq!(parse(&NOTICE_LINE), Ok(Entry::Notice));
        assert_eq!(parse(&[NOTICE | 1 << 32, 0, 0, 0, 0, 0, 0]), Err(Nonsense));
        assert_eq!(parse(&[0; 7]), Err(Nonsense));
    }
}
