//! The program's memory, copied by the kernel: an invalid address is EFAULT, not a crash.
#![allow(unsafe_code)]

use nix::errno::Errno;
use sluicegate_netmap::abi::CallerMemory;

/// The memory of this process.
pub struct OwnMemory;

impl CallerMemory for OwnMemory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
        // SAFETY: the kernel writes `bytes`, which are borrowed mutably, and checks the other address.
        let copied = unsafe { libc::process_vm_readv(own(), &local, 1, &remote, 1, 0) };
        whole(copied, bytes.len())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let local =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
        // SAFETY: the kernel reads `bytes`, and writes where the program's ioctl asked for it: to memory that
        // the program has given to this call.
        let copied = unsafe { libc::process_vm_writev(own(), &local, 1, &remote, 1, 0) };
        whole(copied, bytes.len())
    }
}

fn own() -> libc::pid_t {
    std::process::id() as libc::pid_t
}

/// Part of a copy is none, as for copy_from_user.
fn whole(copied: isize, bytes: usize) -> Result<(), Errno> {
    if usize::try_from(copied) == Ok(bytes) { Ok(()) } else { Err(Errno::EFAULT) }
}
