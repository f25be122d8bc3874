//! Filters: expressions in the language of pcap-filter(7) that select packets.
//!
//! ```text
//!   expression --libpcap--> classic BPF --+--> Program::run, on packets of every port
//!                                         +--> for_packet_socket, for the kernel
//!                                         +--> translate, to eBPF in an XDP program
//! ```
//!
//! ```
//! use sluicegate_filter::Filter; // in programs: sluicegate::filter
//! use sluicegate_base::ring::LINKTYPE_ETHERNET;
//!
//! let filter = Filter::compile("ether broadcast", LINKTYPE_ETHERNET)?;
//! assert!(filter.matches(&[0xff; 60], 60));
//! # Ok::<(), sluicegate_base::Error>(())
//! ```
#![warn(unreachable_pub)]

pub mod cbpf;
mod compile;
pub mod ebpf;
mod listing;
mod packet_socket;
mod program;
mod translate;

pub use cbpf::Instruction;
pub use compile::explain;
pub use listing::Listing;
pub use program::{MAX_INSTRUCTIONS, MAX_KERNEL_INSTRUCTIONS, Program};
pub use translate::{Frame, TranslateError, translate};

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use compile::Compiler;

use sluicegate_base::error::{Error, Result};
use sluicegate_base::ring::{LINKTYPE_ETHERNET, Packet};

/// Maximum length of an expression. libpcap's work grows with the square of the length: at this length it
/// takes a few seconds.
pub const MAX_EXPRESSION_BYTES: usize = 16 << 10;

/// Link types whose header is the number of a BSD address family: NULL and ENC in the byte order of the
/// machine that wrote it, LOOP in network byte order.
const NUMBERED_FAMILIES: [u16; 3] = [0, 108, 109];

/// A compiled filter. Clones share the program.
#[derive(Clone, Debug)]
pub struct Filter {
    expression: Arc<str>,
    link_type: u16,
    program: Arc<Program>,
    /// The program for packets whose link header is in the other byte order.
    swapped: Option<Arc<Program>>,
}

impl Filter {
    /// Compiles a pcap-filter expression for packets of a link type (a LINKTYPE_ number). The empty
    /// expression accepts every packet. libpcap resolves host names.
    ///
    /// # Errors
    /// [`Error::Filter`] with the compiler's message and the column: the expression is invalid, longer than
    /// [`MAX_EXPRESSION_BYTES`], or invalid for the link type.
    pub fn compile(expression: &str, link_type: u16) -> Result<Self> {
        Self::compile_by(expression, link_type, Compiler::new)
    }

    /// Compiles an expression for packets that are read from files. The file holds all that the filter reads:
    /// `inbound` on Ethernet needs the kernel.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); the expression needs the kernel.
    pub fn compile_for_file(expression: &str, link_type: u16) -> Result<Self> {
        Self::compile_by(expression, link_type, |link_type| Compiler::for_file(link_type, false))
    }

    fn compile_by(
        expression: &str,
        link_type: u16,
        compiler: impl Fn(u16) -> Result<Compiler, String>,
    ) -> Result<Self> {
        let refuse = |message: String, column| Error::Filter {
            expression: expression.to_owned(),
            message,
            column,
        };
        if expression.len() > MAX_EXPRESSION_BYTES {
            let message = format!(
                "{} bytes are too long, at most {MAX_EXPRESSION_BYTES} are compiled; \
                 write address ranges as `net`",
                expression.len()
            );
            let expression = shortened(expression).into_owned();
            return Err(Error::Filter { expression, message, column: None });
        }
        if let Some(column) = expression.find('\0') {
            return Err(refuse("a NUL byte ends the expression early".into(), Some(column)));
        }
        let compile = |compiler: Result<Compiler, String>| {
            let compiler = compiler.map_err(|message| refuse(message, None))?;
            let instructions = compiler.compile(expression).map_err(|message| {
                let complaint = |trial: &str| compiler.compile_with(trial, false).err();
                let column = compile::column(expression, &message, complaint);
                refuse(message, column)
            })?;
            let program = Program::new(instructions);
            program.map(Arc::new).map_err(|error| refuse(error.to_string(), None))
        };
        let (program, swapped) = if NUMBERED_FAMILIES.contains(&link_type) {
            // Only files contain these link types, and their number for IPv6 differs from Linux.
            let program = compile(Compiler::for_file(link_type, false))?;
            (program, Some(compile(Compiler::for_file(link_type, true))?))
        } else {
            (compile(compiler(link_type))?, None)
        };
        Ok(Self { expression: expression.into(), link_type, program, swapped })
    }

    /// Returns the source expression.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Returns the beginning of the source expression, for messages: all of a short one.
    pub fn shortened(&self) -> Cow<'_, str> {
        shortened(&self.expression)
    }

    /// Returns the link type of its packets: a LINKTYPE_ number.
    pub fn link_type(&self) -> u16 {
        self.link_type
    }

    /// Returns the program for packets in their wire format. If the link header has a host byte order, it
    /// must be this machine's.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns true if a packet passes. `head` is its captured part; it had `wire_bytes` on the wire. As in
    /// `tcpdump -r`, `len`, `less` and `greater` read `wire_bytes`, and a packet too short for a load of the
    /// program does not pass.
    #[inline]
    pub fn matches(&self, head: &[u8], wire_bytes: u32) -> bool {
        let program = match &self.swapped {
            Some(swapped) if is_swapped(head) => swapped,
            _ => &self.program,
        };
        program.run(head, wire_bytes) != 0
    }

    /// Returns true if a packet in a ring passes. Several slots are joined in `scratch`.
    #[inline]
    pub fn matches_packet(&self, packet: &Packet, scratch: &mut Vec<u8>) -> bool {
        self.matches(packet.contiguous(scratch), packet.meta().wire_bytes)
    }

    /// Returns the program for a packet socket (AF_PACKET, SOCK_RAW; `SO_ATTACH_FILTER`), where the outer
    /// VLAN tag is no longer in the frame. Its verdict equals that of [`matches`](Self::matches) on the frame
    /// with the tag back at byte 12. Needs Linux 4.1 if the expression reads beyond the addresses of an
    /// Ethernet frame. Accepted packets are kept whole.
    ///
    /// # Errors
    /// [`Error::Filter`] if the kernel cannot run it: `protochain`, thousands of addresses.
    pub fn for_packet_socket(&self) -> Result<Vec<Instruction>> {
        self.program
            .for_packet_socket(self.link_type == LINKTYPE_ETHERNET)
            .map(|program| program.instructions().to_vec())
            .map_err(|reason| Error::Filter {
                expression: self.shortened().into_owned(),
                message: format!(
                    "a packet socket cannot run it: {reason}; filter after the capture, or shorten the \
                     expression"
                ),
                column: None,
            })
    }
}

/// The characters of an expression in messages.
const MAX_SHOWN: usize = 60;

fn shortened(expression: &str) -> Cow<'_, str> {
    match expression.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &expression[..end]).into(),
        None => expression.into(),
    }
}

/// True if the address family at the start of a packet is in the other byte order. Families are small
/// numbers, so one half is zero.
fn is_swapped(packet: &[u8]) -> bool {
    packet.first_chunk().is_some_and(|family| u32::from_ne_bytes(*family) > 0xffff)
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.expression)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_base::ring::Meta;

    #[test]
    fn an_expression_invalid_for_the_link_type_is_refused() {
        let rows = [
            (220, "len > 80", None, None),
            (220, "ip", Some("not implemented"), Some(0)),
            (9999, "ip", Some("unknown data link type 9999"), None),
        ];
        for (link_type, expression, refusal, place) in rows {
            let refused = match Filter::compile(expression, link_type) {
                Ok(_) => None,
                Err(Error::Filter { message, column, .. }) => {
                    assert_eq!(column, place, "{message}");
                    Some(message)
                }
                Err(other) => panic!("{other}"),
            };
            let as_expected = match (refused.as_deref(), refusal) {
                (Some(message), Some(part)) => message.contains(part),
                (refused, refusal) => refused == refusal,
            };
            assert!(as_expected, "'{expression}' on link type {link_type}: {refused:?}");
        }
    }

    #[test]
    fn a_filter_is_shared_between_threads() {
        fn shared<T: Clone + Send + Sync>() {}
        shared::<Filter>();
    }

    #[test]
    fn a_packet_of_a_ring_is_judged_by_its_length_on_the_wire() {
        let filter = Filter::compile("len = 1500", LINKTYPE_ETHERNET).unwrap();
        let meta = Meta { wire_bytes: 1500, ..Meta::default() };
        assert!(filter.matches_packet(&Packet::new(&meta, &[0; 60]), &mut Vec::new()));
        assert!(!filter.matches(&[0; 60], 60));
        assert_eq!(filter.to_string(), "len = 1500");
    }

    #[test]
    fn a_numbered_family_is_read_in_either_byte_order() {
        let rows: &[(u16, &str, [u8; 4], bool)] = &[
            (0, "ip", [2, 0, 0, 0], true),
            (0, "ip", [0, 0, 0, 2], true),
            (0, "not ip", [0, 0, 0, 2], false),
            (0, "ip", [0, 0, 0, 24], false),
            (0, "ip6", [24, 0, 0, 0], true),
            (0, "ip6", [0, 0, 0, 28], true),
            (0, "ip6", [30, 0, 0, 0], true),
            (0, "len > 3", [0, 0, 0, 9], true),
            (108, "ip", [0, 0, 0, 2], true),
            (109, "ip", [2, 0, 0, 0], true),
        ];
        for (link_type, expression, family, passes) in rows {
            let filter = Filter::compile(expression, *link_type).unwrap();
            let packet = [&family[..], &[0x45; 40]].concat();
            let verdict = filter.matches(&packet, 44);
            assert_eq!(verdict, *passes, "{expression} on link type {link_type}, {family:?}");
        }
    }

    #[test]
    fn expressions_out_of_proportion_end_soon() {
        let rows = [
            ("a long list is compiled without the optimizer", vec!["ip"; 2700].join(" or "), true),
            ("a deep nest", format!("{}ip{}", "(".repeat(7000), ")".repeat(7000)), true),
            ("a nest too deep for the parser", "(".repeat(15_000), false),
            ("one endless word", "x".repeat(15_000), false),
            ("more than is read", "ip ".repeat(6_000), false),
            ("a list without spaces", vec!["ip"; 3000].join("||"), true),
            ("a NUL byte", "ip\0".to_owned(), false),
            (
                "port ranges, whose optimizing takes minutes",
                (0..300)
                    .map(|i| format!("portrange {i}-{}", i + 3))
                    .collect::<Vec<_>>()
                    .join(" or "),
                true,
            ),
        ];
        for (sentence, expression, fine) in rows {
            let compiled = Filter::compile(&expression, LINKTYPE_ETHERNET);
            assert_eq!(compiled.is_ok(), fine, "{sentence}");
        }
    }
}
