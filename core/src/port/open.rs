//! Opening ports of all kinds.

use std::sync::Arc;

use super::name::{Kind, PortName};
use super::options::{Directions, OpenOptions};
use super::queue::{Port, Queue};
use super::rings::PoolRequirements;
use super::{host, live, memif, mirror, monitor, null, packet, pcap, tap, xdp};
use crate::error::{Error, Result};
use sluicegate_base::memory::Pool;

impl Port {
    /// Opens a port by its [name](PortName).
    ///
    /// # Errors
    /// The name or an option is invalid, a privilege is missing, or the interface or file does not exist.
    pub fn open(name: &PortName, options: &OpenOptions) -> Result<Self> {
        let port = match name.kind() {
            Kind::Null => null::open(name, options),
            Kind::Packet => packet::open(name, options),
            Kind::Xdp => xdp::open(name, options),
            Kind::Mirror => mirror::open(name, options),
            Kind::Live => live::open(name, options),
            Kind::Host => host::open(name, options),
            Kind::Tap => tap::open(name, options),
            Kind::Memif => memif::open(name, options),
            Kind::Monitor => monitor::open(name, options),
            Kind::Pcap => pcap::open(name, options),
        }?;
        let is_fixed = name.queues().is_some() || name.kind().has_any_queues();
        if is_fixed || options.queues == 0 || port.queues.len() == options.queues as usize {
            Ok(port)
        } else {
            Err(other_count(name, port.queues.len(), options.queues))
        }
    }

    /// Opens a port of one queue by its [name](PortName): `packet:eth0`, `xdp:eth0/0`, `pcap:trace.pcapng`.
    /// For another namespace or latency, use [`open`](Self::open) and `queues.remove(0)`.
    ///
    /// # Errors
    /// As [`open`](Self::open); also if the port has several queues and the name does not select one.
    pub fn open_one(name: &str, usage: Directions) -> Result<Queue> {
        let name: PortName = name.parse()?;
        let options = OpenOptions { usage, queues: 1, ..OpenOptions::default() };
        let mut queues = Self::open(&name, &options)?.queues;
        match queues.len() {
            1 => Ok(queues.remove(0)),
            several => Err(other_count(&name, several, 1)),
        }
    }

    /// Makes a pool that is large enough to open these ports in it.
    ///
    /// # Errors
    /// An interface does not exist, or there is no memory.
    pub fn pool_for(ports: &[(PortName, Directions)], options: &OpenOptions) -> Result<Arc<Pool>> {
        let with = |usage| OpenOptions { usage, ..options.clone() };
        let needs = ports.iter().map(|(name, usage)| requirements(name, &with(*usage)));
        let sum = needs.reduce(|sum, more| Ok(sum?.and(more?))).transpose()?;
        sum.unwrap_or_default().pool()
    }

    /// Opens several ports in one pool: that of the options, or a new one that is large enough. Each port's
    /// [`Directions`] replace `options.usage`. An `xdp:` port in a pool has AF_XDP sockets, even if it only
    /// receives.
    ///
    /// # Errors
    /// As [`open`](Self::open). Ports that were already opened are closed.
    pub fn open_all(ports: &[(PortName, Directions)], options: &OpenOptions) -> Result<Vec<Self>> {
        let with = |usage| OpenOptions { usage, ..options.clone() };
        let pool = match &options.pool {
            Some(pool) => pool.clone(),
            None => Self::pool_for(ports, options)?,
        };
        let open = |(name, usage): &(PortName, Directions)| {
            Self::open(name, &OpenOptions { pool: Some(pool.clone()), ..with(*usage) })
        };
        ports.iter().map(open).collect()
    }
}

/// Makes the error of a port that has another number of queues than requested.
fn other_count(name: &PortName, has: usize, requested: u32) -> Error {
    let queues = if has == 1 { "queue" } else { "queues" };
    let select = match (name.kind(), requested) {
        (Kind::Xdp | Kind::Mirror, _) if has < requested as usize => String::new(),
        (Kind::Xdp | Kind::Mirror, 1) => format!(", or select one by name: {}/0", name.short()),
        (Kind::Xdp | Kind::Mirror, _) => {
            format!(", or select some by name: {}/0-{}", name.short(), requested - 1)
        }
        _ => String::new(),
    };
    name.error(format!(
        "it has {has} {queues}, and {requested} requested: request no number to open all{select}"
    ))
}

/// Returns the buffers that a port will need, before it is open.
fn requirements(name: &PortName, options: &OpenOptions) -> Result<PoolRequirements> {
    match name.kind() {
        Kind::Xdp => xdp::requirements(name, options),
        Kind::Memif => memif::requirements(name, options),
        _ => {
            let slots = name.slots(1..=1 << 20)?;
            Ok(PoolRequirements::usual(name.queue_numbers(options).count() as u32, slots * 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::forward;
    use crate::tests::lab_with;

    #[test]
    fn a_port_with_another_number_of_queues_than_requested_is_refused() {
        let Some(lab) = lab_with(2) else { return };
        let opened = |name: &str, queues| {
            let options =
                OpenOptions { queues, netns: Some(lab.netns("right")), ..OpenOptions::default() };
            Port::open(&name.parse().unwrap(), &options).map(|port| port.queues.len())
        };
        for kind in ["xdp", "mirror"] {
            let all = format!("{kind}:right0");
            assert_eq!([0, 2].map(|queues| opened(&all, queues).unwrap()), [2, 2]);
            assert_eq!(opened(&format!("{kind}:right0/0"), 2).unwrap(), 1, "the name decides");
            let few = opened(&all, 1).unwrap_err().to_string();
            assert!(few.contains("has 2 queues, and 1 requested"), "{few}");
            assert!(few.contains(&format!("select one by name: {kind}:right0/0")), "{few}");
            let many = opened(&all, 3).unwrap_err().to_string();
            assert!(many.contains("3 requested") && !many.contains("select"), "{many}");
        }
        assert_eq!(opened("packet:right0", 3).unwrap(), 3);
    }

    #[test]
    fn ports_that_are_opened_together_swap_and_leave_no_buffer_over() {
        let ports = ["null:/0-2?slots=64", "null:?slots=1000", "null:"];
        let ports = ports.map(|name| (name.parse().unwrap(), Directions::Both));
        let mut ports = Port::open_all(&ports, &OpenOptions::default()).unwrap();
        assert_eq!(ports.iter().map(|port| port.queues.len()).collect::<Vec<_>>(), [3, 1, 1]);
        let [first, second, third] = &mut ports[..] else { unreachable!() };
        first.queues[2].sync_rx().unwrap();
        let moved = forward(first.queues[2].rx_mut(), second.queues[0].tx_mut());
        assert_eq!((moved.swapped_packets, moved.copied_packets), (63, 0));
        assert!(second.queues[0].rx().shares_pool(third.queues[0].rx()));
    }
}
