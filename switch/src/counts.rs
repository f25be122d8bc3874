//! The counts of a port in a switch, and the causes of its losses.

/// The cause of a received packet's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LossCause {
    /// The packet is too short for a frame, or its source is a group address.
    Malformed,
    /// The port truncated the packet.
    Cut,
    /// The packet's protocol is link-local: no bridge forwards it.
    LinkLocal,
    /// The port is not a member of the packet's VLAN.
    Vlan,
    /// The port's flood limit is reached.
    Storm,
    /// The packet's destination is at the receiving port.
    SamePort,
    /// No other port accepts the packet.
    NoPort,
}

/// The causes in numerical order, with their names in ledgers.
pub const CAUSES: [(LossCause, &str); 7] = [
    (LossCause::Malformed, "malformed"),
    (LossCause::Cut, "cut"),
    (LossCause::LinkLocal, "link_local"),
    (LossCause::Vlan, "vlan"),
    (LossCause::Storm, "storm_limit"),
    (LossCause::SamePort, "same_port"),
    (LossCause::NoPort, "no_port"),
];

/// Counts since the port was added. Each received packet counts as one of `forwarded`, `flooded` and
/// `dropped`; each packet to the port as one of `swapped`, `copied`, `full`, `too_long` and `down`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounts {
    /// Packets received.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets forwarded to one known port.
    pub forwarded: u64,
    /// Packets flooded to all other ports.
    pub flooded: u64,
    /// Copies of flooded packets beyond the first of each.
    pub copies: u64,
    /// Dropped packets, by cause.
    pub dropped: [u64; CAUSES.len()],
    /// Packets received after the end of the run.
    pub after_end: u64,
    /// Packets to this port.
    pub given: u64,
    /// Packets that its ring took by exchange of buffers.
    pub swapped: u64,
    /// Packets that its ring took by copy.
    pub copied: u64,
    /// Bytes of these on the wire.
    pub queued_bytes: u64,
    /// Packets lost because its ring was full.
    pub full: u64,
    /// Packets longer than its ring can ever hold.
    pub too_long: u64,
    /// Packets lost because it was down.
    pub down: u64,
    /// Addresses learned here that were at another port before.
    pub moved: u64,
    /// Addresses without room in the table.
    pub unlearned: u64,
    /// Packets from an address with a static entry for another port.
    pub elsewhere: u64,
}

impl SwitchCounts {
    /// Returns the packets lost in the switch, for any cause.
    pub fn lost(&self) -> u64 {
        self.dropped.iter().sum::<u64>() + self.full + self.too_long + self.down
    }

    /// Counts a dropped packet.
    pub fn drop(&mut self, cause: LossCause) {
        self.dropped[cause as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_stand_at_their_numbers() {
        for (number, (cause, _)) in CAUSES.iter().enumerate() {
            assert_eq!(*cause as usize, number);
        }
    }
}
