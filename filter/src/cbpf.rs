//! Classic BPF: instructions in the kernel's form, and in decoded form.
//!
//! Numbers are those of `linux/filter.h` and `linux/bpf_common.h`. The kernel takes an
//! [`Instruction`]; code here works on an [`Op`].

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Load sizes, calculations and comparisons have the same numbers as in eBPF.
pub use crate::ebpf::{Alu, Compare, Size};

/// The load sizes of classic BPF.
const LOADS: [Size; 3] = [Size::B, Size::H, Size::W];
const CALCULATIONS: [Alu; 10] = {
    use Alu::*;
    [Add, Sub, Mul, Div, Or, And, Lsh, Rsh, Rem, Xor]
};
const COMPARISONS: [Compare; 4] = [Compare::Eq, Compare::Gt, Compare::Ge, Compare::Set];

/// The number of scratch cells: `M[0]` to `M[15]` (`BPF_MEMWORDS`).
pub const CELLS: usize = libc::BPF_MEMWORDS as usize;

/// One instruction, in the kernel's form: operation code; instructions to skip if the condition holds, and if
/// it does not; a constant, an offset or a cell's number.
pub use libc::sock_filter as Instruction;

/// The right side of a calculation or a comparison with A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A constant.
    K(u32),
    /// The index register.
    X,
}

/// The meaning of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A = the packet at k, from network byte order.
    Load(Size, u32),
    /// A = the packet at X + k.
    LoadIndirect(Size, u32),
    /// A = bytes on the wire.
    LoadLength,
    /// A = k.
    LoadConstant(u32),
    /// A = `M[k]`.
    LoadCell(u32),
    /// X = 4 × the low half of the packet's byte at k: an IPv4 header's length (MSH).
    LoadXHeader(u32),
    /// X = bytes on the wire.
    LoadXLength,
    /// X = k.
    LoadXConstant(u32),
    /// X = `M[k]`.
    LoadXCell(u32),
    /// `M[k]` = A.
    Store(u32),
    /// `M[k]` = X.
    StoreX(u32),
    /// A = A, calculated with the operand, on 32 bits. A division by X = 0 rejects the packet; a shift by 32
    /// or more gives 0.
    Calculate(Alu, Operand),
    /// A = -A.
    Negate,
    /// Skips this number of instructions. Negative in libpcap's `protochain` loops, which no kernel accepts.
    Jump(i32),
    /// Skips the first number of instructions if A compares so, otherwise the second.
    Branch(Compare, Operand, u8, u8),
    /// The verdict: how many bytes to keep; 0 rejects the packet.
    Return(u32),
    /// The verdict is A.
    ReturnA,
    /// X = A.
    CopyToX,
    /// A = X.
    CopyToA,
}

impl Op {
    /// Decodes an instruction; `None` if no kernel knows its code.
    pub fn decode(instruction: Instruction) -> Option<Self> {
        let Instruction { code, jt, jf, k } = instruction;
        let loads =
            LOADS.iter().flat_map(|&size| [Self::Load(size, k), Self::LoadIndirect(size, k)]);
        let with_operand = [Operand::K(k), Operand::X].into_iter().flat_map(|operand| {
            let calculations = CALCULATIONS.map(|alu| Self::Calculate(alu, operand));
            let branches = COMPARISONS.map(|is| Self::Branch(is, operand, jt, jf));
            calculations.into_iter().chain(branches)
        });
        let others = [
            Self::LoadLength,
            Self::LoadConstant(k),
            Self::LoadCell(k),
            Self::LoadXHeader(k),
            Self::LoadXLength,
            Self::LoadXConstant(k),
            Self::LoadXCell(k),
            Self::Store(k),
            Self::StoreX(k),
            Self::Negate,
            Self::Jump(k.cast_signed()),
            Self::Return(k),
            Self::ReturnA,
            Self::CopyToX,
            Self::CopyToA,
        ];
        loads.chain(with_operand).chain(others).find(|op| op.encode().code == code)
    }

    /// Encodes the operation as an instruction.
    pub fn encode(self) -> Instruction {
        use libc::{
            BPF_A, BPF_ABS, BPF_ALU, BPF_B, BPF_IMM, BPF_IND, BPF_JA, BPF_JMP, BPF_LD, BPF_LDX,
            BPF_LEN, BPF_MEM, BPF_MISC, BPF_MSH, BPF_NEG, BPF_RET, BPF_ST, BPF_STX, BPF_TAX,
            BPF_TXA, BPF_W,
        };
        let (code, jt, jf, k) = match self {
            Self::Load(width, k) => (BPF_LD | BPF_ABS | width as u32, 0, 0, k),
            Self::LoadIndirect(width, k) => (BPF_LD | BPF_IND | width as u32, 0, 0, k),
            Self::LoadLength => (BPF_LD | BPF_LEN | BPF_W, 0, 0, 0),
            Self::LoadConstant(k) => (BPF_LD | BPF_IMM, 0, 0, k),
            Self::LoadCell(k) => (BPF_LD | BPF_MEM, 0, 0, k),
            Self::LoadXHeader(k) => (BPF_LDX | BPF_MSH | BPF_B, 0, 0, k),
            Self::LoadXLength => (BPF_LDX | BPF_LEN | BPF_W, 0, 0, 0),
            Self::LoadXConstant(k) => (BPF_LDX | BPF_IMM, 0, 0, k),
            Self::LoadXCell(k) => (BPF_LDX | BPF_MEM, 0, 0, k),
            Self::Store(k) => (BPF_ST, 0, 0, k),
            Self::StoreX(k) => (BPF_STX, 0, 0, k),
            Self::Calculate(alu, operand) => {
                let (source, k) = source(operand);
                (BPF_ALU | alu as u32 | source, 0, 0, k)
            }
            Self::Negate => (BPF_ALU | BPF_NEG, 0, 0, 0),
            Self::Jump(by) => (BPF_JMP | BPF_JA, 0, 0, by.cast_unsigned()),
            Self::Branch(condition, operand, jt, jf) => {
                let (source, k) = source(operand);
                (BPF_JMP | condition as u32 | source, jt, jf, k)
            }
            Self::Return(k) => (BPF_RET, 0, 0, k),
            Self::ReturnA => (BPF_RET | BPF_A, 0, 0, 0),
            Self::CopyToX => (BPF_MISC | BPF_TAX, 0, 0, 0),
            Self::CopyToA => (BPF_MISC | BPF_TXA, 0, 0, 0),
        };
        Instruction { code: code as u16, jt, jf, k }
    }
}

fn source(operand: Operand) -> (u32, u32) {
    match operand {
        Operand::K(k) => (libc::BPF_K, k),
        Operand::X => (libc::BPF_X, 0),
    }
}

/// Attaches the program to a socket as its filter. The change is atomic for arriving packets.
pub fn attach_to_socket(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    attach_by_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Sets a socket option that takes a `struct sock_fprog`.
pub fn attach_by_option(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    program: &[Instruction],
) -> io::Result<()> {
    let fprog = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        filter: program.as_ptr().cast_mut(),
    };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    #[allow(unsafe_code, reason = "a system call")]
    // SAFETY: the kernel reads `len` instructions from `program`, which is live, and writes nothing.
    let status = unsafe { libc::setsockopt(fd, level, option, (&raw const fprog).cast(), size) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes that `chk_code_allowed` in the kernel's net/core/filter.c allows.
    const KERNEL_CODES: &[u16] = &[
        0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74,
        0x7c, 0x84, 0x94, 0x9c, 0xa4, 0xac, // calculations
        0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x80, 0x00, 0x60, // ld
        0x81, 0xb1, 0x01, 0x61, // ldx
        0x02, 0x03, 0x07, 0x87, 0x06, 0x16, // st, stx, tax, txa, ret
        0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, // jumps
    ];

    #[test]
    fn exactly_the_kernels_codes_decode_and_encode_back() {
        for code in 0..=u16::MAX {
            let (jt, jf) = if code & 7 == 5 && code != 5 { (3, 4) } else { (0, 0) };
            let instruction = Instruction { code, jt, jf, k: 0 };
            let decoded = Op::decode(instruction);
            assert_eq!(decoded.is_some(), KERNEL_CODES.contains(&code), "code {code:#06x}");
            if let Some(op) = decoded {
                assert_eq!(op.encode(), instruction, "code {code:#06x}");
            }
        }
    }
}
