//! System calls that AF_PACKET and AF_XDP sockets share.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libc::{
    c_int, socklen_t, xdp_desc, xdp_mmap_offsets, xdp_options, xdp_statistics, xdp_umem_reg,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};

/// Plain old data: values of socket options, and entries of AF_XDP rings.
///
/// # Safety
/// Every bit pattern is valid for the type, and it has no padding.
pub(crate) unsafe trait Pod: Copy {}
// SAFETY: an integer.
unsafe impl Pod for i32 {}
// SAFETY: an integer.
unsafe impl Pod for u32 {}
// SAFETY: an integer.
unsafe impl Pod for u64 {}
// SAFETY: a C struct of integers; its 32 bytes are all fields (checked in `xdp/uapi.rs`).
unsafe impl Pod for xdp_umem_reg {}
// SAFETY: as above, 128 bytes.
unsafe impl Pod for xdp_mmap_offsets {}
// SAFETY: as above, 48 bytes.
unsafe impl Pod for xdp_statistics {}
// SAFETY: as above, 4 bytes.
unsafe impl Pod for xdp_options {}
// SAFETY: as above, 16 bytes.
unsafe impl Pod for xdp_desc {}
// SAFETY: a C struct of 3 u32.
unsafe impl Pod for libc::tpacket_stats_v3 {}
// SAFETY: a C struct of 7 u32.
unsafe impl Pod for libc::tpacket_req3 {}
// SAFETY: a C struct of 4 u32.
unsafe impl Pod for libc::tpacket_req {}
// SAFETY: an i32, two u16 and 8 bytes: 16 bytes without padding.
unsafe impl Pod for libc::packet_mreq {}
const _: () = assert!(
    size_of::<libc::tpacket_stats_v3>() == 12
        && size_of::<libc::tpacket_req3>() == 28
        && size_of::<libc::tpacket_req>() == 16
        && size_of::<libc::packet_mreq>() == 16
);

/// The descriptor of an AF_PACKET or AF_XDP socket. Never blocks, and is closed on exec.
#[derive(Debug)]
pub(crate) struct RawSocket(OwnedFd);

impl RawSocket {
    /// Opens a socket of the family `AF_PACKET` or `AF_XDP`. It receives nothing until it is bound.
    pub(crate) fn open(family: c_int) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket(2) takes plain integers.
        let fd = unsafe { libc::socket(family, kind, 0) };
        check(fd)?;
        // SAFETY: the kernel has just made this descriptor for this process.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sets an option to a plain value (setsockopt(2)).
    pub(crate) fn set<T: Pod>(&self, level: c_int, option: c_int, value: T) -> io::Result<()> {
        let size = size_of::<T>() as socklen_t;
        let value = (&raw const value).cast();
        // SAFETY: `value` points at `size` initialised bytes of a live local.
        check(unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, value, size) })
    }

    /// Returns an option's value, and how many bytes of it the kernel wrote; the rest is 0.
    pub(crate) fn get<T: Pod>(&self, level: c_int, option: c_int) -> io::Result<(T, usize)> {
        let mut value = MaybeUninit::<T>::zeroed();
        let mut size = size_of::<T>() as socklen_t;
        let (fd, at) = (self.0.as_raw_fd(), value.as_mut_ptr().cast());
        // SAFETY: the kernel writes at most `size` bytes, which is T's size.
        check(unsafe { libc::getsockopt(fd, level, option, at, &mut size) })?;
        // SAFETY: all bytes are initialised (zeroed at least), and T is Pod.
        Ok((unsafe { value.assume_init() }, size as usize))
    }

    /// Waits for one of these events; true if one occurs. It also wakes an AF_XDP driver that asks
    /// for it.
    #[inline]
    pub(crate) fn poll(&self, events: PollFlags, timeout: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.0.as_fd(), events)];
        // Rounded up to milliseconds, so that a short wait is not zero.
        let timeout = timeout.checked_add(Duration::from_nanos(999_999)).unwrap_or(timeout);
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match nix::poll::poll(&mut fds, timeout) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<RawSocket> for OwnedFd {
    fn from(socket: RawSocket) -> Self {
        socket.0
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the error of a system call that returned `status`.
pub(crate) fn check(status: c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
