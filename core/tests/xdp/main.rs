//! XDP on interfaces of labs: the resident program and those who use it.

mod claims;
mod copying;
mod forward;
mod metadata;
mod mirror;
mod resident;

use sluicegate::link::{self, Interface, Lab, netns};
use sluicegate::xdp::resident::{ModeWish, Resident};

/// A lab for one test, or the reason why there is none.
pub fn lab() -> Option<Lab> {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: making a lab and attaching XDP programs need root");
        return None;
    }
    Some(Lab::scratch().expect("a scratch lab"))
}

/// The interface `right0`.
pub fn right0(lab: &Lab) -> Interface {
    link::interface(Some(&lab.netns("right")), "right0").unwrap()
}

/// Joins the users of right0's resident program.
pub fn join(lab: &Lab, wish: ModeWish) -> sluicegate::Result<(Resident, Option<String>)> {
    let interface = right0(lab);
    netns::within(Some(&lab.netns("right")), || Resident::join(&interface, wish))
}

/// What right0's users share, if there is any.
pub fn find(lab: &Lab) -> sluicegate::Result<Option<Resident>> {
    let interface = right0(lab);
    netns::within(Some(&lab.netns("right")), || Resident::find(&interface))
}

/// Runs a command on a host; it must succeed.
pub fn run(lab: &Lab, host: &str, command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    assert!(lab.exec(host, &words).unwrap().success(), "{host}: {command}");
}
