//! AF_XDP: packets from a card's queue straight into the pool, and out of it (Linux 5.10,
//! CAP_NET_RAW; what the kernel does not have is said by name).
//!
//! ```text
//!   a slot of the receive ring                         a slot of the transmit ring
//!      ^ full     | empty                                 | full        ^ empty
//!      |          v                                       v             |
//!   +---------+ +---------+                            +----------+ +------------+
//!   | receive | | fill    |    rings shared with       | transmit | | completion |
//!   +---------+ +---------+    the kernel: four a      +----------+ +------------+
//!      ^          |            socket                     |             ^
//!      |          v                                       v             |
//!   +-----------------------------------------------------------------------+
//!   | kernel, card                                                          |
//!   +-----------------------------------------------------------------------+
//! ```
//!
//! What moves are numbers. The pool is the UMEM: the kernel knows all its buffers as frames, and
//! packets lie in them from the card to the program and on to another card. At each moment a
//! frame has one holder:
//!
//! | holder | from | to |
//! | --- | --- | --- |
//! | the pool's free list | the socket has ended | a socket or a ring is made |
//! | the kernel, empty | it was put into the fill ring | a packet in it is in the receive ring |
//! | a slot | its packet was received; or it was sent | it was exchanged; or given to send |
//! | the kernel, full | it was put into the transmit ring | it is in the completion ring |
//!
//! A slot that takes a frame gives the buffer it had for it, so that ring and kernel keep as many
//! as they had. Both sides of a socket remember which frames they have lent: one that comes back
//! twice, or was never lent, is refused and counted, so that a buffer never has two holders
//! whatever the other side says. When a socket ends its frames go home, but not before the
//! kernel has stopped writing to them.
//!
//! | file | what it knows |
//! | --- | --- |
//! | `uapi`, `calls` | the kernel's structs; the system calls |
//! | `ring`, `rings` | one ring, and its indices; the four of a socket |
//! | `umem`, `share`, `room` | frames and addresses; which sockets share a UMEM; what a card puts into a frame |
//! | `receive`, `send` | exchanging frames with a [`Ring`](sluicegate_base::ring::Ring) |
//! | `copies` | without a socket: rings into which that program copies packets |
//! | `flows` | the host's own flows: a table that programs ask |
//! | `clock`, `stamp` | the time that a program wrote in front of a packet |
//! | [`resident`], `bpf`, `btf` | the program on an interface, and who takes which packets; bpf(2); the kernel's functions |
//! | `trial`, `loaded` | trying a program on packets from nowhere; how long programs are, and how often they ran |
//! | [`live`] | sending without a socket: packets that a program makes |
//! | `redirects` | what the kernel did with frames that were redirected |
//! | `config`, `open`, `socket` | binding, in the best mode there is; a socket's life and end |

pub(crate) mod bpf;
pub(crate) mod copies;
mod descriptor;
pub(crate) mod flows;
pub mod live;
mod open;
mod receive;
pub(crate) mod redirects;
pub mod resident;
mod ring;
mod send;
mod socket;
pub(crate) mod stamp;
mod umem;

#[cfg(all(test, not(loom)))]
mod tests;

pub use bpf::{Mode, ProgInfo, ProgTestRun, RunStatistics};
pub use open::{BindMode, BusyPoll, ModeFallback, Xsk, XskConfig};
pub use receive::{Received, ReceiverStats, XskReceiver};
pub use redirects::RedirectCounts;
pub use resident::Inspect;
pub use send::{SenderStats, XskSender};
pub use socket::{State, XskSocket, XskStatistics};
pub use stamp::wall_ahead_ns;
pub(crate) use umem::{HEADROOM_BYTES, buffer_bytes};
