//! Programs for packet sockets, which see frames without their outer VLAN tag.
//!
//! The kernel removes the outer tag of a received frame, bytes 12 to 16, and keeps it in the packet's
//! metadata. A filter is written for the frame on the wire, which is also the form in a file:
//!
//! ```text
//!              0            12        14        16        18
//! on the wire  | addresses  | TPID    | TCI     | type    | payload …
//! in the kernel| addresses  | type    | payload …           + TPID, TCI beside it
//!              0            12        14
//! ```
//!
//! So the program for the kernel contains the filter twice, after a test: unchanged for frames without a
//! removed tag, and with every load translated for frames with one. Programs read the removed tag by
//! extensions: `SKF_AD_VLAN_TAG_PRESENT` and `SKF_AD_VLAN_TAG` since Linux 3.8, `SKF_AD_VLAN_TPID` since 4.1
//! (`linux/filter.h`). Before 5.0 the tag's drop-eligible bit (0x1000) reads as 0. The packet's length in the
//! filter of a SOCK_RAW socket counts from the destination address, without the tag.
//!
//! The translation also hides two differences between the kernel and libpcap: the kernel shifts by X modulo
//! 32, and an indirect load beyond 2³¹ reaches its extensions or counts from another header.

use std::ops::Range;

use super::cbpf::{Alu, CELLS, Compare, Instruction, Op, Operand, Size};
use super::program::{MAX_KERNEL_INSTRUCTIONS, Program, is_extension};
use sluicegate_base::error::{Error, Result};

/// The offsets of the tag in a frame on the wire.
const TAG: Range<u32> = 12..16;
const TAG_BYTES: u32 = TAG.end - TAG.start;
/// The offset of the tag's control information.
const TCI: u32 = 14;

/// The highest offset that the kernel takes as a byte of the packet.
const MAX_OFFSET: u32 = i32::MAX.cast_unsigned();

impl Program {
    /// Returns a program with the same verdict, for a packet socket, where the outer VLAN tag is no longer in the
    /// frame. Only Ethernet frames carry tags. The program keeps packets whole.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason, if no such program exists.
    pub fn for_packet_socket(&self, ethernet: bool) -> Result<Self> {
        if self.loops() {
            let reason = "it loops (protochain), which the kernel rejects";
            return Err(Error::Usage(reason.into()));
        }
        let translate = |tag_out| {
            let translation = Translation { tag_out, free: free_cells(self) };
            let blocks: Result<_> = self.ops().iter().map(|op| translation.op(*op)).collect();
            blocks.map(join)
        };
        let mut ops = Vec::new();
        if ethernet && self.ops().iter().any(|op| sees_tag(*op)) {
            // The program may rely on A being 0 at its start.
            let tagged = [vec![Op::LoadConstant(0)], translate(true)?].concat();
            ops.push(load_extension(libc::SKF_AD_VLAN_TAG_PRESENT));
            match u8::try_from(tagged.len()) {
                Ok(by) => ops.push(Op::Branch(Compare::Eq, Operand::K(0), by, 0)),
                Err(_) => ops.extend([
                    Op::Branch(Compare::Eq, Operand::K(0), 0, 1),
                    Op::Jump(tagged.len() as i32),
                ]),
            }
            ops.extend(tagged);
        }
        ops.extend(translate(false)?);
        if ops.len() > MAX_KERNEL_INSTRUCTIONS {
            return Err(Error::Usage(format!(
                "it takes {} instructions there and the kernel allows {MAX_KERNEL_INSTRUCTIONS}",
                ops.len()
            )));
        }
        let instructions: Vec<Instruction> = ops.into_iter().map(Op::encode).collect();
        Self::new(instructions)
    }
}

/// True if the result of the operation differs once the tag is removed.
fn sees_tag(op: Op) -> bool {
    match op {
        Op::Load(width, k) => !is_extension(k) && k.saturating_add(width.bytes()) > TAG.start,
        Op::LoadXHeader(k) => k >= TAG.start,
        Op::LoadIndirect(..) | Op::LoadLength | Op::LoadXLength => true,
        _ => false,
    }
}

fn load_extension(number: i32) -> Op {
    Op::Load(Size::W, (libc::SKF_AD_OFF + number).cast_unsigned())
}

/// Returns the scratch cells that a program does not use.
fn free_cells(program: &Program) -> Vec<u32> {
    let used = |cell: &u32| {
        program.ops().iter().any(|op| match *op {
            Op::LoadCell(k) | Op::LoadXCell(k) | Op::Store(k) | Op::StoreX(k) => k == *cell,
            _ => false,
        })
    };
    (0..CELLS as u32).rev().filter(|cell| !used(cell)).collect()
}

/// The indices of the free cells that hold a value and X.
const VALUE: usize = 0;
const INDEX: usize = 1;

/// One of the two translations of a program, operation by operation.
struct Translation {
    /// True for frames whose tag was removed.
    tag_out: bool,
    free: Vec<u32>,
}

impl Translation {
    /// Translates an operation on the wire's frame to operations in a packet socket.
    fn op(&self, op: Op) -> Result<Vec<Op>> {
        const ADD_TAG: Op = Op::Calculate(Alu::Add, Operand::K(TAG_BYTES));
        Ok(match op {
            Op::Load(width, k) if !is_extension(k) => self.load(width, k)?,
            Op::LoadIndirect(width, k) => self.load_indirect(width, k)?,
            Op::LoadXHeader(k) => self.load_header_length(k)?,
            Op::LoadLength if self.tag_out => vec![op, ADD_TAG],
            Op::LoadXLength if self.tag_out => {
                let value = self.free_cell(VALUE)?;
                vec![Op::Store(value), Op::LoadLength, ADD_TAG, Op::CopyToX, Op::LoadCell(value)]
            }
            Op::Calculate(Alu::Lsh | Alu::Rsh, Operand::K(32..)) => vec![Op::LoadConstant(0)],
            Op::Calculate(Alu::Lsh | Alu::Rsh, Operand::X) => {
                let value = self.free_cell(VALUE)?;
                let (nothing, shift) = (vec![Op::LoadConstant(0)], vec![Op::LoadCell(value), op]);
                let shift = choose(Compare::Ge, 32, nothing, shift);
                [vec![Op::Store(value), Op::CopyToA], shift].concat()
            }
            // Accepted packets are kept whole; the port cuts them to its snaplen.
            Op::Return(1..) => vec![Op::Return(u32::MAX)],
            Op::ReturnA => {
                let branch = Op::Branch(Compare::Eq, Operand::K(0), 0, 1);
                vec![branch, Op::Return(0), Op::Return(u32::MAX)]
            }
            op => vec![op],
        })
    }

    /// Returns a free scratch cell: [`VALUE`] or [`INDEX`].
    fn free_cell(&self, at: usize) -> Result<u32> {
        let cell = self.free.get(at).copied();
        let reason = || format!("it leaves too few of the {CELLS} scratch cells free");
        cell.ok_or_else(|| Error::Usage(reason()))
    }

    /// A = the wire's bytes at k. Preserves X.
    fn load(&self, width: Size, k: u32) -> Result<Vec<Op>> {
        let beside_tag = k.saturating_add(width.bytes()) <= TAG.start || k >= TAG.end;
        if k > MAX_OFFSET - width.bytes() {
            Ok(vec![Op::Return(0)])
        } else if !self.tag_out || beside_tag {
            Ok(vec![Op::Load(width, self.place_of(k))])
        } else {
            self.load_across_tag(k..k + width.bytes())
        }
    }

    /// Returns the kernel's offset of a byte outside the tag.
    fn place_of(&self, k: u32) -> u32 {
        if self.tag_out && k >= TAG.end { k - TAG_BYTES } else { k }
    }

    /// A = the wire's bytes in a range that touches the tag, joined from its pieces.
    fn load_across_tag(&self, range: Range<u32>) -> Result<Vec<Op>> {
        let pieces: Vec<_> = pieces(range).collect();
        let mut ops = self.load_piece(&pieces[0]);
        if pieces.len() == 1 {
            return Ok(ops);
        }
        let (value, index) = (self.free_cell(VALUE)?, self.free_cell(INDEX)?);
        ops.push(Op::StoreX(index));
        for piece in &pieces[1..] {
            let bits = 8 * (piece.end - piece.start);
            ops.extend([Op::Calculate(Alu::Lsh, Operand::K(bits)), Op::Store(value)]);
            ops.extend(self.load_piece(piece));
            ops.extend([Op::LoadXCell(value), Op::Calculate(Alu::Or, Operand::X)]);
        }
        ops.push(Op::LoadXCell(index));
        Ok(ops)
    }

    /// A = one piece: one or two bytes, of the frame or of half the tag.
    fn load_piece(&self, piece: &Range<u32>) -> Vec<Op> {
        let is_byte = piece.len() == 1;
        if !TAG.contains(&piece.start) {
            let width = if is_byte { Size::B } else { Size::H };
            return vec![Op::Load(width, self.place_of(piece.start))];
        }
        let half = if piece.start < TCI { libc::SKF_AD_VLAN_TPID } else { libc::SKF_AD_VLAN_TAG };
        let (alu, k) = if piece.start.is_multiple_of(2) { (Alu::Rsh, 8) } else { (Alu::And, 0xff) };
        let byte = Op::Calculate(alu, Operand::K(k));
        [load_extension(half)].into_iter().chain(is_byte.then_some(byte)).collect()
    }

    /// A = the wire's bytes at X + k, for every X. Preserves X.
    fn load_indirect(&self, width: Size, k: u32) -> Result<Vec<Op>> {
        let Some(max_x) = MAX_OFFSET.checked_sub(k) else { return Ok(vec![Op::Return(0)]) };
        let load = match self.tag_out {
            true if k < TAG.end => self.load_indirect_around_tag(width, k)?,
            _ => vec![Op::LoadIndirect(width, self.place_of(k))],
        };
        // The load overwrites A, so A can hold X for the check.
        let check = Op::Branch(Compare::Gt, Operand::K(max_x), 0, 1);
        Ok([vec![Op::CopyToA, check, Op::Return(0)], load].concat())
    }

    /// A = the wire's bytes at X + k, which may be before, in or after the tag. A must hold X.
    fn load_indirect_around_tag(&self, width: Size, k: u32) -> Result<Vec<Op>> {
        let mut load = vec![Op::LoadIndirect(width, k)];
        // Only a few offsets touch the tag: each gets its own load.
        let first_touching = TAG.start + 1 - width.bytes();
        for offset in (first_touching.max(k)..TAG.end).rev() {
            load = choose(Compare::Eq, offset - k, self.load(width, offset)?, load);
        }
        let behind = if let Some(k) = k.checked_sub(TAG_BYTES) {
            vec![Op::LoadIndirect(width, k)]
        } else {
            let index = self.free_cell(INDEX)?;
            vec![
                Op::StoreX(index),
                Op::Calculate(Alu::Sub, Operand::K(TAG_BYTES - k)),
                Op::CopyToX,
                Op::LoadIndirect(width, 0),
                Op::LoadXCell(index),
            ]
        };
        Ok(choose(Compare::Ge, TAG.end - k, behind, load))
    }

    /// X = 4 × the low half of the wire's byte at k. Preserves A.
    fn load_header_length(&self, k: u32) -> Result<Vec<Op>> {
        if k > MAX_OFFSET {
            return Ok(vec![Op::Return(0)]);
        }
        if !self.tag_out || !TAG.contains(&k) {
            return Ok(vec![Op::LoadXHeader(self.place_of(k))]);
        }
        let value = self.free_cell(VALUE)?;
        let times_four = [
            Op::Calculate(Alu::And, Operand::K(0xf)),
            Op::Calculate(Alu::Lsh, Operand::K(2)),
            Op::CopyToX,
            Op::LoadCell(value),
        ];
        Ok([&[Op::Store(value)][..], &self.load_piece(&(k..k + 1)), &times_four].concat())
    }
}

/// Executes `yes`, which must be short, if the comparison of A with a constant holds; otherwise `no`.
fn choose(condition: Compare, k: u32, yes: Vec<Op>, no: Vec<Op>) -> Vec<Op> {
    let branch = Op::Branch(condition, Operand::K(k), 0, yes.len() as u8 + 1);
    [vec![branch], yes, vec![Op::Jump(no.len() as i32)], no].concat()
}

/// Splits a range of the wire's bytes into pieces of one or two bytes, each entirely in the frame or entirely
/// in the same half of the tag.
fn pieces(range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let border = [TAG.start, TCI, TAG.end].into_iter().find(|border| *border > start);
        let end = range.end.min(border.unwrap_or(u32::MAX)).min(start + 2);
        let piece = start..end;
        start = end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Joins blocks to a program. The jump of a block that is a single jump or branch counts in blocks, forward.
/// The jumps of other blocks stay inside their block.
fn join(mut blocks: Vec<Vec<Op>>) -> Vec<Op> {
    // A branch reaches 255 instructions. A branch that must reach further goes through two adjacent jumps,
    // which reach everywhere. These may put the target of another branch out of reach.
    let distances = loop {
        let mut starts = vec![0];
        starts.extend(blocks.iter().scan(0, |end, block| {
            *end += block.len();
            Some(*end)
        }));
        let distance = move |at: usize, blocks: usize| starts[at + 1 + blocks] - starts[at + 1];
        let mut grown = false;
        for (at, block) in blocks.iter_mut().enumerate() {
            if let [Op::Branch(condition, operand, yes, no)] = block[..]
                && distance(at, yes.into()).max(distance(at, no.into())) > 255
            {
                let jumps = [Op::Jump(yes.into()), Op::Jump(no.into())];
                *block = [&[Op::Branch(condition, operand, 0, 1)], &jumps[..]].concat();
                grown = true;
            }
        }
        if !grown {
            break distance;
        }
    };
    for (at, block) in blocks.iter_mut().enumerate() {
        let by = |blocks: i32| distances(at, blocks as usize);
        match &mut block[..] {
            [Op::Jump(to)] => *to = by(*to) as i32,
            [Op::Branch(_, _, yes, no)] => {
                [*yes, *no] = [*yes, *no].map(|to| by(to.into()) as u8);
            }
            [Op::Branch(..), Op::Jump(yes), Op::Jump(no)] => {
                (*yes, *no) = (by(*yes) as i32 + 1, by(*no) as i32);
            }
            _ => {}
        }
    }
    blocks.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(k: u32, yes: u8, no: u8) -> Op {
        Op::Branch(Compare::Eq, Operand::K(k), yes, no)
    }

    /// A branch over a block of `between` instructions.
    fn branch_over(between: usize) -> Vec<Op> {
        let block = vec![Op::LoadLength; between];
        join(vec![vec![branch(0, 1, 0)], block, vec![Op::Return(1)]])
    }

    #[test]
    fn a_branch_grows_where_its_target_is_too_far() {
        assert_eq!(branch_over(255)[0], branch(0, 255, 0));
        let long = branch_over(256);
        assert_eq!(long[..3], [branch(0, 0, 1), Op::Jump(257), Op::Jump(0)]);
        assert_eq!(long[259], Op::Return(1));
    }

    #[test]
    fn one_branch_that_grows_makes_another_grow() {
        let ops = join(vec![
            vec![branch(1, 2, 0)],
            vec![branch(2, 2, 0)],
            vec![Op::LoadLength; 254],
            vec![Op::LoadLength; 2],
            vec![Op::Return(1)],
        ]);
        assert_eq!(ops[1], Op::Jump(2 + 2 + 254));
        assert_eq!(ops[4], Op::Jump(1 + 254 + 2));
    }

    #[test]
    fn jumps_inside_a_block_stay() {
        let block = choose(Compare::Eq, 7, vec![Op::LoadLength], vec![Op::CopyToA; 2]);
        let ops = join(vec![vec![Op::Jump(1)], block, vec![Op::ReturnA]]);
        assert_eq!(ops[..4], [Op::Jump(5), branch(7, 0, 2), Op::LoadLength, Op::Jump(2)]);
    }
}
