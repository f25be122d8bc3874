//! Labs for the unit tests of this crate.

use crate::link::{Lab, Shape};

/// Returns true if a test can make labs and programs; prints a notice if it cannot.
pub(crate) fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("skipped: needs root; get it by sudo");
    }
    is_root
}

/// Two hosts and a link between them.
pub(crate) fn lab() -> Option<Lab> {
    lab_with(1)
}

/// Two hosts and a link with several queues at each end.
pub(crate) fn lab_with(queues: u32) -> Option<Lab> {
    is_root().then(|| Lab::scratch_with(Shape::Pair, queues).expect("a scratch lab"))
}
