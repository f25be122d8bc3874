//! Parses comparisons of bytes that are fields: TCP flags, types and codes of ICMP.

use std::ops::Range as Span;

use super::ExpressionError;
use super::lexer::Token;
use super::parser::{Parsed, Parser, number, protocols};
use super::terms::{Alternatives, Field, Terms};
use crate::policy::text::names::{self, Names};
use crate::policy::{FlagCondition, Range};

/// Types as pcap-filter(7) names them.
const ICMP_TYPES: Names = &[
    ("icmp-echoreply", 0),
    ("icmp-unreach", 3),
    ("icmp-redirect", 5),
    ("icmp-echo", 8),
    ("icmp-timxceed", 11),
    ("icmp6-destinationunreach", 1),
    ("icmp6-packettoobig", 2),
    ("icmp6-timeexceeded", 3),
    ("icmp6-echo", 128),
    ("icmp6-echoreply", 129),
];

impl Parser<'_> {
    /// Parses a comparison of a byte of TCP or ICMP: `tcp[tcpflags] & tcp-syn != 0`.
    pub(super) fn byte(&mut self, word: &Token) -> Parsed<Terms> {
        self.expect("[")?;
        let offset = self.take("an offset")?;
        let protocol = match word.text {
            "tcp" => (0, 6),
            "icmp" => (0, 1),
            "icmp6" => (1, 58),
            _ => {
                let problem = "rules do not compare these bytes: write match = { payload = { } }, or another condition";
                return Err(ExpressionError::new(word.at.clone(), problem));
            }
        };
        let field = match (word.text, offset.text) {
            ("tcp", "tcpflags" | "13") => Field::TcpFlags,
            ("icmp", "icmptype" | "0") | ("icmp6", "icmp6type" | "icmptype" | "0") => {
                Field::IcmpType
            }
            ("icmp", "icmpcode" | "1") | ("icmp6", "icmp6code" | "icmpcode" | "1") => {
                Field::IcmpCode
            }
            _ => {
                let problem = "known are tcp[tcpflags], icmp[icmptype] and icmp[icmpcode], with 6 for ICMPv6: write others as payload of match = { }";
                return Err(ExpressionError::new(offset.at, problem));
            }
        };
        self.expect("]")?;
        let mut mask = None;
        if field == Field::TcpFlags && self.peek_text() == "&" {
            self.next += 1;
            mask = Some(self.bits()?.0);
        }
        let operator = self.take("= or !=")?;
        let equal = match operator.text {
            "=" | "==" => true,
            "!=" if field == Field::TcpFlags => false,
            _ => {
                let problem = format!(
                    "'{}' is not available here: write =, or != for TCP flags",
                    operator.text
                );
                return Err(ExpressionError::new(operator.at, problem));
            }
        };
        let (value, value_at) = self.bits()?;
        let at = word.at.start..value_at.end;
        let alternatives = if field == Field::TcpFlags {
            let mask = mask.unwrap_or(0xff);
            if mask == 0 || value & !mask != 0 {
                let problem = "the value has bits outside of the mask, or the mask has none: all TCP packets match, or none";
                return Err(ExpressionError::new(value_at, problem));
            }
            Alternatives::Flags(flags(mask, value, equal))
        } else {
            let value = u32::from(value);
            Alternatives::Numbers(vec![Range { first: value, last: value }])
        };
        let (version, protocol) = protocol;
        Ok(protocols(Some(version), Some(protocol), &word.at).with(field, alternatives, &at))
    }

    /// Parses a byte: a number, a name, or several joined by `|` in parentheses or without.
    fn bits(&mut self) -> Parsed<(u8, Span<usize>)> {
        let first = self.take("a number")?;
        if first.text == "(" {
            let bits = self.alternative_bits()?;
            let end = self.expect(")")?.at.end;
            return Ok((bits.0, first.at.start..end));
        }
        self.next -= 1;
        self.alternative_bits()
    }

    fn alternative_bits(&mut self) -> Parsed<(u8, Span<usize>)> {
        let (mut bits, mut at) = (0, None::<Span<usize>>);
        loop {
            let token = self.take("a number")?;
            bits |= self.bit(&token)?;
            let start = at.map_or(token.at.start, |it| it.start);
            let whole = start..token.at.end;
            if self.peek_text() != "|" {
                return Ok((bits, whole));
            }
            self.next += 1;
            at = Some(whole);
        }
    }

    fn bit(&self, token: &Token) -> Parsed<u8> {
        let text = token.text;
        let named = match text.strip_prefix("tcp-") {
            Some("push") => Some(8),
            Some(name) => names::find(names::TCP_FLAGS, name),
            None => names::find(ICMP_TYPES, text),
        };
        match named {
            Some(bits) => Ok(bits as u8),
            None => number(token, 255).map(|it| it as u8),
        }
    }
}

/// Returns the alternatives of `flags & mask == value`, or `!= value`, of a value within the mask.
fn flags(mask: u8, value: u8, equal: bool) -> Vec<FlagCondition> {
    if equal {
        return vec![FlagCondition { mask, value }];
    }
    let bits = (0..8).map(|it| 1 << it).filter(|bit| mask & bit != 0);
    bits.map(|bit| FlagCondition { mask: bit, value: !value & bit }).collect()
}
