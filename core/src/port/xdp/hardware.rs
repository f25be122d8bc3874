//! The card's times: whether a port can have them, and what it says of its times.

use crate::link::ethtool::{HardwareStamps, Timestamping};
use crate::link::{self, Ethtool, Metadata, XdpAbilities};
use crate::port::packet::clock::switched_off;
use crate::port::{Fallback, Interface};
use crate::xdp::resident::Resident;
use crate::xdp::stamp::Stamp;

/// Why the driver of an interface of this thread's network namespace will not tell the times of
/// packets; none if it will, of those that have one.
pub(super) fn obstacle(interface: &link::Interface) -> Option<String> {
    let asked = link::xdp_abilities(None, interface).and_then(|abilities| {
        let mut driver = Ethtool::open(None)?;
        let able = driver.timestamping(&interface.name)?;
        Ok((abilities, able, driver.hardware_stamps(&interface.name)?))
    });
    match asked {
        Ok((abilities, able, now)) => in_the_way(&interface.name, abilities, able, now),
        Err(error) => Some(error.to_string()),
    }
}

fn in_the_way(
    interface: &str,
    abilities: Option<XdpAbilities>,
    able: Option<Timestamping>,
    now: Option<HardwareStamps>,
) -> Option<String> {
    match (abilities.and_then(|abilities| abilities.metadata), able, now) {
        (None, ..) => {
            Some("the kernel does not say what drivers tell XDP programs: Linux 6.7 does".into())
        }
        (Some(Metadata { timestamp: false, .. }), ..) => {
            Some(format!("the driver of {interface} tells XDP programs no times"))
        }
        // A filter of 0 is off.
        (_, Some(able), Some(HardwareStamps { rx: 0, .. })) => Some(switched_off(interface, able)),
        _ => None,
    }
}

/// Why packets get the kernel's time: what stood in the way before the program was joined, or
/// what stands in the way there.
pub(super) fn reason(obstacle: Option<String>, resident: &Resident) -> Option<String> {
    obstacle.or_else(|| resident.metadata().err().map(str::to_owned))
}

pub(super) fn fallback(reason: String) -> Fallback {
    Fallback { from: "hardware timestamps", to: "xdp timestamps", reason }
}

/// What a queue says of its packets, and of their times.
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
    fn the_cards_time_is_asked_for_where_it_can_be_had() {
        let metadata = |timestamp| {
            let metadata = Some(Metadata { timestamp, hash: true, vlan_tag: false });
            Some(XdpAbilities { metadata, ..XdpAbilities::default() })
        };
        let able = Some(Timestamping { flags: 0, clock: Some(0), tx_types: 0, rx_filters: 0b11 });
        let now = |rx| Some(HardwareStamps { tx: 0, rx });
        let before_6_7 = Some(XdpAbilities::default());
        let rows = [
            ("Linux 6.2", None, able, now(1), Some("Linux 6.7")),
            ("Linux 6.6", before_6_7, able, now(1), Some("Linux 6.7")),
            ("a driver with hashes only", metadata(false), able, now(1), Some("no times")),
            ("a card that is off", metadata(true), able, now(0), Some("hwstamp_ctl -i e -r 1`")),
            ("a card that is on", metadata(true), able, now(1), None),
            ("a driver that is not asked, as veth", metadata(true), None, None, None),
        ];
        for (sentence, abilities, able, now, expected) in rows {
            let found = in_the_way("e", abilities, able, now);
            match (&found, expected) {
                (Some(reason), Some(part)) => {
                    assert!(reason.contains(part), "{sentence}: {reason}");
                }
                _ => assert_eq!(found.is_some(), expected.is_some(), "{sentence}"),
            }
        }
    }
}
