//! A bound AF_XDP socket: driving it, waiting, the kernel's counters, and closing it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use crate::error::{Error, Result};
use crate::raw_socket::RawSocket;
use sluicegate_base::memory::{Mmap, PAGE_BYTES, Pool};

/// Maximum time that a driver takes to release the queue of a closed socket.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two checks whether the driver has released it.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The kernel's counters of a socket since it was opened (XDP_STATISTICS). Kernels before 5.9 report the
/// first three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskStatistics {
    /// Received packets dropped for other reasons than those below, such as too long for a frame.
    pub rx_dropped: u64,
    /// Invalid entries of the fill ring.
    pub rx_invalid_descs: u64,
    /// Entries of the transmit ring that were skipped.
    pub tx_invalid_descs: u64,
    /// Packets dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Times that the fill ring had no frame for a packet.
    pub rx_fill_ring_empty_descs: u64,
    /// Times that the transmit ring was empty.
    pub tx_ring_empty_descs: u64,
}

/// State of a socket's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Up.
    Up,
    /// Down; it may come up again.
    Down,
    /// Removed: the socket cannot be used any more.
    Gone,
}

/// Properties that a socket inherits when it shares a UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BindSettings {
    pub(super) zero_copy: bool,
    pub(super) multi_buffer: bool,
}

/// The bound sockets of this process.
static BOUND: Mutex<Vec<Weak<XskSocket>>> = Mutex::new(Vec::new());

/// A bound AF_XDP socket. Its frames return to the pool when it is dropped.
#[derive(Debug)]
pub struct XskSocket {
    // Drop order: the socket is closed before its frames return.
    fd: RawSocket,
    frames: SocketFrames,
    settings: BindSettings,
    busy_poll: bool,
    /// Name for error messages: "eth0/0".
    object: String,
}

impl XskSocket {
    /// Makes a socket. `probe` is needed for zero-copy only.
    pub(super) fn new(
        fd: RawSocket,
        pool: &Arc<Pool>,
        settings: BindSettings,
        probe: Option<Probe>,
        busy_poll: bool,
        object: String,
    ) -> Arc<Self> {
        let frames = SocketFrames { pool: Arc::clone(pool), frames: Mutex::default(), probe };
        let socket = Arc::new(Self { fd, frames, settings, busy_poll, object });
        let mut bound = BOUND.lock().unwrap_or_else(PoisonError::into_inner);
        bound.retain(|it| it.strong_count() > 0);
        bound.push(Arc::downgrade(&socket));
        socket
    }

    /// Returns a bound socket of the pool whose UMEM a new one with these settings can share.
    ///
    /// The kernel shares a UMEM by the descriptor of any socket bound to it, and gives the new socket that
    /// socket's settings. So a socket with other settings is no donor. Without a donor the pool is registered
    /// again, which only costs memory: each socket tracks its own lent frames.
    pub(super) fn donor(pool: &Arc<Pool>, settings: BindSettings) -> Option<Arc<Self>> {
        // Dropped without the lock: one of them may be the last reference, whose drop takes time.
        let bound: Vec<_> = {
            let bound = BOUND.lock().unwrap_or_else(PoisonError::into_inner);
            bound.iter().filter_map(Weak::upgrade).collect()
        };
        let fits = |it: &Arc<Self>| it.settings == settings && Arc::ptr_eq(&it.frames.pool, pool);
        bound.into_iter().find(fits)
    }

    /// Returns the kernel's counters.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn statistics(&self) -> Result<XskStatistics> {
        let (read, _) = self
            .fd
            .get::<libc::xdp_statistics>(libc::SOL_XDP, libc::XDP_STATISTICS)
            .map_err(|e| Error::system("read the statistics of", &self.object, e))?;
        Ok(XskStatistics {
            rx_dropped: read.rx_dropped,
            rx_invalid_descs: read.rx_invalid_descs,
            tx_invalid_descs: read.tx_invalid_descs,
            rx_ring_full: read.rx_ring_full,
            rx_fill_ring_empty_descs: read.rx_fill_ring_empty_descs,
            tx_ring_empty_descs: read.tx_ring_empty_descs,
        })
    }

    /// Returns true if the socket is in zero-copy mode (XDP_OPTIONS).
    pub fn is_zero_copy(&self) -> bool {
        self.settings.zero_copy
    }

    /// Returns the id of the NAPI instance that busy polling drives for this socket. The id is 0 until a
    /// packet has arrived, and always if the driver does not report it. None if the kernel does not support
    /// the option.
    pub fn polled_napi(&self) -> Option<u32> {
        self.fd.get(libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID).ok().map(|(id, _)| id)
    }

    /// Waits for packets; true if any have arrived.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn wait_rx(&self, timeout: Duration) -> Result<bool> {
        self.poll(PollFlags::POLLIN, timeout)
    }

    /// Waits until the transmit ring is at most half full, as the kernel sees it; true if it is.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn wait_tx(&self, timeout: Duration) -> Result<bool> {
        self.poll(PollFlags::POLLOUT, timeout)
    }

    /// Returns the interface's state; up, if the kernel does not report it (before 5.11). poll(2) does not
    /// show it: call this when no packets arrive.
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

    /// Drives the receiving side if the driver asks for it, or if busy polling found nothing.
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

    /// Makes the kernel send. Returns true if the device has dropped a packet (copy mode).
    #[inline]
    pub(super) fn drive_tx(&self) -> Result<bool> {
        self.fd.wake_tx().map_err(|error| self.failure(error))
    }

    /// Returns true if busy polling is on: then the driver needs calls even if it does not request them.
    pub(super) fn busy_polls(&self) -> bool {
        self.busy_poll
    }

    /// Keeps frames that the kernel may use until the socket has ended.
    pub(super) fn keep(&self, mut frames: Vec<u32>) {
        self.frames.frames.lock().unwrap_or_else(PoisonError::into_inner).append(&mut frames);
    }

    /// Returns the descriptor, which is readable when packets have arrived.
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
    /// Returns the descriptor for an XSKMAP. Do not duplicate it: with a duplicate open, the kernel would
    /// write to frames that this socket has returned to the pool.
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }
}

/// Frames of a socket, which return to the pool when this is dropped, after the socket.
///
/// In copy mode, once the last mapping and the descriptor of a socket are closed, the kernel has waited for
/// all users of the socket (xsk_unbind_dev, synchronize_net) and writes no more. In zero-copy mode the card
/// may write until the driver releases the queue later (xp_release_deferred).
#[derive(Debug)]
struct SocketFrames {
    pool: Arc<Pool>,
    frames: Mutex<Vec<u32>>,
    probe: Option<Probe>,
}

impl Drop for SocketFrames {
    fn drop(&mut self) {
        if self.probe.as_ref().is_none_or(Probe::sees_it_free) {
            let frames = self.frames.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: neither kernel nor card writes to them any more, as above, and their socket is
            // closed.
            #[allow(unsafe_code, reason = "buffers change hands by number")]
            unsafe {
                self.pool.give(std::mem::take(frames))
            };
        }
        // Otherwise the frames are lost to the pool, because the card may still write to them.
    }
}

/// A second socket that checks whether the driver has released a queue: if so, it can bind to the queue.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) fd: RawSocket,
    pub(super) ifindex: u32,
    pub(super) queue: u32,
}

impl Probe {
    pub(super) fn sees_it_free(&self) -> bool {
        let end = Instant::now() + RELEASE_TIMEOUT;
        // The probe's own frames, which stay unused.
        let Ok(frames) = Mmap::anonymous(PAGE_BYTES) else { return false };
        if self.prepare(&frames).is_err() {
            return false;
        }
        loop {
            let bound = self.fd.bind_xdp(self.ifindex, self.queue, libc::XDP_COPY, None);
            // The kernel checks for EBUSY before other errors.
            if bound.err().and_then(|e| e.raw_os_error()) != Some(libc::EBUSY) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(RETRY_INTERVAL);
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
