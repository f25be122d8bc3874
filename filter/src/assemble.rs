//! Laying out a program whose jumps name their targets.
//!
//! A branch reaches 255 instructions; one that must reach further goes through two jumps beside
//! it, which reach everywhere.

use super::cbpf::{Condition, Op, Operand};

/// A place in the program to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

#[derive(Clone, Copy, Debug)]
enum Item {
    /// Anything but a jump.
    Op(Op),
    Jump(Label),
    Branch(Condition, Operand, Label, Label),
}

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    items: Vec<Item>,
    /// For each label, the item it stands before.
    labels: Vec<Option<usize>>,
}

impl Assembler {
    /// A label, to be placed later.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label before what comes next.
    pub(super) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.items.len());
    }

    /// Adds operations that are no jumps.
    pub(super) fn add(&mut self, ops: impl IntoIterator<Item = Op>) {
        self.items.extend(ops.into_iter().map(Item::Op));
    }

    /// Goes to a label.
    pub(super) fn jump(&mut self, to: Label) {
        self.items.push(Item::Jump(to));
    }

    /// Goes to the first label if A compares so, otherwise to the second.
    pub(super) fn branch(&mut self, condition: Condition, operand: Operand, yes: Label, no: Label) {
        self.items.push(Item::Branch(condition, operand, yes, no));
    }

    /// Goes to the label if A compares so, otherwise on.
    pub(super) fn branch_if(&mut self, condition: Condition, operand: Operand, yes: Label) {
        let next = self.label();
        self.branch(condition, operand, yes, next);
        self.place(next);
    }

    /// The program; none if a jump leads back or nowhere, or too far to be said.
    pub(super) fn finish(self) -> Option<Vec<Op>> {
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
