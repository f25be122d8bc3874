//! Arithmetic in programs: hashes, numbers in a range, checksums, classes of a histogram.

use sluicegate::filter::ebpf::{Assembler, Reg, RightSide, Size};

use crate::plan::{Finish, RandomKey, constants};
use crate::rate::Histogram;

/// to = the hash of `number` by `key`, as [`crate::plan::hash`]. Clobbers `scratch`.
pub(super) fn hash(asm: &mut Assembler, key: RandomKey, number: Reg, to: Reg, scratch: Reg) {
    let [first, second] = constants::MIX;
    if to != number {
        asm.mov(to, number);
    }
    asm.load_constant(scratch, constants::GOLDEN);
    asm.mul(to, scratch);
    asm.load_constant(scratch, key.0.wrapping_add(constants::GOLDEN));
    asm.add(to, scratch);
    mix(asm, to, scratch, 30, Some(first));
    mix(asm, to, scratch, 27, Some(second));
    mix(asm, to, scratch, 31, None);
}

fn mix(asm: &mut Assembler, to: Reg, scratch: Reg, bits: i32, factor: Option<u64>) {
    asm.mov(scratch, to).rsh(bits);
    asm.xor(to, scratch);
    if let Some(factor) = factor {
        asm.load_constant(scratch, factor);
        asm.mul(to, scratch);
    }
}

/// random = a number below `count`, as [`crate::plan::Frames`] computes it.
pub(super) fn below(asm: &mut Assembler, random: Reg, count: u64, scratch: Reg) {
    if count.is_power_of_two() {
        mask(asm, random, count - 1, scratch);
    } else if count <= 1 << 32 {
        asm.mov32(random, random);
        multiply(asm, random, count, scratch);
        asm.rsh(random, 32);
    } else {
        asm.load_constant(scratch, count);
        asm.rem(random, scratch);
    }
}

/// number = number mod count.
pub(super) fn modulo(asm: &mut Assembler, number: Reg, count: u64, scratch: Reg) {
    if count.is_power_of_two() {
        mask(asm, number, count - 1, scratch);
    } else {
        asm.load_constant(scratch, count);
        asm.rem(number, scratch);
    }
}

/// reg &= bits.
pub(super) fn mask(asm: &mut Assembler, reg: Reg, bits: u64, scratch: Reg) {
    if bits == u64::from(u32::MAX) {
        asm.mov32(reg, reg);
    } else if bits != u64::MAX {
        let bits = right_side(asm, bits, scratch);
        asm.and(reg, bits);
    }
}

/// reg += number, wrapping.
pub(super) fn add(asm: &mut Assembler, reg: Reg, number: u64, scratch: Reg) {
    if number != 0 {
        let number = right_side(asm, number, scratch);
        asm.add(reg, number);
    }
}

/// reg *= factor, wrapping.
pub(super) fn multiply(asm: &mut Assembler, reg: Reg, factor: u64, scratch: Reg) {
    if factor != 1 {
        let factor = right_side(asm, factor, scratch);
        asm.mul(reg, factor);
    }
}

/// A number as the right side of an instruction: in `scratch` if it is too large for it.
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

/// sum += a number loaded from the packet without a change of byte order.
pub(super) fn add_term(
    asm: &mut Assembler,
    sum: Reg,
    term: Reg,
    bytes: u8,
    odd: bool,
    scratch: Reg,
) {
    if bytes == 8 {
        asm.mov(scratch, term).rsh(32);
        asm.mov32(term, term).add(scratch);
    }
    if odd {
        // Folding brings the upper byte back.
        asm.lsh(term, 8);
    }
    asm.add(sum, term);
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
    // class: the power of two, found by halves; rest: the time, without what is found.
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
    // For the verifier.
    let last = Histogram::<STEP_BITS, POWERS>::CLASSES as i32 - 1;
    let known = asm.label();
    asm.jle(class, last, known);
    asm.mov(class, last);
    asm.place(known);
}

/// The registers that helpers keep, by their content.
pub(super) mod held {
    use super::Reg;

    /// The context.
    pub const CONTEXT: Reg = Reg::R6;
    /// The packet's number in its stream.
    pub const NUMBER: Reg = Reg::R7;
    /// The start of the packet.
    pub const DATA: Reg = Reg::R8;
    /// The start of the shared counters.
    pub const SHEET: Reg = Reg::R9;
}
