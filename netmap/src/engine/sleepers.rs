//! The wakers of a file: one for each sleeper, so that none reads another's wake-up.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::errno::Errno;

use super::wake::Waker;

/// One that sleeps in a file: a thread, also of another process.
#[derive(Debug, Default)]
pub struct Sleeper(Arc<()>);

thread_local! {
    /// Lives as long as its thread.
    static THREAD: Sleeper = Sleeper::default();
}

impl Sleeper {
    /// Calls a function with this thread's sleeper; None while the thread ends.
    pub(super) fn with_this_thread<T>(work: impl FnOnce(&Self) -> T) -> Option<T> {
        THREAD.try_with(work).ok()
    }
}

/// The sleepers of a file, and their wakers.
#[derive(Debug, Default)]
pub(super) struct Sleepers(Mutex<Vec<(Weak<()>, Arc<Waker>)>>);

impl Sleepers {
    /// Returns a sleeper's waker: its own, that of a sleeper that has ended, or a new one, which `add` makes known to
    /// the rings.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn waker(
        &self,
        sleeper: &Sleeper,
        add: impl FnOnce(&Arc<Waker>),
    ) -> Result<Arc<Waker>, Errno> {
        let sleeper = Arc::downgrade(&sleeper.0);
        let mut sleepers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, waker)) = sleepers.iter().find(|(it, _)| it.ptr_eq(&sleeper)) {
            return Ok(Arc::clone(waker));
        }
        if let Some((ended, waker)) = sleepers.iter_mut().find(|(it, _)| it.strong_count() == 0) {
            *ended = sleeper;
            return Ok(Arc::clone(waker));
        }
        let waker = Arc::new(Waker::new()?);
        add(&waker);
        sleepers.push((sleeper, Arc::clone(&waker)));
        Ok(waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_wakers_of_their_own_and_reuse_those_of_threads_that_ended() {
        let (sleepers, mut made) = (Sleepers::default(), 0);
        let mut waker = || {
            Sleeper::with_this_thread(|thread| sleepers.waker(thread, |_| made += 1))
                .unwrap()
                .unwrap()
        };
        let first = waker();
        assert!(Arc::ptr_eq(&first, &waker()));
        let second = std::thread::scope(|scope| scope.spawn(&mut waker).join().unwrap());
        let third = std::thread::scope(|scope| scope.spawn(&mut waker).join().unwrap());
        assert!(!Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&second, &third));
        assert_eq!(made, 2);
    }
}
