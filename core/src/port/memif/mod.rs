//! `memif:SOCKET`, a shared-memory pipe to another process: to another `memif:` port, DPDK, VPP.
//! SOCKET is a file, `/run/x.sock`, or a name without one, `@x`.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `role` | `server` has the socket and waits, `client` connects and has the memory | client where somebody listens, else server |
//! | `id` | the interface's number on the socket | 0 |
//! | `secret` | what both ends must know, 24 bytes at most | none |
//! | `queues` | queues, 1 to 64; of both ends the fewer | as many as asked for, or 1 |
//! | `ring` | entries of each ring, a power of two from 32 to 16384; the client's count | 1024 |
//! | `buffer` | bytes of each buffer; the client's count | 2112 |
//! | `slots` | slots in the port's own rings | 512 |
//! | `copy` | server: copies what it receives, so that the peer cannot change it any more | off |
//! | `interrupt` | a receiver that sleeps is woken; else it looks every 50 µs | on |
//! | `sealed` | server: takes only memory that the client cannot make smaller | on |
//!
//! Who starts first is the server, and who comes to it the client, also of two that start at the same
//! moment: so two ends need no roles. Who is to start first, or again, must be told which it is.
//!
//! A client's pool is the memory that both have. Its packets move by exchange of buffers, in both
//! directions, and so do those of ports that share the pool. A server looks at packets where they lie,
//! and copies what it sends.
//!
//! The port outlives its peers. One that has gone is waited for, or connected to again every 100 ms;
//! meanwhile nothing comes, and what is to be sent stays in the ring. What the next one sends comes
//! once all that the old one had sent is received and, at a server without `copy=on`, released; of a
//! peer that comes and goes before then nothing is received. What the peer had been handed and not taken
//! is counted ([`QueueStats::disconnected`](super::QueueStats)). Of a client that has gone the server
//! cannot know what it had taken when it had not offered the buffers again: these it counts, too.
//!
//! Who may write to the socket's file may connect, and to `@x` whoever is in the network namespace:
//! there a secret keeps others out. A peer can change the bytes of a packet while it is being
//! looked at; a port that is a server with `copy=on` cannot be harmed by that, and no peer reaches
//! other memory than the buffers of the client's pool.

mod config;
mod control;
mod queue;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

pub(super) use queue::MemifQueue;

use super::queue::{Backend, Queue};
use super::together::Needs;
use super::{LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Use};
use crate::error::{Error, Result};
use crate::link::netns;
use crate::memif::address::Address;
use crate::memory::Pool;
use crate::ring::{Interface, Ring};
use config::{Config, Role};
use control::{Control, End};
use queue::{Buffers, Ways};

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let config = Config::of(name, options)?;
    let address = Address::of(name.name());
    let netns = options.netns.clone();
    let first = netns::within(netns.as_deref(), || meet(name, &config, &address))?;
    let pool = match &options.pool {
        Some(pool) => Arc::clone(pool),
        None => needs(name, options)?.pool()?,
    };
    let (client, end) = match first {
        Met::Server(listener) => (false, End::Server(listener)),
        Met::Client(first) => {
            shareable(name, &pool)?;
            (true, End::Client { pool: Arc::clone(&pool), first })
        }
    };
    let ways = Ways {
        client,
        receives: options.usage != Use::Send,
        sends: options.usage != Use::Receive,
        copies: config.copies,
        interrupts: config.interrupts,
    };
    let described = Interface {
        name: name.short(),
        link_type: LINKTYPE_ETHERNET,
        snaplen: 0,
        comment: String::new(),
    };
    let queues = usize::from(config.settings.queues);
    let rings = (0..queues).map(|_| Rings::new(&pool, &config, ways));
    let rings = rings.collect::<Result<Vec<_>>>()?;
    // Last: nothing can fail any more, and who listens is there.
    let place = (address, netns);
    let control = Arc::new(Control::start(name.short(), place, config.settings.clone(), end)?);
    let queues = rings.into_iter().enumerate().map(|(number, rings)| {
        let queue = MemifQueue::new(number, &control, &pool, ways, rings.buffers);
        let backend = Backend::Memif(Box::new(queue));
        Queue::new(number as u32, rings.rx, rings.tx, backend, vec![described.clone()])
    });
    let queues = queues.collect();
    let method = if client { "client" } else { "server" };
    Ok(Port { name: name.clone(), method, mode: None, fallbacks: Vec::new(), queues })
}

/// As long one waits for another who starts at the same moment to listen: that is a few microseconds,
/// on a machine that has time for it.
const SAME_MOMENT: Duration = Duration::from_secs(1);

/// Who is at the other end of the socket when a port is opened.
enum Met {
    /// Nobody has to be: we listen.
    Server(crate::memif::address::Listener),
    /// Maybe somebody who listens.
    Client(Option<crate::memif::channel::Channel>),
}

/// Takes the role that was asked for, or that is left.
fn meet(name: &PortName, config: &Config, address: &Address) -> Result<Met> {
    let end = Instant::now() + SAME_MOMENT;
    loop {
        match try_to_meet(name, config, address)? {
            Some(met) => return Ok(met),
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            None => return Err(in_the_way(name)),
        }
    }
}

/// None where another who has started at the same moment is about to listen.
fn try_to_meet(name: &PortName, config: &Config, address: &Address) -> Result<Option<Met>> {
    let failed = |operation, error: Errno| Error::system(operation, name.short(), error);
    let met = match (config.role, address.connect()) {
        (Some(Role::Server), Ok(channel)) => Err(served(name, channel.peer_process())),
        (Some(Role::Server), Err(_)) | (None, Err(Errno::ENOENT | Errno::ECONNREFUSED)) => {
            match address.listen() {
                Ok(listener) => Ok(Met::Server(listener)),
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
        (_, Ok(channel)) => Ok(Met::Client(Some(channel))),
        // Busy, or not there yet.
        (_, Err(Errno::EAGAIN)) => Ok(Met::Client(None)),
        (Some(Role::Client), Err(Errno::ENOENT | Errno::ECONNREFUSED)) => Ok(Met::Client(None)),
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
        .remedy("something else is there: name another file")
}

fn served(name: &PortName, process: Option<i32>) -> Error {
    let who = process.filter(|&pid| pid != 0).map(|pid| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // A process names itself, and may do so to steer a terminal.
        let comm = comm.trim_end().replace(char::is_control, "?");
        format!(" by {} (process {pid})", if comm.is_empty() { "one" } else { &comm })
    });
    let who = who.unwrap_or_default();
    name.error(format!("is served already{who}: role=client connects to it"))
}

/// Descriptors say in 32 bits where a packet begins.
fn shareable(name: &PortName, pool: &Pool) -> Result<()> {
    match u32::try_from(pool.bytes()) {
        Ok(_) => Ok(()),
        Err(_) => {
            Err(name.error("a client's pool has 4 GiB at most: use fewer or smaller buffers"))
        }
    }
}

/// What a queue takes of the pool.
struct Rings {
    rx: Ring,
    tx: Ring,
    buffers: Buffers,
}

impl Rings {
    fn new(pool: &Arc<Pool>, config: &Config, ways: Ways) -> Result<Self> {
        let Ways { client, receives, sends, copies, .. } = ways;
        let slots = config.slots;
        let rx = match receives {
            true if client || copies => Ring::receive(pool, slots)?,
            true => Ring::receive_indirect(pool, slots)?,
            false => Ring::absent(pool)?,
        };
        let tx = if sends { Ring::transmit(pool, slots)? } else { Ring::absent(pool)? };
        let mut buffers = Buffers::default();
        if client && receives {
            buffers.rx = pool.take(config.entries() as usize)?;
        }
        if client && sends {
            buffers.tx = match pool.take(config.entries() as usize) {
                Ok(taken) => taken,
                Err(error) => {
                    pool.give(buffers.rx);
                    return Err(error);
                }
            };
        }
        Ok(Self { rx, tx, buffers })
    }
}

/// What the port takes of a pool, as a client; a server takes less.
pub(super) fn needs(name: &PortName, options: &OpenOptions) -> Result<Needs> {
    let config = Config::of(name, options)?;
    let directions = if options.usage == Use::Both { 2 } else { 1 };
    let buffers = directions * (config.slots + config.entries());
    let queues = config.settings.queues.into();
    Ok(Needs::of_queues(queues, buffers, config.slots, config.buffer_bytes))
}
