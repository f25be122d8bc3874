//! A filter in all the machines there are.

use std::fmt::Write;

use sluicegate::filter::ebpf::{Assembler, Insn, Reg, xdp_action};
use sluicegate::filter::{Frame, Instruction, Program, translate};

use crate::kernel::{self, Loaded, MAX_FRAME_BYTES, MIN_FRAME_BYTES, ONE_BUFFER_BYTES};
use crate::rbpf_machine::Machine;

const PASS: u32 = xdp_action::PASS.cast_unsigned();
const DROP: u32 = xdp_action::DROP.cast_unsigned();

/// The filter, and what a run answers after it.
pub fn append(filter: &Program, asm: &mut Assembler, frame: &Frame) {
    let [pass, reject] = asm.labels();
    translate(filter, asm, frame, pass, reject).unwrap();
    asm.place(reject);
    asm.mov(Reg::R0, xdp_action::DROP);
    asm.exit();
    asm.place(pass);
    asm.mov(Reg::R0, xdp_action::PASS);
    asm.exit();
}

/// A whole XDP program.
pub fn xdp_program(filter: &Program, fragments: bool) -> Vec<Insn> {
    let frame = Frame::new(fragments);
    let mut asm = Assembler::new();
    frame.enter(&mut asm);
    append(filter, &mut asm, &frame);
    asm.finish().unwrap()
}

/// The abilities of this kernel.
#[derive(Clone, Copy)]
pub struct Kernel {
    pub plain: bool,
    pub fragments: bool,
    /// It can be told where the first part of a frame ends.
    pub splits: bool,
}

impl Kernel {
    /// Tries it, and says what is left out.
    pub fn probe() -> Self {
        let all = Program::new([Instruction { code: 0x06, jt: 0, jf: 0, k: 1 }]).unwrap();
        let plain = kernel::load(&xdp_program(&all, false), false);
        let fragments = kernel::load(&xdp_program(&all, true), true);
        let splits = fragments.as_ref().is_ok_and(|p| p.run(&[0; 64], Some(20)).is_ok());
        if let Err(error) = &plain {
            eprintln!(
                "skipped in the kernel: needs to load XDP programs ({error}); get it by sudo"
            );
        } else if fragments.is_err() {
            eprintln!("skipped in the kernel: needs fragments; get it by Linux 5.18");
        } else if !splits {
            eprintln!(
                "skipped in the kernel: needs fragments of short frames; get it by Linux 6.18"
            );
        }
        Self { plain: plain.is_ok(), fragments: fragments.is_ok(), splits }
    }
}

/// A filter, ready to run everywhere.
pub struct Everywhere<'a> {
    filter: &'a Program,
    kernel: Kernel,
    rbpf: [Machine; 2],
    plain: Option<Loaded>,
    fragments: Option<Loaded>,
}

impl<'a> Everywhere<'a> {
    /// Loads it; the verifier's complaint where it does not take it.
    pub fn new(filter: &'a Program, kernel: Kernel) -> Result<Self, String> {
        let load = |wanted: bool, fragments| {
            wanted.then(|| kernel::load(&xdp_program(filter, fragments), fragments)).transpose()
        };
        Ok(Self {
            filter,
            kernel,
            rbpf: [Machine::new(filter, false), Machine::new(filter, true)],
            plain: load(kernel.plain, false)?,
            fragments: load(kernel.fragments, true)?,
        })
    }

    /// Runs it on a frame, split after `split` bytes where the machine can. Machines that differ are an
    /// error.
    pub fn judge(&self, frame: &[u8], split: usize) -> Result<bool, String> {
        let passes = self.filter.run(frame, frame.len() as u32) != 0;
        let mut wrong = String::new();
        let mut compare = |machine: &str, verdict: Result<u64, String>| {
            let expected = u64::from(if passes { PASS } else { DROP });
            if verdict.as_ref() != Ok(&expected) {
                let _ = write!(wrong, "{machine}: {verdict:?}, not {expected}; ");
            }
        };
        let [plain, fragments] = &self.rbpf;
        compare("rbpf", plain.run(frame, frame.len()));
        compare("rbpf, whole frame of several", fragments.run(frame, frame.len()));
        compare("rbpf, fragments", fragments.run(frame, split));
        if (MIN_FRAME_BYTES..=MAX_FRAME_BYTES).contains(&frame.len()) {
            let run = |program: &Loaded, split: Option<usize>| {
                program.run(frame, split).map(u64::from).map_err(|error| error.to_string())
            };
            if let Some(program) = self.plain.as_ref().filter(|_| frame.len() <= ONE_BUFFER_BYTES) {
                compare("kernel", run(program, None));
            }
            if let Some(program) = &self.fragments {
                compare("kernel, whole frame of several", run(program, None));
                let split = split.clamp(MIN_FRAME_BYTES, ONE_BUFFER_BYTES);
                if self.kernel.splits && split < frame.len() {
                    compare("kernel, fragments", run(program, Some(split)));
                }
            }
        }
        if wrong.is_empty() { Ok(passes) } else { Err(format!("{wrong}split at {split}")) }
    }
}
