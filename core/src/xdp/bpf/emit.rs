//! Code that generated programs share.

use std::os::fd::AsFd;

use crate::filter::ebpf::Reg::{self, R0, R1, R2, R4, R5, R10};
use crate::filter::ebpf::{Assembler, Helper, Label, Memory, RightSide, Size};

/// Longest packet that is copied without a helper call.
const SHORT: u32 = 128;
/// Bytes of one copy step: two words.
const STEP: i16 = 16;

/// Writes a lookup in a map of the key at a stack offset: R0 = address of the value. Jumps to `none` if the
/// map has no such entry. Clobbers R1 to R5.
pub(crate) fn write_lookup(asm: &mut Assembler, map: &impl AsFd, key: i16, none: Label) {
    asm.load_map(R1, map);
    asm.mov(R2, R10).add(i32::from(key));
    asm.call(Helper::MAP_LOOKUP);
    asm.jeq(R0, 0, none);
}

/// Writes an addition to a counter that only this program writes, on one CPU at a time: no atomics.
/// Clobbers R1.
pub(crate) fn write_add(asm: &mut Assembler, counter: Memory, n: impl Into<RightSide>) {
    asm.load(Size::DW, R1, counter).add(n).store(Size::DW, counter);
}

/// A copy between a packet and other memory.
pub(crate) struct ShortCopy {
    /// The packet's length.
    pub length: Reg,
    /// The packet's start and end.
    pub data: Reg,
    pub end: Reg,
    /// The other memory. The copy changes its base register.
    pub memory: Memory,
    /// True for a copy into the packet, false for a copy out of it.
    pub to_packet: bool,
    /// Length of the memory.
    pub max_bytes: u32,
}

/// Writes a copy of a short packet by loads and stores, which take less time than a helper call, and jumps
/// to `done`. Jumps to `long` for a longer packet. `begin` writes the code before the copy. Clobbers R0,
/// R1, R4 and R5, which `copy` must not use, except R0 for the length.
///
/// The last step overlaps the previous one if the length is not a multiple of a step. The code jumps to
/// `failed` if the packet is shorter than its length: a case that only the verifier considers.
pub(crate) fn write_short_copy(
    asm: &mut Assembler,
    copy: &ShortCopy,
    begin: impl FnOnce(&mut Assembler),
    [long, done, failed]: [Label; 3],
) {
    let &ShortCopy { length, data, end, memory, to_packet, max_bytes } = copy;
    let step = i32::from(STEP);
    let steps = (SHORT.min(max_bytes) / STEP as u32) as i16;
    if steps == 0 {
        return asm.jump(long);
    }
    let copy_step = |asm: &mut Assembler, packet: Memory, memory: Memory| {
        let (from, to) = if to_packet { (memory, packet) } else { (packet, memory) };
        asm.load(Size::DW, R4, from);
        asm.load(Size::DW, R5, from.base + (from.offset + 8));
        asm.store(Size::DW, to, R4);
        asm.store(Size::DW, to.base + (to.offset + 8), R5);
    };
    let last = asm.label();
    asm.jlt(length, step, long);
    asm.jgt(length, step * i32::from(steps), long);
    begin(asm);
    asm.mov(R1, data);
    for offset in (0..steps).map(|number| number * STEP) {
        asm.add(R1, step).jgt(end, last);
        copy_step(asm, data + offset, memory.base + (memory.offset + offset));
    }
    asm.jump(done);
    asm.place(last);
    if length != R0 {
        asm.mov(R0, length);
    }
    asm.sub(R0, step);
    asm.mov(R1, data).add(R0);
    asm.mov(R4, R1).add(step).jgt(end, failed);
    asm.add(memory.base, R0);
    copy_step(asm, R1 + 0, memory);
    asm.jump(done);
}
