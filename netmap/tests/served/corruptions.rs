//! Every invalid value that a program can write into its ring, and the error for it.

use std::fmt::Display;

use crate::buffers::{BUF_OFS, NR_BUF_SIZE};
use crate::program::{Ring, field};

/// One corruption.
pub struct Row {
    pub sentence: &'static str,
    /// Writes into a ring with slots to give back.
    pub write: Box<dyn Fn(Ring<'_>)>,
    /// The error: slot, field, value.
    pub says: String,
    /// The value is invalid only if the program does not have all slots.
    pub in_part: bool,
}

fn row(sentence: &'static str, write: impl Fn(Ring<'_>) + 'static, says: impl Into<String>) -> Row {
    Row { sentence, write: Box::new(write), says: says.into(), in_part: false }
}

/// Writes an invalid cursor.
fn cursor(ring: Ring<'_>, field: usize, value: u32) {
    ring.set(field, value);
}

/// Writes an invalid field of the first slot, and returns it with the next one.
fn slot<T: Copy>(ring: Ring<'_>, field: usize, value: T) {
    ring.set_slot(ring.head(), field, value);
    ring.give(2);
}

/// Sets the first slot to `len` bytes of its buffer, from `ptr` on.
fn extent(ring: Ring<'_>, ptr: u64, len: u16) {
    ring.set_slot(ring.head(), field::PTR, ptr);
    slot(ring, field::LEN, len);
}

/// Creates a row: one field of a slot has an invalid value.
fn value<T: Copy + Display + 'static>(
    sentence: &'static str,
    (name, field): (&str, usize),
    value: T,
    why: &str,
) -> Row {
    row(sentence, move |ring| slot(ring, field, value), format!(": {name} is {value}{why}"))
}

pub fn rows() -> Vec<Row> {
    let (buffer, ptr, flags) =
        (("buf_idx", field::BUF), ("ptr", field::PTR), ("flags", field::FLAGS));
    let foreign = ", which the program does not have";
    let last = "a buffer that the program does not have: the last one of the region";
    vec![
        row(
            "head in no slot at all",
            |ring| cursor(ring, field::HEAD, ring.num_slots),
            "head is 64, not in",
        ),
        row(
            "head far away",
            |ring| cursor(ring, field::HEAD, u32::MAX),
            "head is 4294967295, not in",
        ),
        Row {
            in_part: true,
            ..row(
                "head goes back",
                |ring| cursor(ring, field::HEAD, ring.after(ring.head(), ring.num_slots - 1)),
                "head is ",
            )
        },
        Row {
            in_part: true,
            ..row(
                "head beyond what was given",
                |ring| {
                    cursor(ring, field::HEAD, ring.after(ring.tail(), 1));
                    cursor(ring, field::CUR, ring.after(ring.tail(), 1));
                },
                "head is ",
            )
        },
        row(
            "cur before head",
            |ring| {
                let cur = ring.head();
                ring.give(1);
                cursor(ring, field::CUR, cur);
            },
            "cur is ",
        ),
        row(
            "cur in no slot at all",
            |ring| cursor(ring, field::CUR, 1 << 31),
            "cur is 2147483648, not in",
        ),
        row(
            "tail is the server's",
            |ring| cursor(ring, field::TAIL, ring.after(ring.tail(), 1)),
            "and only the server moves it",
        ),
        value("no buffer", buffer, 0u32, foreign),
        value("a buffer that is nobody's", buffer, 1u32, foreign),
        value(last, buffer, 4097u32, foreign),
        value("a buffer that there is not", buffer, 4098u32, foreign),
        value("a buffer far beyond the memory", buffer, u32::MAX, foreign),
        row(
            "one buffer in two slots",
            |ring| {
                let next = ring.after(ring.head(), 1);
                slot(ring, field::BUF, ring.slot::<u32>(next, field::BUF));
            },
            ": buf_idx is ",
        ),
        row(
            "one byte longer than a buffer",
            |ring| extent(ring, 0, 2049),
            ": len is 2049, from 0 on, and a buffer has 2048 bytes",
        ),
        row("as long as can be said", |ring| extent(ring, 0, u16::MAX), ": len is 65535"),
        row(
            "over the buffer's end, from within",
            |ring| extent(ring, 2000, 49),
            ": len is 49, from 2000 on",
        ),
        row(
            "beginning behind the buffer's end",
            |ring| extent(ring, 2049, 0),
            ": ptr is 2049, and a buffer has 2048 bytes",
        ),
        value("an address that makes the sum go round", ptr, u64::MAX, ""),
        value("an address whose lower bits would do", ptr, 1u64 << 16, ""),
        value(
            "bytes outside the region: the server's own memory",
            flags,
            0x10u16,
            ", and 0x10 has no meaning",
        ),
        value("all flags that there are", flags, u16::MAX, ", and 0xffd0 has no meaning"),
    ]
}

/// Writes fields that the server never reads: the program harms only itself.
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
