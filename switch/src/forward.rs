//! Forwarding: decides on each packet of a batch, and moves it from a port's receive ring to the transmit
//! rings of other ports. A packet for a single port that shares the pool moves by exchange of buffers; others
//! are copied.

use std::time::Instant;

use sluicegate::headers::{MAC_ADDRESSES_BYTES, VLAN_TAG_BYTES};
use sluicegate::port::Queue;
use sluicegate::ring::{Direction, Packet};

use crate::counts::LossCause;
use crate::mac_table::{Learned, MacTable, PortNumber, Tick};
use crate::member::Member;
use crate::vlan::{Form, FrameHeader, TAG, Vlans, is_group, is_link_local};

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// One port sends it.
    To(PortNumber),
    /// All ports but the receiving one send it.
    Flood,
    /// No port sends it.
    Nowhere,
    /// The run has ended.
    AfterEnd,
}

/// The fate of a packet, with the values that forwarding and counting need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub fate: Fate,
    pub slots: u16,
    pub vlan: u16,
    /// The control information of its tag.
    pub tag: Option<u16>,
    /// Its bytes on the wire.
    pub bytes: u32,
}

/// Rules for all ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Each VLAN is a separate switch.
    pub vlans: bool,
    /// Packets to link-local groups are forwarded, except pause frames.
    pub link_local: bool,
}

/// Decides on the packets of one batch.
pub(crate) struct Decider<'a> {
    pub rules: Rules,
    pub table: &'a mut MacTable,
    pub members: &'a [Option<Box<Member>>],
    pub now: Tick,
    pub scratch: &'a mut Vec<u8>,
}

/// The destination of MAC control frames (IEEE 802.3, 31A), which stay on their link.
const PAUSE: u64 = 0x0180_c200_0001;

impl Decider<'_> {
    /// Decides on a packet received by a port, and learns from it.
    #[inline]
    pub fn decide(
        &mut self,
        packet: &Packet<'_>,
        number: PortNumber,
        from: &mut Member,
    ) -> Decision {
        let bytes = packet.meta().wire_bytes;
        from.counts.packets += 1;
        from.counts.bytes += u64::from(bytes);
        let slots = packet.slots() as u16;
        let mut decision = Decision { fate: Fate::Nowhere, slots, vlan: 0, tag: None, bytes };
        let head = match packet.head() {
            // The first slot may hold a part of the header, if a peer of `memif:` has sent it in pieces.
            head if head.len() < FrameHeader::BYTES => packet.contiguous(self.scratch),
            head => head,
        };
        let header = FrameHeader::read(head).filter(|header| !is_group(header.from));
        let fate = header.ok_or(LossCause::Malformed).and_then(|header| {
            let vlan = self.admit(&header, packet, &from.config.vlans)?;
            (decision.vlan, decision.tag) = (vlan, header.tag);
            self.learn(vlan, header.from, number, from);
            self.fate(&header, vlan, number, from)
        });
        match fate {
            Ok(fate) => decision.fate = fate,
            Err(cause) => from.counts.drop(cause),
        }
        decision
    }

    /// The VLAN of a frame; an error if the port does not admit it.
    #[inline]
    fn admit(
        &self,
        header: &FrameHeader,
        packet: &Packet<'_>,
        vlans: &Vlans,
    ) -> Result<u16, LossCause> {
        if packet.captured_bytes() < packet.meta().wire_bytes as usize {
            return Err(LossCause::Cut);
        }
        if is_link_local(header.to) && !(self.rules.link_local && header.to != PAUSE) {
            return Err(LossCause::LinkLocal);
        }
        if !self.rules.vlans {
            return Ok(0);
        }
        let vlan = vlans.of(header.tag).ok_or(LossCause::Vlan)?;
        // Without the outer tag, the inner one would select another VLAN.
        if header.is_tagged_again && vlans.untagged == Some(vlan) {
            return Err(LossCause::Vlan);
        }
        Ok(vlan)
    }

    /// Learns the port of an address. Learns none for a leaving port: the switch has removed its addresses,
    /// and may reuse its number.
    #[inline]
    fn learn(&mut self, vlan: u16, mac: u64, number: PortNumber, from: &mut Member) {
        if from.leaving.is_some() {
            return;
        }
        match self.table.learn(vlan, mac, number, self.now) {
            Learned::Same | Learned::New => {}
            Learned::Moved => from.counts.moved += 1,
            Learned::Elsewhere => from.counts.elsewhere += 1,
            Learned::NoRoom => from.counts.unlearned += 1,
        }
    }

    #[inline]
    fn fate(
        &mut self,
        header: &FrameHeader,
        vlan: u16,
        number: PortNumber,
        from: &mut Member,
    ) -> Result<Fate, LossCause> {
        let known =
            if is_group(header.to) { None } else { self.table.find(vlan, header.to, self.now) };
        match known {
            Some(port) if port == number => Err(LossCause::SamePort),
            Some(port) if self.reaches(port, vlan, header.tag) => {
                from.counts.forwarded += 1;
                Ok(Fate::To(port))
            }
            Some(_) => Err(LossCause::NoPort),
            None => self.flood(header, vlan, from),
        }
    }

    /// Floods a packet. With only one other port, the packet goes to that one.
    fn flood(&self, header: &FrameHeader, vlan: u16, from: &mut Member) -> Result<Fate, LossCause> {
        // The receiving port is not among the members while its batch is handled.
        let mut others = (0..self.members.len() as PortNumber)
            .filter(|&port| self.reaches(port, vlan, header.tag));
        let (first, second) = (others.next(), others.next());
        let first = first.ok_or(LossCause::NoPort)?;
        if from.storm.as_mut().is_some_and(|storm| !storm.allow()) {
            return Err(LossCause::Storm);
        }
        from.counts.flooded += 1;
        Ok(if second.is_some() { Fate::Flood } else { Fate::To(first) })
    }

    /// Reports whether a port sends packets of a VLAN.
    fn reaches(&self, port: PortNumber, vlan: u16, tag: Option<u16>) -> bool {
        let member = self.members.get(usize::from(port)).and_then(Option::as_deref);
        member.is_some_and(|member| form(self.rules, member, vlan, tag).is_some())
    }
}

/// The form in which a frame of a VLAN leaves by a port; `None` if it may not.
#[inline]
pub(crate) fn form(rules: Rules, to: &Member, vlan: u16, tag: Option<u16>) -> Option<Form> {
    match rules.vlans {
        _ if !to.takes() => None,
        true => to.config.vlans.form(vlan, tag),
        false => Some(Form::AsIs),
    }
}

/// Converts a time to the ticks of the table.
pub(crate) fn tick(start: Instant, now: Instant) -> Tick {
    (now.saturating_duration_since(start).as_millis() / 100) as Tick
}

/// The values that all packets of a batch share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// The index of the receiving queue in its port.
    pub queue: usize,
    /// Nanoseconds since 1970; 0 if no monitor watches a port.
    pub now_ns: u64,
    /// The number of the batch, from 1.
    pub number: u64,
}

/// Moves the first packets of a receive ring unchanged to one port. Packets without room are lost.
#[inline]
pub(crate) fn run(from: &mut Queue, batch: Batch, to: &mut Member, mut run: &[Decision]) {
    let mut slots: u32 = run.iter().map(|decision| u32::from(decision.slots)).sum();
    while let Some(next) = run.first() {
        let mut swapped = if to.down { 0 } else { swap(from, batch, to, slots) };
        slots -= swapped;
        if swapped == 0 {
            if let Some(packet) = from.rx().packets().next() {
                copy(to, batch, &packet, next.bytes);
            }
            from.rx_mut().release(next.slots.into());
            slots -= u32::from(next.slots);
            run = &run[1..];
        }
        while let Some((done, rest)) = run.split_first().filter(|_| swapped > 0) {
            to.counts.given += 1;
            to.counts.swapped += 1;
            to.counts.queued_bytes += u64::from(done.bytes);
            to.given = true;
            swapped -= u32::from(done.slots).min(swapped);
            run = rest;
        }
    }
}

/// Exchanges the buffers of as many whole packets as possible. Returns the number of slots.
#[inline]
fn swap(from: &mut Queue, batch: Batch, to: &mut Member, slots: u32) -> u32 {
    let sender = to.sender(batch.queue);
    let given = sender.tx().head();
    let swapped = from.rx_mut().swap_packets(&mut sender.tx_mut(), slots).slots;
    if swapped > 0 && !to.watchers.is_empty() {
        to.show_given(batch.queue, given, batch.now_ns);
    }
    swapped
}

/// Copies a packet to a port. A full port is synced once per batch; if it stays full, the packet is lost.
#[inline]
pub(crate) fn copy(to: &mut Member, batch: Batch, packet: &Packet<'_>, wire_bytes: u32) {
    to.counts.given += 1;
    if to.down {
        to.counts.down += 1;
        return;
    }
    let tried = to.tried == batch.number;
    let sender = to.sender(batch.queue);
    let mut pushed = sender.tx_mut().push(packet);
    if !pushed && !sender.tx_mut().can_ever_hold(packet) {
        to.counts.too_long += 1;
        return;
    }
    if !pushed && !tried {
        // An error here recurs when all ports are synced, and is reported then.
        let _ = sender.sync_tx();
        pushed = sender.tx_mut().push(packet);
        to.tried = batch.number;
    }
    if pushed {
        to.counts.copied += 1;
        to.counts.queued_bytes += u64::from(wire_bytes);
        to.given = true;
        if !to.watchers.is_empty() {
            let mut meta = *packet.meta();
            meta.wire_bytes = wire_bytes;
            to.show(&packet.with_meta(&meta), Direction::Out, batch.now_ns);
        }
    } else {
        to.counts.full += 1;
    }
}

/// Converts a packet to a form, in `scratch` if the bytes change. Also returns its wire length, because a
/// file may hold only a part of the packet.
#[inline]
pub(crate) fn formed<'a>(
    packet: Packet<'a>,
    decision: &Decision,
    form: Form,
    scratch: &'a mut Vec<u8>,
) -> (Packet<'a>, u32) {
    let bytes = decision.bytes;
    let (tag, bytes) = match form {
        Form::AsIs => return (packet, bytes),
        Form::Untagged => (None, bytes.saturating_sub(VLAN_TAG_BYTES as u32)),
        Form::Tagged(tag) if decision.tag.is_some() => (Some(tag), bytes),
        Form::Tagged(tag) => (Some(tag), bytes.saturating_add(VLAN_TAG_BYTES as u32)),
    };
    scratch.clear();
    packet.segments().for_each(|segment| scratch.extend_from_slice(segment));
    let tagged = scratch.get(MAC_ADDRESSES_BYTES..MAC_ADDRESSES_BYTES + 2) == Some(&TAG[..]);
    let old_bytes = if tagged { VLAN_TAG_BYTES } else { 0 };
    let old = MAC_ADDRESSES_BYTES..MAC_ADDRESSES_BYTES + old_bytes;
    match tag {
        Some(tag) => {
            let [high, low] = tag.to_be_bytes();
            scratch.splice(old, [TAG[0], TAG[1], high, low]);
        }
        None => drop(scratch.splice(old, [])),
    }
    (Packet::new(packet.meta(), scratch), bytes)
}

#[cfg(test)]
mod tests {
    use sluicegate::port::{Directions, OpenOptions};
    use sluicegate::ring::Meta;

    use super::*;
    use crate::mac_table::MacTableConfig;
    use crate::member::{MemberConfig, OpenedPort};

    #[test]
    fn a_header_in_pieces_is_read_whole() {
        let member = |name: &str, usage| {
            let (port, options) = ("null:".parse().unwrap(), OpenOptions::default());
            let opened = OpenedPort::open(&port, Some(usage), &options).unwrap();
            let trunk = Vlans { untagged: Some(10), tagged: "20".parse().unwrap() };
            let config = MemberConfig { vlans: trunk, ..MemberConfig::default() };
            Member::new((name.into(), 0), opened, config, Instant::now())
        };
        let members = [None, Some(Box::new(member("to", Directions::Send)))];
        let frame = |behind: &[u8]| {
            let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], behind].concat();
            frame.resize(60, 0);
            frame
        };
        let tagged = frame(&[0x81, 0, 0, 20, 8, 0]);
        let tagged_twice = frame(&[0x81, 0, 0, 10, 0x81, 0, 0, 20, 8, 0]);
        for (sentence, frame, tag, fate) in [
            ("untagged", &frame(&[8, 0]), None, Fate::To(1)),
            ("tagged", &tagged, Some(20), Fate::To(1)),
            ("tagged twice", &tagged_twice, None, Fate::Nowhere),
        ] {
            for piece_bytes in [1, 8, 14, 16, 17, 18, 60] {
                let mut queue = member("ring", Directions::Send).queues.remove(0);
                let first = queue.tx().head();
                let mut tx = queue.tx_mut();
                let mut pieces = frame.chunks(piece_bytes).peekable();
                let mut at = first;
                while let Some(piece) = pieces.next() {
                    tx.buffer_mut(at)[..piece.len()].copy_from_slice(piece);
                    tx.set_bytes(at, piece.len() as u16, pieces.peek().is_some());
                    at = tx.next(at);
                    tx.release(1);
                }
                let packet = queue.tx().pending_tx(first).next().unwrap();
                let mut decider = Decider {
                    rules: Rules { vlans: true, ..Rules::default() },
                    table: &mut MacTable::new(MacTableConfig::default()),
                    members: &members,
                    now: 0,
                    scratch: &mut Vec::new(),
                };
                let mut from = member("from", Directions::Receive);
                let decision = decider.decide(&packet, 0, &mut from);
                let found = (decision.tag, decision.fate);
                assert_eq!(found, (tag, fate), "{sentence}, {piece_bytes} bytes a piece");
            }
        }
    }

    #[test]
    fn tags_are_added_changed_and_removed() {
        let (plain, tagged): (Vec<u8>, Vec<u8>) = (
            (0..12).chain([8, 0, 1, 2]).collect(),
            (0..12).chain([0x81, 0, 0xa0, 5, 8, 0, 1, 2]).collect(),
        );
        let meta = Meta::default();
        for (sentence, frame, form, expected) in [
            ("put in", &plain, Form::Tagged(0xa005), &tagged),
            ("taken out", &tagged, Form::Untagged, &plain),
            ("changed", &tagged, Form::Tagged(0xa005), &tagged),
            ("none to take out", &plain, Form::Untagged, &plain),
            ("left alone", &tagged, Form::AsIs, &tagged),
        ] {
            let tag = (frame.len() == tagged.len()).then_some(5);
            let formed_of = |bytes, scratch: &mut Vec<u8>| {
                let decision = Decision { fate: Fate::Flood, slots: 1, vlan: 5, tag, bytes };
                let (packet, bytes) = formed(Packet::new(&meta, frame), &decision, form, scratch);
                assert_eq!(packet.head(), &expected[..], "{sentence}");
                bytes as usize
            };
            let mut scratch = Vec::new();
            assert!(formed_of(0, &mut scratch) <= VLAN_TAG_BYTES, "{sentence}, wrong length");
            if (form, tag) != (Form::Untagged, None) {
                let bytes = formed_of(frame.len() as u32, &mut scratch);
                assert_eq!(bytes, expected.len(), "{sentence}");
            }
        }
    }
}
