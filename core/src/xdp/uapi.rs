//! Layout checks of linux/if_xdp.h: libc has the items, the kernel has the layouts.

use std::mem::{offset_of, size_of};

use libc::{
    sockaddr_xdp, xdp_desc, xdp_mmap_offsets, xdp_options, xdp_ring_offset, xdp_statistics,
    xdp_umem_reg,
};

/// How many packets a call sends where the kernel copies: linux/if_xdp.h, since 6.17. libc does not
/// have it.
pub(super) const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// What it is set to. More a call saves nothing more, and keeps others from the CPU.
pub(super) const COPIED_A_CALL: u32 = 256;

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

    // Kernels before 6.8 know all but the last field, and read the same 32 bytes.
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
