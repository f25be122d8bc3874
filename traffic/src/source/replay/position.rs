//! Tracks how far a replay has come in its file: in time, packets and bytes.

use sluicegate::ring::{Meta, TimestampSource};

/// A packet's position in a replay: the sum of what precedes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Time since the first packet, by the file's timestamps.
    pub(super) ns: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// Gap between rounds of a file that spans no time.
const BETWEEN_ROUNDS_NS: u64 = 1_000_000_000;

impl Position {
    /// The position of a packet within a round that began here.
    #[inline]
    pub(super) fn plus(self, within: Self) -> Self {
        Self {
            ns: self.ns.saturating_add(within.ns),
            packets: self.packets + within.packets,
            bytes: self.bytes.saturating_add(within.bytes),
        }
    }

    /// The start of the next round: after the mean gap of the file.
    pub(super) fn after_round(self, round: Self) -> Self {
        let gap = match round.ns.checked_div(round.packets.saturating_sub(1)) {
            None | Some(0) if round.ns == 0 => BETWEEN_ROUNDS_NS,
            gap => gap.unwrap_or(0).max(1),
        };
        let next = self.plus(round);
        Self { ns: next.ns.saturating_add(gap), ..next }
    }
}

/// The positions of the packets of one round, as they are read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    first_ns: Option<u64>,
    passed: Position,
}

impl Round {
    /// The next packet's position. Time never goes back: a packet with an earlier timestamp, or
    /// none, is due with the packet before it.
    #[inline]
    pub(super) fn position(&self, meta: &Meta) -> Position {
        let since_first = match (self.first_ns, meta.timestamp_source) {
            (Some(first), source) if source != TimestampSource::None => {
                meta.timestamp_ns.saturating_sub(first)
            }
            _ => 0,
        };
        Position { ns: self.passed.ns.max(since_first), ..self.passed }
    }

    /// Advances behind a packet at `position`.
    #[inline]
    pub(super) fn pass(&mut self, position: Position, meta: &Meta, bytes: usize) {
        if self.first_ns.is_none() && meta.timestamp_source != TimestampSource::None {
            self.first_ns = Some(meta.timestamp_ns);
        }
        self.passed = Position {
            packets: position.packets + 1,
            bytes: position.bytes.saturating_add(bytes as u64),
            ..position
        };
    }

    /// The position after the last packet passed.
    pub(super) fn passed(&self) -> Position {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(timestamp_ns: u64) -> Meta {
        Meta { timestamp_ns, timestamp_source: TimestampSource::File, ..Meta::default() }
    }

    #[test]
    fn time_counts_from_the_first_packet_and_never_goes_back() {
        let mut round = Round::default();
        let recorded = [5_000, 6_000, 5_500, 4_000, 9_000];
        let positions: Vec<_> = recorded
            .into_iter()
            .map(|ns| {
                let position = round.position(&meta(ns));
                round.pass(position, &meta(ns), 60);
                position.ns
            })
            .collect();
        assert_eq!(positions, [0, 1_000, 1_000, 1_000, 4_000]);
        assert_eq!(round.passed(), Position { ns: 4_000, packets: 5, bytes: 300 });
    }

    #[test]
    fn what_has_no_time_comes_with_what_is_before_it() {
        let mut round = Round::default();
        let mut position = |meta: &Meta| {
            let position = round.position(meta);
            round.pass(position, meta, 60);
            position.ns
        };
        let timeless = Meta::default();
        let positions = [timeless, meta(700), timeless, meta(900)].map(|meta| position(&meta));
        assert_eq!(positions, [0, 0, 0, 200]);
    }

    #[test]
    fn the_next_round_comes_after_the_mean_gap() {
        let round = |ns, packets| Position { ns, packets, bytes: packets * 60 };
        let first = Position::default();
        assert_eq!(first.after_round(round(900, 10)), round(1_000, 10));
        assert_eq!(round(1_000, 10).after_round(round(900, 10)), round(2_000, 20));
        for (why, ns, packets, next) in [
            ("one packet", 0, 1, 1_000_000_000),
            ("all at one time", 0, 7, 1_000_000_000),
            ("a gap below a nanosecond", 3, 10, 4),
        ] {
            assert_eq!(first.after_round(round(ns, packets)).ns, next, "{why}");
        }
    }
}
