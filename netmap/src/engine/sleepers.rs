//! The wakers of a file: one for each thread that sleeps, so that no thread reads another's wake-up.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::errno::Errno;

use super::wake::Waker;

thread_local! {
    /// Lives as long as its thread.
    static THREAD: Arc<()> = Arc::default();
}

/// The threads that have slept in a file, and their wakers.
#[derive(Debug, Default)]
pub(super) struct Sleepers(Mutex<Vec<(Weak<()>, Arc<Waker>)>>);

impl Sleepers {
    /// Returns this thread's waker: its own, that of a thread that has ended, or a new one, which `add` makes
    /// known to the rings.
    ///
    /// # Errors
    /// No descriptor is left, or the thread is ending.
    pub(super) fn waker(&self, add: impl FnOnce(&Arc<Waker>)) -> Result<Arc<Waker>, Errno> {
        let thread = THREAD.try_with(Arc::downgrade).map_err(|_| Errno::EAGAIN)?;
        let mut sleepers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, waker)) = sleepers.iter().find(|(it, _)| it.ptr_eq(&thread)) {
            return Ok(Arc::clone(waker));
        }
        if let Some((ended, waker)) = sleepers.iter_mut().find(|(it, _)| it.strong_count() == 0) {
            *ended = thread;
            return Ok(Arc::clone(waker));
        }
        let waker = Arc::new(Waker::new()?);
        add(&waker);
        sleepers.push((thread, Arc::clone(&waker)));
        Ok(waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_wakers_of_their_own_and_reuse_those_of_threads_that_ended() {
        let (sleepers, mut made) = (Sleepers::default(), 0);
        let mut waker = || sleepers.waker(|_| made += 1).unwrap();
        let first = waker();
        assert!(Arc::ptr_eq(&first, &waker()));
        let second = std::thread::scope(|scope| scope.spawn(&mut waker).join().unwrap());
        let third = std::thread::scope(|scope| scope.spawn(&mut waker).join().unwrap());
        assert!(!Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&second, &third));
        assert_eq!(made, 2);
    }
}
