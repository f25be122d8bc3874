//! Links: which program an interface has, how it is attached, and whose it is to take off.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::unistd::gettid;

use super::map::{create_mapped_array, read_entry};
use super::object::{checked, info, opened};
use super::program::load_raw_tracepoint;
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Insn, Size};

/// How a program is attached: `XDP_FLAGS_DRV_MODE` and `XDP_FLAGS_SKB_MODE` (linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the driver, before the kernel has made anything of a packet.
    Native,
    /// By the kernel, on packets it has already taken in: works everywhere, and slowly.
    Skb,
}

impl Mode {
    fn flags(self) -> u32 {
        match self {
            Self::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            Self::Skb => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Skb => "skb",
        }
    }
}

/// The number of the XDP program on an interface of this thread's network namespace, and how
/// it is attached.
pub(crate) fn attached(interface: u32) -> io::Result<Option<(u32, Mode)>> {
    let mut answer = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as u64,
        ..Default::default()
    };
    // SAFETY: `answer` is live and says its own size.
    checked(unsafe { libbpf_sys::bpf_xdp_query(interface.cast_signed(), 0, &raw mut answer) })?;
    // A program in a card's own processor is a foreign one, whatever it is.
    let found = [
        (answer.drv_prog_id, Mode::Native),
        (answer.skb_prog_id, Mode::Skb),
        (answer.hw_prog_id, Mode::Native),
        (answer.prog_id, Mode::Native),
    ];
    Ok(found.into_iter().find(|(id, _)| *id != 0))
}

/// Attaches a program to an interface of this thread's network namespace, in skb mode, as long as
/// the interface is there.
pub(crate) fn attach_for_good(program: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    let (interface, flags) = (interface.cast_signed(), Mode::Skb.flags());
    // SAFETY: takes numbers only; no options.
    let status = unsafe {
        libbpf_sys::bpf_xdp_attach(interface, program.as_raw_fd(), flags, std::ptr::null())
    };
    checked(status).map(|_| ())
}

/// Attaches a program to an interface of this thread's network namespace, as long as somebody
/// holds what is returned. `EBUSY` or `EEXIST`: there is a program.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, mode: Mode) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as u64,
        flags: mode.flags(),
        ..Default::default()
    };
    // SAFETY: `options` is live and says its own size.
    opened(unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            interface.cast_signed(),
            libbpf_sys::BPF_XDP,
            &raw const options,
        )
    })
}

/// The link by which a program is attached; none if it is attached otherwise, or no more.
pub(crate) fn link_of(program: u32) -> io::Result<Option<OwnedFd>> {
    let mut id = 0u32;
    // SAFETY: takes and writes a number.
    while unsafe { libbpf_sys::bpf_link_get_next_id(id, &raw mut id) } == 0 {
        // SAFETY: takes numbers only.
        let link = match opened(unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) }) {
            Ok(link) => link,
            // It ended between the two questions, or is being made just now.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EAGAIN)) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        if attachment(link.as_fd())?.is_some_and(|found| found.program == program) {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// Takes a link's program off the interface, whoever else holds the link.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes numbers only.
    checked(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) }).map(|_| ())
}

/// Where a link is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub program: u32,
    /// The interface's number; 0 when it was taken off, or the interface is gone.
    pub interface: u32,
}

/// Where an XDP program's link is attached; none if it is a link of another kind.
pub(crate) fn attachment(link: BorrowedFd<'_>) -> io::Result<Option<Attachment>> {
    // SAFETY: a structure of numbers; its pointers are null.
    let info = unsafe { info(link, libbpf_sys::bpf_link_info::default()) }?;
    if info.type_ != libbpf_sys::BPF_LINK_TYPE_XDP {
        return Ok(None);
    }
    // SAFETY: of an XDP link the kernel fills in this part; it is a number in any case.
    let interface = unsafe { info.__bindgen_anon_1.xdp.ifindex };
    Ok(Some(Attachment { program: info.prog_id, interface }))
}

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
    pub(crate) fn listen() -> io::Result<Self> {
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
    pub(crate) fn text(&self) -> Option<String> {
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
