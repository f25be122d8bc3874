//! Limits, by the generic cell rate algorithm: one theoretical arrival time for each key.

use std::collections::HashMap;
use std::net::IpAddr;

use super::network_map::network_of;
use crate::packet::Packet;
use crate::policy::{ClassAction, Limit, LimitKey, Policy, Rate, RuleAction};

/// Units of time in a nanosecond.
const UNITS: u64 = 16;
const UNITS_PER_SECOND: u64 = UNITS * 1_000_000_000;
/// Fraction bits of the time that a byte takes.
const FRACTION: u32 = 24;

/// A limit and its state. It forgets no key.
#[derive(Clone, Debug)]
pub(super) struct Limiter {
    limit: Limit,
    /// The theoretical arrival times of the next packet, in units.
    arrivals: HashMap<Option<IpAddr>, u128>,
    /// The key and the earlier time of the last packet that was charged.
    last: (Option<IpAddr>, u128),
}

impl Limiter {
    pub(super) fn new(limit: Limit) -> Self {
        Self { limit, arrivals: HashMap::new(), last: (None, 0) }
    }

    /// Accepts a packet and charges it, or refuses it and charges nothing.
    pub(super) fn charge(&mut self, packet: &Packet<'_>, frame_bytes: usize, now_ns: u64) -> bool {
        let now = u128::from(now_ns) * u128::from(UNITS);
        let tolerance = self.limit.burst.as_nanos() * u128::from(UNITS);
        let cost = cost(self.limit.rate, frame_bytes);
        let key = key(self.limit.by, packet);
        let stored = self.arrivals.entry(key).or_insert(0);
        let arrival = now.max(*stored);
        if arrival - now > tolerance {
            return false;
        }
        self.last = (key, *stored);
        *stored = arrival + u128::from(cost);
        true
    }

    /// Takes back the last packet that was charged.
    pub(super) fn take_back(&mut self) {
        let (key, earlier) = self.last;
        self.arrivals.insert(key, earlier);
    }

    /// Describes the limit and the packet's key.
    pub(super) fn text(&self, packet: &Packet<'_>) -> String {
        let (rate, unit) = match self.limit.rate {
            Rate::Packets(rate) => (rate, "packets"),
            Rate::Bits(rate) => (rate, "bits"),
        };
        let by = match (self.limit.by, key(self.limit.by, packet)) {
            (LimitKey::Source, Some(IpAddr::V6(key))) => format!("from {key}/64"),
            (LimitKey::SourceNetwork, Some(IpAddr::V4(key))) => format!("from {key}/24"),
            (LimitKey::SourceNetwork, Some(IpAddr::V6(key))) => format!("from {key}/48"),
            (LimitKey::Destination, Some(key)) => format!("to {key}"),
            (_, Some(key)) => format!("from {key}"),
            (_, None) => "in all".into(),
        };
        format!("{rate} {unit}/s {by}, burst {:?}", self.limit.burst)
    }
}

/// Returns the time that a frame takes at a rate, in units.
fn cost(rate: Rate, frame_bytes: usize) -> u64 {
    let cost = match rate {
        Rate::Packets(rate) => UNITS_PER_SECOND / rate,
        Rate::Bits(rate) => {
            let of_byte = ((UNITS_PER_SECOND * 8) << FRACTION) / rate;
            // At low rates, the product exceeds 64 bits.
            ((frame_bytes as u128 * u128::from(of_byte)) >> FRACTION) as u64
        }
    };
    cost.max(1)
}

/// Returns the key that a packet is counted by; none for all packets.
fn key(by: LimitKey, packet: &Packet<'_>) -> Option<IpAddr> {
    let is_v4 = packet.src.is_ipv4();
    match by {
        LimitKey::Source if is_v4 => Some(packet.src),
        LimitKey::Source => Some(network_of(packet.src, 64).addr()),
        LimitKey::SourceNetwork => Some(network_of(packet.src, if is_v4 { 24 } else { 48 }).addr()),
        LimitKey::Destination => Some(packet.dst),
        LimitKey::All => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs() {
        assert_eq!(cost(Rate::Packets(1), 60), 16_000_000_000);
        assert_eq!(cost(Rate::Packets(3), 60), 5_333_333_333);
        assert_eq!(cost(Rate::Packets(16_000_000_001), 60), 1);
        assert_eq!(cost(Rate::Packets(u64::MAX), 60), 1);
        // 60 bytes at 10 Gbit/s: 48 ns.
        assert_eq!(cost(Rate::Bits(10_000_000_000), 60), 48 * 16 - 1);
        assert_eq!(cost(Rate::Bits(8), 1), 16_000_000_000);
        assert_eq!(cost(Rate::Bits(1), 65_535), 65_535 * 8 * 16_000_000_000);
        assert_eq!(cost(Rate::Bits(u64::MAX), 1500), 1);
    }
}

/// The number of the first limit in each list.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitNumbers {
    pub(super) rules: Vec<usize>,
    /// Of each profile, those of its classes.
    pub(super) classes: Vec<Vec<usize>>,
    pub(super) profiles: Vec<usize>,
}

impl LimitNumbers {
    pub(super) fn new(policy: &Policy) -> Self {
        let mut next = 0;
        let mut take = |count: usize| {
            next += count;
            next - count
        };
        let mut numbers = Self::default();
        for rule in &policy.rules {
            let count = match &rule.action {
                RuleAction::Limit(limits) => limits.len(),
                _ => 0,
            };
            numbers.rules.push(take(count));
        }
        for profile in &policy.profiles {
            let of_class = |class: &ClassAction| match class {
                ClassAction::Limit(limits) => limits.len(),
                _ => 0,
            };
            let classes = profile.amplification.iter().map(of_class);
            numbers.classes.push(classes.map(&mut take).collect());
            numbers.profiles.push(take(profile.limits.len()));
        }
        numbers
    }
}
