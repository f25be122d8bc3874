//! A transport's checksum, over all bytes that it covers.

use sluicegate::filter::ebpf::Reg::*;
use sluicegate::filter::ebpf::{Label, Reg, Size};

use super::headers::SUM;
use super::layout::{CORRUPT, UNCHECKED, word};
use super::{Piece, STATE};
use crate::live::arith;

/// Points this far before what is to be added next: the last bytes are read with some before them.
const AT: Reg = R1;
const BEFORE: i16 = 8;
/// The number of bytes left.
const LEFT: Reg = R2;
/// The sum of every other number: two sums need not wait for each other.
const OTHER_SUM: Reg = R0;

/// Bytes that are added in one step, and how many such steps there are: the large ones first, for
/// there each step has to be looked at for the packet's end.
const STEPS: [(i16, usize); 3] = [(128, 12), (32, 3), (8, 3)];

impl Piece<'_> {
    /// Judges the packet by the checksum over `UPPER_BYTES` from `UPPER_AT` on, and the pseudo
    /// header in SUM. On at `judged`.
    ///
    /// Where the packet is and how long it is comes from memory, where the verifier knows nothing
    /// of it: so what follows is the same to it whatever headers there were, and looked at once.
    pub(super) fn checksum(&mut self, judged: Label) {
        let unchecked = self.asm.label();
        self.asm.load(Size::DW, AT, STATE + word::UPPER_AT);
        self.asm.sub(AT, i32::from(BEFORE));
        self.asm.and(AT, 0xff);
        self.asm.add(AT, self.frame.data);
        self.asm.load(Size::DW, LEFT, STATE + word::UPPER_BYTES);
        self.asm.and(LEFT, 0xffff);
        self.asm.mov(OTHER_SUM, 0);
        for (bytes, times) in STEPS {
            let fewer = self.asm.label();
            for _ in 0..times {
                self.step(bytes, fewer, unchecked);
            }
            // More than all steps together.
            self.asm.jge(LEFT, i32::from(bytes), unchecked);
            self.asm.place(fewer);
        }
        self.last_bytes(unchecked);
        self.asm.add(SUM, OTHER_SUM);
        self.right_or(R4, judged);
        self.asm.store(Size::DW, STATE + word::CONDITION, CORRUPT);
        self.asm.jump(judged);
        self.asm.place(unchecked);
        self.asm.store(Size::DW, STATE + word::CONDITION, UNCHECKED);
    }

    /// Adds `bytes` bytes; jumps to `fewer` if fewer are left.
    fn step(&mut self, bytes: i16, fewer: Label, unchecked: Label) {
        let asm = &mut self.asm;
        asm.jlt(LEFT, i32::from(bytes), fewer);
        asm.mov(R5, AT);
        asm.add(R5, i32::from(BEFORE + bytes));
        // That there are as many is known; the verifier has to see it.
        asm.jgt(R5, self.frame.end, unchecked);
        for at in (0..bytes).step_by(8) {
            asm.load(Size::W, R4, AT + (BEFORE + at));
            asm.load(Size::W, R5, AT + (BEFORE + at + 4));
            asm.add(SUM, R4);
            asm.add(OTHER_SUM, R5);
        }
        asm.add(AT, i32::from(bytes));
        asm.sub(LEFT, i32::from(bytes));
    }

    /// Adds the last bytes, fewer than eight: the packet's last eight without those that were
    /// added before. There is a transport's header, so there are eight.
    fn last_bytes(&mut self, unchecked: Label) {
        let (asm, end) = (&mut self.asm, self.frame.end);
        let none = asm.label();
        asm.jeq(LEFT, 0, none);
        asm.add(AT, LEFT);
        asm.mov(R5, AT);
        asm.add(R5, i32::from(BEFORE));
        asm.jgt(R5, end, unchecked);
        asm.load(Size::DW, R4, AT + 0);
        asm.mov(R5, i32::from(BEFORE));
        asm.sub(R5, LEFT);
        asm.lsh(R5, 3);
        // Bytes that were added before leave on the side of the first.
        match cfg!(target_endian = "little") {
            true => asm.rsh(R4, R5),
            false => asm.lsh(R4, R5),
        }
        asm.mov(R5, R4);
        asm.rsh(R5, 32);
        asm.mov32(R4, R4);
        asm.add(SUM, R4);
        asm.add(OTHER_SUM, R5);
        asm.place(none);
    }

    /// On at `right` if SUM, over all that a checksum covers, itself too, is all ones.
    pub(super) fn right_or(&mut self, scratch: Reg, right: Label) {
        arith::fold(self.asm, SUM, scratch);
        self.asm.jeq(SUM, 0xffff, right);
    }
}
