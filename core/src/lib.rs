//! Moves packets between Linux and a program at high rates, on the stock kernel.
//!
//! Every source and sink of packets has the same rings; only `sync` differs.
//!
//! ```text
//!                  your program
//!         reads, rewrites, swaps buffers
//!            |                     ^
//!            v                     |
//!   +-----------------+   +-----------------+     slots of 16 bytes, netmap's semantics;
//!   | transmit ring   |   | receive ring    |     beside each: time and source, wire length,
//!   | head .. tail    |   | head .. tail    |     VLAN tag, hash, direction, interface, losses
//!   +-----------------+   +-----------------+
//!            |   sync_tx           ^   sync_rx    one thread, one batch per call
//!            v                     |
//!   +---------------------------------------+
//!   | Queue: the backend, one of            |
//!   |   packet:  packet sockets             |     a Port is opened by its name
//!   |   xdp:     AF_XDP sockets, or copies  |     and has one or more queues
//!   |   mirror:  copies by an XDP program   |
//!   |   live:    sending without a socket   |
//!   |   host:    the host's side of eth0    |
//!   |   tap:     a TAP device               |
//!   |   memif:   a pipe to another process  |
//!   |   monitor: a running command's packets|
//!   |   pcap:    a capture file             |
//!   |   null:    a generator, a discard sink|
//!   +---------------------------------------+
//!            |                     ^
//!            v                     |
//!      the wire, a file      the wire, a file
//! ```
//!
//! A [`Port`](port::Port) is a named source and sink. Opening it gives [`Queue`](port::Queue)s, each for
//! one thread. The program owns the slots between head and tail of a queue's [`Ring`](ring::Ring): packets
//! to read, or room to send. It gives slots back with [`release`](ring::RingMut::release), and the next
//! sync takes them. A slot names a buffer in a [`Pool`](memory::Pool), or points at the backend's own
//! bytes, such as a block shared with the kernel: then reading a packet copies nothing.
//!
//! A receive loop for one queue; dropping a [`Batch`](port::Batch) gives its slots back. If packets never
//! stop arriving, call [`check`](port::Queue::check) once a second. [`stats`](port::Queue::stats) counts lost
//! packets.
//!
//! ```no_run
//! use std::time::Duration;
//! use sluicegate::port::{Directions, Port};
//!
//! let mut queue = Port::open_one("packet:eth0", Directions::Receive)?;
//! while !queue.is_finished() {
//!     for packet in queue.receive(Duration::from_secs(1))?.packets() {
//!         println!("{} bytes", packet.meta().wire_bytes);
//!     }
//! }
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! This forwards packets by swapping buffers, and runs without privilege:
//!
//! ```
//! use sluicegate::forward::forward;
//! use sluicegate::port::{Directions, OpenOptions, Port};
//!
//! // Ports opened together share a pool: packets pass without a copy.
//! let ports = [("null:?size=1514".parse()?, Directions::Receive), ("null:".parse()?, Directions::Send)];
//! let mut ports = Port::open_all(&ports, &OpenOptions::default())?;
//! let mut to = ports.remove(1).queues.remove(0);
//! let mut from = ports.remove(0).queues.remove(0);
//!
//! from.sync_rx()?; // a ring of 512 slots (`slots=`) holds up to 511 packets
//! let bytes: usize = from.rx().packets().map(|packet| packet.captured_bytes()).sum();
//! assert_eq!(bytes, 511 * 1514);
//!
//! forward(from.rx_mut(), to.tx_mut());
//! to.sync_tx()?; // sends them
//! assert_eq!(to.stats()?.sent, 511);
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! `packet:eth0` receives from an interface (Linux 3.17, CAP_NET_RAW): also packets for other hosts, unless
//! `promisc=off`, and those that the host sends, unless `tx_copies=off`. Programs that keep or forward
//! packets, or choose how to wait, use [`sync_rx`](port::Queue::sync_rx) and [`wait_rx`](port::Queue::wait_rx).
//! Files, tunnels and `packet:any` may have packets without an Ethernet header: see
//! [`Queue::interfaces`](port::Queue::interfaces).
//! `core/examples` has whole programs: `receive` prints packets, `count_by_protocol` sums them, `generate` sends
//! some, `bridge` forwards between two ports, and `claim` answers UDP echo requests before the host sees them.
//! They build and parse packets with the crate `etherparse` 0.21; [`headers`] only locates headers.
//! [`link::NextHops::mac`] finds the MAC address to send to, and [`link::interface`] that of an interface.
//!
//! The library installs one signal handler: live frames need a SIGURG that interrupts system calls, and use
//! the program's own handler if there is one. ^C ends the program, and the kernel removes its sockets and
//! claims, but a capture file is complete only after [`close_tx`](port::Queue::close_tx), or when its queue is
//! dropped. A program that ends its loop itself sets a flag in a handler of SIGINT, and checks it after each
//! [`receive`](port::Queue::receive). A signal ends the wait of one thread only: the others see the flag when
//! their timeouts expire.
//!
//! The lower layers are separate crates, each of which depends only on those below it (docs/design.md). This
//! crate re-exports the parts that programs need; programs with `memif:` ports need nothing of `memif`. Two
//! crates above it are libraries, too: `sluicegate-traffic` generates, replays and analyses packets,
//! `sluicegate-switch` is a learning switch.
//!
//! | module | contents |
//! | --- | --- |
//! | [`error`] | errors: the failed operation, its object, the remedy |
//! | [`units`] | sizes, times and counts as people write them |
//! | [`socket_file`] | UNIX sockets with a file name |
//! | [`headers`] | the positions of a frame's Ethernet, VLAN and IP headers |
//! | [`memory`] | the pool of buffers |
//! | [`ring`] | slots, metadata, waiting |
//! | [`filter`] | pcap-filter expressions as programs, also as eBPF; the eBPF assembler |
//! | [`mod@file`] | reading and writing capture files |
//! | [`link`] | interfaces, their counters, network namespaces, the lab |
//! | [`nic`] | temporary changes of cards' settings |
//! | [`xdp`] | AF_XDP: rings shared with the kernel, the pool as its memory; the resident program |
//! | [`port`] | names, queues, the backends |
//! | [`control`] | requests to a running command, over a socket |
//! | [`monitor`] | copies of a running command's packets |
//! | [`forward`] | moving packets from ring to ring; settings for a bridge |
#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod cell_ring;
pub mod control;
pub mod forward;
pub mod monitor;
pub mod port;
mod raw_socket;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod xdp;

#[doc(inline)]
pub use sluicegate_base::{Error, Result, error, headers, socket_file, units};
#[doc(inline)]
pub use sluicegate_filter as filter;
#[doc(inline)]
pub use sluicegate_link as link;
#[doc(inline)]
pub use sluicegate_nic as nic;
#[doc(inline)]
pub use sluicegate_pcap as file;

/// The pool of packet buffers.
pub mod memory {
    pub use sluicegate_base::memory::{Pool, PoolConfig};
}

/// A ring of slots with metadata beside them: a program's view of every source and sink.
pub mod ring {
    pub use sluicegate_base::ring::{
        Direction, Filled, Interface, LINKTYPE_ETHERNET, Meta, Packet, Packets, Readiness, Ring,
        RingMut, Segments, Slot, Swapped, TimestampSource, Wait, flags, now_ns,
    };
}
