//! System calls of an AF_XDP socket, and checks of the layouts they use.
//!
//! Sources: linux/if_xdp.h, Documentation/networking/af_xdp.rst, net/xdp/xsk.c.
#![allow(unsafe_code)]

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use libc::{
    sockaddr_xdp, socklen_t, xdp_desc, xdp_mmap_offsets, xdp_options, xdp_ring_offset,
    xdp_statistics, xdp_umem_reg,
};
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::socket::{self, MsgFlags};

use crate::raw_socket::{RawSocket, check};

/// Option for the number of packets that one call sends in copy mode: linux/if_xdp.h, since 6.17. Not in
/// libc.
pub(super) const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// Its value. Larger calls save no more time, and keep the CPU busy.
pub(super) const TX_SKB_BUDGET: u32 = 256;

const _: () = {
    assert!(size_of::<sockaddr_xdp>() == 16);
    assert!(offset_of!(sockaddr_xdp, sxdp_ifindex) == 4);
    assert!(offset_of!(sockaddr_xdp, sxdp_queue_id) == 8);
    assert!(offset_of!(sockaddr_xdp, sxdp_shared_umem_fd) == 12);

    assert!(size_of::<xdp_ring_offset>() == 32);
    assert!(offset_of!(xdp_ring_offset, consumer) == 8);
    assert!(offset_of!(xdp_ring_offset, desc) == 16);
    assert!(offset_of!(xdp_ring_offset, flags) == 24);
    assert!(size_of::<xdp_mmap_offsets>() == 128);
    assert!(offset_of!(xdp_mmap_offsets, tx) == 32);
    assert!(offset_of!(xdp_mmap_offsets, fr) == 64);
    assert!(offset_of!(xdp_mmap_offsets, cr) == 96);

    // Kernels before 6.8 know all fields but the last, and read the same 32 bytes.
    assert!(size_of::<xdp_umem_reg>() == 32);
    assert!(offset_of!(xdp_umem_reg, chunk_size) == 16);
    assert!(offset_of!(xdp_umem_reg, headroom) == 20);
    assert!(offset_of!(xdp_umem_reg, flags) == 24);

    // Kernels before 5.9 fill in the first three.
    assert!(size_of::<xdp_statistics>() == 48);
    assert!(offset_of!(xdp_statistics, tx_invalid_descs) == 16);
    assert!(offset_of!(xdp_statistics, tx_ring_empty_descs) == 40);
    assert!(size_of::<xdp_options>() == 4);

    assert!(size_of::<xdp_desc>() == 16);
    assert!(offset_of!(xdp_desc, len) == 8);
    assert!(offset_of!(xdp_desc, options) == 12);
};

impl RawSocket {
    /// Binds to a queue, sharing the UMEM of the socket `donor` if given.
    pub(super) fn bind_xdp(
        &self,
        ifindex: u32,
        queue: u32,
        flags: u16,
        donor: Option<RawFd>,
    ) -> io::Result<()> {
        let address = sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: donor.map_or(0, RawFd::cast_unsigned),
        };
        let size = size_of::<sockaddr_xdp>() as socklen_t;
        // SAFETY: `address` is a live sockaddr_xdp of `size` bytes.
        check(unsafe { libc::bind(self.as_fd().as_raw_fd(), (&raw const address).cast(), size) })
    }

    /// Makes the kernel send from the transmit ring: in copy mode 32 packets per call, or the number set by
    /// `XDP_MAX_TX_SKB_BUDGET`. Returns true if the device has dropped a packet (copy mode).
    #[inline]
    pub(super) fn wake_tx(&self) -> io::Result<bool> {
        match socket::send(self.as_fd().as_raw_fd(), &[], MsgFlags::MSG_DONTWAIT) {
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => Ok(false),
            Err(Errno::EBUSY) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Polls the driver's queue if busy polling is on, and reports the socket's state (Linux 5.11).
    #[inline]
    pub(super) fn wake_rx(&self) -> io::Result<()> {
        match socket::recv(self.as_fd().as_raw_fd(), &mut [], MsgFlags::MSG_DONTWAIT) {
            // EOPNOTSUPP: an older kernel. ENOBUFS: the socket does not receive.
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS | Errno::EOPNOTSUPP) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Raises this process's limit on locked memory as far as allowed.
pub(super) fn raise_memory_lock() {
    let lock = Resource::RLIMIT_MEMLOCK;
    // Raising the maximum needs CAP_SYS_RESOURCE. If neither succeeds, locking memory will fail.
    let _ = setrlimit(lock, RLIM_INFINITY, RLIM_INFINITY)
        .or_else(|_| getrlimit(lock).and_then(|(_, max)| setrlimit(lock, max, max)));
}
