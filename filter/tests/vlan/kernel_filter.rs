//! A model of the kernel's filter on a packet socket: the programs that it accepts, and their verdicts.
//!
//! Sources: net/core/filter.c (`bpf_check_classic`, `bpf_convert_filter`), linux/filter.h.

use super::{Alu, Compare, Op, Operand, Program, Size};

const EXTENSIONS: i32 = -0x1000;
const EXTENSIONS_END: i32 = 64;
const VLAN_TAG: i32 = 44;
const VLAN_TAG_PRESENT: i32 = 48;
const VLAN_TPID: i32 = 60;
const NETWORK_HEADER: i32 = -0x10_0000;
const LINK_HEADER: i32 = -0x20_0000;
const MAX_INSTRUCTIONS: usize = 4096;

/// A VLAN tag removed from its frame.
#[derive(Clone, Copy)]
pub struct VlanTag {
    pub tpid: u16,
    pub tci: u16,
}

/// An Ethernet frame as a packet socket's filter sees it.
pub struct Skb<'a> {
    /// The frame from its destination address on, without the removed tag.
    pub bytes: &'a [u8],
    /// Its length: `skb->len`, without that tag.
    pub len: u32,
    pub tag: Option<VlanTag>,
}

fn extension(k: u32) -> Option<i32> {
    let number = k.cast_signed().wrapping_sub(EXTENSIONS);
    (number >= 0 && k.cast_signed() < 0).then_some(number)
}

/// True if the kernel accepts the program.
pub fn takes(program: &Program) -> bool {
    let knows = |op: &Op| match *op {
        Op::Calculate(Alu::Lsh | Alu::Rsh, Operand::K(by)) => by < 32,
        Op::Jump(by) => by >= 0,
        Op::Load(_, k) => {
            extension(k).is_none_or(|number| number < EXTENSIONS_END && number % 4 == 0)
        }
        _ => true,
    };
    let ops = program.ops();
    ops.len() <= MAX_INSTRUCTIONS && ops.iter().all(knows) && !reads_unset_cell(ops)
}

/// True if a scratch cell may be read before it is written.
pub fn reads_unset_cell(ops: &[Op]) -> bool {
    // The cells written on every path to each operation; all jumps lead forward.
    let mut written_at = vec![u16::MAX; ops.len()];
    written_at[0] = 0;
    for (at, op) in ops.iter().enumerate() {
        let mut written = written_at[at];
        let next = match *op {
            Op::LoadCell(cell) | Op::LoadXCell(cell) if written & 1 << cell == 0 => return true,
            Op::Store(cell) | Op::StoreX(cell) => {
                written |= 1 << cell;
                [Some(0), None]
            }
            Op::Jump(by) => [usize::try_from(by).ok(), None],
            Op::Branch(_, _, yes, no) => [Some(yes.into()), Some(no.into())],
            Op::Return(_) | Op::ReturnA => [None, None],
            _ => [Some(0), None],
        };
        next.iter().flatten().for_each(|by| written_at[at + 1 + by] &= written);
    }
    false
}

/// Returns the kernel's verdict: the bytes to keep, 0 to reject.
pub fn run(program: &Program, skb: &Skb<'_>) -> u32 {
    execute(program.ops(), skb).unwrap_or(0)
}

fn execute(ops: &[Op], skb: &Skb<'_>) -> Option<u32> {
    let (mut a, mut x, mut cells, mut next) = (0_u32, 0_u32, [0_u32; 16], 0);
    loop {
        let op = ops[next];
        next += 1;
        let value = |operand| match operand {
            Operand::K(k) => k,
            Operand::X => x,
        };
        match op {
            Op::Load(width, k) => a = skb.load(width, k)?,
            Op::LoadIndirect(width, k) => a = skb.at(width, x.wrapping_add(k).cast_signed())?,
            Op::LoadLength => a = skb.len,
            Op::LoadConstant(k) => a = k,
            Op::LoadCell(k) => a = cells[k as usize],
            Op::LoadXHeader(k) => x = (number(skb.bytes, Size::B, k)? & 0xf) * 4,
            Op::LoadXLength => x = skb.len,
            Op::LoadXConstant(k) => x = k,
            Op::LoadXCell(k) => x = cells[k as usize],
            Op::Store(k) => cells[k as usize] = a,
            Op::StoreX(k) => cells[k as usize] = x,
            Op::Calculate(alu, operand) => a = calculate(alu, a, value(operand))?,
            Op::Negate => a = a.wrapping_neg(),
            Op::Jump(by) => next += usize::try_from(by).ok()?,
            Op::Branch(condition, operand, yes, no) => {
                let b = value(operand);
                let holds = match condition {
                    Compare::Eq => a == b,
                    Compare::Gt => a > b,
                    Compare::Ge => a >= b,
                    Compare::Set => a & b != 0,
                    _ => return None,
                };
                next += usize::from(if holds { yes } else { no });
            }
            Op::Return(k) => return Some(k),
            Op::ReturnA => return Some(a),
            Op::CopyToX => x = a,
            Op::CopyToA => a = x,
        }
    }
}

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
        // The shift is by the lower five bits only.
        Alu::Lsh => a.wrapping_shl(b),
        Alu::Rsh => a.wrapping_shr(b),
        Alu::Arsh => return None,
    })
}

fn number(bytes: &[u8], width: Size, at: u32) -> Option<u32> {
    let bytes = bytes.get(at as usize..)?.get(..width.bytes() as usize)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

impl Skb<'_> {
    fn load(&self, width: Size, k: u32) -> Option<u32> {
        let Some(number) = extension(k).filter(|number| (0..EXTENSIONS_END).contains(number))
        else {
            return self.at(width, k.cast_signed());
        };
        let tag = self.tag.unwrap_or(VlanTag { tpid: 0, tci: 0 });
        match number {
            VLAN_TAG_PRESENT => Some(self.tag.is_some().into()),
            VLAN_TAG => Some(tag.tci.into()),
            VLAN_TPID => Some(tag.tpid.into()),
            _ => None,
        }
    }

    /// Offsets below zero count from a header.
    fn at(&self, width: Size, offset: i32) -> Option<u32> {
        let from = match offset {
            0.. => 0,
            NETWORK_HEADER..0 => 14 - NETWORK_HEADER,
            LINK_HEADER..NETWORK_HEADER => -LINK_HEADER,
            _ => return None,
        };
        number(self.bytes, width, offset.checked_add(from)?.cast_unsigned())
    }
}
