//! Later fragments: they follow the first one, with an unbounded table.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::packet::Packet;

/// The life of what is known of a first fragment, in ns.
const LIFE: u64 = 2_000_000_000;
/// Lives end at multiples of this time.
const STEP: u64 = 1 << 24;
/// The bytes of later fragments are counted in this unit, rounded up.
const UNIT: u16 = 512;
/// Maximum of their sum, in units.
const MAX_SUM: u16 = 255;

/// The parts that fragments of one packet have in common.
type Key = (IpAddr, IpAddr, u32, u8);

/// A first fragment.
#[derive(Clone, Copy, Debug)]
struct First {
    until: u64,
    dropped: bool,
    /// The end of what is contiguous from the start, in units of 8 bytes.
    end: u16,
    /// The sum of later fragments, in units of [`UNIT`].
    sum: u16,
}

/// The relation of a later fragment to its first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// The first one is not known.
    Unknown,
    /// The first one was dropped, or not.
    Follows { dropped: bool },
    /// It overlaps earlier ones, or they are longer than a packet.
    Contradicts,
}

/// First fragments and their verdicts.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstFragments(HashMap<Key, First>);

fn key(packet: &Packet<'_>) -> Key {
    let protocol = if packet.version() == 4 { packet.protocol } else { 0 };
    (packet.src, packet.dst, packet.fragment_id, protocol)
}

fn end(packet: &Packet<'_>) -> u16 {
    packet.fragment_offset + packet.fragment_bytes.div_ceil(8)
}

impl FirstFragments {
    /// Remembers the verdict on a first fragment.
    pub(super) fn remember(&mut self, packet: &Packet<'_>, dropped: bool, now_ns: u64) {
        let first =
            First { until: (now_ns + LIFE) / STEP * STEP, dropped, end: end(packet), sum: 0 };
        self.0.insert(key(packet), first);
    }

    /// Relates a later fragment to its first one.
    pub(super) fn relate(&mut self, packet: &Packet<'_>, now_ns: u64) -> Relation {
        let Some(first) = self.0.get_mut(&key(packet)).filter(|it| it.until > now_ns) else {
            return Relation::Unknown;
        };
        let sum = first.sum + packet.fragment_bytes.div_ceil(UNIT);
        if packet.fragment_offset < first.end || sum > MAX_SUM {
            return Relation::Contradicts;
        }
        first.sum = sum;
        if packet.fragment_offset == first.end {
            first.end = end(packet);
        }
        Relation::Follows { dropped: first.dropped }
    }
}
