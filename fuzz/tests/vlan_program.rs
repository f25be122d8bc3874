//! Filter programs for packet sockets: a random program gives the same verdict on a frame as it
//! was on the wire and, rewritten, on the frame whose tag the kernel has taken out.

use bolero::TypeGenerator;
use kernel_filter::{Skb, VlanTag, reads_unset_cell, run, takes};
use sluicegate::filter::Program;
use sluicegate::filter::cbpf::{Alu, Compare, Op, Operand, Size};

#[path = "../../filter/tests/vlan/kernel_filter.rs"]
mod kernel_filter;

#[derive(Clone, Debug, TypeGenerator)]
struct Step {
    kind: u8,
    width: u8,
    by_x: bool,
    jt: u8,
    jf: u8,
    /// A small one most of the time: around the tag.
    k: u8,
    huge: Option<u32>,
}

#[derive(Clone, Debug, TypeGenerator)]
struct Input {
    steps: Vec<Step>,
    frame: Vec<u8>,
    more_on_the_wire: u8,
}

#[test]
fn vlan_program() {
    bolero::check!().with_type::<Input>().for_each(|input| {
        let steps = &input.steps[..input.steps.len().min(40)];
        let mut ops: Vec<Op> =
            steps.iter().enumerate().map(|(at, step)| step.op(steps.len() - at)).collect();
        ops.push(Op::ReturnA);
        let Ok(original) = Program::new(ops.iter().map(|op| op.encode()).collect::<Vec<_>>())
        else {
            return;
        };
        let Ok(rewritten) = original.for_packet_socket(true) else { return };
        assert!(takes(&rewritten) || reads_unset_cell(original.ops()));
        let wire = input.frame.len() as u32 + u32::from(input.more_on_the_wire);
        for end in 0..=input.frame.len().min(80) {
            agree(&original, &rewritten, &input.frame[..end], wire);
        }
    });
}

/// The verdict on the wire is that in the kernel, with the tag in the frame and beside it.
fn agree(original: &Program, rewritten: &Program, frame: &[u8], wire: u32) {
    let verdict = original.run(frame, wire) != 0;
    let whole = Skb { bytes: frame, len: wire, tag: None };
    assert_eq!(run(rewritten, &whole) != 0, verdict, "without a tag, {frame:x?}");
    if frame.len() >= 16 {
        let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let tag = VlanTag { tpid: half(12), tci: half(14) };
        let bytes = [&frame[..12], &frame[16..]].concat();
        let skb = Skb { bytes: &bytes, len: wire - 4, tag: Some(tag) };
        assert_eq!(run(rewritten, &skb) != 0, verdict, "with a tag, {frame:x?}");
    }
}

impl Step {
    /// An operation with `left` instructions behind it, at which its jumps end at the latest.
    fn op(&self, left: usize) -> Op {
        let huge = self.huge.filter(|_| self.k >= 224);
        let k = huge.unwrap_or(u32::from(self.k % 32));
        let cell = u32::from(self.k % 16);
        let width = [Size::B, Size::H, Size::W][usize::from(self.width % 3)];
        let operand = if self.by_x { Operand::X } else { Operand::K(k) };
        let jump = |by: u8| (usize::from(by) % left) as u8;
        match self.kind % 20 {
            0..4 => Op::Load(width, k),
            4..6 => Op::LoadIndirect(width, k),
            6 => Op::LoadLength,
            7 => Op::LoadConstant(k),
            8 => Op::LoadCell(cell),
            9 => Op::LoadXHeader(k),
            10 => Op::LoadXLength,
            11 => Op::LoadXConstant(k),
            12 => Op::LoadXCell(cell),
            13 => Op::Store(cell),
            14 => Op::StoreX(cell),
            15 => Op::Calculate(self.alu(), operand),
            16 => Op::Branch(self.condition(), operand, jump(self.jt), jump(self.jf)),
            17 => Op::CopyToX,
            18 => Op::CopyToA,
            _ => match self.jt % 4 {
                0 => Op::Negate,
                1 => Op::Return(k),
                2 => Op::ReturnA,
                _ => Op::Jump(jump(self.jf).into()),
            },
        }
    }

    fn alu(&self) -> Alu {
        use Alu::*;
        [Add, Sub, Mul, Div, Rem, Or, And, Xor, Lsh, Rsh][usize::from(self.jt % 10)]
    }

    fn condition(&self) -> Compare {
        use Compare::*;
        [Eq, Gt, Ge, Set][usize::from(self.width % 4)]
    }
}
