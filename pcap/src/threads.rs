//! Threads of the library's own take no signals.
//!
//! A program that takes signals as events blocks them in its threads. A thread it does not know
//! of would take them all the same, and with the default action end the program.

use nix::sys::signal::{SigSet, SigmaskHow};

/// Runs `spawn` with all signals blocked in this thread; those it makes inherit that.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let result = spawn();
    if let Ok(before) = before {
        // It was this thread's mask a moment ago, so the kernel takes it again.
        let _ = before.thread_set_mask();
    }
    result
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    #[test]
    fn a_thread_takes_no_signal_and_its_maker_goes_on_taking_them() {
        let blocks = || SigSet::thread_get_mask().unwrap().contains(Signal::SIGINT);
        let inside = without_signals(|| std::thread::spawn(blocks)).join().unwrap();
        assert!(inside, "the thread that was made");
        assert!(!blocks(), "the one that made it");
    }
}
