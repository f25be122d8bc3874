//! IPv4 prefixes of any length.
//!
//! ```text
//!   address --> bitmaps: does its /22 differ from 0.0.0.0/0? --no--> class of 0.0.0.0/0
//!                 | yes
//!               its place among those that differ: a byte, the kind of /22 -- no longer prefixes --> class
//!                 | no kind: a hash table has the classes of its /24s
//!                 | longer ones
//!               the /24's only longer prefix, or the lengths of several, then the longest of these that has the address
//! ```
//!
//! A prefix's class includes the sets of all shorter prefixes around it, so the longest one decides.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::bitmaps::Bitmaps;
use super::classes::Class;
use crate::buckets::{Buckets, PARAMS_BYTES};
use crate::image::Image;
use crate::prefix::Prefix;

/// The flag of a /24 that has longer prefixes, beside its class.
const HAS_LONGER: u16 = 1 << 15;
/// The length of prefixes of whole /24s, at most.
const SHORT: u8 = 24;
/// Fields of the kind of a /22 (bpf/sets.h).
const CLASS_SHIFT: u32 = 16;
const LONGER_SHIFT: u32 = 4;
/// Kinds; a byte of 0 is none.
const MAX_KINDS: usize = 255;
/// Bits of a value in the index of /22s of other kinds.
const MIXED_BITS: u32 = 32;
/// Fields of the only longer prefix of a /24.
const LONGER_BITS: u32 = 28;
const ONE: u64 = 1 << 27;
const ONE_CLASS_SHIFT: u32 = 12;
const ONE_LENGTH_SHIFT: u32 = 8;
/// The length of networks that have a bit, and the /24s in one.
const BLOCK_LENGTH: u8 = 22;
const BLOCK: usize = 4;

/// The places of the tables in an image.
#[derive(Debug)]
pub struct V4Params {
    /// The class of addresses that the bitmaps do not have.
    pub root: Class,
    /// The first lines of the bitmaps.
    pub bitmaps: [u32; 2],
    /// The first line of the ranks: how many /22s differ before each word of their bitmap.
    pub ranks: u32,
    /// The first line of the kinds of the /22s that differ.
    pub blocks: u32,
    /// The first line of what the kinds are.
    pub kinds: u32,
    /// The first line of the classes of /22s without a kind.
    pub mixed: u32,
    /// `struct scrub_buckets` of these.
    pub mixed_index: [u8; PARAMS_BYTES],
    /// `struct scrub_buckets` of longer prefixes.
    pub longer: [u8; PARAMS_BYTES],
}

/// A table of prefixes.
#[derive(Debug)]
pub struct V4Table {
    /// The class of all addresses that the bitmaps do not have: that of 0.0.0.0/0.
    root: Class,
    bitmaps: Bitmaps,
    /// How many /22s differ before each word of their bitmap.
    ranks: Vec<u32>,
    /// The kind of each of these; 0 for those in `mixed`.
    blocks: Vec<u8>,
    /// The kinds by their bytes.
    kinds: Vec<u32>,
    /// The classes of each /24 of others, from the lowest, with [`HAS_LONGER`].
    mixed: Vec<u64>,
    /// From numbers of /22s to places in `mixed`.
    mixed_index: Buckets<MIXED_BITS>,
    /// For each /24 that has longer prefixes: the only one, or the mask of their lengths, and a class for each of them.
    longer: Buckets<LONGER_BITS>,
}

/// The key of a prefix longer than 24 bits, or with length 24 that of what a /24 has.
fn key(address: u32, length: u8) -> u64 {
    u64::from(address) << 4 | u64::from(length - SHORT)
}

fn masked(address: u32, length: u8) -> u32 {
    address & (u32::MAX << (32 - u32::from(length)))
}

/// A prefix longer than 24 bits.
struct Longer {
    address: u32,
    length: u8,
    class: u16,
}

/// Returns the keys and values of longer prefixes, those of a /24 after each other.
fn entries(longer: &[Longer]) -> Vec<(u64, u64)> {
    let mut entries = Vec::with_capacity(longer.len());
    for all in longer.chunk_by(|a, b| masked(a.address, SHORT) == masked(b.address, SHORT)) {
        let network = key(masked(all[0].address, SHORT), SHORT);
        if let [Longer { address, length, class }] = all {
            let length = u64::from(length - SHORT) << ONE_LENGTH_SHIFT;
            let class = u64::from(*class) << ONE_CLASS_SHIFT;
            entries.push((network, ONE | class | length | u64::from(address & 0xff)));
            continue;
        }
        let lengths = all.iter().fold(0, |bits, it| bits | 1 << (it.length - SHORT));
        entries.push((network, lengths));
        entries.extend(all.iter().map(|it| (key(it.address, it.length), it.class.into())));
    }
    entries
}

/// Returns the kind of a /22 whose /24s have one class beside that of the whole space; none if several.
fn kind(classes: &[u16; BLOCK], root: Class) -> Option<u32> {
    let root = root.bits();
    let plain = classes.map(|it| it & !HAS_LONGER);
    let class = plain.into_iter().find(|it| *it != root).unwrap_or(root);
    let bits = |has: [bool; BLOCK]| has.iter().rev().fold(0, |bits, it| bits << 1 | u32::from(*it));
    let with_class = bits(plain.map(|it| it == class));
    let longer = bits(classes.map(|it| it & HAS_LONGER != 0));
    let kind = u32::from(class) << CLASS_SHIFT | longer << LONGER_SHIFT | with_class;
    plain.iter().all(|it| [root, class].contains(it)).then_some(kind)
}

/// Returns the most frequent kinds, after 0 for none.
fn kinds(all: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut counts = HashMap::new();
    for kind in all {
        *counts.entry(kind).or_insert(0_u32) += 1;
    }
    let mut kinds: Vec<_> = counts.into_iter().collect();
    kinds.sort_unstable_by_key(|&(kind, count)| (Reverse(count), kind));
    kinds.truncate(MAX_KINDS);
    std::iter::once(0).chain(kinds.into_iter().map(|(kind, _)| kind)).collect()
}

impl V4Table {
    /// Builds a table of prefixes, each of which follows those around it.
    pub fn build(prefixes: &[(Prefix, Class)], seed: u64) -> Self {
        let whole = prefixes.first().filter(|(prefix, _)| prefix.bits == 0);
        let root = whole.map_or(Class::NONE, |(_, class)| *class);
        let mut networks = vec![root.bits(); 1 << SHORT];
        let mut longer = Vec::new();
        for (Prefix { address, bits }, class) in prefixes {
            let (address, class) = ((address >> 96) as u32, class.bits());
            let first = address as usize >> 8;
            if *bits <= SHORT {
                networks[first..first + (1 << (SHORT - bits))].fill(class);
                continue;
            }
            networks[first] |= HAS_LONGER;
            longer.push(Longer { address, length: *bits, class });
        }
        let (blocks, _) = networks.as_chunks::<BLOCK>();
        let differ = blocks.iter().enumerate().filter(|(_, it)| **it != [root.bits(); BLOCK]);
        let bitmaps = Bitmaps::of(BLOCK_LENGTH, differ.clone().map(|(at, _)| at));
        let ranks = bitmaps.ranks();
        let kinds = kinds(differ.clone().filter_map(|(_, classes)| kind(classes, root)));
        let bytes: HashMap<_, _> = kinds.iter().zip(0..=u8::MAX).skip(1).collect();
        // The first word is unused, because an entry of the index is not 0.
        let (mut mixed, mut mixed_index) = (vec![0], Vec::new());
        let blocks = differ.map(|(number, classes)| {
            let byte = kind(classes, root).and_then(|it| bytes.get(&it).copied());
            byte.unwrap_or_else(|| {
                mixed_index.push((number as u64, mixed.len() as u64));
                mixed.push(classes.iter().rev().fold(0, |all, it| all << 16 | u64::from(*it)));
                0
            })
        });
        let blocks = blocks.collect();
        let mixed_index = Buckets::build(&mixed_index, seed);
        let longer = Buckets::build(&entries(&longer), seed);
        Self { root, bitmaps, ranks, blocks, kinds, mixed, mixed_index, longer }
    }

    /// Appends all tables to an image.
    pub fn append(&self, image: &mut Image) -> V4Params {
        V4Params {
            root: self.root,
            bitmaps: self.bitmaps.append(image),
            ranks: image.append(self.ranks.iter().map(|it| it.to_ne_bytes())),
            blocks: image.append(self.blocks.iter().map(|it| [*it])),
            kinds: image.append(self.kinds.iter().map(|it| it.to_ne_bytes())),
            mixed: image.append(self.mixed.iter().map(|it| it.to_ne_bytes())),
            mixed_index: self.mixed_index.append(image),
            longer: self.longer.append(image),
        }
    }

    /// Returns the class of a /24 whose /22 has this place, and [`HAS_LONGER`].
    fn network(&self, network: usize, place: usize) -> u16 {
        let at = network % BLOCK;
        let kind = self.kinds[usize::from(self.blocks[place])];
        if kind == 0 {
            let place = self.mixed_index.get((network / BLOCK) as u64).unwrap_or(0);
            return (self.mixed[place as usize] >> (16 * at)) as u16;
        }
        let class = (kind >> CLASS_SHIFT) as u16;
        let class = if kind >> at & 1 != 0 { class } else { self.root.bits() };
        let has_longer = kind >> LONGER_SHIFT >> at & 1 != 0;
        if has_longer { class | HAS_LONGER } else { class }
    }

    /// Returns an address's class, as the XDP program finds it.
    pub fn class(&self, address: u32) -> Class {
        let network = address as usize >> 8;
        let Some(place) = self.bitmaps.place(network / BLOCK, &self.ranks) else {
            return self.root;
        };
        let short = self.network(network, place);
        if short & HAS_LONGER == 0 {
            return Class::from_bits(short);
        }
        let plain = Class::from_bits(short & !HAS_LONGER);
        let longer = self.longer.get(key(masked(address, SHORT), SHORT)).unwrap_or(0);
        if longer & ONE != 0 {
            let length = SHORT + (longer >> ONE_LENGTH_SHIFT & 15) as u8;
            let differs = masked(address ^ longer as u32, length) & 0xff != 0;
            let class = Class::from_bits((longer >> ONE_CLASS_SHIFT) as u16 & !HAS_LONGER);
            return if differs { plain } else { class };
        }
        let lengths = (SHORT + 1..=32).rev().filter(|it| longer & 1 << (it - SHORT) != 0);
        let found = lengths.filter_map(|it| self.longer.get(key(masked(address, it), it))).next();
        found.map_or(plain, |it| Class::from_bits(it as u16))
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::super::classes::{Classes, Membership};
    use super::super::prefixes::resolve;
    use super::*;

    fn table(prefixes: &[(&str, u64)]) -> (V4Table, Classes) {
        let mut classes = Classes::default();
        let prefixes = prefixes.iter().map(|&(net, sets)| {
            (net.parse::<IpNet>().unwrap().into(), Membership { sets, network: 0 })
        });
        let prefixes = resolve(prefixes.collect(), &mut classes).unwrap();
        (V4Table::build(&prefixes, 99), classes)
    }

    fn sets(table: &(V4Table, Classes), address: &str) -> u64 {
        let address: std::net::Ipv4Addr = address.parse().unwrap();
        table.1.membership(table.0.class(address.into())).sets
    }

    #[test]
    fn an_address_carries_the_sets_of_all_prefixes_around_it() {
        let table = table(&[
            ("198.18.0.0/15", 1),
            ("198.18.7.0/24", 2),
            ("198.18.7.64/26", 4),
            ("198.18.7.65/32", 8),
            ("203.0.113.128/25", 16),
            ("192.0.2.1/32", 32),
        ]);
        for (address, expected) in [
            ("198.17.255.255", 0),
            ("198.18.0.0", 1),
            ("198.19.255.255", 1),
            ("198.20.0.0", 0),
            ("198.18.7.63", 3),
            ("198.18.7.64", 7),
            ("198.18.7.65", 15),
            ("198.18.7.127", 7),
            ("198.18.7.128", 3),
            ("203.0.113.127", 0),
            ("203.0.113.128", 16),
            ("192.0.2.1", 32),
            ("192.0.2.0", 0),
            ("192.0.2.2", 0),
        ] {
            assert_eq!(sets(&table, address), expected, "{address}");
        }
    }

    #[test]
    fn the_first_22_may_have_several_classes() {
        let table = table(&[("0.0.0.0/24", 1), ("0.0.1.0/24", 2), ("0.0.1.7/32", 4)]);
        let found = ["0.0.0.1", "0.0.1.1", "0.0.1.7", "0.0.2.1"].map(|it| sets(&table, it));
        assert_eq!(found, [1, 2, 6, 0]);
    }

    #[test]
    fn the_whole_space_and_nothing() {
        let all = table(&[
            ("0.0.0.0/0", 1),
            ("255.255.255.255/32", 2),
            ("192.0.2.0/24", 4),
            ("198.18.8.0/23", 1),
        ]);
        assert_eq!(
            ["0.0.0.0", "198.18.0.1", "255.255.255.255"].map(|it| sets(&all, it)),
            [1, 1, 3]
        );
        assert_eq!(sets(&all, "255.255.255.254"), 1);
        assert_eq!(["192.0.2.7", "198.18.8.1"].map(|it| sets(&all, it)), [5, 1]);
        assert_eq!(all.0.blocks.len(), 2, "only what differs from 0.0.0.0/0");
        assert_eq!(sets(&table(&[]), "198.18.0.1"), 0);
    }
}
