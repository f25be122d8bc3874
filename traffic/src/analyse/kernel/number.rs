//! The part of the program that reads the stamp and tracks its number, as `Track` does.

use sluicegate::filter::ebpf::Reg::*;
use sluicegate::filter::ebpf::{Helper, Label, Reg, Size};

use super::headers::be;
use super::{AnalyserCode, STATE};
use super::{CORRUPT, DELAYS, INTACT, STREAMS, TRACKS, WINDOW_WORDS, WORKERS, delay, track, word};
use crate::analyse::report::MAX_NS;
use crate::analyse::{Stamp, WINDOW};
use crate::live::emit;
use crate::rate::Latencies;

/// The track.
const TRACK: Reg = R5;
/// The highest number so far.
const LAST: Reg = R4;

/// Stack offsets of the stamp's parts.
pub(super) const STREAM: i16 = -8;
pub(super) const NUMBER: i16 = -16;
pub(super) const TIME: i16 = -24;

/// The program measures one packet in 2^`SAMPLE_BITS`.
const SAMPLE_BITS: i32 = 4;
/// Spreads numbers over 32 bits, so that the sample follows no pattern in the traffic.
const SPREAD: i32 = 0x9e37_79b1_u32.cast_signed();
/// The delays of the packet's stream.
const DELAY: Reg = R2;

impl AnalyserCode<'_> {
    /// Reads the stamp, puts it on the stack and tracks its number.
    pub(super) fn stamp(&mut self) {
        let [begin, ahead, forward, restart, counted] = self.asm.labels();
        self.read_stamp();
        self.find_track();
        self.by_condition();
        self.count(TRACK + track::RECEIVED);
        self.asm.load(Size::DW, LAST, TRACK + track::LAST);
        self.asm.load(Size::DW, R2, R10 + NUMBER);
        self.asm.load(Size::DW, R3, R10 + TIME);
        self.asm.jeq(LAST, 0, begin);
        // R1: the lead over LAST.
        self.asm.mov(R1, R2);
        self.asm.sub32(R1, LAST);
        self.asm.lsh(R1, 32).arsh(32).jsgt(0, ahead);
        self.behind(restart, counted);
        self.asm.place(restart);
        self.end_run();
        self.asm.place(begin);
        self.begin();
        let mark = self.asm.label();
        self.asm.jump(mark);
        self.asm.place(ahead);
        // At least a window ahead, but a lower number in the stamp, and a later time: the sender has
        // restarted.
        self.asm.jlt(R1, WINDOW as i32, forward);
        self.asm.mov32(R0, LAST);
        self.asm.jgt(R2, R0, forward);
        self.asm.load(Size::DW, R0, TRACK + track::LAST_NS);
        self.asm.jgt(R3, R0, restart);
        self.asm.place(forward);
        self.forward();
        self.asm.place(mark);
        self.mark();
        self.asm.place(counted);
    }

    /// Puts the stamp on the stack; continues at `unstamped` without one.
    fn read_stamp(&mut self) {
        let (asm, none) = (&mut self.asm, self.unstamped);
        asm.load(Size::DW, R1, STATE + word::STAMP_AT).jeq(0, none);
        asm.and(R1, 0xff).add(self.frame.data);
        asm.mov(R2, R1).add(Stamp::BYTES as i32).jgt(self.frame.end, none);
        asm.load(Size::H, R2, R1 + 0).jne(be(u16::from_be_bytes(Stamp::MAGIC)), none);
        asm.load(Size::W, R2, R1 + 4).to_be(Size::W).store(Size::DW, R10 + NUMBER);
        asm.load(Size::DW, R2, R1 + 8).to_be(Size::DW).store(Size::DW, R10 + TIME);
        asm.load(Size::B, R4, R1 + 2);
        asm.load(Size::B, R5, R1 + 3);
    }

    /// TRACK = the track of the stream in R4 and the worker in R5.
    fn find_track(&mut self) {
        let [no_room, room] = self.asm.labels();
        self.asm.jge(R4, STREAMS as i32, no_room);
        self.asm.jlt(R5, WORKERS as i32, room);
        self.asm.place(no_room);
        let known = self.unstamped;
        self.condition().jeq(CORRUPT, known);
        self.count_unchecked();
        self.count(STATE + word::UNTRACKED);
        self.asm.jump(self.done);
        self.asm.place(room);
        self.asm.store(Size::DW, R10 + STREAM, R4);
        self.asm.mul(R4, WORKERS as i32).add(R5).mul(track::BYTES as i32);
        self.asm.mov(TRACK, STATE).add(R4).add(TRACKS as i32);
    }

    /// Counts a corrupt packet and continues at `done`, because its number may be corrupt.
    fn by_condition(&mut self) {
        let intact = self.asm.label();
        self.condition().jne(CORRUPT, intact);
        self.count(TRACK + track::CORRUPT);
        self.asm.jump(self.done);
        self.asm.place(intact);
        self.count_unchecked();
    }

    /// Counts an unchecked packet.
    fn count_unchecked(&mut self) {
        let checked = self.asm.label();
        self.condition().jeq(INTACT, checked);
        self.count(STATE + word::UNCHECKED);
        self.asm.place(checked);
    }

    /// Tracks a number that is -R1 below the highest. Continues at `restart` if the sender has restarted,
    /// else at `counted`.
    fn behind(&mut self, restart: Label, counted: Label) {
        let [late, again] = self.asm.labels();
        self.asm.load(Size::DW, R0, TRACK + track::LAST_NS);
        self.asm.jgt(R3, R0, restart);
        self.asm.neg(R1);
        // R2: the number with the bits of LAST's round.
        self.asm.mov(R2, LAST).sub(R1);
        self.asm.rsh(LAST, 6);
        self.asm.mov(R0, R2).rsh(6);
        self.asm.sub(LAST, R0).jge(WINDOW_WORDS as i32, late);
        // R0: the word of the bit, R1: the bit.
        self.find_word(R0, R2);
        self.bit(R1, R2);
        self.asm.load(Size::DW, R3, R0 + track::WINDOW);
        self.asm.mov(R4, R3).and(R1).jne(0, again);
        self.asm.or(R3, R1).store(Size::DW, R0 + track::WINDOW);
        self.count(TRACK + track::REORDERED);
        self.count(TRACK + track::DIFFERENT);
        self.asm.load(Size::DW, R0, TRACK + track::FIRST);
        self.asm.jge(R2, R0, counted);
        self.asm.store(Size::DW, TRACK + track::FIRST, R2);
        self.asm.load(Size::DW, R0, R10 + TIME).store(Size::DW, TRACK + track::FIRST_NS);
        self.asm.jump(counted);
        self.asm.place(late);
        self.count(TRACK + track::LATE);
        self.asm.jump(counted);
        self.asm.place(again);
        self.count(TRACK + track::DUPLICATES);
        self.asm.jump(counted);
    }

    /// Stores the ended run in place of the oldest one, whose losses it adds to the total. Preserves R2 and
    /// R3.
    fn end_run(&mut self) {
        let none = self.asm.label();
        let asm = &mut self.asm;
        // R4: the address of the stored run, less `track::RUNS`.
        asm.load(Size::DW, R1, TRACK + track::ENDED);
        asm.mov(R4, R1).and(track::RUNS_MAX as i32 - 1).mul(i32::from(track::RUN_BYTES)).add(TRACK);
        asm.jlt(R1, track::RUNS_MAX as i32, none);
        asm.load(Size::DW, R1, R4 + track::in_runs(track::LAST)).add(1);
        for less in [track::FIRST, track::DIFFERENT] {
            asm.load(Size::DW, R0, R4 + track::in_runs(less));
            asm.sub(R1, R0);
        }
        asm.jsle(R1, 0, none);
        asm.load(Size::DW, R0, TRACK + track::ENDED_LOST).add(R1);
        asm.store(Size::DW, TRACK + track::ENDED_LOST, R0);
        asm.place(none);
        for at in (track::RUN..track::RUN + track::RUN_BYTES).step_by(8) {
            asm.load(Size::DW, R0, TRACK + at).store(Size::DW, R4 + track::in_runs(at));
        }
        self.count(TRACK + track::ENDED);
        self.clear();
    }

    /// Begins a run with the number in R2 and the time in R3. Returns the number to mark in LAST.
    fn begin(&mut self) {
        let asm = &mut self.asm;
        asm.load_constant(LAST, 1 << 32);
        asm.add(LAST, R2).store(Size::DW, TRACK + track::FIRST);
        asm.store(Size::DW, TRACK + track::LAST, LAST);
        asm.store(Size::DW, TRACK + track::FIRST_NS, R3);
        asm.store(Size::DW, TRACK + track::LAST_NS, R3);
        asm.store(Size::DW, TRACK + track::DIFFERENT, 1);
    }

    /// Moves R1 numbers ahead. Returns the number to mark in LAST.
    fn forward(&mut self) {
        let [same, all] = self.asm.labels();
        self.count(TRACK + track::DIFFERENT);
        let asm = &mut self.asm;
        // R2: the word of the old LAST; R1: the words to move ahead.
        asm.mov(R2, LAST).rsh(6);
        asm.add(LAST, R1).store(Size::DW, TRACK + track::LAST);
        asm.store(Size::DW, TRACK + track::LAST_NS, R3);
        asm.mov(R1, LAST).rsh(6).sub(R2).jge(WINDOW_WORDS as i32, all);
        // Clears each word that is entered: nothing ahead of LAST is marked. No loop: the verifier of
        // Linux 7.2 would follow a countdown of R1 below 0 ("BPF program is too large"). Linux 6.1
        // learns a bound from "less", not from "equal".
        for words in 1..WINDOW_WORDS as i32 {
            asm.jlt(R1, words, same);
            asm.add(R2, 1);
            asm.mov(R0, R2).and(WINDOW_WORDS as i32 - 1).lsh(3).add(TRACK);
            asm.store(Size::DW, R0 + track::WINDOW, 0);
        }
        asm.jump(same);
        asm.place(all);
        self.clear();
        self.asm.place(same);
    }

    /// Clears the window.
    fn clear(&mut self) {
        for word in 0..WINDOW_WORDS {
            self.asm.store(Size::DW, TRACK + (track::WINDOW + word as i16 * 8), 0);
        }
    }

    /// Marks LAST.
    fn mark(&mut self) {
        self.find_word(R0, LAST);
        self.bit(R1, LAST);
        self.asm.load(Size::DW, R2, R0 + track::WINDOW).or(R1).store(Size::DW, R0 + track::WINDOW);
    }

    /// word = the address, less `track::WINDOW`, of the word with a number's bit.
    fn find_word(&mut self, word: Reg, number: Reg) {
        let asm = &mut self.asm;
        asm.mov(word, number).rsh(6).and(WINDOW_WORDS as i32 - 1).lsh(3).add(TRACK);
    }

    /// bit = a number's bit. Clobbers R3.
    fn bit(&mut self, bit: Reg, number: Reg) {
        self.asm.mov(R3, number).and(63);
        self.asm.mov(bit, 1).lsh(R3);
    }

    /// Measures the delay of some packets by the stamp on the stack. Continues at `done`.
    pub(super) fn delay(&mut self) {
        let [other, shorter] = self.asm.labels();
        let (asm, done) = (&mut self.asm, self.done);
        asm.load(Size::DW, R1, R10 + NUMBER);
        asm.mul32(R1, SPREAD);
        asm.rsh32(R1, 32 - SAMPLE_BITS);
        asm.jne(R1, 0, done);
        asm.call(Helper::KTIME_NS);
        // The mask is for the verifier: the stream was checked before it was stored.
        asm.load(Size::DW, DELAY, R10 + STREAM).and(STREAMS as i32 - 1).mul(delay::BYTES as i32);
        asm.add(DELAY, DELAYS as i32).add(STATE);
        asm.load(Size::DW, R1, R10 + TIME);
        asm.jlt(R0, R1, other);
        asm.mov(R3, R0).sub(R1);
        asm.load_constant(R1, MAX_NS);
        asm.jgt(R3, R1, other);
        asm.load(Size::DW, R1, DELAY + delay::MAX);
        asm.jle(R3, R1, shorter);
        asm.store(Size::DW, DELAY + delay::MAX, R3);
        asm.place(shorter);
        // R4: the class.
        emit::class::<{ Latencies::STEP_BITS }, { Latencies::POWERS }>(asm, R3, R4, [R0, R5]);
        asm.lsh(R4, 3).add(DELAY);
        self.count(R4 + delay::CLASSES);
        self.asm.jump(done);
        self.asm.place(other);
        self.count(DELAY + delay::OTHER_CLOCK);
        self.asm.jump(done);
    }
}
