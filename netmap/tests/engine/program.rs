//! A netmap program, as one is written in C: it maps the region of a file and reads and writes rings there.
//! Its offsets are netmap's, written down here apart from the crate's structures.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use sluicegate_base::memory::Mmap;
use sluicegate_netmap::abi::bodies::{Register, modes};
use sluicegate_netmap::abi::{PortName, Request};
use sluicegate_netmap::engine::{NetmapFile, WaitSources};

use crate::host::Host;

/// An open file with a registered port.
pub struct Program {
    pub file: Box<dyn NetmapFile>,
    pub answer: Register,
    map: Mmap,
}

/// The time that a test waits for an event that must come.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Sleeps until a descriptor is ready or the time is over. Returns true if one is ready.
pub fn sleep(sources: &WaitSources, time: Duration) -> bool {
    let fd = |&(fd, events): &(RawFd, PollFlags)| {
        // SAFETY: they stay open as long as the file.
        PollFd::new(unsafe { BorrowedFd::borrow_raw(fd) }, events)
    };
    let mut fds: Vec<_> = sources.descriptors.iter().map(fd).collect();
    ppoll(&mut fds, Some(TimeSpec::from_duration(time)), None).unwrap() > 0
}

/// Registers all rings of a port.
pub fn all() -> Register {
    Register { mode: modes::ALL_NIC, ..Register::default() }
}

/// Performs a request. Returns the name and the body of the answer.
pub fn request(
    file: &dyn NetmapFile,
    name: &str,
    request: Request,
) -> Result<(String, Request), Errno> {
    let (mut port, mut request) = (PortName::from(name), request);
    file.request(&mut port, &mut request)?;
    Ok((port.to_string(), request))
}

impl Program {
    /// Registers a port and maps its region.
    pub fn open(host: &Host, name: &str, register: Register) -> Result<Self, Errno> {
        let (file, mut answer) = (host.open(), register);
        file.register(&PortName::from(name), &mut answer)?;
        let region = file.region()?;
        assert_eq!(region.bytes, answer.memsize);
        let map = Mmap::shared(region.fd.as_fd(), region.bytes as usize).unwrap();
        Ok(Self { file, answer, map })
    }

    /// Reads a field of the interface's header.
    pub fn interface(&self, at: usize) -> u32 {
        self.word(self.answer.offset as usize + at)
    }

    /// Returns the name in the interface's header.
    pub fn name(&self) -> String {
        let words = (0..4).flat_map(|i| self.interface(i * 4).to_le_bytes());
        String::from_utf8(words.take_while(|&byte| byte != 0).collect()).unwrap()
    }

    /// Returns a transmit ring, if the file has it.
    pub fn tx(&self, number: u32) -> Option<ProgramRing<'_>> {
        self.ring(number)
    }

    /// Returns a receive ring, if the file has it: those of the host follow those of the card.
    pub fn rx(&self, number: u32) -> Option<ProgramRing<'_>> {
        self.ring(self.interface(24) + self.interface(36) + number)
    }

    fn ring(&self, index: u32) -> Option<ProgramRing<'_>> {
        let base = self.answer.offset as usize;
        let at = base + 56 + 8 * index as usize;
        let offset = i64::from(self.word(at)) | i64::from(self.word(at + 4)) << 32;
        let at = base.checked_add_signed(offset as isize).unwrap();
        (offset != 0).then_some(ProgramRing { program: self, at })
    }

    /// The part of the region before its buffers that rings and interfaces have taken so far.
    pub fn ring_area(&self) -> std::ops::Range<usize> {
        let first = self.answer.offset as usize / 4096 * 4096;
        first..self.rx(0).unwrap().at + 16 * 4096
    }

    pub fn word(&self, at: usize) -> u32 {
        assert!(at + 4 <= self.map.bytes());
        // SAFETY: the word lies in the mapping. The engine writes it as an atomic.
        unsafe { self.map.at(at).cast::<u32>().as_ptr().read_volatile() }
    }

    pub fn set_word(&self, at: usize, value: u32) {
        assert!(at + 4 <= self.map.bytes());
        // SAFETY: as in `word`.
        unsafe { self.map.at(at).cast::<u32>().as_ptr().write_volatile(value) };
    }

    fn bytes(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.map.bytes());
        // SAFETY: as in `word`.
        (0..bytes).map(|i| unsafe { self.map.at(at + i).as_ptr().read_volatile() }).collect()
    }

    fn set_bytes(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.map.bytes());
        for (i, &byte) in bytes.iter().enumerate() {
            // SAFETY: as in `word`.
            unsafe { self.map.at(at + i).as_ptr().write_volatile(byte) };
        }
    }

    /// Sleeps as the host's poll(2) does until one of the events is ready, for at most a minute.
    pub fn poll(&self, events: PollFlags) -> PollFlags {
        let end = Instant::now() + TIMEOUT;
        loop {
            let ready = self.file.poll(events);
            if !ready.is_empty() {
                return ready;
            }
            let sources = self.file.wait(events);
            let ready = self.file.poll(events);
            if !ready.is_empty() {
                return ready;
            }
            let remaining = end.saturating_duration_since(Instant::now());
            assert!(!remaining.is_zero(), "no event");
            let woken = sleep(&sources, sources.longest.unwrap_or(TIMEOUT).min(remaining));
            assert!(woken || sources.longest.is_some(), "nothing ends the sleep");
        }
    }

    /// Sends packets by the first transmit ring, with as many syncs as it takes.
    pub fn send(&self, packets: &[Vec<u8>]) {
        let tx = self.tx(0).unwrap();
        let mut packets = packets.iter();
        while packets.len() > 0 {
            for _ in 0..tx.available().min(packets.len() as u32) {
                tx.put(packets.next().unwrap(), 0);
            }
            self.file.txsync().unwrap();
        }
    }

    /// Takes the packets that a sync brings to the first receive ring.
    pub fn receive(&self) -> Vec<Vec<u8>> {
        self.file.rxsync().unwrap();
        self.rx(0).unwrap().take_all()
    }

    /// Receives a number of the tests' frames among others, and sleeps for them.
    pub fn wait_for_tests(&self, packets: usize) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        while received.len() < packets {
            received.extend(self.wait_for(1).into_iter().filter(|it| it[12..14] == [0x88, 0xb5]));
        }
        received
    }

    /// Receives a number of packets, and sleeps for them.
    pub fn wait_for(&self, packets: usize) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        while received.len() < packets {
            assert_eq!(self.poll(PollFlags::POLLIN), PollFlags::POLLIN);
            received.extend(self.rx(0).unwrap().take_all());
        }
        received
    }
}

/// A ring of a program.
#[derive(Clone, Copy)]
pub struct ProgramRing<'a> {
    program: &'a Program,
    at: usize,
}

/// Offsets of a ring's cursors and flags.
pub const HEAD: usize = 20;
pub const CUR: usize = 24;
pub const TAIL: usize = 28;
pub const FLAGS: usize = 32;

impl ProgramRing<'_> {
    pub fn get(&self, field: usize) -> u32 {
        self.program.word(self.at + field)
    }

    pub fn set(&self, field: usize, value: u32) {
        self.program.set_word(self.at + field, value);
    }

    pub fn num_slots(&self) -> u32 {
        self.get(8)
    }

    pub fn next(&self, index: u32) -> u32 {
        if index + 1 == self.num_slots() { 0 } else { index + 1 }
    }

    /// The slots from head to tail.
    pub fn available(&self) -> u32 {
        (self.get(TAIL) + self.num_slots() - self.get(HEAD)) % self.num_slots()
    }

    /// Returns true if not all packets have been sent, as nm_tx_pending does.
    pub fn is_pending(&self) -> bool {
        self.next(self.get(TAIL)) != self.get(HEAD)
    }

    fn slot(&self, index: u32) -> usize {
        assert!(index < self.num_slots());
        self.at + 256 + 16 * index as usize
    }

    /// A slot's buffer number, length and flags.
    pub fn read_slot(&self, index: u32) -> (u32, u16, u16) {
        let (at, word) = (self.slot(index), self.program.word(self.slot(index) + 4));
        (self.program.word(at), word as u16, (word >> 16) as u16)
    }

    pub fn write_slot(&self, index: u32, (buffer, len, flags): (u32, u16, u16)) {
        let at = self.slot(index);
        self.program.set_word(at, buffer);
        self.program.set_word(at + 4, u32::from(len) | u32::from(flags) << 16);
    }

    pub fn ptr(&self, index: u32) -> u32 {
        self.program.word(self.slot(index) + 8)
    }

    pub fn set_ptr(&self, index: u32, value: u32) {
        self.program.set_word(self.slot(index) + 8, value);
    }

    /// The offset of a buffer in the region.
    pub fn buffer(&self, number: u32) -> usize {
        let offset = i64::from(self.get(0)) | i64::from(self.get(4)) << 32;
        self.at.checked_add_signed(offset as isize).unwrap() + 2048 * number as usize
    }

    pub fn bytes(&self, index: u32) -> Vec<u8> {
        let (buffer, len, _) = self.read_slot(index);
        self.program.bytes(self.buffer(buffer), len.into())
    }

    /// Writes other bytes into the buffer of a slot.
    pub fn overwrite(&self, index: u32) {
        let (buffer, ..) = self.read_slot(index);
        self.program.set_bytes(self.buffer(buffer), &[0xee; 2048]);
    }

    pub fn give(&self, slots: u32) {
        let head = (self.get(HEAD) + slots) % self.num_slots();
        self.set(CUR, head);
        self.set(HEAD, head);
    }

    /// Writes a packet into the slot at head, and releases it.
    pub fn put(&self, bytes: &[u8], flags: u16) {
        let head = self.get(HEAD);
        let (buffer, ..) = self.read_slot(head);
        self.program.set_bytes(self.buffer(buffer), bytes);
        self.write_slot(head, (buffer, bytes.len() as u16, flags));
        self.give(1);
    }

    /// Reads and releases all packets.
    pub fn take_all(&self) -> Vec<Vec<u8>> {
        let slots = self.available();
        let mut index = self.get(HEAD);
        let mut packets = Vec::new();
        for _ in 0..slots {
            packets.push(self.bytes(index));
            index = self.next(index);
        }
        self.give(slots);
        packets
    }
}

/// Makes a frame that carries a number.
pub fn frame(to: u8, from: u8, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes.max(20)];
    frame[..6].copy_from_slice(&if to == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, to] });
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}
