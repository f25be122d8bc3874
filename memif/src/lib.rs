//! memif 2.0, a shared-memory pipe between two processes: its messages, its memory, its rings.
//!
//! ```text
//!   client: has the memory                         server: has the socket
//!   +------------------------------+    control    +----------------------------+
//!   | region: rings, and a buffer  | <-----------> | maps it                    |
//!   | for each of their entries    |   socket, fds |                            |
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
//! | `notifier` | how a sleeper is woken |
//! | `end` | one end of a ring: its entries, their buffers, and whom to tell |
//! | `handshake` | from a connected socket to rings, in both roles |
//! | `send`, `receive` | copying packets into shared buffers, and out of them |
//!
//! The peer is another program, and may be wrong or hostile. What it says is read once, checked, and
//! only then used; what makes no sense is a [`ProtocolError`], which ends the connection and nothing else.
//! Packets are copied between shared memory and our own by raw pointers: no Rust reference leads into
//! memory that the peer can write, and the peer cannot change a packet that was received.
//!
//! Source: VPP src/plugins/memif/memif.h, DPDK drivers/net/memif/memif.h. Linux 3.17.

mod address;
mod channel;
mod end;
mod handshake;
mod message;
mod notifier;
mod receive;
mod region;
mod ring;
mod send;

pub use address::{Address, Listener};
pub use channel::{Channel, ChannelEnd, wait};
pub use end::End;
pub use handshake::{Connection, Pair, Settings, as_client, as_server};
pub use message::{AddRing, Hello, Init, MESSAGE_BYTES, Message, ProtocolError};
pub use receive::{Received, Receiver};
pub use send::SendCounts;
