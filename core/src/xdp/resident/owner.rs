//! Who has a stage: an entry of `sluice_owners` (bpf/include/ingress.h), for people to read, and
//! for who shows counts: those from before are another's.
#![allow(unsafe_code)]

use std::mem::{offset_of, size_of};

use super::shared::{Action, Counters};
use sluicegate_base::ring::now_ns;

/// Bytes of an entry.
pub(super) const OWNER_BYTES: usize = 512;
/// Bytes of a tally, as it stands there.
const TALLY_WORDS: usize = 8;

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
    reserved: [u64; 3],
    before: [u64; TALLY_WORDS],
    filter: [u8; 384],
}

const _: () = {
    assert!(size_of::<OwnerLayout>() == OWNER_BYTES);
    assert!(offset_of!(OwnerLayout, kind) == 20);
    assert!(offset_of!(OwnerLayout, before) == 64);
    assert!(offset_of!(OwnerLayout, filter) == 128);
};

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

/// An entry: an owner, and what its place had counted when it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerEntry {
    pub owner: Owner,
    pub before: Counters,
}

impl Owner {
    /// This process, from now on.
    pub(crate) fn myself(
        action: Action,
        filter: &str,
        queues: std::ops::RangeInclusive<u32>,
    ) -> Self {
        let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        Self {
            since_ns: now_ns(),
            pid: std::process::id(),
            command: command.trim_end().to_owned(),
            first_queue: *queues.start(),
            queues: queues.end() - queues.start() + 1,
            action,
            filter: filter.to_owned(),
        }
    }

    /// Its queues. What stands there is another process's word.
    pub(crate) fn range(&self) -> std::ops::RangeInclusive<u32> {
        self.first_queue..=self.first_queue.saturating_add(self.queues.saturating_sub(1))
    }
}

impl OwnerEntry {
    pub(super) fn to_bytes(&self) -> [u8; OWNER_BYTES] {
        let Self { owner, before } = self;
        let mut layout = OwnerLayout {
            since_ns: owner.since_ns,
            pid: owner.pid,
            first_queue: owner.first_queue,
            queues: owner.queues,
            kind: owner.action as u32,
            command: [0; 16],
            reserved: [0; 3],
            before: to_words(*before),
            filter: [0; 384],
        };
        put_text(&mut layout.command, &owner.command);
        put_text(&mut layout.filter, &owner.filter);
        // SAFETY: OwnerLayout is 512 bytes of numbers without padding (asserted above: the
        // fields' sizes add up to it).
        unsafe { std::mem::transmute::<OwnerLayout, [u8; OWNER_BYTES]>(layout) }
    }

    /// None if nobody has the place.
    pub(super) fn from_bytes(bytes: &[u8; OWNER_BYTES]) -> Option<Self> {
        // SAFETY: the sizes are equal, and every bit pattern is an OwnerLayout.
        let layout = unsafe { std::mem::transmute::<[u8; OWNER_BYTES], OwnerLayout>(*bytes) };
        let action = match layout.kind {
            1 => Action::Take,
            2 => Action::Drop,
            3 => Action::Pass,
            4 => Action::Mirror,
            5 => Action::Forward,
            _ => return None,
        };
        let owner = Owner {
            since_ns: layout.since_ns,
            pid: layout.pid,
            command: get_text(&layout.command),
            first_queue: layout.first_queue,
            queues: layout.queues,
            action,
            filter: get_text(&layout.filter),
        };
        Some(Self { owner, before: from_words(layout.before) })
    }
}

/// As `struct sluice_tally`.
fn to_words(tally: Counters) -> [u64; TALLY_WORDS] {
    let Counters { packets, bytes, taken, missed, dropped, dropped_bytes } = tally;
    [packets, bytes, taken, missed, dropped, dropped_bytes, 0, 0]
}

fn from_words(words: [u64; TALLY_WORDS]) -> Counters {
    let [packets, bytes, taken, missed, dropped, dropped_bytes, _, _] = words;
    Counters { packets, bytes, taken, missed, dropped, dropped_bytes }
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
        let before = from_words([1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!((before.packets, before.dropped_bytes), (1, 6));
        let entry = OwnerEntry { owner, before };
        assert_eq!(OwnerEntry::from_bytes(&entry.to_bytes()), Some(entry));
        assert_eq!(OwnerEntry::from_bytes(&[0; OWNER_BYTES]), None, "nobody");
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
        let entry = OwnerEntry { owner, before: Counters::default() };
        let read = OwnerEntry::from_bytes(&entry.to_bytes()).unwrap().owner;
        assert_eq!(read.filter, "ü".repeat(191));
        assert_eq!(read.command, "a-command-of-mo");
    }
}
