//! Packets of specifications with planted faults.

use sluicegate_traffic::analyse::{Analyser, Analysis, Condition, Stamp, inspect};
use sluicegate_traffic::plan::FrameBuilder;
use sluicegate_traffic::spec::{Defaults, Flags, PROFILES, Spec};

/// The first packets of a specification's worker.
fn frames(spec: &Spec, worker: u32, count: usize) -> Vec<Vec<u8>> {
    let plan = spec.plan(&Defaults::default()).unwrap();
    let mut frames = FrameBuilder::new(&plan, worker, worker + 1, || 77);
    let mut room = vec![0; 65_536];
    let next = |_| {
        let bytes = frames.next_into(&mut room).unwrap();
        room[..bytes].to_vec()
    };
    (0..count).map(next).collect()
}

fn of_layers(layers: &str) -> Spec {
    Spec::parse(&format!("[[stream]]\nlayers = [{layers}]\n")).unwrap()
}

#[test]
fn the_stamp_is_found_behind_all_headers() {
    for (layers, expected) in [
        ("'ether', 'ipv4', 'udp', 'stamp', 'payload'", Condition::Intact),
        ("'ether', 'ipv6', 'udp', 'stamp'", Condition::Intact),
        ("'ether', 'vlan', 'ipv4', 'tcp', 'stamp'", Condition::Intact),
        ("'ether', 'vlan', 'vlan', 'ipv6', 'tcp', 'stamp'", Condition::Intact),
        (
            "'ether', 'ipv4', { tcp = { options = ['mss=1460', 'nop'] } }, 'stamp'",
            Condition::Intact,
        ),
        ("'ether', { ipv4 = { options = '01010101' } }, 'udp', 'stamp'", Condition::Intact),
        ("'ether', 'mpls', 'mpls', 'ipv4', 'udp', 'stamp'", Condition::Intact),
        ("'ether', 'ipv4', 'icmp', 'stamp'", Condition::Intact),
        ("'ether', 'ipv6', 'icmpv6', 'stamp'", Condition::Intact),
        ("'ether', 'ipv6', 'hop-by-hop', 'destination', 'udp', 'stamp'", Condition::Intact),
        ("'ether', 'ipv4', 'udp', 'vxlan', 'ether', 'ipv6', 'udp', 'stamp'", Condition::Intact),
        ("'ether', 'ipv4', 'gre', 'ipv4', 'udp', 'stamp'", Condition::Intact),
        (
            "'ether', 'ipv4', { gre = { checksum = 'right' } }, 'ipv4', 'udp', 'stamp'",
            Condition::Intact,
        ),
        ("'ether', 'ipv4', 'udp', 'mpls', 'ipv4', 'udp', 'stamp'", Condition::Intact),
        ("'ether', 'ipv4', 'udp', 'gre', 'ether', 'ipv4', 'udp', 'stamp'", Condition::Intact),
        ("{ ether = { type = 0x88b5 } }, 'stamp'", Condition::Intact),
        ("'ether', { ipv4 = { protocol = 253 } }, 'stamp'", Condition::Intact),
        ("'ether', 'ipv4', { udp = { checksum = 0 } }, 'stamp'", Condition::Intact),
        ("'ether', { ipv4 = { flags = 'mf' } }, 'udp', 'stamp'", Condition::Intact),
        ("'ether', { ipv4 = { flags = 'mf' } }, 'tcp', 'stamp'", Condition::Unchecked),
        ("'ether', 'ipv4', { udp = { checksum = 'bad' } }, 'stamp'", Condition::Corrupt),
        ("'ether', { ipv4 = { checksum = 'bad' } }, 'udp', 'stamp'", Condition::Corrupt),
        ("'ether', 'ipv6', { icmpv6 = { checksum = 'bad' } }, 'stamp'", Condition::Corrupt),
        ("'ether', { ipv4 = { length = 99 } }, 'udp', 'stamp'", Condition::Corrupt),
        ("'ether', 'ipv4', { udp = { length = 99 } }, 'stamp'", Condition::Corrupt),
    ] {
        let frames = frames(&of_layers(layers), 2, 5);
        let found = inspect(&frames[4], true);
        assert_eq!(found.condition, expected, "{layers}");
        let stamp = Stamp { stream: 0, worker: 2, number: 4, time_ns: 77 };
        assert_eq!(found.stamp, Some(stamp), "{layers}");
    }
}

#[test]
fn a_checksum_is_checked_if_the_optional_fields_are_cut_short() {
    let below = [
        [2; 12].as_slice(),
        &[0x08, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 47, 0xee, 0x8b],
        &[198, 18, 0, 1, 198, 18, 0, 2],
    ]
    .concat();
    // GRE's flags C and K ask for 12 bytes; 8 are left.
    for (checksum, expected) in
        [([0x57, 0xff], Condition::Intact), ([0x57, 0xfe], Condition::Corrupt)]
    {
        let gre = [[0xa0, 0, 0x08, 0].as_slice(), &checksum, &[0, 0]].concat();
        let found = inspect(&[below.as_slice(), &gre].concat(), true);
        assert_eq!((found.condition, found.stamp), (expected, None), "{checksum:x?}");
    }
}

#[test]
fn the_stamp_is_not_looked_for_behind_headers_without_end() {
    for (tags, found) in [(0, true), (61, true), (62, false), (5000, false)] {
        let plain = frames(&of_layers("'ether', 'ipv4', 'stamp'"), 0, 1).remove(0);
        let tags = [0x81, 0, 0, 1].repeat(tags);
        let frame = [&plain[..12], &tags, &plain[12..]].concat();
        assert_eq!(inspect(&frame, true).stamp.is_some(), found, "{} bytes of tags", tags.len());
    }
}

#[test]
fn profiles_are_stamped_and_read_again() {
    for profile in PROFILES {
        let mut spec = Spec::profile(profile.name).unwrap();
        let flags = Flags { stamp: true, ..Flags::default() };
        if spec.apply(&flags).and_then(|()| spec.plan(&Defaults::default())).is_err() {
            // The sizes leave no room for a stamp.
            continue;
        }
        let mut analyser = Analyser::new(|| 0);
        for frame in frames(&spec, 0, 500) {
            analyser.found(inspect(&frame, true), None);
        }
        let analysis = Analysis::of(&[analyser.share()]);
        let received: u64 = analysis.streams.iter().map(|it| it.sum(|it| it.counts.received)).sum();
        let others = analysis.others;
        match profile.name {
            // Later fragments have no stamp, because no header ends there.
            "fragments" => assert_eq!(received + others.unstamped, 500),
            name => assert_eq!(received, 500, "{name}: {analysis:?}"),
        }
        assert_eq!(
            (others.corrupt, analysis.lost_and_reordered()),
            (0, (0, 0)),
            "{}",
            profile.name
        );
    }
}

#[test]
fn a_flipped_bit_is_detected_wherever_a_checksum_covers_it() {
    for layers in [
        "'ether', 'ipv4', 'udp', 'stamp', { payload = { text = 'odd' } }",
        "'ether', 'ipv6', 'tcp', 'stamp', { payload = { text = 'even' } }",
    ] {
        let frame = frames(&of_layers(layers), 0, 1).remove(0);
        // IPv6 has no checksum: only its fields in the pseudo header are covered.
        let covered = if layers.contains("ipv6") { 22..frame.len() } else { 14..frame.len() };
        for at in covered {
            for bit in 0..8 {
                let mut frame = frame.clone();
                frame[at] ^= 1 << bit;
                let found = inspect(&frame, true);
                assert_eq!(found.condition, Condition::Corrupt, "{layers}: byte {at}, bit {bit}");
            }
        }
    }
}

/// Sums 16-bit numbers.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(*two.get(1).unwrap_or(&0))).sum()
}

/// Stores a checksum over the bytes and a pseudo-header of this sum.
fn set_checksum(bytes: &mut [u8], at: usize, mut pseudo: u32) {
    pseudo += sum(bytes);
    while pseudo > 0xffff {
        pseudo = (pseudo & 0xffff) + (pseudo >> 16);
    }
    bytes[at..at + 2].copy_from_slice(&(!(pseudo as u16)).to_be_bytes());
}

const SOURCE: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const NEXT: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const LAST: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

/// Makes a datagram with a checksum to an address.
fn datagram(to: &[u8; 16]) -> Vec<u8> {
    let mut udp = [[4, 0, 0, 9, 0, 20, 0, 0].as_slice(), b"twelve bytes"].concat();
    let pseudo = sum(&SOURCE) + sum(to) + 17 + udp.len() as u32;
    set_checksum(&mut udp, 6, pseudo);
    udp
}

/// Makes an IPv6 packet from SOURCE to NEXT.
fn ipv6(protocol: u8, carried: &[u8]) -> Vec<u8> {
    let length = u16::try_from(carried.len()).unwrap_or(0).to_be_bytes();
    let head = [[2; 12].as_slice(), &[0x86, 0xdd, 0x60, 0, 0, 0], &length, &[protocol, 64]];
    [&head.concat(), &SOURCE[..], &NEXT, carried].concat()
}

/// Makes an IPv6 packet with a routing header, which ends with these segments, and a datagram.
fn routed(kind: u8, left: u8, segments: &[[u8; 16]], datagram: &[u8]) -> Vec<u8> {
    let head = [17, 2 * segments.len() as u8, kind, left, 0, 0, 0, 0];
    ipv6(43, &[&head, segments.as_flattened(), datagram].concat())
}

#[test]
fn the_last_segment_of_a_routing_header_is_the_destination() {
    use Condition::{Corrupt, Intact, Unchecked};
    for (sentence, kind, left, segments, to, expected) in [
        ("type 0 lists it last", 0, 2, &[SOURCE, LAST][..], &LAST, Intact),
        ("not the next one", 0, 2, &[SOURCE, LAST], &NEXT, Corrupt),
        ("type 2 has one", 2, 1, &[LAST], &LAST, Intact),
        ("segment routing lists it first", 4, 1, &[LAST, SOURCE], &LAST, Intact),
        ("no other", 4, 1, &[LAST, SOURCE], &SOURCE, Corrupt),
        ("at the end it is the packet's", 4, 0, &[LAST, SOURCE], &NEXT, Intact),
        ("another type may have no addresses", 5, 1, &[LAST], &LAST, Unchecked),
        ("a header without segments", 0, 1, &[], &LAST, Unchecked),
        ("a header without a list", 4, 1, &[], &LAST, Unchecked),
    ] {
        let frame = routed(kind, left, segments, &datagram(to));
        assert_eq!(inspect(&frame, true).condition, expected, "{sentence}");
    }
}

#[test]
fn udp_over_ipv6_has_a_checksum_except_in_tunnels() {
    for (sentence, port, checksum, expected) in [
        ("an application", 9_u16, 0, Condition::Corrupt),
        ("VXLAN", 4789, 0, Condition::Intact),
        ("Geneve", 6081, 0, Condition::Intact),
        ("GTP-U", 2152, 0, Condition::Intact),
        ("a tunnel with a wrong one", 6081, 1, Condition::Corrupt),
    ] {
        let mut udp = datagram(&NEXT);
        udp[2..4].copy_from_slice(&port.to_be_bytes());
        udp[6..8].copy_from_slice(&[0, checksum]);
        assert_eq!(inspect(&ipv6(17, &udp), true).condition, expected, "{sentence}");
    }
    // The sum of all other numbers may be right by chance.
    let mut udp = datagram(&NEXT);
    udp[6..10].fill(0);
    let pseudo = sum(&SOURCE) + sum(&NEXT) + 17 + 20;
    set_checksum(&mut udp, 8, pseudo);
    assert_eq!(inspect(&ipv6(17, &udp), true).condition, Condition::Corrupt);
}

#[test]
fn a_length_of_0_stands_for_one_above_65535() {
    use Condition::{Corrupt, Intact, Unchecked};
    let stamped = frames(&of_layers("'ether', 'ipv4', 'tcp', 'stamp'"), 0, 1).remove(0);
    // TCP or UDP, a stamp, and zeros.
    let carried = |protocol: u8, addresses: &[u8], bytes: usize| {
        let (header, at) = if protocol == 6 { (20, 16) } else { (8, 6) };
        let mut carried = [&[0; 20][..header], &stamped[54..70]].concat();
        carried.resize(bytes, 0);
        if protocol == 6 {
            carried[12] = 0x50;
        }
        set_checksum(&mut carried, at, sum(addresses) + u32::from(protocol) + bytes as u32);
        carried
    };
    let ipv4 = |protocol: u8, bytes| {
        let addresses = [198, 18, 0, 1, 198, 18, 0, 2];
        let head = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        let mut head = [&head[..], &addresses].concat();
        set_checksum(&mut head, 10, 0);
        [&[2; 12][..], &[8, 0], &head, &carried(protocol, &addresses, bytes)].concat()
    };
    let ipv6_of = |protocol, extension: &[u8], bytes| {
        let carried = carried(protocol, &[SOURCE, NEXT].concat(), bytes);
        let first = if extension.is_empty() { protocol } else { 0 };
        let mut frame = ipv6(first, &[extension, &carried].concat());
        frame[18..20].fill(0);
        frame
    };
    let jumbo = [6, 0, 0xc2, 4, 0, 1, 0x11, 0x78];
    for (sentence, frame, whole, expected, is_stamped) in [
        ("IPv4", ipv4(6, 70_000), true, Intact, true),
        ("IPv6", ipv6_of(6, &[], 70_000), true, Intact, true),
        ("IPv6 with a jumbo option", ipv6_of(6, &jumbo, 70_000), true, Intact, true),
        ("UDP", ipv6_of(17, &[], 70_000), true, Intact, true),
        ("IPv4, truncated", ipv4(6, 70_000)[..96].to_vec(), false, Unchecked, true),
        ("IPv6, truncated", ipv6_of(17, &[], 70_000)[..96].to_vec(), false, Unchecked, true),
        ("a short IPv4 packet", ipv4(6, 100), true, Corrupt, false),
        ("a short IPv6 packet has no bytes", ipv6_of(6, &[], 100), true, Intact, false),
    ] {
        let found = inspect(&frame, whole);
        assert_eq!((found.condition, found.stamp.is_some()), (expected, is_stamped), "{sentence}");
        if whole && is_stamped {
            let mut flipped = frame.clone();
            flipped[60_000] ^= 1;
            assert_eq!(
                inspect(&flipped, true).condition,
                Corrupt,
                "{sentence}, with a flipped bit"
            );
        }
    }
}

#[test]
fn truncation_does_not_make_a_packet_corrupt() {
    let layers = "'ether', 'ipv4', 'udp', 'stamp', { payload = { length = 400 } }";
    let frame = frames(&of_layers(layers), 0, 1).remove(0);
    let found = inspect(&frame[..96], false);
    assert_eq!((found.condition, found.stamp.is_some()), (Condition::Unchecked, true));
    assert_eq!(inspect(&frame[..96], true).condition, Condition::Corrupt, "nothing was cut off");
    let padded = [frame.as_slice(), &[0; 9]].concat();
    assert_eq!(inspect(&padded, true).condition, Condition::Intact, "padding is not part of it");
    assert_eq!(inspect(&padded[..padded.len() - 1], false).condition, Condition::Intact);
}

#[test]
fn corrupt_packets_are_counted_and_not_believed() {
    let spec = of_layers("'ether', 'ipv4', 'udp', 'stamp'");
    let mut analyser = Analyser::new(|| 0);
    for (number, mut frame) in frames(&spec, 0, 10).into_iter().enumerate() {
        match number {
            // A wrong number.
            3 => frame[48] ^= 1,
            // A wrong magic.
            5 => frame[42] ^= 1,
            // A wrong stream.
            7 => frame[44] ^= 1,
            _ => {}
        }
        analyser.found(inspect(&frame, true), None);
    }
    let analysis = Analysis::of(&[analyser.share()]);
    let [stream] = analysis.streams.as_slice() else { panic!("{analysis:?}") };
    let worker = &stream.workers[0];
    assert_eq!((worker.counts.received, worker.lost, worker.counts.corrupt), (7, 3, 1));
    assert_eq!(analysis.others.corrupt, 2);
}
