//! What a worker has counted, readable while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// One worker's counters, on cache lines of their own. Only the worker writes them, once a
/// batch; others read them now and then. Relaxed throughout: each is a count by itself, and
/// nothing else is published through it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    received: AtomicU64,
    lost: AtomicU64,
}

/// Counts at one moment, of one worker or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets received.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets the kernel had for us, as of the last look.
    pub received: u64,
    /// Packets it lost for want of room, as of the last look.
    pub lost: u64,
}

impl Counters {
    /// Adds a batch. A single writer: load and store suffice.
    #[inline]
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.store(self.packets.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Notes what the backend has counted.
    pub fn note(&self, received: u64, lost: u64) {
        self.received.store(received, Ordering::Relaxed);
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// The counts now.
    pub fn totals(&self) -> Totals {
        Totals {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

impl Totals {
    /// The sum over several workers.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Counters>) -> Self {
        all.into_iter().fold(Self::default(), |sum, counters| {
            let one = counters.totals();
            Self {
                packets: sum.packets + one.packets,
                bytes: sum.bytes + one.bytes,
                received: sum.received + one.received,
                lost: sum.lost + one.lost,
            }
        })
    }

    /// What has come since an earlier moment.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            packets: self.packets - earlier.packets,
            bytes: self.bytes - earlier.bytes,
            received: self.received.saturating_sub(earlier.received),
            lost: self.lost.saturating_sub(earlier.lost),
        }
    }
}
