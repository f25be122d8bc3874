//! The backend of a queue: what differs from port to port.
//!
//! A [`Queue`](super::Queue) calls it once a batch, so it is dispatched at run time. A default is what a
//! backend does that lacks the direction: one that only sends keeps those of receiving.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::host_flows::HostFlows;
use super::stats::QueueStats;
use crate::error::Result;
use sluicegate_base::ring::{Interface, Readiness, Ring, Wait};

/// A source or sink of packets behind the rings of one queue.
pub(super) trait Backend: Debug + Send {
    /// Takes back the slots of the receive ring that the program has released, and fills it. Never
    /// waits. Returns how many slots are new.
    ///
    /// # Errors
    /// The source failed, or its interface was removed.
    fn sync_rx(&mut self, _ring: &mut Ring) -> Result<u32> {
        Ok(0)
    }

    /// Adds the interfaces that packets have come from and that are not in `known` yet.
    fn add_interfaces(&self, _known: &mut Vec<Interface>) {}

    /// Sends what the program has released in the transmit ring. Returns how many slots are room again.
    ///
    /// # Errors
    /// The sink failed, or its interface was removed.
    fn sync_tx(&mut self, _ring: &mut Ring) -> Result<u32> {
        Ok(0)
    }

    /// Returns true if released packets wait for another [`sync_tx`](Self::sync_tx).
    fn needs_sync_tx(&mut self, ring: &Ring) -> bool {
        ring.room() > 0
    }

    /// Ends sending, after a last sync; waits for what is under way, `patience` at most. What stays in
    /// the ring counts as refused.
    ///
    /// # Errors
    /// As [`sync_tx`](Self::sync_tx).
    fn close_tx(&mut self, _ring: &mut Ring, _patience: Duration) -> Result<()> {
        Ok(())
    }

    /// Describes the interfaces of packets that will be sent; adds those that the sink has noted to
    /// `known`.
    ///
    /// # Errors
    /// A file cannot hold their link type.
    fn describe_sent(
        &mut self,
        _interfaces: &[Interface],
        _known: &mut Vec<Interface>,
    ) -> Result<()> {
        Ok(())
    }

    /// Looks what has become of the source besides its packets. May wait for a lock of the kernel.
    ///
    /// # Errors
    /// The interface or its XDP program was removed.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns a message for users that is no error, once.
    fn take_notice(&mut self) -> Option<String> {
        None
    }

    /// Returns packets and bytes that the kernel has counted since the last call, and that come into no
    /// ring.
    fn take_kernel_counters(&mut self) -> (u64, u64) {
        (0, 0)
    }

    /// Stops receiving: what has arrived can still be received.
    ///
    /// # Errors
    /// The kernel refused.
    fn stop_rx(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns true if no more packets will come.
    fn is_finished(&mut self) -> bool {
        true
    }

    /// Returns true if live frames send for it.
    fn sends_live(&self) -> bool {
        false
    }

    /// The flows that are left to the host.
    fn host_flows(&self) -> Option<&HostFlows> {
        None
    }

    /// Counts since the queue was opened.
    ///
    /// # Errors
    /// The kernel refused.
    fn stats(&mut self) -> Result<QueueStats>;

    /// Returns without waiting whether packets have arrived or the interface is down. A waiter that
    /// spins calls it again and again.
    ///
    /// # Errors
    /// No packet will come any more.
    fn look(&mut self) -> Result<Option<Readiness>> {
        Ok(None)
    }

    /// Begins a wait by this policy. Whether spinning may find packets sooner than sleeping.
    fn spins(&mut self, _wait: Wait) -> bool {
        false
    }

    /// Returns the event that ends a sleep.
    fn wake_source(&mut self) -> WakeSource<'_> {
        WakeSource::Never
    }

    /// Returns the state after a sleep: its descriptor was `ready`, or the time is up.
    ///
    /// # Errors
    /// No packet will come any more.
    fn slept(&mut self, _ready: bool) -> Result<Readiness> {
        Ok(Readiness::TimedOut)
    }
}

/// The event that ends a sleep.
pub(super) enum WakeSource<'a> {
    /// A descriptor that poll(2) finds readable, or in error.
    Descriptor(BorrowedFd<'a>),
    /// A descriptor, or the time: the descriptor does not report every packet.
    Limited(BorrowedFd<'a>, Duration),
    /// Either of two descriptors, or the time.
    Either([BorrowedFd<'a>; 2], Duration),
    /// The time: nothing wakes the waiter.
    Nap(Duration),
    /// Nothing: no packet ever comes.
    Never,
}
