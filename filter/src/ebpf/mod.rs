//! eBPF programs, made while running.
//!
//! An [`Assembler`] takes instructions in the order they stand in, with labels for the places
//! jumps lead to, and gives the program as `BPF_PROG_LOAD` takes it. A program written with it
//! reads like assembly:
//!
//! ```
//! use sluicegate_filter::ebpf::Reg::*;
//! use sluicegate_filter::ebpf::Size::*;
//! use sluicegate_filter::ebpf::{Assembler, xdp_action, xdp_md};
//!
//! // Passes what has an Ethernet header.
//! let mut asm = Assembler::new();
//! let short = asm.label();
//! asm.load(W, R2, R1 + xdp_md::DATA);
//! asm.load(W, R3, R1 + xdp_md::DATA_END);
//! asm.add(R2, 14);
//! asm.jgt(R2, R3, short);
//! asm.mov(R0, xdp_action::PASS);
//! asm.exit();
//! asm.place(short);
//! asm.mov(R0, xdp_action::DROP);
//! asm.exit();
//! assert_eq!(asm.finish()?.len(), 8);
//! # Ok::<(), sluicegate_filter::ebpf::Fault>(())
//! ```
//!
//! The assembler does not know what the kernel's verifier will say, with one exception: it
//! leaves out what cannot be reached, which the verifier refuses.

mod assembler;
mod insn;
mod layout;

pub use assembler::Assembler;
pub use insn::{
    Alu, Compare, Helper, Insn, KernelFunction, Memory, RING_BUFFER_FORCE_WAKEUP, Reg, RightSide,
    Size, sk_buff, tc_action, xdp_action, xdp_md,
};
pub use layout::{Fault, Label, MAX_INSNS};
