//! Forks of a program whose ports a server has: parent and child both go on with them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use crate::forks::{ends_well, in_child};
use crate::port::{Port, frame};
use crate::program::{is_netmap, is_preloaded_with_server, open};

const PORT_INFO: u16 = 2;

fn passes(from: &Port, to: &Port, mark: u8) -> bool {
    from.send(&frame(mark));
    to.rxsync() == Ok(()) && to.received() == [mark]
}

#[test]
fn parent_and_child_use_a_port_one_after_the_other() {
    if !is_preloaded_with_server("shared_forks::parent_and_child_use_a_port_one_after_the_other") {
        return;
    }
    let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
    for mark in 0..3 {
        ends_well(in_child(|| passes(&one, &two, 10 + mark)));
        assert!(passes(&two, &one, mark), "the child has ended");
        // SAFETY: the child closes its own copy.
        ends_well(in_child(|| unsafe { libc::close(one.fd()) } == 0));
        assert!(passes(&one, &two, mark), "the child has closed it");
    }
}

#[test]
fn parent_and_child_make_calls_and_requests_at_the_same_time() {
    if !is_preloaded_with_server(
        "shared_forks::parent_and_child_make_calls_and_requests_at_the_same_time",
    ) {
        return;
    }
    let port = Port::register("vale1:a");
    let works = || {
        (0..500).all(|_| {
            port.rxsync() == Ok(())
                && port.txsync() == Ok(())
                && port.request_again(PORT_INFO, "vale1:a") == Ok(())
        })
    };
    let children = [(); 3].map(|()| in_child(works));
    assert!(works());
    children.into_iter().for_each(ends_well);
}

#[test]
fn a_child_goes_on_after_its_parent_has_closed_the_port() {
    if !is_preloaded_with_server(
        "shared_forks::a_child_goes_on_after_its_parent_has_closed_the_port",
    ) {
        return;
    }
    let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
    let (closed, close) = crate::program::pipe();
    let child = in_child(|| nix::unistd::read(&closed, &mut [0]) == Ok(1) && passes(&one, &two, 1));
    drop((one.file, two.file));
    nix::unistd::write(&close, b"x").unwrap();
    ends_well(child);
}

#[test]
fn a_child_in_another_pid_namespace_has_an_error_and_the_parent_goes_on() {
    let test = "shared_forks::a_child_in_another_pid_namespace_has_an_error_and_the_parent_goes_on";
    if !is_preloaded_with_server(test) {
        return;
    }
    let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
    if unshare(CloneFlags::CLONE_NEWPID).is_err() {
        eprintln!("skipped: needs CAP_SYS_ADMIN; get it by sudo");
        return;
    }
    // Its thread number may be one of the parent's.
    ends_well(in_child(|| one.rxsync() == Err(Errno::EXDEV) && one.txsync() == Err(Errno::EXDEV)));
    assert!(passes(&one, &two, 1));
}

#[test]
fn a_child_that_closes_all_leaves_ports_that_are_opened_during_its_fork() {
    if !is_preloaded_with_server(
        "shared_forks::a_child_that_closes_all_leaves_ports_that_are_opened_during_its_fork",
    ) {
        return;
    }
    let _port = Port::register("vale1:a");
    for round in 0..400 {
        let (opened, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let opens = scope.spawn(|| {
                let mut files = Vec::new();
                while !done.load(Ordering::Relaxed) && files.len() < 20 {
                    files.push(open(0));
                    opened.store(files.len(), Ordering::Relaxed);
                }
                files
            });
            while opened.load(Ordering::Relaxed) < 3 {
                std::hint::spin_loop();
            }
            let child = in_child(|| {
                let mut all = (3..200).filter(|fd| is_netmap(*fd));
                // SAFETY: the child closes its own copies.
                all.all(|fd| unsafe { libc::close(fd) } == 0)
            });
            done.store(true, Ordering::Relaxed);
            ends_well(child);
            for (at, file) in opens.join().unwrap().iter().enumerate() {
                let asked = Port::request_with(file, PORT_INFO, "vale1:a");
                assert_eq!(asked, Ok(()), "file {at}, round {round}");
            }
        });
    }
}
