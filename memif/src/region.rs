//! Memory that both ends have: the client gives it, as files.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::stat::fstat;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use super::message::ProtocolError;
use sluicegate_base::error::Result;
use sluicegate_base::memory::Mmap;

/// As many regions a client may have: DPDK has one for each part of its heap.
pub(super) const MAX_REGIONS: u16 = 256;
/// And as many bytes in them together.
const MAX_BYTES: u64 = 1 << 40;

/// A region, as one end maps it.
#[derive(Debug)]
pub(super) struct Region {
    map: Mmap,
    /// As many as the peer said, maybe fewer than are mapped.
    bytes: u64,
}

/// All regions of a client: one where the client is ours.
#[derive(Debug, Default)]
pub(super) struct Regions(Vec<Region>);

impl Region {
    /// What a client says is memory of so many bytes. It has to be ordinary memory whose size is
    /// sealed: who could make it smaller could kill this process, by a page that is no longer there
    /// when it is read (SIGBUS). With `trusts` it is taken all the same.
    fn of_peer(file: OwnedFd, bytes: u64, trusts: bool) -> Result<Self, ProtocolError> {
        let breach = |reason: &str| ProtocolError(format!("memory region: {reason}"));
        if bytes == 0 || bytes > MAX_BYTES {
            return Err(breach("its size makes no sense"));
        }
        if !trusts {
            let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
            if !SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK) {
                return Err(breach("not sealed against shrinking (F_SEAL_SHRINK)"));
            }
            // Huge pages can run out later, which kills, too.
            if !fstatfs(&file).is_ok_and(|it| it.filesystem_type() == TMPFS_MAGIC) {
                return Err(breach("not ordinary memory (memfd)"));
            }
        }
        match fstat(&file) {
            Ok(it) if it.st_size.cast_unsigned() >= bytes => {}
            _ => return Err(breach("smaller than was said")),
        }
        let map = Mmap::shared(file.as_fd(), bytes as usize)
            .map_err(|error| breach(&format!("cannot be mapped: {error}")))?;
        Ok(Self { map, bytes })
    }

    /// Where bytes begin; None if they do not lie in it.
    #[inline]
    fn locate(&self, offset: u32, bytes: u32) -> Option<NonNull<u8>> {
        let end = u64::from(offset) + u64::from(bytes);
        // Nothing at the very end has no address of its own.
        (end <= self.bytes && u64::from(offset) < self.bytes).then(|| self.map.at(offset as usize))
    }
}

impl Regions {
    /// A client's: one region of new memory, and the file to share it by.
    pub(super) fn own(bytes: usize) -> Result<(OwnedFd, Self)> {
        let (file, map) = Mmap::memfd(c"sluice-memif", bytes, false)?;
        let bytes = map.bytes() as u64;
        Ok((file, Self(vec![Region { map, bytes }])))
    }

    /// Adds the next region.
    pub(super) fn add(
        &mut self,
        index: u16,
        file: OwnedFd,
        bytes: u64,
        trusts: bool,
    ) -> Result<(), ProtocolError> {
        if usize::from(index) != self.0.len() || index >= MAX_REGIONS {
            return Err(ProtocolError(format!("region {index} out of turn")));
        }
        let all: u64 = self.0.iter().map(|region| region.bytes).sum();
        if all.saturating_add(bytes) > MAX_BYTES {
            return Err(ProtocolError("too much memory in all regions".into()));
        }
        self.0.push(Region::of_peer(file, bytes, trusts)?);
        Ok(())
    }

    /// Where bytes of a region begin; None if there are none such.
    #[inline]
    pub(super) fn locate(&self, region: u16, offset: u32, bytes: u32) -> Option<NonNull<u8>> {
        self.0.get(usize::from(region))?.locate(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::ftruncate;

    use super::*;

    fn memfd(bytes: i64, seals: SealFlag) -> OwnedFd {
        let file = memfd_create(c"peer", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    }

    #[test]
    fn memory_that_could_kill_us_is_refused() {
        let sealed = SealFlag::F_SEAL_SHRINK;
        let file = || tempfile::tempfile().unwrap().into();
        let rows: [(OwnedFd, u64, bool, Result<(), &str>); 9] = [
            (memfd(8192, sealed), 8192, false, Ok(())),
            (memfd(8192, sealed), 5000, false, Ok(())),
            (memfd(8192, sealed), 8193, false, Err("smaller than was said")),
            (memfd(8192, SealFlag::empty()), 8192, false, Err("not sealed")),
            (memfd(8192, SealFlag::empty()), 8192, true, Ok(())),
            (memfd(8192, sealed | SealFlag::F_SEAL_WRITE), 8192, false, Err("cannot be mapped")),
            (memfd(8192, sealed), 0, false, Err("makes no sense")),
            (memfd(8192, sealed), u64::MAX, true, Err("too much memory")),
            (file(), 4096, false, Err("not sealed")),
        ];
        for (file, bytes, trusts, expected) in rows {
            let mapped = Regions::default().add(0, file, bytes, trusts);
            match (mapped, expected) {
                (Ok(()), Ok(())) => {}
                (Err(ProtocolError(said)), Err(part)) => assert!(said.contains(part), "{said}"),
                (got, expected) => panic!("{got:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn regions_come_in_turn_and_not_without_end() {
        let mut regions = Regions::default();
        let add = |regions: &mut Regions, index, bytes| {
            regions.add(index, memfd(4096, SealFlag::F_SEAL_SHRINK), bytes, false)
        };
        assert!(add(&mut regions, 1, 4096).is_err());
        for index in 0..MAX_REGIONS {
            add(&mut regions, index, 4096).unwrap();
        }
        assert!(add(&mut regions, MAX_REGIONS, 4096).is_err());
        assert!(add(&mut regions, 0, 4096).is_err());
    }

    #[test]
    fn bytes_are_found_where_they_are_and_nowhere_else() {
        let (_, regions) = Regions::own(4096).unwrap();
        for (region, offset, bytes, found, why) in [
            (0, 0, 4096, true, "all of it"),
            (0, 0, 4097, false, "one more"),
            (0, 4095, 1, true, "the last"),
            (0, 4096, 0, false, "behind the last"),
            (0, u32::MAX, u32::MAX, false, "an overflow"),
            (1, 0, 1, false, "no such region"),
        ] {
            assert_eq!(regions.locate(region, offset, bytes).is_some(), found, "{why}");
        }
    }
}
