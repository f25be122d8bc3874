//! Limits in an image.

use std::ops::Range;
use std::time::Duration;

use crate::image::Image;
use crate::policy::{ClassAction, Limit, LimitKey, Policy, Rate, RuleAction};

/// Units of a limit's time in a nanosecond.
pub const UNITS: u64 = 16;
/// Fractional bits of the cost of a byte.
pub const COST_BITS: u32 = 24;

impl Rate {
    /// Returns the cost of a packet in units of time; by bits, that of a byte in 2^-24 of them.
    pub fn cost(self) -> u64 {
        const SECOND: u64 = 1_000_000_000 * UNITS;
        match self {
            Self::Packets(rate) => (SECOND / rate).max(1),
            Self::Bits(rate) => ((SECOND * 8) << COST_BITS) / rate,
        }
    }
}

/// Returns a duration in units of time.
pub fn units(duration: Duration) -> u64 {
    duration.as_nanos() as u64 * UNITS
}

/// The numbers of limits, as [`Policy::limits`] counts them.
pub(super) struct Numbers {
    /// Of each rule.
    pub(super) rules: Vec<Range<u16>>,
    /// Of each profile: of each class, and of the profile itself.
    pub(super) profiles: Vec<(Vec<Range<u16>>, Range<u16>)>,
}

impl Numbers {
    pub(super) fn of(policy: &Policy) -> Self {
        let mut next = 0;
        let mut take = |limits: usize| {
            let first = next;
            next += limits as u16;
            first..next
        };
        let rules = policy.rules.iter().map(|rule| match &rule.action {
            RuleAction::Limit(limits) => take(limits.len()),
            _ => take(0),
        });
        let rules = rules.collect();
        let profiles = policy.profiles.iter().map(|profile| {
            let classes = profile.amplification.iter().map(|action| match action {
                ClassAction::Limit(limits) => take(limits.len()),
                _ => take(0),
            });
            (classes.collect(), take(profile.limits.len()))
        });
        Self { rules, profiles: profiles.collect() }
    }
}

/// Appends `struct scrub_limit` of each limit. Returns the first line.
pub(super) fn append(image: &mut Image, policy: &Policy) -> u32 {
    image.append(policy.limits().zip(0..).map(|(limit, number)| encode(limit, number)))
}

fn encode(limit: &Limit, number: u16) -> [u8; 32] {
    let by = match limit.by {
        LimitKey::Source => 0,
        LimitKey::SourceNetwork => 1,
        LimitKey::Destination => 2,
        LimitKey::All => 3,
    };
    let mut bytes = [0; 32];
    // Different for limits of different numbers; odd steps of 2^64.
    let salt = (u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes[..8].copy_from_slice(&salt.to_ne_bytes());
    bytes[8..16].copy_from_slice(&limit.rate.cost().to_ne_bytes());
    bytes[16..24].copy_from_slice(&units(limit.burst).to_ne_bytes());
    bytes[24] = by;
    bytes[25] = u8::from(matches!(limit.rate, Rate::Bits(_)));
    bytes[26..28].copy_from_slice(&crate::counters::limit(number.into()).to_ne_bytes());
    bytes
}
