//! One line a packet, in the words of `tcpdump -nn`, so that what people know how to read, and
//! to search, stays what it is.
//!
//! Ethernet, ARP, IPv4, IPv6, TCP, UDP, ICMP and ICMPv6 are written as tcpdump 4.99 writes them.
//! What TCP and UDP carry is not looked into: the line ends where tcpdump would begin with it.
//! A packet cut by the snapshot length says where: `[|tcp]`. Any bytes give a line.

mod arp;
mod bytes;
mod ether;
mod flows;
mod icmp;
mod icmp6;
mod ip4;
mod ip6;
mod line;
mod link;
mod mptcp;
mod payload;
mod tcp;
mod tcp_options;
mod time;
mod udp;

use jiff::tz::TimeZone;
use sluicegate::ring::Packet;

use bytes::Cut;
use flows::Flows;
use line::Line;
pub use time::TimeFormat;
use time::{Clock, Fraction};

/// Writes packets as lines. It remembers where TCP connections began, in bounded memory, and
/// allocates nothing for a packet.
pub struct Printer {
    clock: Clock,
    flows: Flows,
    scratch: Vec<u8>,
}

impl Printer {
    /// A printer of lines with times in this form, and in this zone where the form has one.
    pub fn new(format: TimeFormat, zone: TimeZone) -> Self {
        Self { clock: Clock::new(format, zone), flows: Flows::default(), scratch: Vec::new() }
    }

    /// Shows nine digits of a second in the place of six.
    #[must_use]
    pub fn nanoseconds(mut self, nanoseconds: bool) -> Self {
        self.clock.fraction = match nanoseconds {
            true => Fraction::Nano,
            false => Fraction::Micro,
        };
        self
    }

    /// Appends the packet's line, newline included, to `out`. `link_type` is what the packet
    /// begins with (tcpdump.org/linktypes.html).
    pub fn line(&mut self, out: &mut String, link_type: u16, packet: &Packet) {
        let data = packet.contiguous(&mut self.scratch);
        let mut line = Line::new(out, &mut self.flows);
        let length = packet.meta().wire_bytes;
        if !lengths_make_sense(&mut line, data.len(), length) {
            return;
        }
        self.clock.print(&mut line, packet.meta().timestamp_ns);
        match link::print(&mut line, link_type, data, length) {
            Ok(()) => line.text("\n"),
            Err(Cut(protocol)) => writeln!(line, " [|{protocol}]"),
        }
    }
}

/// Says so where a packet's lengths contradict each other: it is not looked into.
fn lengths_make_sense(line: &mut Line, captured: usize, length: u32) -> bool {
    if captured > 0 && captured <= length as usize {
        return true;
    }
    line.text("[Invalid header:");
    match (captured, length) {
        (0, 0) => line.text(" caplen==0, len==0"),
        (0, _) => line.text(" caplen==0"),
        (_, 0) => line.text(" len==0"),
        _ => write!(line, " len({length}) < caplen({captured})"),
    }
    line.text("]\n");
    false
}
