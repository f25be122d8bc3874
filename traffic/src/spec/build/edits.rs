//! Turns the values that change in a frame into edits.
//!
//! An edit has at most eight bytes, and a number in it at most 64 bits. So a MAC address is one
//! of two bytes and one of four; an IPv6 address two of eight, or, where the lower bits of a
//! prefix are random, four of four: that many bits are at most drawn at once.

use super::{Laid, What, write_bits};
use crate::plan::{Draw, Edit, FieldSource, Index, Part, Per, Words};
use crate::spec::layer::Bits;
use crate::spec::value::{Set, Value};

/// Edits for all that changes. What turns out to stay is written into the template, and what is
/// edited is zero there.
pub(super) fn edits(
    changes: &[Laid],
    end: Option<usize>,
    template: &mut [u8],
    draws: &mut Draws,
) -> Result<Vec<Edit>, String> {
    let mut edits = Edits { template, draws, edits: Vec::new() };
    for Laid { bits, what } in changes {
        match what {
            What::Number(number) => write_bits(edits.template, *bits, *number),
            What::LengthFrom(from) => edits.length(*bits, *from, end),
            What::FieldSource(source) => edits.add(*bits, 0, source.clone()),
            What::Value(value) => edits.value(*bits, value)?,
        }
    }
    edits.finish()
}

struct Edits<'a> {
    template: &'a mut [u8],
    draws: &'a mut Draws,
    edits: Vec<Edit>,
}

/// Some bytes of a field: what one edit may have of it.
#[derive(Clone, Copy)]
struct EditPiece {
    bits: Bits,
    /// How many bits of the field are to the right of it.
    lower: u8,
}

impl EditPiece {
    /// The pieces of a field, of at most `most` bytes.
    fn of(bits: Bits, most: usize) -> Vec<Self> {
        if bits.cell <= 4 {
            return vec![Self { bits, lower: 0 }];
        }
        let mut pieces = Vec::new();
        let mut end = bits.cell;
        while end > 0 {
            let cell = end.min(most);
            let lower = (bits.cell - end) as u8 * 8;
            let width = cell as u8 * 8;
            pieces.push(Self {
                bits: Bits { at: bits.at + end - cell, cell, shift: 0, width },
                lower,
            });
            end -= cell;
        }
        pieces
    }

    /// Its part of a number of the field.
    fn part(self, number: u128) -> u64 {
        let mask = u64::MAX >> (64 - u32::from(self.bits.width));
        (number >> self.lower) as u64 & mask
    }
}

impl Edits<'_> {
    fn length(&mut self, bits: Bits, from: usize, end: Option<usize>) {
        match end {
            Some(end) => write_bits(self.template, bits, (end - from) as u128),
            None => self.add(bits, 0, FieldSource::Length { headers: from as u16 }),
        }
    }

    fn value(&mut self, bits: Bits, value: &Value) -> Result<(), String> {
        let per = value.per;
        match &value.set {
            Set::One(number) => write_bits(self.template, bits, *number),
            Set::List { values, random } => self.list(bits, per, values, *random)?,
            Set::Counter { first, last, step } => {
                let count = (first.abs_diff(*last) / step) as u64 + 1;
                let step = if first < last { *step as u64 } else { (*step as u64).wrapping_neg() };
                let index = Index { per, count, random: None };
                self.steps(bits, *first, FieldSource::Steps { index, step });
            }
            Set::Range { first, last } => match block(*first, *last) {
                Some(lower) if bits.cell > 4 => self.prefix(bits, per, *first, lower)?,
                _ => {
                    let index = self.random(per, (last - first) as u64 + 1)?;
                    self.steps(bits, *first, FieldSource::Steps { index, step: 1 });
                }
            },
            Set::Prefix { address, bits: upper } => {
                self.prefix(bits, per, *address, bits.width - upper)?;
            }
        }
        Ok(())
    }

    fn list(&mut self, bits: Bits, per: Per, values: &[u128], random: bool) -> Result<(), String> {
        let count = values.len() as u64;
        let index = match random {
            true => self.random(per, count)?,
            false => Index { per, count, random: None },
        };
        for piece in EditPiece::of(bits, if bits.cell == 6 { 4 } else { 8 }) {
            let values: Vec<_> = values.iter().map(|number| piece.part(*number)).collect();
            if values.iter().all(|value| *value == values[0]) {
                write_bits(self.template, piece.bits, values[0].into());
            } else {
                self.add(piece.bits, 0, FieldSource::List { index, values });
            }
        }
        Ok(())
    }

    /// Adds an edit of the lowest piece alone.
    fn steps(&mut self, bits: Bits, first: u128, source: FieldSource) {
        write_bits(self.template, bits, first);
        if let Some(piece) = EditPiece::of(bits, if bits.cell == 6 { 4 } else { 8 }).first() {
            self.add(piece.bits, piece.part(first), source);
        }
    }

    /// Random in the lower bits.
    fn prefix(&mut self, bits: Bits, per: Per, address: u128, lower: u8) -> Result<(), String> {
        for piece in EditPiece::of(bits, 4) {
            let random = lower.saturating_sub(piece.lower).min(piece.bits.width);
            let first = piece.part(address);
            if random == 0 {
                write_bits(self.template, piece.bits, first.into());
                continue;
            }
            let index = self.random(per, 1 << random)?;
            self.add(piece.bits, first, FieldSource::Steps { index, step: 1 });
        }
        Ok(())
    }

    fn random(&mut self, per: Per, count: u64) -> Result<Index, String> {
        let random = Some(self.draws.draw(per, count)?);
        Ok(Index { per, count, random })
    }

    fn add(&mut self, bits: Bits, base: u64, source: FieldSource) {
        let mask = (u64::MAX >> (64 - u32::from(bits.width))) << bits.shift;
        let part = Part { mask, shift: bits.shift, base, source };
        let (at, bytes) = (bits.at as u16, bits.cell as u8);
        match self.edits.iter_mut().find(|edit| edit.at == at) {
            Some(edit) => edit.parts.push(part),
            None => self.edits.push(Edit { at, bytes, keep: 0, parts: vec![part] }),
        }
    }

    /// Takes what stays beside the parts out of the template. In the order of the frame.
    fn finish(mut self) -> Result<Vec<Edit>, String> {
        self.edits.sort_by_key(|edit| edit.at);
        for pair in self.edits.windows(2) {
            // Fields share a cell or not a byte of it, so this is never so.
            if pair[0].at + u16::from(pair[0].bytes) > pair[1].at {
                return Err(format!("two fields change byte {} of the frame", pair[1].at));
            }
        }
        for edit in &mut self.edits {
            let cell = &mut self.template[usize::from(edit.at)..][..usize::from(edit.bytes)];
            let stays = cell.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
            edit.keep = edit.parts.iter().fold(stays, |keep, part| keep & !part.mask);
            cell.fill(0);
        }
        Ok(self.edits)
    }
}

/// How many lower bits a range is all of.
fn block(first: u128, last: u128) -> Option<u8> {
    let lower = first ^ last;
    (lower & first == 0 && lower & lower.wrapping_add(1) == 0).then_some(lower.count_ones() as u8)
}

/// Gives each that is random bits of its own, of as few numbers as there may be.
#[derive(Debug, Default)]
pub(super) struct Draws {
    /// The bits of each of the packet's numbers that are given away.
    packet: Vec<u8>,
    /// And of the flow's.
    flow: Vec<u8>,
}

impl Draws {
    /// Bits for a number below `count`: as many as a plan's rule for such takes.
    pub(super) fn draw(&mut self, per: Per, count: u64) -> Result<Draw, String> {
        let bits = match count {
            _ if count.is_power_of_two() => count.trailing_zeros() as u8,
            0..=0x1_0000_0000 => 32,
            _ => 64,
        };
        let used = match per {
            Per::Packet => &mut self.packet,
            Per::Flow => &mut self.flow,
        };
        // A number of which nothing is left cannot be moved by all its bits.
        let room = |used: &u8| *used < 64 && used + bits <= 64;
        let word = used.iter().position(room).unwrap_or(used.len());
        if word == usize::from(u8::MAX) {
            return Err("there is too much at random in it".into());
        }
        if word == used.len() {
            used.push(0);
        }
        let shift = used[word];
        used[word] += bits;
        Ok(Draw { word: word as u8, shift })
    }

    pub(super) fn words(&self) -> Words {
        // A place per number was checked above.
        Words { packet: self.packet.len() as u8, flow: self.flow.len() as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_all_numbers_behind_a_prefix() {
        let rows = [
            ("all of one bit", 0, 1, Some(1)),
            ("256 that begin at a multiple of 256", 0x300, 0x3ff, Some(8)),
            ("256 that do not", 0x301, 0x400, None),
            ("one too few", 0x300, 0x3fe, None),
            ("everything", 0, u128::MAX, Some(128)),
        ];
        for (name, first, last, bits) in rows {
            assert_eq!(block(first, last), bits, "{name}");
        }
    }

    #[test]
    fn no_two_have_a_bit_in_common() {
        let rows = [
            ("a byte", Per::Packet, 256, Draw { word: 0, shift: 0 }),
            ("a range takes 32 bits", Per::Packet, 1000, Draw { word: 0, shift: 8 }),
            ("16 beside them", Per::Packet, 1 << 16, Draw { word: 0, shift: 40 }),
            ("another range does not fit", Per::Packet, 3, Draw { word: 1, shift: 0 }),
            ("what is left of the first", Per::Packet, 256, Draw { word: 0, shift: 56 }),
            ("a flow has numbers of its own", Per::Flow, 1 << 32, Draw { word: 0, shift: 0 }),
            (
                "a great range has a number alone",
                Per::Packet,
                1 << 40 | 1,
                Draw { word: 2, shift: 0 },
            ),
            ("one of one needs no bit, but a place", Per::Packet, 1, Draw { word: 1, shift: 32 }),
        ];
        let mut draws = Draws::default();
        for (name, per, count, draw) in rows {
            assert_eq!(draws.draw(per, count), Ok(draw), "{name}");
        }
        assert_eq!(draws.words(), Words { packet: 3, flow: 1 });
    }
}
