//! Bit vectors: records that no tuple takes, as ranges of ports without an address, all together.
//!
//! ```text
//!   protocol --> class --> [ 1 0 1 1 ... ]     a bit for each record that the value meets
//!   sport    --> class --> [ 0 0 1 1 ... ]  &
//!   dport    --> class --> [ 1 1 1 1 ... ]  &
//!   length   --> class --> [ 1 0 1 1 ... ]  &
//!   src, dst --> class --> [ 1 1 1 0 ... ]  &  --> candidates, which are compared in order
//! ```
//!
//! Values that meet the same records have one class; those of addresses are their upper 16 bits. A candidate without conditions on other fields matches, and so ends
//! the comparisons.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::record::RecordConditions;
use crate::image::{Image, LINE_BYTES};
use crate::prefix::Prefix;

/// Maximum of records (bpf/rules.h).
pub const MAX_AWKWARD: usize = 1024;
/// The fields that have vectors (`enum scrub_vector`).
const FIELDS: usize = 6;
/// Bytes of the vectors' part of `struct scrub_rule_params`.
pub(super) const PARAMS_BYTES: usize = 4 + FIELDS * 12;
/// Bits of a line.
const LINE_BITS: usize = 8 * LINE_BYTES;

/// The vectors of one field.
#[derive(Debug)]
struct Field {
    /// The class of each value; of one line if no record has a condition on the field.
    classes: Vec<u16>,
    /// The lines of each class.
    vectors: Vec<[u8; LINE_BYTES]>,
}

/// The vectors of all fields.
#[derive(Debug)]
pub(super) struct Vectors {
    fields: [Field; FIELDS],
    /// Lines of each vector.
    lines: usize,
}

/// Ranges of values of the first field: protocols of IPv4, then those of IPv6.
fn protocols(conditions: &RecordConditions) -> [RangeInclusive<u16>; 2] {
    [4, 6].map(|version| {
        let first = if version == 6 { 256 } else { 0 };
        match conditions.protocol.map(u16::from) {
            #[expect(clippy::reversed_empty_ranges, reason = "no value meets it")]
            _ if !conditions.has_version(version) => 1..=0,
            Some(protocol) => first + protocol..=first + protocol,
            None => first..=first + 255,
        }
    })
}

/// Returns the upper 16 bits of a prefix's addresses.
fn upper(prefix: Prefix) -> RangeInclusive<u16> {
    let first = (prefix.address >> 112) as u16;
    first..=first | u16::MAX.checked_shr(prefix.bits.into()).unwrap_or(0)
}

/// Returns the ranges of values of each field that meet a record.
fn ranges(conditions: &RecordConditions) -> [Vec<RangeInclusive<u16>>; FIELDS] {
    [
        protocols(conditions).into(),
        vec![conditions.sport.clone()],
        vec![conditions.dport.clone()],
        vec![conditions.length.clone()],
        vec![upper(conditions.src)],
        vec![upper(conditions.dst)],
    ]
}

/// Returns true if a packet exists that may be a candidate for both.
fn overlap(a: &[Vec<RangeInclusive<u16>>; FIELDS], b: &[Vec<RangeInclusive<u16>>; FIELDS]) -> bool {
    let common = |(a, b): (&RangeInclusive<u16>, &RangeInclusive<u16>)| {
        a.start().max(b.start()) <= a.end().min(b.end())
    };
    a.iter().zip(b).all(|(a, b)| a.iter().zip(b).any(common))
}

/// Returns the number of candidates that are compared for a packet, at most.
///
/// Candidates before the last one meet the same packet's values, and none of them decides by these alone.
pub(super) fn most_candidates(records: &[&RecordConditions]) -> usize {
    let undecided: Vec<_> = records.iter().map(|it| !it.vectors_decide()).collect();
    let ranges: Vec<_> = records.iter().map(|it| ranges(it)).collect();
    let candidates = ranges.iter().enumerate().map(|(at, record)| {
        let before = (0..at).filter(|it| undecided[*it] && overlap(&ranges[*it], record));
        before.count() + 1
    });
    candidates.max().unwrap_or(0)
}

impl Field {
    fn of(records: &[&RecordConditions], field: usize, lines: usize) -> Self {
        let values = if field == 0 { 512 } else { 1 << 16 };
        let all_ranges: Vec<_> = records.iter().map(|it| ranges(it)[field].clone()).collect();
        let ends = all_ranges
            .iter()
            .flatten()
            .flat_map(|it| [usize::from(*it.start()), usize::from(*it.end()) + 1]);
        let mut ends: Vec<_> = ends.chain([0, values]).filter(|it| *it <= values).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut this = Self { classes: vec![0; values], vectors: Vec::new() };
        let mut known = HashMap::new();
        for pair in ends.windows(2) {
            let mut vector = vec![[0_u8; LINE_BYTES]; lines];
            for (at, ranges) in all_ranges.iter().enumerate() {
                if ranges.iter().any(|it| it.contains(&(pair[0] as u16))) {
                    set_bit(&mut vector, at);
                }
            }
            let class = *known.entry(vector).or_insert_with_key(|vector| {
                this.vectors.extend(vector);
                (this.vectors.len() / lines - 1) as u16
            });
            this.classes[pair[0]..pair[1]].fill(class);
        }
        // The first field is always read.
        if field > 0 && this.vectors.len() == lines {
            this.classes.truncate(LINE_BYTES / 2);
        }
        this
    }
}

/// Sets a bit of words in the machine's order of bytes.
fn set_bit(lines: &mut [[u8; LINE_BYTES]], at: usize) {
    let line = &mut lines[at / LINE_BITS];
    let word = &mut line[at % LINE_BITS / 64 * 8..][..8];
    let bits = u64::from_ne_bytes(word.try_into().expect("eight bytes")) | 1 << (at % 64);
    word.copy_from_slice(&bits.to_ne_bytes());
}

impl Vectors {
    /// Builds the vectors of at most [`MAX_AWKWARD`] records, in the order of rules.
    pub fn of(records: &[&RecordConditions]) -> Self {
        let lines = records.len().div_ceil(LINE_BITS).max(1);
        Self { fields: std::array::from_fn(|field| Field::of(records, field, lines)), lines }
    }

    /// Appends the vectors to an image. Returns the lines of each, and `struct scrub_vector_field` of each field.
    pub fn append(&self, image: &mut Image) -> [u8; PARAMS_BYTES] {
        let mut params = (self.lines as u32).to_ne_bytes().to_vec();
        for field in &self.fields {
            let used = u32::from(field.vectors.len() > self.lines);
            let classes = image.append(field.classes.iter().map(|it| it.to_ne_bytes()));
            let numbers = [used, classes, image.append(field.vectors.iter().copied())];
            params.extend(numbers.iter().flat_map(|it| it.to_ne_bytes()));
        }
        params.try_into().expect("the parts have this size")
    }
}
