//! Chooses the clock of packets' times: the card if it was requested, is able to, and is switched
//! on; otherwise the kernel. The card's setting is the host's and never changed here.

use super::Fallback;
use super::config::Clock;
use crate::error::Result;
use crate::link::Ethtool;
use crate::link::ethtool::{HardwareStamps, Timestamping};

/// The clock that will be used, and why it is not the one asked for.
pub(super) fn choose(
    asked: Clock,
    interface: &str,
    netns: Option<&str>,
) -> (Clock, Option<Fallback>) {
    if asked == Clock::Software {
        return (Clock::Software, None);
    }
    let obstacle = match ask(interface, netns) {
        Ok((can, now)) => obstacle(interface, can, now),
        Err(error) => Some(error.to_string()),
    };
    match obstacle {
        None => (Clock::Hardware, None),
        Some(reason) => {
            let (from, to) = ("hardware timestamps", "software timestamps");
            (Clock::Software, Some(Fallback::new(from, to, reason)))
        }
    }
}

fn ask(
    interface: &str,
    netns: Option<&str>,
) -> Result<(Option<Timestamping>, Option<HardwareStamps>)> {
    let mut driver = Ethtool::open(netns)?;
    Ok((driver.timestamping(interface)?, driver.hardware_stamps(interface)?))
}

/// Returns the obstacle, with the remedy if one exists.
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
        // A filter of 0 is off.
        _ => Some(switched_off(interface, able)),
    }
}

/// Explains that a card is not switched on to stamp packets.
pub(in crate::port) fn switched_off(interface: &str, able: Timestamping) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_takes_the_time_where_it_can_and_does() {
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
}
