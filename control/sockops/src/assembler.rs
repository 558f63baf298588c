//! Instructions of the kernel's BPF machine, put together with named places to jump to.

use std::collections::BTreeMap;

/// One instruction, as the kernel takes it (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    code: u8,
    /// The destination in the lower half, the source in the upper one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. [`CTX`] and those up to `R9` outlive calls; `R0` is their result, `R1` to `R5` are
/// their arguments.
#[derive(Clone, Copy)]
pub(crate) struct Register(u8);

pub(crate) const R0: Register = Register(0);
pub(crate) const R1: Register = Register(1);
pub(crate) const R2: Register = Register(2);
pub(crate) const R3: Register = Register(3);
pub(crate) const R4: Register = Register(4);
pub(crate) const R5: Register = Register(5);
/// By convention of this crate: what the program was called with.
pub(crate) const CTX: Register = Register(6);
pub(crate) const R7: Register = Register(7);
pub(crate) const R8: Register = Register(8);
pub(crate) const R9: Register = Register(9);
/// The end of the stack, which grows down.
pub(crate) const STACK: Register = Register(10);

/// A comparison with a number that a jump depends on.
#[derive(Clone, Copy)]
pub(crate) enum If {
    Equal = 0x15,
    /// As signed numbers.
    Less = 0xc5,
}

/// A place to jump to.
pub(crate) type Label = &'static str;

/// Instructions so far.
#[derive(Default)]
pub(crate) struct Assembler {
    text: Vec<Instruction>,
    labels: BTreeMap<Label, usize>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.text.push(Instruction {
            code,
            registers: to.0 | from.0 << 4,
            offset,
            immediate,
        });
    }

    /// Names the place of the next instruction.
    pub(crate) fn label(&mut self, label: Label) {
        let before = self.labels.insert(label, self.text.len());
        assert!(before.is_none(), "{label} is named twice");
    }

    pub(crate) fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from, 0, 0);
    }

    pub(crate) fn set(&mut self, to: Register, number: i32) {
        self.push(0xb7, to, R0, 0, number);
    }

    pub(crate) fn add(&mut self, to: Register, number: i32) {
        self.push(0x07, to, R0, 0, number);
    }

    pub(crate) fn and(&mut self, to: Register, number: i32) {
        self.push(0x57, to, R0, 0, number);
    }

    pub(crate) fn or(&mut self, to: Register, number: i32) {
        self.push(0x47, to, R0, 0, number);
    }

    /// Reads four bytes of memory.
    pub(crate) fn load_u32(&mut self, to: Register, (base, offset): (Register, i16)) {
        self.push(0x61, to, base, offset, 0);
    }

    /// Reads eight bytes of memory.
    pub(crate) fn load_u64(&mut self, to: Register, (base, offset): (Register, i16)) {
        self.push(0x79, to, base, offset, 0);
    }

    /// Writes four bytes of memory.
    pub(crate) fn store_u32(&mut self, (base, offset): (Register, i16), from: Register) {
        self.push(0x63, base, from, offset, 0);
    }

    /// Writes a number into four bytes of memory.
    pub(crate) fn store_number(&mut self, (base, offset): (Register, i16), number: i32) {
        self.push(0x62, base, R0, offset, number);
    }

    /// Loads a map by its descriptor, which the kernel replaces.
    pub(crate) fn map(&mut self, to: Register, descriptor: i32) {
        const DESCRIPTOR: Register = Register(1);
        self.push(0x18, to, DESCRIPTOR, 0, descriptor);
        // The upper half of the number.
        self.push(0, R0, R0, 0, 0);
    }

    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.text.len(), label));
        self.push(0x05, R0, R0, 0, 0);
    }

    pub(crate) fn jump_if(&mut self, left: Register, compare: If, right: i32, label: Label) {
        self.jumps.push((self.text.len(), label));
        self.push(compare as u8, left, R0, 0, right);
    }

    /// Calls a helper of the kernel by its number.
    pub(crate) fn call(&mut self, helper: i32) {
        self.push(0x85, R0, R0, 0, helper);
    }

    pub(crate) fn exit(&mut self) {
        self.push(0x95, R0, R0, 0, 0);
    }

    /// All instructions, jumps resolved.
    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (place, label) in self.jumps {
            let target = self.labels.get(label);
            let target = *target.unwrap_or_else(|| panic!("{label} is nowhere"));
            // Counted from the instruction behind the jump. The verifier refuses circles, so all are forward.
            let offset = target.checked_sub(place + 1).expect("a jump forward");
            self.text[place].offset = i16::try_from(offset).expect("a short program");
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_laid_out_as_the_kernel_takes_them() {
        let mut text = Assembler::default();
        text.load_u32(R7, (CTX, 212));
        text.jump_if(R7, If::Equal, -2, "end");
        text.map(R1, 5);
        text.label("end");
        text.exit();
        let golden = [
            (0x61, 0x67, 212, 0),
            (0x15, 0x07, 2, -2),
            (0x18, 0x11, 0, 5),
            (0, 0, 0, 0),
            (0x95, 0, 0, 0),
        ];
        let golden = golden.map(|(code, registers, offset, immediate)| Instruction {
            code,
            registers,
            offset,
            immediate,
        });
        assert_eq!(text.finish(), golden);
        assert_eq!(size_of::<Instruction>(), 8);
    }

    #[test]
    #[should_panic(expected = "forward")]
    fn a_jump_back_is_none() {
        let mut text = Assembler::default();
        text.label("start");
        text.exit();
        text.jump("start");
        text.finish();
    }
}
