//! The program that sends what is written into a ring.
//!
//! ```text
//!   a packet by the copy of the tail? --no--> say how far, look at the tail --none--> drop
//!     | yes
//!   length --cannot be--> refused: drop
//!     |
//!   frame as long as that, packet copied into it -> count -> redirect
//! ```

use std::os::fd::AsFd;

use super::exit::Exit;
use super::ring::{Geometry, MIN_BYTES, PUBLISH, at, slot};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{
    Assembler, Fault, Helper, Insn, Label, Memory, Reg, Size, xdp_action, xdp_md,
};

/// A packet of at most so many bytes is copied without a call,
const SHORT: u32 = 128;
/// in steps of so many: two words.
const STEP: u32 = 16;

// What helpers leave alone.
const CONTEXT: Reg = R6;
const RING: Reg = R7;
const LENGTH: Reg = R8;
const SLOT: Reg = R9;

/// How the program gets at the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// By their addresses. To subtract two, or to add a number to one that it does not know, the
    /// verifier wants CAP_PERFMON.
    Direct,
    /// By calls alone: slower.
    Calls,
}

/// The program, whose packets leave by an exit.
pub(super) fn program(
    geometry: Geometry,
    exit: &Exit,
    access: Access,
    map: impl AsFd,
) -> Result<Vec<Insn>, Fault> {
    let mut asm = Assembler::new();
    let [found, look, refused, dropped] = asm.labels();
    asm.mov(CONTEXT, R1);
    asm.load_map_value(RING, map, 0);
    // R1: the packet's index.
    asm.load(Size::W, R1, RING + at::OWN_HEAD);
    asm.load(Size::W, R2, RING + at::OWN_TAIL);
    asm.jeq32(R1, R2, look);
    asm.mov(R2, R1);
    asm.and(R2, PUBLISH as i32 - 1);
    asm.jne(R2, 0, found);
    publish(&mut asm, R1);
    asm.place(found);
    take(&mut asm, geometry);
    // Linux 6.1 learns a bound from "less" and "greater", not from "equal".
    asm.jgt(LENGTH, geometry.most_bytes as i32, refused);
    asm.jlt(LENGTH, MIN_BYTES as i32, refused);
    set_length(&mut asm, access, refused);
    copy(&mut asm, geometry, access, refused);
    count(&mut asm, at::PACKETS);
    exit.leave(&mut asm);
    asm.place(look);
    look_again(&mut asm, geometry, found, dropped);
    asm.place(refused);
    count(&mut asm, at::REFUSED);
    asm.place(dropped);
    asm.mov(R0, xdp_action::DROP);
    asm.exit();
    asm.finish()
}

/// Takes the packet with the index R1: SLOT points to where it stands, LENGTH is what stands there.
fn take(asm: &mut Assembler, geometry: Geometry) {
    asm.mov(SLOT, R1);
    // Whatever the index is, the slot is one of the ring's.
    asm.and(SLOT, geometry.slots.cast_signed() - 1);
    asm.mul(SLOT, geometry.slot_bytes().cast_signed());
    asm.add(SLOT, at::SLOTS);
    asm.add(SLOT, RING);
    asm.add32(R1, 1);
    asm.store(Size::W, RING + at::OWN_HEAD, R1);
    asm.load(Size::W, LENGTH, SLOT + slot::LENGTH);
}

/// Makes the frame LENGTH bytes long, if it is not: that takes a call, and another reset of the frame
/// when it is used again.
fn set_length(asm: &mut Assembler, access: Access, refused: Label) {
    let fits = asm.label();
    match access {
        Access::Direct => {
            asm.load(Size::W, R1, CONTEXT + xdp_md::DATA);
            asm.load(Size::W, R0, CONTEXT + xdp_md::DATA_END);
            asm.sub(R0, R1);
        }
        Access::Calls => {
            asm.mov(R1, CONTEXT);
            asm.call(Helper::XDP_BUFF_LEN);
        }
    }
    asm.mov(R2, LENGTH);
    asm.sub(R2, R0);
    asm.jeq(R2, 0, fits);
    asm.mov(R1, CONTEXT);
    asm.call(Helper::XDP_ADJUST_TAIL);
    asm.jne(R0, 0, refused);
    asm.place(fits);
}

/// Copies LENGTH bytes from SLOT into the frame: a short packet without a call, which takes longer than
/// a few loads and stores.
fn copy(asm: &mut Assembler, geometry: Geometry, access: Access, refused: Label) {
    if access == Access::Direct {
        let [long, done] = asm.labels();
        copy_short(asm, geometry, [long, done, refused]);
        asm.place(long);
        copy_by_call(asm, refused);
        asm.place(done);
    } else {
        copy_by_call(asm, refused);
    }
}

/// Copies a short packet, and is done; on at `long` where it is none. The last step lies over the one
/// before where the length is no multiple of a step.
fn copy_short(asm: &mut Assembler, geometry: Geometry, [long, done, refused]: [Label; 3]) {
    let last = asm.label();
    let (step, steps) = (STEP as i16, (SHORT.min(geometry.most_bytes) / STEP) as i16);
    asm.jlt(LENGTH, i32::from(step), long);
    asm.jgt(LENGTH, i32::from(step * steps), long);
    asm.load(Size::W, R1, CONTEXT + xdp_md::DATA);
    asm.load(Size::W, R2, CONTEXT + xdp_md::DATA_END);
    asm.mov(R3, R1);
    for at in (0..steps).map(|number| number * step) {
        asm.add(R3, i32::from(step));
        asm.jgt(R3, R2, last);
        copy_step(asm, SLOT + (slot::PACKET as i16 + at), R1 + at, [R4, R5]);
    }
    asm.jump(done);
    asm.place(last);
    asm.mov(R0, LENGTH);
    asm.sub(R0, i32::from(step));
    asm.add(R1, R0);
    asm.mov(R3, R1);
    asm.add(R3, i32::from(step));
    asm.jgt(R3, R2, refused);
    asm.add(SLOT, R0);
    copy_step(asm, SLOT + slot::PACKET as i16, R1 + 0, [R4, R5]);
    asm.jump(done);
}

fn copy_by_call(asm: &mut Assembler, refused: Label) {
    asm.mov(R1, CONTEXT);
    asm.mov(R2, 0);
    asm.mov(R3, SLOT);
    asm.add(R3, slot::PACKET);
    asm.mov(R4, LENGTH);
    asm.call(Helper::XDP_STORE_BYTES);
    asm.jne(R0, 0, refused);
}

/// Copies [`STEP`] bytes.
fn copy_step(asm: &mut Assembler, from: Memory, to: Memory, [first, second]: [Reg; 2]) {
    asm.load(Size::DW, first, from);
    asm.load(Size::DW, second, from.base + (from.offset + 8));
    asm.store(Size::DW, to, first);
    asm.store(Size::DW, to.base + (to.offset + 8), second);
}

/// All that is known of is taken: says so, and looks whether there is more. On at `found` with R1, the
/// index, if there is.
fn look_again(asm: &mut Assembler, geometry: Geometry, found: Label, none: Label) {
    let [empty, fault] = asm.labels();
    publish(asm, R1);
    look(asm, R2);
    asm.mov32(R3, R2);
    asm.sub32(R3, R1);
    asm.jeq(R3, 0, empty);
    asm.jgt(R3, geometry.slots.cast_signed(), fault);
    asm.store(Size::W, RING + at::OWN_TAIL, R2);
    asm.store(Size::DW, RING + at::EMPTY, 0);
    asm.jump(found);
    asm.place(fault);
    count(asm, at::FAULTS);
    asm.jump(none);
    asm.place(empty);
    count(asm, at::EMPTY);
    asm.jump(none);
}

/// `to` = the tail. What the writer wrote before it is to be seen from now on: pairs with
/// `LiveWriter::publish`. On x86 no load is done before an earlier one; elsewhere an atomic operation
/// that returns a value is a full barrier in the kernel's memory model.
fn look(asm: &mut Assembler, to: Reg) {
    if cfg!(target_arch = "x86_64") {
        asm.load(Size::W, to, RING + at::TAIL);
    } else {
        asm.mov(to, 0);
        asm.atomic_fetch_add(Size::W, RING + at::TAIL, to);
    }
}

/// Says that all before the index `done` are dealt with, if that is news: what was read of their slots
/// has been read before. Pairs with the writer's acquiring look at the head (`Cursor::look`).
/// On x86 no store is done before an earlier load; elsewhere as in [`look`].
fn publish(asm: &mut Assembler, done: Reg) {
    let known = asm.label();
    asm.load(Size::W, R2, RING + at::HEAD);
    asm.jeq32(R2, done, known);
    if cfg!(target_arch = "x86_64") {
        asm.store(Size::W, RING + at::HEAD, done);
    } else {
        asm.mov32(R3, done);
        asm.sub32(R3, R2);
        asm.atomic_fetch_add(Size::W, RING + at::HEAD, R3);
    }
    asm.place(known);
}

/// The program is all that writes its counters, and it runs on one CPU at a time: no atomics.
fn count(asm: &mut Assembler, counter: i16) {
    asm.load(Size::DW, R1, RING + counter);
    asm.add(R1, 1);
    asm.store(Size::DW, RING + counter, R1);
}
