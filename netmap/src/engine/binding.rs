//! The rings that a file has bound, and their syncs: NIOCTXSYNC, NIOCRXSYNC and poll(2).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::poll::PollFlags;

use super::WaitSources;
use super::adapter::{Adapter, Selection};
use super::kring::{Kring, Synced};
use super::ring::Way;
use super::sleepers::{Sleeper, Sleepers};

/// The events of room to send, and of packets to read.
const WRITE: PollFlags = PollFlags::POLLOUT.union(PollFlags::POLLWRNORM);
const READ: PollFlags = PollFlags::POLLIN.union(PollFlags::POLLRDNORM);

/// The longest sleep of a thread that has no waker, because no descriptor is left.
const WITHOUT_WAKER: Duration = Duration::from_millis(1);

/// When poll(2) syncs rings whose events the program did not ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PollPolicy {
    /// Transmit rings: always, except with NR_NO_TX_POLL.
    pub(super) transmit: bool,
    /// Receive rings: with NR_DO_RX_POLL.
    pub(super) receive: bool,
}

/// A file's use of an adapter. Dropping it closes the rings that have no other user.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) adapter: Arc<Adapter>,
    selection: Selection,
    tx: Vec<Arc<Kring>>,
    rx: Vec<Arc<Kring>>,
    /// The offset of the file's header of the port in the region.
    pub(super) interface: usize,
    policy: PollPolicy,
    sleepers: Sleepers,
}

impl Binding {
    pub(super) fn new(
        adapter: &Arc<Adapter>,
        selection: Selection,
        krings: Vec<Arc<Kring>>,
        interface: usize,
        policy: PollPolicy,
    ) -> Self {
        let (tx, rx) = krings.into_iter().partition(|kring| kring.way == Way::Transmit);
        Self {
            adapter: Arc::clone(adapter),
            selection,
            tx,
            rx,
            interface,
            policy,
            sleepers: Sleepers::default(),
        }
    }

    /// Sends the packets that the program has released, and hands out room.
    pub(super) fn txsync(&self) {
        for kring in &self.tx {
            kring.sync();
        }
    }

    /// Takes back released slots, and hands out received packets.
    pub(super) fn rxsync(&self) {
        let now = now();
        for kring in &self.rx {
            receive(kring, now);
        }
    }

    /// Syncs as netmap's poll does, and returns the events that are ready.
    pub(super) fn poll(&self, events: PollFlags) -> PollFlags {
        let mut ready = PollFlags::empty();
        let (mut write, mut read) = (events & WRITE, events & READ);
        if !write.is_empty() && self.tx.iter().any(|kring| kring.shows_unseen()) {
            ready |= std::mem::replace(&mut write, PollFlags::empty());
        }
        if !read.is_empty() && self.rx.iter().all(|kring| kring.needs_no_sync()) {
            if !self.rx.is_empty() {
                ready |= read;
            }
            read = PollFlags::empty();
        }
        if self.policy.transmit || !write.is_empty() {
            for kring in &self.tx {
                if write.is_empty() && !kring.is_moved() {
                    continue;
                }
                match kring.sync() {
                    Synced::Unseen => ready |= write,
                    Synced::Nothing => {}
                    Synced::Failed => ready |= PollFlags::POLLERR,
                }
            }
        }
        if self.policy.receive || !read.is_empty() {
            let now = now();
            for kring in &self.rx {
                match receive(kring, now) {
                    Synced::Unseen => ready |= read,
                    Synced::Nothing => {}
                    Synced::Failed => ready |= PollFlags::POLLERR,
                }
            }
        }
        ready
    }

    pub(super) fn has_threads(&self) -> bool {
        self.tx.iter().any(|kring| kring.has_thread())
    }

    /// Arms the events that end a sleep, and returns them.
    pub(super) fn wait(&self, sleeper: Option<&Sleeper>, events: PollFlags) -> WaitSources {
        let mut sources = WaitSources::default();
        let add = |waker: &_| {
            self.tx.iter().chain(&self.rx).for_each(|kring| kring.wakers.add(waker));
        };
        match sleeper.map(|sleeper| self.sleepers.waker(sleeper, add)) {
            Some(Ok(waker)) => sources.descriptors.push((waker.arm(), PollFlags::POLLIN)),
            None | Some(Err(_)) => sources.limit(WITHOUT_WAKER),
        }
        // Packets that wait in a transmit ring need a sync, whatever the program waits for.
        let tx = self.tx.iter().filter(|_| self.policy.transmit || events.intersects(WRITE));
        let rx = self.rx.iter().filter(|_| events.intersects(READ));
        tx.chain(rx).for_each(|kring| kring.arm(&mut sources));
        sources
    }
}

/// Syncs a receive ring, and writes the time.
#[inline]
fn receive(kring: &Kring, now: [u64; 2]) -> Synced {
    let synced = kring.sync();
    kring.store_time(now);
    synced
}

/// Returns the wall clock: seconds, microseconds.
fn now() -> [u64; 2] {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    [since.as_secs(), since.subsec_micros().into()]
}

impl Drop for Binding {
    fn drop(&mut self) {
        let Self { adapter, selection, interface, .. } = self;
        let region = &adapter.port.region;
        region.give_extra_buffers(*interface);
        let rings = [Way::Transmit, Way::Receive].map(|way| adapter.port.geometry.rings(way).1);
        region.give_interface(*interface, (rings[0] + rings[1]) as usize);
        adapter.unbind(selection);
    }
}
