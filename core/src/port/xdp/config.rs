//! The options of an `xdp:` port.

use std::time::Duration;

use crate::error::Result;
use crate::port::name::PortName;
use crate::xdp::resident::{Action, ModeRequest};
use crate::xdp::rx_metadata::RxMetadata;
use crate::xdp::{BindMode, BusyPoll, Mode};

/// The options of an `xdp:` port.
#[derive(Clone, Debug)]
pub(super) struct XdpConfig {
    pub action: Action,
    pub mode: ModeRequest,
    /// The mode of binding, if only one is allowed.
    pub bind: Option<BindMode>,
    pub method: Option<XdpMethod>,
    pub send: SendPath,
    /// True if packets for other hosts are received, too.
    pub promiscuous: bool,
    /// The clock of packets' timestamps, in XDP.
    pub rx_metadata: RxMetadata,
    /// Maximum number of bytes kept of a packet, if limited.
    pub snaplen: Option<u32>,
    /// Number of buffers of a queue: those in its ring's slots and those that the kernel holds.
    pub frames: u32,
    /// Number of cells of a cell ring, if not the default.
    pub cells: Option<u32>,
    /// Number of slots in the ring.
    pub slots: u32,
    pub busy_poll: Option<BusyPoll>,
}

/// The method by which packets reach the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XdpMethod {
    /// AF_XDP sockets.
    Sockets,
    /// Rings into which the program copies packets.
    CellRing,
}

/// The path by which packets leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SendPath {
    #[default]
    Socket,
    Live,
}

impl XdpConfig {
    pub(super) fn of(name: &PortName) -> Result<Self> {
        let actions = [("take", Action::Take), ("drop", Action::Drop), ("pass", Action::Pass)];
        let native = ModeRequest::Only(Mode::Native);
        let modes = [
            ("native", (native, None)),
            ("zero-copy", (native, Some(BindMode::ZeroCopy))),
            ("copy", (native, Some(BindMode::Copy))),
            ("skb", (ModeRequest::Only(Mode::Skb), Some(BindMode::Copy))),
        ];
        let kinds = [
            ("xdp", RxMetadata::Kernel),
            ("hardware", RxMetadata::Driver),
            ("off", RxMetadata::None),
        ];
        let (mode, bind) = name.choice("mode", &modes)?.unwrap_or_default();
        let sends = [("af_xdp", SendPath::Socket), ("live", SendPath::Live)];
        let methods = [("af_xdp", XdpMethod::Sockets), ("ring", XdpMethod::CellRing)];
        let slots = name.slots(2..=16_384)?;
        let cells = name.count("ring_size", 64..=65_536)?;
        let frames = cells.unwrap_or(4096);
        if frames < slots * 2 {
            return Err(name.bad_option(
                "ring_size",
                &frames.to_string(),
                "use at least twice `slots`",
            ));
        }
        let busy_poll = busy_poll(name)?;
        let method = name.choice("method", &methods)?;
        if busy_poll.is_some() && method == Some(XdpMethod::CellRing) {
            return Err(name.error("busy_poll= is for sockets, and method=ring has none"));
        }
        Ok(Self {
            action: name.choice("action", &actions)?.unwrap_or_default(),
            mode,
            bind,
            method,
            send: name.choice("send", &sends)?.unwrap_or_default(),
            promiscuous: name.switch("promisc")?.unwrap_or(false),
            rx_metadata: name.choice("timestamp", &kinds)?.unwrap_or(RxMetadata::Kernel),
            snaplen: name.number("snaplen", 1..=262_144)?,
            frames,
            cells,
            slots,
            busy_poll,
        })
    }
}

/// Parses `busy_poll=`: the kernel counts the time in microseconds, in an `int`.
fn busy_poll(name: &PortName) -> Result<Option<BusyPoll>> {
    let Some(time) = name.duration("busy_poll")?.filter(|time| !time.is_zero()) else {
        return Ok(None);
    };
    if !(Duration::from_micros(1)..=Duration::from_secs(1)).contains(&time) {
        return Err(name.bad_option(
            "busy_poll",
            &format!("{time:?}"),
            "use 1us to 1s, or 0s for none",
        ));
    }
    Ok(Some(BusyPoll { time_us: time.as_micros() as u32, budget_packets: 64 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_busy_polling_are_those_the_kernel_can_have() {
        for (time, expected) in [
            ("0s", Some(None)),
            ("1us", Some(Some(1))),
            ("50us", Some(Some(50))),
            ("1s", Some(Some(1_000_000))),
            ("500ns", None),
            ("1001ms", None),
            // As 32 bits of microseconds these are 0 and 5 µs.
            ("4294967296us", None),
            ("4294967301us", None),
        ] {
            let name: PortName = format!("xdp:eth0?busy_poll={time}").parse().unwrap();
            match (XdpConfig::of(&name), expected) {
                (Ok(config), Some(expected)) => {
                    assert_eq!(config.busy_poll.map(|it| it.time_us), expected, "{time}");
                }
                (Err(error), None) => {
                    let error = error.to_string();
                    assert!(error.contains("busy_poll=") && error.contains("1us to 1s"), "{error}");
                }
                (got, _) => panic!("{time}: {got:?}"),
            }
        }
    }
}
