//! The packets of 200 random specifications are right.

use std::collections::HashMap;

use crate::generate::{Allowed, Made, Random, Set, stream};
use crate::headers::read;
use crate::{TIME_NS, frames, plan};

/// The number of specifications. The test checks `PACKETS` packets of each worker.
pub const SPECIFICATIONS: u64 = 200;
const PACKETS: usize = 40;
const WORKERS: u32 = 2;

#[test]
fn every_frame_matches_its_specification() {
    for seed in 0..SPECIFICATIONS {
        let made = stream(&mut Random::new(seed));
        let plan = plan(&made.text);
        for worker in 0..WORKERS {
            let frames = frames(&plan, worker, WORKERS, PACKETS);
            check(&made, worker, &frames)
                .unwrap_or_else(|error| panic!("specification {seed}: {error}\n{}", made.text));
        }
    }
}

fn check(made: &Made, worker: u32, frames: &[Vec<u8>]) -> Result<(), String> {
    let mut packets = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        let place = |error| format!("worker {worker}, packet {number}: {error}\n{frame:02x?}");
        if !(made.sizes.0..=made.sizes.1).contains(&frame.len()) {
            return Err(place(format!("{} bytes", frame.len())));
        }
        etherparse::SlicedPacket::from_ethernet(frame).map_err(|e| place(e.to_string()))?;
        packets.push(read(frame, &made.layers).map_err(place)?);
        let read = &packets[number];
        if let Some(stamp) = read.iter().find(|read| read.protocol == "stamp") {
            let mut expected = vec![b'S', b'l', 0, worker as u8, 0, 0, 0, number as u8];
            expected.extend(TIME_NS.to_be_bytes());
            if frame[stamp.at..][..16] != expected {
                return Err(place("another stamp".into()));
            }
        }
    }
    for allowed in &made.allowed {
        let field = |read: &Vec<crate::headers::Read>| read[allowed.layer].fields[allowed.field];
        let numbers: Vec<_> = packets.iter().map(field).collect();
        check_field(made, allowed, worker, &numbers).map_err(|error| {
            format!("worker {worker}, layer {}, {}: {error}", allowed.layer, allowed.field)
        })?;
    }
    Ok(())
}

/// Returns the flow of a worker's packet: flows are dealt like cards, and used in turn.
fn flow(number: usize, flows: u32, worker: u32) -> u64 {
    let own: Vec<_> = (0..flows).filter(|flow| flow % WORKERS == worker).collect();
    match own.as_slice() {
        [] => (worker % flows).into(),
        own => own[number % own.len()].into(),
    }
}

fn check_field(
    made: &Made,
    allowed: &Allowed,
    worker: u32,
    numbers: &[u128],
) -> Result<(), String> {
    let mut of_flow = HashMap::new();
    for (place, number) in numbers.iter().enumerate() {
        let flow = flow(place, made.flows, worker);
        let index = if allowed.flow { flow as usize } else { place };
        let right = match &allowed.set {
            Set::One(one) => number == one,
            Set::InTurn(list) => *number == list[index % list.len()],
            Set::AnyOf(list) => list.contains(number),
            Set::Between(least, most) => (least..=most).contains(&number),
        };
        if !right {
            return Err(format!("packet {place} of flow {flow} has {number:#x}"));
        }
        if allowed.flow && *of_flow.entry(flow).or_insert(*number) != *number {
            return Err(format!("flow {flow} has two values"));
        }
    }
    if let Set::Between(least, most) = &allowed.set {
        let first = numbers.first();
        let all_same = numbers.iter().all(|number| Some(number) == first);
        let several = !allowed.flow || made.flows > 20;
        if most - least > 4 && several && all_same {
            return Err("it does not change".into());
        }
    }
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_packets_and_workers_have_their_own() {
    let mut differ = 0;
    for seed in 0..SPECIFICATIONS {
        let made = stream(&mut Random::new(seed));
        let (one, again) = (plan(&made.text), plan(&made.text));
        assert_eq!(one, again);
        let other = plan(&format!("seed = 1\n{}", made.text));
        let first = frames(&one, 0, 2, PACKETS);
        assert_eq!(first, frames(&again, 0, 2, PACKETS));
        // With few values, random numbers may repeat, but not for most specifications.
        if made.random {
            differ += u64::from(first != frames(&one, 1, 2, PACKETS));
            differ += u64::from(first != frames(&other, 0, 2, PACKETS));
        } else {
            differ += 2;
        }
    }
    assert!(differ > 2 * SPECIFICATIONS - 10, "{differ} of {}", 2 * SPECIFICATIONS);
}
