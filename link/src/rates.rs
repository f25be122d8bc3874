//! Samples of all counters, and the rates between two of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use sluicegate_base::error::{Error, Result};

use super::loss_counters::LossMap;
use super::queue_counters::{Direction, QueueCounters, QueueMap};
use super::{CpuCounters, Ethtool, Interface, LinkStats, Netlink, cpu};

/// Rates per second between two samples.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// The time between the samples.
    pub seconds: f64,
    /// The interfaces of the later sample.
    pub interfaces: Vec<InterfaceRates>,
    /// The CPUs in both samples.
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
    /// True if it was created or its counters were reset since the earlier sample; then the rates are
    /// unknown, and zero here.
    pub reset: bool,
    /// Received.
    pub rx: DirectionRates,
    /// Sent.
    pub tx: DirectionRates,
    /// Rates by queue, if the driver counts by queue.
    pub queues: Vec<QueueRates>,
    /// The link's bits per second, if the driver reports its speed.
    pub speed: Option<f64>,
    /// Losses per second by the driver's own counters, which may overlap with others.
    pub driver_losses: Vec<(Arc<str>, f64)>,
}

impl InterfaceRates {
    /// Returns the share of the link's time that packets of one direction take, from 0 to 1, if its speed is
    /// known. On the wire each takes 24 bytes more: preamble, frame check sequence and gap.
    pub fn utilisation(&self, rates: &DirectionRates) -> Option<f64> {
        const OVERHEAD_BITS: f64 = 24.0 * 8.0;
        self.speed.map(|speed| (rates.bits_l2 + rates.packets * OVERHEAD_BITS) / speed)
    }
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
    /// Overflows per second of the card's own queue, which a driver may also count as drops.
    pub fifo: f64,
}

impl DirectionRates {
    /// Returns the packets lost per second, over all causes.
    pub fn drops_total(&self) -> f64 {
        self.drops.iter().map(|(_, rate)| rate).sum()
    }
}

/// One queue's rates per second; `None` if its driver does not count.
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
    /// The share of time that it was busy, from 0 to 1.
    pub busy: f64,
    /// The share of time in softirqs, from 0 to 1.
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
    /// Computes the rates between two samples.
    pub fn between(before: &Sample, now: &Sample) -> Self {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let interfaces = now.interfaces.iter().map(|new| {
            // The number distinguishes another interface that got the same name.
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
        speed: new.speed,
        reset: old.is_none_or(|old| restarted(&old.interface.stats, &new.interface.stats)),
        ..InterfaceRates::default()
    };
    let known = old.filter(|_| !rates.reset);
    let (old, stats) = (known.unwrap_or(new), &new.interface.stats);
    [rates.rx, rates.tx] = both_directions(&old.interface.stats, stats, seconds);
    let queues = new.queues.iter().map(|queue| {
        let place = (queue.direction, queue.queue);
        let earlier = old.queues.iter().find(|old| (old.direction, old.queue) == place);
        queue_rates(earlier.unwrap_or(queue), queue, seconds)
    });
    rates.queues = queues.collect();
    let losses = new.losses.iter().map(|(name, now)| {
        let before = old.losses.iter().find(|(earlier, _)| earlier == name);
        let before = before.map_or(*now, |(_, before)| *before);
        (Arc::clone(name), per_second(before, *now, seconds))
    });
    rates.driver_losses = losses.collect();
    rates
}

fn restarted(old: &LinkStats, new: &LinkStats) -> bool {
    let counts: [fn(&LinkStats) -> u64; 4] =
        [|s| s.rx_packets, |s| s.rx_bytes, |s| s.tx_packets, |s| s.tx_bytes];
    counts.iter().any(|count| advance(count(old), count(new)).is_none())
}

fn both_directions(old: &LinkStats, new: &LinkStats, seconds: f64) -> [DirectionRates; 2] {
    let rate = |count: fn(&LinkStats) -> u64| per_second(count(old), count(new), seconds);
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
    [rx, tx]
}

fn queue_rates(old: &QueueCounters, new: &QueueCounters, seconds: f64) -> QueueRates {
    let rate = |count: fn(&QueueCounters) -> Option<u64>| {
        // A new counter has no rate yet.
        let now = count(new)?;
        let before = count(old).unwrap_or(now);
        Some(per_second(before, now, seconds))
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
    let rate = |count: fn(&CpuCounters) -> u64| per_second(count(old), count(new), seconds);
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

/// Returns a counter's advance since the previous reading; `None` if it went back, because its owner was
/// created again or reset.
///
/// Some drivers count in 32 bits. A counter that fell from a 32-bit value is assumed to have wrapped if the
/// distance through the wrap is less than half of the range, and otherwise to have restarted.
fn advance(before: u64, now: u64) -> Option<u64> {
    if now >= before {
        return Some(now - before);
    }
    let (before, now) = (u32::try_from(before).ok()?, u32::try_from(now).ok()?);
    let by = now.wrapping_sub(before);
    (by < 1 << 31).then_some(by.into())
}

/// Returns the advance per second; zero if the counter restarted.
fn per_second(before: u64, now: u64, seconds: f64) -> f64 {
    let by = advance(before, now).filter(|_| seconds > 0.0);
    by.map_or(0.0, |by| by as f64 / seconds)
}

/// All counters at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The time of reading.
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
    /// The counters of its queues, if the driver counts by queue.
    pub queues: Vec<QueueCounters>,
    /// The driver's own counters of losses, with their names.
    pub losses: Vec<(Arc<str>, u64)>,
    /// The link's bits per second, if the driver reports its speed.
    pub speed: Option<f64>,
}

/// The positions of counters in a driver's statistics, and the link's speed.
#[derive(Debug, Default)]
struct Driver {
    queues: QueueMap,
    losses: LossMap,
    speed: Option<f64>,
    /// The link's state when its speed was read.
    running: bool,
}

impl Driver {
    fn read(ethtool: &mut Ethtool, link: &Interface) -> Self {
        let speed = ethtool.speed(&link.name).ok().flatten();
        let mut driver = Self {
            speed: speed.map(|mbit| f64::from(mbit) * 1e6),
            running: link.running,
            ..Self::default()
        };
        driver.read_names(ethtool, link);
        driver
    }

    fn read_names(&mut self, ethtool: &mut Ethtool, link: &Interface) {
        let names = ethtool.statistics_names(&link.name).unwrap_or_default();
        (self.queues, self.losses) = (QueueMap::new(&names), LossMap::new(&names));
    }
}

/// Reads counters repeatedly.
#[derive(Debug)]
pub struct Sampler {
    netlink: Netlink,
    ethtool: Ethtool,
    only: Vec<String>,
    /// By interface number.
    drivers: HashMap<u32, Driver>,
}

impl Sampler {
    /// Prepares to read the interfaces named in `only`, or all if that is empty, in a namespace. Needs a
    /// privilege only to enter another namespace.
    ///
    /// # Errors
    /// No such namespace; an interface of `only` does not exist now. Later, some may come and go.
    pub fn open(netns: Option<&str>, only: &[String]) -> Result<Self> {
        let mut netlink = Netlink::open(netns)?;
        for name in only {
            netlink.index(name)?;
        }
        Ok(Self {
            netlink,
            ethtool: Ethtool::open(netns)?,
            only: only.to_vec(),
            drivers: HashMap::new(),
        })
    }

    /// Reads all counters now.
    ///
    /// # Errors
    /// The kernel does not answer, or there is no `/proc`; all interfaces of `only` were removed.
    pub fn sample(&mut self) -> Result<Sample> {
        let mut links = self.netlink.links()?;
        let at = Instant::now();
        links.retain(|link| self.only.is_empty() || self.only.contains(&link.name));
        if links.is_empty() && !self.only.is_empty() {
            return Err(Error::removed(self.only.join(", ")));
        }
        self.drivers.retain(|index, _| links.iter().any(|link| link.index == *index));
        let interfaces = links.into_iter().map(|link| self.interface(link)).collect();
        Ok(Sample { at, interfaces, cpus: cpu::read()? })
    }

    /// Reads the driver's counters; none for an interface without driver statistics, or one that was removed.
    fn interface(&mut self, interface: Interface) -> InterfaceSample {
        let Self { ethtool, drivers, .. } = self;
        let read = |ethtool: &mut Ethtool| Driver::read(ethtool, &interface);
        let driver = drivers.entry(interface.index).or_insert_with(|| read(ethtool));
        if driver.running != interface.running {
            // The link may have another speed now.
            *driver = read(ethtool);
        }
        let mut sample = InterfaceSample { speed: driver.speed, ..InterfaceSample::default() };
        if !(driver.queues.is_empty() && driver.losses.is_empty())
            && let Ok(mut values) = ethtool.statistics_values(&interface.name)
        {
            if values.len() != driver.queues.names {
                // The number of queues has changed, and the names with it.
                driver.read_names(ethtool, &interface);
                values = ethtool.statistics_values(&interface.name).unwrap_or_default();
            }
            sample.queues = driver.queues.read(&values, interface.native_xdp);
            sample.losses = driver.losses.read(&values);
        }
        InterfaceSample { interface, ..sample }
    }
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
            interfaces: vec![InterfaceSample {
                interface,
                queues: vec![queue],
                losses: vec![("rx_no_buf".into(), rx_packets / 100)],
                speed: Some(1e6),
            }],
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
        assert_eq!(left.driver_losses, [("rx_no_buf".into(), 20.0)]);
        let share = left.utilisation(&left.rx);
        assert_eq!(share, Some(2000.0 * 84.0 * 8.0 / 1e6), "with 24 bytes beside each packet");
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
        const WRAP: u64 = u32::MAX as u64;
        for (sentence, before, now, by) in [
            ("still", 7, 7, Some(0)),
            ("forward", 7, 9, Some(2)),
            ("forward beyond 32 bits", WRAP, WRAP + 5, Some(5)),
            ("a 32-bit counter wraps", WRAP - 9, 10, Some(20)),
            ("a small counter that goes back restarted", 5000, 0, None),
            ("a wrap of half of 32 bits is no wrap", 1 << 31, 0, None),
            ("a 64-bit counter that goes back restarted", WRAP + 2, 0, None),
            ("a 64-bit counter that jitters back", 1 << 40, (1 << 40) - 1, None),
            ("the largest", 0, u64::MAX, Some(u64::MAX)),
        ] {
            assert_eq!(advance(before, now), by, "{sentence}");
        }
    }

    #[test]
    fn a_rate_over_no_time_is_zero() {
        assert_eq!(per_second(0, 5, 0.0), 0.0);
        assert_eq!(per_second(0, 5, 0.5), 10.0);
        assert_eq!(per_second(5000, 0, 1.0), 0.0, "it restarted");
    }
}
