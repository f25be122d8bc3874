//! What an `xdp:` port's options say.

use crate::error::Result;
use crate::port::PortName;
use crate::xdp::Mode;
use crate::xdp::resident::{Action, ModeWish};

/// The options of an `xdp:` port.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub filter: Option<String>,
    pub action: Action,
    pub mode: ModeWish,
    /// Slots in the ring.
    pub slots: u32,
}

impl Config {
    pub(super) fn of(name: &PortName) -> Result<Self> {
        let actions = [("take", Action::Take), ("drop", Action::Drop), ("pass", Action::Pass)];
        let modes = [("native", ModeWish::Only(Mode::Native)), ("skb", ModeWish::Only(Mode::Skb))];
        let filter = name.option("filter").map(str::to_owned);
        Ok(Self {
            filter: filter.filter(|filter| !filter.trim().is_empty()),
            action: name.choice("action", &actions)?.unwrap_or_default(),
            mode: name.choice("mode", &modes)?.unwrap_or_default(),
            slots: name.number("slots", 2..=32_768)?.unwrap_or(512) as u32,
        })
    }
}
