//! Prefixes of both families in one form.

use ipnet::IpNet;

/// A prefix. IPv4 addresses are in the upper 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// The address; bits beyond the length are 0.
    pub address: u128,
    /// The length in bits; 0 for any address.
    pub bits: u8,
}

impl From<IpNet> for Prefix {
    fn from(net: IpNet) -> Self {
        let address = match net.trunc() {
            IpNet::V4(net) => u128::from(u32::from(net.addr())) << 96,
            IpNet::V6(net) => net.addr().into(),
        };
        Self { address, bits: net.prefix_len() }
    }
}

impl Prefix {
    /// Returns true if another prefix is in this one, or equal.
    pub fn contains(&self, other: &Self) -> bool {
        self.bits <= other.bits && masked(other.address, self.bits) == self.address
    }
}

/// Returns an address with all bits beyond a length cleared.
pub fn masked(address: u128, bits: u8) -> u128 {
    address & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}
