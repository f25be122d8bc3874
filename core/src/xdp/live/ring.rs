//! A ring of packets in the memory of a BPF array, which a program in the kernel copies into live
//! frames, and its sender: a writer, and the thread that runs the program.
//!
//! ```text
//!   the value of the array
//!   +-----------+-----------+------------------+--------+--------+-----+--------+
//!   | tail      | head      | the program's    | slot 0 | slot 1 |     | slot   |
//!   | index     | index     | own: copies of   | length | length | ... | 2ⁿ - 1 |
//!   |           |           | both, counters   | packet | packet |     |        |
//!   +-----------+-----------+------------------+--------+--------+-----+--------+
//!    the writer's  the program's  the program's      full: [head, tail)
//! ```
//!
//! Each read of the other side's index moves a cache line between CPUs, so such reads are rare. The program
//! reads `tail` when its copy shows no packet; the writer reads `head` when its copy shows no room. The
//! program publishes `head` once per [`PUBLISH`] packets and when it finds no more.
//!
//! Neither side trusts the other. An invalid index is ignored, and the program masks and bounds everything
//! it reads: whatever this memory contains, the program copies bytes of it into a frame with room for them,
//! or refuses the packet.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

use nix::sched::sched_getcpu;

use super::privileged;
use super::program::{LiveProgram, RedirectTarget};
use super::ring_program::{Access, program};
use super::thread::{LiveThread, LiveThreadConfig, ThreadAction};
use crate::error::{Error, Result};
use crate::link::{Allowed, Interface};
use crate::xdp::bpf;
use sluicegate_base::memory::{Mmap, PAGE_BYTES};
use sluicegate_base::ring::cursor::Cursor;
use sluicegate_base::ring::{AtomicU32, Ordering, Packet};

/// Offsets in the memory. Each side's words have two cache lines, because processors fetch lines in pairs.
pub(super) mod at {
    /// u32: packets written.
    pub(crate) const TAIL: i16 = 0;
    /// u32: packets sent or refused, as published by the program.
    pub(crate) const HEAD: i16 = 128;
    /// u32: the program's own `HEAD`.
    pub(crate) const OWN_HEAD: i16 = 256;
    /// u32: the program's copy of `TAIL`.
    pub(crate) const OWN_TAIL: i16 = 260;
    /// u64: consecutive reads of `TAIL` without a new packet.
    pub(crate) const EMPTY: i16 = 264;
    /// u64: packets handed to the interface.
    pub(crate) const PACKETS: i16 = 272;
    /// u64: packets refused because of an invalid length.
    pub(crate) const REFUSED: i16 = 280;
    /// u64: reads of an invalid `TAIL`.
    pub(crate) const FAULTS: i16 = 288;
    /// The first slot.
    pub(crate) const SLOTS: i32 = 384;
}

/// Offsets in a slot.
pub(super) mod slot {
    /// u32: the packet's length.
    pub(crate) const LENGTH: i16 = 0;
    /// The packet. With its length, a packet of 60 bytes takes one cache line.
    pub(crate) const PACKET: i32 = 4;
}

/// Number of packets between two updates of `HEAD`.
pub(super) const PUBLISH: u32 = 32;
/// An Ethernet header: the shortest packet.
pub(crate) const MIN_BYTES: u32 = 14;
/// The longest live frame on pages of 4 KiB and with the default 17 fragments of a packet
/// (CONFIG_MAX_SKB_FRAGS). The kernel reserves 256 bytes of headroom, 320 of `skb_shared_info`, and 112 to
/// 152 of its own, most of them on Linux 6.1 (net/bpf/test_run.c, `xdp_page_head`).
pub const MAX_BYTES: u32 = 3368;
/// Alignment of slots: a cache line.
const LINE: u32 = 64;
/// Number of reads of an empty ring, 30 to 80 ns each, before the thread goes to sleep.
const IDLE_POLLS: u64 = 1 << 13;
/// Length of the first run after a sleep, because more packets may follow at once.
const FIRST_RUNS: u32 = 1 << 13;
/// Stands for an unknown CPU of the writer.
const NO_CPU: usize = usize::MAX;

/// Sizes of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveRingConfig {
    /// A power of two.
    pub slots: u32,
    /// Length of the longest packet.
    pub max_bytes: u32,
}

impl LiveRingConfig {
    /// Returns the size of a slot: an odd number of cache lines. So the first lines of slots, the only ones
    /// that short packets use, spread over all sets of the cache.
    pub(crate) fn slot_bytes(self) -> u32 {
        ((self.max_bytes + slot::PACKET as u32).div_ceil(LINE) | 1) * LINE
    }

    /// Returns the size of the memory.
    pub(crate) fn bytes(self) -> u32 {
        at::SLOTS as u32 + self.slots * self.slot_bytes()
    }
}

/// The memory shared by writer, thread and program.
#[derive(Debug)]
pub(crate) struct LiveMemory {
    pub config: LiveRingConfig,
    mapping: Mmap,
    map: OwnedFd,
    /// True if the thread sleeps, or is about to.
    asleep: AtomicBool,
    /// The CPU on which the writer last ran; [`NO_CPU`] before that.
    writer_cpu: AtomicUsize,
}

impl LiveMemory {
    /// Creates an empty ring whose indices begin at `start`.
    ///
    /// # Errors
    /// The kernel has no memory for the ring, or a privilege is missing.
    pub(crate) fn new(config: LiveRingConfig, start: u32, object: &str) -> Result<Arc<Self>> {
        let failed = |error| {
            privileged(error, "make a ring for", object).remedy(format!(
                "{} KiB are needed: use a smaller ring_size=",
                config.bytes().div_ceil(1024)
            ))
        };
        let bytes = (config.bytes() as usize).next_multiple_of(PAGE_BYTES);
        let map = bpf::create_mapped_array(c"sluice_ring", bytes as u32, 1).map_err(failed)?;
        let mapping = Mmap::shared(map.as_fd(), bytes).map_err(failed)?;
        let (asleep, writer_cpu) = (AtomicBool::new(false), AtomicUsize::new(NO_CPU));
        let memory = Self { config, mapping, map, asleep, writer_cpu };
        for offset in [at::TAIL, at::HEAD, at::OWN_HEAD, at::OWN_TAIL] {
            // Relaxed: not shared yet.
            memory.index(offset).store(start, Ordering::Relaxed);
        }
        Ok(Arc::new(memory))
    }

    /// Returns one of the indices.
    #[inline]
    pub(super) fn index(&self, offset: i16) -> &AtomicU32 {
        // SAFETY: the word lies in the mapping, which `self` keeps, and is aligned to 4. The program
        // accesses it as a whole, and this process as an atomic only.
        unsafe { self.mapping.at(offset as usize).cast().as_ref() }
    }

    /// Reads a counter of the program.
    pub(super) fn count(&self, offset: i16) -> u64 {
        // SAFETY: as in `index`, aligned to 8.
        let counter: &AtomicU64 = unsafe { self.mapping.at(offset as usize).cast().as_ref() };
        // Pairs with the program's plain stores, which publish nothing.
        counter.load(Ordering::Relaxed)
    }

    /// Returns the address of a byte in a packet's slot.
    #[inline]
    pub(super) fn slot(&self, index: u32, offset: usize) -> NonNull<u8> {
        let number = index & (self.config.slots - 1);
        let before = number as usize * self.config.slot_bytes() as usize;
        self.mapping.at(at::SLOTS as usize + before + offset)
    }

    /// Counts the packets that wait for the program; 0 if the index is invalid. Only for the thread that
    /// runs the program, between two runs.
    pub(crate) fn waiting(&self) -> u32 {
        // Acquire: pairs with `LiveWriter::publish`; the thread sleeps if it sees no packet.
        let tail = self.index(at::TAIL).load(Ordering::Acquire);
        // Relaxed: the program runs on this thread.
        let waiting = tail.wrapping_sub(self.index(at::OWN_HEAD).load(Ordering::Relaxed));
        if waiting <= self.config.slots { waiting } else { 0 }
    }

    /// Returns the length of the longest of the first few waiting packets. Only for the thread that
    /// runs the program, between two runs.
    pub(crate) fn longest_waiting(&self) -> Option<usize> {
        const FEW: u32 = 32;
        // Relaxed: the program runs on this thread.
        let first = self.index(at::OWN_HEAD).load(Ordering::Relaxed);
        let lengths = (0..self.waiting().min(FEW)).map(|i| {
            let length = self.slot(first.wrapping_add(i), slot::LENGTH as usize);
            // SAFETY: in the mapping, aligned to a cache line. The packet is published, so the writer does
            // not touch it until the program, which runs on this thread, has sent it.
            unsafe { length.cast::<u32>().read() }
        });
        let longest = lengths.max()?.clamp(MIN_BYTES, self.config.max_bytes);
        Some(longest as usize)
    }

    pub(crate) fn counts(&self) -> LiveCounts {
        LiveCounts { sent: self.count(at::PACKETS), refused: self.count(at::REFUSED) }
    }
}

impl AsFd for LiveMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// Counts of packets that the program has processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveCounts {
    /// Packets handed to the interface.
    pub sent: u64,
    /// Packets with an invalid length.
    pub refused: u64,
}

/// The ring's only writer.
#[derive(Debug)]
pub(crate) struct LiveWriter {
    memory: Arc<LiveMemory>,
    cursor: Cursor,
    /// Packets written but not yet published.
    written: u32,
}

impl LiveWriter {
    /// Creates the writer of an empty ring whose indices begin at `start`.
    pub(crate) fn new(memory: &Arc<LiveMemory>, start: u32) -> Self {
        let cursor = Cursor::producing(memory.config.slots, start);
        Self { memory: Arc::clone(memory), cursor, written: 0 }
    }

    /// Returns how many of `wanted` packets fit in the ring.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32) -> u32 {
        let head = self.memory.index(at::HEAD);
        self.cursor.peek(head, wanted + self.written) - self.written
    }

    /// Writes a packet, for which the ring must have [`room`](Self::room). The packet's length must be
    /// between [`MIN_BYTES`] and the ring's `max_bytes`.
    #[inline]
    pub(crate) fn write(&mut self, packet: &Packet<'_>) {
        let bytes = packet.captured_bytes();
        let max = self.memory.config.max_bytes as usize;
        assert!(self.written < self.cursor.cached() && bytes <= max, "no room for {bytes} bytes");
        let index = self.cursor.index(self.written);
        let mut to = self.memory.slot(index, slot::PACKET as usize);
        for segment in packet.segments() {
            // SAFETY: the slot has room for `max` bytes, and the segments together have no more. The writer
            // owns the slot until it is published, because the program has released it. If the program
            // released it too early, it sends wrong bytes and nothing worse.
            unsafe {
                to.copy_from_nonoverlapping(NonNull::from(segment).cast(), segment.len());
                to = to.add(segment.len());
            }
        }
        let length = self.memory.slot(index, slot::LENGTH as usize);
        // SAFETY: as above; the length is in front of the packet, aligned to a cache line.
        unsafe { length.cast::<u32>().write(bytes as u32) };
        self.written += 1;
    }

    /// Publishes the written packets. Release: pairs with the program's read of the tail.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.written > 0 {
            self.cursor.submit(self.memory.index(at::TAIL), std::mem::take(&mut self.written));
        }
    }

    /// Counts the published packets that the program has not released.
    pub(crate) fn waiting(&mut self) -> u32 {
        self.cursor.others(self.memory.index(at::HEAD))
    }
}

/// Sends the packets written into a ring: a thread runs the program while there are packets.
#[derive(Debug)]
pub(crate) struct LiveSender {
    /// Call [`publish`](Self::publish) after writing.
    pub writer: LiveWriter,
    pub memory: Arc<LiveMemory>,
    pub thread: LiveThread,
    /// True if writer and thread share the only CPU.
    pub alone: bool,
}

impl LiveSender {
    /// Creates a sender to an interface of this thread's network namespace. Its thread sleeps, and is
    /// pinned to `cpu` if given. While the interface is down, the thread `waits` or ends.
    ///
    /// # Errors
    /// A privilege is missing, or the kernel has no memory, no thread, or no live frames.
    pub(crate) fn open(
        config: LiveRingConfig,
        interface: &Interface,
        cpu: Option<usize>,
        waits: bool,
    ) -> Result<Self> {
        let target = Arc::new(RedirectTarget::by(interface)?);
        Self::start(0, config, &LiveThreadConfig { target, cpu, first_runs: FIRST_RUNS, waits })
    }

    /// Creates a sender whose indices begin at `start`.
    pub(super) fn start(
        start: u32,
        config: LiveRingConfig,
        thread: &LiveThreadConfig,
    ) -> Result<Self> {
        let LiveThreadConfig { target, cpu, .. } = thread;
        let memory = LiveMemory::new(config, start, &target.interface().name)?;
        let program = load(&memory, target, Access::Direct).or_else(|error| match error {
            // Without CAP_PERFMON: a slower program.
            Error::Unsupported { .. } => load(&memory, target, Access::Calls),
            error => Err(error),
        })?;
        let allowed = Allowed::here()?;
        let alone = cpu.is_none() && allowed.count() == 1;
        let mut scheduler = RunScheduler {
            memory: Arc::clone(&memory),
            allowed: Some(allowed).filter(|_| cpu.is_none() && !alone),
            avoided: NO_CPU,
            alone,
            bytes: config.max_bytes as usize,
        };
        let thread = LiveThread::start(program, thread, move || scheduler.next())?;
        Ok(Self { writer: LiveWriter::new(&memory, start), memory, thread, alone })
    }

    /// Publishes the written packets, and wakes the thread if it sleeps.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.writer.publish();
        // Pairs with the fence in `RunScheduler::next`: either the thread sees the packets, or this side sees that
        // the thread is about to sleep.
        fence(Ordering::SeqCst);
        // Pairs with the stores in `RunScheduler::next`: the fences order the first, and a late second costs one
        // wake-up.
        let asleep = &self.memory.asleep;
        if asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Relaxed) {
            self.set_writer_cpu();
            self.thread.wake();
        }
    }

    /// Reports the writer's CPU to the thread, which avoids it. A writer that waits for room calls it now
    /// and then.
    #[inline]
    pub(crate) fn set_writer_cpu(&self) {
        if let Ok(cpu) = sched_getcpu() {
            // Pairs with the load in `RunScheduler::avoid_writer`: an independent number.
            self.memory.writer_cpu.store(cpu, Ordering::Relaxed);
        }
    }

    /// Counts the published packets that the program has not released: exact after
    /// the thread's [`end`](LiveThread::end).
    pub(crate) fn waiting(&mut self) -> u32 {
        match self.thread.is_finished() {
            true => self.memory.waiting(),
            false => self.writer.waiting(),
        }
    }
}

#[cfg(all(test, not(loom)))]
impl LiveSender {
    /// Creates a sender whose thread never runs the program.
    pub(crate) fn idle(config: LiveRingConfig, interface: &Interface) -> Result<Self> {
        let memory = LiveMemory::new(config, 0, &interface.name)?;
        let target = Arc::new(RedirectTarget::by(interface)?);
        let program = load(&memory, &target, Access::Calls)?;
        let thread = LiveThreadConfig { target, cpu: None, first_runs: FIRST_RUNS, waits: false };
        let thread = LiveThread::start(program, &thread, || ThreadAction::Sleep)?;
        Ok(Self { writer: LiveWriter::new(&memory, 0), memory, thread, alone: false })
    }
}

/// Loads the ring's program.
pub(super) fn load(
    memory: &LiveMemory,
    target: &RedirectTarget,
    access: Access,
) -> Result<LiveProgram> {
    let config = memory.config;
    let instructions = program(config, target, access, memory).map_err(|fault| {
        Error::Usage(format!("a ring of this size has no program: use a smaller one: {fault}"))
    })?;
    LiveProgram::load(c"sluice_ring", &instructions, vec![0; config.max_bytes as usize])
}

/// Decides the thread's next action.
struct RunScheduler {
    memory: Arc<LiveMemory>,
    /// The CPUs to choose from; none if the thread is pinned, or the host has one CPU.
    allowed: Option<Allowed>,
    /// The writer's CPU, which the thread avoids.
    avoided: usize,
    /// True if writer and thread share the only CPU.
    alone: bool,
    /// Length of the frames in the last run.
    bytes: usize,
}

impl RunScheduler {
    /// Returns the next action: to sleep once the program has found nothing for a while. If writer and
    /// thread share the only CPU, it sleeps at once, because no packet can arrive while the thread polls.
    fn next(&mut self) -> ThreadAction {
        let Self { memory, alone, .. } = self;
        let waiting = memory.waiting();
        if waiting == 0 && (*alone || memory.count(at::EMPTY) >= IDLE_POLLS) {
            // Both pair with the load and the swap in `publish`.
            memory.asleep.store(true, Ordering::Relaxed);
            // Pairs with the fence in `publish`.
            fence(Ordering::SeqCst);
            if memory.waiting() == 0 {
                return ThreadAction::Sleep;
            }
            memory.asleep.store(false, Ordering::Relaxed);
        }
        // A frame of the packet's length saves the program a call, and shortening a frame is cheaper than
        // extending it.
        self.bytes = memory.longest_waiting().unwrap_or(self.bytes);
        if *alone {
            return ThreadAction::RunOn(memory.waiting().into(), self.bytes);
        }
        self.avoid_writer();
        ThreadAction::RunOn(u64::MAX, self.bytes)
    }

    /// Moves the thread off the writer's CPU. The thread does that itself between two runs: the kernel
    /// cannot move it during a run, and a caller would wait.
    fn avoid_writer(&mut self) {
        // Pairs with the store of `set_writer_cpu`.
        let writer = self.memory.writer_cpu.load(Ordering::Relaxed);
        if let Some(allowed) = &self.allowed
            && std::mem::replace(&mut self.avoided, writer) != writer
        {
            allowed.but(writer);
        }
    }
}
