//! IPv6 prefixes of any length.
//!
//! ```text
//!   address --> bitmap: does a prefix longer than 16 bits touch its /24? (2 MiB) --no--> class of the /16
//!                 | yes
//!               its /16 (2 MiB): the class of prefixes up to 16 bits, and the lengths of longer ones in it
//!                 |
//!               the longest of those lengths that has the address
//! ```
//!
//! A prefix's class includes the sets of all shorter prefixes around it, so the longest one decides.

use super::classes::Class;
use crate::buckets::{Buckets, PARAMS_BYTES};
use crate::image::Image;
use crate::prefix::{Prefix, masked};

/// The length of prefixes that the first array has, at most.
const SHORT: u8 = 16;
/// Networks of 24 bits.
const NETWORKS: usize = 1 << 24;
/// Bits of a prefix's number in the list.
const INDEX_BITS: u32 = 24;

/// A network of 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct First {
    /// The lengths above [`SHORT`] of prefixes in it, a bit each.
    lengths: u128,
    /// The class of shorter prefixes.
    class: Class,
}

/// The places of the tables in an image.
#[derive(Debug)]
pub struct V6Params {
    /// The first lines of two tables.
    pub first: u32,
    /// As `first`.
    pub prefixes: u32,
    /// `struct scrub_buckets` of the index.
    pub index: [u8; PARAMS_BYTES],
    /// The seed of tags.
    pub seed: u64,
    /// The lengths of prefixes longer than 16 bits, from the longest.
    pub lengths: Vec<u8>,
}

/// A table of prefixes.
#[derive(Debug)]
pub struct V6Table {
    first: Vec<First>,
    bitmap: Vec<u64>,
    /// Prefixes longer than [`SHORT`].
    prefixes: Vec<(Prefix, Class)>,
    /// From a hash of prefix and length to its place in the list.
    index: Buckets<INDEX_BITS>,
    seed: u64,
}

/// A product of two 32-bit sums, as `nh` in bpf/buckets.h.
fn nh(word: u64, seed: u64) -> u64 {
    let low = (word as u32).wrapping_add(seed as u32);
    let high = ((word >> 32) as u32).wrapping_add((seed >> 32) as u32);
    u64::from(low) * u64::from(high)
}

/// Returns a hash of 40 bits. As `v6_tag` in bpf/sets.h.
fn tag(address: u128, length: u8, seed: u64) -> u64 {
    let (high, low) = ((address >> 64) as u64, address as u64);
    let seeds = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93].map(|it| seed.wrapping_mul(it));
    let mixed =
        nh(high, seed).wrapping_add(nh(low, seeds[0])).wrapping_add(nh(length.into(), seeds[1]));
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    // Never 0, as an entry.
    mixed >> INDEX_BITS | 1
}

/// Returns the first seed from this one on that gives each prefix another tag, and the tags. So a look-up need not go on
/// after a tag that is another prefix's.
fn unique_tags(prefixes: &[(Prefix, Class)], seed: u64) -> (u64, Vec<u64>) {
    let mut seed = seed;
    loop {
        let tags = prefixes.iter().map(|(it, _)| tag(it.address, it.bits, seed));
        let tags: Vec<_> = tags.collect();
        let mut sorted = tags.clone();
        sorted.sort_unstable();
        if sorted.windows(2).all(|it| it[0] != it[1]) {
            return (seed, tags);
        }
        seed = seed.wrapping_mul(5).wrapping_add(1);
    }
}

impl V6Table {
    /// Builds a table of prefixes, each of which follows those around it.
    pub fn build(prefixes: &[(Prefix, Class)], seed: u64) -> Self {
        let mut first = vec![First::default(); 1 << SHORT];
        let mut bitmap = vec![0_u64; NETWORKS / 64];
        let mut longer = Vec::new();
        for (prefix @ Prefix { address, bits }, class) in prefixes {
            let at = (address >> 112) as usize;
            if *bits <= SHORT {
                first[at..at + (1 << (SHORT - bits))].iter_mut().for_each(|it| it.class = *class);
                continue;
            }
            first[at].lengths |= 1 << (bits - 1);
            let at = (address >> 104) as usize;
            for at in at..at + (1 << 24_u8.saturating_sub(*bits)) {
                bitmap[at / 64] |= 1 << (at % 64);
            }
            longer.push((*prefix, *class));
        }
        let (seed, tags) = unique_tags(&longer, seed);
        let entries: Vec<_> = tags.into_iter().zip(0..).collect();
        Self { first, bitmap, prefixes: longer, index: Buckets::build(&entries, seed), seed }
    }

    /// Appends all tables to an image. Returns their first lines, the index, the seed of tags, and the lengths.
    pub fn append(&self, image: &mut Image) -> V6Params {
        let first = image.append(self.first.iter().map(|it| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&(it.lengths as u64).to_ne_bytes());
            bytes[8..16].copy_from_slice(&((it.lengths >> 64) as u64).to_ne_bytes());
            bytes[16..18].copy_from_slice(&it.class.bits().to_ne_bytes());
            bytes
        }));
        let prefixes = image.append(self.prefixes.iter().map(|(it, class)| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&((it.address >> 64) as u64).to_ne_bytes());
            bytes[8..16].copy_from_slice(&(it.address as u64).to_ne_bytes());
            bytes[16..18].copy_from_slice(&class.bits().to_ne_bytes());
            bytes[18] = it.bits;
            bytes
        }));
        let all = self.first.iter().fold(0, |all, it| all | it.lengths);
        let lengths = (1..=128).rev().filter(|it| all & 1 << (it - 1) != 0).collect();
        V6Params { first, prefixes, index: self.index.append(image), seed: self.seed, lengths }
    }

    /// Returns a bit for each /24 that a longer prefix touches.
    pub fn bitmap(&self) -> &[u64] {
        &self.bitmap
    }

    /// Returns an address's class, by the steps of the XDP program.
    pub fn class(&self, address: u128) -> Class {
        let First { lengths, class } = self.first[(address >> 112) as usize];
        let at = (address >> 104) as usize;
        if self.bitmap[at / 64] & 1 << (at % 64) == 0 {
            return class;
        }
        let lengths = (SHORT + 1..=128).rev().filter(|it| lengths & 1 << (it - 1) != 0);
        let found = lengths.filter_map(|length| self.find(masked(address, length), length)).next();
        found.unwrap_or(class)
    }

    fn find(&self, address: u128, length: u8) -> Option<Class> {
        let at = self.index.get(tag(address, length, self.seed))?;
        let (found, class) = self.prefixes[at as usize];
        (found == Prefix { address, bits: length }).then_some(class)
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::super::classes::{Classes, Membership};
    use super::super::prefixes::resolve;
    use super::*;

    #[test]
    fn an_address_carries_the_sets_of_all_prefixes_around_it() {
        let prefixes = [
            ("2001::/16", 1),
            ("2001:db8::/32", 2),
            ("2001:db8:18::/48", 4),
            ("2001:db8:18::1/128", 8),
            ("2000::/3", 16),
            ("fe80::/20", 32),
        ];
        let mut classes = Classes::default();
        let prefixes = prefixes.iter().map(|&(net, sets)| {
            (net.parse::<IpNet>().unwrap().into(), Membership { sets, network: 0 })
        });
        let prefixes = resolve(prefixes.collect(), &mut classes).unwrap();
        let table = V6Table::build(&prefixes, 5);
        for (address, expected) in [
            ("::1", 0),
            ("2000::1", 16),
            ("2001::1", 17),
            ("2001:db8::1", 19),
            ("2001:db8:18::", 23),
            ("2001:db8:18::1", 31),
            ("2001:db8:18::2", 23),
            ("2001:db8:19::", 19),
            ("fe80::1", 32),
            ("fe80:1000::1", 0),
            ("fe80:fff::1", 32),
        ] {
            let at: std::net::Ipv6Addr = address.parse().unwrap();
            assert_eq!(classes.membership(table.class(at.into())).sets, expected, "{address}");
        }
    }
    #[test]
    fn tags_of_neighbors_differ() {
        let mut prefixes: Vec<(Prefix, Class)> = Vec::new();
        for (high, bits) in [(0x2001_0db8_0018_0000_u64, 64), (0xa001_0db8_0018_0000, 64)] {
            prefixes.push((Prefix { address: u128::from(high) << 64, bits }, Class::default()));
            for low in (0..=0xff).chain([1 << 63 | 1 << 31, 1 << 63, 1 << 31]) {
                let address = u128::from(high) << 64 | low;
                prefixes.push((Prefix { address, bits: 128 }, Class::default()));
            }
        }
        let (_, tags) = unique_tags(&prefixes, 5);
        assert_eq!(tags.len(), prefixes.len());
    }
}
