//! Memory shared between the resident program and its users: the Rust side of bpf/ingress.h.
#![allow(unsafe_code)]

use std::io;
use std::mem::{offset_of, size_of};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use sluicegate_base::memory::{Mmap, PAGE_BYTES};

/// Version of the shared layout: users of different versions do not share a program.
pub(super) const VERSION: u32 = 6;
/// Stages that copy or inspect packets and pass them on.
pub(crate) const MIRRORS: Range<u32> = 0..8;
/// The stage of [`ScrubStage`](super::ScrubStage), between mirrors and everything that takes packets.
pub(super) const SCRUB: Range<u32> = 8..9;
/// The stage that passes the host's own flows.
pub(crate) const FLOWS: Range<u32> = 15..16;
/// Stages that take, drop, redirect or count packets: filtered claims first, then claims on all packets.
pub(crate) const CLAIMS: Range<u32> = 16..32;
pub(crate) const FILTERED: Range<u32> = 16..28;
pub(crate) const WHOLE: Range<u32> = 28..32;
/// Stages of owners that read the end's counters of all packets: neither program nor mark.
pub(crate) const COUNTERS: Range<u32> = 32..48;
/// The resident program's part behind the scrub stage.
pub(super) const RESUME: u32 = 57;
/// The lock of [`ClaimLock`](super::ClaimLock): neither program nor mark.
pub(super) const CLAIM_LOCK: u32 = 58;
/// The resident program itself, for a metadata reader that runs before it.
pub(super) const INGRESS: u32 = 59;
/// Mark: the end redirects everything to another interface.
pub(crate) const FORWARD: u32 = 60;
/// Mark: the end drops everything.
pub(crate) const DROP: u32 = 61;
/// Mark: the end redirects to the sockets of `sluice_direct`.
pub(crate) const DIRECT: u32 = 62;
/// The last stage: handles packets that no stage's program took.
pub(crate) const END: u32 = 63;
/// Number of stages.
pub(crate) const STAGES: u32 = 64;
/// Receive queues that a map of sockets has room for.
pub(crate) const QUEUES_MAX: u32 = 256;

/// Returns true if a stage's entry in `sluice_stages` may be emptied: it is not the claim lock, a mark or one
/// of the resident program's own. The entries of counters are always empty.
pub(super) fn has_program(stage: u32) -> bool {
    stage < RESUME
}

/// `struct sluice_control`.
#[repr(C)]
pub(super) struct ControlLayout {
    version: u32,
    frags: u32,
    present: AtomicU64,
    detached: AtomicU32,
    kept: AtomicU32,
    direct: [AtomicU8; QUEUES_MAX as usize],
}

/// Offset of `present` in the control value.
pub(super) const PRESENT_AT: u32 = offset_of!(ControlLayout, present) as u32;

/// Size of `struct sluice_tally`: a [`StageCounters`], padded to a cache line.
pub(super) const TALLY_BYTES: usize = 64;

/// Offsets of the counters in a tally.
pub(super) mod tally {
    use super::{StageCounters, offset_of};

    pub(crate) const PACKETS: i16 = offset_of!(StageCounters, packets) as i16;
    pub(crate) const BYTES: i16 = offset_of!(StageCounters, bytes) as i16;
    pub(crate) const TAKEN: i16 = offset_of!(StageCounters, taken) as i16;
    pub(crate) const MISSED: i16 = offset_of!(StageCounters, missed) as i16;
    pub(crate) const DROPPED: i16 = offset_of!(StageCounters, dropped) as i16;
    pub(crate) const DROPPED_BYTES: i16 = offset_of!(StageCounters, dropped_bytes) as i16;
}

const _: () = {
    assert!(size_of::<ControlLayout>() == 280);
    assert!(offset_of!(ControlLayout, present) == 8);
    assert!(offset_of!(ControlLayout, detached) == 16);
    assert!(offset_of!(ControlLayout, direct) == 24);
    // The end's marks are above all stages with programs.
    assert!(
        RESUME < CLAIM_LOCK
            && CLAIM_LOCK < INGRESS
            && INGRESS < FORWARD
            && FORWARD < DROP
            && DROP < DIRECT
            && DIRECT < END
    );
    // A stage number fits in a byte of `direct`, where 0 means none.
    assert!(WHOLE.start > 0 && STAGES <= 256);
    assert!(WHOLE.end <= COUNTERS.start && COUNTERS.end <= RESUME);
    assert!(size_of::<StageCounters>() == 48);
    assert!(tally::TAKEN == 16 && tally::DROPPED_BYTES == 40);
};

/// Writes the control value's constants, before the program is loaded.
pub(super) fn write_constants(value: &mut [u8], frags: bool) {
    let at = offset_of!(ControlLayout, frags);
    if let Some(field) = value.get_mut(at..at + 4) {
        field.copy_from_slice(&u32::from(frags).to_ne_bytes());
    }
}

/// The control value, mapped by all users of one resident program.
#[derive(Debug)]
pub(super) struct ControlPage(Mmap);

impl ControlPage {
    pub(super) fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Mmap::shared(fd, PAGE_BYTES).map(Self)
    }

    fn layout(&self) -> &ControlLayout {
        // SAFETY: the map has one value of at least this size, page-aligned and mapped as long as `self`
        // lives. `version` and `frags` were written before the program was attached, and never since; the
        // other fields are atomics.
        unsafe { self.0.base().cast::<ControlLayout>().as_ref() }
    }

    pub(super) fn version(&self) -> u32 {
        self.layout().version
    }

    pub(super) fn frags(&self) -> bool {
        self.layout().frags != 0
    }

    /// Marks the program as detached, for all users.
    pub(super) fn set_detached(&self) {
        // Pairs with the load in `is_detached`: an independent flag, which publishes nothing.
        self.layout().detached.store(1, Ordering::Relaxed);
    }

    pub(super) fn is_detached(&self) -> bool {
        // Pairs with the store in `set_detached`.
        self.layout().detached.load(Ordering::Relaxed) != 0
    }

    /// Keeps the scrub stage without a living owner, or no longer.
    pub(super) fn set_kept(&self, kept: bool) {
        // Pairs with the load in `is_kept`: an independent flag, which publishes nothing.
        self.layout().kept.store(kept.into(), Ordering::Relaxed);
    }

    /// Returns true if a stage stays without a living owner.
    pub(super) fn is_kept(&self, stage: u32) -> bool {
        // Pairs with the store in `set_kept`.
        SCRUB.contains(&stage) && self.layout().kept.load(Ordering::Relaxed) != 0
    }

    /// Makes a stage run from the next packet on.
    pub(super) fn set_present(&self, stage: u32) {
        // Release: pairs with the program's read, once per packet, after which it finds what earlier system calls
        // wrote.
        self.layout().present.fetch_or(1 << stage, Ordering::Release);
    }

    /// Stops a stage.
    pub(super) fn clear_present(&self, stage: u32) {
        // AcqRel: pairs with `set_present`, and sees what it published, such as another user of DIRECT.
        self.layout().present.fetch_and(!(1 << stage), Ordering::AcqRel);
    }

    pub(super) fn is_present(&self, stage: u32) -> bool {
        // Pairs with `set_present` and `clear_present`, and reads nothing that they publish.
        self.layout().present.load(Ordering::Relaxed) & (1 << stage) != 0
    }

    /// Gives all packets of a queue to the owner of a claim stage.
    pub(super) fn set_direct(&self, queue: u32, stage: u32) {
        let Some(entry) = self.layout().direct.get(queue as usize) else { return };
        // Release: pairs with `has_direct` and the program's read. A system call has inserted the socket into its
        // map before.
        entry.store(stage as u8, Ordering::Release);
        self.set_present(DIRECT);
    }

    /// Ends [`set_direct`](Self::set_direct) if the queue belongs to this stage.
    pub(super) fn clear_direct(&self, queue: u32, stage: u32) {
        let Some(entry) = self.layout().direct.get(queue as usize) else { return };
        // Pairs with the loads in `has_direct` and in the program: clearing the byte publishes nothing.
        let _ = entry.compare_exchange(stage as u8, 0, Ordering::Relaxed, Ordering::Relaxed);
        if !self.has_direct() {
            self.clear_present(DIRECT);
            // If a queue was given away between the two calls, it needs the mark.
            if self.has_direct() {
                self.set_present(DIRECT);
            }
        }
    }

    /// Ends [`set_direct`](Self::set_direct) for all queues of a stage.
    pub(super) fn clear_direct_of(&self, stage: u32) {
        let entries = self.layout().direct.iter();
        for (queue, entry) in (0..).zip(entries) {
            // Pairs with the store in `set_direct` by the stage's owner: this process, or one that has exited.
            if entry.load(Ordering::Relaxed) == stage as u8 {
                self.clear_direct(queue, stage);
            }
        }
    }

    /// Returns true if a claim has all packets of some queue.
    pub(super) fn has_direct(&self) -> bool {
        // Acquire: pairs with the Release of a concurrent `set_direct`.
        self.layout().direct.iter().any(|entry| entry.load(Ordering::Acquire) != 0)
    }
}

/// Counters of a stage, summed over all CPUs: the first words of `struct sluice_tally`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StageCounters {
    /// Packets: at the end all received ones, at another stage those that matched.
    pub packets: u64,
    /// Their bytes on the wire, without the frame check sequence.
    pub bytes: u64,
    /// Packets redirected to a socket or an interface, or copied.
    pub taken: u64,
    /// Packets that were not taken because there was no socket or no room.
    pub missed: u64,
    /// Packets dropped by the owner's request.
    pub dropped: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
}

impl StageCounters {
    /// Returns the difference to an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        self.zip(earlier, u64::wrapping_sub)
    }

    fn zip(self, other: Self, with: fn(u64, u64) -> u64) -> Self {
        let (a, b) = (self.words(), other.words());
        Self::from_words(std::array::from_fn(|i| with(a[i], b[i])))
    }

    fn words(self) -> [u64; 6] {
        // SAFETY: StageCounters is repr(C), with six fields of this type (size asserted above).
        unsafe { std::mem::transmute(self) }
    }

    fn from_words(words: [u64; 6]) -> Self {
        // SAFETY: as in `words`.
        unsafe { std::mem::transmute(words) }
    }
}

/// The counters of all stages and CPUs, mapped.
#[derive(Debug)]
pub(super) struct Tallies {
    map: Mmap,
    entries: u32,
}

impl Tallies {
    pub(super) fn map(fd: BorrowedFd<'_>, entries: u32) -> io::Result<Self> {
        let bytes = entries as usize * TALLY_BYTES;
        let map = Mmap::shared(fd, bytes.next_multiple_of(PAGE_BYTES))?;
        Ok(Self { map, entries })
    }

    /// Returns the counters for the owner of a stage. DROP and COUNTERS read the end's.
    pub(super) fn of_owner(&self, stage: u32) -> StageCounters {
        let end = self.of(END);
        match stage {
            DROP => {
                let StageCounters { dropped, dropped_bytes, .. } = end;
                let (packets, bytes) = (dropped, dropped_bytes);
                StageCounters { packets, bytes, dropped, dropped_bytes, ..StageCounters::default() }
            }
            _ if COUNTERS.contains(&stage) => {
                StageCounters { packets: end.packets, bytes: end.bytes, ..StageCounters::default() }
            }
            _ => self.of(stage),
        }
    }

    /// Returns a stage's own counters.
    pub(super) fn of(&self, stage: u32) -> StageCounters {
        let cpus = (stage..self.entries).step_by(STAGES as usize).map(|entry| {
            StageCounters::from_words(std::array::from_fn(|word| {
                let at = self.map.at(entry as usize * TALLY_BYTES + word * 8);
                // SAFETY: `entry` is below the map's number of entries, each of 64 bytes, aligned, and
                // mapped as long as `self` lives; this process accesses them as atomics only. Relaxed: each
                // CPU's counter is exact, but the sum is not of one moment.
                unsafe { at.cast::<AtomicU64>().as_ref() }.load(Ordering::Relaxed)
            }))
        });
        cpus.fold(StageCounters::default(), |sum, cpu| sum.zip(cpu, u64::wrapping_add))
    }
}
