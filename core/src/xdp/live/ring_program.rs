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

use super::program::RedirectTarget;
use super::ring::{LiveRingConfig, MIN_BYTES, PUBLISH, at, slot};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Fault, Helper, Insn, Label, Reg, Size, xdp_action, xdp_md};
use crate::xdp::bpf::{ShortCopy, write_add, write_short_copy};

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
    target: &RedirectTarget,
    access: Access,
    map: impl AsFd,
) -> Result<Vec<Insn>, Fault> {
    let mut asm = Assembler::new();
    let [found, look, refused, dropped] = asm.labels();
    asm.mov(CONTEXT, R1);
    asm.load_map_value(RING, map, 0);
    // R1 = index of the packet.
    asm.load(Size::W, R1, RING + at::OWN_HEAD);
    asm.load(Size::W, R2, RING + at::OWN_TAIL);
    asm.jeq32(R1, R2, look);
    asm.mov(R2, R1).and(PUBLISH as i32 - 1).jne(0, found);
    publish(&mut asm, R1);
    asm.place(found);
    take(&mut asm, config);
    // Linux 6.1 derives a bound from "less" and "greater", but not from "equal".
    asm.jgt(LENGTH, config.max_bytes as i32, refused);
    asm.jlt(LENGTH, MIN_BYTES as i32, refused);
    set_length(&mut asm, access, refused);
    copy(&mut asm, config, access, refused);
    write_add(&mut asm, RING + at::PACKETS, 1);
    target.emit_redirect(&mut asm);
    asm.place(look);
    look_again(&mut asm, config, found, dropped);
    asm.place(refused);
    write_add(&mut asm, RING + at::REFUSED, 1);
    asm.place(dropped);
    asm.mov(R0, xdp_action::DROP);
    asm.exit();
    asm.finish()
}

/// Writes code that takes the packet with the index R1: SLOT = its slot's address, LENGTH = its length.
fn take(asm: &mut Assembler, config: LiveRingConfig) {
    asm.mov(SLOT, R1);
    // The mask keeps the slot within the ring for any index.
    asm.and(SLOT, config.slots.cast_signed() - 1).mul(config.slot_bytes().cast_signed());
    asm.add(SLOT, at::SLOTS).add(RING);
    asm.add32(R1, 1);
    asm.store(Size::W, RING + at::OWN_HEAD, R1);
    asm.load(Size::W, LENGTH, SLOT + slot::LENGTH);
}

/// Resizes the frame to LENGTH bytes if necessary. That takes a call, and a reset of the frame when the
/// kernel reuses it.
fn set_length(asm: &mut Assembler, access: Access, refused: Label) {
    let fits = asm.label();
    match access {
        Access::Direct => {
            asm.load(Size::W, R1, CONTEXT + xdp_md::DATA);
            asm.load(Size::W, R0, CONTEXT + xdp_md::DATA_END).sub(R1);
        }
        Access::Calls => {
            asm.mov(R1, CONTEXT);
            asm.call(Helper::XDP_BUFF_LEN);
        }
    }
    asm.mov(R2, LENGTH).sub(R0).jeq(0, fits);
    asm.mov(R1, CONTEXT);
    asm.call(Helper::XDP_ADJUST_TAIL);
    asm.jne(R0, 0, refused);
    asm.place(fits);
}

/// Copies LENGTH bytes from SLOT into the frame.
fn copy(asm: &mut Assembler, config: LiveRingConfig, access: Access, refused: Label) {
    let done = asm.label();
    if access == Access::Direct {
        let long = asm.label();
        let (memory, max_bytes) = (SLOT + slot::PACKET as i16, config.max_bytes);
        let copy =
            ShortCopy { length: LENGTH, data: R2, end: R3, memory, to_packet: true, max_bytes };
        let begin = |asm: &mut Assembler| {
            asm.load(Size::W, R2, CONTEXT + xdp_md::DATA);
            asm.load(Size::W, R3, CONTEXT + xdp_md::DATA_END);
        };
        write_short_copy(asm, &copy, begin, [long, done, refused]);
        asm.place(long);
    }
    asm.mov(R1, CONTEXT);
    asm.mov(R2, 0);
    asm.mov(R3, SLOT).add(slot::PACKET);
    asm.mov(R4, LENGTH);
    asm.call(Helper::XDP_STORE_BYTES);
    asm.jne(R0, 0, refused);
    asm.place(done);
}

/// Publishes the head and reads the tail. Jumps to `found`, with the index in R1, if there is a packet, and
/// otherwise to `none`.
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
    write_add(asm, RING + at::FAULTS, 1);
    asm.jump(none);
    asm.place(empty);
    write_add(asm, RING + at::EMPTY, 1);
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

/// Publishes `done` as the head, if it has changed. Release: pairs with the writer's acquiring read of the
/// head (`Cursor::peek`). x86 does not move a store before an earlier load; elsewhere as in [`look`].
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
