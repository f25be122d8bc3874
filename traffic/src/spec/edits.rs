//! Encodes numbers in the bytes of a frame: constants in its template, changing numbers as edits.
//!
//! An edit has at most eight bytes, and its number at most 64 bits. So a MAC address takes two edits, of two
//! and four bytes. An IPv6 address takes two of eight bytes, or four of four bytes if its lower bits are
//! random, because a draw has at most 32 bits.

use crate::plan::{Draw, Edit, FieldSource, Index, Part, RandomWordCounts, VariesBy};
use crate::spec::value::{Set, Value, block, number_of};

/// The position of a field: bits of a cell, which is a number of whole bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bits {
    /// The offset of the cell, in its header or in the frame.
    pub(crate) at: usize,
    /// The length of the cell in bytes: 1, 2 or 4; 6, 8 or 16 for fields that fill it.
    pub(crate) cell: usize,
    /// The offset of the bits from the cell's right end.
    pub(crate) shift: u8,
    pub(crate) width: u8,
}

impl Bits {
    /// Selects all bits of a cell.
    pub(crate) const fn cell(at: usize, cell: usize) -> Self {
        Self { at, cell, shift: 0, width: cell as u8 * 8 }
    }

    /// Returns the range of its bits, counted from the beginning of the header.
    fn span(self) -> std::ops::Range<usize> {
        let end = (self.at + self.cell) * 8 - usize::from(self.shift);
        end - usize::from(self.width)..end
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        let (a, b) = (self.span(), other.span());
        a.start < b.end && b.start < a.end
    }

    /// Returns the mask of the bits in the cell's number.
    fn mask(self) -> u128 {
        (u128::MAX >> (128 - u32::from(self.width))) << self.shift
    }

    /// Divides the bits into pieces of at most `most` bytes, lowest first, each with the number of bits to
    /// its right.
    fn pieces(self, most: usize) -> Vec<(Self, u8)> {
        if self.cell <= 4 {
            return vec![(self, 0)];
        }
        let mut pieces = Vec::new();
        let mut end = self.cell;
        while end > 0 {
            let cell = end.min(most);
            pieces.push((Self::cell(self.at + end - cell, cell), (self.cell - end) as u8 * 8));
            end -= cell;
        }
        pieces
    }

    /// Returns the part of a field's number for this piece, which has `lower` bits to its right.
    fn part(self, number: u128, lower: u8) -> u64 {
        (number >> lower) as u64 & (u64::MAX >> (64 - u32::from(self.width)))
    }
}

/// The constant bytes of a frame, and its edits.
#[derive(Debug, Default)]
pub(crate) struct Template {
    pub(crate) bytes: Vec<u8>,
    edits: Vec<Edit>,
    pub(crate) draws: Draws,
}

impl Template {
    /// Writes a constant to bits of the frame.
    pub(crate) fn number(&mut self, bits: Bits, number: u128) {
        let cell = &mut self.bytes[bits.at..][..bits.cell];
        let new = number_of(cell) & !bits.mask() | number << bits.shift & bits.mask();
        cell.copy_from_slice(&new.to_be_bytes()[16 - bits.cell..]);
    }

    /// Writes a value to bits of the frame: adds an edit for each changing part.
    pub(crate) fn value(&mut self, bits: Bits, value: &Value) {
        let per = value.per;
        match &value.set {
            Set::One(number) => self.number(bits, *number),
            Set::List { values, random } => self.list(bits, per, values, *random),
            Set::Counter { first, last, step } => {
                let count = (first.abs_diff(*last) / step) as u64 + 1;
                let step = if first < last { *step as u64 } else { (*step as u64).wrapping_neg() };
                let index = Index { per, count, random: None };
                self.steps(bits, *first, FieldSource::Steps { index, step });
            }
            Set::Range { first, last } => match block(*first, *last) {
                Some(lower) if bits.cell > 4 => self.prefix(bits, per, *first, lower),
                _ => {
                    let index = self.random(per, (last - first) as u64 + 1);
                    self.steps(bits, *first, FieldSource::Steps { index, step: 1 });
                }
            },
        }
    }

    fn list(&mut self, bits: Bits, per: VariesBy, values: &[u128], random: bool) {
        let count = values.len() as u64;
        let random = random.then(|| self.draws.draw(per, count));
        let index = Index { per, count, random };
        for (piece, lower) in bits.pieces(unit_bytes(bits)) {
            let values: Vec<_> = values.iter().map(|number| piece.part(*number, lower)).collect();
            if values.iter().all(|value| *value == values[0]) {
                self.number(piece, values[0].into());
            } else {
                self.source(piece, 0, FieldSource::List { index, values });
            }
        }
    }

    /// Writes `first`, and adds an edit of only its lowest piece.
    fn steps(&mut self, bits: Bits, first: u128, source: FieldSource) {
        self.number(bits, first);
        let (piece, lower) = bits.pieces(unit_bytes(bits))[0];
        self.source(piece, piece.part(first, lower), source);
    }

    /// Makes the lower bits random.
    fn prefix(&mut self, bits: Bits, per: VariesBy, address: u128, random_bits: u8) {
        for (piece, lower) in bits.pieces(4) {
            let random = random_bits.saturating_sub(lower).min(piece.width);
            let first = piece.part(address, lower);
            if random == 0 {
                self.number(piece, first.into());
                continue;
            }
            let index = self.random(per, 1 << random);
            self.source(piece, first, FieldSource::Steps { index, step: 1 });
        }
    }

    fn random(&mut self, per: VariesBy, count: u64) -> Index {
        Index { per, count, random: Some(self.draws.draw(per, count)) }
    }

    /// Adds an edit with the sum of `base` and the source's number.
    pub(crate) fn source(&mut self, bits: Bits, base: u64, source: FieldSource) {
        let part = Part { mask: bits.mask() as u64, shift: bits.shift, base, source };
        let (at, bytes) = (bits.at as u16, bits.cell as u8);
        match self.edits.iter_mut().find(|edit| edit.at == at) {
            Some(edit) => edit.parts.push(part),
            None => self.edits.push(Edit { at, bytes, keep: 0, parts: vec![part] }),
        }
    }

    /// Moves the constant bits in the bytes of edits from the template to the edits. Returns the edits in the
    /// order of the frame.
    pub(crate) fn finish_edits(&mut self) -> Result<Vec<Edit>, String> {
        let mut edits = std::mem::take(&mut self.edits);
        edits.sort_by_key(|edit| edit.at);
        for pair in edits.windows(2) {
            // The table of fields excludes this: two fields share a whole cell or no byte.
            if pair[0].at + u16::from(pair[0].bytes) > pair[1].at {
                return Err(format!("two fields change byte {} of the frame", pair[1].at));
            }
        }
        for edit in &mut edits {
            let cell = &mut self.bytes[usize::from(edit.at)..][..usize::from(edit.bytes)];
            let constant = number_of(cell) as u64;
            edit.keep = edit.parts.iter().fold(constant, |keep, part| keep & !part.mask);
            cell.fill(0);
        }
        Ok(edits)
    }
}

/// Returns the maximum of bytes that one edit changes in a field with a list or a counter.
fn unit_bytes(bits: Bits) -> usize {
    if bits.cell == 6 { 4 } else { 8 }
}

/// Allots bits of random numbers to fields: no two fields share a bit, and a packet needs as few
/// numbers as possible.
#[derive(Debug, Default)]
pub(crate) struct Draws {
    /// The bits in use of each of the packet's numbers.
    packet: Vec<u8>,
    /// The bits in use of each of the flow's numbers.
    flow: Vec<u8>,
}

impl Draws {
    /// Allots the bits that the plan's rule uses for a number below `count`.
    pub(crate) fn draw(&mut self, per: VariesBy, count: u64) -> Draw {
        let bits = match count {
            _ if count.is_power_of_two() => count.trailing_zeros() as u8,
            0..=0x1_0000_0000 => 32,
            _ => 64,
        };
        let used = match per {
            VariesBy::Packet => &mut self.packet,
            VariesBy::Flow => &mut self.flow,
        };
        // A shift by 64 is invalid, even for zero bits.
        let room = |used: &u8| *used < 64 && used + bits <= 64;
        let word = used.iter().position(room).unwrap_or(used.len());
        if word == used.len() {
            used.push(0);
        }
        let shift = used[word];
        used[word] += bits;
        Draw { word: word as u8, shift }
    }

    /// Returns the count of random numbers; an error if it is too large for a plan.
    pub(crate) fn words(&self) -> Result<RandomWordCounts, String> {
        match (self.packet.len().try_into(), self.flow.len().try_into()) {
            (Ok(packet), Ok(flow)) => Ok(RandomWordCounts { packet, flow }),
            _ => Err("too many fields are random: make some of them constant".into()),
        }
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
            ("a byte", VariesBy::Packet, 256, Draw { word: 0, shift: 0 }),
            ("a range takes 32 bits", VariesBy::Packet, 1000, Draw { word: 0, shift: 8 }),
            ("16 beside them", VariesBy::Packet, 1 << 16, Draw { word: 0, shift: 40 }),
            ("another range does not fit", VariesBy::Packet, 3, Draw { word: 1, shift: 0 }),
            ("what is left of the first", VariesBy::Packet, 256, Draw { word: 0, shift: 56 }),
            ("a flow has numbers of its own", VariesBy::Flow, 1 << 32, Draw { word: 0, shift: 0 }),
            (
                "a great range has a number alone",
                VariesBy::Packet,
                1 << 40 | 1,
                Draw { word: 2, shift: 0 },
            ),
            (
                "one of one needs no bit, but a place",
                VariesBy::Packet,
                1,
                Draw { word: 1, shift: 32 },
            ),
        ];
        let mut draws = Draws::default();
        for (name, per, count, draw) in rows {
            assert_eq!(draws.draw(per, count), draw, "{name}");
        }
        assert_eq!(draws.words(), Ok(RandomWordCounts { packet: 3, flow: 1 }));
    }
}
