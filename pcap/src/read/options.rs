//! The options at the end of pcapng's blocks, and the interface clock that they set.

use std::fmt;

use super::source::{ByteOrder, Fields};
use crate::codes::option;
use sluicegate_base::ring::{Direction, Interface, Meta};

/// Maximum length of a name or description; the rest is cut.
const MAX_TEXT_BYTES: usize = 1024;

/// A list of options, read to its end or to the first truncated option.
#[derive(Clone, Debug)]
pub(super) struct BlockOptions<'a> {
    fields: Fields<'a>,
    order: ByteOrder,
}

impl<'a> BlockOptions<'a> {
    pub(super) fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { fields: Fields::new(bytes, order), order }
    }

    /// Returns true if no bytes are left.
    pub(super) fn is_empty(&self) -> bool {
        self.fields.rest().is_empty()
    }

    /// Returns the comments on a block.
    pub(super) fn comments(self) -> impl Iterator<Item = &'a [u8]> {
        self.until_end().filter_map(|(code, value)| (code == option::COMMENT).then_some(value))
    }

    /// Returns the card's queue that a packet came from (`epb_queue`).
    pub(super) fn queue(self) -> Option<u32> {
        let order = self.order;
        self.until_end()
            .find(|(code, value)| *code == option::EPB_QUEUE && value.len() == 4)
            .and_then(|(_, value)| Fields::new(value, order).u32())
    }

    /// Adds the values of a packet's options (`epb_flags`, `epb_dropcount`) to its metadata.
    pub(super) fn annotate(self, meta: &mut Meta) {
        let order = self.order;
        for (code, value) in self.until_end() {
            let mut value_fields = Fields::new(value, order);
            match (code, value.len()) {
                (option::EPB_FLAGS, 4) => {
                    meta.direction = match value_fields.u32().unwrap_or(0) & 3 {
                        1 => Direction::In,
                        2 => Direction::Out,
                        _ => Direction::Unknown,
                    };
                }
                (option::EPB_DROPCOUNT, 8) => {
                    let dropped = value_fields.u64().unwrap_or(0);
                    meta.drops_before = u32::try_from(dropped).unwrap_or(u32::MAX);
                }
                _ => {}
            }
        }
    }

    fn until_end(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        self.take_while(|(code, _)| *code != option::END)
    }
}

/// Yields each option's code and value.
impl<'a> Iterator for BlockOptions<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let mut fields = self.fields.clone();
        let (code, length) = fields.u16().zip(fields.u16())?;
        let value = fields.take(usize::from(length))?;
        fields.take(value.len().next_multiple_of(4) - value.len())?;
        self.fields = fields;
        Some((code, value))
    }
}

/// Fills in an interface from its description's options and returns its clock. Damaged options are an error:
/// without the clock, an interface's times have no meaning.
pub(super) fn describe(
    mut options: BlockOptions<'_>,
    to: &mut Interface,
) -> Result<Resolution, String> {
    let order = options.order;
    let mut clock = Resolution::default();
    let (mut resolution_seen, mut offset_seen) = (false, false);
    let mut remark = |text: &str| add_remark(&mut to.comment, text);
    while !options.fields.rest().is_empty() {
        let (code, value) = options.next().ok_or("an interface's option is cut short")?;
        match (code, value) {
            (option::END, []) => break,
            (option::IF_TSRESOL, [resolution]) if !resolution_seen => {
                resolution_seen = true;
                clock = clock.with_resolution(*resolution).ok_or_else(|| {
                    format!("an interface's clock is too fine (if_tsresol {resolution:#x})")
                })?;
            }
            (option::IF_TSOFFSET, _) if value.len() == 8 && !offset_seen => {
                offset_seen = true;
                let offset = Fields::new(value, order).u64().unwrap_or(0);
                clock.offset_s = offset.cast_signed();
            }
            (option::END | option::IF_TSRESOL | option::IF_TSOFFSET, _) => {
                return Err(format!(
                    "an interface's option {code} occurs twice or has the wrong length"
                ));
            }
            (option::IF_NAME, _) => to.name = text(value),
            (option::IF_DESCRIPTION | option::COMMENT, _) => remark(&text(value)),
            (option::IF_OS, _) => remark(&format!("captured on {}", text(value))),
            (option::IF_FCSLEN, [n]) => remark(&format!("frame check sequence of {n} bytes")),
            _ => {}
        }
    }
    if clock != Resolution::default() {
        remark(&clock.to_string());
    }
    Ok(clock)
}

/// Adds a remark to a comment of bounded length. A comment that a reader of this crate made and a writer kept
/// has the remark already.
fn add_remark(comment: &mut String, remark: &str) {
    let is_known = comment.split("; ").any(|known| known == remark);
    if remark.is_empty() || is_known || comment.len() + remark.len() > 2 * MAX_TEXT_BYTES {
        return;
    }
    if !comment.is_empty() {
        comment.push_str("; ");
    }
    comment.push_str(remark);
}

/// Makes text from a file safe for a terminal: no control characters, no invalid UTF-8, bounded length.
pub(super) fn text(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(MAX_TEXT_BYTES)];
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect::<String>()
        .trim()
        .to_owned()
}

/// A clock's resolution and offset, as pcapng's `if_tsresol` and `if_tsoffset` give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resolution {
    resolution: u8,
    ticks_per_second: u64,
    /// The clock's zero, in seconds after 1970.
    offset_s: i64,
}

/// The highest bit of `if_tsresol`: set for a power of two, clear for a power of ten.
const BINARY: u8 = 0x80;

impl Default for Resolution {
    /// Microseconds since 1970.
    fn default() -> Self {
        Self { resolution: 6, ticks_per_second: 1_000_000, offset_s: 0 }
    }
}

impl Resolution {
    /// Sets a tick to 10^-n seconds, or to 2^-n if the highest bit is set. `None` if the ticks of a second do
    /// not fit 64 bits.
    pub(super) fn with_resolution(self, resolution: u8) -> Option<Self> {
        let exponent = u32::from(resolution & !BINARY);
        let base: u64 = if resolution & BINARY == 0 { 10 } else { 2 };
        Some(Self { resolution, ticks_per_second: base.checked_pow(exponent)?, ..self })
    }

    /// Converts ticks to nanoseconds since 1970. A time that does not fit 64 bits (1970 to 2554) becomes the
    /// nearest that does.
    #[inline]
    pub(super) fn nanoseconds(&self, ticks: u64) -> u64 {
        const NS: u64 = 1_000_000_000;
        let seconds = ticks / self.ticks_per_second;
        let rest = ticks % self.ticks_per_second;
        let fraction = match self.ticks_per_second {
            1_000_000 => rest * 1000,
            NS => rest,
            ticks_per_second => {
                // The result is below 10^9 for every resolution.
                (u128::from(rest) * u128::from(NS) / u128::from(ticks_per_second)) as u64
            }
        };
        let seconds = i128::from(seconds) + i128::from(self.offset_s);
        let ns = seconds * i128::from(NS) + i128::from(fraction);
        u64::try_from(ns).unwrap_or(if ns < 0 { 0 } else { u64::MAX })
    }
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = if self.resolution & BINARY == 0 { 10 } else { 2 };
        write!(f, "clock ticks of {base}^-{} s", self.resolution & !BINARY)?;
        if self.offset_s != 0 {
            write!(f, ", {:+} s", self.offset_s)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(bytes: &[u8]) -> Result<(Interface, Resolution), String> {
        let mut interface =
            Interface { name: String::new(), link_type: 1, snaplen: 0, comment: String::new() };
        let clock = describe(BlockOptions::new(bytes, ByteOrder::Little), &mut interface)?;
        Ok((interface, clock))
    }

    #[test]
    fn an_interface_is_described_by_its_options() {
        let bytes = b"\x02\0\x04\0eth0\x03\0\x03\0up\x1b\0\x09\0\x01\0\x09\0\0\0\
            \x0e\0\x08\0\x02\0\0\0\0\0\0\0\0\0\0\0\x02\0\x04\0eth1";
        let (interface, clock) = described(bytes).unwrap();
        assert_eq!(interface.name, "eth0", "what follows the end is no option");
        assert_eq!(interface.comment, "up; clock ticks of 10^-9 s, +2 s");
        assert_eq!(clock.nanoseconds(5), 2_000_000_005);
    }

    #[test]
    fn a_description_whose_clock_is_in_doubt_is_refused() {
        for (why, bytes) in [
            ("a resolution of two bytes", &b"\x09\0\x02\0\x06\x06\0\0"[..]),
            ("two resolutions", b"\x09\0\x01\0\x06\0\0\0\x09\0\x01\0\x06\0\0\0"),
            ("a resolution of 10^-20", b"\x09\0\x01\0\x14\0\0\0"),
            ("an offset of four bytes", b"\x0e\0\x04\0\0\0\0\0"),
            ("an end that has a length", b"\0\0\x04\0\0\0\0\0"),
            ("an option cut short", b"\x02\0\x08\0eth0"),
            ("half an option header", b"\x02\0"),
        ] {
            assert!(described(bytes).is_err(), "{why}");
        }
    }

    #[test]
    fn a_packet_says_where_it_went_and_what_was_lost_before_it() {
        let bytes = b"\x02\0\x04\0\x02\0\0\0\x04\0\x08\0\x05\0\0\0\0\0\0\0\
            \x06\0\x04\0\x03\0\0\0\x01\0\x02\0hi\0\0\x01\0\x03\0you\0\0\0\0\0\x01\0\x02\0no\0\0";
        let options = BlockOptions::new(bytes, ByteOrder::Little);
        let mut meta = Meta::default();
        options.clone().annotate(&mut meta);
        assert_eq!((meta.direction, meta.drops_before), (Direction::Out, 5));
        assert_eq!(options.clone().queue(), Some(3));
        assert_eq!(options.comments().collect::<Vec<_>>(), [&b"hi"[..], b"you"]);
    }

    #[test]
    fn ticks_become_nanoseconds() {
        for (why, resolution, offset_s, ticks, ns) in [
            ("microseconds", 6, 0, 1_700_000_000_123_456, 1_700_000_000_123_456_000),
            ("nanoseconds", 9, 0, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
            ("whole seconds", 0, 0, 1_700_000_000, 1_700_000_000_000_000_000),
            ("finer than a nanosecond is cut", 12, 0, 1_999, 1),
            ("the finest power of ten", 19, 0, 10_000_000_000, 1),
            ("half a second of a binary clock", 0x80 | 10, 0, 512, 500_000_000),
            ("the finest power of two", 0x80 | 63, 0, 1 << 62, 500_000_000),
            ("an offset moves the zero", 6, 3, 1, 3_000_001_000),
            ("an offset goes both ways", 6, -3, 4_000_000, 1_000_000_000),
            ("before 1970 is 1970", 6, -3, 1, 0),
            ("after 2554 is 2554", 0, 0, u64::MAX, u64::MAX),
        ] {
            let clock = Resolution::default().with_resolution(resolution).unwrap();
            assert_eq!(Resolution { offset_s, ..clock }.nanoseconds(ticks), ns, "{why}");
        }
    }

    #[test]
    fn a_tick_too_fine_to_count_is_refused() {
        assert_eq!(Resolution::default().with_resolution(20), None);
        assert_eq!(Resolution::default().with_resolution(0x80 | 64), None);
    }
}
