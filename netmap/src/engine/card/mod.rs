//! An interface of the host as a port: its rings are queues of the library's ports.
//!
//! ```text
//!   rings of the card      receive: xdp:, or packet:     transmit: live:, xdp: or packet:
//!   rings of the host      host:, which takes what the host sends, and injects what it shall receive
//! ```
//!
//! A ring of the card opens a queue when it gets its first user: from then on the host does not get the queue's
//! packets, except those that the engine's filter leaves to it. Packets are copied between the region, which
//! the program may write at any time, and the queue's own memory.

mod queues;
mod rings;

use std::sync::Arc;

use nix::errno::Errno;
use sluicegate::link::{self, Interface, carries_default_route};

use self::queues::{CardQueues, HostQueues};
use self::rings::{HostRx, QueueRx, QueueTx};
use super::adapter::{Geometry, NewRing, PortDriver, PortRings, RingId};
use super::kring::RingDriver;
use super::ring::Way;
use super::{Backend, EngineOptions};

/// Slots in the rings of a card.
const SLOTS: u32 = 1024;
/// The most rings of one kind.
const MAX_RINGS: u32 = 256;

/// An interface.
#[derive(Debug)]
pub(super) struct Card {
    interface: Interface,
    options: EngineOptions,
    queues: CardQueues,
    host: Arc<HostQueues>,
}

impl Card {
    /// Finds an interface.
    ///
    /// # Errors
    /// ENXIO.
    pub(super) fn find(name: &str, options: &EngineOptions) -> Result<Interface, Errno> {
        let found = link::interface(options.netns.as_deref(), name);
        found.map_err(|error| {
            options.say(format_args!("{name}: {error}"));
            Errno::ENXIO
        })
    }

    /// Returns the backend of an interface, and its rings; `host_rings` are the numbers that a program asked for, or 0.
    pub(super) fn plan(
        interface: &Interface,
        options: &EngineOptions,
        host_rings: [u16; 2],
    ) -> (Backend, Geometry) {
        let number = |queues: u32| queues.clamp(1, MAX_RINGS);
        let queues = active_queues(interface, options);
        let default = || default_backend(number(queues.0), cpus(options));
        let backend = options.backend.unwrap_or_else(default);
        let (tx_rings, rx_rings) = match backend {
            // A packet socket has no card queues.
            Backend::Packet => (1, 1),
            // An AF_XDP socket belongs to a receive queue.
            Backend::Xdp => (number(queues.1), number(queues.1)),
            Backend::Live => (number(queues.0), number(queues.1)),
        };
        let [host_tx_rings, host_rx_rings] = host_rings.map(|wanted| number(wanted.into()));
        let (tx_slots, rx_slots) = (SLOTS, SLOTS);
        let has_host = true;
        let geometry = Geometry {
            tx_rings,
            rx_rings,
            host_tx_rings,
            host_rx_rings,
            tx_slots,
            rx_slots,
            has_host,
        };
        (backend, geometry)
    }

    pub(super) fn new(
        interface: Interface,
        backend: Backend,
        geometry: &Geometry,
        options: &EngineOptions,
    ) -> Self {
        let host_queues = geometry.host_tx_rings.max(geometry.host_rx_rings);
        Self {
            queues: CardQueues::new(&interface, backend, geometry, options),
            host: Arc::new(HostQueues::new(&interface.name, host_queues, options)),
            options: options.clone(),
            interface,
        }
    }

    /// Refuses to take all packets of the interface by which the host is reached.
    fn check_allowed(&self) -> Result<(), Errno> {
        let Self { options, interface, .. } = self;
        let name = &interface.name;
        // A blank filter is none.
        if options.filter.as_deref().is_some_and(|it| !it.trim().is_empty())
            || options.backend == Some(Backend::Packet)
            || options.allow.contains(name)
        {
            return Ok(());
        }
        match carries_default_route(options.netns.as_deref(), name) {
            Ok(false) => Ok(()),
            Ok(true) => {
                options.say(format_args!(
                    "{name} carries this host's default route, and netmap takes all its packets: give --filter \
                     'udp port 9' or --allow {name} to `sluice netmap run` or `serve`, whichever opens it"
                ));
                Err(Errno::EPERM)
            }
            Err(error) => Err(options.errno(name, &error)),
        }
    }
}

/// Returns the default backend. Live frames are faster, but each transmit ring takes a CPU for its thread; the
/// program needs as many CPUs, and the host needs two.
fn default_backend(tx_rings: u32, cpus: u32) -> Backend {
    if cpus >= 2 * tx_rings + 2 { Backend::Live } else { Backend::Xdp }
}

/// Returns the number of CPUs that the default backend counts on.
fn cpus(options: &EngineOptions) -> u32 {
    let available = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    options.cpus.unwrap_or_else(available)
}

/// Returns the transmit and receive queues in use. A driver may have allocated many more, one a processor.
fn active_queues(interface: &Interface, options: &EngineOptions) -> (u32, u32) {
    let count = || Ok((link::transmit_queues(interface), link::receive_queues(interface)));
    let (tx, rx) = link::netns::run_in(options.netns.as_deref(), count).unwrap_or_default();
    (tx.unwrap_or(interface.tx_queues), rx.unwrap_or(interface.rx_queues))
}

impl PortDriver for Card {
    fn open(&self, port: &PortRings, wanted: &[RingId]) -> Result<Vec<NewRing>, Errno> {
        let of_card = |id: &RingId| id.number < port.geometry.rings(id.way).0;
        let numbers = |way| -> Vec<u32> {
            wanted.iter().filter(|id| id.way == way && of_card(id)).map(|id| id.number).collect()
        };
        let (tx, rx) = (numbers(Way::Transmit), numbers(Way::Receive));
        if !tx.is_empty() || !rx.is_empty() {
            self.check_allowed()?;
        }
        let (mut tx_queues, mut rx_queues) = self.queues.open(&tx, &rx)?;
        let host = |id: &RingId| self.host.queue(id.number - port.geometry.rings(id.way).0);
        let mut drivers: Vec<Box<dyn RingDriver>> = Vec::with_capacity(wanted.len());
        for id in wanted {
            drivers.push(match (id.way, of_card(id)) {
                (Way::Transmit, true) => Box::new(QueueTx::new(tx_queues.remove(0), &self.options)),
                (Way::Transmit, false) => Box::new(QueueTx::new(host(id)?, &self.options)),
                (Way::Receive, true) => {
                    let host = Arc::clone(&self.host);
                    Box::new(QueueRx::new(rx_queues.remove(0), host, &self.options))
                }
                (Way::Receive, false) => {
                    Box::new(HostRx::new(host(id)?, self.queues.sender(), &self.options))
                }
            });
        }
        let mut drivers = drivers.into_iter();
        port.rings(wanted, |_| drivers.next().expect("one for each ring"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_frames_need_a_cpu_for_each_ring_and_as_many_for_the_program() {
        for (tx_rings, cpus, expected) in [
            (1, 1, Backend::Xdp),
            (1, 3, Backend::Xdp),
            (1, 4, Backend::Live),
            (4, 9, Backend::Xdp),
            (4, 10, Backend::Live),
            (MAX_RINGS, 64, Backend::Xdp),
        ] {
            let found = default_backend(tx_rings, cpus);
            assert_eq!(found, expected, "{tx_rings} rings, {cpus} CPUs");
        }
    }
}
