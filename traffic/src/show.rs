//! Prints each stream in a few lines, then the first packets, decoded and as bytes. Packets are decoded as by
//! a receiver, without the specification, so the listing shows the real content.

use std::fmt::{self, Write};

use etherparse::{TcpHeaderSlice, TcpOptionElement};

use crate::analyse::{Checksum, Observer, Stamp, walk};
use crate::plan::{FrameBuilder, Plan, fold};
use crate::spec::Spec;
use crate::spec::layer::{Field, Hex, Layer, Protocol, SettingValue};

/// The longest frame: sizes in a plan have 16 bits.
const MAX_FRAME_BYTES: usize = 65_535;

/// Writes the streams of `spec`, then the first `packets` packets of `plan`, its plan, for a single worker.
/// Times in packets are zero.
///
/// # Errors
/// The errors of `to`.
///
/// ```
/// use sluicegate_traffic::show::show;
/// use sluicegate_traffic::spec::{Defaults, Flags, Spec};
///
/// let flags = Flags { src: Some("198.18.0.0/16".into()), ..Flags::default() };
/// let spec = Spec::from_flags(&flags)?;
/// let plan = spec.plan(&Defaults::default())?;
/// let mut text = String::new();
/// show(&spec, &plan, 1, &mut text).expect("a String takes everything");
/// assert!(text.starts_with("stream 0: every packet, 1 flow, 60 bytes\n  ether\n  ipv4"));
/// assert!(text.contains("packet 1: stream 0, 60 bytes\n  ether    02:00:00:00:00:01 > "));
/// # Ok::<(), sluicegate_traffic::spec::SpecError>(())
/// ```
pub fn show(spec: &Spec, plan: &Plan, packets: usize, to: &mut dyn Write) -> fmt::Result {
    write_streams(spec, plan, to)?;
    if plan.turns.is_empty() {
        return Ok(());
    }
    let mut frames = FrameBuilder::new(plan, 0, 1, || 0);
    let mut room = vec![0; MAX_FRAME_BYTES];
    for number in 0..packets {
        let Some(bytes) = frames.next_into(&mut room) else { break };
        let stream = usize::from(plan.turns[number % plan.turns.len()]);
        let name = plan.streams.get(stream).map_or("", |stream| stream.name.as_str());
        writeln!(to, "\npacket {}: stream {name}, {bytes} bytes", number + 1)?;
        let stamped = spec.is_stamped(stream);
        write_lines(&decode(&room[..bytes], stamped), to)?;
        write_bytes(&room[..bytes], to)?;
    }
    Ok(())
}

/// Maximum length of a line.
const LINE: usize = 84;

/// Writes names and texts in two columns.
fn write_lines(lines: &[(String, String)], to: &mut dyn Write) -> fmt::Result {
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, text) in lines {
        let mut name = name.as_str();
        for part in wrapped(text) {
            let line = format!("  {name:width$}  {part}");
            writeln!(to, "{}", line.trim_end())?;
            name = "";
        }
    }
    Ok(())
}

/// Wraps a text after commas.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in text.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if line.is_empty() || line.len() + part.trim_end().len() <= LINE => {
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// Bytes per line of a dump.
const BYTES_A_LINE: usize = 16;
/// The width of a line's bytes: eight groups of four digits and a blank.
const WIDTH: usize = 40;

/// Writes bytes in the form of `tcpdump -X`.
fn write_bytes(bytes: &[u8], to: &mut dyn Write) -> fmt::Result {
    for (number, line) in bytes.chunks(BYTES_A_LINE).enumerate() {
        let digits: String = line.chunks(2).map(|pair| format!("{} ", Hex(pair))).collect();
        // Shows a blank as a dot, like tcpdump.
        let printable = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
        let text: String = line.iter().map(printable).collect();
        writeln!(to, "\t0x{:04x}:  {digits:WIDTH$} {text}", number * BYTES_A_LINE)?;
    }
    Ok(())
}

/// The number of list values, bytes or characters shown.
const SHOWN: usize = 8;
/// Fields that are shown even if the specification does not set them.
const ALWAYS: &[&str] =
    &["src", "dst", "sport", "dport", "spa", "tpa", "op", "type", "flags", "vni", "label"];

fn write_streams(spec: &Spec, plan: &Plan, to: &mut dyn Write) -> fmt::Result {
    for (index, stream) in spec.streams.iter().enumerate() {
        if index > 0 {
            writeln!(to)?;
        }
        let turns = plan.turns.iter().filter(|turn| usize::from(**turn) == index).count();
        let share = match (turns, plan.turns.len()) {
            (turns, all) if turns == all => "every packet".to_owned(),
            (turns, all) => format!("{turns} of {all} packets"),
        };
        let flows = match stream.flows {
            1 => "1 flow".to_owned(),
            flows => format!("{flows} flows"),
        };
        let size = match (&stream.size, plan.streams.get(index)) {
            (Some((size, _)), _) => size.to_string(),
            (None, planned) => planned.map_or(0, |stream| stream.template.len()).to_string(),
        };
        writeln!(to, "stream {}: {share}, {flows}, {size} bytes", stream.name)?;
        let line = |layer: &Layer| (layer.protocol.name.to_owned(), fields(layer).join(", "));
        write_lines(&stream.layers.iter().map(line).collect::<Vec<_>>(), to)?;
    }
    Ok(())
}

/// Formats the fields of a layer that are set, and the most important defaults.
fn fields(layer: &Layer) -> Vec<String> {
    let text = |field: &Field| {
        let text = match layer.setting(field.name).map(|setting| &setting.given) {
            Some(SettingValue::Switch(on)) => return on.then(|| field.name.to_owned()),
            Some(set) => given(field, set),
            None if !field.default.is_empty() && ALWAYS.contains(&field.name) => {
                field.default.to_owned()
            }
            None => return None,
        };
        Some(format!("{} {text}", field.name))
    };
    layer.protocol.fields.iter().filter_map(text).collect()
}

fn given(field: &Field, given: &SettingValue) -> String {
    match given {
        SettingValue::Value(value) => value.described(field.form(), SHOWN),
        SettingValue::Right => "right".into(),
        SettingValue::Bad => "bad".into(),
        SettingValue::Switch(on) => on.to_string(),
        SettingValue::Bytes(bytes) if bytes.len() <= SHOWN => Hex(bytes).to_string(),
        SettingValue::Bytes(bytes) => format!("{}… ({} bytes)", Hex(&bytes[..SHOWN]), bytes.len()),
        SettingValue::TcpOptions(options) => {
            options.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        }
    }
}

/// The line of each header. `{field}` is the field's value as a specification writes it. A part between two
/// commas is omitted if its field is absent, or zero and marked with `?`.
const LINES: &[(&str, &str)] = &[
    ("ether", "{src} > {dst}, type {type}"),
    ("vlan", "id {id}, pcp {pcp}, dei {?dei}, type {type}"),
    ("mpls", "label {label}, tc {tc}, ttl {ttl}, bottom {?bottom}"),
    ("arp", "{op}, {spa} is at {sha}, target {tpa} at {tha}"),
    (
        "ipv4",
        "{src} > {dst}, dscp {?dscp}, ecn {?ecn}, ttl {ttl}, id {id}, flags {?flags}, frag {?frag}, \
         {protocol}, length {length}, checksum {checksum}",
    ),
    (
        "ipv6",
        "{src} > {dst}, traffic class {?traffic-class}, flow label {?flow-label}, \
         hop limit {hop-limit}, {next-header}, length {length}",
    ),
    ("hop-by-hop", "{bytes} bytes, {next-header}"),
    ("routing", "{bytes} bytes, type {type}, {segments-left} segments left, {next-header}"),
    ("fragment", "id {id}, frag {?frag}, mf {?mf}, {next-header}"),
    ("destination", "{bytes} bytes, {next-header}"),
    ("udp", "{sport} > {dport}, length {length}, checksum {checksum}"),
    (
        "tcp",
        "{sport} > {dport}, {flags}, seq {seq}, ack {ack}, window {window}, urgent {?urgent}, \
         options {options}, checksum {checksum}",
    ),
    ("icmp", "{type}, code {code}, id {id}, seq {seq}, checksum {checksum}"),
    ("icmpv6", "{type}, code {code}, id {id}, seq {seq}, checksum {checksum}"),
    ("gre", "{protocol}, checksum {checksum}, key {key}, seq {seq}"),
    ("vxlan", "vni {vni}"),
    ("ah", "{bytes} bytes"),
];

/// Returns one line per header, then the payload; `stamped` packets carry a stamp.
fn decode(frame: &[u8], stamped: bool) -> Vec<(String, String)> {
    let mut shown = ShownPacket::default();
    let mut data = walk(frame, true, &mut shown).0.unwrap_or_default();
    let mut line = |name: &str, text| shown.lines.push((name.to_owned(), text));
    if stamped && let Some(Stamp { stream, worker, number, .. }) = Stamp::read(data) {
        data = &data[Stamp::BYTES..];
        let stamp = format!("stream {stream}, worker {worker}, number {number}");
        line("stamp", format!("{stamp}, and the time it is sent"));
    }
    for (name, bytes) in [("payload", data.len()), ("padding", shown.padding)] {
        if bytes > 0 {
            line(name, format!("{bytes} bytes"));
        }
    }
    shown.lines
}

/// The lines of a packet.
#[derive(Default)]
struct ShownPacket {
    lines: Vec<(String, String)>,
    padding: usize,
}

impl<'a> Observer<'a> for ShownPacket {
    fn header(&mut self, name: &'static str, bytes: &'a [u8], checksum: Checksum) {
        let line = LINES.iter().find(|(of, _)| *of == name).map_or("", |(_, line)| *line);
        let header = ShownHeader { name, bytes, checksum };
        let parts: Vec<_> = line.split(", ").filter_map(|part| header.part(part)).collect();
        self.lines.push((name.to_owned(), parts.join(", ")));
    }

    fn padding(&mut self, bytes: usize) {
        self.padding += bytes;
    }
}

struct ShownHeader<'a> {
    name: &'static str,
    bytes: &'a [u8],
    checksum: Checksum,
}

impl ShownHeader<'_> {
    /// Formats a part of a line.
    fn part(&self, part: &str) -> Option<String> {
        let mut text = String::new();
        for (place, piece) in part.split(['{', '}']).enumerate() {
            let name = piece.trim_start_matches('?');
            if place % 2 == 0 {
                text += piece;
            } else if name != piece && self.number(name) == Some(0) {
                return None;
            } else {
                text += &self.text(name)?;
            }
        }
        Some(text)
    }

    fn field(&self, name: &str) -> Option<&'static Field> {
        Protocol::find(self.name).ok()?.field(name).ok()
    }

    fn number(&self, name: &str) -> Option<u128> {
        self.field(name)?.bits?.read(self.bytes)
    }

    fn text(&self, name: &str) -> Option<String> {
        Some(match (self.name, name) {
            (_, "bytes") => self.bytes.len().to_string(),
            ("ether" | "vlan", "type") | ("gre", "protocol") => ethertype(self.number(name)?)?,
            ("gre", "checksum") => self.checksum(self.gre_word(0x80)? >> 16),
            ("gre", "key") => self.gre_word(0x20)?.to_string(),
            ("gre", "seq") => self.gre_word(0x10)?.to_string(),
            (_, "checksum") => self.checksum(self.number(name)? as u32),
            ("tcp", "options") => self.tcp_options()?,
            _ => self.field(name)?.form().write(self.number(name)?),
        })
    }

    /// Returns the optional word of a GRE header that this flag announces.
    fn gre_word(&self, wanted: u8) -> Option<u32> {
        let (flags, words) = (*self.bytes.first()?, self.bytes.as_chunks().0);
        let before =
            [0x80, 0x20, 0x10].iter().filter(|flag| **flag > wanted && flags & **flag != 0);
        let word = words.get(1 + before.count()).filter(|_| flags & wanted != 0)?;
        Some(u32::from_be_bytes(*word))
    }

    /// Formats a checksum and its state: right or wrong.
    fn checksum(&self, is: u32) -> String {
        match self.checksum {
            Checksum::Absent => "none".to_owned(),
            Checksum::Unchecked => format!("{is:#06x} (of the whole, which is not here)"),
            Checksum::Sum(0xffff) => format!("{is:#06x} (right)"),
            Checksum::Sum(sum) => {
                let without = fold(u64::from(sum) + u64::from(!(is as u16)));
                format!("{is:#06x} (wrong: {:#06x} is right)", !without)
            }
        }
    }

    /// Formats TCP options in the syntax of a specification.
    fn tcp_options(&self) -> Option<String> {
        let header = TcpHeaderSlice::from_slice(self.bytes).ok()?;
        let option = |option| match option {
            TcpOptionElement::Noop => "nop".into(),
            TcpOptionElement::MaximumSegmentSize(bytes) => format!("mss={bytes}"),
            TcpOptionElement::WindowScale(shift) => format!("wscale={shift}"),
            TcpOptionElement::SelectiveAcknowledgementPermitted => "sack-ok".into(),
            TcpOptionElement::SelectiveAcknowledgement(..) => "sack".into(),
            TcpOptionElement::Timestamp(own, other) => format!("timestamps={own} {other}"),
        };
        let options: Vec<_> = header.options_iterator().map_while(Result::ok).map(option).collect();
        (!options.is_empty()).then(|| options.join("; "))
    }
}

/// Formats an EtherType with its name, if it has one.
fn ethertype(number: u128) -> Option<String> {
    let field = Protocol::find("ether").ok()?.field("type").ok()?;
    Some(match field.form().write(number) {
        name if name.starts_with(|c: char| c.is_ascii_digit()) => format!("{number:#06x}"),
        name => format!("{name} ({number:#06x})"),
    })
}
