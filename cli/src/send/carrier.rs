//! Whether the interface that is sent to has a carrier. Without one it drops what it gets, and no way
//! of sending is told.

use std::time::{Duration, Instant};

use sluicegate::link::{self, LinkState, netns};
use sluicegate::port::{Kind, PortName};

/// Between two looks.
const CHECK: Duration = Duration::from_millis(500);

/// Looks at an interface's carrier now and then.
#[derive(Debug)]
pub struct Carrier {
    presence: LinkState,
    name: String,
    /// Whether it had one when it was last looked.
    there: bool,
    next: Instant,
}

impl Carrier {
    /// Of the interface that a port sends to; none for files, or where it cannot be asked.
    pub fn of(port: &PortName, netns: Option<&str>) -> Option<Self> {
        if !matches!(port.kind(), Kind::Packet | Kind::Xdp | Kind::Live) {
            return None;
        }
        let interface = link::interface(netns, port.name()).ok()?;
        let presence = netns::run_in(netns, || LinkState::of(&interface)).ok()?;
        Some(Self { presence, name: interface.name, there: true, next: Instant::now() })
    }

    /// What is to be said: that it is gone, or there again. That the interface is down or gone itself,
    /// its sender says.
    pub fn look(&mut self) -> Option<String> {
        if Instant::now() < self.next {
            return None;
        }
        self.next = Instant::now() + CHECK;
        let state = self.presence.look().ok().filter(|state| state.up)?;
        let before = std::mem::replace(&mut self.there, state.running);
        let name = &self.name;
        match (before, self.there) {
            (true, false) => Some(format!(
                "{name} has no carrier: what is sent meanwhile is lost; see to the cable, or to the \
                 other end"
            )),
            (false, true) => Some(format!("{name} has a carrier again")),
            _ => None,
        }
    }
}
