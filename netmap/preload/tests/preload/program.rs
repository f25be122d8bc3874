//! Runs tests under the library, and calls libc as their program does.

use std::ffi::CStr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::Command;

use nix::errno::Errno;
use sluicegate_netmap::engine::EngineOptions;

use crate::test_server::TestServer;

/// netmap's device.
pub const DEVICE: &CStr = c"/dev/netmap";

/// The library that cargo has built for this test: beside it.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libsluice_netmap.so");
    assert!(library.exists(), "{}", library.display());
    library
}

/// Runs a test in a process of its own that has loaded the library. Returns true in that process; false in the
/// first one, when the other has passed.
pub fn is_preloaded(test: &str) -> bool {
    if has_library() {
        return true;
    }
    passes(test, &mut again(test));
    false
}

/// As [`is_preloaded`], with a server.
pub fn is_preloaded_with_server(test: &str) -> bool {
    if has_library() {
        return true;
    }
    let server = TestServer::new(EngineOptions::default());
    passes(test, again(test).env("SLUICE_NETMAP_SERVER", server.socket()));
    false
}

/// As [`is_preloaded`], without and with a server.
pub fn is_preloaded_by_both_hosts(test: &str) -> bool {
    is_preloaded(test) || is_preloaded_with_server(test)
}

fn passes(test: &str, command: &mut Command) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
}

/// Returns true in a process that has loaded the library. A signal ends it if it waits for something for too long.
pub fn has_library() -> bool {
    let has_library = std::env::var_os("LD_PRELOAD").is_some_and(|it| *it == *library());
    if has_library {
        end_in(120);
    }
    has_library
}

/// Makes a signal end this process after some seconds. A forked child has no such limit before it calls this.
pub fn end_in(seconds: u32) {
    // SAFETY: the call has no memory of this program.
    unsafe { libc::alarm(seconds) };
}

/// A command that runs a test in a process that has loaded the library.
pub fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env("LD_PRELOAD", library()).env("SLUICE_NETMAP_SERVER", "off");
    command
}

/// Opens netmap's device, with flags.
pub fn open(flags: i32) -> OwnedFd {
    try_open(flags).unwrap()
}

/// Opens netmap's device, with flags, or returns the error.
pub fn try_open(flags: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: a path with a NUL byte.
    let fd = Errno::result(unsafe { libc::open(DEVICE.as_ptr(), libc::O_RDWR | flags) })?;
    // SAFETY: the new descriptor is ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns true if a descriptor is one of netmap's device: the request is netmap's, and needs a registered port.
pub fn is_netmap(fd: RawFd) -> bool {
    const NIOCRXSYNC: libc::c_ulong = 0x6995;
    // SAFETY: the request has no argument.
    let result = Errno::result(unsafe { libc::ioctl(fd, NIOCRXSYNC, 0) });
    match result {
        Ok(_) | Err(Errno::ENXIO) => true,
        Err(Errno::EBADF | Errno::ENOTTY | Errno::EINVAL) => false,
        Err(other) => panic!("{other}"),
    }
}

/// A pipe: the end to read, and the end to write.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    nix::unistd::pipe().unwrap()
}
