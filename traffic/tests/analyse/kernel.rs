//! The program in the kernel has the same counts as the analyser.

use proptest::prelude::*;
use sluicegate::error::Error;
use sluicegate::filter::Frame;
use sluicegate::filter::ebpf::Reg::R0;
use sluicegate::filter::ebpf::{Assembler, xdp_action};
use sluicegate::link::{pin_thread, possible_cpus};
use sluicegate::port::Inspect;
use sluicegate::xdp::ProgTestRun;
use sluicegate_traffic::analyse::{Analyser, Analysis, InKernel, Others, WorkerAnalysis, inspect};
use sluicegate_traffic::plan::FrameBuilder;
use sluicegate_traffic::spec::{Defaults, Spec};

use crate::model::{fate, way};

/// Loads the analyser in a program that drops everything; `None` without the privilege.
fn trial(fragments: bool) -> Option<(InKernel, ProgTestRun)> {
    let kernel = match InKernel::new() {
        Err(Error::Privilege { operation, capability, .. }) if !is_root() => {
            println!("skipped: {operation} needs {capability}; get it by sudo");
            return None;
        }
        other => other.unwrap(),
    };
    // Each CPU has its own counts, so the thread stays on one.
    let cpu = (0..possible_cpus().unwrap()).find(|&cpu| pin_thread(cpu).is_ok());
    assert!(cpu.is_some(), "a CPU to run on");
    let (mut asm, frame) = (Assembler::new(), Frame::new(fragments));
    frame.enter(&mut asm);
    kernel.write(&mut asm, &frame);
    asm.mov(R0, xdp_action::DROP);
    asm.exit();
    let trial =
        ProgTestRun::load(c"analyse", &asm.finish().unwrap()).unwrap_or_else(|e| panic!("{e}"));
    Some((kernel, trial))
}

/// Reports whether the test runs as root.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0)
}

/// The first packets of a specification's worker.
fn frames(spec: &str, worker: u32, count: usize) -> Vec<Vec<u8>> {
    let plan = Spec::parse(spec).unwrap().plan(&Defaults::default()).unwrap();
    // All stamps carry an old time, the same for every packet.
    let mut frames = FrameBuilder::new(&plan, worker, worker + 1, || 1000);
    let mut room = vec![0; 65_536];
    let next = |_| {
        let bytes = frames.next_into(&mut room).unwrap();
        room[..bytes].to_vec()
    };
    (0..count).map(next).collect()
}

/// Counts the same packets with both analysers; `None` without the privilege.
fn both(packets: &[Vec<u8>]) -> Option<[Analysis; 2]> {
    let (kernel, trial) = trial(false)?;
    let mut analyser = Analyser::new(|| 0);
    for packet in packets {
        assert_eq!(trial.run(packet, 1).unwrap().0, xdp_action::DROP);
        analyser.found(inspect(packet, true), None);
    }
    Some([Analysis::of(&kernel.shares()), Analysis::of(&[analyser.share()])])
}

/// Returns all counts except delays and the number of CPUs.
fn counts(analysis: &Analysis) -> (Vec<(u8, Vec<WorkerAnalysis>)>, Others) {
    let streams = analysis.streams.iter().map(|stream| {
        let workers =
            stream.workers.iter().map(|worker| WorkerAnalysis { ways: 1, ..worker.clone() });
        (stream.stream, workers.collect())
    });
    (streams.collect(), analysis.others)
}

fn same(sentence: &str, packets: &[Vec<u8>]) -> Option<Analysis> {
    let [kernel, other] = both(packets)?;
    assert_eq!(counts(&kernel), counts(&other), "{sentence}");
    Some(kernel)
}

#[test]
fn intact_packets_are_counted() {
    for (sentence, size, layers) in [
        ("short", "'60'", "'ether', 'ipv4', 'udp', 'stamp'"),
        (
            "of every length",
            "'58-1514'",
            "'ether', 'ipv4', 'udp', 'stamp', { payload = { random = true } }",
        ),
        (
            "tagged",
            "'78-300'",
            "'ether', 'vlan', 'ipv4', 'udp', 'stamp', { payload = { random = true } }",
        ),
        (
            "twice",
            "'98-200'",
            "'ether', 'vlan', 'vlan', 'ipv4', 'tcp', 'stamp', { payload = { random = true } }",
        ),
        ("IPv6", "'78-1514'", "'ether', 'ipv6', 'udp', 'stamp', { payload = { random = true } }"),
        (
            "IPv6, TCP, options",
            "'110-200'",
            "'ether', 'ipv6', { tcp = { options = ['mss=1460', 'nop'] } }, 'stamp', { payload = { random = true } }",
        ),
        (
            "IP options",
            "'70-200'",
            "'ether', { ipv4 = { options = '0101010101010101' } }, 'udp', 'stamp', { payload = { random = true } }",
        ),
        (
            "all the options there can be",
            "'140-200'",
            "'ether', { ipv4 = { options = '01010101010101010101010101010101010101010101010101010101010101010101010101010101' } }, 'udp', 'stamp', { payload = { random = true } }",
        ),
        ("no checksum", "'60'", "'ether', 'ipv4', { udp = { checksum = 0 } }, 'stamp'"),
        ("no checksum over IPv6", "'78'", "'ether', 'ipv6', { udp = { checksum = 0 } }, 'stamp'"),
        (
            "no checksum in a tunnel over IPv6",
            "'78'",
            "'ether', 'ipv6', { udp = { dport = 6081, checksum = 0 } }, 'stamp'",
        ),
        ("no stamp", "'60'", "'ether', 'ipv4', 'udp'"),
        ("no transport", "'60'", "'ether', { ipv4 = { protocol = 253 } }"),
        ("no IP", "'60'", "'ether', 'arp'"),
        (
            "a wrong UDP checksum",
            "'60-90'",
            "'ether', 'ipv4', { udp = { checksum = 'bad' } }, 'stamp'",
        ),
        ("a wrong IP checksum", "'60'", "'ether', { ipv4 = { checksum = 'bad' } }, 'udp', 'stamp'"),
        ("a first fragment", "'80'", "'ether', { ipv4 = { flags = 'mf' } }, 'tcp', 'stamp'"),
        (
            "a first fragment without a checksum",
            "'80'",
            "'ether', { ipv4 = { flags = 'mf' } }, 'udp', 'stamp'",
        ),
        ("too great a length", "'80'", "'ether', { ipv4 = { length = 99 } }, 'udp', 'stamp'"),
        ("too great a UDP length", "'80'", "'ether', 'ipv4', { udp = { length = 99 } }, 'stamp'"),
    ] {
        let spec = format!("[[stream]]\nsize = {size}\nlayers = [{layers}]\n");
        if same(sentence, &frames(&spec, 3, 600)).is_none() {
            return;
        }
    }
}

#[test]
fn several_streams_and_workers_are_distinguished() {
    let stream = "[[stream]]\nlayers = ['ether', 'ipv4', 'udp', 'stamp']\n";
    for (streams, workers) in [(1, 3), (3, 2), (16, 2), (17, 1), (1, 17)] {
        let spec = stream.repeat(streams);
        let packets: Vec<_> = (0..workers).flat_map(|worker| frames(&spec, worker, 200)).collect();
        let Some([kernel, other]) = both(&packets) else { return };
        let known = |analysis: &Analysis| -> Vec<_> {
            let (streams, _) = counts(analysis);
            let workers = streams.into_iter().flat_map(|(stream, workers)| {
                workers.into_iter().map(move |worker| (stream, worker))
            });
            workers.filter(|(stream, worker)| *stream < 16 && worker.worker < 16).collect()
        };
        assert_eq!(known(&kernel), known(&other), "{streams}, {workers}");
        let received = |analysis: &Analysis| -> u64 {
            analysis.streams.iter().map(|it| it.sum(|it| it.counts.received)).sum()
        };
        assert_eq!(kernel.others.untracked + received(&kernel), received(&other));
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    for layers in [
        "'ether', 'ipv4', 'udp', 'stamp', { payload = { text = 'of no even length' } }",
        "'ether', 'vlan', 'ipv6', 'tcp', 'stamp', { payload = { text = 'of some length' } }",
    ] {
        let frames = frames(&format!("[[stream]]\nlayers = [{layers}]\n"), 0, 2);
        let mut packets = vec![frames[0].clone()];
        for bit in 0..frames[1].len() * 8 {
            let mut frame = frames[1].clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            packets.push(frame);
        }
        let Some([kernel, other]) = both(&packets) else { return };
        let corrupt = |analysis: &Analysis| {
            let streams = analysis.streams.iter();
            let of_streams: u64 = streams.map(|it| it.sum(|it| it.counts.corrupt)).sum();
            (of_streams + analysis.others.corrupt, analysis.others.unstamped)
        };
        assert_eq!(corrupt(&kernel), corrupt(&other), "{layers}");
        assert!(corrupt(&kernel).0 > packets.len() as u64 * 3 / 4, "{layers}: {kernel:?}");
    }
}

/// Makes a packet with this number and time, of a stream without checksums.
fn numbered(template: &[u8], number: u32, time_ns: u64) -> Vec<u8> {
    let mut packet = template.to_vec();
    packet[46..50].copy_from_slice(&number.to_be_bytes());
    packet[50..58].copy_from_slice(&time_ns.to_be_bytes());
    packet
}

fn template() -> Vec<u8> {
    let layers = "['ether', 'ipv4', { udp = { checksum = 0 } }, 'stamp']";
    frames(&format!("[[stream]]\nlayers = {layers}\n"), 0, 1).remove(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_program_counts_as_the_analyser_does(
        first in prop_oneof![Just(0_u32), Just(u32::MAX - 200), any::<u32>()],
        runs in prop::collection::vec(prop::collection::vec(fate(), 1..600), 1..4),
        gap in prop_oneof![Just(0_u32), 1_u32..3000],
    ) {
        let template = template();
        let mut packets = Vec::new();
        // Each run is a restarted sender with the same first number. If all repeated numbers are lost, the
        // restart is undetectable.
        for (run, fates) in (1_u64..).zip(&runs) {
            let later = |number: u32| run << 40 | u64::from(number.wrapping_sub(first)) << 4;
            let split = fates.len() as u32 / 2;
            packets.extend(way(first, fates).into_iter().map(|number| {
                let since = number.wrapping_sub(first);
                let number = if since > split { number.wrapping_add(gap) } else { number };
                numbered(&template, number, later(number))
            }));
        }
        same("at random", &packets);
    }
}

#[test]
fn a_restart_is_recognized_as_by_the_analyser() {
    let template = template();
    let far = 3_000_000_000;
    let mut rows: Vec<(&str, Vec<(u32, u64)>)> = vec![
        ("after a single packet", vec![(0, 10), (0, 20), (0, 20), (1, 30)]),
        ("far beyond the middle", vec![(0, 10), (far, 20), (0, 30), (1, 40)]),
        ("the numbers do", vec![(u32::MAX - 1, 10), (u32::MAX, 20), (1, 40), (0, 30)]),
        ("some are lost when the numbers do", vec![(u32::MAX, 10), (65_534, 20)]),
        ("too many are lost", vec![(u32::MAX, 10), (65_535, 20)]),
        ("the lowest comes later", vec![(5, 50), (3, 30), (2, 60), (4, 80), (3, 70)]),
    ];
    // More runs than are stored, with growing losses.
    let often = (0..30_u32).flat_map(|run| [(0, run), (run * 2 + 1, run)]);
    let often = often.enumerate().map(|(at, (number, _))| (number, at as u64));
    rows.push(("often", often.collect()));
    for (sentence, packets) in rows {
        let packets = packets.into_iter().map(|(number, time)| numbered(&template, number, time));
        same(sentence, &packets.collect::<Vec<_>>());
    }
}

#[test]
fn losses_are_exact_across_cpus_and_restarts() {
    let Some((kernel, trial)) = trial(false) else { return };
    let may_run_on = |cpu: &usize| pin_thread(*cpu).is_ok();
    let cpus: Vec<_> = (0..possible_cpus().unwrap()).filter(may_run_on).take(2).collect();
    let &[one, other] = cpus.as_slice() else {
        println!("skipped: there is one CPU; run it where there are two");
        return;
    };
    let template = template();
    // Each run loses one packet, and its last packets arrive at a single CPU.
    for (run, number) in (0..6_u64).flat_map(|run| (0..100_u32).map(move |number| (run, number))) {
        if number == 50 {
            continue;
        }
        let cpu = if number % 3 == 0 || number > 90 { one } else { other };
        pin_thread(cpu).unwrap();
        let time = run * 1000 + u64::from(number);
        trial.run(&numbered(&template, number, time), 1).unwrap();
    }
    let worker = &Analysis::of(&kernel.shares()).streams[0].workers[0];
    assert_eq!((worker.lost, worker.restarts, worker.ways), (6, 5, 2), "{worker:?}");
    assert_eq!((worker.counts.received, worker.counts.duplicates), (6 * 99, 0), "{worker:?}");
}

#[test]
fn the_window_moves_by_any_distance() {
    let template = template();
    for by in [1, 63, 64, 65, 127, 128, 4031, 4032, 4095, 4096, 4097, 70_000, i32::MAX as u32] {
        let numbers = [5, 5 + by, 4 + by, 5 + by, 6 + by, 7, 7];
        let numbered = |number| numbered(&template, number, 1000 + u64::from(number));
        let packets: Vec<_> = numbers.into_iter().map(numbered).collect();
        let Some([kernel, other]) = both(&packets) else { return };
        let [kernel, other] = [&kernel, &other].map(|it| it.streams[0].workers[0].clone());
        match by {
            // Outside the kernel's window, which is smaller.
            4095..65_536 => assert_eq!(kernel.counts.late, 2, "{by}"),
            _ => assert_eq!(kernel.counts, other.counts, "{by}"),
        }
    }
}

#[test]
fn some_packets_have_their_delay_measured() {
    let Some((kernel, trial)) = trial(false) else { return };
    let template = template();
    for number in 0..1600 {
        // The host's uptime is between these two times.
        let time = if number < 800 { 1 } else { u64::MAX };
        trial.run(&numbered(&template, number, time), 1).unwrap();
    }
    let analysis = Analysis::of(&kernel.shares());
    let delays = &analysis.streams[0].delays;
    let (times, other) = (delays.times.count(), delays.other_clock);
    // About one packet of 16; all count as of another clock if the host has run for over an hour.
    assert!((60..140).contains(&(times + other)), "{times} and {other}");
    assert!(other >= 30, "{other}");
}

#[test]
fn a_frame_of_several_buffers_is_taken() {
    // Checks only that the verifier accepts the program; such frames occur only in live traffic.
    let Some((kernel, trial)) = trial(true) else { return };
    for packet in frames("[[stream]]\nlayers = ['ether', 'ipv4', 'udp', 'stamp']\n", 0, 9) {
        trial.run(&packet, 1).unwrap();
    }
    assert_eq!(Analysis::of(&kernel.shares()).streams[0].sum(|it| it.counts.received), 9);
}
