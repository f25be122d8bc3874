//! A program that writes anything into its region, between syncs and during them: the engine goes on, and other
//! programs do not notice.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::PollFlags;
use sluicegate_netmap::abi::bodies::{Register, register_flags};

use crate::engine;
use crate::program::{Program, all, frame};

/// The number of programs that scribble, each with other numbers: `SOAK_SEEDS` sets another one than the test's.
pub fn seeds(usual: u64) -> u64 {
    std::env::var("SOAK_SEEDS").map_or(usual, |number| number.parse().unwrap())
}

/// A small generator of numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Writes numbers over the interfaces and rings of a region.
pub fn scribble(program: &Program, rings: &Range<usize>, random: &mut Random) {
    for _ in 0..20 {
        let at = rings.start + random.next() as usize % (rings.end - rings.start) / 4 * 4;
        let value = match random.next() % 4 {
            0 => random.next() as u32,
            1 => random.next() as u32 % 2000,
            2 => 1023 + random.next() as u32 % 3,
            _ => ((random.next() as u32 % 3) << 16) | (random.next() as u32 % 3000),
        };
        program.set_word(at, value);
    }
}

#[test]
fn whatever_a_program_writes_others_go_on() {
    for seed in 1..=seeds(20) {
        let engine = engine();
        let small = Register { tx_slots: 16, rx_slots: 16, extra_bufs: 2, ..all() };
        let bad = Program::open(&engine, "vale0:bad", small).unwrap();
        let ends = ["vale0:bad{1", "vale0:bad}1"];
        let ends = ends.map(|name| Program::open(&engine, name, small).unwrap());
        let flags = register_flags::MONITOR_RX | register_flags::MONITOR_TX;
        let monitors = [flags, register_flags::ZCOPY_MON]
            .map(|flags| Program::open(&engine, "vale0:bad", Register { flags, ..all() }).unwrap());
        let good = ["vale0:a", "vale0:b"].map(|it| Program::open(&engine, it, all()).unwrap());
        good[0].send(&[frame(0xff, 1, 0, 60)]);
        good[1].send(&[frame(0xff, 2, 0, 60)]);
        good.iter().for_each(|program| drop(program.receive()));
        let rings = bad.ring_area();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A second thread writes during the syncs.
            scope.spawn(|| {
                let mut random = Random(seed << 32 | 1);
                while !stop.load(Ordering::Relaxed) {
                    scribble(&bad, &rings, &mut random);
                }
            });
            let mut random = Random(seed);
            for number in 0..50 {
                scribble(&bad, &rings, &mut random);
                for program in [&bad].into_iter().chain(&ends).chain(&monitors) {
                    program.file.txsync().unwrap();
                    program.file.rxsync().unwrap();
                    program.file.poll(PollFlags::POLLIN | PollFlags::POLLOUT);
                    program.file.wait(PollFlags::POLLIN);
                }
                let packet = frame(2, 1, number, 60);
                good[0].send(std::slice::from_ref(&packet));
                // The bad port may send anything to all, and fill the ring.
                let received = good[1].receive();
                assert!(received.contains(&packet) || received.len() > 900, "seed {seed}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop((monitors, ends, bad));
        assert!(Program::open(&engine, "vale0:bad", all()).unwrap().tx(0).is_some());
    }
}
