//! Follows changes of an interface whose receive queues a port has, and reports them.
//!
//! The kernel does not notify a program when the number of queues (`ethtool -L`) or the MTU
//! changes. The first of a port's queues to come asks: twice a second while one waits and nothing
//! comes, rarely while all have packets, because the kernel may wait for a lock (rtnl). The other
//! queues go on with the last answer meanwhile.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::name::PortName;
use super::options::Use;
use crate::error::{Error, Result};
use crate::link::{self, Channels, Ethtool, Netlink};
use crate::xdp::resident::QUEUES_MAX;

/// Bytes of a frame besides the MTU: at least an Ethernet header.
const HEADER_BYTES: u32 = 14;
/// Between two questions, where a queue has nothing else to do.
const CHECK: Duration = Duration::from_millis(500);
/// The interval of checks while packets come.
const CHECK_BUSY: Duration = Duration::from_secs(3);

/// The load of the queue that looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looker {
    /// It has waited, and nothing came.
    Idle,
    Busy,
}

/// The watch over an interface, for all queues of a port.
#[derive(Debug)]
pub(super) struct InterfaceWatch {
    interface: link::Interface,
    /// The port receives from all queues the interface has.
    all: bool,
    /// It sends, alone or too.
    sends: bool,
    /// The number of the interface's queues that it may send by.
    to_send: u32,
    direction: WatchedSide,
    // What the last answer was. Each says all by itself, so no order is needed between them.
    /// Queues there are, of the port's direction.
    there: AtomicU32,
    up: AtomicBool,
    removed: AtomicBool,
    state: Mutex<WatchState>,
}

#[derive(Debug)]
struct WatchState {
    /// Opened in the interface's namespace, for a process that gives its privileges up.
    ethtool: Ethtool,
    netlink: Netlink,
    asked: Instant,
    /// Queues there were when the port was opened, and at most since.
    opened: u32,
    most: u32,
    notices: VecDeque<String>,
    said_unpolled: bool,
    /// The longest packet that the port takes whole, where there is a limit, and what becomes of
    /// longer ones.
    longest: Option<(u32, &'static str)>,
    /// The MTU that was told to be beyond it.
    said_mtu: u32,
}

impl InterfaceWatch {
    /// Begins to watch an interface, before the port's program is attached to it. To be called in
    /// the interface's network namespace.
    ///
    /// # Errors
    /// The port names a queue that the interface cannot have.
    pub(super) fn over(name: &PortName, interface: &link::Interface, usage: Use) -> Result<Self> {
        let mut ethtool = Ethtool::open(None)?;
        let direction = match usage {
            Use::Send => WatchedSide::Transmit,
            _ => WatchedSide::Receive,
        };
        let made = direction.made(interface);
        let there = direction.queues(&mut ethtool, &interface.name);
        let there = there.unwrap_or(made).clamp(1, QUEUES_MAX);
        // The attached program may add queues, so their existence is checked after that. An
        // impossible number is refused before a program is attached.
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

    /// The queues the port has, now that its program is attached: those it names, or all.
    ///
    /// virtio_net makes queues for what XDP sends, one for each CPU, where the host gave it more
    /// than it uses, and receives by them too. XDP sends by them without a lock
    /// (virtnet_xdp_get_sq): a port receives by them only, whether or not the program was attached
    /// before. To be called in the interface's network namespace.
    ///
    /// # Errors
    /// The port names a queue that is not there, or none to send by.
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

    /// Packets of more bytes than these are not taken whole; `then` says what becomes of them. The
    /// interface has that MTU now.
    pub(super) fn limit(&self, bytes: u32, then: &'static str, mtu: u32) {
        let mut state = self.state();
        state.longest = Some((bytes, then));
        self.compare(&mut state, mtu);
    }

    /// Looks whether queue `number` is still there, and whether there are others that nobody
    /// serves. It never waits for another queue that does so; now and then it asks the kernel.
    pub(super) fn look(&self, number: u32, looker: Looker) -> Result<()> {
        let pause = match looker {
            Looker::Idle => CHECK,
            Looker::Busy => CHECK_BUSY,
        };
        if let Some(mut state) = self.free_state()
            && state.asked.elapsed() >= pause
        {
            self.ask(&mut state);
            // After the answer, however long it took.
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

    /// Returns true if the interface was up at the last [look](Self::look).
    ///
    /// # Errors
    /// It was removed.
    pub(super) fn is_up(&self) -> Result<bool> {
        match self.removed.load(Relaxed) {
            true => Err(Error::removed(&self.interface.name)),
            false => Ok(self.up.load(Relaxed)),
        }
    }

    /// The error of an interface that was removed, if that is behind `error`.
    pub(super) fn explain(&self, error: Error) -> Error {
        self.ask(&mut self.state());
        self.is_up().err().unwrap_or(error)
    }

    fn ask(&self, state: &mut WatchState) {
        let now = match state.netlink.again(&self.interface) {
            Ok(now) => now,
            Err(Error::Removed { .. }) => return self.removed.store(true, Relaxed),
            // The next answer may tell.
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

    /// Says, of each MTU once, that packets may come which are too long.
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

    /// Says once that busy polling does nothing.
    pub(super) fn say_unpolled(&self) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.said_unpolled, true) {
            state.notices.push_back(format!(
                "busy_poll= does nothing on {}: its driver does not say by which NAPI a queue is \
                 polled",
                self.interface.name
            ));
        }
    }

    /// The next that users should know; while a queue asks, it is that one's to take.
    pub(super) fn take_notice(&self) -> Option<String> {
        self.free_state()?.notices.pop_front()
    }

    /// The state, unless somebody has it.
    fn free_state(&self) -> Option<MutexGuard<'_, WatchState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, WatchState> {
        // Whole between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which of an interface's queues a port is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchedSide {
    Receive,
    /// Those of a port that only sends.
    Transmit,
}

impl WatchedSide {
    /// The queues an interface has now; none where its driver does not say.
    fn queues(self, ethtool: &mut Ethtool, interface: &str) -> Option<u32> {
        self.of(&ethtool.channels(interface).ok()??)
    }

    /// Combined queues are of both directions, and a driver may have others besides: ice has
    /// (`struct ethtool_channels` of linux/ethtool.h).
    fn of(self, channels: &Channels) -> Option<u32> {
        let alone = match self {
            Self::Receive => channels.rx,
            Self::Transmit => channels.tx,
        };
        let there = channels.combined.saturating_add(alone).min(QUEUES_MAX);
        Some(there).filter(|&there| there > 0)
    }

    /// Those it was made with.
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
        let mut watch = InterfaceWatch::over(&name, &lo, Use::Receive).unwrap();
        assert_eq!(watch.attached(&name).unwrap(), 0..=0);
        let asking = watch.state();
        watch.look(0, Looker::Idle).unwrap();
        assert!(watch.look(1, Looker::Busy).is_err(), "what is known is told");
        assert!(watch.is_up().unwrap());
        assert_eq!(watch.take_notice(), None);
        drop(asking);
    }

    /// Opens a port on an interface that has room for 4 queues, receives by `before` and sends by
    /// `to_send`, and receives by `after` once its program is attached. Returns the queues or the
    /// refusal, the number of queues that send, and the notice.
    fn opened(
        lab: &link::Lab,
        (name, usage): (&str, Use),
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
            // Nothing has changed since.
            watch.ask(&mut watch.state());
            watch.look(*queues.end(), Looker::Idle)?;
            assert_eq!(watch.take_notice(), None, "{name}");
            let send = queues.clone().filter(|&number| watch.sends(number)).count();
            Ok((queues, send, notice))
        })
    }

    #[test]
    fn queues_that_come_with_the_program_are_the_ports_to_receive_by() {
        use Use::{Both, Receive, Send};
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
        use Use::{Both, Receive, Send};
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
