//! The counters of a switch's port, and its limit of flooded packets.

use std::time::{Duration, Instant};

/// Why a packet that came in goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LossCause {
    /// Too short for a frame, or the address of a group as its source.
    Malformed,
    /// Only a part of it is here: the port keeps no more.
    Cut,
    /// A protocol between neighbours, which no bridge forwards.
    LinkLocal,
    /// Not of a VLAN that the port is in.
    Vlan,
    /// More were to be flooded than the port may.
    Storm,
    /// Its destination is behind the port that it came from.
    SamePort,
    /// There is no other port to send it to.
    NoPort,
}

/// The causes, by their numbers, and their names in ledgers.
pub const CAUSES: [(LossCause, &str); 7] = [
    (LossCause::Malformed, "malformed"),
    (LossCause::Cut, "cut"),
    (LossCause::LinkLocal, "link_local"),
    (LossCause::Vlan, "vlan"),
    (LossCause::Storm, "storm_limit"),
    (LossCause::SamePort, "same_port"),
    (LossCause::NoPort, "no_port"),
];

/// Counts since the port was added. Every packet that came in stands in one of `forwarded`,
/// `flooded` and `dropped`; every packet for the port in one of `queued`, `full`, `too_long` and
/// `down`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came in.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets that went to the one port their destination is behind.
    pub forwarded: u64,
    /// Packets that went to all other ports.
    pub flooded: u64,
    /// Copies of these beyond the first of each.
    pub copies: u64,
    /// Packets that went nowhere, by cause.
    pub dropped: [u64; CAUSES.len()],
    /// Packets that came after the run had ended, and were let go.
    pub after_end: u64,
    /// Packets for this port.
    pub given: u64,
    /// Packets given that its ring took by exchange of buffers; `copied` counts the others.
    pub swapped: u64,
    /// See `swapped`.
    pub copied: u64,
    /// Bytes of these on the wire.
    pub queued_bytes: u64,
    /// Packets given and lost because its ring was full.
    pub full: u64,
    /// Longer than its ring can ever hold.
    pub too_long: u64,
    /// For a port that was down.
    pub down: u64,
    /// Addresses learned here that were behind another port before.
    pub moved: u64,
    /// Addresses that there was no room for in the table.
    pub unlearned: u64,
    /// Packets from an address with a static entry for another port.
    pub elsewhere: u64,
}

impl Counts {
    /// Counts a packet that goes nowhere.
    pub fn drop(&mut self, cause: LossCause) {
        self.dropped[cause as usize] += 1;
    }
}

/// A second's worth is let through at once at most.
#[derive(Clone, Debug)]
pub struct Storm {
    per_second: u32,
    left: u32,
    /// The time up to which `left` was filled.
    filled: Instant,
}

impl Storm {
    /// A limit, from a moment on.
    pub fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, left: per_second, filled: now }
    }

    /// Takes note of the time, once a batch.
    pub fn look(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        if passed >= Duration::from_secs(1) {
            (self.left, self.filled) = (self.per_second, now);
            return;
        }
        let due = passed.as_nanos() * u128::from(self.per_second) / 1_000_000_000;
        let Ok(due) = u32::try_from(due) else { return };
        if due > 0 {
            self.left = self.left.saturating_add(due).min(self.per_second);
            // No more than what the packets are worth, so that fractions add up.
            self.filled +=
                Duration::from_nanos(u64::from(due) * 1_000_000_000 / u64::from(self.per_second));
        }
    }

    /// Returns true if one more packet may be flooded.
    #[inline]
    pub fn allow(&mut self) -> bool {
        let allowed = self.left > 0;
        self.left -= u32::from(allowed);
        allowed
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

    #[test]
    fn as_many_as_are_allowed_go_and_no_more() {
        let start = Instant::now();
        let mut storm = Storm::new(1000, start);
        let mut pass = |after: Duration, packets: u32| {
            storm.look(start + after);
            (0..packets).filter(|_| storm.allow()).count()
        };
        assert_eq!(pass(Duration::ZERO, 5000), 1000, "a second's worth at once");
        assert_eq!(pass(Duration::from_micros(999), 10), 0);
        assert_eq!(pass(Duration::from_micros(1000), 10), 1, "fractions add up");
        assert_eq!(pass(Duration::from_millis(101), 5000), 100);
        assert_eq!(pass(Duration::from_secs(60), 5000), 1000, "no more after a pause");
    }

    #[test]
    fn none_at_all_is_a_limit_too() {
        let start = Instant::now();
        let mut storm = Storm::new(0, start);
        storm.look(start + Duration::from_secs(5));
        assert!(!storm.allow());
    }
}
