//! Limits in an image.

use std::ops::Range;
use std::time::Duration;

use crate::image::Image;
use crate::policy::{AMPLIFICATION, ClassAction, Limit, LimitKey, Policy, Rate, RuleAction};

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
    let limits = policy.limits().zip(salts(policy)).zip(0..);
    image.append(limits.map(|((limit, salt), number)| encode(limit, salt, number)))
}

/// Returns the salt of each limit, a hash of its name and of how it counts: so in the next policy, it goes on for each
/// key, also at another rate.
fn salts(policy: &Policy) -> Vec<u64> {
    let mut salts = Vec::new();
    let mut add = |owner: String, limits: &[Limit]| {
        for (place, Limit { by, rate, .. }) in limits.iter().enumerate() {
            let unit = if matches!(rate, Rate::Bits(_)) { "bits" } else { "packets" };
            salts.push(hash(&format!("{owner}/{place}/{by:?}/{unit}")));
        }
    };
    for rule in &policy.rules {
        if let RuleAction::Limit(limits) = &rule.action {
            add(format!("rule/{}", rule.name), limits);
        }
    }
    for profile in &policy.profiles {
        for (action, class) in profile.amplification.iter().zip(AMPLIFICATION) {
            if let ClassAction::Limit(limits) = action {
                add(format!("class/{}/{}", profile.name, class.name), limits);
            }
        }
        add(format!("profile/{}", profile.name), &profile.limits);
    }
    salts
}

/// Returns the FNV-1a hash of a text, which is the same in every version.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn encode(limit: &Limit, salt: u64, number: u16) -> [u8; 32] {
    let by = match limit.by {
        LimitKey::Source => 0,
        LimitKey::SourceNetwork => 1,
        LimitKey::Destination => 2,
        LimitKey::All => 3,
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&salt.to_ne_bytes());
    bytes[8..16].copy_from_slice(&limit.rate.cost().to_ne_bytes());
    bytes[16..24].copy_from_slice(&units(limit.burst).to_ne_bytes());
    bytes[24] = by;
    bytes[25] = u8::from(matches!(limit.rate, Rate::Bits(_)));
    bytes[26..28].copy_from_slice(&crate::counters::limit(number.into()).to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_keeps_its_salt_in_another_policy() {
        let text = "[profile.default]\namplification = { dns = { packets = '1kpps' } }\n\
                    limits = [{ packets = '2kpps', bits = '1Gbps' }]\n";
        let rule = "[[rule]]\nname = 'a'\nmatch = {}\nlimit = { packets = '5kpps' }\n";
        let [short, long] = [text.to_owned(), format!("{rule}{text}")].map(|text| {
            let policy = Policy::parse(&text).unwrap();
            let salts = salts(&policy);
            assert_eq!(salts.len(), policy.limits().count());
            salts
        });
        assert_eq!(short, long[1..]);
        let different: std::collections::HashSet<_> = long.iter().collect();
        assert_eq!(different.len(), 4);
    }
}
