//! The port `live:` on interfaces of labs: what is written is what the other end receives.

#[path = "../child/alone.rs"]
mod alone;
mod changes;
#[path = "../child/limit.rs"]
mod child;
#[path = "../lab/on.rs"]
mod on;
#[path = "../lab/scratch.rs"]
mod scratch;
mod sending;
mod signal;
mod stream;

use std::process::ExitStatus;
use std::time::Duration;

use sluicegate::link::{Lab, Shape};
use sluicegate::port::{Directions, OpenOptions, Port};

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A lab for one test, or the reason why there is none.
pub fn lab() -> Option<Lab> {
    if linux() < (5, 18) {
        println!("skipped: live frames need Linux 5.18");
        return None;
    }
    scratch::lab_of(Shape::Pair, 1)
}

/// The kernel's version, as far as what it can do hangs on that.
pub fn linux() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Opens a port of a host.
pub fn open(lab: &Lab, host: &str, name: &str, usage: Directions) -> sluicegate::Result<Port> {
    let options = OpenOptions { usage, netns: Some(lab.netns(host)), ..OpenOptions::default() };
    Port::open(&name.parse()?, &options)
}

/// Opens a port that sends out of left0.
pub fn sender(lab: &Lab, options: &str) -> Port {
    open(lab, "left", &format!("live:left0{options}"), Directions::Send).unwrap()
}

/// Opens what receives all that comes to right0.
pub fn receiver(lab: &Lab) -> Port {
    open(lab, "right", "xdp:right0?method=ring&ring_size=4096", Directions::Receive).unwrap()
}

/// Runs a command on a host; how it ended.
pub fn run(lab: &Lab, host: &str, command: &str) -> ExitStatus {
    let words: Vec<&str> = command.split_whitespace().collect();
    on::on(&lab.netns(host), &words).status
}
