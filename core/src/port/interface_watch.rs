//! Follows changes of a port's interface, and reports them.
//!
//! One of the port's queues asks the kernel for the interface's state, MTU and number of queues: twice a
//! second while a queue is idle, and every 3 s while all queues have packets, because the kernel may wait
//! for a lock (rtnl). The other queues use the last answer meanwhile. Each queue checks by itself that its
//! XDP program is attached.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::name::PortName;
use super::options::Directions;
use crate::error::{Error, Result};
use crate::link::{self, Channels, Ethtool, Netlink};
use crate::xdp::resident::QUEUES_MAX;

/// Bytes of a frame in addition to the MTU: at least an Ethernet header.
const HEADER_BYTES: u32 = 14;
/// The interval of checks while a queue is idle.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The interval of checks while packets arrive.
const BUSY_CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The load of the queue that checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueLoad {
    /// It has waited without receiving a packet.
    Idle,
    Busy,
}

/// Watches an interface for all queues of a port.
#[derive(Debug)]
pub(super) struct InterfaceWatch {
    interface: link::Interface,
    /// True if the port receives from all queues of the interface.
    all: bool,
    /// True if the port sends, whether or not it also receives.
    sends: bool,
    /// Number of the interface's queues that the port may send on.
    to_send: u32,
    direction: WatchedSide,
    // The last answer. Each value is independent, so relaxed order is enough.
    /// Number of queues in the port's direction.
    there: AtomicU32,
    up: AtomicBool,
    removed: AtomicBool,
    state: Mutex<WatchState>,
}

#[derive(Debug)]
struct WatchState {
    /// Opened in the interface's namespace, before the process drops privileges.
    ethtool: Ethtool,
    netlink: Netlink,
    asked: Instant,
    /// Number of queues when the port was opened, and the maximum since.
    opened: u32,
    most: u32,
    notices: VecDeque<String>,
    said_unpolled: bool,
    /// Maximum length of a packet that the port takes completely, if limited, and the fate of longer
    /// packets.
    longest: Option<(u32, &'static str)>,
    /// The last MTU above the limit that was reported.
    said_mtu: u32,
}

impl InterfaceWatch {
    /// Starts watching an interface, before the port's program is attached to it. Call it in the
    /// interface's network namespace.
    ///
    /// # Errors
    /// The port names a queue that the interface cannot have.
    pub(super) fn over(
        name: &PortName,
        interface: &link::Interface,
        usage: Directions,
    ) -> Result<Self> {
        let mut ethtool = Ethtool::open(None)?;
        let direction = match usage {
            Directions::Send => WatchedSide::Transmit,
            _ => WatchedSide::Receive,
        };
        let made = direction.made(interface);
        let there = direction.queues(&mut ethtool, &interface.name);
        let there = there.unwrap_or(made).clamp(1, QUEUES_MAX);
        // The attached program may add queues, so their existence is checked after attaching. An impossible
        // number is rejected before a program is attached.
        if name.queues().is_some_and(|queues| *queues.end() >= made.max(there)) {
            return Err(direction.beyond(name, interface, there));
        }
        let state = WatchState {
            ethtool,
            netlink: Netlink::open(None)?,
            asked: Instant::now(),
            opened: there,
            most: there,
            notices: VecDeque::new(),
            said_unpolled: false,
            longest: None,
            said_mtu: 0,
        };
        Ok(Self {
            interface: interface.clone(),
            there: AtomicU32::new(there),
            up: AtomicBool::new(interface.up),
            removed: AtomicBool::new(false),
            all: name.queues().is_none() && usage.receives(),
            sends: usage.sends(),
            to_send: there,
            direction,
            state: Mutex::new(state),
        })
    }

    /// Returns the port's queues after its program was attached: those of its name, or all.
    ///
    /// If the host gave virtio_net more queues than it uses, virtio_net adds queues for packets sent by
    /// XDP, one per CPU, and receives on them, too. XDP sends on them without a lock (virtnet_xdp_get_sq).
    /// So a port only receives on them, whether or not the program was attached before. Call it in the
    /// interface's network namespace.
    ///
    /// # Errors
    /// The port's name contains a queue that does not exist, or no queue to send on.
    pub(super) fn attached(&mut self, name: &PortName) -> Result<RangeInclusive<u32>> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let before = state.opened;
        let there = self.direction.queues(&mut state.ethtool, &self.interface.name);
        let there = there.unwrap_or(before);
        if self.sends {
            self.to_send = link::transmit_queues(&self.interface).unwrap_or(there).clamp(1, there);
        }
        let most = if self.direction == WatchedSide::Transmit { self.to_send } else { there };
        let queues = name.queues().unwrap_or(0..=most - 1);
        if *queues.end() >= there {
            return Err(self.direction.beyond(name, &self.interface, there));
        }
        if *queues.end() >= most || self.sends && *queues.start() >= self.to_send {
            return Err(name.error(format!(
                "{} has {} that a port may send by, numbered from 0: its driver keeps others for \
                 what XDP sends",
                self.interface.name,
                WatchedSide::Transmit.count(self.to_send)
            )));
        }
        self.there.store(there, Relaxed);
        (state.opened, state.most) = (there, there);
        if self.sends && *queues.end() >= self.to_send {
            state.notices.push_back(format!(
                "{} has {}, and {} that a port may send by: the port's other queues only receive",
                self.interface.name,
                self.direction.count(there),
                WatchedSide::Transmit.count(self.to_send)
            ));
        }
        let lacks = self.direction == WatchedSide::Receive && *queues.end() + 1 < there;
        if lacks && there > before {
            state.notices.push_back(format!(
                "{} has {} now that it has a program, {before} before: what comes to those that \
                 are not named is not received here",
                self.interface.name,
                self.direction.count(there)
            ));
        }
        Ok(queues)
    }

    /// Returns true if a queue of the port sends.
    pub(super) fn sends(&self, number: u32) -> bool {
        self.sends && number < self.to_send
    }

    /// Sets the maximum length of a packet that is taken completely; `then` describes the fate of longer
    /// ones. `mtu` is the interface's current MTU.
    pub(super) fn limit(&self, bytes: u32, then: &'static str, mtu: u32) {
        let mut state = self.state();
        state.longest = Some((bytes, then));
        self.compare(&mut state, mtu);
    }

    /// Checks that queue `number` still exists, and that there are no new ones without a user. Queries the
    /// kernel from time to time; never waits for another queue's query.
    pub(super) fn look(&self, number: u32, load: QueueLoad) -> Result<()> {
        let pause = match load {
            QueueLoad::Idle => CHECK_INTERVAL,
            QueueLoad::Busy => BUSY_CHECK_INTERVAL,
        };
        if let Some(mut state) = self.free_state()
            && state.asked.elapsed() >= pause
        {
            self.ask(&mut state);
            // Taken after the answer, which may take long.
            state.asked = Instant::now();
        }
        let there = self.there.load(Relaxed);
        if number < there {
            return Ok(());
        }
        Err(Error::Removed {
            object: format!("queue {number} of {}", self.interface.name),
            remedy: format!(
                "the interface has {} now (`ethtool -l {}`): start again, or give it its queues \
                 back first (`ethtool -L`)",
                self.direction.count(there),
                self.interface.name
            ),
        })
    }

    /// Returns true if the interface was up at the last [check](Self::look).
    ///
    /// # Errors
    /// The interface was removed.
    pub(super) fn is_up(&self) -> Result<bool> {
        match self.removed.load(Relaxed) {
            true => Err(Error::removed(&self.interface.name)),
            false => Ok(self.up.load(Relaxed)),
        }
    }

    /// Returns the error for a removed interface if that is the cause of `error`; otherwise returns
    /// `error`.
    pub(super) fn explain(&self, error: Error) -> Error {
        self.ask(&mut self.state());
        self.is_up().err().unwrap_or(error)
    }

    fn ask(&self, state: &mut WatchState) {
        let now = match state.netlink.again(&self.interface) {
            Ok(now) => now,
            Err(Error::Removed { .. }) => return self.removed.store(true, Relaxed),
            // The next call may be answered.
            Err(_) => return,
        };
        self.up.store(now.up, Relaxed);
        self.compare(state, now.mtu);
        let there = self.direction.queues(&mut state.ethtool, &now.name);
        let Some(there) = there else { return };
        self.there.store(there, Relaxed);
        if self.all && there > state.most {
            state.notices.push_back(format!(
                "{} has {} now, {} when this was opened: what comes to the new ones is not \
                 received here; start again to have it",
                self.interface.name,
                self.direction.count(there),
                state.opened
            ));
        }
        state.most = state.most.max(there);
    }

    /// Reports an MTU that allows packets above the limit; each value once.
    fn compare(&self, state: &mut WatchState, mtu: u32) {
        let Some((bytes, then)) = state.longest else { return };
        if mtu.saturating_add(HEADER_BYTES) <= bytes || mtu == state.said_mtu {
            return;
        }
        state.said_mtu = mtu;
        state.notices.push_back(format!(
            "{} has an MTU of {mtu}, and frames of more than {bytes} bytes {then}",
            self.interface.name
        ));
    }

    /// Reports once that busy polling has no effect.
    pub(super) fn warn_no_busy_poll(&self) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.said_unpolled, true) {
            state.notices.push_back(format!(
                "busy_poll= does nothing on {}: its driver does not say by which NAPI a queue is \
                 polled",
                self.interface.name
            ));
        }
    }

    /// Returns the next notice for users. None while another queue queries the kernel.
    pub(super) fn take_notice(&self) -> Option<String> {
        self.free_state()?.notices.pop_front()
    }

    /// Locks the state, unless another queue holds the lock.
    fn free_state(&self) -> Option<MutexGuard<'_, WatchState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, WatchState> {
        // Consistent between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The direction of the interface's queues that a port uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchedSide {
    Receive,
    /// The queues of a port that only sends.
    Transmit,
}

impl WatchedSide {
    /// Returns the current number of queues. None if the driver does not report it.
    fn queues(self, ethtool: &mut Ethtool, interface: &str) -> Option<u32> {
        self.of(&ethtool.channels(interface).ok()??)
    }

    /// Adds combined queues, which have both directions, and queues of one direction: ice has both types
    /// (`struct ethtool_channels` of linux/ethtool.h).
    fn of(self, channels: &Channels) -> Option<u32> {
        let alone = match self {
            Self::Receive => channels.rx,
            Self::Transmit => channels.tx,
        };
        let there = channels.combined.saturating_add(alone).min(QUEUES_MAX);
        Some(there).filter(|&there| there > 0)
    }

    /// Returns the number of queues with which the interface was created.
    fn made(self, interface: &link::Interface) -> u32 {
        match self {
            Self::Receive => interface.rx_queues,
            Self::Transmit => interface.tx_queues,
        }
    }

    fn beyond(self, name: &PortName, interface: &link::Interface, there: u32) -> Error {
        name.error(format!(
            "{} has {}, numbered from 0: `ethtool -l {0}` shows them",
            interface.name,
            self.count(there)
        ))
    }

    fn count(self, queues: u32) -> String {
        let direction = match self {
            Self::Receive => "receive",
            Self::Transmit => "transmit",
        };
        format!("{queues} {direction} queue{}", if queues == 1 { "" } else { "s" })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn queues_are_counted_as_the_kernel_counts_them() {
        for ((combined, rx, tx), receive, transmit, why) in [
            ((4, 0, 0), Some(4), Some(4), "combined only"),
            ((4, 2, 0), Some(6), Some(4), "ice with two more to receive by"),
            ((4, 0, 2), Some(4), Some(6), "two more to send by"),
            ((0, 4, 1), Some(4), Some(1), "each direction for itself"),
            ((0, 0, 0), None, None, "none: the driver does not say"),
            ((u32::MAX, 1, 1), Some(QUEUES_MAX), Some(QUEUES_MAX), "more than are served"),
        ] {
            let channels = Channels { rx, tx, combined, rx_max: 0, tx_max: 0, combined_max: 0 };
            let got = [WatchedSide::Receive, WatchedSide::Transmit].map(|it| it.of(&channels));
            assert_eq!(got, [receive, transmit], "{why}");
        }
    }

    #[test]
    fn a_queue_does_not_wait_for_another_that_asks() {
        let lo = link::interface(None, "lo").unwrap();
        let name: PortName = "xdp:lo".parse().unwrap();
        let mut watch = InterfaceWatch::over(&name, &lo, Directions::Receive).unwrap();
        assert_eq!(watch.attached(&name).unwrap(), 0..=0);
        let asking = watch.state();
        watch.look(0, QueueLoad::Idle).unwrap();
        assert!(watch.look(1, QueueLoad::Busy).is_err(), "what is known is told");
        assert!(watch.is_up().unwrap());
        assert_eq!(watch.take_notice(), None);
        drop(asking);
    }

    /// Opens a port on an interface that has room for 4 queues, receives on `before` and sends on
    /// `to_send`, and receives on `after` once its program is attached. Returns the queues or the error,
    /// the number of queues that send, and the notice.
    fn opened(
        lab: &link::Lab,
        (name, usage): (&str, Directions),
        (before, after, to_send): (u32, u32, u32),
    ) -> Result<(RangeInclusive<u32>, usize, Option<String>)> {
        let netns = lab.netns("right");
        let set = |queues: u32| {
            let mut command = std::process::Command::new("ethtool");
            command.args(["-L", "right0", "rx", &queues.to_string(), "tx", &to_send.to_string()]);
            let status = link::netns::spawn(&netns, &mut command).unwrap().wait().unwrap();
            assert!(status.success(), "{queues} queues");
        };
        set(before);
        let right0 = link::interface(Some(&netns), "right0").unwrap();
        let name: PortName = name.parse().unwrap();
        link::netns::run_in(Some(&netns), || {
            let mut watch = InterfaceWatch::over(&name, &right0, usage)?;
            // As a driver does when a program is attached.
            set(after);
            let queues = watch.attached(&name)?;
            let notice = watch.take_notice();
            // Nothing has changed since then.
            watch.ask(&mut watch.state());
            watch.look(*queues.end(), QueueLoad::Idle)?;
            assert_eq!(watch.take_notice(), None, "{name}");
            let send = queues.clone().filter(|&number| watch.sends(number)).count();
            Ok((queues, send, notice))
        })
    }

    #[test]
    fn queues_that_come_with_the_program_are_the_ports_to_receive_by() {
        use Directions::{Both, Receive, Send};
        let Some(lab) = crate::tests::lab_with(4) else { return };
        for (name, usage, counts, expected, told, why) in [
            ("xdp:right0", Receive, (2, 4, 2), (0..=3, 0), false, "all are received from"),
            ("xdp:right0", Receive, (4, 4, 2), (0..=3, 0), false, "a driver that adds none"),
            ("xdp:right0/0-1", Receive, (2, 4, 2), (0..=1, 0), true, "those that are named"),
            ("xdp:right0/0-1", Receive, (4, 4, 2), (0..=1, 0), false, "they existed before"),
            ("xdp:right0/0-3", Receive, (2, 4, 2), (0..=3, 0), false, "added ones can be named"),
            ("xdp:right0/3-3", Receive, (2, 4, 2), (3..=3, 0), false, "nobody need be told"),
            ("xdp:right0", Both, (2, 4, 2), (0..=3, 2), true, "added ones only receive"),
            ("xdp:right0", Both, (4, 4, 2), (0..=3, 2), true, "the program is attached already"),
            ("xdp:right0", Both, (4, 4, 4), (0..=3, 4), false, "all are of both directions"),
            ("xdp:right0/1-2", Both, (4, 4, 2), (1..=2, 1), true, "one of the two sends"),
            ("xdp:right0", Send, (2, 4, 2), (0..=1, 2), false, "it only sends"),
        ] {
            let (queues, send, notice) = opened(&lab, (name, usage), counts).unwrap();
            assert_eq!((queues, send), expected, "{name}, {usage:?}: {why}");
            assert_eq!(notice.is_some(), told, "{name}, {usage:?}: {why}: {notice:?}");
        }
    }

    #[test]
    fn queues_that_are_not_there_with_the_program_either_are_refused() {
        use Directions::{Both, Receive, Send};
        let Some(lab) = crate::tests::lab_with(4) else { return };
        for (name, usage, counts, expected, why) in [
            ("xdp:right0/0-2", Receive, (2, 2, 2), "has 2 receive queues", "none were added"),
            ("mirror:right0/3-3", Receive, (2, 3, 2), "has 3 receive queues", "too few were"),
            ("xdp:right0/0-4", Receive, (2, 4, 2), "has 2 receive queues", "there is no room"),
            ("xdp:right0/2-3", Both, (2, 4, 2), "2 transmit queues that a port may", "none sends"),
            ("xdp:right0/0-2", Send, (2, 4, 2), "has 2 transmit queues", "it only sends"),
        ] {
            let error = opened(&lab, (name, usage), counts).expect_err(why).to_string();
            assert!(error.contains(expected), "{why}: {error}");
        }
    }
}
