//! Who owns the bytes: mappings, and the pool of packet buffers carved out of one.

mod mmap;
mod pool;
mod prefetch;

pub use mmap::{Mmap, PAGE_BYTES};
pub use pool::RING_ALIGNMENT;
pub use pool::{Pool, PoolConfig};
pub use prefetch::{prefetch, prefetch_to_write};
