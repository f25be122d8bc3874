//! Rules: conditions on several fields, in an order; the first rule that a packet matches decides.
//!
//! ```text
//!   packet --+--> its key in each tuple --> chain of records ------------+--> the lowest order
//!            `--> vectors of awkward records --> candidates in order ----'
//! ```
//!
//! Records are found by tuple space search: those whose keys have the same fields are one tuple, and one look-up for all of
//! them. The key's hash is the place of its first record; others there follow by number. Tuples come in the order of their
//! first rules, so the look-up ends when no better one can follow. `choice` places records in tuples, and `vectors` has those
//! that are in none.

mod choice;
mod record;
mod tuple;
mod vectors;

use std::collections::BTreeMap;

use crate::image::{Image, LINE_BYTES};
use choice::{Choice, Keyed};
pub use choice::{MAX_OF_KEY, MAX_TUPLES};
use record::RecordHead;
pub use record::{PayloadMatch, RecordConditions};
use tuple::{FIRST_V6, TUPLE_BYTES, bits_of, first_number, hash, masked};
pub use vectors::MAX_AWKWARD;
use vectors::Vectors;

/// Maximum of records.
pub const MAX_RECORDS: usize = 1 << 20;
/// Bytes of `struct scrub_rule_params`.
pub const PARAMS_BYTES: usize = 8
    + 2 * PROTOCOL_WORDS * 8
    + 6 * 4
    + 2 * 4
    + 4
    + vectors::PARAMS_BYTES
    + 2 * FIRST_V6 * TUPLE_BYTES;

/// Maximum of words of the filter (bpf/rules.h): with more than 131,072 keys, it spares fewer look-ups.
const FILTER_WORDS: usize = 1 << 15;
/// Keys for a word of the filter, at most, if the words suffice.
const KEYS_PER_WORD: usize = 4;
/// Maximum of records at one place (bpf/rules.h).
const MAX_AT_PLACE: usize = 64;
/// Records for 100 places, at most.
const MAX_LOAD_PERCENT: usize = 75;
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
    /// The number, and flags, that the look-up returns beside the order.
    pub action: u32,
    /// All of these are met.
    pub conditions: RecordConditions,
}

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
    /// The most records at one place.
    pub most_at_place: usize,
    /// Records in vectors.
    pub awkward: usize,
    /// Candidates of vectors that are compared, at most.
    pub candidates: usize,
}

/// The tables of rules.
#[derive(Debug)]
pub struct RuleTables {
    /// The first lines of all records: the first one of each place, then all others. Awkward ones are the last.
    records: Vec<[u8; LINE_BYTES]>,
    /// Places less one.
    record_mask: u32,
    /// Second lines; the first one is unused, because 0 is none.
    rests: Vec<[u8; LINE_BYTES]>,
    /// Two bits of a word for each key.
    filter: Vec<u64>,
    tuples: Tuples,
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

/// The tuples of IPv4 and IPv6, each by its first rule, as `struct scrub_tuple`.
type Tuples = [Vec<[u8; TUPLE_BYTES]>; 2];

/// Returns the tuples, and the records of each key.
fn chains_of(records: &[&Record], placed: &[(Vec<Keyed>, Choice); 2]) -> (Tuples, Chains) {
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
            numbers[tuple] = first_number(version) + number;
            tuples[at].push(choice.tuples[tuple].encode(version, best[tuple]));
        }
        for (record, tuple) in keyed.iter().zip(&choice.tuple_of) {
            let Some(tuple) = *tuple else { continue };
            let bits = bits_of(&records[record.index].conditions, version);
            let key = masked(&bits, &choice.tuples[tuple].mask(version));
            chains.entry((numbers[tuple], key)).or_default().push(record.index);
        }
    }
    (tuples, chains)
}

/// Returns the records of each place, by their orders. The places are a power of two, and none has more than
/// [`MAX_AT_PLACE`].
fn at_places(hashes: &[(u64, usize)]) -> Vec<Vec<usize>> {
    let mut places = (hashes.len() * 100 / MAX_LOAD_PERCENT).next_power_of_two();
    loop {
        let mut all = vec![Vec::new(); places];
        for (hash, record) in hashes {
            all[(hash >> 15) as usize & (places - 1)].push(*record);
        }
        all.iter_mut().for_each(|it| it.sort_unstable());
        if all.iter().all(|it| it.len() <= MAX_AT_PLACE) {
            return all;
        }
        places *= 2;
    }
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
        let mut tables = Self::place(&records, &placed, seed);
        for record in awkward.iter().map(|it| records[*it]) {
            let line = tables.encode(record, 0);
            tables.records.push(line);
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

    /// Places all records that have a tuple.
    fn place(records: &[&Record], placed: &[(Vec<Keyed>, Choice); 2], seed: u64) -> Self {
        let (tuples, chains) = chains_of(records, placed);
        let words = chains.len().div_ceil(KEYS_PER_WORD).next_power_of_two();
        let mut filter = vec![0_u64; words.min(FILTER_WORDS)];
        let mut hashes = Vec::new();
        for ((number, key), chain) in &chains {
            let hash = hash(key, *number, seed);
            let word = (hash >> 32) as usize & (filter.len() - 1);
            filter[word] |= 1 << (hash >> 3 & 63) | 1 << (hash >> 9 & 63);
            hashes.extend(chain.iter().map(|record| (hash, *record)));
        }
        let at_places = at_places(&hashes);
        let summary = Summary {
            tuples: [0, 1].map(|it| tuples[it].len()),
            keys: chains.len(),
            keyed: hashes.len(),
            most_at_place: at_places.iter().map(Vec::len).max().unwrap_or(0),
            ..Summary::default()
        };
        let mut tables = Self {
            records: vec![[0; LINE_BYTES]; at_places.len()],
            record_mask: at_places.len() as u32 - 1,
            rests: vec![[0; LINE_BYTES]],
            filter,
            tuples,
            seed,
            protocols: protocols_of(records),
            vectors: Vectors::of(&[]),
            awkward_best: NONE,
            summary,
        };
        for (place, at_place) in at_places.iter().enumerate() {
            tables.write(place, at_place.iter().map(|it| records[*it]));
        }
        tables
    }

    /// Writes the records of a place.
    fn write<'a>(&mut self, place: usize, records: impl DoubleEndedIterator<Item = &'a Record>) {
        // From the last one, as each has the number of the next.
        let mut next = 0;
        let mut records = records.rev().peekable();
        while let Some(record) = records.next() {
            let line = self.encode(record, next);
            if records.peek().is_none() {
                self.records[place] = line;
            } else {
                next = self.records.len() as u32;
                self.records.push(line);
            }
        }
    }

    /// Adds a record's second line, if it needs one. Returns the first one.
    fn encode(&mut self, record: &Record, next: u32) -> [u8; LINE_BYTES] {
        let rest = record.conditions.encode_rest().map_or(0, |rest| {
            self.rests.push(rest);
            self.rests.len() as u32 - 1
        });
        let Record { order, action, .. } = *record;
        record.conditions.encode(RecordHead { order, action, next, rest })
    }

    /// Returns the tables' sizes.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Appends the tables to an image. Returns `struct scrub_rule_params`.
    pub fn append(&self, image: &mut Image) -> [u8; PARAMS_BYTES] {
        let [records, rests] =
            [&self.records, &self.rests].map(|table| image.append(table.iter().copied()));
        let awkward = records + (self.records.len() - self.summary.awkward) as u32;
        let vectors = self.vectors.append(image);
        let mut params = Vec::with_capacity(PARAMS_BYTES);
        params.extend(self.seed.to_ne_bytes());
        let [v4, v6] = self.summary.tuples.map(|it| it as u32);
        let filter_mask = self.filter.len() as u32 - 1;
        params.extend(self.protocols.iter().flatten().flat_map(|it| it.to_ne_bytes()));
        let tables =
            [self.record_mask, 0, records, rests, filter_mask, awkward, v4, v6, self.awkward_best];
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
    fn rules_for_ipv6_destinations_have_keys() {
        let records: Vec<_> = (0..2 * MAX_AWKWARD as u32)
            .map(|order| Record {
                order,
                action: 0,
                conditions: RecordConditions {
                    version: Some(6),
                    dst: Prefix { address: 0x2001_0db8 << 96 | u128::from(order), bits: 128 },
                    ..RecordConditions::default()
                },
            })
            .collect();
        let summary = RuleTables::build(&records, 7).unwrap().summary();
        assert_eq!((summary.keyed, summary.awkward), (records.len(), 0));
    }

    #[test]
    fn a_place_has_records_in_their_order_and_not_too_many() {
        let at_place = |records: u64| {
            let hashes = (0..records).rev().map(|it| ((it % 9) << 25, it as usize));
            at_places(&hashes.collect::<Vec<_>>())
        };
        // Nine hashes that differ from bit 25 on: the tenth one of places.
        let places = at_place(64);
        assert_eq!((places.len(), &places[0]), (128, &(0..64).collect()));
        assert_eq!(at_place(65).len(), 2048);
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
