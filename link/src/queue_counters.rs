//! Counters of single queues. Each driver has its own names for them in `ethtool -S` (`*_ethtool.c`, Linux
//! 6.x).

use std::collections::BTreeMap;

/// The direction of packets, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Received.
    Rx,
    /// Sent.
    Tx,
}

use Direction::{Rx, Tx};

/// Counters of one queue; `None` if its driver does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounters {
    /// Receive or transmit queue.
    pub direction: Direction,
    /// Its number.
    pub queue: u32,
    /// Packets that passed it. If a driver counts only packets of its XDP path (veth), these are all received
    /// packets while it runs an XDP program; otherwise this is `None`.
    pub packets: Option<u64>,
    /// Bytes of those packets.
    pub bytes: Option<u64>,
    /// Packets lost in the queue: no buffer, no room.
    pub drops: Option<u64>,
    /// Packets an XDP program dropped on purpose.
    pub xdp_drops: Option<u64>,
}

/// The kinds of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Packets,
    Bytes,
    Drops,
    XdpPackets,
    XdpBytes,
    XdpDrops,
}

/// One statistic of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Statistic {
    direction: Direction,
    queue: u32,
    count: Count,
}

/// The forms of names: the text before the queue's number, the text after it, and the direction.
const FORMS: &[(&str, &str, Direction)] = &[
    ("rx_queue_", "_", Rx), // ixgbe, igb, ice, veth, older virtio_net
    ("tx_queue_", "_", Tx),
    ("rx-", ".", Rx), // i40e
    ("tx-", ".", Tx),
    ("rx", "_", Rx), // mlx5, newer virtio_net
    ("tx", "_", Tx),
    ("queue_", "_rx_", Rx), // ena
    ("queue_", "_tx_", Tx),
    ("[", "]: rx_", Rx), // bnxt
    ("[", "]: tx_", Tx),
];

/// Drivers' names of each kind of statistic. Several with the same meaning are added up.
const COUNTS: [(Count, &str); 6] = [
    // cnt: ena. rx_packets, tx_packets: older i40e. By kind of address: bnxt.
    (Count::Packets, "packets cnt rx_packets tx_packets ucast_packets mcast_packets bcast_packets"),
    (Count::Bytes, "bytes rx_bytes tx_bytes ucast_bytes mcast_bytes bcast_bytes"),
    // drops: igb, veth, virtio_net. discards: bnxt. alloc_failed: igb. The others: mlx5.
    (
        Count::Drops,
        "drops dropped discards buff_alloc_err wqe_err oversize_pkts_sw_drop alloc_failed",
    ),
    // xdp_xmit: veth, sending.
    (Count::XdpPackets, "xdp_packets xdp_xmit"),
    (Count::XdpBytes, "xdp_bytes"),
    // xdp_drop: mlx5, ena. xdp_drops: veth, virtio_net.
    (Count::XdpDrops, "xdp_drop xdp_drops"),
];

/// The positions of each queue's counts in a driver's statistics, computed once per list of names.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueMap {
    /// The number of names.
    pub(super) names: usize,
    places: Vec<(usize, Statistic)>,
}

impl QueueMap {
    /// Finds the queues in the names of a driver's statistics.
    pub(super) fn new(names: &[String]) -> Self {
        let found = names.iter().enumerate();
        Self {
            names: names.len(),
            places: found.filter_map(|(at, name)| Some((at, parse(name)?))).collect(),
        }
    }

    /// True if the driver has no counters of single queues.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns each queue's counts from the values of the names, by direction and number. `native_xdp` means
    /// that all received packets take the XDP path.
    pub(super) fn read(&self, values: &[u64], native_xdp: bool) -> Vec<QueueCounters> {
        let mut queues: BTreeMap<(Direction, u32), [Option<u64>; 6]> = BTreeMap::new();
        for (at, statistic) in &self.places {
            let Some(value) = values.get(*at) else { continue };
            let sums = queues.entry((statistic.direction, statistic.queue)).or_default();
            let sum = &mut sums[statistic.count as usize];
            *sum = Some(sum.unwrap_or(0).wrapping_add(*value));
        }
        let counters = queues.into_iter().map(|((direction, queue), sums)| {
            let sum = |count: Count| sums[count as usize];
            let all_by_xdp = |count| sum(count).filter(|_| native_xdp && direction == Rx);
            QueueCounters {
                direction,
                queue,
                packets: sum(Count::Packets).or_else(|| all_by_xdp(Count::XdpPackets)),
                bytes: sum(Count::Bytes).or_else(|| all_by_xdp(Count::XdpBytes)),
                drops: sum(Count::Drops),
                xdp_drops: sum(Count::XdpDrops),
            }
        });
        counters.collect()
    }
}

fn parse(name: &str) -> Option<Statistic> {
    FORMS.iter().find_map(|(before, after, direction)| {
        let rest = name.strip_prefix(before)?;
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, rest) = rest.split_at(digits);
        let counted = rest.strip_prefix(after)?;
        let (count, _) =
            COUNTS.iter().find(|(_, names)| names.split(' ').any(|it| it == counted))?;
        Some(Statistic { direction: *direction, queue: number.parse().ok()?, count: *count })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_real_drivers_are_read() {
        use Count::{Bytes, Drops, Packets, XdpDrops, XdpPackets};
        for (driver, name, expected) in [
            ("ixgbe", "rx_queue_0_packets", Some((Rx, 0, Packets))),
            ("ixgbe", "tx_queue_63_bytes", Some((Tx, 63, Bytes))),
            ("ixgbe", "rx_pb_0_pxon", None),
            ("ixgbe", "rx_packets", None),
            ("ixgbe", "fdir_match", None),
            ("igb", "rx_queue_3_drops", Some((Rx, 3, Drops))),
            ("igb", "rx_queue_0_alloc_failed", Some((Rx, 0, Drops))),
            ("igb", "rx_queue_0_csum_err", None),
            ("igb", "tx_queue_0_restart", None),
            ("igb", "dropped_smbus", None),
            ("i40e", "rx-12.packets", Some((Rx, 12, Packets))),
            ("i40e", "tx-0.bytes", Some((Tx, 0, Bytes))),
            ("older i40e", "tx-7.tx_packets", Some((Tx, 7, Packets))),
            ("i40e", "veb.tc_0_tx_packets", None),
            ("i40e", "port.rx_dropped", None),
            ("ice", "tx_queue_127_packets", Some((Tx, 127, Packets))),
            ("ice", "rx_dropped.nic", None),
            ("mlx5", "rx31_packets", Some((Rx, 31, Packets))),
            ("mlx5", "rx0_buff_alloc_err", Some((Rx, 0, Drops))),
            ("mlx5", "tx4_dropped", Some((Tx, 4, Drops))),
            ("mlx5", "rx0_xdp_drop", Some((Rx, 0, XdpDrops))),
            ("mlx5", "rx0_cqe_compress_blks", None),
            ("mlx5", "tx_prio0_packets", None),
            ("mlx5", "ch0_events", None),
            ("mlx5", "rx_out_of_buffer", None),
            ("older virtio_net", "rx_queue_0_drops", Some((Rx, 0, Drops))),
            ("older virtio_net", "rx_queue_0_kicks", None),
            ("newer virtio_net", "rx0_xdp_drops", Some((Rx, 0, XdpDrops))),
            ("newer virtio_net", "tx0_xdp_tx", None),
            ("newer virtio_net", "rx_xdp_packets", None),
            ("veth", "rx_queue_0_xdp_packets", Some((Rx, 0, XdpPackets))),
            ("veth", "rx_queue_1_drops", Some((Rx, 1, Drops))),
            ("veth", "rx_queue_0_xdp_drops", Some((Rx, 0, XdpDrops))),
            ("veth", "tx_queue_0_xdp_xmit", Some((Tx, 0, XdpPackets))),
            ("veth", "tx_queue_0_xdp_xmit_errors", None),
            ("veth", "peer_ifindex", None),
            ("ena", "queue_0_rx_cnt", Some((Rx, 0, Packets))),
            ("ena", "queue_31_tx_bytes", Some((Tx, 31, Bytes))),
            ("ena", "queue_0_rx_xdp_drop", Some((Rx, 0, XdpDrops))),
            ("ena", "queue_0_tx_napi_comp", None),
            ("bnxt", "[3]: rx_ucast_packets", Some((Rx, 3, Packets))),
            ("bnxt", "[0]: tx_discards", Some((Tx, 0, Drops))),
            ("nobody", "", None),
            ("nobody", "rx_queue__packets", None),
            ("nobody", "rx_queue_99999999999_packets", None),
            ("nobody", "rx_queue_0_", None),
            ("nobody", "rx_queue_0", None),
        ] {
            let expected =
                expected.map(|(direction, queue, count)| Statistic { direction, queue, count });
            assert_eq!(parse(name), expected, "{driver}: {name}");
        }
    }

    fn read(statistics: &[(&str, u64)]) -> Vec<QueueCounters> {
        read_with(statistics, false)
    }

    fn read_with(statistics: &[(&str, u64)], native_xdp: bool) -> Vec<QueueCounters> {
        let names: Vec<String> = statistics.iter().map(|(name, _)| (*name).into()).collect();
        let values: Vec<u64> = statistics.iter().map(|(_, value)| *value).collect();
        QueueMap::new(&names).read(&values, native_xdp)
    }

    #[test]
    fn a_queues_statistics_come_together_whatever_their_order() {
        let queues = read(&[
            ("tx_queue_0_packets", 5),
            ("rx_queue_10_packets", 3),
            ("rx_packets", 99),
            ("rx_queue_2_packets", 1),
            ("rx_queue_2_bytes", 60),
            ("rx_queue_2_drops", 7),
        ]);
        let order: Vec<_> = queues.iter().map(|q| (q.direction, q.queue)).collect();
        assert_eq!(order, [(Rx, 2), (Rx, 10), (Tx, 0)]);
        assert_eq!(queues[0].packets, Some(1));
        assert_eq!(queues[0].bytes, Some(60));
        assert_eq!(queues[0].drops, Some(7));
        assert_eq!(queues[1].drops, None, "what is not counted is not zero");
    }

    #[test]
    fn xdp_packets_stand_in_only_where_they_are_all_there_is() {
        let veth = [("rx_queue_0_xdp_packets", 4), ("rx_queue_0_xdp_bytes", 240)];
        let sent = [("tx_queue_0_xdp_xmit", 4)];
        let virtio = [("rx_queue_0_xdp_packets", 4), ("rx_queue_0_packets", 9)];
        for (sentence, statistics, native_xdp, packets, bytes) in [
            ("a part of what came is no count", &veth[..], false, None, None),
            ("a program has all that comes", &veth, true, Some(4), Some(240)),
            ("but not all that is sent", &sent, true, None, None),
            ("all are counted beside them", &virtio, false, Some(9), None),
            ("also with a program", &virtio, true, Some(9), None),
        ] {
            let queue = read_with(statistics, native_xdp)[0];
            assert_eq!((queue.packets, queue.bytes), (packets, bytes), "{sentence}");
        }
    }

    #[test]
    fn several_causes_and_kinds_are_added_up() {
        let mlx5 = read(&[("rx0_buff_alloc_err", 2), ("rx0_wqe_err", 3)]);
        assert_eq!(mlx5[0].drops, Some(5));
        let bnxt = read(&[("[0]: rx_ucast_packets", 2), ("[0]: rx_mcast_packets", 3)]);
        assert_eq!(bnxt[0].packets, Some(5));
    }

    #[test]
    fn fewer_values_than_names_lose_only_what_is_missing() {
        let names = ["rx0_packets".to_owned(), "rx1_packets".to_owned()];
        assert_eq!(QueueMap::new(&names).read(&[6], false).len(), 1);
    }
}
