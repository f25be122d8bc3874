//! Monitors: ports whose receive rings get copies of the packets of another port's rings.
//!
//! ```text
//!                 copying monitors see packets        zero-copy monitors see packets
//!   transmit:     before they are sent                after the program has their slots back
//!   receive:      when they arrive                    after the program has released their slots
//! ```
//!
//! Zero-copy ones get copies, too. A monitor that is slow loses packets: the monitored port never waits for it.

use std::sync::Arc;

use nix::errno::Errno;

use super::adapter::{Adapter, Geometry, NewRing, PortDriver, PortRings, RingId};
use super::kring::{Kring, RingDriver};
use super::ring::{RingState, Way};
use crate::abi::bodies::Register;
use crate::abi::bodies::register_flags::{MONITOR_RX, MONITOR_TX, ZCOPY_MON};
use crate::abi::flags;

/// The most slots of a packet. Monitors see nothing of a longer one.
const MAX_PARTS: usize = 64;

/// The monitors of a ring, which see its packets as whole ones.
#[derive(Debug, Default)]
pub(super) struct Monitors {
    rings: Vec<Arc<Kring>>,
    /// The first slot that they have not seen.
    next: u32,
    /// The slots of a packet whose last slot is still to come.
    begun: Vec<Part>,
    /// True if this packet has an invalid slot, too many, or began before they saw it.
    lost: bool,
}

/// A slot of a packet, read once.
#[derive(Debug)]
struct Part {
    len: u16,
    /// MOREFRAG or 0.
    more: u16,
    bytes: Bytes,
}

/// The bytes of a slot.
#[derive(Debug)]
enum Bytes {
    /// At this offset in the ring's region.
    InRegion(usize),
    /// A copy: the program may have the slot again before its packet is complete.
    Saved(Box<[u8]>),
}

impl Monitors {
    pub(super) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Adds the receive ring of a monitor. The first one sees the slots of a ring from `next` on, and nothing of a
    /// packet that has begun before.
    pub(super) fn add(&mut self, monitor: &Arc<Kring>, ring: &RingState, next: u32) {
        if self.is_empty() {
            self.skip_to(ring, next);
        }
        self.rings.push(Arc::clone(monitor));
    }

    pub(super) fn remove(&mut self, monitor: &Arc<Kring>) {
        self.rings.retain(|it| !Arc::ptr_eq(it, monitor));
    }

    /// Skips the slots before `next`, and the rest of a packet that has begun there.
    pub(super) fn skip_to(&mut self, ring: &RingState, next: u32) {
        self.next = next;
        self.begun.clear();
        self.lost = ring.shared.slot(ring.before(next)).flags & flags::MOREFRAG != 0;
    }

    /// Copies the packets in the slots from the first unseen one to `end` to the monitors.
    pub(super) fn show(&mut self, ring: &RingState, end: u32) {
        let first = std::mem::replace(&mut self.next, end);
        if self.is_empty() || first == end {
            return;
        }
        let mut parts = std::mem::take(&mut self.begun);
        // The number of parts of whole packets.
        let (mut whole, mut index) = (0, first);
        while index != end {
            let (slot, at) = ring.read(index);
            let more = slot.flags & flags::MOREFRAG;
            match at {
                Some(at) if !self.lost && parts.len() - whole < MAX_PARTS => {
                    parts.push(Part { len: slot.len, more, bytes: Bytes::InRegion(at) });
                }
                _ => {
                    parts.truncate(whole);
                    self.lost = true;
                }
            }
            if more == 0 {
                (whole, self.lost) = (parts.len(), false);
            }
            index = ring.next(index);
        }
        self.begun = parts.split_off(whole);
        self.begun.iter_mut().for_each(|part| part.save(ring));
        for monitor in &self.rings {
            monitor.deliver(|to| {
                let before = to.hwtail;
                parts.chunk_by(|part, _| part.more != 0).for_each(|it| copy(ring, it, to));
                to.hwtail != before
            });
        }
    }
}

impl Part {
    fn save(&mut self, ring: &RingState) {
        if let Bytes::InRegion(at) = self.bytes {
            let mut bytes = vec![0; self.len.into()].into_boxed_slice();
            ring.shared.region().memory.read(at, &mut bytes);
            self.bytes = Bytes::Saved(bytes);
        }
    }
}

/// Copies a packet to a monitor's ring; drops it if the ring has no room.
fn copy(ring: &RingState, packet: &[Part], to: &mut RingState) {
    if to.room() < packet.len() as u32 {
        return;
    }
    let mark = if ring.way == Way::Transmit { flags::TXMON } else { 0 };
    let mut index = to.hwtail;
    for part in packet {
        let filled =
            to.fill_slot(index, (part.len, part.more | mark), |region, at| match &part.bytes {
                Bytes::InRegion(from) => {
                    let memory = &ring.shared.region().memory;
                    memory.copy_to(*from, &region.memory, at, part.len.into());
                }
                Bytes::Saved(bytes) => region.memory.write(at, bytes),
            });
        if !filled {
            to.skip_invalid();
            return;
        }
        index = to.next(index);
    }
    to.hwtail = index;
}

/// The driver of a receive ring that others fill: a monitor's, or that of a port of a VALE switch.
#[derive(Debug)]
pub(super) struct FilledByOthers;

impl RingDriver for FilledByOthers {
    #[inline]
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
        ring.hwcur = ring.rhead;
        Ok(())
    }
}

/// Makes the port of a monitor: a receive ring for each ring of its parent that it may see.
///
/// # Errors
/// EINVAL: nobody has the parent's rings.
pub(super) fn adapter(parent: &Arc<Adapter>, wanted: &Register) -> Result<Arc<Adapter>, Errno> {
    if !parent.is_bound() {
        return Err(Errno::EINVAL);
    }
    let of_parent = parent.port.geometry;
    let (transmit, receive) = (wanted.flags & MONITOR_TX != 0, wanted.flags & MONITOR_RX != 0);
    let rings = |tx: u32, rx: u32| {
        let tx = if transmit { tx } else { 0 };
        tx.max(if receive { rx } else { 0 })
    };
    let geometry = Geometry {
        tx_rings: 1,
        rx_rings: rings(of_parent.tx_rings, of_parent.rx_rings),
        host_rx_rings: rings(of_parent.host_tx_rings, of_parent.host_rx_rings),
        ..of_parent
    };
    let region = Arc::clone(&parent.port.region);
    let parent = Arc::clone(parent);
    let name = parent.name.clone();
    let zero_copy = wanted.flags & ZCOPY_MON != 0;
    let driver = Monitor { parent, transmit, receive, zero_copy };
    Ok(Arc::new(Adapter::new(&name, PortRings { region, geometry }, Some(Box::new(driver)))))
}

/// The driver of a monitor's port.
#[derive(Debug)]
struct Monitor {
    parent: Arc<Adapter>,
    transmit: bool,
    receive: bool,
    zero_copy: bool,
}

impl Monitor {
    /// Returns the parent's open rings that a monitor's ring sees.
    fn monitored(&self, port: &Geometry, number: u32) -> Vec<Arc<Kring>> {
        let of_parent = self.parent.port.geometry;
        let ways = [(Way::Transmit, self.transmit), (Way::Receive, self.receive)];
        let seen = ways.into_iter().filter(|(_, seen)| *seen).filter_map(|(way, _)| {
            let (card, all) = of_parent.rings(way);
            let number = match number.checked_sub(port.rx_rings) {
                None => Some(number).filter(|&number| number < card),
                Some(host) => Some(card + host).filter(|&number| number < all),
            };
            self.parent.kring(RingId { way, number: number? })
        });
        seen.collect()
    }
}

impl PortDriver for Monitor {
    fn open(&self, port: &PortRings, wanted: &[RingId]) -> Result<Vec<NewRing>, Errno> {
        port.rings(wanted, |_| Box::new(FilledByOthers))
    }

    fn opened(&self, port: &PortRings, rings: &[Arc<Kring>]) {
        for kring in rings {
            for monitored in self.monitored(&port.geometry, kring.number) {
                monitored.add_monitor(kring, self.zero_copy);
            }
        }
    }

    fn closing(&self, port: &PortRings, rings: &[Arc<Kring>]) {
        for kring in rings {
            for monitored in self.monitored(&port.geometry, kring.number) {
                monitored.remove_monitor(kring);
            }
        }
    }
}
