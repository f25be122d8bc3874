//! What a program sees of every source and sink: a ring of slots, metadata beside them.

mod atomics;
pub(crate) mod cursor;
mod handle;
mod held;
mod image;
mod interface;
mod layout;
mod meta;
mod packet;
#[allow(clippy::module_inception, reason = "the noun and its folder share a name")]
mod ring;
mod served;
mod wait;

pub(crate) use atomics::{AtomicU16, AtomicU32, Ordering, fence};
pub use handle::RingMut;
pub(crate) use held::Held;
pub(crate) use image::Fault;
pub use interface::{Interface, LINKTYPE_ETHERNET};
pub use layout::{RingHeader, Slot, flags};
pub use meta::{Direction, Meta, TimestampSource, now_ns};
pub use packet::{Packet, Segments};
pub use ring::{Filled, Packets, Ring};
pub(crate) use served::{Incoming, Outgoing};
pub use wait::{Readiness, Wait};
