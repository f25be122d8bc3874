//! IPv4 prefixes of any length.
//!
//! ```text
//!   address --> index: does its /16 differ from 0.0.0.0/0? (256 KiB) --no--> class of 0.0.0.0/0
//!                 | yes
//!               bitmap: does its /24? (2 MiB) --no--> class of 0.0.0.0/0
//!                 | yes
//!               the page of the /16, which has the class of the /24 -- no longer ones --> class
//!                 | longer ones
//!               the lengths of the /24's longer prefixes, then the longest of these that has the address
//! ```
//!
//! A prefix's class includes the sets of all shorter prefixes around it, so the longest one decides. Random addresses, as
//! in a flood of forged sources, mostly end at the index or the bitmap, which stay in the cache, and which the program reads
//! without a call. /16s whose /24s are alike share a page.

use std::collections::HashMap;

use super::classes::Class;
use crate::buckets::{Buckets, PARAMS_BYTES};
use crate::image::Image;
use crate::prefix::Prefix;

/// Networks of 24 bits.
const NETWORKS: usize = 1 << 24;
/// The flag of a /24 that has longer prefixes, beside its class.
const HAS_LONGER: u16 = 1 << 15;
/// Networks of 24 bits in one of 16 bits, and the lines of their classes.
const PAGE: usize = 256;
const PAGE_LINES: u32 = 8;
/// The distance of no page.
const NO_PAGE: u32 = u32::MAX;
/// The length of prefixes of whole /24s, at most.
const SHORT: u8 = 24;

/// The places of the tables in an image, and the index.
#[derive(Debug)]
pub struct V4Params {
    /// The class of addresses that the bitmap does not have.
    pub root: Class,
    /// The first line of the pages.
    pub pages: u32,
    /// For each /16, the distance of its page.
    pub page_of: Vec<u32>,
    /// The page of /16s without prefixes; [`NO_PAGE`] if there are none.
    pub root_page: u32,
    /// `struct scrub_buckets` of longer prefixes.
    pub longer: [u8; PARAMS_BYTES],
}

/// A table of prefixes.
#[derive(Debug)]
pub struct V4Table {
    /// The class of all addresses that the bitmap does not have: that of 0.0.0.0/0.
    root: Class,
    /// A bit for each /24.
    bitmap: Vec<u64>,
    /// The class of each /24, and [`HAS_LONGER`].
    networks: Vec<u16>,
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
        let mut networks = vec![root.bits(); NETWORKS];
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
        let mut bitmap = vec![0_u64; NETWORKS / 64];
        for (at, _) in networks.iter().enumerate().filter(|(_, class)| **class != root.bits()) {
            bitmap[at / 64] |= 1 << (at % 64);
        }
        Self { root, bitmap, networks, longer: Buckets::build(&longer, seed) }
    }

    /// Appends all tables to an image.
    pub fn append(&self, image: &mut Image) -> V4Params {
        let (pages, page_of, root_page) = self.append_pages(image);
        let longer = self.longer.append(image);
        V4Params { root: self.root, pages, page_of, root_page, longer }
    }

    /// Returns a bit for each /24 that the class of 0.0.0.0/0 does not have.
    pub fn bitmap(&self) -> &[u64] {
        &self.bitmap
    }

    /// Appends the pages. Returns the first line, the distance of each /16's page from it, and that of the page without
    /// prefixes.
    fn append_pages(&self, image: &mut Image) -> (u32, Vec<u32>, u32) {
        let mut known = HashMap::<&[u16], u32>::new();
        let mut pages = Vec::new();
        let numbers = self.networks.chunks(PAGE).map(|page| {
            *known.entry(page).or_insert_with(|| {
                pages.push(page);
                pages.len() as u32 - 1
            })
        });
        let distances = numbers.map(|it| it * PAGE_LINES).collect();
        let root = known.get(&[self.root.bits(); PAGE][..]).map_or(NO_PAGE, |it| it * PAGE_LINES);
        let first = image.append(pages.into_iter().flatten().map(|it| it.to_ne_bytes()));
        (first, distances, root)
    }

    /// Returns an address's class. The index of /16s only saves the XDP program cache misses.
    pub fn class(&self, address: u32) -> Class {
        let network = address as usize >> 8;
        if self.bitmap[network / 64] & 1 << (network % 64) == 0 {
            return self.root;
        }
        let short = self.networks[network];
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
        let marked: u32 = all.0.bitmap.iter().map(|it| it.count_ones()).sum();
        assert_eq!(marked, 2, "only what differs from 0.0.0.0/0");
        assert_eq!(sets(&table(&[]), "198.18.0.1"), 0);
    }
}
