//! Copies packets from a ring to its image and back.
//!
//! ```text
//!   the server's                         shared with the program
//!   +------------------+  hand out      +------------------------+
//!   | Ring             | -------------> | Image                  |
//!   | slots, metas     | <------------- | header, slots          |
//!   | buffers          |  take back     | buffers, by number     |
//!   +------------------+                +------------------------+
//! ```
//!
//! A transmit ring and its image move in step, slot by slot. A receive ring gets its slots back at once, and
//! one may take several slots of the image (INDIRECT, larger buffers). A buffer stays with its slot of the
//! image, as netmap programs expect, unless the program exchanges it.

use sluicegate_base::ring::{Meta, Ring, RingMut};

use crate::abi::flags;
use crate::image::{Image, ImageFault};

/// Copies the slots that the program has returned to the transmit ring. Sync the ring afterwards.
///
/// # Errors
/// An invalid slot. Nothing is sent by this call.
pub(crate) fn take_back_packets(
    image: &mut Image,
    ring: &mut RingMut<'_>,
) -> Result<(), ImageFault> {
    let (from, head) = (image.head, image.given_back()?);
    debug_assert_eq!(from, ring.head(), "ring and image go in step");
    while image.head != head {
        let at = image.head;
        let slot = image.take_back()?;
        image.copy_out(&slot, ring.buffer_mut(at));
        ring.set_bytes(at, slot.len, slot.flags & flags::MOREFRAG != 0);
        *ring.meta_mut(at) = Meta::default();
    }
    ring.release(ring.distance(from, head));
    Ok(())
}

/// Hands out the room in the transmit ring, as empty slots. Returns the number of new slots.
pub(crate) fn hand_out_room(image: &mut Image, ring: &Ring) -> u32 {
    let slots = ring.distance(image.tail, ring.tail());
    (0..slots).for_each(|_| image.hand_out(&[], false));
    image.publish();
    slots
}

/// Takes back the slots that the program has released.
///
/// # Errors
/// An invalid slot.
pub(crate) fn take_back_room(image: &mut Image) -> Result<(), ImageFault> {
    let head = image.given_back()?;
    while image.head != head {
        image.take_back()?;
    }
    Ok(())
}

/// Hands out the whole packets in the receive ring, as far as the image has room. Adds packets that need more
/// slots than the image has to `too_long`. Returns the number of new slots.
pub(crate) fn hand_out_packets(
    image: &mut Image,
    ring: &mut RingMut<'_>,
    too_long: &mut u64,
) -> u32 {
    let before = image.out();
    while let Some((slots, needed)) = next_packet(ring, image.buffer_bytes()) {
        if needed <= image.room() {
            (0..slots).for_each(|n| copy_slot(image, ring, ring.after(ring.head(), n)));
        } else if needed < image.num_slots() {
            break;
        } else {
            *too_long += 1;
        }
        ring.release(slots);
    }
    image.publish();
    image.out() - before
}

/// Returns the number of the next packet's slots in the ring, and the number that it needs in the image.
fn next_packet(ring: &Ring, buffer_bytes: u32) -> Option<(u32, u32)> {
    let (mut at, mut needed) = (ring.head(), 0);
    for n in 1..=ring.available() {
        let slot = ring.slot(at);
        needed += u32::from(slot.bytes()).div_ceil(buffer_bytes).max(1);
        if !slot.continues() || n == ring.available() {
            return Some((n, needed));
        }
        at = ring.next(at);
    }
    None
}

/// Hands out one slot of the ring, in as many slots as it needs.
fn copy_slot(image: &mut Image, ring: &Ring, at: u32) {
    let mut rest = ring.bytes(at);
    loop {
        let (now, later) = rest.split_at(rest.len().min(image.buffer_bytes() as usize));
        image.hand_out(now, ring.slot(at).continues() || !later.is_empty());
        rest = later;
        if rest.is_empty() {
            return;
        }
    }
}
