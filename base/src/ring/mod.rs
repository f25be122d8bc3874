//! What a program sees of every source and sink: a ring of slots, metadata beside them.

mod atomics;
pub mod cursor;
mod handle;
mod image;
mod layout;
mod lent_buffers;
mod meta;
mod packet;
#[allow(clippy::module_inception, reason = "the noun and its folder share a name")]
mod ring;
mod served;
mod wait;

pub use atomics::{AtomicU16, AtomicU32, Ordering, fence};
pub use handle::RingMut;
pub use image::ImageFault;
pub use layout::{RingHeader, Slot, flags};
pub use lent_buffers::LentBuffers;
pub use meta::{Direction, Interface, LINKTYPE_ETHERNET, Meta, TimestampSource, now_ns};
pub use packet::{Packet, Segments};
pub use ring::{Filled, Packets, Ring, Swapped};
pub use served::{Incoming, Outgoing};
pub use wait::{Readiness, Wait};
