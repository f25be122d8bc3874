//! Memory: mappings, and the pool of packet buffers in one.

mod mmap;
mod pool;

pub use mmap::{Mmap, PAGE_BYTES};
pub use pool::{Pool, PoolConfig, prefetch, prefetch_to_write};
