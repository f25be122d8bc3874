//! What the resident program and its users share: `bpf/include/ingress.h`, from this side.
#![allow(unsafe_code)]

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use sluicegate_base::memory::{Mmap, PAGE_BYTES};

/// Users of another version keep away from each other.
pub(super) const VERSION: u32 = 5;
/// Places for programs that copy packets and pass them on.
pub(crate) const MIRRORS: std::ops::Range<u32> = 0..8;
/// The place of who leaves the host the flows that are its own.
pub(crate) const FLOWS: std::ops::Range<u32> = 15..16;
/// Places for programs that take packets; of these, those for all packets come last.
pub(crate) const CLAIMS: std::ops::Range<u32> = 16..32;
pub(crate) const FILTERED: std::ops::Range<u32> = 16..28;
pub(crate) const WHOLE: std::ops::Range<u32> = 28..32;
/// Neither program nor mark: owners that read what the end counts of all packets.
pub(crate) const COUNTERS: std::ops::Range<u32> = 32..48;
/// Neither program nor mark: whose turn it is to look who has everything, and to take a place.
pub(super) const TURN: u32 = 58;
/// The resident program itself, for a reader that runs before it.
pub(super) const INGRESS: u32 = 59;
/// No program, only a mark: the end has everything go out by another interface.
pub(crate) const FORWARD: u32 = 60;
/// No program, only a mark: the end drops everything.
pub(crate) const DROP: u32 = 61;
/// No program, only a mark: the end gives everything to the sockets of `sluice_direct`.
pub(crate) const DIRECT: u32 = 62;
/// The last program.
pub(crate) const END: u32 = 63;
/// Places in all.
pub(crate) const STAGES: u32 = 64;
/// Receive queues that a map of sockets has room for.
pub(crate) const QUEUES_MAX: u32 = 256;

/// Whether a place holds a program of its owner, not only a mark.
pub(super) fn has_program(place: u32) -> bool {
    place < TURN
}

/// `struct sluice_control`.
#[repr(C)]
pub(super) struct ControlLayout {
    version: u32,
    frags: u32,
    present: AtomicU64,
    detached: AtomicU32,
    reserved: u32,
    direct: [AtomicU8; QUEUES_MAX as usize],
}

/// `struct sluice_tally`.
#[repr(C, align(64))]
struct TallyLayout {
    packets: AtomicU64,
    bytes: AtomicU64,
    taken: AtomicU64,
    missed: AtomicU64,
    dropped: AtomicU64,
    dropped_bytes: AtomicU64,
    reserved: [u64; 2],
}

/// Where `present` is in the control value.
pub(super) const PRESENT_AT: u32 = offset_of!(ControlLayout, present) as u32;

/// Where the counters are in a tally.
pub(super) mod tally {
    use super::{TallyLayout, offset_of};

    pub(crate) const PACKETS: i16 = offset_of!(TallyLayout, packets) as i16;
    pub(crate) const BYTES: i16 = offset_of!(TallyLayout, bytes) as i16;
    pub(crate) const TAKEN: i16 = offset_of!(TallyLayout, taken) as i16;
    pub(crate) const MISSED: i16 = offset_of!(TallyLayout, missed) as i16;
    pub(crate) const DROPPED: i16 = offset_of!(TallyLayout, dropped) as i16;
    pub(crate) const DROPPED_BYTES: i16 = offset_of!(TallyLayout, dropped_bytes) as i16;
}

const _: () = {
    assert!(size_of::<ControlLayout>() == 280);
    assert!(offset_of!(ControlLayout, present) == 8);
    assert!(offset_of!(ControlLayout, detached) == 16);
    assert!(offset_of!(ControlLayout, direct) == 24);
    // The end's marks stand behind all that has a program.
    assert!(TURN < INGRESS && INGRESS < FORWARD && FORWARD < DROP && DROP < DIRECT && DIRECT < END);
    // A place fits a byte, and 0 is none.
    assert!(WHOLE.start > 0 && STAGES <= 256);
    assert!(WHOLE.end <= COUNTERS.start && COUNTERS.end <= TURN);
    assert!(size_of::<TallyLayout>() == 64);
    assert!(offset_of!(TallyLayout, dropped_bytes) == 40);
};

/// Writes into the control value, before the program is loaded, what never changes.
pub(super) fn write_constants(value: &mut [u8], frags: bool) {
    let at = offset_of!(ControlLayout, frags);
    if let Some(field) = value.get_mut(at..at + 4) {
        field.copy_from_slice(&u32::from(frags).to_ne_bytes());
    }
}

/// The value that all users of one resident program have in their memory.
#[derive(Debug)]
pub(super) struct Control(Mmap);

impl Control {
    pub(super) fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Mmap::shared(fd, PAGE_BYTES).map(Self)
    }

    fn layout(&self) -> &ControlLayout {
        // SAFETY: the map has one value of at least this size, page-aligned and mapped as long
        // as `self` lives. `version` and `frags` were written before the program was
        // attached and never after; the others are atomics.
        unsafe { self.0.base().cast::<ControlLayout>().as_ref() }
    }

    pub(super) fn version(&self) -> u32 {
        self.layout().version
    }

    pub(super) fn frags(&self) -> bool {
        self.layout().frags != 0
    }

    /// Says to all users that the program is off.
    pub(super) fn set_detached(&self) {
        // A flag by itself: nothing is published through it.
        self.layout().detached.store(1, Ordering::Relaxed);
    }

    /// Whether somebody has said so.
    pub(super) fn is_detached(&self) -> bool {
        self.layout().detached.load(Ordering::Relaxed) != 0
    }

    /// Lets a stage run, from the next packet on.
    pub(super) fn set_present(&self, stage: u32) {
        // The program reads it once a packet. What it then finds was written by system calls,
        // and Release keeps them before.
        self.layout().present.fetch_or(1 << stage, Ordering::Release);
    }

    /// Lets a stage run no more.
    pub(super) fn clear_present(&self, stage: u32) {
        // AcqRel: it sees what a `set_present` before it published, such as another user of
        // DIRECT.
        self.layout().present.fetch_and(!(1 << stage), Ordering::AcqRel);
    }

    /// Whether a stage is to run.
    pub(super) fn is_present(&self, stage: u32) -> bool {
        self.layout().present.load(Ordering::Relaxed) & (1 << stage) != 0
    }

    /// From now on all packets of a queue are for who has this place among the claims.
    pub(super) fn set_direct(&self, queue: u32, place: u32) {
        let Some(entry) = self.layout().direct.get(queue as usize) else { return };
        // The socket was put into its map by a system call; Release keeps it before.
        entry.store(place as u8, Ordering::Release);
        self.set_present(DIRECT);
    }

    /// A queue's packets are no more for who has this place; those of another stay.
    pub(super) fn clear_direct(&self, queue: u32, place: u32) {
        let Some(entry) = self.layout().direct.get(queue as usize) else { return };
        // A byte by itself: nothing is published through its end.
        let _ = entry.compare_exchange(place as u8, 0, Ordering::Relaxed, Ordering::Relaxed);
        if !self.has_direct() {
            self.clear_present(DIRECT);
            // Somebody who came between the two has to find the mark set.
            if self.has_direct() {
                self.set_present(DIRECT);
            }
        }
    }

    /// No queue's packets are for who has this place any more.
    pub(super) fn clear_direct_of(&self, place: u32) {
        let entries = self.layout().direct.iter();
        for (queue, entry) in (0..).zip(entries) {
            if entry.load(Ordering::Relaxed) == place as u8 {
                self.clear_direct(queue, place);
            }
        }
    }

    /// Somebody has all packets of some queue.
    pub(super) fn has_direct(&self) -> bool {
        // Acquire: pairs with the Release of `set_direct` of who came in between.
        self.layout().direct.iter().any(|entry| entry.load(Ordering::Acquire) != 0)
    }
}

/// What a stage has counted, over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets: of the end, all that came; of another stage, those that it was to deal with.
    pub packets: u64,
    /// Their bytes on the wire, without the frame check sequence.
    pub bytes: u64,
    /// Packets redirected to a socket or an interface, or copied.
    pub taken: u64,
    /// Packets to be taken, for which there was no socket or no room.
    pub missed: u64,
    /// Packets dropped on demand.
    pub dropped: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
}

impl Counters {
    /// What has come since.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            packets: self.packets.wrapping_sub(earlier.packets),
            bytes: self.bytes.wrapping_sub(earlier.bytes),
            taken: self.taken.wrapping_sub(earlier.taken),
            missed: self.missed.wrapping_sub(earlier.missed),
            dropped: self.dropped.wrapping_sub(earlier.dropped),
            dropped_bytes: self.dropped_bytes.wrapping_sub(earlier.dropped_bytes),
        }
    }
}

/// The counters, mapped.
#[derive(Debug)]
pub(super) struct Tallies {
    map: Mmap,
    entries: u32,
}

impl Tallies {
    pub(super) fn map(fd: BorrowedFd<'_>, entries: u32) -> io::Result<Self> {
        let bytes = entries as usize * size_of::<TallyLayout>();
        let map = Mmap::shared(fd, bytes.next_multiple_of(PAGE_BYTES))?;
        Ok(Self { map, entries })
    }

    /// What has been counted for who has a place.
    pub(super) fn of_place(&self, place: u32) -> Counters {
        match place {
            // It has no program: the end counts for it, beside what is its own.
            DROP => {
                let Counters { dropped, dropped_bytes, .. } = self.of(END);
                let (packets, bytes) = (dropped, dropped_bytes);
                Counters { packets, bytes, dropped, dropped_bytes, ..Counters::default() }
            }
            // The end counts for all of them.
            _ if COUNTERS.contains(&place) => {
                let Counters { packets, bytes, .. } = self.of(END);
                Counters { packets, bytes, ..Counters::default() }
            }
            _ => self.of(place),
        }
    }

    /// What a stage has counted so far.
    pub(super) fn of(&self, stage: u32) -> Counters {
        let mut sum = Counters::default();
        for entry in (stage..self.entries).step_by(STAGES as usize) {
            let at = self.map.at(entry as usize * size_of::<TallyLayout>());
            // SAFETY: `entry` is below the map's number of entries, each 64 bytes, aligned and
            // mapped as long as `self` lives; the fields are atomics.
            let tally = unsafe { at.cast::<TallyLayout>().as_ref() };
            // Counters of other CPUs, each exact, not of one moment.
            sum.packets += tally.packets.load(Ordering::Relaxed);
            sum.bytes += tally.bytes.load(Ordering::Relaxed);
            sum.taken += tally.taken.load(Ordering::Relaxed);
            sum.missed += tally.missed.load(Ordering::Relaxed);
            sum.dropped += tally.dropped.load(Ordering::Relaxed);
            sum.dropped_bytes += tally.dropped_bytes.load(Ordering::Relaxed);
        }
        sum
    }
}

/// What an owner does with the packets of its stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// Takes them, to its sockets.
    #[default]
    Take = 1,
    /// Drops them.
    Drop = 2,
    /// Counts them and passes them on.
    Pass = 3,
    /// Copies them.
    Mirror = 4,
    /// Has them go out by another interface.
    Forward = 5,
}

impl Action {
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Drop => "drop",
            Self::Pass => "pass",
            Self::Mirror => "mirror",
            Self::Forward => "forward",
        }
    }
}
