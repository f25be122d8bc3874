//! Programs that copy packets into rings (`xdp/copies`): mirrors, and claims on queues whose
//! socket another process has.
//!
//! ```text
//!   filter, owner alive? --no--> next stage
//!     | yes
//!   ring of the queue, or of the CPU
//!     |
//!   room by the private copies? --no--> look at the owner's index --none--> lost
//!     | yes
//!   cell: time, length, bytes -> publish -> count
//!     |
//!   mirror: next stage; claim: drop
//! ```

use std::os::fd::OwnedFd;

use super::super::shared::{Action, tally};
use super::super::{Resident, Stage};
use super::{KEY, StageProgram};
use crate::cell_ring::{self, at, cell};
use crate::error::Result;
use crate::filter::Filter;
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{
    Assembler, Helper, Label, RING_BUFFER_FORCE_WAKEUP, Reg, Size, xdp_action, xdp_md,
};
use crate::xdp::copies::{Copies, Geometry, Sharing};

/// Where the address of the cell stands on the stack.
const CELL: i16 = KEY - 8;

/// A packet of at most so many bytes is copied without a call,
const SHORT: u32 = 128;
/// in steps of so many: two words.
const STEP: u32 = 16;

/// Makes the program of a stage that copies what the filter matches, and passes it on
/// (`Action::Mirror`) or takes it from the host (any other action).
pub(crate) fn load_copying(
    stage: &Stage,
    resident: &Resident,
    action: Action,
    filter: Option<&Filter>,
    copies: &Copies,
) -> Result<OwnedFd> {
    let mut program = StageProgram::new(stage, resident);
    let [lost, next] = program.asm.labels();
    program.select(filter, next)?;
    program.owner_is_alive(next);
    program.find_ring(copies, next);
    program.find_cell(&copies.geometry().ring, lost);
    program.write_cell(copies.geometry(), lost);
    program.publish();
    program.wake_reader(copies);
    program.end_copying(action, tally::TAKEN, next);
    program.asm.place(lost);
    program.add_to_ring(at::LOST);
    program.end_copying(action, tally::MISSED, next);
    program.asm.place(next);
    program.go_on();
    program.finish(filter)
}

impl StageProgram<'_> {
    /// R9 = the ring, and counts the packet there. On to `next` from a queue that is not ours, or
    /// not any more.
    fn find_ring(&mut self, copies: &Copies, next: Label) {
        let &Geometry { sharing, first_queue, queues, .. } = copies.geometry();
        let (asm, ctx) = (&mut self.asm, self.frame.ctx);
        asm.load(Size::W, R1, ctx + xdp_md::RX_QUEUE_INDEX);
        // A queue before the first becomes a very large number.
        asm.sub32(R1, first_queue.cast_signed());
        if sharing == Sharing::Cpu {
            asm.jge32(R1, queues.cast_signed(), next);
            asm.call(Helper::CPU);
            asm.mov(R1, R0);
        }
        asm.store(Size::W, R10 + KEY, R1);
        self.look_up(copies, next);
        self.asm.mov(R9, R0);
        self.asm.load(Size::W, R1, R9 + at::CLOSED);
        self.asm.jne(R1, 0, next);
        self.add_to_ring(at::MATCHED);
    }

    /// The address of the next cell, on the stack. On to `lost` if the ring is full.
    ///
    /// That it is not is read before anything is written into the cell: the kernel's memory
    /// model, and every processor, keeps writes behind a read on which a branch to them depends.
    /// The read pairs with the owner's releasing store (`Cursor::hand_over`), before which the
    /// owner has read the cell.
    fn find_cell(&mut self, geometry: &cell_ring::CellGeometry, lost: Label) {
        let cells = geometry.cells.cast_signed();
        let asm = &mut self.asm;
        let room = asm.label();
        asm.load(Size::W, R1, R9 + at::OWN_PRODUCED);
        asm.load(Size::W, R2, R9 + at::OWN_CONSUMED);
        asm.mov32(R3, R1);
        asm.sub32(R3, R2);
        asm.jlt32(R3, cells, room);
        asm.load(Size::W, R2, R9 + at::CONSUMED);
        asm.store(Size::W, R9 + at::OWN_CONSUMED, R2);
        asm.mov32(R3, R1);
        asm.sub32(R3, R2);
        asm.jge32(R3, cells, lost);
        asm.place(room);
        // The mask keeps it within the ring, whatever stands in the indices.
        asm.and32(R1, cells - 1);
        asm.mul(R1, geometry.cell_bytes().cast_signed());
        asm.add(R1, at::CELLS);
        asm.add(R1, R9);
        asm.store(Size::DW, R10 + CELL, R1);
    }

    /// Time, lengths and bytes.
    fn write_cell(&mut self, geometry: &Geometry, lost: Label) {
        if geometry.stamped {
            self.asm.call(Helper::KTIME_NS);
        } else {
            self.asm.mov(R0, 0);
        }
        self.asm.load(Size::DW, R1, R10 + CELL);
        self.asm.store(Size::DW, R1 + cell::TIME, R0);
        self.wire_bytes();
        let asm = &mut self.asm;
        let done = asm.label();
        asm.load(Size::DW, R3, R10 + CELL);
        asm.store(Size::W, R3 + cell::WIRE_BYTES, R0);
        asm.load(Size::DW, R4, R9 + at::LOST);
        asm.store(Size::W, R3 + cell::LOST, R4);
        self.copy_short(geometry.ring.snaplen, done, lost);
        self.copy_any(geometry.ring.snaplen, lost);
        self.asm.place(done);
    }

    /// Copies a packet of R0 bytes to the cell at R3 if it is short, and goes on at `done`. A
    /// call takes longer than these few loads and stores. The last step lies over the one before
    /// where the length is no multiple of a step.
    fn copy_short(&mut self, snaplen: u32, done: Label, lost: Label) {
        let super::Frame { data, end, fragments, .. } = self.frame;
        let steps = (SHORT.min(snaplen) / STEP) as i16;
        if fragments || steps == 0 {
            return;
        }
        let (step, asm) = (STEP as i16, &mut self.asm);
        let [last, long] = asm.labels();
        asm.jlt(R0, i32::from(step), long);
        asm.jgt(R0, i32::from(step * steps), long);
        asm.store(Size::W, R3 + cell::CAPTURED_BYTES, R0);
        asm.mov(R1, data);
        for number in 0..steps {
            asm.add(R1, i32::from(step));
            asm.jgt(R1, end, last);
            copy_step(asm, data, step * number, R3, cell::PACKET as i16 + step * number);
        }
        asm.jump(done);
        asm.place(last);
        asm.sub(R0, i32::from(step));
        asm.mov(R1, data);
        asm.add(R1, R0);
        asm.mov(R2, R1);
        asm.add(R2, i32::from(step));
        asm.jgt(R2, end, lost);
        asm.add(R3, R0);
        copy_step(asm, R1, 0, R3, cell::PACKET as i16);
        asm.jump(done);
        asm.place(long);
    }

    /// Copies a packet of R0 bytes, or what is kept of it, to the cell at R3: from one buffer or
    /// from several.
    fn copy_any(&mut self, snaplen: u32, lost: Label) {
        let (asm, ctx, snaplen) = (&mut self.asm, self.frame.ctx, snaplen.cast_signed());
        let whole = asm.label();
        asm.mov(R4, R0);
        asm.jle(R4, snaplen, whole);
        asm.mov(R4, snaplen);
        asm.place(whole);
        // The verifier wants to see that it is not nothing. That of Linux 6.1 learns it from
        // "less than", not from "equal".
        asm.jlt(R4, 1, lost);
        asm.store(Size::W, R3 + cell::CAPTURED_BYTES, R4);
        asm.add(R3, cell::PACKET);
        asm.mov(R1, ctx);
        asm.mov(R2, 0);
        asm.call(Helper::XDP_LOAD_BYTES);
        asm.jne(R0, 0, lost);
    }

    /// R0 = the packet's length.
    fn wire_bytes(&mut self) {
        let super::Frame { ctx, data, end, fragments, .. } = self.frame;
        if fragments {
            self.asm.mov(R1, ctx);
            self.asm.call(Helper::XDP_BUFF_LEN);
        } else {
            self.asm.mov(R0, end);
            self.asm.sub(R0, data);
        }
    }

    /// Lets the owner know of the cell. What was written into it has to be seen before the index
    /// is: pairs with the owner's acquiring read of it (`Cursor::look`). On x86 every store is
    /// seen after those before it; elsewhere an atomic operation that returns a value is a full
    /// barrier in the kernel's memory model. (A store with release of its own has Linux 6.15.)
    fn publish(&mut self) {
        let asm = &mut self.asm;
        asm.load(Size::W, R1, R9 + at::OWN_PRODUCED);
        asm.add32(R1, 1);
        asm.store(Size::W, R9 + at::OWN_PRODUCED, R1);
        if cfg!(target_arch = "x86_64") {
            asm.store(Size::W, R9 + at::PRODUCED, R1);
        } else {
            asm.mov(R1, 1);
            asm.atomic_fetch_add(Size::W, R9 + at::PRODUCED, R1);
        }
    }

    /// Wakes the owner if it sleeps until the ring has come as far as this (`cell_ring/wake.rs`).
    /// Only this program writes to the ring now: so nobody else clears the flag but the owner, and a
    /// flag that is cleared here is followed by a wake-up. The key on the stack is the ring's number.
    fn wake_reader(&mut self, copies: &Copies) {
        let done = self.asm.label();
        self.asm.load(Size::W, R1, R9 + at::ASLEEP);
        self.asm.jeq(R1, 0, done);
        self.asm.load(Size::W, R1, R9 + at::OWN_PRODUCED);
        self.asm.load(Size::W, R2, R9 + at::WAKE_AT);
        self.asm.sub32(R1, R2);
        self.asm.jslt32(R1, 0, done);
        self.asm.store(Size::W, R9 + at::ASLEEP, 0);
        self.look_up(&copies.wakers(), done);
        let asm = &mut self.asm;
        asm.mov(R1, R0);
        asm.mov(R2, R10);
        asm.add(R2, i32::from(KEY));
        asm.mov(R3, 4);
        asm.mov(R4, RING_BUFFER_FORCE_WAKEUP);
        asm.call(Helper::RING_BUFFER_OUTPUT);
        asm.place(done);
    }

    /// Counts up where only this program writes.
    fn add_to_ring(&mut self, counter: i16) {
        self.asm.load(Size::DW, R1, R9 + counter);
        self.asm.add(R1, 1);
        self.asm.store(Size::DW, R9 + counter, R1);
    }

    /// A packet that was to be copied is the host's too, or nobody else's, copied or not.
    fn end_copying(&mut self, action: Action, counter: i16, next: Label) {
        if action == Action::Mirror {
            self.count(&[counter], next);
            self.asm.jump(next);
        } else {
            let end = self.asm.label();
            self.count(&[counter], end);
            self.asm.place(end);
            self.answer(xdp_action::DROP);
        }
    }
}

/// Copies [`STEP`] bytes. R4 and R5 are lost.
fn copy_step(asm: &mut Assembler, from: Reg, at: i16, to: Reg, to_at: i16) {
    asm.load(Size::DW, R4, from + at);
    asm.load(Size::DW, R5, from + (at + 8));
    asm.store(Size::DW, to + to_at, R4);
    asm.store(Size::DW, to + (to_at + 8), R5);
}
