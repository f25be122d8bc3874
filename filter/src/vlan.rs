//! Programs for packet sockets, which see frames without their outer VLAN tag.
//!
//! On the way up the kernel takes the outer tag out of a frame, bytes 12 to 16, and keeps it
//! beside the packet. A filter is written for the frame as it was on the wire, and as it will
//! stand in a file:
//!
//! ```text
//!              0            12        14        16        18
//! on the wire  | addresses  | TPID    | TCI     | type    | payload …
//! in the kernel| addresses  | type    | payload …           + TPID, TCI beside it
//!              0            12        14
//! ```
//!
//! So a program is laid out twice behind a question: as it is, for frames that have no tag
//! beside them, and with every load translated, for those that have one. The kernel gives the
//! tag through extensions: `SKF_AD_VLAN_TAG_PRESENT` and `SKF_AD_VLAN_TAG` since Linux 3.8,
//! `SKF_AD_VLAN_TPID` since 4.1 (`linux/filter.h`). Before 5.0 the tag's drop-eligible bit
//! (0x1000) reads as 0. The packet's length, as a socket of type SOCK_RAW filters it, counts
//! from the destination address and leaves the tag out.
//!
//! The kernel also differs from libpcap in two places where a program computes with what a
//! packet says, and both are evened out: it shifts by X modulo 32, and an indirect load at an
//! offset beyond 2³¹ reaches its extensions or counts from another header.

use std::ops::Range;

use super::cbpf::{Alu, CELLS, Condition, Instruction, Op, Operand, Size};
use super::program::{MAX_KERNEL_INSTRUCTIONS, Program, is_extension};

/// Where the tag stands in a frame on the wire.
const TAG: Range<u32> = 12..16;
const TAG_BYTES: u32 = TAG.end - TAG.start;
/// Where the tag's control information begins.
const TCI: u32 = 14;

/// The furthest offset that means a byte of the packet to the kernel.
const MAX_OFFSET: u32 = i32::MAX.cast_unsigned();

/// The program that gives in a packet socket the verdict `program` gives on the wire, and keeps
/// packets whole. Only Ethernet frames carry tags.
///
/// # Errors
/// The reason, where there is no such program.
pub(super) fn for_packet_socket(program: &Program, ethernet: bool) -> Result<Program, String> {
    if program.loops() {
        return Err("it loops, as protochain does, and the kernel takes no loops".into());
    }
    let mut code = Assembler::default();
    let reject = code.label();
    let spare = Spare::of(program);
    let lay_out = |code: &mut Assembler, tag_out| {
        Translation { code, tag_out, spare, reject }.program(program)
    };
    if ethernet && program.ops().iter().any(|op| sees_tag(*op)) {
        let plain = code.label();
        code.add([load_extension(libc::SKF_AD_VLAN_TAG_PRESENT)]);
        code.branch_if(Condition::Equal, Operand::K(0), plain);
        // The program may count on A being 0 when it starts.
        code.add([Op::LoadConstant(0)]);
        lay_out(&mut code, true)?;
        code.place(plain);
    }
    lay_out(&mut code, false)?;
    code.place(reject);
    code.add([Op::Return(0)]);

    let ops = code.finish().ok_or("one of its jumps leads back")?;
    if ops.len() > MAX_KERNEL_INSTRUCTIONS {
        return Err(format!(
            "it takes {} instructions there and the kernel allows {MAX_KERNEL_INSTRUCTIONS}",
            ops.len()
        ));
    }
    let instructions: Vec<Instruction> = ops.into_iter().map(Op::encode).collect();
    Program::new(instructions).map_err(|error| error.to_string())
}

/// True if the operation gives another result once the tag has been taken out.
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

/// Two scratch cells the program does not use: one to put a value by, one for X.
#[derive(Clone, Copy)]
struct Spare {
    value: Option<u32>,
    index: Option<u32>,
}

impl Spare {
    fn of(program: &Program) -> Self {
        let used = |cell: u32| {
            program.ops().iter().any(|op| match *op {
                Op::LoadCell(k) | Op::LoadXCell(k) | Op::Store(k) | Op::StoreX(k) => k == cell,
                _ => false,
            })
        };
        let mut free = (0..CELLS as u32).rev().filter(|cell| !used(*cell));
        Self { value: free.next(), index: free.next() }
    }

    fn value(self) -> Result<u32, String> {
        self.value.ok_or_else(none_free)
    }

    fn index(self) -> Result<u32, String> {
        self.index.ok_or_else(none_free)
    }
}

fn none_free() -> String {
    format!("it leaves too few of the {CELLS} scratch cells free")
}

/// One of the two ways a program is laid out.
struct Translation<'a> {
    code: &'a mut Assembler,
    /// True if it is for frames whose tag was taken out.
    tag_out: bool,
    spare: Spare,
    reject: Label,
}

impl Translation<'_> {
    fn program(mut self, program: &Program) -> Result<(), String> {
        let places: Vec<Label> = program.ops().iter().map(|_| self.code.label()).collect();
        for (at, op) in program.ops().iter().enumerate() {
            self.code.place(places[at]);
            let target = |by: usize| places[at + 1 + by];
            match *op {
                Op::Branch(condition, operand, jt, jf) => {
                    let (yes, no) = (target(jt.into()), target(jf.into()));
                    self.code.branch(condition, operand, yes, no);
                }
                Op::Jump(by) => {
                    let by = usize::try_from(by).map_err(|_| "one of its jumps leads back")?;
                    self.code.jump(target(by));
                }
                op => self.op(op)?,
            }
        }
        Ok(())
    }

    fn op(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Load(_, k) if is_extension(k) => self.code.add([op]),
            Op::Load(width, k) => self.load(width, k)?,
            Op::LoadIndirect(width, k) => self.load_indirect(width, k)?,
            Op::LoadXHeader(k) => self.load_header_length(k)?,
            Op::LoadLength if self.tag_out => {
                self.code.add([op, Op::Calculate(Alu::Add, Operand::K(TAG_BYTES))]);
            }
            Op::LoadXLength if self.tag_out => {
                let value = self.spare.value()?;
                self.code.add([
                    Op::Store(value),
                    Op::LoadLength,
                    Op::Calculate(Alu::Add, Operand::K(TAG_BYTES)),
                    Op::CopyToX,
                    Op::LoadCell(value),
                ]);
            }
            Op::Calculate(Alu::Lsh | Alu::Rsh, Operand::K(32..)) => {
                self.code.add([Op::LoadConstant(0)]);
            }
            Op::Calculate(Alu::Lsh | Alu::Rsh, Operand::X) => self.shift_by_x(op)?,
            // Kept packets are kept whole; the port cuts them to its snaplen.
            Op::Return(1..) => self.code.add([Op::Return(u32::MAX)]),
            op => self.code.add([op]),
        }
        Ok(())
    }

    /// A = the wire's bytes at k. Leaves X as it is.
    fn load(&mut self, width: Size, k: u32) -> Result<(), String> {
        let outside = k > MAX_OFFSET - width.bytes();
        let beside_tag = k.saturating_add(width.bytes()) <= TAG.start || k >= TAG.end;
        if outside {
            self.code.add([Op::Return(0)]);
        } else if !self.tag_out || beside_tag {
            self.code.add([Op::Load(width, self.place_of(k))]);
        } else {
            self.load_across_tag(k..k + width.bytes())?;
        }
        Ok(())
    }

    /// Where a byte outside the tag stands in the frame at hand.
    fn place_of(&self, k: u32) -> u32 {
        if self.tag_out && k >= TAG.end { k - TAG_BYTES } else { k }
    }

    /// A = the wire's bytes in a range that touches the tag, put together from its pieces.
    fn load_across_tag(&mut self, range: Range<u32>) -> Result<(), String> {
        let mut pieces = pieces(range);
        let Some(first) = pieces.next() else {
            return Ok(());
        };
        self.load_piece(first);
        let mut rest = pieces.peekable();
        if rest.peek().is_none() {
            return Ok(());
        }
        let (value, index) = (self.spare.value()?, self.spare.index()?);
        self.code.add([Op::StoreX(index)]);
        for piece in rest {
            let bits = 8 * (piece.end - piece.start);
            self.code.add([Op::Calculate(Alu::Lsh, Operand::K(bits)), Op::Store(value)]);
            self.load_piece(piece);
            self.code.add([Op::LoadXCell(value), Op::Calculate(Alu::Or, Operand::X)]);
        }
        self.code.add([Op::LoadXCell(index)]);
        Ok(())
    }

    /// A = one piece: one or two bytes, of the frame or of half the tag.
    fn load_piece(&mut self, piece: Range<u32>) {
        let bytes = piece.end - piece.start;
        if !TAG.contains(&piece.start) {
            let width = if bytes == 1 { Size::B } else { Size::H };
            self.code.add([Op::Load(width, self.place_of(piece.start))]);
            return;
        }
        self.code.add([load_extension(if piece.start < TCI {
            libc::SKF_AD_VLAN_TPID
        } else {
            libc::SKF_AD_VLAN_TAG
        })]);
        if bytes == 1 {
            self.code.add([if piece.start.is_multiple_of(2) {
                Op::Calculate(Alu::Rsh, Operand::K(8))
            } else {
                Op::Calculate(Alu::And, Operand::K(0xff))
            }]);
        }
    }

    /// A = the wire's bytes at X + k, for every X. Leaves X as it is.
    fn load_indirect(&mut self, width: Size, k: u32) -> Result<(), String> {
        let Some(max_x) = MAX_OFFSET.checked_sub(k) else {
            self.code.add([Op::Return(0)]);
            return Ok(());
        };
        // The load overwrites A, so A is free to look at X.
        self.code.add([Op::CopyToA]);
        self.code.branch_if(Condition::Greater, Operand::K(max_x), self.reject);
        if !self.tag_out {
            self.code.add([Op::LoadIndirect(width, k)]);
        } else if k >= TAG.end {
            self.code.add([Op::LoadIndirect(width, k - TAG_BYTES)]);
        } else {
            self.load_indirect_around_tag(width, k)?;
        }
        Ok(())
    }

    /// A = the wire's bytes at X + k, where A is X, that may lie before, on or behind the tag.
    fn load_indirect_around_tag(&mut self, width: Size, k: u32) -> Result<(), String> {
        let (behind, done) = (self.code.label(), self.code.label());
        self.code.branch_if(Condition::GreaterOrEqual, Operand::K(TAG.end - k), behind);
        // The offsets that touch the tag are few: a load of its own for each.
        let first_touching = TAG.start + 1 - width.bytes();
        let touching: Vec<(u32, Label)> =
            (first_touching.max(k)..TAG.end).map(|offset| (offset, self.code.label())).collect();
        for (offset, place) in &touching {
            self.code.branch_if(Condition::Equal, Operand::K(offset - k), *place);
        }
        self.code.add([Op::LoadIndirect(width, k)]);
        self.code.jump(done);
        for (offset, place) in touching {
            self.code.place(place);
            self.load(width, offset)?;
            self.code.jump(done);
        }
        self.code.place(behind);
        if let Some(k) = k.checked_sub(TAG_BYTES) {
            self.code.add([Op::LoadIndirect(width, k)]);
        } else {
            let index = self.spare.index()?;
            self.code.add([
                Op::StoreX(index),
                Op::Calculate(Alu::Sub, Operand::K(TAG_BYTES - k)),
                Op::CopyToX,
                Op::LoadIndirect(width, 0),
                Op::LoadXCell(index),
            ]);
        }
        self.code.place(done);
        Ok(())
    }

    /// X = 4 × the low half of the wire's byte at k. Leaves A as it is.
    fn load_header_length(&mut self, k: u32) -> Result<(), String> {
        if k > MAX_OFFSET {
            self.code.add([Op::Return(0)]);
        } else if !self.tag_out || !TAG.contains(&k) {
            self.code.add([Op::LoadXHeader(self.place_of(k))]);
        } else {
            let value = self.spare.value()?;
            self.code.add([Op::Store(value)]);
            self.load_piece(k..k + 1);
            self.code.add([
                Op::Calculate(Alu::And, Operand::K(0xf)),
                Op::Calculate(Alu::Lsh, Operand::K(2)),
                Op::CopyToX,
                Op::LoadCell(value),
            ]);
        }
        Ok(())
    }

    /// A shift that leaves nothing from 32 bits on.
    fn shift_by_x(&mut self, shift: Op) -> Result<(), String> {
        let value = self.spare.value()?;
        let (nothing, done) = (self.code.label(), self.code.label());
        self.code.add([Op::Store(value), Op::CopyToA]);
        self.code.branch_if(Condition::GreaterOrEqual, Operand::K(32), nothing);
        self.code.add([Op::LoadCell(value), shift]);
        self.code.jump(done);
        self.code.place(nothing);
        self.code.add([Op::LoadConstant(0)]);
        self.code.place(done);
        Ok(())
    }
}

/// A range of the wire's bytes in pieces of one or two that lie all in the frame or all in the
/// same half of the tag.
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

/// A place in the program to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label(usize);

#[derive(Clone, Copy, Debug)]
enum Item {
    /// Anything but a jump.
    Op(Op),
    Jump(Label),
    Branch(Condition, Operand, Label, Label),
}

/// A program under construction, whose jumps name their targets. A branch reaches 255 instructions;
/// one that must reach further goes through two jumps beside it, which reach everywhere.
#[derive(Debug, Default)]
struct Assembler {
    items: Vec<Item>,
    /// For each label, the item it stands before.
    labels: Vec<Option<usize>>,
}

impl Assembler {
    /// A label, to be placed later.
    fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label before what comes next.
    fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.items.len());
    }

    /// Adds operations that are no jumps.
    fn add(&mut self, ops: impl IntoIterator<Item = Op>) {
        self.items.extend(ops.into_iter().map(Item::Op));
    }

    /// Goes to a label.
    fn jump(&mut self, to: Label) {
        self.items.push(Item::Jump(to));
    }

    /// Goes to the first label if A compares so, otherwise to the second.
    fn branch(&mut self, condition: Condition, operand: Operand, yes: Label, no: Label) {
        self.items.push(Item::Branch(condition, operand, yes, no));
    }

    /// Goes to the label if A compares so, otherwise on.
    fn branch_if(&mut self, condition: Condition, operand: Operand, yes: Label) {
        let next = self.label();
        self.branch(condition, operand, yes, next);
        self.place(next);
    }

    /// The program; none if a jump leads back or nowhere, or too far to be said.
    fn finish(self) -> Option<Vec<Op>> {
        let mut long = vec![false; self.items.len()];
        let starts = loop {
            let starts = self.starts(&long);
            let mut grown = false;
            for (at, item) in self.items.iter().enumerate() {
                if let Item::Branch(_, _, yes, no) = *item
                    && !long[at]
                {
                    let far = |to| self.distance(&starts, starts[at], to).map(|by| by > 255);
                    long[at] = far(yes)? || far(no)?;
                    grown |= long[at];
                }
            }
            if !grown {
                break starts;
            }
        };
        let mut ops = Vec::new();
        for (at, item) in self.items.iter().enumerate() {
            let by = |from, to| self.distance(&starts, from, to);
            let jump = |from, to| i32::try_from(by(from, to)?).ok().map(Op::Jump);
            let start = starts[at];
            match *item {
                Item::Op(op) => ops.push(op),
                Item::Jump(to) => ops.push(jump(start, to)?),
                Item::Branch(condition, operand, yes, no) if long[at] => ops.extend([
                    Op::Branch(condition, operand, 0, 1),
                    jump(start + 1, yes)?,
                    jump(start + 2, no)?,
                ]),
                Item::Branch(condition, operand, yes, no) => {
                    let [yes, no] = [by(start, yes)?, by(start, no)?];
                    ops.push(Op::Branch(
                        condition,
                        operand,
                        yes.try_into().ok()?,
                        no.try_into().ok()?,
                    ));
                }
            }
        }
        Some(ops)
    }

    /// Where each item begins, and the end.
    fn starts(&self, long: &[bool]) -> Vec<usize> {
        let mut starts = vec![0];
        let mut at = 0;
        for long in long {
            at += if *long { 3 } else { 1 };
            starts.push(at);
        }
        starts
    }

    /// Instructions between the one at `from` and a label.
    fn distance(&self, starts: &[usize], from: usize, to: Label) -> Option<usize> {
        starts[self.labels[to.0]?].checked_sub(from + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A branch over `between` instructions: verdict 1 where A is 0.
    fn branch_over(between: usize) -> Vec<Op> {
        let mut code = Assembler::default();
        let [yes, no] = [code.label(), code.label()];
        code.branch(Condition::Equal, Operand::K(0), yes, no);
        code.place(no);
        code.add(std::iter::repeat_n(Op::LoadLength, between - 1));
        code.add([Op::Return(2)]);
        code.place(yes);
        code.add([Op::Return(1)]);
        code.finish().unwrap()
    }

    #[test]
    fn a_branch_grows_where_its_target_is_too_far() {
        assert_eq!(branch_over(255)[0], Op::Branch(Condition::Equal, Operand::K(0), 255, 0));
        let long = branch_over(256);
        assert_eq!(
            long[..3],
            [Op::Branch(Condition::Equal, Operand::K(0), 0, 1), Op::Jump(257), Op::Jump(0)]
        );
        assert_eq!(long[259], Op::Return(1));
    }

    #[test]
    fn one_branch_that_grows_makes_another_grow() {
        let mut code = Assembler::default();
        let [far, near] = [code.label(), code.label()];
        code.branch_if(Condition::Equal, Operand::K(1), near);
        code.branch_if(Condition::Equal, Operand::K(2), far);
        code.add(std::iter::repeat_n(Op::LoadLength, 254));
        code.place(near);
        code.add([Op::LoadLength, Op::LoadLength]);
        code.place(far);
        code.add([Op::Return(1)]);
        let ops = code.finish().unwrap();
        assert_eq!(ops[1], Op::Jump(2 + 3 + 254 - 1));
        assert_eq!(ops[4], Op::Jump(1 + 254 + 2));
    }

    #[test]
    fn a_jump_back_or_nowhere_is_no_program() {
        let mut back = Assembler::default();
        let label = back.label();
        back.place(label);
        back.jump(label);
        assert!(back.finish().is_none());
        let mut nowhere = Assembler::default();
        let label = nowhere.label();
        nowhere.jump(label);
        assert!(nowhere.finish().is_none());
    }
}
