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
    /// The name or an option is invalid, a privilege is missing, or the interface or file does not exist. The
    /// port has another number of queues than [`OpenOptions::queues`] requests.
    pub fn open(name: &PortName, options: &OpenOptions) -> Result<Self> {
        name.check_queue_numbers()?;
        match name.kind() {
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
        }
    }

    /// Opens a port of one queue by its [name](PortName): `packet:eth0`, `xdp:eth0/0`, `pcap:trace.pcapng`.
    /// For another namespace or latency, or the port's method, mode and fallbacks, use [`open`](Self::open)
    /// and `queues.remove(0)`.
    ///
    /// # Errors
    /// As [`open`](Self::open); also if the port has several queues and the name does not select one, as
    /// `xdp:eth0` on a card with several receive queues. `xdp:eth0/0` leaves the packets of the others to the
    /// host.
    pub fn open_one(name: &str, usage: Directions) -> Result<Queue> {
        let name: PortName = name.parse()?;
        let selected = name.queues().map_or(1, Iterator::count);
        if selected > 1 {
            return Err(several_queues(&name, selected));
        }
        let options = OpenOptions { usage, queues: 1, ..OpenOptions::default() };
        let mut queues = Self::open(&name, &options)?.queues;
        match queues.len() {
            1 => Ok(queues.remove(0)),
            several => Err(several_queues(&name, several)),
        }
    }

    /// Makes a pool that is large enough for [`open_all`](Self::open_all) of these ports with these options.
    ///
    /// # Errors
    /// An interface does not exist, or there is no memory.
    pub fn pool_for(ports: &[(PortName, Directions)], options: &OpenOptions) -> Result<Arc<Pool>> {
        let needs = ports.iter().map(|port| requirements(&port.0, &options_for(port, options)));
        let sum = needs.reduce(|sum, more| Ok(sum?.and(more?))).transpose()?;
        sum.unwrap_or_default().pool()
    }

    /// Opens several ports in one pool: that of the options, or a new one that is large enough. Each port's
    /// [`Directions`] replace `options.usage`. `options.queues` applies to the ports whose kinds
    /// [take it](Kind::takes_queue_count); the others open all their queues, which the program has to serve, unless
    /// the name selects one (`xdp:eth1/0`). An `xdp:` port in a pool has
    /// AF_XDP sockets, even if it only receives.
    ///
    /// # Errors
    /// As [`open`](Self::open), except for the number of queues. Ports that were already opened are closed.
    pub fn open_all(ports: &[(PortName, Directions)], options: &OpenOptions) -> Result<Vec<Self>> {
        let pool = match &options.pool {
            Some(pool) => pool.clone(),
            None => Self::pool_for(ports, options)?,
        };
        let open = |port: &(PortName, Directions)| {
            let options = options_for(port, options);
            Self::open(&port.0, &OpenOptions { pool: Some(pool.clone()), ..options })
        };
        ports.iter().map(open).collect()
    }
}

/// Makes the error of a port with several queues that was opened as a port of one queue.
fn several_queues(name: &PortName, queues: usize) -> Error {
    let select = match name.queues() {
        Some(selected) => {
            let number = if name.kind().takes_queue_count() { &0 } else { selected.start() };
            format!(", or select one: {}/{number}", name.short())
        }
        None => String::new(),
    };
    name.error(format!("it has {queues} queues: open all with Port::open, a thread each{select}"))
}

/// Returns the options to open one of several ports: without a number of queues if its kind takes none.
fn options_for((name, usage): &(PortName, Directions), options: &OpenOptions) -> OpenOptions {
    let queues = if name.kind().takes_queue_count() { options.queues } else { 0 };
    OpenOptions { usage: *usage, queues, ..options.clone() }
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

#[cfg(all(test, not(loom)))]
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
            assert!(few.contains("has 2 queues, and 1 was requested"), "{few}");
            assert!(
                few.contains(&format!("without the packets of the others: {kind}:right0/0")),
                "{few}"
            );
            let many = opened(&all, 3).unwrap_err().to_string();
            assert!(many.contains("3 were requested") && !many.contains("select"), "{many}");
        }
        assert_eq!(opened("packet:right0", 3).unwrap(), 3);
        assert_eq!([0, 1].map(|queues| opened("xdp:right0?action=drop", queues).unwrap()), [1, 1]);
        let counting = opened("xdp:right0?action=drop", 2).unwrap_err().to_string();
        assert!(counting.contains("has 1 queue, and 2 were requested"), "{counting}");
    }

    #[test]
    fn ports_opened_together_take_the_number_of_queues_if_their_kind_does() {
        let Some(lab) = lab_with(2) else { return };
        let netns = Some(lab.netns("right"));
        let options = OpenOptions { queues: 3, netns, ..OpenOptions::default() };
        let ports = ["packet:right0", "xdp:right0", "mirror:right0"];
        let ports = ports.map(|name| (name.parse().unwrap(), Directions::Receive));
        let ports = Port::open_all(&ports, &options).unwrap();
        assert_eq!(ports.iter().map(|port| port.queues.len()).collect::<Vec<_>>(), [3, 2, 2]);
    }

    #[test]
    fn a_refused_sink_leaves_the_file() {
        let path = std::env::temp_dir().join(format!("sluice-queues-{}.pcap", std::process::id()));
        std::fs::write(&path, "kept").unwrap();
        let name = format!("pcap:{}", path.display()).parse().unwrap();
        let options = OpenOptions { usage: Directions::Send, queues: 2, ..OpenOptions::default() };
        let error = Port::open(&name, &options).unwrap_err().to_string();
        assert!(error.contains("has 1 queue, and 2 were requested"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn made_queues_are_numbered_from_0() {
        for (name, problem) in [
            ("packet:nowhere/5", "use xdp:nowhere/5 or mirror:nowhere/5"),
            ("nowhere/2-3", "use xdp:nowhere/2-3 or mirror:nowhere/2-3"),
            ("null:/1", "null: ports make their queues, numbered from 0; use /0-1 for 2 queues"),
            ("packet:nowhere/0-1", "no interface 'nowhere'"),
        ] {
            let error = Port::open(&name.parse().unwrap(), &OpenOptions::default());
            let error = error.unwrap_err().to_string();
            assert!(error.contains(problem), "{name}: {error}");
        }
        let name = "null:/0-1".parse().unwrap();
        let port = Port::open(&name, &OpenOptions::default()).unwrap();
        assert_eq!(port.queues.len(), 2);
    }

    #[test]
    fn a_port_of_several_queues_is_not_opened_as_one() {
        for (name, advice) in [
            (
                "xdp:eth0/1-2",
                "it has 2 queues: open all with Port::open, a thread each, or select one: xdp:eth0/1",
            ),
            ("null:/0-3", "or select one: null:/0"),
        ] {
            let error = Port::open_one(name, Directions::Receive).unwrap_err().to_string();
            assert!(error.contains(advice), "{error}");
        }
        assert_eq!(Port::open_one("null:", Directions::Receive).unwrap().number(), 0);
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
