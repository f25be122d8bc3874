//! Prints each stream in a few lines, then the first packets: a line each, and the bytes.

use std::fmt::{self, Write};

use crate::plan::{FrameBuilder, Plan};
use crate::source::StreamLimits;
use crate::spec::Spec;
use crate::spec::layer::{Field, FieldKind, Hex, Layer, SettingValue};

/// The longest frame: sizes in a plan have 16 bits.
const MAX_FRAME_BYTES: usize = 65_535;

/// Writes the streams of `spec`, then the first `packets` packets of `plan`, its plan, for a single worker.
/// Times in packets are zero. `line` formats the line of a packet, with its end.
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
/// let line = |bytes: &[u8]| format!("to {:02x}…\n", bytes[0]);
/// show(&spec, &plan, 1, line, &mut text).expect("a String takes everything");
/// assert!(text.starts_with("stream 0: every packet, 1 flow, 60 bytes\n  ether\n  ipv4"));
/// assert!(text.contains("packet 1: stream 0, 60 bytes\nto 02…\n\t0x0000:  "));
/// # Ok::<(), sluicegate_traffic::spec::SpecError>(())
/// ```
pub fn show(
    spec: &Spec,
    plan: &Plan,
    packets: usize,
    mut line: impl FnMut(&[u8]) -> String,
    to: &mut dyn Write,
) -> fmt::Result {
    write_streams(spec, plan, to)?;
    if plan.turns.is_empty() {
        return Ok(());
    }
    let mut frames = FrameBuilder::new(plan, 0, 1, || 0);
    let mut room = vec![0; MAX_FRAME_BYTES];
    let mut limits = StreamLimits::of(plan, (0, 1));
    for number in 0..packets {
        if let Some(limits) = &mut limits {
            if limits.is_over() {
                break;
            }
            frames.skip(limits.turns_to_open(frames.turn()));
            limits.take(frames.next_stream(), frames.turns());
        }
        let stream = frames.next_stream();
        let Some(bytes) = frames.next_into(&mut room) else { break };
        let name = plan.streams.get(stream).map_or("", |stream| stream.name.as_str());
        writeln!(to, "\npacket {}: stream {name}, {bytes} bytes", number + 1)?;
        to.write_str(&line(&room[..bytes]))?;
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
/// Bytes of a text that are shown, a DNS name's at least.
const MAX_TEXT: usize = 256;
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
        let count = stream.count.map_or_else(String::new, |count| format!(", {count} in all"));
        writeln!(to, "stream {}: {share}{count}, {flows}, {size} bytes", stream.name)?;
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
        SettingValue::Bytes(bytes) if matches!(field.kind, FieldKind::Text) => written(bytes),
        SettingValue::Bytes(bytes) if bytes.len() <= SHOWN => Hex(bytes).to_string(),
        SettingValue::Bytes(bytes) => format!("{}… ({} bytes)", Hex(&bytes[..SHOWN]), bytes.len()),
        SettingValue::TcpOptions(options) => {
            options.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        }
    }
}

/// Formats a text: a name as it is, other texts in quotation marks.
fn written(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let end = text.floor_char_boundary(MAX_TEXT);
    let shown = match text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',') {
        true => text[..end].to_owned(),
        false => format!("{:?}", &text[..end]),
    };
    if end < text.len() { format!("{shown}… ({} bytes)", bytes.len()) } else { shown }
}
