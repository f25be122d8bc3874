//! Expressions people write, on frames of real captures and on long ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sluicegate::filter::{Filter, Frame, Program, TranslateError, translate};
use sluicegate::port::LINKTYPE_ETHERNET;

use crate::corpus::{EXPRESSIONS, link_type};
use crate::machines::{Everywhere, Kernel, xdp_program};
use crate::real_captures::real_captures;

/// Set, it makes the tests look at every frame of every capture.
const ALL_FRAMES: &str = "SLUICE_TEST_ALL_FRAMES";
/// Frames of each capture that they look at otherwise.
pub const FRAMES_A_CAPTURE: usize = 2;

/// Frames by the link type of their capture: spread over each, the first and the last among them.
pub fn frames_by_link_type(frames_a_capture: usize) -> BTreeMap<u16, Vec<Vec<u8>>> {
    let mut frames: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
    for path in real_captures() {
        let Ok(mut capture) = pcap::Capture::from_file(&path) else {
            continue;
        };
        let mut all = Vec::new();
        while let Ok(packet) = capture.next_packet() {
            // XDP programs reach no further; some captures hold what offloads put together.
            if packet.data.len() <= 0xffff {
                all.push(packet.data.to_vec());
            }
        }
        let step = all.len().div_ceil(frames_a_capture).max(1);
        let last = all.pop();
        let spread = all.into_iter().step_by(step).chain(last);
        frames.entry(link_type(&path)).or_default().extend(spread);
    }
    frames
}

/// The program of an expression, if it can be translated; none for what both refuse.
fn program(expression: &str, link_type: u16) -> Option<Program> {
    let program = Filter::compile(expression, link_type).ok()?.program().clone();
    let mut asm = sluicegate::filter::ebpf::Assembler::new();
    let [pass, reject] = asm.labels();
    match translate(&program, &mut asm, &Frame::new(false), pass, reject) {
        Ok(()) => Some(program),
        Err(TranslateError::Loops) if expression.contains("protochain") => None,
        Err(TranslateError::Asks(_)) if link_type != LINKTYPE_ETHERNET => None,
        Err(error) => panic!("'{expression}' on link type {link_type}: {error}"),
    }
}

#[test]
fn real_frames_get_the_interpreters_verdict() {
    let kernel = Kernel::probe();
    let a_capture = if std::env::var_os(ALL_FRAMES).is_some() { 1 << 20 } else { FRAMES_A_CAPTURE };
    let frames = frames_by_link_type(a_capture);
    if frames.is_empty() {
        return;
    }
    let (mut programs, mut passed, mut seen) = (0, 0, 0_usize);
    for (link_type, frames) in &frames {
        for expression in EXPRESSIONS {
            let Some(program) = program(expression, *link_type) else {
                continue;
            };
            let shown = format!("'{expression}' on link type {link_type}");
            let everywhere = Everywhere::new(&program, kernel)
                .unwrap_or_else(|error| panic!("{shown}: the verifier refuses it: {error}"));
            programs += 1;
            for frame in frames {
                seen += 1;
                let split = seen * 31 % (frame.len() + 1);
                match everywhere.judge(frame, split) {
                    Ok(verdict) => passed += usize::from(verdict),
                    Err(wrong) => panic!("{shown}: {wrong}: {frame:02x?}"),
                }
            }
        }
    }
    eprintln!("{programs} programs agree on all frames; {passed} of {seen} verdicts are to pass");
    assert!(passed > 0 && passed < seen);
}

/// A UDP packet behind tags, longer than a page.
fn long_frame(tags: &[[u8; 4]], payload: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.extend(tags.as_flattened());
    let total = (28 + payload).to_be_bytes();
    frame.extend([0x08, 0x00, 0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([198, 18, 0, 1, 198, 18, 0, 2, 0, 53, 0, 80]);
    frame.extend((8 + payload).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((0..payload).map(|i| (i / 7) as u8));
    frame
}

#[test]
fn long_frames_get_the_interpreters_verdict() {
    let far = [
        "ether[3000:2] > 100",
        "ether[3518:4] & 0xff0000 != 0",
        "ether[3519:2] & 0xff != 0",
        "ether[3520] != 0",
        "ether[5000:4] > 1000",
        "ether[8000] = 0x88 or ether[8001] = 0x88",
        "ether[40000:2] >= 0",
        "ether[65534:2] >= 0",
        "ether[65535] >= 0 or arp",
        "ether[70000:4] = 0 or udp",
        "udp[ip[2:2] - 21] >= 0",
        "ether[len - 4:4] > 0 and len > 4000",
        "ether[ip[2:2] - 1:4] & 0xff != 0",
        "ether[ether[4000] * 40:2] > ether[4001]",
        "ether[0xffffffff] = 0 or ether[ip[12:4]] = 0 or udp",
    ];
    let payloads = [0, 18, 1400, 3476, 3477, 3478, 4000, 8000, 8972, 20_000, 40_000, 60_000];
    let frames: Vec<_> = [&[][..], &[[0x81, 0, 0, 5]], &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]]]
        .iter()
        .flat_map(|tags| payloads.map(|payload| long_frame(tags, payload)))
        .collect();
    let kernel = Kernel::probe();
    for (at, expression) in EXPRESSIONS.iter().chain(&far).enumerate() {
        let Some(program) = program(expression, LINKTYPE_ETHERNET) else {
            continue;
        };
        let everywhere = Everywhere::new(&program, kernel).expect(expression);
        for frame in &frames {
            let split = (at * 1009 + 14) % frame.len();
            if let Err(wrong) = everywhere.judge(frame, split) {
                panic!("'{expression}' on {} bytes: {wrong}", frame.len());
            }
        }
    }
}

#[test]
fn long_expressions_pass_the_verifier() {
    let hosts = |n: usize| {
        let hosts = (0..n).map(|i| format!("host 198.18.{}.{}", i / 250, i % 250));
        hosts.collect::<Vec<_>>().join(" or ")
    };
    let ports = |n: usize| {
        let ports = (0..n).map(|i| format!("portrange {}-{}", 7 * i, 7 * i + 3));
        ports.collect::<Vec<_>>().join(" or ")
    };
    let nets = |n: usize| {
        let nets = (0..n).map(|i| format!("ip6 net 2001:db8:{i:x}::/48"));
        nets.collect::<Vec<_>>().join(" or ")
    };
    let rows = [
        ("50 hosts", hosts(50)),
        ("300 hosts", hosts(300)),
        ("60 port ranges", ports(60)),
        ("250 IPv6 networks", nets(250)),
        ("hosts behind tags", format!("vlan and ({}) or ({})", hosts(100), hosts(100))),
        ("hosts and ports", format!("({}) and ({})", hosts(100), ports(40))),
    ];
    let kernel = Kernel::probe();
    for (sentence, expression) in rows {
        let program = program(&expression, LINKTYPE_ETHERNET).expect(sentence);
        let insns = [false, true].map(|fragments| xdp_program(&program, fragments).len());
        let start = Instant::now();
        let everywhere = Everywhere::new(&program, kernel).expect(sentence);
        let took: Duration = start.elapsed();
        eprintln!("{sentence}: {} instructions as {insns:?}, {took:?}", program.ops().len());
        for payload in [0, 100, 5000] {
            everywhere.judge(&long_frame(&[], payload), 20).expect(sentence);
        }
    }
}
