//! Writing the time in front of a packet that is taken ([`Stamp`]).

use super::super::metadata::{HASH_AT, TIME_AT};
use super::{KEY, StageProgram};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Helper, Label, Size, xdp_md};
use crate::xdp::stamp::{CARD_MARK, MARK, Stamp};

// Places on the stack.
const TIME: i16 = KEY - 8;
const WHOSE: i16 = KEY - 16;
const HASH: i16 = KEY - 24;

impl StageProgram<'_> {
    /// Writes the time, and the hash, where the driver leaves room. The registers that point
    /// into the packet are lost.
    pub(super) fn stamp(&mut self, stamp: Stamp) {
        if stamp == Stamp::None {
            return;
        }
        let [known, done] = self.asm.labels();
        if stamp == Stamp::Driver {
            self.metadata(known);
        }
        self.asm.call(Helper::KTIME_NS);
        self.asm.store(Size::DW, R10 + TIME, R0);
        self.asm.load_constant(R1, MARK);
        self.asm.store(Size::DW, R10 + WHOSE, R1);
        self.asm.place(known);
        self.headroom_mut(stamp, done);
        self.asm.place(done);
    }

    /// Puts what the driver has told on the stack, and goes on at `known` if there is a time.
    fn metadata(&mut self, known: Label) {
        self.asm.store(Size::DW, R10 + HASH, 0);
        let resident = self.resident;
        let Ok(map) = resident.metadata() else { return };
        let unknown = self.asm.label();
        self.asm.store(Size::W, R10 + KEY, 0);
        self.look_up(map, unknown);
        let asm = &mut self.asm;
        asm.load(Size::W, R1, R0 + HASH_AT);
        asm.store(Size::DW, R10 + HASH, R1);
        asm.load(Size::DW, R1, R0 + TIME_AT);
        asm.jeq(R1, 0, unknown);
        asm.store(Size::DW, R10 + TIME, R1);
        asm.load_constant(R1, CARD_MARK);
        asm.store(Size::DW, R10 + WHOSE, R1);
        asm.jump(known);
        asm.place(unknown);
    }

    /// Copies the stack's words into the room in front of the packet.
    fn headroom_mut(&mut self, stamp: Stamp, none: Label) {
        let (asm, ctx) = (&mut self.asm, self.frame.ctx);
        let (bytes, mark) = (i32::from(stamp.bytes()), stamp.mark_at());
        asm.mov(R1, ctx);
        asm.mov(R2, -bytes);
        asm.call(Helper::XDP_ADJUST_META);
        asm.jne(R0, 0, none);
        asm.load(Size::W, R1, ctx + xdp_md::DATA_META);
        asm.load(Size::W, R2, ctx + xdp_md::DATA);
        asm.mov(R3, R1);
        asm.add(R3, bytes);
        asm.jgt(R3, R2, none);
        let hash = (stamp == Stamp::Driver).then_some((HASH, 0));
        for (from, to) in hash.into_iter().chain([(WHOSE, mark), (TIME, mark + 8)]) {
            asm.load(Size::DW, R2, R10 + from);
            asm.store(Size::DW, R1 + to, R2);
        }
    }
}
