//! Counters of lost packets among a driver's statistics. Their names are the driver's own.

use std::sync::Arc;

/// Parts of the names of such counters.
const WORDS: [&str; 9] =
    ["drop", "discard", "miss", "err", "fifo", "overrun", "no_buf", "nobuf", "alloc_fail"];

/// Parts of the names of counters of other things: interrupts, retransmissions, drops by an XDP program, which
/// are on purpose.
const OTHERS: [&str; 3] = ["interrupt", "transmission", "xdp_drop"];

/// The positions of loss counters in a driver's statistics.
#[derive(Clone, Debug, Default)]
pub(super) struct LossMap(Vec<(usize, Arc<str>)>);

impl LossMap {
    /// Finds the counters in the names of a driver's statistics.
    pub(super) fn new(names: &[String]) -> Self {
        let counts_losses = |name: &str| {
            let name = name.to_ascii_lowercase();
            WORDS.iter().any(|word| name.contains(word))
                && !OTHERS.iter().any(|word| name.contains(word))
        };
        let found = names.iter().enumerate().filter(|(_, name)| counts_losses(name));
        Self(found.map(|(at, name)| (at, name.as_str().into())).collect())
    }

    /// True if the driver has no such counter.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the counters from the values of the names.
    pub(super) fn read(&self, values: &[u64]) -> Vec<(Arc<str>, u64)> {
        let value = |(at, name): &(usize, Arc<str>)| Some((Arc::clone(name), *values.get(*at)?));
        self.0.iter().filter_map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_found_by_parts_of_their_names() {
        let names = [
            "rx_packets",
            "rx_queue_0_drops",
            "rx_missed_errors",
            "port.rx_discards",
            "tx_bytes",
            "rx_crc_err",
            "rx_queue_0_xdp_drops",
            "tx_interrupts",
            "tcp_retransmissions",
            "Rx Drops",
        ];
        let map = LossMap::new(&names.map(str::to_owned));
        let values = map.read(&[1, 2, 3, 4, 5, 6]);
        let values: Vec<_> = values.iter().map(|(name, value)| (&**name, *value)).collect();
        let expected = [
            ("rx_queue_0_drops", 2),
            ("rx_missed_errors", 3),
            ("port.rx_discards", 4),
            ("rx_crc_err", 6),
        ];
        assert_eq!(values, expected, "and none beyond the values");
        assert!(LossMap::new(&["rx_packets".to_owned()]).is_empty());
    }
}
