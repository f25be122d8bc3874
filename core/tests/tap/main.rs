//! `tap:` ports on hosts of labs: what the host sends comes, what is sent the host receives, and
//! the device comes and goes as it was asked to.

#[path = "../child/alone.rs"]
mod alone;
#[path = "../child/limit.rs"]
mod child;
mod device;
#[path = "../exchange/numbered.rs"]
mod numbered;
#[path = "../lab/on.rs"]
mod on;
mod passing;
#[path = "../exchange/rings.rs"]
mod rings;
#[path = "../lab/scratch.rs"]
mod scratch;

use std::time::{Duration, Instant};

use numbered::{frame, is_ours};
use sluicegate::link::{self, Interface, Lab, Shape};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::Meta;

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A lab for one test, or the reason why there is none.
pub fn lab() -> Option<Lab> {
    scratch::lab_of(Shape::Pair, 1)
}

/// Opens a port on the host `right`.
pub fn open(lab: &Lab, name: &str, usage: Directions) -> sluicegate::Result<Port> {
    let options = OpenOptions { usage, netns: Some(lab.netns("right")), ..OpenOptions::default() };
    Port::open(&name.parse()?, &options)
}

/// The device, if it exists.
pub fn tap0(lab: &Lab) -> Option<Interface> {
    link::interface(Some(&lab.netns("right")), "tap0").ok()
}

/// Waits until the device that a port created has ended with it: a child that another test just forked
/// may still hold it.
pub fn wait_until_removed(lab: &Lab) {
    let deadline = Instant::now() + PATIENCE;
    while tap0(lab).is_some() {
        assert!(Instant::now() < deadline, "the device stays");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a command on the host `right`; whether it succeeded.
pub fn run(lab: &Lab, command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    on::on(&lab.netns("right"), &words).status.success()
}

/// Frames of many lengths, plain and tagged.
pub fn frames(longest: usize) -> Vec<Vec<u8>> {
    let kinds: &[&[(u16, u16)]] =
        &[&[], &[(0x8100, 0x2005)], &[(0x88a8, 0x0064), (0x8100, 0x0fff)]];
    let sizes = [60, 64, 590, 1514, 2047, 2048, 2049, 4096, 9014, 40_000, 65_000];
    let rows = sizes.iter().filter(|&&bytes| bytes <= longest);
    let rows = rows.flat_map(|&bytes| kinds.iter().map(move |tags| (bytes, tags)));
    (0..).zip(rows).map(|(i, (bytes, tags))| frame(i, bytes - 4 * tags.len(), tags)).collect()
}

/// Sends frames, and waits until all have left.
pub fn send(queue: &mut Queue, frames: &[Vec<u8>]) {
    rings::push(queue, frames, PATIENCE);
    queue.close_tx().unwrap();
}

/// Receives until `n` of our frames have come, over all queues.
pub fn receive(queues: &mut [Queue], n: usize) -> Vec<(Meta, Vec<u8>)> {
    rings::collect(queues, n, PATIENCE, is_ours)
}
