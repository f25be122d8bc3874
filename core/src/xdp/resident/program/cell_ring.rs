//! Programs that copy packets into rings (`xdp/cell_rings`): mirrors, and claims without sockets.
//!
//! ```text
//!   filter, owner alive? --no--> next stage
//!     | yes
//!   ring of the queue, or of the CPU
//!     |
//!   room by the private copies? --no--> read the owner's index --none--> lost
//!     | yes
//!   cell: time, length, bytes -> publish -> count
//!     |
//!   mirror: next stage; claim: drop
//! ```

use std::os::fd::OwnedFd;

use super::super::shared::tally;
use super::super::{Action, Resident, Stage};
use super::{KEY, StageProgram, build};
use crate::cell_ring::{self, at, cell};
use crate::error::Result;
use crate::filter::Filter;
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{
    Assembler, Helper, Label, RING_BUFFER_FORCE_WAKEUP, Size, xdp_action, xdp_md,
};
use crate::xdp::bpf::{ShortCopy, write_add, write_short_copy};
use crate::xdp::cell_rings::{CellRings, CellRingsConfig, RingAssignment};

/// Stack offset of the cell's address.
const CELL: i16 = KEY - 8;

/// Loads the program of a stage that copies packets matching the filter, and passes them on
/// (`Action::Mirror`) or takes them from the host (any other action).
pub(crate) fn load_copying(
    stage: &Stage,
    resident: &Resident,
    action: Action,
    filter: Option<&Filter>,
    rings: &CellRings,
) -> Result<OwnedFd> {
    build(stage, resident, filter, |program, next| {
        let lost = program.asm.label();
        program.owner_is_alive(next);
        program.find_ring(rings, next);
        program.find_cell(&rings.config().ring, lost);
        program.write_cell(rings.config(), lost);
        program.publish();
        program.wake_reader(rings);
        program.end_copying(action, tally::TAKEN, next);
        program.asm.place(lost);
        write_add(&mut program.asm, R9 + at::LOST, 1);
        program.end_copying(action, tally::MISSED, next);
    })
}

impl StageProgram<'_> {
    /// R9 = the ring, which counts the packet. Jumps to `next` if the queue has no ring, or a closed one.
    fn find_ring(&mut self, rings: &CellRings, next: Label) {
        let &CellRingsConfig { assignment, first_queue, queues, .. } = rings.config();
        let (asm, ctx) = (&mut self.asm, self.frame.ctx);
        asm.load(Size::W, R1, ctx + xdp_md::RX_QUEUE_INDEX);
        // A queue number below the first wraps to a very large number.
        asm.sub32(R1, first_queue.cast_signed());
        if assignment == RingAssignment::Cpu {
            asm.jge32(R1, queues.cast_signed(), next);
            asm.call(Helper::CPU);
            asm.mov(R1, R0);
        }
        asm.store(Size::W, R10 + KEY, R1);
        self.look_up(rings, next);
        self.asm.mov(R9, R0);
        self.asm.load(Size::W, R1, R9 + at::CLOSED).jne(0, next);
        write_add(&mut self.asm, R9 + at::MATCHED, 1);
    }

    /// Writes the address of the next cell to the stack. Jumps to `lost` if the ring is full.
    ///
    /// The reader's index is read before the cell is written: the kernel's memory model, and every
    /// processor, keeps writes after a read if a branch to them depends on the read. The read pairs with
    /// the reader's releasing store (`Cursor::submit`), before which the reader has read the cell.
    fn find_cell(&mut self, ring: &cell_ring::CellGeometry, lost: Label) {
        let cells = ring.cells.cast_signed();
        let asm = &mut self.asm;
        let room = asm.label();
        asm.load(Size::W, R1, R9 + at::OWN_PRODUCED);
        asm.load(Size::W, R2, R9 + at::OWN_CONSUMED);
        asm.mov32(R3, R1);
        asm.sub32(R3, R2);
        asm.jlt32(R3, cells, room);
        asm.load(Size::W, R2, R9 + at::CONSUMED).store(Size::W, R9 + at::OWN_CONSUMED);
        asm.mov32(R3, R1);
        asm.sub32(R3, R2);
        asm.jge32(R3, cells, lost);
        asm.place(room);
        // The mask keeps the cell within the ring for any index.
        asm.and32(R1, cells - 1);
        asm.mul(R1, ring.cell_bytes().cast_signed()).add(at::CELLS).add(R9);
        asm.store(Size::DW, R10 + CELL, R1);
    }

    /// Writes time, lengths and bytes into the cell.
    fn write_cell(&mut self, config: &CellRingsConfig, lost: Label) {
        if config.stamped {
            self.asm.call(Helper::KTIME_NS);
        } else {
            self.asm.mov(R0, 0);
        }
        self.asm.load(Size::DW, R1, R10 + CELL);
        self.asm.store(Size::DW, R1 + cell::TIME, R0);
        self.wire_bytes(R0);
        let asm = &mut self.asm;
        let done = asm.label();
        asm.load(Size::DW, R3, R10 + CELL);
        asm.store(Size::W, R3 + cell::WIRE_BYTES, R0);
        asm.load(Size::DW, R4, R9 + at::LOST).store(Size::W, R3 + cell::LOST);
        self.copy_short(config.ring.snaplen, done, lost);
        self.copy_any(config.ring.snaplen, lost);
        self.asm.place(done);
    }

    /// Copies a short packet of R0 bytes to the cell at R3, and jumps to `done`.
    fn copy_short(&mut self, snaplen: u32, done: Label, lost: Label) {
        let super::Frame { data, end, fragments, .. } = self.frame;
        if fragments {
            return;
        }
        let (long, memory) = (self.asm.label(), R3 + cell::PACKET as i16);
        let copy =
            ShortCopy { length: R0, data, end, memory, to_packet: false, max_bytes: snaplen };
        let begin = |asm: &mut Assembler| asm.store(Size::W, R3 + cell::CAPTURED_BYTES, R0);
        write_short_copy(&mut self.asm, &copy, begin, [long, done, lost]);
        self.asm.place(long);
    }

    /// Copies up to `snaplen` of a packet's R0 bytes to the cell at R3, from one or several buffers.
    fn copy_any(&mut self, snaplen: u32, lost: Label) {
        let (asm, ctx, snaplen) = (&mut self.asm, self.frame.ctx, snaplen.cast_signed());
        let whole = asm.label();
        asm.mov(R4, R0).jle(snaplen, whole);
        asm.mov(R4, snaplen);
        asm.place(whole);
        // The verifier requires a length above zero. Linux 6.1 derives that from "less than", but not from
        // "equal".
        asm.jlt(R4, 1, lost);
        asm.store(Size::W, R3 + cell::CAPTURED_BYTES, R4);
        asm.add(R3, cell::PACKET);
        asm.mov(R1, ctx);
        asm.mov(R2, 0);
        asm.call(Helper::XDP_LOAD_BYTES);
        asm.jne(R0, 0, lost);
    }

    /// Publishes the cell to the reader. The index must become visible after the cell: pairs with the
    /// reader's acquiring read (`Cursor::peek`). x86 keeps stores in order; elsewhere an atomic operation
    /// that returns a value is a full barrier in the kernel's memory model. (Linux 6.15 has a releasing
    /// store.)
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

    /// Wakes the reader if it sleeps until this index (`cell_ring/wake.rs`). Only this program and the
    /// reader clear the flag, and the program wakes the reader when it clears it. The key on the stack is
    /// the ring's number.
    fn wake_reader(&mut self, rings: &CellRings) {
        let done = self.asm.label();
        self.asm.load(Size::W, R1, R9 + at::ASLEEP).jeq(0, done);
        self.asm.load(Size::W, R1, R9 + at::OWN_PRODUCED);
        self.asm.load(Size::W, R2, R9 + at::WAKE_AT);
        self.asm.sub32(R1, R2);
        self.asm.jslt32(R1, 0, done);
        self.asm.store(Size::W, R9 + at::ASLEEP, 0);
        self.look_up(&rings.wakers(), done);
        let asm = &mut self.asm;
        asm.mov(R1, R0);
        asm.mov(R2, R10).add(i32::from(KEY));
        asm.mov(R3, 4);
        asm.mov(R4, RING_BUFFER_FORCE_WAKEUP);
        asm.call(Helper::RING_BUFFER_OUTPUT);
        asm.place(done);
    }

    /// Passes on a mirrored packet or drops a taken one, copied or not.
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
