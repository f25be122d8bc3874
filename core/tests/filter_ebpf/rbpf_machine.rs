//! rbpf, an interpreter of somebody else's, with the two helpers a filter calls.

use std::cell::RefCell;

use rbpf::EbpfVmMbuff;
use sluicegate::filter::ebpf::{Assembler, Helper, Insn, Reg, Size};
use sluicegate::filter::{Frame, Program};

use crate::machines::append;

thread_local! {
    /// The whole frame, fragments and all, while a program runs on it.
    static FRAME: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn buffer_length(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    FRAME.with_borrow(|frame| frame.len() as u64)
}

fn load_bytes(_: u64, offset: u64, to: u64, bytes: u64, _: u64) -> u64 {
    let offset = offset as u32 as usize;
    assert!(bytes <= 4, "a filter loads at most a word");
    FRAME.with_borrow(|frame| match frame.get(offset..offset + bytes as usize) {
        Some(part) if offset <= 0xffff => {
            // SAFETY: `to` points to the buffer of four bytes on the machine's stack, which no
            // reference is held to while a helper runs.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to as *mut u8, part.len()) };
            0
        }
        _ => -22_i64 as u64,
    })
}

/// A filter as a program of rbpf's, whose context is two pointers of eight bytes.
pub struct Machine(Vec<u8>);

impl Machine {
    pub fn new(filter: &Program, fragments: bool) -> Self {
        let frame = Frame::new(fragments);
        let mut asm = Assembler::new();
        asm.mov(frame.ctx, Reg::R1);
        asm.load(Size::DW, frame.data, frame.ctx + 0);
        asm.load(Size::DW, frame.end, frame.ctx + 8);
        append(filter, &mut asm, &frame);
        Self(asm.finish().unwrap().iter().flat_map(bytes).collect())
    }

    /// Runs it on a frame with `linear_bytes` in the first part, and returns its result.
    pub fn run(&self, frame: &[u8], linear_bytes: usize) -> Result<u64, String> {
        FRAME.set(frame.to_vec());
        let linear = &frame[..linear_bytes.min(frame.len())];
        let ends = linear.as_ptr_range();
        let context = [(ends.start as u64).to_ne_bytes(), (ends.end as u64).to_ne_bytes()].concat();
        let mut machine = EbpfVmMbuff::new(Some(&self.0)).map_err(|error| error.to_string())?;
        for (helper, function) in [
            (Helper::XDP_BUFF_LEN, buffer_length as rbpf::Helper),
            (Helper::XDP_LOAD_BYTES, load_bytes),
        ] {
            let number = helper.0.cast_unsigned();
            machine.register_helper(number, function).map_err(|error| error.to_string())?;
        }
        machine.execute_program(linear, &context).map_err(|error| error.to_string())
    }
}

/// An instruction in the eight bytes rbpf reads it from.
fn bytes(insn: &Insn) -> [u8; 8] {
    // The C bit fields of the two registers change places with the byte order.
    let little = cfg!(target_endian = "little");
    let registers = if little { insn.registers } else { insn.registers.rotate_left(4) };
    let [off0, off1] = insn.off.to_le_bytes();
    let [imm0, imm1, imm2, imm3] = insn.imm.to_le_bytes();
    [insn.code, registers, off0, off1, imm0, imm1, imm2, imm3]
}
