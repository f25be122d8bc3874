//! `memif:SOCKET`, a shared-memory pipe to another process: to another `memif:` port, DPDK, VPP.
//! SOCKET is a file, `/run/x.sock`, or a name without one, `@x`.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `role` | `server` creates the socket and waits, `client` connects and provides the memory | client if a server listens, otherwise server |
//! | `id` | the interface's number on the socket | 0 |
//! | `secret` | a text that both ends must know, at most 24 bytes | none |
//! | `queues` | number of queues, 1 to 64; the ends use the smaller number | as many as requested, or 1 |
//! | `ring_size` | entries of each ring, a power of two from 32 to 16384; the client's value applies | 1024 |
//! | `buffer` | size of each buffer, shared or of a slot; for shared ones the client's value applies | 2112 |
//! | `slots` | slots in the port's own rings | 512 |
//! | `interrupt` | wakes a sleeping receiver; if off, it polls every 50 µs | on |
//! | `sealed` | server: accepts only memory that the client cannot shrink | on |
//!
//! The first end to start is the server, the second one the client, even if both start at the same moment.
//! So the ends need no roles. Set a role if the start order is not fixed or an end may restart.
//!
//! Both roles copy packets to send into the shared memory, and received packets out of it when the program
//! first looks at them, into buffers of the port's own pool, which no peer can access.
//!
//! The port outlives its peers. After a peer disconnects, the port waits for the next one, or tries to
//! connect every 100 ms. Meanwhile no packets arrive, and packets to send stay in the ring. Packets of the
//! next peer arrive after all packets of the old one were received; a peer that connects and disconnects
//! before that is not received from. Packets in the ring of a peer that disconnects may be received or lost
//! ([`QueueStats::sent_or_lost`](super::QueueStats)).
//!
//! Every process that may write to the socket's file may connect, and to `@x` every process in the network
//! namespace: there, use a secret to keep others out.

mod control;
mod queue;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::interface::described;
use super::name::PortName;
use super::options::{Directions, OpenOptions};
use super::queue::{Port, Queue};
use super::rings::{PoolRequirements, RingMaker};
use crate::error::{Error, Result};
use crate::link::netns;
use control::{ControlSocket, Endpoint};
use queue::{MemifQueue, QueueSettings};
use sluicegate_memif::{Address, Settings};

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let config = MemifConfig::of(name, options)?;
    let address = Address::of(name.name());
    let netns = options.netns.clone();
    let endpoint = netns::run_in(netns.as_deref(), || meet(name, &config, &address))?;
    let pool = requirements(name, options)?.pool_of(options)?;
    let method = match endpoint {
        Endpoint::Server(_) => "server",
        Endpoint::Client { .. } => {
            check_region(name, &config)?;
            "client"
        }
    };
    let settings = QueueSettings {
        receives: options.usage.receives(),
        sends: options.usage.sends(),
        interrupts: config.interrupts,
    };
    let rings = RingMaker { pool, usage: options.usage, slots: config.slots };
    let rings = (0..config.settings.queues).map(|_| rings.make()).collect::<Result<Vec<_>>>()?;
    // Last: nothing can fail any more, and the port listens.
    let place = (address, netns);
    let control =
        Arc::new(ControlSocket::start(name.short(), place, config.settings.clone(), endpoint)?);
    let described = described(name.short(), "");
    let queues = rings.into_iter().enumerate().map(|(number, (rx, tx))| {
        let backend = MemifQueue::new(number, &control, settings);
        Queue::new(number as u32, rx, tx, backend, vec![described.clone()])
    });
    Ok(Port { method, ..Port::plain(name, queues.collect()) })
}

/// Maximum time to wait until a peer that starts at the same moment listens. That takes microseconds on an
/// idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes the requested role, or the one that is free.
fn meet(name: &PortName, config: &MemifConfig, address: &Address) -> Result<Endpoint> {
    let end = Instant::now() + START_TIMEOUT;
    loop {
        match try_to_meet(name, config, address)? {
            Some(met) => return Ok(met),
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            None => return Err(in_the_way(name)),
        }
    }
}

/// Takes a role. None if a peer that started at the same moment is about to listen.
fn try_to_meet(
    name: &PortName,
    config: &MemifConfig,
    address: &Address,
) -> Result<Option<Endpoint>> {
    let failed = |operation, error: Errno| Error::system(operation, name.short(), error);
    let met = match (config.role, address.connect()) {
        (Some(MemifRole::Server), Ok(channel)) => Err(served(name, channel.peer_process())),
        (Some(MemifRole::Server), Err(_)) | (None, Err(Errno::ENOENT | Errno::ECONNREFUSED)) => {
            match address.listen() {
                Ok(listener) => Ok(Endpoint::Server(listener)),
                Err(Errno::EADDRINUSE) if address.may_be_served() => return Ok(None),
                Err(Errno::EADDRINUSE) => Err(in_the_way(name)),
                Err(Errno::ENOENT) => {
                    Err(name.error("make the folder that the socket is to be in"))
                }
                Err(Errno::EACCES | Errno::EPERM) => Err(Error::Privilege {
                    operation: format!("listening at {}", name.short()),
                    capability: "the right to write to its folder",
                    remedy: "run it with sudo, or name a socket elsewhere".into(),
                }),
                Err(error) => Err(failed("listen at", error)),
            }
        }
        (_, Ok(channel)) => Ok(Endpoint::Client { first: Some(channel) }),
        // The server is busy, or not listening yet.
        (_, Err(Errno::EAGAIN)) => Ok(Endpoint::Client { first: None }),
        (Some(MemifRole::Client), Err(Errno::ENOENT | Errno::ECONNREFUSED)) => {
            Ok(Endpoint::Client { first: None })
        }
        (_, Err(Errno::EPROTOTYPE)) => Err(failed("connect to", Errno::EPROTOTYPE)
            .remedy("it is another kind of socket: name the one that the memif server has")),
        (_, Err(Errno::EACCES | Errno::EPERM)) => Err(Error::Privilege {
            operation: format!("connecting to {}", name.short()),
            capability: "the right to write to its socket",
            remedy: "run it with sudo, or ask the owner of the socket".into(),
        }),
        (_, Err(error)) => Err(failed("connect to", error)),
    };
    met.map(Some)
}

fn in_the_way(name: &PortName) -> Error {
    Error::system("listen at", name.short(), Errno::EADDRINUSE)
        .remedy("the path is in use: name another file")
}

fn served(name: &PortName, process: Option<i32>) -> Error {
    let who = process.filter(|&pid| pid != 0).map(|pid| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // A process chooses its own name, which may contain terminal control characters.
        let comm = comm.trim_end().replace(char::is_control, "?");
        format!(" by {} (process {pid})", if comm.is_empty() { "one" } else { &comm })
    });
    let who = who.unwrap_or_default();
    let remedy = format!("it is served already{who}: role=client connects to it");
    Error::system("listen at", name.short(), Errno::EADDRINUSE).remedy(remedy)
}

/// Rejects a client's region that is too large for descriptors: their offsets have 32 bits.
fn check_region(name: &PortName, config: &MemifConfig) -> Result<()> {
    match u32::try_from(config.settings.max_region_bytes()) {
        Ok(_) => Ok(()),
        Err(_) => Err(name.error(
            "the memory of a client has 4 GiB at most: use fewer queues=, a smaller ring_size= or buffer=",
        )),
    }
}

/// Returns the buffers that the port needs from a pool.
pub(super) fn requirements(name: &PortName, options: &OpenOptions) -> Result<PoolRequirements> {
    let config = MemifConfig::of(name, options)?;
    let directions = if options.usage == Directions::Both { 2 } else { 1 };
    let Settings { queues, buffer_bytes, .. } = config.settings;
    Ok(PoolRequirements::of_queues(queues.into(), directions * config.slots, buffer_bytes))
}

/// The default number of entries of each ring.
const DEFAULT_RING: u32 = 1024;
/// The default size of each buffer: the usual size plus a cache line. Buffers at multiples of a power of
/// two would all begin in the same few sets of the cache, and evict each other.
const DEFAULT_BUFFER: u32 = 2048 + 64;
/// Maximum number of queues of a port.
const MAX_QUEUES: u32 = 64;
/// Maximum length of a secret in bytes.
const SECRET_BYTES: usize = 24;

/// The role of a port at its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemifRole {
    /// Creates the socket and listens.
    Server,
    /// Connects, and provides the memory.
    Client,
}

/// The options of a port.
#[derive(Clone, Debug)]
struct MemifConfig {
    /// The role requested; by default the one that is free.
    pub role: Option<MemifRole>,
    pub settings: Settings,
    pub slots: u32,
    /// True if sleepers are woken; otherwise they poll.
    pub interrupts: bool,
}

impl MemifConfig {
    fn of(name: &PortName, options: &OpenOptions) -> Result<Self> {
        let roles = [("server", MemifRole::Server), ("client", MemifRole::Client)];
        let queues = name.count("queues", 1..=MAX_QUEUES)?;
        let queues = queues.unwrap_or(options.queues.max(1));
        if queues > MAX_QUEUES {
            return Err(name.error(format!("it has at most {MAX_QUEUES} queues")));
        }
        let entries = name.count("ring_size", 32..=16_384)?.unwrap_or(DEFAULT_RING);
        if !entries.is_power_of_two() {
            return Err(name.bad_option("ring_size", &entries.to_string(), "use a power of two"));
        }
        let buffer_bytes = name.number("buffer", 64..=65_472)?.unwrap_or(DEFAULT_BUFFER);
        let given = name.option("secret").unwrap_or_default().as_bytes();
        let mut secret = [0; SECRET_BYTES];
        match secret.get_mut(..given.len()) {
            Some(start) => start.copy_from_slice(given),
            None => return Err(name.error("secret=: 24 bytes at most")),
        }
        Ok(Self {
            role: name.choice("role", &roles)?,
            settings: Settings {
                id: name.count("id", 0..=u32::MAX)?.unwrap_or(0),
                secret,
                queues: queues as u16,
                log2_entries: entries.trailing_zeros() as u8,
                buffer_bytes: buffer_bytes.next_multiple_of(64),
                trusts: !name.switch("sealed")?.unwrap_or(true),
            },
            slots: name.slots(2..=16_384)?,
            interrupts: name.switch("interrupt")?.unwrap_or(true),
        })
    }
}
