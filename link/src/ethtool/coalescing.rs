//! Interrupt coalescing: how long a card waits for further packets before it interrupts.

use super::{Ethtool, Result, request, supported};

const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_SCOALESCE: u32 = 0x0f;
/// Words of a `struct ethtool_coalesce`.
const WORDS: usize = 23;
/// The words of the fields of [`Coalescing`], in their order.
const FIELDS: [usize; 6] = [1, 2, 5, 6, 10, 11];

/// Limits of the delay of an interrupt. Drivers have some of them; the others are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Microseconds after a received packet.
    pub rx_usecs: u32,
    /// Received packets.
    pub rx_frames: u32,
    /// Microseconds after a sent packet.
    pub tx_usecs: u32,
    /// Sent packets.
    pub tx_frames: u32,
    /// The driver adapts the limits of received packets to their rate.
    pub adaptive_rx: bool,
    /// The driver adapts the limits of sent packets to their rate.
    pub adaptive_tx: bool,
}

impl Ethtool {
    /// Returns the interrupt coalescing; `None` if the driver does not report it.
    ///
    /// # Errors
    /// No such interface.
    pub fn coalescing(&mut self, interface: &str) -> Result<Option<Coalescing>> {
        let words = self.ask(interface, "coalescing", request::<WORDS>(ETHTOOL_GCOALESCE));
        let Some(words) = supported(words)? else { return Ok(None) };
        let [rx_usecs, rx_frames, tx_usecs, tx_frames, adaptive_rx, adaptive_tx] =
            FIELDS.map(|at| words[at]);
        let (adaptive_rx, adaptive_tx) = (adaptive_rx != 0, adaptive_tx != 0);
        let now = Coalescing { rx_usecs, rx_frames, tx_usecs, tx_frames, adaptive_rx, adaptive_tx };
        Ok(Some(now))
    }

    /// Sets the interrupt coalescing. The kernel refuses a value other than 0 of a field that the driver lacks.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`, or the driver refuses.
    pub fn set_coalescing(&mut self, interface: &str, coalescing: Coalescing) -> Result<()> {
        let Coalescing { rx_usecs, rx_frames, tx_usecs, tx_frames, adaptive_rx, adaptive_tx } =
            coalescing;
        let mut words = self.ask(interface, "coalescing", request::<WORDS>(ETHTOOL_GCOALESCE))?;
        words[0] = ETHTOOL_SCOALESCE;
        let values =
            [rx_usecs, rx_frames, tx_usecs, tx_frames, adaptive_rx.into(), adaptive_tx.into()];
        for (at, value) in FIELDS.into_iter().zip(values) {
            words[at] = value;
        }
        self.ask(interface, "set the coalescing of", words).map(drop)
    }
}
