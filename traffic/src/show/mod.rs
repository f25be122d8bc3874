//! Prints streams in a few lines each, then the first packets, decoded and as bytes.
//!
//! | module | what it knows |
//! | --- | --- |
//! | `streams` | layers, fields, what varies and how |
//! | `decode` | what headers there are in bytes, and whether their checksums are right |
//! | `transport` | the same of what is above IP |
//! | `dump` | bytes with offsets, as `tcpdump -XX` prints them |

mod decode;
mod streams;
mod transport;

use std::fmt::{self, Write};

use crate::plan::{Frames, Plan};
use crate::spec::Spec;

/// The longest frame: sizes in a plan have 16 bits.
const LONGEST: usize = 65_535;

/// Writes what is sent: the streams of `spec`, then of `plan`, which was made from it, the first
/// `packets` packets of the first of one worker. Times in packets are zero.
///
/// # Errors
/// Only those of `to`.
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
    streams::write(spec, plan, to)?;
    if plan.turns.is_empty() {
        return Ok(());
    }
    let mut frames = Frames::new(plan, 0, 1, || 0);
    let mut room = vec![0; LONGEST];
    for number in 0..packets {
        let Some(bytes) = frames.next_into(&mut room) else { break };
        let stream = usize::from(plan.turns[number % plan.turns.len()]);
        let name = plan.streams.get(stream).map_or("", |stream| stream.name.as_str());
        writeln!(to, "\npacket {}: stream {name}, {bytes} bytes", number + 1)?;
        let stamped = spec.is_stamped(stream);
        write_lines(&decode::decode(&room[..bytes], stamped), to)?;
        write_bytes(&room[..bytes], to)?;
    }
    Ok(())
}

/// Where a line goes on in the next.
const LINE: usize = 84;

/// Layers and what is to be said of them, one below the other.
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

/// A text in lines, broken behind commas.
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

/// Bytes a line of a dump.
const BYTES_A_LINE: usize = 16;
/// Width of a line's bytes: eight groups of four digits and a blank.
const WIDTH: usize = 40;

/// Writes bytes as tcpdump -X does.
fn write_bytes(bytes: &[u8], to: &mut dyn Write) -> fmt::Result {
    for (number, line) in bytes.chunks(BYTES_A_LINE).enumerate() {
        let mut digits = String::with_capacity(WIDTH);
        for pair in line.chunks(2) {
            for byte in pair {
                write!(digits, "{byte:02x}")?;
            }
            digits.push(' ');
        }
        let text: String = line.iter().map(|byte| printable(*byte)).collect();
        writeln!(to, "\t0x{:04x}:  {digits:WIDTH$} {text}", number * BYTES_A_LINE)?;
    }
    Ok(())
}

fn printable(byte: u8) -> char {
    match byte {
        // As there, a blank is none.
        b'!'..=b'~' => byte.into(),
        _ => '.',
    }
}
