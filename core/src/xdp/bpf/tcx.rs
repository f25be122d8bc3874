//! Programs where packets enter and leave an interface, by tcx (Linux 6.6).
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::object::{checked, info, opened};
use crate::link::Side;

/// More programs than anybody has on one side of an interface (BPF_MPROG_MAX, linux/bpf_mprog.h).
const PROGRAMS_MAX: usize = 64;

fn kind(side: Side) -> libbpf_sys::bpf_attach_type {
    match side {
        Side::Ingress => libbpf_sys::BPF_TCX_INGRESS,
        Side::Egress => libbpf_sys::BPF_TCX_EGRESS,
    }
}

/// Attaches a program behind all others to an interface of this thread's network namespace, as
/// long as somebody holds what is returned. `EINVAL`: the kernel has no tcx.
pub(crate) fn tcx_attach(
    program: BorrowedFd<'_>,
    interface: u32,
    side: Side,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as u64,
        ..Default::default()
    };
    // SAFETY: `options` is live and says its own size.
    opened(unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            interface.cast_signed(),
            kind(side),
            &raw const options,
        )
    })
}

/// The interface that a link's program is attached to; 0 when it was taken off, or the interface is
/// gone.
pub(crate) fn tcx_interface(link: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: a structure of numbers; its pointers are null.
    let info = unsafe { info(link, libbpf_sys::bpf_link_info::default()) }?;
    // SAFETY: of a tcx link the kernel fills in this part; it is a number in any case.
    Ok(unsafe { info.__bindgen_anon_1.tcx.ifindex })
}

/// A program that is attached, and its link if it has one: by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcxProgram {
    pub program: u32,
    pub link: Option<u32>,
}

/// The programs on one side of an interface, in the order in which they see packets; none where
/// the kernel has no tcx.
pub(crate) fn tcx_programs(interface: u32, side: Side) -> io::Result<Vec<TcxProgram>> {
    let (mut programs, mut links) = ([0u32; PROGRAMS_MAX], [0u32; PROGRAMS_MAX]);
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as u64,
        prog_ids: programs.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = PROGRAMS_MAX as u32;
    // SAFETY: `options` says its own size, and its pointers lead to as many numbers as it says.
    let status = unsafe {
        libbpf_sys::bpf_prog_query_opts(interface.cast_signed(), kind(side), &raw mut options)
    };
    match checked(status) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(Vec::new()),
        other => other?,
    };
    // SAFETY: the kernel has written this field; any bits are a number.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    let found = programs.iter().zip(&links).take(count);
    let with_link = |(&program, &link): (&u32, &u32)| TcxProgram {
        program,
        link: Some(link).filter(|&link| link != 0),
    };
    Ok(found.map(with_link).collect())
}

/// A hold on a link by its number.
pub(crate) fn link(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    opened(unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) })
}
