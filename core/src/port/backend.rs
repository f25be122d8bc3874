//! The backend of a queue: the part that differs between kinds of ports.
//!
//! A [`Queue`](super::Queue) calls it once per batch, so run-time dispatch costs little. The default
//! methods serve backends that lack a direction: a backend that only sends keeps the defaults for
//! receiving.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::host_flows::HostFlows;
use super::stats::QueueStats;
use crate::error::{Error, Result};
use sluicegate_base::ring::{Interface, LINKTYPE_ETHERNET, Readiness, Ring, Wait};

/// A source or sink of packets for the rings of one queue.
pub(super) trait Backend: Debug + Send {
    /// Takes back the slots of the receive ring that the program has released, and fills it. Waits only to
    /// read a file. Returns the number of new slots.
    ///
    /// # Errors
    /// The source failed, or its interface was removed.
    fn sync_rx(&mut self, _ring: &mut Ring) -> Result<u32> {
        Ok(0)
    }

    /// Adds the interfaces of received packets that are not in `known` yet.
    fn add_interfaces(&self, _known: &mut Vec<Interface>) {}

    /// Sends the packets that the program has released in the transmit ring. Returns the number of free slots
    /// gained.
    ///
    /// # Errors
    /// The sink failed, or its interface was removed.
    fn sync_tx(&mut self, _ring: &mut Ring) -> Result<u32> {
        Ok(0)
    }

    /// Returns true if released packets wait for another [`sync_tx`](Self::sync_tx).
    fn needs_sync_tx(&mut self, ring: &Ring) -> bool {
        ring.backend_slots() > 0
    }

    /// Ends sending after a last sync. A backend whose kernel or peer takes packets later waits for it, up to
    /// `timeout`. Packets that stay in the ring count as refused.
    ///
    /// # Errors
    /// As [`sync_tx`](Self::sync_tx).
    fn close_tx(&mut self, _ring: &mut Ring, _timeout: Duration) -> Result<()> {
        Ok(())
    }

    /// Describes the interfaces of packets that will be sent. Adds the interfaces that the sink has
    /// recorded to `known`.
    ///
    /// # Errors
    /// The sink cannot send or hold packets of their link type.
    fn describe_sent(
        &mut self,
        interfaces: &[Interface],
        known: &mut Vec<Interface>,
    ) -> Result<()> {
        let (name, link_type) =
            known.first().map_or(("", LINKTYPE_ETHERNET), |it| (it.name.as_str(), it.link_type));
        match interfaces.iter().find(|it| it.link_type != link_type) {
            None => Ok(()),
            Some(other) => Err(Error::Usage(format!(
                "{} has packets of link type {}, but {name} sends link type {link_type} (1 is Ethernet); send \
                 them to a port of their link type, or write them to a file (pcap:)",
                other.name, other.link_type
            ))),
        }
    }

    /// Checks the state of the source, besides its packets. May wait for a kernel lock.
    ///
    /// # Errors
    /// The interface or its XDP program was removed.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the next message for users that is not an error; each is returned once.
    fn take_notice(&mut self) -> Option<String> {
        None
    }

    /// Returns the packets and bytes counted in the kernel since the last call. Those packets do not enter
    /// the ring.
    fn take_kernel_counters(&mut self) -> (u64, u64) {
        (0, 0)
    }

    /// Stops receiving. Packets that have arrived can still be received.
    ///
    /// # Errors
    /// The kernel refused.
    fn stop_rx(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns true if no more packets will arrive.
    fn is_finished(&mut self) -> bool {
        true
    }

    /// Returns true if it receives the packets of a file, which have the file's times.
    fn reads_file(&self) -> bool {
        false
    }

    /// Returns true if live frames send its packets.
    fn sends_live(&self) -> bool {
        false
    }

    /// Returns the flows left to the host.
    fn host_flows(&self) -> Option<&HostFlows> {
        None
    }

    /// Returns the counts since the queue was opened.
    ///
    /// # Errors
    /// The kernel refused.
    fn stats(&mut self) -> Result<QueueStats>;

    /// Returns without waiting whether packets have arrived or the interface is down. A spinning waiter
    /// calls it repeatedly.
    ///
    /// # Errors
    /// The source was removed or failed. One that has ended is `Ready`.
    fn look(&mut self) -> Result<Option<Readiness>> {
        Ok(None)
    }

    /// Begins a wait with this policy. Returns true if spinning may find packets sooner than sleeping.
    fn spins(&mut self, _wait: Wait) -> bool {
        false
    }

    /// Returns the event that ends a sleep.
    fn wake_source(&mut self) -> WakeSource<'_> {
        WakeSource::Never
    }

    /// Returns the state after a sleep: its descriptor was `ready`, or the time has expired.
    ///
    /// # Errors
    /// The source was removed or failed. One that has ended is `Ready`.
    fn slept(&mut self, _ready: bool) -> Result<Readiness> {
        Ok(Readiness::TimedOut)
    }
}

/// The event that ends a sleep.
pub(super) enum WakeSource<'a> {
    /// A descriptor that becomes readable, or has an error.
    Descriptor(BorrowedFd<'a>),
    /// A descriptor, or the timeout: the descriptor does not report every packet.
    Limited(BorrowedFd<'a>, Duration),
    /// Either of two descriptors, or the timeout.
    Either([BorrowedFd<'a>; 2], Duration),
    /// The timeout only.
    Nap(Duration),
    /// None: no packet will ever arrive.
    Never,
}
