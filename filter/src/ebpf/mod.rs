//! eBPF programs, generated at run time.
//!
//! An [`Assembler`] takes instructions in order, and labels as targets of jumps. It returns the program
//! in the form of `BPF_PROG_LOAD`. A program written with it reads like assembly:
//!
//! ```
//! use sluicegate_filter::ebpf::Reg::*; // in programs: sluicegate::filter
//! use sluicegate_filter::ebpf::Size::*;
//! use sluicegate_filter::ebpf::{Assembler, xdp_action, xdp_md};
//!
//! // Passes packets that have an Ethernet header.
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
//! The assembler leaves out unreachable instructions, which the verifier rejects. It checks no other rule of
//! the verifier.
//!
//! Numbers are those of `linux/bpf.h` and `linux/bpf_common.h`.

mod assembler;

pub use assembler::{Assembler, Chain, Fault, Label, MAX_INSNS};

use std::mem::{offset_of, size_of};
use std::ops::{Add, Sub};

/// One instruction: `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Insn {
    /// The operation code.
    pub code: u8,
    /// Destination and source register, four bits each. The destination is the first C bit field: the lower
    /// bits on a little-endian machine.
    pub registers: u8,
    /// The distance of a jump in instructions, or of an access in bytes.
    pub off: i16,
    /// A constant.
    pub imm: i32,
}

// The layout in `linux/bpf.h`: code, two registers in a byte, off, imm.
const _: () = {
    assert!(size_of::<Insn>() == 8);
    assert!(offset_of!(Insn, code) == 0);
    assert!(offset_of!(Insn, registers) == 1);
    assert!(offset_of!(Insn, off) == 2);
    assert!(offset_of!(Insn, imm) == 4);
};

impl Insn {
    /// `src` is a register's number, or one of `pseudo`.
    fn new(code: u8, dst: Reg, src: u8, off: i16, imm: i32) -> Self {
        let dst = dst as u8;
        let little = cfg!(target_endian = "little");
        let registers = if little { src << 4 | dst } else { dst << 4 | src };
        Self { code, registers, off, imm }
    }
}

/// Classes of instructions: the lower three bits of a code (`BPF_CLASS`).
mod class {
    pub(crate) const LD: u8 = 0x00;
    pub(crate) const LDX: u8 = 0x01;
    pub(crate) const ST: u8 = 0x02;
    pub(crate) const STX: u8 = 0x03;
    pub(crate) const ALU: u8 = 0x04;
    pub(crate) const JMP: u8 = 0x05;
    pub(crate) const JMP32: u8 = 0x06;
    pub(crate) const ALU64: u8 = 0x07;
}

/// The other parts of a code.
mod part {
    pub(crate) const MEM: u8 = 0x60;
    pub(crate) const ATOMIC: u8 = 0xc0;
    /// The source is a register, not the constant.
    pub(crate) const X: u8 = 0x08;
    pub(crate) const MOV: u8 = 0xb0;
    pub(crate) const NEG: u8 = 0x80;
    pub(crate) const END: u8 = 0xd0;
    pub(crate) const TO_BE: u8 = 0x08;
    pub(crate) const JA: u8 = 0x00;
    pub(crate) const CALL: u8 = 0x80;
    pub(crate) const EXIT: u8 = 0x90;
    /// A flag in the constant of an atomic operation: it also returns the old value.
    pub(crate) const FETCH: i32 = 0x01;
}

/// Meanings of a wide load's constant, encoded as its source register.
mod pseudo {
    pub(crate) const MAP_FD: u8 = 1;
    pub(crate) const MAP_VALUE: u8 = 2;
    /// In a call: the constant is the number of a kernel function, not of a helper.
    pub(crate) const KERNEL_FUNCTION: u8 = 2;
}

/// A register. A call takes its arguments in `R1` to `R5`, which it clobbers, and returns its result in `R0`.
/// `R6` to `R9` survive it. A program begins with its context in `R1`.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "a register has no meaning but its number")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    /// The frame pointer, read-only: the end of the stack, which has 512 bytes below it.
    R10,
}

impl Reg {
    /// Another name for the frame pointer.
    pub const FP: Self = Self::R10;
}

/// An address: a register and a distance from it. Written `R1 + 4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The register.
    pub base: Reg,
    /// The distance in bytes.
    pub offset: i16,
}

impl Add<i16> for Reg {
    type Output = Memory;

    fn add(self, offset: i16) -> Memory {
        Memory { base: self, offset }
    }
}

impl Sub<i16> for Reg {
    type Output = Memory;

    fn sub(self, offset: i16) -> Memory {
        Memory { base: self, offset: offset.wrapping_neg() }
    }
}

/// The size of a load or store.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A word: four bytes.
    W = 0x00,
    /// A half word: two bytes.
    H = 0x08,
    /// A byte.
    B = 0x10,
    /// A double word: eight bytes.
    DW = 0x18,
}

impl Size {
    /// The number of bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Self::B => 1,
            Self::H => 2,
            Self::W => 4,
            Self::DW => 8,
        }
    }
}

/// The right side of a calculation or a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RightSide {
    /// A register.
    Reg(Reg),
    /// A constant; operations on 64 bits extend its sign.
    Imm(i32),
}

impl From<Reg> for RightSide {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for RightSide {
    fn from(constant: i32) -> Self {
        Self::Imm(constant)
    }
}

/// Calculations with two sides.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alu {
    /// Sum.
    Add = 0x00,
    /// Difference.
    Sub = 0x10,
    /// Product.
    Mul = 0x20,
    /// Quotient without sign; 0 if divided by a register that is 0.
    Div = 0x30,
    /// Bits in either.
    Or = 0x40,
    /// Bits in both.
    And = 0x50,
    /// Shift to the left, by the lower 5 or 6 bits of the right side.
    Lsh = 0x60,
    /// Shift to the right, filled with zeros.
    Rsh = 0x70,
    /// Remainder without sign; unchanged if divided by a register that is 0.
    Rem = 0x90,
    /// Bits in one only.
    Xor = 0xa0,
    /// Shift to the right, filled with the sign.
    Arsh = 0xc0,
}

/// Comparisons; those with a leading S are signed.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the comparisons")]
pub enum Compare {
    Eq = 0x10,
    Ne = 0x50,
    Gt = 0x20,
    Ge = 0x30,
    Lt = 0xa0,
    Le = 0xb0,
    /// The sides have a bit in common.
    Set = 0x40,
    Sgt = 0x60,
    Sge = 0x70,
    Slt = 0xc0,
    Sle = 0xd0,
}

impl Compare {
    /// Evaluates the comparison of 32-bit numbers.
    #[inline]
    pub fn holds(self, a: u32, b: u32) -> bool {
        let (signed_a, signed_b) = (a.cast_signed(), b.cast_signed());
        match self {
            Self::Eq => a == b,
            Self::Ne => a != b,
            Self::Gt => a > b,
            Self::Ge => a >= b,
            Self::Lt => a < b,
            Self::Le => a <= b,
            Self::Set => a & b != 0,
            Self::Sgt => signed_a > signed_b,
            Self::Sge => signed_a >= signed_b,
            Self::Slt => signed_a < signed_b,
            Self::Sle => signed_a <= signed_b,
        }
    }
}

/// A function of the kernel, by its number (`BPF_FUNC_` in `linux/bpf.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Helper(pub i32);

impl Helper {
    /// `map_lookup_elem(map, key)`: a pointer to the value, or 0.
    pub const MAP_LOOKUP: Self = Self(1);
    /// `ktime_get_ns()`: time since boot, without suspend.
    pub const KTIME_NS: Self = Self(5);
    /// `get_smp_processor_id()`.
    pub const CPU: Self = Self(8);
    /// `tail_call(ctx, map, index)`: returns only if there is no such program.
    pub const TAIL_CALL: Self = Self(12);
    /// `redirect(ifindex, flags)`.
    pub const REDIRECT: Self = Self(23);
    /// `redirect_map(map, key, flags)`: returns the lower bits of `flags` if there is no such entry.
    pub const REDIRECT_MAP: Self = Self(51);
    /// `xdp_adjust_meta(ctx, delta)`: makes room for metadata before the packet; pointers into the packet
    /// must be loaded again. Linux 4.15, not with every driver.
    pub const XDP_ADJUST_META: Self = Self(54);
    /// `xdp_adjust_tail(ctx, delta)`; pointers into the packet must be loaded again.
    pub const XDP_ADJUST_TAIL: Self = Self(65);
    /// `probe_read_kernel_str(buffer, bytes, text)`: the length with its NUL, or an error. Linux 5.5.
    pub const PROBE_READ_KERNEL_STR: Self = Self(115);
    /// `get_ns_current_pid_tgid(device, inode, numbers, bytes)`: the thread and process numbers in a PID
    /// namespace; 0, or an error. Linux 5.7.
    pub const NS_PID_TGID: Self = Self(120);
    /// `xdp_get_buff_len(ctx)`: the packet's length with its fragments. Linux 5.18.
    pub const XDP_BUFF_LEN: Self = Self(188);
    /// `ringbuf_output(ring buffer, data, bytes, flags)`: 0, or an error. Linux 5.8.
    pub const RING_BUFFER_OUTPUT: Self = Self(130);
    /// `xdp_load_bytes(ctx, offset, buffer, bytes)`: 0, or an error. Offsets up to 65,535.
    /// Linux 5.18.
    pub const XDP_LOAD_BYTES: Self = Self(189);
    /// `xdp_store_bytes(ctx, offset, buffer, bytes)`: 0, or an error. Linux 5.18.
    pub const XDP_STORE_BYTES: Self = Self(190);
}

/// Flag of [`Helper::RING_BUFFER_OUTPUT`]: wakes the readers even if they have not read everything.
pub const RING_BUFFER_FORCE_WAKEUP: i32 = 2;

/// A kernel function that programs may call (a "kfunc", Linux 5.13), by its number in the running kernel's
/// BTF, `/sys/kernel/btf/vmlinux`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFunction(pub i32);

/// Offsets in an XDP program's context, `struct xdp_md`; all fields have four bytes.
pub mod xdp_md {
    /// Points to the packet's first byte.
    pub const DATA: i16 = 0;
    /// Points after the last byte of its first buffer.
    pub const DATA_END: i16 = 4;
    /// Points to the metadata before the packet.
    pub const DATA_META: i16 = 8;
    /// The queue that received it.
    pub const RX_QUEUE_INDEX: i16 = 16;
}

/// Return values of an XDP program: `enum xdp_action`.
pub mod xdp_action {
    /// Dropped.
    pub const DROP: i32 = 1;
    /// Passed to the host.
    pub const PASS: i32 = 2;
    /// Sent out of the interface that received it.
    pub const TX: i32 = 3;
    /// Sent to the target of a redirect helper.
    pub const REDIRECT: i32 = 4;
}

/// Offsets in the context of a program in the host's stack, `struct __sk_buff`; all fields have four
/// bytes.
pub mod sk_buff {
    /// The packet mark, which the host's programs and rules may set.
    pub const MARK: i16 = 8;
    /// Nonzero if the kernel keeps a VLAN tag beside the packet.
    pub const VLAN_PRESENT: i16 = 20;
    /// Points to the packet's first byte.
    pub const DATA: i16 = 76;
    /// Points after the last byte that can be read directly.
    pub const DATA_END: i16 = 80;
}

/// Return values of a program where packets enter and leave the host's stack: `TC_ACT_`
/// (linux/pkt_cls.h).
pub mod tc_action {
    /// Passed to the next program or filter; after the last one, handled as without any.
    pub const UNSPEC: i32 = -1;
    /// Dropped.
    pub const SHOT: i32 = 2;
    /// Consumed by the program; not counted as a loss.
    pub const STOLEN: i32 = 4;
}
