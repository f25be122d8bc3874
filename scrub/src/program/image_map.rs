//! Images in the kernel: an array map for each segment, and the map of these.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;

use libbpf_rs::{Map, MapCore, MapFlags, MapHandle, MapType, Result};
use libbpf_sys::bpf_map_create_opts;

use crate::image::{Image, LINE_BYTES, Line, MAX_SEGMENTS, SEGMENT_LINES};

/// Copies an image into new maps, one for each segment.
pub(super) fn create(image: &Image) -> Result<Vec<MapHandle>> {
    image.lines().chunks(SEGMENT_LINES).map(create_segment).collect()
}

/// Creates the map of a segment, `struct segment_map` in bpf/image.h.
fn create_segment(lines: &[Line]) -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let mut value = vec![0; SEGMENT_LINES * LINE_BYTES];
    for (to, line) in value.chunks_exact_mut(LINE_BYTES).zip(lines) {
        to.copy_from_slice(&line.0);
    }
    let bytes = value.len() as u32;
    let map = MapHandle::create(MapType::Array, Some("scrub_image"), 4, bytes, 1, &options)?;
    map.update(&0_u32.to_ne_bytes(), &value, MapFlags::ANY)?;
    Ok(map)
}

/// The map of both sides' segments. Each change of it waits until no packet reads what it replaces: an RCU grace period
/// (kernel/bpf/syscall.c, `maybe_wait_bpf_programs`). Changes at the same time share one.
pub(super) struct Images(MapHandle);

impl Images {
    pub(super) fn of(map: &Map<'_>) -> Result<Self> {
        MapHandle::try_from(map).map(Self)
    }

    /// Puts the first segments of a side.
    pub(super) fn put(&self, side: u32, segments: &[MapHandle]) -> Result<()> {
        concurrently(segments.len(), |at| {
            let descriptor = segments[at].as_fd().as_raw_fd().to_ne_bytes();
            self.0.update(&key(side, at), &descriptor, MapFlags::ANY)
        })
    }

    /// Removes the first segments of a side.
    pub(super) fn remove(&self, side: u32, count: usize) -> Result<()> {
        concurrently(count, |at| self.0.delete(&key(side, at)))
    }
}

/// Returns the key of a side's segment.
fn key(side: u32, segment: usize) -> [u8; 4] {
    (side * MAX_SEGMENTS as u32 + segment as u32).to_ne_bytes()
}

/// Calls a function for each number below `count`: in a thread each, or in this one if no thread starts.
fn concurrently(count: usize, call: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let call = &call;
        let start = |at| (at, thread::Builder::new().spawn_scoped(scope, move || call(at)));
        let threads: Vec<_> = (1..count).map(start).collect();
        let first = if count > 0 { call(0) } else { Ok(()) };
        threads.into_iter().fold(first, |result, (at, thread)| {
            let of_this = match thread {
                Ok(thread) => thread.join().expect("the call does not panic"),
                Err(_) => call(at),
            };
            result.and(of_this)
        })
    })
}
