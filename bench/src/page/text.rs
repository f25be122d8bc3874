//! Words and numbers on a page.

use std::fmt::{self, Display, Write};

/// Text, with the characters that would be markup written otherwise, and those that XML cannot have
/// replaced.
pub struct Escaped<'a>(pub &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\n' | '\t' => f.write_char(c)?,
                '\u{fffe}' | '\u{ffff}' => f.write_char(char::REPLACEMENT_CHARACTER)?,
                _ if c.is_control() => f.write_char(char::REPLACEMENT_CHARACTER)?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup() {
        assert_eq!(Escaped("a<b & \"c\">").to_string(), "a&lt;b &amp; &quot;c&quot;&gt;");
        assert_eq!(Escaped("a\0\u{1b}\u{ffff}\nb").to_string(), "a\u{fffd}\u{fffd}\u{fffd}\nb");
    }
}
