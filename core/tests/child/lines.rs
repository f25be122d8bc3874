//! A line of a child's that is waited for.

use std::fmt::Debug;
use std::io::{self, BufRead, BufReader, Read};

use crate::child::limited;

/// Reads what a child says until a line begins with `start`, which must come; what was read, and
/// the rest, which is to be kept as long as the child may speak.
pub fn until<R: Read + Debug + Send + 'static>(
    child: u32,
    from: R,
    start: &'static str,
) -> (String, BufReader<R>) {
    let read = limited(child, move || {
        let (mut rest, mut said) = (BufReader::new(from), String::new());
        loop {
            let at = said.len();
            let bytes = rest.read_line(&mut said)?;
            let found = bytes > 0 && said[at..].starts_with(start);
            if found || bytes == 0 {
                return Ok((said, found, rest));
            }
        }
    });
    let (said, found, rest) = read.unwrap_or_else(|error: io::Error| {
        panic!("what process {child} says cannot be read: {error}");
    });
    assert!(found, "no line of process {child} begins with '{start}': {said}");
    (said, rest)
}
