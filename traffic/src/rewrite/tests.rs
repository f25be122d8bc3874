//! Rewritten packets equal those that are made with the new values.

use etherparse::{PacketBuilder, VlanId};
use proptest::prelude::*;

pub(crate) use super::frame::frame;
use super::*;

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
