//! The programs of stages: made at run time, from a filter and what is to be done.
//!
//! ```text
//!   entered by a tail call of the stage before
//!     |
//!   filter --no--------------------------------------.
//!     | yes                                          |
//!   somebody's look, where packets are only counted
//!     |
//!   act: redirect, drop, or nothing --no match-----. |
//!     | done                                       v v
//!   count; answer the driver                next stage that is present, or the end
//! ```

mod copy;
mod stamp;

use std::os::fd::{AsFd, OwnedFd};

use super::shared::{Action, CLAIMS, END, FLOWS, FORWARD, MIRRORS, PRESENT_AT, STAGES, tally};
use super::{Resident, Stage};
use crate::error::{Error, Result};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Label, RightSide, Size, xdp_action, xdp_md};
use crate::filter::{Filter, Frame, translate};
use crate::xdp::flows::{Flow, FlowLookup, FlowTable, Origin};
use crate::xdp::stamp::Stamp;
use crate::xdp::{Inspect, bpf};

pub(crate) use copy::load_copying;

/// Where a map's key stands on the stack, below what the filter uses.
const KEY: i16 = -Frame::STACK_BYTES - 8;

/// Where packets are taken to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sockets<'a> {
    /// A map of sockets, by receive queue.
    pub map: &'a OwnedFd,
    /// The first of the queues that they are for,
    pub first_queue: u32,
    /// and how many these are.
    pub queues: u32,
    /// What is written in front of each packet.
    pub stamp: Stamp,
}

/// Makes the program of a stage that has packets go out by [its interface](Stage::forward_to).
pub(crate) fn load_forwarding(
    stage: &Stage,
    resident: &Resident,
    filter: &Filter,
) -> Result<OwnedFd> {
    let mut program = StageProgram::new(stage, resident);
    let next = program.asm.label();
    program.select(Some(filter), next)?;
    program.forward(next);
    program.asm.place(next);
    program.go_on();
    program.finish(Some(filter))
}

/// Makes the program of a stage; `sockets` if it is to take packets.
pub(crate) fn load(
    stage: &Stage,
    resident: &Resident,
    action: Action,
    filter: Option<&Filter>,
    sockets: Option<Sockets<'_>>,
    inspect: Option<&dyn Inspect>,
) -> Result<OwnedFd> {
    let mut program = StageProgram::new(stage, resident);
    program.write(action, filter, sockets, inspect)?;
    program.finish(filter)
}

fn refused(resident: &Resident, filter: Option<&Filter>, why: &dyn std::fmt::Display) -> Error {
    let expression = filter.map_or("", Filter::expression);
    Error::Unsupported {
        feature: format!("the filter '{expression}' in XDP on {}", resident.interface),
        remedy: format!("{why}; packet: takes every filter"),
    }
}

struct StageProgram<'a> {
    asm: Assembler,
    frame: Frame,
    resident: &'a Resident,
    place: u32,
}

impl<'a> StageProgram<'a> {
    fn new(stage: &Stage, resident: &'a Resident) -> Self {
        let frame = Frame::new(resident.frags());
        Self { asm: Assembler::new(), frame, resident, place: stage.number() }
    }

    /// Brings it into the kernel.
    fn finish(self, filter: Option<&Filter>) -> Result<OwnedFd> {
        let resident = self.resident;
        let insns = self.asm.finish().map_err(|fault| refused(resident, filter, &fault))?;
        bpf::load(c"sluice_claim", &insns, resident.frags()).map_err(|error| {
            match error.error.raw_os_error() {
                Some(libc::EPERM) => resident.failed("load a program for", error.error),
                _ => refused(resident, filter, &format!("{}: {}", error.error, error.said)),
            }
        })
    }

    /// Goes on at `next` with what the filter does not match.
    fn select(&mut self, filter: Option<&Filter>, next: Label) -> Result<()> {
        let matched = self.asm.label();
        self.frame.enter(&mut self.asm);
        if let Some(filter) = filter {
            translate(filter.program(), &mut self.asm, &self.frame, matched, next)
                .map_err(|reason| refused(self.resident, Some(filter), &reason))?;
        }
        self.asm.place(matched);
        Ok(())
    }

    fn write(
        &mut self,
        action: Action,
        filter: Option<&Filter>,
        sockets: Option<Sockets<'_>>,
        inspect: Option<&dyn Inspect>,
    ) -> Result<()> {
        let next = self.asm.label();
        self.select(filter, next)?;
        match (action, sockets) {
            (Action::Take, Some(sockets)) => self.take(sockets, next),
            (Action::Drop, _) => self.drop_it(inspect, next),
            _ => {
                self.inspect(inspect);
                self.count(&[], next);
            }
        }
        self.asm.place(next);
        self.go_on();
        Ok(())
    }

    /// Gives the packet to the queue's socket; where there is none, somebody else may have it.
    /// What comes to other queues is not ours, and not counted.
    fn take(&mut self, sockets: Sockets<'_>, next: Label) {
        let (asm, ctx) = (&mut self.asm, self.frame.ctx);
        let missed = asm.label();
        asm.load(Size::W, R2, ctx + xdp_md::RX_QUEUE_INDEX);
        asm.mov32(R1, R2);
        // A queue before the first becomes a very large number.
        asm.sub32(R1, sockets.first_queue.cast_signed());
        asm.jge32(R1, sockets.queues.cast_signed(), next);
        asm.load_map(R1, sockets.map);
        asm.mov(R3, 0);
        asm.call(Helper::REDIRECT_MAP);
        asm.jne(R0, xdp_action::REDIRECT, missed);
        self.count(&[tally::TAKEN], next);
        self.stamp(sockets.stamp);
        self.answer(xdp_action::REDIRECT);
        self.asm.place(missed);
        self.count(&[tally::MISSED], next);
    }

    /// Lets somebody look at the packet.
    fn inspect(&mut self, inspect: Option<&dyn Inspect>) {
        if let Some(inspect) = inspect {
            inspect.write(&mut self.asm, &self.frame);
        }
    }

    /// Does nothing for nobody, for a stage outlives an owner that was killed: on to `next` then.
    fn owner_is_alive(&mut self, next: Label) {
        let place = self.place.cast_signed();
        self.asm.store(Size::W, R10 + KEY, place);
        self.look_up(&self.resident.alive, next);
    }

    /// Drops the packet, as long as whoever wants that lives.
    fn drop_it(&mut self, inspect: Option<&dyn Inspect>, next: Label) {
        self.owner_is_alive(next);
        self.inspect(inspect);
        self.count(&[tally::DROPPED], next);
        self.answer(xdp_action::DROP);
    }

    /// Has the packet go out by another interface, as long as that is there, and whoever wants it
    /// lives.
    fn forward(&mut self, next: Label) {
        self.owner_is_alive(next);
        let (asm, place) = (&mut self.asm, self.place.cast_signed());
        asm.load_map(R1, &self.resident.out);
        asm.mov(R2, place);
        asm.mov(R3, 0);
        asm.call(Helper::REDIRECT_MAP);
        asm.jne(R0, xdp_action::REDIRECT, next);
        self.count(&[tally::TAKEN], next);
        self.answer(xdp_action::REDIRECT);
    }

    /// R0 = the value at the key on the stack; `none` if there is none.
    fn look_up(&mut self, map: &impl AsFd, none: Label) {
        let asm = &mut self.asm;
        asm.load_map(R1, map);
        asm.mov(R2, R10);
        asm.add(R2, i32::from(KEY));
        asm.call(Helper::MAP_LOOKUP);
        asm.jeq(R0, 0, none);
    }

    /// Counts the packet and its bytes, and what became of it.
    fn count(&mut self, counters: &[i16], none: Label) {
        let Frame { ctx, data, end, fragments, .. } = self.frame;
        let place = self.place.cast_signed();
        let asm = &mut self.asm;
        if fragments {
            asm.mov(R1, ctx);
            asm.call(Helper::XDP_BUFF_LEN);
            asm.mov(R9, R0);
        } else {
            asm.mov(R9, end);
            asm.sub(R9, data);
        }
        asm.call(Helper::CPU);
        asm.mul(R0, STAGES.cast_signed());
        asm.add(R0, place);
        asm.store(Size::W, R10 + KEY, R0);
        self.look_up(&self.resident.tallies_fd, none);
        self.add(tally::PACKETS, 1.into());
        self.add(tally::BYTES, R9.into());
        for &counter in counters {
            self.add(counter, 1.into());
            if counter == tally::DROPPED {
                self.add(tally::DROPPED_BYTES, R9.into());
            }
        }
    }

    /// Adds to a counter that only this CPU writes.
    fn add(&mut self, counter: i16, n: RightSide) {
        self.asm.load(Size::DW, R1, R0 + counter);
        self.asm.add(R1, n);
        self.asm.store(Size::DW, R0 + counter, R1);
    }

    fn answer(&mut self, action: i32) {
        self.asm.mov(R0, action);
        self.asm.exit();
    }

    /// To the next stage that is present, and at last to the end, if there is something to do.
    fn go_on(&mut self) {
        self.asm.load_map_value(R1, &self.resident.control_fd, PRESENT_AT);
        self.asm.load(Size::DW, R9, R1 + 0);
        let own = self.place;
        let later: Vec<u32> =
            MIRRORS.chain(FLOWS).chain(CLAIMS).filter(|&place| place > own).collect();
        // In groups: most have nobody.
        for group in later.chunk_by(|a, b| a / 8 == b / 8) {
            let [somebody, nobody] = self.asm.labels();
            let mask = group.iter().fold(0u32, |mask, place| mask | 1 << place);
            self.asm.jset32(R9, mask.cast_signed(), somebody);
            self.asm.jump(nobody);
            self.asm.place(somebody);
            group.iter().for_each(|&place| self.tail_call_if_present(place));
            self.asm.place(nobody);
        }
        let pass = self.asm.label();
        // There the marks of what the end does begin.
        self.asm.rsh(R9, FORWARD.cast_signed());
        self.asm.jeq(R9, 0, pass);
        self.tail_call(END);
        self.asm.place(pass);
        self.answer(xdp_action::PASS);
    }

    /// R9 holds the stages that are present.
    fn tail_call_if_present(&mut self, place: u32) {
        let [present, absent] = self.asm.labels();
        self.asm.jset32(R9, (1u32 << place).cast_signed(), present);
        self.asm.jump(absent);
        self.asm.place(present);
        self.tail_call(place);
        self.asm.place(absent);
    }

    fn tail_call(&mut self, place: u32) {
        let ctx = self.frame.ctx;
        self.asm.mov(R1, ctx);
        self.asm.load_map(R2, &self.resident.stages);
        self.asm.mov(R3, place.cast_signed());
        self.asm.call(Helper::TAIL_CALL);
    }
}

/// Where the piece that asks keeps a flow on the stack, below a key.
const FLOW: i16 = KEY - 8 - Flow::BYTES as i16;

/// Makes the program of a stage that passes the packets of flows in the table.
pub(crate) fn load_flows(stage: &Stage, resident: &Resident, table: &FlowTable) -> Result<OwnedFd> {
    let mut program = StageProgram::new(stage, resident);
    let [next, pass] = program.asm.labels();
    program.select(None, next)?;
    program.owner_is_alive(next);
    let place = FlowLookup { data: program.frame.data, end: program.frame.end, stack: FLOW };
    table.write(&mut program.asm, place, Origin::Wire, next);
    program.count(&[], pass);
    program.asm.place(pass);
    program.answer(xdp_action::PASS);
    program.asm.place(next);
    program.go_on();
    program.finish(None)
}
