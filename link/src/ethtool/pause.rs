//! Pause frames: the flow control of Ethernet (IEEE 802.3, annex 31B).

use super::{Ethtool, Result, request, supported};

const ETHTOOL_GPAUSEPARAM: u32 = 0x12;
const ETHTOOL_SPAUSEPARAM: u32 = 0x13;

/// The use of pause frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// The two ends of the link negotiate it.
    pub autonegotiation: bool,
    /// The card stops sending if the other end asks for it.
    pub rx: bool,
    /// The card asks the other end to stop sending when its buffer is full.
    pub tx: bool,
}

impl Ethtool {
    /// Returns the use of pause frames; `None` if the driver does not report it.
    ///
    /// # Errors
    /// No such interface.
    pub fn pause(&mut self, interface: &str) -> Result<Option<Pause>> {
        // struct ethtool_pauseparam
        let words = supported(self.ask(interface, "pause frames", request(ETHTOOL_GPAUSEPARAM)))?;
        Ok(words.map(|words| words.map(|it| it != 0)).map(|[_, autonegotiation, rx, tx]| Pause {
            autonegotiation,
            rx,
            tx,
        }))
    }

    /// Sets the use of pause frames.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`, or the driver refuses.
    pub fn set_pause(&mut self, interface: &str, pause: Pause) -> Result<()> {
        let Pause { autonegotiation, rx, tx } = pause;
        let words = [ETHTOOL_SPAUSEPARAM, autonegotiation.into(), rx.into(), tx.into()];
        self.ask(interface, "set the pause frames of", words).map(drop)
    }
}
