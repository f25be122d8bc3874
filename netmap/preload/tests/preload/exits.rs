//! The end of a program.

use std::os::fd::{AsRawFd, IntoRawFd};
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sluicegate::link::{self, Shape};

use crate::port::{Port, frame};
use crate::program::{again, has_library, is_preloaded_with_server, pipe};
use crate::scratch::lab_of;

extern "C" fn exit_well(_: libc::c_int) {
    // SAFETY: this is the test: a handler that exits.
    unsafe { libc::exit(0) }
}

/// netmap's request for a port's information.
const PORT_INFO: u16 = 2;

/// The receiver of a descriptor's SIGIO, as in fcntl.h.
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

#[repr(C)]
struct Owner {
    kind: libc::c_int,
    thread: libc::pid_t,
}

/// Makes this thread run a handler while it prints a line: stderr is a pipe, and SIGIO comes with a byte in it.
pub fn interrupt_lines(handler: extern "C" fn(libc::c_int)) {
    let (reader, writer) = pipe();
    // It stays open, so that a line raises no other signal.
    let reader = reader.into_raw_fd();
    // SAFETY: a handler, descriptors of this test, and an owner that lives as long as the call.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = handler as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGIO, &raw const action, std::ptr::null_mut()), 0);
        let owner = Owner { kind: F_OWNER_TID, thread: libc::gettid() };
        assert_eq!(libc::fcntl(reader, F_SETOWN_EX, &raw const owner), 0);
        assert_eq!(libc::fcntl(reader, libc::F_SETFL, libc::O_ASYNC), 0);
        assert_eq!(libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO), libc::STDERR_FILENO);
    }
}

#[test]
fn a_signal_handler_may_exit_in_the_middle_of_a_registration() {
    if has_library() {
        let _open = Port::register("vale1:a");
        interrupt_lines(exit_well);
        // Prints the reason, with the engine's lock.
        let _ = Port::try_register("nosuch0");
        // SAFETY: no signal has ended the process, and an exit must not look like one.
        unsafe { libc::_exit(1) }
    }
    let test = "exits::a_signal_handler_may_exit_in_the_middle_of_a_registration";
    let mut program = again(test).stdout(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        match program.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            None => {
                program.kill().unwrap();
                program.wait().unwrap();
                panic!("the program waits for itself");
            }
        }
    };
    assert!(status.success(), "{status}");
}

static PORT: OnceLock<Port> = OnceLock::new();
static ANSWER: AtomicI32 = AtomicI32::new(0);

/// Makes a request of the port in whose request the thread is.
extern "C" fn request_in_handler(_: libc::c_int) {
    let answer = PORT.get().unwrap().request_again(PORT_INFO, "vale1:a");
    ANSWER.store(answer.map_or_else(|errno| errno as i32, |()| 0), Ordering::Relaxed);
}

#[test]
fn a_signal_handler_s_request_in_the_middle_of_another_of_its_port_is_refused() {
    let test = "exits::a_signal_handler_s_request_in_the_middle_of_another_of_its_port_is_refused";
    if !is_preloaded_with_server(test) {
        return;
    }
    let port = PORT.get_or_init(|| Port::register("vale1:a"));
    // The request prints the reason.
    interrupt_lines(request_in_handler);
    assert_eq!(port.request_again(PORT_INFO, "nosuch0"), Err(Errno::ENXIO));
    assert_eq!(ANSWER.load(Ordering::Relaxed), Errno::EAGAIN as i32);
    assert_eq!(port.request_again(PORT_INFO, "vale1:a"), Ok(()));
}

const PACKETS: u64 = 300;

#[test]
fn packets_that_a_program_has_synced_leave_although_it_exits() {
    if has_library() {
        let port = Port::register("left0");
        for _ in 0..PACKETS {
            assert!(port.tx().put(&frame(1)));
        }
        port.txsync().unwrap();
        std::process::exit(0);
    }
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let received =
        || link::interface(Some(&lab.netns("right")), "right0").unwrap().stats.rx_packets;
    let test = "exits::packets_that_a_program_has_synced_leave_although_it_exits";
    // Live frames leave some time after the sync.
    for backend in ["xdp", "live"] {
        let before = received();
        let mut program = again(test);
        program.env("SLUICE_NETMAP_BACKEND", backend);
        let ended = lab.spawn("left", &mut program).unwrap().wait_with_output().unwrap();
        assert!(ended.status.success(), "{backend}: {}", String::from_utf8_lossy(&ended.stderr));
        let start = Instant::now();
        while received() < before + PACKETS {
            let missing = before + PACKETS - received();
            assert!(start.elapsed() < Duration::from_secs(60), "{backend}: {missing} are missing");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
