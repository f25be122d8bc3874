//! A mock kernel: the other side of all four rings, on memory mapped a second time. It can act as
//! net/xdp/xsk.c does, or break the protocol.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem::size_of;
use std::os::fd::AsFd;
use std::sync::Arc;

use libc::{xdp_desc, xdp_ring_offset};

use crate::raw_socket::Pod;
use crate::xdp::ring::{Consumer, Producer};
use sluicegate_base::memory::{Mmap, Pool};
use sluicegate_base::ring::{AtomicU32, Ordering};

/// Bytes that the kernel leaves free in front of a received packet: XDP_PACKET_HEADROOM, linux/bpf.h.
const PACKET_HEADROOM: u64 = 256;
/// The kernel's layout: each index has its own cache line.
const OFFSETS: xdp_ring_offset =
    xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };

/// The other side of one ring.
pub(in crate::xdp) struct Theirs<T> {
    map: Mmap,
    pub entries: u32,
    /// The next index to consume or to produce.
    pub next: u32,
    _entries: std::marker::PhantomData<T>,
}

impl<T: Pod> Theirs<T> {
    /// Creates a ring with both indices at `start`, mapped twice: for this side and the kernel.
    fn new(entries: u32, start: u32) -> (Mmap, Self) {
        let bytes = OFFSETS.desc as usize + entries as usize * size_of::<T>();
        let (fd, map) = Mmap::memfd(c"mock-ring", bytes, false).unwrap();
        let ours = Mmap::shared(fd.as_fd(), map.bytes()).unwrap();
        let theirs = Self { map, entries, next: start, _entries: std::marker::PhantomData };
        theirs.say_produced(start);
        theirs.say_consumed(start);
        (ours, theirs)
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the mapping has a word there, which is accessed atomically only.
        unsafe { self.map.at(offset as usize).cast::<AtomicU32>().as_ref() }
    }

    pub(in crate::xdp) fn say_produced(&self, index: u32) {
        self.word(OFFSETS.producer).store(index, Ordering::Release);
    }

    pub(in crate::xdp) fn say_consumed(&self, index: u32) {
        self.word(OFFSETS.consumer).store(index, Ordering::Release);
    }

    pub(in crate::xdp) fn ask_for_wakeup(&self, asks: bool) {
        let flags = if asks { libc::XDP_RING_NEED_WAKEUP } else { 0 };
        self.word(OFFSETS.flags).store(flags, Ordering::Relaxed);
    }

    pub(in crate::xdp) fn produced(&self) -> u32 {
        self.word(OFFSETS.producer).load(Ordering::Acquire)
    }

    pub(in crate::xdp) fn consumed(&self) -> u32 {
        self.word(OFFSETS.consumer).load(Ordering::Acquire)
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = (index % self.entries) as usize * size_of::<T>();
        self.map.at(OFFSETS.desc as usize + at).cast().as_ptr()
    }

    /// Consumes one entry without publishing it.
    pub(in crate::xdp) fn take(&mut self) -> Option<T> {
        if self.next == self.produced() {
            return None;
        }
        // SAFETY: the entry lies in the mapping and was published to us.
        let entry = unsafe { self.entry(self.next).read_volatile() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Consumes all entries and publishes the index.
    pub(in crate::xdp) fn take_all(&mut self) -> Vec<T> {
        let all = std::iter::from_fn(|| self.take()).collect();
        self.say_consumed(self.next);
        all
    }

    /// Produces one entry and publishes it. Returns false without room.
    pub(in crate::xdp) fn put(&mut self, entry: T) -> bool {
        let has_room = self.next.wrapping_sub(self.consumed()) < self.entries;
        if has_room {
            // SAFETY: the entry lies in the mapping, and the other side has given it back.
            unsafe { self.entry(self.next).write_volatile(entry) };
            self.next = self.next.wrapping_add(1);
            self.say_produced(self.next);
        }
        has_room
    }
}

/// Creates a ring whose producer is this side, and its other side.
pub(in crate::xdp) fn producer<T: Pod>(entries: u32, start: u32) -> (Producer<T>, Theirs<T>) {
    let (map, theirs) = Theirs::new(entries, start);
    (Producer::new(map, &OFFSETS, entries).unwrap(), theirs)
}

/// Creates a ring whose consumer is this side, and its other side.
pub(in crate::xdp) fn consumer<T: Pod>(entries: u32, start: u32) -> (Consumer<T>, Theirs<T>) {
    let (map, theirs) = Theirs::new(entries, start);
    (Consumer::new(map, &OFFSETS, entries).unwrap(), theirs)
}

/// The kernel's receiving side.
pub(in crate::xdp) struct Deliverer {
    pub pool: Arc<Pool>,
    pub fill: Theirs<u64>,
    pub rx: Theirs<xdp_desc>,
    /// Frames taken from the fill ring.
    pub free: VecDeque<u64>,
}

impl Deliverer {
    /// Delivers a packet of several pieces, one frame each, to the receive ring. Returns false, without
    /// effect, if there are too few frames.
    pub(in crate::xdp) fn deliver(&mut self, pieces: &[&[u8]]) -> bool {
        self.free.extend(self.fill.take_all());
        if self.free.len() < pieces.len() {
            return false;
        }
        for (i, piece) in pieces.iter().enumerate() {
            let addr = self.free.pop_front().unwrap() + PACKET_HEADROOM;
            self.write(addr, piece);
            let options = if i + 1 < pieces.len() { libc::XDP_PKT_CONTD } else { 0 };
            assert!(self.rx.put(xdp_desc { addr, len: piece.len() as u32, options }));
        }
        true
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        let frame_bytes = u64::from(self.pool.buffer_bytes());
        let frame = self.pool.address((addr / frame_bytes) as u32).as_ptr();
        // SAFETY: the fill ring lent the frame, and the bytes end in it.
        unsafe {
            let to = frame.add((addr % frame_bytes) as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

/// Returns the bytes of a packet, or of a piece, in a frame that was submitted for sending.
pub(in crate::xdp) fn bytes_at(pool: &Pool, descriptor: &xdp_desc) -> Vec<u8> {
    let frame_bytes = u64::from(pool.buffer_bytes());
    let frame = pool.address((descriptor.addr / frame_bytes) as u32).as_ptr();
    // SAFETY: the transmit ring lent the frame, and the packet ends in it.
    unsafe {
        let from = frame.add((descriptor.addr % frame_bytes) as usize);
        std::slice::from_raw_parts(from, descriptor.len as usize).to_vec()
    }
}
