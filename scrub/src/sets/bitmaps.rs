//! Bitmaps of the networks whose class differs from that of the whole space, at two levels.
//!
//! ```text
//!   network --> does its /16 differ? (8 KiB) --no--> class of the whole space
//!                 | yes
//!               does it itself? --no--> class of the whole space
//! ```
//!
//! Most packets of forged sources end here, and the bits that they read stay in a core's cache.

use crate::image::Image;

/// The length of the first level's networks.
const SHORT: u8 = 16;

/// A bit for each network of both levels.
#[derive(Debug)]
pub(super) struct Bitmaps {
    short: Vec<u64>,
    networks: Vec<u64>,
}

impl Bitmaps {
    /// Makes the bitmaps of networks of this length that differ, by their numbers.
    pub(super) fn of(length: u8, networks: impl Iterator<Item = usize>) -> Self {
        let zeros = |length: u8| vec![0; 1 << length >> 6];
        let (mut short, mut bits) = (zeros(SHORT), zeros(length));
        let shift = length - SHORT;
        for network in networks {
            for (level, at) in [(&mut short, network >> shift), (&mut bits, network)] {
                level[at / 64] |= 1 << (at % 64);
            }
        }
        Self { short, networks: bits }
    }

    /// Returns true for a network that differs.
    pub(super) fn has(&self, network: usize) -> bool {
        self.networks[network / 64] & 1 << (network % 64) != 0
    }

    /// Returns how many networks differ before each word of the second level.
    pub(super) fn ranks(&self) -> Vec<u32> {
        let mut sum = 0;
        let ranks = self.networks.iter().map(|word| {
            sum += word.count_ones();
            sum - word.count_ones()
        });
        ranks.collect()
    }

    /// Returns the place of a network among those that differ, by their [ranks](Self::ranks); none if it does not.
    pub(super) fn place(&self, network: usize, ranks: &[u32]) -> Option<usize> {
        let before = self.networks[network / 64] & ((1 << (network % 64)) - 1);
        let place = ranks[network / 64] + before.count_ones();
        self.has(network).then_some(place as usize)
    }

    /// Appends both levels to an image. Returns their first lines.
    pub(super) fn append(&self, image: &mut Image) -> [u32; 2] {
        let levels = [&self.short, &self.networks];
        levels.map(|level| image.append(level.iter().map(|it| it.to_ne_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_networks_themselves_differ() {
        let networks = [0, 0x00c6_1203, (1 << 24) - 1];
        let bitmaps = Bitmaps::of(24, networks.into_iter());
        for near in networks {
            for network in [near.wrapping_sub(1), near, near + 1, near ^ 4, near ^ 0x100] {
                if network < 1 << 24 {
                    assert_eq!(bitmaps.has(network), networks.contains(&network), "{network:x}");
                }
            }
        }
        let ranks = bitmaps.ranks();
        assert_eq!([0, 1, 0x3_1848, 0x3_1849, (1 << 18) - 1].map(|it| ranks[it]), [0, 1, 1, 2, 2]);
    }
}
