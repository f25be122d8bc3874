//! Which checksums follow from what.

use super::SumOf;
use crate::plan::{Edit, Operand, Sizes, Sum, Term, fold, words};

/// Checksums, the inner before the outer. Those that stay are written into the template.
pub(super) fn sums(
    wanted: &[SumOf],
    end: usize,
    sizes: &Sizes,
    edits: &[Edit],
    template: &mut [u8],
) -> Vec<Sum> {
    let mut sums = Vec::new();
    // Headers were laid from the outside in.
    for sum in wanted.iter().rev() {
        let made = Summing { sum, end, sizes, edits, sums: &sums, template }.sum();
        if made.terms.is_empty() && made.by_size.is_empty() {
            let right = !fold(u64::from(made.constant));
            let checksum = made.finish.of(right);
            template[sum.at..][..2].copy_from_slice(&checksum.to_be_bytes());
        } else {
            sums.push(made);
        }
    }
    sums
}

struct Summing<'a> {
    sum: &'a SumOf,
    end: usize,
    sizes: &'a Sizes,
    edits: &'a [Edit],
    sums: &'a [Sum],
    template: &'a [u8],
}

impl Summing<'_> {
    fn sum(&self) -> Sum {
        let varies = !matches!(self.sizes, Sizes::Fixed) && self.sum.to.is_none();
        let mut constant = 0;
        let mut terms = self.covered();
        if let Some((addresses, protocol)) = &self.sum.pseudo {
            constant += words(&self.template[addresses.clone()]) + u64::from(*protocol);
            terms.extend(self.edited(addresses.start, addresses.end));
            if varies {
                let of = Operand::Length { headers: self.sum.from as u16 };
                terms.push(Term { of, odd: false });
            } else {
                constant += (self.end - self.sum.from) as u64;
            }
        }
        let mut by_size = if varies { self.by_size() } else { Vec::new() };
        if by_size.iter().all(|sum| Some(sum) == by_size.first()) {
            // Only zeros are added: or no size at all.
            constant += by_size.first().copied().map_or(0, u64::from);
            by_size = Vec::new();
        }
        if !varies {
            let to = self.sum.to.unwrap_or(self.end);
            constant += words(&self.template[self.sum.from..to]);
        }
        // At most 2^15 numbers of 16 bits, and a pseudo header.
        let constant = constant as u32;
        Sum { at: self.sum.at as u16, constant, by_size, terms, finish: self.sum.finish }
    }

    /// Returns the edits and sums that lie in the bytes covered.
    fn covered(&self) -> Vec<Term> {
        let to = self.sum.to.unwrap_or(self.template.len());
        let mut terms = self.edited(self.sum.from, to);
        for (index, sum) in self.sums.iter().enumerate() {
            let at = usize::from(sum.at);
            if (self.sum.from..to).contains(&at) {
                terms.push(self.term(Operand::Sum(index as u16), at, self.sum.from));
            }
        }
        terms
    }

    fn edited(&self, from: usize, to: usize) -> Vec<Term> {
        let edits = self.edits.iter().enumerate();
        let covered = edits.filter(|(_, edit)| (from..to).contains(&usize::from(edit.at)));
        let term =
            |(index, edit): (usize, &Edit)| self.term(Operand::Edit(index as u16), edit.at, from);
        covered.map(term).collect()
    }

    fn term(&self, of: Operand, at: impl Into<usize>, from: usize) -> Term {
        Term { of, odd: (at.into() - from) % 2 == 1 }
    }

    /// The sums of the template's bytes, up to each size.
    fn by_size(&self) -> Vec<u16> {
        let (from, shortest) = (self.sum.from, self.sizes.shortest(self.template));
        let mut total = words(&self.template[from..shortest]);
        let mut sums = vec![fold(total)];
        for (place, byte) in self.template.iter().enumerate().skip(shortest) {
            let upper = (place - from) % 2 == 0;
            total += u64::from(*byte) << if upper { 8 } else { 0 };
            sums.push(fold(total));
        }
        sums
    }
}
