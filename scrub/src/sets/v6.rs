//! IPv6 prefixes of any length.
//!
//! ```text
//!   address --> bitmaps: does its /24 differ from ::/0? --no--> class of ::/0
//!                 | yes
//!               its /16: the class of prefixes up to 16 bits, and the lengths of those up to 24 bits in it
//!                 |
//!               its /24: the lengths of longer prefixes in it, 64 for all from 64 on
//!                 |
//!               the longest of these lengths that has the address
//! ```
//!
//! A prefix's class includes the sets of all shorter prefixes around it, so the longest one decides.

use super::bitmaps::Bitmaps;
use super::classes::Class;
use crate::buckets::{Buckets, PARAMS_BYTES};
use crate::image::Image;
use crate::prefix::{Prefix, masked};

/// The length of prefixes that the first array has, at most.
const SHORT: u8 = 16;
/// The length of networks that have the lengths of longer prefixes.
const NETWORK: u8 = 24;
/// The length of prefixes that stands for longer ones in a network's lengths.
const MAX_LENGTH: u8 = 64;
/// Bits of a prefix's number in the list.
const INDEX_BITS: u32 = 24;
/// Bits of a network's lengths, from 25 to [`MAX_LENGTH`].
const LENGTH_BITS: u32 = 40;

/// A network of 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct First {
    /// The lengths of prefixes in it, from 17 to [`NETWORK`]: a bit each.
    lengths: u32,
    /// The class of shorter prefixes.
    class: Class,
}

/// The places of the tables in an image.
#[derive(Debug)]
pub struct V6Params {
    /// The class of addresses that the bitmaps do not have.
    pub root: Class,
    /// The first lines of the bitmaps.
    pub bitmaps: [u32; 2],
    /// The first line of the networks of 16 bits.
    pub first: u32,
    /// `struct scrub_buckets` of the networks' lengths.
    pub networks: [u8; PARAMS_BYTES],
    /// The first line of longer prefixes.
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
    /// The class of all addresses that the bitmaps do not have: that of ::/0.
    root: Class,
    bitmaps: Bitmaps,
    first: Vec<First>,
    /// From networks of [`NETWORK`] bits to the lengths of longer prefixes: a bit for each from 25 on.
    networks: Buckets<LENGTH_BITS>,
    /// Prefixes longer than [`SHORT`].
    prefixes: Vec<(Prefix, Class)>,
    /// From a hash of prefix and length to its place in the list.
    index: Buckets<INDEX_BITS>,
    seed: u64,
}

/// A product of two 32-bit sums, as `nh` in bpf/line.h.
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
        let whole = prefixes.first().filter(|(prefix, _)| prefix.bits == 0);
        let root = whole.map_or(Class::NONE, |(_, class)| *class);
        let mut first = vec![First { class: root, lengths: 0 }; 1 << SHORT];
        let mut longer = Vec::<(Prefix, Class)>::new();
        // Networks and their lengths; the prefixes of one follow each other.
        let mut networks = Vec::<(u64, u64)>::new();
        for (prefix @ Prefix { address, bits }, class) in prefixes {
            let (short, network) = ((address >> 112) as usize, (address >> 104) as u64);
            if *bits <= SHORT {
                let all = &mut first[short..short + (1 << (SHORT - bits))];
                all.iter_mut().for_each(|it| it.class = *class);
                continue;
            }
            longer.push((*prefix, *class));
            if *bits <= NETWORK {
                first[short].lengths |= 1 << (bits - SHORT - 1);
                continue;
            }
            if networks.last().is_none_or(|(last, _)| *last != network) {
                networks.push((network, 0));
            }
            if let Some((_, lengths)) = networks.last_mut() {
                *lengths |= 1 << (bits.min(&MAX_LENGTH) - NETWORK - 1);
            }
        }
        let short = first.iter().enumerate().filter(|(_, it)| it.class != root);
        let short = short.flat_map(|(at, _)| at << 8..(at + 1) << 8);
        let differ = longer.iter().flat_map(|(Prefix { address, bits }, _)| {
            let first = (address >> 104) as usize;
            first..first + (1 << NETWORK.saturating_sub(*bits))
        });
        let bitmaps = Bitmaps::of(NETWORK, short.chain(differ));
        let (seed, tags) = unique_tags(&longer, seed);
        let index: Vec<_> = tags.into_iter().zip(0..).collect();
        let (networks, index) = (Buckets::build(&networks, seed), Buckets::build(&index, seed));
        Self { root, bitmaps, first, networks, prefixes: longer, index, seed }
    }

    /// Appends all tables to an image.
    pub fn append(&self, image: &mut Image) -> V6Params {
        let bitmaps = self.bitmaps.append(image);
        let first = image.append(self.first.iter().map(|it| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&it.lengths.to_ne_bytes());
            bytes[4..6].copy_from_slice(&it.class.bits().to_ne_bytes());
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
        let all = self.prefixes.iter().fold(0_u128, |all, (it, _)| all | 1 << (it.bits - 1));
        let lengths = (1..=128).rev().filter(|it| all & 1 << (it - 1) != 0).collect();
        let (networks, index) = (self.networks.append(image), self.index.append(image));
        let (root, seed) = (self.root, self.seed);
        V6Params { root, bitmaps, first, networks, prefixes, index, seed, lengths }
    }

    /// Returns an address's class, as the XDP program finds it.
    pub fn class(&self, address: u128) -> Class {
        let network = (address >> 104) as usize;
        if !self.bitmaps.has(network) {
            return self.root;
        }
        let First { lengths, class } = self.first[network >> 8];
        let longer = self.networks.get(network as u64).unwrap_or(0);
        let lengths = u64::from(lengths) << SHORT | longer << NETWORK;
        let has = |length: &u8| lengths & 1 << (length.min(&MAX_LENGTH) - 1) != 0;
        let lengths = (SHORT + 1..=128).rev().filter(has);
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
