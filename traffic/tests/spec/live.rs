//! Kernel programs make exactly the packets of the plan.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::Error;
use sluicegate::link::Interface;
use sluicegate::xdp::live::MAX_BYTES;
use sluicegate_traffic::analyse::Stamp;
use sluicegate_traffic::live::Live;
use sluicegate_traffic::plan::{FieldSource, FrameBuilder, Plan, StreamTotals};
use sluicegate_traffic::rate::{Dial, Pace};
use sluicegate_traffic::spec::{Defaults, PROFILES, Spec};

use crate::generate::{Random, stream};
use crate::generated::SPECIFICATIONS;
use crate::{frames, plan};

/// Specifications, each with a description.
const SPECS: &[(&str, &str)] = &[
    ("a packet that never changes", "[[stream]]\nsize = 60\nlayers = ['ether', 'ipv4', 'udp']"),
    (
        "random addresses and ports, whose checksums follow",
        "seed = 3\n[[stream]]\nsize = 60\nlayers = ['ether', { ipv4 = { src = '198.18.0.0/16' } }, \
         { udp = { sport = '1024-65535' } }]",
    ),
    (
        "counters up and down, with steps, and lists",
        "[[stream]]\nlayers = ['ether', { ipv4 = { id = '0..65535/7', ttl = '64..32' } }, \
         { udp = { sport = '9,10,53', dport = 'any:53,123,389' } }]",
    ),
    (
        "three streams with random lengths",
        "[[stream]]\nsize = '60-90'\nlayers = ['ether', 'ipv4', 'udp']\n\
         [[stream]]\nsize = '61-1514'\nlayers = ['ether', 'ipv4', 'udp']\n\
         [[stream]]\nsize = '62-63'\nlayers = ['ether', 'ipv4', 'udp']",
    ),
    (
        "fields that are the flow's",
        "[[stream]]\nflows = 10\nlayers = ['ether', { ipv4 = { src = 'flow:198.18.0.0/15' } }, \
         { tcp = { sport = 'flow:1024-65535', seq = '0..4294967295/1460', flags = 'SA' } }]",
    ),
    (
        "sizes in turn, and a payload that the checksum covers",
        "[[stream]]\nsize = 'imix'\nlayers = ['ether', 'ipv4', 'udp', { payload = { pattern = '00ff' } }]",
    ),
    (
        "random sizes, even and odd",
        "[[stream]]\nsize = '61-1514'\nlayers = ['ether', 'ipv4', 'udp', { payload = { random = true } }]",
    ),
    (
        "IPv6 addresses of two numbers, and VLAN tags of two fields",
        "[[stream]]\nlayers = ['ether', { vlan = { id = '1-100', pcp = '0..7' } }, \
         { ipv6 = { src = '2001:db8::/32', flow-label = '0-1048575' } }, 'udp']",
    ),
    (
        "several streams, of weights and lengths of their own",
        "[[stream]]\nweight = 3\nsize = 60\nlayers = ['ether', 'ipv4', 'udp']\n\
         [[stream]]\nsize = 1000\nlayers = ['ether', { ipv4 = { src = '198.18.0.0/24' } }, 'tcp', \
         { payload = { random = true } }]\n\
         [[stream]]\nweight = 2\nsize = '100-200'\nlayers = ['ether', 'ipv6', 'udp', \
         { payload = { text = 'hello' } }]",
    ),
    (
        "varying numbers in the payload, at odd offsets, of each width",
        "[[stream]]\nflows = 3\nlayers = ['ether', { ipv4 = { src = '198.18.0.0/16' } }, 'udp', \
         { raw = { hex = 'aa' } }, { number = { value = '1..1000', bytes = 4 } }, \
         { number = { value = '0-255', bytes = 1 } }, { raw = { hex = 'bb' } }, \
         { number = { value = 'flow:5,6,7', bytes = 2 } }, \
         { number = { value = '0xffffffffffffffff,5', bytes = 8 } }]",
    ),
    (
        "DNS and QUIC, in turn by rate",
        "[[stream]]\nrate = '2kpps'\nlayers = ['ether', 'ipv6', { udp = { sport = '1024-65535' } }, \
         { dns = { id = '0-65535', type = 'a,aaaa', answer = '192.0.2.0/24' } }]\n\
         [[stream]]\nrate = '1kpps'\nsize = 1242\nlayers = ['ether', 'ipv4', 'udp', \
         { quic = { dcid = '1..9', scid = '0-65535' } }, { payload = { random = true } }]",
    ),
    (
        "checksums that are wrong on purpose",
        "[[stream]]\nlayers = ['ether', { ipv4 = { checksum = 'bad', src = '198.18.0.0/16' } }, \
         { udp = { checksum = 'bad' } }]",
    ),
    (
        "a checksum within what another one covers",
        "[[stream]]\nlayers = ['ether', 'ipv4', 'udp', { vxlan = { vni = '1-16777215' } }, 'ether', \
         { ipv4 = { src = '198.18.0.0/16' } }, { udp = { sport = '1-65535' } }]",
    ),
];

/// Reports whether the test runs as root.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0)
}

/// Loads the program of a worker; `None` without the privilege.
fn live(plan: &Plan, worker: (u32, u32), pace: Option<Pace>) -> Option<Live> {
    dialled(plan, worker, pace.map(Dial::new))
}

/// Loads the program of a worker with a dial's pace.
fn dialled(plan: &Plan, worker: (u32, u32), dial: Option<Dial>) -> Option<Live> {
    // No packet is sent, so no interface needs to exist.
    let interface = Interface { index: 1, ..Interface::default() };
    match Live::new(&Arc::new(plan.clone()), worker, &interface, dial.as_ref()) {
        Ok(live) => Some(live),
        // Root has the privileges, so an error for root is a failure.
        Err(Error::Privilege { operation, capability, .. }) if !is_root() => {
            eprintln!("skipped: {operation} needs {capability}; get it by sudo");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Reports whether packets contain their time; if so, no two packets are equal.
fn is_timed(plan: &Plan) -> bool {
    let edits = plan.streams.iter().flat_map(|stream| &stream.edits);
    edits.flat_map(|edit| &edit.parts).any(|part| part.source == FieldSource::Time)
}

/// Compares the packets that programs make with those of the plan; false without the privilege.
fn compare(what: &str, plan: &Plan, packets: usize) -> bool {
    for worker in [(0, 1), (2, 3)] {
        let Some(live) = live(plan, worker, None) else { return false };
        let expected = frames(plan, worker.0, worker.1, packets);
        for (number, expected) in expected.iter().enumerate() {
            let made = live.next_packet().unwrap_or_else(|e| panic!("{what}, {number}: {e}"));
            assert_eq!(&made, expected, "{what}: packet {number} of {worker:?}");
        }
        assert_eq!(live.streams(), totals(plan, &expected), "{what}: {worker:?}");
    }
    true
}

/// Counts the packets of each stream, and their bytes.
fn totals(plan: &Plan, frames: &[Vec<u8>]) -> Vec<StreamTotals> {
    let mut totals = vec![StreamTotals::default(); plan.streams.len()];
    for (frame, &stream) in frames.iter().zip(plan.turns.iter().cycle()) {
        let one = StreamTotals { packets: 1, bytes: frame.len() as u64 };
        totals[usize::from(stream)] = totals[usize::from(stream)].plus(one);
    }
    totals
}

#[test]
fn a_builder_counts_packets_and_bytes_of_each_stream() {
    for (sentence, spec) in SPECS {
        let plan = plan(spec);
        let expected = frames(&plan, 1, 2, 500);
        let mut frames = FrameBuilder::new(&plan, 1, 2, || 0);
        let mut room = vec![0; plan.longest()];
        for _ in &expected {
            // A packet that does not fit is not counted.
            assert_eq!(frames.next_into(&mut []), None, "{sentence}");
            frames.next_into(&mut room);
        }
        assert_eq!(frames.totals(), totals(&plan, &expected), "{sentence}");
    }
}

#[test]
fn programs_make_the_packets_of_the_plan() {
    for (sentence, spec) in SPECS {
        if !compare(sentence, &plan(spec), 2000) {
            return;
        }
    }
    for profile in PROFILES {
        let plan = Spec::profile(profile.name).unwrap().plan(&Defaults::default()).unwrap();
        compare(profile.name, &plan, 200);
    }
}

#[test]
fn programs_make_the_packets_of_specifications_at_random() {
    let mut compared = 0;
    for seed in 0..SPECIFICATIONS {
        let made = stream(&mut Random::new(seed));
        let plan = plan(&made.text);
        // A live frame has a single page.
        if plan.longest() > MAX_BYTES as usize || is_timed(&plan) {
            continue;
        }
        if !compare(&format!("specification {seed}\n{}", made.text), &plan, 50) {
            return;
        }
        compared += 1;
    }
    assert!(compared > SPECIFICATIONS / 2, "{compared} of {SPECIFICATIONS}");
}

/// Returns the times in the stamps of the next packets.
fn times(live: &Live, packets: usize) -> Vec<u64> {
    let stamp = |_| Stamp::read(&live.next_packet().unwrap()[42..]).expect("a stamp");
    (0..packets).map(stamp).map(|stamp| stamp.time_ns).collect()
}

#[test]
fn stamps_say_one_time_for_sixteen_packets_at_full_speed_and_each_its_own_at_a_rate() {
    let spec = "size = 60\nlayers = ['ether', 'ipv4', 'udp', 'stamp']\n";
    let one = plan(&format!("[[stream]]\n{spec}"));
    let two = plan(&format!("[[stream]]\n{spec}[[stream]]\nweight = 2\n{spec}"));
    for (sentence, plan, pace, shared) in [
        ("at full speed", &one, None, 16),
        ("of all streams", &two, None, 16),
        ("at a rate", &one, Some(Pace { pps: 2e9, burst: 1 }), 1),
    ] {
        let Some(live) = live(plan, (0, 1), pace) else { return };
        let times = times(&live, 64);
        let mut different: Vec<&[u64]> = times.chunk_by(|a, b| a == b).collect();
        assert!(times.is_sorted(), "{sentence}");
        different.dedup_by_key(|same| same.len());
        assert_eq!(different.len(), 1, "{sentence}: {times:?}");
        assert_eq!(different[0].len(), shared, "{sentence}");
    }
}

#[test]
fn programs_keep_a_timetable_and_follow_its_changes() {
    const HOUR: f64 = 1.0 / 3600.0;
    let (_, spec) = SPECS[0];
    let plan = plan(spec);
    let pace = |pps, burst| Pace { pps, burst };
    let Some(hourly) = live(&plan, (0, 1), Some(pace(HOUR, 1))) else { return };
    let is_due = |live: &Live| live.next_packet().is_ok();
    assert!(is_due(&hourly), "the first is due at once");
    assert!(!is_due(&hourly) && !is_due(&hourly), "the next in an hour");
    // The next packet is due within a ns of the last, so it is due at every poll.
    hourly.set_pace(pace(2e9, 1));
    assert!((0..1000).all(|_| is_due(&hourly)), "at once, at another pace");
    hourly.set_pace(pace(0.0, 1));
    assert!(!is_due(&hourly), "a pause");
    hourly.set_pace(pace(2e9, 1));
    assert!(is_due(&hourly), "and on");
    let paused = live(&plan, (0, 1), Some(pace(0.0, 1))).unwrap();
    assert!(!is_due(&paused), "a pause from the beginning");
    paused.set_pace(pace(2e9, 1));
    assert!(is_due(&paused), "and on");
    let worker = |number| live(&plan, (number, 2), Some(pace(HOUR, 1))).unwrap();
    assert!(is_due(&worker(0)) && !is_due(&worker(1)), "workers take turns");
    let rare = live(&plan, (0, 1), Some(pace(1.0, 1_000_000))).unwrap();
    assert!((0..5000).all(|_| is_due(&rare)), "a burst, the next is in twelve days");
    let bursts = live(&plan, (0, 1), Some(pace(HOUR, 3))).unwrap();
    assert_eq!((0..10).filter(|_| is_due(&bursts)).count(), 3, "a burst and no more");
    let held = live(&plan, (0, 1), Some(pace(HOUR, 3))).unwrap();
    assert!(is_due(&held));
    held.set_pace(pace(0.0, 3));
    assert!(!is_due(&held) && !is_due(&held), "a pause holds a burst that has begun");
    held.set_pace(pace(HOUR, 3));
    assert_eq!((0..10).filter(|_| is_due(&held)).count(), 2, "what is left of it");
}

#[test]
fn programs_give_the_turns_of_an_ended_stream_to_others_unless_it_has_a_rate() {
    const HOUR: f64 = 1.0 / 3600.0;
    let layers = "size = 60\nlayers = ['ether']\n";
    for (sentence, setting, packets, pause) in [
        ("by weight, to the other", "weight = 1", [1, 3], 0),
        ("by rate, to nobody", "rate = 7", [1, 2], 1),
    ] {
        let plan = plan(&format!(
            "[[stream]]\n{setting}\ncount = 1\n{layers}[[stream]]\n{setting}\n{layers}"
        ));
        // A burst is due at once, and the next in an hour.
        let Some(live) = live(&plan, (0, 1), Some(Pace { pps: HOUR, burst: 4 })) else { return };
        let made = (0..20).filter(|_| live.next_packet().is_ok()).count();
        assert_eq!(live.streams().iter().map(|it| it.packets).collect::<Vec<_>>(), packets);
        assert_eq!(made, 4 - pause, "{sentence}");
    }
}

#[test]
fn programs_skip_packets_beyond_the_limit_of_delay() {
    const PERIOD: Duration = Duration::from_millis(20);
    let (_, spec) = SPECS[0];
    let plan = plan(spec);
    let every = |period: Duration| Pace { pps: period.as_secs_f64().recip(), burst: 1 };
    for (sentence, then) in [("at its pace", PERIOD), ("at twice that", PERIOD / 2)] {
        let dial = Dial::new(every(PERIOD)).catching_up(Duration::from_millis(1));
        let Some(live) = dialled(&plan, (0, 1), Some(dial)) else { return };
        assert!(live.next_packet().is_ok(), "{sentence}: the first is due at once");
        std::thread::sleep(PERIOD * 4);
        live.set_pace(every(then));
        let start = Instant::now();
        let due = (0..10).filter(|_| live.next_packet().is_ok()).count();
        // One packet is due at once; the number of others depends on the elapsed time.
        let most = 1 + start.elapsed().as_nanos() / then.as_nanos();
        assert!((1..=most).contains(&(due as u128)), "{sentence}: {due}, not up to {most}");
    }
}
