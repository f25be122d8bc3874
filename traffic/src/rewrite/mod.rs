//! Rewrites packets of capture files: addresses of Ethernet, IPv4, IPv6 and ARP, ports, hop limits and VLAN
//! tags.
//!
//! It updates the checksums that cover a changed field by the difference (RFC 1624), so right ones stay right and
//! wrong ones stay wrong. Rules that replace a value also apply to the headers in a tunnel and in an ICMP error,
//! those that set one only to the outermost. Addresses in payloads stay.

mod checksum;
mod cut;
mod inner;
mod rule;
mod shift;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluicegate::forward::Vlan;
use sluicegate_base::headers::{self, Headers, Ip, VLAN_TAG_BYTES, be16, ethertype, protocol};
use sluicegate_base::ring::LINKTYPE_ETHERNET;

use crate::plan::words;
use checksum::{Difference, correct, correct_transport, recompute};
pub(crate) use cut::cut;
use inner::{Content, content};
pub use rule::{InvalidRule, Rule};

/// The maximum of packets in one another that are changed.
const MAX_DEPTH: u8 = 4;

/// An Ethernet address.
type Mac = [u8; 6];

/// Rules that change packets. Of rules that replace a value, the first matching one applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    macs: Vec<(Mac, Mac)>,
    prefixes: Vec<PrefixRule>,
    source: Option<Mac>,
    destination: Option<Mac>,
    ports: Vec<([u8; 2], [u8; 2])>,
    hop_limit: Option<u8>,
    vlan: Option<Vlan>,
    checksums: bool,
    /// Added to IP addresses after all other rules.
    shift: u64,
}

/// A prefix rule in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PrefixRule {
    /// Bytes of its addresses.
    bytes: usize,
    /// The value of the masked bits of a matching address.
    from: u128,
    from_mask: u128,
    /// The new value of the bits under the other mask.
    to: u128,
    to_mask: u128,
}

impl Rewrite {
    /// Adds a rule. Earlier rules that replace a value come first; the last rule that sets one applies.
    pub fn add(&mut self, rule: Rule) {
        match rule {
            Rule::Mac(from, to) => self.macs.push((from, to)),
            Rule::Source(mac) => self.source = Some(mac),
            Rule::Destination(mac) => self.destination = Some(mac),
            Rule::Port(from, to) => self.ports.push((from.to_be_bytes(), to.to_be_bytes())),
            Rule::HopLimit(hops) => self.hop_limit = Some(hops),
            Rule::Vlan(vlan) => self.vlan = Some(vlan),
            Rule::Checksums => self.checksums = true,
            Rule::Prefix((from, bits), (to, to_bits)) => {
                let number = |address| match address {
                    IpAddr::V4(address) => u128::from(Ipv4Addr::to_bits(address)),
                    IpAddr::V6(address) => Ipv6Addr::to_bits(address),
                };
                let bytes = if from.is_ipv4() { 4 } else { 16 };
                let all = u128::MAX >> (128 - bytes * 8);
                let mask = |bits: u8| all & !all.checked_shr(bits.into()).unwrap_or(0);
                let (from_mask, to_mask) = (mask(bits), mask(to_bits));
                let (from, to) = (number(from) & from_mask, number(to) & to_mask);
                self.prefixes.push(PrefixRule { bytes, from, from_mask, to, to_mask });
            }
        }
    }

    /// Creates rules that only add a number to IP addresses, except those that mean the same everywhere. IPv4
    /// addresses stay in their /8, IPv6 addresses in their /64.
    pub fn shifting(by: u64) -> Self {
        Self { shift: by, ..Self::default() }
    }

    /// Returns the bytes that the rules may add to a packet.
    pub fn growth(&self) -> u32 {
        if matches!(self.vlan, Some(Vlan::Push(_))) { VLAN_TAG_BYTES as u32 } else { 0 }
    }

    /// Reports whether there are no rules.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn mac(&self, mac: Mac) -> Mac {
        self.macs.iter().find(|(from, _)| *from == mac).map_or(mac, |(_, to)| *to)
    }

    /// Changes an IP address of 4 or 16 bytes, and adds the change to `difference`.
    fn change_address(&self, address: &mut [u8], difference: &mut Difference) {
        let number = match &*address {
            &[a, b, c, d] => u32::from_be_bytes([a, b, c, d]).into(),
            bytes => bytes.try_into().map_or(0, u128::from_be_bytes),
        };
        let matches = |rule: &&PrefixRule| {
            rule.bytes == address.len() && number & rule.from_mask == rule.from
        };
        let rule = self.prefixes.iter().find(matches);
        let now = rule.map_or(number, |rule| rule.to | number & !rule.to_mask);
        let now = shift::shifted(now, address.len(), self.shift).to_be_bytes();
        let now = &now[16 - address.len()..];
        if address != now {
            difference.change(address, now);
            address.copy_from_slice(now);
        }
    }

    /// Reports whether packets of a link type can be changed.
    pub fn supports(link_type: u16) -> bool {
        network_header(link_type, &[0; 24]).is_some()
    }

    /// Changes a packet in place, all but its VLAN tag, as far as its headers are complete and valid. Those
    /// of link types other than Ethernet have no Ethernet addresses. Returns false if the packet may have
    /// addresses that are not found: in a tunnel or a protocol of another kind, or encrypted.
    pub fn apply(&self, link_type: u16, frame: &mut [u8]) -> bool {
        let Some((ethertype, network)) = network_header(link_type, frame) else { return false };
        let found = headers::find_behind(frame, ethertype, network);
        if link_type == LINKTYPE_ETHERNET {
            self.change_ethernet(frame, 0);
        }
        let all = self.change_network(frame, &found, 0);
        if self.checksums
            && let Some(ip) = &found.ip
        {
            recompute(frame, &found, ip);
        }
        all
    }

    /// Changes a packet's network header and its content. Returns false if addresses may be missed.
    fn change_network(&self, frame: &mut [u8], found: &Headers, depth: u8) -> bool {
        let (inner, all) = self.change_content(frame, found, depth);
        if found.ethertype == ethertype::ARP {
            self.change_arp(frame, found.network, depth);
        } else if let Some(ip) = &found.ip {
            self.change_ip(frame, found, ip, inner, depth);
        }
        all
    }

    /// Changes the packet in a packet, and a checksum of its own. Returns the difference of the content, and false if
    /// addresses may be missed.
    fn change_content(&self, frame: &mut [u8], found: &Headers, depth: u8) -> (Difference, bool) {
        let mut difference = Difference::default();
        if !self.replaces() {
            return (difference, true);
        }
        let inner = match content(frame, found) {
            Content::Payload => return (difference, true),
            Content::Packet(inner) if depth < MAX_DEPTH => inner,
            Content::Packet(_) | Content::Unknown => return (difference, false),
        };
        let Some((ethertype, network)) = inner.network_header(frame) else {
            return (difference, false);
        };
        let before = words(&frame[inner.at.clone()]);
        let frame = &mut frame[..inner.at.end];
        let of_inner = headers::find_behind(frame, ethertype, network);
        if inner.ethertype == ethertype::ETHERNET {
            self.change_ethernet(&mut frame[inner.at.start..], depth + 1);
        }
        let all = self.change_network(frame, &of_inner, depth + 1);
        difference.change_sum(before, words(&frame[inner.at.clone()]), inner.at.len());
        if let Some(at) = inner.checksum
            && !difference.is_none()
        {
            let checksum = frame[at..].first_chunk::<2>().copied().unwrap_or_default();
            correct(frame, at, difference);
            difference.change(&checksum, &frame[at..at + 2]);
        }
        (difference, all)
    }

    /// Reports whether a rule replaces values, in inner packets too.
    fn replaces(&self) -> bool {
        let none = self.prefixes.is_empty() && self.macs.is_empty() && self.ports.is_empty();
        !none || self.shift != 0
    }

    /// Reports whether a rule changes VLAN tags.
    pub fn changes_tags(&self) -> bool {
        self.vlan.is_some()
    }

    /// Changes the VLAN tag of an Ethernet frame, which may get longer or shorter, and `wire_bytes` with it.
    pub fn change_tag(&self, frame: &mut Vec<u8>, wire_bytes: &mut u32) {
        let Some(vlan) = self.vlan else { return };
        let before = frame.len();
        vlan.change(frame);
        let change = frame.len() as i64 - before as i64;
        // Saturating, because a file may give any length.
        *wire_bytes = wire_bytes.saturating_add_signed(change as i32);
    }

    fn change_ethernet(&self, frame: &mut [u8], depth: u8) {
        let Some((addresses, _)) = frame.split_first_chunk_mut::<12>() else { return };
        let (destination, source) = addresses.split_at_mut(6);
        change_mac(destination, |mac| of_outer(self.destination, depth).unwrap_or(self.mac(mac)));
        change_mac(source, |mac| of_outer(self.source, depth).unwrap_or(self.mac(mac)));
    }

    /// Rewrites ARP for Ethernet and IPv4 (RFC 826): the sender's addresses, and the target's; a
    /// request has no target MAC yet.
    fn change_arp(&self, frame: &mut [u8], at: usize, depth: u8) {
        const HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
        let Some(packet) = frame.get_mut(at..at + 28).filter(|packet| packet.starts_with(&HEAD))
        else {
            return;
        };
        change_mac(&mut packet[8..14], |mac| of_outer(self.source, depth).unwrap_or(self.mac(mac)));
        change_mac(&mut packet[18..24], |mac| match mac {
            [0, 0, 0, 0, 0, 0] => mac,
            _ => of_outer(self.destination, depth).unwrap_or(self.mac(mac)),
        });
        for at in [14, 24] {
            self.change_address(&mut packet[at..at + 4], &mut Difference::default());
        }
    }

    /// Changes an IP header and that of its transport, whose content has changed by `inner`.
    fn change_ip(&self, frame: &mut [u8], found: &Headers, ip: &Ip, inner: Difference, depth: u8) {
        let v6 = found.ethertype == ethertype::IPV6;
        let mut header = Difference::default();
        self.change_address(&mut frame[ip.source.clone()], &mut header);
        let mut covered = header;
        self.change_address(&mut frame[ip.destination.clone()], &mut header);
        // After a routing header with segments left, checksums cover the final destination, not this one.
        if !ip.segments_left {
            covered = header;
        }
        let hops = &mut frame[found.network + if v6 { 7 } else { 8 }];
        if let Some(limit) = of_outer(self.hop_limit, depth).filter(|limit| limit != hops) {
            header.change(&[*hops], &[limit]);
            *hops = limit;
        }
        if !v6 && !header.is_none() {
            correct(frame, found.network + 10, header);
        }
        if let Some(at) = &ip.transport {
            let carried = &mut frame[at.clone()];
            covered.add(inner);
            self.change_ports(ip.protocol, carried, &mut covered);
            if !covered.is_none() {
                correct_transport(carried, (ip.protocol, v6), covered);
            }
        }
    }

    /// Changes the ports of a transport header, and adds the change to `difference`.
    fn change_ports(&self, kind: u8, carried: &mut [u8], difference: &mut Difference) {
        use protocol::{DCCP, TCP, UDP, UDP_LITE};
        // Those of SCTP are covered by a CRC.
        if self.ports.is_empty() || !matches!(kind, TCP | UDP | UDP_LITE | DCCP) {
            return;
        }
        let Some(ports) = carried.first_chunk_mut::<4>() else { return };
        for port in ports.as_chunks_mut::<2>().0 {
            if let Some((_, now)) = self.ports.iter().find(|(from, to)| from == port && to != port)
            {
                difference.change(port, now);
                *port = *now;
            }
        }
    }
}

/// Returns the EtherType that a packet's link header names, and the offset of the network header.
#[inline]
fn network_header(link_type: u16, frame: &[u8]) -> Option<(u16, usize)> {
    // Linux cooked captures, of both versions.
    const SLL: u16 = 113;
    const SLL2: u16 = 276;
    // BSD loopback, by the byte order of the writer and of networks; IP without a link header, of either
    // version, by OpenBSD's number, and of one version.
    const NULL: u16 = 0;
    const LOOP: u16 = 108;
    const RAW: [u16; 4] = [101, 12, 228, 229];
    let by_version = |network: usize| match frame.get(network)? >> 4 {
        6 => Some((ethertype::IPV6, network)),
        _ => Some((ethertype::IPV4, network)),
    };
    match link_type {
        LINKTYPE_ETHERNET => be16(frame, 12).map(|ethertype| (ethertype, 14)),
        SLL => be16(frame, 14).map(|ethertype| (ethertype, 16)),
        SLL2 => be16(frame, 0).map(|ethertype| (ethertype, 20)),
        NULL | LOOP => by_version(4),
        _ if RAW.contains(&link_type) => by_version(0),
        _ => None,
    }
}

/// Collects rules, in their order.
impl FromIterator<Rule> for Rewrite {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        let mut rewrite = Self::default();
        rules.into_iter().for_each(|rule| rewrite.add(rule));
        rewrite
    }
}

/// Returns the value that a rule sets, which applies to the outermost headers only.
fn of_outer<T>(value: Option<T>, depth: u8) -> Option<T> {
    value.filter(|_| depth == 0)
}

fn change_mac(bytes: &mut [u8], to: impl Fn(Mac) -> Mac) {
    if let Some(mac) = bytes.first_chunk_mut() {
        *mac = to(*mac);
    }
}

#[cfg(test)]
#[path = "../../../base/tests/frame/mod.rs"]
mod frame;

#[cfg(test)]
pub(crate) mod tests {
    use etherparse::{PacketBuilder, VlanId};
    use proptest::prelude::*;

    pub(crate) use super::frame::frame;
    use super::*;

    #[test]
    fn texts_parse_to_rules() {
        let ip = |text: &str, bits| (text.parse::<IpAddr>().unwrap(), bits);
        let prefixes = |from, to| Some(Rule::Prefix(from, to));
        for (text, rule) in [
            (
                "2:0:0:0:0:1=02:00:00:00:00:02",
                Some(Rule::Mac([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])),
            ),
            ("10.0.0.0/16=198.18.0.0/16", prefixes(ip("10.0.0.0", 16), ip("198.18.0.0", 16))),
            ("0.0.0.0/0=198.18.0.0/15", prefixes(ip("0.0.0.0", 0), ip("198.18.0.0", 15))),
            ("10.0.0.0/8=192.0.2.1", prefixes(ip("10.0.0.0", 8), ip("192.0.2.1", 32))),
            ("10.0.0.0/8=198.18.0.0/16", prefixes(ip("10.0.0.0", 8), ip("198.18.0.0", 16))),
            ("0.0.0.0/0=192.0.2.1", prefixes(ip("0.0.0.0", 0), ip("192.0.2.1", 32))),
            ("::/0=2001:db8::/32", prefixes(ip("::", 0), ip("2001:db8::", 32))),
            (" 192.0.2.1 = 192.0.2.2 ", prefixes(ip("192.0.2.1", 32), ip("192.0.2.2", 32))),
            ("80 = 8080", Some(Rule::Port(80, 8080))),
            ("80=65536", None),
            ("80=192.0.2.1", None),
            ("198.18.0.0/16=10.0.0.0/8", None),
            ("198.18.0.0/16=2001:db8::/32", None),
            ("198.18.0.0/33=198.18.0.0/33", None),
            ("02:00:00:00:00:01=192.0.2.1", None),
            ("02:00:00:00:00:01:02=02:00:00:00:00:01", None),
            ("02:00:00:00:00=02:00:00:00:00:01", None),
            ("192.0.2.1", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Rule>().ok(), rule, "{text}");
        }
    }

    #[test]
    fn a_rule_that_merges_addresses_is_known() {
        for (text, merges) in [
            ("10.0.0.0/8=172.16.0.0/12", true),
            ("10.0.0.0/8=172.0.0.0/8", false),
            ("0.0.0.0/0=198.18.0.0/15", false),
            ("10.0.0.0/8=192.0.2.1", false),
            ("2001:db8::/32=2001:db8:1::/48", true),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap().merges_addresses(), merges, "{text}");
        }
    }

    #[test]
    fn addresses_change_by_the_first_rule_that_matches() {
        let rules = [
            "192.0.2.1=198.18.9.9",
            "192.0.2.0/24=198.18.2.0/24",
            "10.1.0.0/16=198.18.0.0/16",
            "2001:db8:7::/48=2001:db8:1::/48",
            "02:00:00:00:00:01=02:00:00:00:00:02",
        ];
        let rewrite: Rewrite = rules.iter().map(|rule| rule.parse::<Rule>().unwrap()).collect();
        let changed = |address: &[u8]| {
            let mut address = address.to_vec();
            rewrite.change_address(&mut address, &mut Difference::default());
            address
        };
        for (from, to) in [
            ("192.0.2.1", "198.18.9.9"),
            ("192.0.2.7", "198.18.2.7"),
            ("10.1.2.3", "198.18.2.3"),
            ("203.0.113.1", "203.0.113.1"),
        ] {
            let [from, to] = [from, to].map(|text| text.parse::<Ipv4Addr>().unwrap().octets());
            assert_eq!(changed(&from), to, "{from:?}");
        }
        let [from, to] =
            ["2001:db8:7::9", "2001:db8:1::9"].map(|a| a.parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(changed(&from), to);
        assert_eq!(rewrite.mac([2, 0, 0, 0, 0, 1]), [2, 0, 0, 0, 0, 2]);
        assert_eq!(rewrite.mac([2, 0, 0, 0, 0, 2]), [2, 0, 0, 0, 0, 2], "and only once");
        assert!(Rewrite::default().is_empty() && !rewrite.is_empty());
    }

    /// A packet without its addresses.
    #[derive(Clone, Debug)]
    struct PacketKind {
        v6: bool,
        tagged: bool,
        transport: u8,
        ports: (u16, u16),
        hops: u8,
        payload: Vec<u8>,
    }

    type Host = (Mac, [u8; 4], [u8; 16]);

    /// Makes the packet from one host to another, with checksums, by a library.
    fn made(kind: &PacketKind, from: Host, to: Host) -> Vec<u8> {
        let mut frame = Vec::new();
        let link = PacketBuilder::ethernet2(from.0, to.0);
        let id = VlanId::try_new(7).unwrap();
        let tagged = || PacketBuilder::ethernet2(from.0, to.0).single_vlan(id);
        let ip = match (kind.v6, kind.tagged) {
            (false, false) => link.ipv4(from.1, to.1, kind.hops),
            (false, true) => tagged().ipv4(from.1, to.1, kind.hops),
            (true, false) => link.ipv6(from.2, to.2, kind.hops),
            (true, true) => tagged().ipv6(from.2, to.2, kind.hops),
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
        let numbers = any::<(bool, bool, u8, (u16, u16), u8)>();
        (numbers, payload).prop_map(|((v6, tagged, transport, ports, hops), payload)| PacketKind {
            v6,
            tagged,
            transport,
            ports,
            hops,
            payload,
        })
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
            rewrite.apply(LINKTYPE_ETHERNET, &mut frame);
            prop_assert_eq!(frame, made(&kind, c, d));
        }

        #[test]
        fn other_ports_and_hops_are_those_that_would_have_been_sent(
            kind in kinds(),
            hosts in any::<[Host; 2]>(),
            ports in any::<(u16, u16)>(),
            hops in any::<u8>(),
        ) {
            prop_assume!(kind.ports.0 != kind.ports.1);
            let rules = [
                Rule::Port(kind.ports.0, ports.0),
                Rule::Port(kind.ports.1, ports.1),
                Rule::HopLimit(hops),
            ];
            let mut frame = made(&kind, hosts[0], hosts[1]);
            rules.into_iter().collect::<Rewrite>().apply(LINKTYPE_ETHERNET, &mut frame);
            let other = PacketKind { ports, hops, ..kind };
            prop_assert_eq!(frame, made(&other, hosts[0], hosts[1]));
        }

        #[test]
        fn recomputed_checksums_are_those_that_would_have_been_sent(
            kind in kinds(),
            hosts in any::<[Host; 2]>(),
            wrong in 1..=u16::MAX,
        ) {
            let right = made(&kind, hosts[0], hosts[1]);
            let mut frame = right.clone();
            let network = if kind.tagged { 18 } else { 14 };
            let transport = network + if kind.v6 { 40 } else { 20 };
            let field = transport + [6, 16, 2][usize::from(kind.transport % 3)];
            frame[field..field + 2].copy_from_slice(&wrong.to_be_bytes());
            if !kind.v6 {
                frame[network + 10..network + 12].copy_from_slice(&wrong.to_be_bytes());
            }
            let fix: Rewrite = [Rule::Checksums].into_iter().collect();
            let mut cut = frame[..frame.len() - 1].to_vec();
            fix.apply(LINKTYPE_ETHERNET, &mut frame);
            prop_assert_eq!(&frame, &right);
            // A checksum that covers missing bytes stays; that of the IPv4 header covers none.
            fix.apply(LINKTYPE_ETHERNET, &mut cut);
            prop_assert_eq!(&cut[..transport], &right[..transport]);
            if let Some(stays) = cut.get(field..field + 2) {
                prop_assert_eq!(stays, wrong.to_be_bytes());
            }
        }

        #[test]
        fn truncation_does_not_change_the_rest(
            kind in kinds(),
            hosts in any::<[Host; 3]>(),
            bytes in any::<prop::sample::Index>(),
        ) {
            let [a, b, c] = hosts;
            let rewrite: Rewrite = rules(a, c).into_iter().collect();
            let mut whole = made(&kind, a, b);
            let bytes = bytes.index(whole.len());
            let mut cut = whole[..bytes].to_vec();
            rewrite.apply(LINKTYPE_ETHERNET, &mut cut);
            rewrite.apply(LINKTYPE_ETHERNET, &mut whole);
            // A header without all its addresses is invalid. The last byte may be half of a checksum, which
            // stays.
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
    fn arp_addresses_change_but_an_unknown_target_mac_stays() {
        let mut question = [&[0xff; 6][..], &A, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        question.extend([&A[..], &[192, 0, 2, 1], &[0; 6], &[192, 0, 2, 2]].concat());
        let mut other = rewrite(&["192.0.2.0/24=198.18.7.0/24"]);
        other.add(Rule::Source(B));
        other.add(Rule::Destination(C));
        other.apply(LINKTYPE_ETHERNET, &mut question);
        assert_eq!((&question[..6], &question[6..12], &question[22..28]), (&C[..], &B[..], &B[..]));
        assert_eq!(question[28..32], [198, 18, 7, 1]);
        assert_eq!((&question[32..38], &question[38..42]), (&[0; 6][..], &[198, 18, 7, 2][..]));
    }

    #[test]
    fn absent_checksums_and_payload_stay() {
        let other = rewrite(&["198.18.0.0/24=192.0.2.0/24"]);
        let without = frame(0, false, 17, &[4, 0, 0, 9, 0, 8, 0, 0]);
        let mut changed = without.clone();
        other.apply(LINKTYPE_ETHERNET, &mut changed);
        assert_eq!(changed[40..42], [0, 0], "UDP without a checksum");
        assert_eq!(changed[26..30], [192, 0, 2, 1]);
        // In a middle fragment, the bytes at the offset of TCP's checksum are payload.
        let mut piece = frame(0, false, 6, &[7; 40]);
        piece[20..22].copy_from_slice(&[0, 9]);
        other.apply(LINKTYPE_ETHERNET, &mut piece);
        assert_eq!(piece[34..], [7; 40]);
        // Bytes after the packet are padding.
        let mut padded = frame(0, false, 6, &[]);
        padded.resize(60, 9);
        other.apply(LINKTYPE_ETHERNET, &mut padded);
        assert_eq!(padded[34..], [9; 26]);
    }

    #[test]
    fn packets_of_other_link_types_change_behind_their_headers() {
        let mut rules = rewrite(&["198.18.0.0/24=192.0.2.0/24", "2001:db8::/32=2001:db9::/32"]);
        rules.add(Rule::Port(9, 10));
        let udp = [4, 0, 0, 9, 0, 8, 0x12, 0x34];
        for (v6, ethertype) in [(false, [8, 0]), (true, [0x86, 0xdd])] {
            let before = frame(0, v6, 17, &udp);
            let mut expected = before.clone();
            rules.apply(LINKTYPE_ETHERNET, &mut expected);
            assert_ne!(expected, before);
            for (link_type, header) in [
                (101, vec![]),
                (0, vec![2, 0, 0, 0]),
                (113, [&[0; 14][..], &ethertype].concat()),
                (276, [&ethertype[..], &[0; 18]].concat()),
            ] {
                let mut packet = [&header, &before[14..]].concat();
                assert!(Rewrite::supports(link_type));
                rules.apply(link_type, &mut packet);
                assert_eq!(packet, [&header, &expected[14..]].concat(), "{link_type}");
            }
        }
        let mut other = frame(0, false, 17, &udp);
        rules.apply(105, &mut other);
        assert!(!Rewrite::supports(105) && other == frame(0, false, 17, &udp), "802.11");
    }

    #[test]
    fn a_changed_tag_changes_the_length_on_the_wire() {
        let tagged = frame(1, false, 17, &[7; 8]);
        for (vlan, change) in [(Vlan::Pop, -4), (Vlan::Set(9), 0), (Vlan::Push(9), 4)] {
            let rules: Rewrite = [Rule::Vlan(vlan)].into_iter().collect();
            let (mut packet, mut wire_bytes) = (tagged.clone(), 1500);
            rules.change_tag(&mut packet, &mut wire_bytes);
            assert_eq!(wire_bytes, 1500_u32.saturating_add_signed(change), "{vlan:?}");
            assert_eq!(packet.len() as i32, tagged.len() as i32 + change, "{vlan:?}");
        }
    }

    #[test]
    fn a_checksum_behind_a_routing_header_knows_the_last_address() {
        let mut routed = vec![17, 0, 0, 1];
        routed.extend([0; 4]);
        routed.extend([4, 0, 0, 9, 0, 8, 0x12, 0x34]);
        let whole = frame(0, true, 43, &routed);
        let sum = |rules: &[&str]| {
            let mut frame = whole.clone();
            rewrite(rules).apply(LINKTYPE_ETHERNET, &mut frame);
            frame[68..70].to_vec()
        };
        assert_eq!(sum(&["2001:db8::2=2001:db8::9"]), [0x12, 0x34], "the next on the way");
        assert_ne!(sum(&["2001:db8::1=2001:db8::9"]), [0x12, 0x34], "the source");
    }

    #[test]
    fn checksums_of_routing_protocols_cover_the_addresses_where_the_protocol_says_so() {
        let rules = rewrite(&["198.18.0.0/24=192.0.2.0/24", "2001:db8::/32=2001:db9::/32"]);
        for (sentence, v6, protocol, version, at, covers) in [
            ("OSPFv3", true, 89, 0x03, 12, true),
            ("OSPFv2", false, 89, 0x02, 12, false),
            ("PIM over IPv6", true, 103, 0x20, 2, true),
            ("PIM over IPv4", false, 103, 0x20, 2, false),
            ("VRRPv3 over IPv6", true, 112, 0x31, 6, true),
            ("VRRPv3 over IPv4", false, 112, 0x31, 6, true),
            ("VRRPv2", false, 112, 0x21, 6, false),
            ("Mobile IPv6", true, 135, 59, 4, true),
            ("HIP over IPv4", false, 139, 59, 4, true),
            ("EIGRP", false, 88, 2, 2, false),
        ] {
            let (addresses, carried_at) = if v6 { (22..54, 54) } else { (26..34, 34) };
            let mut frame = frame(0, v6, protocol, &[version; 20]);
            let checksum_of = |frame: &[u8]| {
                let pseudo = [&frame[addresses.clone()], &[0, protocol, 0, 20]].concat();
                let pseudo = if covers { pseudo } else { Vec::new() };
                checksum(&[&pseudo, &frame[carried_at..]].concat())
            };
            frame[carried_at + at..carried_at + at + 2].fill(0);
            let right = checksum_of(&frame);
            frame[carried_at + at..carried_at + at + 2].copy_from_slice(&right);
            let before = frame.clone();
            rules.apply(LINKTYPE_ETHERNET, &mut frame);
            assert_ne!(frame[addresses.clone()], before[addresses.clone()], "{sentence}");
            assert_eq!(checksum_of(&frame), [0, 0], "{sentence}");
        }
    }

    /// Returns the checksum of the whole.
    fn checksum(bytes: &[u8]) -> [u8; 2] {
        let mut sum = words(bytes);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    proptest! {
        #[test]
        fn a_corrected_checksum_equals_a_full_one(
            mut bytes in prop::collection::vec(any::<u8>(), 8..100),
            now in any::<[u8; 4]>(),
            at in any::<prop::sample::Index>(),
        ) {
            // Like a header, the bytes are never all zeros.
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
    fn the_example_of_rfc_1624_has_its_result() {
        let mut difference = Difference::default();
        difference.change(&[0x55, 0x55], &[0x32, 0x85]);
        assert_eq!(difference.correct([0xdd, 0x2f]), [0, 0]);
    }
}
