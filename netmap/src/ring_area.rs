//! The part of a region in which the images of rings lie: in front of its buffers.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::{Error, Result};

/// The free parts of a region's ring area.
#[derive(Debug)]
pub(crate) struct RingArea {
    pool: Arc<Pool>,
    /// In order, no two adjacent.
    free: Mutex<Vec<Range<usize>>>,
}

impl RingArea {
    /// Images begin at multiples of this: two cache lines, as `struct netmap_ring` does.
    pub(crate) const ALIGNMENT: usize = 128;

    /// Makes a pool with room for `bytes` bytes of images in front of its buffers.
    pub(crate) fn new(config: PoolConfig, bytes: usize) -> Result<Self> {
        let pool = Pool::with_header(config, bytes.max(1))?;
        let free = Mutex::new(std::iter::once(0..pool.buffers_at()).collect());
        Ok(Self { pool, free })
    }

    /// The buffers behind the area.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Takes `bytes` bytes, aligned.
    pub(crate) fn take(&self, bytes: usize) -> Result<Range<usize>> {
        let bytes = bytes.next_multiple_of(Self::ALIGNMENT);
        let mut free = self.free();
        let Some(range) = free.iter_mut().find(|range| range.len() >= bytes) else {
            let message = "the region's ring area is full: make it larger";
            return Err(Error::Usage(message.into()));
        };
        let taken = range.start..range.start + bytes;
        range.start = taken.end;
        free.retain(|range| !range.is_empty());
        Ok(taken)
    }

    /// Returns a part.
    pub(crate) fn give(&self, range: Range<usize>) {
        let mut free = self.free();
        free.push(range);
        free.sort_by_key(|range| range.start);
        free.dedup_by(|next, range| {
            let adjacent = range.end == next.start;
            if adjacent {
                range.end = next.end;
            }
            adjacent
        });
    }

    fn free(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_ring_area_is_used_again() {
        let config = PoolConfig { buffers: 1, ..PoolConfig::default() };
        let area = RingArea::new(config, 4000).unwrap();
        let a = area.take(1000).unwrap();
        let b = area.take(1000).unwrap();
        let c = area.take(2000).unwrap();
        assert_eq!((a.len(), c.end), (1024, 4096));
        assert!(area.take(1).is_err());
        area.give(a);
        area.give(c);
        area.give(b);
        assert_eq!(area.take(4096).unwrap(), 0..4096, "neighbours are joined");
    }
}
