//! The kernel's own word: its verifier takes the program, and runs it on frames
//! (`BPF_PROG_TEST_RUN`). Numbers and layouts are those of `linux/bpf.h`.

use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use sluicegate::filter::ebpf::Insn;

/// Bytes that fit into one buffer: a page without the room that XDP keeps around a frame.
pub const ONE_BUFFER_BYTES: usize = 4096 - 256 - 320;
/// The longest frame it surely runs on, whatever is in its first part: 16 pages of fragments.
pub const MAX_FRAME_BYTES: usize = 16 * 4096;
/// The shortest frame it runs on.
pub const MIN_FRAME_BYTES: usize = 14;

/// A negative answer is an errno.
fn checked(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(answer) }
}

fn owned(answer: i32) -> io::Result<OwnedFd> {
    let fd = checked(answer)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An array map of one entry: some numbers.
pub struct Numbers<const N: usize>(pub OwnedFd);

impl<const N: usize> Numbers<N> {
    pub fn new() -> io::Result<Self> {
        let (kind, bytes) = (libbpf_sys::BPF_MAP_TYPE_ARRAY, 8 * N as u32);
        let none = std::ptr::null();
        // SAFETY: neither name nor options.
        owned(unsafe { libbpf_sys::bpf_map_create(kind, none, 4, bytes, 1, std::ptr::null()) })
            .map(Self)
    }

    pub fn read(&self) -> io::Result<[u64; N]> {
        let (key, mut value) = (0_u32, [0_u64; N]);
        let (at, to) = ((&raw const key).cast(), (&raw mut value).cast());
        // SAFETY: the kernel reads four bytes of the key and writes 8 × N to the value; both
        // outlive the call.
        checked(unsafe { libbpf_sys::bpf_map_lookup_elem(self.0.as_raw_fd(), at, to) })?;
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
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as u64,
        prog_flags: if fragments { libbpf_sys::BPF_F_XDP_HAS_FRAGS } else { 0 },
        expected_attach_type: libbpf_sys::BPF_XDP,
        ..Default::default()
    };
    if !log.is_empty() {
        options.log_level = 1;
        options.log_size = log.len() as u32;
        options.log_buf = log.as_mut_ptr().cast();
    }
    // SAFETY: the instructions, the licence and the log outlive the call and have the lengths
    // given; the kernel writes to the log only.
    owned(unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            std::ptr::null(),
            c"MIT".as_ptr(),
            program.as_ptr().cast(),
            program.len() as u64,
            &raw mut options,
        )
    })
    .map(Loaded)
}

impl Loaded {
    /// Runs the program on a frame and returns its result. The frame's first part has `linear_bytes`,
    /// where the kernel takes that wish (Linux 6.18); otherwise as many as fit.
    pub fn run(&self, frame: &[u8], linear_bytes: Option<usize>) -> io::Result<u32> {
        // struct xdp_md: data, data_end, data_meta, and three more.
        let context = [0, linear_bytes.unwrap_or(0) as u32, 0, 0, 0, 0];
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: 1,
            ..Default::default()
        };
        if linear_bytes.is_some() {
            options.ctx_in = context.as_ptr().cast();
            options.ctx_size_in = size_of_val(&context) as u32;
        }
        // SAFETY: the frame and the context outlive the call and have the lengths given; the
        // kernel only reads them.
        let status =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.0.as_raw_fd(), &raw mut options) };
        checked(status).map(|_| options.retval)
    }
}
