//! The functions that this library defines in place of libc's. Their names and types are libc's
//! (glibc's headers); a variadic function takes the arguments that its calls can have: callers of
//! variadic functions pass them in the same registers (x86-64 and AArch64 on Linux).
//!
//! They may be cancelled where libc's may, so they unwind.

mod descriptors;
mod device;
mod epoll;
mod messages;
mod poll;
mod select;

use std::ffi::c_int;

use nix::errno::Errno;

/// Returns a result as libc does: -1 and errno for an error.
fn answer(result: Result<impl TryInto<c_int>, Errno>) -> c_int {
    match result.map(|value| value.try_into().unwrap_or(c_int::MAX)) {
        Ok(value) => value,
        Err(errno) => {
            errno.set();
            -1
        }
    }
}
