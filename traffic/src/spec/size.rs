//! The sizes of frames: bytes without the frame check sequence.
//!
//! | text | the frames have |
//! | --- | --- |
//! | `60` | 60 bytes |
//! | `60,512,1514` | these sizes in turn; in TOML also `[60, 512, 1514]` |
//! | `64-1500` | a random size in this range |
//! | `60..1514`, `60..1514/2` | a sweep, with a step: each size in turn |
//! | `imix` | 60, 590 and 1514 bytes, of twelve frames 7, 4 and 1 |
//! | `imix:64=7,594=4,1518=1` | these sizes, mixed evenly, each as often as its weight |

use std::fmt;

use super::value::{Form, Set, Value};

/// Maximum length of a frame: offsets in a plan have 16 bits.
pub(crate) const MAX_FRAME: u16 = 65_535;
/// Maximum of frames after which a mix of sizes repeats.
pub(super) const MAX_TURNS: u64 = 65_536;
/// Simple IMIX: packets of 40, 576 and 1500 bytes, as frames.
const IMIX: &str = "60=7,590=4,1514=1";

/// The sizes of a stream's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Its text in the specification.
    text: String,
    pub(crate) order: SizeOrder,
}

/// The order of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SizeOrder {
    /// One after the other.
    InTurn(Vec<u16>),
    /// At random, both ends included.
    Random { first: u16, last: u16 },
}

impl Size {
    /// Reads a size; `Err` describes a valid one.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let order = match (text, text.strip_prefix("imix:")) {
            ("imix", _) => mix(IMIX),
            (_, Some(weights)) => mix(weights),
            (_, None) => Self::span(text),
        };
        let size = Self { text: text.to_owned(), order: order? };
        if size.bounds().0 == 0 { Err("a frame has at least one byte".into()) } else { Ok(size) }
    }

    fn span(text: &str) -> Result<SizeOrder, String> {
        let value = Value::parse(text, Form::Number { bits: 16, names: "" })
            .map_err(|wrong| format!("{wrong}; a size is like 60, 60,512,1514, 64-1500 or imix"))?;
        if value.per == crate::plan::VariesBy::Flow {
            return Err("a size goes by the packet, not by the flow".into());
        }
        Ok(match value.set {
            Set::List { random: true, .. } => {
                return Err("sizes of a list come in turn: leave out any:".into());
            }
            Set::Range { first, last } => {
                SizeOrder::Random { first: first as u16, last: last as u16 }
            }
            Set::List { values, .. } => {
                SizeOrder::InTurn(values.iter().map(|size| *size as u16).collect())
            }
            Set::Counter { first, last, step } => SizeOrder::InTurn(sweep(first, last, step)),
            Set::One(number) => SizeOrder::InTurn(vec![number as u16]),
        })
    }

    /// Creates a list of sizes, used in turn.
    pub(crate) fn list(sizes: &[u128]) -> Result<Self, String> {
        let sizes: Vec<_> = sizes.iter().map(u128::to_string).collect();
        Self::parse(&sizes.join(","))
    }

    /// Returns the shortest and the longest size.
    pub(crate) fn bounds(&self) -> (u16, u16) {
        match &self.order {
            SizeOrder::InTurn(sizes) => sizes
                .iter()
                .fold((u16::MAX, 0), |(least, most), size| (least.min(*size), most.max(*size))),
            SizeOrder::Random { first, last } => (*first, *last),
        }
    }
}

fn sweep(first: u128, last: u128, step: u128) -> Vec<u16> {
    let steps = first.abs_diff(last) / step;
    let size = |n: u128| if first < last { first + n * step } else { first - n * step };
    (0..=steps).map(|n| size(n) as u16).collect()
}

fn mix(text: &str) -> Result<SizeOrder, String> {
    let (mut sizes, mut weights) = (Vec::new(), Vec::new());
    for one in text.split(',') {
        let wrong = || {
            format!("'{}' is not a size and its weight, like 594=4, of at least 1 each", one.trim())
        };
        let (size, weight) = one.split_once('=').ok_or_else(wrong)?;
        sizes.push(size.trim().parse().ok().filter(|size| *size > 0).ok_or_else(wrong)?);
        let weight = weight.trim().parse().ok();
        weights.push(weight.filter(|weight| *weight > 0).ok_or_else(wrong)?);
    }
    let turns = turns_of(&weights)?.into_iter();
    Ok(SizeOrder::InTurn(turns.map(|turn| sizes[usize::from(turn)]).collect()))
}

/// Distributes turns evenly by weight. At every turn each index gains its weight as credit; the index with
/// most credit takes the turn and pays the total.
pub(super) fn turns_of(weights: &[u32]) -> Result<Vec<u16>, String> {
    let common = weights.iter().fold(0, |a, b| gcd(a, *b)).max(1);
    let weights: Vec<_> = weights.iter().map(|weight| i64::from(weight / common)).collect();
    let all: i64 = weights.iter().sum();
    if all as u64 > MAX_TURNS {
        return Err(format!(
            "the order repeats after {all} packets: at most {MAX_TURNS}, take numbers with a larger \
             common divisor"
        ));
    }
    let mut credit = vec![0; weights.len()];
    let mut turns = Vec::with_capacity(all as usize);
    for _ in 0..all {
        for (credit, weight) in credit.iter_mut().zip(&weights) {
            *credit += weight;
        }
        // Selects the first of equal credits.
        let next = (0..credit.len()).rev().max_by_key(|index| credit[*index]).unwrap_or(0);
        credit[next] -= all;
        turns.push(next as u16);
    }
    Ok(turns)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_parse_to_their_meaning() {
        let in_turn = |sizes: &[u16]| SizeOrder::InTurn(sizes.to_vec());
        let imix = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 590, 60];
        let rows = [
            ("one size", "60", in_turn(&[60])),
            ("several in turn", "60,512, 1514", in_turn(&[60, 512, 1514])),
            ("at random", "64-1500", SizeOrder::Random { first: 64, last: 1500 }),
            ("a sweep", "60..64/2", in_turn(&[60, 62, 64])),
            ("a sweep down", "64..61", in_turn(&[64, 63, 62, 61])),
            ("the usual mix", "imix", in_turn(&imix)),
            ("a mix of one's own", "imix:64=2, 594=1", in_turn(&[64, 594, 64])),
        ];
        for (name, text, size) in rows {
            let parsed = Size::parse(text).map(|parsed| parsed.order);
            assert_eq!(parsed, Ok(size), "{name}");
        }
    }

    #[test]
    fn errors_describe_the_fault() {
        let rows = [
            ("nothing", "", "a size is like 60"),
            ("no byte", "0", "at least one byte"),
            ("no byte among others", "60,0", "at least one byte"),
            ("too long", "65536", "65536 is too much"),
            ("by flow", "flow:60,70", "by the packet"),
            ("a list at random", "any:60,70", "in turn"),
            ("a mix without weights", "imix:64,594", "'64' is not a size and its weight"),
            ("a weight of zero", "imix:64=0", "of at least 1 each"),
            ("weights too fine", "imix:64=1,594=100000", "at most 65536"),
        ];
        for (name, text, part) in rows {
            let error = Size::parse(text).expect_err(name);
            assert!(error.contains(part), "{name}: {error}");
        }
    }

    #[test]
    fn turns_keep_to_the_weights_and_mix_well() {
        assert_eq!(turns_of(&[7, 4, 1]), Ok(vec![0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 1, 0]));
        assert_eq!(turns_of(&[300, 100]), Ok(vec![0, 0, 1, 0]), "without the common factor");
        assert_eq!(turns_of(&[5]), Ok(vec![0]));
    }
}
