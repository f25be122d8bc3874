//! The sequence numbers TCP connections began with, so that lines count from there.

use std::collections::HashMap;
use std::mem;

use super::line::IpAddress;

/// Connections remembered in each of two generations. When the younger is full, the older,
/// which holds those not seen for longest, is forgotten; a forgotten connection starts anew
/// with its next packet.
const GENERATION: usize = 32_768;

/// The two ends of a connection, the same for both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    low: (u16, IpAddress),
    high: (u16, IpAddress),
}

/// The initial sequence numbers to subtract: for packets of the low end, and of the high end.
#[derive(Clone, Copy, Debug)]
struct FirstNumbers {
    low: u32,
    high: u32,
}

/// The offsets that make a segment's sequence numbers relative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// For what the segment's sender counts: `seq`.
    pub sent: u32,
    /// For what it acknowledges: `ack`, and the edges of a selective acknowledgement.
    pub acknowledged: u32,
    /// The connection's first packet seen: its own numbers are shown as they are.
    pub fresh: bool,
}

/// The connections seen of late.
#[derive(Default)]
pub struct Flows {
    young: HashMap<Ends, FirstNumbers>,
    old: HashMap<Ends, FirstNumbers>,
}

impl Flows {
    /// Finds the segment's connection, or begins one; `begins` says that it has the SYN flag.
    pub fn base(
        &mut self,
        source: (u16, IpAddress),
        destination: (u16, IpAddress),
        (seq, ack): (u32, u32),
        begins: bool,
    ) -> Base {
        let from_low = source <= destination;
        let (low, high) = match from_low {
            true => (source, destination),
            false => (destination, source),
        };
        let ends = Ends { low, high };
        let known = if begins { None } else { self.find(&ends) };
        let start = known.unwrap_or_else(|| {
            let other = ack.wrapping_sub(1);
            let start = match from_low {
                true => FirstNumbers { low: seq, high: other },
                false => FirstNumbers { low: other, high: seq },
            };
            self.remember(ends, start);
            start
        });
        let (sent, acknowledged) = match from_low {
            true => (start.low, start.high),
            false => (start.high, start.low),
        };
        Base { sent, acknowledged, fresh: known.is_none() }
    }

    fn find(&mut self, ends: &Ends) -> Option<FirstNumbers> {
        if let Some(start) = self.young.get(ends) {
            return Some(*start);
        }
        let start = self.old.remove(ends)?;
        self.remember(*ends, start);
        Some(start)
    }

    fn remember(&mut self, ends: Ends, start: FirstNumbers) {
        if self.young.len() >= GENERATION {
            mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(ends, start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: (u16, IpAddress) = (40_000, IpAddress::V4([198, 18, 0, 1]));
    const THERE: (u16, IpAddress) = (80, IpAddress::V4([198, 18, 0, 2]));

    #[test]
    fn both_directions_share_a_start() {
        let mut flows = Flows::default();
        let base = flows.base(THERE, HERE, (900, 101), true);
        assert!(base.fresh, "a SYN begins a connection");
        let base = flows.base(HERE, THERE, (101, 901), false);
        assert_eq!((base.sent, base.acknowledged), (100, 900));
        let base = flows.base(THERE, HERE, (901, 201), false);
        assert_eq!((base.sent, base.acknowledged), (900, 100));
        assert!(!base.fresh);
    }

    #[test]
    fn memory_is_bounded_and_the_busy_are_kept() {
        let mut flows = Flows::default();
        flows.base(HERE, THERE, (7, 9), true);
        for number in 0..GENERATION as u32 * 5 {
            let other = (1, IpAddress::V4(number.to_be_bytes()));
            flows.base(other, THERE, (1, 1), false);
            if number % 1000 == 0 {
                assert!(!flows.base(HERE, THERE, (8, 9), false).fresh);
            }
        }
        assert!(flows.young.len() + flows.old.len() <= 2 * GENERATION);
        let first = (1, IpAddress::V4([0; 4]));
        assert!(flows.base(first, THERE, (1, 1), false).fresh, "forgotten");
    }
}
