//! The program of a stage that leaves the host the flows that are its own: they do not come to the
//! claims behind it.

use std::os::fd::OwnedFd;

use super::super::{Resident, Stage};
use super::{KEY, Program};
use crate::error::Result;
use crate::filter::ebpf::xdp_action;
use crate::xdp::flows::{Flow, FlowTable, Origin, Place};

/// Where the piece that asks keeps a flow on the stack, below a key.
const FLOW: i16 = KEY - 8 - Flow::BYTES as i16;

/// Makes the program of a stage that passes the packets of flows in the table.
pub(crate) fn load_flows(stage: &Stage, resident: &Resident, table: &FlowTable) -> Result<OwnedFd> {
    let mut program = Program::new(stage, resident);
    let [next, pass] = program.asm.labels();
    program.select(None, next)?;
    program.owner_is_alive(next);
    let place = Place { data: program.frame.data, end: program.frame.end, stack: FLOW };
    table.write(&mut program.asm, place, Origin::Wire, next);
    program.count(&[], pass);
    program.asm.place(pass);
    program.answer(xdp_action::PASS);
    program.asm.place(next);
    program.go_on();
    program.finish(None)
}
