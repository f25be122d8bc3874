//! One line a packet, in the words of `tcpdump -nn`, so that what people know how to read, and
//! to search, stays what it is.
//!
//! Ethernet, ARP, IPv4, IPv6, TCP, UDP, ICMP and ICMPv6 are written as tcpdump 4.99 writes them.
//! What TCP and UDP carry is not looked into: the line ends where tcpdump would begin with it.
//! A packet cut by the snapshot length says where: `[|tcp]`. Any bytes give a line.

mod flows;
mod icmp;
mod icmp6;
mod ip;
mod line;
mod link;
mod tcp;
mod time;

use jiff::tz::TimeZone;
use sluicegate::ring::{Direction, Packet};

use flows::Flows;
use line::{Cut, Line};
pub use time::TimeFormat;
use time::{Fraction, TimePrinter};

/// Writes packets as lines. It remembers where TCP connections began, in bounded memory, and
/// allocates nothing for a packet.
pub struct Printer {
    clock: TimePrinter,
    flows: Flows,
    link_header: bool,
    scratch: Vec<u8>,
}

impl Printer {
    /// A printer of lines with times in this form, and in this zone where the form has one.
    pub fn new(format: TimeFormat, zone: TimeZone) -> Self {
        Self {
            clock: TimePrinter::new(format, zone),
            flows: Flows::default(),
            link_header: false,
            scratch: Vec::new(),
        }
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

    /// Shows the link header, VLAN tags included, as `tcpdump -e` does.
    #[must_use]
    pub fn link_header(mut self, link_header: bool) -> Self {
        self.link_header = link_header;
        self
    }

    /// Appends the packet's line, newline included, to `out`. `link_type` is what the packet
    /// begins with (tcpdump.org/linktypes.html). With `device` the line names it and the direction.
    pub fn line(
        &mut self,
        out: &mut String,
        link_type: u16,
        device: Option<&str>,
        packet: &Packet,
    ) {
        let data = packet.contiguous(&mut self.scratch);
        let mut line = Line::new(out, &mut self.flows);
        line.link_header = self.link_header;
        let length = packet.meta().wire_bytes;
        if data.is_empty() || data.len() > length as usize {
            return writeln!(line, "[Invalid header: {} of {length} bytes]", data.len());
        }
        self.clock.print(&mut line, packet.meta().timestamp_ns);
        if let Some(device) = device {
            let direction = match packet.meta().direction {
                Direction::Out => "Out",
                _ => "In",
            };
            write!(line, "{device:<5} {direction:<3} ");
        }
        match link::print(&mut line, link_type, data, length) {
            Ok(()) => line.text("\n"),
            Err(Cut(protocol)) => writeln!(line, " [|{protocol}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;
    use sluicegate::ring::Meta;

    fn meta(wire_bytes: usize) -> Meta {
        let wire_bytes = wire_bytes as u32;
        Meta { timestamp_ns: 43_200_123_456_000, wire_bytes, ..Meta::default() }
    }

    fn line_of(link_type: u16, bytes: &[u8], wire_bytes: usize) -> String {
        let mut text = String::new();
        let mut printer = Printer::new(TimeFormat::Time, TimeZone::UTC);
        printer.line(&mut text, link_type, None, &Packet::new(&meta(wire_bytes), bytes));
        text
    }

    /// A UDP datagram of 18 bytes from 198.18.0.1:5000 to 198.18.0.2:9 in an Ethernet frame.
    fn datagram() -> Vec<u8> {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64)
            .udp(5000, 9)
            .write(&mut frame, &[0; 18])
            .expect("memory takes it");
        frame
    }

    #[test]
    fn a_packet_is_one_line_in_tcpdump_s_words() {
        let udp = datagram();
        let tagged = [&udp[..12], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5], &udp[12..]].concat();
        let shown = "12:00:00.123456 02:00:00:00:00:01 > 02:00:00:00:00:02, \
                     ethertype 802.1Q-QinQ (0x88a8), length 68: vlan 7, p 0, \
                     ethertype 802.1Q (0x8100), vlan 5, p 0, ethertype IPv4 (0x0800), \
                     198.18.0.1.5000 > 198.18.0.2.9: UDP, length 18\n";
        let mut text = String::new();
        let mut printer = Printer::new(TimeFormat::Time, TimeZone::UTC).link_header(true);
        printer.line(&mut text, 1, None, &Packet::new(&meta(68), &tagged));
        assert_eq!(text, shown, "with the link header");

        let said = "12:00:00.123456 IP 198.18.0.1.5000 > 198.18.0.2.9: UDP, length 18\n";
        let rows: &[(&str, u16, &[u8], usize, &str)] = &[
            ("a datagram", 1, &udp, 60, said),
            ("behind two VLAN tags", 1, &tagged, 68, said),
            ("without Ethernet", 101, &udp[14..], 46, said),
            (
                "cut in the UDP header",
                1,
                &udp[..40],
                60,
                "12:00:00.123456 IP 198.18.0.1.5000 > 198.18.0.2.9:  [|udp]\n",
            ),
            (
                "cut before the ports",
                1,
                &udp[..35],
                60,
                "12:00:00.123456 IP 198.18.0.1 > 198.18.0.2:  [|udp]\n",
            ),
            ("cut in the IP header", 1, &udp[..20], 60, "12:00:00.123456 IP  [|ip]\n"),
            ("cut in the Ethernet header", 1, &udp[..13], 60, "12:00:00.123456  [|ether]\n"),
            (
                "an unknown type",
                1,
                &[2; 20],
                60,
                "12:00:00.123456 02:02:02:02:02:02 > 02:02:02:02:02:02, 802.3, length 60\n",
            ),
            (
                "an unknown link type",
                147,
                &[0; 20],
                60,
                "12:00:00.123456 link type 147, length 60 (20 captured)\n",
            ),
            ("nothing", 1, &[], 60, "[Invalid header: 0 of 60 bytes]\n"),
        ];
        for (what, link_type, bytes, wire_bytes, expected) in rows {
            assert_eq!(line_of(*link_type, bytes, *wire_bytes), *expected, "{what}");
        }
    }

    #[test]
    fn nanoseconds_are_shown_where_asked_for() {
        let mut text = String::new();
        let mut printer = Printer::new(TimeFormat::Time, TimeZone::UTC).nanoseconds(true);
        printer.line(&mut text, 1, None, &Packet::new(&meta(60), &datagram()));
        assert!(text.starts_with("12:00:00.123456000 IP "), "{text}");
    }

    #[test]
    fn headers_inside_each_other_end_somewhere() {
        let header = [0x45, 0, 0xff, 0xff, 0, 0, 0, 0, 64, 4, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
        let nested = header.repeat(3000);
        let line = line_of(101, &nested, nested.len());
        assert!(line.ends_with("[nested too deep]\n"), "{line}");
    }

    proptest! {
        #[test]
        fn any_bytes_give_one_line(
            link_type in prop_oneof![
                Just(0), Just(1), Just(101), Just(113), Just(228), Just(229), Just(276), any::<u16>(),
            ],
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            missing in 0_usize..3000,
        ) {
            let line = line_of(link_type, &bytes, bytes.len() + missing);
            prop_assert!(line.ends_with('\n') && line.lines().count() == 1, "{}", line);
        }

        #[test]
        fn any_header_after_ip_gives_one_line(
            version in prop_oneof![Just(4_u8), Just(6)],
            protocol in prop_oneof![
                Just(0_u8), Just(1), Just(4), Just(6), Just(17), Just(43), Just(44), Just(50),
                Just(51), Just(58), Just(60), Just(132), Just(143), any::<u8>(),
            ],
            mut bytes in proptest::collection::vec(any::<u8>(), 40..200),
        ) {
            bytes[0] = version << 4 | 5;
            // Most often a length that fits, so that the rest is looked at.
            bytes[2] = 0;
            bytes[4] = 0;
            bytes[if version == 4 { 9 } else { 6 }] = protocol;
            let line = line_of(101, &bytes, bytes.len());
            prop_assert!(line.ends_with('\n') && line.lines().count() == 1, "{}", line);
        }
    }
}
