//! Splits an expression into tokens.

use std::ops::Range;

/// A word, number, address or operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) at: Range<usize>,
}

const OPERATORS: &[&str] = &["&&", "||", "==", "!=", "<=", ">=", "<<", ">>"];

pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut begin = 0;
    while let Some(first) = text[begin..].chars().next() {
        let rest = &text[begin..];
        let length = if in_word(first) {
            rest.find(|c| !in_word(c)).unwrap_or(rest.len())
        } else if OPERATORS.iter().any(|it| rest.starts_with(it)) {
            2
        } else {
            first.len_utf8()
        };
        if !first.is_whitespace() {
            tokens.push(Token { text: &rest[..length], at: begin..begin + length });
        }
        begin += length;
    }
    tokens
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | ':' | '/' | '-' | '_' | '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_addresses_and_operators_are_tokens() {
        let text = "tcp[tcpflags]&(tcp-syn|0x10)==2 and\tsrc net 2001:db8::/32||é";
        let words: Vec<_> = tokens(text).into_iter().map(|it| it.text).collect();
        let expected = [
            "tcp",
            "[",
            "tcpflags",
            "]",
            "&",
            "(",
            "tcp-syn",
            "|",
            "0x10",
            ")",
            "==",
            "2",
            "and",
            "src",
            "net",
            "2001:db8::/32",
            "||",
            "é",
        ];
        assert_eq!(words, expected);
        assert!(tokens(text).iter().all(|it| &text[it.at.clone()] == it.text));
    }
}
