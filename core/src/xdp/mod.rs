//! XDP: AF_XDP sockets, the resident program with its stages, and live frames.
//!
//! An AF_XDP socket moves packets between a card's queue and the pool (Linux 5.10, CAP_NET_RAW).
//!
//! ```text
//!   a slot of the receive ring                         a slot of the transmit ring
//!      ^ full     | empty                                 | full        ^ empty
//!      |          v                                       v             |
//!   +---------+ +---------+                            +----------+ +------------+
//!   | receive | | fill    |    rings shared with       | transmit | | completion |
//!   +---------+ +---------+    the kernel: four        +----------+ +------------+
//!      ^          |            per socket                 |             ^
//!      |          v                                       v             |
//!   +-----------------------------------------------------------------------+
//!   | kernel, card                                                          |
//!   +-----------------------------------------------------------------------+
//! ```
//!
//! Only numbers move. The pool is the UMEM: the kernel knows all its buffers as frames, and packets stay in
//! them from the card to the program and on to another card. At any moment a frame has one holder:
//!
//! | holder | from | to |
//! | --- | --- | --- |
//! | the pool's free list | its socket has ended | a socket or a ring is created |
//! | the kernel, empty | it was put into the fill ring | its packet is in the receive ring |
//! | a slot | its packet was received, or sent | it was exchanged, or submitted to send |
//! | the kernel, full | it was put into the transmit ring | it is in the completion ring |
//!
//! A slot that takes a frame gives its previous buffer in exchange, so the ring and the kernel keep their
//! numbers of buffers. Both sides of a socket track the frames they have lent. A frame that comes back
//! twice, or was never lent, is rejected and counted. So a buffer never has two holders, whatever the
//! kernel reports. A socket's frames return to the pool when the socket is closed and the kernel has
//! stopped writing.
//!
//! | module | contents |
//! | --- | --- |
//! | `open`, `socket` | opening in the best mode; a bound socket |
//! | `uapi` | the options and layouts of an AF_XDP socket |
//! | `ring` | the four rings of a socket |
//! | `umem` | frames and addresses; sockets that share a UMEM |
//! | `receive`, `send` | exchanging frames with a [`Ring`](sluicegate_base::ring::Ring) |
//! | [`resident`] | the program on an interface, its stages and their owners |
//! | `cell_rings` | rings into which that program copies packets, without a socket |
//! | `flows` | the table of the host's own flows |
//! | `rx_metadata` | times that a program writes in front of packets |
//! | [`live`] | sending without a socket: packets that a program makes |
//! | `redirects` | the fate of redirected frames |
//! | `bpf` | bpf(2): maps, programs, links |

pub(crate) mod bpf;
pub(crate) mod cell_rings;
pub(crate) mod flows;
pub mod live;
mod open;
mod receive;
pub(crate) mod redirects;
pub mod resident;
mod ring;
pub(crate) mod rx_metadata;
mod send;
mod socket;
mod uapi;
mod umem;

#[cfg(all(test, not(loom)))]
mod tests;

pub use bpf::{Mode, ProgInfo, ProgTestRun, RunStatistics};
pub use open::{BindMode, BusyPoll, ModeFallback, Xsk, XskConfig};
pub use receive::{Received, ReceiverStats, XskReceiver};
pub use redirects::RedirectCounts;
pub use resident::Inspect;
pub use rx_metadata::wall_ahead_ns;
pub use send::{SenderStats, XskSender};
pub use socket::{State, XskSocket, XskStatistics};
pub(crate) use umem::{HEADROOM_BYTES, buffer_bytes};
