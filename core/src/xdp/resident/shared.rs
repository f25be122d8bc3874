//! What the resident program and its users share: `bpf/include/ingress.h`, from this side.
#![allow(unsafe_code)]

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;

use crate::memory::Mmap;
use crate::memory::PAGE_BYTES;

/// Users of another version keep away from each other.
pub(super) const VERSION: u32 = 1;
/// Places for programs that copy packets and pass them on.
pub(crate) const MIRRORS: std::ops::Range<u32> = 0..8;
/// Places for programs that take packets; of these, those for all packets come last.
pub(crate) const CLAIMS: std::ops::Range<u32> = 16..32;
pub(crate) const FILTERED: std::ops::Range<u32> = 16..28;
pub(crate) const WHOLE: std::ops::Range<u32> = 28..32;
/// The resident program itself, for a reader that runs before it.
pub(super) const INGRESS: u32 = 60;
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

/// `struct sluice_control`.
#[repr(C)]
struct ControlLayout {
    version: u32,
    frags: u32,
    present: AtomicU64,
    direct_users: AtomicU32,
    reserved: u32,
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

/// `struct sluice_owner`.
#[repr(C)]
#[derive(Clone, Copy)]
struct OwnerLayout {
    since_ns: u64,
    pid: u32,
    first_queue: u32,
    queues: u32,
    kind: u32,
    command: [u8; 16],
    filter: [u8; 472],
}

/// Where `present` is in the control value.
pub(super) const PRESENT_AT: u32 = offset_of!(ControlLayout, present) as u32;

/// Where the counters are in a tally.
pub(super) mod tally {
    use super::{TallyLayout, offset_of};

    pub const PACKETS: i16 = offset_of!(TallyLayout, packets) as i16;
    pub const BYTES: i16 = offset_of!(TallyLayout, bytes) as i16;
    pub const TAKEN: i16 = offset_of!(TallyLayout, taken) as i16;
    pub const MISSED: i16 = offset_of!(TallyLayout, missed) as i16;
    pub const DROPPED: i16 = offset_of!(TallyLayout, dropped) as i16;
    pub const DROPPED_BYTES: i16 = offset_of!(TallyLayout, dropped_bytes) as i16;
}

const _: () = {
    assert!(size_of::<ControlLayout>() == 24);
    assert!(offset_of!(ControlLayout, present) == 8);
    assert!(offset_of!(ControlLayout, direct_users) == 16);
    assert!(size_of::<TallyLayout>() == 64);
    assert!(offset_of!(TallyLayout, dropped_bytes) == 40);
    assert!(size_of::<OwnerLayout>() == OWNER_BYTES);
    assert!(offset_of!(OwnerLayout, kind) == 20);
    assert!(offset_of!(OwnerLayout, filter) == 40);
};

/// Bytes of an entry of `sluice_owners`.
pub(super) const OWNER_BYTES: usize = 512;

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
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Mmap::shared(fd, PAGE_BYTES).map(Self)
    }

    fn layout(&self) -> &ControlLayout {
        // SAFETY: the map has one value of at least this size, page-aligned and mapped as long
        // as `self` lives. `version` and `frags` were written before the program was
        // attached and never after; the others are atomics.
        unsafe { self.0.base().cast::<ControlLayout>().as_ref() }
    }

    pub fn version(&self) -> u32 {
        self.layout().version
    }

    pub fn frags(&self) -> bool {
        self.layout().frags != 0
    }

    /// Lets a stage run, from the next packet on.
    pub fn set_present(&self, stage: u32) {
        // The program reads it once a packet. What it then finds was written by system calls,
        // and Release keeps them before.
        self.layout().present.fetch_or(1 << stage, Ordering::Release);
    }

    /// Lets a stage run no more.
    pub fn clear_present(&self, stage: u32) {
        // AcqRel: it sees what a `set_present` before it published, such as another user of
        // DIRECT.
        self.layout().present.fetch_and(!(1 << stage), Ordering::AcqRel);
    }

    /// One more who takes everything from some queue.
    pub fn add_direct(&self) {
        // The count is of processes that end in order; one that was killed stays counted, which
        // leaves the mark set: the end then looks for a socket in vain, and all is well.
        self.layout().direct_users.fetch_add(1, Ordering::Relaxed);
        self.set_present(DIRECT);
    }

    /// One less.
    pub fn remove_direct(&self) {
        if self.layout().direct_users.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.clear_present(DIRECT);
            // Somebody who came between the two has to find the mark set.
            if self.layout().direct_users.load(Ordering::Relaxed) != 0 {
                self.set_present(DIRECT);
            }
        }
    }
}

/// What a stage has counted, over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets: of the end, all that came; of another stage, those that matched.
    pub packets: u64,
    /// Their bytes on the wire, without the frame check sequence.
    pub bytes: u64,
    /// Packets redirected to a socket, or copied.
    pub taken: u64,
    /// Packets to be taken, for which there was no socket or no room.
    pub missed: u64,
    /// Packets dropped on demand.
    pub dropped: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
}

impl Tally {
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
    pub fn map(fd: BorrowedFd<'_>, entries: u32) -> io::Result<Self> {
        let bytes = entries as usize * size_of::<TallyLayout>();
        let map = Mmap::shared(fd, bytes.next_multiple_of(PAGE_BYTES))?;
        Ok(Self { map, entries })
    }

    /// What a stage has counted so far.
    pub fn of(&self, stage: u32) -> Tally {
        let mut sum = Tally::default();
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
}

/// Who has a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Since when, in ns since 1970 (UTC).
    pub since_ns: u64,
    /// Its process, as it knows itself.
    pub pid: u32,
    /// The command's name.
    pub command: String,
    /// The first of its queues.
    pub first_queue: u32,
    /// How many queues, from the first on.
    pub queues: u32,
    /// What it does.
    pub action: Action,
    /// Its filter; empty for everything. Cut where it is very long.
    pub filter: String,
}

impl Action {
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Drop => "drop",
            Self::Pass => "pass",
            Self::Mirror => "mirror",
        }
    }
}

impl Owner {
    /// This process, from now on.
    pub(crate) fn myself(
        action: Action,
        filter: &str,
        queues: std::ops::RangeInclusive<u32>,
    ) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        Self {
            since_ns: since.as_nanos() as u64,
            pid: std::process::id(),
            command: command.trim_end().to_owned(),
            first_queue: *queues.start(),
            queues: queues.end() - queues.start() + 1,
            action,
            filter: filter.to_owned(),
        }
    }

    pub(super) fn to_bytes(&self) -> [u8; OWNER_BYTES] {
        let mut layout = OwnerLayout {
            since_ns: self.since_ns,
            pid: self.pid,
            first_queue: self.first_queue,
            queues: self.queues,
            kind: self.action as u32,
            command: [0; 16],
            filter: [0; 472],
        };
        put_text(&mut layout.command, &self.command);
        put_text(&mut layout.filter, &self.filter);
        // SAFETY: OwnerLayout is 512 bytes of numbers without padding (asserted above: the
        // fields' sizes add up to it).
        unsafe { std::mem::transmute::<OwnerLayout, [u8; OWNER_BYTES]>(layout) }
    }

    pub(super) fn from_bytes(bytes: &[u8; OWNER_BYTES]) -> Option<Self> {
        // SAFETY: the sizes are equal, and every bit pattern is an OwnerLayout.
        let layout = unsafe { std::mem::transmute::<[u8; OWNER_BYTES], OwnerLayout>(*bytes) };
        let action = match layout.kind {
            1 => Action::Take,
            2 => Action::Drop,
            3 => Action::Pass,
            4 => Action::Mirror,
            _ => return None,
        };
        Some(Self {
            since_ns: layout.since_ns,
            pid: layout.pid,
            command: get_text(&layout.command),
            first_queue: layout.first_queue,
            queues: layout.queues,
            action,
            filter: get_text(&layout.filter),
        })
    }
}

/// As much of a text as fits, with a NUL behind it.
fn put_text(to: &mut [u8], text: &str) {
    let most = to.len() - 1;
    let bytes = text.floor_char_boundary(most.min(text.len()));
    to[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
}

fn get_text(from: &[u8]) -> String {
    let end = from.iter().position(|&byte| byte == 0).unwrap_or(from.len());
    String::from_utf8_lossy(&from[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_comes_back_as_it_was_written() {
        let owner = Owner {
            since_ns: 1 << 60,
            pid: 4711,
            command: "sluice".into(),
            first_queue: 2,
            queues: 3,
            action: Action::Drop,
            filter: "udp port 53".into(),
        };
        assert_eq!(Owner::from_bytes(&owner.to_bytes()), Some(owner));
        assert_eq!(Owner::from_bytes(&[0; OWNER_BYTES]), None, "nobody");
    }

    #[test]
    fn a_long_filter_is_cut_between_characters() {
        let filter = "ü".repeat(300);
        let owner = Owner {
            since_ns: 0,
            pid: 1,
            command: "a-command-of-more-than-15".into(),
            first_queue: 0,
            queues: 1,
            action: Action::Take,
            filter,
        };
        let read = Owner::from_bytes(&owner.to_bytes()).unwrap();
        assert_eq!(read.filter, "ü".repeat(235));
        assert_eq!(read.command, "a-command-of-mo");
    }
}
