//! The card's times: whether a port can have them, and what it says of its times.

use crate::error::Result;
use crate::link::ethtool::{HardwareStamps, Timestamping};
use crate::link::{self, Ethtool};
use crate::port::packet::clock::switched_off;
use crate::port::{Fallback, Interface};
use crate::xdp::resident::{Resident, metadata_obstacle};
use crate::xdp::stamp::Stamp;

/// Why packets will have no times of the card's: the driver does not tell them, or the card is
/// switched off. The interface is one of this thread's network namespace.
pub(super) fn obstacle(interface: &link::Interface) -> Option<String> {
    let asked = || -> Result<_> {
        let mut driver = Ethtool::open(None)?;
        let name = &interface.name;
        Ok((driver.timestamping(name)?, driver.hardware_stamps(name)?))
    };
    metadata_obstacle(interface).or_else(|| match asked() {
        Ok((able, now)) => off(&interface.name, able, now),
        Err(error) => Some(error.to_string()),
    })
}

fn off(interface: &str, able: Option<Timestamping>, now: Option<HardwareStamps>) -> Option<String> {
    match (able, now) {
        // A filter of 0 is off.
        (Some(able), Some(HardwareStamps { rx: 0, .. })) => Some(switched_off(interface, able)),
        _ => None,
    }
}

/// Why packets get the kernel's time: what stood in the way before the program was joined, or
/// what stands in the way there.
pub(super) fn reason(obstacle: Option<String>, resident: &Resident) -> Option<String> {
    obstacle.or_else(|| resident.no_metadata().map(str::to_owned))
}

pub(super) fn fallback(reason: String) -> Fallback {
    Fallback::new("hardware timestamps", "xdp timestamps", reason)
}

/// Describes a queue's packets, and their times.
pub(super) fn described(interface: &link::Interface, stamp: Stamp) -> Interface {
    let comment = match stamp {
        Stamp::None => "packets taken by XDP",
        Stamp::Kernel => "timestamps: software (kernel), taken in XDP",
        Stamp::Driver => {
            "timestamps: hardware (card), software (kernel, taken in XDP) where it gave none"
        }
    };
    Interface { comment: comment.into(), ..super::in_kernel::described(interface) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_to_be_switched_on() {
        let able = Some(Timestamping { flags: 0, clock: Some(0), tx_types: 0, rx_filters: 0b11 });
        let now = |rx| Some(HardwareStamps { tx: 0, rx });
        let rows = [
            ("a card that is off", able, now(0), Some("hwstamp_ctl -i e -r 1`")),
            ("a card that is on", able, now(1), None),
            ("a card that stamps PTP", able, now(12), None),
            ("a driver that does not say, as that of veth", able, None, None),
        ];
        for (sentence, able, now, expected) in rows {
            let found = off("e", able, now);
            match (&found, expected) {
                (Some(reason), Some(part)) => {
                    assert!(reason.contains(part), "{sentence}: {reason}");
                }
                _ => assert_eq!(found.is_some(), expected.is_some(), "{sentence}"),
            }
        }
    }
}
