//! One queue of a `memif:` port: its rings of the connected peer, if there is one.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::ControlSocket;
use crate::error::Result;
use crate::port::backend::{Backend, WakeSource};
use crate::port::rings::TxProgress;
use crate::port::stats::QueueStats;
use sluicegate_base::ring::{Readiness, Ring, Wait};
use sluicegate_memif::{Pair, ProtocolError, RingEnd, RxEnd};

/// The interval of polls of a sleeper: the peer may not have seen that it sleeps, or may not wake it.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum sleep without wake-ups.
const SLEEP_LIMIT: Duration = Duration::from_micros(50);

/// The settings of a queue, which do not change.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueSettings {
    pub receives: bool,
    pub sends: bool,
    /// True if sleepers are woken.
    pub interrupts: bool,
}

/// One queue.
#[derive(Debug)]
pub(super) struct MemifQueue {
    number: usize,
    control: Arc<ControlSocket>,
    settings: QueueSettings,
    /// The last change that the queue has seen.
    seen: u32,
    /// The connection of `tx`, and of `rx` unless the next one is waiting.
    connection: u32,
    rx: Option<RxEnd>,
    /// The next peer's ring, if it has one, until all packets of the old peer are received.
    next_rx: Option<Option<RingEnd>>,
    tx: Option<RingEnd>,
    /// True if senders should wake the queue, because it sleeps or slept.
    asks: bool,
    /// True if the sender of `rx` has broken the protocol: no more packets are taken from it.
    broken: bool,
    progress: TxProgress,
    /// Pieces of packets to take from `rx` after its sender disconnected or receiving stopped. Later
    /// writes by the sender are ignored.
    left: Option<u32>,
    /// True if no packets are taken from later peers.
    closed: bool,
    received: u64,
    /// Packets in the rings of peers when sending to them ended.
    sent_or_lost: u64,
}

impl MemifQueue {
    pub(super) fn new(
        number: usize,
        control: &Arc<ControlSocket>,
        settings: QueueSettings,
    ) -> Self {
        Self {
            number,
            control: Arc::clone(control),
            settings,
            seen: 0,
            connection: 0,
            rx: None,
            next_rx: None,
            tx: None,
            asks: false,
            broken: false,
            progress: TxProgress::default(),
            left: None,
            closed: false,
            received: 0,
            sent_or_lost: 0,
        }
    }

    #[inline]
    fn receive(&mut self, ring: &mut Ring) -> u32 {
        let most = self.left.unwrap_or(u32::MAX);
        let received = match &mut self.rx {
            _ if self.broken => return 0,
            Some(rx) => rx.receive(ring, most),
            None => return 0,
        };
        match received {
            Ok(received) => {
                self.received += u64::from(received.packets);
                if let Some(left) = &mut self.left {
                    *left -= received.pieces;
                }
                received.slots
            }
            Err(breach) => {
                match self.next_rx {
                    // The peer has already disconnected, or was disconnected.
                    Some(_) => self.broken = true,
                    None => self.break_off(breach),
                }
                0
            }
        }
    }

    /// Takes the rings of a new peer: sends on them at once, and receives on them after the old peer's
    /// packets.
    #[cold]
    fn adopt(&mut self) {
        self.end_sending();
        self.take_no_more();
        let (seen, connection, pair) = self.control.take(self.number);
        (self.seen, self.connection) = (seen, connection);
        let Pair { rx, tx } = pair.unwrap_or_default();
        self.tx = tx.filter(|_| self.settings.sends);
        self.next_rx = Some(rx.filter(|_| self.settings.receives && !self.closed));
    }

    /// Takes only the packets that `rx` has now.
    fn take_no_more(&mut self) {
        if self.left.is_none() {
            self.left = Some(self.rx.as_mut().map_or(0, |rx| rx.arrived(u16::MAX.into())));
        }
    }

    /// Receives from the next peer, once the old peer's packets have been received. No slot points at the old
    /// peer's buffers any more.
    #[cold]
    fn turn(&mut self) {
        if self.rx.is_none() || self.broken || self.left == Some(0) {
            (self.broken, self.left) = (false, self.closed.then_some(0));
            self.rx = self.next_rx.take().flatten().map(RxEnd::new);
        }
    }

    /// Drops the ring for sending. A peer returns the entries of packets after it took them, and may take
    /// more from the ring that it still has: the fate of all others remains unknown.
    fn end_sending(&mut self) {
        let unknown = self.in_flight().min(self.progress.sent);
        self.tx = None;
        self.progress.sent -= unknown;
        self.sent_or_lost += unknown;
    }

    /// Ends the connection to a peer that breaks the protocol.
    #[cold]
    fn break_off(&mut self, breach: ProtocolError) {
        match &mut self.next_rx {
            // The packets being received are the old peer's.
            Some(next) => *next = None,
            None => self.broken = true,
        }
        self.end_sending();
        self.control.break_off(self.connection, breach);
    }

    /// Returns true if a sync has work: packets, or rings of another peer.
    fn has_news(&mut self) -> bool {
        let listens = self.listens();
        let rx = self.rx.as_mut().filter(|_| !self.broken);
        rx.is_some_and(|rx| rx.taken > 0 || listens && rx.arrived(1) > 0)
            || self.next_rx.is_some()
            || self.control.changes() != self.seen
    }

    /// Returns true if the peer's writes are still read.
    fn listens(&self) -> bool {
        !self.broken && self.left != Some(0)
    }

    /// Returns the ring for receiving.
    fn rx_end(&self) -> Option<&RingEnd> {
        self.rx.as_ref().map(|rx| &rx.end)
    }

    /// Returns the number of packets that were sent but not taken, as far as known.
    fn in_flight(&mut self) -> u64 {
        self.tx.as_mut().map_or(0, RingEnd::in_flight)
    }

    /// Tells senders that the queue is awake.
    #[cold]
    fn disable_notifier(&mut self) {
        self.asks = false;
        if let Some(end) = self.rx_end() {
            end.disable();
        }
    }
}

impl Backend for MemifQueue {
    #[inline]
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        if self.control.changes() != self.seen {
            self.adopt();
        }
        let slots = self.receive(ring);
        // Without packets, a requested wake-up stays: a program with its own event loop syncs between the
        // request and the sleep.
        if self.asks && slots > 0 {
            self.disable_notifier();
        }
        if slots == 0 && self.next_rx.is_some() {
            if let Some(rx) = &mut self.rx {
                rx.return_entries(ring);
            }
            self.turn();
        }
        Ok(slots)
    }

    #[inline]
    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        if self.control.changes() != self.seen {
            self.adopt();
            // Otherwise slots may point at the old peer's buffers: only `sync_rx` has their ring.
            if self.rx.is_none() {
                self.turn();
            }
        }
        let sent = match &mut self.tx {
            Some(tx) => tx.send(ring, self.progress.next),
            None => return Ok(0),
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(breach) => {
                self.break_off(breach);
                return Ok(0);
            }
        };
        let before = self.progress.next;
        match sent.too_long {
            0 => self.progress.sent(ring, sent.packets as usize, sent.slots),
            _ => self.progress.refuse(ring, sent.slots, true),
        }
        Ok(self.progress.publish(ring, before))
    }

    fn take_notice(&mut self) -> Option<String> {
        self.control.take_notice()
    }

    fn is_finished(&mut self) -> bool {
        let all = |rx: &RxEnd| self.left == Some(0) && rx.taken == 0;
        self.closed && (self.broken || self.rx.as_ref().is_none_or(all))
    }

    /// Takes only the packets that the peer has published now.
    fn stop_rx(&mut self) -> Result<()> {
        self.take_no_more();
        self.closed = true;
        self.next_rx = self.next_rx.take().map(|_| None);
        Ok(())
    }

    /// Waits up to `timeout` until the peer has taken everything.
    fn close_tx(&mut self, ring: &mut Ring, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            self.sync_tx(ring)?;
            let in_flight = self.in_flight();
            if in_flight == 0 && !self.progress.is_waiting(ring) || Instant::now() >= end {
                break;
            }
            std::thread::sleep(SLEEP_LIMIT);
        }
        self.progress.give_up(ring);
        self.end_sending();
        Ok(())
    }

    fn stats(&mut self) -> Result<QueueStats> {
        let sent = self.progress.stats();
        let (received, sent_or_lost) = (self.received, self.sent_or_lost);
        Ok(QueueStats { received, sent_or_lost, ..sent })
    }

    #[inline]
    fn look(&mut self) -> Result<Option<Readiness>> {
        Ok(self.has_news().then_some(Readiness::Ready))
    }

    fn spins(&mut self, _wait: Wait) -> bool {
        true
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        if self.asks {
            self.disable_notifier();
            // A wake-up arrived after `disable_notifier`: no reason to spin.
            if self.rx_end().is_some_and(RingEnd::rings) {
                return WakeSource::Nap(SLEEP_LIMIT);
            }
        }
        self.control.clear_nudge(self.number);
        if let Some(end) = self.rx_end().filter(|_| self.settings.interrupts && self.listens()) {
            end.enable();
            self.asks = true;
            if self.has_news() {
                return WakeSource::Nap(Duration::ZERO);
            }
        }
        if self.next_rx.is_some() || self.control.changes() != self.seen {
            return WakeSource::Nap(Duration::ZERO);
        }
        let nudge = self.control.nudge(self.number);
        match self.rx_end().filter(|_| self.listens()) {
            Some(end) if self.asks => WakeSource::Either([nudge, end.as_fd()], POLL_INTERVAL),
            Some(_) => WakeSource::Nap(SLEEP_LIMIT),
            None => WakeSource::Descriptor(nudge),
        }
    }

    fn slept(&mut self, _ready: bool) -> Result<Readiness> {
        Ok(if self.has_news() { Readiness::Ready } else { Readiness::TimedOut })
    }
}
