//! Arithmetic in programs: hashes, numbers in a range, checksums, classes of a histogram.

use sluicegate::filter::ebpf::{Alu, Assembler, Reg, RightSide, Size};

use crate::plan::{Finish, RandomKey, constants};
use crate::rate::Histogram;

/// number = its hash by `key`, as [`crate::plan::hash`]. Clobbers `scratch`.
pub(super) fn hash(asm: &mut Assembler, key: RandomKey, number: Reg, scratch: Reg) {
    let [first, second] = constants::MIX;
    calculate(asm, Alu::Mul, number, constants::GOLDEN, scratch);
    calculate(asm, Alu::Add, number, key.0.wrapping_add(constants::GOLDEN), scratch);
    for (bits, factor) in [(30, Some(first)), (27, Some(second)), (31, None)] {
        asm.mov(scratch, number).rsh(bits);
        asm.xor(number, scratch);
        if let Some(factor) = factor {
            calculate(asm, Alu::Mul, number, factor, scratch);
        }
    }
}

/// random = a number below `count`, as [`crate::plan::FrameBuilder`] computes it.
pub(super) fn below(asm: &mut Assembler, random: Reg, count: u64, scratch: Reg) {
    if count.is_power_of_two() || count > 1 << 32 {
        modulo(asm, random, count, scratch);
    } else {
        asm.mov32(random, random);
        calculate(asm, Alu::Mul, random, count, scratch);
        asm.rsh(random, 32);
    }
}

/// number = number mod count.
pub(super) fn modulo(asm: &mut Assembler, number: Reg, count: u64, scratch: Reg) {
    if count.is_power_of_two() {
        calculate(asm, Alu::And, number, count - 1, scratch);
    } else {
        calculate(asm, Alu::Rem, number, count, scratch);
    }
}

/// reg = reg, calculated with a number of 64 bits.
pub(super) fn calculate(asm: &mut Assembler, alu: Alu, reg: Reg, number: u64, scratch: Reg) {
    match (alu, number) {
        (Alu::Add, 0) | (Alu::Mul, 1) | (Alu::And, u64::MAX) => {}
        (Alu::And, 0xffff_ffff) => {
            asm.mov32(reg, reg);
        }
        _ => {
            let number = right_side(asm, number, scratch);
            asm.alu(alu, reg, number);
        }
    }
}

/// Returns a number as the right side of an instruction; loads it into `scratch` if it is too large.
fn right_side(asm: &mut Assembler, number: u64, scratch: Reg) -> RightSide {
    match i32::try_from(number.cast_signed()) {
        Ok(number) => number.into(),
        Err(_) => {
            asm.load_constant(scratch, number);
            scratch.into()
        }
    }
}

/// Stores a constant of eight bytes in the machine's byte order.
pub(super) fn store_constant(asm: &mut Assembler, base: Reg, at: i16, number: u64, scratch: Reg) {
    let number = right_side(asm, number, scratch);
    asm.store(Size::DW, base + at, number);
}

/// sum = the sum folded into 16 bits, as [`crate::plan::fold`].
pub(crate) fn fold(asm: &mut Assembler, sum: Reg, scratch: Reg) {
    asm.mov(scratch, sum).rsh(32);
    asm.mov32(sum, sum).add(scratch);
    for _ in 0..3 {
        asm.mov(scratch, sum).rsh(16);
        asm.and(sum, 0xffff).add(scratch);
    }
}

/// sum = the checksum of a sum, in the packet's byte order. A sum of numbers in memory order needs no
/// change of byte order on any machine (RFC 1071, 2 (B)).
pub(super) fn finish_sum(asm: &mut Assembler, sum: Reg, finish: Finish, scratch: Reg) {
    fold(asm, sum, scratch);
    asm.xor(sum, 0xffff);
    let done = asm.label();
    match finish {
        Finish::Plain => {}
        Finish::NeverZero => {
            asm.jne(sum, 0, done);
            asm.mov(sum, 0xffff);
        }
        Finish::Wrong => {
            let special = asm.label();
            asm.jeq(sum, 0x5555, special);
            asm.jeq(sum, 0xaaaa, special);
            asm.xor(sum, 0x5555);
            asm.jump(done);
            asm.place(special);
            asm.mov(sum, i32::from(1u16.to_be()));
        }
    }
    asm.place(done);
}

/// class = the class of a time, as [`Histogram::class`]. Clobbers the time and the scratch registers.
pub(crate) fn class<const STEP_BITS: u32, const POWERS: u32>(
    asm: &mut Assembler,
    time: Reg,
    class: Reg,
    [half, rest]: [Reg; 2],
) {
    let [fits, small] = asm.labels();
    asm.load_constant(half, (1 << POWERS) - 1);
    asm.jle(time, half, fits);
    asm.mov(time, half);
    asm.place(fits);
    asm.mov(class, time);
    asm.jlt(time, 1 << STEP_BITS, small);
    // class: the power of two, found by bisection; rest: the time, shifted by the bits found.
    asm.mov(class, 0);
    asm.mov(rest, time);
    for bits in [32, 16, 8, 4, 2, 1].into_iter().filter(|&bits| bits < POWERS as i32) {
        let less = asm.label();
        asm.mov(half, rest).rsh(bits).jeq(0, less);
        asm.mov(rest, half);
        asm.add(class, bits);
        asm.place(less);
    }
    asm.sub(class, STEP_BITS as i32);
    asm.rsh(time, class);
    asm.lsh(class, STEP_BITS as i32).add(time);
    asm.place(small);
    // Limits the class for the verifier.
    let last = Histogram::<STEP_BITS, POWERS>::CLASSES as i32 - 1;
    let known = asm.label();
    asm.jle(class, last, known);
    asm.mov(class, last);
    asm.place(known);
}

/// The registers that helpers preserve, named by their content.
pub(super) mod held {
    use super::Reg;

    /// The context.
    pub const CONTEXT: Reg = Reg::R6;
    /// The packet's number in its stream.
    pub const NUMBER: Reg = Reg::R7;
    /// The start of the packet.
    pub const DATA: Reg = Reg::R8;
    /// The start of the shared counters.
    pub const COUNTERS: Reg = Reg::R9;
}
