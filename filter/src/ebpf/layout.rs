//! From items with labels to instructions with distances.

use super::insn::{Insn, class, part};

/// The longest program the kernel takes from a privileged user (Linux 5.2,
/// `BPF_COMPLEXITY_LIMIT_INSNS`).
pub const MAX_INSNS: usize = 1_000_000;

/// Why there is no such program.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A jump leads to a label that was never placed.
    #[error("a jump leads to a label that is placed nowhere")]
    Unplaced,
    /// A label was placed twice, or is another program's.
    #[error("a label is placed twice")]
    PlacedTwice,
    /// A jump is too far for its 16 bits.
    #[error("a jump over {insns} instructions is too far, 32,767 are possible")]
    TooFar {
        /// The distance, without sign.
        insns: usize,
    },
    /// The kernel takes none so long.
    #[error("{insns} instructions are too many, the kernel takes {MAX_INSNS}")]
    TooLong {
        /// Instructions it would have.
        insns: usize,
    },
    /// The program can run past its last instruction.
    #[error("the program runs past its end")]
    NoEnd,
}

/// A place in the program to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(pub(super) usize);

/// An instruction whose place is not yet known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    insn: Insn,
    /// The upper half of a constant that takes two instructions' room.
    upper: Option<u32>,
    /// Where it jumps.
    pub(super) to: Option<Label>,
}

impl Item {
    pub(super) fn plain(insn: Insn) -> Self {
        Self { insn, upper: None, to: None }
    }

    pub(super) fn wide(insn: Insn, upper: u32) -> Self {
        Self { insn, upper: Some(upper), to: None }
    }

    fn is_jump(&self) -> bool {
        self.insn.code == class::JMP | part::JA
    }

    fn is_exit(&self) -> bool {
        self.insn.code == class::JMP | part::EXIT
    }

    fn insns(&self) -> usize {
        if self.upper.is_some() { 2 } else { 1 }
    }
}

/// The instructions.
pub(super) fn lay_out(items: &[Item], labels: &[Option<usize>]) -> Result<Vec<Insn>, Fault> {
    let target = |label: Label| labels.get(label.0).copied().flatten().ok_or(Fault::Unplaced);
    let mut kept = reachable(items, target)?;
    leave_out_idle_jumps(items, target, &mut kept)?;

    let mut starts = Vec::with_capacity(items.len() + 1);
    let mut insns = 0;
    for (item, kept) in items.iter().zip(&kept) {
        starts.push(insns);
        insns += if *kept { item.insns() } else { 0 };
    }
    if insns > MAX_INSNS {
        return Err(Fault::TooLong { insns });
    }
    let mut program = Vec::with_capacity(insns);
    for ((item, start), _) in items.iter().zip(&starts).zip(&kept).filter(|(_, kept)| **kept) {
        let mut insn = item.insn;
        if let Some(label) = item.to {
            let by = starts[target(label)?].cast_signed() - start.cast_signed() - 1;
            insn.off = by.try_into().map_err(|_| Fault::TooFar { insns: by.unsigned_abs() })?;
        }
        program.push(insn);
        program
            .extend(item.upper.map(|upper| Insn { imm: upper.cast_signed(), ..Insn::default() }));
    }
    Ok(program)
}

/// Which items a run may come to; the verifier refuses a program that has others.
fn reachable(
    items: &[Item],
    target: impl Fn(Label) -> Result<usize, Fault>,
) -> Result<Vec<bool>, Fault> {
    let mut reached = vec![false; items.len()];
    let mut open = vec![0];
    while let Some(mut at) = open.pop() {
        loop {
            match reached.get_mut(at) {
                None => return Err(Fault::NoEnd),
                Some(true) => break,
                Some(reached) => *reached = true,
            }
            let item = &items[at];
            if item.is_exit() {
                break;
            }
            let to = item.to.map(&target).transpose()?;
            match to {
                Some(to) if item.is_jump() => at = to,
                to => {
                    open.extend(to);
                    at += 1;
                }
            }
        }
    }
    Ok(reached)
}

/// Leaves out jumps to what comes next anyway. From the end, for a jump left out may make one
/// before it idle.
fn leave_out_idle_jumps(
    items: &[Item],
    target: impl Fn(Label) -> Result<usize, Fault>,
    kept: &mut [bool],
) -> Result<(), Fault> {
    let mut next_kept = items.len();
    for at in (0..items.len()).rev() {
        if !kept[at] {
            continue;
        }
        if let Some(label) = items[at].to
            && items[at].is_jump()
            && (at + 1..=next_kept).contains(&target(label)?)
        {
            kept[at] = false;
        } else {
            next_kept = at;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Assembler, Reg::*};
    use super::*;

    fn finish(write: impl FnOnce(&mut Assembler)) -> Result<usize, Fault> {
        let mut asm = Assembler::new();
        write(&mut asm);
        asm.finish().map(|insns| insns.len())
    }

    fn jump_over(between: usize) -> Result<usize, Fault> {
        finish(|asm| {
            let end = asm.label();
            asm.jeq(R1, 0, end);
            (0..between).for_each(|_| asm.mov(R0, 0));
            asm.place(end);
            asm.exit();
        })
    }

    #[test]
    fn a_program_that_cannot_be_is_refused() {
        type Write = fn(&mut Assembler);
        let rows: &[(&str, Write, Result<usize, Fault>)] = &[
            ("nothing at all runs past its end", |_| (), Err(Fault::NoEnd)),
            ("no exit", |asm| asm.mov(R0, 0), Err(Fault::NoEnd)),
            (
                "a label at the very end",
                |asm| {
                    let end = asm.label();
                    asm.jeq(R1, 0, end);
                    asm.exit();
                    asm.place(end);
                },
                Err(Fault::NoEnd),
            ),
            (
                "a label nowhere",
                |asm| {
                    let nowhere = asm.label();
                    asm.jump(nowhere);
                },
                Err(Fault::Unplaced),
            ),
            (
                "a label in two places",
                |asm| {
                    let label = asm.here();
                    asm.place(label);
                    asm.exit();
                },
                Err(Fault::PlacedTwice),
            ),
            (
                "a label of another program",
                |asm| {
                    let theirs = Assembler::new().label();
                    asm.jump(theirs);
                },
                Err(Fault::Unplaced),
            ),
            (
                "a loop needs no end",
                |asm| {
                    let top = asm.here();
                    asm.jump(top)
                },
                Ok(1),
            ),
        ];
        for (sentence, write, expected) in rows {
            assert_eq!(finish(write), *expected, "{sentence}");
        }
        assert_eq!(jump_over(32_767), Ok(32_769), "as far as 16 bits reach");
        assert_eq!(jump_over(32_768), Err(Fault::TooFar { insns: 32_768 }));
        let long = finish(|asm| {
            (0..MAX_INSNS).for_each(|_| asm.mov(R0, 0));
            asm.exit();
        });
        assert_eq!(long, Err(Fault::TooLong { insns: MAX_INSNS + 1 }));
    }

    #[test]
    fn what_does_nothing_is_left_out() {
        type Write = fn(&mut Assembler);
        let rows: &[(&str, Write, usize)] = &[
            (
                "what stands behind an exit",
                |asm| {
                    asm.exit();
                    asm.mov(R0, 1);
                    asm.exit();
                },
                1,
            ),
            (
                "jumps to what comes next, one before the other",
                |asm| {
                    let [first, second] = asm.labels();
                    asm.jump(second);
                    asm.place(first);
                    asm.jump(second);
                    asm.place(second);
                    asm.exit();
                },
                1,
            ),
            (
                "a jump over what nothing leads to",
                |asm| {
                    let over = asm.label();
                    asm.jump(over);
                    asm.mov(R0, 1);
                    asm.exit();
                    asm.place(over);
                    asm.exit();
                },
                1,
            ),
            (
                "not a jump over what something leads to",
                |asm| {
                    let [over, between] = asm.labels();
                    asm.jeq(R1, 0, between);
                    asm.jump(over);
                    asm.place(between);
                    asm.mov(R0, 1);
                    asm.place(over);
                    asm.exit();
                },
                4,
            ),
        ];
        for (sentence, write, insns) in rows {
            assert_eq!(finish(write), Ok(*insns), "{sentence}");
        }
    }
}
