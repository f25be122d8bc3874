//! Moving packets from a receive ring to a transmit ring.
//!
//! In one pool they move by exchanging buffers, without a byte copied. A packet whose bytes are
//! elsewhere (an INDIRECT slot: a kernel's block, a file's buffer), or in another pool, is
//! copied.

mod rewrite;

use sluicegate_base::ring::RingMut;

pub use rewrite::{Rewriter, Vlan};

/// The counts of one forwarding step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Slots that changed places.
    pub swapped_slots: u32,
    /// Packets that moved so.
    pub swapped_packets: u32,
    /// Packets that were copied.
    pub copied_packets: u32,
    /// Bytes of packets that moved, without a frame check sequence.
    pub bytes: u64,
    /// Packets that were left out, because they need more slots than the target has at all.
    pub too_long_packets: u32,
}

impl Moved {
    /// Packets that moved, one way or the other.
    #[inline]
    pub fn packets(&self) -> u32 {
        self.swapped_packets + self.copied_packets
    }
}

/// Moves packets, first to last, until `from` is empty or `to` has no room for the next. Sync
/// `from` before and `to` after. What does not fit stays in `from`, unless it never would.
#[inline]
pub fn forward(from: RingMut<'_>, to: RingMut<'_>) -> Moved {
    forward_some(from, to, u32::MAX)
}

/// Forwards like [`forward`], but only the whole packets in the first `slots` slots of `from`.
#[inline]
pub fn forward_some(mut from: RingMut<'_>, mut to: RingMut<'_>, slots: u32) -> Moved {
    let mut moved = Moved::default();
    let mut left = slots;
    loop {
        let swapped = from.swap_packets(&mut to, left);
        moved.swapped_slots += swapped.slots;
        moved.swapped_packets += swapped.packets;
        moved.bytes += swapped.bytes;
        left -= swapped.slots;
        let next = from.packets().next();
        let Some(packet) = next.filter(|packet| packet.slots() <= left) else { return moved };
        if to.push(&packet) {
            moved.copied_packets += 1;
            moved.bytes += packet.captured_bytes() as u64;
        } else if to.can_ever_hold(&packet) {
            return moved;
        } else {
            moved.too_long_packets += 1;
        }
        let slots = packet.slots();
        left -= slots;
        from.release(slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{OpenOptions, Port};
    use sluicegate_base::memory::{Pool, PoolConfig};

    fn null(options: &OpenOptions) -> Port {
        Port::open(&"null:?slots=64".parse().unwrap(), options).unwrap()
    }

    #[test]
    fn in_one_pool_packets_swap() {
        let pool = Pool::new(PoolConfig::default()).unwrap();
        let options = OpenOptions { pool: Some(pool), ..OpenOptions::default() };
        let (mut a, mut b) = (null(&options), null(&options));
        a.queues[0].sync_rx().unwrap();
        let moved = forward(a.queues[0].rx_mut(), b.queues[0].tx_mut());
        assert_eq!((moved.swapped_slots, moved.swapped_packets, moved.bytes), (63, 63, 63 * 60));
        assert_eq!((moved.packets(), moved.copied_packets), (63, 0));
    }

    #[test]
    fn between_pools_packets_are_copied() {
        let (mut a, mut b) = (null(&OpenOptions::default()), null(&OpenOptions::default()));
        a.queues[0].sync_rx().unwrap();
        let head = a.queues[0].rx().head();
        a.queues[0].rx_mut().bytes_mut(head)[..5].copy_from_slice(b"hello");
        let moved = forward(a.queues[0].rx_mut(), b.queues[0].tx_mut());
        assert_eq!(moved, Moved { copied_packets: 63, bytes: 63 * 60, ..Moved::default() });
        assert_eq!(a.queues[0].rx().available(), 0);
        let tx = b.queues[0].tx_mut();
        assert_eq!(tx.available(), 0, "all given to the backend");
        assert_eq!(tx.slot(0).bytes(), 60);
    }

    #[test]
    fn no_more_is_moved_than_is_wanted() {
        let pool = Pool::new(PoolConfig::default()).unwrap();
        let shared = OpenOptions { pool: Some(pool), ..OpenOptions::default() };
        for (options, why) in [(shared, "swapped"), (OpenOptions::default(), "copied")] {
            let (mut a, mut b) = (null(&options), null(&options));
            a.queues[0].sync_rx().unwrap();
            for (wanted, expected) in [(0, 0), (10, 10), (100, 53)] {
                let moved = forward_some(a.queues[0].rx_mut(), b.queues[0].tx_mut(), wanted);
                assert_eq!(moved.packets(), expected, "{why}: {wanted}");
            }
        }
    }

    #[test]
    fn a_packet_that_never_fits_does_not_stop_the_others() {
        let path = tempfile::Builder::new().suffix(".pcap").tempfile().unwrap();
        let mut file: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, 1]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        for bytes in [60u32, 100_000, 60] {
            file.extend([1, 0, bytes, bytes].iter().flat_map(|word: &u32| word.to_le_bytes()));
            file.resize(file.len() + bytes as usize, 0);
        }
        std::fs::write(path.path(), file).unwrap();
        let name = format!("pcap:{}", path.path().display()).parse().unwrap();
        let mut from = Port::open(&name, &OpenOptions::default()).unwrap();
        let mut to =
            Port::open(&"null:?slots=16".parse().unwrap(), &OpenOptions::default()).unwrap();
        from.queues[0].sync_rx().unwrap();
        let moved = forward(from.queues[0].rx_mut(), to.queues[0].tx_mut());
        let expected =
            Moved { copied_packets: 2, too_long_packets: 1, bytes: 120, ..Moved::default() };
        assert_eq!(moved, expected);
    }
}
