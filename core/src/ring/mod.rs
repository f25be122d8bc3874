//! What a program sees of every source and sink: a ring of slots, metadata beside them.

mod atomics;
mod handle;
mod interface;
mod layout;
mod meta;
mod packet;
#[allow(clippy::module_inception, reason = "the noun and its folder share a name")]
mod ring;
mod wait;

pub(crate) use atomics::{AtomicU32, Ordering};
pub use handle::RingMut;
pub use interface::{Interface, LINKTYPE_ETHERNET};
pub use layout::{RingHeader, Slot, flags};
pub use meta::{Direction, Meta, TimestampSource};
pub use packet::{Packet, Segments};
pub use ring::{Packets, Ring};
pub use wait::{Readiness, Wait};
