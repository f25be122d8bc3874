//! Assembles a program, instruction by instruction.

use std::os::fd::{AsFd, AsRawFd};

use super::{
    Alu, Compare, Helper, Insn, KernelFunction, Memory, Reg, RightSide, Size, class, part, pseudo,
};

/// A program under construction. Each method adds one instruction (or one wide one), with the destination
/// first, as in the kernel's notation. Methods that end in 32 work on the lower 32 bits of their registers
/// and clear the upper bits of the destination.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    items: Vec<Item>,
    /// The item after each label.
    labels: Vec<Option<usize>>,
    placed_twice: bool,
}

impl Assembler {
    /// Creates a program without instructions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a label, to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Creates several labels, to be placed later.
    pub fn labels<const N: usize>(&mut self) -> [Label; N] {
        std::array::from_fn(|_| self.label())
    }

    /// Places a label before the next instruction. A label can be placed only once.
    pub fn place(&mut self, label: Label) {
        match self.labels.get_mut(label.0) {
            Some(place @ None) => *place = Some(self.items.len()),
            _ => self.placed_twice = true,
        }
    }

    /// Creates a label before the next instruction, for backward jumps.
    pub fn here(&mut self) -> Label {
        let label = self.label();
        self.place(label);
        label
    }

    /// Returns the program in the kernel's form, without unreachable instructions and without jumps to the
    /// next instruction.
    ///
    /// # Errors
    /// [`Fault`]: a label in use is not placed or was placed twice, a jump is too far, the
    /// program is too long or runs past its end.
    pub fn finish(&self) -> Result<Vec<Insn>, Fault> {
        if self.placed_twice {
            return Err(Fault::PlacedTwice);
        }
        let mut kept = self.reachable()?;
        self.leave_out_idle_jumps(&mut kept)?;
        let mut starts = Vec::with_capacity(self.items.len() + 1);
        let mut insns = 0;
        for (item, kept) in self.items.iter().zip(&kept) {
            starts.push(insns);
            insns += if *kept { 1 + usize::from(item.upper.is_some()) } else { 0 };
        }
        if insns > MAX_INSNS {
            return Err(Fault::TooLong(insns));
        }
        let mut program = Vec::with_capacity(insns);
        let items = self.items.iter().zip(&starts).zip(&kept);
        for ((item, start), _) in items.filter(|(_, kept)| **kept) {
            let mut insn = item.insn;
            if let Some(label) = item.to {
                let by = starts[self.target(label)?].cast_signed() - start.cast_signed() - 1;
                insn.off = by.try_into().map_err(|_| Fault::TooFar(by.unsigned_abs()))?;
            }
            program.push(insn);
            let upper = item.upper.map(u32::cast_signed);
            program.extend(upper.map(|imm| Insn { imm, ..Insn::default() }));
        }
        Ok(program)
    }

    fn target(&self, label: Label) -> Result<usize, Fault> {
        self.labels.get(label.0).copied().flatten().ok_or(Fault::Unplaced)
    }

    /// Finds the items that a run may reach; the verifier rejects a program with unreachable ones.
    fn reachable(&self) -> Result<Vec<bool>, Fault> {
        let mut reached = vec![false; self.items.len()];
        let mut open = vec![0];
        while let Some(mut at) = open.pop() {
            loop {
                match reached.get_mut(at) {
                    None => return Err(Fault::NoEnd),
                    Some(true) => break,
                    Some(reached) => *reached = true,
                }
                let item = &self.items[at];
                if item.insn.code == class::JMP | part::EXIT {
                    break;
                }
                let to = item.to.map(|label| self.target(label)).transpose()?;
                match to {
                    Some(to) if item.is_jump() => at = to,
                    to => {
                        open.extend(to);
                        at += 1;
                    }
                }
            }
        }
        Ok(reached)
    }

    /// Removes jumps to the next instruction, starting at the end, because a removal may make an earlier jump
    /// redundant.
    fn leave_out_idle_jumps(&self, kept: &mut [bool]) -> Result<(), Fault> {
        let mut next_kept = self.items.len();
        for (at, item) in self.items.iter().enumerate().rev() {
            if !kept[at] {
                continue;
            }
            if let Some(label) = item.to
                && item.is_jump()
                && (at + 1..=next_kept).contains(&self.target(label)?)
            {
                kept[at] = false;
            } else {
                next_kept = at;
            }
        }
        Ok(())
    }

    fn push(&mut self, code: u8, dst: Reg, src: Reg, off: i16, imm: i32) {
        self.add_item(Insn::new(code, dst, src as u8, off, imm), None);
    }

    fn add_item(&mut self, insn: Insn, upper: Option<u32>) {
        self.items.push(Item { insn, upper, to: None });
    }

    /// Adds an instruction with a register or a constant as its right side.
    fn push_with(&mut self, code: u8, dst: Reg, source: RightSide) {
        match source {
            RightSide::Reg(src) => self.push(code | part::X, dst, src, 0, 0),
            RightSide::Imm(imm) => self.push(code, dst, Reg::R0, 0, imm),
        }
    }

    /// Sets a label as the target of the last instruction.
    fn aim(&mut self, to: Label) {
        if let Some(last) = self.items.last_mut() {
            last.to = Some(to);
        }
    }

    /// dst = dst, calculated with the source, on 64 bits.
    pub fn alu(&mut self, alu: Alu, dst: Reg, source: impl Into<RightSide>) {
        self.push_with(class::ALU64 | alu as u8, dst, source.into());
    }

    /// dst = dst, calculated with the source, on 32 bits.
    pub fn alu32(&mut self, alu: Alu, dst: Reg, source: impl Into<RightSide>) {
        self.push_with(class::ALU | alu as u8, dst, source.into());
    }

    /// dst = source.
    pub fn mov(&mut self, dst: Reg, source: impl Into<RightSide>) -> Chain<'_> {
        self.push_with(class::ALU64 | part::MOV, dst, source.into());
        Chain { asm: self, dst }
    }

    /// dst = the lower half of the source.
    pub fn mov32(&mut self, dst: Reg, source: impl Into<RightSide>) -> Chain<'_> {
        self.push_with(class::ALU | part::MOV, dst, source.into());
        Chain { asm: self, dst }
    }

    /// dst = -dst.
    pub fn neg(&mut self, dst: Reg) {
        self.push(class::ALU64 | part::NEG, dst, Reg::R0, 0, 0);
    }

    /// dst = -dst, on 32 bits.
    pub fn neg32(&mut self, dst: Reg) {
        self.push(class::ALU | part::NEG, dst, Reg::R0, 0, 0);
    }

    /// Converts the lower bytes of a register between the machine's order and the network's, and
    /// clears the upper ones. A byte has no order and needs no instruction.
    pub fn to_be(&mut self, size: Size, dst: Reg) {
        if size != Size::B {
            let bits = size.bytes().cast_signed() * 8;
            self.push(class::ALU | part::END | part::TO_BE, dst, Reg::R0, 0, bits);
        }
    }

    /// dst = the memory's value, zero-extended.
    pub fn load(&mut self, size: Size, dst: Reg, from: Memory) -> Chain<'_> {
        self.push(class::LDX | part::MEM | size as u8, dst, from.base, from.offset, 0);
        Chain { asm: self, dst }
    }

    /// Stores a register's lower bytes, or a constant.
    pub fn store(&mut self, size: Size, to: Memory, source: impl Into<RightSide>) {
        match source.into() {
            RightSide::Reg(src) => {
                self.push(class::STX | part::MEM | size as u8, to.base, src, to.offset, 0);
            }
            RightSide::Imm(imm) => {
                self.push(class::ST | part::MEM | size as u8, to.base, Reg::R0, to.offset, imm);
            }
        }
    }

    /// Adds a register to memory, atomically; the register gets the former value. A [`Size::W`] or
    /// [`Size::DW`]. Linux 5.12.
    pub fn atomic_fetch_add(&mut self, size: Size, to: Memory, src: Reg) {
        let code = class::STX | part::ATOMIC | size as u8;
        self.push(code, to.base, src, to.offset, Alu::Add as i32 | part::FETCH);
    }

    /// dst = a constant of 64 bits.
    pub fn load_constant(&mut self, dst: Reg, constant: u64) {
        self.wide(dst, 0, constant as u32, (constant >> 32) as u32);
    }

    /// dst = a map, in the form that helpers take. The descriptor must be open when the program is loaded;
    /// from then on the program itself holds the map.
    pub fn load_map(&mut self, dst: Reg, map: impl AsFd) {
        let fd = map.as_fd().as_raw_fd().cast_unsigned();
        self.wide(dst, pseudo::MAP_FD, fd, 0);
    }

    /// dst = a pointer into the value of an array map of one entry, `offset` bytes from its
    /// start. As with [`load_map`](Self::load_map), the descriptor must be open. Linux 5.2.
    pub fn load_map_value(&mut self, dst: Reg, map: impl AsFd, offset: u32) {
        let fd = map.as_fd().as_raw_fd().cast_unsigned();
        self.wide(dst, pseudo::MAP_VALUE, fd, offset);
    }

    fn wide(&mut self, dst: Reg, meaning: u8, low: u32, high: u32) {
        let code = class::LD | Size::DW as u8;
        self.add_item(Insn::new(code, dst, meaning, 0, low.cast_signed()), Some(high));
    }

    /// R0 = the helper's return value; R1 to R5 are undefined afterwards.
    pub fn call(&mut self, helper: Helper) {
        self.push(class::JMP | part::CALL, Reg::R0, Reg::R0, 0, helper.0);
    }

    /// Calls a function of the kernel (kfunc).
    pub fn call_kernel(&mut self, function: KernelFunction) {
        let code = class::JMP | part::CALL;
        self.add_item(Insn::new(code, Reg::R0, pseudo::KERNEL_FUNCTION, 0, function.0), None);
    }

    /// Ends the program; R0 is its return value.
    pub fn exit(&mut self) {
        self.push(class::JMP | part::EXIT, Reg::R0, Reg::R0, 0, 0);
    }

    /// Jumps to the label.
    pub fn jump(&mut self, to: Label) {
        self.push(class::JMP | part::JA, Reg::R0, Reg::R0, 0, 0);
        self.aim(to);
    }

    /// Jumps to the label if the comparison of dst with the source holds.
    pub fn branch(&mut self, compare: Compare, dst: Reg, source: impl Into<RightSide>, to: Label) {
        self.push_with(class::JMP | compare as u8, dst, source.into());
        self.aim(to);
    }

    /// Jumps like [`branch`](Self::branch), but compares only the lower 32 bits. Linux 5.1.
    pub fn branch32(
        &mut self,
        compare: Compare,
        dst: Reg,
        source: impl Into<RightSide>,
        to: Label,
    ) {
        self.push_with(class::JMP32 | compare as u8, dst, source.into());
        self.aim(to);
    }
}

/// The register written last. Its methods add further instructions on it, as in `asm.mov(R1,
/// R2).rsh(6).and(63)` and `asm.load(W, R1, R2 + 4).jeq(0, end)`.
#[derive(Debug)]
pub struct Chain<'a> {
    asm: &'a mut Assembler,
    dst: Reg,
}

impl Chain<'_> {
    /// Calls [`Assembler::to_be`] with the register.
    pub fn to_be(self, size: Size) -> Self {
        self.asm.to_be(size, self.dst);
        self
    }

    /// Stores the register, as [`Assembler::store`].
    pub fn store(self, size: Size, to: Memory) {
        self.asm.store(size, to, self.dst);
    }
}

/// The short names of [`Assembler::alu`] and [`Assembler::alu32`].
macro_rules! calculations {
    ($($alu:ident $name:ident $name32:ident $sign:literal)*) => {
        #[expect(clippy::should_implement_trait, reason = "the names are the instructions'")]
        impl Chain<'_> {$(
            #[doc = concat!("dst = dst ", $sign, " source.")]
            pub fn $name(self, source: impl Into<RightSide>) -> Self {
                self.asm.alu(Alu::$alu, self.dst, source);
                self
            }
        )*}

        impl Assembler {$(
            #[doc = concat!("dst = dst ", $sign, " source.")]
            pub fn $name(&mut self, dst: Reg, source: impl Into<RightSide>) -> Chain<'_> {
                self.alu(Alu::$alu, dst, source);
                Chain { asm: self, dst }
            }

            #[doc = concat!("dst = dst ", $sign, " source, on 32 bits.")]
            pub fn $name32(&mut self, dst: Reg, source: impl Into<RightSide>) {
                self.alu32(Alu::$alu, dst, source);
            }
        )*}
    };
}

calculations! {
    Add  add  add32  "+"
    Sub  sub  sub32  "-"
    Mul  mul  mul32  "×"
    Div  div  div32  "/"
    Rem  rem  rem32  "mod"
    Or   or   or32   "|"
    And  and  and32  "&"
    Xor  xor  xor32  "^"
    Lsh  lsh  lsh32  "<<"
    Rsh  rsh  rsh32  ">>"
    Arsh arsh arsh32 ">> (with sign)"
}

/// The short names of [`Assembler::branch`] and [`Assembler::branch32`].
macro_rules! branches {
    ($($compare:ident $name:ident $name32:ident $sign:literal)*) => {
        impl Chain<'_> {$(
            #[doc = concat!("Goes to the label if dst ", $sign, " source.")]
            pub fn $name(self, source: impl Into<RightSide>, to: Label) {
                self.asm.branch(Compare::$compare, self.dst, source, to);
            }
        )*}

        impl Assembler {$(
            #[doc = concat!("Goes to the label if dst ", $sign, " source.")]
            pub fn $name(&mut self, dst: Reg, source: impl Into<RightSide>, to: Label) {
                self.branch(Compare::$compare, dst, source, to);
            }

            #[doc = concat!("Goes to the label if dst ", $sign, " source, on 32 bits. Linux 5.1.")]
            pub fn $name32(&mut self, dst: Reg, source: impl Into<RightSide>, to: Label) {
                self.branch32(Compare::$compare, dst, source, to);
            }
        )*}
    };
}

branches! {
    Eq  jeq  jeq32  "=="
    Ne  jne  jne32  "!="
    Gt  jgt  jgt32  ">"
    Ge  jge  jge32  ">="
    Lt  jlt  jlt32  "<"
    Le  jle  jle32  "<="
    Set jset jset32 "has a bit in common with"
    Sgt jsgt jsgt32 "> (with sign)"
    Sge jsge jsge32 ">= (with sign)"
    Slt jslt jslt32 "< (with sign)"
    Sle jsle jsle32 "<= (with sign)"
}

/// The maximum length of a program from a privileged user (Linux 5.2, `BPF_COMPLEXITY_LIMIT_INSNS`).
pub const MAX_INSNS: usize = 1_000_000;

/// The error for an invalid program.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A jump leads to a label that was never placed.
    #[error("a jump leads to a label that is placed nowhere")]
    Unplaced,
    /// A label was placed twice, or belongs to another program.
    #[error("a label is placed twice")]
    PlacedTwice,
    /// A jump is too far for its 16 bits.
    #[error("a jump over {0} instructions is too far, 32,767 are possible")]
    TooFar(usize),
    /// The kernel accepts no program of this length.
    #[error("{0} instructions are too many, the kernel takes {MAX_INSNS}")]
    TooLong(usize),
    /// The program can run past its last instruction.
    #[error("the program runs past its end")]
    NoEnd,
}

/// A target of jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// An instruction whose offset is not yet known.
#[derive(Clone, Copy, Debug)]
struct Item {
    insn: Insn,
    /// The upper half of a wide constant, in a second instruction.
    upper: Option<u32>,
    /// The target of its jump.
    to: Option<Label>,
}

impl Item {
    fn is_jump(&self) -> bool {
        self.insn.code == class::JMP | part::JA
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reg::*, Size::*};
    use super::*;

    /// Returns one instruction as the eight bytes that the kernel reads on a little-endian machine.
    fn bytes(write: impl FnOnce(&mut Assembler)) -> Vec<u64> {
        let mut asm = Assembler::new();
        write(&mut asm);
        asm.exit();
        let insns = asm.finish().unwrap();
        let word = |insn: &Insn| {
            // The C bit fields of the two registers change places with the byte order.
            let little = cfg!(target_endian = "little");
            let registers = if little { insn.registers } else { insn.registers.rotate_left(4) };
            u64::from(insn.code)
                | u64::from(registers) << 8
                | u64::from(insn.off.cast_unsigned()) << 16
                | u64::from(insn.imm.cast_unsigned()) << 32
        };
        insns[..insns.len() - 1].iter().map(word).collect()
    }

    #[test]
    fn instructions_are_those_clang_writes() {
        type Write = fn(&mut Assembler);
        let stdin = |asm: &mut Assembler| asm.load_map(R1, std::io::stdin());
        // As `llvm-mc -triple=bpfel -mcpu=v3` encodes those that it supports.
        let rows: &[(&str, Write, &[u64])] = &[
            (
                "r6 = r1",
                |asm| {
                    asm.mov(R6, R1);
                },
                &[0x0000_0000_0000_16bf],
            ),
            (
                "w0 = -1",
                |asm| {
                    asm.mov32(R0, -1);
                },
                &[0xffff_ffff_0000_00b4],
            ),
            (
                "r2 += 14",
                |asm| {
                    asm.add(R2, 14);
                },
                &[0x0000_000e_0000_0207],
            ),
            ("w3 -= w4", |asm| asm.sub32(R3, R4), &[0x0000_0000_0000_431c]),
            (
                "r9 s>>= 3",
                |asm| {
                    asm.arsh(R9, 3);
                },
                &[0x0000_0003_0000_09c7],
            ),
            ("w5 %= 7", |asm| asm.rem32(R5, 7), &[0x0000_0007_0000_0594]),
            ("w1 = -w1", |asm| asm.neg32(R1), &[0x0000_0000_0000_0184]),
            ("r1 = be16 r1", |asm| asm.to_be(H, R1), &[0x0000_0010_0000_01dc]),
            ("a byte has no order", |asm| asm.to_be(B, R1), &[]),
            (
                "r2 = *(u32 *)(r1 + 4)",
                |asm| {
                    asm.load(W, R2, R1 + 4);
                },
                &[0x0000_0000_0004_1261],
            ),
            ("*(u64 *)(r10 - 8) = r3", |asm| asm.store(DW, R10 - 8, R3), &[0xfff8_3a7b]),
            ("*(u8 *)(r2 + 1) = 9", |asm| asm.store(B, R2 + 1, 9), &[0x0000_0009_0001_0272]),
            (
                "r1 = atomic_fetch_add(r2 + 0, r1)",
                |asm| asm.atomic_fetch_add(W, R2 + 0, R1),
                &[0x0000_0001_0000_12c3],
            ),
            (
                "r7 = 0x1122334455667788 ll",
                |asm| asm.load_constant(R7, 0x1122_3344_5566_7788),
                &[0x5566_7788_0000_0718, 0x1122_3344_0000_0000],
            ),
            ("r1 = map fd 0", stdin, &[0x0000_0000_0000_1118, 0]),
            (
                "r1 = value of map fd 0, + 16",
                |asm| asm.load_map_value(R1, std::io::stdin(), 16),
                &[0x0000_0000_0000_2118, 0x0000_0010_0000_0000],
            ),
            ("call 189", |asm| asm.call(Helper::XDP_LOAD_BYTES), &[0x0000_00bd_0000_0085]),
            (
                "call a kernel function",
                |asm| asm.call_kernel(KernelFunction(66_161)),
                &[0x0001_0271_0000_2085],
            ),
        ];
        for (sentence, write, expected) in rows {
            assert_eq!(bytes(write), *expected, "{sentence}");
        }
    }

    #[test]
    fn branches_count_from_the_instruction_after_them() {
        let words = bytes(|asm| {
            let back = asm.here();
            let on = asm.label();
            asm.jge(R1, R2, on);
            asm.load_constant(R3, 1);
            asm.jset32(R3, 0x10, back);
            asm.place(on);
        });
        assert_eq!(words[0], 0x0000_0000_0003_213d, "over a wide instruction, which counts twice");
        assert_eq!(words[3], 0x0000_0010_fffc_0346, "back");
    }

    fn finish(write: impl FnOnce(&mut Assembler)) -> Result<usize, Fault> {
        let mut asm = Assembler::new();
        write(&mut asm);
        asm.finish().map(|insns| insns.len())
    }

    fn jump_over(between: usize) -> Result<usize, Fault> {
        finish(|asm| {
            let end = asm.label();
            asm.jeq(R1, 0, end);
            (0..between).for_each(|_| {
                asm.mov(R0, 0);
            });
            asm.place(end);
            asm.exit();
        })
    }

    #[test]
    fn an_invalid_program_is_refused() {
        type Write = fn(&mut Assembler);
        let rows: &[(&str, Write, Result<usize, Fault>)] = &[
            ("nothing at all runs past its end", |_| (), Err(Fault::NoEnd)),
            (
                "no exit",
                |asm| {
                    asm.mov(R0, 0);
                },
                Err(Fault::NoEnd),
            ),
            (
                "a label at the very end",
                |asm| {
                    let end = asm.label();
                    asm.jeq(R1, 0, end);
                    asm.exit();
                    asm.place(end);
                },
                Err(Fault::NoEnd),
            ),
            (
                "a label nowhere",
                |asm| {
                    let nowhere = asm.label();
                    asm.jump(nowhere);
                },
                Err(Fault::Unplaced),
            ),
            (
                "a label in two places",
                |asm| {
                    let label = asm.here();
                    asm.place(label);
                    asm.exit();
                },
                Err(Fault::PlacedTwice),
            ),
            (
                "a label of another program",
                |asm| {
                    let theirs = Assembler::new().label();
                    asm.jump(theirs);
                },
                Err(Fault::Unplaced),
            ),
            (
                "a loop needs no end",
                |asm| {
                    let top = asm.here();
                    asm.jump(top)
                },
                Ok(1),
            ),
        ];
        for (sentence, write, expected) in rows {
            assert_eq!(finish(write), *expected, "{sentence}");
        }
        assert_eq!(jump_over(32_767), Ok(32_769), "as far as 16 bits reach");
        assert_eq!(jump_over(32_768), Err(Fault::TooFar(32_768)));
        let long = finish(|asm| {
            (0..MAX_INSNS).for_each(|_| {
                asm.mov(R0, 0);
            });
            asm.exit();
        });
        assert_eq!(long, Err(Fault::TooLong(MAX_INSNS + 1)));
    }

    #[test]
    fn unreachable_code_and_idle_jumps_are_left_out() {
        type Write = fn(&mut Assembler);
        let rows: &[(&str, Write, usize)] = &[
            (
                "instructions behind an exit",
                |asm| {
                    asm.exit();
                    asm.mov(R0, 1);
                    asm.exit();
                },
                1,
            ),
            (
                "jumps to the next instruction, one before the other",
                |asm| {
                    let [first, second] = asm.labels();
                    asm.jump(second);
                    asm.place(first);
                    asm.jump(second);
                    asm.place(second);
                    asm.exit();
                },
                1,
            ),
            (
                "a jump over unreachable instructions",
                |asm| {
                    let over = asm.label();
                    asm.jump(over);
                    asm.mov(R0, 1);
                    asm.exit();
                    asm.place(over);
                    asm.exit();
                },
                1,
            ),
            (
                "not a jump over reachable instructions",
                |asm| {
                    let [over, between] = asm.labels();
                    asm.jeq(R1, 0, between);
                    asm.jump(over);
                    asm.place(between);
                    asm.mov(R0, 1);
                    asm.place(over);
                    asm.exit();
                },
                4,
            ),
        ];
        for (sentence, write, insns) in rows {
            assert_eq!(finish(write), Ok(*insns), "{sentence}");
        }
    }
}
