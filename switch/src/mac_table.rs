//! The table of hosts and their ports, learned from packets.
//!
//! ```text
//!   VLAN, address ── two hashes, secret seeds ──> two buckets of four entries, a cache line each
//! ```
//!
//! Its memory is allocated once. A flood of addresses harms only the port that receives it:
//!
//! - each port has a limit of learned entries;
//! - an entry is *young* until its host is seen again later, or a packet is sent to it. Only young
//!   entries make room for new ones, the oldest first; a port at its limit replaces only its own;
//! - static entries stay until they are removed;
//! - the seeds are secret, so an attacker cannot aim at a bucket.
//!
//! A host without an entry is still reached: packets to it are flooded.

use std::hash::{BuildHasher, RandomState};

/// The number of a port in a switch.
pub type PortNumber = u16;
/// Maximum of ports of a switch.
pub const MAX_PORTS: usize = 256;
/// The table's time, in tenths of a second from any start; it may wrap.
pub type Tick = u32;
/// Ticks in a second.
pub const TICKS_PER_SECOND: u32 = 10;

const WAYS: usize = 4;

/// The state of an entry, ordered: a new address may replace an entry in a lower state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum EntryState {
    #[default]
    Free,
    /// The host was seen once, or has moved, and no packet was sent to it.
    Young,
    /// The host was seen again, or a packet was sent to it.
    InUse,
    Static,
}

#[derive(Clone, Copy, Debug, Default)]
struct TableEntry {
    /// VLAN in the upper 16 bits, address in the lower 48.
    key: u64,
    seen: Tick,
    port: PortNumber,
    state: EntryState,
}

/// A bucket of entries: one cache line.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Bucket([TableEntry; WAYS]);

const _: () = assert!(size_of::<Bucket>() == 64);

/// The result of learning an address at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The entry existed.
    Same,
    /// A new entry was made.
    New,
    /// The entry named another port, and was changed.
    Moved,
    /// A static entry names another port, and stays.
    Elsewhere,
    /// The table has no room.
    NoRoom,
}

/// The settings of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacTableConfig {
    /// The number of entries, rounded up to a power of two, at least 64.
    pub entries: usize,
    /// Maximum of learned entries of a port.
    pub per_port: u32,
    /// The time after which the entry of a silent host is removed.
    pub age: Tick,
}

impl Default for MacTableConfig {
    /// 65,536 entries (1 MiB), 8,192 of a port, 300 s as in IEEE 802.1D.
    fn default() -> Self {
        Self { entries: 65_536, per_port: 8192, age: 300 * TICKS_PER_SECOND }
    }
}

/// An entry in listings of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacEntry {
    /// Its VLAN; 0 in a switch without VLANs.
    pub vlan: u16,
    /// Its address, in the lower 48 bits.
    pub mac: u64,
    /// Its port.
    pub port: PortNumber,
    /// Ticks since it was seen last.
    pub idle: Tick,
    /// The entry was set, not learned.
    pub is_static: bool,
}

/// The table of a switch, owned by one thread.
#[derive(Debug)]
pub struct MacTable {
    buckets: Box<[Bucket]>,
    seeds: [u64; 2],
    config: MacTableConfig,
    /// The number of learned entries of each port.
    learned: Vec<u32>,
    statics: usize,
    /// The next bucket to be swept.
    sweep: usize,
}

/// The position of an entry: bucket and way.
type At = (usize, usize);

impl MacTable {
    /// Creates an empty table.
    pub fn new(config: MacTableConfig) -> Self {
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

    /// Returns the maximum number of entries.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// Returns the number of a port's learned entries; expired ones count until they are swept.
    pub fn learned(&self, port: PortNumber) -> u32 {
        self.learned[usize::from(port)]
    }

    /// Finds the port of an address.
    #[inline]
    pub fn find(&mut self, vlan: u16, mac: u64, now: Tick) -> Option<PortNumber> {
        let (bucket, way) = self.position(key(vlan, mac))?;
        let entry = &mut self.buckets[bucket].0[way];
        if is_old(entry, self.config.age, now) {
            return None;
        }
        if entry.state == EntryState::Young {
            entry.state = EntryState::InUse;
        }
        Some(entry.port)
    }

    /// Learns that an address is at a port.
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
                (entry.seen, entry.state) = (now, EntryState::InUse);
            }
            return Learned::Same;
        }
        self.learned[usize::from(entry.port)] -= 1;
        self.learned[usize::from(port)] += 1;
        *entry = TableEntry { key, seen: now, port, state: EntryState::Young };
        Learned::Moved
    }

    /// Adds a static entry. Returns false if there is no room for one more.
    pub fn set_static(&mut self, vlan: u16, mac: u64, port: PortNumber) -> bool {
        let key = key(vlan, mac);
        let at = self.position(key).or_else(|| {
            // At most a quarter of all entries, so that there is always room for learned ones.
            let full = self.statics >= self.capacity() / 4;
            let ways = self.ways(key).into_iter().filter(|_| !full);
            let lowest = ways.min_by_key(|&at| self.at(at).state);
            lowest.filter(|&at| self.at(at).state != EntryState::Static)
        });
        let Some(at) = at else { return false };
        self.free(at);
        self.buckets[at.0].0[at.1] = TableEntry { key, seen: 0, port, state: EntryState::Static };
        self.statics += 1;
        true
    }

    /// Removes an entry, static or not. Returns false if there is none.
    pub fn remove(&mut self, vlan: u16, mac: u64) -> bool {
        let at = self.position(key(vlan, mac));
        at.inspect(|&at| self.free(at)).is_some()
    }

    /// Removes the learned entries of one port or of all. Returns their number.
    pub fn flush(&mut self, port: Option<PortNumber>) -> usize {
        self.take_out(0..self.buckets.len(), |entry| {
            entry.state != EntryState::Static && port.is_none_or(|port| port == entry.port)
        })
    }

    /// Removes all entries of a port, including static ones. Returns their number.
    pub fn forget(&mut self, port: PortNumber) -> usize {
        self.take_out(0..self.buckets.len(), |entry| entry.port == port)
    }

    /// Removes expired entries from the next few buckets. Repeated calls sweep the whole table.
    pub fn sweep(&mut self, now: Tick, buckets: usize) {
        let (all, age, first) = (self.buckets.len(), self.config.age, self.sweep);
        self.sweep = (first + buckets.min(all)) % all;
        let swept = (0..buckets.min(all)).map(|place| (first + place) % all);
        self.take_out(swept, |entry| is_old(entry, age, now));
    }

    /// The number of buckets, for [`entries`](Self::entries).
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the entries of some buckets, so that a reader can list the whole table in steps.
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
        self.buckets[at.0].0[at.1] = TableEntry { key, seen: now, port, state: EntryState::Young };
        self.learned[usize::from(port)] += 1;
        Learned::New
    }

    /// Finds a free or expired way, in the emptier of two buckets.
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

    /// Returns the two buckets of a key.
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

    fn at(&self, (bucket, way): At) -> &TableEntry {
        &self.buckets[bucket].0[way]
    }

    fn free(&mut self, at: At) {
        let entry = std::mem::take(&mut self.buckets[at.0].0[at.1]);
        match entry.state {
            EntryState::Free => {}
            EntryState::Static => self.statics -= 1,
            EntryState::Young | EntryState::InUse => self.learned[usize::from(entry.port)] -= 1,
        }
    }

    /// Removes entries of some buckets. Returns their number.
    fn take_out(
        &mut self,
        buckets: impl Iterator<Item = usize>,
        which: impl Fn(&TableEntry) -> bool,
    ) -> usize {
        let mut taken = 0;
        for at in buckets.flat_map(|bucket| (0..WAYS).map(move |way| (bucket, way))) {
            if self.at(at).state != EntryState::Free && which(self.at(at)) {
                self.free(at);
                taken += 1;
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
fn is_old(entry: &TableEntry, age: Tick, now: Tick) -> bool {
    entry.state != EntryState::Static && now.wrapping_sub(entry.seen) > age
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn table(entries: usize, per_port: u32) -> MacTable {
        MacTable::new(MacTableConfig { entries, per_port, age: 100 })
    }

    #[test]
    fn a_host_is_found_where_it_was_seen_last() {
        let mut table = table(1024, 1024);
        assert_eq!(table.find(1, 7, 0), None);
        assert_eq!(table.learn(1, 7, 3, 0), Learned::New);
        assert_eq!(table.find(1, 7, 0), Some(3));
        assert_eq!(table.find(2, 7, 0), None, "another VLAN's is another host");
        assert_eq!(table.learn(1, 7, 4, 1), Learned::Moved);
        assert_eq!((table.find(1, 7, 1), table.learned(3), table.learned(4)), (Some(4), 0, 1));
    }

    #[test]
    fn a_silent_host_is_forgotten() {
        let mut table = table(1024, 1024);
        // The time wraps during the test.
        let start = Tick::MAX - 50;
        table.learn(0, 7, 3, start);
        assert_eq!(table.find(0, 7, start.wrapping_add(100)), Some(3));
        assert_eq!(
            table.find(0, 7, start.wrapping_add(101)),
            None,
            "to send to it does not keep it"
        );
        assert_eq!(table.learned(3), 1);
        table.sweep(start.wrapping_add(101), usize::MAX);
        assert_eq!(table.learned(3), 0);
    }

    #[test]
    fn a_static_entry_never_moves() {
        let mut table = table(1024, 1024);
        assert!(table.set_static(0, 7, 1));
        assert_eq!(table.learn(0, 7, 2, 0), Learned::Elsewhere);
        assert_eq!(table.learn(0, 7, 1, 0), Learned::Same);
        table.sweep(1_000_000, usize::MAX);
        assert_eq!((table.flush(None), table.find(0, 7, 1_000_000)), (0, Some(1)));
        assert!(table.set_static(0, 7, 2), "it can be set anew");
        assert_eq!(table.find(0, 7, 0), Some(2));
        assert!(table.remove(0, 7) && !table.remove(0, 7));
        table.set_static(0, 7, 2);
        assert_eq!((table.forget(2), table.find(0, 7, 0)), (1, None));
    }

    #[test]
    fn static_entries_take_a_quarter_at_most() {
        let mut table = table(64, 64);
        let set = (0..1000).filter(|&mac| table.set_static(0, mac, 1)).count();
        assert!((8..=16).contains(&set), "{set}");
    }

    /// After 64,000 invented addresses from one port, every host of the other ports is still known.
    #[test]
    fn a_flood_of_addresses_costs_its_own_port_only() {
        let config = MacTableConfig::default();
        let mut table = MacTable::new(config);
        let statics: Vec<u64> = (0..100).collect();
        statics.iter().for_each(|&mac| assert!(table.set_static(0, mac, 9)));
        let hosts: Vec<(u64, PortNumber)> =
            (1000..4000).map(|mac| (mac, (mac % 3) as u16)).collect();
        for tick in 0..2 {
            hosts.iter().for_each(|&(mac, port)| {
                table.learn(0, mac, port, tick);
            });
        }
        for i in 0..64_000u64 {
            table.learn(0, 0x0200_0000_0000 | i.wrapping_mul(0x9e37_79b9), 5, 3);
            assert!(table.learned(5) <= config.per_port);
        }
        for &(mac, port) in &hosts {
            assert_eq!(table.find(0, mac, 3), Some(port));
        }
        statics.iter().for_each(|&mac| assert_eq!(table.find(0, mac, 3), Some(9)));
        // A later host finds room despite the flood; at other ports always.
        for mac in 5000..6000 {
            assert_eq!(table.learn(0, mac, 2, 4), Learned::New);
        }
    }

    #[derive(Clone, Debug)]
    enum TableOperation {
        Learn(u16, u64, PortNumber),
        Find(u16, u64),
        Static(u16, u64, PortNumber),
        Remove(u16, u64),
        Flush(Option<PortNumber>),
        Forget(PortNumber),
        Wait(Tick),
        Sweep,
    }

    fn operation() -> impl Strategy<Value = TableOperation> {
        let (vlan, mac, port) = (0..3u16, 0..40u64, 0..4u16);
        prop_oneof![
            8 => (vlan.clone(), mac.clone(), port.clone()).prop_map(|(v, m, p)| TableOperation::Learn(v, m, p)),
            4 => (vlan.clone(), mac.clone()).prop_map(|(v, m)| TableOperation::Find(v, m)),
            1 => (vlan.clone(), mac.clone(), port.clone()).prop_map(|(v, m, p)| TableOperation::Static(v, m, p)),
            1 => (vlan, mac).prop_map(|(v, m)| TableOperation::Remove(v, m)),
            1 => proptest::option::of(port.clone()).prop_map(TableOperation::Flush),
            1 => port.prop_map(TableOperation::Forget),
            2 => (0..80u32).prop_map(TableOperation::Wait),
            1 => Just(TableOperation::Sweep),
        ]
    }

    /// The expected table, by VLAN and address: the port, when it was last seen, whether it is static.
    type Model = HashMap<(u16, u64), (PortNumber, Tick, bool)>;

    proptest! {
        /// With room for all entries the table equals a simple map.
        #[test]
        fn with_room_it_is_a_map(steps in proptest::collection::vec(operation(), 1..200), start: Tick) {
            let mut table = table(8192, 8192);
            let (mut model, mut now) = (Model::new(), start);
            let lives = |&(_, seen, fixed): &(PortNumber, Tick, bool), now: Tick| {
                fixed || now.wrapping_sub(seen) <= 100
            };
            for step in steps {
                match step {
                    TableOperation::Learn(vlan, mac, port) => {
                        table.learn(vlan, mac, port, now);
                        let fixed = model.get(&(vlan, mac)).is_some_and(|known| known.2);
                        if !fixed {
                            model.insert((vlan, mac), (port, now, false));
                        }
                    }
                    TableOperation::Find(vlan, mac) => {
                        let known = model.get(&(vlan, mac)).filter(|known| lives(known, now));
                        prop_assert_eq!(table.find(vlan, mac, now), known.map(|known| known.0));
                    }
                    TableOperation::Static(vlan, mac, port) => {
                        prop_assert!(table.set_static(vlan, mac, port));
                        model.insert((vlan, mac), (port, 0, true));
                    }
                    TableOperation::Remove(vlan, mac) => {
                        table.remove(vlan, mac);
                        model.remove(&(vlan, mac));
                    }
                    TableOperation::Flush(port) => {
                        table.flush(port);
                        model.retain(|_, known| known.2 || port.is_some_and(|port| port != known.0));
                    }
                    TableOperation::Forget(port) => {
                        table.forget(port);
                        model.retain(|_, known| known.0 != port);
                    }
                    TableOperation::Wait(ticks) => now = now.wrapping_add(ticks),
                    TableOperation::Sweep => table.sweep(now, usize::MAX),
                }
                model.retain(|_, known| lives(known, now));
            }
            table.sweep(now, usize::MAX);
            let mut there: Vec<_> =
                table.entries(0..table.buckets(), now).map(|e| (e.vlan, e.mac, e.port)).collect();
            let mut wanted: Vec<_> = model.iter().map(|(&(v, m), known)| (v, m, known.0)).collect();
            there.sort_unstable();
            wanted.sort_unstable();
            prop_assert_eq!(there, wanted);
            for port in 0..4 {
                let of_port = model.values().filter(|known| known.0 == port && !known.2).count();
                prop_assert_eq!(table.learned(port) as usize, of_port);
            }
        }

        /// Without room an entry may be missing, but no entry is wrong, and limits hold.
        #[test]
        fn without_room_it_says_nothing_wrong(
            steps in proptest::collection::vec((0..1000u64, 0..4u16, 0..3u32), 1..500)
        ) {
            let mut table = table(64, 12);
            let (mut model, mut now) = (HashMap::new(), 0);
            let statics: Vec<u64> = (5000..5008).filter(|&mac| table.set_static(0, mac, 9)).collect();
            for (mac, port, wait) in steps {
                now += wait;
                if table.learn(0, mac, port, now) != Learned::NoRoom {
                    model.insert(mac, (port, now));
                }
                if let Some(found) = table.find(0, mac, now) {
                    prop_assert_eq!(found, model[&mac].0);
                }
                let learned: u32 = (0..4).map(|port| table.learned(port)).sum();
                prop_assert!(learned as usize + statics.len() <= table.capacity());
                for mac in &statics {
                    prop_assert_eq!(table.find(0, *mac, now), Some(9));
                }
            }
        }
    }
}
