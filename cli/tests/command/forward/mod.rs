//! `sluice forward`: between the hosts of a lab, and from file to file.

mod changes;
mod files;
mod host;
mod hosts;
mod in_kernel;
mod losses;
mod sleeping;
mod watch;

use std::process::Command;

use serde_json::Value;
use sluicegate::link::{Lab, Shape};

use crate::support::*;

/// Starts `sluice forward` on the host in the middle, and waits until it has begun.
fn forward(lab: &Lab, arguments: &[&str]) -> Running {
    let netns = lab.netns("middle");
    let all = [&["forward", "--netns", &netns, "--json"], arguments].concat();
    let running = Running::unawaited(&mut sluice(&all));
    // In the kernel, a thread that only counts.
    let begun = || running.has_threads("forward-") || running.has_threads("queue-");
    eventually("forwarding begins", || begun() || running.has_ended());
    running
}

/// `sluice generate` on left: packets that go to right, which does not answer them.
fn generate(lab: &Lab, more: &[&str]) -> Command {
    let netns = lab.netns("left");
    let to = ["--netns", &netns, "--dst", "198.18.0.2", "--dmac", NOBODY];
    sluice(&[&["generate", "left0", "--json"], &to[..], more].concat())
}

/// The packets of one direction in a report: all, swapped, copied.
fn direction(report: &Value, index: usize) -> [u64; 3] {
    let direction = &report["directions"][index];
    ["packets", "swapped", "copied"].map(|key| direction[key].as_u64().unwrap())
}
