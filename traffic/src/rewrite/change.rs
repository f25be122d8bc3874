//! Where addresses stand in a frame, and which checksums cover them.

use std::ops::Range;

use super::{Mac, Rewrite};
use crate::plan::fold;
use sluicegate_base::headers::{self, Headers, Ip, be16, ethertype, protocol};

impl Rewrite {
    /// Changes a frame's addresses in place. What is cut off stays away, and what cannot be made out
    /// stays as it is.
    pub fn apply(&self, frame: &mut [u8]) {
        let Some(found) = headers::find(frame) else { return };
        self.change_ethernet(frame);
        if found.ethertype == ethertype::ARP {
            self.change_arp(frame, found.network);
        } else if self.changes_ip()
            && let Some(ip) = &found.ip
        {
            self.change_ip(frame, &found, ip);
        }
    }

    fn change_ethernet(&self, frame: &mut [u8]) {
        let Some((addresses, _)) = frame.split_first_chunk_mut::<12>() else { return };
        let (destination, source) = addresses.split_at_mut(6);
        change_mac(destination, |mac| self.destination.unwrap_or(self.mac(mac)));
        change_mac(source, |mac| self.source.unwrap_or(self.mac(mac)));
    }

    /// Rewrites ARP for Ethernet and IPv4 (RFC 826): the sender's addresses, and the target's; a
    /// request has no target MAC yet.
    fn change_arp(&self, frame: &mut [u8], at: usize) {
        const HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
        let Some(packet) = frame.get_mut(at..at + 28).filter(|packet| packet.starts_with(&HEAD))
        else {
            return;
        };
        change_mac(&mut packet[8..14], |mac| self.source.unwrap_or(self.mac(mac)));
        change_mac(&mut packet[18..24], |mac| match mac {
            [0, 0, 0, 0, 0, 0] => mac,
            _ => self.destination.unwrap_or(self.mac(mac)),
        });
        for at in [14, 24] {
            if let Some(address) = packet[at..].first_chunk_mut() {
                *address = self.v4(*address);
            }
        }
    }

    fn change_ip(&self, frame: &mut [u8], found: &Headers, ip: &Ip) {
        let mut difference = Difference::default();
        self.change_address(frame, &ip.source, &mut difference);
        let before = difference;
        self.change_address(frame, &ip.destination, &mut difference);
        if difference.is_none() {
            return;
        }
        if found.ethertype == ethertype::IPV4 {
            correct(frame, found.network + 10, difference);
        }
        // A checksum behind a routing header knows the last address of the way, not this one.
        let covered = if ip.segments_left { before } else { difference };
        if let Some((kind, at)) = &ip.transport {
            correct_transport(&mut frame[at.clone()], *kind, covered);
        }
    }

    fn change_address(&self, frame: &mut [u8], at: &Range<usize>, difference: &mut Difference) {
        let bytes = &mut frame[at.clone()];
        if let Ok(address) = <&mut [u8; 4]>::try_from(&mut *bytes) {
            let now = self.v4(*address);
            note(difference, address, &now);
            *address = now;
        } else if let Ok(address) = <&mut [u8; 16]>::try_from(bytes) {
            let now = self.v6(*address);
            note(difference, address, &now);
            *address = now;
        }
    }
}

fn change_mac(bytes: &mut [u8], to: impl Fn(Mac) -> Mac) {
    if let Some(mac) = bytes.first_chunk_mut() {
        *mac = to(*mac);
    }
}

/// Adds a change of bytes; equal bytes add nothing.
fn note(difference: &mut Difference, before: &[u8], now: &[u8]) {
    if before != now {
        difference.change(before, now);
    }
}

/// Corrects the checksum of what an IP packet carries, where that covers the packet's addresses.
fn correct_transport(carried: &mut [u8], kind: u8, difference: Difference) {
    use protocol::{DCCP, ICMPV6, TCP, UDP, UDP_LITE};
    let at = match kind {
        TCP => 16,
        UDP | UDP_LITE | DCCP => 6,
        ICMPV6 => 2,
        _ => return,
    };
    // In UDP none is 0, and what comes to 0 is written as the other zero.
    if kind == UDP && be16(carried, at) == Some(0) {
        return;
    }
    correct(carried, at, difference);
    if matches!(kind, UDP | UDP_LITE) && be16(carried, at) == Some(0) {
        carried[at..at + 2].fill(0xff);
    }
}

fn correct(bytes: &mut [u8], at: usize, difference: Difference) {
    if let Some(checksum) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *checksum = difference.correct(*checksum);
    }
}

/// The difference that changed words make in a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference(u64);

impl Difference {
    /// Bytes at an even place that have become others, as many; an odd one is followed by 0.
    pub(super) fn change(&mut self, before: &[u8], now: &[u8]) {
        // The complement of a word takes it away.
        self.0 += words(before).map(|word| u64::from(!word)).sum::<u64>();
        self.0 += words(now).map(u64::from).sum::<u64>();
    }

    /// Reports whether no word has changed.
    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Corrects a checksum.
    pub(super) fn correct(self, checksum: [u8; 2]) -> [u8; 2] {
        let sum = u64::from(!u16::from_be_bytes(checksum)) + self.0;
        (!fold(sum)).to_be_bytes()
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, VlanId};
    use proptest::prelude::*;

    use super::super::Rule;
    use super::*;

    /// A packet without its addresses.
    #[derive(Clone, Debug)]
    struct PacketKind {
        v6: bool,
        tagged: bool,
        transport: u8,
        ports: (u16, u16),
        payload: Vec<u8>,
    }

    type Host = (Mac, [u8; 4], [u8; 16]);

    /// The packet from one host to another, as a library makes it, checksums and all.
    fn made(kind: &PacketKind, from: Host, to: Host) -> Vec<u8> {
        let mut frame = Vec::new();
        let link = PacketBuilder::ethernet2(from.0, to.0);
        let id = VlanId::try_new(7).unwrap();
        let tagged = || PacketBuilder::ethernet2(from.0, to.0).single_vlan(id);
        let ip = match (kind.v6, kind.tagged) {
            (false, false) => link.ipv4(from.1, to.1, 64),
            (false, true) => tagged().ipv4(from.1, to.1, 64),
            (true, false) => link.ipv6(from.2, to.2, 64),
            (true, true) => tagged().ipv6(from.2, to.2, 64),
        };
        let (source, destination) = kind.ports;
        match kind.transport % 3 {
            0 => ip.udp(source, destination).write(&mut frame, &kind.payload).unwrap(),
            1 => ip.tcp(source, destination, 1, 2).write(&mut frame, &kind.payload).unwrap(),
            _ if kind.v6 => ip.icmpv6_echo_request(1, 2).write(&mut frame, &kind.payload).unwrap(),
            _ => ip.icmpv4_echo_request(1, 2).write(&mut frame, &kind.payload).unwrap(),
        }
        frame
    }

    fn kinds() -> impl Strategy<Value = PacketKind> {
        let payload = prop::collection::vec(any::<u8>(), 0..60);
        (any::<bool>(), any::<bool>(), any::<u8>(), any::<(u16, u16)>(), payload).prop_map(
            |(v6, tagged, transport, ports, payload)| PacketKind {
                v6,
                tagged,
                transport,
                ports,
                payload,
            },
        )
    }

    fn rules(from: Host, to: Host) -> [Rule; 3] {
        let v4 = |host: Host| (host.1.into(), 32);
        let v6 = |host: Host| (host.2.into(), 128);
        [Rule::Mac(from.0, to.0), Rule::Prefix(v4(from), v4(to)), Rule::Prefix(v6(from), v6(to))]
    }

    proptest! {
        #[test]
        fn a_changed_packet_is_the_one_that_would_have_been_made(
            kind in kinds(),
            hosts in any::<[Host; 4]>(),
        ) {
            let [a, b, c, d] = hosts;
            let different = |part: fn(&Host) -> Vec<u8>| part(&a) != part(&b);
            prop_assume!(different(|h| h.0.to_vec()) && different(|h| h.1.to_vec()));
            prop_assume!(different(|h| h.2.to_vec()));
            let rewrite: Rewrite = rules(a, c).into_iter().chain(rules(b, d)).collect();
            let mut frame = made(&kind, a, b);
            rewrite.apply(&mut frame);
            prop_assert_eq!(frame, made(&kind, c, d));
        }

        #[test]
        fn what_is_cut_off_matters_to_nobody(
            kind in kinds(),
            hosts in any::<[Host; 3]>(),
            bytes in any::<prop::sample::Index>(),
        ) {
            let [a, b, c] = hosts;
            let rewrite: Rewrite = rules(a, c).into_iter().collect();
            let mut whole = made(&kind, a, b);
            let bytes = bytes.index(whole.len());
            let mut cut = whole[..bytes].to_vec();
            rewrite.apply(&mut cut);
            rewrite.apply(&mut whole);
            // Before its addresses are all there a header is none. The last byte may be half of a
            // checksum, which stays.
            let all = if kind.v6 { 62 } else { 42 };
            if bytes >= all {
                prop_assert_eq!(&cut[..bytes - 1], &whole[..bytes - 1]);
            }
        }
    }

    const A: Mac = [2, 0, 0, 0, 0, 1];
    const B: Mac = [2, 0, 0, 0, 0, 2];
    const C: Mac = [2, 0, 0, 0, 0, 3];

    fn rewrite(rules: &[&str]) -> Rewrite {
        rules.iter().map(|rule| rule.parse::<Rule>().unwrap()).collect()
    }

    #[test]
    fn arp_s_addresses_change_and_who_is_asked_for_stays_nobody() {
        let mut question = [&[0xff; 6][..], &A, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        question.extend([&A[..], &[192, 0, 2, 1], &[0; 6], &[192, 0, 2, 2]].concat());
        let mut other = rewrite(&["192.0.2.0/24=198.18.7.0/24"]);
        other.add(Rule::Source(B));
        other.add(Rule::Destination(C));
        other.apply(&mut question);
        assert_eq!((&question[..6], &question[6..12], &question[22..28]), (&C[..], &B[..], &B[..]));
        assert_eq!(question[28..32], [198, 18, 7, 1]);
        assert_eq!((&question[32..38], &question[38..42]), (&[0; 6][..], &[198, 18, 7, 2][..]));
    }

    #[test]
    fn checksums_that_say_nothing_or_are_not_there_stay() {
        let other = rewrite(&["198.18.0.0/16=192.0.2.0/24"]);
        let without = crate::test_frame::frame(0, false, 17, &[4, 0, 0, 9, 0, 8, 0, 0]);
        let mut changed = without.clone();
        other.apply(&mut changed);
        assert_eq!(changed[40..42], [0, 0], "UDP without a checksum");
        assert_eq!(changed[26..30], [192, 0, 2, 1]);
        // A piece from the middle: what stands where TCP's checksum would is payload.
        let mut piece = crate::test_frame::frame(0, false, 6, &[7; 40]);
        piece[20..22].copy_from_slice(&[0, 9]);
        other.apply(&mut piece);
        assert_eq!(piece[34..], [7; 40]);
        // What follows a packet is padding.
        let mut padded = crate::test_frame::frame(0, false, 6, &[]);
        padded.resize(60, 9);
        other.apply(&mut padded);
        assert_eq!(padded[34..], [9; 26]);
    }

    #[test]
    fn a_checksum_behind_a_routing_header_knows_the_last_address() {
        let mut routed = vec![17, 0, 0, 1];
        routed.extend([0; 4]);
        routed.extend([4, 0, 0, 9, 0, 8, 0x12, 0x34]);
        let whole = crate::test_frame::frame(0, true, 43, &routed);
        let sum = |rules: &[&str]| {
            let mut frame = whole.clone();
            rewrite(rules).apply(&mut frame);
            frame[68..70].to_vec()
        };
        assert_eq!(sum(&["2001:db8::2=2001:db8::9"]), [0x12, 0x34], "the next on the way");
        assert_ne!(sum(&["2001:db8::1=2001:db8::9"]), [0x12, 0x34], "the source");
    }

    /// The whole sum.
    fn checksum(bytes: &[u8]) -> [u8; 2] {
        let mut sum: u64 = words(bytes).map(u64::from).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    proptest! {
        #[test]
        fn a_corrected_checksum_is_the_one_of_the_whole(
            mut bytes in prop::collection::vec(any::<u8>(), 8..100),
            now in any::<[u8; 4]>(),
            at in any::<prop::sample::Index>(),
        ) {
            // Something that is never all zeros, as headers are.
            bytes[0] = 0x45;
            let at = (at.index(bytes.len() - 5) & !1).max(2);
            let before = checksum(&bytes);
            let mut difference = Difference::default();
            difference.change(&bytes[at..at + 4], &now);
            bytes[at..at + 4].copy_from_slice(&now);
            prop_assert_eq!(difference.correct(before), checksum(&bytes));
        }
    }

    #[test]
    fn the_example_of_rfc_1624_comes_out() {
        let mut difference = Difference::default();
        difference.change(&[0x55, 0x55], &[0x32, 0x85]);
        assert_eq!(difference.correct([0xdd, 0x2f]), [0, 0]);
    }
}
