//! What an `xdp:` port's options say.

use crate::error::Result;
use crate::port::PortName;
use crate::xdp::resident::{Action, ModeWish};
use crate::xdp::stamp::Stamp;
use crate::xdp::{BindMode, BusyPoll, Mode};

/// The options of an `xdp:` port.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub filter: Option<String>,
    pub action: Action,
    pub mode: ModeWish,
    /// Zero-copy or copy, this one or none.
    pub bind: Option<BindMode>,
    pub method: Option<Method>,
    /// Whose time packets get, in XDP.
    pub stamp: Stamp,
    /// Bytes that are kept of a packet, if not all.
    pub snaplen: Option<u32>,
    /// Buffers a queue has: in its ring's slots, and the rest at the kernel.
    pub frames: u32,
    /// Cells of a ring of copies, if somebody says.
    pub cells: Option<u32>,
    /// Slots in the ring.
    pub slots: u32,
    pub busy_poll: Option<BusyPoll>,
}

/// How packets come to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// By AF_XDP sockets.
    Sockets,
    /// By rings that the program copies them into.
    Copies,
}

impl Config {
    pub(super) fn of(name: &PortName) -> Result<Self> {
        let actions = [("take", Action::Take), ("drop", Action::Drop), ("pass", Action::Pass)];
        let native = ModeWish::Only(Mode::Native);
        let modes = [
            ("native", (native, None)),
            ("zero-copy", (native, Some(BindMode::ZeroCopy))),
            ("copy", (native, Some(BindMode::Copy))),
            ("skb", (ModeWish::Only(Mode::Skb), Some(BindMode::Copy))),
        ];
        let stamps = [("xdp", Stamp::Kernel), ("hardware", Stamp::Driver), ("off", Stamp::None)];
        let (mode, bind) = name.choice("mode", &modes)?.unwrap_or_default();
        let methods = [("af_xdp", Method::Sockets), ("ring", Method::Copies)];
        let filter = name.option("filter").map(str::to_owned);
        let slots = name.number("slots", 2..=16_384)?.unwrap_or(512) as u32;
        let cells = name.number("frames", 64..=65_536)?.map(|frames| frames as u32);
        let frames = cells.unwrap_or(4096);
        if frames < slots * 2 {
            return Err(name.wrong("frames", &frames.to_string(), "use at least twice `slots`"));
        }
        let busy_poll = name.duration("busy_poll")?.filter(|time| !time.is_zero());
        let method = name.choice("method", &methods)?;
        if busy_poll.is_some() && method == Some(Method::Copies) {
            return Err(name.error("busy_poll= is for sockets, and method=ring has none"));
        }
        Ok(Self {
            filter: filter.filter(|filter| !filter.trim().is_empty()),
            action: name.choice("action", &actions)?.unwrap_or_default(),
            mode,
            bind,
            method,
            stamp: name.choice("timestamp", &stamps)?.unwrap_or(Stamp::Kernel),
            snaplen: name.number("snaplen", 1..=262_144)?.map(|bytes| bytes as u32),
            frames,
            cells,
            slots,
            busy_poll: busy_poll
                .map(|time| BusyPoll { time_us: time.as_micros() as u32, budget_packets: 64 }),
        })
    }
}
