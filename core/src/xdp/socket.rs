//! An AF_XDP socket that is bound: driving it, waiting, what the kernel has counted, and its end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::calls::{Descriptor, Woken};
use super::umem::{BoundSocket, Traits};
use crate::error::{Error, Result};
use sluicegate_base::memory::{Mmap, PAGE_BYTES, Pool};

/// How long a driver may take to let go of a queue whose socket has ended.
pub(super) const LET_GO: Duration = Duration::from_secs(1);
/// How often one looks whether it has.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What the kernel has counted for a socket, since it was opened (XDP_STATISTICS). Kernels
/// before 5.9 know the first three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskStatistics {
    /// Packets received and dropped for other reasons than those below: too long for a frame.
    pub rx_dropped: u64,
    /// Entries of the fill ring that are no frame's address.
    pub rx_invalid_descs: u64,
    /// Entries of the transmit ring that were skipped.
    pub tx_invalid_descs: u64,
    /// Packets dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// How often the fill ring had no frame for a packet.
    pub rx_fill_ring_empty_descs: u64,
    /// How often the transmit ring was found empty.
    pub tx_ring_empty_descs: u64,
}

/// How a socket's interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Up.
    Up,
    /// Switched off; it may come up again.
    Down,
    /// Removed: the socket is of no more use.
    Gone,
}

/// A bound AF_XDP socket. The frames it has lent are free again when it has ended.
#[derive(Debug)]
pub struct XskSocket {
    // In the order in which they have to go: out of the list of those bound, closed, and only
    // then are the frames home.
    entry: Option<BoundSocket>,
    fd: Descriptor,
    home: Home,
    traits: Traits,
    busy_poll: bool,
    /// For messages: "eth0/0".
    object: String,
}

/// Where a socket is bound, and how it works.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) pool: Arc<Pool>,
    pub(super) traits: Traits,
    pub(super) ifindex: u32,
    pub(super) queue: u32,
    pub(super) busy_poll: bool,
    pub(super) object: String,
}

impl XskSocket {
    /// `probe` is a socket of the same namespace, of no use but to see whether the driver has
    /// let go at the end; only zero-copy needs one.
    pub(super) fn new(fd: Descriptor, binding: Binding, probe: Option<Descriptor>) -> Arc<Self> {
        let Binding { pool, traits, ifindex, queue, busy_poll, object } = binding;
        let entry = Some(BoundSocket::new(&pool, fd.as_fd().as_raw_fd(), traits));
        let probe = probe.map(|fd| Probe { fd, ifindex, queue });
        let home = Home { pool, frames: Mutex::default(), probe };
        Arc::new(Self { entry, fd, home, traits, busy_poll, object })
    }

    /// Returns the kernel's counters.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn statistics(&self) -> Result<XskStatistics> {
        let told = self.fd.get::<libc::xdp_statistics>(libc::XDP_STATISTICS);
        let (told, _) =
            told.map_err(|e| Error::system("read the statistics of", &self.object, e))?;
        Ok(XskStatistics {
            rx_dropped: told.rx_dropped,
            rx_invalid_descs: told.rx_invalid_descs,
            tx_invalid_descs: told.tx_invalid_descs,
            rx_ring_full: told.rx_ring_full,
            rx_fill_ring_empty_descs: told.rx_fill_ring_empty_descs,
            tx_ring_empty_descs: told.tx_ring_empty_descs,
        })
    }

    /// Returns true if the socket is in zero-copy mode (XDP_OPTIONS).
    pub fn is_zero_copy(&self) -> bool {
        self.traits.zero_copy
    }

    /// Returns true if packets may span several frames.
    pub fn is_multi_buffer(&self) -> bool {
        self.traits.multi_buffer
    }

    /// The number of the NAPI that busy polling drives on for this socket; 0 as long as no packet
    /// has come, and for ever where the driver does not report it. None where the kernel does not say.
    pub fn polled_napi(&self) -> Option<u32> {
        self.fd.get_from(libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID).ok().map(|(id, _)| id)
    }

    /// Waits for packets. True if there are any.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn wait_rx(&self, timeout: Duration) -> Result<bool> {
        self.poll(PollFlags::POLLIN, timeout)
    }

    /// Waits until the transmit ring is at most half full, as the kernel sees it. True if it is.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn wait_tx(&self, timeout: Duration) -> Result<bool> {
        self.poll(PollFlags::POLLOUT, timeout)
    }

    /// How its interface is; up, where the kernel does not say (before 5.11). poll(2) does not
    /// report it: a reader to which nothing came asks here.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn state(&self) -> Result<State> {
        match self.fd.wake_rx() {
            Ok(()) => Ok(State::Up),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENETDOWN) => Ok(State::Down),
                Some(libc::ENXIO | libc::ENODEV) => Ok(State::Gone),
                _ => Err(Error::system("look up", &self.object, error)),
            },
        }
    }

    /// Drives the receiving side on, where it has to be: the driver asks for it, or busy polling
    /// is on and there was nothing.
    #[inline]
    pub(super) fn drive_rx(&self, needs_wakeup: bool, idle: bool) -> Result<()> {
        if self.busy_poll && idle {
            return match self.fd.wake_rx() {
                // An interface that is down can come up again.
                Err(e) if e.raw_os_error() != Some(libc::ENETDOWN) => Err(self.failure(e)),
                _ => Ok(()),
            };
        }
        if needs_wakeup {
            self.poll(PollFlags::POLLIN, Duration::ZERO)?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn drive_tx(&self) -> Result<Woken> {
        self.fd.wake_tx().map_err(|error| self.failure(error))
    }

    /// Returns true if the kernel copies each packet.
    pub(super) fn copies(&self) -> bool {
        !self.traits.zero_copy
    }

    /// Whether the driver wants to be called without saying so each time.
    pub(super) fn wakes_always(&self) -> bool {
        !self.traits.need_wakeup || self.busy_poll
    }

    /// Keeps frames that the kernel may have until the socket has ended; then they are free.
    pub(super) fn keep(&self, mut frames: Vec<u32>) {
        let mut kept = self.home.frames.lock().unwrap_or_else(PoisonError::into_inner);
        kept.append(&mut frames);
    }

    /// Readable when there are packets.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn poll(&self, events: PollFlags, timeout: Duration) -> Result<bool> {
        self.fd.poll(events, timeout).map_err(|e| Error::system("wait for", &self.object, e))
    }

    fn failure(&self, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENXIO | libc::ENODEV) => Error::removed(&self.object),
            Some(libc::ENETDOWN) => Error::system("use", &self.object, error)
                .remedy("the interface is down: bring it up"),
            _ => Error::system("use", &self.object, error),
        }
    }
}

impl AsRawFd for XskSocket {
    /// For an XSKMAP. A number and no more: whoever had a duplicate would keep the kernel writing
    /// to frames that are no longer its own when this socket has ended.
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }
}

impl Drop for XskSocket {
    fn drop(&mut self) {
        // Before the descriptor is closed, so that nobody shares with a closed one.
        self.entry = None;
    }
}

/// Takes frames home when it is dropped, after the socket.
///
/// When the last mapping and the descriptor of a socket that copies are gone, the kernel has
/// waited for all that were in the middle of it (xsk_unbind_dev, synchronize_net): it writes no
/// more. Without copying, a card may write until the driver has let go of the queue, and that
/// comes later (xp_release_deferred).
#[derive(Debug)]
struct Home {
    pool: Arc<Pool>,
    frames: Mutex<Vec<u32>>,
    probe: Option<Probe>,
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.probe.as_ref().is_none_or(Probe::sees_it_free) {
            let frames = self.frames.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: nobody writes there any more, as above, and the socket that had them has ended.
            #[allow(unsafe_code, reason = "buffers change hands by number")]
            unsafe {
                self.pool.give(std::mem::take(frames))
            };
        }
        // Otherwise they stay out of the pool: better too few than one that a card writes to.
    }
}

/// Sees whether a driver has let go of a queue: then another socket can bind to it.
#[derive(Debug)]
struct Probe {
    fd: Descriptor,
    ifindex: u32,
    queue: u32,
}

impl Probe {
    fn sees_it_free(&self) -> bool {
        let end = Instant::now() + LET_GO;
        // The probe's own frames: nobody ever fills them.
        let Ok(frames) = Mmap::anonymous(PAGE_BYTES) else { return false };
        if self.prepare(&frames).is_err() {
            return false;
        }
        loop {
            let bound = self.fd.bind(self.ifindex, self.queue, libc::XDP_COPY, None);
            // Any other answer comes after the question whether somebody has the queue.
            if bound.err().and_then(|e| e.raw_os_error()) != Some(libc::EBUSY) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn prepare(&self, frames: &Mmap) -> io::Result<()> {
        let registration = libc::xdp_umem_reg {
            addr: frames.base().as_ptr().expose_provenance() as u64,
            len: PAGE_BYTES as u64,
            chunk_size: PAGE_BYTES as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        self.fd.set(libc::SOL_XDP, libc::XDP_UMEM_REG, registration)?;
        let rings = [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_TX_RING];
        rings.into_iter().try_for_each(|ring| self.fd.set(libc::SOL_XDP, ring, 2u32))
    }
}

#[cfg(all(test, not(loom)))]
impl XskSocket {
    /// Whether another socket could bind where this one is, now that it has ended.
    pub(super) fn sees_it_free(fd: Descriptor, ifindex: u32, queue: u32) -> bool {
        Probe { fd, ifindex, queue }.sees_it_free()
    }
}
