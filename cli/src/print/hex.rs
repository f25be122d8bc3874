//! The bytes of a packet below its line, as tcpdump's `-x`, `-X` and `-A` show them.

use super::line::Line;

/// The bytes shown of each packet.
#[derive(Clone, Copy, Debug)]
pub struct HexDump {
    pub hex: bool,
    pub ascii: bool,
    /// Includes the link-layer header.
    pub link_header: bool,
}

/// Bytes in a row, and the width of their digits in groups of two.
const ROW: usize = 16;
const DIGITS: usize = ROW / 2 * 5;

impl HexDump {
    /// Writes bytes, each row with its newline.
    pub fn print(self, line: &mut Line, bytes: &[u8]) {
        match self.hex {
            true => self.rows(line, bytes),
            false => text(line, bytes),
        }
    }

    fn rows(self, line: &mut Line, bytes: &[u8]) {
        for (row, bytes) in bytes.chunks(ROW).enumerate() {
            write!(line, "\t{:#06x}: ", row * ROW);
            let start = line.mark();
            for group in bytes.chunks(2) {
                line.text(" ");
                line.hex(group, "");
            }
            if self.ascii {
                let digits = line.mark() - start;
                write!(line, "{:1$}  ", "", DIGITS - digits);
                for &byte in bytes {
                    line.char(if byte.is_ascii_graphic() { byte } else { b'.' });
                }
            }
            line.text("\n");
        }
    }
}

/// Writes the bytes as text. Line ends and tabs stay. A carriage return is omitted before a line end, and where it is
/// one of the last two bytes, as tcpdump does.
fn text(line: &mut Line, bytes: &[u8]) {
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'\r' if at + 2 >= bytes.len() || bytes[at + 1] == b'\n' => {}
            b'\n' | b'\t' | b' '..=b'~' => line.char(byte),
            _ => line.char(b'.'),
        }
    }
    line.text("\n");
}
