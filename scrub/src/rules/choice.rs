//! The choice of tuples.
//!
//! A record may be placed in any tuple whose keys have no other bits than the record's own, so a general tuple takes
//! records of many shapes, and a specific one spares packets comparisons. Each tuple costs every packet a look-up. So tuples
//! are chosen one by one: first always the one that takes the most records that are not placed yet, with at most
//! [`MAX_OF_KEY`] of a key, and of equal ones the most specific, until all are placed. Then more specific ones are added: always
//! the one that spares the most comparisons, while these cost more than the tuple. What packets are compared with is counted
//! for sample packets, which have the values of records. At last each record is placed, in the order of rules, in the tuple
//! that has the fewest sample packets with its key. Only some lengths of prefixes are tried: all if they are few, else such
//! that about as many records are between any two of them.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::record::RecordConditions;
use super::tuple::{Key, Tuple, bits_of, field, first_number, hash, masked};

/// Maximum of tuples of a version (bpf/rules.h).
pub const MAX_TUPLES: usize = 24;
/// Maximum of records with one key.
pub const MAX_OF_KEY: u8 = 8;
/// Lengths of prefixes that are tried, of many records and of few.
const LENGTHS: [usize; 2] = [8, 12];
/// Records that are many.
const MANY: usize = 50_000;
/// Sample packets, and records for which comparisons are counted, about.
const SAMPLES: usize = 1000;
/// Nanoseconds of a tuple, and of a comparison with a record; measured.
const TUPLE_COST: usize = 5;
const RECORD_COST: usize = 25;
/// About one in this number of packets is compared with an awkward record.
const AWKWARD_SHARE: usize = 20;

/// A record that is to be placed.
pub(super) struct Keyed {
    /// The number of the record in the policy.
    pub index: usize,
    own: Tuple,
    bits: Key,
}

impl Keyed {
    pub fn new(index: usize, conditions: &RecordConditions, version: u8) -> Self {
        Self { index, own: Tuple::of(conditions), bits: bits_of(conditions, version) }
    }
}

/// The tuples of one version, the one with the most records first, and the records of each.
#[derive(Clone)]
pub(super) struct Choice {
    pub tuples: Vec<Tuple>,
    /// The tuple of each record; None for awkward ones.
    pub tuple_of: Vec<Option<usize>>,
}

/// Numbers of records with equal keys. Keys whose hashes are equal count as one: chains come out shorter, never longer.
struct Chains {
    counts: Vec<u8>,
}

impl Chains {
    fn new(records: usize) -> Self {
        Self { counts: vec![0; (8 * records).next_power_of_two()] }
    }

    fn of(&mut self, key: &Key, number: usize) -> &mut u8 {
        let at = hash(key, number, 0x5bd1_e995_7f4a_7c15) as usize & (self.counts.len() - 1);
        &mut self.counts[at]
    }

    /// Calls `placed` with each record of some that a tuple takes.
    fn place<'a>(
        &mut self,
        tuple: Tuple,
        version: u8,
        records: impl Iterator<Item = (usize, &'a Keyed)>,
        mut placed: impl FnMut(usize),
    ) {
        self.counts.fill(0);
        let mask = tuple.mask(version);
        for (at, record) in records.filter(|(_, it)| tuple.takes(&it.own)) {
            let count = self.of(&masked(&record.bits, &mask), first_number(version));
            if *count < MAX_OF_KEY {
                *count += 1;
                placed(at);
            }
        }
    }
}

/// Sample packets.
struct Samples {
    packets: Vec<Key>,
}

/// Numbers of sample packets with a key in one tuple.
struct Counts {
    mask: Key,
    version: u8,
    counts: Vec<u16>,
}

impl Samples {
    /// Takes records' values, and those that a record does not have from another one.
    fn of(records: &[Keyed], version: u8) -> Self {
        let step = records.len() / SAMPLES + 1;
        let packets = records.iter().enumerate().step_by(step).map(|(at, record)| {
            let other = &records[(at * 7919 + 13) % records.len()];
            let mask = record.own.mask(version);
            std::array::from_fn(|word| record.bits[word] | other.bits[word] & !mask[word])
        });
        Self { packets: packets.collect() }
    }

    fn count(&self, tuple: Tuple, version: u8) -> Counts {
        let counts = vec![0; (8 * self.packets.len()).next_power_of_two()];
        let mut counts = Counts { mask: tuple.mask(version), version, counts };
        for packet in &self.packets {
            let at = counts.at(packet);
            counts.counts[at] += 1;
        }
        counts
    }
}

impl Counts {
    fn at(&self, bits: &Key) -> usize {
        let number = first_number(self.version);
        let hash = hash(&masked(bits, &self.mask), number, 0x5bd1_e995_7f4a_7c15);
        hash as usize & (self.counts.len() - 1)
    }

    /// Returns the number of packets with the key that these bits have.
    fn of(&self, bits: &Key) -> usize {
        self.counts[self.at(bits)].into()
    }
}

fn lengths(records: &[Keyed], bits: impl Fn(&Tuple) -> u8) -> BTreeSet<u8> {
    let mut all: Vec<_> = records.iter().map(|it| bits(&it.own)).collect();
    all.sort_unstable();
    let distinct: BTreeSet<_> = all.iter().copied().collect();
    let count = LENGTHS[usize::from(records.len() < MANY)];
    if distinct.len() <= count {
        return distinct;
    }
    (0..count).map(|at| all[at * (all.len() - 1) / (count - 1)]).collect()
}

fn candidates(records: &[Keyed]) -> Vec<Tuple> {
    let dst_lengths = lengths(records, |it| it.dst_bits);
    let mut tuples = Vec::new();
    for src_bits in lengths(records, |it| it.src_bits) {
        for &dst_bits in &dst_lengths {
            let fields = 0..=field::ALL;
            tuples.extend(fields.map(|fields| Tuple { src_bits, dst_bits, fields }));
        }
    }
    tuples
}

impl Choice {
    /// Chooses tuples for the records of one version, in the order of rules.
    pub fn of(records: &[Keyed], version: u8) -> Self {
        let mut choice = Self::greedy(records, version);
        let samples = Samples::of(records, version);
        choice.refine(records, &samples, version);
        choice.sort();
        choice
    }

    fn greedy(records: &[Keyed], version: u8) -> Self {
        let mut choice = Self { tuples: Vec::new(), tuple_of: vec![None; records.len()] };
        if records.is_empty() {
            return choice;
        }
        let mut chains = Chains::new(records.len());
        let mut gain = |tuple: Tuple, tuple_of: &[Option<usize>]| {
            let mut gain = 0_usize;
            let left = records.iter().enumerate().filter(|(at, _)| tuple_of[*at].is_none());
            chains.place(tuple, version, left, |_| gain += 1);
            (gain, tuple.bits(), Reverse(tuple))
        };
        let tuples = candidates(records).into_iter();
        let mut heap: BinaryHeap<_> = tuples.map(|it| gain(it, &choice.tuple_of)).collect();
        // A gain only becomes less while others are placed, so those of lower entries need no look.
        while let Some((before, _, Reverse(tuple))) = heap.pop() {
            if choice.tuples.len() == MAX_TUPLES {
                break;
            }
            let now = gain(tuple, &choice.tuple_of);
            if now.0 == 0 {
                continue;
            }
            if now.0 < before && heap.peek().is_some_and(|next| *next > now) {
                heap.push(now);
                continue;
            }
            let number = choice.tuples.len();
            choice.tuples.push(tuple);
            let mut placed = Vec::new();
            let left = records.iter().enumerate().filter(|(at, _)| choice.tuple_of[*at].is_none());
            Chains::new(records.len()).place(tuple, version, left, |at| placed.push(at));
            placed.into_iter().for_each(|at| choice.tuple_of[at] = Some(number));
        }
        choice
    }

    /// Adds tuples that spare more than they cost.
    fn refine(&mut self, records: &[Keyed], samples: &Samples, version: u8) {
        let step = records.len() / SAMPLES + 1;
        let candidates = candidates(records).into_iter();
        let candidates: Vec<_> = candidates.map(|it| (it, samples.count(it, version))).collect();
        loop {
            self.make_specific(records, samples, version);
            if self.tuples.len() >= MAX_TUPLES {
                return;
            }
            let counts: Vec<_> = self.tuples.iter().map(|it| samples.count(*it, version)).collect();
            let left = records.iter().zip(&self.tuple_of).skip(step / 2).step_by(step);
            let left: Vec<_> = left
                .map(|(it, tuple)| match tuple {
                    Some(tuple) => (it, counts[*tuple].of(&it.bits)),
                    None => (it, samples.packets.len() / AWKWARD_SHARE),
                })
                .collect();
            let spared = |(tuple, counts): &(Tuple, Counts)| {
                let takes = left.iter().filter(|(it, _)| tuple.takes(&it.own));
                takes.map(|(it, now)| now.saturating_sub(counts.of(&it.bits))).sum::<usize>()
            };
            let best = candidates.iter().filter(|it| !self.tuples.contains(&it.0));
            let best = best.map(|it| (spared(it), Reverse(it.0.bits()), it.0));
            match best.max() {
                Some((spared, _, tuple))
                    if spared * step * RECORD_COST > TUPLE_COST * samples.packets.len() =>
                {
                    self.tuples.push(tuple);
                }
                _ => return,
            }
        }
    }

    /// Places all records again, in the tuples where they are compared with the fewest packets, if no fewer find one.
    fn make_specific(&mut self, records: &[Keyed], samples: &Samples, version: u8) {
        let counts: Vec<_> = self.tuples.iter().map(|it| samples.count(*it, version)).collect();
        let mut chains = Chains::new(records.len());
        let first = first_number(version);
        let mut place = |record: &Keyed| {
            let takes = self.tuples.iter().enumerate().filter(|(_, it)| it.takes(&record.own));
            let best = takes.min_by_key(|(number, tuple)| {
                let key = masked(&record.bits, &counts[*number].mask);
                let chain = *chains.of(&key, first + number);
                let compared = counts[*number].of(&record.bits);
                (chain == MAX_OF_KEY, compared, chain, Reverse(tuple.bits()))
            });
            let number = best?.0;
            let chain = chains.of(&masked(&record.bits, &counts[number].mask), first + number);
            if *chain == MAX_OF_KEY {
                return None;
            }
            *chain += 1;
            Some(number)
        };
        let placed: Vec<_> = records.iter().map(&mut place).collect();
        let awkward =
            |tuple_of: &[Option<usize>]| tuple_of.iter().filter(|it| it.is_none()).count();
        if awkward(&placed) <= awkward(&self.tuple_of) {
            self.tuple_of = placed;
        }
    }

    /// Sorts tuples by their numbers of records, and drops those without.
    fn sort(&mut self) {
        let mut counts = vec![0_usize; self.tuples.len()];
        self.tuple_of.iter().flatten().for_each(|it| counts[*it] += 1);
        let mut by_count: Vec<_> = (0..self.tuples.len()).filter(|it| counts[*it] > 0).collect();
        by_count.sort_by_key(|it| Reverse(counts[*it]));
        let mut numbers = vec![0; self.tuples.len()];
        by_count.iter().enumerate().for_each(|(number, it)| numbers[*it] = number);
        self.tuples = by_count.iter().map(|it| self.tuples[*it]).collect();
        self.tuple_of.iter_mut().flatten().for_each(|it| *it = numbers[*it]);
    }

    /// Drops the tuples from this number on. Their records become awkward.
    pub fn truncate(&mut self, tuples: usize) {
        self.tuples.truncate(tuples);
        for tuple in &mut self.tuple_of {
            *tuple = tuple.filter(|it| *it < tuples);
        }
    }
}
