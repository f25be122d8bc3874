use etherparse::{LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};

use super::*;
use crate::testing::{Fragment, FrameGenerator, FrameSpec, Random, TunnelSpec, random_policy};

const V6: (&str, &str) = ("2001:db8::1", "2001:db8::2");

fn tcp() -> FrameSpec {
    FrameSpec::default()
}

fn tcp6() -> FrameSpec {
    tcp().between(V6.0, V6.1)
}

fn udp() -> FrameSpec {
    FrameSpec::udp(53, 1000, b"payload")
}

fn extended(extensions: &[u8]) -> FrameSpec {
    FrameSpec { extensions: extensions.to_vec(), ..tcp6() }
}

fn part(spec: FrameSpec, offset: u16, more: bool) -> FrameSpec {
    FrameSpec { fragment: Some(Fragment { offset, more }), ..spec }
}

/// Returns a frame with some bytes replaced: offset and value.
fn patched(spec: &FrameSpec, patches: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = spec.build();
    patches.iter().for_each(|(at, value)| frame[*at] = *value);
    frame
}

/// Returns a frame without its last bytes.
fn cut(mut frame: Vec<u8>, bytes: usize) -> Vec<u8> {
    frame.truncate(frame.len() - bytes);
    frame
}

/// Returns a frame whose packet says that it is shorter: its end becomes padding.
fn shortened(spec: &FrameSpec, bytes: u16) -> Vec<u8> {
    let mut frame = spec.build();
    let at = if spec.src.is_ipv4() { 16 } else { 18 };
    let length = u16::from_be_bytes([frame[at], frame[at + 1]]) - bytes;
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
    frame
}

fn packet(frame: &[u8]) -> Packet<'_> {
    match parse(frame) {
        Parsed::Packet(packet) => packet,
        other => panic!("{other:?}: {frame:02x?}"),
    }
}

/// A packet that a router sends to itself by a neighbor.
fn bfd_echo(address: &str) -> FrameSpec {
    FrameSpec { ttl: 255, ..FrameSpec::udp(49152, 3785, &[0; 12]).between(address, address) }
}

#[test]
fn bfd_echo_of_the_link_has_one_address() {
    for (address, ttl) in [("192.0.2.1", 255), ("192.0.2.1", 254), ("2001:db8::1", 254)] {
        let frame = FrameSpec { ttl, ..bfd_echo(address) }.build();
        assert!(matches!(parse(&frame), Parsed::Packet(_)), "{address} {ttl}");
    }
}

#[test]
fn fields_of_ipv4() {
    let spec = FrameSpec {
        tags: vec![(0x88a8, 0xf123), (0x8100, 7)],
        ttl: 3,
        dscp: 46,
        flow_label: 9,
        options: 8,
        df: true,
        tcp_flags: 0xd8,
        tcp_options: 12,
        payload: b"data".to_vec(),
        padding: 5,
        ..tcp()
    };
    let expected = Packet {
        protocol: 6,
        sport: 40_000,
        dport: 80,
        length: 20 + 8 + 20 + 12 + 4,
        ttl: 3,
        dscp: 46,
        seq: 1,
        ack: 2,
        tcp_flags: 0xd8,
        fragment: fragment::DF,
        vlan: 0x123,
        transport: Transport::Tcp,
        payload: b"data",
        ..empty_packet(spec.src, spec.dst)
    };
    assert_eq!(packet(&spec.build()), expected);
}

#[test]
fn fields_of_ipv6() {
    let spec = FrameSpec {
        ttl: 255,
        dscp: 63,
        flow_label: 0xa_bcde,
        extensions: vec![0, 43, 44, 51, 60, 60],
        protocol: 58,
        icmp_type: 128,
        icmp_code: 7,
        payload: b"echo".to_vec(),
        padding: 1,
        ..tcp6()
    };
    let expected = Packet {
        protocol: 58,
        length: 40 + (8 + 16 + 8 + 16 + 8 + 16) + 8 + 4,
        ttl: 255,
        dscp: 63,
        icmp_type: 128,
        icmp_code: 7,
        flow_label: 0xa_bcde,
        transport: Transport::Icmp,
        payload: b"echo",
        ..empty_packet(spec.src, spec.dst)
    };
    assert_eq!(packet(&spec.build()), expected);
}

const ALL: Tunnels = Tunnels { gre: true, ipip: true };

/// Outer headers over IPv4 and IPv6, as Linux writes them too: with the limit of nested tunnels (RFC 2473, 4.1.1).
fn outers() -> [FrameSpec; 3] {
    let v4 = FrameSpec { dscp: 63, ttl: 9, df: true, options: 8, ..FrameSpec::default() };
    let v6 = FrameSpec { flow_label: 77, ..v4.clone().between("2001:db8::8", "2001:db8::9") };
    [v4, v6.clone(), FrameSpec { extensions: vec![60, 44], ..v6 }]
}

#[test]
fn all_fields_are_those_of_the_packet_inside() {
    let specs = [
        FrameSpec { tcp_options: 12, payload: b"data".to_vec(), ..tcp() },
        FrameSpec { padding: 3, ..udp() },
        FrameSpec { flow_label: 5, ..extended(&[0, 60]) },
        part(tcp6(), 0, true),
        part(udp(), 185, false),
        FrameSpec { protocol: 58, icmp_type: 135, ttl: 255, ..tcp6() },
        // A tunnel inside is a packet of its protocol.
        udp().inside(&tcp(), TunnelSpec::Gre(0)),
        udp().inside(&tcp6(), TunnelSpec::IpIp),
    ];
    for (outer, spec) in outers().iter().flat_map(|outer| specs.iter().map(move |it| (outer, it))) {
        let spec = FrameSpec { tags: vec![(0x88a8, 7), (0x8100, 8)], ..spec.clone() };
        let alone = spec.build();
        let gre = [0, 0x8000, 0x2000, 0x1000, 0xb000, 0x0f78].map(TunnelSpec::Gre);
        for kind in [TunnelSpec::IpIp].into_iter().chain(gre) {
            let frame = spec.inside(outer, kind).build();
            let tunnel = if kind == TunnelSpec::IpIp { Tunnel::IpIp } else { Tunnel::Gre };
            let inside = Parsed::Packet(Packet { tunnel: Some(tunnel), ..packet(&alone) });
            assert_eq!(parse_inside(&frame, ALL), inside, "{kind:?} {outer:?}");
            let protocol = packet(&frame).protocol;
            assert!([4, 41, 47].contains(&protocol), "{protocol}");
            let others = match tunnel {
                Tunnel::Gre => Tunnels { gre: false, ..ALL },
                Tunnel::IpIp => Tunnels { ipip: false, ..ALL },
            };
            assert_eq!(parse_inside(&frame, others), parse(&frame));
        }
    }
}

#[test]
fn tunnels_that_are_not_looked_into() {
    for outer in outers() {
        let gre = |flags| udp().inside(&outer, TunnelSpec::Gre(flags));
        let other_type = |kind: [u8; 2]| {
            let mut spec = gre(0);
            spec.payload[2..4].copy_from_slice(&kind);
            spec
        };
        for spec in [
            // PPTP's version, other versions, routing.
            gre(0x0001),
            gre(0x2081),
            gre(0x0007),
            gre(0x4000),
            // Ethernet, ERSPAN, PPP, MPLS.
            other_type([0x65, 0x58]),
            other_type([0x88, 0xbe]),
            other_type([0x88, 0x0b]),
            other_type([0x88, 0x47]),
            FrameSpec { payload: vec![0, 1, 8, 0], ..gre(0) },
            part(gre(0), 0, true),
            part(gre(0), 185, true),
            part(gre(0), 185, false),
            part(udp().inside(&outer, TunnelSpec::IpIp), 0, true),
            part(tcp6().inside(&outer, TunnelSpec::IpIp), 185, false),
            // Without a tunnel.
            FrameSpec { protocol: 137, ..gre(0) },
        ] {
            let frame = spec.build();
            assert_eq!(packet(&frame).tunnel, None);
            assert_eq!(parse_inside(&frame, ALL), parse(&frame), "{spec:?}");
        }
    }
}

#[test]
fn each_defect_of_a_tunnel() {
    use Defect::*;
    let outer = &tcp();
    let gre = |flags| udp().inside(outer, TunnelSpec::Gre(flags));
    let first = |spec: FrameSpec, bytes: usize| FrameSpec {
        payload: spec.payload[..bytes].to_vec(),
        padding: 60,
        ..spec
    };
    let ipip = |spec: &FrameSpec| spec.inside(outer, TunnelSpec::IpIp);
    let with = |mut spec: FrameSpec, at: usize, value: u8| {
        spec.payload[at] = value;
        spec
    };
    let cases = [
        // Padding behind the tunnel does not belong to it.
        (first(gre(0), 0), Truncated),
        (first(gre(0), 3), Truncated),
        (first(gre(0xb000), 15), Truncated),
        (first(gre(0), 4), Truncated),
        (first(gre(0), 4 + 19), Truncated),
        (first(gre(0), 4 + 28), Truncated),
        (first(ipip(&udp()), 0), Truncated),
        (first(ipip(&udp()), 19), Truncated),
        (first(ipip(&udp()), 34), Truncated),
        (first(ipip(&tcp6()), 39), Truncated),
        (first(ipip(&tcp6()), 59), Truncated),
        // The version is that of the protocol.
        (FrameSpec { protocol: 41, padding: 20, ..ipip(&tcp()) }, BadHeader),
        (FrameSpec { protocol: 4, ..ipip(&tcp6()) }, BadHeader),
        (with(with(tcp().inside(outer, TunnelSpec::Gre(0)), 2, 0x86), 3, 0xdd), BadHeader),
        (with(ipip(&tcp()), 0, 0x44), BadHeader),
        (with(with(ipip(&tcp()), 2, 0), 3, 19), BadLength),
        (ipip(&extended(&[60; 7])), BadHeader),
        (ipip(&FrameSpec { tcp_flags: 3, ..tcp() }), BadFlags),
        (ipip(&FrameSpec { dport: 0, ..udp() }), PortZero),
        (ipip(&part(tcp(), 1, true)), TinyFragment),
        (ipip(&tcp().between("127.0.0.1", "192.0.2.1")), BadSource),
        (ipip(&tcp6().between("::9", "::9")), SameAddress),
        // The outer header is checked first.
        (FrameSpec { ..first(gre(0), 3).between("224.0.0.1", "192.0.2.1") }, BadSource),
        (gre(0).between("192.0.2.1", "192.0.2.1"), SameAddress),
    ];
    for (place, (spec, defect)) in cases.into_iter().enumerate() {
        let frame = spec.build();
        let expected = Parsed::Malformed(defect);
        assert_eq!(parse_inside(&frame, ALL), expected, "case {place}: {frame:02x?}");
    }
}

#[test]
fn frames_that_are_not_ip() {
    let tag = |count| FrameSpec { tags: vec![(0x8100, 1); count], ..tcp() }.build();
    let with_type = |high, low| patched(&tcp(), &[(12, high), (13, low)]);
    for frame in [tag(3), with_type(0x08, 0x06), with_type(0, 46), with_type(0x91, 0)] {
        assert_eq!(parse(&frame), Parsed::NotIp, "{frame:02x?}");
    }
    assert_eq!(parse(&tcp().build()[..14]), Parsed::Malformed(Defect::Truncated));
    assert_eq!(packet(&tag(2)).vlan, 1);
    let priority = FrameSpec { tags: vec![(0x8100, 0xe000), (0x8100, 5)], ..tcp() };
    assert_eq!(packet(&priority.build()).vlan, 0);
}

#[test]
fn each_defect() {
    use Defect::*;
    let tagged = FrameSpec { tags: vec![(0x8100, 1)], ..tcp() }.build();
    let icmp = FrameSpec { protocol: 1, ..tcp() };
    let empty = FrameSpec { protocol: 47, ..tcp() };
    let big = FrameSpec { payload: vec![0; 16], ..part(tcp(), 0x1fff, false) };
    let big6 = FrameSpec { payload: vec![0; 16], ..part(tcp6(), 0x1fff, false) };
    let flags = |tcp_flags| FrameSpec { tcp_flags, ..tcp() }.build();
    let from = |src: &str| tcp().between(src, "198.51.100.1").build();
    let from6 = |src: &str| tcp6().between(src, V6.1).build();
    let cases = [
        (tagged[..17].to_vec(), Truncated),
        (tcp().build()[..13].to_vec(), Truncated),
        (vec![], Truncated),
        // IPv4.
        (tcp().build()[..33].to_vec(), Truncated),
        (patched(&tcp(), &[(14, 0x55)]), BadHeader),
        (patched(&tcp(), &[(14, 0x44)]), BadHeader),
        (patched(&tcp(), &[(16, 0), (17, 19)]), BadLength),
        (patched(&tcp(), &[(14, 0x4f), (16, 0), (17, 59)]), BadLength),
        (cut(tcp().build(), 1), Truncated),
        (cut(empty.build(), 1), Truncated),
        // IPv6.
        (tcp6().build()[..53].to_vec(), Truncated),
        (patched(&tcp6(), &[(14, 0x40)]), BadHeader),
        (cut(tcp6().build(), 1), Truncated),
        (shortened(&tcp6(), 20), Truncated),
        // Extension headers.
        (extended(&[60; 7]).build(), BadHeader),
        (shortened(&extended(&[60; 7]), 20 + 8), BadHeader),
        (shortened(&extended(&[0]), 20 + 1), Truncated),
        (shortened(&extended(&[0]), 20 + 7), Truncated),
        (shortened(&extended(&[60, 51]), 20 + 1), Truncated),
        (shortened(&extended(&[44]), 20 + 1), Truncated),
        (patched(&extended(&[0]), &[(55, 255)]), Truncated),
        // Fragments.
        (part(tcp(), 1, true).build(), TinyFragment),
        (part(tcp6(), 1, false).build(), TinyFragment),
        (FrameSpec { protocol: 17, ..big.clone() }.build(), BadLength),
        (big6.build(), BadLength),
        // Transport headers.
        (shortened(&tcp(), 1), Truncated),
        (shortened(&FrameSpec { payload: vec![], ..udp() }, 1), Truncated),
        (shortened(&icmp, 1), Truncated),
        (shortened(&FrameSpec { protocol: 58, ..tcp6() }, 1), Truncated),
        (shortened(&part(tcp(), 0, true), 1), TinyFragment),
        (shortened(&part(tcp6(), 0, true), 1), TinyFragment),
        (shortened(&part(icmp, 0, true), 1), TinyFragment),
        (patched(&tcp(), &[(46, 0x40)]), BadHeader),
        (patched(&tcp(), &[(46, 0x60)]), Truncated),
        (patched(&part(tcp(), 0, true), &[(46, 0x60)]), TinyFragment),
        (patched(&udp(), &[(39, 7)]), BadLength),
        (patched(&udp(), &[(39, 16)]), BadLength),
        (patched(&part(udp(), 0, true), &[(39, 7)]), BadLength),
        // Sanity.
        (from("224.0.0.1"), BadSource),
        (from("239.255.255.255"), BadSource),
        (from("127.0.0.1"), BadSource),
        (from("127.255.255.255"), BadSource),
        (from("255.255.255.255"), BadSource),
        (from6("ff02::1"), BadSource),
        (from6("::1"), BadSource),
        (tcp().between("::1", "::1").build(), BadSource),
        (tcp().between("192.0.2.1", "192.0.2.1").build(), SameAddress),
        (tcp6().between("::", "::").build(), SameAddress),
        (part(tcp().between("192.0.2.1", "192.0.2.1"), 9, true).build(), SameAddress),
        (FrameSpec { ttl: 253, ..bfd_echo("192.0.2.1") }.build(), SameAddress),
        (FrameSpec { dport: 3784, ..bfd_echo("192.0.2.1") }.build(), SameAddress),
        (FrameSpec { protocol: protocol::TCP, ..bfd_echo("2001:db8::1") }.build(), SameAddress),
        (flags(0), BadFlags),
        (flags(0xe8), BadFlags),
        (flags(0x01), BadFlags),
        (flags(0x03), BadFlags),
        (flags(0x06), BadFlags),
        (flags(0x13), BadFlags),
        (flags(0x15), BadFlags),
        (FrameSpec { sport: 0, ..tcp() }.build(), PortZero),
        (FrameSpec { dport: 0, ..tcp() }.build(), PortZero),
        (FrameSpec { dport: 0, tcp_flags: 0, ..tcp() }.build(), BadFlags),
        (FrameSpec::udp(53, 0, &[]).build(), PortZero),
    ];
    for (place, (frame, defect)) in cases.iter().enumerate() {
        assert_eq!(parse(frame), Parsed::Malformed(*defect), "case {place}: {frame:02x?}");
    }
}

#[test]
fn frames_next_to_defects() {
    let flags = |tcp_flags| FrameSpec { tcp_flags, ..tcp() }.build();
    let large = FrameSpec { payload: vec![0; 7], ..part(tcp(), 0x1fff, false) };
    let large6 = FrameSpec { payload: vec![0; 7], ..part(tcp6(), 0x1fff, false) };
    let frames = [
        large.build(),
        large6.build(),
        extended(&[60; 6]).build(),
        part(tcp(), 2, true).build(),
        part(udp(), 1, true).build(),
        // A first fragment of a datagram that is longer.
        patched(&part(udp(), 0, true), &[(39, 99)]),
        FrameSpec::udp(0, 1, &[]).build(),
        tcp().between("0.0.0.0", "255.255.255.255").build(),
        tcp().between("223.255.255.255", "127.0.0.1").build(),
        tcp().between("240.0.0.0", "224.0.0.1").build(),
        tcp6().between("::", "::1").build(),
        flags(0x02),
        flags(0x12),
        flags(0x04),
        flags(0x14),
        flags(0x11),
        flags(0xfa & !0x01),
        // IPv4 has no extension headers, and no next header is none.
        FrameSpec { protocol: 60, ..tcp() }.build(),
        FrameSpec { protocol: 59, ..tcp6() }.build(),
    ];
    frames.iter().for_each(|frame| assert!(packet(frame).length > 0));
}

#[test]
fn kinds_of_fragments() {
    use fragment::{DF, FIRST, LAST, LATER};
    let cases = [
        (tcp(), 0),
        (FrameSpec { df: true, ..part(tcp(), 0, true) }, DF | FIRST),
        (part(tcp(), 0, false), 0),
        (part(tcp(), 0, true), FIRST),
        (part(tcp(), 2, true), LATER),
        (part(tcp(), 2, false), LATER | LAST),
        (extended(&[44]), 0),
        (part(tcp6(), 0, true), FIRST),
        (part(tcp6(), 2, true), LATER),
        (part(extended(&[0, 60]), 2, false), LATER | LAST),
    ];
    for (spec, bits) in cases {
        let frame = spec.build();
        let packet = packet(&frame);
        assert_eq!(packet.fragment, bits, "{spec:?}");
        let is_later = bits & LATER != 0;
        let expected = if is_later { Transport::None } else { Transport::Tcp };
        assert_eq!((packet.transport, packet.protocol), (expected, 6), "{spec:?}");
    }
    let later = FrameSpec { payload: b"rest".to_vec(), ..part(udp(), 2, false) }.build();
    assert_eq!((packet(&later).sport, packet(&later).payload), (0, &b"rest"[..]));
}

#[test]
fn several_fragment_headers() {
    // A header of a whole packet, then one of the first fragment.
    let mut frame = extended(&[44, 44]).build();
    frame[65] = 1;
    assert_eq!(packet(&frame).fragment, fragment::FIRST);
    // A header behind that of a first fragment.
    frame[57] = 1;
    assert_eq!(parse(&frame), Parsed::Malformed(Defect::BadHeader));
    // The header behind one of a later fragment is data.
    frame[57] = 17;
    let found = packet(&frame);
    assert_eq!((found.protocol, found.fragment), (44, fragment::LATER));
    assert_eq!(found.payload.len(), 28);
}

#[test]
fn icmp_is_parsed_by_its_number_over_both_versions() {
    for (spec, number) in [(tcp(), 58), (tcp6(), 1), (tcp(), 1), (tcp6(), 58)] {
        let frame = FrameSpec { protocol: number, icmp_type: 135, ttl: 255, ..spec }.build();
        let packet = packet(&frame);
        assert_eq!((packet.transport, packet.icmp_type), (Transport::Icmp, 135));
        let is_expected = packet.version() == 6 && number == 58;
        assert_eq!(packet.is_neighbor_discovery(), is_expected);
    }
}

#[test]
fn neighbor_discovery() {
    let spec = FrameSpec { protocol: 58, ttl: 255, ..tcp6() };
    let is_neighbor = |spec: FrameSpec| packet(&spec.build()).is_neighbor_discovery();
    for (icmp_type, expected) in [(132, false), (133, true), (137, true), (138, false)] {
        assert_eq!(is_neighbor(FrameSpec { icmp_type, ..spec.clone() }), expected);
    }
    let spec = FrameSpec { icmp_type: 135, ..spec };
    assert!(is_neighbor(FrameSpec { extensions: vec![0], ..spec.clone() }));
    assert!(!is_neighbor(FrameSpec { ttl: 254, ..spec.clone() }));
    assert!(!is_neighbor(FrameSpec { icmp_code: 1, ..spec.clone() }));
    assert!(!is_neighbor(part(spec, 2, true)));
}

#[test]
fn padding_belongs_to_nothing() {
    let frame = FrameSpec { padding: 30, ..udp() }.build();
    assert_eq!((packet(&frame).length, packet(&frame).payload), (35, &b"payload"[..]));
    // The payload is the packet's, whatever the length in UDP.
    let frame = patched(&udp(), &[(39, 8)]);
    assert_eq!(packet(&frame).payload, b"payload");
}

/// Compares a packet with the fields that etherparse finds. Returns whether etherparse had a transport header.
fn compare(frame: &[u8], packet: &Packet<'_>) -> bool {
    let sliced = SlicedPacket::from_ethernet(frame).expect("etherparse parses it");
    let vlan = sliced.link_exts.first().map_or(0, |it| match it {
        LinkExtSlice::Vlan(tag) => tag.vlan_identifier().value(),
        other => panic!("{other:?}"),
    });
    assert_eq!(packet.vlan, vlan);
    let net = sliced.net.as_ref().expect("a network layer");
    let behind = match net {
        NetSlice::Ipv4(it) => {
            let header = it.header();
            assert_eq!(packet.src, IpAddr::V4(header.source_addr()));
            assert_eq!(packet.dst, IpAddr::V4(header.destination_addr()));
            assert_eq!(packet.length, u32::from(header.total_len()));
            assert_eq!((packet.ttl, packet.dscp), (header.ttl(), header.dcp().value()));
            assert_eq!(packet.protocol, header.protocol().0);
            assert_eq!(packet.fragment & fragment::DF != 0, header.dont_fragment());
            let (more, offset) = (header.more_fragments(), header.fragments_offset().value());
            assert_eq!(packet.fragment & fragment::LATER != 0, offset != 0);
            assert_eq!(packet.fragment & fragment::FIRST != 0, offset == 0 && more);
            assert_eq!(packet.fragment & fragment::LAST != 0, offset != 0 && !more);
            // Etherparse parses authentication headers of IPv4 too.
            if packet.protocol == 51 {
                return false;
            }
            it.payload().payload
        }
        NetSlice::Ipv6(it) => {
            let header = it.header();
            assert_eq!(packet.src, IpAddr::V6(header.source_addr()));
            assert_eq!(packet.dst, IpAddr::V6(header.destination_addr()));
            assert_eq!(packet.length, u32::from(header.payload_length()) + 40);
            assert_eq!(packet.ttl, header.hop_limit());
            assert_eq!(packet.dscp, header.traffic_class() >> 2);
            assert_eq!(packet.flow_label, header.flow_label().value());
            assert_eq!(packet.is_fragment(), it.is_payload_fragmented());
            let payload = it.payload();
            // Etherparse takes data of later fragments for extension headers.
            if packet.fragment & fragment::LATER == 0 {
                assert_eq!(packet.protocol, payload.ip_number.0, "{packet:?}");
            }
            payload.payload
        }
        NetSlice::Arp(_) => panic!("ARP"),
    };
    if packet.transport == Transport::None && !packet.is_fragment() {
        assert_eq!(packet.payload, behind);
    }
    let payload = match &sliced.transport {
        Some(TransportSlice::Tcp(it)) => {
            assert_eq!(packet.transport, Transport::Tcp);
            assert_eq!((packet.sport, packet.dport), (it.source_port(), it.destination_port()));
            assert_eq!(packet.tcp_flags, it.slice()[13]);
            it.payload()
        }
        Some(TransportSlice::Udp(it)) => {
            assert_eq!(packet.transport, Transport::Udp);
            assert_eq!((packet.sport, packet.dport), (it.source_port(), it.destination_port()));
            it.payload()
        }
        Some(TransportSlice::Icmpv4(it)) => {
            let bytes = it.slice();
            assert_eq!(packet.transport, Transport::Icmp);
            assert_eq!((packet.icmp_type, packet.icmp_code), (bytes[0], bytes[1]));
            &bytes[8..]
        }
        Some(TransportSlice::Icmpv6(it)) => {
            let bytes = it.slice();
            assert_eq!(packet.transport, Transport::Icmp);
            assert_eq!((packet.icmp_type, packet.icmp_code), (bytes[0], bytes[1]));
            &bytes[8..]
        }
        Some(TransportSlice::Igmp(_)) | None => return false,
    };
    // Of UDP, etherparse trusts the length in its header.
    assert!(packet.payload.starts_with(payload));
    assert!(packet.transport == Transport::Udp || packet.payload == payload);
    true
}

#[test]
fn fields_are_those_of_etherparse() {
    let (mut compared, mut with_transport, mut refused) = (0, 0, 0);
    for seed in 0..400 {
        let random = &mut Random::new(seed);
        let generator = FrameGenerator::new(&random_policy(random));
        for _ in 0..200 {
            let frame = generator.frame(random);
            let Parsed::Packet(packet) = parse(&frame) else { continue };
            // Etherparse has checks of its own, for instance that a hop-by-hop header is the first, and takes an IPv6
            // payload length of 0 as unknown.
            if (packet.version() == 6 && packet.length == 40)
                || SlicedPacket::from_ethernet(&frame).is_err()
            {
                refused += 1;
                continue;
            }
            compared += 1;
            with_transport += u32::from(compare(&frame, &packet));
        }
    }
    println!("{compared} compared, {with_transport} with a transport header, {refused} refused");
    assert!(compared > 20_000 && with_transport > 12_000 && refused < compared / 10);
}

#[test]
fn no_bytes_panic() {
    let random = &mut Random::new(7);
    let generator = FrameGenerator::new(&random_policy(random));
    for _ in 0..20_000 {
        let length = random.below(120);
        let _ = parse(&random.bytes(length));
        let mut frame = generator.spec(random).build();
        for _ in 0..random.below(6) {
            let at = random.below(frame.len().min(100));
            frame[at] = random.number() as u8;
        }
        frame.truncate(random.below(frame.len() + 1));
        let _ = parse(&frame);
    }
}

/// Each prefix of a frame is parsed too: none is a packet, since all end before their length.
#[test]
fn prefixes_are_defects() {
    let specs = [tcp(), tcp6(), udp(), extended(&[0, 43, 44, 51, 60]), part(tcp6(), 0, true)];
    for spec in specs {
        let frame = FrameSpec { tags: vec![(0x8100, 5)], ..spec }.build();
        for end in 0..frame.len() {
            assert_eq!(parse(&frame[..end]), Parsed::Malformed(Defect::Truncated), "{end}");
        }
    }
}

/// Etherparse finds the end of frames that are too short for it too.
#[test]
fn truncated_frames_are_so_to_etherparse() {
    let mut truncated = 0;
    for seed in 0..400 {
        let random = &mut Random::new(seed);
        let generator = FrameGenerator::new(&random_policy(random));
        for _ in 0..200 {
            let frame = generator.frame(random);
            if parse(&frame) == Parsed::Malformed(Defect::Truncated) {
                truncated += 1;
                if let Ok(sliced) = SlicedPacket::from_ethernet(&frame) {
                    let length = sliced.net.as_ref().and_then(|it| it.ipv6_ref());
                    let length = length.map(|it| it.header().payload_length());
                    // It takes a payload length of 0 as unknown.
                    assert_eq!(length, Some(0), "{frame:02x?}");
                }
            }
        }
    }
    assert!(truncated > 2000, "{truncated}");
}
