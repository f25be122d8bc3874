//! The memory of the program that makes a request.

use nix::errno::Errno;

/// Reads and writes the memory of the program that makes a request, by its addresses, as the kernel's
/// `copy_from_user` and `copy_to_user` do.
///
/// An implementation must accept any address and length. It may be asked for the same bytes again and need
/// not return the same ones: another thread of the program may write them.
pub trait CallerMemory {
    /// Fills `bytes` from `address` on.
    ///
    /// # Errors
    /// EFAULT if the program has no readable memory there.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno>;

    /// Writes `bytes` from `address` on.
    ///
    /// # Errors
    /// EFAULT if the program has no writable memory there.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;
}
