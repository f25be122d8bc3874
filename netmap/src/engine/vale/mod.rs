//! VALE: learning switches in memory, and their ports.
//!
//! ```text
//!   port a: transmit ring --sync--> Switch: destination by MAC --copy--> port b: receive ring
//! ```
//!
//! The sender's sync copies each packet into the receivers' rings, which are in regions of their own. A full ring
//! drops it: sending never waits. Receivers only give slots back.

mod attached;
mod control;
mod learning;
mod port;
mod switch;

pub(super) use attached::AttachedCard;
pub(super) use port::{ValeDriver, ValePort};
pub(super) use switch::Switch;

use super::adapter::Geometry;
use super::ring::SLOTS;

/// The most switches of an engine.
pub(super) const MAX_SWITCHES: usize = 8;
/// Slots of a ring that a program does not choose.
const DEFAULT_SLOTS: u32 = 1024;
/// The most rings of a port, in each direction.
const MAX_RINGS: u16 = 16;

/// Returns the rings of a port: transmit and receive, as a program asked for them, within bounds.
pub(super) fn geometry(slots: [u32; 2], rings: [u16; 2]) -> Geometry {
    let [tx_slots, rx_slots] = slots.map(|wanted| match wanted {
        0 => DEFAULT_SLOTS,
        wanted => wanted.clamp(*SLOTS.start(), *SLOTS.end()),
    });
    let [tx_rings, rx_rings] = rings.map(|wanted| u32::from(wanted.clamp(1, MAX_RINGS)));
    Geometry {
        tx_rings,
        rx_rings,
        host_tx_rings: 1,
        host_rx_rings: 1,
        tx_slots,
        rx_slots,
        has_host: false,
    }
}
