//! `packet:` ports at their edges, in labs: interfaces that are down, absent or not what they
//! seem, packets that cannot be sent, tags, fanout programs, clocks.

#[path = "../child/limit.rs"]
mod child;
mod edges;
mod fanout;
#[path = "../child/lines.rs"]
mod lines;
mod names;
#[path = "../lab/on.rs"]
mod on;
mod ring;
#[path = "../exchange/rings.rs"]
mod rings;
#[path = "../lab/scratch.rs"]
mod scratch;
mod sending;

use std::time::{Duration, Instant};

use sluicegate::link::{Lab, Shape, interface};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::Meta;

/// Every way of receiving.
pub const METHODS: &[&str] = &["method=recv", "method=recvmmsg", "method=frames", "method=ring"];
/// Every way of sending.
pub const WAYS: &[&str] = &[
    "send=sendmmsg",
    "send=sendmmsg&batch=1",
    "send=sendmmsg&batch=1024",
    "send=sendto",
    "send=ring",
    "send=sendmmsg&qdisc=bypass",
    "send=sendto&qdisc=bypass",
    "send=ring&qdisc=bypass",
];
/// The experimental ethertype, which nobody else speaks.
pub const OURS: [u8; 2] = [0x88, 0xb5];
/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A lab for one test, or the reason why there is none.
pub fn lab() -> Option<Lab> {
    scratch::lab_of(Shape::Pair, 1)
}

/// Opens a port on a host.
pub fn try_open(lab: &Lab, host: &str, name: &str, usage: Directions) -> sluicegate::Result<Port> {
    let options = OpenOptions { usage, netns: Some(lab.netns(host)), ..OpenOptions::default() };
    Port::open(&name.parse()?, &options)
}

/// A port to receive from; it must open.
pub fn receive_from(lab: &Lab, host: &str, name: &str) -> Port {
    try_open(lab, host, name, Directions::Receive).unwrap()
}

/// A queue that sends through an interface; options may follow its name.
pub fn send_to(lab: &Lab, host: &str, interface: &str) -> Queue {
    let name = format!("packet:{interface}");
    try_open(lab, host, &name, Directions::Send).unwrap().queues.remove(0)
}

/// Runs a command on a host; it must succeed.
pub fn run(lab: &Lab, host: &str, command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    assert!(on::on(&lab.netns(host), &words).status.success(), "{host}: {command}");
}

/// Waits until both ends know whether there is a carrier: the kernel takes up to a second to say so
/// (net/core/link_watch.c).
pub fn wait_for_carrier(lab: &Lab, there: bool) {
    let deadline = Instant::now() + PATIENCE;
    for (host, name) in [("left", "left0"), ("right", "right0")] {
        while interface(Some(&lab.netns(host)), name).unwrap().running != there {
            assert!(Instant::now() < deadline, "{name}: timed out");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A broadcast frame of our ethertype, with a number in it.
pub fn frame(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(OURS);
    frame.extend(number.to_be_bytes());
    frame.resize(bytes, number as u8);
    frame
}

/// Sends frames; returns when each has been sent or refused.
pub fn send(queue: &mut Queue, frames: &[Vec<u8>]) {
    let before = queue.stats().unwrap();
    rings::push(queue, frames, PATIENCE);
    let deadline = Instant::now() + PATIENCE;
    loop {
        queue.sync_tx().unwrap();
        let now = queue.stats().unwrap();
        let done = now.sent + now.refused - before.sent - before.refused;
        if done == frames.len() as u64 {
            return;
        }
        assert!(Instant::now() < deadline, "{now:?}");
    }
}

/// The packets that are `wanted`, from one queue, until `n` have come or the timeout has passed.
pub fn collect(
    queue: &mut Queue,
    n: usize,
    wanted: impl Fn(&[u8]) -> bool,
) -> Vec<(Meta, Vec<u8>)> {
    rings::collect(std::slice::from_mut(queue), n, PATIENCE, wanted)
}

/// Returns true if a frame is one of these tests', without tags.
pub fn is_ours(bytes: &[u8]) -> bool {
    bytes.get(12..14) == Some(&OURS)
}

/// Sends a marker from an interface to the queues, one for each, and receives until all have come. Returns
/// the number of the tests' other frames that came before them.
pub fn before_marker(lab: &Lab, host: &str, interface: &str, queues: &mut [Queue]) -> usize {
    let marker = frame(u32::MAX, 60);
    let markers = vec![marker.clone(); queues.len()];
    send(&mut send_to(lab, host, interface), &markers);
    let (mut missing, mut others) = (markers.len(), 0);
    while missing > 0 {
        let came = rings::collect(queues, 1, PATIENCE, is_ours);
        assert!(!came.is_empty(), "{missing} of {} markers are missing", markers.len());
        let arrived = came.iter().filter(|(_, bytes)| *bytes == marker).count();
        (missing, others) = (missing - arrived, others + came.len() - arrived);
    }
    others
}
