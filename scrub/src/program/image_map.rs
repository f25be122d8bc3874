//! A policy's tables in the kernel: an image, which is an array map of lines, and the bits of networks.

use std::mem::size_of;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Result};
use libbpf_sys::bpf_map_create_opts;

use crate::image::{Image, LINE_BYTES};

/// The flags of `struct image` in bpf/maps.h, which the kernel compares. BPF_F_INNER_MAP: maps of different sizes are
/// images (Linux 5.10).
const IMAGE_FLAGS: u32 = libbpf_sys::BPF_F_INNER_MAP | libbpf_sys::BPF_F_MMAPABLE;
/// Lines written by one system call.
const BATCH: usize = 1 << 14;

/// Creates a map, and copies an image into it. Lines of zeros need no copy.
pub(super) fn create(image: &Image) -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: IMAGE_FLAGS,
        ..Default::default()
    };
    let lines = image.lines();
    let entries = lines.len().max(1) as u32;
    let map = MapHandle::create(
        MapType::Array,
        Some("scrub_image"),
        4,
        LINE_BYTES as u32,
        entries,
        &options,
    )?;
    let mut used = (0_u32..).zip(lines).filter(|(_, line)| line.0 != [0; LINE_BYTES]).peekable();
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    while used.peek().is_some() {
        keys.clear();
        values.clear();
        for (key, line) in used.by_ref().take(BATCH) {
            keys.extend(key.to_ne_bytes());
            values.extend(line.0);
        }
        let count = (keys.len() / 4) as u32;
        map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)?;
    }
    Ok(map)
}

/// Creates a map of the bits of one version's networks.
pub(super) fn create_networks(networks: &[u8]) -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let bytes = networks.len() as u32;
    let map = MapHandle::create(MapType::Array, Some("scrub_networks"), 4, bytes, 1, &options)?;
    map.update(&0_u32.to_ne_bytes(), networks, MapFlags::ANY)?;
    Ok(map)
}
