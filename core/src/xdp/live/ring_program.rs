//! The program that sends the packets of a ring.
//!
//! ```text
//!   a packet by the copy of the tail? --no--> publish head, read tail --none--> drop
//!     | yes
//!   length --invalid--> refused: drop
//!     |
//!   frame as long as that, packet copied into it -> count -> redirect
//! ```

use std::os::fd::AsFd;

use super::program::Exit;
use super::ring::{LiveRingConfig, MIN_BYTES, PUBLISH, at, slot};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{
    Assembler, Fault, Helper, Insn, Label, Memory, Reg, Size, xdp_action, xdp_md,
};

/// Longest packet that is copied without a helper call.
const SHORT: u32 = 128;
/// Bytes of one copy step: two words.
const STEP: u32 = 16;

// Registers that helper calls preserve.
const CONTEXT: Reg = R6;
const RING: Reg = R7;
const LENGTH: Reg = R8;
const SLOT: Reg = R9;

/// Access to the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// By address. The verifier allows the pointer arithmetic with CAP_PERFMON only.
    Direct,
    /// By helper calls: slower.
    Calls,
}

/// Builds the program.
pub(super) fn program(
    config: LiveRingConfig,
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
    take(&mut asm, config);
    // Linux 6.1 learns a bound from "less" and "greater", not from "equal".
    asm.jgt(LENGTH, config.max_bytes as i32, refused);
    asm.jlt(LENGTH, MIN_BYTES as i32, refused);
    set_length(&mut asm, access, refused);
    copy(&mut asm, config, access, refused);
    count(&mut asm, at::PACKETS);
    exit.leave(&mut asm);
    asm.place(look);
    look_again(&mut asm, config, found, dropped);
    asm.place(refused);
    count(&mut asm, at::REFUSED);
    asm.place(dropped);
    asm.mov(R0, xdp_action::DROP);
    asm.exit();
    asm.finish()
}

/// Takes the packet with the index R1: SLOT = its slot's address, LENGTH = its length.
fn take(asm: &mut Assembler, config: LiveRingConfig) {
    asm.mov(SLOT, R1);
    // The mask keeps it within the ring, whatever the index is.
    asm.and(SLOT, config.slots.cast_signed() - 1);
    asm.mul(SLOT, config.slot_bytes().cast_signed());
    asm.add(SLOT, at::SLOTS);
    asm.add(SLOT, RING);
    asm.add32(R1, 1);
    asm.store(Size::W, RING + at::OWN_HEAD, R1);
    asm.load(Size::W, LENGTH, SLOT + slot::LENGTH);
}

/// Resizes the frame to LENGTH bytes, if necessary: that takes a call, and a reset of the frame when the
/// kernel reuses it.
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

/// Copies LENGTH bytes from SLOT into the frame: a short packet by a few loads and stores, which are
/// faster than a call.
fn copy(asm: &mut Assembler, config: LiveRingConfig, access: Access, refused: Label) {
    if access == Access::Direct {
        let [long, done] = asm.labels();
        copy_short(asm, config, [long, done, refused]);
        asm.place(long);
        copy_by_call(asm, refused);
        asm.place(done);
    } else {
        copy_by_call(asm, refused);
    }
}

/// Copies a short packet and goes on at `done`, or at `long` with another. The last step overlaps the one
/// before if the length is no multiple of a step.
fn copy_short(asm: &mut Assembler, config: LiveRingConfig, [long, done, refused]: [Label; 3]) {
    let last = asm.label();
    let (step, steps) = (STEP as i16, (SHORT.min(config.max_bytes) / STEP) as i16);
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

/// Publishes the head and reads the tail. Goes on at `found`, with the index in R1, if there is a packet,
/// otherwise at `none`.
fn look_again(asm: &mut Assembler, config: LiveRingConfig, found: Label, none: Label) {
    let [empty, fault] = asm.labels();
    publish(asm, R1);
    look(asm, R2);
    asm.mov32(R3, R2);
    asm.sub32(R3, R1);
    asm.jeq(R3, 0, empty);
    asm.jgt(R3, config.slots.cast_signed(), fault);
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

/// `to` = the tail. Acquire: pairs with `LiveWriter::publish`. x86 keeps loads in order; elsewhere an
/// atomic operation that returns a value is a full barrier in the kernel's memory model.
fn look(asm: &mut Assembler, to: Reg) {
    if cfg!(target_arch = "x86_64") {
        asm.load(Size::W, to, RING + at::TAIL);
    } else {
        asm.mov(to, 0);
        asm.atomic_fetch_add(Size::W, RING + at::TAIL, to);
    }
}

/// Publishes `done` as the head, if it has changed. Release: pairs with the writer's acquiring read of
/// the head (`Cursor::look`). x86 does no store before an earlier load; elsewhere as in [`look`].
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

/// Increments a counter. No atomics: only the program writes it, on one CPU at a time.
fn count(asm: &mut Assembler, counter: i16) {
    asm.load(Size::DW, R1, RING + counter);
    asm.add(R1, 1);
    asm.store(Size::DW, RING + counter, R1);
}
