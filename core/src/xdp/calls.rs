//! The system calls of an AF_XDP socket, and nothing else.
//!
//! Sources: linux/if_xdp.h, Documentation/networking/af_xdp.rst, net/xdp/xsk.c.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::{c_int, socklen_t};
use nix::poll::{PollFd, PollFlags, PollTimeout};

use sluicegate_base::memory::Mmap;

/// An AF_XDP socket's descriptor.
#[derive(Debug)]
pub(super) struct Descriptor(OwnedFd);

/// Options' values: made of integers only.
///
/// # Safety
/// Every bit pattern is valid for the type, and it has no padding.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: a C struct of integers; its 32 bytes are all fields (checked in `uapi`).
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: as above, 128 bytes.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: as above, 48 bytes.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: as above, 4 bytes.
unsafe impl Plain for libc::xdp_options {}

/// How the kernel answered a call that drives it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// It did what there was to do.
    Done,
    /// It did a part and wants to be called again, or cannot go on for the moment.
    Again,
    /// As `Again`, and the device has dropped a packet (copy mode).
    Dropped,
}

impl Descriptor {
    pub(super) fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket(2) takes plain integers.
        let fd = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
        check(fd)?;
        // SAFETY: the descriptor is new and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(super) fn set<T: Plain>(&self, level: c_int, option: c_int, value: T) -> io::Result<()> {
        let size = size_of::<T>() as socklen_t;
        let value = (&raw const value).cast();
        // SAFETY: `value` points at `size` initialised bytes of a live local.
        check(unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, value, size) })
    }

    /// An AF_XDP option's value, and how many bytes of it the kernel knows; the rest is 0.
    pub(super) fn get<T: Plain>(&self, option: c_int) -> io::Result<(T, usize)> {
        self.get_from(libc::SOL_XDP, option)
    }

    /// The same of any level's option.
    pub(super) fn get_from<T: Plain>(&self, level: c_int, option: c_int) -> io::Result<(T, usize)> {
        let mut value = MaybeUninit::<T>::zeroed();
        let mut size = size_of::<T>() as socklen_t;
        let (fd, at) = (self.0.as_raw_fd(), value.as_mut_ptr().cast());
        // SAFETY: the kernel writes at most `size` bytes, which is T's size.
        check(unsafe { libc::getsockopt(fd, level, option, at, &mut size) })?;
        // SAFETY: all bytes are initialised (zeroed at least), and T is Plain.
        Ok((unsafe { value.assume_init() }, size as usize))
    }

    /// One of the socket's rings, up to and with its last entry.
    pub(super) fn map_ring(&self, ring: u64, bytes: usize) -> io::Result<Mmap> {
        Mmap::shared_at(self.0.as_fd(), ring, bytes)
    }

    /// Binds to a queue; `donor` is the socket whose UMEM is shared, if any.
    pub(super) fn bind(
        &self,
        ifindex: u32,
        queue: u32,
        flags: u16,
        donor: Option<RawFd>,
    ) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: donor.map_or(0, RawFd::cast_unsigned),
        };
        let size = size_of::<libc::sockaddr_xdp>() as socklen_t;
        // SAFETY: `address` is a live sockaddr_xdp of `size` bytes.
        check(unsafe { libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), size) })
    }

    /// Has the kernel send what is in the transmit ring: in copy mode 32 packets a call, or as many
    /// as `XDP_MAX_TX_SKB_BUDGET` says.
    #[inline]
    pub(super) fn wake_tx(&self) -> io::Result<Woken> {
        let (fd, none) = (self.0.as_raw_fd(), std::ptr::null());
        // SAFETY: no bytes, no address: the kernel reads nothing of ours.
        let sent = unsafe { libc::sendto(fd, none, 0, libc::MSG_DONTWAIT, none.cast(), 0) };
        if sent >= 0 {
            return Ok(Woken::Done);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(Woken::Again),
            Some(libc::EBUSY) => Ok(Woken::Dropped),
            _ => Err(error),
        }
    }

    /// Polls the driver's queue, where busy polling is on, and says in what state the socket is
    /// (Linux 5.11).
    #[inline]
    pub(super) fn wake_rx(&self) -> io::Result<()> {
        let (fd, none) = (self.0.as_raw_fd(), std::ptr::null_mut());
        let nobody = std::ptr::null_mut();
        // SAFETY: no bytes, no address: the kernel writes nothing of ours.
        let got = unsafe { libc::recvfrom(fd, none, 0, libc::MSG_DONTWAIT, none.cast(), nobody) };
        if got >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // EOPNOTSUPP: an older kernel. ENOBUFS: the socket does not receive.
            Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::EOPNOTSUPP) => Ok(()),
            _ => Err(error),
        }
    }

    /// Waits for one of these events. True if there is one. It also wakes the driver, where that
    /// wants to be woken.
    #[inline]
    pub(super) fn poll(&self, events: PollFlags, timeout: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.0.as_fd(), events)];
        // Rounded up to milliseconds: a short wait is not none.
        let timeout = timeout.checked_add(Duration::from_nanos(999_999)).unwrap_or(timeout);
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match nix::poll::poll(&mut fds, timeout) {
            Ok(ready) => Ok(ready > 0),
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<Descriptor> for OwnedFd {
    fn from(socket: Descriptor) -> Self {
        socket.0
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Raises this process's limit on locked memory as far as it may.
pub(super) fn raise_memory_lock() {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is a live rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut now) } != 0 {
        return;
    }
    let endless = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let most = libc::rlimit { rlim_cur: now.rlim_max, rlim_max: now.rlim_max };
    // Above its own maximum a process goes only with CAP_SYS_RESOURCE. Who may do neither will
    // hear of it when the memory is locked.
    let _ = [endless, most].iter().any(|limit| {
        // SAFETY: `limit` is a live rlimit.
        limit.rlim_cur > now.rlim_cur
            && unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, limit) } == 0
    });
}

fn check(status: c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
