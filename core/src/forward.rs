//! Moving packets from a receive ring to a transmit ring.
//!
//! If both rings use one pool, packets move by exchanging buffers, without copying. A packet whose bytes
//! are elsewhere (an INDIRECT slot: a block shared with the kernel, a file's buffer), or in another pool,
//! is copied. A [`Rewriter`] changes addresses and VLAN tags in the Ethernet headers on the way.
//!
//! A bridge sets these options, in the names or by [`PortName::set_default`](crate::port::PortName::set_default), as
//! `sluice forward` does by itself:
//!
//! - `promisc=on` for `xdp:`, or the card drops packets for other hosts (`packet:` has it by default);
//! - `tx_copies=off` for `packet:`, or packets that the host sends are forwarded, too;
//! - `latency=0s` for `packet:`, or packets wait for up to 10 ms;
//! - `timestamp=off` for `xdp:`, if nobody reads the times: it saves a clock reading per batch.
//!
//! `set_default` ignores an option that the port's kind lacks, but checks no value: `packet:` has a `timestamp=`
//! without `off`. "Offloads and veths" in docs/ports.md lists what
//! interfaces need beyond the names. This example bridges queue 0 of two interfaces, in both directions. For more queues,
//! select equal numbers of both by name (`xdp:eth1/0-3`), and run the loop in a thread per pair of queues, or
//! one loop with [`wait_any`] over all:
//!
//! [`wait_any`]: crate::port::wait_any
//!
//! ```no_run
//! use std::{thread::sleep, time::Duration};
//! use sluicegate::forward::forward;
//! use sluicegate::port::{Directions, OpenOptions, Port, Queue, wait_any};
//! use sluicegate::ring::Wait;
//!
//! let ports = ["xdp:eth1/0?promisc=on".parse()?, "xdp:eth2/0?promisc=on".parse()?];
//! let ports = ports.map(|name| (name, Directions::Both));
//! let mut ports = Port::open_all(&ports, &OpenOptions::default())?;
//! let mut right = ports.remove(1).queues.remove(0);
//! let mut left = ports.remove(0).queues.remove(0);
//! let pass = |from: &mut Queue, to: &mut Queue| {
//!     from.sync_rx()?;
//!     let moved = forward(from.rx_mut(), to.tx_mut());
//!     Ok::<_, sluicegate::Error>(moved.packets() + to.sync_tx()?)
//! };
//! let is_pending = |queue: &mut Queue| queue.rx().available() > 0 || queue.needs_sync_tx();
//! right.describe_sent(left.interfaces())?; // fails if their link types differ
//! left.describe_sent(right.interfaces())?;
//! loop {
//!     // About once a second, in whatever branch: left.check()?; right.check()?;
//!     if pass(&mut left, &mut right)? + pass(&mut right, &mut left)? > 0 {
//!         continue;
//!     }
//!     if is_pending(&mut left) || is_pending(&mut right) {
//!         sleep(Duration::from_micros(50)); // a full ring: nothing reports when it has room
//!     } else {
//!         wait_any(&mut [&mut left, &mut right], Wait::default(), Duration::from_secs(1))?;
//!     }
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! A packet for an interface that is down ends this loop: `sync_tx` fails, and the error's
//! [`errno`](crate::Error::errno) is `libc::ENETDOWN`. A program may sleep and go on. Packets that the target's ring can never hold are dropped,
//! and count as [`too_long_packets`](Moved::too_long_packets).

use std::str::FromStr;

use crate::error::Error;
use crate::headers::{ETHERNET_BYTES, MAC_ADDRESSES_BYTES, VLAN_TAG_BYTES, be16, ethertype};
use sluicegate_base::ring::{Meta, Packet, RingMut};

/// The counts of one forwarding step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Slots that were swapped.
    pub swapped_slots: u32,
    /// Packets that were swapped.
    pub swapped_packets: u32,
    /// Packets that were copied.
    pub copied_packets: u32,
    /// Bytes of the moved packets, without a frame check sequence.
    pub bytes: u64,
    /// Packets that were dropped because they need more slots than the target ring has.
    pub too_long_packets: u32,
}

impl Moved {
    /// Returns the number of packets that moved, swapped or copied.
    #[inline]
    pub fn packets(&self) -> u32 {
        self.swapped_packets + self.copied_packets
    }
}

/// Moves packets, first to last, until `from` is empty or `to` has no room for the next. Sync
/// `from` before and `to` after. A packet that does not fit stays in `from`, unless it can never fit.
///
/// It does not look at link types. If `from` may have other packets than Ethernet (a file, a tunnel), call
/// [`Queue::describe_sent`](crate::port::Queue::describe_sent) of the target first.
#[inline]
pub fn forward(from: RingMut<'_>, to: RingMut<'_>) -> Moved {
    forward_some(from, to, u32::MAX)
}

/// Forwards like [`forward`], but only the whole packets in the first `slots` slots of `from`.
// Not inlined: in a large caller its loop has too few registers, and takes a tenth more instructions.
#[inline(never)]
pub fn forward_some(mut from: RingMut<'_>, mut to: RingMut<'_>, slots: u32) -> Moved {
    let mut moved = Moved::default();
    let mut left = slots;
    let may_swap = from.shares_pool(&to);
    loop {
        let swapped = from.swap_packets(&mut to, left);
        moved.swapped_slots += swapped.slots;
        moved.swapped_packets += swapped.packets;
        moved.bytes += swapped.bytes;
        left -= swapped.slots;
        // Copies the packets before the next that can be swapped, and releases them together.
        let (mut copied, mut is_full) = (0, false);
        for packet in from.packets() {
            let next_swaps =
                may_swap && copied > 0 && !from.slot(from.after(from.head(), copied)).is_indirect();
            if next_swaps || packet.slots() > left - copied {
                break;
            }
            if to.push(&packet) {
                moved.copied_packets += 1;
                moved.bytes += packet.captured_bytes() as u64;
            } else if to.can_ever_hold(&packet) {
                is_full = true;
                break;
            } else {
                moved.too_long_packets += 1;
            }
            copied += packet.slots();
        }
        from.release(copied);
        left -= copied;
        if copied == 0 || is_full {
            return moved;
        }
    }
}

/// A change to a packet's outermost VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vlan {
    /// Adds a tag of this VLAN in front of all others.
    Push(u16),
    /// Changes the VLAN and keeps the priority; packets without a tag stay as they are.
    Set(u16),
    /// Removes the tag; packets without one stay as they are.
    Pop,
}

/// Parses a change: `push:VLAN`, `set:VLAN` or `pop`.
impl FromStr for Vlan {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |text: &str| {
            let number = text.parse().ok().filter(|number| (1..=4094).contains(number));
            number.ok_or_else(|| Error::Usage(format!("VLAN '{text}': use 1 to 4094")))
        };
        match text.split_once(':') {
            Some(("push", text)) => number(text).map(Self::Push),
            Some(("set", text)) => number(text).map(Self::Set),
            None if text == "pop" => Ok(Self::Pop),
            _ => Err(Error::Usage("use push:VLAN, set:VLAN or pop".into())),
        }
    }
}

/// Forwards packets with changed Ethernet headers.
#[derive(Clone, Debug, Default)]
pub struct Rewriter {
    /// The addresses that all packets get.
    source: Option<[u8; 6]>,
    destination: Option<[u8; 6]>,
    vlan: Option<Vlan>,
    /// The buffer for a packet that grows while it is copied.
    scratch: Vec<u8>,
}

/// The bytes that replace the first `cut` bytes.
#[derive(Default)]
struct Front {
    cut: usize,
    bytes: [u8; MAC_ADDRESSES_BYTES + VLAN_TAG_BYTES],
    len: usize,
}

impl Front {
    /// Returns the addresses of a frame; `None` if its header is incomplete.
    fn of(frame: &[u8]) -> Option<Self> {
        let addresses = frame.get(..ETHERNET_BYTES)?.first_chunk::<MAC_ADDRESSES_BYTES>()?;
        let mut front =
            Self { cut: MAC_ADDRESSES_BYTES, len: MAC_ADDRESSES_BYTES, ..Self::default() };
        front.bytes[..MAC_ADDRESSES_BYTES].copy_from_slice(addresses);
        Some(front)
    }
}

impl Vlan {
    /// Changes the tag of a frame.
    pub fn change(self, frame: &mut Vec<u8>) {
        if let Some(mut front) = Front::of(frame) {
            self.change_front(&mut front, frame);
            frame.splice(..front.cut, front.bytes[..front.len].iter().copied());
        }
    }

    /// Changes the beginning of a frame.
    fn change_front(self, front: &mut Front, frame: &[u8]) {
        let kind = be16(frame, MAC_ADDRESSES_BYTES);
        let tag = frame.get(MAC_ADDRESSES_BYTES..MAC_ADDRESSES_BYTES + VLAN_TAG_BYTES);
        let tag =
            tag.filter(|_| kind == Some(ethertype::VLAN) || kind == Some(ethertype::SERVICE_VLAN));
        match (self, tag) {
            (Self::Push(vlan), _) => {
                let tag = u32::from(ethertype::VLAN) << 16 | u32::from(vlan);
                front.bytes[MAC_ADDRESSES_BYTES..].copy_from_slice(&tag.to_be_bytes());
                front.len += VLAN_TAG_BYTES;
            }
            (Self::Set(vlan), Some(tag)) => {
                let [high, low] = vlan.to_be_bytes();
                let new = [tag[0], tag[1], tag[2] & 0xf0 | high & 0x0f, low];
                front.bytes[MAC_ADDRESSES_BYTES..].copy_from_slice(&new);
                front.cut += VLAN_TAG_BYTES;
                front.len += VLAN_TAG_BYTES;
            }
            (Self::Pop, Some(_)) => front.cut += VLAN_TAG_BYTES,
            (Self::Set(_) | Self::Pop, None) => {}
        }
    }
}

impl Rewriter {
    /// Makes a rewriter that sets the source and destination address, and changes VLAN tags, as given.
    pub fn new(source: Option<[u8; 6]>, destination: Option<[u8; 6]>, vlan: Option<Vlan>) -> Self {
        Self { source, destination, vlan, scratch: Vec::new() }
    }

    /// Moves packets as [`forward_some`] does, one by one. A packet that gets too long for its buffer is
    /// dropped.
    pub fn forward(&mut self, mut from: RingMut<'_>, mut to: RingMut<'_>, slots: u32) -> Moved {
        let mut moved = Moved::default();
        let mut left = slots;
        loop {
            let Some(packet) = from.packets().next().filter(|it| it.slots() <= left) else {
                return moved;
            };
            let (slots, bytes) = (packet.slots(), packet.captured_bytes());
            // A changed packet has to leave now: a later call would change it again.
            let most = (bytes + VLAN_TAG_BYTES).div_ceil(to.buffer_bytes().max(1) as usize) as u32;
            if slots.max(most) > to.available() {
                if slots.max(most) < to.num_slots() {
                    return moved;
                }
                moved.too_long_packets += 1;
            } else if let Some(bytes) = self.pass(&mut from, &mut to, slots, &mut moved) {
                left -= slots;
                moved.bytes += bytes;
                continue;
            } else {
                moved.too_long_packets += 1;
            }
            left -= slots;
            from.release(slots);
        }
    }

    /// Changes the first packet and moves it; the target must have room. Returns the packet's length, or
    /// none if its buffer is too short.
    fn pass(
        &mut self,
        from: &mut RingMut<'_>,
        to: &mut RingMut<'_>,
        slots: u32,
        moved: &mut Moved,
    ) -> Option<u64> {
        let at = from.head();
        let front = self.front(from.bytes(at));
        let meta = *from.meta(at);
        // Saturating, because a file may give any length.
        let wire_bytes =
            meta.wire_bytes.saturating_add(front.len as u32).saturating_sub(front.cut as u32);
        if from.replace_front(at, front.cut, &front.bytes[..front.len]) {
            from.meta_mut(at).wire_bytes = wire_bytes;
            let swapped = from.swap_packets(to, slots);
            moved.swapped_slots += swapped.slots;
            moved.swapped_packets += swapped.packets;
            if swapped.packets > 0 {
                return Some(swapped.bytes);
            }
            let packet = from.packets().next()?;
            let bytes = packet.captured_bytes() as u64;
            to.push(&packet).then_some(())?;
            moved.copied_packets += 1;
            from.release(slots);
            return Some(bytes);
        }
        // The packet grows without room in front of it: it is assembled in the scratch buffer, because an
        // INDIRECT packet is copied anyway.
        if !from.slot(at).is_indirect() {
            return None;
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(&front.bytes[..front.len]);
        let mut skip = front.cut;
        for segment in from.packets().next()?.segments() {
            self.scratch.extend_from_slice(&segment[skip.min(segment.len())..]);
            skip = 0;
        }
        let meta = Meta { wire_bytes, ..meta };
        to.push(&Packet::new(&meta, &self.scratch)).then_some(())?;
        moved.copied_packets += 1;
        from.release(slots);
        Some(self.scratch.len() as u64)
    }

    /// Returns a packet's new first bytes; the old ones if its header is incomplete.
    fn front(&self, bytes: &[u8]) -> Front {
        let Some(mut front) = Front::of(bytes) else { return Front::default() };
        if let Some(address) = &self.destination {
            front.bytes[..6].copy_from_slice(address);
        }
        if let Some(address) = &self.source {
            front.bytes[6..MAC_ADDRESSES_BYTES].copy_from_slice(address);
        }
        if let Some(vlan) = self.vlan {
            vlan.change_front(&mut front, bytes);
        }
        front
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Directions, OpenOptions, Port};
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

    const FRAME: [u8; 18] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 1, 2, 3, 4];
    const TAGGED: [u8; 20] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0xe0, 5, 8, 0, 1, 2];

    /// Rewrites a packet into a ring of the same pool or of another.
    fn rewritten(mut rewriter: Rewriter, bytes: &[u8], together: bool) -> (Vec<u8>, Moved) {
        let size = format!("null:?size={}", bytes.len());
        let names = [size.as_str(), "null:"].map(|name| (name.parse().unwrap(), Directions::Both));
        let options = OpenOptions::default();
        let mut ports = match together {
            true => Port::open_all(&names, &options).unwrap(),
            false => names.iter().map(|(name, _)| Port::open(name, &options).unwrap()).collect(),
        };
        let (mut to, mut from) = (ports.remove(1), ports.remove(0));
        let (from, to) = (&mut from.queues[0], &mut to.queues[0]);
        from.sync_rx().unwrap();
        let at = from.rx().head();
        from.rx_mut().bytes_mut(at).copy_from_slice(bytes);
        let first = to.tx().head();
        let moved = rewriter.forward(from.rx_mut(), to.tx_mut(), 1);
        let slot = to.tx().slot(first);
        assert!(moved.packets() == 0 || u64::from(slot.bytes()) == moved.bytes);
        // The backend owns the packet now, so it is read the way the backend does.
        (to.tx().pending_tx(first).next().map_or(Vec::new(), |it| it.head().to_vec()), moved)
    }

    #[test]
    fn headers_change_and_nothing_behind_them() {
        let all = Rewriter {
            source: Some([2, 0, 0, 0, 0, 9]),
            destination: Some([2, 0, 0, 0, 0, 8]),
            ..Rewriter::default()
        };
        let vlan = |vlan| Rewriter { vlan: Some(vlan), ..Rewriter::default() };
        let other = [2, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 9];
        for (rewriter, bytes, expected, why) in [
            (all.clone(), &FRAME[..], [&other[..], &FRAME[12..]].concat(), "both addresses"),
            (
                vlan(Vlan::Push(0x123)),
                &FRAME,
                [&FRAME[..12], &[0x81, 0, 1, 0x23], &FRAME[12..]].concat(),
                "a tag more",
            ),
            (vlan(Vlan::Pop), &TAGGED, [&TAGGED[..12], &TAGGED[16..]].concat(), "a tag less"),
            (vlan(Vlan::Pop), &FRAME, FRAME.to_vec(), "there is none to take away"),
            (
                vlan(Vlan::Set(0xabc)),
                &TAGGED,
                [&TAGGED[..14], &[0xea, 0xbc], &TAGGED[16..]].concat(),
                "another VLAN, the same priority",
            ),
            (vlan(Vlan::Set(7)), &FRAME, FRAME.to_vec(), "no tag to change"),
            (all, &FRAME[..13], FRAME[..13].to_vec(), "no whole header"),
        ] {
            if let Some(vlan) = rewriter.vlan {
                let mut frame = bytes.to_vec();
                vlan.change(&mut frame);
                assert_eq!(frame, expected, "{why}, alone");
            }
            for together in [true, false] {
                let (got, moved) = rewritten(rewriter.clone(), bytes, together);
                assert_eq!(got, expected, "{why}");
                let expected = if together { (1, 0) } else { (0, 1) };
                assert_eq!((moved.swapped_packets, moved.copied_packets), expected, "{why}");
            }
        }
    }

    #[test]
    fn what_gets_too_long_for_its_buffer_is_left_out() {
        let push = Rewriter { vlan: Some(Vlan::Push(1)), ..Rewriter::default() };
        for (bytes, expected) in [(2044, 1), (2045, 0)] {
            let (_, moved) = rewritten(push.clone(), &vec![0; bytes], true);
            assert_eq!((moved.packets(), moved.too_long_packets), (expected, 1 - expected));
        }
    }
}
