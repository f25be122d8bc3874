//! A timetable in the program: a packet that is not due yet is dropped, which costs little, for its
//! page is used again at once.

use sluicegate::filter::ebpf::Reg::*;
use sluicegate::filter::ebpf::{Assembler, Helper, Label, Size, xdp_action};

use super::arith::held::*;
use super::sheet::{Table, word};
use crate::rate::{Gaps, LONG, MOST_BEHIND, PERIOD_BITS};

/// Lets a packet be made only when it is due. What is left of the registers: those that helpers
/// leave alone.
///
/// The timetable is in the sheet, in ns since [`word::START`] with [`PERIOD_BITS`] bits behind the
/// point. It is read each time, so that it can be changed meanwhile.
pub(super) fn wait_until_due(asm: &mut Assembler, gaps: Table) {
    let [go, later, in_burst, on_time, begun] = asm.labels();
    asm.load(Size::DW, R1, SHEET + word::PACKETS);
    asm.load(Size::DW, R2, SHEET + word::LIMIT);
    asm.jge(R1, R2, later);
    // Inside a burst no clock is asked.
    asm.load(Size::DW, R1, SHEET + word::IN_BURST);
    asm.jne(R1, 0, in_burst);
    asm.call(Helper::KTIME_NS);
    asm.load(Size::DW, R1, SHEET + word::START);
    asm.jne(R1, 0, begun);
    asm.store(Size::DW, SHEET + word::START, R0);
    asm.mov(R1, R0);
    asm.place(begun);
    asm.sub(R0, R1);
    asm.load(Size::DW, R1, SHEET + word::DUE);
    count_anew(asm);
    asm.mov(R2, R1);
    asm.rsh(R2, PERIOD_BITS as i32);
    asm.jlt(R0, R2, later);
    // R3: how late it is, in ns.
    asm.mov(R3, R0);
    asm.sub(R3, R2);
    asm.jle(R3, MOST_BEHIND.as_nanos() as i32, on_time);
    // Too late to make up for it.
    asm.mov(R1, R0);
    asm.lsh(R1, PERIOD_BITS as i32);
    asm.load(Size::DW, R2, SHEET + word::RESTARTS);
    asm.add(R2, 1);
    asm.store(Size::DW, SHEET + word::RESTARTS, R2);
    asm.place(on_time);
    asm.load(Size::DW, R2, SHEET + word::PERIOD);
    asm.add(R1, R2);
    asm.store(Size::DW, SHEET + word::DUE, R1);
    count_gap(asm, gaps);
    asm.load(Size::DW, R1, SHEET + word::BURST);
    asm.place(in_burst);
    asm.sub(R1, 1);
    asm.store(Size::DW, SHEET + word::IN_BURST, R1);
    asm.jump(go);
    asm.place(later);
    asm.mov(R0, xdp_action::DROP);
    asm.exit();
    asm.place(go);
}

/// Moves the start of a long timetable on: R0, the time since then, and R1, when the next burst is due,
/// stay what they mean.
fn count_anew(asm: &mut Assembler) {
    let [short, least] = asm.labels();
    asm.load_constant(R2, LONG);
    asm.jlt(R1, R2, short);
    asm.mov(R3, R1);
    asm.rsh(R3, PERIOD_BITS as i32);
    asm.jle(R3, R0, least);
    asm.mov(R3, R0);
    asm.place(least);
    asm.load(Size::DW, R2, SHEET + word::START);
    asm.add(R2, R3);
    asm.store(Size::DW, SHEET + word::START, R2);
    asm.sub(R0, R3);
    asm.lsh(R3, PERIOD_BITS as i32);
    asm.sub(R1, R3);
    asm.store(Size::DW, SHEET + word::DUE, R1);
    asm.place(short);
}

/// Counts R3 ns in the histogram, as [`Gaps::class`] does.
fn count_gap(asm: &mut Assembler, gaps: Table) {
    let [small, fits]: [Label; 2] = asm.labels();
    asm.mov(R4, R3);
    asm.jlt(R3, Gaps::STEPS as i32, small);
    // R4: the power of two, found by halves; R5: the time, without what is found.
    asm.mov(R4, 0);
    asm.mov(R5, R3);
    for bits in [16, 8, 4, 2, 1] {
        let less = asm.label();
        asm.mov(R0, R5);
        asm.rsh(R0, bits);
        asm.jeq(R0, 0, less);
        asm.mov(R5, R0);
        asm.add(R4, bits);
        asm.place(less);
    }
    asm.sub(R4, Gaps::STEP_BITS as i32);
    asm.rsh(R3, R4);
    asm.lsh(R4, Gaps::STEP_BITS as i32);
    asm.add(R4, R3);
    asm.place(small);
    asm.jlt(R4, Gaps::CLASSES as i32, fits);
    asm.mov(R4, Gaps::CLASSES as i32 - 1);
    asm.place(fits);
    asm.lsh(R4, 3);
    asm.mov(R5, SHEET);
    asm.add(R5, gaps.at as i32);
    asm.add(R5, R4);
    asm.load(Size::DW, R0, R5 + 0);
    asm.add(R0, 1);
    asm.store(Size::DW, R5 + 0, R0);
}
