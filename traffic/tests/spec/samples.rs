//! Specifications with known packets.

use std::fs;

use sluicegate_traffic::spec::{Defaults, Spec};

use crate::headers::sum;
use crate::{frame, frames, plan};

/// Formats bytes in hexadecimal, without blanks.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn headers_are_as_the_standards_have_them() {
    let rows = [
        ("ether has the sender's addresses", "'ether'", 0, "02000000000202000000000188b5"),
        ("its type follows from what is next", "'ether', 'ipv6'", 12, "86dd6000"),
        ("and can be said", "{ ether = { type = 'ptp' } }", 12, "88f7"),
        ("an ARP request goes to all", "'ether', 'arp'", 0, "ffffffffffff0200000000010806"),
        (
            "ARP asks",
            "'ether', 'arp'",
            14,
            "0001080006040001020000000001c6120001000000000000c6120002",
        ),
        (
            "a tag",
            "'ether', { vlan = { id = 100, pcp = 3, dei = 1 } }, 'ipv4'",
            12,
            "81007064080045",
        ),
        ("of two tags the outer is 802.1ad", "'ether', 'vlan', 'vlan'", 12, "88a8000181000001"),
        ("unless it is said", "'ether', { vlan = { tpid = 0x9100 } }, 'vlan'", 12, "910000018100"),
        (
            "the last label is the bottom",
            "'ether', 'mpls', 'mpls', 'ipv4'",
            12,
            "884700010040000101404500",
        ),
        (
            "IPv4, with DSCP and flags",
            "'ether', { ipv4 = { dscp = 'ef', ecn = 'ce', flags = 'df', id = 7 } }",
            14,
            "45bb00140007400040fd",
        ),
        (
            "options make the header longer",
            "'ether', { ipv4 = { options = '01' } }",
            14,
            "46000018",
        ),
        (
            "IPv6",
            "'ether', { ipv6 = { traffic-class = 0x12, flow-label = 0x34567 } }, 'udp'",
            14,
            "61234567000811402001",
        ),
        (
            "an extension header is filled up",
            "'ether', 'ipv6', { destination = { options = 'c20400000001' } }, 'icmpv6'",
            14 + 40,
            "3a00c204000000018000",
        ),
        (
            "by one byte",
            "'ether', 'ipv6', { hop-by-hop = { options = 'c203000000' } }",
            54,
            "fd00c20300000000",
        ),
        ("by several", "'ether', 'ipv6', 'hop-by-hop', 'udp'", 54, "1100010400000000"),
        (
            "a fragment of IPv6",
            "'ether', 'ipv6', { fragment = { frag = 2, mf = 1, id = 5 } }",
            54,
            "fd00001100000005",
        ),
        (
            "segments to go through",
            "'ether', 'ipv6', { routing = { type = 4, data = '00000000' } }, 'tcp'",
            54,
            "0600040000000000",
        ),
        (
            "TCP opens a connection",
            "'ether', 'ipv4', 'tcp'",
            34,
            "00090009000000000000000050 02ffff",
        ),
        (
            "flags by letters, and options",
            "'ether', 'ipv4', { tcp = { flags = 'SA', options = ['mss=1460', 'sack-ok', 'timestamps=1 2', 'nop', 'wscale=7'] } }",
            46,
            "a012ffff",
        ),
        (
            "options as Linux has them",
            "'ether', 'ipv4', { tcp = { options = 'mss=1460;sack-ok;timestamps=1 2;nop;wscale=7' } }",
            54,
            "020405b40402080a000000010000000201030307",
        ),
        (
            "ICMP asks for an echo",
            "'ether', 'ipv4', { icmp = { id = 1, seq = 2 } }",
            34,
            "0800f7fc00010002",
        ),
        (
            "GRE with all it may have",
            "'ether', 'ipv4', { gre = { key = 1, seq = 2, checksum = 0x1234 } }, 'ether'",
            34,
            "b000655812340000000000010000000202",
        ),
        (
            "VXLAN has its port and no checksum",
            "'ether', 'ipv4', 'udp', { vxlan = { vni = 0x123456 } }",
            34,
            "000912b5001000000800000012345600",
        ),
        (
            "what a length is can be said",
            "'ether', 'ipv4', { udp = { length = 5 } }",
            34,
            "000900090005",
        ),
        (
            "a checksum can be left out",
            "'ether', 'ipv4', { udp = { checksum = 0 } }",
            34,
            "0009000900080000",
        ),
        (
            "a fragment has no checksum that could be right",
            "'ether', { ipv4 = { flags = 'mf' } }, 'udp'",
            34,
            "0009000900080000",
        ),
        ("a stamp", "'ether', 'ipv4', 'udp', 'stamp'", 42, "536c0000000000000123456789abcdef"),
        (
            "raw bytes come first if they must",
            "{ raw = { hex = '01 02:03' } }, 'ipv4'",
            0,
            "0102034500001400",
        ),
    ];
    for (name, layers, at, expected) in rows {
        let frame = frame(layers);
        let expected = expected.replace(' ', "");
        assert_eq!(hex(&frame[at..][..expected.len() / 2]), expected, "{name}: {layers}");
    }
}

#[test]
fn a_bad_checksum_is_wrong_and_there() {
    let rows = [
        ("the one of IPv4", "{ ipv4 = { checksum = 'bad' } }, 'udp'", 24, 14..34),
        ("the one of ICMP", "'ipv4', { icmp = { checksum = 'bad' } }", 36, 34..42),
        ("that of what changes", "{ ipv4 = { checksum = 'bad', id = '1..99' } }", 24, 14..34),
    ];
    for (name, layers, at, covered) in rows {
        let plan = plan(&format!("[[stream]]\nlayers = ['ether', {layers}]\n"));
        for frame in frames(&plan, 0, 1, 20) {
            assert_ne!(sum(&frame[covered.clone()]), 0xffff, "{name}");
            assert_ne!(frame[at..][..2], [0, 0], "{name}");
        }
    }
}

#[test]
fn a_frame_is_as_long_as_its_layers_and_its_size_say() {
    let udp = "layers = ['ether', 'ipv4', 'udp'";
    // The lengths of the frame, of IP, and of UDP.
    let rows = [
        ("a short frame is filled up behind IP", format!("{udp}]"), (60, 28, 8)),
        ("or not", format!("pad = false\n{udp}]"), (42, 28, 8)),
        ("a size makes the payload longer", format!("size = 60\n{udp}]"), (60, 46, 26)),
        ("a runt is sent if it is asked for", format!("size = 45\n{udp}]"), (45, 31, 11)),
        (
            "payload is cut",
            format!("size = 43\n{udp}, {{ payload = {{ text = 'ab' }} }}]"),
            (43, 29, 9),
        ),
        (
            "a payload has its own length",
            format!("{udp}, {{ payload = {{ hex = '0102' }} }}]"),
            (60, 30, 10),
        ),
        (
            "or one that is said",
            format!("{udp}, {{ payload = {{ random = true, length = 99 }} }}]"),
            (141, 127, 107),
        ),
        (
            "a random one fills a frame",
            format!("{udp}, {{ payload = {{ random = true }} }}]"),
            (60, 46, 26),
        ),
        ("jumbo frames", format!("size = 9014\n{udp}]"), (9014, 9000, 8980)),
        ("the longest", format!("size = 65535\n{udp}]"), (65_535, 65_521, 65_501)),
    ];
    for (name, text, expected) in rows {
        let frame = frames(&plan(&format!("[[stream]]\n{text}\n")), 0, 1, 1).remove(0);
        let number = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        assert_eq!((frame.len(), number(16), number(38)), expected, "{name}");
    }
}

#[test]
fn payloads_match_their_specification() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("data"), b"from a file").unwrap();
    let rows = [
        ("hexadecimal, and zeros behind it", "hex = '0x0102'", "010200000000"),
        ("text", "text = 'häh'", "68c3a4680000"),
        ("a pattern, over and over", "pattern = '01 02 03 04'", "010203040102"),
        ("nothing", "", "000000000000"),
        ("a file, from where the specification is", "file = 'data'", "66726f6d2061"),
    ];
    for (name, payload, expected) in rows {
        let path = folder.path().join("spec.toml");
        let layers = format!("layers = ['ether', {{ payload = {{ {payload} }} }}]");
        fs::write(&path, format!("[[stream]]\nsize = 20\n{layers}\n")).unwrap();
        let plan = Spec::read(&path).unwrap().plan(&Defaults::default()).unwrap();
        assert_eq!(hex(&frames(&plan, 0, 1, 1)[0][14..]), expected, "{name}");
    }
}

#[test]
fn a_random_payload_follows_from_the_seed_and_the_stream() {
    let stream = "[[stream]]\nsize = 1000\nlayers = ['ether', { payload = { random = true } }]\n";
    let of = |text: &str, worker| frames(&plan(text), worker, 2, 2);
    assert_eq!(plan(&format!("seed = {}\n{stream}", u64::MAX)).seed, u64::MAX);
    let one = of(stream, 0);
    assert_eq!(one[0], one[1], "it stays the same");
    assert_eq!(one, of(stream, 1), "another worker");
    assert_ne!(one, of(&format!("seed = 1\n{stream}"), 0), "another seed");
    let two = of(&format!("{stream}{stream}"), 0);
    assert_ne!(two[0], two[1], "another stream");
    let different: std::collections::HashSet<_> = one[0][14..].iter().collect();
    assert!(different.len() > 200, "nearly all byte values occur");
}

#[test]
fn frames_have_the_sizes_of_the_specification() {
    let of = |size: &str, count| {
        let text = format!("[[stream]]\nsize = {size}\nlayers = ['ether']\n");
        let frames = frames(&plan(&text), 0, 1, count);
        frames.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!(of("[60, 61]", 3), [60, 61, 60]);
    assert_eq!(of("'60..64/2'", 4), [60, 62, 64, 60]);
    let mut mix = of("'imix'", 12);
    mix.sort_unstable();
    assert_eq!(mix, [60, 60, 60, 60, 60, 60, 60, 590, 590, 590, 590, 1514]);
    let random = of("'60-63'", 400);
    for size in 60..64 {
        let count = random.iter().filter(|bytes| **bytes == size).count();
        assert!((60..140).contains(&count), "{count} of {size} bytes");
    }
}

#[test]
fn streams_have_their_turns_by_weight() {
    let stream = |name, weight| {
        format!("[[stream]]\nname = '{name}'\nweight = {weight}\nlayers = ['ether']\n")
    };
    let plan = plan(&format!("{}{}", stream("many", 6), stream("few", 2)));
    assert_eq!(plan.turns, [0, 0, 1, 0]);
    assert_eq!(plan.streams[1].name, "few");
}

#[test]
fn streams_have_their_turns_by_rate() {
    let spec = |rates: [&str; 2]| {
        let stream = |rate| format!("[[stream]]\nrate = {rate}\nlayers = ['ether']\n");
        Spec::parse(&rates.map(stream).concat()).unwrap()
    };
    let rows =
        [(["'30kpps'", "10000"], 40e3), (["'1.5Mpps'", "'0.5 Mpps'"], 2e6), (["3", "'1pps'"], 4.0)];
    for (rates, all) in rows {
        let spec = spec(rates);
        assert_eq!(spec.rate(), Some(all), "{rates:?}");
        assert_eq!(spec.plan(&Defaults::default()).unwrap().turns, [0, 0, 1, 0], "{rates:?}");
    }
    assert_eq!(Spec::parse("[[stream]]\nlayers = ['ether']\n").unwrap().rate(), None);
}

#[test]
fn wide_addresses_change_in_all_their_bytes() {
    let rows = [
        ("a list", "2001:db8::1,2001:db9:1::2", vec!["2001:db8::1", "2001:db9:1::2"]),
        ("a counter", "2001:db8::ffff..2001:db8::1:0", vec!["2001:db8::ffff", "2001:db8::1:0"]),
        ("a counter down", "2001:db8::8..2001:db8::/8", vec!["2001:db8::8", "2001:db8::"]),
    ];
    for (name, text, expected) in rows {
        let layers = format!("['ether', {{ ipv6 = {{ src = '{text}' }} }}]");
        let frames = frames(&plan(&format!("[[stream]]\nlayers = {layers}\n")), 0, 1, 2);
        let addresses: Vec<_> = frames
            .iter()
            .map(|frame| <[u8; 16]>::try_from(&frame[22..38]).unwrap())
            .map(|bytes| std::net::Ipv6Addr::from(bytes).to_string())
            .collect();
        assert_eq!(addresses, expected, "{name}");
    }
}

#[test]
fn each_random_bit_of_a_prefix_is_used() {
    let layers = "['ether', { ipv6 = { src = '2001:db8::/33', dst = '::/0' } }]";
    let frames = frames(&plan(&format!("[[stream]]\nlayers = {layers}\n")), 0, 1, 64);
    let (mut ones, mut zeros) = ([0_u8; 32], [0_u8; 32]);
    for frame in frames {
        for (place, byte) in frame[22..54].iter().enumerate() {
            ones[place] |= byte;
            zeros[place] |= !byte;
        }
    }
    assert_eq!(hex(&ones[..4]), "20010db8");
    assert_eq!(ones[4..], [[0x7f; 1].as_slice(), &[0xff; 27]].concat());
    assert_eq!(zeros[4..], [0xff; 28]);
}

#[test]
fn parts_of_a_cell_vary_each_for_itself() {
    let rows = [
        (
            "a tag: two counters around a bit that stays",
            "{ vlan = { pcp = '0..7', dei = 1, id = '4095..4093' } }",
            14,
            ["1fff", "3ffe", "5ffd", "7fff"],
        ),
        (
            "flags and offset of a fragment",
            "{ ipv4 = { flags = 'mf,0', frag = '8191..8190' } }",
            20,
            ["3fff", "1ffe", "3fff", "1ffe"],
        ),
        (
            "half of the first word of IPv6",
            "{ ipv6 = { ecn = '0..3', dscp = 'ef', flow-label = '0xfffff,1' } }",
            14,
            ["6b8fffff", "6b900001", "6bafffff", "6bb00001"],
        ),
        (
            "an option of TCP at an odd offset",
            "'ipv4', { tcp = { options = ['nop', 'mss=536,1460'] } }",
            54,
            ["0102040218", "01020405b4", "0102040218", "01020405b4"],
        ),
        (
            "what a tag is",
            "{ vlan = { tpid = 'dot1q,dot1ad' } }",
            12,
            ["8100", "88a8", "8100", "88a8"],
        ),
    ];
    for (name, layers, at, expected) in rows {
        let text = format!("[[stream]]\nlayers = ['ether', {layers}]\n");
        let frames = frames(&plan(&text), 0, 1, 4);
        let cells: Vec<_> =
            frames.iter().map(|frame| hex(&frame[at..][..expected[0].len() / 2])).collect();
        assert_eq!(cells, expected, "{name}");
    }
}

#[test]
fn an_icmp_error_quotes_the_packet() {
    let frame =
        frame("'ether', 'ipv4', { icmp = { type = 'unreachable', code = 3 } }, 'ipv4', 'udp'");
    assert_eq!(frame.len(), 70);
    assert_eq!(sum(&frame[34..]), 0xffff, "the outer checksum");
    assert_eq!(sum(&frame[42..62]), 0xffff, "the inner one");
    assert_eq!(hex(&frame[62..68]), "000900090008");
}
