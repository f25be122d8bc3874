//! Tests in labs.

use sluicegate::error::{ErrorKind, Result};
use sluicegate::link::Lab;

/// Returns a lab that was made; without the privilege for it, prints that the test is skipped.
pub fn privileged(made: Result<Lab>) -> Option<Lab> {
    match made {
        Err(error) if error.kind() == ErrorKind::Privilege => {
            println!("skipped: needs root; get it by sudo: {error}");
            None
        }
        made => Some(made.unwrap()),
    }
}
