//! The program's process: a copy of this test binary with a role.

use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sluicegate_netmap::{Region, Served};

use crate::buffers::Buffers;
use crate::corruptions::{rows, write_all_else};
use crate::program::{Memory, Ring, echo, field};

const ROLE: &str = "SLUICE_TEST_ROLE";
/// A process with a role exits after this time.
const LIMIT: Duration = Duration::from_secs(100);

/// Starts a process with a role, on a region and two of its rings.
pub fn play(role: &str, region: &Region, served: &Served) -> Child {
    let (bytes, rx, tx) = (region.bytes(), served.rx_offset(), served.tx_offset());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "roles::program", "--nocapture"])
        .env(ROLE, format!("{role} {bytes} {rx} {tx}"))
        .stdin(region.fd().try_clone_to_owned().unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn program() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let number = |i: usize| words[i].parse::<usize>().unwrap();
    let memory = Memory::map(std::io::stdin().as_fd(), number(2));
    let (rx, tx) = (memory.ring(number(3)), memory.ring(number(4)));
    match words[0] {
        "corrupt-rx" => (rows()[number(1)].write)(rx),
        "corrupt-tx" => (rows()[number(1)].write)(tx),
        "all-else" => [rx, tx].into_iter().for_each(write_all_else),
        "echo" => echo_on(rx, tx, number(1) as u32),
        "scribble" => scribble(&Buffers::of(&memory, rx), rx, tx, number(1) as u64),
        other => panic!("no role {other}"),
    }
}

/// Echoes `packets` packets.
fn echo_on(rx: Ring<'_>, tx: Ring<'_>, packets: u32) {
    let (mut left, end) = (packets, Instant::now() + LIMIT);
    while left > 0 && Instant::now() < end {
        match echo(rx, tx) {
            0 => std::thread::yield_now(),
            n => left = left.saturating_sub(n),
        }
    }
}

/// Writes into random slots until it is killed: each time a value, then another over it, so that the server
/// may see one, the other, or a mix. With an even seed all values are valid, with an odd one any value is
/// possible.
fn scribble(buffers: &Buffers<'_>, rx: Ring<'_>, tx: Ring<'_>, seed: u64) {
    let (mut random, end) = (Random(seed), Instant::now() + LIMIT);
    let kinds = if seed.is_multiple_of(2) { 11 } else { 16 };
    while Instant::now() < end {
        for _ in 0..1000 {
            let ring = if random.below(2) == 0 { rx } else { tx };
            let index = random.below(ring.num_slots);
            match random.below(kinds) {
                0..6 => {
                    let n = ring.available().min(1 + random.below(8));
                    ring.give(n);
                }
                6 => {
                    echo(rx, tx);
                }
                7 => flip(&mut random, |r| ring.set_slot(index, field::LEN, r as u16 % 1500)),
                8 => flip(&mut random, |r| ring.set_slot(index, field::PTR, u64::from(r % 500))),
                9 => flip(&mut random, |r| ring.set_slot(index, field::FLAGS, r as u16 & 0x21)),
                10 => buffers.set_byte(2 + random.below(4000), 42 + random.below(1000), 7),
                // An invalid value: it ends the queue if the server sees it.
                11 => {
                    let buffer: u32 = ring.slot(index, field::BUF);
                    ring.set_slot(index, field::BUF, random.below(4100));
                    ring.set_slot(index, field::BUF, buffer);
                }
                12 => {
                    let head = ring.head();
                    ring.set(field::HEAD, random.next() as u32);
                    ring.set(field::HEAD, head);
                }
                13 if random.below(1000) == 0 => {
                    let at = random.below(4) as usize * 4;
                    ring.set_slot(index, at, random.next() as u32);
                }
                14 if random.below(1000) == 0 => ring.set(field::CUR, random.next() as u32),
                15 if random.below(1000) == 0 => {
                    ring.set(random.below(64) as usize * 4, random.next() as u32);
                }
                _ => {}
            }
        }
    }
}

/// Writes a value, and another one at once.
fn flip(random: &mut Random, write: impl Fn(u32)) {
    write(random.next() as u32);
    write(random.next() as u32);
}

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }
}
