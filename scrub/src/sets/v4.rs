//! IPv4 prefixes of any length.
//!
//! ```text
//!   address --> bitmaps: does its /22 differ from 0.0.0.0/0? --no--> class of 0.0.0.0/0
//!                 | yes
//!               its place among those that differ: a class for each of four /24s -- no longer ones --> class
//!                 | longer ones
//!               the lengths of the /24's longer prefixes, then the longest of these that has the address
//! ```
//!
//! A prefix's class includes the sets of all shorter prefixes around it, so the longest one decides.

use super::bitmaps::Bitmaps;
use super::classes::Class;
use crate::buckets::{Buckets, PARAMS_BYTES};
use crate::image::Image;
use crate::prefix::Prefix;

/// The flag of a /24 that has longer prefixes, beside its class.
const HAS_LONGER: u16 = 1 << 15;
/// The length of prefixes of whole /24s, at most.
const SHORT: u8 = 24;
/// Bits of a /22, as in bpf/sets.h.
const MIXED: u32 = 1 << 31;
const CLASS_SHIFT: u32 = 16;
const LONGER_SHIFT: u32 = 4;
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
    /// The first line of the /22s that differ.
    pub blocks: u32,
    /// The first line of the classes of /22s with several ones.
    pub mixed: u32,
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
    /// The class of each /24 of these, and [`HAS_LONGER`].
    classes: Vec<[u16; BLOCK]>,
    /// Longer prefixes: the mask of lengths of each /24 that has some, and a class for each of them.
    longer: Buckets<16>,
}

/// The key of a prefix longer than 24 bits, or with length 24 that of the mask of lengths.
fn key(address: u32, length: u8) -> u64 {
    u64::from(address) << 6 | u64::from(length)
}

fn masked(address: u32, length: u8) -> u32 {
    address & (u32::MAX << (32 - u32::from(length)))
}

impl V4Table {
    /// Builds a table of prefixes, each of which follows those around it.
    pub fn build(prefixes: &[(Prefix, Class)], seed: u64) -> Self {
        let whole = prefixes.first().filter(|(prefix, _)| prefix.bits == 0);
        let root = whole.map_or(Class::NONE, |(_, class)| *class);
        let mut networks = vec![root.bits(); 1 << SHORT];
        let mut longer = Vec::new();
        // The last /24 with longer prefixes, and the mask of their lengths.
        let mut last = (0, 0);
        for (Prefix { address, bits }, class) in prefixes {
            let (address, class) = ((address >> 96) as u32, class.bits());
            let first = address as usize >> 8;
            if *bits <= SHORT {
                networks[first..first + (1 << (SHORT - bits))].fill(class);
                continue;
            }
            networks[first] |= HAS_LONGER;
            longer.push((key(address, *bits), class.into()));
            let network = masked(address, SHORT);
            if last.1 != 0 && last.0 != network {
                longer.push((key(last.0, SHORT), last.1));
                last.1 = 0;
            }
            last = (network, last.1 | 1 << (bits - SHORT));
        }
        if last.1 != 0 {
            longer.push((key(last.0, SHORT), last.1));
        }
        let (blocks, _) = networks.as_chunks::<BLOCK>();
        let differ = blocks.iter().enumerate().filter(|(_, it)| **it != [root.bits(); BLOCK]);
        let bitmaps = Bitmaps::of(BLOCK_LENGTH, differ.clone().map(|(at, _)| at));
        let classes = differ.map(|(_, it)| *it).collect();
        let (ranks, longer) = (bitmaps.ranks(), Buckets::build(&longer, seed));
        Self { root, bitmaps, ranks, classes, longer }
    }

    /// Appends all tables to an image.
    pub fn append(&self, image: &mut Image) -> V4Params {
        let bitmaps = self.bitmaps.append(image);
        let ranks = image.append(self.ranks.iter().map(|it| it.to_ne_bytes()));
        let mut all_mixed = Vec::new();
        let blocks = self.classes.iter().map(|classes| {
            let block = self.one_class(classes).unwrap_or_else(|| {
                all_mixed.push(classes.iter().rev().fold(0, |all, it| all << 16 | u64::from(*it)));
                MIXED | (all_mixed.len() - 1) as u32
            });
            block.to_ne_bytes()
        });
        let blocks = image.append(blocks);
        let mixed = image.append(all_mixed.into_iter().map(u64::to_ne_bytes));
        let longer = self.longer.append(image);
        V4Params { root: self.root, bitmaps, ranks, blocks, mixed, longer }
    }

    /// Encodes a /22 whose /24s have one class beside that of 0.0.0.0/0, as bpf/sets.h describes; none if several.
    fn one_class(&self, classes: &[u16; BLOCK]) -> Option<u32> {
        let root = self.root.bits();
        let plain = classes.map(|it| it & !HAS_LONGER);
        let class = plain.into_iter().find(|it| *it != root).unwrap_or(root);
        let mask = |has: [bool; BLOCK]| {
            has.iter().rev().fold(0_u32, |bits, it| bits << 1 | u32::from(*it))
        };
        let with_class = mask(plain.map(|it| it == class));
        let longer = mask(classes.map(|it| it & HAS_LONGER != 0));
        let block = u32::from(class) << CLASS_SHIFT | longer << LONGER_SHIFT | with_class;
        plain.iter().all(|it| [root, class].contains(it)).then_some(block)
    }

    /// Returns an address's class, as the XDP program finds it.
    pub fn class(&self, address: u32) -> Class {
        let network = address as usize >> 8;
        let Some(block) = self.bitmaps.place(network / BLOCK, &self.ranks) else {
            return self.root;
        };
        let short = self.classes[block][network % BLOCK];
        if short & HAS_LONGER == 0 {
            return Class::from_bits(short);
        }
        let mask = self.longer.get(key(masked(address, SHORT), SHORT)).unwrap_or(0);
        let lengths = (SHORT + 1..=32).rev().filter(|it| mask & 1 << (it - SHORT) != 0);
        let found = lengths.filter_map(|it| self.longer.get(key(masked(address, it), it))).next();
        Class::from_bits(found.map_or(short & !HAS_LONGER, |it| it as u16))
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
        assert_eq!(["192.0.2.7", "198.18.8.1"].map(|it| sets(&all, it)), [5, 1]);
        assert_eq!(all.0.classes.len(), 2, "only what differs from 0.0.0.0/0");
        assert_eq!(sets(&table(&[]), "198.18.0.1"), 0);
    }
}
