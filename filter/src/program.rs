//! Classic BPF programs, checked once and then run on packets.
//!
//! Every run of a [`Program`] ends. Its jumps stay inside the program and lead forward. Only libpcap's loops
//! for `protochain` jump back, at most once for each byte of the packet.

use super::cbpf::{Alu, CELLS, Instruction, Op, Operand, Size};
use sluicegate_base::error::{Error, Result};

/// Maximum length of a program. Only expressions with thousands of addresses exceed it.
pub const MAX_INSTRUCTIONS: usize = 1 << 16;

/// Maximum length of a program in the kernel (`BPF_MAXINSNS`).
pub const MAX_KERNEL_INSTRUCTIONS: usize = libc::BPF_MAXINSNS as usize;

/// A program that is safe to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    instructions: Box<[Instruction]>,
    ops: Box<[Op]>,
    loops: bool,
}

impl Program {
    /// Checks a program: known codes, jumps that stay inside, valid scratch cells, no division by a constant
    /// 0, a return at the end. Unlike the kernel, it allows `ja` to jump back.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the instruction.
    pub fn new(instructions: impl Into<Box<[Instruction]>>) -> Result<Self> {
        let instructions = instructions.into();
        if instructions.is_empty() || instructions.len() > MAX_INSTRUCTIONS {
            return Err(Error::Usage(format!(
                "a filter program has 1 to {MAX_INSTRUCTIONS} instructions, not {}",
                instructions.len()
            )));
        }
        let mut ops = Vec::with_capacity(instructions.len());
        for (at, instruction) in instructions.iter().enumerate() {
            let op = Op::decode(*instruction)
                .ok_or_else(|| fault(at, &format!("unknown code {:#x}", instruction.code)))?;
            check(op, at, instructions.len()).map_err(|reason| fault(at, reason))?;
            ops.push(op);
        }
        if !matches!(ops.last(), Some(Op::Return(_) | Op::ReturnA)) {
            return Err(fault(ops.len() - 1, "the last instruction must return"));
        }
        let loops = ops.iter().any(|op| matches!(op, Op::Jump(by) if *by < 0));
        Ok(Self { instructions, ops: ops.into(), loops })
    }

    /// Returns the instructions in the kernel's form.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns the decoded instructions.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// True if the program jumps back.
    pub fn loops(&self) -> bool {
        self.loops
    }

    /// Runs the program on the captured `bytes` of a packet that had `wire_bytes` on the wire. Returns
    /// the number of bytes to keep; 0 rejects. A load outside of `bytes` rejects.
    #[inline]
    pub fn run(&self, bytes: &[u8], wire_bytes: u32) -> u32 {
        self.execute(bytes, wire_bytes).unwrap_or(0)
    }

    /// Returns the verdict; `None` if the program cannot continue.
    #[inline]
    fn execute(&self, bytes: &[u8], wire_bytes: u32) -> Option<u32> {
        let (mut a, mut x, mut cells) = (0_u32, 0_u32, [0_u32; CELLS]);
        let mut jumps_back_left = bytes.len();
        let mut next = 0_usize;
        loop {
            let op = self.ops[next];
            next += 1;
            match op {
                Op::Load(width, k) => a = load(bytes, width, k)?,
                Op::LoadIndirect(width, k) => a = load(bytes, width, x.checked_add(k)?)?,
                Op::LoadLength => a = wire_bytes,
                Op::LoadConstant(k) => a = k,
                Op::LoadCell(k) => a = cells[k as usize],
                Op::LoadXHeader(k) => x = (load(bytes, Size::B, k)? & 0xf) * 4,
                Op::LoadXLength => x = wire_bytes,
                Op::LoadXConstant(k) => x = k,
                Op::LoadXCell(k) => x = cells[k as usize],
                Op::Store(k) => cells[k as usize] = a,
                Op::StoreX(k) => cells[k as usize] = x,
                Op::Calculate(alu, operand) => {
                    a = calculate(alu, a, value(operand, x))?;
                }
                Op::Negate => a = a.wrapping_neg(),
                Op::Jump(by) => {
                    if by < 0 {
                        jumps_back_left = jumps_back_left.checked_sub(1)?;
                    }
                    next = next.wrapping_add_signed(by as isize);
                }
                Op::Branch(condition, operand, jt, jf) => {
                    let holds = condition.holds(a, value(operand, x));
                    next += usize::from(if holds { jt } else { jf });
                }
                Op::Return(k) => return Some(k),
                Op::ReturnA => return Some(a),
                Op::CopyToX => x = a,
                Op::CopyToA => a = x,
            }
        }
    }
}

fn fault(at: usize, reason: &str) -> Error {
    Error::Usage(format!("filter program, instruction {at}: {reason}"))
}

fn check(op: Op, at: usize, len: usize) -> Result<(), &'static str> {
    let inside = |by: i64| (0..len as i64).contains(&(at as i64 + 1 + by));
    match op {
        Op::LoadCell(k) | Op::LoadXCell(k) | Op::Store(k) | Op::StoreX(k)
            if k as usize >= CELLS =>
        {
            Err("no such scratch cell")
        }
        Op::Calculate(Alu::Div | Alu::Rem, Operand::K(0)) => Err("division by zero"),
        Op::Jump(by) if !inside(by.into()) => Err("jump out of the program"),
        Op::Branch(_, _, jt, jf) if !inside(jt.into()) || !inside(jf.into()) => {
            Err("jump out of the program")
        }
        _ => Ok(()),
    }
}

#[inline]
fn value(operand: Operand, x: u32) -> u32 {
    match operand {
        Operand::K(k) => k,
        Operand::X => x,
    }
}

#[inline]
fn calculate(alu: Alu, a: u32, b: u32) -> Option<u32> {
    Some(match alu {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Div => a.checked_div(b)?,
        Alu::Rem => a.checked_rem(b)?,
        Alu::Or => a | b,
        Alu::And => a & b,
        Alu::Xor => a ^ b,
        Alu::Lsh => a.checked_shl(b).unwrap_or(0),
        Alu::Rsh => a.checked_shr(b).unwrap_or(0),
        // Not in classic BPF, so no operation decodes to it.
        Alu::Arsh => return None,
    })
}

/// Reads a number in network byte order at an offset; `None` outside of the bytes.
#[inline]
fn load(bytes: &[u8], width: Size, at: u32) -> Option<u32> {
    let rest = bytes.get(at as usize..)?;
    match width {
        Size::B => rest.first().map(|byte| u32::from(*byte)),
        Size::H => rest.first_chunk().map(|b| u32::from(u16::from_be_bytes(*b))),
        Size::W => rest.first_chunk().map(|b| u32::from_be_bytes(*b)),
        // Not in classic BPF, so no operation decodes to it.
        Size::DW => None,
    }
}

/// True if an absolute load reads an extension of the kernel, not the packet's bytes.
pub(crate) fn is_extension(k: u32) -> bool {
    let number = extension_number(k);
    (0..libc::SKF_AD_MAX).contains(&number) && number % 4 == 0
}

/// Returns the number of the extension: one of `SKF_AD_`, if it is valid.
pub(super) fn extension_number(k: u32) -> i32 {
    k.cast_signed().wrapping_sub(libc::SKF_AD_OFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbpf::Compare;

    fn program(ops: &[Op]) -> Result<Program> {
        Program::new(ops.iter().map(|op| op.encode()).collect::<Vec<_>>())
    }

    #[test]
    fn each_operation_does_what_its_name_says() {
        use Op::*;
        let packet: &[u8] = &[0x45, 0x00, 0x01, 0x02, 0xff, 0xee];
        let k = Operand::K;
        let big = LoadConstant(0xffff_fff0);
        let rows: &[(&str, &[Op], u32)] = &[
            ("a byte", &[Load(Size::B, 5)], 0xee),
            ("a half, big-endian", &[Load(Size::H, 2)], 0x0102),
            ("a word, big-endian", &[Load(Size::W, 1)], 0x0001_02ff),
            ("a word that reaches past the end rejects", &[Load(Size::W, 3), big], 0),
            ("a byte past the end rejects", &[Load(Size::B, 6), big], 0),
            ("an offset at the top of the numbers rejects", &[Load(Size::W, u32::MAX), big], 0),
            ("indirect adds X", &[LoadXConstant(2), LoadIndirect(Size::H, 1)], 0x02ff),
            (
                "indirect never wraps around",
                &[LoadXConstant(u32::MAX), LoadIndirect(Size::B, 1), big],
                0,
            ),
            ("length is the wire's, not what was captured", &[LoadLength], 1500),
            ("length into X", &[LoadXLength, CopyToA], 1500),
            ("MSH takes four times the low half", &[LoadXHeader(0), CopyToA], 20),
            ("MSH past the end rejects", &[LoadXHeader(6), big], 0),
            ("cells start at zero", &[big, LoadCell(15)], 0),
            ("a cell keeps A", &[big, Store(15), LoadConstant(1), LoadCell(15)], 0xffff_fff0),
            ("a cell keeps X", &[LoadXConstant(7), StoreX(0), LoadXConstant(1), LoadCell(0)], 7),
            ("a cell goes into X", &[big, Store(3), LoadXCell(3), CopyToA], 0xffff_fff0),
            ("sums wrap", &[big, Calculate(Alu::Add, k(0x20))], 0x10),
            ("differences wrap", &[Calculate(Alu::Sub, k(1))], u32::MAX),
            ("products wrap", &[big, Calculate(Alu::Mul, k(3))], 0xffff_ffd0),
            ("division has no sign", &[big, Calculate(Alu::Div, k(2))], 0x7fff_fff8),
            ("division by X = 0 rejects", &[big, Calculate(Alu::Div, Operand::X)], 0),
            ("remainder", &[big, Calculate(Alu::Rem, k(7))], 0xffff_fff0 % 7),
            ("remainder by X = 0 rejects", &[big, Calculate(Alu::Rem, Operand::X)], 0),
            ("and", &[big, Calculate(Alu::And, k(0xff))], 0xf0),
            ("or", &[big, Calculate(Alu::Or, k(0xf))], u32::MAX),
            ("exclusive or", &[big, Calculate(Alu::Xor, k(0xff))], 0xffff_ff0f),
            ("left by 31", &[LoadConstant(3), Calculate(Alu::Lsh, k(31))], 1 << 31),
            (
                "left by X = 32 leaves nothing",
                &[LoadXConstant(32), big, Calculate(Alu::Lsh, Operand::X)],
                0,
            ),
            (
                "right by X = 33 leaves nothing",
                &[LoadXConstant(33), big, Calculate(Alu::Rsh, Operand::X)],
                0,
            ),
            ("negation", &[LoadConstant(1), Negate], u32::MAX),
            ("A to X and back", &[big, CopyToX, LoadConstant(1), CopyToA], 0xffff_fff0),
            (
                "a branch that holds skips jt",
                &[big, Branch(Compare::Gt, k(0xffff), 1, 0), Return(1), LoadConstant(9)],
                9,
            ),
            (
                "a branch that does not hold skips jf",
                &[Branch(Compare::Set, k(0xffff), 0, 1), Return(1), LoadConstant(9)],
                9,
            ),
            (
                "greater or equal holds for equal, against X",
                &[Branch(Compare::Ge, Operand::X, 1, 0), Return(1), LoadConstant(9)],
                9,
            ),
            ("a jump skips", &[LoadConstant(9), Jump(1), LoadConstant(8)], 9),
        ];
        for (sentence, ops, expected) in rows {
            let ops = [ops, &[ReturnA][..]].concat();
            assert_eq!(program(&ops).unwrap().run(packet, 1500), *expected, "{sentence}");
        }
    }

    #[test]
    fn a_program_that_could_go_wrong_is_refused() {
        use Op::*;
        let k0 = Operand::K(0);
        let rows: &[(&str, &[Op], &str)] = &[
            ("nothing at all", &[], "instructions"),
            ("no return", &[LoadLength], "must return"),
            ("cell 16", &[Store(16), ReturnA], "cell"),
            ("division by a constant 0", &[Calculate(Alu::Div, k0), ReturnA], "zero"),
            ("remainder by a constant 0", &[Calculate(Alu::Rem, k0), ReturnA], "zero"),
            ("a jump past the end", &[Jump(1), ReturnA], "out of"),
            ("a jump before the start", &[Jump(-2), ReturnA], "out of"),
            ("a branch past the end", &[Branch(Compare::Eq, k0, 0, 1), ReturnA], "out of"),
        ];
        for (sentence, ops, reason) in rows {
            let error = program(ops).expect_err(sentence).to_string();
            assert!(error.contains(reason), "{sentence}: {error}");
        }
        let unknown = Instruction { code: 0xffff, jt: 0, jf: 0, k: 0 };
        assert!(Program::new([unknown]).unwrap_err().to_string().contains("0xffff"));
        let long = vec![Return(0); MAX_INSTRUCTIONS + 1];
        assert!(program(&long).is_err(), "a program without end");
    }

    #[test]
    fn a_loop_ends_on_every_packet() {
        let endless = program(&[Op::Jump(-1), Op::ReturnA]).unwrap();
        assert!(endless.loops());
        assert_eq!(endless.run(&[0; 100], 100), 0);
    }
}
