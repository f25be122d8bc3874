//! The table: behind which port a host is, as its packets have told.
//!
//! ```text
//!   VLAN, address ── two hashes, secret seeds ──> two buckets of four entries, a cache line each
//! ```
//!
//! Its memory is taken once. What somebody floods it with costs him, not the others:
//!
//! - a port has a limit of entries that are learned;
//! - an entry is *young* until its host is seen again later, or somebody sends to it. Only young
//!   entries make room for new ones, the oldest first, and where the port is at its limit only its
//!   own;
//! - static entries stay until they are taken out;
//! - nobody outside knows the seeds, so nobody can aim at a bucket.
//!
//! A host that finds no room is not cut off: what is sent to it is flooded.

use std::hash::{BuildHasher, RandomState};

/// The number of a port in a switch.
pub type PortNumber = u16;
/// The most ports of a switch.
pub const MAX_PORTS: usize = 256;
/// Time as the table has it, in tenths of a second from any start on; it may wrap.
pub type Tick = u32;
/// Ticks in a second.
pub const TICKS_PER_SECOND: u32 = 10;

const WAYS: usize = 4;

/// The state of an entry: a new address may replace a lower one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EntryState {
    #[default]
    Free,
    /// Seen once, or moved, and nobody has sent to it.
    Young,
    /// In use.
    MacEntry,
    Static,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// VLAN in the upper 16 bits, address in the lower 48.
    key: u64,
    seen: Tick,
    port: PortNumber,
    state: EntryState,
}

/// A line of the cache.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Bucket([Entry; WAYS]);

const _: () = assert!(size_of::<Bucket>() == 64);

/// The result of learning an address behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// It was known to be there.
    Same,
    /// It is in the table now.
    New,
    /// It was behind another port before.
    Moved,
    /// A static entry says that it is behind another port: that holds.
    Elsewhere,
    /// There is no room for it.
    NoRoom,
}

/// The settings of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// Entries it has room for; made a power of two, 64 at least.
    pub entries: usize,
    /// Entries that one port can have learned.
    pub per_port: u32,
    /// A host that says nothing for so long is forgotten.
    pub age: Tick,
}

impl Default for TableConfig {
    /// 65,536 entries (1 MiB), 8,192 of a port, 300 s as IEEE 802.1D has it.
    fn default() -> Self {
        Self { entries: 65_536, per_port: 8192, age: 300 * TICKS_PER_SECOND }
    }
}

/// An entry, for those who look at the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacEntry {
    /// Its VLAN; 0 where the switch knows no VLANs.
    pub vlan: u16,
    /// Its address, in the lower 48 bits.
    pub mac: u64,
    /// The port it is behind.
    pub port: PortNumber,
    /// Ticks since it was seen last.
    pub idle: Tick,
    /// It was not learned, but set.
    pub is_static: bool,
}

/// The table of a switch. One thread has it.
#[derive(Debug)]
pub struct Table {
    buckets: Box<[Bucket]>,
    seeds: [u64; 2],
    config: TableConfig,
    /// Entries that each port has learned.
    learned: Vec<u32>,
    statics: usize,
    /// The next bucket to be swept.
    sweep: usize,
}

/// Where an entry is: bucket and way.
type At = (usize, usize);

impl Table {
    /// An empty table.
    pub fn new(config: TableConfig) -> Self {
        let seed = || RandomState::new().hash_one(0);
        let buckets = config.entries.clamp(64, 1 << 24).next_power_of_two() / WAYS;
        Self {
            buckets: vec![Bucket::default(); buckets].into_boxed_slice(),
            seeds: [seed(), seed()],
            config,
            learned: vec![0; MAX_PORTS],
            statics: 0,
            sweep: 0,
        }
    }

    /// Entries it has room for.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// Entries that a port has learned; those that are too old stay until they are swept.
    pub fn learned(&self, port: PortNumber) -> u32 {
        self.learned[usize::from(port)]
    }

    /// The port that an address is behind.
    #[inline]
    pub fn find(&mut self, vlan: u16, mac: u64, now: Tick) -> Option<PortNumber> {
        let (bucket, way) = self.position(key(vlan, mac))?;
        let entry = &mut self.buckets[bucket].0[way];
        if is_old(entry, self.config.age, now) {
            return None;
        }
        if entry.state == EntryState::Young {
            entry.state = EntryState::MacEntry;
        }
        Some(entry.port)
    }

    /// An address was seen behind a port.
    #[inline]
    pub fn learn(&mut self, vlan: u16, mac: u64, port: PortNumber, now: Tick) -> Learned {
        let key = key(vlan, mac);
        let Some(at) = self.position(key) else { return self.insert(key, port, now) };
        let entry = &mut self.buckets[at.0].0[at.1];
        if entry.state == EntryState::Static {
            return if entry.port == port { Learned::Same } else { Learned::Elsewhere };
        }
        if is_old(entry, self.config.age, now) {
            self.free(at);
            return self.insert(key, port, now);
        }
        if entry.port == port {
            if entry.seen != now {
                (entry.seen, entry.state) = (now, EntryState::MacEntry);
            }
            return Learned::Same;
        }
        self.learned[usize::from(entry.port)] -= 1;
        self.learned[usize::from(port)] += 1;
        *entry = Entry { key, seen: now, port, state: EntryState::Young };
        Learned::Moved
    }

    /// Adds a static entry. Returns false if there is no room for one more.
    pub fn set_static(&mut self, vlan: u16, mac: u64, port: PortNumber) -> bool {
        let key = key(vlan, mac);
        let at = self.position(key).or_else(|| {
            // A quarter of all: what is learned has room in any case.
            let full = self.statics >= self.capacity() / 4;
            let pairs = self.ways(key).into_iter().filter(|_| !full);
            pairs.min_by_key(|&(bucket, way)| match self.buckets[bucket].0[way].state {
                EntryState::Free => 0,
                EntryState::Young => 1,
                EntryState::MacEntry => 2,
                EntryState::Static => 3,
            })
        });
        let Some(at) =
            at.filter(|&at| self.at(at).state != EntryState::Static || self.at(at).key == key)
        else {
            return false;
        };
        self.free(at);
        self.buckets[at.0].0[at.1] = Entry { key, seen: 0, port, state: EntryState::Static };
        self.statics += 1;
        true
    }

    /// Takes an entry out, a static one too. False if there is none.
    pub fn remove(&mut self, vlan: u16, mac: u64) -> bool {
        let at = self.position(key(vlan, mac));
        at.is_some_and(|at| {
            self.free(at);
            true
        })
    }

    /// Takes out all that was learned, of one port or of all. How many.
    pub fn flush(&mut self, port: Option<PortNumber>) -> usize {
        self.take_out(|entry| {
            entry.state != EntryState::Static && port.is_none_or(|port| port == entry.port)
        })
    }

    /// Forgets a port that was removed, its static entries too. Returns how many entries it had.
    pub fn forget(&mut self, port: PortNumber) -> usize {
        self.take_out(|entry| entry.port == port)
    }

    /// Takes out what is too old in the next few buckets: called now and then, it comes round.
    pub fn sweep(&mut self, now: Tick, buckets: usize) {
        for _ in 0..buckets.min(self.buckets.len()) {
            self.sweep = (self.sweep + 1) % self.buckets.len();
            for way in 0..WAYS {
                let at = (self.sweep, way);
                if self.at(at).state != EntryState::Free
                    && is_old(self.at(at), self.config.age, now)
                {
                    self.free(at);
                }
            }
        }
    }

    /// The buckets there are: where [`entries`](Self::entries) ends.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The entries of some buckets, so that a reader of the whole table can do it in steps.
    pub fn entries(
        &self,
        buckets: std::ops::Range<usize>,
        now: Tick,
    ) -> impl Iterator<Item = MacEntry> {
        let end = buckets.end.min(self.buckets.len());
        let all = self.buckets[buckets.start.min(end)..end].iter().flat_map(|bucket| &bucket.0);
        let live = all.filter(move |entry| {
            entry.state != EntryState::Free && !is_old(entry, self.config.age, now)
        });
        live.map(move |entry| MacEntry {
            vlan: (entry.key >> 48) as u16,
            mac: entry.key & MAC,
            port: entry.port,
            idle: if entry.state == EntryState::Static { 0 } else { now.wrapping_sub(entry.seen) },
            is_static: entry.state == EntryState::Static,
        })
    }

    /// Finds room for an address that is not in the table.
    #[cold]
    fn insert(&mut self, key: u64, port: PortNumber, now: Tick) -> Learned {
        let at_limit = self.learned(port) >= self.config.per_port;
        let ways = self.ways(key);
        let room = if at_limit { None } else { self.room(&ways, now) };
        let at = room.or_else(|| {
            let young = ways.into_iter().filter(|&at| {
                self.at(at).state == EntryState::Young && (!at_limit || self.at(at).port == port)
            });
            young.max_by_key(|&at| now.wrapping_sub(self.at(at).seen))
        });
        let Some(at) = at else { return Learned::NoRoom };
        self.free(at);
        self.buckets[at.0].0[at.1] = Entry { key, seen: now, port, state: EntryState::Young };
        self.learned[usize::from(port)] += 1;
        Learned::New
    }

    /// A way that nobody needs, in the emptier of two buckets.
    fn room(&self, ways: &[At], now: Tick) -> Option<At> {
        let is_room = |&at: &At| {
            let entry = self.at(at);
            entry.state == EntryState::Free || is_old(entry, self.config.age, now)
        };
        let (first, second) = ways.split_at(WAYS);
        let count = |ways: &[At]| ways.iter().filter(|at| is_room(at)).count();
        let emptier = if count(second) > count(first) { second } else { first };
        emptier.iter().copied().find(is_room)
    }

    #[inline]
    fn position(&self, key: u64) -> Option<At> {
        self.homes(key).into_iter().find_map(|bucket| {
            let entries = &self.buckets[bucket].0;
            let way = entries.iter().position(|e| e.key == key && e.state != EntryState::Free)?;
            Some((bucket, way))
        })
    }

    /// The two buckets that a key can be in.
    #[inline]
    fn homes(&self, key: u64) -> [usize; 2] {
        let mask = self.buckets.len() - 1;
        self.seeds.map(|seed| {
            // A product folded in half mixes all bits of both factors.
            let product = u128::from(key ^ seed) * u128::from(seed.rotate_left(32) | 1);
            ((product >> 64) ^ product) as usize & mask
        })
    }

    fn ways(&self, key: u64) -> [At; 2 * WAYS] {
        let homes = self.homes(key);
        std::array::from_fn(|i| (homes[i / WAYS], i % WAYS))
    }

    fn at(&self, (bucket, way): At) -> &Entry {
        &self.buckets[bucket].0[way]
    }

    fn free(&mut self, at: At) {
        let entry = std::mem::take(&mut self.buckets[at.0].0[at.1]);
        match entry.state {
            EntryState::Free => {}
            EntryState::Static => self.statics -= 1,
            EntryState::Young | EntryState::MacEntry => self.learned[usize::from(entry.port)] -= 1,
        }
    }

    fn take_out(&mut self, which: impl Fn(&Entry) -> bool) -> usize {
        let mut taken = 0;
        for bucket in 0..self.buckets.len() {
            for way in 0..WAYS {
                let entry = self.at((bucket, way));
                if entry.state != EntryState::Free && which(entry) {
                    self.free((bucket, way));
                    taken += 1;
                }
            }
        }
        taken
    }
}

const MAC: u64 = (1 << 48) - 1;

fn key(vlan: u16, mac: u64) -> u64 {
    u64::from(vlan) << 48 | mac & MAC
}

#[inline]
fn is_old(entry: &Entry, age: Tick, now: Tick) -> bool {
    entry.state != EntryState::Static && now.wrapping_sub(entry.seen) > age
}

#[cfg(test)]
mod tests;
