//! Translates a plan to straight-line eBPF, which makes one of a worker's packets in each run.
//!
//! ```text
//!   the plan's turn -----> stream 0: number, flow, random numbers --> length --> constant bytes
//!                     \-> stream 1: ...                              --> edits --> checksums
//!                                                                    --> count --> redirect
//! ```
//!
//! A live frame still has its previous content, which its receiver may have changed. So each run writes the
//! first bytes, up to [`REWRITTEN`]. The bytes after them stay. Several streams share frames, so their
//! programs also copy those bytes from the shared memory.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use sluicegate::filter::ebpf::Reg::*;
use sluicegate::filter::ebpf::{
    Alu, Assembler, Fault, Helper, Insn, Label, Memory, Reg, Size, xdp_action, xdp_md,
};

use sluicegate::xdp::live::RedirectTarget;

use super::emit::{self, held::*};
use super::{CounterLayout, CounterTable, pace, word};
use crate::plan::{
    Draw, Edit, FieldSource, Index, Operand, Part, Plan, RandomKey, Sizes, StreamPlan, Sum, Term,
    VariesBy, fold,
};

/// Maximum of bytes of a frame that instructions write for each packet.
const REWRITTEN: usize = 256;
/// The number of packets whose stamps share a time at full speed: those that the kernel passes to the
/// interface in one bulk (DEV_MAP_BULK_SIZE, kernel/bpf/devmap.c). A batch of live frames is four times as
/// large, so the thread keeps its CPU between them.
const PACKETS_A_CLOCK: i32 = 16;
/// Stack offsets of the packet's length, its flow, and the first random number.
const LENGTH: i16 = -8;
const FLOW: i16 = -16;
const WORDS: i16 = -24;

/// A program to generate: plan, worker and target.
#[derive(Clone, Copy, Debug)]
pub(super) struct MakeJob<'a> {
    pub plan: &'a Plan,
    pub worker: u32,
    pub workers: u32,
    pub target: &'a RedirectTarget,
    /// With a timetable, the longest delay that the program makes up for.
    pub max_lag: Option<Duration>,
}

/// A stream in the program.
struct StreamCode<'a> {
    stream: &'a StreamPlan,
    packets: RandomKey,
    flows: RandomKey,
    /// The offset of the next packet's number in the shared counters.
    number: u32,
    /// The offset of the sum of its lengths in the shared counters, if the program counts them.
    random_bytes: Option<u32>,
    /// The whole template, if other streams use the same frames.
    template: Option<CounterTable>,
}

/// Returns the property of the plan that exceeds a program's limits, which are 16-bit offsets and 512 bytes
/// of stack.
pub(super) fn too_much(plan: &Plan) -> Option<&'static str> {
    const MAX_STREAMS: usize = 4000;
    const MAX_WORDS: u16 = 60;
    let words = |stream: &StreamPlan| u16::from(stream.words.packet) + u16::from(stream.words.flow);
    if plan.streams.len() > MAX_STREAMS {
        Some("4000 streams")
    } else if plan.streams.iter().any(|stream| words(stream) > MAX_WORDS) {
        Some("60 random numbers a packet")
    } else if plan.longest() > i16::MAX as usize {
        Some("32767 bytes a packet")
    } else {
        None
    }
}

impl MakeJob<'_> {
    /// Returns the initial content of the shared counters, with the tables that the program refers to.
    pub fn initial_counters(&self) -> Vec<u64> {
        self.write(None).layout.words
    }

    /// Returns the program for a map that holds the shared counters.
    pub fn instructions(&self, map: BorrowedFd<'_>) -> Result<Vec<Insn>, Fault> {
        self.write(Some(map)).asm.finish()
    }

    /// Writes the program. Without a map only the counters are valid.
    fn write(&self, map: Option<BorrowedFd<'_>>) -> ProgramWriter<'_> {
        let mut asm = Assembler::new();
        let refused = asm.label();
        let layout = CounterLayout::new(self.plan);
        let mut writer = ProgramWriter { job: *self, asm, layout, refused };
        writer.write(map);
        writer
    }

    /// Returns the frame to pass to the kernel: the longest template.
    pub fn frame(&self) -> Vec<u8> {
        let templates = self.plan.streams.iter().map(|stream| &stream.template);
        templates.max_by_key(|template| template.len()).cloned().unwrap_or_default()
    }
}

struct ProgramWriter<'a> {
    job: MakeJob<'a>,
    asm: Assembler,
    layout: CounterLayout,
    /// The target for a packet that the kernel refuses.
    refused: Label,
}

impl ProgramWriter<'_> {
    fn write(&mut self, map: Option<BorrowedFd<'_>>) {
        let plan = self.job.plan;
        self.asm.mov(CONTEXT, R1);
        match map {
            Some(map) => self.asm.load_map_value(COUNTERS, map, 0),
            None => self.asm.load_constant(COUNTERS, 0),
        }
        if let Some(max_lag) = self.job.max_lag {
            pace::wait_until_due(&mut self.asm, CounterLayout::gaps(plan), max_lag);
        }
        let streams: Vec<Label> = plan.streams.iter().map(|_| self.asm.label()).collect();
        self.choose(&streams);
        for (index, stream) in plan.streams.iter().enumerate() {
            self.asm.place(streams[index]);
            let template = (plan.streams.len() > 1 && stream.template.len() > written(stream))
                .then(|| self.layout.bytes(&stream.template));
            self.make(&StreamCode {
                stream,
                packets: RandomKey::of_packets(plan.seed, index, self.job.worker),
                flows: RandomKey::of_flows(plan.seed, index),
                number: CounterLayout::number_of(index),
                random_bytes: CounterLayout::random_bytes_of(plan, index),
                template,
            });
        }
        self.asm.place(self.refused);
        self.count(word::REFUSED);
        self.asm.mov(R0, xdp_action::DROP);
        self.asm.exit();
    }

    /// Jumps to the stream of this turn.
    fn choose(&mut self, streams: &[Label]) {
        let turns = &self.job.plan.turns;
        if streams.len() == 1 {
            self.asm.jump(streams[0]);
            return;
        }
        let table = self.layout.table(turns.iter().map(|&turn| u64::from(turn)));
        self.asm.load(Size::DW, R1, COUNTERS + word::TURN);
        self.asm.mov(R2, R1).add(1);
        let more = self.asm.label();
        self.asm.jlt(R2, turns.len() as i32, more);
        self.asm.mov(R2, 0);
        self.asm.place(more);
        self.asm.store(Size::DW, COUNTERS + word::TURN, R2);
        self.look_up(table, R1, R2);
        for (index, &stream) in streams.iter().enumerate().skip(1) {
            self.asm.jeq(R1, index as i32, stream);
        }
        self.asm.jump(streams[0]);
    }

    /// index = the table's number at index. For the verifier, an index beyond the table becomes 0.
    fn look_up(&mut self, table: CounterTable, index: Reg, scratch: Reg) {
        let within = self.asm.label();
        self.asm.jlt(index, table.count as i32, within);
        self.asm.mov(index, 0);
        self.asm.place(within);
        self.asm.lsh(index, 3);
        self.asm.mov(scratch, COUNTERS).add(table.at as i32).add(index);
        self.asm.load(Size::DW, index, scratch + 0);
    }

    fn make(&mut self, code: &StreamCode<'_>) {
        self.take_number(code);
        self.draw_words(code);
        self.set_length(code);
        self.write_template(code);
        for edit in &code.stream.edits {
            self.write_edit(code, edit);
        }
        for sum in &code.stream.sums {
            self.write_sum(code, sum);
        }
        self.count(word::PACKETS);
        self.asm.load(Size::DW, R2, FP + LENGTH);
        self.asm.load(Size::DW, R1, COUNTERS + word::BYTES).add(R2);
        self.asm.store(Size::DW, COUNTERS + word::BYTES, R1);
        self.job.target.emit_redirect(&mut self.asm);
    }

    /// Increments a counter, without atomics: only this program, on one CPU, writes it.
    fn count(&mut self, word: i16) {
        self.asm.load(Size::DW, R1, COUNTERS + word).add(1).store(Size::DW, COUNTERS + word);
    }

    /// Loads the packet's number, and its flow's if the stream uses it.
    fn take_number(&mut self, code: &StreamCode<'_>) {
        let place = COUNTERS + code.number as i16;
        self.asm.load(Size::DW, NUMBER, place);
        if let Some(count) = code.stream.count_of((self.job.worker, self.job.workers)) {
            self.leave_after(count);
        }
        self.asm.mov(R1, NUMBER).add(1).store(Size::DW, place);
        if !code.stream.uses_flows() {
            return;
        }
        let (worker, workers) = (u64::from(self.job.worker), u64::from(self.job.workers));
        let flows = u64::from(code.stream.flows);
        if worker >= flows {
            emit::store_constant(&mut self.asm, FP, FLOW, worker % flows, R2);
            return;
        }
        self.asm.mov(R1, NUMBER);
        emit::modulo(&mut self.asm, R1, (flows - worker).div_ceil(workers), R2);
        emit::calculate(&mut self.asm, Alu::Mul, R1, workers, R2);
        emit::calculate(&mut self.asm, Alu::Add, R1, worker, R2);
        self.asm.store(Size::DW, FP + FLOW, R1);
    }

    /// Drops the packet of a stream that has sent its count. Another stream takes its place in the timetable,
    /// unless streams have their own rates.
    fn leave_after(&mut self, count: u64) {
        let has_more = self.asm.label();
        self.asm.load_constant(R1, count);
        self.asm.jlt(NUMBER, R1, has_more);
        if self.job.max_lag.is_some() && !self.job.plan.has_rates {
            self.count(word::IN_BURST);
        }
        self.asm.mov(R0, xdp_action::DROP);
        self.asm.exit();
        self.asm.place(has_more);
    }

    /// Computes the random numbers: the packet's, then the flow's.
    fn draw_words(&mut self, code: &StreamCode<'_>) {
        let words = code.stream.words;
        for word in 0..words.packet {
            self.asm.mov(R1, NUMBER);
            self.draw_word(code.packets, words.packet, word, WORDS - 8 * i16::from(word));
        }
        for word in 0..words.flow {
            self.asm.load(Size::DW, R1, FP + FLOW);
            let place = WORDS - 8 * i16::from(words.packet + word);
            self.draw_word(code.flows, words.flow, word, place);
        }
    }

    fn draw_word(&mut self, key: RandomKey, words: u8, word: u8, place: i16) {
        emit::calculate(&mut self.asm, Alu::Mul, R1, u64::from(words), R2);
        emit::calculate(&mut self.asm, Alu::Add, R1, u64::from(word), R2);
        emit::hash(&mut self.asm, key, R1, R2);
        self.asm.store(Size::DW, FP + place, R1);
    }

    /// Returns the stack position of a random number.
    fn drawn(code: &StreamCode<'_>, per: VariesBy, draw: Draw) -> Memory {
        let before = match per {
            VariesBy::Packet => 0,
            VariesBy::Flow => code.stream.words.packet,
        };
        FP + (WORDS - 8 * i16::from(before + draw.word))
    }

    /// Sets the frame's length, and points R8 to its start.
    fn set_length(&mut self, code: &StreamCode<'_>) {
        let longest = code.stream.template.len() as i32;
        match &code.stream.sizes {
            Sizes::Fixed => self.asm.store(Size::DW, FP + LENGTH, longest),
            Sizes::InTurn(sizes) => {
                let table = self.layout.table(sizes.iter().map(|&size| u64::from(size)));
                self.asm.mov(R1, NUMBER);
                emit::modulo(&mut self.asm, R1, sizes.len() as u64, R2);
                self.look_up(table, R1, R2);
                self.asm.store(Size::DW, FP + LENGTH, R1);
            }
            Sizes::AtRandom { first, count, draw } => {
                self.asm.load(Size::DW, R1, Self::drawn(code, VariesBy::Packet, *draw));
                self.asm.rsh(R1, i32::from(draw.shift));
                emit::below(&mut self.asm, R1, u64::from(*count), R2);
                self.asm.add(R1, i32::from(*first)).store(Size::DW, FP + LENGTH);
                if let Some(at) = code.random_bytes {
                    self.asm.mov(R2, COUNTERS).add(at as i32);
                    self.asm.load(Size::DW, R3, R2 + 0).add(R1).store(Size::DW, R2 + 0);
                }
            }
        }
        let given = self.job.plan.longest() as i32;
        if code.stream.sizes != Sizes::Fixed || longest != given {
            self.asm.load(Size::DW, R2, FP + LENGTH).sub(given);
            self.asm.mov(R1, CONTEXT);
            self.asm.call(Helper::XDP_ADJUST_TAIL);
            self.asm.jne(R0, 0, self.refused);
        }
    }

    /// Writes the constant bytes, and points R8 to the packet.
    fn write_template(&mut self, code: &StreamCode<'_>) {
        let template = &code.stream.template;
        let shortest = code.stream.sizes.shortest(template);
        if let Some(table) = code.template {
            self.copy_from(table, template.len());
        }
        self.asm.load(Size::W, DATA, CONTEXT + xdp_md::DATA);
        self.asm.load(Size::W, R2, CONTEXT + xdp_md::DATA_END);
        self.asm.mov(R1, DATA).add(shortest as i32).jgt(R2, self.refused);
        let (words, rest) = template[..written(code.stream)].as_chunks::<8>();
        for (index, word) in words.iter().enumerate() {
            let number = u64::from_ne_bytes(*word);
            emit::store_constant(&mut self.asm, DATA, (index * 8) as i16, number, R1);
        }
        for (index, &byte) in rest.iter().enumerate() {
            let at = (words.len() * 8 + index) as i16;
            self.asm.store(Size::B, DATA + at, i32::from(byte));
        }
    }

    /// Copies the whole template over the frame.
    fn copy_from(&mut self, table: CounterTable, longest: usize) {
        self.asm.load(Size::DW, R4, FP + LENGTH);
        // Linux 6.1 learns a bound from "less" and "greater", not from "equal".
        self.asm.jgt(R4, longest as i32, self.refused);
        self.asm.jlt(R4, 1, self.refused);
        self.asm.mov(R1, CONTEXT);
        self.asm.mov(R2, 0);
        self.asm.mov(R3, COUNTERS).add(table.at as i32);
        self.asm.call(Helper::XDP_STORE_BYTES);
        self.asm.jne(R0, 0, self.refused);
    }

    fn write_edit(&mut self, code: &StreamCode<'_>, edit: &Edit) {
        // The time must come first, because a helper clobbers the lower registers.
        if edit.parts.iter().any(|part| part.source == FieldSource::Time) {
            self.ask_time();
        }
        self.asm.load_constant(R1, edit.keep);
        for part in &edit.parts {
            self.load_part(code, part);
            self.asm.or(R1, R2);
        }
        let size = size_of_edit(edit);
        self.asm.to_be(size, R1);
        self.asm.store(size, DATA + edit.at as i16, R1);
    }

    /// R0 = the time. With a timetable each packet has its own. At full speed, packets of one bulk share a
    /// time, because reading the clock costs as much as all the rest.
    fn ask_time(&mut self) {
        if self.job.max_lag.is_some() {
            return self.asm.call(Helper::KTIME_NS);
        }
        let known = self.asm.label();
        self.asm.load(Size::DW, R1, COUNTERS + word::CLOCK_LEFT);
        self.asm.load(Size::DW, R0, COUNTERS + word::CLOCK);
        self.asm.jne(R1, 0, known);
        self.asm.call(Helper::KTIME_NS);
        self.asm.store(Size::DW, COUNTERS + word::CLOCK, R0);
        self.asm.mov(R1, PACKETS_A_CLOCK);
        self.asm.place(known);
        self.asm.sub(R1, 1).store(Size::DW, COUNTERS + word::CLOCK_LEFT);
    }

    /// R2 = the part's bits at their position in the edit.
    fn load_part(&mut self, code: &StreamCode<'_>, part: &Part) {
        match &part.source {
            FieldSource::Steps { index, step } => {
                self.load_index(code, index);
                emit::calculate(&mut self.asm, Alu::Mul, R2, *step, R3);
            }
            FieldSource::List { index, values } => {
                let table = self.layout.table(values.iter().copied());
                self.load_index(code, index);
                self.look_up(table, R2, R3);
            }
            FieldSource::Length { headers } => {
                self.asm.load(Size::DW, R2, FP + LENGTH).sub(i32::from(*headers));
            }
            FieldSource::Sequence => {
                self.asm.mov(R2, NUMBER);
            }
            FieldSource::Worker => {
                self.asm.mov(R2, self.job.worker.cast_signed());
            }
            FieldSource::Time => {
                self.asm.mov(R2, R0);
            }
        }
        emit::calculate(&mut self.asm, Alu::Add, R2, part.base, R3);
        if part.shift != 0 {
            self.asm.lsh(R2, i32::from(part.shift));
        }
        emit::calculate(&mut self.asm, Alu::And, R2, part.mask, R3);
    }

    /// R2 = the index.
    fn load_index(&mut self, code: &StreamCode<'_>, index: &Index) {
        if let Some(draw) = index.random {
            self.asm.load(Size::DW, R2, Self::drawn(code, index.per, draw));
            if draw.shift != 0 {
                self.asm.rsh(R2, i32::from(draw.shift));
            }
            return emit::below(&mut self.asm, R2, index.count, R3);
        }
        match index.per {
            VariesBy::Packet => self.asm.mov(R2, NUMBER),
            VariesBy::Flow => self.asm.load(Size::DW, R2, FP + FLOW),
        };
        emit::modulo(&mut self.asm, R2, index.count, R3);
    }

    fn write_sum(&mut self, code: &StreamCode<'_>, sum: &Sum) {
        let stream = code.stream;
        let constant = fold(u64::from(sum.constant)).to_be();
        self.asm.mov(R1, i32::from(constant));
        if !sum.by_size.is_empty() {
            let sums = sum.by_size.iter().map(|&sum| u64::from(sum.to_be()));
            let table = self.layout.table(sums);
            self.asm.load(Size::DW, R2, FP + LENGTH);
            self.asm.sub(R2, stream.sizes.shortest(&stream.template) as i32);
            self.look_up(table, R2, R3);
            self.asm.add(R1, R2);
        }
        for term in &sum.terms {
            self.add_term(code, term);
        }
        emit::finish_sum(&mut self.asm, R1, sum.finish, R2);
        self.asm.store(Size::H, DATA + sum.at as i16, R1);
    }

    /// R1 += the term, in the packet's byte order.
    fn add_term(&mut self, code: &StreamCode<'_>, term: &Term) {
        let bytes = match term.of {
            Operand::Edit(index) => {
                let edit = &code.stream.edits[usize::from(index)];
                self.asm.load(size_of_edit(edit), R2, DATA + edit.at as i16);
                edit.bytes
            }
            Operand::Sum(index) => {
                let at = code.stream.sums[usize::from(index)].at;
                self.asm.load(Size::H, R2, DATA + at as i16);
                2
            }
            Operand::Length { headers } => {
                self.asm.load(Size::DW, R2, FP + LENGTH).sub(i32::from(headers)).to_be(Size::H);
                2
            }
        };
        if bytes == 8 {
            self.asm.mov(R3, R2).rsh(32);
            self.asm.mov32(R2, R2).add(R3);
        }
        if term.odd {
            // The shift swaps the bytes once the sum is folded.
            self.asm.lsh(R2, 8);
        }
        self.asm.add(R1, R2);
    }
}

/// Returns the number of bytes that instructions write in each frame of a stream.
fn written(stream: &StreamPlan) -> usize {
    stream.sizes.shortest(&stream.template).min(REWRITTEN)
}

fn size_of_edit(edit: &Edit) -> Size {
    match edit.bytes {
        1 => Size::B,
        2 => Size::H,
        4 => Size::W,
        _ => Size::DW,
    }
}

/// The frame pointer.
const FP: Reg = Reg::FP;
