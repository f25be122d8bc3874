//! The kernel's reason for not attaching an XDP program. A link returns an errno only; the tracepoint
//! `xdp:bpf_xdp_link_attach_failed` has the text (net/core/dev.c, Linux 6.6).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::unistd::gettid;

use super::map::{create_mapped_array, read_entry};
use super::object::opened;
use super::program::load_raw_tracepoint;
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Insn, Size};

/// Longer than any text of the kernel's (NETLINK_MAX_FMTMSG_LEN is 80).
const TEXT_BYTES: usize = 256;
/// `struct bpf_pidns_info`: the thread's number, then the process's.
const NUMBERS: i16 = -8;

/// Listens for failures of this thread to attach an XDP program.
#[derive(Debug)]
pub(crate) struct AttachFailure {
    text: OwnedFd,
    _listening: OwnedFd,
}

impl AttachFailure {
    /// Begins to listen.
    ///
    /// # Errors
    /// `ENOENT`: a kernel before 6.6; or a missing privilege (CAP_BPF and CAP_PERFMON).
    pub fn listen() -> io::Result<Self> {
        let text = create_mapped_array(c"sluice_failure", TEXT_BYTES as u32, 1)?;
        let program = load_raw_tracepoint(c"sluice_failure", &program(&text)?)
            .map_err(|refused| refused.error)?;
        let name = c"bpf_xdp_link_attach_failed";
        // SAFETY: `name` is terminated and outlives the call; the rest is a number.
        let listening = opened(unsafe {
            libbpf_sys::bpf_raw_tracepoint_open(name.as_ptr(), program.as_raw_fd())
        })?;
        Ok(Self { text, _listening: listening })
    }

    /// The text of the last failure; none where the kernel or the driver gave none.
    pub fn text(&self) -> Option<String> {
        let mut bytes = [0; TEXT_BYTES];
        read_entry(self.text.as_fd(), 0, &mut bytes).ok()?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }
}

/// Copies the tracepoint's one argument, a text, into the map, if this thread is the one that failed.
fn program(text: &OwnedFd) -> io::Result<Vec<Insn>> {
    // The thread's number is that of this process's namespace of processes, which a container has.
    let namespace = std::fs::metadata("/proc/self/ns/pid")?;
    let device =
        u64::from(libc::major(namespace.dev())) << 20 | u64::from(libc::minor(namespace.dev()));
    let mut asm = Assembler::new();
    let done = asm.label();
    asm.mov(R6, R1);
    asm.load_constant(R1, device);
    asm.load_constant(R2, namespace.ino());
    asm.mov(R3, R10);
    asm.add(R3, i32::from(NUMBERS));
    asm.mov(R4, 8);
    asm.call(Helper::NS_PID_TGID);
    asm.jne(R0, 0, done);
    asm.load(Size::W, R1, R10 + NUMBERS);
    asm.jne(R1, gettid().as_raw(), done);
    asm.load_map_value(R1, text, 0);
    asm.mov(R2, TEXT_BYTES as i32);
    asm.load(Size::DW, R3, R6 + 0);
    asm.call(Helper::PROBE_READ_KERNEL_STR);
    asm.place(done);
    asm.mov(R0, 0);
    asm.exit();
    asm.finish().map_err(|fault| io::Error::other(fault.to_string()))
}
