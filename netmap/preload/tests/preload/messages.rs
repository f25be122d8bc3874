//! Lines on stderr.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};

use crate::forks::{ends_well, in_child};
use crate::port::Port;
use crate::program::{again, has_library, is_preloaded, pipe, try_open};

const SYNC_KLOOP_START: u16 = 13;

#[test]
fn the_cause_of_an_error_is_one_line() {
    if has_library() {
        assert_eq!(Port::request(SYNC_KLOOP_START, "vale1:a"), Err(Errno::EOPNOTSUPP));
        assert_eq!(Port::try_register("nosuch0").err(), Some(Errno::ENXIO));
        return;
    }
    let unsupported = "sluice netmap: NIOCCTRL SYNC_KLOOP_START vale1:a: not supported here";
    for (level, lines) in [("off", 0), ("error", 2), ("", 2), ("debug", 4)] {
        let mut program = again("messages::the_cause_of_an_error_is_one_line");
        let output = program.env("SLUICE_NETMAP_LOG", level).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let ours: Vec<&str> = text.lines().filter(|it| it.starts_with("sluice netmap: ")).collect();
        assert_eq!(ours.len(), lines, "{level}: {ours:#?}");
        assert_eq!(ours.iter().any(|it| it.starts_with(unsupported)), lines > 0, "{ours:#?}");
    }
}

#[test]
fn an_invalid_variable_is_an_error_of_open() {
    if has_library() {
        assert_eq!(try_open(0).err(), Some(Errno::EINVAL));
        return;
    }
    for (variable, bytes, valid) in [
        ("SLUICE_NETMAP_BACKEND", &b"magic"[..], "xdp, live or packet"),
        ("SLUICE_NETMAP_LOG", b"loud", "off, error or debug"),
        ("SLUICE_NETMAP_BACKEND", b"xdp\xff", "xdp, live or packet"),
    ] {
        let mut program = again("messages::an_invalid_variable_is_an_error_of_open");
        let output = program.env(variable, OsStr::from_bytes(bytes)).output().unwrap();
        let value = String::from_utf8_lossy(bytes);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(
            text.contains(&format!("{variable}={value} is invalid; set it to {valid}")),
            "{text}"
        );
    }
}

#[test]
fn a_filter_that_is_not_utf_8_is_an_error_of_a_port() {
    if has_library() {
        assert!(Port::try_register("lo").is_err());
        return;
    }
    let mut program = again("messages::a_filter_that_is_not_utf_8_is_an_error_of_a_port");
    program.env("SLUICE_NETMAP_FILTER", OsStr::from_bytes(b"udp port 9\xff"));
    // Its filter is compiled before anything that needs a privilege.
    let output = program.env("SLUICE_NETMAP_BACKEND", "packet").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("filter 'udp port 9\u{fffd}'"), "{text}");
}

#[test]
fn a_process_without_a_port_s_rings_prints_one_line() {
    if has_library() {
        let port = Port::register("vale1:a");
        let child = in_child(|| port.txsync() == Ok(()));
        ends_well(child);
        for _ in 0..100 {
            assert_eq!(port.txsync(), Err(Errno::EBUSY));
        }
        return;
    }
    let mut program = again("messages::a_process_without_a_port_s_rings_prints_one_line");
    let output = program.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("another process has used this descriptor").count(), 1, "{text}");
}

#[test]
fn a_line_that_nobody_can_read_raises_no_signal() {
    if !is_preloaded("messages::a_line_that_nobody_can_read_raises_no_signal") {
        return;
    }
    let (reader, writer) = pipe();
    drop(reader);
    // SAFETY: the default action, which ends the process, and descriptors of this test.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        assert_eq!(libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO), libc::STDERR_FILENO);
    }
    let fails = || assert_eq!(Port::try_register("nosuch0").err(), Some(Errno::ENXIO));
    fails();
    assert!(!SigSet::thread_get_mask().unwrap().contains(Signal::SIGPIPE), "the mask is restored");
    let signal = SigSet::from(Signal::SIGPIPE);
    signal.thread_block().unwrap();
    fails();
    let unblock = || signal.thread_swap_mask(SigmaskHow::SIG_UNBLOCK).unwrap();
    unblock();
    // One from before is left to the program.
    signal.thread_block().unwrap();
    raise(Signal::SIGPIPE).unwrap();
    fails();
    assert_eq!(signal.wait(), Ok(Signal::SIGPIPE));
}
