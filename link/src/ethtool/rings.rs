//! Rings: the descriptors of each queue.

use super::{Ethtool, Result, request, supported};

const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_SRINGPARAM: u32 = 0x11;

/// Descriptors of each queue in use, and their maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Rings {
    pub rx: u32,
    pub tx: u32,
    pub rx_max: u32,
    pub tx_max: u32,
}

impl Ethtool {
    /// Returns the sizes of the interface's rings; `None` if the driver does not report them.
    ///
    /// # Errors
    /// No such interface.
    pub fn rings(&mut self, interface: &str) -> Result<Option<Rings>> {
        // struct ethtool_ringparam
        let sizes = supported(self.ask(interface, "rings", request(ETHTOOL_GRINGPARAM)))?;
        let sizes =
            sizes.map(|[_, rx_max, _, _, tx_max, rx, _, _, tx]| Rings { rx, tx, rx_max, tx_max });
        Ok(sizes.filter(|it| it.rx_max | it.tx_max != 0))
    }

    /// Sets the sizes of the rings. Most drivers take the link down for a moment.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`, or the driver refuses.
    pub fn set_rings(&mut self, interface: &str, rings: Rings) -> Result<()> {
        let mut words = self.ask(interface, "rings", request::<9>(ETHTOOL_GRINGPARAM))?;
        (words[0], words[5], words[8]) = (ETHTOOL_SRINGPARAM, rings.rx, rings.tx);
        self.ask(interface, "set the rings of", words).map(drop)
    }
}
