//! A switch: its ports, and the way of a batch of packets to them.

use std::sync::{Arc, PoisonError, RwLock};

use nix::errno::Errno;

use super::learning::LearningTable;
use super::port::ValePort;
use crate::abi::flags;
use crate::engine::EngineOptions;
use crate::engine::indirect::IndirectSlots;
use crate::engine::region::BUFFER_BYTES;
use crate::engine::ring::{RingState, SlotHead};

/// The most ports of a switch.
const MAX_PORTS: usize = 254;
/// The shortest packet that is forwarded: an Ethernet header.
const MIN_BYTES: u16 = 14;
/// Bytes at the front of a packet that decide where it goes.
const ADDRESSES: usize = 12;
/// The most slots of a packet.
const MAX_FRAGMENTS: u32 = 64;

/// A learning switch.
#[derive(Debug)]
pub(in crate::engine) struct Switch {
    pub(in crate::engine) name: String,
    ports: RwLock<Vec<Option<Arc<ValePort>>>>,
    learned: LearningTable,
}

/// A packet of a batch.
#[derive(Clone, Copy, Debug)]
struct Routed {
    /// Its first slot, and the number of its slots.
    first: u32,
    slots: u32,
    /// The port; None for all but the sender's.
    to: Option<u32>,
}

/// The ring that packets come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// The number of its port in the switch.
    pub(super) number: u32,
    /// Its number in the port.
    pub(super) ring: u32,
    /// Bytes of the virtio-net header in front of its packets.
    pub(super) header: u16,
}

/// The packets of one sync, kept to use the memory again.
#[derive(Debug)]
pub(super) struct SyncBatch {
    packets: Vec<Routed>,
    indirect: IndirectSlots,
}

impl SyncBatch {
    pub(super) fn new(options: &EngineOptions) -> Self {
        Self { packets: Vec::new(), indirect: IndirectSlots::new(options) }
    }
}

impl Switch {
    pub(in crate::engine) fn new(name: &str) -> Arc<Self> {
        let (ports, learned) = (RwLock::default(), LearningTable::default());
        Arc::new(Self { name: name.into(), ports, learned })
    }

    /// Adds a port. Returns its number, the lowest that is free.
    ///
    /// # Errors
    /// ENOMEM: the switch has no room.
    pub(super) fn add(&self, port: &Arc<ValePort>) -> Result<u32, Errno> {
        let mut ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        let number = ports.iter().position(Option::is_none).unwrap_or(ports.len());
        if number >= MAX_PORTS {
            return Err(Errno::ENOMEM);
        }
        if number == ports.len() {
            ports.push(None);
        }
        ports[number] = Some(Arc::clone(port));
        Ok(number as u32)
    }

    /// Removes a port.
    pub(super) fn remove(&self, number: u32) {
        let mut ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        ports[number as usize] = None;
        self.learned.forget(number);
    }

    /// Returns true if it has no port.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        let ports = self.ports.read().unwrap_or_else(PoisonError::into_inner);
        ports.iter().all(Option::is_none)
    }

    /// Returns the first port from a number on.
    pub(in crate::engine) fn port_from(&self, first: u32) -> Option<(u32, Arc<ValePort>)> {
        let ports = self.ports.read().unwrap_or_else(PoisonError::into_inner);
        let mut from = (0..).zip(&*ports).skip(first as usize);
        from.find_map(|(number, port)| Some((number, Arc::clone(port.as_ref()?))))
    }

    /// Forwards the packets in the slots [hwcur, rhead) of a port's transmit ring.
    ///
    /// # Errors
    /// EINVAL: a slot is invalid. The packets before it are forwarded.
    pub(super) fn forward(
        &self,
        source: Source,
        ring: &mut RingState,
        batch: &mut SyncBatch,
    ) -> Result<(), Errno> {
        let routed = self.route(source, ring, batch);
        let ports = self.ports.read().unwrap_or_else(PoisonError::into_inner);
        let everywhere = batch.packets.iter().any(|packet| packet.to.is_none());
        for (number, port) in (0..).zip(&*ports).filter(|&(number, _)| number != source.number) {
            let is_target = |packet: &&Routed| packet.to.is_none_or(|to| to == number);
            if !everywhere && !batch.packets.iter().any(|packet| is_target(&packet)) {
                continue;
            }
            let Some(port) = port else { continue };
            let Some(receiver) = port.receiver(source.ring) else { continue };
            let headers = (source.header, port.header());
            receiver.deliver(|to| {
                let before = to.hwtail;
                batch
                    .packets
                    .iter()
                    .filter(is_target)
                    .for_each(|packet| copy(ring, packet, to, headers));
                to.hwtail != before
            });
        }
        routed
    }

    /// Finds the packets of a batch and their ports.
    fn route(
        &self,
        source: Source,
        ring: &mut RingState,
        batch: &mut SyncBatch,
    ) -> Result<(), Errno> {
        batch.packets.clear();
        let mut first = ring.hwcur;
        while first != ring.rhead {
            let (mut at, mut slots, mut dropped) = (first, 0, false);
            let Some((head, start)) = ring.packet(first) else { return Err(Errno::EINVAL) };
            loop {
                let Some((slot, _)) = ring.packet(at) else { return Err(Errno::EINVAL) };
                at = ring.next(at);
                slots += 1;
                dropped |= batch.indirect.drops(slot);
                // A packet that is not complete is cut off, as in netmap.
                if slot.flags & flags::MOREFRAG == 0 || at == ring.rhead || slots == MAX_FRAGMENTS {
                    break;
                }
            }
            let packet = std::mem::replace(&mut first, at);
            ring.hwcur = at;
            if dropped || head.len < MIN_BYTES + source.header {
                continue;
            }
            let mut addresses = [0; ADDRESSES];
            ring.shared.region().memory.read(start + usize::from(source.header), &mut addresses);
            let to = self.port_of(source.number, head, addresses);
            if to != Some(source.number) {
                batch.packets.push(Routed { first: packet, slots, to });
            }
        }
        Ok(())
    }

    /// Learns the sender's address. Returns the destination's port, if it is known and not a group's.
    fn port_of(&self, source: u32, head: SlotHead, addresses: [u8; ADDRESSES]) -> Option<u32> {
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = addresses;
        if s0 & 1 == 0 && head.flags & flags::NO_LEARN == 0 {
            self.learned.learn(&[s0, s1, s2, s3, s4, s5], source);
        }
        if d0 & 1 == 0 { self.learned.find(&[d0, d1, d2, d3, d4, d5]) } else { None }
    }
}

/// Copies a packet to a receive ring; drops it if the ring has no room. If the ports have different headers, it
/// replaces the packet's by an empty one.
#[inline]
fn copy(ring: &RingState, packet: &Routed, to: &mut RingState, headers: (u16, u16)) {
    if to.room() < packet.slots {
        return;
    }
    let (mut cut, mut added) = if headers.0 == headers.1 { (0, 0) } else { headers };
    let (mut from, mut at) = (packet.first, to.hwtail);
    for left in (0..packet.slots).rev() {
        // Read again, because `route` has only looked: the copy is checked by itself.
        let Some((slot, start)) = ring.packet(from) else { return };
        let more = if left > 0 { flags::MOREFRAG } else { 0 };
        let Some(rest) = slot.len.checked_sub(cut) else { return };
        if u32::from(rest + added) > BUFFER_BYTES {
            return;
        }
        let set = (rest + added, (packet.slots as u16) << 8 | more);
        let filled = to.fill_slot(at, set, |region, target| {
            let memory = &ring.shared.region().memory;
            if added > 0 {
                region.memory.clear(target, added.into());
            }
            let from = start + usize::from(cut);
            memory.copy_to(from, &region.memory, target + usize::from(added), rest.into());
        });
        if !filled {
            to.skip_invalid();
            return;
        }
        // Only the first slot begins with a header.
        (cut, added) = (0, 0);
        (from, at) = (ring.next(from), to.next(at));
    }
    to.hwtail = at;
}
