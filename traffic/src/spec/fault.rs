//! Errors in a specification, and their positions.

use std::ops::Range;
use std::sync::Arc;

/// Where something was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Position {
    /// Nowhere: it is a default.
    #[default]
    Nowhere,
    /// These bytes of the file.
    Text(Range<usize>),
    /// This flag of the command line.
    Flag(&'static str),
}

/// The text that places are in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// The file; empty if there is none.
    pub(crate) name: String,
    pub(crate) text: Arc<str>,
}

/// An error before its position is looked up in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) place: Position,
    /// Of what: "stream dns: udp.sport".
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
#[error("{}", self.text())]
pub struct SpecError {
    /// "dns.toml, line 7, column 21", "--sport"; empty if there is no such place.
    position: String,
    line: Option<usize>,
    object: String,
    problem: String,
    /// The line as it stands there, and below it what is meant.
    excerpt: String,
}

impl SpecError {
    /// The line of the text where it is wrong, from 1; none if it is a flag, or a whole file.
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// The object of the error: "stream dns: udp.sport".
    pub fn object(&self) -> &str {
        &self.object
    }

    fn text(&self) -> String {
        let parts = [&self.position, &self.object, &self.problem];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let parts: Vec<_> = parts.into_iter().map(String::as_str).collect();
        format!("{}{}", parts.join(": "), self.excerpt)
    }
}

/// The longest line that is shown whole.
const MAX_EXCERPT: usize = 200;

impl Origin {
    /// A fault with its line.
    pub(crate) fn locate(&self, fault: Fault) -> SpecError {
        let Fault { place, object, problem } = fault;
        let mut error = SpecError {
            position: String::new(),
            line: None,
            object,
            problem,
            excerpt: String::new(),
        };
        match place {
            Position::Nowhere => error.position.clone_from(&self.name),
            Position::Flag(flag) => error.position = flag.to_owned(),
            Position::Text(span) => self.show(span, &mut error),
        }
        error
    }

    fn show(&self, span: Range<usize>, error: &mut SpecError) {
        let text = &*self.text;
        let from = text.floor_char_boundary(span.start);
        let begin = text[..from].rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[from..].find('\n').map_or(text.len(), |newline| from + newline);
        let to = text.floor_char_boundary(span.end).clamp(from, end);
        let line = text[..from].matches('\n').count() + 1;
        let column = text[begin..from].chars().count() + 1;
        let file = match self.name.as_str() {
            "" => String::new(),
            name => format!("{name}, "),
        };
        error.position = format!("{file}line {line}, column {column}");
        error.line = Some(line);
        if end - begin > MAX_EXCERPT {
            return;
        }
        // A tab is one character above and below.
        let blank = |c: char| if c == '\t' { '\t' } else { ' ' };
        let indent: String = text[begin..from].chars().map(blank).collect();
        let marks = "^".repeat(text[from..to].trim_end().chars().count().max(1));
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let plain = |c: char| if c.is_control() && c != '\t' { '?' } else { c };
        let shown: String = text[begin..end].trim_end().chars().map(plain).collect();
        error.excerpt = format!("\n {number} | {shown}\n {margin} | {indent}{marks}");
    }
}
