//! Programs for packet sockets: the kernel's verdict on a frame without its tag equals the verdict on the
//! frame on the wire.

use kernel_filter::{Skb, VlanTag, run, takes};
use proptest::prelude::*;
use real_captures::real_captures;
use sluicegate_base::ring::LINKTYPE_ETHERNET;
use sluicegate_filter::cbpf::{Alu, Compare, Op, Operand, Size};
use sluicegate_filter::{Filter, Instruction, Program};

mod kernel_filter;
#[path = "../../../core/tests/real_captures/mod.rs"]
mod real_captures;

fn program(ops: Vec<Op>) -> Program {
    let instructions: Vec<Instruction> = ops.into_iter().map(Op::encode).collect();
    Program::new(instructions).unwrap()
}

/// True if an absolute load at this offset reads an extension.
fn is_extension(k: u32) -> bool {
    (0xffff_f000..0xffff_f040).contains(&k) && k.is_multiple_of(4)
}

/// Removes the tag of a frame, as a driver does.
fn take_tag_out(frame: &[u8]) -> (Vec<u8>, VlanTag) {
    let tag = VlanTag {
        tpid: u16::from_be_bytes([frame[12], frame[13]]),
        tci: u16::from_be_bytes([frame[14], frame[15]]),
    };
    ([&frame[..12], &frame[16..]].concat(), tag)
}

/// Compares the verdicts on the wire and in a packet socket, for the unchanged frame and, if it is long
/// enough for a tag, without its tag. A packet socket keeps accepted packets whole.
fn agree(original: &Program, rewritten: &Program, frame: &[u8], wire_bytes: u32) -> bool {
    let verdict = if original.run(frame, wire_bytes) != 0 { u32::MAX } else { 0 };
    let whole = Skb { bytes: frame, len: wire_bytes, tag: None };
    let mut agree = run(rewritten, &whole) == verdict;
    if frame.len() >= 16 {
        let (bytes, tag) = take_tag_out(frame);
        let skb = Skb { bytes: &bytes, len: wire_bytes - 4, tag: Some(tag) };
        agree &= run(rewritten, &skb) == verdict;
    }
    agree
}

const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "ip6",
    "arp",
    "vlan",
    "vlan 5",
    "vlan and ip",
    "vlan and vlan",
    "vlan 5 and vlan 6 and udp",
    "not vlan",
    "vlan and tcp port 80",
    "vlan and ip6 and udp",
    "(vlan and udp) or (not vlan and tcp)",
    "tcp port 80 or udp port 53",
    "ether proto 0x8100",
    "ether proto 0x88a8",
    "ether host 02:00:00:00:00:01",
    "ether multicast",
    "mpls",
    "vlan and mpls 1000",
    "pppoes and ip",
    "vlan and pppoes and ip",
    "len > 64",
    "greater 100",
    "less 64",
    "len = ether[16:2] + 18",
    "ether[9:4] = 1",
    "ether[10:4] & 0xffff = 0x8100",
    "ether[11:4] & 0xff = 5",
    "ether[12:4] = 0x81000005",
    "ether[13:4] & 0xff0000 = 0",
    "ether[14:4] & 0xfff0000 = 0x50000",
    "ether[15:4] >> 24 = 5",
    "ether[11:2] > 0x100",
    "ether[13:2] != 0",
    "ether[14:2] & 0xfff = 5",
    "ether[15:2] & 0xff = 8",
    "ether[12] = 0x81",
    "ether[13] = 0",
    "ether[14] & 0xe0 != 0",
    "ether[15] = 5",
    "ether[ether[14] & 0xf] = 8",
    "ether[ether[15]:2] = 0x0800",
    "ether[ether[15]:4] > 0x8000000",
    "ether[ether[0] + 3:4] & 0xff00 != 0",
    "ether[ether[16:4]:2] = 0",
    "ip[ip[0] & 0xf] = 6",
    "1 << ether[15] = 0x20",
    "ether[12:2] >> ether[15] != 0",
    "ip[6:2] & 0x1fff != 0",
    "tcp[tcpflags] & tcp-syn != 0",
    "ether[0xfffffff0:4] = 0",
    "ether[0xffeffff0:4] = 0",
    "ether[0x7ffffffe:4] = 0",
    "geneve",
    "ip multicast",
    "portrange 1-1023",
];

fn programs() -> Vec<(&'static str, Program, Program)> {
    EXPRESSIONS
        .iter()
        .map(|expression| {
            let filter = Filter::compile(expression, LINKTYPE_ETHERNET).expect(expression);
            let original = filter.program().clone();
            let rewritten = original.for_packet_socket(true).expect(expression);
            assert!(takes(&rewritten), "the kernel takes '{expression}'");
            (*expression, original, rewritten)
        })
        .collect()
}

fn udp(tags: &[(u16, u16)], payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([198, 18, 0, 1, 198, 18, 0, 2, 0, 53, 0, 80, 0, 8, 0, 0]);
    frame.extend((0..payload).map(|i| i as u8));
    frame
}

#[test]
fn tagged_frames_are_judged_as_on_the_wire() {
    let frames = [
        udp(&[], 20),
        udp(&[(0x8100, 5)], 20),
        udp(&[(0x8100, 0xb005)], 0),
        udp(&[(0x88a8, 5), (0x8100, 6)], 20),
        udp(&[(0x8100, 5), (0x8100, 6)], 80),
        udp(&[(0x9100, 0xffff)], 20),
        udp(&[(0x8100, 0)], 0)[..16].to_vec(),
        udp(&[(0x8100, 9)], 0)[..17].to_vec(),
    ];
    for (expression, original, rewritten) in programs() {
        for frame in &frames {
            let bytes = frame.len() as u32;
            assert!(agree(&original, &rewritten, frame, bytes), "{expression}: {frame:02x?}");
        }
    }
}

#[test]
fn frames_of_captures_are_judged_as_on_the_wire() {
    let captures = real_captures();
    if captures.is_empty() {
        return;
    }
    let programs = programs();
    let (mut frames, mut tagged) = (0, 0);
    for path in captures {
        let Ok(mut capture) = pcap::Capture::from_file(&path) else {
            continue;
        };
        if capture.get_datalink() != pcap::Linktype::ETHERNET {
            continue;
        }
        while let Ok(packet) = capture.next_packet() {
            frames += 1;
            let tpid = packet.data.get(12..14);
            tagged += u32::from(tpid == Some(&[0x81, 0]) || tpid == Some(&[0x88, 0xa8]));
            let wire_bytes = packet.header.len.max(packet.header.caplen);
            for (expression, original, rewritten) in &programs {
                assert!(
                    agree(original, rewritten, packet.data, wire_bytes),
                    "{expression}: {} frame {frames}",
                    path.display()
                );
            }
        }
    }
    eprintln!("{frames} frames, {tagged} of them tagged");
    assert!(tagged > 0, "no capture had a tagged frame");
}

#[test]
fn a_program_that_ignores_the_tag_is_translated_once() {
    for expression in ["", "ether host 02:00:00:00:00:01", "ether multicast"] {
        let filter = Filter::compile(expression, LINKTYPE_ETHERNET).unwrap();
        let rewritten = filter.program().for_packet_socket(true).unwrap();
        assert_eq!(rewritten.ops().len(), filter.program().ops().len(), "'{expression}'");
    }
}

#[test]
fn an_untranslatable_program_is_refused_with_a_reason() {
    let hosts = (0..600).map(|i| format!("host 198.18.{}.{}", i / 250, i % 250));
    let rows = [
        ("ip6 protochain 6".to_string(), "loops"),
        (hosts.collect::<Vec<_>>().join(" or "), "instructions"),
    ];
    for (expression, reason) in rows {
        let filter = Filter::compile(&expression, LINKTYPE_ETHERNET).unwrap();
        let error = filter.for_packet_socket().expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
    }
    let mut ops: Vec<Op> = (0..16).map(Op::Store).collect();
    ops.extend([Op::LoadXLength, Op::Return(1)]);
    let program = program(ops);
    let reason = program.for_packet_socket(true).unwrap_err().to_string();
    assert!(reason.contains("scratch cells"), "{reason}");
    assert!(program.for_packet_socket(false).is_ok(), "no tag, no need of a cell");
}

#[test]
fn a_long_program_jumps_where_it_should() {
    let hosts: Vec<_> = (0..200).map(|i| format!("host 198.18.{}.{}", i / 100, i % 100)).collect();
    let expression = format!("vlan and ({})", hosts.join(" or "));
    let filter = Filter::compile(&expression, LINKTYPE_ETHERNET).unwrap();
    let rewritten = filter.program().for_packet_socket(true).unwrap();
    for last in 0..=255 {
        let mut frame = udp(&[(0x8100, 5)], 20);
        frame[18 + 12..18 + 20].copy_from_slice(&[192, 0, 2, 1, 198, 18, 1, last]);
        assert_eq!(filter.matches(&frame, 66), last < 100, "host {last}");
        assert!(agree(filter.program(), &rewritten, &frame, 66), "host {last}");
    }
}

fn width() -> impl Strategy<Value = Size> {
    prop_oneof![Just(Size::B), Just(Size::H), Just(Size::W)]
}

/// Mostly offsets near the tag, and some at the limits of their type.
fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => 0..24_u32,
        1 => 0x7fff_fff0..0x8000_0010_u32,
        1 => 0xffff_ff80..=u32::MAX,
    ]
    .prop_filter("extensions are the kernel's", |k| !is_extension(*k) || *k > 0xffff_ff00)
}

fn op() -> impl Strategy<Value = Op> {
    let alu = proptest::sample::select(vec![
        Alu::Add,
        Alu::Sub,
        Alu::Mul,
        Alu::Div,
        Alu::Or,
        Alu::And,
        Alu::Lsh,
        Alu::Rsh,
        Alu::Rem,
        Alu::Xor,
    ]);
    let condition =
        proptest::sample::select(vec![Compare::Eq, Compare::Gt, Compare::Ge, Compare::Set]);
    let operand = prop_oneof![(1..40_u32).prop_map(Operand::K), Just(Operand::X)];
    prop_oneof![
        4 => (width(), offset())
            .prop_filter("extensions are not for user space", |(_, k)| !is_extension(*k))
            .prop_map(|(width, k)| Op::Load(width, k)),
        6 => (width(), offset()).prop_map(|(width, k)| Op::LoadIndirect(width, k)),
        1 => Just(Op::LoadLength),
        1 => offset().prop_map(Op::LoadConstant),
        2 => (0..3_u32).prop_map(Op::LoadCell),
        2 => offset().prop_map(Op::LoadXHeader),
        1 => Just(Op::LoadXLength),
        3 => offset().prop_map(Op::LoadXConstant),
        2 => (0..3_u32).prop_map(Op::LoadXCell),
        2 => (0..3_u32).prop_map(Op::Store),
        2 => (0..3_u32).prop_map(Op::StoreX),
        4 => (alu, operand.clone()).prop_map(|(alu, operand)| Op::Calculate(alu, operand)),
        1 => Just(Op::Negate),
        1 => (0..3_i32).prop_map(Op::Jump),
        3 => (condition, operand, 0..3_u8, 0..3_u8)
            .prop_map(|(c, o, t, f)| Op::Branch(c, o, t, f)),
        2 => Just(Op::CopyToX),
        2 => Just(Op::CopyToA),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_program_judges_any_frame_as_on_the_wire(
        ops in proptest::collection::vec(op(), 1..24),
        frame in proptest::collection::vec(prop_oneof![0..24_u8, any::<u8>()], 14..40),
        cut_off in 0..8_u32,
        mask in 0..=255_u32,
    ) {
        // The cells are written first, and the verdict depends on a bit of the last A.
        let mut all: Vec<Op> = (0..3).map(Op::Store).collect();
        all.extend(ops);
        all.extend([Op::Calculate(Alu::And, Operand::K(mask)); 3]);
        all.push(Op::ReturnA);
        let program = program(all);
        let rewritten = program.for_packet_socket(true).unwrap();
        prop_assert!(takes(&rewritten));
        let wire_bytes = frame.len() as u32 + cut_off;
        prop_assert!(agree(&program, &rewritten, &frame, wire_bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_frames_are_judged_as_on_the_wire(
        mut frame in proptest::collection::vec(prop_oneof![0..24_u8, any::<u8>()], 14..120),
        tag in proptest::option::of(proptest::sample::select(vec![[0x81, 0], [0x88, 0xa8]])),
        ip in any::<bool>(),
    ) {
        if let Some(tag) = tag {
            frame[12..14].copy_from_slice(&tag);
        }
        if ip && frame.len() > 18 {
            frame[16..18].copy_from_slice(&[8, 0]);
        }
        for (expression, original, rewritten) in PROGRAMS.iter() {
            let bytes = frame.len() as u32;
            prop_assert!(agree(original, rewritten, &frame, bytes), "{}", expression);
        }
    }
}

static PROGRAMS: std::sync::LazyLock<Vec<(&'static str, Program, Program)>> =
    std::sync::LazyLock::new(programs);
