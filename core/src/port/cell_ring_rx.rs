//! Receiving from rings of cells (`cell_ring`): when to poll, and when to sleep. For `mirror:`, `xdp:` with
//! method `ring` and `monitor:`.
//!
//! | latency | polls | sleeps until |
//! | --- | --- | --- |
//! | 0 | while it spins; it pauses after a poll that found packets | the next packet; if the last poll found packets, the end of the pause |
//! | `latency=` | once in that time | the end of that time, or until a quarter of the ring is full; if the last poll found none, the next packet |
//!
//! A poll takes the cache line of the writer's index away from the writer's CPU. A reader that polled again
//! at once would find one packet at a time, and slow the writer down.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::backend::WakeSource;
use super::stats::QueueStats;
use crate::cell_ring::{CellRingCounts, Reader};
use sluicegate_base::ring::{Readiness, Ring, Wait};

/// Number of unread packets below which a sync polls for more.
const BATCH: u32 = 256;
/// The pause after a poll that found packets, unless the program goes to sleep.
const PAUSE: Duration = Duration::from_micros(50);
/// Number of packets that make a ring busy: after a poll that found this many, the next poll is always
/// after the pause.
const BUSY_PACKETS: u32 = 32;
/// The interval of polls of a sleeper without `latency=`, in case a wake-up is lost.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The interval of polls of a sleeper with `latency=` while no packets arrive.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A sleeper with `latency=` is woken when this fraction of the ring is full. The rest holds the packets
/// that arrive until it is awake.
const WAKE_PART: u32 = 4;

/// The receiving part of a queue with rings of cells.
#[derive(Debug)]
pub(super) struct CellRingRx {
    reader: Reader,
    /// Maximum time that a packet waits in the ring before the program sees it; zero means at once.
    latency: Duration,
    /// True if the program spins, at any cost.
    spinning: bool,
    /// Time of the next poll.
    next_poll: Instant,
    /// Number of packets that the last poll found.
    found: u32,
    closed: Option<Instant>,
}

impl CellRingRx {
    pub(super) fn new(reader: Reader, latency: Option<Duration>) -> Self {
        let latency = latency.filter(|latency| *latency > PAUSE).unwrap_or(Duration::ZERO);
        Self { reader, latency, spinning: false, next_poll: Instant::now(), found: 0, closed: None }
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Gives back released slots and fills others with new packets, see [`Reader::fill`].
    #[inline]
    pub(super) fn sync(&mut self, ring: &mut Ring, wall_ns: impl FnMut(u64) -> u64) -> u32 {
        self.reader.give_back(ring);
        if self.reader.unread() < BATCH {
            self.finds_packets();
        }
        self.reader.fill(ring, wall_ns)
    }

    /// Polls for packets, unless it is too early. Returns true if there are any.
    #[inline]
    pub(super) fn finds_packets(&mut self) -> bool {
        let now = Instant::now();
        if self.closed.is_none() && now < self.next_poll {
            return self.reader.unread() > 0;
        }
        let before = self.reader.unread();
        let there = self.reader.look();
        self.found = there - before;
        // Without packets, a wake-up that was requested stays: a program with its own event loop syncs between
        // the request and the sleep.
        if self.found > 0 {
            self.reader.wake_up();
        }
        if !self.spinning && !self.latency.is_zero() {
            self.next_poll = now + self.latency;
        } else if self.found > 0 {
            self.next_poll = now + PAUSE;
        }
        there > 0
    }

    /// Begins a wait of the program. Returns true if it should spin first.
    pub(super) fn begin_wait(&mut self, wait: Wait) -> bool {
        let was_spinning = std::mem::replace(&mut self.spinning, wait == Wait::Spin);
        if self.spinning && !was_spinning {
            self.next_poll = Instant::now();
        }
        self.spinning || self.latency.is_zero()
    }

    /// Prepares the program's sleep. Returns the event that ends it.
    pub(super) fn wake_source(&mut self) -> WakeSource<'_> {
        let pause = self.next_poll.saturating_duration_since(Instant::now());
        let (level, limit) = match self.latency.is_zero() {
            true if self.found >= BUSY_PACKETS && !pause.is_zero() => {
                return WakeSource::Nap(pause);
            }
            true => (1, POLL_INTERVAL),
            false if self.found == 0 => (1, IDLE_POLL_INTERVAL),
            false => (self.reader.cells() / WAKE_PART, pause),
        };
        if !self.reader.go_to_sleep(level) {
            self.next_poll = Instant::now();
            return WakeSource::Nap(Duration::ZERO);
        }
        WakeSource::Limited(self.reader.as_fd(), limit)
    }

    /// Polls at once, after the writer has woken the program.
    pub(super) fn is_woken(&mut self) -> bool {
        self.next_poll = Instant::now();
        self.finds_packets()
    }

    /// Returns the state after a sleep: the descriptor was `ready`, or the time has expired.
    pub(super) fn slept(&mut self, ready: bool) -> Readiness {
        if ready && self.is_woken() { Readiness::Ready } else { Readiness::TimedOut }
    }

    /// Returns the counts of the rings.
    pub(super) fn stats(&self) -> QueueStats {
        let CellRingCounts { matched, lost } = self.reader.counts();
        QueueStats { received: matched, dropped_ring_full: lost, ..QueueStats::default() }
    }

    /// Stops the writers. Packets that were already written can still be received.
    pub(super) fn close(&mut self) {
        self.reader.close();
        self.closed.get_or_insert_with(Instant::now);
    }

    /// Returns the time at which receiving stopped.
    pub(super) fn closed(&self) -> Option<Instant> {
        self.closed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cell_ring::{CellGeometry, CellHeader, CellRing, WakeSource as ReaderWake, Writer};
    use crate::port::wait::is_readable;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use sluicegate_base::memory::{Pool, PoolConfig};

    #[test]
    fn a_sync_that_finds_no_packet_leaves_the_wake_up_armed() {
        for latency in [None, Some(Duration::from_millis(1)), Some(Duration::from_secs(1))] {
            let (ring, _) = CellRing::in_file(CellGeometry { cells: 8, snaplen: 100 }).unwrap();
            let (family, kind) = (AddressFamily::Unix, SockType::Datagram);
            let (ours, theirs) = socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
            let mut writer = Writer::new(ring.clone(), ours);
            let reader = Reader::new([ring], true, ReaderWake::Socket(theirs));
            let mut rx = CellRingRx::new(reader, latency);
            let pool = Pool::new(PoolConfig { buffers: 0, ..PoolConfig::default() }).unwrap();
            let mut slots = Ring::receive_indirect(&pool, 8).unwrap();
            rx.begin_wait(Wait::Sleep);
            assert!(matches!(rx.wake_source(), WakeSource::Limited(..)), "{latency:?}");
            // A program with an event loop syncs once more before it sleeps, however late.
            rx.next_poll = Instant::now();
            assert_eq!(rx.sync(&mut slots, |ns| ns), 0);
            let mut write = || {
                writer.offer(CellHeader::default(), std::iter::once(&[7; 60][..]));
                writer.publish();
            };
            write();
            assert_eq!(is_readable(rx.reader().as_fd()), Ok(true), "{latency:?}: the first wakes");
            assert!(rx.is_woken());
            assert_eq!(rx.sync(&mut slots, |ns| ns), 1);
            assert!(rx.reader.go_to_sleep(3));
            write();
            assert!(rx.is_woken());
            write();
            let woken = is_readable(rx.reader().as_fd());
            assert_eq!(woken, Ok(false), "{latency:?}: awake since it found the second");
        }
    }
}
