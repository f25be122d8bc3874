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
