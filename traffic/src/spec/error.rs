//! Errors in a specification, and their positions.

use std::ops::Range;
use std::sync::Arc;

/// The position of a setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Position {
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
pub(crate) struct Origin {
    /// The name of the file; empty without one.
    pub(crate) name: String,
    pub(crate) text: Arc<str>,
}

/// An error before its position is resolved in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) place: Position,
    /// The object of the error: "stream dns: udp.sport".
    pub(crate) object: String,
    /// The error and its remedy.
    pub(crate) problem: String,
}

impl Fault {
    pub(crate) fn new(
        place: &Position,
        object: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self { place: place.clone(), object: object.into(), problem: problem.into() }
    }

    /// Prefixes the object with the `whole` that it belongs to.
    pub(crate) fn within(mut self, whole: &str) -> Self {
        self.object = match self.object.as_str() {
            "" => whole.to_owned(),
            part => format!("{whole}: {part}"),
        };
        self
    }
}

/// An error in a specification: line, field and remedy.
///
/// ```
/// use sluicegate_traffic::spec::Spec;
///
/// let text = "[[stream]]\nlayers = [\n  'ether', 'ipv4', { udp = { sport = 70000 } },\n]\n";
/// let error = Spec::parse(text).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "line 3, column 38: stream 0: udp.sport: 70000 is too much: the 16 bits of the field \
///      hold 65535\n 3 |   'ether', 'ipv4', { udp = { sport = 70000 } },\n   |                                      ^^^^^"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SpecError {
    message: String,
    line: Option<usize>,
    object: String,
}

impl SpecError {
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
    /// Converts a fault to an error with its position: "dns.toml, line 7, column 21".
    pub(crate) fn locate(&self, fault: Fault) -> SpecError {
        let Fault { place, object, problem } = fault;
        let (position, line, excerpt) = match place {
            Position::Nowhere => (self.name.clone(), None, String::new()),
            Position::Flag(flag) => (flag.to_owned(), None, String::new()),
            Position::Text(span) => self.find(span),
        };
        let parts = [position.as_str(), object.as_str(), problem.as_str()];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        SpecError { message: parts.join(": ") + &excerpt, line, object }
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
        let plain = |c: char| if c.is_control() && c != '\t' { '?' } else { c };
        let shown: String = text[begin..end].trim_end().chars().map(plain).collect();
        let excerpt = format!("\n {line} | {shown}\n {margin} | {indent}{marks}");
        (position, Some(line), excerpt)
    }
}
