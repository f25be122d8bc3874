//! Checks whether packets have the card's timestamps. Users enable them; this code never changes the
//! setting.

use crate::error::Result;
use crate::link::Ethtool;
use crate::link::ethtool::{HardwareStamps, Timestamping};

/// Returns why a packet socket gets no timestamps from a card, with the remedy if one exists.
pub(super) fn socket_obstacle(interface: &str, netns: Option<&str>) -> Option<String> {
    explained(interface, netns, obstacle)
}

/// Returns why an XDP program gets no timestamps from a card although its driver supports that. The
/// interface is one of this thread's network namespace.
pub(super) fn xdp_obstacle(interface: &str) -> Option<String> {
    explained(interface, None, off)
}

/// Asks the driver which packets it can timestamp, and which ones it timestamps now.
fn explained(
    interface: &str,
    netns: Option<&str>,
    obstacle: fn(&str, Option<Timestamping>, Option<HardwareStamps>) -> Option<String>,
) -> Option<String> {
    let answer = || -> Result<_> {
        let mut driver = Ethtool::open(netns)?;
        Ok((driver.timestamping(interface)?, driver.hardware_stamps(interface)?))
    };
    match answer() {
        Ok((able, now)) => obstacle(interface, able, now),
        Err(error) => Some(error.to_string()),
    }
}

fn obstacle(
    interface: &str,
    can: Option<Timestamping>,
    now: Option<HardwareStamps>,
) -> Option<String> {
    let needed = libc::SOF_TIMESTAMPING_RX_HARDWARE | libc::SOF_TIMESTAMPING_RAW_HARDWARE;
    let able = can.filter(|can| can.flags & needed == needed);
    let Some(able) = able else {
        return Some(format!("{interface} has no clock that stamps received packets"));
    };
    match now {
        Some(HardwareStamps { rx: 1.., .. }) => None,
        // Filter 0 means off.
        _ => Some(switched_off(interface, able)),
    }
}

/// Explains that timestamping is disabled in a card.
fn switched_off(interface: &str, able: Timestamping) -> String {
    if able.stamps_all_received() {
        format!(
            "{interface} can stamp packets and is not switched on to: \
             `hwstamp_ctl -i {interface} -r 1` does it"
        )
    } else {
        format!(
            "{interface} can stamp some packets only and is not switched on to: \
             `ethtool -T {interface}` names its filters, `hwstamp_ctl -i {interface} -r FILTER` \
             switches one on"
        )
    }
}

fn off(interface: &str, able: Option<Timestamping>, now: Option<HardwareStamps>) -> Option<String> {
    match (able, now) {
        // Filter 0 means off.
        (Some(able), Some(HardwareStamps { rx: 0, .. })) => Some(switched_off(interface, able)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_times_of_a_card_that_can_stamp_and_does() {
        let hardware = libc::SOF_TIMESTAMPING_RX_HARDWARE | libc::SOF_TIMESTAMPING_RAW_HARDWARE;
        let software = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
        let can = |flags, rx_filters| {
            Some(Timestamping { flags, clock: Some(0), tx_types: 0, rx_filters })
        };
        let now = |rx| Some(HardwareStamps { tx: 0, rx });
        let rows = [
            ("a driver that does not say", None, None, Some("no clock")),
            ("a veth", can(software, 0), None, Some("no clock")),
            ("a card that is off", can(hardware, 0b11), now(0), Some("hwstamp_ctl -i e -r 1`")),
            ("a card that cannot tell", can(hardware, 0b11), None, Some("hwstamp_ctl -i e -r 1`")),
            ("a card for PTP that is off", can(hardware, 0b101), now(0), Some("-r FILTER")),
            ("a card that stamps all", can(hardware, 0b11), now(1), None),
            ("a card that stamps PTP", can(hardware, 0b101), now(12), None),
        ];
        for (sentence, can, now, expected) in rows {
            let obstacle = obstacle("e", can, now);
            match (&obstacle, expected) {
                (Some(reason), Some(part)) => {
                    assert!(reason.contains(part), "{sentence}: {reason}")
                }
                _ => assert_eq!(obstacle.is_some(), expected.is_some(), "{sentence}"),
            }
        }
    }

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
