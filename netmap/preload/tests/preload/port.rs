//! A netmap program's view of a port: netmap's public numbers and offsets (net/netmap.h, API 14).

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::program::open;

const NIOCTXSYNC: libc::c_ulong = 0x6994;
pub const NIOCRXSYNC: libc::c_ulong = 0x6995;
const NIOCCTRL: libc::c_ulong = 0xC058_6997;
const REGISTER: u16 = 1;
const VALE_ATTACH: u16 = 3;
const ALL_NIC: u32 = 1;

#[repr(C)]
struct Header {
    version: u16,
    request: u16,
    reserved: u32,
    name: [u8; 64],
    options: u64,
    body: *mut Register,
}

#[repr(C)]
#[derive(Default)]
struct Register {
    offset: u64,
    memsize: u64,
    slots: [u32; 2],
    rings: [u16; 4],
    mem_id: u16,
    ringid: u16,
    mode: u32,
    extra_bufs: u32,
    _pad: u32,
    flags: u64,
}

/// A registered port, mapped until the process ends.
pub struct Port {
    pub file: OwnedFd,
    interface: *mut u8,
}

// SAFETY: the memory stays mapped, and a test uses each ring in one thread at a time.
unsafe impl Send for Port {}
// SAFETY: as above.
unsafe impl Sync for Port {}

impl Port {
    /// Opens the device and registers all rings of a port.
    pub fn register(name: &str) -> Self {
        Self::try_register(name).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn try_register(name: &str) -> Result<Self, Errno> {
        Self::register_with(open(0), name)
    }

    /// Registers all rings of a port with an open file.
    pub fn register_with(file: OwnedFd, name: &str) -> Result<Self, Errno> {
        let mut body = Register { mode: ALL_NIC, ..Register::default() };
        control(&file, REGISTER, name, &mut body)?;
        let fd = file.as_raw_fd();
        let (access, bytes) = (libc::PROT_READ | libc::PROT_WRITE, body.memsize as usize);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(memory, libc::MAP_FAILED, "{}", Errno::last());
        let interface = memory.cast::<u8>().wrapping_add(body.offset as usize);
        Ok(Self { file, interface })
    }

    /// Sends another request about a port, with a body of zeros.
    pub fn request(request: u16, name: &str) -> Result<(), Errno> {
        Self::request_with(&open(0), request, name)
    }

    /// As [`Self::request`], with an open file.
    pub fn request_with(file: &OwnedFd, request: u16, name: &str) -> Result<(), Errno> {
        control(file, request, name, &mut Register::default())
    }

    /// Sends another request with this file.
    pub fn request_again(&self, request: u16, name: &str) -> Result<(), Errno> {
        control(&self.file, request, name, &mut Register::default())
    }

    /// Attaches a card to a switch.
    pub fn attach(name: &str) -> Result<(), Errno> {
        // The answer's index in the switch follows the body of a registration.
        let mut body = [Register::default(), Register::default()];
        body[0].mode = ALL_NIC;
        control(&open(0), VALE_ATTACH, name, body.as_mut_ptr())
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn field<T>(&self, at: usize) -> T {
        // SAFETY: the offsets below are those of an interface's header.
        unsafe { self.interface.add(at).cast::<T>().read_volatile() }
    }

    fn ring(&self, index: usize) -> Ring {
        let offset = self.field::<i64>(56 + 8 * index);
        Ring(self.interface.wrapping_offset(offset as isize))
    }

    /// The first ring to send.
    pub fn tx(&self) -> Ring {
        self.ring(0)
    }

    /// The first ring to receive.
    pub fn rx(&self) -> Ring {
        self.ring((self.field::<u32>(24) + self.field::<u32>(36)) as usize)
    }

    pub fn txsync(&self) -> Result<(), Errno> {
        // SAFETY: the request has no argument.
        Errno::result(unsafe { libc::ioctl(self.fd(), NIOCTXSYNC, 0) }).map(drop)
    }

    pub fn rxsync(&self) -> Result<(), Errno> {
        // SAFETY: the request has no argument.
        Errno::result(unsafe { libc::ioctl(self.fd(), NIOCRXSYNC, 0) }).map(drop)
    }

    /// Sends a packet.
    pub fn send(&self, packet: &[u8]) {
        assert!(self.tx().put(packet), "room");
        self.txsync().unwrap();
    }

    /// Returns the last byte of each packet that has been received, and gives them back.
    pub fn received(&self) -> Vec<u8> {
        let rx = self.rx();
        std::iter::from_fn(|| rx.take()).collect()
    }
}

fn control(file: &OwnedFd, request: u16, name: &str, body: *mut Register) -> Result<(), Errno> {
    let mut header = Header { version: 14, request, reserved: 0, name: [0; 64], options: 0, body };
    header.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: a header, and a body that is as long as the request needs it.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), NIOCCTRL, &raw mut header) }).map(drop)
}

pub struct Ring(*mut u8);

impl Ring {
    fn get<T>(&self, at: usize) -> T {
        // SAFETY: the offsets are those of a ring's header and slots.
        unsafe { self.0.add(at).cast::<T>().read_volatile() }
    }

    fn set<T>(&self, at: usize, value: T) {
        // SAFETY: as above.
        unsafe { self.0.add(at).cast::<T>().write_volatile(value) }
    }

    /// The slot at head and its buffer, unless head is tail.
    fn at_head(&self) -> Option<(usize, *mut u8)> {
        let (head, tail) = (self.get::<u32>(20), self.get::<u32>(28));
        let slot = 256 + 16 * head as usize;
        let buffer = self.get::<i64>(0) as isize
            + self.get::<u32>(slot) as isize * self.get::<u32>(12) as isize;
        (head != tail).then(|| (slot, self.0.wrapping_offset(buffer)))
    }

    fn advance(&self) {
        let next = (self.get::<u32>(20) + 1) % self.get::<u32>(8);
        self.set(24, next);
        self.set(20, next);
    }

    pub fn put(&self, packet: &[u8]) -> bool {
        let Some((slot, buffer)) = self.at_head() else { return false };
        // SAFETY: the program owns the slot's buffer.
        unsafe { buffer.copy_from_nonoverlapping(packet.as_ptr(), packet.len()) };
        self.set(slot + 4, packet.len() as u16);
        self.advance();
        true
    }

    /// The last byte of the packet at head, which is given back.
    fn take(&self) -> Option<u8> {
        let (slot, buffer) = self.at_head()?;
        let length = self.get::<u16>(slot + 4) as usize;
        // SAFETY: the program owns the slot's buffer.
        let last = unsafe { buffer.add(length - 1).read_volatile() };
        self.advance();
        Some(last)
    }
}

/// A frame to all stations; its last byte is `mark`.
pub fn frame(mark: u8) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, mark]);
    frame[59] = mark;
    frame
}
