//! The program on an interface, when its users have ended.

use std::time::{Duration, Instant};

use sluicegate::link::{interface, netns};
use sluicegate::xdp::resident::Resident;

/// Longer than the last holder of a link may have it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until an interface has no program of ours any more. The kernel lets go of a link a moment after
/// its last holder has ended, and a child of another test that has yet to become its command is one, too.
#[track_caller]
pub fn wait_until_removed(netns: &str, name: &str) {
    let interface = interface(Some(netns), name).unwrap();
    let find = || netns::run_in(Some(netns), || Resident::find(&interface)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while find().is_some() {
        assert!(Instant::now() < deadline, "the program of {name} stays");
        std::thread::sleep(Duration::from_millis(5));
    }
}
