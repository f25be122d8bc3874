//! Reads a pcap-filter expression whose meaning conditions can have.
//!
//! ```text
//!   text --lexer--> tokens --parser--> terms, one a field --> conditions
//! ```
//!
//! As in pcap-filter(7), `and` and `or` bind equally, from left to right, and `port 53 or 123` repeats the qualifiers.
//! `icmp` and `tcp[…]` are of IPv4 only, as there. Differences:
//!
//! - `or` joins alternatives of one field, and `not` inverts a number of a header that all packets have.
//! - A VLAN tag changes nothing for other words: `udp` is UDP with and without one.
//! - Ports are those of TCP and UDP.
//! - The protocol of IPv6 is the one behind all extension headers, `ah` among them.
//! - `less` and `greater` are lengths of frames: 14 bytes of Ethernet and the IP packet, without tags and padding.

mod byte;
mod lexer;
mod parser;
mod terms;

use std::ops::Range;

use sluicegate_base::text_error::{Fault, Position};

use super::contradiction;
use crate::policy::Conditions;

/// An error in the expression.
#[derive(Debug)]
struct ExpressionError {
    at: Range<usize>,
    problem: String,
}

impl ExpressionError {
    fn new(at: Range<usize>, problem: impl Into<String>) -> Self {
        Self { at, problem: problem.into() }
    }
}

/// Reads the conditions of an expression; `place` converts positions in it.
pub(super) fn conditions(
    text: &str,
    place: &dyn Fn(Range<usize>) -> Position,
) -> Result<Conditions, Fault> {
    let terms =
        parser::parse(text).map_err(|error| Fault::new(&place(error.at), "", error.problem))?;
    let (conditions, places) = terms.conditions(place);
    contradiction::check(&conditions, &places)?;
    Ok(conditions)
}
