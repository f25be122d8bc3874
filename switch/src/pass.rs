//! From a port's receive ring to others' transmit rings: by exchange of buffers where a packet goes
//! to one port that shares the pool, copied otherwise.

use sluicegate::headers::{MAC_ADDRESSES_BYTES, VLAN_TAG_BYTES};
use sluicegate::port::Queue;
use sluicegate::ring::{Direction, Packet};

use crate::decide::Decision;
use crate::frame::TAG;
use crate::member::Member;
use crate::vlan::Form;

/// The values that all packets of a batch share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// The queue they came by, by its place in its port.
    pub queue: usize,
    /// Nanoseconds since 1970, where somebody watches.
    pub now_ns: u64,
    /// Its number, from 1 on.
    pub number: u64,
}

/// Gives the first packets of a receive ring to one port as they are, and takes them out. What it
/// has no room for is lost.
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

/// Exchanges the buffers of whole packets in the first slots, as many as can be. How many slots.
#[inline]
fn swap(from: &mut Queue, batch: Batch, to: &mut Member, slots: u32) -> u32 {
    let sender = to.sender(batch.queue);
    let given = sender.tx().head();
    let swapped = from.rx_mut().swap_into(&mut sender.tx_mut(), slots);
    if swapped > 0 && !to.watchers.is_empty() {
        to.show_given(batch.queue, given, batch.now_ns);
    }
    swapped
}

/// Copies a packet for a port. One without room is synced, once a batch, and then loses it.
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
        // What fails here fails again when all are synced, and is told then.
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

/// A packet in another form, put together in `scratch`; as it is where that is the form.
#[inline]
pub(crate) fn formed<'a>(packet: Packet<'a>, form: Form, scratch: &'a mut Vec<u8>) -> Packet<'a> {
    let tag = match form {
        Form::AsIs => return packet,
        Form::Untagged => None,
        Form::Tagged(tag) => Some(tag),
    };
    scratch.clear();
    packet.segments().for_each(|segment| scratch.extend_from_slice(segment));
    let tagged = scratch.get(MAC_ADDRESSES_BYTES..MAC_ADDRESSES_BYTES + 2) == Some(&TAG[..]);
    let old = MAC_ADDRESSES_BYTES..if tagged {
        MAC_ADDRESSES_BYTES + VLAN_TAG_BYTES
    } else {
        MAC_ADDRESSES_BYTES
    };
    match tag {
        Some(tag) => {
            let [high, low] = tag.to_be_bytes();
            scratch.splice(old, [TAG[0], TAG[1], high, low]);
        }
        None => drop(scratch.splice(old, [])),
    }
    Packet::new(packet.meta(), scratch)
}

/// Bytes on the wire of a packet in another form. A file may say that there were fewer than it has.
#[inline]
pub(crate) fn formed_bytes(bytes: u32, tag: Option<u16>, form: Form) -> u32 {
    match form {
        Form::Untagged => bytes.saturating_sub(VLAN_TAG_BYTES as u32),
        Form::Tagged(_) if tag.is_none() => bytes.saturating_add(VLAN_TAG_BYTES as u32),
        Form::AsIs | Form::Tagged(_) => bytes,
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::ring::Meta;

    use super::*;

    #[test]
    fn a_tag_comes_and_goes() {
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
            let mut scratch = Vec::new();
            let packet = formed(Packet::new(&meta, frame), form, &mut scratch);
            assert_eq!(packet.head(), &expected[..], "{sentence}");
            let tag = (frame.len() == tagged.len()).then_some(5);
            assert!(
                formed_bytes(0, tag, form) <= VLAN_TAG_BYTES as u32,
                "{sentence}, wrong length"
            );
            if (form, tag) != (Form::Untagged, None) {
                let bytes = formed_bytes(frame.len() as u32, tag, form);
                assert_eq!(bytes as usize, expected.len(), "{sentence}");
            }
        }
    }
}
