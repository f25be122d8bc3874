//! Channels: the queues that a driver serves.

use super::{Ethtool, Result, request, supported};

const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;

/// Queues in use, and their maximum. `combined` ones have an interrupt that serves a receive and a transmit
/// queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Channels {
    pub rx: u32,
    pub tx: u32,
    pub combined: u32,
    pub rx_max: u32,
    pub tx_max: u32,
    pub combined_max: u32,
}

impl Ethtool {
    /// Returns the interface's queues; `None` if the driver does not report them.
    ///
    /// # Errors
    /// No such interface.
    pub fn channels(&mut self, interface: &str) -> Result<Option<Channels>> {
        // struct ethtool_channels
        let counts = supported(self.ask(interface, "queues", request(ETHTOOL_GCHANNELS)))?;
        let Some([_, rx_max, tx_max, _, combined_max, rx, tx, _, combined]) = counts else {
            return Ok(None);
        };
        Ok(Some(Channels { rx, tx, combined, rx_max, tx_max, combined_max }))
    }

    /// Sets the numbers of queues in use. Most drivers take the link down for a moment.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`, or the driver refuses.
    pub fn set_channels(&mut self, interface: &str, channels: Channels) -> Result<()> {
        let Channels { rx, tx, combined, .. } = channels;
        let now = self.ask(interface, "queues", request::<9>(ETHTOOL_GCHANNELS))?;
        let [_, rx_max, tx_max, other_max, combined_max, _, _, other, _] = now;
        let words =
            [ETHTOOL_SCHANNELS, rx_max, tx_max, other_max, combined_max, rx, tx, other, combined];
        self.ask(interface, "set the queues of", words).map(drop)
    }
}
