//! What programs, maps and links have in common: how the kernel answers, what it says of an object,
//! and files in which an object is kept.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Once;

/// Keeps libbpf from printing to the user's terminal; its errors come back as values.
pub(crate) fn silence_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(None);
    });
}

/// A negative answer is an errno.
pub(super) fn checked(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(answer) }
}

/// An answer that is a new file descriptor, or an errno.
pub(super) fn opened(answer: i32) -> io::Result<OwnedFd> {
    let fd = checked(answer)?;
    // SAFETY: the kernel just made this file descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A name, which ends at the first NUL, or is as long as its field.
pub(super) fn text(characters: &[libc::c_char]) -> String {
    let bytes = characters.iter().map(|c| c.cast_unsigned()).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// What the kernel says of an object behind a file descriptor.
///
/// # Safety
/// `T` is one of the kernel's info structures (linux/bpf.h); its pointers are null or lead to
/// live buffers of the sizes it states.
pub(super) unsafe fn info<T>(fd: BorrowedFd<'_>, mut answer: T) -> io::Result<T> {
    let mut bytes = size_of::<T>() as u32;
    // SAFETY: the kernel writes at most `bytes`, and through pointers as the caller has proved.
    let status = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            fd.as_raw_fd(),
            (&raw mut answer).cast::<c_void>(),
            &raw mut bytes,
        )
    };
    checked(status).map(|_| answer)
}

/// A hold on an object that is kept in a BPF file system.
pub(crate) fn kept(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: `path` is terminated and outlives the call.
    opened(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
}

/// Keeps an object in a BPF file system, whoever holds it.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &CString) -> io::Result<()> {
    // SAFETY: `path` is terminated and outlives the call.
    checked(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) }).map(|_| ())
}
