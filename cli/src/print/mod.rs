//! Prints one line per packet, in the words of `tcpdump -nn`, which people know how to read and search; or one
//! JSON object.
//!
//! Ethernet, ARP, IPv4, IPv6, TCP, UDP, ICMP and ICMPv6 have the format of tcpdump 4.99. Of payloads
//! of TCP and UDP, only DNS is decoded: other lines end where tcpdump would begin with them. The line of a
//! truncated packet names the truncated header: `[|tcp]`. Any bytes give a line.

mod dns;
mod hex;
mod icmp;
mod icmp6;
mod ip;
mod json;
mod line;
mod link;
mod protocols;
mod tcp;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use sluicegate::ring::{Direction, Packet};

pub use hex::HexDump;
use line::{Cut, Flows, Line};
pub use link::{ethertype_name, find as find_headers};
pub use protocols::protocol_name;

/// Writes packets as lines. It stores the initial sequence numbers of TCP connections, in bounded memory, and
/// allocates nothing per packet.
pub struct Printer {
    pub clock: TimePrinter,
    flows: Flows,
    /// Shows the link header, VLAN tags included, as `tcpdump -e` does.
    pub link_header: bool,
    /// Shows less of TCP, as `tcpdump -q` does.
    pub quiet: bool,
    /// Shows sequence numbers as they are, as `tcpdump -S` does.
    pub absolute: bool,
    /// Writes JSON objects in place of lines.
    pub json: bool,
    /// Shows bytes below the line.
    pub hex_dump: Option<HexDump>,
    scratch: Vec<u8>,
}

impl Printer {
    /// Creates a printer of lines with times in this format, and in this zone if the format uses one.
    pub fn new(format: TimeFormat, zone: TimeZone) -> Self {
        Self {
            clock: TimePrinter::new(format, zone),
            flows: Flows::default(),
            link_header: false,
            quiet: false,
            absolute: false,
            json: false,
            hex_dump: None,
            scratch: Vec::new(),
        }
    }

    /// Appends the packet's line, newline included, to `out`. `link_type` is the type of the packet's first
    /// header (tcpdump.org/linktypes.html). With `device` the line names it and the direction; an object has
    /// it as it is, a JSON string.
    pub fn line(
        &mut self,
        out: &mut String,
        link_type: u16,
        device: Option<&str>,
        packet: &Packet,
    ) {
        let data = packet.contiguous(&mut self.scratch);
        if self.json {
            return json::print(out, link_type, device.unwrap_or_default(), packet, data);
        }
        let mut line = Line::new(out, &mut self.flows);
        (line.link_header, line.quiet, line.absolute) =
            (self.link_header, self.quiet, self.absolute);
        let length = packet.meta().wire_bytes;
        if data.is_empty() || data.len() > length as usize {
            return writeln!(line, "[Invalid header: {} of {length} bytes]", data.len());
        }
        self.clock.print(&mut line, packet.meta().timestamp_ns);
        if let Some(device) = device {
            let is_sent = packet.meta().direction == Direction::Out;
            let direction = if is_sent { "Out" } else { "In" };
            write!(line, "{device:<5} {direction:<3} ");
        }
        match link::print(&mut line, link_type, data, length) {
            Ok(()) => line.text("\n"),
            Err(Cut(protocol)) => writeln!(line, " [|{protocol}]"),
        }
        if let Some(dump) = self.hex_dump {
            let from = if dump.link_header { 0 } else { line.link_bytes };
            dump.print(&mut line, &data[from.min(data.len())..]);
        }
    }
}

/// The format of a line's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TimeFormat {
    /// `12:00:00.123456`, local time
    #[default]
    Time,
    /// `2026-11-20 12:00:00.123456`, local time
    Date,
    /// `1795176000.123456`: seconds since 1970
    Epoch,
    /// ` 00:00:00.000123`: since the line before
    Delta,
    /// ` 00:00:01.000123`: since the first line
    Elapsed,
    /// Nothing
    None,
}

/// Writes times; formats each second only once.
pub struct TimePrinter {
    format: TimeFormat,
    zone: TimeZone,
    /// Shows nine digits of a second instead of six.
    pub nanoseconds: bool,
    second: Option<u64>,
    text: String,
}

impl TimePrinter {
    pub fn new(format: TimeFormat, zone: TimeZone) -> Self {
        Self { format, zone, nanoseconds: false, second: None, text: String::new() }
    }

    /// Writes a time, given in nanoseconds since 1970, and a blank. The times between lines are written with
    /// the lines, in their order.
    pub fn print(&mut self, line: &mut Line, timestamp_ns: u64) {
        const NS: u64 = 1_000_000_000;
        if matches!(self.format, TimeFormat::None | TimeFormat::Delta | TimeFormat::Elapsed) {
            return;
        }
        let (second, ns) = (timestamp_ns / NS, timestamp_ns % NS);
        if self.second != Some(second) {
            self.text = self.format(second);
            self.second = Some(second);
        }
        line.text(&self.text);
        let (digits, fraction) = if self.nanoseconds { (9, ns) } else { (6, ns / 1000) };
        write!(line, ".{fraction:0digits$} ");
    }

    fn format(&self, second: u64) -> String {
        // 64 bits of nanoseconds end in the year 2554, dates in 9999.
        let time = Timestamp::from_second(second as i64).unwrap_or(Timestamp::MAX);
        let time = self.zone.to_datetime(time);
        match self.format {
            TimeFormat::Time => time.strftime("%H:%M:%S").to_string(),
            TimeFormat::Date => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            TimeFormat::Epoch => second.to_string(),
            TimeFormat::None | TimeFormat::Delta | TimeFormat::Elapsed => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use proptest::prelude::*;
    use sluicegate::ring::Meta;

    use super::*;

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
        let mut printer = Printer::new(TimeFormat::Time, TimeZone::UTC);
        printer.link_header = true;
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
        let mut printer = Printer::new(TimeFormat::Time, TimeZone::UTC);
        printer.clock.nanoseconds = true;
        printer.line(&mut text, 1, None, &Packet::new(&meta(60), &datagram()));
        assert!(text.starts_with("12:00:00.123456000 IP "), "{text}");
    }

    #[test]
    fn nested_headers_end_at_a_limit() {
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
            // Usually a length that fits, so that the rest is decoded.
            bytes[2] = 0;
            bytes[4] = 0;
            bytes[if version == 4 { 9 } else { 6 }] = protocol;
            let line = line_of(101, &bytes, bytes.len());
            prop_assert!(line.ends_with('\n') && line.lines().count() == 1, "{}", line);
        }
    }

    proptest! {
        #[test]
        fn any_dns_message_gives_one_printable_line(
            port in prop_oneof![Just(53), Just(5353)],
            tcp in any::<bool>(),
            flags in prop_oneof![Just(0x81_u8), any::<u8>()],
            counts in proptest::array::uniform4(0_u8..4),
            // Bytes that are lengths, types and pointers.
            rest in proptest::collection::vec(
                prop_oneof![Just(0), Just(1), Just(12), Just(16), Just(33), Just(0xc0), any::<u8>()],
                0..200,
            ),
        ) {
            let [questions, answers, authorities, additional] = counts;
            let header = [1, 2, flags, 0x80, 0, questions, 0, answers, 0, authorities, 0, additional];
            let message = [&header, rest.as_slice()].concat();
            let builder = PacketBuilder::ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64);
            let mut bytes = Vec::new();
            if tcp {
                let payload = [&(message.len() as u16).to_be_bytes(), message.as_slice()].concat();
                builder.tcp(40_000, port, 1, 500).write(&mut bytes, &payload)
            } else {
                builder.udp(40_000, port).write(&mut bytes, &message)
            }
            .expect("memory takes it");
            let line = line_of(101, &bytes, bytes.len());
            let text = line.strip_suffix('\n').expect("a line");
            prop_assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{:?}", text);
        }
    }

    #[test]
    fn a_time_is_written_in_each_form() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        // 20 November 2026, 11:00:00 UTC, 123456789 ns.
        let ns = 1_795_172_400_123_456_789;
        let cases = [
            ("local time", TimeFormat::Time, false, "12:00:00.123456 "),
            ("nanoseconds", TimeFormat::Time, true, "12:00:00.123456789 "),
            ("with the date", TimeFormat::Date, false, "2026-11-20 12:00:00.123456 "),
            ("since 1970", TimeFormat::Epoch, false, "1795172400.123456 "),
            ("without", TimeFormat::None, false, ""),
        ];
        for (what, format, nanoseconds, expected) in cases {
            let mut clock = TimePrinter::new(format, berlin.clone());
            clock.nanoseconds = nanoseconds;
            let (mut text, mut flows) = (String::new(), Flows::default());
            clock.print(&mut Line::new(&mut text, &mut flows), ns);
            assert_eq!(text, expected, "{what}");
        }
    }

    #[test]
    fn the_cached_second_is_the_printed_one() {
        let mut clock = TimePrinter::new(TimeFormat::Time, TimeZone::UTC);
        let (mut text, mut flows) = (String::new(), Flows::default());
        let mut line = Line::new(&mut text, &mut flows);
        for second in [0, 0, 1, 59, 60, 0] {
            clock.print(&mut line, second * 1_000_000_000);
        }
        assert_eq!(
            text,
            "00:00:00.000000 00:00:00.000000 00:00:01.000000 \
             00:00:59.000000 00:01:00.000000 00:00:00.000000 "
        );
    }

    #[test]
    fn the_latest_time_has_a_date() {
        let mut clock = TimePrinter::new(TimeFormat::Date, TimeZone::UTC);
        let (mut text, mut flows) = (String::new(), Flows::default());
        clock.print(&mut Line::new(&mut text, &mut flows), u64::MAX);
        assert_eq!(text, "2554-07-21 23:34:33.709551 ");
    }
}
