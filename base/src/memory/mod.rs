//! Who owns the bytes: mappings, and the pool of packet buffers carved out of one.

mod mmap;
mod pool;

pub use mmap::{Mmap, PAGE_BYTES};
pub use pool::{Pool, PoolConfig, RING_ALIGNMENT, prefetch, prefetch_to_write};
