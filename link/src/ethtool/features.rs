//! Features of an interface, such as offloads, and private flags of its driver.

use super::{Ethtool, Result, supported};

const ETHTOOL_GPFLAGS: u32 = 0x27;
const ETHTOOL_SPFLAGS: u32 = 0x28;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_PRIV_FLAGS: u32 = 2;
const ETH_SS_FEATURES: u32 = 4;

/// Words before the blocks of a `struct ethtool_gfeatures` and a `struct ethtool_sfeatures`.
const HEADER_WORDS: usize = 2;

/// A feature of an interface: "rx-gro", "rx-lro".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The kernel's name (net/ethtool/common.c, `netdev_features_strings`).
    pub name: String,
    /// It is in use.
    pub active: bool,
    /// It can be switched.
    pub can_change: bool,
}

/// A flag whose meaning is the driver's: "legacy-rx".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateFlag {
    /// The driver's name.
    pub name: String,
    /// It is set.
    pub on: bool,
}

/// Returns the word and the bit of a number in blocks of 32 bits.
fn position(number: usize) -> (usize, u32) {
    (number / 32, 1 << (number % 32))
}

impl Ethtool {
    /// Returns the features of an interface, in the kernel's order.
    ///
    /// # Errors
    /// No such interface.
    pub fn features(&mut self, interface: &str) -> Result<Vec<Feature>> {
        let names = self.names(interface, "features", ETH_SS_FEATURES)?;
        let blocks = names.len().div_ceil(32);
        // Each block: available, requested, active, never changed.
        let mut words = vec![0; HEADER_WORDS + 4 * blocks];
        words[..HEADER_WORDS].copy_from_slice(&[ETHTOOL_GFEATURES, blocks as u32]);
        self.ask_words(interface, "features", &mut words)?;
        let (blocks, _) = words[HEADER_WORDS..].as_chunks::<4>();
        let feature = |(number, name): (usize, String)| {
            let (block, bit) = position(number);
            let [available, _, active, never_changed] = blocks[block].map(|it| it & bit != 0);
            Feature { name, active, can_change: available && !never_changed }
        };
        Ok(names.into_iter().enumerate().filter(|(_, it)| !it.is_empty()).map(feature).collect())
    }

    /// Switches a feature.
    ///
    /// # Errors
    /// No such interface or feature, a missing `CAP_NET_ADMIN`, or the feature stays as it is.
    pub fn set_feature(&mut self, interface: &str, name: &str, on: bool) -> Result<()> {
        let names = self.names(interface, "features", ETH_SS_FEATURES)?;
        let number =
            names.iter().position(|it| it == name).ok_or_else(|| no_such(interface, name))?;
        let blocks = names.len().div_ceil(32);
        // Each block: valid, requested.
        let mut words = vec![0; HEADER_WORDS + 2 * blocks];
        words[..HEADER_WORDS].copy_from_slice(&[ETHTOOL_SFEATURES, blocks as u32]);
        let (block, bit) = position(number);
        words[HEADER_WORDS + 2 * block] = bit;
        words[HEADER_WORDS + 2 * block + 1] = if on { bit } else { 0 };
        self.ask_words(interface, "set a feature of", &mut words)?;
        // The kernel succeeds if it leaves a feature as it is, because of the driver or another feature.
        match self.features(interface)?.iter().any(|it| it.name == name && it.active == on) {
            true => Ok(()),
            false => Err(super::Error::Unsupported {
                feature: format!("another value of {name} of {interface}"),
                remedy: format!(
                    "`ethtool -k {interface}` shows what is fixed or depends on others"
                ),
            }),
        }
    }

    /// Returns the private flags of an interface's driver; empty if it has none.
    ///
    /// # Errors
    /// No such interface.
    pub fn private_flags(&mut self, interface: &str) -> Result<Vec<PrivateFlag>> {
        let names = self.names(interface, "private flags", ETH_SS_PRIV_FLAGS)?;
        let answer = supported(self.ask(interface, "private flags", [ETHTOOL_GPFLAGS, 0]))?;
        let Some([_, flags]) = answer else { return Ok(Vec::new()) };
        // The kernel's structure has 32.
        let flag =
            |(number, name): (u32, String)| PrivateFlag { name, on: flags & (1 << number) != 0 };
        Ok((0..32).zip(names).map(flag).collect())
    }

    /// Switches a private flag.
    ///
    /// # Errors
    /// No such interface or flag, a missing `CAP_NET_ADMIN`, or the driver refuses.
    pub fn set_private_flag(&mut self, interface: &str, name: &str, on: bool) -> Result<()> {
        let flags = self.private_flags(interface)?;
        let number = flags.iter().position(|it| it.name == name);
        let number = number.ok_or_else(|| no_such(interface, name))?;
        let wanted = flags.iter().enumerate().fold(0, |bits, (at, flag)| {
            let set = if at == number { on } else { flag.on };
            bits | u32::from(set) << at
        });
        self.ask(interface, "set a private flag of", [ETHTOOL_SPFLAGS, wanted]).map(drop)
    }
}

fn no_such(interface: &str, name: &str) -> super::Error {
    super::Error::Unsupported {
        feature: format!("{name} of {interface}"),
        remedy: format!("`ethtool -k {interface}` lists features, --show-priv-flags private flags"),
    }
}
