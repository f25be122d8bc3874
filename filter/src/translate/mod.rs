//! Translates a filter's program to eBPF, for XDP.
//!
//! The verifier requires a comparison with the packet's end on every path to an access. To need few of these,
//! each check covers all later loads (`survey`). Offsets from X use a register, the window, which points to
//! the packet's byte X until X changes.
//!
//! Only the first part of a frame with fragments is between data and data_end. For such frames the program is
//! laid out twice: the fast copy as above, then a slow copy in which every load calls `bpf_xdp_load_bytes`.
//! If a check of the fast copy fails, the run continues at the same instruction of the slow copy, which
//! checks the packet's length, and stays there. So no path with fewer checks joins the fast copy.

mod frame;
mod survey;

pub use frame::{Frame, TranslateError};

use super::cbpf::{CELLS, Op, Operand};
use super::ebpf::{Alu, Assembler, Compare, Helper, Label, Reg, RightSide, Size};
use super::program::Program;
use frame::{Cell, check_ops};
use survey::{Known, NEVER, Need};

/// The highest load offset that the verifier and `bpf_xdp_load_bytes` accept.
const REACH: u32 = 0xffff;

/// The registers of the filter: A and X of its program.
const A: Reg = Reg::R0;
const X: Reg = Reg::R1;
/// Holds a value from one instruction to the next.
const TEMP: Reg = Reg::R2;
/// Points to the packet's byte X, after an indirect load and until X changes.
const WINDOW: Reg = Reg::R3;

/// Appends a filter to a program: a run continues at `pass` or `reject`. [`Frame`] describes the registers
/// that it clobbers and preserves.
///
/// The verdict is that of [`Program::run`] on the whole frame, with one exception: a load beyond byte 65,535
/// rejects, because it is impossible. XDP sees the frame as it was on the wire, with its tags: give it
/// [`Filter::program`](super::Filter::program), not the program for packet sockets.
///
/// Needs Linux 5.1, with fragments 5.18, and a machine that loads from any address, as x86 and ARM64 do.
/// `len` without fragments subtracts two pointers, for which the verifier requires CAP_PERFMON.
///
/// # Errors
/// [`TranslateError`]; nothing is appended then.
///
/// ```
/// use sluicegate_filter::ebpf::{Assembler, Reg::R0, xdp_action};
/// use sluicegate_filter::{Filter, Frame, translate}; // in programs: sluicegate::filter
/// use sluicegate_base::ring::LINKTYPE_ETHERNET;
///
/// let filter = Filter::compile("udp port 9", LINKTYPE_ETHERNET)?;
/// let mut asm = Assembler::new();
/// let [pass, reject] = asm.labels();
/// let frame = Frame::new(false);
/// frame.enter(&mut asm);
/// translate(filter.program(), &mut asm, &frame, pass, reject)?;
/// asm.place(pass);
/// asm.mov(R0, xdp_action::DROP);
/// asm.exit();
/// asm.place(reject);
/// asm.mov(R0, xdp_action::PASS);
/// asm.exit();
/// let program = asm.finish()?;
/// # assert!(program.len() < 60);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn translate(
    program: &Program,
    asm: &mut Assembler,
    frame: &Frame,
    pass: Label,
    reject: Label,
) -> Result<(), TranslateError> {
    check_ops(program)?;
    let ops = program.ops();
    let needs = survey::needs(ops);
    let known = survey::known(ops, &needs);
    let unset = survey::unset(ops, |op| match op {
        Op::LoadXHeader(_) if frame.fragments => survey::A,
        Op::Load(..) if frame.fragments => survey::X,
        _ => 0,
    });
    let fast = ops.iter().map(|_| asm.label()).collect();
    let slow = ops.iter().map(|_| asm.label()).collect();
    let mut translation = Translation { asm, frame, ops, needs, known, fast, slow, pass, reject };
    translation.start(unset);
    translation.lay_out(Copy::Fast);
    if frame.fragments {
        translation.lay_out(Copy::Slow);
    }
    Ok(())
}

/// The two copies of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copy {
    /// Reads between data and data_end.
    Fast,
    /// Reads through a helper, for the rest of a frame with fragments.
    Slow,
}

struct Translation<'a> {
    asm: &'a mut Assembler,
    frame: &'a Frame,
    ops: &'a [Op],
    needs: Vec<Need>,
    known: Vec<Known>,
    /// The start of each instruction in the fast copy, and in the slow one.
    fast: Vec<Label>,
    slow: Vec<Label>,
    pass: Label,
    reject: Label,
}

impl Translation<'_> {
    /// Zeroes the values that may be read before they are written. Stores the length of a frame with
    /// fragments, because the call for it clobbers registers.
    fn start(&mut self, unset: u32) {
        let length = |op: &Op| matches!(op, Op::LoadLength | Op::LoadXLength);
        if self.frame.fragments && self.ops.iter().any(length) {
            self.asm.mov(Reg::R1, self.frame.ctx);
            self.asm.call(Helper::XDP_BUFF_LEN);
            self.asm.store(Size::DW, Cell::Length.memory(), Reg::R0);
        }
        for (bit, register) in [(survey::A, A), (survey::X, X)] {
            if unset & bit != 0 {
                self.asm.mov32(register, 0);
            }
        }
        for cell in (0..CELLS as u32).filter(|cell| unset & 1 << cell != 0) {
            self.asm.store(Size::W, Cell::Scratch(cell).memory(), 0);
        }
    }

    fn lay_out(&mut self, copy: Copy) {
        for at in 0..self.ops.len() {
            self.asm.place(self.labels(copy)[at]);
            if self.needs[at].packet == NEVER {
                self.asm.jump(self.reject);
                continue;
            }
            match self.ops[at] {
                Op::Load(width, k) => self.load(copy, at, A, width, k),
                Op::LoadXHeader(k) => {
                    self.load(copy, at, X, Size::B, k);
                    self.asm.and32(X, 0xf);
                    self.asm.lsh32(X, 2);
                }
                Op::LoadIndirect(width, k) => match copy {
                    Copy::Fast => self.load_indirect(at, width, k),
                    Copy::Slow => self.load_by_call(A, width, Some(X), k),
                },
                Op::Jump(by) => self.asm.jump(self.target(copy, at + 1 + by as usize)),
                Op::Branch(condition, operand, yes, no) => {
                    let [yes, no] = [yes, no].map(|by| at + 1 + usize::from(by));
                    self.branch(copy, condition, operand, yes, no);
                }
                op => self.without_packet(op),
            }
        }
    }

    fn labels(&self, copy: Copy) -> &[Label] {
        match copy {
            Copy::Fast => &self.fast,
            Copy::Slow => &self.slow,
        }
    }

    /// Returns the target of a jump to an instruction, after following further jumps.
    fn target(&self, copy: Copy, mut at: usize) -> Label {
        loop {
            match self.ops[at] {
                _ if self.needs[at].packet == NEVER => return self.reject,
                Op::Return(_) => return self.pass,
                Op::Jump(by) => at += 1 + by as usize,
                _ => return self.labels(copy)[at],
            }
        }
    }

    /// Returns the continuation if the bytes that an instruction needs are not between data and data_end.
    fn out_of_reach(&self, at: usize) -> Label {
        if self.frame.fragments { self.slow[at] } else { self.reject }
    }

    /// dst = the packet at k.
    fn load(&mut self, copy: Copy, at: usize, dst: Reg, width: Size, k: u32) {
        if copy == Copy::Slow {
            self.load_by_call(dst, width, None, k);
        } else if self.check_packet(at) {
            self.read(dst, width, self.frame.data, k);
        }
    }

    /// Checks that the packet has the bytes needed from here on. Returns false if no packet can have them.
    fn check_packet(&mut self, at: usize) -> bool {
        let (need, out) = (self.needs[at].packet, self.out_of_reach(at));
        if need > REACH {
            self.asm.jump(out);
            return false;
        }
        if Some(self.known[at].packet) < survey::end_of(self.ops[at]) {
            let end = self.asm.mov(TEMP, self.frame.data).add(need.cast_signed());
            end.jgt(self.frame.end, out);
        }
        true
    }

    /// A = the packet at X + k.
    fn load_indirect(&mut self, at: usize, width: Size, k: u32) {
        let (need, known, out) = (self.needs[at], self.known[at], self.out_of_reach(at));
        if need.packet > REACH || need.window > REACH {
            return self.asm.jump(out);
        }
        if Some(known.window) < survey::end_of(self.ops[at]) {
            let last = REACH - need.window;
            // The window may exist already, checked for fewer bytes. But the verifier must see that it does
            // not begin too far away for the bytes needed now.
            if known.window == 0 || known.x_max > last {
                self.asm.mov32(WINDOW, X);
                if known.x_max > last {
                    // On a branch that is never taken, such as A < A, the verifier's bounds of X may contradict
                    // each other. The first comparison then ends in a number, the second in the right branch.
                    for _ in 0..2 {
                        self.asm.jgt(WINDOW, last.cast_signed(), out);
                    }
                }
                self.asm.add(WINDOW, self.frame.data);
            }
            let end = self.asm.mov(TEMP, WINDOW).add(need.window.cast_signed());
            end.jgt(self.frame.end, out);
        }
        self.read(A, width, WINDOW, k);
    }

    /// dst = the bytes at `base` + k, which have been checked.
    fn read(&mut self, dst: Reg, width: Size, base: Reg, k: u32) {
        let from = i16::try_from(k).map(|k| base + k).unwrap_or_else(|_| {
            self.asm.mov(TEMP, base).add(k.cast_signed());
            TEMP + 0
        });
        self.asm.load(width, dst, from).to_be(width);
    }

    /// dst, which is A or X, = the frame's bytes at `index` + k, through the helper. The other one survives it.
    fn load_by_call(&mut self, dst: Reg, width: Size, index: Option<Reg>, k: u32) {
        let kept = if dst == A { X } else { A };
        let buffer = Cell::Buffer.memory();
        let keep = Cell::Kept.memory();
        let Some(last) = REACH.checked_sub(k) else { return self.asm.jump(self.reject) };
        self.asm.store(Size::DW, keep, kept);
        if let Some(index) = index {
            self.asm.mov32(Reg::R2, index).jgt(last.cast_signed(), self.reject);
            self.asm.add(Reg::R2, k.cast_signed());
        } else {
            self.asm.mov32(Reg::R2, k.cast_signed());
        }
        self.asm.mov(Reg::R1, self.frame.ctx);
        self.asm.mov(Reg::R3, buffer.base).add(i32::from(buffer.offset));
        self.asm.mov32(Reg::R4, width.bytes().cast_signed());
        self.asm.call(Helper::XDP_LOAD_BYTES);
        self.asm.jne(Reg::R0, 0, self.reject);
        self.asm.load(width, dst, buffer).to_be(width);
        self.asm.load(Size::DW, kept, keep);
    }

    fn branch(&mut self, copy: Copy, compare: Compare, operand: Operand, yes: usize, no: usize) {
        let [if_yes, if_no] = [yes, no].map(|at| self.target(copy, at));
        let next = yes.min(no);
        // `Set` has no inverse.
        let inverse = match compare {
            Compare::Eq => Some(Compare::Ne),
            Compare::Gt => Some(Compare::Le),
            Compare::Ge => Some(Compare::Lt),
            _ => None,
        };
        let source = self.source(operand);
        if if_yes == if_no {
            self.asm.jump(if_yes);
        } else if let (true, Some(inverse)) = (yes == next, inverse) {
            self.asm.branch32(inverse, A, source, if_no);
            self.asm.jump(if_yes);
        } else {
            self.asm.branch32(compare, A, source, if_yes);
            self.asm.jump(if_no);
        }
    }

    fn source(&self, operand: Operand) -> RightSide {
        match operand {
            Operand::K(k) => RightSide::Imm(k.cast_signed()),
            Operand::X => RightSide::Reg(X),
        }
    }

    /// Translates an operation that neither reads the packet nor branches.
    fn without_packet(&mut self, op: Op) {
        let cell = |cell| Cell::Scratch(cell).memory();
        let (dst, source) = match op {
            Op::LoadConstant(k) => (A, RightSide::Imm(k.cast_signed())),
            Op::LoadXConstant(k) => (X, RightSide::Imm(k.cast_signed())),
            Op::CopyToX => (X, A.into()),
            Op::CopyToA => (A, X.into()),
            Op::LoadLength => return self.load_length(A),
            Op::LoadXLength => return self.load_length(X),
            Op::LoadCell(k) => return self.load_cell(A, k),
            Op::LoadXCell(k) => return self.load_cell(X, k),
            Op::Store(k) => return self.asm.store(Size::W, cell(k), A),
            Op::StoreX(k) => return self.asm.store(Size::W, cell(k), X),
            Op::Negate => return self.asm.neg32(A),
            Op::Calculate(alu, operand) => return self.calculate(alu, operand),
            Op::Return(_) => return self.asm.jump(self.pass),
            Op::ReturnA => {
                self.asm.jeq32(A, 0, self.reject);
                return self.asm.jump(self.pass);
            }
            // The caller handles operations that read the packet or jump.
            Op::Load(..) | Op::LoadIndirect(..) | Op::LoadXHeader(_) => return,
            Op::Jump(_) | Op::Branch(..) => return,
        };
        self.asm.mov32(dst, source);
    }

    fn load_cell(&mut self, dst: Reg, cell: u32) {
        self.asm.load(Size::W, dst, Cell::Scratch(cell).memory());
    }

    fn load_length(&mut self, dst: Reg) {
        if self.frame.fragments {
            self.asm.load(Size::DW, dst, Cell::Length.memory());
        } else {
            self.asm.mov(dst, self.frame.end).sub(self.frame.data);
        }
    }

    fn calculate(&mut self, alu: Alu, operand: Operand) {
        let source = self.source(operand);
        match (alu, operand) {
            (Alu::Lsh | Alu::Rsh, Operand::K(32..)) => {
                self.asm.mov32(A, 0);
                return;
            }
            (Alu::Div | Alu::Rem, Operand::X) => self.asm.jeq32(X, 0, self.reject),
            _ => {}
        }
        self.asm.alu32(alu, A, source);
        // The machine shifts by the lower five bits only.
        if let (Alu::Lsh | Alu::Rsh, Operand::X) = (alu, operand) {
            let done = self.asm.label();
            self.asm.jlt32(X, 32, done);
            self.asm.mov32(A, 0);
            self.asm.place(done);
        }
    }
}
