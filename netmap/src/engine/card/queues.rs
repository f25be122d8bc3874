//! The queues behind a card's rings.

use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

use nix::errno::Errno;
use sluicegate::Error;
use sluicegate::link::Interface;
use sluicegate::port::{Directions, Fallback, Kind, OpenOptions, Port, PortName, Queue};

use crate::engine::adapter::Geometry;
use crate::engine::{Backend, EngineOptions};

/// The fallback of transmit rings, in the log.
const SENDING: &str = "sending by packet sockets";

/// A queue that several rings may use.
#[derive(Clone, Debug)]
pub(super) struct SharedQueue(Arc<Mutex<Queue>>);

impl SharedQueue {
    fn new(queue: Queue) -> Self {
        Self(Arc::new(Mutex::new(queue)))
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queues that are open as long as a ring uses them.
#[derive(Debug, Default)]
pub(super) struct WeakQueues(Mutex<Vec<Weak<Mutex<Queue>>>>);

impl WeakQueues {
    /// Returns the first queue that is open.
    pub(super) fn first(&self) -> Option<SharedQueue> {
        self.lock().iter().find_map(Weak::upgrade).map(SharedQueue)
    }

    fn get(&self, number: u32) -> Option<SharedQueue> {
        self.lock().get(number as usize)?.upgrade().map(SharedQueue)
    }

    fn set(&self, number: u32, queue: &SharedQueue) {
        let mut queues = self.lock();
        if queues.len() <= number as usize {
            queues.resize(number as usize + 1, Weak::new());
        }
        queues[number as usize] = Arc::downgrade(&queue.0);
    }

    /// Adds a queue that needs no number.
    fn add(&self, queue: &SharedQueue) {
        let mut queues = self.lock();
        queues.retain(|it| it.strong_count() > 0);
        queues.push(Arc::downgrade(&queue.0));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Mutex<Queue>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the queues of a card.
#[derive(Debug)]
pub(super) struct CardQueues {
    name: String,
    backend: Backend,
    rx_rings: u32,
    options: EngineOptions,
    /// The queues that send.
    senders: Arc<WeakQueues>,
    /// The log has the reason why the default is not live frames.
    explained: Once,
    /// The queues that are open without AF_XDP sockets. While there is one, the default opens all others so, too: a
    /// packet socket that sends cannot receive.
    without_sockets: WeakQueues,
}

/// The queues of the transmit rings, and of the receive rings.
type Opened = (Vec<SharedQueue>, Vec<Vec<SharedQueue>>);

impl CardQueues {
    pub(super) fn new(
        interface: &Interface,
        backend: Backend,
        geometry: &Geometry,
        options: &EngineOptions,
    ) -> Self {
        Self {
            name: interface.name.clone(),
            backend,
            rx_rings: geometry.rx_rings,
            options: options.clone(),
            senders: Arc::default(),
            explained: Once::new(),
            without_sockets: WeakQueues::default(),
        }
    }

    /// Returns the queues that send, as they are open at each moment.
    pub(super) fn sender(&self) -> Arc<WeakQueues> {
        Arc::clone(&self.senders)
    }

    /// Opens the queues of rings: one for each transmit ring; a receive ring may have several.
    ///
    /// # Errors
    /// No port can be opened; the log has the reason.
    pub(super) fn open(&self, tx: &[u32], rx: &[u32]) -> Result<Opened, Errno> {
        if self.backend == Backend::Xdp && self.without_sockets.first().is_none() {
            let is_default = self.options.backend.is_none();
            if is_default && !tx.is_empty() {
                self.explained.call_once(|| self.explain_default());
            }
            match self.open_sockets(tx, rx) {
                // A socket that is open also receives for its ring.
                Err(error)
                    if is_default
                        && self.senders.first().is_none()
                        && is_of_sockets(&error, !rx.is_empty()) =>
                {
                    let instead = match tx.is_empty() {
                        true => "receiving without AF_XDP sockets",
                        false => SENDING,
                    };
                    self.say_fallback(instead, "xdp", &error);
                }
                opened => {
                    let object = format!("xdp:{}", self.name);
                    return opened.map_err(|error| self.options.errno(&object, &error));
                }
            }
        }
        let rx_queues = self.receivers(rx)?;
        let tx_queues = if tx.is_empty() { Vec::new() } else { self.transmitters(tx.len())? };
        for (&number, queue) in tx.iter().zip(&tx_queues) {
            self.senders.set(number, queue);
        }
        for queue in tx_queues.iter().chain(rx_queues.iter().flatten()) {
            self.without_sockets.add(queue);
        }
        Ok((tx_queues, rx_queues))
    }

    /// Logs why the default sends by sockets.
    fn explain_default(&self) {
        self.options.say(format_args!(
            "{}: AF_XDP in place of live frames, because the sending thread of each ring takes a CPU, and {} are too \
             few (2 for each transmit queue, and 2 more); choose live frames by SLUICE_NETMAP_BACKEND=live",
            self.name,
            super::cpus(&self.options)
        ));
    }

    /// Logs a fallback, with its reason.
    fn say_fallback(&self, instead: &str, kind: &str, error: &Error) {
        let name = &self.name;
        self.options.say(format_args!("{instead}, because {kind}:{name}: {error}"));
    }

    /// Opens queues that only receive.
    fn receivers(&self, rx: &[u32]) -> Result<Vec<Vec<SharedQueue>>, Errno> {
        if rx.is_empty() {
            return Ok(Vec::new());
        }
        let whole = rx.len() == self.rx_rings as usize;
        let kind = if self.backend == Backend::Packet { "packet" } else { "xdp" };
        let mut queues = Vec::new();
        if whole {
            queues = self.open_port(&format!("{kind}:{}", self.name), Directions::Receive, 0)?;
        } else {
            for run in rx.chunk_by(|one, next| next - one == 1) {
                let name = format!("{kind}:{}/{}-{}", self.name, run[0], run[run.len() - 1]);
                queues.extend(self.open_port(&name, Directions::Receive, 0)?);
            }
        }
        // An interface may have more queues than rings, for example one per processor.
        let mut rings = vec![Vec::new(); rx.len()];
        for (i, queue) in queues.into_iter().enumerate() {
            rings[i % rx.len()].push(queue);
        }
        Ok(rings)
    }

    /// Opens queues that only send: by live frames, or else by packet sockets.
    fn transmitters(&self, count: usize) -> Result<Vec<SharedQueue>, Errno> {
        let count = count as u32;
        if self.backend == Backend::Live {
            let live = format!("live:{}", self.name);
            match self.try_port(&live, Directions::Send, count) {
                Err(error) if self.options.backend.is_none() => {
                    self.say_fallback(SENDING, "live", &error);
                }
                opened => return opened.map_err(|error| self.options.errno(&live, &error)),
            }
        }
        self.open_port(&format!("packet:{}", self.name), Directions::Send, count)
    }

    /// Opens AF_XDP sockets, each for the two rings of its number.
    fn open_sockets(&self, tx: &[u32], rx: &[u32]) -> sluicegate::Result<Opened> {
        let open = |number: &u32| {
            if let Some(queue) = self.senders.get(*number) {
                return Ok(queue);
            }
            let name = format!("xdp:{}/{number}", self.name);
            let queue = self.try_port(&name, Directions::Both, 0)?.swap_remove(0);
            self.senders.set(*number, &queue);
            Ok(queue)
        };
        let tx = tx.iter().map(open).collect::<sluicegate::Result<_>>()?;
        let rx =
            rx.iter().map(|number| Ok(vec![open(number)?])).collect::<sluicegate::Result<_>>()?;
        Ok((tx, rx))
    }

    fn open_port(
        &self,
        name: &str,
        usage: Directions,
        queues: u32,
    ) -> Result<Vec<SharedQueue>, Errno> {
        let opened = self.try_port(name, usage, queues);
        opened.map_err(|error| self.options.errno(name, &error))
    }

    fn try_port(
        &self,
        name: &str,
        usage: Directions,
        queues: u32,
    ) -> sluicegate::Result<Vec<SharedQueue>> {
        let mut name: PortName = name.parse()?;
        name.set_default("slots", "1024");
        match name.kind() {
            Kind::Xdp => name.set_default("timestamp", "off"),
            Kind::Packet => name.set_default("tx_copies", "off"),
            _ => false,
        };
        if let Some(filter) = self.options.filter.as_deref().filter(|_| name.knows("filter")) {
            name.set_default("filter", filter);
        }
        open(&name, usage, queues, &self.options)
    }
}

/// The queues of a `host:` port, which is open from the first ring that needs one until the card is closed.
#[derive(Debug)]
pub(super) struct HostQueues {
    name: String,
    queues: u32,
    options: EngineOptions,
    open: Mutex<Vec<SharedQueue>>,
}

impl HostQueues {
    pub(super) fn new(name: &str, queues: u32, options: &EngineOptions) -> Self {
        Self { name: name.into(), queues, options: options.clone(), open: Mutex::default() }
    }

    /// Returns the queue of a host ring, and opens the port if it is not open.
    ///
    /// # Errors
    /// The port cannot be opened; the log has the reason.
    pub(super) fn queue(&self, number: u32) -> Result<SharedQueue, Errno> {
        let mut queues = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.is_empty() {
            let name = format!("host:{}?slots=1024", self.name);
            let opened = name
                .parse()
                .and_then(|name| open(&name, Directions::Both, self.queues, &self.options));
            *queues = opened.map_err(|error| self.options.errno(&name, &error))?;
        }
        Ok(queues[number as usize].clone())
    }
}

/// Returns true for an error that may be of AF_XDP sockets alone. The fallback receives by XDP, too, with the same
/// privileges, but may lock no memory.
fn is_of_sockets(error: &Error, receives: bool) -> bool {
    match error {
        Error::Filter { .. } | Error::Usage(_) => false,
        Error::Privilege { capability, .. } => !receives || capability.starts_with("CAP_IPC_LOCK"),
        _ => true,
    }
}

/// Opens a port, and says which fallbacks it took.
fn open(
    name: &PortName,
    usage: Directions,
    queues: u32,
    options: &EngineOptions,
) -> sluicegate::Result<Vec<SharedQueue>> {
    let port = Port::open(name, &open_options(name, usage, queues, options))?;
    for Fallback { from, to, reason, .. } in &port.fallbacks {
        options.say(format_args!("{}: {to} in place of {from}, because {reason}", name.short()));
    }
    Ok(port.queues.into_iter().map(SharedQueue::new).collect())
}

/// Returns the options of a port. A packet wakes a program at once, as a card's interrupt does. A packet socket's ring
/// holds it back for 1 ms, rounded up to the kernel's tick: its ring without delay has no room for packets that GRO has
/// merged.
fn open_options(
    name: &PortName,
    usage: Directions,
    queues: u32,
    options: &EngineOptions,
) -> OpenOptions {
    let latency = match name.kind() {
        Kind::Packet => Duration::from_millis(1),
        _ => Duration::ZERO,
    };
    let (netns, latency) = (options.netns.clone(), Some(latency));
    OpenOptions { usage, queues, netns, latency, ..OpenOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_packet_socket_holds_packets_back() {
        for (name, latency_ms) in [("packet:eth0", 1), ("xdp:eth0", 0), ("live:eth0", 0)] {
            let (name, engine) = (name.parse().unwrap(), EngineOptions::default());
            let options = open_options(&name, Directions::Receive, 0, &engine);
            assert_eq!(options.latency, Some(Duration::from_millis(latency_ms)), "{name}");
        }
    }
}
