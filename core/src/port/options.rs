//! The options that a port is opened with.

use std::sync::Arc;
use std::time::Duration;

use crate::file::write::FileAccess;
use crate::xdp::Inspect;
use sluicegate_base::memory::Pool;

/// The [`latency`](OpenOptions::latency) for a program that only records or counts: while packets arrive,
/// it wakes 50 times a second, and when a quarter of a ring is full.
pub const RECORDING_LATENCY: Duration = Duration::from_millis(20);

/// The directions that a port is opened for. The ring of an unused direction
/// [is absent](sluicegate_base::ring::Ring::is_absent): it has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directions {
    /// To receive.
    #[default]
    Receive,
    /// To send.
    Send,
    /// Both.
    Both,
}

impl Directions {
    /// Returns true if a port for this use receives.
    pub(crate) fn receives(self) -> bool {
        self != Self::Send
    }

    /// Returns true if a port for this use sends.
    pub(crate) fn sends(self) -> bool {
        self != Self::Receive
    }
}

/// Options for opening a port, in addition to its name.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The directions in use; by default [`Directions::Receive`].
    pub usage: Directions,
    /// The network namespace to open the port in, as `ip netns` names it; by default this process's.
    pub netns: Option<String>,
    /// The number of queues if the name does not select them; 0 means the port's default: all receive queues of
    /// the interface for `xdp:`, `mirror:`, all of the monitored port for `monitor:`, otherwise one. `packet:`,
    /// `live:`, `host:`, `tap:`, `memif:` and `null:` accept any number; opening another port fails if it has
    /// a different one, and [`Port::open_all`](super::Port::open_all) opens all its queues. Select queues of
    /// `xdp:` and `mirror:` by name: `xdp:eth0/0-1`.
    pub queues: u32,
    /// The pool to share with other ports, so that packets can be swapped; by default the port makes its
    /// own.
    pub pool: Option<Arc<Pool>>,
    /// The permissions of a newly written capture file.
    pub access: FileAccess,
    /// Maximum time that a packet waits for a sleeping program: a long time saves wake-ups, zero wakes at
    /// once. The name's `latency=` overrides it. By default cell rings wake at once, and blocks of a
    /// packet socket within [`BLOCK_TIMEOUT`](super::BLOCK_TIMEOUT). [`RECORDING_LATENCY`] suits programs that only
    /// record or count.
    pub latency: Option<Duration>,
    /// Inspects the packets of a port that only counts; other ports ignore it.
    pub inspect: Option<Arc<dyn Inspect>>,
}

/// A fallback from the method or mode tried first to a slower one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The method or mode that was tried.
    pub from: &'static str,
    /// The method or mode used instead: `copy` for sockets in copy mode, or for a cell ring.
    pub to: &'static str,
    /// The reason.
    pub reason: String,
    /// The kernel's answer, if the reason does not include it.
    pub detail: Option<String>,
}

impl Fallback {
    /// Makes a fallback without details.
    pub fn new(from: &'static str, to: &'static str, reason: String) -> Self {
        Self { from, to, reason, detail: None }
    }

    /// Returns the fallback of an XDP program that is not native for this reason; empty without a reason.
    pub(super) fn from_native(reason: Option<String>) -> Vec<Self> {
        reason.map(|reason| Self::new("native", "skb", reason)).into_iter().collect()
    }
}
