//! Hands a classic BPF program to a socket.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Instruction;

/// Makes the program the filter of a socket. The change is atomic for the packets that arrive.
pub fn to_socket(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    to_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Sets a socket option that takes a `struct sock_fprog`.
pub fn to_option(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    program: &[Instruction],
) -> io::Result<()> {
    let fprog = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        filter: program.as_ptr().cast_mut().cast(),
    };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: Instruction has the layout of struct sock_filter; the kernel reads `len` of them from
    // `program`, which is live, and writes nothing.
    let status = unsafe { libc::setsockopt(fd, level, option, (&raw const fprog).cast(), size) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
