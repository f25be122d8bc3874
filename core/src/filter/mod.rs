//! Filters: which packets to take, said in the language of pcap-filter(7).
//!
//! libpcap compiles the expression, so the language is all there; the program it makes is run
//! here, on packets of every port, or given to the kernel for a packet socket.
//!
//! ```
//! use sluicegate::filter::Filter;
//! use sluicegate::port::LINKTYPE_ETHERNET;
//!
//! let filter = Filter::compile("ether broadcast", LINKTYPE_ETHERNET)?;
//! assert!(filter.matches(&[0xff; 60], 60));
//! # Ok::<(), sluicegate::Error>(())
//! ```

mod assemble;
pub mod cbpf;
mod locate;
mod program;
mod vlan;

pub use cbpf::Instruction;
pub use locate::explain;
pub use program::{MAX_INSTRUCTIONS, MAX_KERNEL_INSTRUCTIONS, Program, Skb, VlanTag};

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::port::LINKTYPE_ETHERNET;
use crate::ring::Packet;

/// The longest expression; libpcap's compiler takes seconds for one of this length.
pub const MAX_EXPRESSION_BYTES: usize = 32 << 10;

/// Above so many words libpcap's optimizer, whose work grows with the square of the program or
/// faster, may take minutes: it is used only where the raw program turns out short.
const MANY_WORDS: usize = 256;
const LONG_PROGRAM: usize = 1 << 14;

/// A compiled filter. Clones share the program.
#[derive(Clone, Debug)]
pub struct Filter {
    expression: Arc<str>,
    link_type: u16,
    program: Arc<Program>,
}

impl Filter {
    /// Compiles a pcap-filter expression for packets of a link type (a LINKTYPE_ number). The
    /// empty expression takes every packet. Names of hosts are looked up as libpcap does.
    ///
    /// # Errors
    /// [`Error::Filter`] with the compiler's complaint and its place: an expression that is
    /// wrong, longer than [`MAX_EXPRESSION_BYTES`], or makes no sense for the link type.
    pub fn compile(expression: &str, link_type: u16) -> Result<Self> {
        let refuse = |message: String, column| Error::Filter {
            expression: expression.to_owned(),
            message,
            column,
        };
        if expression.len() > MAX_EXPRESSION_BYTES {
            let message = format!(
                "{} bytes are too long, at most {MAX_EXPRESSION_BYTES} are compiled; \
                 say address ranges as `net`",
                expression.len()
            );
            let expression = expression.chars().take(60).chain(['…']).collect();
            return Err(Error::Filter { expression, message, column: None });
        }
        if let Some(column) = expression.find('\0') {
            return Err(refuse("a NUL byte ends the expression early".into(), Some(column)));
        }
        let compiler = Compiler::new(link_type).map_err(|message| refuse(message, None))?;
        let instructions = compiler.compile_with_care(expression).map_err(|message| {
            let column =
                locate::column(expression, &message, |trial| compiler.compile(trial, false).err());
            refuse(message, column)
        })?;
        let program =
            Program::new(instructions).map_err(|error| refuse(error.to_string(), None))?;
        Ok(Self { expression: expression.into(), link_type, program: Arc::new(program) })
    }

    /// The expression it was made from.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The link type it is for: a LINKTYPE_ number.
    pub fn link_type(&self) -> u16 {
        self.link_type
    }

    /// The program, for packets as they were on the wire.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program's instructions, for packets as they were on the wire.
    pub fn instructions(&self) -> &[Instruction] {
        self.program.instructions()
    }

    /// Whether a packet passes of which `head` was captured and which had `wire_bytes` on the
    /// wire. As in `tcpdump -r`, `len`, `less` and `greater` look at `wire_bytes` and a packet
    /// too short for what the expression looks at does not pass.
    #[inline]
    pub fn matches(&self, head: &[u8], wire_bytes: u32) -> bool {
        self.program.run(head, wire_bytes) != 0
    }

    /// Whether a packet in a ring passes, all its slots together; `scratch` is used where there
    /// are several.
    #[inline]
    pub fn matches_packet(&self, packet: &Packet, scratch: &mut Vec<u8>) -> bool {
        self.matches(packet.contiguous(scratch), packet.meta().wire_bytes)
    }

    /// Whether it asks for what only the kernel knows of a packet, as `inbound` and `ifindex`
    /// do. [`matches`](Self::matches) lets no packet pass that is asked so.
    pub fn needs_kernel(&self) -> bool {
        self.program
            .ops()
            .iter()
            .any(|op| matches!(op, cbpf::Op::Load(_, k) if program::is_extension(*k)))
    }

    /// The program to attach to a packet socket (AF_PACKET, SOCK_RAW; `SO_ATTACH_FILTER`), where
    /// the outer VLAN tag is no longer in the frame: it gives the verdict that
    /// [`matches`](Self::matches) gives on the frame with the tag back at byte 12. Needs
    /// Linux 4.1 if the expression looks past the addresses of an Ethernet frame. Packets that
    /// pass are kept whole.
    ///
    /// # Errors
    /// [`Error::Filter`] where the kernel cannot run it: `protochain`, thousands of addresses.
    pub fn for_packet_socket(&self) -> Result<Vec<Instruction>> {
        vlan::for_packet_socket(&self.program, self.link_type == LINKTYPE_ETHERNET)
            .map(|program| program.instructions().to_vec())
            .map_err(|reason| Error::Filter {
                expression: self.expression.to_string(),
                message: format!(
                    "it cannot be given to a packet socket: {reason}; \
                     filter after the capture, or shorten the expression"
                ),
                column: None,
            })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.expression)
    }
}

/// libpcap's compiler for one link type.
struct Compiler {
    handle: pcap::Capture<pcap::Dead>,
}

impl Compiler {
    fn new(link_type: u16) -> Result<Self, String> {
        let handle = pcap::Capture::dead(pcap::Linktype(data_link_type(link_type)))
            .map_err(|error| complaint(&error))?;
        Ok(Self { handle })
    }

    /// Compiles, optimized where that is not out of proportion.
    fn compile_with_care(&self, expression: &str) -> Result<Vec<Instruction>, String> {
        if expression.split_ascii_whitespace().count() > MANY_WORDS {
            let raw = self.compile(expression, false)?;
            if raw.len() > LONG_PROGRAM {
                return Ok(raw);
            }
        }
        self.compile(expression, true)
    }

    fn compile(&self, expression: &str, optimize: bool) -> Result<Vec<Instruction>, String> {
        let program =
            self.handle.compile(expression, optimize).map_err(|error| complaint(&error))?;
        program
            .get_instructions()
            .iter()
            .map(|instruction| parse(&instruction.to_string()))
            .collect::<Option<_>>()
            .ok_or_else(|| "libpcap made a program that cannot be read".into())
    }
}

/// An instruction as the `pcap` crate and `tcpdump -ddd` print it: code, jt, jf, k.
fn parse(text: &str) -> Option<Instruction> {
    let mut numbers = text.split(' ').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    Some(Instruction {
        code: next()?.try_into().ok()?,
        jt: next()?.try_into().ok()?,
        jf: next()?.try_into().ok()?,
        k: next()?,
    })
}

/// What libpcap says, without saying twice that a filter expression is what does not parse.
fn complaint(error: &pcap::Error) -> String {
    let text = match error {
        pcap::Error::PcapError(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    ["can't parse filter expression: ", "syntax error in filter expression: "]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .map_or(text.clone(), str::to_owned)
}

/// The number libpcap's compiler knows a link type by: DLT_, which was given differently on
/// different systems before there were LINKTYPE_ numbers for files (libpcap's `pcap-common.c`,
/// `linktype_to_dlt`; `pcap/dlt.h` for Linux).
fn data_link_type(link_type: u16) -> i32 {
    match link_type {
        100 => 11, // ATM_RFC1483
        101 => 12, // RAW
        102 => 15, // SLIP_BSDOS
        103 => 16, // PPP_BSDOS
        106 => 19, // ATM_CLIP
        same => same.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Meta;

    #[test]
    fn link_types_of_files_are_mapped_to_libpcaps_own() {
        let rows = [
            (1, "ip", Ok("EN10MB")),
            (100, "ip", Ok("ATM_RFC1483")),
            (101, "ip6", Ok("RAW")),
            (102, "ip", Ok("SLIP_BSDOS")),
            (103, "ip", Ok("PPP_BSDOS")),
            (106, "ip", Ok("ATM_CLIP")),
            (113, "ip", Ok("LINUX_SLL")),
            (228, "udp", Ok("IPV4")),
            (276, "ip", Ok("LINUX_SLL2")),
            (220, "len > 80", Ok("USB_LINUX_MMAPPED")),
            (220, "ip", Err("not implemented")),
            (9999, "ip", Err("unknown data link type 9999")),
        ];
        for (link_type, expression, expected) in rows {
            let compiled = Filter::compile(expression, link_type);
            match expected {
                Ok(name) => {
                    compiled.expect(expression);
                    let dlt = pcap::Linktype(data_link_type(link_type));
                    assert_eq!(dlt.get_name().unwrap(), name, "link type {link_type}");
                }
                Err(reason) => {
                    let error = compiled.expect_err(expression).to_string();
                    assert!(error.contains(reason), "{link_type}: {error}");
                }
            }
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
    fn what_only_the_kernel_knows_is_told_apart() {
        for (expression, needs) in [("inbound", true), ("ifindex 1", true), ("udp", false)] {
            let filter = Filter::compile(expression, LINKTYPE_ETHERNET).unwrap();
            assert_eq!(filter.needs_kernel(), needs, "{expression}");
            assert!(filter.for_packet_socket().is_ok(), "{expression}");
        }
    }

    #[test]
    fn expressions_out_of_proportion_end_soon() {
        let rows = [
            ("a long list is compiled without the optimizer", vec!["ip"; 4000].join(" or "), true),
            ("a deep nest", format!("{}ip{}", "(".repeat(9000), ")".repeat(9000)), true),
            ("a nest too deep for the parser", "(".repeat(30_000), false),
            ("one endless word", "x".repeat(30_000), false),
            ("more than is read", "ip ".repeat(20_000), false),
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
