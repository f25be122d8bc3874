//! The addresses that a switch has seen, and the ports where.

use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of a table. An address overwrites another one with the same place.
const ENTRIES: usize = 1024;

/// A table of addresses that all ports of a switch read and write without a lock. An entry is one word: the
/// address, and the port's number plus one.
#[derive(Debug)]
pub(super) struct LearningTable(Box<[AtomicU64]>);

impl Default for LearningTable {
    fn default() -> Self {
        Self((0..ENTRIES).map(|_| AtomicU64::new(0)).collect())
    }
}

/// Returns an address as a number.
fn number(mac: &[u8; 6]) -> u64 {
    mac.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

impl LearningTable {
    fn entry(&self, address: u64) -> &AtomicU64 {
        // A multiplicative hash: the upper bits depend on all others.
        &self.0[(address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % ENTRIES]
    }

    /// Records the port of an address.
    #[inline]
    pub(super) fn learn(&self, mac: &[u8; 6], port: u32) {
        let address = number(mac);
        let (entry, value) = (self.entry(address), address << 16 | u64::from(port + 1));
        // Relaxed: an entry is one word, and publishes nothing. The check keeps the line shared.
        if entry.load(Ordering::Relaxed) != value {
            entry.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the port of an address, if it is known.
    #[inline]
    pub(super) fn find(&self, mac: &[u8; 6]) -> Option<u32> {
        let address = number(mac);
        let value = self.entry(address).load(Ordering::Relaxed);
        (value != 0 && value >> 16 == address).then(|| (value & 0xffff) as u32 - 1)
    }

    /// Forgets the addresses of a port.
    pub(super) fn forget(&self, port: u32) {
        for entry in &self.0 {
            if entry.load(Ordering::Relaxed) & 0xffff == u64::from(port + 1) {
                entry.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_where_it_was_last_seen() {
        let table = LearningTable::default();
        let macs: Vec<[u8; 6]> = (0..200).map(|i| [2, 0, 0, 0, 1, i]).collect();
        assert_eq!(table.find(&macs[0]), None);
        assert_eq!(table.find(&[0; 6]), None);
        macs.iter().for_each(|mac| table.learn(mac, 0));
        table.learn(&macs[7], 253);
        assert_eq!(table.find(&macs[7]), Some(253));
        let known = macs.iter().filter(|mac| table.find(mac).is_some()).count();
        assert!(known > 150, "few overwrite each other: {known}");
        table.forget(253);
        assert_eq!(table.find(&macs[7]), None);
        assert!(macs.iter().any(|mac| table.find(mac) == Some(0)));
    }
}
