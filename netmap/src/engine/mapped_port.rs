//! A registered port as its program sees it, for a program that has the engine or a server's file in hand.

use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::NetmapFile;
use super::memory::RegionMemory;
use super::region::BUFFER_BYTES;
use crate::abi::PortName;
use crate::abi::bodies::Register;
use crate::abi::structures::{InterfaceHeader, RingHeader, Slot};

/// The numbers of the card's rings and of the host's.
const TX_RINGS: [usize; 2] =
    [offset_of!(InterfaceHeader, ni_tx_rings), offset_of!(InterfaceHeader, ni_host_tx_rings)];
const RX_RINGS: [usize; 2] =
    [offset_of!(InterfaceHeader, ni_rx_rings), offset_of!(InterfaceHeader, ni_host_rx_rings)];

/// A file with a registered port, and the mapped memory of its rings. Packets of one slot only.
#[derive(Debug)]
pub struct MappedPort<F> {
    file: F,
    memory: RegionMemory,
    header: usize,
}

impl<F: NetmapFile> MappedPort<F> {
    /// Registers a port by a file, and maps its memory.
    ///
    /// # Errors
    /// Those of [`NetmapFile::register`]; ENOMEM.
    pub fn register(file: F, port: &PortName, mut register: Register) -> Result<Self, Errno> {
        file.register(port, &mut register)?;
        let memory = RegionMemory::map(&file.region()?)?;
        let header = usize::try_from(register.offset).map_err(|_| Errno::EFAULT)?;
        Ok(Self { file, memory, header })
    }

    /// Returns the file.
    pub fn file(&self) -> &F {
        &self.file
    }

    /// Returns a transmit ring, if the file has it: those of the host follow those of the card.
    ///
    /// # Panics
    /// Every access to rings panics if a broken server makes it leave the memory.
    pub fn tx(&self, number: u32) -> Option<MappedRing<'_>> {
        let count = self.count(TX_RINGS);
        (number < count).then(|| self.ring(number))?
    }

    /// Returns a receive ring, if the file has it: those of the host follow those of the card.
    pub fn rx(&self, number: u32) -> Option<MappedRing<'_>> {
        let (before, count) = (self.count(TX_RINGS), self.count(RX_RINGS));
        (number < count).then(|| self.ring(before + number))?
    }

    fn count(&self, fields: [usize; 2]) -> u32 {
        fields.iter().map(|field| self.memory.load(self.header + field)).sum()
    }

    fn ring(&self, index: u32) -> Option<MappedRing<'_>> {
        let place = self.header + size_of::<InterfaceHeader>() + 8 * index as usize;
        let distance = load_distance(&self.memory, place);
        let start = self.header.wrapping_add_signed(distance);
        (distance != 0).then_some(MappedRing { memory: &self.memory, start })
    }

    /// Syncs the rings as poll(2) does. Without an event it sleeps for one, until `end` is readable or the time is
    /// over, or for a shorter time. Returns the events; none also before the time is over.
    ///
    /// # Errors
    /// Those of ppoll(2).
    pub fn poll(
        &self,
        events: PollFlags,
        end: BorrowedFd<'_>,
        limit: Duration,
    ) -> Result<PollFlags, Errno> {
        let ready = self.file.poll(events);
        if !ready.is_empty() {
            return Ok(ready);
        }
        let sources = self.file.wait(events);
        let ready = self.file.poll(events);
        if !ready.is_empty() {
            return Ok(ready);
        }
        let limit = sources.longest.map_or(limit, |longest| longest.min(limit));
        let mut fds: Vec<_> = sources.polled().collect();
        fds.push(PollFd::new(end, PollFlags::POLLIN));
        match ppoll(&mut fds, Some(TimeSpec::from_duration(limit)), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(self.file.poll(events)),
            Err(errno) => Err(errno),
        }
    }
}

/// Reads a distance in bytes.
fn load_distance(memory: &RegionMemory, place: usize) -> isize {
    // It fits: both ends lie in the memory.
    memory.double_word(place).load(std::sync::atomic::Ordering::Acquire).cast_signed() as isize
}

/// A ring of a mapped port.
#[derive(Clone, Copy, Debug)]
pub struct MappedRing<'a> {
    memory: &'a RegionMemory,
    start: usize,
}

impl MappedRing<'_> {
    /// Copies a packet into the slot at head and releases it. Returns false, without effect, if the ring is full or
    /// the packet is longer than a buffer. The next sync sends the packet.
    pub fn put(&self, packet: &[u8]) -> bool {
        let Some((slot, buffer)) = self.slot().filter(|_| packet.len() <= BUFFER_BYTES as usize)
        else {
            return false;
        };
        self.memory.write(buffer, packet);
        // The length, and no flags.
        self.memory.store(slot + offset_of!(Slot, len), packet.len() as u32);
        self.release();
        true
    }

    /// Copies the packet at head, and releases its slot. None if the last sync has received no more.
    pub fn take(&self) -> Option<Vec<u8>> {
        let (slot, buffer) = self.slot()?;
        let length = self.memory.load(slot + offset_of!(Slot, len)) & 0xffff;
        let mut packet = vec![0; length as usize];
        self.memory.read(buffer, &mut packet);
        self.release();
        Some(packet)
    }

    /// Returns the places of the slot at head and of its buffer. None if the program owns no slot.
    fn slot(&self) -> Option<(usize, usize)> {
        let head = self.load(offset_of!(RingHeader, head));
        if head == self.load(offset_of!(RingHeader, tail)) {
            return None;
        }
        let slot = self.start + size_of::<RingHeader>() + size_of::<Slot>() * head as usize;
        let number = self.memory.load(slot + offset_of!(Slot, buf_idx)) as usize;
        let distance = load_distance(self.memory, self.start + offset_of!(RingHeader, buf_ofs));
        let buffers = self.start.wrapping_add_signed(distance);
        Some((slot, buffers + BUFFER_BYTES as usize * number))
    }

    fn release(&self) {
        let next = self.load(offset_of!(RingHeader, head)) + 1;
        let next = if next == self.load(offset_of!(RingHeader, num_slots)) { 0 } else { next };
        for cursor in [offset_of!(RingHeader, cur), offset_of!(RingHeader, head)] {
            self.memory.store(self.start + cursor, next);
        }
    }

    fn load(&self, field: usize) -> u32 {
        self.memory.load(self.start + field)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::unistd::pipe;

    use super::*;
    use crate::abi::bodies::modes;
    use crate::engine::Engine;

    #[test]
    fn packets_pass_around_the_ring_and_its_ends_are_kept() {
        let engine = Engine::new(Default::default());
        let all = Register { mode: modes::ALL_NIC, tx_slots: 16, ..Register::default() };
        let open = |name: &str| MappedPort::register(engine.open(), &name.into(), all).unwrap();
        let (one, other) = (open("p{1"), open("p}1"));
        let (tx, rx) = (one.tx(0).unwrap(), other.rx(0).unwrap());
        let (never, _open) = pipe().unwrap();
        let time = Duration::from_secs(60);
        assert!(!tx.put(&[0; 2049]), "longer than a buffer");
        assert!(rx.take().is_none());
        for turn in 0..5u8 {
            let packets: Vec<_> = (0..15).map(|i| vec![turn; 60 + i]).collect();
            assert!(packets.iter().all(|packet| tx.put(packet)), "{turn}");
            assert!(!tx.put(&[0; 60]), "the ring is full");
            one.file().txsync().unwrap();
            other.poll(PollFlags::POLLIN, never.as_fd(), time).unwrap();
            assert_eq!(std::iter::from_fn(|| rx.take()).collect::<Vec<_>>(), packets);
            other.file().rxsync().unwrap();
            one.file().txsync().unwrap();
        }
        assert!(one.tx(1).is_none() && one.rx(9).is_none());
    }
}
