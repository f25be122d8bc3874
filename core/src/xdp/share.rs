//! Which sockets of which pool are bound: a further socket shares the UMEM of one of them.
//!
//! The kernel shares a UMEM by the descriptor of a socket that is bound to it, any one, and gives
//! the new socket that one's way of working: zero-copy or not, wake-ups, multi-buffer. So a
//! socket that works otherwise is no help, and where there is none the pool is registered anew.
//! Two registrations of one pool do no harm but to cost twice: each socket knows the frames that
//! it has lent.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sluicegate_base::memory::Pool;

/// What a socket that shares a UMEM takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traits {
    pub(super) zero_copy: bool,
    pub(super) need_wakeup: bool,
    pub(super) multi_buffer: bool,
}

#[derive(Debug)]
struct Bound {
    pool: Weak<Pool>,
    fd: RawFd,
    traits: Traits,
}

/// The sockets that are bound. A descriptor stands here only while it is open: it is entered
/// after its binding and taken out before its end.
static BOUND: Mutex<Vec<Bound>> = Mutex::new(Vec::new());

fn bound() -> MutexGuard<'static, Vec<Bound>> {
    // The list is whole between any two statements that can panic.
    BOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `work` with a bound socket of the pool; None if there is none. Until the work is done
/// that socket stays open.
pub(super) fn with_donor<T>(
    pool: &Arc<Pool>,
    traits: Traits,
    work: impl FnOnce(RawFd) -> T,
) -> Option<T> {
    let bound = bound();
    let fits = |it: &&Bound| it.traits == traits && std::ptr::eq(it.pool.as_ptr(), &**pool);
    let donor = bound.iter().find(fits)?.fd;
    Some(work(donor))
}

/// A bound socket's entry in the list; drop it before the descriptor is closed.
#[derive(Debug)]
pub(super) struct Entry(RawFd);

impl Entry {
    pub(super) fn new(pool: &Arc<Pool>, fd: RawFd, traits: Traits) -> Self {
        bound().push(Bound { pool: Arc::downgrade(pool), fd, traits });
        Self(fd)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        bound().retain(|it| it.fd != self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_base::memory::PoolConfig;

    #[test]
    fn a_donor_is_of_the_same_pool_and_works_the_same_way() {
        let pool = || Pool::new(PoolConfig { buffers: 2, ..PoolConfig::default() }).unwrap();
        let (ours, other) = (pool(), pool());
        let traits = Traits { zero_copy: false, need_wakeup: true, multi_buffer: false };
        // No descriptors of this process: nobody looks behind the numbers here.
        let first = Entry::new(&ours, -11, traits);
        let second = Entry::new(&ours, -12, traits);
        let found = |pool, traits| with_donor(pool, traits, |fd| fd);
        assert_eq!(found(&ours, traits), Some(-11));
        assert_eq!(found(&ours, Traits { zero_copy: true, ..traits }), None, "another mode");
        assert_eq!(found(&other, traits), None, "another pool");
        drop(first);
        assert_eq!(found(&ours, traits), Some(-12), "any that is left will do");
        drop(second);
        assert_eq!(found(&ours, traits), None, "none is left");
    }
}
