//! Rewrites the addresses of replayed packets: Ethernet, IPv4, IPv6 and ARP.
//!
//! It updates the checksums that cover an address by the difference (RFC 1624), so right ones stay right and
//! wrong ones stay wrong. It changes only the packet's own headers, after any VLAN tags: not the headers
//! inside a tunnel or an ICMP error, and no addresses in payloads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use sluicegate::link;
use sluicegate_base::headers::{self, Headers, Ip, be16, ethertype, protocol};

use crate::plan::{fold, words};

/// An Ethernet address.
type Mac = [u8; 6];

/// Rules that replace addresses of packets. The first matching rule applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    macs: Vec<(Mac, Mac)>,
    prefixes: Vec<PrefixRule>,
    source: Option<Mac>,
    destination: Option<Mac>,
}

/// A rule that replaces addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Replaces an Ethernet address by another, as source and as destination.
    Mac([u8; 6], [u8; 6]),
    /// Replaces the first prefix by the second, and keeps the bits after it. Both have the same family, and
    /// the first is not longer than the second.
    Prefix((IpAddr, u8), (IpAddr, u8)),
    /// Sets the source of every frame; overrides other rules.
    Source([u8; 6]),
    /// Sets the destination of every frame; overrides other rules.
    Destination([u8; 6]),
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
    /// Adds a rule. Earlier rules come first.
    pub fn add(&mut self, rule: Rule) {
        match rule {
            Rule::Mac(from, to) => self.macs.push((from, to)),
            Rule::Source(mac) => self.source = Some(mac),
            Rule::Destination(mac) => self.destination = Some(mac),
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
        let Some(rule) = self.prefixes.iter().find(matches) else { return };
        let now = (rule.to | number & !rule.to_mask).to_be_bytes();
        let now = &now[16 - rule.bytes..];
        if address != now {
            difference.change(address, now);
            address.copy_from_slice(now);
        }
    }

    /// Changes a frame's addresses in place, as far as its headers are complete and valid.
    pub fn apply(&self, frame: &mut [u8]) {
        let Some(found) = headers::find(frame) else { return };
        self.change_ethernet(frame);
        if found.ethertype == ethertype::ARP {
            self.change_arp(frame, found.network);
        } else if !self.prefixes.is_empty()
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
            self.change_address(&mut packet[at..at + 4], &mut Difference::default());
        }
    }

    fn change_ip(&self, frame: &mut [u8], found: &Headers, ip: &Ip) {
        let mut difference = Difference::default();
        self.change_address(&mut frame[ip.source.clone()], &mut difference);
        let before = difference;
        self.change_address(&mut frame[ip.destination.clone()], &mut difference);
        if difference.is_none() {
            return;
        }
        if found.ethertype == ethertype::IPV4 {
            correct(frame, found.network + 10, difference);
        }
        // After a routing header with segments left, checksums cover the final destination, not this one.
        let covered = if ip.segments_left { before } else { difference };
        if let Some((kind, at)) = &ip.transport {
            let v6 = found.ethertype == ethertype::IPV6;
            correct_transport(&mut frame[at.clone()], (*kind, v6), covered);
        }
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

/// The error for an invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRule(String);

impl Rule {
    /// Parses an Ethernet address: `02:00:00:00:00:01`.
    ///
    /// # Errors
    /// The text is no address.
    pub fn address(text: &str) -> Result<[u8; 6], InvalidRule> {
        let mac = text.trim().parse::<link::Mac>();
        mac.map(|mac| mac.0).map_err(|error| InvalidRule(format!("'{text}': {error}")))
    }

    /// Parses a rule of Ethernet addresses: `OLD=NEW`.
    ///
    /// # Errors
    /// The text is no rule.
    pub fn of_macs(text: &str) -> Result<Self, InvalidRule> {
        let (from, to) = halves(text)?;
        Ok(Self::Mac(Self::address(from)?, Self::address(to)?))
    }

    /// Parses a rule of IP addresses: `PREFIX=PREFIX`, or an address on either side.
    ///
    /// # Errors
    /// The text is no rule; the prefixes are of different families; the second is shorter.
    pub fn of_prefixes(text: &str) -> Result<Self, InvalidRule> {
        let (from, to) = halves(text)?;
        let (from, to) = (prefix(from)?, prefix(to)?);
        if from.0.is_ipv4() != to.0.is_ipv4() {
            return Err(InvalidRule(format!("'{text}': use IPv4 on both sides, or IPv6")));
        }
        if from.1 > to.1 {
            return Err(InvalidRule(format!(
                "'{text}': the second prefix is shorter than the first; use /{} or longer",
                from.1
            )));
        }
        Ok(Self::Prefix(from, to))
    }
}

/// Parses a rule of MAC or IP addresses, as in a line of a file.
impl FromStr for Rule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let (from, _) = halves(text)?;
        match Self::address(from) {
            Ok(_) => Self::of_macs(text),
            Err(_) => Self::of_prefixes(text),
        }
    }
}

fn halves(text: &str) -> Result<(&str, &str), InvalidRule> {
    let halves = text.split_once('=');
    halves.ok_or_else(|| InvalidRule(format!("'{text}': a rule is OLD=NEW")))
}

fn prefix(text: &str) -> Result<(IpAddr, u8), InvalidRule> {
    let text = text.trim();
    let wrong = || InvalidRule(format!("'{text}' is no address or prefix, like 198.18.0.0/16"));
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match bits.unwrap_or(most) {
        bits if bits <= most => Ok((address, bits)),
        _ => Err(wrong()),
    }
}

fn change_mac(bytes: &mut [u8], to: impl Fn(Mac) -> Mac) {
    if let Some(mac) = bytes.first_chunk_mut() {
        *mac = to(*mac);
    }
}

/// Corrects a transport checksum, if it covers the packet's addresses.
fn correct_transport(carried: &mut [u8], (kind, v6): (u8, bool), difference: Difference) {
    use protocol::{DCCP, ICMPV6, TCP, UDP, UDP_LITE};
    let at = match kind {
        TCP => 16,
        UDP | UDP_LITE | DCCP => 6,
        ICMPV6 => 2,
        // Mobile IPv6 and HIP.
        135 | 139 => 4,
        // OSPFv3 and PIM; over IPv4 neither covers addresses.
        89 if v6 => 12,
        103 if v6 => 2,
        // VRRP of version 3; older versions do not cover addresses.
        112 if carried.first().is_some_and(|version| version >> 4 == 3) => 6,
        _ => return,
    };
    // In UDP 0 means no checksum; a checksum of 0 is written as 0xffff.
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

/// The effect of changed words on a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Difference(u64);

impl Difference {
    /// Adds the change from one byte string at an even offset to another of the same length; an odd last byte
    /// is padded with 0.
    fn change(&mut self, before: &[u8], now: &[u8]) {
        // Adding the complement of a word subtracts it.
        self.0 += 0xffff * before.len().div_ceil(2) as u64 - words(before) + words(now);
    }

    /// Reports whether no word has changed.
    fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Corrects a checksum.
    fn correct(self, checksum: [u8; 2]) -> [u8; 2] {
        let sum = u64::from(!u16::from_be_bytes(checksum)) + self.0;
        (!fold(sum)).to_be_bytes()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use etherparse::{PacketBuilder, VlanId};
    use proptest::prelude::*;

    use super::*;

    /// Makes a frame to 198.18.0.2 or 2001:db8::2 with a payload.
    pub(crate) fn frame(tags: usize, v6: bool, protocol: u8, carried: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((carried.len() as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            for host in [1, 2] {
                frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
            }
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + carried.len() as u16).to_be_bytes());
            frame.extend([0, 1, 0, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
        }
        frame.extend(carried);
        frame
    }

    #[test]
    fn texts_parse_to_rules() {
        let ip = |text: &str, bits| (text.parse::<IpAddr>().unwrap(), bits);
        let prefixes = |from, to| Some(Rule::Prefix(from, to));
        for (text, rule) in [
            (
                "2:0:0:0:0:1=02:00:00:00:00:02",
                Some(Rule::Mac([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])),
            ),
            ("10.0.0.0/8=198.18.0.0/16", prefixes(ip("10.0.0.0", 8), ip("198.18.0.0", 16))),
            ("0.0.0.0/0=192.0.2.1", prefixes(ip("0.0.0.0", 0), ip("192.0.2.1", 32))),
            ("::/0=2001:db8::/32", prefixes(ip("::", 0), ip("2001:db8::", 32))),
            (" 192.0.2.1 = 192.0.2.2 ", prefixes(ip("192.0.2.1", 32), ip("192.0.2.2", 32))),
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
    fn addresses_change_by_the_first_rule_that_matches() {
        let rules = [
            "192.0.2.1=198.18.9.9",
            "192.0.2.0/24=198.18.2.0/24",
            "10.0.0.0/8=198.18.0.0/24",
            "2001:db8::/32=2001:db8:1::/48",
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
            ("10.1.2.3", "198.18.0.3"),
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
            rewrite.apply(&mut cut);
            rewrite.apply(&mut whole);
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
        other.apply(&mut question);
        assert_eq!((&question[..6], &question[6..12], &question[22..28]), (&C[..], &B[..], &B[..]));
        assert_eq!(question[28..32], [198, 18, 7, 1]);
        assert_eq!((&question[32..38], &question[38..42]), (&[0; 6][..], &[198, 18, 7, 2][..]));
    }

    #[test]
    fn absent_checksums_and_payload_stay() {
        let other = rewrite(&["198.18.0.0/16=192.0.2.0/24"]);
        let without = frame(0, false, 17, &[4, 0, 0, 9, 0, 8, 0, 0]);
        let mut changed = without.clone();
        other.apply(&mut changed);
        assert_eq!(changed[40..42], [0, 0], "UDP without a checksum");
        assert_eq!(changed[26..30], [192, 0, 2, 1]);
        // In a middle fragment, the bytes at the offset of TCP's checksum are payload.
        let mut piece = frame(0, false, 6, &[7; 40]);
        piece[20..22].copy_from_slice(&[0, 9]);
        other.apply(&mut piece);
        assert_eq!(piece[34..], [7; 40]);
        // Bytes after the packet are padding.
        let mut padded = frame(0, false, 6, &[]);
        padded.resize(60, 9);
        other.apply(&mut padded);
        assert_eq!(padded[34..], [9; 26]);
    }

    #[test]
    fn a_checksum_behind_a_routing_header_knows_the_last_address() {
        let mut routed = vec![17, 0, 0, 1];
        routed.extend([0; 4]);
        routed.extend([4, 0, 0, 9, 0, 8, 0x12, 0x34]);
        let whole = frame(0, true, 43, &routed);
        let sum = |rules: &[&str]| {
            let mut frame = whole.clone();
            rewrite(rules).apply(&mut frame);
            frame[68..70].to_vec()
        };
        assert_eq!(sum(&["2001:db8::2=2001:db8::9"]), [0x12, 0x34], "the next on the way");
        assert_ne!(sum(&["2001:db8::1=2001:db8::9"]), [0x12, 0x34], "the source");
    }

    #[test]
    fn checksums_of_routing_protocols_cover_the_addresses_where_the_protocol_says_so() {
        let rules = rewrite(&["198.18.0.0/16=192.0.2.0/24", "2001:db8::/32=2001:db8:9::/48"]);
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
            rules.apply(&mut frame);
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
