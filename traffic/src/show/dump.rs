//! Bytes with offsets, as `tcpdump -XX` prints them.

use std::fmt::{self, Write};

/// Bytes a line.
const LINE: usize = 16;
/// What the bytes of a line take: eight times four digits and a blank.
const WIDTH: usize = 40;

pub(super) fn write(bytes: &[u8], to: &mut dyn Write) -> fmt::Result {
    for (number, line) in bytes.chunks(LINE).enumerate() {
        let mut digits = String::with_capacity(WIDTH);
        for pair in line.chunks(2) {
            for byte in pair {
                write!(digits, "{byte:02x}")?;
            }
            digits.push(' ');
        }
        let text: String = line.iter().map(|byte| printable(*byte)).collect();
        writeln!(to, "\t0x{:04x}:  {digits:WIDTH$} {text}", number * LINE)?;
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
