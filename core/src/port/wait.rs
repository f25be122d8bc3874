//! Waiting for packets in one or several queues: spin, sleep in ppoll(2), or both.
//!
//! A [`Backend`] reports the packets it has, the event that ends a sleep, and its state after one.
//! This module decides for all backends how long to spin and to sleep.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::time::TimeSpec;

use super::backend::{Backend, WakeSource};
use crate::error::{Error, Result};
use sluicegate_base::ring::{Readiness, Wait};

/// Polls between two reads of the clock.
const POLLS: u32 = 64;
/// Maximum duration of a wait.
const DAY: Duration = Duration::from_secs(86_400);

/// Waits up to `timeout` until one of the backends has something to receive. Returns its index and state;
/// the index of [`Readiness::TimedOut`] has no meaning.
pub(super) fn wait_for(
    backends: &mut [&mut dyn Backend],
    wait: Wait,
    timeout: Duration,
) -> Result<(usize, Readiness)> {
    let start = Instant::now();
    let end = start + timeout.min(DAY);
    let mut spins = false;
    for backend in backends.iter_mut() {
        spins |= backend.spins(wait);
    }
    if let Some(told) = look(backends)? {
        return Ok(told);
    }
    let spin = match wait {
        Wait::Spin => timeout,
        Wait::Adaptive(spin) => spin.min(timeout),
        Wait::Sleep => Duration::ZERO,
    };
    if !spin.is_zero() && spins {
        let spin_end = start + spin.min(DAY);
        while Instant::now() < spin_end {
            for _ in 0..POLLS {
                if let Some(told) = look(backends)? {
                    return Ok(told);
                }
                std::hint::spin_loop();
            }
        }
    }
    loop {
        // At least once, because a descriptor may report an error.
        let left = end.saturating_duration_since(Instant::now());
        let awake = match sleep(backends, left) {
            Ok(awake) => awake,
            Err(Errno::EINTR) => break,
            Err(errno) => return Err(Error::system("wait for", "packets", errno)),
        };
        for (index, backend) in backends.iter_mut().enumerate() {
            if awake.contains(&index) {
                match backend.slept(true)? {
                    Readiness::TimedOut => {}
                    told => return Ok((index, told)),
                }
            }
        }
        if let Some(told) = look(backends)? {
            return Ok(told);
        }
        if Instant::now() >= end {
            break;
        }
    }
    let mut told = (0, Readiness::TimedOut);
    for (index, backend) in backends.iter_mut().enumerate() {
        match backend.slept(false)? {
            Readiness::TimedOut => {}
            more => told = (index, more),
        }
    }
    Ok(told)
}

/// Returns the first backend with packets or a change of state.
#[inline]
fn look(backends: &mut [&mut dyn Backend]) -> Result<Option<(usize, Readiness)>> {
    for (index, backend) in backends.iter_mut().enumerate() {
        if let Some(told) = backend.look()? {
            return Ok(Some((index, told)));
        }
    }
    Ok(None)
}

/// Returns true if a descriptor is readable, or has an error. Never waits.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> nix::Result<bool> {
    match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO) {
        Err(Errno::EINTR) => Ok(false),
        ready => ready.map(|ready| ready > 0),
    }
}

/// Sleeps until a descriptor is ready, a backend wants to be polled, or the time has expired. Returns the
/// backends with ready descriptors.
fn sleep(backends: &mut [&mut dyn Backend], mut left: Duration) -> nix::Result<Vec<usize>> {
    let mut fds = Vec::with_capacity(backends.len());
    let mut owners = Vec::with_capacity(backends.len());
    for (index, backend) in backends.iter_mut().enumerate() {
        let (sources, nap) = match backend.wake_source() {
            WakeSource::Descriptor(fd) => ([Some(fd), None], None),
            WakeSource::Limited(fd, nap) => ([Some(fd), None], Some(nap)),
            WakeSource::Either([one, other], nap) => ([Some(one), Some(other)], Some(nap)),
            WakeSource::Nap(nap) => ([None; 2], Some(nap)),
            WakeSource::Never => ([None; 2], None),
        };
        for fd in sources.into_iter().flatten() {
            fds.push(PollFd::new(fd, PollFlags::POLLIN));
            owners.push(index);
        }
        left = left.min(nap.unwrap_or(left));
    }
    ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None)?;
    let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
    Ok(owners.into_iter().zip(&fds).filter(|(_, fd)| ready(fd)).map(|(index, _)| index).collect())
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Write, pipe};
    use std::os::fd::AsFd;

    use super::*;
    use crate::port::stats::QueueStats;

    /// A backend that a pipe wakes, or that has packets after some number of polls.
    #[derive(Debug, Default)]
    struct Mock {
        pipe: Option<PipeReader>,
        polls_left: Option<u32>,
        down: bool,
        slept: Vec<bool>,
    }

    impl Backend for Mock {
        fn stats(&mut self) -> Result<QueueStats> {
            Ok(QueueStats::default())
        }

        fn look(&mut self) -> Result<Option<Readiness>> {
            let Some(left) = &mut self.polls_left else { return Ok(None) };
            *left = left.saturating_sub(1);
            Ok((*left == 0).then_some(Readiness::Ready))
        }

        fn spins(&mut self, _wait: Wait) -> bool {
            self.polls_left.is_some()
        }

        fn wake_source(&mut self) -> WakeSource<'_> {
            match &self.pipe {
                Some(pipe) => WakeSource::Descriptor(pipe.as_fd()),
                None if self.polls_left.is_some() => WakeSource::Nap(Duration::from_micros(10)),
                None => WakeSource::Never,
            }
        }

        fn slept(&mut self, ready: bool) -> Result<Readiness> {
            self.slept.push(ready);
            Ok(match (ready, self.down) {
                (true, _) => Readiness::Ready,
                (false, true) => Readiness::Down,
                (false, false) => Readiness::TimedOut,
            })
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(1);
    const WAYS: [Wait; 3] = [Wait::Spin, Wait::Sleep, Wait::Adaptive(SHORT)];

    fn wait(mocks: &mut [Mock], how: Wait, timeout: Duration) -> (usize, Readiness) {
        let mut backends: Vec<&mut dyn Backend> = Vec::new();
        backends.extend(mocks.iter_mut().map(|mock| mock as &mut dyn Backend));
        wait_for(&mut backends, how, timeout).unwrap()
    }

    #[test]
    fn the_backend_that_is_woken_is_returned() {
        for how in WAYS {
            let (quiet, _quiet_end) = pipe().unwrap();
            let (woken, mut end) = pipe().unwrap();
            end.write_all(b"!").unwrap();
            let mut mocks = [quiet, woken].map(|p| Mock { pipe: Some(p), ..Mock::default() });
            // Polling does not see a pipe: a waiter that only spins would never wake.
            let timeout = if how == Wait::Spin { SHORT } else { LONG };
            assert_eq!(wait(&mut mocks, how, timeout), (1, Readiness::Ready), "{how:?}");
            assert_eq!(mocks[1].slept, [true]);
        }
    }

    #[test]
    fn a_backend_that_nothing_wakes_is_polled_among_those_that_sleep() {
        for how in WAYS {
            let (quiet, _end) = pipe().unwrap();
            let mut mocks = [
                Mock { pipe: Some(quiet), ..Mock::default() },
                Mock { polls_left: Some(100), ..Mock::default() },
            ];
            assert_eq!(wait(&mut mocks, how, LONG), (1, Readiness::Ready), "{how:?}");
        }
    }

    #[test]
    fn every_backend_reports_after_a_timeout_and_one_that_went_down_is_returned() {
        for (how, down) in WAYS.into_iter().zip([false, true, true]) {
            let mut mocks = [false, down, false].map(|down| Mock { down, ..Mock::default() });
            let told = wait(&mut mocks, how, SHORT);
            let expected = if down { (1, Readiness::Down) } else { (0, Readiness::TimedOut) };
            assert_eq!(told, expected, "{how:?}");
            assert!(mocks.iter().all(|mock| mock.slept == [false]), "{mocks:?}");
        }
    }

    #[test]
    fn no_queue_is_a_pause() {
        let start = Instant::now();
        assert_eq!(wait(&mut [], Wait::default(), SHORT), (0, Readiness::TimedOut));
        assert!(start.elapsed() >= SHORT);
    }
}
