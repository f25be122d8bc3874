//! A lab for a test, or the reason why there is none.

use sluicegate::error::ErrorKind;
use sluicegate::link::{Lab, Shape};

/// A lab of this shape that goes when it is dropped, unless there is no privilege to make one.
pub fn lab_of(shape: Shape, queues: u32) -> Option<Lab> {
    match Lab::scratch_with(shape, queues) {
        Ok(lab) => Some(lab),
        Err(error) if error.kind() == ErrorKind::Privilege => {
            println!("skipped: needs root; get it by sudo: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
