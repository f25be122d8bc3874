//! TCP's options: those of RFC 9293, window scale and timestamps (RFC 7323), selective acknowledgements
//! (RFC 2018). Others are shown by their numbers.

use super::bytes::{Bytes, Cut};
use super::line::{Line, name};

const END: u8 = 0;
const NOP: u8 = 1;
const MAXIMUM_SEGMENT: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

const NAMES: &[(u8, &str)] = &[
    (END, "eol"),
    (NOP, "nop"),
    (MAXIMUM_SEGMENT, "mss"),
    (WINDOW_SCALE, "wscale"),
    (SACK_PERMITTED, "sackOK"),
    (SACK, "sack"),
    (TIMESTAMPS, "TS"),
];

/// Why the options end before their time.
enum Stop {
    /// An option's length makes no sense.
    Bad,
    /// The packet is cut inside the option's value.
    Value,
    /// The packet is cut elsewhere.
    Cut(Cut),
}

impl From<Cut> for Stop {
    fn from(cut: Cut) -> Self {
        Self::Cut(cut)
    }
}

/// The options in the `room` bytes the header has for them; `base` is what the edges of a
/// selective acknowledgement are counted from. False when the line ends with them.
pub fn print(line: &mut Line, options: Bytes, room: usize, base: u32) -> Result<bool, Cut> {
    line.text(", options [");
    let mut at = 0;
    while at < room {
        let first = at == 0;
        if !first {
            line.text(",");
        }
        let kind = options.u8(at)?;
        let option = Value { bytes: options, at: at + 2, room: (room - at).saturating_sub(2) };
        match option.print(line, kind, base) {
            Ok(bytes) => at += bytes,
            Err(Stop::Cut(cut)) => return Err(cut),
            Err(Stop::Bad) => {
                line.text(if first { "[bad opt]" } else { "[bad opt]]" });
                return Ok(false);
            }
            Err(Stop::Value) => {
                line.text(if first { " [|tcp]" } else { " [|tcp]>" });
                return Ok(false);
            }
        }
        if kind == END {
            break;
        }
    }
    line.text("]");
    Ok(true)
}

/// What follows an option's kind and length.
#[derive(Clone, Copy)]
struct Value<'a> {
    bytes: Bytes<'a>,
    at: usize,
    /// Bytes to the end of the header.
    room: usize,
}

impl<'a> Value<'a> {
    /// Makes sure of the value's first `count` bytes.
    fn need(&self, count: usize) -> Result<&'a [u8], Stop> {
        if count > self.room {
            return Err(Stop::Bad);
        }
        self.bytes.slice(self.at, count).map_err(|_| Stop::Value)
    }

    fn u16(&self) -> Result<u16, Stop> {
        self.need(2)?;
        Ok(self.bytes.u16(self.at)?)
    }

    fn u32(&self, offset: usize) -> Result<u32, Stop> {
        self.need(offset + 4)?;
        Ok(self.bytes.u32(self.at + offset)?)
    }

    /// Writes the option; gives the bytes it takes.
    fn print(&self, line: &mut Line, kind: u8, base: u32) -> Result<usize, Stop> {
        let known = name(NAMES, kind);
        if kind == END || kind == NOP {
            line.text(known.unwrap_or_default());
            return Ok(1);
        }
        let length = self.bytes.u8(self.at - 1)?;
        let says = usize::from(length);
        if says < 2 || says - 2 > self.room {
            return Err(Stop::Bad);
        }
        match known {
            Some(name) => line.text(name),
            None => write!(line, "unknown-{kind}"),
        }
        let taken = 2 + self.value(line, kind, says - 2, base)?;
        if taken != says {
            write!(line, "[len {length}]");
        }
        Ok(taken)
    }

    /// Writes the value, of which the option says it has `says` bytes; gives those it takes.
    fn value(&self, line: &mut Line, kind: u8, says: usize, base: u32) -> Result<usize, Stop> {
        match kind {
            SACK_PERMITTED => return Ok(0),
            MAXIMUM_SEGMENT => {
                write!(line, " {}", self.u16()?);
                return Ok(2);
            }
            WINDOW_SCALE => {
                write!(line, " {}", self.need(1)?[0]);
                return Ok(1);
            }
            TIMESTAMPS => {
                self.need(8)?;
                write!(line, " val {} ecr {}", self.u32(0)?, self.u32(4)?);
                return Ok(8);
            }
            SACK => self.selective(line, says, base)?,
            _ if says > 0 => {
                line.text(" 0x");
                self.hex(line, says)?;
            }
            _ => {}
        }
        Ok(says)
    }

    /// Blocks of selective acknowledgement (RFC 2018).
    fn selective(&self, line: &mut Line, says: usize, base: u32) -> Result<(), Stop> {
        if !says.is_multiple_of(8) {
            line.text(" invalid sack");
            return Ok(());
        }
        write!(line, " {} ", says / 8);
        for at in (0..says).step_by(8) {
            let (from, to) = (self.u32(at)?, self.u32(at + 4)?);
            let (from, to) = (from.wrapping_sub(base), to.wrapping_sub(base));
            write!(line, "{{{from}:{to}}}");
        }
        Ok(())
    }

    /// The first bytes of the value, or those that were captured.
    fn hex(&self, line: &mut Line, count: usize) -> Result<(), Stop> {
        let captured = self.bytes.after(self.at);
        line.hex(&captured[..captured.len().min(count)], "");
        self.need(count).map(|_| ())
    }
}
