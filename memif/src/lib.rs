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
//! | file | contents |
//! | --- | --- |
//! | `message` | the messages of the control socket, as bytes |
//! | `channel` | the control socket: its address, messages and descriptors over it |
//! | `handshake` | the setup of rings over a connected socket, in both roles |
//! | `waiting_clients` | a server's clients before their handshake |
//! | `ring` | shared regions, and a ring's memory in them: two indices, descriptors |
//! | `notifier` | wakes the receiver of a ring |
//! | `end` | one end of a ring: its entries and their buffers |
//! | `transfer` | copies packets into shared buffers, and out of them |
//!
//! The peer is another program, and may be wrong or hostile. Each of its values is read once, checked, and
//! only then used. An invalid one is a [`ProtocolError`], which ends only the connection. Packets are copied
//! between shared and private memory by raw pointers. So no Rust reference points into memory that the peer
//! can write, and the peer cannot change a received packet.
//!
//! Source: VPP src/plugins/memif/memif.h, DPDK drivers/net/memif/memif.h. Linux 5.8.
#![warn(unreachable_pub)]

mod channel;
mod end;
mod handshake;
mod message;
mod notifier;
mod ring;
mod transfer;
mod waiting_clients;

pub use channel::{Address, Channel, ChannelEnd, Listener, wait};
pub use end::RingEnd;
pub use handshake::{Connection, Pair, Settings, as_client};
pub use message::{AddRing, Hello, Init, MESSAGE_BYTES, Message, ProtocolError};
pub use transfer::{Received, RxEnd, SendCounts};
pub use waiting_clients::WaitingClients;
