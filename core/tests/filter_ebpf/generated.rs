//! Expressions and programs nobody writes.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestRunner};
use sluicegate::filter::cbpf::{Alu, Compare, Op, Operand, Size};
use sluicegate::filter::{Filter, Program};
use sluicegate::port::LINKTYPE_ETHERNET;

use crate::machines::{Everywhere, Kernel};
use crate::real::{FRAMES_A_CAPTURE, frames_by_link_type};

/// A failure is printed with all it takes to see it again, so no file is kept of it. The random
/// numbers are the cheap ones: without optimization the others take most of the time.
fn cases(cases: u32) -> ProptestConfig {
    let rng_algorithm = RngAlgorithm::XorShift;
    ProptestConfig { failure_persistence: None, rng_algorithm, ..ProptestConfig::with_cases(cases) }
}

/// Judges a program on frames in all machines; what the verifier does not take is counted.
fn judge(
    program: &Program,
    frames: &[(Vec<u8>, usize)],
    kernel: Kernel,
    refused: &Cell<u32>,
) -> Result<u32, TestCaseError> {
    let everywhere = match Everywhere::new(program, kernel) {
        Ok(everywhere) => everywhere,
        Err(complaint) => {
            // The only way to be refused is to be too much work.
            prop_assert!(
                complaint.contains("too large") || complaint.contains("E2BIG"),
                "{}",
                complaint
            );
            refused.set(refused.get() + 1);
            return Ok(0);
        }
    };
    let mut passed = 0;
    for (frame, split) in frames {
        match everywhere.judge(frame, *split % (frame.len() + 1)) {
            Ok(verdict) => passed += u32::from(verdict),
            Err(wrong) => return Err(TestCaseError::fail(format!("{wrong}: {frame:02x?}"))),
        }
    }
    Ok(passed)
}

fn width() -> impl Strategy<Value = Size> {
    select(vec![Size::B, Size::H, Size::W])
}

/// Mostly offsets near the start, some where numbers or the reach of a program end.
fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![
        12 => 0..40_u32,
        1 => 3500..3540_u32,
        1 => 32_760..32_775_u32,
        1 => 65_520..65_550_u32,
        1 => 0x7fff_fff0..0x8000_0010_u32,
        1 => 0xffff_ff80..=u32::MAX,
    ]
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![
        3 => (1..70_u32).prop_map(Operand::K),
        1 => (1..=u32::MAX).prop_map(Operand::K),
        3 => Just(Operand::X),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let alu = select(vec![
        Alu::Add,
        Alu::Sub,
        Alu::Mul,
        Alu::Div,
        Alu::Or,
        Alu::And,
        Alu::And,
        Alu::Lsh,
        Alu::Rsh,
        Alu::Rem,
        Alu::Xor,
    ]);
    let condition = select(vec![Compare::Eq, Compare::Gt, Compare::Ge, Compare::Set]);
    prop_oneof![
        6 => (width(), offset())
            .prop_filter("not the kernel's extensions", |(_, k)| (*k as i32) >= 0 || *k > 0xffff_ff00)
            .prop_map(|(width, k)| Op::Load(width, k)),
        8 => (width(), offset()).prop_map(|(width, k)| Op::LoadIndirect(width, k)),
        1 => Just(Op::LoadLength),
        2 => offset().prop_map(Op::LoadConstant),
        2 => (0..16_u32).prop_map(Op::LoadCell),
        3 => offset().prop_map(Op::LoadXHeader),
        1 => Just(Op::LoadXLength),
        4 => offset().prop_map(Op::LoadXConstant),
        2 => (0..16_u32).prop_map(Op::LoadXCell),
        2 => (0..16_u32).prop_map(Op::Store),
        2 => (0..16_u32).prop_map(Op::StoreX),
        6 => (alu, operand()).prop_map(|(alu, operand)| Op::Calculate(alu, operand)),
        2 => Just(Op::Calculate(Alu::And, Operand::K(0x1f))),
        1 => Just(Op::Negate),
        1 => (0..4_i32).prop_map(Op::Jump),
        4 => (condition, operand(), 0..5_u8, 0..5_u8)
            .prop_map(|(condition, operand, yes, no)| Op::Branch(condition, operand, yes, no)),
        3 => Just(Op::CopyToX),
        2 => Just(Op::CopyToA),
        1 => select(vec![Op::Return(0), Op::Return(1), Op::ReturnA]),
    ]
}

/// A program that ends in a look at some bits of A, or of A and X.
fn random_program() -> impl Strategy<Value = Program> {
    let bits = prop_oneof![Just(1), Just(6), Just(u32::MAX), any::<u32>()];
    (proptest::collection::vec(op(), 1..48), any::<bool>(), bits).prop_map(
        |(mut ops, both, bits)| {
            let end = if both { Op::Calculate(Alu::Xor, Operand::X) } else { Op::Negate };
            // As many as a branch skips at most.
            ops.extend([end, end, end, end]);
            ops.extend([Op::Calculate(Alu::And, Operand::K(bits)), Op::ReturnA]);
            Program::new(ops.into_iter().map(Op::encode).collect::<Vec<_>>()).unwrap()
        },
    )
}

fn random_frame() -> impl Strategy<Value = Vec<u8>> {
    // Half of them small, as headers' lengths and offsets are.
    let byte = || any::<u16>().prop_map(|n| if n < 0x8000 { n % 24 } else { n } as u8);
    prop_oneof![
        20 => proptest::collection::vec(byte(), 1..80),
        1 => (proptest::collection::vec(byte(), 64), 3400..9000_usize)
            .prop_map(|(bytes, len)| bytes.into_iter().cycle().take(len).collect()),
    ]
}

#[test]
fn random_programs_get_the_interpreters_verdict() {
    let kernel = Kernel::probe();
    let refused = Cell::new(0);
    let passed = Cell::new(0);
    let frames = proptest::collection::vec((random_frame(), any::<usize>()), 4);
    let outcome =
        TestRunner::new(cases(4000)).run(&(random_program(), frames), |(program, frames)| {
            passed.set(passed.get() + judge(&program, &frames, kernel, &refused)?);
            Ok(())
        });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{} verdicts were to pass; the verifier refused {}", passed.get(), refused.get());
    assert!(passed.get() > 500, "most programs reject most frames; not all reject all");
}

/// The verifier follows the branch although it is never taken, with bounds of X that contradict each other.
#[test]
fn a_load_behind_a_branch_that_is_never_taken_is_accepted() {
    let ops = [
        Op::Load(Size::B, 0),
        Op::Calculate(Alu::Or, Operand::K(0x9881_bb8b)),
        Op::Calculate(Alu::And, Operand::K(0x25)),
        Op::CopyToX,
        Op::Branch(Compare::Ge, Operand::X, 1, 0),
        Op::LoadIndirect(Size::B, 65_532),
        Op::ReturnA,
    ];
    let program = Program::new(ops.map(Op::encode).to_vec()).unwrap();
    let frames = [vec![0; 64], vec![0xff; 64]].map(|frame| (frame, 20));
    let refused = Cell::new(0);
    let passed = judge(&program, &frames, Kernel::probe(), &refused).unwrap();
    assert_eq!((passed, refused.get()), (2, 0));
}

/// A calculation: numbers, the length, what headers say.
fn calculation() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        (0..70_u32).prop_map(|n| n.to_string()),
        (0..=u32::MAX).prop_map(|n| format!("{n:#x}")),
        Just("len".to_owned()),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        let header =
            select(vec!["ether", "ether", "ip", "ip", "ip6", "tcp", "udp", "udp", "icmp", "arp"]);
        let size = select(vec!["", ":2", ":4"]);
        let sign = select(vec!["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]);
        let near = (0..40_u32).prop_map(|n| n.to_string());
        prop_oneof![
            3 => (header.clone(), near, size.clone()).prop_map(|(h, at, s)| format!("{h}[{at}{s}]")),
            1 => (header, inner.clone(), size).prop_map(|(h, at, s)| format!("{h}[{at} & 0x3f{s}]")),
            2 => (inner.clone(), sign, inner.clone()).prop_map(|(a, s, b)| format!("({a} {s} {b})")),
            1 => inner.prop_map(|a| format!("-({a})")),
        ]
    })
}

fn primitive() -> impl Strategy<Value = String> {
    let words = select(vec![
        "ip",
        "ip6",
        "arp",
        "tcp",
        "udp",
        "icmp",
        "icmp6",
        "sctp",
        "vlan",
        "mpls",
        "pppoes",
        "ip multicast",
        "ether broadcast",
        "tcp[tcpflags] & tcp-syn != 0",
        "geneve",
        "stp",
        "llc",
    ]);
    let which = select(vec!["", "src ", "dst ", "src or dst ", "src and dst "]);
    let number = prop_oneof![Just(9_u16), Just(53), Just(80), any::<u16>()];
    let relation = select(vec!["=", "!=", "<", ">", "<=", ">="]);
    prop_oneof![
        4 => words.prop_map(str::to_owned),
        2 => (which.clone(), number.clone()).prop_map(|(w, n)| format!("{w}port {n}")),
        1 => (number.clone(), 0..300_u16)
            .prop_map(|(n, m)| format!("udp portrange {n}-{}", n.saturating_add(m))),
        2 => (which.clone(), 0..4_u8).prop_map(|(w, n)| format!("{w}host 198.18.0.{n}")),
        1 => (which.clone(), 8..33_u8).prop_map(|(w, n)| {
            format!("{w}net {}/{n}", std::net::Ipv4Addr::from_bits(0xc612_0001 & u32::MAX << (32 - n)))
        }),
        1 => (which, 1..129_u8).prop_map(|(w, n)| {
            let net = 0x2001_0db8 << 96 & u128::MAX << (128 - n);
            format!("{w}net {}/{n}", std::net::Ipv6Addr::from_bits(net))
        }),
        1 => (0..7_u16).prop_map(|n| format!("vlan {n}")),
        1 => (40..120_u32).prop_map(|n| format!("greater {n}")),
        4 => (calculation(), relation, calculation()).prop_map(|(a, r, b)| format!("{a} {r} {b}")),
    ]
}

fn expression() -> impl Strategy<Value = String> {
    primitive().prop_recursive(3, 10, 2, |inner| {
        let word = select(vec!["and", "or"]);
        prop_oneof![
            4 => (inner.clone(), word, inner.clone()).prop_map(|(a, w, b)| format!("({a}) {w} ({b})")),
            1 => inner.prop_map(|a| format!("not ({a})")),
        ]
    })
}

/// A frame with the headers expressions ask for, whole or cut off, with some bytes changed.
fn plausible_frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = select(vec!["", "", "", "8100", "88a88100", "8847"]);
    let protocol = select(vec![17_u8, 17, 6, 1, 58, 132]);
    let changes = proptest::collection::vec((any::<usize>(), any::<u8>()), 0..3);
    let bytes = prop_oneof![8 => 14..140_usize, 1 => 3500..5000_usize];
    (tags, protocol, 0..3_u8, changes, bytes).prop_map(|(tags, protocol, kind, changes, bytes)| {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for tag in tags.as_bytes().chunks(4) {
            let tag = u16::from_str_radix(std::str::from_utf8(tag).unwrap(), 16).unwrap();
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 5]);
        }
        match kind {
            0 => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 60, protocol, 64]);
                for host in [1, 2] {
                    frame.extend((0x2001_0db8_u128 << 96 | host).to_be_bytes());
                }
            }
            1 => {
                frame.extend([0x08, 0x00, 0x46, 0, 0, 80, 0, 0, 0, 0, 64, protocol, 0, 0]);
                frame.extend([198, 18, 0, 1, 198, 18, 0, 2, 1, 1, 1, 1]);
            }
            _ => {
                frame.extend([0x08, 0x00, 0x45, 0, 0, 80, 0, 0, 0, 0, 64, protocol, 0, 0]);
                frame.extend([198, 18, 0, 1, 198, 18, 0, 2]);
            }
        }
        frame.extend([0, 53, 0, 9, 0, 20, 0, 0, 1, 2, 3, 4, 0x50, 2]);
        let mut frame: Vec<u8> = frame.into_iter().chain(0..=255).cycle().take(bytes).collect();
        for (at, byte) in changes {
            let at = at % frame.len().min(60);
            frame[at] = byte;
        }
        frame
    })
}

/// Real frames that each expression meets, besides those made for it; all get their turn.
const REAL_FRAMES: usize = 20;

/// Ethernet frames of real captures, where there are any.
fn real_frames() -> Vec<Vec<u8>> {
    let mut frames = frames_by_link_type(FRAMES_A_CAPTURE);
    frames.remove(&LINKTYPE_ETHERNET).unwrap_or_default()
}

#[test]
fn random_expressions_get_the_interpreters_verdict() {
    let kernel = Kernel::probe();
    let real = real_frames();
    let (refused, compiled, passed) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let frames = proptest::collection::vec((plausible_frame(), any::<usize>()), 5);
    let outcome =
        TestRunner::new(cases(6500)).run(&(expression(), frames), |(expression, mut frames)| {
            // Some make no sense: a division by a constant 0, TCP inside of ARP.
            if let Ok(filter) = Filter::compile(&expression, LINKTYPE_ETHERNET) {
                compiled.set(compiled.get() + 1);
                let first = compiled.get() as usize * REAL_FRAMES;
                let turn = real.iter().cycle().skip(first % real.len().max(1)).take(REAL_FRAMES);
                frames.extend(turn.zip(first..).map(|(frame, split)| (frame.clone(), split * 31)));
                passed.set(passed.get() + judge(filter.program(), &frames, kernel, &refused)?);
            }
            Ok(())
        });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    eprintln!(
        "{} expressions compiled, for {} real frames; {} verdicts were to pass; the verifier \
         refused {}",
        compiled.get(),
        real.len(),
        passed.get(),
        refused.get()
    );
    assert_eq!(refused.get(), 0, "the verifier takes every expression");
    assert!(compiled.get() >= 5000 && passed.get() > 1500);
}
