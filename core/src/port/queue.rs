//! An open port, and its queues: one receive ring, one transmit ring, one thread, and the backend of the
//! rings.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::backend::{Backend, WakeSource};
use super::host_flows::HostFlows;
use super::name::PortName;
use super::options::Fallback;
use super::stats::QueueStats;
use super::wait::wait_for;
use crate::error::{Error, Result};
use sluicegate_base::ring::{
    Interface, LINKTYPE_ETHERNET, Packets, Readiness, Ring, RingMut, Wait,
};

#[cold]
fn only_receives() -> Error {
    let reason = "the queue only receives: its port was opened with Directions::Receive or only counts, or the \
                  driver keeps the queue for XDP; send by another queue, opened with Directions::Send or Directions::Both";
    Error::Usage(reason.into())
}

/// Maximum time to send the last packets.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// An open port.
///
/// A child of fork(2) shares the port's memory and BPF maps: if the child drops the port, the parent may
/// receive nothing more by it. End such a child by exec or `_exit`.
#[derive(Debug)]
pub struct Port {
    /// The name as the user wrote it.
    pub name: PortName,
    /// The method in use. `packet:`: "ring", "frames", "recvmmsg" or "recv"; if it only sends, "sendmmsg",
    /// "sendto" or "ring". `xdp:`: "af_xdp", "af_xdp+live" or "ring" (cell rings); "count" or "redirect" if
    /// packets stay in the kernel. `host:`: "tcx" or "clsact". `mirror:` and `live:`: "ring". Other kinds: empty.
    pub method: &'static str,
    /// Transfer of packets from the card, for `xdp:` and `mirror:` only; of queues that differ, the slowest:
    /// "native-zero-copy" or "native-copy" if a native program hands packets to sockets or cell rings,
    /// "native" if it copies for `mirror:` or keeps packets in the kernel, "skb" behind the driver.
    pub mode: Option<&'static str>,
    /// The methods and modes that were tried before, and the reasons why they failed. One is usual: most
    /// drivers have no zero-copy.
    pub fallbacks: Vec<Fallback>,
    /// The queues, each for one thread. Use every queue: the packets of an open one that nobody receives from
    /// are lost, those of a dropped `xdp:` queue go to the host and are not counted.
    pub queues: Vec<Queue>,
}

impl Port {
    /// Makes an open port of a kind with only one method.
    pub(super) fn plain(name: &PortName, queues: Vec<Queue>) -> Self {
        Self { name: name.clone(), method: "", mode: None, fallbacks: Vec::new(), queues }
    }

    /// Returns the link type of packets sent to the port: a LINKTYPE_ number, Ethernet's by default.
    pub fn link_type(&self) -> u16 {
        let first = self.queues.first().and_then(|queue| queue.interfaces().first());
        first.map_or(LINKTYPE_ETHERNET, |interface| interface.link_type)
    }
}

/// One receive and one transmit ring, owned by one thread.
#[derive(Debug)]
pub struct Queue {
    number: u32,
    rx: Ring,
    tx: Ring,
    backend: Box<dyn Backend>,
    interfaces: Vec<Interface>,
    opened_at: Instant,
}

/// The packets of a receive ring. Dropping the batch gives their slots back.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::port::{Directions, Port};
///
/// let mut queue = Port::open_one("null:?size=60", Directions::Receive)?;
/// let batch = queue.receive(Duration::from_secs(1))?;
/// assert!(batch.packets().all(|packet| packet.captured_bytes() == 60));
/// drop(batch);
/// assert_eq!(queue.rx().available(), 0);
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[derive(Debug)]
pub struct Batch<'q> {
    ring: RingMut<'q>,
    interfaces: &'q [Interface],
}

impl Batch<'_> {
    /// Returns the packets in order of arrival.
    pub fn packets(&self) -> Packets<'_> {
        self.ring.packets()
    }

    /// Returns the interfaces of the packets, as [`Queue::interfaces`] does.
    pub fn interfaces(&self) -> &[Interface] {
        self.interfaces
    }

    /// Returns true if no packets arrived.
    pub fn is_empty(&self) -> bool {
        self.ring.available() == 0
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.ring.release(self.ring.available());
    }
}

/// The events that end a sleep for a queue.
#[derive(Clone, Debug, Default)]
pub struct SleepEvents<'q> {
    /// Descriptors that become readable, or have an error.
    pub descriptors: Vec<BorrowedFd<'q>>,
    /// The longest sleep; None if the descriptors report every packet, or no packet will arrive.
    pub limit: Option<Duration>,
}

/// Checks that a queue can be sent to another thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Queue>();
};

impl Queue {
    pub(super) fn new(
        number: u32,
        rx: Ring,
        tx: Ring,
        backend: impl Backend + 'static,
        interfaces: Vec<Interface>,
    ) -> Self {
        let (backend, opened_at) = (Box::new(backend), Instant::now());
        Self { number, rx, tx, backend, interfaces, opened_at }
    }

    /// Sets the time from which on it receives, if that was before this value was made.
    pub(super) fn receiving_since(self, opened_at: Instant) -> Self {
        Self { opened_at, ..self }
    }

    /// Returns the queue's number in the port.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the time at which it was opened: the program receives the packets that have arrived since.
    pub fn opened_at(&self) -> Instant {
        self.opened_at
    }

    /// Returns the interfaces of its packets, indexed by [`Meta::interface`](sluicegate_base::ring::Meta).
    /// A sync may add some: a file names more as it is read, and `packet:any` sees more devices.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Returns the receive ring.
    #[inline]
    pub fn rx(&self) -> &Ring {
        &self.rx
    }

    /// Returns the receive ring, to rewrite packets and release slots.
    #[inline]
    pub fn rx_mut(&mut self) -> RingMut<'_> {
        RingMut::new(&mut self.rx)
    }

    /// Returns the transmit ring, to see how much room there is ([`Ring::available`]).
    #[inline]
    pub fn tx(&self) -> &Ring {
        &self.tx
    }

    /// Returns the transmit ring, to fill it.
    #[inline]
    pub fn tx_mut(&mut self) -> RingMut<'_> {
        RingMut::new(&mut self.tx)
    }

    /// Returns both rings, to answer packets: rewrite them by [`RingMut::bytes_mut`], then
    /// [`forward`](crate::forward::forward) one ring to the other, which swaps pool slots and copies others.
    /// A queue that virtio_net adds for XDP only receives: its transmit ring [is absent](Ring::is_absent), and its
    /// packets are sent by another queue.
    #[inline]
    pub fn rings_mut(&mut self) -> (RingMut<'_>, RingMut<'_>) {
        (RingMut::new(&mut self.rx), RingMut::new(&mut self.tx))
    }

    /// Takes back the slots that the program has released and fills the ring with packets that have
    /// arrived. Waits only to read a file. Returns the number of new slots.
    ///
    /// # Errors
    /// The source failed or was removed; packets in the ring stay valid.
    #[inline]
    pub fn sync_rx(&mut self) -> Result<u32> {
        let slots = self.backend.sync_rx(&mut self.rx);
        self.backend.add_interfaces(&mut self.interfaces);
        slots
    }

    /// Sends the slots that the program has released. Returns the number of freed slots. Never waits, with
    /// three exceptions: to write a file; for the peer of a `memif:` port that delays it; and if a `live:` port
    /// has no room on a host with one CPU, which it then yields to its sending thread.
    ///
    /// A packet is sent as a whole: if it continues in a slot that is not released yet, it waits for that
    /// slot. A file gets its packets in large pieces; if no packet arrives for a moment, a sync writes the
    /// rest.
    ///
    /// While the transmit ring has no room and a sync frees none, nothing wakes the program: it should
    /// sleep for some 50 µs and sync again.
    ///
    /// ```
    /// use std::{thread::sleep, time::Duration};
    /// use sluicegate::port::{Directions, Port};
    ///
    /// let mut queue = Port::open_one("null:", Directions::Send)?;
    /// let mut left = 1000;
    /// while left > 0 {
    ///     let built = queue.tx_mut().build(left, |buffer| {
    ///         buffer[..60].fill(0);
    ///         Some(60)
    ///     });
    ///     left -= built.packets;
    ///     if queue.sync_tx()? == 0 && built.packets == 0 {
    ///         sleep(Duration::from_micros(50));
    ///     }
    /// }
    /// queue.close_tx()?;
    /// assert_eq!(queue.stats()?.sent, 1000);
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// The queue only receives: its port was opened to receive or only counts, or the driver keeps the
    /// queue for XDP. Or the sink failed or was removed: packets that it did not take count as
    /// [`refused`](QueueStats::refused) or stay in the ring. While an interface is down, [`Error::errno`] is
    /// `libc::ENETDOWN`: a later sync sends the packets that stayed.
    #[inline]
    pub fn sync_tx(&mut self) -> Result<u32> {
        if self.tx.is_absent() {
            return Err(only_receives());
        }
        self.backend.sync_tx(&mut self.tx)
    }

    /// Returns true if packets that were released for sending wait for another [`sync_tx`](Self::sync_tx).
    /// A packet that the kernel has accepted does not wait, even if its slot is not free yet.
    pub fn needs_sync_tx(&mut self) -> bool {
        self.backend.needs_sync_tx(&self.tx)
    }

    /// Waits up to `timeout` for packets, or for the interface to go down; zero polls once. A signal whose
    /// handler returns ends the wait like a timeout. A source that has ended is always ready: stop when
    /// [`is_finished`](Self::is_finished) returns true. It does not wait for room to send: while
    /// [`needs_sync_tx`](Self::needs_sync_tx) returns true, sleep 50 µs and sync instead. [`wait_any`] waits
    /// for several queues.
    ///
    /// # Errors
    /// The source was removed.
    pub fn wait_rx(&mut self, wait: Wait, timeout: Duration) -> Result<Readiness> {
        wait_for(&mut [self.backend()], wait, timeout).map(|(_, told)| told)
    }

    /// Prepares a sleep outside of this library: a program with an event loop of its own waits for the returned
    /// events, among others. Sync once more before the sleep, because a packet may have arrived meanwhile, and call
    /// [`end_sleep`](Self::end_sleep) after it.
    ///
    /// ```no_run
    /// use std::os::fd::{BorrowedFd, OwnedFd};
    /// use sluicegate::port::{Directions, Port};
    ///
    /// # fn wait(_: &[OwnedFd], _: Option<std::time::Duration>) {}
    /// let mut queue = Port::open_one("packet:eth0", Directions::Receive)?;
    /// let events = queue.begin_sleep();
    /// // Duplicates, because the sync may close one: a `memif:` peer may have left.
    /// let owned = |fd: &BorrowedFd<'_>| fd.try_clone_to_owned();
    /// let descriptors = events.descriptors.iter().map(owned).collect::<Result<Vec<_>, _>>()?;
    /// let limit = events.limit;
    /// if queue.sync_rx()? == 0 {
    ///     wait(&descriptors, limit); // the program's own poll(2) or epoll_wait(2)
    /// }
    /// queue.end_sleep()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_sleep(&mut self) -> SleepEvents<'_> {
        self.backend.spins(Wait::Sleep);
        let (descriptors, limit) = match self.backend.wake_source() {
            WakeSource::Descriptor(fd) => (vec![fd], None),
            WakeSource::Limited(fd, limit) => (vec![fd], Some(limit)),
            WakeSource::Either(fds, limit) => (fds.into(), Some(limit)),
            WakeSource::Nap(limit) => (Vec::new(), Some(limit)),
            WakeSource::Never => (Vec::new(), None),
        };
        SleepEvents { descriptors, limit }
    }

    /// Ends a sleep that [`begin_sleep`](Self::begin_sleep) prepared, so that the next sync polls at once.
    ///
    /// # Errors
    /// The source was removed.
    pub fn end_sleep(&mut self) -> Result<()> {
        self.backend.slept(true).map(|_| ())
    }

    /// Returns the packets that have arrived, for a program that only loops over them. Waits up to `timeout`
    /// for the first, by [`Wait::default`]; the batch is empty if none arrived, as while the interface is
    /// down ([`wait_rx`](Self::wait_rx) distinguishes these), or if a signal handler ran. When the source
    /// has ended, like a file, it returns an empty batch at once: loop until
    /// [`is_finished`](Self::is_finished). A loop whose waits never expire also calls [`check`](Self::check).
    ///
    /// # Errors
    /// As [`sync_rx`](Self::sync_rx) and [`wait_rx`](Self::wait_rx).
    pub fn receive(&mut self, timeout: Duration) -> Result<Batch<'_>> {
        if self.sync_rx()? == 0 && self.rx.available() == 0 && !self.is_finished() {
            self.wait_rx(Wait::default(), timeout)?;
            self.sync_rx()?;
        }
        Ok(Batch { ring: RingMut::new(&mut self.rx), interfaces: &self.interfaces })
    }

    /// Returns the backend of the rings.
    fn backend(&mut self) -> &mut dyn Backend {
        &mut *self.backend
    }

    /// Returns the flows left to the host, for a `host:` port with `flows=`.
    pub fn host_flows(&self) -> Option<&HostFlows> {
        self.backend.host_flows()
    }

    /// Checks the state of the source, besides its packets: whether an interface still has this queue, or its
    /// XDP program. [`wait_rx`](Self::wait_rx), [`wait_any`] and [`receive`](Self::receive) check when their
    /// timeout expires. A program that never waits that long, because packets arrive all the time or because
    /// it only sends, should call this about once a second: a sync does not check, because the kernel may
    /// delay the check. `live:`, `tap:`, `host:` and ports that count in the kernel ask the kernel at each
    /// call, `xdp:` and `mirror:` at most every 3 s while packets arrive; other kinds return `Ok`, and a sync or
    /// wait reports the removal once all received packets are released. An interface
    /// that is down is not an error. Afterwards [`take_notice`](Self::take_notice) returns the notices for the
    /// user.
    ///
    /// # Errors
    /// The source was removed.
    pub fn check(&mut self) -> Result<()> {
        self.backend.check()
    }

    /// Returns a message about the port that is not an error. Each is returned once, by one queue of the
    /// port.
    pub fn take_notice(&mut self) -> Option<String> {
        self.backend.take_notice()
    }

    /// Returns the packets counted in the kernel since the last call, and their bytes on the wire, for an
    /// `xdp:` port that drops or passes them. These packets do not enter the ring.
    pub fn take_kernel_counters(&mut self) -> (u64, u64) {
        self.backend.take_kernel_counters()
    }

    /// Returns true if the source has ended, or receiving was stopped and all packets were received. Packets
    /// that the program has not released do not count: a program that forwards goes on until `rx().available()`
    /// is 0 and [`needs_sync_tx`](Self::needs_sync_tx) of the target is false. An interface does not end: its
    /// removal is an error of a sync or wait.
    pub fn is_finished(&mut self) -> bool {
        self.backend.is_finished()
    }

    /// Returns true if the packets received are those of a file, with the times at which they were recorded.
    pub fn reads_file(&self) -> bool {
        self.backend.reads_file()
    }

    /// Stops receiving. Packets that have arrived can still be received.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn stop_rx(&mut self) -> Result<()> {
        self.backend.stop_rx()
    }

    /// Describes the interfaces of packets that will be sent, indexed by
    /// [`Meta::interface`](sluicegate_base::ring::Meta): the [`interfaces`](Self::interfaces) of the queue
    /// that the packets come from. Call it before the first packet, and again when there are more
    /// interfaces; a file records each once. Without a description every port treats all packets as those of
    /// its own link type, and a file treats them as Ethernet and refuses those of a second interface.
    ///
    /// # Errors
    /// The port sends, or the file stores, another link type than one of the interfaces has.
    pub fn describe_sent(&mut self, interfaces: &[Interface]) -> Result<()> {
        self.backend.describe_sent(interfaces, &mut self.interfaces)
    }

    /// Ends sending: syncs once more, and completes and closes a file. After that, [`stats`](Self::stats)
    /// are final. Packets that a full kernel queue does not take within a second are dropped. Dropping the
    /// queue also completes its file, but without packets that were not synced, and without reporting an
    /// error.
    ///
    /// # Errors
    /// As [`sync_tx`](Self::sync_tx).
    pub fn close_tx(&mut self) -> Result<()> {
        self.close_tx_within(CLOSE_TIMEOUT)
    }

    /// Closes like [`close_tx`](Self::close_tx), with a timeout.
    ///
    /// # Errors
    /// As [`sync_tx`](Self::sync_tx).
    pub fn close_tx_within(&mut self, timeout: Duration) -> Result<()> {
        if self.tx.is_absent() {
            return Ok(());
        }
        let synced = self.backend.sync_tx(&mut self.tx);
        // Close in any case.
        let closed = self.backend.close_tx(&mut self.tx, timeout);
        synced.and(closed)
    }

    /// Returns true if live frames send its packets. Their fate is in [`QueueStats::redirects`]; without
    /// CAP_PERFMON or BTF only the interface's counters report it.
    pub fn sends_live(&self) -> bool {
        self.backend.sends_live()
    }

    /// Returns the backend's counts since the queue was opened.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn stats(&mut self) -> Result<QueueStats> {
        self.backend.stats()
    }
}

/// Waits up to `timeout` for packets in one of the queues. Returns the index of the first such queue and its
/// state; the index of [`Readiness::TimedOut`] has no meaning. So that no queue waits for another, receive
/// from all of them after a wait, and leave out queues that are finished, which are always ready. One
/// ppoll(2) sleeps for all queues; queues without a descriptor are polled at intervals. A signal whose handler
/// returns ends the wait like a timeout.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::port::{OpenOptions, Port, wait_any};
/// use sluicegate::ring::{Readiness, Wait};
///
/// let mut port = Port::open(&"null:/0-1".parse()?, &OpenOptions::default())?;
/// let mut queues: Vec<_> = port.queues.iter_mut().collect();
/// let (index, state) = wait_any(&mut queues, Wait::Sleep, Duration::from_secs(1))?;
/// assert_eq!((index, state), (0, Readiness::Ready), "null: never runs dry");
/// # Ok::<(), sluicegate::Error>(())
/// ```
///
/// # Errors
/// One of the sources was removed.
pub fn wait_any(
    queues: &mut [&mut Queue],
    wait: Wait,
    timeout: Duration,
) -> Result<(usize, Readiness)> {
    let mut backends: Vec<_> = queues.iter_mut().map(|queue| queue.backend()).collect();
    wait_for(&mut backends, wait, timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_base::memory::{Pool, PoolConfig};

    #[derive(Debug)]
    struct Silent;

    impl Backend for Silent {
        fn stats(&mut self) -> Result<QueueStats> {
            Ok(QueueStats::default())
        }
    }

    #[test]
    fn a_queue_that_only_receives_refuses_to_send_and_still_closes() {
        let pool = Pool::new(PoolConfig { buffers: 8, ..PoolConfig::default() }).unwrap();
        let rx = Ring::receive(&pool, 4).unwrap();
        let mut queue = Queue::new(0, rx, Ring::absent(&pool).unwrap(), Silent, Vec::new());
        let error = queue.sync_tx().unwrap_err().to_string();
        assert!(error.contains("only receives"), "{error}");
        queue.close_tx().unwrap();
    }
}
