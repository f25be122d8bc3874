//! How long a packet was on its way.

use sluicegate::filter::ebpf::Reg::*;
use sluicegate::filter::ebpf::{Helper, Reg, Size};

use super::layout::{DELAYS, delay};
use super::number::{NUMBER, STREAM, TIME};
use super::{Piece, STATE};
use crate::analyse::report::MAX_NS;
use crate::live::arith;
use crate::rate::Latencies;

/// One of so many packets is asked: 2 to this.
const SAMPLE_BITS: i32 = 4;
/// Spreads numbers over all of 32 bits, so that no pattern in the traffic meets one in the choice.
const SPREAD: i32 = 0x9e37_79b1_u32.cast_signed();
/// The times of the packet's stream.
const DELAY: Reg = R2;

impl Piece<'_> {
    /// Looks at the clock for some packets, those whose stamp is on the stack. On at `done`.
    pub(super) fn delay(&mut self) {
        let [other, shorter] = self.asm.labels();
        let (asm, done) = (&mut self.asm, self.done);
        asm.load(Size::DW, R1, R10 + NUMBER);
        asm.mul32(R1, SPREAD);
        asm.rsh32(R1, 32 - SAMPLE_BITS);
        asm.jne(R1, 0, done);
        asm.call(Helper::KTIME_NS);
        // It was checked before it came to the stack.
        asm.load(Size::DW, DELAY, R10 + STREAM);
        asm.and(DELAY, super::layout::STREAMS as i32 - 1);
        asm.mul(DELAY, delay::BYTES as i32);
        asm.add(DELAY, DELAYS as i32);
        asm.add(DELAY, STATE);
        asm.load(Size::DW, R1, R10 + TIME);
        asm.jlt(R0, R1, other);
        asm.mov(R3, R0);
        asm.sub(R3, R1);
        asm.load_constant(R1, MAX_NS);
        asm.jgt(R3, R1, other);
        asm.load(Size::DW, R1, DELAY + delay::LONGEST);
        asm.jle(R3, R1, shorter);
        asm.store(Size::DW, DELAY + delay::LONGEST, R3);
        asm.place(shorter);
        // R4: the class.
        arith::class::<{ Latencies::STEP_BITS }, { Latencies::POWERS }>(asm, R3, R4, [R0, R5]);
        asm.lsh(R4, 3);
        asm.add(R4, DELAY);
        self.count(R4 + delay::CLASSES);
        self.asm.jump(done);
        self.asm.place(other);
        self.count(DELAY + delay::OTHER_CLOCK);
        self.asm.jump(done);
    }
}
