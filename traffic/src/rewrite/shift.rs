//! Moves IP addresses by a number, so that each round of a replay has its own.

/// The bits that change: hosts of a /8 and of a /64, so that an address stays of its kind.
const V4_BITS: u128 = 0x00ff_ffff;
const V6_BITS: u128 = u64::MAX as u128;

/// Adds `by` to an address of 4 or 16 bytes. Those that mean the same everywhere stay: unspecified, loopback,
/// multicast, broadcast, and IPv6's link-local ones, which neighbour discovery repeats in its payload.
#[inline]
pub(super) fn shifted(address: u128, bytes: usize, by: u64) -> u128 {
    let (bits, stays) = match bytes {
        4 => (V4_BITS, matches!(address >> 24, 0 | 127 | 224..)),
        _ => (V6_BITS, matches!(address >> 118, 0..=3 | 0x3fa | 0x3fc..)),
    };
    match stays {
        true => address,
        false => address & !bits | address.wrapping_add(by.into()) & bits,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn addresses_move_within_their_kind() {
        for (before, by, after) in [
            ("198.18.0.1", 0, "198.18.0.1"),
            ("198.18.0.1", 1, "198.18.0.2"),
            ("198.18.0.1", 255, "198.18.1.0"),
            ("198.255.255.255", 1, "198.0.0.0"),
            ("223.255.255.255", 1 << 40, "223.255.255.255"),
            ("224.0.0.251", 1, "224.0.0.251"),
            ("255.255.255.255", 1, "255.255.255.255"),
            ("0.0.0.0", 1, "0.0.0.0"),
            ("127.0.0.1", 1, "127.0.0.1"),
            ("2001:db8::1", 1, "2001:db8::2"),
            ("2001:db8::ffff:ffff:ffff:ffff", 1, "2001:db8::"),
            ("fc00::1", 3, "fc00::4"),
            ("fe80::1", 1, "fe80::1"),
            ("ff02::1", 1, "ff02::1"),
            ("::1", 1, "::1"),
            ("::ffff:198.18.0.1", 1, "::ffff:198.18.0.1"),
        ] {
            let number = |text: &str| match text.parse().unwrap() {
                IpAddr::V4(address) => (u128::from(address.to_bits()), 4),
                IpAddr::V6(address) => (address.to_bits(), 16),
            };
            let (address, bytes) = number(before);
            assert_eq!(shifted(address, bytes, by), number(after).0, "{before} + {by}");
        }
    }
}
