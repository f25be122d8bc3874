//! What a program reads on its standard input.

/// A text, and what writes the same in a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The text.
    pub text: String,
    /// A command.
    pub shell: String,
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        let shell = format!("printf %s {}", quoted(&text));
        Self { text, shell }
    }
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
