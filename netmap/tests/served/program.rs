//! A served program, which has mapped its region and may write anything there.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use sluicegate_base::memory::Mmap;

/// Offsets of fields in netmap's header.
pub mod field {
    pub const NUM_SLOTS: usize = 8;
    pub const HEAD: usize = 20;
    pub const CUR: usize = 24;
    pub const TAIL: usize = 28;
    pub const SLOTS: usize = 256;
    /// In a slot.
    pub const BUF: usize = 0;
    pub const LEN: usize = 4;
    pub const FLAGS: usize = 6;
    pub const PTR: usize = 8;
}

/// The region, mapped.
pub struct Memory(Mmap);

/// One ring in the memory, with the offset of its header and slots.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    memory: &'a Memory,
    pub at: usize,
    pub num_slots: u32,
}

impl Memory {
    pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> Self {
        Self(Mmap::shared(fd, bytes).unwrap())
    }

    /// Creates a ring with the number of slots in its header; later changes of the header have no effect.
    pub fn ring(&self, at: usize) -> Ring<'_> {
        Ring { memory: self, at, num_slots: self.read(at + field::NUM_SLOTS) }
    }

    pub fn read<T: Copy>(&self, at: usize) -> T {
        assert!(at + size_of::<T>() <= self.0.bytes() && at.is_multiple_of(align_of::<T>()));
        // SAFETY: within the mapping, aligned; T is one of the integers.
        unsafe { self.0.at(at).cast::<T>().as_ptr().read_volatile() }
    }

    pub fn write<T: Copy>(&self, at: usize, value: T) {
        assert!(at + size_of::<T>() <= self.0.bytes() && at.is_multiple_of(align_of::<T>()));
        // SAFETY: within the mapping, aligned; all other readers expect changes there.
        unsafe { self.0.at(at).cast::<T>().as_ptr().write_volatile(value) }
    }

    fn cursor(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.0.bytes() && at.is_multiple_of(4));
        // SAFETY: within the mapping, aligned, and all accesses are atomic.
        unsafe { AtomicU32::from_ptr(self.0.at(at).cast().as_ptr()) }
    }
}

impl Ring<'_> {
    pub fn head(&self) -> u32 {
        self.memory.read(self.at + field::HEAD)
    }

    pub fn tail(&self) -> u32 {
        self.memory.cursor(self.at + field::TAIL).load(Ordering::Acquire)
    }

    pub fn after(&self, index: u32, n: u32) -> u32 {
        (index % self.num_slots + n) % self.num_slots
    }

    pub fn available(&self) -> u32 {
        // After writing an invalid head the program continues from there, modulo the number of slots.
        (self.tail() % self.num_slots + self.num_slots - self.head() % self.num_slots)
            % self.num_slots
    }

    /// Writes a field of the header.
    pub fn set<T: Copy>(&self, field: usize, value: T) {
        self.memory.write(self.at + field, value);
    }

    pub fn slot_at(&self, index: u32) -> usize {
        self.at + field::SLOTS + index as usize * 16
    }

    pub fn slot<T: Copy>(&self, index: u32, field: usize) -> T {
        self.memory.read(self.slot_at(index) + field)
    }

    /// Writes a field of a slot.
    pub fn set_slot<T: Copy>(&self, index: u32, field: usize, value: T) {
        self.memory.write(self.slot_at(index) + field, value);
    }

    /// Returns the first `n` slots.
    pub fn give(&self, n: u32) {
        let head = self.after(self.head(), n);
        self.set(field::CUR, head);
        self.memory.cursor(self.at + field::HEAD).store(head, Ordering::Release);
    }
}

/// Moves all received slots to the transmit ring by exchanging buffers. Returns their number.
pub fn echo(rx: Ring<'_>, tx: Ring<'_>) -> u32 {
    let n = rx.available().min(tx.available());
    for i in 0..n {
        let (from, to) = (rx.after(rx.head(), i), tx.after(tx.head(), i));
        let (full, empty): (u32, u32) = (rx.slot(from, field::BUF), tx.slot(to, field::BUF));
        tx.set_slot(to, field::BUF, full);
        tx.set_slot(to, field::LEN, rx.slot::<u16>(from, field::LEN));
        tx.set_slot(to, field::PTR, rx.slot::<u64>(from, field::PTR));
        tx.set_slot(to, field::FLAGS, rx.slot::<u16>(from, field::FLAGS) | 1);
        rx.set_slot(from, field::BUF, empty);
    }
    rx.give(n);
    tx.give(n);
    n
}
