//! Everything that a program can write into its ring that cannot be, and what it gets for it.

use crate::buffers::{BUF_OFS, NR_BUF_SIZE};
use crate::program::{Ring, field};

/// One corruption.
pub struct Row {
    pub sentence: &'static str,
    /// What is written into a ring that has some slots to give back.
    pub write: fn(Ring<'_>),
    /// What the error says: the slot, the field, the value.
    pub says: &'static str,
    /// It can be wrong only where the program does not have all slots that it can have.
    pub in_part: bool,
}

/// A cursor is wrong.
fn cursor(ring: Ring<'_>, field: usize, value: u32) {
    ring.set(field, value);
}

/// The first slot is wrong, and is given back with the one behind it.
fn slot<T: Copy>(ring: Ring<'_>, field: usize, value: T) {
    ring.set_slot(ring.head(), field, value);
    ring.give(2);
}

pub const ROWS: &[Row] = &[
    Row {
        sentence: "head in no slot at all",
        write: |ring| cursor(ring, field::HEAD, ring.num_slots),
        says: "head is 64, not in",
        in_part: false,
    },
    Row {
        sentence: "head far away",
        write: |ring| cursor(ring, field::HEAD, u32::MAX),
        says: "head is 4294967295, not in",
        in_part: false,
    },
    Row {
        sentence: "head goes back",
        write: |ring| cursor(ring, field::HEAD, ring.after(ring.head(), ring.num_slots - 1)),
        says: "head is ",
        in_part: true,
    },
    Row {
        sentence: "head beyond what was given",
        write: |ring| {
            cursor(ring, field::HEAD, ring.after(ring.tail(), 1));
            cursor(ring, field::CUR, ring.after(ring.tail(), 1));
        },
        says: "head is ",
        in_part: true,
    },
    Row {
        sentence: "cur before head",
        write: |ring| {
            let cur = ring.head();
            ring.give(1);
            cursor(ring, field::CUR, cur);
        },
        says: "cur is ",
        in_part: false,
    },
    Row {
        sentence: "cur in no slot at all",
        write: |ring| cursor(ring, field::CUR, 1 << 31),
        says: "cur is 2147483648, not in",
        in_part: false,
    },
    Row {
        sentence: "tail is the server's",
        write: |ring| cursor(ring, field::TAIL, ring.after(ring.tail(), 1)),
        says: "and only the server moves it",
        in_part: false,
    },
    Row {
        sentence: "no buffer",
        write: |ring| slot(ring, field::BUF, 0u32),
        says: ": buf_idx is 0, which the program does not have",
        in_part: false,
    },
    Row {
        sentence: "a buffer that is nobody's",
        write: |ring| slot(ring, field::BUF, 1u32),
        says: ": buf_idx is 1, which the program does not have",
        in_part: false,
    },
    Row {
        sentence: "a buffer that the program does not have: the last one of the region",
        write: |ring| slot(ring, field::BUF, 4097u32),
        says: ": buf_idx is 4097, which the program does not have",
        in_part: false,
    },
    Row {
        sentence: "a buffer that there is not",
        write: |ring| slot(ring, field::BUF, 4098u32),
        says: ": buf_idx is 4098, which the program does not have",
        in_part: false,
    },
    Row {
        sentence: "a buffer far beyond the memory",
        write: |ring| slot(ring, field::BUF, u32::MAX),
        says: ": buf_idx is 4294967295, which the program does not have",
        in_part: false,
    },
    Row {
        sentence: "one buffer in two slots",
        write: |ring| {
            let next = ring.after(ring.head(), 1);
            slot(ring, field::BUF, ring.slot::<u32>(next, field::BUF));
        },
        says: ": buf_idx is ",
        in_part: false,
    },
    Row {
        sentence: "one byte longer than a buffer",
        write: |ring| {
            ring.set_slot(ring.head(), field::PTR, 0u64);
            slot(ring, field::LEN, 2049u16);
        },
        says: ": len is 2049, from 0 on, and a buffer has 2048 bytes",
        in_part: false,
    },
    Row {
        sentence: "as long as can be said",
        write: |ring| {
            ring.set_slot(ring.head(), field::PTR, 0u64);
            slot(ring, field::LEN, u16::MAX);
        },
        says: ": len is 65535",
        in_part: false,
    },
    Row {
        sentence: "over the buffer's end, from within",
        write: |ring| {
            ring.set_slot(ring.head(), field::PTR, 2000u64);
            slot(ring, field::LEN, 49u16);
        },
        says: ": len is 49, from 2000 on",
        in_part: false,
    },
    Row {
        sentence: "beginning behind the buffer's end",
        write: |ring| {
            ring.set_slot(ring.head(), field::LEN, 0u16);
            slot(ring, field::PTR, 2049u64);
        },
        says: ": ptr is 2049, and a buffer has 2048 bytes",
        in_part: false,
    },
    Row {
        sentence: "an address that makes the sum go round",
        write: |ring| slot(ring, field::PTR, u64::MAX),
        says: ": ptr is 18446744073709551615",
        in_part: false,
    },
    Row {
        sentence: "an address whose lower bits would do",
        write: |ring| slot(ring, field::PTR, 1u64 << 16),
        says: ": ptr is 65536",
        in_part: false,
    },
    Row {
        sentence: "bytes outside the region: the server's own memory",
        write: |ring| slot(ring, field::FLAGS, 0x10u16),
        says: ": flags is 16, and 0x10 has no meaning",
        in_part: false,
    },
    Row {
        sentence: "all flags that there are",
        write: |ring| slot(ring, field::FLAGS, u16::MAX),
        says: ": flags is 65535, and 0xffd0 has no meaning",
        in_part: false,
    },
];

/// What the server never looks at: the program harms nobody but itself.
pub fn write_all_else(ring: Ring<'_>) {
    ring.set(BUF_OFS, i64::MIN);
    ring.set(field::NUM_SLOTS, u32::MAX);
    ring.set(NR_BUF_SIZE, u32::MAX);
    for at in (16..20).chain(32..field::SLOTS) {
        ring.set(at, 0xffu8);
    }
    // Slots that the program does not have.
    let mut index = ring.tail();
    while index != ring.head() {
        (0..16).for_each(|at| ring.set_slot(index, at, 0xffu8));
        index = ring.after(index, 1);
    }
}
