//! Programs of stages, generated at run time from a filter and an action.
//!
//! ```text
//!   entered by a tail call of the stage before
//!     |
//!   filter --no----------------------------------.
//!     | yes                                      |
//!   inspection, where packets are only counted   |
//!     |                                          |
//!   act: redirect, drop or nothing --impossible--+
//!     | done                                     |
//!   count --action=pass--------------------------+
//!     | otherwise                                v
//!   answer the driver                   next stage that is present, or the end
//! ```

mod cell_ring;

use std::os::fd::{AsFd, OwnedFd};

use super::metadata::{HASH_AT, TIME_AT};
use super::shared::{CLAIMS, END, FLOWS, FORWARD, MIRRORS, PRESENT_AT, SCRUB, STAGES, tally};
use super::{Action, Resident, Stage};
use crate::error::{Error, Result};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Fault, Helper, Label, Reg, Size, xdp_action, xdp_md};
use crate::filter::{Filter, Frame, translate};
use crate::xdp::bpf;
use crate::xdp::flows::{Flow, FlowLookup, FlowTable, Origin};
use crate::xdp::rx_metadata::{CARD_BIT, MARK, RxMetadata};

pub(crate) use cell_ring::load_copying;

// Stack offsets, below those that the filter uses: a map's key; metadata; a flow to look up.
const KEY: i16 = -Frame::STACK_BYTES - 8;
const METADATA_TIME: i16 = KEY - 8;
const METADATA_MARK: i16 = KEY - 16;
const METADATA_HASH: i16 = KEY - 24;
const FLOW: i16 = KEY - 8 - Flow::BYTES as i16;

/// Sockets to which a stage redirects packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sockets<'a> {
    /// A map of sockets, by receive queue.
    pub map: &'a OwnedFd,
    pub first_queue: u32,
    pub queues: u32,
    /// The metadata to write in front of each packet.
    pub rx_metadata: RxMetadata,
}

/// Code that inspects each packet of a port that only counts them (`xdp:` with `action=drop` or
/// `action=pass`), before it is counted. It stores its results in maps of its own.
pub trait Inspect: std::fmt::Debug + Send + Sync {
    /// Writes the code. It must preserve the registers of `frame`; all others and the whole stack are free.
    /// Control continues after it.
    fn write(&self, asm: &mut Assembler, frame: &Frame);
}

/// Loads the program of a stage: it redirects to `sockets`, drops, or counts and passes on.
pub(crate) fn load(
    stage: &Stage,
    resident: &Resident,
    action: Action,
    filter: Option<&Filter>,
    sockets: Option<Sockets<'_>>,
    inspect: Option<&dyn Inspect>,
) -> Result<OwnedFd> {
    build(stage, resident, filter, |program, next| match (action, sockets) {
        (Action::Take, Some(sockets)) => program.take(sockets, next),
        (Action::Drop, _) => {
            program.owner_is_alive(next);
            program.inspect(inspect);
            program.count(&[tally::DROPPED], next);
            program.answer(xdp_action::DROP);
        }
        _ => {
            program.inspect(inspect);
            program.count(&[], next);
        }
    })
}

/// Loads the program of a stage that redirects packets to [its interface](Stage::forward_to).
pub(crate) fn load_forwarding(
    stage: &Stage,
    resident: &Resident,
    filter: &Filter,
) -> Result<OwnedFd> {
    build(stage, resident, Some(filter), |program, next| program.forward(next))
}

/// Loads the program of a stage that passes the packets of flows in the table.
pub(crate) fn load_flows(stage: &Stage, resident: &Resident, table: &FlowTable) -> Result<OwnedFd> {
    build(stage, resident, None, |program, next| {
        let pass = program.asm.label();
        program.owner_is_alive(next);
        let regs = FlowLookup { data: program.frame.data, end: program.frame.end, stack: FLOW };
        table.write(&mut program.asm, regs, Origin::Wire, next);
        program.count(&[], pass);
        program.asm.place(pass);
        program.answer(xdp_action::PASS);
    })
}

/// Loads a program that runs `body` for packets that match the filter, and jumps to the next stage (label
/// `next`) for the others and after the body.
fn build(
    stage: &Stage,
    resident: &Resident,
    filter: Option<&Filter>,
    body: impl FnOnce(&mut StageProgram<'_>, Label),
) -> Result<OwnedFd> {
    let elsewhere =
        |why: &dyn std::fmt::Display| format!("{why}; packet: accepts all but protochain");
    let refused = |remedy| Error::Unsupported {
        feature: format!(
            "the filter '{}' in XDP on {}",
            filter.map(Filter::shortened).unwrap_or_default(),
            resident.interface
        ),
        remedy,
    };
    let frame = Frame::new(resident.frags());
    let mut program =
        StageProgram { asm: Assembler::new(), frame, resident, stage: stage.number() };
    let [matched, next] = program.asm.labels();
    program.frame.enter(&mut program.asm);
    if let Some(filter) = filter {
        translate(filter.program(), &mut program.asm, &program.frame, matched, next)
            .map_err(|reason| refused(elsewhere(&reason)))?;
    }
    program.asm.place(matched);
    body(&mut program, next);
    program.asm.place(next);
    program.go_on();
    let insns = program.asm.finish().map_err(|fault| match fault {
        Fault::TooFar(_) | Fault::TooLong(_) => {
            refused("it is too long for an XDP program; write address ranges as `net`".into())
        }
        other => refused(elsewhere(&other)),
    })?;
    bpf::load(c"sluice_claim", &insns, resident.frags()).map_err(|refusal| {
        match refusal.error.raw_os_error() {
            Some(libc::EPERM) => resident.failed("load a program for", refusal.error),
            _ if bpf::is_limit(&refusal.error) => {
                resident.failed("load a program for", refusal.error)
            }
            _ => refused(elsewhere(&format_args!("{}: {}", refusal.error, refusal.log))),
        }
    })
}

struct StageProgram<'a> {
    asm: Assembler,
    frame: Frame,
    resident: &'a Resident,
    stage: u32,
}

impl StageProgram<'_> {
    /// Redirects the packet to the queue's socket. Without a socket, a later stage may take the packet.
    /// Packets of other queues are not counted.
    fn take(&mut self, sockets: Sockets<'_>, next: Label) {
        let (asm, ctx) = (&mut self.asm, self.frame.ctx);
        let missed = asm.label();
        asm.load(Size::W, R2, ctx + xdp_md::RX_QUEUE_INDEX);
        asm.mov32(R1, R2);
        // A queue number below the first wraps to a very large number.
        asm.sub32(R1, sockets.first_queue.cast_signed());
        asm.jge32(R1, sockets.queues.cast_signed(), next);
        asm.load_map(R1, sockets.map);
        asm.mov(R3, 0);
        asm.call(Helper::REDIRECT_MAP);
        asm.jne(R0, xdp_action::REDIRECT, missed);
        self.count(&[tally::TAKEN], next);
        self.write_rx_metadata(sockets.rx_metadata);
        self.answer(xdp_action::REDIRECT);
        self.asm.place(missed);
        self.count(&[tally::MISSED], next);
    }

    fn inspect(&mut self, inspect: Option<&dyn Inspect>) {
        if let Some(inspect) = inspect {
            inspect.write(&mut self.asm, &self.frame);
        }
    }

    /// Jumps to `next` if the owner was killed: its stage outlives it.
    fn owner_is_alive(&mut self, next: Label) {
        let stage = self.stage.cast_signed();
        self.asm.store(Size::W, R10 + KEY, stage);
        self.look_up(&self.resident.alive, next);
    }

    /// Redirects the packet to another interface, as long as the interface and the owner exist.
    fn forward(&mut self, next: Label) {
        self.owner_is_alive(next);
        let (asm, stage) = (&mut self.asm, self.stage.cast_signed());
        asm.load_map(R1, &self.resident.out);
        asm.mov(R2, stage);
        asm.mov(R3, 0);
        asm.call(Helper::REDIRECT_MAP);
        asm.jne(R0, xdp_action::REDIRECT, next);
        self.count(&[tally::TAKEN], next);
        self.answer(xdp_action::REDIRECT);
    }

    /// R0 = the value at the key on the stack. Jumps to `none` if there is no such entry.
    fn look_up(&mut self, map: &impl AsFd, none: Label) {
        bpf::write_lookup(&mut self.asm, map, KEY, none);
    }

    /// `to` = the packet's length on the wire.
    fn wire_bytes(&mut self, to: Reg) {
        let Frame { ctx, data, end, fragments, .. } = self.frame;
        let asm = &mut self.asm;
        if !fragments {
            asm.mov(to, end).sub(data);
            return;
        }
        asm.mov(R1, ctx);
        asm.call(Helper::XDP_BUFF_LEN);
        if to != R0 {
            asm.mov(to, R0);
        }
    }

    /// Counts the packet, its bytes, and the `counters` of its fate.
    fn count(&mut self, counters: &[i16], none: Label) {
        self.wire_bytes(R9);
        let stage = self.stage.cast_signed();
        let asm = &mut self.asm;
        asm.call(Helper::CPU);
        asm.mul(R0, STAGES.cast_signed()).add(stage).store(Size::W, R10 + KEY);
        self.look_up(&self.resident.tallies_fd, none);
        // Each CPU has its own counters.
        let asm = &mut self.asm;
        bpf::write_add(asm, R0 + tally::PACKETS, 1);
        bpf::write_add(asm, R0 + tally::BYTES, R9);
        for &counter in counters {
            bpf::write_add(asm, R0 + counter, 1);
            if counter == tally::DROPPED {
                bpf::write_add(asm, R0 + tally::DROPPED_BYTES, R9);
            }
        }
    }

    fn answer(&mut self, action: i32) {
        self.asm.mov(R0, action);
        self.asm.exit();
    }

    /// Tail-calls the next present stage, or the end if it has a mark. Otherwise passes the packet.
    fn go_on(&mut self) {
        self.asm.load_map_value(R1, &self.resident.control_fd, PRESENT_AT);
        self.asm.load(Size::DW, R9, R1 + 0);
        let own = self.stage;
        let later: Vec<u32> =
            MIRRORS.chain(SCRUB).chain(FLOWS).chain(CLAIMS).filter(|&stage| stage > own).collect();
        // In groups, because most stages are empty.
        for group in later.chunk_by(|a, b| a / 8 == b / 8) {
            let mask = group.iter().fold(0u32, |mask, stage| mask | 1 << stage);
            let skip = self.skip_unless_present(mask);
            for &stage in group {
                let skip = self.skip_unless_present(1 << stage);
                self.tail_call(stage);
                self.asm.place(skip);
            }
            self.asm.place(skip);
        }
        let pass = self.asm.label();
        // The end's marks begin here.
        self.asm.rsh(R9, FORWARD.cast_signed()).jeq(0, pass);
        self.tail_call(END);
        self.asm.place(pass);
        self.answer(xdp_action::PASS);
    }

    /// Jumps to the returned label if none of the stages in `mask` is among the present ones in R9.
    fn skip_unless_present(&mut self, mask: u32) -> Label {
        let [present, skip] = self.asm.labels();
        self.asm.jset32(R9, mask.cast_signed(), present);
        self.asm.jump(skip);
        self.asm.place(present);
        skip
    }

    fn tail_call(&mut self, stage: u32) {
        let ctx = self.frame.ctx;
        self.asm.mov(R1, ctx);
        self.asm.load_map(R2, &self.resident.stages);
        self.asm.mov(R3, stage.cast_signed());
        self.asm.call(Helper::TAIL_CALL);
    }

    /// Writes the `RxMetadata` in front of the packet if the driver leaves room. Invalidates the registers
    /// that point into the packet.
    fn write_rx_metadata(&mut self, rx_metadata: RxMetadata) {
        if rx_metadata == RxMetadata::None {
            return;
        }
        let [known, done] = self.asm.labels();
        if rx_metadata == RxMetadata::Driver {
            self.metadata(known);
        }
        self.asm.call(Helper::KTIME_NS);
        self.asm.store(Size::DW, R10 + METADATA_TIME, R0);
        self.asm.load_constant(R1, *MARK);
        self.asm.store(Size::DW, R10 + METADATA_MARK, R1);
        self.asm.place(known);
        self.copy_rx_metadata(rx_metadata, done);
        self.asm.place(done);
    }

    /// Copies the driver's metadata to the stack, and jumps to `known` if it includes a time.
    fn metadata(&mut self, known: Label) {
        self.asm.store(Size::DW, R10 + METADATA_HASH, 0);
        let resident = self.resident;
        let Ok(map) = resident.metadata() else { return };
        let unknown = self.asm.label();
        self.asm.store(Size::W, R10 + KEY, 0);
        self.look_up(map, unknown);
        let asm = &mut self.asm;
        asm.load(Size::W, R1, R0 + HASH_AT).store(Size::DW, R10 + METADATA_HASH);
        asm.load(Size::DW, R1, R0 + TIME_AT).jeq(0, unknown);
        asm.store(Size::DW, R10 + METADATA_TIME, R1);
        asm.load_constant(R1, *MARK ^ CARD_BIT);
        asm.store(Size::DW, R10 + METADATA_MARK, R1);
        asm.jump(known);
        asm.place(unknown);
    }

    /// Copies the metadata from the stack to the headroom.
    fn copy_rx_metadata(&mut self, rx_metadata: RxMetadata, none: Label) {
        let (asm, ctx) = (&mut self.asm, self.frame.ctx);
        let (bytes, mark) = (i32::from(rx_metadata.bytes()), rx_metadata.mark_at());
        asm.mov(R1, ctx);
        asm.mov(R2, -bytes);
        asm.call(Helper::XDP_ADJUST_META);
        asm.jne(R0, 0, none);
        asm.load(Size::W, R1, ctx + xdp_md::DATA_META);
        asm.load(Size::W, R2, ctx + xdp_md::DATA);
        asm.mov(R3, R1).add(bytes).jgt(R2, none);
        let hash = (rx_metadata == RxMetadata::Driver).then_some((METADATA_HASH, 0));
        for (from, to) in hash.into_iter().chain([(METADATA_MARK, mark), (METADATA_TIME, mark + 8)])
        {
            asm.load(Size::DW, R2, R10 + from).store(Size::DW, R1 + to);
        }
    }
}
