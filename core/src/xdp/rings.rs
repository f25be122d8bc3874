//! The rings of one socket: their sizes, and mapping them, which has to be before the binding.

use std::io;
use std::mem::size_of;

use libc::{c_int, xdp_desc, xdp_ring_offset};

use super::calls::Descriptor;
use super::ring::{Consumer, Producer};
use crate::error::{Error, Result};
use sluicegate_base::memory::Mmap;

/// Entries of a ring that has to be there and is not used.
const UNUSED_ENTRIES: u32 = 2;

/// What a socket is for: frames to receive into, slots to send from; 0 for not at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Frames that will be lent by the fill ring.
    pub(super) fill_frames: u32,
    /// Packets that can have arrived.
    pub(super) receive_frames: u32,
    /// Packets that can be on their way.
    pub(super) send_slots: u32,
}

/// The rings that will be used. The kernel wants a fill and a completion ring in any case.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Option<Producer<u64>>,
    pub(super) receive: Option<Consumer<xdp_desc>>,
    pub(super) transmit: Option<Producer<xdp_desc>>,
    pub(super) completion: Option<Consumer<u64>>,
}

impl Rings {
    /// Gives a socket its rings. The fill ring has twice the room it needs: the kernel says that
    /// it has consumed only when its private batch runs out, so an exact fit would refuse frames
    /// that it has long used.
    pub(super) fn make(fd: &Descriptor, sizes: Sizes, object: &str) -> Result<Self> {
        let failed = |error| Error::system("make the rings of", object, error);
        let Sizes { fill_frames, receive_frames, send_slots } = sizes;
        let [fill, receive, send] =
            [fill_frames * 2, receive_frames, send_slots].map(u32::next_power_of_two);
        let ask = |ring: c_int, entries: u32| fd.set(libc::SOL_XDP, ring, entries);
        let always = |used: bool, entries| if used { entries } else { UNUSED_ENTRIES };
        ask(libc::XDP_UMEM_FILL_RING, always(fill_frames > 0, fill)).map_err(failed)?;
        ask(libc::XDP_UMEM_COMPLETION_RING, always(send_slots > 0, send)).map_err(failed)?;
        if receive_frames > 0 {
            ask(libc::XDP_RX_RING, receive).map_err(failed)?;
        }
        if send_slots > 0 {
            ask(libc::XDP_TX_RING, send).map_err(failed)?;
        }
        let offsets = offsets(fd).map_err(failed)?.ok_or_else(|| Error::Unsupported {
            feature: "AF_XDP with flags in its rings (Linux 5.4)".into(),
            remedy: "use a packet: port".into(),
        })?;
        let desc = size_of::<xdp_desc>();
        let address = size_of::<u64>();
        let map = |ring: u64, of: &xdp_ring_offset, entries: u32, bytes: usize| {
            map(fd, ring, of, entries, bytes).map_err(failed)
        };
        let (fr, rx, tx, cr) = (&offsets.fr, &offsets.rx, &offsets.tx, &offsets.cr);
        let mut rings = Self { fill: None, receive: None, transmit: None, completion: None };
        if fill_frames > 0 {
            let map = map(libc::XDP_UMEM_PGOFF_FILL_RING, fr, fill, address)?;
            rings.fill = Some(Producer::new(map, fr, fill)?);
        }
        if receive_frames > 0 {
            let map = map(libc::XDP_PGOFF_RX_RING as u64, rx, receive, desc)?;
            rings.receive = Some(Consumer::new(map, rx, receive)?);
        }
        if send_slots > 0 {
            let of_tx = map(libc::XDP_PGOFF_TX_RING as u64, tx, send, desc)?;
            rings.transmit = Some(Producer::new(of_tx, tx, send)?);
            let of_cr = map(libc::XDP_UMEM_PGOFF_COMPLETION_RING, cr, send, address)?;
            rings.completion = Some(Consumer::new(of_cr, cr, send)?);
        }
        Ok(rings)
    }
}

/// Where things are in each ring; None from a kernel whose rings have no flags.
fn offsets(fd: &Descriptor) -> io::Result<Option<libc::xdp_mmap_offsets>> {
    let (offsets, bytes) = fd.get::<libc::xdp_mmap_offsets>(libc::XDP_MMAP_OFFSETS)?;
    Ok((bytes >= size_of::<libc::xdp_mmap_offsets>()).then_some(offsets))
}

fn map(
    fd: &Descriptor,
    ring: u64,
    offsets: &xdp_ring_offset,
    entries: u32,
    entry_bytes: usize,
) -> io::Result<Mmap> {
    let first = usize::try_from(offsets.desc).map_err(io::Error::other)?;
    fd.map_ring(ring, first.saturating_add(entries as usize * entry_bytes))
}
