//! Writing a program, instruction by instruction.

use std::os::fd::{AsFd, AsRawFd};

use super::insn::{
    Alu, Compare, Helper, Insn, KernelFunction, Memory, Reg, RightSide, Size, class, part, pseudo,
};
use super::layout::{self, Fault, Item, Label};

/// A program under construction. Methods add one instruction each (or one wide one), in the
/// notation of the kernel: the destination first. Those that end in 32 work on the lower 32 bits
/// of their registers and clear the upper ones of the destination.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    items: Vec<Item>,
    /// For each label, the item it stands before.
    labels: Vec<Option<usize>>,
    placed_twice: bool,
}

impl Assembler {
    /// A program without instructions.
    pub fn new() -> Self {
        Self::default()
    }

    /// A label, to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Several labels, to be placed later.
    pub fn labels<const N: usize>(&mut self) -> [Label; N] {
        std::array::from_fn(|_| self.label())
    }

    /// Places a label before what comes next. It can be placed once.
    pub fn place(&mut self, label: Label) {
        match self.labels.get_mut(label.0) {
            Some(place @ None) => *place = Some(self.items.len()),
            _ => self.placed_twice = true,
        }
    }

    /// A label placed before what comes next, for jumps back.
    pub fn here(&mut self) -> Label {
        let label = self.label();
        self.place(label);
        label
    }

    /// The program as the kernel takes it, without what cannot be reached and without jumps to
    /// what comes next anyway.
    ///
    /// # Errors
    /// [`Fault`]: a label in use is not placed or was placed twice, a jump is too far, the
    /// program is too long or runs past its end.
    pub fn finish(&self) -> Result<Vec<Insn>, Fault> {
        if self.placed_twice {
            return Err(Fault::PlacedTwice);
        }
        layout::lay_out(&self.items, &self.labels)
    }

    fn push(&mut self, code: u8, dst: Reg, src: Reg, off: i16, imm: i32) {
        self.items.push(Item::plain(Insn::new(code, dst, src, off, imm)));
    }

    /// Adds an instruction whose right side may be either.
    fn push_with(&mut self, code: u8, dst: Reg, source: RightSide) {
        match source {
            RightSide::Reg(src) => self.push(code | part::X, dst, src, 0, 0),
            RightSide::Imm(imm) => self.push(code, dst, Reg::R0, 0, imm),
        }
    }

    /// Makes the last instruction lead to a label.
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
    pub fn mov(&mut self, dst: Reg, source: impl Into<RightSide>) {
        self.push_with(class::ALU64 | part::MOV, dst, source.into());
    }

    /// dst = the lower half of the source.
    pub fn mov32(&mut self, dst: Reg, source: impl Into<RightSide>) {
        self.push_with(class::ALU | part::MOV, dst, source.into());
    }

    /// dst = -dst.
    pub fn neg(&mut self, dst: Reg) {
        self.push(class::ALU64 | part::NEG, dst, Reg::R0, 0, 0);
    }

    /// dst = -dst, on 32 bits.
    pub fn neg32(&mut self, dst: Reg) {
        self.push(class::ALU | part::NEG, dst, Reg::R0, 0, 0);
    }

    /// Turns the lower bytes of a register from the machine's order into the network's, or
    /// back, and clears the upper ones. A byte has no order and needs no instruction.
    pub fn to_be(&mut self, size: Size, dst: Reg) {
        self.swap(part::TO_BE, size, dst);
    }

    /// Converts little-endian bytes.
    pub fn to_le(&mut self, size: Size, dst: Reg) {
        self.swap(part::TO_LE, size, dst);
    }

    fn swap(&mut self, order: u8, size: Size, dst: Reg) {
        if size != Size::B {
            let bits = size.bytes().cast_signed() * 8;
            self.push(class::ALU | part::END | order, dst, Reg::R0, 0, bits);
        }
    }

    /// dst = the memory's value, zero-extended.
    pub fn load(&mut self, size: Size, dst: Reg, from: Memory) {
        self.push(class::LDX | part::MEM | size as u8, dst, from.base, from.offset, 0);
    }

    /// Puts a register's lower bytes, or a constant, there.
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

    /// Adds a register to memory, atomically. A [`Size::W`] or
    /// [`Size::DW`].
    pub fn atomic_add(&mut self, size: Size, to: Memory, src: Reg) {
        let code = class::STX | part::ATOMIC | size as u8;
        self.push(code, to.base, src, to.offset, Alu::Add as i32);
    }

    /// Adds a register to memory, atomically; the register gets the former value. Linux 5.12.
    pub fn atomic_fetch_add(&mut self, size: Size, to: Memory, src: Reg) {
        let code = class::STX | part::ATOMIC | size as u8;
        self.push(code, to.base, src, to.offset, Alu::Add as i32 | part::FETCH);
    }

    /// dst = a constant of 64 bits.
    pub fn load_constant(&mut self, dst: Reg, constant: u64) {
        self.wide(dst, 0, constant as u32, (constant >> 32) as u32);
    }

    /// dst = a map, as helpers take it. The descriptor must be open when the program is loaded;
    /// from then on the program holds the map itself.
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
        let insn = Insn::new(code, dst, Reg::R0, 0, low.cast_signed());
        self.items.push(Item::wide(insn.with_pseudo_source(dst, meaning), high));
    }

    /// R0 = the helper's answer; R1 to R5 hold nothing afterwards.
    pub fn call(&mut self, helper: Helper) {
        self.push(class::JMP | part::CALL, Reg::R0, Reg::R0, 0, helper.0);
    }

    /// Calls a function of the kernel (kfunc).
    pub fn call_kernel(&mut self, function: KernelFunction) {
        let insn = Insn::new(class::JMP | part::CALL, Reg::R0, Reg::R0, 0, function.0);
        self.items.push(Item::plain(insn.with_pseudo_source(Reg::R0, pseudo::KERNEL_FUNCTION)));
    }

    /// Ends the program; R0 is its answer.
    pub fn exit(&mut self) {
        self.push(class::JMP | part::EXIT, Reg::R0, Reg::R0, 0, 0);
    }

    /// Goes to the label.
    pub fn jump(&mut self, to: Label) {
        self.push(class::JMP | part::JA, Reg::R0, Reg::R0, 0, 0);
        self.aim(to);
    }

    /// Goes to the label if dst compares so with the source.
    pub fn branch(&mut self, compare: Compare, dst: Reg, source: impl Into<RightSide>, to: Label) {
        self.push_with(class::JMP | compare as u8, dst, source.into());
        self.aim(to);
    }

    /// Compares the lower 32 bits of both. Linux 5.1.
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

/// The short names of [`Assembler::alu`] and [`Assembler::alu32`].
macro_rules! calculations {
    ($($alu:ident $name:ident $name32:ident $sign:literal)*) => {
        impl Assembler {$(
            #[doc = concat!("dst = dst ", $sign, " source.")]
            pub fn $name(&mut self, dst: Reg, source: impl Into<RightSide>) {
                self.alu(Alu::$alu, dst, source);
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

#[cfg(test)]
mod tests {
    use super::super::insn::{Reg::*, Size::*};
    use super::*;

    /// One instruction, as the eight bytes the kernel reads on a little-endian machine.
    fn bytes(write: impl FnOnce(&mut Assembler)) -> Vec<u64> {
        let mut asm = Assembler::new();
        write(&mut asm);
        asm.exit();
        let insns = asm.finish().unwrap();
        let word = |insn: &Insn| {
            let (dst, src) = insn.dst_and_src();
            u64::from(insn.code)
                | u64::from(src << 4 | dst) << 8
                | u64::from(insn.off.cast_unsigned()) << 16
                | u64::from(insn.imm.cast_unsigned()) << 32
        };
        insns[..insns.len() - 1].iter().map(word).collect()
    }

    #[test]
    fn instructions_are_those_clang_writes() {
        type Write = fn(&mut Assembler);
        let stdin = |asm: &mut Assembler| asm.load_map(R1, std::io::stdin());
        // Those `llvm-mc -triple=bpfel -mcpu=v3` can write, it writes so.
        let rows: &[(&str, Write, &[u64])] = &[
            ("r6 = r1", |asm| asm.mov(R6, R1), &[0x0000_0000_0000_16bf]),
            ("w0 = -1", |asm| asm.mov32(R0, -1), &[0xffff_ffff_0000_00b4]),
            ("r2 += 14", |asm| asm.add(R2, 14), &[0x0000_000e_0000_0207]),
            ("w3 -= w4", |asm| asm.sub32(R3, R4), &[0x0000_0000_0000_431c]),
            ("r9 s>>= 3", |asm| asm.arsh(R9, 3), &[0x0000_0003_0000_09c7]),
            ("w5 %= 7", |asm| asm.rem32(R5, 7), &[0x0000_0007_0000_0594]),
            ("w1 = -w1", |asm| asm.neg32(R1), &[0x0000_0000_0000_0184]),
            ("r1 = be16 r1", |asm| asm.to_be(H, R1), &[0x0000_0010_0000_01dc]),
            ("r1 = le64 r1", |asm| asm.to_le(DW, R1), &[0x0000_0040_0000_01d4]),
            ("a byte has no order", |asm| asm.to_be(B, R1), &[]),
            ("r2 = *(u32 *)(r1 + 4)", |asm| asm.load(W, R2, R1 + 4), &[0x0000_0000_0004_1261]),
            ("*(u64 *)(r10 - 8) = r3", |asm| asm.store(DW, R10 - 8, R3), &[0xfff8_3a7b]),
            ("*(u8 *)(r2 + 1) = 9", |asm| asm.store(B, R2 + 1, 9), &[0x0000_0009_0001_0272]),
            ("lock *(u64 *)(r2 + 8) += r1", |asm| asm.atomic_add(DW, R2 + 8, R1), &[0x0008_12db]),
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
}
