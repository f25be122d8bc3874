//! XDP on interfaces of labs: the resident program and those who use it.

#[path = "../child/alone.rs"]
mod alone;
mod busy_poll;
mod changes;
#[path = "../child/limit.rs"]
mod child;
mod claims;
mod copying;
mod forward;
#[path = "../child/lines.rs"]
mod lines;
mod metadata;
mod mirror;
#[path = "../lab/on.rs"]
mod on;
#[path = "../lab/program.rs"]
mod program;
mod resident;
#[path = "../exchange/rings.rs"]
mod rings;
#[path = "../lab/scratch.rs"]
mod scratch;
mod scrub;
mod unprivileged;
mod wire;

use std::process::ExitStatus;

use scratch::lab_of;
use sluicegate::link::{self, Interface, Lab, Shape, netns};
use sluicegate::xdp::resident::{ModeRequest, Resident};

/// A lab for one test, or the reason why there is none.
pub fn lab() -> Option<Lab> {
    lab_of(Shape::Pair, 1)
}

/// The kernel's version, as far as what it can do hangs on that.
pub fn linux() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// The interface `right0`.
pub fn right0(lab: &Lab) -> Interface {
    link::interface(Some(&lab.netns("right")), "right0").unwrap()
}

/// Joins the users of right0's resident program.
pub fn join(lab: &Lab, request: ModeRequest) -> sluicegate::Result<(Resident, Option<String>)> {
    let interface = right0(lab);
    netns::run_in(Some(&lab.netns("right")), || Resident::join(&interface, request))
}

/// The program that right0's users share, if it has one.
pub fn find(lab: &Lab) -> sluicegate::Result<Option<Resident>> {
    let interface = right0(lab);
    netns::run_in(Some(&lab.netns("right")), || Resident::find(&interface))
}

/// Waits until right0 has no program of ours any more.
#[track_caller]
pub fn wait_until_removed(lab: &Lab) {
    program::wait_until_removed(&lab.netns("right"), "right0");
}

/// Runs a command on a host; it must succeed.
pub fn run(lab: &Lab, host: &str, command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    assert!(exec(lab, host, &words).success(), "{host}: {command}");
}

/// Runs a command on a host; how it ended.
pub fn exec(lab: &Lab, host: &str, words: &[&str]) -> ExitStatus {
    on::on(&lab.netns(host), words).status
}

/// The output of a command on a host, which must succeed.
pub fn output(lab: &Lab, host: &str, command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let ended = on::on(&lab.netns(host), &words);
    assert!(ended.status.success(), "{host}: {command:?}");
    String::from_utf8(ended.stdout).unwrap()
}
