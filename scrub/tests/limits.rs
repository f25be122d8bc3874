//! Limits in XDP, by an injected clock.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::time::Duration;

use sluicegate_scrub::policy::{Limit, LimitKey, Policy, Profile, Rate, Verdict};
use sluicegate_scrub::program::Program;
use sluicegate_scrub::tables::Tables;
use sluicegate_scrub::testing::{FrameSpec, Random};

mod root;

const BURST: Duration = Duration::from_millis(1);
/// The offered rate, as a multiple of the limit.
const OVERLOAD: u64 = 3;

fn policy(by: LimitKey, rate: Rate) -> Policy {
    let limits = vec![Limit { by, rate, burst: BURST }];
    Policy { profiles: vec![Profile { limits, ..Profile::default() }], ..Policy::default() }
}

/// A program whose policy has one limit, with a table of this number of keys.
fn program(policy: &Policy, keys: u32) -> Program {
    let mut program = Program::for_rehearsal(keys).unwrap();
    program.install(&Tables::build(policy, 7).unwrap()).unwrap();
    program
}

fn frame(source: &str) -> Vec<u8> {
    frame_of(source, 100)
}

/// A frame of this length.
fn frame_of(source: &str, bytes: usize) -> Vec<u8> {
    FrameSpec::udp(1000, 9, &vec![0; bytes - 42]).between(source, "198.18.0.2").build()
}

/// Returns how many frames of this length pass, one from each of some sources.
fn passed_from(program: &Program, sources: Range<u32>, bytes: usize) -> usize {
    let frames = sources.map(|it| frame_of(&Ipv4Addr::from(0x1000_0000 + it).to_string(), bytes));
    frames.filter(|it| program.rehearse(it).unwrap().verdict == Verdict::Pass).count()
}

/// Returns the packets that pass, of one in each interval.
fn passed(program: &Program, frame: &[u8], interval_ns: u64, packets: u64) -> u64 {
    let mut passed = 0;
    for number in 0..packets {
        program.set_time(1_000_000_000 + number * interval_ns);
        passed += u64::from(program.rehearse(frame).unwrap().verdict == Verdict::Pass);
    }
    passed
}

#[test]
fn a_source_gets_its_rate_within_one_percent() {
    if !root::is_root() {
        return;
    }
    let frame = frame("198.18.0.1");
    let bits = frame.len() as u64 * 8;
    for pps in [100_000, 333_333, 1_000_000, 5_000_000] {
        for rate in [Rate::Packets(pps), Rate::Bits(pps * bits)] {
            let program = program(&policy(LimitKey::Source, rate), 64);
            let interval = 1_000_000_000 / (pps * OVERLOAD);
            // A slow machine (an emulated one) may thin them out.
            let thin = std::env::var("SLUICE_TEST_THIN").ok().and_then(|it| it.parse::<u64>().ok());
            let packets = 200_000 / thin.unwrap_or(1);
            let passed = passed(&program, &frame, interval, packets);
            let seconds = (packets * interval) as f64 / 1e9;
            let expected = pps as f64 * (seconds + BURST.as_secs_f64());
            let error = (passed as f64 - expected).abs() / expected;
            assert!(error < 0.01, "{rate:?}: {passed} of {packets} passed, expected {expected}");
        }
    }
}

#[test]
fn sources_have_limits_of_their_own() {
    if !root::is_root() {
        return;
    }
    let program = program(&policy(LimitKey::Source, Rate::Packets(1000)), 64);
    let [a, b] = ["198.18.0.1", "198.18.0.3"].map(frame);
    // A burst of a millisecond at 1000 packets a second: one packet, and one more.
    assert_eq!(passed(&program, &a, 0, 10), 2);
    assert_eq!(passed(&program, &b, 0, 10), 2);
}

/// The bits of 128.0.0.0 and 8000:0:0:2:: differ by those of the versions.
#[test]
fn destinations_of_both_versions_have_limits_of_their_own() {
    if !root::is_root() {
        return;
    }
    let program = program(&policy(LimitKey::Destination, Rate::Packets(1000)), 64);
    for (src, dst) in [("192.0.2.1", "128.0.0.0"), ("2001:db8::1", "8000:0:0:2::")] {
        let frame = FrameSpec::udp(1000, 9, &[0; 58]).between(src, dst).build();
        assert_eq!(passed(&program, &frame, 0, 10), 2, "{dst}");
    }
}

/// Sources of which many find no slot in the front, which has 98,304.
const MANY: u32 = 120_000;

#[test]
fn many_sources_have_limits_of_their_own() {
    if !root::is_root() {
        return;
    }
    let program = program(&policy(LimitKey::Source, Rate::Packets(1)), 1 << 20);
    for (seconds, expected) in [(10, MANY), (10, 0), (20, MANY)] {
        program.set_time(seconds * 1_000_000_000);
        assert_eq!(passed_from(&program, 0..MANY, 100), expected as usize, "at {seconds} s");
    }
}

/// The front has free slots again while keys are in the table.
#[test]
fn a_key_in_the_table_goes_on_there() {
    if !root::is_root() {
        return;
    }
    let program = program(&policy(LimitKey::Source, Rate::Bits(8 * 1000)), 1 << 20);
    // Frames that take 0.1 s, and of other sources some that take 1 s.
    program.set_time(10_000_000_000);
    assert_eq!(passed_from(&program, 0..MANY, 100), MANY as usize);
    assert_eq!(passed_from(&program, MANY..MANY + 30_000, 1000), 30_000);
    program.set_time(10_500_000_000);
    assert_eq!(passed_from(&program, MANY..MANY + 30_000, 1000), 0);
    program.set_time(11_500_000_000);
    assert_eq!(passed_from(&program, MANY..MANY + 30_000, 1000), 30_000);
}

/// With more sources than slots, the limit neither opens nor drops everything, and a source with a slot keeps its rate.
#[test]
fn a_flood_of_forged_sources_gets_a_part_and_a_known_source_its_rate() {
    if !root::is_root() {
        return;
    }
    let keys = 1024;
    let program = program(&policy(LimitKey::Source, Rate::Packets(1)), keys);
    let mut random = Random::new(3);
    let known = frame("198.18.0.1");
    let (mut passed, mut of_known) = (0, 0);
    let packets = 300_000_u64;
    // In three seconds, as many packets of as many sources, and 300 of one source.
    for number in 0..packets {
        program.set_time(1_000_000_000 + number * 10_000);
        let source = Ipv4Addr::from(0x1000_0000 | random.number() as u32 >> 4);
        let verdict = program.rehearse(&frame(&source.to_string())).unwrap().verdict;
        passed += u64::from(verdict == Verdict::Pass);
        if number % 1000 == 0 {
            of_known += u64::from(program.rehearse(&known).unwrap().verdict == Verdict::Pass);
        }
    }
    assert!((3..=4).contains(&of_known), "{of_known} of the known source");
    // Of 100,000 sources in a second, some 70,000 find one of the 98,304 slots of the front. The others have the keys of
    // the table, and share rates by their networks.
    assert!(passed > 3 * 60_000, "{passed}");
    assert!(passed < packets, "{passed}");
}
