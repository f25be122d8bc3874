//! Ports: named sources of packets, sinks, or both, and their queues.
//!
//! A [`Port`] is opened by name and has [`Queue`]s, each for one thread. Every queue has a receive and a
//! transmit [`Ring`](sluicegate_base::ring::Ring), whatever its backend; that of an unused direction never
//! holds a packet. Only [`Queue::sync_rx`] and [`Queue::sync_tx`] differ: they call the `Backend` once per
//! batch.
//!
//! A receiving `xdp:` port has a *claim* on an interface's packets: those on the port's queues that match its
//! filter, and that no claim at a lower stage took, come to the port. The host gets the rest, also of queues that
//! the port's name does not select, and everything again when the port closes or its process is killed. The port
//! needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN; docs/running.md lists the privileges of every kind.
//! [`Queue::receive`] returns the packets of a queue:
//!
//! ```no_run
//! use std::time::Duration;
//! use sluicegate::port::{OpenOptions, Port, Queue};
//!
//! let port = Port::open(&"xdp:eth0?filter=udp dst port 53".parse()?, &OpenOptions::default())?;
//! let receive = |mut queue: Queue| {
//!     while !queue.is_finished() {
//!         for packet in queue.receive(Duration::from_secs(1))?.packets() {
//!             println!("{} bytes", packet.meta().wire_bytes);
//!         }
//!     }
//!     Ok::<_, sluicegate::Error>(())
//! };
//! let threads = port.queues.into_iter().map(|queue| std::thread::spawn(move || receive(queue)));
//! for thread in threads.collect::<Vec<_>>() {
//!     thread.join().unwrap()?;
//! }
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! An error of a later thread shows only when the earlier ones have ended; send it through a channel to end at
//! once. The packets of an open queue that nobody receives from are lost; those of a dropped `xdp:` queue go to the
//! host.
//!
//! [`Port::open_one`] opens a port with a single queue. One thread with several queues calls [`wait_any`], then
//! [`Queue::receive`] without waiting, with `Duration::ZERO`, on each.

// The modules:
//
// | `name`, `options`, `stats` | how a port is opened; the counts of a queue |
// | `backend`, `queue`, `wait`, `rings` | common parts of all kinds |
// | `interface`, `interface_watch`, `packet_socket`, `card_clock`, `claim_conflict` | common parts of kinds with an interface |
// | `host_flows` | flows that a `host:` port leaves to the host |
// | `cell_ring_rx`, `cell_ring_queue`, `live_queue`, `tap_queue` | backends and parts of backends of several kinds |
// | `packet`, `xdp`, `mirror`, `live`, `host`, `tap`, `memif`, `monitor`, `pcap`, `null` | the kinds |
// | `open` | opens a port of any kind |

mod backend;
mod card_clock;
mod cell_ring_queue;
mod cell_ring_rx;
mod claim_conflict;
mod host;
mod host_flows;
mod interface;
mod interface_watch;
mod live;
mod live_queue;
mod memif;
mod mirror;
mod monitor;
mod name;
mod null;
mod open;
mod options;
mod packet;
mod packet_socket;
mod pcap;
mod queue;
mod rings;
mod stats;
mod tap;
mod tap_queue;
mod wait;
mod xdp;

pub use crate::xdp::Inspect;
pub use crate::xdp::flows::FlowCounts;
pub use host::{detach_host, host_left, host_owner};
pub use host_flows::HostFlows;
pub use live_queue::fits_live_frames;
pub use name::{Kind, PortName, PortOption, parse_queues};
pub use options::{Directions, Fallback, OpenOptions, RECORDING_LATENCY};
pub use packet::BLOCK_TIMEOUT;
pub use queue::{Batch, Port, Queue, SleepEvents, wait_any};
pub use stats::QueueStats;

pub use sluicegate_base::ring::{Interface, LINKTYPE_ETHERNET};
