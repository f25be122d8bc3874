//! Tests of specifications and their packets: 200 random ones, samples, flags, profiles, and errors in
//! invalid ones. A separate reader of headers, etherparse and tshark check the packets. Kernel programs make
//! the same packets.

mod docs;
mod errors;
mod flags;
mod generate;
mod generated;
mod headers;
mod live;
mod profiles;
mod samples;
mod show;
mod strange;
mod tshark;

use sluicegate_traffic::plan::{FrameBuilder, Plan};
use sluicegate_traffic::spec::{Defaults, Spec};

/// Plans a valid specification.
fn plan(text: &str) -> Plan {
    let spec = Spec::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    spec.plan(&Defaults::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The time in all packets.
const TIME_NS: u64 = 0x0123_4567_89ab_cdef;

/// Makes the first packets of a worker.
fn frames(plan: &Plan, worker: u32, workers: u32, count: usize) -> Vec<Vec<u8>> {
    let mut frames = FrameBuilder::new(plan, worker, workers, || TIME_NS);
    let mut room = vec![0xee; 65_536];
    let next = |_| {
        let bytes = frames.next_into(&mut room).expect("room for the longest");
        room[..bytes].to_vec()
    };
    (0..count).map(next).collect()
}

/// Makes the only packet of a stream of these layers.
fn frame(layers: &str) -> Vec<u8> {
    frames(&plan(&format!("[[stream]]\nlayers = [{layers}]\n")), 0, 1, 1).remove(0)
}
