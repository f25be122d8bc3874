//! Static analysis of a program before its translation.
//!
//! Jumps lead forward, so a pass from the end visits the successors of an instruction before it, and a pass
//! from the start visits its predecessors.

use crate::cbpf::{Op, Operand};

/// More bytes than any packet has: the need of an instruction from which every path rejects.
pub(super) const NEVER: u32 = u32::MAX;

/// Bits of a set of registers and scratch cells: a bit for each cell, A and X.
pub(super) const A: u32 = 1 << 16;
pub(super) const X: u32 = 1 << 17;

/// The minimum length of a packet that can pass on some path from an instruction. Every path rejects a
/// shorter packet, because a load outside of the packet rejects. So one check suffices for all later loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// Bytes from the packet's start; [`NEVER`] if no path passes.
    pub(super) packet: u32,
    /// Bytes from X, as X is now.
    pub(super) window: u32,
}

/// Facts that hold on all paths to an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Bytes from the packet's start that the packet has.
    pub(super) packet: u32,
    /// Bytes from X that the packet has, if the window's register points to the first; otherwise 0.
    pub(super) window: u32,
    /// The maximum of X.
    pub(super) x_max: u32,
}

impl Known {
    /// The facts of an unreachable instruction: the identity of `merge`.
    const UNREACHED: Self = Self { packet: u32::MAX, window: u32::MAX, x_max: 0 };
    const NOTHING: Self = Self { packet: 0, window: 0, x_max: u32::MAX };

    fn merge(&mut self, other: Self) {
        self.packet = self.packet.min(other.packet);
        self.window = self.window.min(other.window);
        self.x_max = self.x_max.max(other.x_max);
    }

    fn with_x(self, x_max: u32) -> Self {
        Self { window: 0, x_max, ..self }
    }
}

/// Returns the instructions that may follow the one at `at`.
pub(super) fn next(at: usize, op: Op) -> impl Iterator<Item = usize> {
    let to = |by: usize| Some(at + 1 + by);
    match op {
        Op::Return(_) | Op::ReturnA => [None, None],
        Op::Jump(by) => [to(by as usize), None],
        Op::Branch(_, _, yes, no) => [to(yes.into()), to(no.into())],
        _ => [to(0), None],
    }
    .into_iter()
    .flatten()
}

/// Returns the need of each instruction.
pub(super) fn needs(ops: &[Op]) -> Vec<Need> {
    let never = Need { packet: NEVER, window: NEVER };
    let mut needs = vec![never; ops.len()];
    for (at, op) in ops.iter().enumerate().rev() {
        let least = |a: Need, b: Need| Need {
            packet: a.packet.min(b.packet),
            window: a.window.min(b.window),
        };
        let then = next(at, *op).map(|next| needs[next]).fold(never, least);
        let end = end_of(*op).unwrap_or(0);
        needs[at] = match op {
            Op::Return(0) => never,
            Op::Return(_) | Op::ReturnA => Need { packet: 0, window: 0 },
            Op::LoadIndirect(..) => {
                Need { packet: then.packet.max(end), window: then.window.max(end) }
            }
            _ if writes(*op) & X != 0 => Need { packet: then.packet.max(end), window: 0 },
            _ => Need { packet: then.packet.max(end), window: then.window },
        };
    }
    needs
}

/// Returns the end of an operation's load, relative to the packet's start or to X.
pub(super) fn end_of(op: Op) -> Option<u32> {
    match op {
        Op::Load(width, k) | Op::LoadIndirect(width, k) => Some(k.saturating_add(width.bytes())),
        Op::LoadXHeader(k) => Some(k.saturating_add(1)),
        _ => None,
    }
}

/// Returns the facts known at each instruction. A check covers the whole need of its instruction.
pub(super) fn known(ops: &[Op], needs: &[Need]) -> Vec<Known> {
    let mut known = vec![Known::UNREACHED; ops.len()];
    known[0] = Known::NOTHING;
    for (at, op) in ops.iter().enumerate() {
        let mut now = known[at];
        let (end, need) = (end_of(*op).unwrap_or(0), needs[at]);
        match op {
            Op::LoadIndirect(..) if now.window < end => now.window = need.window,
            Op::Load(..) | Op::LoadXHeader(_) if now.packet < end => now.packet = need.packet,
            _ => {}
        }
        now = match *op {
            Op::LoadXHeader(_) => now.with_x(60),
            Op::LoadXConstant(k) => now.with_x(k),
            op if writes(op) & X != 0 => now.with_x(u32::MAX),
            _ => now,
        };
        next(at, *op).for_each(|next| known[next].merge(now));
    }
    known
}

/// Returns the set of values that may be read before they are written, and must start as 0. `keeps` names
/// further values that an operation must preserve.
pub(super) fn unset(ops: &[Op], keeps: impl Fn(Op) -> u32) -> u32 {
    let mut written_at = vec![u32::MAX; ops.len()];
    let mut unset = 0;
    written_at[0] = 0;
    for (at, op) in ops.iter().enumerate() {
        let written = written_at[at];
        unset |= (reads(*op) | keeps(*op)) & !written;
        next(at, *op).for_each(|next| written_at[next] &= written | writes(*op));
    }
    unset
}

fn reads(op: Op) -> u32 {
    let with = |operand| if operand == Operand::X { A | X } else { A };
    match op {
        Op::LoadCell(cell) | Op::LoadXCell(cell) => 1 << cell,
        Op::LoadIndirect(..) | Op::StoreX(_) | Op::CopyToA => X,
        Op::Calculate(_, operand) | Op::Branch(_, operand, ..) => with(operand),
        Op::Store(_) | Op::Negate | Op::ReturnA | Op::CopyToX => A,
        _ => 0,
    }
}

fn writes(op: Op) -> u32 {
    use Op::*;
    match op {
        LoadXHeader(_) | LoadXLength | LoadXConstant(_) | LoadXCell(_) | CopyToX => X,
        Store(cell) | StoreX(cell) => 1 << cell,
        Load(..) | LoadIndirect(..) | LoadLength | LoadConstant(_) | LoadCell(_)
        | Calculate(..) | Negate | CopyToA => A,
        Jump(_) | Branch(..) | Return(_) | ReturnA => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbpf::{Compare, Size};

    #[test]
    fn the_first_check_is_for_all_that_every_passing_way_loads() {
        let is = |k, yes, no| Op::Branch(Compare::Eq, Operand::K(k), yes, no);
        let ops = [
            Op::Load(Size::H, 12),
            is(0x0800, 0, 5),
            Op::Load(Size::B, 23),
            is(17, 0, 3),
            Op::LoadXHeader(14),
            Op::LoadIndirect(Size::H, 16),
            is(9, 1, 0),
            Op::Return(0),
            Op::Return(1),
        ];
        // If the type is not 0x0800, the path leads to the rejecting end, which needs nothing.
        let packet: Vec<u32> = needs(&ops).iter().map(|need| need.packet).collect();
        assert_eq!(packet, [24, 24, 24, 18, 18, 18, 0, NEVER, 0]);
        assert_eq!(needs(&ops)[4].window, 0, "X is another then");
        assert_eq!(needs(&ops)[5].window, 18);
        let known = known(&ops, &needs(&ops));
        assert_eq!(known[1].packet, 24);
        assert_eq!(known[5], Known { packet: 24, window: 0, x_max: 60 });
        assert_eq!(known[6].window, 18);
    }

    #[test]
    fn values_read_before_a_write_are_found() {
        let maybe = Op::Branch(Compare::Eq, Operand::K(0), 0, 1);
        let rows: &[(&str, &[Op], u32)] = &[
            ("A at once", &[Op::ReturnA], A),
            ("A after a load", &[Op::LoadLength, Op::ReturnA], 0),
            (
                "a cell on one way of two",
                &[Op::LoadLength, maybe, Op::Store(3), Op::LoadXCell(3), Op::Return(1)],
                1 << 3,
            ),
            ("X by an indirect load", &[Op::LoadIndirect(Size::B, 0), Op::ReturnA], X),
        ];
        for (sentence, ops, expected) in rows {
            assert_eq!(unset(ops, |_| 0), *expected, "{sentence}");
        }
    }
}
