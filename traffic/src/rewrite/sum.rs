//! Checksums of the internet, corrected by what has changed under them (RFC 1624).

use crate::plan::fold;

/// What words added up before and add up now, of those that have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference(u64);

impl Difference {
    /// Bytes at an even place that have become others, as many; an odd one is followed by 0.
    pub(super) fn change(&mut self, before: &[u8], now: &[u8]) {
        // The complement of a word takes it away.
        self.0 += words(before).map(|word| u64::from(!word)).sum::<u64>();
        self.0 += words(now).map(u64::from).sum::<u64>();
    }

    /// Whether nothing has changed.
    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Corrects a checksum.
    pub(super) fn correct(self, checksum: [u8; 2]) -> [u8; 2] {
        let sum = u64::from(!u16::from_be_bytes(checksum)) + self.0;
        (!fold(sum)).to_be_bytes()
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The whole sum.
    fn checksum(bytes: &[u8]) -> [u8; 2] {
        let mut sum: u64 = words(bytes).map(u64::from).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    proptest! {
        #[test]
        fn a_corrected_checksum_is_the_one_of_the_whole(
            mut bytes in prop::collection::vec(any::<u8>(), 8..100),
            now in any::<[u8; 4]>(),
            at in any::<prop::sample::Index>(),
        ) {
            // Something that is never all zeros, as headers are.
            bytes[0] = 0x45;
            let at = (at.index(bytes.len() - 5) & !1).max(2);
            let before = checksum(&bytes);
            let mut difference = Difference::default();
            difference.change(&bytes[at..at + 4], &now);
            bytes[at..at + 4].copy_from_slice(&now);
            prop_assert_eq!(difference.correct(before), checksum(&bytes));
        }
    }

    #[test]
    fn the_example_of_rfc_1624_comes_out() {
        let mut difference = Difference::default();
        difference.change(&[0x55, 0x55], &[0x32, 0x85]);
        assert_eq!(difference.correct([0xdd, 0x2f]), [0, 0]);
    }
}
