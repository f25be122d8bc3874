//! Tuples: which bits of a packet are the key under which records are found.

use super::record::RecordConditions;
use crate::prefix::Prefix;

/// Key fields, as bits.
pub(super) mod field {
    /// The protocol.
    pub const PROTOCOL: u8 = 1;
    /// The source port.
    pub const SPORT: u8 = 2;
    /// The destination port.
    pub const DPORT: u8 = 4;
    /// All.
    pub const ALL: u8 = 7;
}

/// The number of the first tuple of IPv6 (bpf/rules.h).
pub(super) const FIRST_V6: usize = 32;

/// Returns the number of the first tuple of a version. The hash of a key depends on it.
pub(super) fn first_number(version: u8) -> usize {
    if version == 6 { FIRST_V6 } else { 0 }
}

/// Bytes of `struct scrub_tuple`.
pub(super) const TUPLE_BYTES: usize = 48;

/// A key, or the mask of one: protocol << 32 | sport << 16 | dport, then addresses, as `struct rule_key`.
pub(super) type Key = [u64; 5];

/// The fields of keys: prefixes of addresses, and whole other fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tuple {
    pub src_bits: u8,
    pub dst_bits: u8,
    pub fields: u8,
}

fn single(range: &std::ops::RangeInclusive<u16>) -> Option<u16> {
    (range.start() == range.end()).then_some(*range.start())
}

/// Returns the words of two addresses.
fn words(src: u128, dst: u128, version: u8) -> [u64; 4] {
    match version {
        4 => [(src >> 64 | dst >> 96) as u64, 0, 0, 0],
        _ => [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64],
    }
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

impl Tuple {
    /// Returns the tuple with all fields that have one value in a record.
    pub fn of(conditions: &RecordConditions) -> Self {
        let has = |is: bool, field: u8| if is { field } else { 0 };
        Self {
            src_bits: conditions.src.bits,
            dst_bits: conditions.dst.bits,
            fields: has(conditions.protocol.is_some(), field::PROTOCOL)
                | has(single(&conditions.sport).is_some(), field::SPORT)
                | has(single(&conditions.dport).is_some(), field::DPORT),
        }
    }

    /// Returns true if records of another tuple have all bits of this one's keys.
    pub fn takes(&self, other: &Self) -> bool {
        self.src_bits <= other.src_bits
            && self.dst_bits <= other.dst_bits
            && self.fields & !other.fields == 0
    }

    /// Returns the number of bits that keys differ in.
    pub fn bits(&self) -> u32 {
        let has = |field: u8, bits: u32| if self.fields & field == 0 { 0 } else { bits };
        let fields = has(field::PROTOCOL, 2) + has(field::SPORT, 16) + has(field::DPORT, 16);
        u32::from(self.src_bits) + u32::from(self.dst_bits) + fields
    }

    /// Returns the bits of a packet that are its key.
    pub fn mask(&self, version: u8) -> Key {
        let has = |field: u8, mask: u64| if self.fields & field == 0 { 0 } else { mask };
        let fields = has(field::PROTOCOL, 0xff << 32)
            | has(field::SPORT, 0xffff << 16)
            | has(field::DPORT, 0xffff);
        let [a, b, c, d] = words(mask(self.src_bits), mask(self.dst_bits), version);
        [fields, a, b, c, d]
    }

    /// Encodes `struct scrub_tuple`.
    pub fn encode(&self, version: u8, best: u32) -> [u8; TUPLE_BYTES] {
        let mut bytes = [0; TUPLE_BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(self.mask(version)) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[40..44].copy_from_slice(&best.to_ne_bytes());
        bytes
    }
}

/// Returns the bits of a record that tuples take their keys from; those without one value are 0.
pub(super) fn bits_of(conditions: &RecordConditions, version: u8) -> Key {
    let protocol = u64::from(conditions.protocol.unwrap_or(0));
    let sport = u64::from(single(&conditions.sport).unwrap_or(0));
    let dport = u64::from(single(&conditions.dport).unwrap_or(0));
    let address = |it: Prefix| it.address & mask(it.bits);
    let [a, b, c, d] = words(address(conditions.src), address(conditions.dst), version);
    [protocol << 32 | sport << 16 | dport, a, b, c, d]
}

/// Returns the key of bits under a mask.
pub(super) fn masked(bits: &Key, mask: &Key) -> Key {
    std::array::from_fn(|at| bits[at] & mask[at])
}

/// Returns the hash of a key in the tuple of this number. As `tuple_hash` in bpf/rules.h.
pub(super) fn hash(key: &Key, number: usize, seed: u64) -> u64 {
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xd6e8_feb8_6659_fd93;
    let fields = key[0] | (number as u64) << 40;
    let mixed = (key[1] ^ seed).wrapping_mul(A);
    let mut mixed = (mixed ^ mixed >> 32 ^ fields).wrapping_mul(seed | 1);
    if number >= FIRST_V6 {
        mixed = (mixed ^ mixed >> 29 ^ key[2]).wrapping_mul(B);
        mixed = (mixed ^ mixed >> 31 ^ key[3]).wrapping_mul(seed | 1);
        mixed = mixed ^ mixed >> 30 ^ key[4];
    }
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(B);
    mixed ^ mixed >> 32
}
