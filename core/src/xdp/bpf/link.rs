//! Attaching programs to interfaces: XDP, and tcx, where packets enter and leave the host's stack (Linux
//! 6.6).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::unistd::gettid;

use super::map::{create_mapped_array, read_entry};
use super::program::load_raw_tracepoint;
use super::{checked, info, opened};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Insn, Size};
use crate::link::TcHook;

/// Attachment mode of an XDP program: `XDP_FLAGS_DRV_MODE` and `XDP_FLAGS_SKB_MODE`
/// (linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel builds an skb.
    Native,
    /// In the kernel's generic receive path: works with every driver, but slowly.
    Skb,
}

impl Mode {
    fn flags(self) -> u32 {
        match self {
            Self::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            Self::Skb => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }

    /// Returns the mode's name in options and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Skb => "skb",
        }
    }
}

/// Returns the id and mode of the XDP program on an interface of this thread's network namespace.
pub(crate) fn attached(interface: u32) -> io::Result<Option<(u32, Mode)>> {
    let mut answer = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as u64,
        ..Default::default()
    };
    // SAFETY: `answer` is live and contains its own size.
    checked(unsafe { libbpf_sys::bpf_xdp_query(interface.cast_signed(), 0, &raw mut answer) })?;
    // A program offloaded to the card always belongs to another user.
    let found = [
        (answer.drv_prog_id, Mode::Native),
        (answer.skb_prog_id, Mode::Skb),
        (answer.hw_prog_id, Mode::Native),
        (answer.prog_id, Mode::Native),
    ];
    Ok(found.into_iter().find(|(id, _)| *id != 0))
}

/// Attaches a program in skb mode to an interface of this thread's network namespace, without a link. It
/// stays until the interface is removed.
pub(crate) fn attach_permanently(program: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    let (interface, flags) = (interface.cast_signed(), Mode::Skb.flags());
    // SAFETY: takes numbers only; no options.
    let status = unsafe {
        libbpf_sys::bpf_xdp_attach(interface, program.as_raw_fd(), flags, std::ptr::null())
    };
    checked(status).map(|_| ())
}

/// Attaches an XDP program to an interface of this thread's network namespace, until the last descriptor of
/// the returned link is closed. `EBUSY` or `EEXIST`: the interface has a program.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, mode: Mode) -> io::Result<OwnedFd> {
    create_link(program, interface, libbpf_sys::BPF_XDP, mode.flags())
}

fn create_link(
    program: BorrowedFd<'_>,
    interface: u32,
    kind: libbpf_sys::bpf_attach_type,
    flags: u32,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as u64,
        flags,
        ..Default::default()
    };
    let (program, interface) = (program.as_raw_fd(), interface.cast_signed());
    // SAFETY: `options` is live and contains its own size.
    opened(unsafe { libbpf_sys::bpf_link_create(program, interface, kind, &raw const options) })
}

/// Opens a link by its id.
pub(crate) fn link(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    opened(unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) })
}

/// Finds the link that attaches an XDP program. None if it is attached without a link, or detached.
pub(crate) fn link_of(program: u32) -> io::Result<Option<OwnedFd>> {
    let mut id = 0u32;
    // SAFETY: takes and writes a number.
    while unsafe { libbpf_sys::bpf_link_get_next_id(id, &raw mut id) } == 0 {
        let link = match link(id) {
            Ok(link) => link,
            // The link was closed between the two calls, or is being created.
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

/// Detaches a link's program from the interface, even if other processes hold the link.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes numbers only.
    checked(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) }).map(|_| ())
}

/// The program and the interface of an XDP link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub program: u32,
    /// The interface's index; 0 after the program was detached or the interface removed.
    pub interface: u32,
}

/// Returns the attachment of an XDP link. None for a link of another type.
pub(crate) fn attachment(link: BorrowedFd<'_>) -> io::Result<Option<Attachment>> {
    let info = link_info(link)?;
    if info.type_ != libbpf_sys::BPF_LINK_TYPE_XDP {
        return Ok(None);
    }
    // SAFETY: the kernel fills in this field for an XDP link; any bits are a valid number.
    let interface = unsafe { info.__bindgen_anon_1.xdp.ifindex };
    Ok(Some(Attachment { program: info.prog_id, interface }))
}

fn link_info(link: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_link_info> {
    // SAFETY: a structure of numbers; its pointers are null.
    unsafe { info(link, libbpf_sys::bpf_link_info::default()) }
}

/// Longer than any message of the kernel (NETLINK_MAX_FMTMSG_LEN is 80).
const TEXT_BYTES: usize = 256;
/// Stack offset of `struct bpf_pidns_info`: the thread's id, then the process id.
const PIDNS_INFO: i16 = -8;

/// Records the kernel's reason if this thread fails to attach an XDP program.
#[derive(Debug)]
pub(crate) struct AttachFailure {
    text: OwnedFd,
    _listening: OwnedFd,
}

impl AttachFailure {
    /// Starts recording.
    ///
    /// # Errors
    /// `ENOENT`: a kernel before 6.6; or a missing privilege (CAP_BPF and CAP_PERFMON).
    pub(crate) fn listen() -> io::Result<Self> {
        let text = create_mapped_array(c"sluice_failure", TEXT_BYTES as u32, 1)?;
        let program = load_raw_tracepoint(c"sluice_failure", &failure_recorder(&text)?)
            .map_err(|error| error.error)?;
        let name = c"bpf_xdp_link_attach_failed";
        // SAFETY: `name` is terminated and outlives the call; the rest is a number.
        let listening = opened(unsafe {
            libbpf_sys::bpf_raw_tracepoint_open(name.as_ptr(), program.as_raw_fd())
        })?;
        Ok(Self { text, _listening: listening })
    }

    /// Returns the reason for the last failure. None if neither kernel nor driver gave one.
    pub(crate) fn text(&self) -> Option<String> {
        let mut bytes = [0; TEXT_BYTES];
        read_entry(self.text.as_fd(), 0, &mut bytes).ok()?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }
}

/// Builds a program that copies the tracepoint's argument, a message, into the map if the failing
/// thread is this one.
fn failure_recorder(text: &OwnedFd) -> io::Result<Vec<Insn>> {
    // The thread's id is that of this process's PID namespace, which in a container is not the initial one.
    let namespace = std::fs::metadata("/proc/self/ns/pid")?;
    let device =
        u64::from(libc::major(namespace.dev())) << 20 | u64::from(libc::minor(namespace.dev()));
    let mut asm = Assembler::new();
    let done = asm.label();
    asm.mov(R6, R1);
    asm.load_constant(R1, device);
    asm.load_constant(R2, namespace.ino());
    asm.mov(R3, R10).add(i32::from(PIDNS_INFO));
    asm.mov(R4, 8);
    asm.call(Helper::NS_PID_TGID);
    asm.jne(R0, 0, done);
    asm.load(Size::W, R1, R10 + PIDNS_INFO).jne(gettid().as_raw(), done);
    asm.load_map_value(R1, text, 0);
    asm.mov(R2, TEXT_BYTES as i32);
    asm.load(Size::DW, R3, R6 + 0);
    asm.call(Helper::PROBE_READ_KERNEL_STR);
    asm.place(done);
    asm.mov(R0, 0);
    asm.exit();
    asm.finish().map_err(|fault| io::Error::other(fault.to_string()))
}

/// The kernel's limit on programs at one hook of an interface (BPF_MPROG_MAX, linux/bpf_mprog.h).
const MAX_TCX_PROGRAMS: usize = 64;

fn tcx_type(hook: TcHook) -> libbpf_sys::bpf_attach_type {
    match hook {
        TcHook::Ingress => libbpf_sys::BPF_TCX_INGRESS,
        TcHook::Egress => libbpf_sys::BPF_TCX_EGRESS,
    }
}

/// Attaches a program after all others to one hook of an interface of this thread's network namespace,
/// until the last descriptor of the returned link is closed. `EINVAL`: the kernel has no tcx.
pub(crate) fn tcx_attach(
    program: BorrowedFd<'_>,
    interface: u32,
    hook: TcHook,
) -> io::Result<OwnedFd> {
    create_link(program, interface, tcx_type(hook), 0)
}

/// Attaches a program as [`tcx_attach`] does, but before all others that are attached by now.
pub(crate) fn tcx_attach_first(
    program: BorrowedFd<'_>,
    interface: u32,
    hook: TcHook,
) -> io::Result<OwnedFd> {
    create_link(program, interface, tcx_type(hook), libbpf_sys::BPF_F_BEFORE)
}

/// Returns the interface of a tcx link; 0 after its program was detached or the interface removed.
pub(crate) fn tcx_interface(link: BorrowedFd<'_>) -> io::Result<u32> {
    let info = link_info(link)?;
    // SAFETY: the kernel fills in this field for a tcx link; any bits are a valid number.
    Ok(unsafe { info.__bindgen_anon_1.tcx.ifindex })
}

/// Ids of an attached program and of its link, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcxProgram {
    pub program: u32,
    pub link: Option<u32>,
}

/// Returns the programs on one hook of an interface in the order in which they run: no programs if the
/// kernel has no tcx.
pub(crate) fn tcx_programs(interface: u32, hook: TcHook) -> io::Result<Vec<TcxProgram>> {
    let (mut programs, mut links) = ([0u32; MAX_TCX_PROGRAMS], [0u32; MAX_TCX_PROGRAMS]);
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as u64,
        prog_ids: programs.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = MAX_TCX_PROGRAMS as u32;
    // SAFETY: `options` contains its own size, and its pointers lead to as many numbers as it states.
    let status = unsafe {
        libbpf_sys::bpf_prog_query_opts(interface.cast_signed(), tcx_type(hook), &raw mut options)
    };
    match checked(status) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(Vec::new()),
        other => other?,
    };
    // SAFETY: the kernel has written this field; any bits are a valid number.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    let found = programs.iter().zip(&links).take(count);
    let with_link = |(&program, &link): (&u32, &u32)| TcxProgram {
        program,
        link: Some(link).filter(|&link| link != 0),
    };
    Ok(found.map(with_link).collect())
}
