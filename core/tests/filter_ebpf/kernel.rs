//! The kernel's own word: its verifier takes the program, and runs it on frames
//! (`BPF_PROG_TEST_RUN`). Numbers and layouts are those of `linux/bpf.h`.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use sluicegate::filter::ebpf::Insn;

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// What fits into one buffer: a page without the room XDP keeps around a frame.
pub const ONE_BUFFER_BYTES: usize = 4096 - 256 - 320;
/// The longest frame it surely runs on, whatever is in its first part: 16 pages of fragments.
pub const MAX_FRAME_BYTES: usize = 16 * 4096;
/// The shortest frame it runs on.
pub const MIN_FRAME_BYTES: usize = 14;

/// `union bpf_attr` for `BPF_PROG_LOAD`, up to what is used.
#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// `union bpf_attr` for `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    reserved: u32,
}

/// `union bpf_attr` for `BPF_MAP_CREATE`, up to what is used.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// `union bpf_attr` for `BPF_MAP_LOOKUP_ELEM`.
#[repr(C)]
#[derive(Default)]
struct MapLookup {
    map_fd: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A call of bpf(2).
///
/// # Safety
/// `attr` is laid out as the command's `union bpf_attr`, and each address in it points to memory
/// of the size that stands beside it.
unsafe fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes `size_of_val(attr)` bytes there; the rest is the
    // caller's promise.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of_val(attr)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// An array map of one entry: some numbers.
pub struct Numbers<const N: usize>(pub OwnedFd);

impl<const N: usize> Numbers<N> {
    pub fn new() -> io::Result<Self> {
        let mut attr = MapCreate {
            map_type: BPF_MAP_TYPE_ARRAY,
            key_size: 4,
            value_size: 8 * N as u32,
            max_entries: 1,
            ..MapCreate::default()
        };
        // SAFETY: the attributes hold no address.
        let fd = unsafe { bpf(BPF_MAP_CREATE, &mut attr) }?;
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn read(&self) -> io::Result<[u64; N]> {
        let (key, mut value) = (0_u32, [0_u64; N]);
        let mut attr = MapLookup {
            map_fd: self.0.as_raw_fd().cast_unsigned(),
            key: &raw const key as u64,
            value: &raw mut value as u64,
            ..MapLookup::default()
        };
        // SAFETY: the kernel reads four bytes of the key and writes 8 × N to the value; both
        // outlive the call.
        unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attr) }?;
        Ok(value)
    }
}

/// A program the verifier has taken.
pub struct Loaded(OwnedFd);

/// Loads an XDP program; on failure the end of the verifier's log is the error.
pub fn load(program: &[Insn], fragments: bool) -> Result<Loaded, String> {
    let mut log = vec![0_u8; 1 << 20];
    try_load(program, fragments, &mut []).or_else(|error| {
        try_load(program, fragments, &mut log).map_err(|_| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]);
            let lines: Vec<_> = log.lines().collect();
            format!("{error}: {}", lines[lines.len().saturating_sub(40)..].join("\n"))
        })
    })
}

fn try_load(program: &[Insn], fragments: bool, log: &mut [u8]) -> io::Result<Loaded> {
    let mut attr = Load {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        prog_flags: if fragments { BPF_F_XDP_HAS_FRAGS } else { 0 },
        expected_attach_type: BPF_XDP,
        ..Load::default()
    };
    if !log.is_empty() {
        attr.log_level = 1;
        attr.log_size = log.len() as u32;
        attr.log_buf = log.as_mut_ptr() as u64;
    }
    // SAFETY: the instructions, the licence and the log outlive the call and have the lengths
    // given; the kernel writes to the log only.
    let fd = unsafe { bpf(BPF_PROG_LOAD, &mut attr) }?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(Loaded(unsafe { OwnedFd::from_raw_fd(fd) }))
}

impl Loaded {
    /// What the program returns for a frame. `linear_bytes` of it are in its first part, if the
    /// kernel can be told so (Linux 6.18); otherwise as much as fits.
    pub fn run(&self, frame: &[u8], linear_bytes: Option<usize>) -> io::Result<u32> {
        // struct xdp_md: data, data_end, data_meta, and three more.
        let context = [0, linear_bytes.unwrap_or(0) as u32, 0, 0, 0, 0];
        let mut attr = TestRun {
            prog_fd: self.0.as_raw_fd().cast_unsigned(),
            data_size_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            repeat: 1,
            ..TestRun::default()
        };
        if linear_bytes.is_some() {
            attr.ctx_in = context.as_ptr() as u64;
            attr.ctx_size_in = size_of_val(&context) as u32;
        }
        // SAFETY: the frame and the context outlive the call and have the lengths given; the
        // kernel only reads them.
        unsafe { bpf(BPF_PROG_TEST_RUN, &mut attr) }?;
        Ok(attr.retval)
    }
}
