//! Processes that a program with an open port starts.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use sluicegate::link::Shape;

use crate::exits::interrupt_lines;
use crate::port::{NIOCRXSYNC, Port, frame};
use crate::program::{
    again, end_in, has_library, is_netmap, is_preloaded, is_preloaded_by_both_hosts, open, pipe,
};
use crate::scratch::lab_of;

/// Runs a function in a forked child, which exits as programs do, with 0 if the function returns true.
pub fn in_child(run: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the child runs only this function. No other thread of the test holds a lock that it needs.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            end_in(60);
            let well = run();
            // SAFETY: ends the process.
            unsafe { libc::exit(i32::from(!well)) }
        }
    }
}

pub fn ends_well(child: Pid) {
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
}

/// Waits for the other process.
fn wait_for(reader: &OwnedFd) {
    assert_eq!(nix::unistd::read(reader, &mut [0]), Ok(1));
}

fn tell(writer: &OwnedFd) {
    assert_eq!(nix::unistd::write(writer, b"x"), Ok(1));
}

fn passes(from: &Port, to: &Port, mark: u8) -> bool {
    from.send(&frame(mark));
    to.rxsync() == Ok(()) && to.received() == [mark]
}

#[test]
fn a_child_that_does_not_use_a_port_leaves_it_to_its_parent() {
    if !is_preloaded("forks::a_child_that_does_not_use_a_port_leaves_it_to_its_parent") {
        return;
    }
    let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
    ends_well(in_child(|| true));
    assert!(passes(&one, &two, 1), "it has ended");
    // SAFETY: the child closes its own copy.
    let closes = || unsafe { libc::close(one.fd()) } == 0 && !is_netmap(one.fd());
    ends_well(in_child(closes));
    assert!(passes(&one, &two, 2), "it has closed the port");
    let status = std::process::Command::new("true").env_remove("LD_PRELOAD").status();
    assert!(status.unwrap().success());
    assert!(passes(&one, &two, 3), "it runs another program");
}

#[test]
fn a_child_goes_on_with_a_port_that_its_parent_no_longer_uses() {
    if !is_preloaded("forks::a_child_goes_on_with_a_port_that_its_parent_no_longer_uses") {
        return;
    }
    let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
    assert!(passes(&one, &two, 1));
    ends_well(in_child(|| passes(&one, &two, 2)));
    assert_eq!(one.txsync(), Err(Errno::EBUSY), "the child has it");
    let mut list = [libc::pollfd { fd: one.fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: a list of one.
    assert_eq!(unsafe { libc::poll(list.as_mut_ptr(), 1, 60_000) }, 1);
    assert_eq!(list[0].revents, libc::POLLERR);
}

#[test]
fn the_process_that_uses_a_port_first_keeps_it() {
    if !is_preloaded("forks::the_process_that_uses_a_port_first_keeps_it") {
        return;
    }
    let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
    let (reader, writer) = pipe();
    let child = in_child(|| {
        wait_for(&reader);
        one.txsync() == Err(Errno::EBUSY) && {
            // A port of its own, in memory of its own.
            let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
            passes(&one, &two, 2)
        }
    });
    assert!(passes(&one, &two, 1));
    tell(&writer);
    ends_well(child);
    assert!(passes(&one, &two, 3));
}

#[test]
fn a_child_goes_on_with_an_interface_but_not_with_the_threads_of_live_frames() {
    let test = "forks::a_child_goes_on_with_an_interface_but_not_with_the_threads_of_live_frames";
    if has_library() {
        let port = Port::register("left0");
        let expected = match std::env::var("SLUICE_NETMAP_BACKEND").as_deref() {
            Ok("live") => Err(Errno::EBUSY),
            _ => Ok(()),
        };
        let fd = port.fd();
        // SAFETY: the child closes its own copy.
        let closes = || unsafe { libc::close(fd) } == 0;
        ends_well(in_child(|| {
            let sent = port.txsync();
            let opened = Port::register("vale1:a").txsync();
            (sent, opened) == (expected, Ok(())) && closes()
        }));
        assert_eq!(
            port.txsync().is_err(),
            expected.is_ok(),
            "the parent, where its child has not the rings"
        );
        return;
    }
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    for backend in ["xdp", "live"] {
        let mut program = again(test);
        program.env("SLUICE_NETMAP_BACKEND", backend).stderr(Stdio::piped());
        let ended = lab.spawn("left", &mut program).unwrap().wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{backend}: {text}");
        let remedy = "threads of its parent serve; open the port after the fork";
        assert_eq!(text.contains(remedy), backend == "live", "{text}");
    }
}

#[test]
fn ports_stay_with_a_process_that_has_attached_a_card_to_a_switch() {
    let test = "forks::ports_stay_with_a_process_that_has_attached_a_card_to_a_switch";
    if has_library() {
        let port = Port::register("vale1:a");
        Port::attach("vale1:left0").unwrap();
        ends_well(in_child(|| {
            let sent = port.txsync();
            let opened = Port::register("vale1:a").txsync();
            (sent, opened) == (Err(Errno::EBUSY), Ok(()))
        }));
        assert_eq!(port.txsync(), Ok(()), "the parent has it");
        return;
    }
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    for backend in ["xdp", "live"] {
        let mut program = again(test);
        program.env("SLUICE_NETMAP_BACKEND", backend).stderr(Stdio::piped());
        let ended = lab.spawn("left", &mut program).unwrap().wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{backend}: {text}");
    }
}

/// The ends of pipes that a signal handler writes to and reads from.
static HANDLER_PIPES: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// Stops the thread in the middle of its call, the first time.
extern "C" fn stop(_: libc::c_int) {
    let [entered, released] = HANDLER_PIPES.each_ref().map(|it| it.swap(-1, Ordering::AcqRel));
    if entered >= 0 {
        let mut byte = [0_u8];
        // SAFETY: descriptors of the test, and a buffer of one byte.
        unsafe {
            libc::write(entered, byte.as_ptr().cast(), 1);
            libc::read(released, byte.as_mut_ptr().cast(), 1);
        }
    }
}

#[test]
fn ports_stay_with_a_process_that_forks_while_another_thread_is_in_a_call() {
    let test = "forks::ports_stay_with_a_process_that_forks_while_another_thread_is_in_a_call";
    if !is_preloaded(test) {
        return;
    }
    let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
    let (entered, release) = (pipe(), pipe());
    for (at, fd) in [&entered.1, &release.0].into_iter().enumerate() {
        HANDLER_PIPES[at].store(fd.as_raw_fd(), Ordering::Release);
    }
    std::thread::scope(|scope| {
        let registers = scope.spawn(|| {
            interrupt_lines(stop);
            // Prints the reason, with the engine's lock.
            Port::try_register("nosuch0").err()
        });
        wait_for(&entered.0);
        let child = in_child(|| {
            let sent = one.txsync();
            // SAFETY: the child closes its own copy.
            let closed = unsafe { libc::close(two.fd()) };
            let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
            (sent, closed) == (Err(Errno::EBUSY), 0) && passes(&one, &two, 1)
        });
        let ended = waitpid(child, None);
        tell(&release.1);
        assert_eq!(ended, Ok(WaitStatus::Exited(child, 0)));
        assert_eq!(registers.join().unwrap(), Some(Errno::ENXIO));
    });
    assert!(passes(&one, &two, 2), "the parent has them");
    ends_well(in_child(|| passes(&one, &two, 3)));
}

#[test]
fn a_child_waits_with_an_epoll_instance_that_a_thread_of_its_parent_waits_with() {
    let test = "forks::a_child_waits_with_an_epoll_instance_that_a_thread_of_its_parent_waits_with";
    if !is_preloaded(test) {
        return;
    }
    let port = Port::register("vale1:a");
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    epoll.add(&port.file, EpollEvent::new(EpollFlags::EPOLLIN, 7)).unwrap();
    ends_well(in_child(|| port.txsync() == Ok(())));
    let (entered, release) = (pipe(), pipe());
    for (at, fd) in [&entered.1, &release.0].into_iter().enumerate() {
        HANDLER_PIPES[at].store(fd.as_raw_fd(), Ordering::Release);
    }
    let finds_error = || {
        let mut events = [EpollEvent::empty()];
        epoll.wait(&mut events, EpollTimeout::ZERO) == Ok(1)
            && events[0].events() == EpollFlags::EPOLLERR
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            // The wait prints that the first child has the port.
            interrupt_lines(stop);
            finds_error()
        });
        wait_for(&entered.0);
        let child = in_child(finds_error);
        let ended = waitpid(child, None);
        tell(&release.1);
        assert_eq!(ended, Ok(WaitStatus::Exited(child, 0)));
        assert!(waits.join().unwrap());
    });
}

#[test]
fn a_process_may_fork_while_its_threads_change_and_wait_with_an_epoll_instance() {
    let test = "forks::a_process_may_fork_while_its_threads_change_and_wait_with_an_epoll_instance";
    if !is_preloaded_by_both_hosts(test) {
        return;
    }
    let port = Port::register("vale1:a");
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    epoll.add(&port.file, EpollEvent::new(EpollFlags::EPOLLOUT, 7)).unwrap();
    let waits = || epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO) == Ok(1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let mut event = EpollEvent::new(EpollFlags::EPOLLOUT, 7);
                    epoll.modify(&port.file, &mut event).unwrap();
                    assert!(waits());
                }
            });
        }
        let well = (0..200).all(|_| {
            let child = in_child(waits);
            waitpid(child, None) == Ok(WaitStatus::Exited(child, 0))
        });
        done.store(true, Ordering::Relaxed);
        assert!(well);
    });
}

#[test]
fn threads_that_use_a_file_first_after_a_fork_do_not_refuse_each_other() {
    if !is_preloaded("forks::threads_that_use_a_file_first_after_a_fork_do_not_refuse_each_other") {
        return;
    }
    let files = [(); 200].map(|()| open(0));
    for _ in 0..5 {
        ends_well(in_child(|| true));
        let arrived = AtomicUsize::new(0);
        let uses = || {
            let mut refused = 0;
            for (at, file) in files.iter().enumerate() {
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < 2 * (at + 1) {
                    std::hint::spin_loop();
                }
                // SAFETY: the request has no argument.
                let result = unsafe { libc::ioctl(file.as_raw_fd(), NIOCRXSYNC, 0) };
                refused += usize::from(Errno::result(result) == Err(Errno::EBUSY));
            }
            refused
        };
        let refused = std::thread::scope(|scope| {
            [(); 2].map(|()| scope.spawn(uses)).map(|it| it.join().unwrap())
        });
        assert_eq!(refused, [0, 0]);
    }
}

extern "C" fn close_descriptor(fd: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the child of vfork closes its own copy.
    unsafe { libc::close(fd as RawFd) }
}

#[test]
fn a_child_of_vfork_closes_only_its_own_descriptors() {
    if !is_preloaded("forks::a_child_of_vfork_closes_only_its_own_descriptors") {
        return;
    }
    let file = crate::program::open(0);
    let mut stack = vec![0_u128; 4096];
    // SAFETY: the child has a stack of its own, and the parent waits until it has ended.
    let child = unsafe {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let top = stack.as_mut_ptr().add(stack.len());
        libc::clone(close_descriptor, top.cast(), flags, file.as_raw_fd() as *mut _)
    };
    ends_well(Pid::from_raw(child));
    assert!(is_netmap(file.as_raw_fd()));
}
