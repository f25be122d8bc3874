//! How a queue waits when there is nothing to do.

use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};

/// How a thread waits for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Never sleeps: least delay, a core to itself.
    Spin,
    /// Sleeps in poll(2) at once: least processor time.
    Sleep,
    /// Spins for this time, then sleeps.
    Adaptive(Duration),
}

impl Default for Wait {
    /// Spins for 20 µs, about what a sleep and a wake-up cost, then sleeps.
    fn default() -> Self {
        Self::Adaptive(Duration::from_micros(20))
    }
}

impl FromStr for Wait {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "spin" => Ok(Self::Spin),
            "sleep" => Ok(Self::Sleep),
            "adaptive" => Ok(Self::default()),
            _ => Err(Error::Usage(format!("wait '{text}': use spin, sleep or adaptive"))),
        }
    }
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// A sync has something to do.
    Ready,
    /// The time is up.
    TimedOut,
    /// The interface went down. Packets come again when it is up.
    Down,
}
