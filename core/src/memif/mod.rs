//! memif 2.0, a shared-memory pipe between two processes: its messages, its memory, its rings.
//!
//! ```text
//!   client: has the memory                         server: has the socket
//!   +------------------------------+    control    +----------------------------+
//!   | region 0: rings              | <-----------> | maps both                  |
//!   | region 1: the pool's buffers |   socket, fds |                            |
//!   +------------------------------+               +----------------------------+
//!
//!   ring to the server      client  --- head: packets -------> server
//!                                   <-- tail: taken ----------
//!   ring to the client      client  --- head: empty buffers -> server
//!                                   <-- tail: packets --------
//! ```
//!
//! | file | what it knows |
//! | --- | --- |
//! | `message` | the messages of the control socket, as bytes |
//! | `address` | the socket: where it is, who listens there |
//! | `channel` | messages and descriptors over it |
//! | `region` | memory that the peer gave, and that is given to it |
//! | `ring` | a ring's memory: two indices, descriptors |
//! | `doorbell` | how a sleeper is woken |
//! | `end` | one end of a ring: its entries, and whom to tell |
//! | `handshake` | from a connected socket to rings, in both roles |
//! | `client`, `server` | what each role does at its end |
//! | `intake` | pieces that come, and whole packets that go on |
//!
//! The peer is another program, and may be wrong or hostile. What it says is read once, checked, and
//! only then used; what makes no sense is a [`Breach`], which ends the connection and nothing else.
//! The bytes of packets are shared with it, and can change while they are looked at.
//!
//! Source: VPP src/plugins/memif/memif.h, DPDK drivers/net/memif/memif.h. Linux 3.17.

pub(crate) mod address;
pub(crate) mod channel;
pub(crate) mod client;
mod doorbell;
pub(crate) mod end;
pub(crate) mod handshake;
mod intake;
mod message;
mod region;
mod ring;
pub(crate) mod server;

pub use message::{AddRing, Breach, Hello, Init, MESSAGE_BYTES, Message};
