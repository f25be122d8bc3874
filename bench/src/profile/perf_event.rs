//! Events of perf_event_open(2), and the rings of their records.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_base::memory::{Mmap, PAGE_BYTES};

/// An event of all processes on one CPU.
#[derive(Debug)]
pub struct Event {
    fd: OwnedFd,
    /// Identifier in its samples.
    pub id: u64,
}

impl Event {
    /// Opens an event, disabled.
    pub fn open(attr: &Attr, cpu: u32) -> io::Result<Self> {
        let attr = Attr { size: size_of::<Attr>() as u32, ..*attr };
        let (any_process, no_group) = (-1, -1);
        // SAFETY: `attr` is a whole perf_event_attr of the size it says, and outlives the call; the
        // kernel checks what it holds.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                any_process,
                cpu.cast_signed(),
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned `fd`, a small number, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        let id = id_of(&fd)?;
        Ok(Self { fd, id })
    }

    /// Writes its samples into another event's ring, of the same CPU.
    pub fn write_to(&self, other: &Self) -> io::Result<()> {
        control(&self.fd, ioctl::SET_OUTPUT, other.fd.as_raw_fd() as u64)
    }

    /// Starts counting and sampling.
    pub fn enable(&self) -> io::Result<()> {
        control(&self.fd, ioctl::ENABLE, 0)
    }

    /// Stops counting and sampling.
    pub fn disable(&self) -> io::Result<()> {
        control(&self.fd, ioctl::DISABLE, 0)
    }

    /// Number of events while it was enabled.
    pub fn count(&self) -> io::Result<u64> {
        let mut value = [0; 8];
        match nix::unistd::read(&self.fd, &mut value)? {
            8 => Ok(u64::from_ne_bytes(value)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Makes a request whose argument is zero or a descriptor.
fn control(fd: &OwnedFd, request: u64, argument: u64) -> io::Result<()> {
    // SAFETY: the requests made by this function take a number and access no memory of this process.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::Ioctl, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn id_of(fd: &OwnedFd) -> io::Result<u64> {
    let mut id = 0u64;
    // SAFETY: the request writes 8 bytes, to a local u64 that outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), ioctl::ID as libc::Ioctl, &raw mut id) } {
        0 => Ok(id),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The ring of an event's records: a control page, then the data.
///
/// The kernel writes records and advances `data_head`; the reader reads them and advances `data_tail`. The
/// bytes between the two belong to the reader: because the mapping is writable, the kernel does not overwrite
/// unread records but counts new ones as lost.
#[derive(Debug)]
pub struct PerfRing {
    map: Mmap,
    data: usize,
    /// A power of two.
    data_bytes: u64,
}

impl PerfRing {
    /// Maps an event's ring, of `pages` pages of data, a power of two.
    pub fn map(event: &Event, pages: usize) -> io::Result<Self> {
        let bytes = (pages + 1) * PAGE_BYTES;
        let map = Mmap::shared(event.fd.as_fd(), bytes)?;
        let mut ring = Self { map, data: 0, data_bytes: 0 };
        // These two do not change once the ring is mapped.
        ring.data = ring.word(page::DATA_OFFSET).load(Ordering::Relaxed) as usize;
        ring.data_bytes = ring.word(page::DATA_SIZE).load(Ordering::Relaxed);
        let whole = ring.data_bytes.is_power_of_two()
            && ring.data.checked_add(ring.data_bytes as usize).is_some_and(|end| end <= bytes);
        if whole { Ok(ring) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Takes all whole records in it, in order.
    pub fn take(&mut self, records: &mut Vec<u8>) {
        // Pairs with the kernel's write barrier before it stores data_head
        // (perf_output_put_handle in kernel/events/ring_buffer.c): the records up to it are complete.
        let head = self.word(page::DATA_HEAD).load(Ordering::Acquire);
        // Only this reader writes it.
        let tail = self.word(page::DATA_TAIL).load(Ordering::Relaxed);
        let length = head.wrapping_sub(tail).min(self.data_bytes);
        let start = tail & (self.data_bytes - 1);
        let first = length.min(self.data_bytes - start);
        self.copy(start, first, records);
        self.copy(0, length - first, records);
        // Pairs with the kernel's load of data_tail, on which its writes depend: it may overwrite the bytes
        // copied above.
        self.word(page::DATA_TAIL).store(head, Ordering::Release);
    }

    /// Appends `length` bytes of the data, from `start` on; the range must not wrap.
    fn copy(&self, start: u64, length: u64, to: &mut Vec<u8>) {
        let from = self.map.at(self.data).as_ptr();
        // SAFETY: start + length is at most data_bytes, and the data lie within the mapping
        // (`map` checked). They are between tail and head, where the kernel does not write.
        let bytes = unsafe {
            std::slice::from_raw_parts(from.add(start as usize).cast_const(), length as usize)
        };
        to.extend_from_slice(bytes);
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the first page of the mapping holds these words of 8 bytes at multiples of 8
        // for as long as `self` lives, and both sides access them atomically.
        unsafe { AtomicU64::from_ptr(self.map.at(offset).as_ptr().cast()) }
    }
}

/// `struct perf_event_attr` of Linux 4.8 (`PERF_ATTR_SIZE_VER5`); later fields are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Attr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    /// Events between two samples, or with [`flag::FREQUENCY`] samples per second.
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    /// Fields that this module leaves zero.
    pub rest: [u64; 8],
}

const _: () = assert!(size_of::<Attr>() == 112);
const _: () = assert!(std::mem::offset_of!(Attr, flags) == 40);

pub const TYPE_HARDWARE: u32 = 0;
pub const TYPE_SOFTWARE: u32 = 1;
pub const HARDWARE_CYCLES: u64 = 0;
pub const SOFTWARE_CPU_CLOCK: u64 = 0;
pub const SOFTWARE_CONTEXT_SWITCHES: u64 = 3;

/// `PERF_FLAG_FD_CLOEXEC`.
pub const CLOSE_ON_EXEC: u64 = 1 << 3;

/// Bits of [`Attr::flags`].
pub mod flag {
    pub const DISABLED: u64 = 1 << 0;
    pub const FREQUENCY: u64 = 1 << 10;
    /// Without the call chain in user space, because few programs are built to provide it.
    pub const NO_USER_CHAIN: u64 = 1 << 22;
    /// A record for each BPF program and the like that gets a symbol (Linux 5.1).
    pub const KERNEL_SYMBOLS: u64 = 1 << 29;
}

/// Bits of [`Attr::sample_type`]: a sample's fields, in this order.
pub mod sample {
    pub const IDENTIFIER: u64 = 1 << 16;
    pub const ADDRESS: u64 = 1 << 0;
    pub const THREAD: u64 = 1 << 1;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const CALL_CHAIN: u64 = 1 << 5;
    pub const ALL: u64 = IDENTIFIER | ADDRESS | THREAD | CPU | PERIOD | CALL_CHAIN;
}

/// Kinds of records.
pub mod record {
    /// Records that found the ring full: an identifier, then their number.
    pub const LOST: u32 = 2;
    pub const SAMPLE: u32 = 9;
    pub const KERNEL_SYMBOL: u32 = 17;
}

/// Bits of a record's `misc`: the mode of the CPU.
pub const MISC_CPU_MODE: u16 = 7;
pub const MISC_KERNEL: u16 = 1;

/// Addresses from here on are marks in a call chain (`PERF_CONTEXT_MAX`).
pub const CHAIN_MARKS: u64 = 4095u64.wrapping_neg();
/// Mark before kernel addresses (`PERF_CONTEXT_KERNEL`).
pub const CHAIN_KERNEL: u64 = 128u64.wrapping_neg();

/// Offsets in `struct perf_event_mmap_page` that a reader of the ring needs.
pub mod page {
    pub const DATA_HEAD: usize = 1024;
    pub const DATA_TAIL: usize = 1032;
    pub const DATA_OFFSET: usize = 1040;
    pub const DATA_SIZE: usize = 1048;
}

/// `PERF_EVENT_IOC_ENABLE`, `_DISABLE`, `_SET_OUTPUT`, `_ID`.
pub mod ioctl {
    pub const ENABLE: u64 = 0x2400;
    pub const DISABLE: u64 = 0x2401;
    pub const SET_OUTPUT: u64 = 0x2405;
    pub const ID: u64 = 0x8008_2407;
}
