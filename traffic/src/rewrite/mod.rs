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
pub(crate) mod tests;
