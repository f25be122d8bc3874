//! Samples of all counters, and the rates between two of them.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use sluicegate_base::error::Result;

use super::{CpuCounters, Ethtool, Interface, LinkStats, Netlink, cpu};

/// Rates per second between two samples.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// The time between the samples.
    pub seconds: f64,
    /// The interfaces of the later sample.
    pub interfaces: Vec<InterfaceRates>,
    /// The CPUs that are in both.
    pub cpus: Vec<CpuRates>,
}

/// One interface's rates.
#[derive(Clone, Debug, Default)]
pub struct InterfaceRates {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// "up", "no carrier" or "down".
    pub state: &'static str,
    /// It was made or its counters were reset since the earlier sample: the rates are unknown,
    /// and zero here.
    pub reset: bool,
    /// Received.
    pub rx: DirectionRates,
    /// Sent.
    pub tx: DirectionRates,
    /// By queue, where the driver counts so.
    pub queues: Vec<QueueRates>,
}

/// One direction's rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionRates {
    /// Packets per second.
    pub packets: f64,
    /// Bits per second of layer 2, without preamble, gap and frame check sequence.
    pub bits_l2: f64,
    /// Packets lost per second, by cause. Causes do not overlap.
    pub drops: Vec<(&'static str, f64)>,
    /// Overflows per second of the card's own queue, which a driver may have counted among the
    /// drops as well.
    pub fifo: f64,
}

impl DirectionRates {
    /// Packets lost per second, whatever the cause.
    pub fn drops_total(&self) -> f64 {
        self.drops.iter().map(|(_, rate)| rate).sum()
    }
}

/// One queue's rates per second; absent where its driver does not count it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueRates {
    /// Receive or transmit queue.
    pub direction: Direction,
    /// Its number.
    pub queue: u32,
    /// Packets per second; see [`QueueCounters::packets`].
    pub packets: Option<f64>,
    /// Bits per second of layer 2.
    pub bits_l2: Option<f64>,
    /// Packets lost per second.
    pub drops: Option<f64>,
    /// Packets an XDP program dropped on purpose, per second.
    pub xdp_drops: Option<f64>,
}

/// One CPU's rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuRates {
    /// Its number.
    pub cpu: u32,
    /// The share of its time it was busy, from 0 to 1.
    pub busy: f64,
    /// The share of its time in softirqs, from 0 to 1.
    pub softirq: f64,
    /// Receive softirqs per second.
    pub net_rx: f64,
    /// Transmit softirqs per second.
    pub net_tx: f64,
    /// Packets handled in softirqs per second.
    pub processed: f64,
    /// Packets dropped per second because the CPU's backlog was full.
    pub dropped: f64,
    /// Times per second that the receive softirq's budget ran out.
    pub time_squeeze: f64,
}

impl Rates {
    /// The rates between two samples.
    pub fn between(before: &Sample, now: &Sample) -> Self {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let interfaces = now.interfaces.iter().map(|new| {
            // A name that was given to another interface has another number.
            let same = |old: &&InterfaceSample| {
                old.interface.index == new.interface.index
                    && old.interface.name == new.interface.name
            };
            interface_rates(before.interfaces.iter().find(same), new, seconds)
        });
        let cpus = now.cpus.iter().filter_map(|new| {
            let old = before.cpus.iter().find(|old| old.cpu == new.cpu)?;
            Some(cpu_rates(old, new, seconds))
        });
        Self { seconds, interfaces: interfaces.collect(), cpus: cpus.collect() }
    }
}

fn interface_rates(
    old: Option<&InterfaceSample>,
    new: &InterfaceSample,
    seconds: f64,
) -> InterfaceRates {
    let mut rates = InterfaceRates {
        name: new.interface.name.clone(),
        index: new.interface.index,
        state: new.interface.state(),
        reset: old.is_none_or(|old| restarted(&old.interface.stats, &new.interface.stats)),
        ..InterfaceRates::default()
    };
    let known = old.filter(|_| !rates.reset);
    let (old, stats) = (known.unwrap_or(new), &new.interface.stats);
    (rates.rx, rates.tx) = both_directions(&old.interface.stats, stats, seconds);
    let queues = new.queues.iter().map(|queue| {
        let place = (queue.direction, queue.queue);
        let earlier = old.queues.iter().find(|old| (old.direction, old.queue) == place);
        queue_rates(earlier.unwrap_or(queue), queue, seconds)
    });
    rates.queues = queues.collect();
    rates
}

fn restarted(old: &LinkStats, new: &LinkStats) -> bool {
    [
        (old.rx_packets, new.rx_packets),
        (old.rx_bytes, new.rx_bytes),
        (old.tx_packets, new.tx_packets),
        (old.tx_bytes, new.tx_bytes),
    ]
    .iter()
    .any(|(old, new)| Counter::between(*old, *new) == Counter::Restarted)
}

fn both_directions(
    old: &LinkStats,
    new: &LinkStats,
    seconds: f64,
) -> (DirectionRates, DirectionRates) {
    let rate =
        |count: fn(&LinkStats) -> u64| Counter::between(count(old), count(new)).per_second(seconds);
    let rx = DirectionRates {
        packets: rate(|s| s.rx_packets),
        bits_l2: rate(|s| s.rx_bytes) * 8.0,
        drops: vec![
            ("missed", rate(|s| s.rx_missed)),
            ("dropped", rate(|s| s.rx_dropped)),
            ("errors", rate(|s| s.rx_errors)),
            ("nohandler", rate(|s| s.rx_nohandler)),
        ],
        fifo: rate(|s| s.rx_fifo),
    };
    let tx = DirectionRates {
        packets: rate(|s| s.tx_packets),
        bits_l2: rate(|s| s.tx_bytes) * 8.0,
        drops: vec![("dropped", rate(|s| s.tx_dropped)), ("errors", rate(|s| s.tx_errors))],
        fifo: rate(|s| s.tx_fifo),
    };
    (rx, tx)
}

fn queue_rates(old: &QueueCounters, new: &QueueCounters, seconds: f64) -> QueueRates {
    let rate = |count: fn(&QueueCounters) -> Option<u64>| {
        // A count that has just appeared has no rate yet.
        let now = count(new)?;
        let before = count(old).unwrap_or(now);
        Some(Counter::between(before, now).per_second(seconds))
    };
    QueueRates {
        direction: new.direction,
        queue: new.queue,
        packets: rate(|q| q.packets),
        bits_l2: rate(|q| q.bytes).map(|bytes| bytes * 8.0),
        drops: rate(|q| q.drops),
        xdp_drops: rate(|q| q.xdp_drops),
    }
}

fn cpu_rates(old: &CpuCounters, new: &CpuCounters, seconds: f64) -> CpuRates {
    let rate = |count: fn(&CpuCounters) -> u64| {
        Counter::between(count(old), count(new)).per_second(seconds)
    };
    let total = new.total_ticks.saturating_sub(old.total_ticks);
    let idle = new.idle_ticks.saturating_sub(old.idle_ticks);
    let share = |ticks: u64| {
        if total == 0 { 0.0 } else { (ticks as f64 / total as f64).min(1.0) }
    };
    CpuRates {
        cpu: new.cpu,
        busy: share(total.saturating_sub(idle)),
        softirq: share(new.softirq_ticks.saturating_sub(old.softirq_ticks)),
        net_rx: rate(|c| c.net_rx),
        net_tx: rate(|c| c.net_tx),
        processed: rate(|c| c.processed),
        dropped: rate(|c| c.dropped),
        time_squeeze: rate(|c| c.time_squeeze),
    }
}

/// A counter's advance since the reading before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// It has grown by this much.
    Advanced(u64),
    /// It went back: its owner was made anew or reset. What passed in between is unknown.
    Restarted,
}

impl Counter {
    /// The way from one reading to the next.
    ///
    /// Some drivers count in 32 bits. A counter that fell from within 32 bits is taken to have
    /// wrapped where the way round is less than half of them, and to have restarted otherwise.
    pub fn between(before: u64, now: u64) -> Self {
        if now >= before {
            return Self::Advanced(now - before);
        }
        match (u32::try_from(before), u32::try_from(now)) {
            (Ok(before), Ok(now)) if now.wrapping_sub(before) < 1 << 31 => {
                Self::Advanced(now.wrapping_sub(before).into())
            }
            _ => Self::Restarted,
        }
    }

    /// The advance per second; zero where the counter restarted.
    pub fn per_second(self, seconds: f64) -> f64 {
        match self {
            Self::Advanced(by) if seconds > 0.0 => by as f64 / seconds,
            _ => 0.0,
        }
    }
}

/// All counters at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When they were read.
    pub at: Instant,
    /// The interfaces, in the kernel's order.
    pub interfaces: Vec<InterfaceSample>,
    /// The CPUs, by number.
    pub cpus: Vec<CpuCounters>,
}

/// One interface's counters.
#[derive(Clone, Debug, Default)]
pub struct InterfaceSample {
    /// The interface and its own counters; without its addresses.
    pub interface: Interface,
    /// Its queues', where the driver counts by queue.
    pub queues: Vec<QueueCounters>,
}

/// Reads counters again and again.
#[derive(Debug)]
pub struct Sampler {
    netlink: Netlink,
    ethtool: Ethtool,
    only: Vec<String>,
    /// By interface number: where its queues' counts are among its driver's statistics.
    maps: HashMap<u32, QueueMap>,
}

impl Sampler {
    /// Prepares to read the interfaces called `only`, or all if that is empty, in a namespace.
    /// Needs no privilege but to enter another namespace.
    ///
    /// # Errors
    /// No such namespace; none of an interface's name, once, now: later they may come and go.
    pub fn open(netns: Option<&str>, only: &[String]) -> Result<Self> {
        let mut netlink = Netlink::open(netns)?;
        for name in only {
            netlink.index(name)?;
        }
        Ok(Self {
            netlink,
            ethtool: Ethtool::open(netns)?,
            only: only.to_vec(),
            maps: HashMap::new(),
        })
    }

    /// Reads all counters now.
    ///
    /// # Errors
    /// The kernel does not answer, or there is no `/proc`.
    pub fn sample(&mut self) -> Result<Sample> {
        let mut links = self.netlink.links()?;
        let at = Instant::now();
        links.retain(|link| self.only.is_empty() || self.only.contains(&link.name));
        self.maps.retain(|index, _| links.iter().any(|link| link.index == *index));
        let interfaces = links
            .into_iter()
            .map(|interface| InterfaceSample { queues: self.queues(&interface), interface })
            .collect();
        Ok(Sample { at, interfaces, cpus: cpu::read()? })
    }

    /// An interface without a driver's statistics, or one removed meanwhile, has no queues.
    fn queues(&mut self, link: &Interface) -> Vec<QueueCounters> {
        let map = self.maps.entry(link.index).or_insert_with(|| {
            QueueMap::new(&self.ethtool.statistics_names(&link.name).unwrap_or_default())
        });
        if map.is_empty() {
            return Vec::new();
        }
        let Ok(mut values) = self.ethtool.statistics_values(&link.name) else {
            return Vec::new();
        };
        if values.len() != map.names {
            // The number of queues has changed: the names with it.
            let names = self.ethtool.statistics_names(&link.name).unwrap_or_default();
            *map = QueueMap::new(&names);
            values = self.ethtool.statistics_values(&link.name).unwrap_or_default();
        }
        map.read(&values, link.native_xdp)
    }
}

/// Which way packets go, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Received.
    Rx,
    /// Sent.
    Tx,
}

use Direction::{Rx, Tx};

/// Counters of one queue; absent where its driver does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounters {
    /// Receive or transmit queue.
    pub direction: Direction,
    /// Its number.
    pub queue: u32,
    /// Packets that passed it. A driver that counts only those that its XDP path handled (veth)
    /// counts all that it receives while it runs an XDP program; otherwise this is absent.
    pub packets: Option<u64>,
    /// Bytes of those packets.
    pub bytes: Option<u64>,
    /// Packets lost there: no buffer, no room.
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

/// How drivers write direction and number in the strings of `ethtool -S` (`*_ethtool.c`, Linux 6.x): what stands before the number and after it.
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

/// Drivers' names of statistics. Several with the same meaning are added up.
const COUNTS: &[(&str, Count)] = &[
    ("packets", Count::Packets),
    ("cnt", Count::Packets),        // ena
    ("rx_packets", Count::Packets), // older i40e
    ("tx_packets", Count::Packets),
    ("ucast_packets", Count::Packets), // bnxt
    ("mcast_packets", Count::Packets),
    ("bcast_packets", Count::Packets),
    ("bytes", Count::Bytes),
    ("rx_bytes", Count::Bytes),
    ("tx_bytes", Count::Bytes),
    ("ucast_bytes", Count::Bytes),
    ("mcast_bytes", Count::Bytes),
    ("bcast_bytes", Count::Bytes),
    ("drops", Count::Drops),          // igb, veth, virtio_net
    ("dropped", Count::Drops),        // mlx5
    ("discards", Count::Drops),       // bnxt
    ("buff_alloc_err", Count::Drops), // mlx5
    ("wqe_err", Count::Drops),
    ("oversize_pkts_sw_drop", Count::Drops),
    ("alloc_failed", Count::Drops), // igb
    ("xdp_packets", Count::XdpPackets),
    ("xdp_xmit", Count::XdpPackets), // veth, sending
    ("xdp_bytes", Count::XdpBytes),
    ("xdp_drop", Count::XdpDrops),  // mlx5, ena
    ("xdp_drops", Count::XdpDrops), // veth, virtio_net
];

/// Where each queue's counts stand among a driver's statistics; worked out once per list of
/// names.
#[derive(Clone, Debug, Default)]
struct QueueMap {
    /// How many names it was made from.
    names: usize,
    places: Vec<(usize, Statistic)>,
}

impl QueueMap {
    /// Finds the queues in the names of a driver's statistics.
    fn new(names: &[String]) -> Self {
        let found = names.iter().enumerate();
        Self {
            names: names.len(),
            places: found.filter_map(|(at, name)| Some((at, parse(name)?))).collect(),
        }
    }

    /// True if the driver has no counters of single queues.
    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Each queue's counts from the values that belong to the names, by direction and number.
    /// With `native_xdp` all that is received takes the way of XDP.
    fn read(&self, values: &[u64], native_xdp: bool) -> Vec<QueueCounters> {
        let mut queues: BTreeMap<(Direction, u32), [Option<u64>; 6]> = BTreeMap::new();
        for (at, statistic) in &self.places {
            let Some(value) = values.get(*at) else {
                continue;
            };
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
        let (_, count) = COUNTS.iter().find(|(name, _)| *name == counted)?;
        Some(Statistic { direction: *direction, queue: number.parse().ok()?, count: *count })
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::Interface;
    use super::*;

    fn sample(at: Instant, index: u32, rx_packets: u64, queue_packets: u64) -> Sample {
        let interface = Interface {
            index,
            name: "left0".into(),
            up: true,
            running: true,
            stats: LinkStats {
                rx_packets,
                rx_bytes: rx_packets * 60,
                rx_missed: rx_packets / 10,
                ..LinkStats::default()
            },
            ..Interface::default()
        };
        let queue = QueueCounters {
            direction: Direction::Rx,
            queue: 0,
            packets: Some(queue_packets),
            bytes: None,
            drops: None,
            xdp_drops: None,
        };
        Sample {
            at,
            interfaces: vec![InterfaceSample { interface, queues: vec![queue] }],
            cpus: vec![CpuCounters {
                total_ticks: rx_packets,
                idle_ticks: rx_packets / 4,
                ..CpuCounters::default()
            }],
        }
    }

    #[test]
    fn rates_are_per_second_whatever_the_interval() {
        let start = Instant::now();
        let before = sample(start, 7, 1000, u64::from(u32::MAX));
        let now = sample(start + Duration::from_millis(500), 7, 2000, 499);
        let rates = Rates::between(&before, &now);
        let left = &rates.interfaces[0];
        assert!(!left.reset);
        assert_eq!(left.rx.packets, 2000.0);
        assert_eq!(left.rx.bits_l2, 2000.0 * 60.0 * 8.0);
        assert_eq!(left.rx.drops[0], ("missed", 200.0));
        assert_eq!(left.rx.drops_total(), 200.0);
        assert_eq!(left.queues[0].packets, Some(1000.0), "a 32-bit queue counter wrapped");
        assert_eq!(left.queues[0].drops, None);
        assert_eq!(rates.cpus[0].busy, 0.75);
    }

    #[test]
    fn a_new_or_reset_interface_has_no_rate() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        for (sentence, before, now) in [
            ("another number: made anew", (7, 10), (8, 50)),
            ("the same number, counters back at the start", (7, 5000), (7, 50)),
        ] {
            let before = sample(start, before.0, before.1, 0);
            let now = sample(later, now.0, now.1, 1000);
            let rates = Rates::between(&before, &now);
            assert!(rates.interfaces[0].reset, "{sentence}");
            assert_eq!(rates.interfaces[0].rx.packets, 0.0, "{sentence}");
            assert_eq!(rates.interfaces[0].queues[0].packets, Some(0.0), "{sentence}");
        }
    }

    #[test]
    fn an_interface_that_vanished_is_not_there() {
        let start = Instant::now();
        let before = sample(start, 7, 10, 10);
        let now = Sample { interfaces: Vec::new(), ..sample(start, 7, 10, 10) };
        assert!(Rates::between(&before, &now).interfaces.is_empty());
        let at_once = Rates::between(&before, &before);
        assert_eq!(at_once.interfaces[0].rx.packets, 0.0, "no time, no rate");
    }

    #[test]
    fn a_counter_advances_wraps_or_restarts() {
        use Counter::{Advanced, Restarted};
        const WRAP: u64 = u32::MAX as u64;
        for (sentence, before, now, counter) in [
            ("still", 7, 7, Advanced(0)),
            ("forward", 7, 9, Advanced(2)),
            ("forward beyond 32 bits", WRAP, WRAP + 5, Advanced(5)),
            ("a 32-bit counter wraps", WRAP - 9, 10, Advanced(20)),
            ("a small counter that goes back restarted", 5000, 0, Restarted),
            ("a wrap of half of 32 bits is no wrap", 1 << 31, 0, Restarted),
            ("a 64-bit counter that goes back restarted", WRAP + 2, 0, Restarted),
            ("a 64-bit counter that jitters back", 1 << 40, (1 << 40) - 1, Restarted),
            ("the largest", 0, u64::MAX, Advanced(u64::MAX)),
        ] {
            assert_eq!(Counter::between(before, now), counter, "{sentence}");
        }
    }

    #[test]
    fn a_rate_over_no_time_is_zero() {
        assert_eq!(Counter::Advanced(5).per_second(0.0), 0.0);
        assert_eq!(Counter::Advanced(5).per_second(0.5), 10.0);
        assert_eq!(Counter::Restarted.per_second(1.0), 0.0);
    }

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
