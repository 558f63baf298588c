//! The program that the kernel calls at the moments of a TCP handshake.
//!
//! | moment | it does |
//! |---|---|
//! | a marked socket is about to connect or to listen | asks to be called for its headers |
//! | the options of a segment are counted, or written | on a SYN, or a SYN-ACK to a SYN with the option: room for it, or the option |
//! | a connection is established | notes what the other side's SYN or SYN-ACK carried, and asks for no more calls |
//!
//! The option costs nothing after the handshake, and a socket without a mark one call at each moment. Other
//! programs of the kind, of another appliance for instance, may be called beside this one; marks are each
//! one's own.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::assembler::{
    Assembler, CTX, If, Instruction, Label, R0, R1, R2, R3, R4, R5, R7, R8, R9, Register, STACK,
};

/// The mark of a socket whose handshake has not been seen.
pub(crate) const MARKED: u32 = 0;
/// The other side's segment did not carry the option.
pub(crate) const SILENT: u32 = 1;
/// Both sides' segments did.
pub(crate) const SPEAKS: u32 = 2;

/// The option: experimental kind 254, its length, and "SMCR" in EBCDIC (RFC 7609, 3.1). The last two
/// bytes fill the words.
const OPTION: [u8; 8] = [254, OPTION_BYTES as u8, 0xe2, 0xd4, 0xc3, 0xd9, 0, 0];
const OPTION_BYTES: i32 = 6;
/// Where the option is put together.
const ON_STACK: (Register, i16) = (STACK, -8);

/// Where things are in what the program is called with (`struct bpf_sock_ops`).
mod context {
    pub(super) const MOMENT: i16 = 0;
    pub(super) const FIRST_ARGUMENT: i16 = 4;
    pub(super) const CALL_FLAGS: i16 = 84;
    pub(super) const SOCKET: i16 = 184;
    pub(super) const TCP_FLAGS: i16 = 212;
}

/// Moments (`BPF_SOCK_OPS_*_CB`).
mod moment {
    pub(super) const CONNECT: i32 = 3;
    pub(super) const ACTIVE_ESTABLISHED: i32 = 4;
    pub(super) const PASSIVE_ESTABLISHED: i32 = 5;
    pub(super) const LISTEN: i32 = 11;
    pub(super) const COUNT_OPTIONS: i32 = 14;
    pub(super) const WRITE_OPTIONS: i32 = 15;
}

/// Functions of the kernel (`BPF_FUNC_*`).
mod helper {
    pub(super) const SETSOCKOPT: i32 = 49;
    pub(super) const CALL_FLAGS_SET: i32 = 59;
    pub(super) const SOCKET_STORAGE_GET: i32 = 107;
    pub(super) const LOAD_OPTION: i32 = 142;
    pub(super) const STORE_OPTION: i32 = 143;
    pub(super) const RESERVE_OPTION: i32 = 144;
}

/// Asks for calls when headers are written (`BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG`).
const HEADER_CALLS: i32 = 1 << 6;
/// The first argument if a SYN-ACK answers with a cookie: nothing is remembered then, so nothing may be
/// agreed on (`BPF_WRITE_HDR_TCP_SYNACK_COOKIE`).
const COOKIE: i32 = 2;
/// Looks into the SYN instead of the segment at hand (`BPF_LOAD_HDR_OPT_TCP_SYN`).
const IN_SYN: i32 = 1;
const TCP_SYN: i32 = 0x02;
const TCP_ACK: i32 = 0x10;
const LEVEL_TCP: i32 = 6;
const TCP_SAVE_SYN: i32 = 27;

/// The instructions, for the map of marks.
pub(crate) fn text(marks: BorrowedFd<'_>) -> Vec<Instruction> {
    let mut program = Program {
        assembler: Assembler::default(),
        marks: marks.as_raw_fd(),
    };
    program.dispatch();
    program.begin();
    program.write_option();
    program.established();
    let mut text = program.assembler;
    text.label("end");
    text.set(R0, 1);
    text.exit();
    text.finish()
}

struct Program {
    assembler: Assembler,
    marks: i32,
}

impl Program {
    fn dispatch(&mut self) {
        let text = &mut self.assembler;
        text.copy(CTX, R1);
        text.load_u32(R7, (CTX, context::MOMENT));
        for (moment, label) in [
            (moment::CONNECT, "connect"),
            (moment::LISTEN, "listen"),
            (moment::COUNT_OPTIONS, "options"),
            (moment::WRITE_OPTIONS, "options"),
            (moment::ACTIVE_ESTABLISHED, "active"),
            (moment::PASSIVE_ESTABLISHED, "passive"),
        ] {
            text.jump_if(R7, If::Equal, moment, label);
        }
        text.jump("end");
    }

    /// A socket is about to connect or to listen.
    fn begin(&mut self) {
        self.assembler.label("listen");
        self.mark_or_end();
        let text = &mut self.assembler;
        // The SYN is kept until the connection is established, to be looked into then.
        text.store_number(ON_STACK, 1);
        text.copy(R1, CTX);
        text.set(R2, LEVEL_TCP);
        text.set(R3, TCP_SAVE_SYN);
        address_on_stack(text, R4);
        text.set(R5, 4);
        text.call(helper::SETSOCKOPT);
        text.jump("want");
        text.label("connect");
        self.mark_or_end();
        let text = &mut self.assembler;
        text.label("want");
        text.copy(R1, CTX);
        text.load_u32(R2, (CTX, context::CALL_FLAGS));
        text.or(R2, HEADER_CALLS);
        text.call(helper::CALL_FLAGS_SET);
        text.jump("end");
    }

    /// Options are counted, then written.
    fn write_option(&mut self) {
        let text = &mut self.assembler;
        text.label("options");
        put_option_on_stack(text);
        text.load_u32(R8, (CTX, context::TCP_FLAGS));
        text.copy(R1, R8);
        text.and(R1, TCP_SYN);
        text.jump_if(R1, If::Equal, 0, "end");
        text.and(R8, TCP_ACK);
        text.jump_if(R8, If::Equal, 0, "offer");
        // Of a SYN-ACK the listener cannot be told; that its headers come by here has to do.
        text.load_u32(R1, (CTX, context::FIRST_ARGUMENT));
        text.jump_if(R1, If::Equal, COOKIE, "end");
        text.set(R4, IN_SYN);
        find_option_or(text, "end");
        text.jump("put");
        text.label("offer");
        self.mark_or_end();
        let text = &mut self.assembler;
        text.label("put");
        text.jump_if(R7, If::Equal, moment::WRITE_OPTIONS, "write");
        text.copy(R1, CTX);
        text.set(R2, OPTION_BYTES);
        text.set(R3, 0);
        text.call(helper::RESERVE_OPTION);
        text.jump("end");
        text.label("write");
        text.copy(R1, CTX);
        address_on_stack(text, R2);
        text.set(R3, OPTION_BYTES);
        text.set(R4, 0);
        text.call(helper::STORE_OPTION);
        text.jump("end");
    }

    /// A connection is there.
    fn established(&mut self) {
        let text = &mut self.assembler;
        text.label("active");
        text.set(R8, 0);
        text.jump("note");
        text.label("passive");
        text.set(R8, IN_SYN);
        text.label("note");
        self.mark_or_end();
        let text = &mut self.assembler;
        text.copy(R9, R0);
        text.copy(R1, CTX);
        text.load_u32(R2, (CTX, context::CALL_FLAGS));
        text.and(R2, !HEADER_CALLS);
        text.call(helper::CALL_FLAGS_SET);
        put_option_on_stack(text);
        text.set(R7, SILENT as i32);
        text.copy(R4, R8);
        find_option_or(text, "found");
        text.set(R7, SPEAKS as i32);
        text.label("found");
        text.store_u32((R9, 0), R7);
        text.jump("end");
    }

    /// `R0` points to the mark of the socket, in a program of which it is one of the sockets.
    fn mark_or_end(&mut self) {
        let text = &mut self.assembler;
        text.load_u64(R2, (CTX, context::SOCKET));
        text.jump_if(R2, If::Equal, 0, "end");
        text.map(R1, self.marks);
        text.set(R3, 0);
        text.set(R4, 0);
        text.call(helper::SOCKET_STORAGE_GET);
        text.jump_if(R0, If::Equal, 0, "end");
    }
}

fn address_on_stack(text: &mut Assembler, to: Register) {
    text.copy(to, ON_STACK.0);
    text.add(to, i32::from(ON_STACK.1));
}

fn put_option_on_stack(text: &mut Assembler) {
    for (offset, word) in (ON_STACK.1..).step_by(4).zip(OPTION.chunks_exact(4)) {
        let word = [word[0], word[1], word[2], word[3]];
        text.store_number((STACK, offset), i32::from_ne_bytes(word));
    }
}

/// Looks for the option on the stack, with flags in `R4`.
fn find_option_or(text: &mut Assembler, absent: Label) {
    text.copy(R1, CTX);
    address_on_stack(text, R2);
    text.set(R3, OPTION.len() as i32);
    text.call(helper::LOAD_OPTION);
    text.jump_if(R0, If::Less, 0, absent);
}
