//! The memory of a program that makes requests: pieces of bytes at any addresses.

use std::cell::RefCell;
use std::collections::BTreeMap;

use nix::errno::Errno;
use sluicegate_netmap::abi::CallerMemory;

/// Pieces of memory by their addresses; nothing else is readable or writable.
#[derive(Debug, Default)]
pub struct Memory(RefCell<BTreeMap<u64, Vec<u8>>>);

impl Memory {
    /// Adds a piece.
    pub fn place(&self, address: u64, bytes: &[u8]) {
        self.0.borrow_mut().insert(address, bytes.to_vec());
    }

    /// Returns the piece that was placed at an address.
    pub fn piece(&self, address: u64) -> Vec<u8> {
        self.0.borrow()[&address].clone()
    }

    /// Calls `take` with the bytes of one piece.
    fn within<T>(
        &self,
        address: u64,
        count: usize,
        take: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, Errno> {
        let mut pieces = self.0.borrow_mut();
        let (start, piece) = pieces.range_mut(..=address).next_back().ok_or(Errno::EFAULT)?;
        let from = usize::try_from(address - start).map_err(|_| Errno::EFAULT)?;
        let bytes = piece.get_mut(from..).and_then(|rest| rest.get_mut(..count));
        bytes.map(take).ok_or(Errno::EFAULT)
    }
}

impl CallerMemory for Memory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.within(address, bytes.len(), |piece| bytes.copy_from_slice(piece))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.within(address, bytes.len(), |piece| piece.copy_from_slice(bytes))
    }
}
