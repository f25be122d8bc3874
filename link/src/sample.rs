//! Reading all counters at one moment.

use std::collections::HashMap;
use std::time::Instant;

use super::driver_stats::QueueMap;
use super::{CpuCounters, Ethtool, Interface, Netlink, QueueCounters, cpu};
use sluicegate_base::error::Result;

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

    /// An interface that has gone meanwhile, or whose driver has nothing to say, has no queues.
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
