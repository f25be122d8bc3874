//! Errors in a text that people write, and their positions: a specification of traffic, a policy.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The position of a setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Position {
    /// No position: a default.
    #[default]
    Nowhere,
    /// Bytes of the file.
    Text(Range<usize>),
    /// A flag of the command line.
    Flag(&'static str),
}

/// The text that positions refer to.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The name of the file; empty without one.
    pub name: String,
    /// The text.
    pub text: Arc<str>,
}

/// An error before its position is resolved in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its position.
    pub place: Position,
    /// The object of the error: "stream dns: udp.sport".
    pub object: String,
    /// The error and its remedy.
    pub problem: String,
}

impl Fault {
    /// Returns an error at a position.
    pub fn new(place: &Position, object: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.clone(), object: object.into(), problem: problem.into() }
    }

    /// Prefixes the object with the `whole` that it belongs to.
    #[must_use]
    pub fn within(mut self, whole: &str) -> Self {
        self.object = match self.object.as_str() {
            "" => whole.to_owned(),
            part => format!("{whole}: {part}"),
        };
        self
    }
}

/// An error in a text: position, object and remedy, then the line with marks below it.
///
/// ```
/// use sluicegate_base::text_error::{Fault, Origin, Position};
///
/// let origin = Origin { name: "mix.toml".into(), text: "sport = 70000\n".into() };
/// let error = origin.locate(Fault::new(&Position::Text(8..13), "udp.sport", "at most 65535"));
/// assert_eq!(
///     error.to_string(),
///     "mix.toml, line 1, column 9: udp.sport: at most 65535\n 1 | sport = 70000\n   |         ^^^^^"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TextError {
    message: String,
    line: Option<usize>,
    object: String,
}

impl TextError {
    /// The line of the error in the text, from 1; `None` for flags and whole files.
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// The object of the error: "stream dns: udp.sport".
    pub fn object(&self) -> &str {
        &self.object
    }
}

/// Maximum length of a line shown whole.
const MAX_EXCERPT: usize = 200;

impl Origin {
    /// Reads at most `max_bytes` of the file that was opened at `path`; `remedy` is for a longer one.
    ///
    /// # Errors
    /// The file could not be opened, cannot be read, or is longer.
    pub fn read(
        path: &Path,
        file: io::Result<File>,
        max_bytes: u64,
        remedy: &str,
    ) -> Result<Self, TextError> {
        let mut text = String::new();
        let read = file.and_then(|file| file.take(max_bytes + 1).read_to_string(&mut text));
        let problem = match read {
            Err(error) => format!("it cannot be read: {error}"),
            Ok(bytes) if bytes as u64 > max_bytes => {
                format!("it has more than {max_bytes} bytes: {remedy}")
            }
            Ok(_) => String::new(),
        };
        let origin = Self { name: path.display().to_string(), text: text.into() };
        match problem.as_str() {
            "" => Ok(origin),
            problem => Err(origin.locate(Fault::new(&Position::Nowhere, "", problem))),
        }
    }

    /// Converts a fault to an error with its position: "dns.toml, line 7, column 21".
    pub fn locate(&self, fault: Fault) -> TextError {
        let Fault { place, object, problem } = fault;
        let (position, line, excerpt) = match place {
            Position::Nowhere => (self.name.clone(), None, String::new()),
            Position::Flag(flag) => (flag.to_owned(), None, String::new()),
            Position::Text(span) => self.find(span),
        };
        let parts = [position.as_str(), object.as_str(), problem.as_str()];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        // Parts quote the text, which must not control a terminal.
        let message: String = parts.join(": ").chars().map(plain).collect();
        TextError { message: message + &excerpt, line, object }
    }

    /// Returns the position of some bytes, their line's number, and the line with marks below them.
    fn find(&self, span: Range<usize>) -> (String, Option<usize>, String) {
        let text = &*self.text;
        let from = text.floor_char_boundary(span.start);
        let begin = text[..from].rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[from..].find('\n').map_or(text.len(), |newline| from + newline);
        let to = text.floor_char_boundary(span.end).clamp(from, end);
        let line = text[..from].matches('\n').count() + 1;
        let column = text[begin..from].chars().count() + 1;
        let file = if self.name.is_empty() { String::new() } else { format!("{}, ", self.name) };
        let position = format!("{file}line {line}, column {column}");
        if end - begin > MAX_EXCERPT {
            return (position, Some(line), String::new());
        }
        // A tab stays a tab, so that the marks align with the line.
        let blank = |c: char| if c == '\t' { '\t' } else { ' ' };
        let indent: String = text[begin..from].chars().map(blank).collect();
        let marks = "^".repeat(text[from..to].trim_end().chars().count().max(1));
        let margin = " ".repeat(line.to_string().len());
        let shown: String = text[begin..end].trim_end().chars().map(plain).collect();
        let excerpt = format!("\n {line} | {shown}\n {margin} | {indent}{marks}");
        (position, Some(line), excerpt)
    }
}

fn plain(c: char) -> char {
    if c.is_control() && c != '\t' { '?' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_text_does_not_control_a_terminal() {
        let origin = Origin { name: "x".into(), text: "\u{1b}[2J = 1".into() };
        let error = origin.locate(Fault::new(&Position::Text(0..4), "", "unknown '\u{1b}[2J'"));
        let expected = "x, line 1, column 1: unknown '?[2J'\n 1 | ?[2J = 1\n   | ^^^^";
        assert_eq!(error.to_string(), expected);
    }
}
