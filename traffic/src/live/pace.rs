//! The timetable in the program. A run drops a packet that is not due yet. This costs little, because the
//! kernel reuses the packet's page at once.

use std::time::Duration;

use sluicegate::filter::ebpf::Reg::*;
use sluicegate::filter::ebpf::{Assembler, Helper, Size, xdp_action};

use super::emit::held::*;
use super::{CounterTable, emit, word};
use crate::rate::{FRACTION_BITS, Gaps, LONG_PERIOD_NS, Period};

/// Drops a packet that is not due. Preserves the registers that helpers preserve.
///
/// The timetable is that of [`Timetable`](crate::rate::Timetable), with its words in the shared memory. Each
/// run reads the period, because it may change. The program makes up for a delay of at most `max_lag`.
pub(super) fn wait_until_due(asm: &mut Assembler, gaps: CounterTable, max_lag: Duration) {
    // At most MAX_LAG, which fits 32 bits.
    let max_lag = max_lag.as_nanos() as i32;
    let [go, later, not_due, look, in_burst, on_time] = asm.labels();
    asm.load(Size::DW, R1, COUNTERS + word::PACKETS);
    asm.load(Size::DW, R2, COUNTERS + word::LIMIT);
    asm.jge(R1, R2, later);
    // The rest of a burst needs no clock, except in a pause, which the timetable has to detect.
    asm.load(Size::DW, R1, COUNTERS + word::PERIOD);
    asm.load_constant(R2, Period::NEVER.ns);
    asm.jge(R1, R2, look);
    asm.load(Size::DW, R1, COUNTERS + word::IN_BURST).jne(0, in_burst);
    asm.place(look);
    asm.call(Helper::KTIME_NS);
    asm.load(Size::DW, R1, COUNTERS + word::DUE);
    asm.load(Size::DW, R4, COUNTERS + word::PERIOD);
    follow_change(asm, max_lag);
    asm.jlt(R0, R1, not_due);
    asm.store(Size::DW, COUNTERS + word::IDLE, 0);
    // R3: the delay in ns.
    asm.mov(R3, R0).sub(R1).jle(max_lag, on_time);
    // Too late to make up for it.
    asm.mov(R1, R0);
    asm.store(Size::DW, COUNTERS + word::DUE_FRACTION, 0);
    asm.load(Size::DW, R2, COUNTERS + word::RESTARTS)
        .add(1)
        .store(Size::DW, COUNTERS + word::RESTARTS);
    asm.place(on_time);
    step(asm);
    count_gap(asm, gaps);
    asm.load(Size::DW, R1, COUNTERS + word::BURST);
    asm.place(in_burst);
    asm.sub(R1, 1).store(Size::DW, COUNTERS + word::IN_BURST);
    asm.jump(go);
    asm.place(not_due);
    asm.sub(R1, R0).store(Size::DW, COUNTERS + word::IDLE);
    asm.place(later);
    asm.mov(R0, xdp_action::DROP);
    asm.exit();
    asm.place(go);
}

/// R1 = the due time of the next burst after a change of period to R4 at the time R0. A stored period of 0
/// means that no burst has begun yet.
fn follow_change(asm: &mut Assembler, max_lag: i32) {
    let [same, begun, early, anew] = asm.labels();
    asm.load(Size::DW, R5, COUNTERS + word::KEPT);
    asm.jeq(R4, R5, same);
    asm.store(Size::DW, COUNTERS + word::KEPT, R4);
    asm.jeq(R5, 0, anew);
    asm.jgt(R1, R0, early);
    asm.load_constant(R2, LONG_PERIOD_NS);
    asm.jge(R4, R2, early);
    keep_lag(asm, max_lag);
    asm.jump(begun);
    asm.place(early);
    // R3: the time since the last burst.
    asm.mov(R3, R0).add(R5).sub(R1).jgt(R4, anew);
    asm.mov(R1, R0).add(R4).sub(R3);
    asm.jump(begun);
    asm.place(anew);
    asm.load(Size::DW, R1, COUNTERS + word::PHASE).add(R0);
    asm.place(begun);
    asm.store(Size::DW, COUNTERS + word::DUE, R1);
    asm.place(same);
}

/// R1 = the due time of the next burst after a change of period from R5 to R4 at the time R0, for a late
/// worker.
fn keep_lag(asm: &mut Assembler, max_lag: i32) {
    let [too_far, near] = asm.labels();
    asm.mov(R3, R0).sub(R1).jgt(max_lag, too_far);
    asm.mul(R3, R4).div(R5).jle(max_lag, near);
    asm.place(too_far);
    asm.mov(R3, 0);
    asm.place(near);
    asm.mov(R1, R0).sub(R3);
}

/// Advances the due time R1 by the period R4 and its fraction, and stores it.
fn step(asm: &mut Assembler) {
    asm.load(Size::DW, R2, COUNTERS + word::DUE_FRACTION);
    asm.load(Size::DW, R5, COUNTERS + word::FRACTION);
    asm.add(R2, R5);
    asm.mov(R5, R2).rsh(FRACTION_BITS as i32);
    asm.mov32(R2, R2).store(Size::DW, COUNTERS + word::DUE_FRACTION);
    asm.add(R1, R4).add(R5).store(Size::DW, COUNTERS + word::DUE);
}

/// Counts R3 ns in the histogram, as [`Gaps::class`] does.
fn count_gap(asm: &mut Assembler, gaps: CounterTable) {
    emit::class::<{ Gaps::STEP_BITS }, { Gaps::POWERS }>(asm, R3, R4, [R0, R5]);
    asm.lsh(R4, 3);
    asm.mov(R5, COUNTERS).add(gaps.at as i32).add(R4);
    asm.load(Size::DW, R0, R5 + 0).add(1).store(Size::DW, R5 + 0);
}
