//! Counts of packets by protocol, conversation and address.

mod report;
mod table;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sluicegate::error::{Error, Result};
use sluicegate::headers::protocol::{DCCP, SCTP, TCP, UDP, UDP_LITE};
use sluicegate::headers::{self, Headers, MAC_ADDRESSES_BYTES, ethertype};
use sluicegate::link::Mac;
use sluicegate::port::Interface;
use sluicegate::ring::{LINKTYPE_ETHERNET, Packet};

use crate::print::find_headers;
pub use report::{Stats, top};
use table::{Counters, DirectionCounters, Table};

/// Maximum of keys of each table. The tables take about 10 MiB: of a queue, of its copy for others, and of the sum.
const MAX_KEYS: usize = 32_768;
const MAX_PROTOCOLS: usize = 4096;
/// Ports below this are services; others are chosen by clients.
const FIRST_CLIENT_PORT: u16 = 1024;
/// The longest wait for the counts so far, and the interval between checks. An idle thread answers within 100
/// ms.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
const ANSWER_INTERVAL: Duration = Duration::from_millis(1);

/// A network address, or a link-layer one of a packet without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketAddress {
    Ip(IpAddr),
    Mac([u8; 6]),
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A link type, or a link header that is cut.
    Unknown,
    /// A network protocol other than IP, by its EtherType.
    Ethertype(u16),
    /// A protocol above IP, and its service's port if it has one.
    Ip { version: u8, number: u8, port: Option<u16> },
}

/// An end of a conversation: an address and a port.
type End = (PacketAddress, Option<u16>);

/// Two ends that exchange packets of a protocol; the lower one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conversation {
    /// The protocol, without a port.
    pub protocol: Protocol,
    pub ends: [End; 2],
}

/// Counts by protocol, conversation and address.
#[derive(Debug)]
pub struct PacketCounts {
    all: Counters,
    protocols: Table<Protocol>,
    conversations: Table<Conversation>,
    /// Sent, and received.
    addresses: Table<PacketAddress>,
}

impl PacketCounts {
    /// Allocates the memory of all tables.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new() -> Result<Self> {
        let failed =
            |_| Error::system("reserve", "memory for the tables of --stats", Errno::ENOMEM);
        Ok(Self {
            all: Counters::default(),
            protocols: Table::new(MAX_PROTOCOLS).map_err(failed)?,
            conversations: Table::new(MAX_KEYS).map_err(failed)?,
            addresses: Table::new(MAX_KEYS).map_err(failed)?,
        })
    }

    fn copy_from(&mut self, other: &Self) {
        self.all = other.all;
        self.protocols.copy_from(&other.protocols);
        self.conversations.copy_from(&other.conversations);
        self.addresses.copy_from(&other.addresses);
    }

    /// Counts a packet; `data` is its captured part.
    fn add(&mut self, link_type: u16, data: &[u8], bytes: u32) {
        let counters = Counters::of(bytes);
        self.all += counters;
        let there = DirectionCounters { there: counters, back: Counters::default() };
        let back = DirectionCounters { there: Counters::default(), back: counters };
        let Some(found) = find_headers(link_type, data) else {
            return self.protocols.add(Protocol::Unknown, there);
        };
        let (protocol, ports) = protocol_of(data, &found);
        self.protocols.add(with_service(protocol, ports), there);
        let Some([from, to]) = addresses_of(link_type, data, &found) else { return };
        self.addresses.add(from, there);
        self.addresses.add(to, back);
        let [sport, dport] = ports.map_or([None; 2], |ports| ports.map(Some));
        let (from, to) = ((from, sport), (to, dport));
        let (ends, counters) = if from <= to { ([from, to], there) } else { ([to, from], back) };
        self.conversations.add(Conversation { protocol, ends }, counters);
    }

    fn merge(&mut self, other: &Self) {
        self.all += other.all;
        self.protocols.merge(&other.protocols);
        self.conversations.merge(&other.conversations);
        self.addresses.merge(&other.addresses);
    }
}

/// Returns a packet's protocol without a service, and its ports.
fn protocol_of(data: &[u8], found: &Headers) -> (Protocol, Option<[u16; 2]>) {
    let Some(ip) = &found.ip else { return (Protocol::Ethertype(found.ethertype), None) };
    let version = if found.ethertype == ethertype::IPV4 { 4 } else { 6 };
    let has_ports = matches!(ip.protocol, TCP | UDP | UDP_LITE | SCTP | DCCP);
    let carried = ip.transport.as_ref().filter(|_| has_ports);
    let ports = carried.and_then(|carried| {
        let carried = data.get(carried.clone())?;
        Some([headers::be16(carried, 0)?, headers::be16(carried, 2)?])
    });
    (Protocol::Ip { version, number: ip.protocol, port: None }, ports)
}

/// Adds the port of a service: the lower one, if it is a service's.
fn with_service(protocol: Protocol, ports: Option<[u16; 2]>) -> Protocol {
    let service = ports.map(|[a, b]| a.min(b)).filter(|&port| port < FIRST_CLIENT_PORT);
    match protocol {
        Protocol::Ip { version, number, .. } => Protocol::Ip { version, number, port: service },
        other => other,
    }
}

/// Returns the sender and the receiver.
fn addresses_of(link_type: u16, data: &[u8], found: &Headers) -> Option<[PacketAddress; 2]> {
    let ip = |bytes: &[u8]| match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|octets| PacketAddress::Ip(IpAddr::from(*octets))),
        _ => bytes.first_chunk::<16>().map(|octets| PacketAddress::Ip(IpAddr::from(*octets))),
    };
    match &found.ip {
        Some(it) => {
            let address = |range: &std::ops::Range<usize>| data.get(range.clone()).and_then(ip);
            Some([address(&it.source)?, address(&it.destination)?])
        }
        None if link_type == LINKTYPE_ETHERNET => {
            let (to, rest) = data.get(..MAC_ADDRESSES_BYTES)?.split_first_chunk::<6>()?;
            Some([PacketAddress::Mac(*rest.first_chunk()?), PacketAddress::Mac(*to)])
        }
        None => None,
    }
}

impl std::fmt::Display for PacketAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Mac(mac) => Mac(*mac).fmt(f),
        }
    }
}

/// The latest counts of one queue that others may read.
#[derive(Clone, Debug)]
pub struct SharedCounts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// A copy is requested. Relaxed: the mutex publishes the copy.
    wanted: AtomicBool,
    copy: Mutex<PacketCounts>,
}

impl SharedCounts {
    /// Allocates the memory of the copy.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new() -> Result<Self> {
        let (wanted, copy) = (AtomicBool::new(false), Mutex::new(PacketCounts::new()?));
        Ok(Self(Arc::new(Shared { wanted, copy })))
    }

    fn copy(&self) -> MutexGuard<'_, PacketCounts> {
        self.0.copy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds up the latest counts of queues whose threads run. A thread that does not answer in time stands with
    /// its earlier counts.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn so_far(queues: &[Self]) -> Result<PacketCounts> {
        queues.iter().for_each(|queue| queue.0.wanted.store(true, Ordering::Relaxed));
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while queues.iter().any(|queue| queue.0.wanted.load(Ordering::Relaxed))
            && Instant::now() < deadline
        {
            std::thread::sleep(ANSWER_INTERVAL);
        }
        let mut all = PacketCounts::new()?;
        Self::sum(queues, &mut all);
        Ok(all)
    }

    /// Adds the counts of queues whose threads have ended.
    pub fn sum(queues: &[Self], all: &mut PacketCounts) {
        queues.iter().for_each(|queue| all.merge(&queue.copy()));
    }
}

/// The memory of the counts of several queues.
pub struct Tables {
    pub sum: PacketCounts,
    /// A counter for each queue.
    pub counters: Vec<Counter>,
}

impl Tables {
    /// Allocates all of it.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new(queues: usize) -> Result<Self> {
        let counters = (0..queues).map(|_| Counter::new()).collect::<Result<_>>()?;
        Ok(Self { sum: PacketCounts::new()?, counters })
    }
}

/// Counts one queue's packets.
pub struct Counter {
    counts: PacketCounts,
    shared: SharedCounts,
    /// Link type of each interface, by its number.
    link_types: Vec<u16>,
    scratch: Vec<u8>,
}

impl Counter {
    /// Allocates the memory of the counts.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new() -> Result<Self> {
        let (counts, shared) = (PacketCounts::new()?, SharedCounts::new()?);
        Ok(Self { counts, shared, link_types: Vec::new(), scratch: Vec::new() })
    }

    /// Returns the counts that others may read.
    pub fn shared(&self) -> SharedCounts {
        self.shared.clone()
    }

    /// Takes note of interfaces that have appeared.
    pub fn meet(&mut self, interfaces: &[Interface]) {
        let new = interfaces.iter().skip(self.link_types.len());
        self.link_types.extend(new.map(|interface| interface.link_type));
    }

    pub fn packet(&mut self, packet: &Packet<'_>) {
        let meta = packet.meta();
        let link_type = self.link_types.get(meta.interface as usize).copied().unwrap_or(0);
        self.counts.add(link_type, packet.contiguous(&mut self.scratch), meta.wire_bytes);
    }

    /// Copies the counts if that was requested; called between batches. While the last copy is read, packets do
    /// not wait: a later call copies.
    pub fn answer(&mut self) {
        let Shared { wanted, copy } = &*self.shared.0;
        if wanted.load(Ordering::Relaxed)
            && let Ok(mut copy) = copy.try_lock()
        {
            copy.copy_from(&self.counts);
            wanted.store(false, Ordering::Relaxed);
        }
    }

    /// Copies the counts, at the end.
    pub fn publish(&mut self) {
        self.shared.copy().copy_from(&self.counts);
        self.shared.0.wanted.store(false, Ordering::Relaxed);
    }
}
