//! One queue of an `xdp:` port: an AF_XDP socket, and the claim that gives it packets.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::claim::Claim;
use super::poll_pacer::PollPacer;
use crate::error::{Error, Result};
use crate::nic::Deferred;
use crate::port::backend::{Backend, WakeSource};
use crate::port::interface_watch::{InterfaceWatch, QueueLoad};
use crate::port::live_queue::LiveQueue;
use crate::port::packet_socket::Promiscuous;
use crate::port::stats::QueueStats;
use crate::xdp::resident::Resident;
use crate::xdp::{State, XskReceiver, XskSender, XskSocket, XskStatistics};
use sluicegate_base::ring::{Readiness, Ring, Wait};

/// Maximum time that a packet takes to the socket.
const DRAIN_TIME: Duration = Duration::from_millis(5);

/// When a queue polls for packets.
#[derive(Debug)]
pub(super) enum XdpRx {
    /// At each sync and wait.
    AtOnce,
    /// At times that the reader chooses.
    Paced {
        pace: PollPacer,
        /// Packets that the last poll has found and that were not taken yet.
        found: u32,
        /// True if the program spins, at any cost.
        spinning: bool,
    },
}

impl XdpRx {
    /// Makes the pace of a ring with room for `room` packets, which may wait in it for `latency`.
    pub(super) fn new(room: u32, latency: Option<Duration>) -> Self {
        match latency.filter(|latency| !latency.is_zero()) {
            Some(latency) => {
                let pace = PollPacer::new(room, latency, Instant::now());
                Self::Paced { pace, found: 0, spinning: false }
            }
            None => Self::AtOnce,
        }
    }

    /// Polls for packets, unless it is too early. Returns true if there are any.
    #[inline]
    fn finds_packets(&mut self, receiver: &mut XskReceiver, closed: bool) -> bool {
        match self {
            Self::Paced { pace, found, spinning: false } if !closed => {
                if *found > 0 {
                    return true;
                }
                let now = Instant::now();
                if now < pace.next_poll() {
                    return false;
                }
                *found = receiver.available();
                pace.found(*found, now);
                *found > 0
            }
            Self::AtOnce | Self::Paced { .. } => receiver.available() > 0,
        }
    }
}

/// The path by which packets leave.
#[derive(Debug)]
pub(super) enum XdpTx {
    /// The socket's transmit ring.
    Socket {
        sender: XskSender,
        /// Number of packets that were not sent, or were held by the kernel, when sending ended.
        unsent: u64,
    },
    /// A thread that runs a program, like that of a `live:` port.
    Live(LiveQueue),
}

impl XdpTx {
    #[inline]
    fn sync(&mut self, ring: &mut Ring) -> Result<u32> {
        match self {
            Self::Socket { sender, .. } => sender.send(ring),
            Self::Live(live) => live.sync_tx(ring),
        }
    }

    /// Returns true if packets wait for another sync.
    fn needs_sync(&mut self, ring: &Ring) -> bool {
        match self {
            Self::Socket { sender, .. } => sender.needs_send(ring),
            Self::Live(_) => ring.backend_slots() > 0,
        }
    }

    /// Sends packets until all are sent or `timeout` has expired.
    fn close(&mut self, ring: &mut Ring, timeout: Duration, socket: &XskSocket) -> Result<()> {
        let (sender, unsent) = match self {
            Self::Socket { sender, unsent } => (sender, unsent),
            Self::Live(live) => return live.close_tx(ring, timeout),
        };
        let end = Instant::now() + timeout;
        loop {
            let synced = sender.send(ring);
            *unsent = sender.unsent(ring);
            synced?;
            if *unsent == 0 || Instant::now() >= end {
                return Ok(());
            }
            socket.wait_tx(Duration::from_millis(1))?;
        }
    }

    /// Returns its counts of packets to send.
    ///
    /// # Errors
    /// As [`Backend::stats`].
    fn stats(&mut self) -> Result<QueueStats> {
        match self {
            Self::Socket { sender, unsent } => {
                let counts = sender.stats();
                Ok(QueueStats {
                    sent: counts.sent - counts.dropped.min(counts.sent),
                    rejected: counts.dropped,
                    refused: counts.refused + counts.dropped + *unsent,
                    unsent: *unsent,
                    ..QueueStats::default()
                })
            }
            Self::Live(live) => live.stats(),
        }
    }
}

/// One queue of an `xdp:` port.
#[derive(Debug)]
pub(super) struct XdpQueue {
    pub(super) number: u32,
    /// Name for messages: "xdp:eth0/0".
    pub(super) object: String,
    // Dropped before the socket: packets stop, and then the socket closes.
    pub(super) claim: Option<Arc<Mutex<Claim>>>,
    pub(super) receiver: Option<XskReceiver>,
    pub(super) tx: Option<XdpTx>,
    pub(super) socket: Arc<XskSocket>,
    pub(super) watch: Arc<InterfaceWatch>,
    /// Delays the interface's interrupts, for busy polling.
    pub(super) _deferred: Option<Arc<Deferred>>,
    pub(super) _promiscuous: Option<Arc<Promiscuous>>,
    /// The program that redirects packets to the socket. With most drivers, sending without copying also
    /// needs it.
    pub(super) resident: Arc<Resident>,
    /// True if the next packet will show whether the driver allows polling the queue.
    pub(super) checks_polling: bool,
    pub(super) rx: XdpRx,
    /// Number of packets that had arrived at the last check.
    pub(super) checked_at: u64,
    pub(super) rx_closed: Option<Instant>,
    pub(super) down: bool,
}

impl XdpQueue {
    fn check_attached(&self) -> Result<()> {
        let attached = self.resident.check_attached();
        attached.map_err(|error| self.watch.explain(error))
    }

    fn received(&self) -> u64 {
        self.receiver.as_ref().map_or(0, |receiver| receiver.stats().received)
    }

    fn check_interface(&mut self, load: QueueLoad) -> Result<()> {
        if self.checks_polling && self.received() > 0 {
            self.checks_polling = false;
            if self.socket.polled_napi() == Some(0) {
                self.watch.warn_no_busy_poll();
            }
        }
        self.watch.look(self.number, load).or_else(|error| {
            // A driver that adds queues with the program removes them together with it.
            self.check_attached()?;
            Err(error)
        })
    }

    /// Calls `work` with the locked claim, if there is one.
    fn claimed(&self, work: impl FnOnce(&mut Claim) -> Result<()>) -> Result<()> {
        match &self.claim {
            Some(claim) => work(&mut claim.lock().unwrap_or_else(PoisonError::into_inner)),
            None => Ok(()),
        }
    }
}

impl Backend for XdpQueue {
    #[inline]
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        let Some(receiver) = &mut self.receiver else { return Ok(0) };
        let closed = self.rx_closed.is_some();
        if !closed
            && matches!(self.rx, XdpRx::Paced { spinning: false, .. })
            && !self.rx.finds_packets(receiver, closed)
        {
            return Ok(0);
        }
        let slots = receiver.receive(ring)?.slots;
        if let XdpRx::Paced { found, .. } = &mut self.rx {
            // If nothing could be taken, poll again.
            *found = if slots == 0 { 0 } else { found.saturating_sub(slots) };
        }
        Ok(slots)
    }

    #[inline]
    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        match &mut self.tx {
            Some(tx) => tx.sync(ring).map_err(|error| match error.errno() {
                // The kernel switches an interface off before it removes it.
                Some(libc::ENETDOWN) => self.watch.explain(error),
                _ => error,
            }),
            None => Ok(0),
        }
    }

    fn needs_sync_tx(&mut self, ring: &Ring) -> bool {
        self.tx.as_mut().is_some_and(|tx| tx.needs_sync(ring))
    }

    /// Checks the program and the interface.
    fn check(&mut self) -> Result<()> {
        // Packets prove that the program is attached. So a queue with packets need not wait for the kernel,
        // which may wait for a lock (rtnl).
        let received = self.received();
        if std::mem::replace(&mut self.checked_at, received) == received {
            self.check_attached()?;
        }
        self.check_interface(QueueLoad::Busy)
    }

    fn take_notice(&mut self) -> Option<String> {
        self.watch.take_notice()
    }

    fn is_finished(&mut self) -> bool {
        self.rx_closed.is_some_and(|closed| closed.elapsed() >= DRAIN_TIME)
            && self.receiver.as_mut().is_none_or(|receiver| receiver.available() == 0)
    }

    /// Returns the queue's packets to the host.
    fn stop_rx(&mut self) -> Result<()> {
        self.rx_closed.get_or_insert_with(Instant::now);
        let number = self.number;
        self.claimed(|claim| claim.leave(number))
    }

    fn close_tx(&mut self, ring: &mut Ring, timeout: Duration) -> Result<()> {
        match &mut self.tx {
            Some(tx) => tx.close(ring, timeout, &self.socket),
            None => Ok(()),
        }
    }

    /// Returns true if live frames send its packets.
    fn sends_live(&self) -> bool {
        matches!(self.tx, Some(XdpTx::Live(_)))
    }

    fn stats(&mut self) -> Result<QueueStats> {
        let XskStatistics { rx_dropped, rx_ring_full, rx_fill_ring_empty_descs, .. } =
            self.socket.statistics()?;
        let received = self.receiver.as_ref().map(XskReceiver::stats).unwrap_or_default();
        let sent = self.tx.as_mut().map(XdpTx::stats).transpose()?.unwrap_or_default();
        let lost = rx_dropped + rx_ring_full + received.refused + received.too_long;
        Ok(QueueStats {
            received: received.received + lost,
            dropped_ring_full: lost,
            ring_full_events: rx_fill_ring_empty_descs,
            ..sent
        })
    }

    #[inline]
    fn look(&mut self) -> Result<Option<Readiness>> {
        let Some(receiver) = &mut self.receiver else { return Ok(None) };
        let there = self.rx.finds_packets(receiver, self.rx_closed.is_some());
        Ok(there.then_some(Readiness::Ready))
    }

    fn spins(&mut self, wait: Wait) -> bool {
        let wanted = match &mut self.rx {
            XdpRx::AtOnce => true,
            XdpRx::Paced { pace, spinning, .. } => {
                *spinning = wait == Wait::Spin;
                *spinning || pace.is_busy()
            }
        };
        wanted && self.receiver.is_some()
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        let nap = match &self.rx {
            XdpRx::Paced { pace, .. } => pace.nap(Instant::now()),
            XdpRx::AtOnce => None,
        };
        nap.map_or_else(|| WakeSource::Descriptor(self.socket.as_fd()), WakeSource::Nap)
    }

    fn slept(&mut self, ready: bool) -> Result<Readiness> {
        if ready {
            if let XdpRx::Paced { pace, .. } = &mut self.rx {
                pace.woken(Instant::now());
            }
            return Ok(Readiness::Ready);
        }
        // poll(2) does not report the state of the interface.
        let was_down = std::mem::replace(&mut self.down, false);
        match self.socket.state()? {
            State::Up => {
                self.check_attached()?;
                self.check_interface(QueueLoad::Idle).map(|()| Readiness::TimedOut)
            }
            State::Down => {
                self.down = true;
                Ok(if was_down { Readiness::TimedOut } else { Readiness::Down })
            }
            State::Gone => Err(Error::removed(&self.object)),
        }
    }
}

impl Drop for XdpQueue {
    fn drop(&mut self) {
        // While the socket is still open, because afterwards another port may have the queue's entry. If
        // this fails, closing the socket has the same effect.
        let number = self.number;
        let _ = self.claimed(|claim| claim.leave(number));
    }
}
