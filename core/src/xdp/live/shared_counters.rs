//! Numbers that a program and this process share.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use super::privileged;
use crate::error::Result;
use crate::xdp::bpf;
use sluicegate_base::memory::{Mmap, PAGE_BYTES};

/// Memory that a program and this process share: numbers of 64 bits, as the value of an array map
/// with one entry.
pub struct SharedCounters {
    map: OwnedFd,
    memory: Mmap,
    words: usize,
}

impl SharedCounters {
    /// Makes one that holds these numbers.
    ///
    /// # Errors
    /// The kernel has no memory for it; a missing privilege.
    pub fn new(words: &[u64]) -> Result<Self> {
        let counters = Self::zeros(words.len(), "live frames")?;
        for (index, &word) in words.iter().enumerate() {
            counters.set(index, word);
        }
        Ok(counters)
    }

    /// Makes one of so many zeros, for what `purpose` says.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn zeros(words: usize, purpose: &str) -> Result<Self> {
        let failed = |error| privileged(error, "make a map for", purpose);
        let bytes = (words * 8).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let map = bpf::create_mapped_array(c"sluice_live", bytes as u32, 1).map_err(failed)?;
        Self::over(map, bytes / 8).map_err(failed)
    }

    /// The first words of an array map that can be mapped, and is as long.
    pub(crate) fn over(map: OwnedFd, words: usize) -> io::Result<Self> {
        let bytes = (words * 8).next_multiple_of(PAGE_BYTES);
        let memory = Mmap::shared(map.as_fd(), bytes)?;
        Ok(Self { map, memory, words: bytes / 8 })
    }

    /// The number at an index.
    ///
    /// # Panics
    /// If it is beyond the counters.
    pub fn get(&self, index: usize) -> u64 {
        // Pairs with the program's plain stores: it has one writer, and nothing else follows from
        // what is read.
        self.word(index).load(Ordering::Relaxed)
    }

    /// Changes the number at an index.
    ///
    /// # Panics
    /// If it is beyond the counters.
    pub fn set(&self, index: usize, number: u64) {
        // Pairs with the program's plain loads, as above.
        self.word(index).store(number, Ordering::Relaxed);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: the address is in the mapping, which lives as long as the answer, and aligned;
        // everybody here accesses it atomically, and the program, on another CPU, by whole words.
        unsafe { AtomicU64::from_ptr(self.memory.at(index * 8).cast().as_ptr()) }
    }
}

impl AsFd for SharedCounters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl fmt::Debug for SharedCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCounters").field("words", &self.words).finish_non_exhaustive()
    }
}
