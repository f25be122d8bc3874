//! Rules: conditions on several fields, in an order; the first rule that a packet matches decides.
//!
//! ```text
//!   packet --+--> its key in each tuple --> chain of records ------------+--> the lowest order
//!            `--> vectors of awkward records --> candidates in order ----'
//! ```
//!
//! Records are found by tuple space search: those whose keys have the same fields are one tuple, and one look-up for all of
//! them. Tuples come in the order of their first rules, so the look-up ends when no better one can follow. `choice` places
//! records in tuples, and `vectors` has those that are in none.

mod choice;
mod record;
mod tuple;
mod vectors;

use std::collections::BTreeMap;

use crate::buckets::{self, Buckets};
use crate::image::{Image, LINE_BYTES};
use choice::{Choice, Keyed};
pub use choice::{MAX_CHAIN, MAX_TUPLES};
pub use record::{PayloadMatch, RECORD_BYTES, RecordConditions};
use tuple::{FIRST_V6, TUPLE_BYTES, bits_of, hash, masked};
pub use vectors::MAX_AWKWARD;
use vectors::Vectors;

/// Maximum of records.
pub const MAX_RECORDS: usize = 1 << 20;
/// Bytes of `struct scrub_rule_params`.
pub const PARAMS_BYTES: usize = buckets::PARAMS_BYTES
    + 8
    + 2 * PROTOCOL_WORDS * 8
    + 4 * 4
    + 2 * 4
    + 4
    + vectors::PARAMS_BYTES
    + 2 * FIRST_V6 * TUPLE_BYTES;

/// Maximum of words of the filter (bpf/rules.h): with more than 131,072 keys, it spares fewer look-ups.
const FILTER_WORDS: usize = 1 << 15;
/// Keys for a word of the filter, at most, if the words suffice.
const KEYS_PER_WORD: usize = 4;
/// Bits of a record's number in an entry of the index (bpf/rules.h).
const INDEX_BITS: u32 = 24;
/// No order.
const NONE: u32 = u32::MAX;
/// Candidates of vectors that cost less than a few tuples.
const FEW_CANDIDATES: usize = 4;
/// Tuples that cost as much as vectors, about.
const TUPLES_OF_VECTORS: usize = 14;

/// A record of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The rule's place in the policy: the lowest one that matches decides. Records of one rule have the same.
    pub order: u32,
    /// The number that the look-up returns beside the order.
    pub action: u32,
    /// All of these are met.
    pub conditions: RecordConditions,
}

/// Seeds that are tried until all keys have different hashes.
const MAX_TRIES: usize = 100;

/// Rules that have no tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// There are more records than numbers for them.
    #[error(
        "the rules need {0} records, of {MAX_RECORDS}: use sets for addresses, and ranges for ports"
    )]
    TooManyRecords(usize),
    /// Too many records are in no tuple.
    #[error(
        "{count} conditions of rules have no selective address or port, of {MAX_AWKWARD}; the first one too many is of \
         rule {order}: name an address, a protocol or a single port in more rules"
    )]
    TooManyAwkward {
        /// All of them.
        count: usize,
        /// The order of the first one too many.
        order: u32,
    },
    /// Keys of rules have equal hashes, whatever the seed.
    #[error("the hashes of some rules' addresses are equal: name other networks, or use sets")]
    EqualHashes,
}

/// Sizes of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Tuples of IPv4 and IPv6.
    pub tuples: [usize; 2],
    /// Keys of tuples.
    pub keys: usize,
    /// Records with a key.
    pub keyed: usize,
    /// The longest chain.
    pub longest_chain: usize,
    /// Records in vectors.
    pub awkward: usize,
    /// Candidates of vectors that are compared, at most.
    pub candidates: usize,
}

/// The tables of rules.
#[derive(Debug)]
pub struct RuleTables {
    /// All records; the first one is unused, because 0 is none. Awkward ones are the last.
    records: Vec<[u8; LINE_BYTES]>,
    /// From hashes of keys to the first records of chains.
    index: Buckets<INDEX_BITS>,
    /// Two bits of a word for each key.
    filter: Vec<u64>,
    /// `struct scrub_tuple` of IPv4 and IPv6.
    tuples: [Vec<[u8; TUPLE_BYTES]>; 2],
    seed: u64,
    protocols: Protocols,
    vectors: Vectors,
    /// The lowest order of awkward records.
    awkward_best: u32,
    summary: Summary,
}

/// A bit for each protocol of IPv4 and IPv6 whose packets a record may match.
type Protocols = [[u64; PROTOCOL_WORDS]; 2];
/// Words for 256 protocols (bpf/rules.h).
const PROTOCOL_WORDS: usize = 4;

/// Returns the protocols of records; all of a version if one of its records names none.
fn protocols_of(records: &[&Record]) -> Protocols {
    let mut protocols = Protocols::default();
    for conditions in records.iter().map(|it| &it.conditions) {
        for (words, version) in protocols.iter_mut().zip([4, 6]) {
            match conditions.protocol {
                _ if !conditions.has_version(version) => {}
                Some(protocol) => words[usize::from(protocol >> 6)] |= 1 << (protocol & 63),
                None => *words = [u64::MAX; PROTOCOL_WORDS],
            }
        }
    }
    protocols
}

/// A placed record has a version, a tuple, and a key there.
type Chains = BTreeMap<(usize, tuple::Key), Vec<usize>>;

fn awkward_of(placed: &[(Vec<Keyed>, Choice)]) -> Vec<usize> {
    let records = placed.iter().flat_map(|(records, choice)| records.iter().zip(&choice.tuple_of));
    let mut awkward: Vec<_> = records.filter(|it| it.1.is_none()).map(|it| it.0.index).collect();
    awkward.sort_unstable();
    awkward.dedup();
    awkward
}

impl RuleTables {
    /// Builds the tables of records. Equal orders are records of one rule, which have one action.
    ///
    /// # Errors
    /// There are too many records, or too many that neither tuples nor vectors tell apart.
    pub fn build(records: &[Record], seed: u64) -> Result<Self, RulesError> {
        if records.len() > MAX_RECORDS {
            return Err(RulesError::TooManyRecords(records.len()));
        }
        let mut records: Vec<_> = records.iter().collect();
        records.sort_by_key(|it| it.order);
        let mut placed = [4, 6].map(|version| {
            let of_version = records.iter().enumerate();
            let of_version = of_version.filter(|(_, it)| it.conditions.has_version(version));
            let keyed: Vec<_> =
                of_version.map(|(at, it)| Keyed::new(at, &it.conditions, version)).collect();
            let choice = Choice::of(&keyed, version);
            (keyed, choice)
        });
        let needed = awkward_of(&placed).len();
        for version in 0..2 {
            Self::spare_tuples(&mut placed, version, needed, &records);
        }
        let awkward = awkward_of(&placed);
        if awkward.len() > MAX_AWKWARD {
            let order = records[awkward[MAX_AWKWARD]].order;
            return Err(RulesError::TooManyAwkward { count: awkward.len(), order });
        }
        let conditions: Vec<_> = awkward.iter().map(|it| &records[*it].conditions).collect();
        let candidates = vectors::most_candidates(&conditions);
        let mut tables = Self::place(&records, &placed, seed)?;
        for record in awkward.iter().map(|it| records[*it]) {
            tables.records.extend(record.conditions.encode(record.order, record.action, false));
        }
        tables.vectors = Vectors::of(&conditions);
        tables.awkward_best = awkward.first().map_or(NONE, |it| records[*it].order);
        tables.summary.awkward = awkward.len();
        tables.summary.candidates = candidates;
        Ok(tables)
    }

    /// Moves records of the tuples with the fewest to vectors, if these are needed anyway or cost less, and tell them apart.
    fn spare_tuples(
        placed: &mut [(Vec<Keyed>, Choice); 2],
        version: usize,
        needed: usize,
        records: &[&Record],
    ) {
        let tuples = placed[version].1.tuples.len();
        let before = placed[version].1.tuple_of.clone();
        let mut fewest = tuples;
        for count in (0..tuples).rev() {
            placed[version]
                .1
                .tuple_of
                .iter_mut()
                .filter(|it| **it == Some(count))
                .for_each(|it| *it = None);
            let awkward = awkward_of(placed);
            let conditions =
                || awkward.iter().map(|it| &records[*it].conditions).collect::<Vec<_>>();
            if awkward.len() > MAX_AWKWARD
                || vectors::most_candidates(&conditions()) > FEW_CANDIDATES
            {
                break;
            }
            fewest = count;
        }
        placed[version].1.tuple_of = before;
        if fewest < tuples && (needed > 0 || tuples - fewest >= TUPLES_OF_VECTORS) {
            placed[version].1.truncate(fewest);
        }
    }

    /// Places all records that have a tuple. The seed is changed if hashes of keys are equal.
    ///
    /// # Errors
    /// Some are equal with every seed that was tried.
    fn place(
        records: &[&Record],
        placed: &[(Vec<Keyed>, Choice); 2],
        mut seed: u64,
    ) -> Result<Self, RulesError> {
        let mut chains = Chains::new();
        let mut tuples = [Vec::new(), Vec::new()];
        for (at, (keyed, choice)) in placed.iter().enumerate() {
            let version = [4, 6][at];
            // By the first rule of each.
            let mut best = vec![NONE; choice.tuples.len()];
            for (record, tuple) in keyed.iter().zip(&choice.tuple_of) {
                if let Some(tuple) = tuple {
                    best[*tuple] = best[*tuple].min(records[record.index].order);
                }
            }
            let mut in_order: Vec<_> = (0..best.len()).filter(|it| best[*it] != NONE).collect();
            in_order.sort_by_key(|it| best[*it]);
            let mut numbers = vec![0; best.len()];
            for (number, tuple) in in_order.into_iter().enumerate() {
                numbers[tuple] = number + at * FIRST_V6;
                tuples[at].push(choice.tuples[tuple].encode(version, best[tuple]));
            }
            for (record, tuple) in keyed.iter().zip(&choice.tuple_of) {
                let Some(tuple) = *tuple else { continue };
                let bits = bits_of(&records[record.index].conditions, version);
                let key = masked(&bits, &choice.tuples[tuple].mask(version));
                chains.entry((numbers[tuple], key)).or_default().push(record.index);
            }
        }
        let mut tries = 0..MAX_TRIES;
        let entries = loop {
            tries.next().ok_or(RulesError::EqualHashes)?;
            let mut hashes: Vec<_> =
                chains.keys().map(|(number, key)| hash(key, *number, seed)).collect();
            let entries = hashes.clone();
            hashes.iter_mut().for_each(|it| *it >>= INDEX_BITS);
            hashes.sort_unstable();
            if hashes.windows(2).all(|it| it[0] != it[1]) {
                break entries;
            }
            seed = seed.wrapping_mul(5).wrapping_add(1);
        };
        let mut lines = vec![[0; LINE_BYTES]; 2];
        let words = entries.len().div_ceil(KEYS_PER_WORD).next_power_of_two();
        let mut filter = vec![0_u64; words.min(FILTER_WORDS)];
        let mut index = Vec::with_capacity(entries.len());
        for (hash, chain) in entries.into_iter().zip(chains.values()) {
            let word = (hash >> 32) as usize & (filter.len() - 1);
            filter[word] |= 1 << (hash >> 3 & 63) | 1 << (hash >> 9 & 63);
            index.push((hash >> INDEX_BITS, (lines.len() / 2) as u64));
            for (at, record) in chain.iter().map(|it| records[*it]).enumerate() {
                let has_next = at + 1 < chain.len();
                lines.extend(record.conditions.encode(record.order, record.action, has_next));
            }
        }
        let summary = Summary {
            tuples: [0, 1].map(|it| tuples[it].len()),
            keys: chains.len(),
            keyed: lines.len() / 2 - 1,
            longest_chain: chains.values().map(Vec::len).max().unwrap_or(0),
            ..Summary::default()
        };
        let index = Buckets::build(&index, seed);
        let vectors = Vectors::of(&[]);
        Ok(Self {
            records: lines,
            index,
            filter,
            tuples,
            seed,
            protocols: protocols_of(records),
            vectors,
            awkward_best: NONE,
            summary,
        })
    }

    /// Returns the tables' sizes.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Appends the tables to an image. Returns `struct scrub_rule_params`.
    pub fn append(&self, image: &mut Image) -> [u8; PARAMS_BYTES] {
        let index = self.index.append(image);
        let records = image.append(self.records.iter().copied());
        let awkward = records + (self.records.len() - 2 * self.summary.awkward) as u32;
        let vectors = self.vectors.append(image);
        let mut params = Vec::with_capacity(PARAMS_BYTES);
        params.extend(index);
        params.extend(self.seed.to_ne_bytes());
        let [v4, v6] = self.summary.tuples.map(|it| it as u32);
        let filter_mask = self.filter.len() as u32 - 1;
        params.extend(self.protocols.iter().flatten().flat_map(|it| it.to_ne_bytes()));
        let tables = [0, records, filter_mask, awkward, v4, v6, self.awkward_best];
        for number in tables {
            params.extend(number.to_ne_bytes());
        }
        params.extend(vectors);
        for tuples in &self.tuples {
            params.extend(tuples.concat());
            params.resize(params.len() + (FIRST_V6 - tuples.len()) * TUPLE_BYTES, 0);
        }
        params.try_into().expect("the parts have this size")
    }

    /// Returns `struct scrub_rule_filter`.
    pub fn filter(&self) -> Vec<u8> {
        let mut filter: Vec<u8> = self.filter.iter().flat_map(|it| it.to_ne_bytes()).collect();
        filter.resize(FILTER_WORDS * 8, 0);
        filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::Prefix;

    #[test]
    fn only_protocols_of_records_need_a_look_up() {
        let record = |version, protocol| Record {
            order: 0,
            action: 0,
            conditions: RecordConditions { version, protocol, ..RecordConditions::default() },
        };
        let (udp, esp) = (record(Some(4), Some(17)), record(None, Some(50)));
        let bits = |records: &[&Record]| {
            protocols_of(records).map(|words| {
                (0..=255).filter(|it| words[it / 64] >> (it % 64) & 1 != 0).collect::<Vec<_>>()
            })
        };
        assert_eq!(bits(&[]), [vec![], vec![]]);
        assert_eq!(bits(&[&udp, &esp]), [vec![17, 50], vec![50]]);
        let any = record(Some(6), None);
        assert_eq!(bits(&[&udp, &any]), [vec![17], (0..=255).collect()]);
    }

    #[test]
    fn the_filter_has_all_keys_of_a_long_list() {
        let records: Vec<_> = (0..140_000_u32)
            .map(|order| Record {
                order,
                action: 0,
                conditions: RecordConditions {
                    version: Some(4),
                    src: Prefix { address: u128::from(order * 16 + 1) << 96, bits: 32 },
                    ..RecordConditions::default()
                },
            })
            .collect();
        let tables = RuleTables::build(&records, 7).unwrap();
        assert_eq!((tables.filter.len(), tables.summary.keys), (FILTER_WORDS, records.len()));
        for record in &records {
            let hash = hash(&bits_of(&record.conditions, 4), 0, tables.seed);
            let word = tables.filter[(hash >> 32) as usize & (FILTER_WORDS - 1)];
            assert_eq!(word >> (hash >> 3 & 63) & word >> (hash >> 9 & 63) & 1, 1, "{record:?}");
        }
    }
}
