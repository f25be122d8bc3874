//! The program around a translated filter, and the reasons why a filter cannot be translated.

use crate::cbpf::{CELLS, Op};
use crate::ebpf::{Assembler, Memory, Reg, Size, xdp_md};
use crate::program::{Program, extension_number, is_extension};

/// The registers and the stack of the program that contains a filter.
///
/// A filter clobbers R0 to R3 and the stack area next to the frame pointer, and needs no values there. It
/// does not change R6 to R9.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Holds the program's context, a `struct xdp_md`: R6.
    pub ctx: Reg,
    /// Holds the context's `data`: R7.
    pub data: Reg,
    /// Holds the context's `data_end`: R8.
    pub end: Reg,
    /// True if frames may have fragments: the program is loaded with `BPF_F_XDP_HAS_FRAGS`.
    pub fragments: bool,
}

impl Frame {
    /// Stack bytes that a filter may use.
    pub const STACK_BYTES: i16 = Cell::Scratch(0).offset() + CELLS as i16 * 4;

    /// Creates the frame of a program with or without support for fragments.
    pub fn new(fragments: bool) -> Self {
        Self { ctx: Reg::R6, data: Reg::R7, end: Reg::R8, fragments }
    }

    /// Loads the registers. Call it at the start of a program, where R1 holds the context.
    pub fn enter(&self, asm: &mut Assembler) {
        asm.mov(self.ctx, Reg::R1);
        asm.load(Size::W, self.data, self.ctx + xdp_md::DATA);
        asm.load(Size::W, self.end, self.ctx + xdp_md::DATA_END);
    }
}

/// A cell of the stack area.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell {
    /// The bytes loaded by the helper.
    Buffer,
    /// A or X during a call.
    Kept,
    /// The length of a frame with fragments.
    Length,
    /// A scratch cell, by number.
    Scratch(u32),
}

impl Cell {
    /// Returns the position of the cell on the stack.
    pub(super) fn memory(self) -> Memory {
        Reg::FP + (self.offset() - Frame::STACK_BYTES)
    }

    const fn offset(self) -> i16 {
        match self {
            Self::Buffer => 0,
            Self::Kept => 8,
            Self::Length => 16,
            Self::Scratch(cell) => 24 + 4 * cell as i16,
        }
    }
}

/// The reason why a filter cannot be translated for XDP.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// The filter jumps back.
    #[error("it loops, as protochain does, and an XDP program cannot")]
    Loops,
    /// The filter needs a value that an XDP program does not have.
    #[error("it asks for {0}, which an XDP program cannot know: it runs before the kernel does")]
    Asks(&'static str),
}

/// Returns an error if a program has no translation.
pub(super) fn check_ops(program: &Program) -> Result<(), TranslateError> {
    if program.loops() {
        return Err(TranslateError::Loops);
    }
    let asked = program.ops().iter().find_map(|op| match *op {
        Op::Load(_, k) if is_extension(k) => Some(extension_name(k)),
        _ => None,
    });
    asked.map_or(Ok(()), |name| Err(TranslateError::Asks(name)))
}

/// Returns the name of an extension, for errors.
fn extension_name(k: u32) -> &'static str {
    match extension_number(k) {
        libc::SKF_AD_PROTOCOL => "the protocol the kernel keeps beside a packet",
        libc::SKF_AD_PKTTYPE => "the packet's direction or kind (inbound, outbound)",
        libc::SKF_AD_IFINDEX => "the number of the interface (ifindex)",
        libc::SKF_AD_NLATTR | libc::SKF_AD_NLATTR_NEST => "a netlink attribute",
        libc::SKF_AD_MARK => "the packet's mark",
        libc::SKF_AD_QUEUE => "the queue the kernel keeps beside a packet",
        libc::SKF_AD_HATYPE => "the interface's hardware type",
        libc::SKF_AD_RXHASH => "the receive hash",
        libc::SKF_AD_CPU => "the processor",
        libc::SKF_AD_ALU_XOR_X => "the kernel's own exclusive or",
        libc::SKF_AD_VLAN_TAG => "the VLAN tag the kernel took out of the frame",
        libc::SKF_AD_VLAN_TAG_PRESENT => "whether the kernel took a VLAN tag out of the frame",
        libc::SKF_AD_PAY_OFFSET => "where the kernel finds the payload",
        libc::SKF_AD_RANDOM => "a random number",
        libc::SKF_AD_VLAN_TPID => "the protocol of the VLAN tag the kernel took out",
        _ => "an extension of the kernel's",
    }
}
