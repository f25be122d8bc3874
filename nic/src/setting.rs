//! Settings of a network interface, by name: "ring.rx", "feature.rx-gro".

use std::fmt;
use std::str::FromStr;

/// A setting of an interface. [`Device`](crate::Device) reads and sets it, as a text without blanks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// A number that the driver keeps.
    Number(Number),
    /// A flag that the driver keeps: "on" or "off".
    Flag(Flag),
    /// A feature of the kernel or the card (`ethtool -k`): "on" or "off".
    Feature(String),
    /// A flag with a meaning of the driver (`ethtool --show-priv-flags`): "on" or "off".
    PrivateFlag(String),
    /// The queues of RSS, one for each value of the hash: "0,1,2,3".
    RssTable,
    /// The key of RSS, in hexadecimal: "6d:5a:…".
    RssKey,
    /// The CPUs that packets of a receive queue are spread over (RPS), as a mask of the kernel: "3".
    RxQueueCpus(u32),
    /// The CPUs that use a transmit queue (XPS), as a mask of the kernel: "3".
    TxQueueCpus(u32),
}

/// Settings that are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Number {
    /// Descriptors of each receive ring.
    RxRing,
    /// Descriptors of each transmit ring.
    TxRing,
    /// Queues that only receive.
    RxChannels,
    /// Queues that only send.
    TxChannels,
    /// Pairs of a receive and a transmit queue.
    CombinedChannels,
    /// Microseconds from a received packet to an interrupt.
    RxUsecs,
    /// Received packets until an interrupt.
    RxFrames,
    /// Microseconds from a sent packet to an interrupt.
    TxUsecs,
    /// Sent packets until an interrupt.
    TxFrames,
}

/// Settings that are flags of every driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flag {
    /// The driver adapts the delay of receive interrupts.
    AdaptiveRx,
    /// The driver adapts the delay of transmit interrupts.
    AdaptiveTx,
    /// The ends of the link negotiate pause frames.
    PauseAutonegotiation,
    /// The card obeys pause frames.
    RxPause,
    /// The card sends pause frames.
    TxPause,
}

/// The names of settings without a part of their own.
const NAMES: [(Setting, &str); 16] = [
    (Setting::Number(Number::RxRing), "ring.rx"),
    (Setting::Number(Number::TxRing), "ring.tx"),
    (Setting::Number(Number::RxChannels), "channels.rx"),
    (Setting::Number(Number::TxChannels), "channels.tx"),
    (Setting::Number(Number::CombinedChannels), "channels.combined"),
    (Setting::Number(Number::RxUsecs), "coalesce.rx-usecs"),
    (Setting::Number(Number::RxFrames), "coalesce.rx-frames"),
    (Setting::Number(Number::TxUsecs), "coalesce.tx-usecs"),
    (Setting::Number(Number::TxFrames), "coalesce.tx-frames"),
    (Setting::Flag(Flag::AdaptiveRx), "coalesce.adaptive-rx"),
    (Setting::Flag(Flag::AdaptiveTx), "coalesce.adaptive-tx"),
    (Setting::Flag(Flag::PauseAutonegotiation), "pause.autonegotiation"),
    (Setting::Flag(Flag::RxPause), "pause.rx"),
    (Setting::Flag(Flag::TxPause), "pause.tx"),
    (Setting::RssTable, "rss.table"),
    (Setting::RssKey, "rss.key"),
];

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Feature(name) => write!(f, "feature.{name}"),
            Self::PrivateFlag(name) => write!(f, "private-flag.{name}"),
            Self::RxQueueCpus(queue) => write!(f, "rps.{queue}"),
            Self::TxQueueCpus(queue) => write!(f, "xps.{queue}"),
            _ => {
                let named = NAMES.iter().find(|(setting, _)| setting == self);
                f.write_str(named.map_or("", |(_, name)| name))
            }
        }
    }
}

/// The error for a text that names no setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no setting")]
pub struct NoSetting(String);

impl FromStr for Setting {
    type Err = NoSetting;

    fn from_str(text: &str) -> Result<Self, NoSetting> {
        if let Some((setting, _)) = NAMES.iter().find(|(_, name)| *name == text) {
            return Ok(setting.clone());
        }
        let wrong = || NoSetting(text.into());
        let (subject, rest) =
            text.split_once('.').filter(|(_, it)| !it.is_empty()).ok_or_else(wrong)?;
        let queue = || rest.parse().map_err(|_| wrong());
        match subject {
            "feature" => Ok(Self::Feature(rest.into())),
            "private-flag" => Ok(Self::PrivateFlag(rest.into())),
            "rps" => Ok(Self::RxQueueCpus(queue()?)),
            "xps" => Ok(Self::TxQueueCpus(queue()?)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let others = [
            Setting::Feature("rx-gro".into()),
            Setting::PrivateFlag("legacy-rx".into()),
            Setting::RxQueueCpus(0),
            Setting::TxQueueCpus(63),
        ];
        for setting in NAMES.iter().map(|(it, _)| it.clone()).chain(others) {
            let name = setting.to_string();
            assert_eq!(name.parse(), Ok(setting));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "ring", "ring.", "ring.both", "feature.", "rps.x", "rps.-1", "card.speed"]
        {
            assert_eq!(text.parse::<Setting>(), Err(NoSetting(text.into())));
        }
    }
}
