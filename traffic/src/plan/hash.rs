//! Random numbers without a state: a hash of a key and a number.

/// The key of a stream's random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub u64);

/// The constants of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014; the mixing function is Stafford's variant 13).
pub(crate) mod constants {
    pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    pub const MIX: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];
}
use constants::{GOLDEN, MIX};

impl Key {
    /// The key of the packets of a stream in a worker.
    pub fn of_packets(seed: u64, stream: usize, worker: u32) -> Self {
        Self(hash(Self(hash(Self(seed), stream as u64)), u64::from(worker) + 1))
    }

    /// The key of the flows of a stream: the same in all workers.
    pub fn of_flows(seed: u64, stream: usize) -> Self {
        Self(hash(Self(hash(Self(seed), stream as u64)), 0))
    }
}

/// The random number that belongs to a number: output `number` of SplitMix64 that starts at the
/// key.
#[inline]
pub fn hash(key: Key, number: u64) -> u64 {
    let mut mixed = key.0.wrapping_add(number.wrapping_add(1).wrapping_mul(GOLDEN));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(MIX[0]);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(MIX[1]);
    mixed ^ (mixed >> 31)
}

/// A number below `count`, from some bits of a random one; as eBPF can reckon it, too.
#[inline]
pub(crate) fn below(random: u64, count: u64) -> u64 {
    if count.is_power_of_two() {
        random & (count - 1)
    } else if count <= 1 << 32 {
        ((random & 0xffff_ffff) * count) >> 32
    } else {
        random % count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        // The generator's first outputs from seed 1234567, as published with many libraries.
        let outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        for (number, &output) in outputs.iter().enumerate() {
            assert_eq!(hash(Key(1_234_567), number as u64), output);
        }
    }

    #[test]
    fn numbers_are_below_their_count_and_reach_both_ends() {
        for count in [1, 2, 3, 10, 65_536, 64_512, 1 << 32, (1 << 32) + 1, 1 << 63] {
            let numbers = (0..20_000).map(|n| below(hash(Key(1), n), count));
            let (least, most) = numbers.fold((u64::MAX, 0), |(l, m), n| (l.min(n), m.max(n)));
            assert!(most < count, "{most} of {count}");
            assert!(least <= count / 1000 && most >= count - 1 - count / 1000, "{count}");
        }
    }
}
