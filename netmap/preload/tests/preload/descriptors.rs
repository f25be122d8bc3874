//! Descriptors of netmap's device: opened, duplicated and closed.

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

use crate::port::Port;
use crate::program::{DEVICE, is_netmap, is_preloaded, is_preloaded_by_both_hosts, open, pipe};

/// Converts what libc has returned.
fn new(fd: RawFd) -> OwnedFd {
    // SAFETY: a call that makes a descriptor has returned it.
    unsafe { OwnedFd::from_raw_fd(Errno::result(fd).unwrap()) }
}

unsafe extern "C" {
    fn __open_2(path: *const libc::c_char, flags: i32) -> i32;
    fn __open64_2(path: *const libc::c_char, flags: i32) -> i32;
    fn __openat_2(folder: i32, path: *const libc::c_char, flags: i32) -> i32;
    fn __openat64_2(folder: i32, path: *const libc::c_char, flags: i32) -> i32;
    fn closefrom(first: i32);
}

#[test]
fn every_way_to_open_the_device_reaches_the_engine() {
    if !is_preloaded("descriptors::every_way_to_open_the_device_reaches_the_engine") {
        return;
    }
    let (path, read) = (DEVICE.as_ptr(), libc::O_RDWR);
    // SAFETY: the path ends with a NUL byte.
    let all = unsafe {
        [
            libc::open(path, read),
            libc::open64(path, read),
            libc::openat(libc::AT_FDCWD, path, read),
            libc::openat64(libc::AT_FDCWD, path, read),
            __open_2(path, read),
            __open64_2(path, read),
            __openat_2(libc::AT_FDCWD, path, read),
            __openat64_2(libc::AT_FDCWD, path, read),
        ]
    };
    for (at, fd) in all.map(new).iter().enumerate() {
        assert!(is_netmap(fd.as_raw_fd()), "way {at}");
    }
    for other in [c"/dev/null", c"/dev/netmap0", c"/dev/netma"] {
        // SAFETY: the path ends with a NUL byte.
        let fd = unsafe { libc::open(other.as_ptr(), read) };
        assert!(!is_netmap(fd), "{other:?}");
        assert_eq!(fd >= 0, other == c"/dev/null", "{other:?}");
    }
    // SAFETY: a null path is an error.
    assert_eq!(Errno::result(unsafe { libc::open(std::ptr::null(), read) }), Err(Errno::EFAULT));
}

#[test]
fn the_descriptor_is_a_real_one() {
    if !is_preloaded("descriptors::the_descriptor_is_a_real_one") {
        return;
    }
    for (flags, close_on_exec, nonblocking) in
        [(0, false, false), (libc::O_CLOEXEC, true, false), (libc::O_NONBLOCK, false, true)]
    {
        let file = open(flags);
        let fd = file.as_raw_fd();
        // SAFETY: these commands have no argument.
        let [kept, status] =
            [libc::F_GETFD, libc::F_GETFL].map(|command| unsafe { libc::fcntl(fd, command) });
        assert_eq!(kept & libc::FD_CLOEXEC != 0, close_on_exec);
        assert_eq!(status & libc::O_NONBLOCK != 0, nonblocking);
        let mut bytes = [0_u8; 8];
        // SAFETY: the buffer has 8 bytes.
        let read = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), 8) };
        assert_eq!(Errno::result(read), Err(Errno::EINVAL), "the device has no read");
        // SAFETY: as above.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), 8) };
        assert_eq!(Errno::result(written), Err(Errno::EINVAL), "the device has no write");
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapped = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        };
        assert_eq!(mapped, libc::MAP_FAILED, "no port is registered");
        assert_eq!(Errno::last(), Errno::EINVAL);
    }
}

#[test]
fn a_file_stays_open_until_its_last_descriptor_is_closed() {
    if !is_preloaded("descriptors::a_file_stays_open_until_its_last_descriptor_is_closed") {
        return;
    }
    let first = open(0);
    let fd = first.as_raw_fd();
    let free = 200;
    // SAFETY: only descriptors of this test.
    let copies = unsafe {
        [
            libc::dup(fd),
            libc::dup2(fd, free),
            libc::dup3(fd, free + 1, libc::O_CLOEXEC),
            libc::fcntl(fd, libc::F_DUPFD, free + 10),
            libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, free + 20),
        ]
    };
    drop(first);
    assert!(!is_netmap(fd), "closed");
    for fd in copies {
        assert!(is_netmap(fd), "{fd} of {copies:?}");
        drop(new(fd));
        assert!(!is_netmap(fd), "{fd} of {copies:?}");
    }
}

#[test]
fn a_number_is_no_longer_netmaps_when_another_file_has_it() {
    if !is_preloaded("descriptors::a_number_is_no_longer_netmaps_when_another_file_has_it") {
        return;
    }
    let (reader, _writer) = pipe();
    // SAFETY: descriptors of this test, here and below.
    unsafe {
        let fd = open(0).into_raw_fd();
        assert_eq!(libc::dup2(reader.as_raw_fd(), fd), fd);
        assert!(!is_netmap(fd), "dup2 has replaced it");
        assert_eq!(Errno::result(libc::dup2(999, open(0).into_raw_fd())), Err(Errno::EBADF));
        libc::close(fd);

        let fd = open(0).into_raw_fd();
        assert_eq!(Errno::result(libc::dup2(999, fd)), Err(Errno::EBADF));
        assert!(is_netmap(fd), "a failed dup2 replaces nothing");
        assert_eq!(libc::dup2(fd, fd), fd);
        assert!(is_netmap(fd), "onto itself");
        libc::close(fd);
        assert_eq!(libc::dup(reader.as_raw_fd()), fd, "the lowest free number");
        assert!(!is_netmap(fd), "close has freed it");
        libc::close(fd);

        let range = [open(0).into_raw_fd(), open(0).into_raw_fd(), open(0).into_raw_fd()];
        let middle = range[1] as u32;
        assert_eq!(close_range(middle, middle, libc::CLOSE_RANGE_CLOEXEC as i32), 0);
        assert_eq!(range.map(is_netmap), [true; 3], "only marked");
        let unknown = Errno::result(close_range(middle, middle, 1 << 10));
        assert_eq!(unknown, Err(Errno::EINVAL), "an unknown flag");
        assert_eq!(range.map(is_netmap), [true; 3], "an error closes nothing");
        assert_eq!(close_range(middle, middle, 0), 0);
        assert_eq!(range.map(is_netmap), [true, false, true]);
        closefrom(range[0]);
        assert_eq!(range.map(is_netmap), [false; 3]);
    }
}

unsafe extern "C" {
    fn close_range(first: u32, last: u32, flags: i32) -> i32;
}

#[test]
fn opens_and_closes_of_many_threads_do_not_mix() {
    if !is_preloaded("descriptors::opens_and_closes_of_many_threads_do_not_mix") {
        return;
    }
    let shared = open(0);
    let fd = shared.as_raw_fd();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let own = open(0);
                    // SAFETY: the shared descriptor stays open meanwhile.
                    let copy = new(unsafe { libc::dup(fd) });
                    let (reader, _writer) = pipe();
                    assert!(is_netmap(own.as_raw_fd()) && is_netmap(copy.as_raw_fd()));
                    assert!(!is_netmap(reader.as_raw_fd()));
                }
            });
        }
    });
    assert!(is_netmap(fd));
}

#[test]
fn a_number_that_dup2_replaces_leads_to_a_file_all_the_time() {
    if !is_preloaded("descriptors::a_number_that_dup2_replaces_leads_to_a_file_all_the_time") {
        return;
    }
    let replaced = open(0);
    let (to, done) = (replaced.as_raw_fd(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let uses = scope.spawn(|| {
            let mut leads = true;
            while leads && !done.load(Ordering::Relaxed) {
                leads = is_netmap(to);
            }
            leads
        });
        for _ in 0..2000 {
            // SAFETY: descriptors of this test.
            assert_eq!(unsafe { libc::dup2(open(0).as_raw_fd(), to) }, to);
        }
        done.store(true, Ordering::Relaxed);
        assert!(uses.join().unwrap());
    });
}

#[test]
fn the_engine_s_descriptors_leave_the_numbers_of_closed_standard_streams_free() {
    let test =
        "descriptors::the_engine_s_descriptors_leave_the_numbers_of_closed_standard_streams_free";
    if !is_preloaded_by_both_hosts(test) {
        return;
    }
    let copy = |fd| {
        // SAFETY: makes a new descriptor.
        new(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 10) })
    };
    let before = [0, 1, 2].map(copy);
    for fd in 0..3 {
        // SAFETY: this test is alone in its process, and reopens them.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
    let registered = Port::try_register("vale1:a");
    // The program's own has the first one.
    let own = registered.as_ref().map_or(-1, Port::fd);
    let mut sleeps = libc::pollfd { fd: own, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry. Nothing is sent: the thread sleeps until the time is over.
    let slept = unsafe { libc::poll(&raw mut sleeps, 1, 1) };
    let free = [1, 2].map(|fd| {
        // SAFETY: the command has no argument.
        Errno::result(unsafe { libc::fcntl(fd, libc::F_GETFD) })
    });
    for (fd, before) in before.iter().enumerate().skip(1) {
        // SAFETY: descriptors of this test.
        unsafe { libc::dup2(before.as_raw_fd(), fd as RawFd) };
    }
    assert!(registered.is_ok());
    assert_eq!((own, slept, free), (0, 0, [Err(Errno::EBADF); 2]));
}
