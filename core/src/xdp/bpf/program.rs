//! Programs: loading and running one, its name and number, and the maps that it has.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::map::map_info;
use super::object::{checked, info, opened, text};
use crate::filter::ebpf::Insn;

/// Loads an XDP program made at run time; on failure with what the verifier said.
pub(crate) fn load(name: &CStr, instructions: &[Insn], frags: bool) -> Result<OwnedFd, Refused> {
    load_for(&xdp(None, frags), name, instructions)
}

/// Loads a program for one interface of this thread's network namespace, none other: its program may
/// ask the driver for what it knows of a packet (`BPF_F_XDP_DEV_BOUND_ONLY`). Linux 6.3.
pub(crate) fn load_bound(
    interface: u32,
    name: &CStr,
    instructions: &[Insn],
    frags: bool,
) -> Result<OwnedFd, Refused> {
    load_for(&xdp(Some(interface), frags), name, instructions)
}

/// Loads a program that sees packets as they enter or leave the host's stack.
pub(crate) fn load_tc(name: &CStr, instructions: &[Insn]) -> Result<OwnedFd, Refused> {
    let tc =
        Type { number: libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, attach: 0, flags: 0, interface: 0 };
    load_for(&tc, name, instructions)
}

/// Loads a program that runs at a tracepoint and sees its arguments as the kernel has them.
pub(crate) fn load_raw_tracepoint(name: &CStr, instructions: &[Insn]) -> Result<OwnedFd, Refused> {
    let number = libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT;
    load_for(&Type { number, attach: 0, flags: 0, interface: 0 }, name, instructions)
}

/// What a program is to be.
struct Type {
    number: libbpf_sys::bpf_prog_type,
    attach: libbpf_sys::bpf_attach_type,
    flags: u32,
    interface: u32,
}

fn xdp(interface: Option<u32>, frags: bool) -> Type {
    let bound = if interface.is_some() { libbpf_sys::BPF_F_XDP_DEV_BOUND_ONLY } else { 0 };
    let fragments = if frags { libbpf_sys::BPF_F_XDP_HAS_FRAGS } else { 0 };
    Type {
        number: libbpf_sys::BPF_PROG_TYPE_XDP,
        attach: libbpf_sys::BPF_XDP,
        flags: bound | fragments,
        interface: interface.unwrap_or_default(),
    }
}

fn load_for(kind: &Type, name: &CStr, instructions: &[Insn]) -> Result<OwnedFd, Refused> {
    let load = |log: &mut [u8]| {
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as u64,
            prog_flags: kind.flags,
            prog_ifindex: kind.interface,
            expected_attach_type: kind.attach,
            log_level: u32::from(!log.is_empty()),
            log_size: size_of_val(log) as u32,
            log_buf: if log.is_empty() { std::ptr::null_mut() } else { log.as_mut_ptr().cast() },
            ..Default::default()
        };
        // SAFETY: all that `options` and the arguments point at is live; an instruction is 8
        // bytes (struct bpf_insn) and the kernel reads `instructions.len()` of them.
        opened(unsafe {
            libbpf_sys::bpf_prog_load(
                kind.number,
                name.as_ptr(),
                c"Dual BSD/GPL".as_ptr(),
                instructions.as_ptr().cast(),
                instructions.len() as u64,
                &raw mut options,
            )
        })
    };
    load(&mut []).map_err(|error| {
        // Before Linux 6.4 a log that is too long keeps its beginning, not its end.
        let mut log = vec![0; 1 << 20];
        let _ = load(&mut log);
        // What it said of ways that it left again stands behind the end, for before Linux 6.4 it
        // goes back in the log, too.
        let said = log.split(|&byte| byte == 0).next().unwrap_or_default();
        let said = String::from_utf8_lossy(said);
        let said = said.trim_end_matches('\n').lines().rev().take(4).collect::<Vec<_>>();
        Refused { error, said: said.into_iter().rev().collect::<Vec<_>>().join("; ") }
    })
}

/// A program that the kernel did not take.
#[derive(Debug)]
pub(crate) struct Refused {
    pub error: io::Error,
    /// The end of the verifier's log.
    pub said: String,
}

/// Runs an XDP program on a packet (`BPF_PROG_TEST_RUN`): its answer, and what then begins at
/// `data_meta`.
pub(crate) fn run(program: BorrowedFd<'_>, packet: &[u8]) -> io::Result<(i32, Vec<u8>)> {
    let mut out = vec![0; 4096];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ..Default::default()
    };
    // SAFETY: `options` and the buffers it names, with their sizes, outlive the call.
    checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    out.truncate(options.data_size_out as usize);
    Ok((options.retval.cast_signed(), out))
}

/// Runs an XDP program on a packet so many times: its answer, and the ns of a run on average.
pub(crate) fn run_times(
    program: BorrowedFd<'_>,
    packet: &[u8],
    times: u32,
) -> io::Result<(i32, u32)> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        repeat: times.cast_signed(),
        ..Default::default()
    };
    // SAFETY: `options` says its own size and, like the packet it names, outlives the call; no
    // output is asked for but the numbers in it.
    checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    Ok((options.retval.cast_signed(), options.duration))
}

/// Runs an XDP program `times` times on copies of a frame, which go where it sends them, until a
/// signal is pending ([`io::ErrorKind::Interrupted`]). Linux 5.18.
pub(crate) fn run_live(
    program: BorrowedFd<'_>,
    frame: &[u8],
    times: u32,
    batch: u32,
) -> io::Result<()> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: times.cast_signed(),
        flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: batch,
        ..Default::default()
    };
    // SAFETY: `options` says its own size and, like the frame it names, outlives the call; no
    // output is asked for but the numbers in it.
    checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })
        .map(|_| ())
}

/// A hold on a program by its number.
pub(crate) fn program(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    opened(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })
}

/// What the kernel says of a program, but for what takes memory of ours.
pub(crate) fn program_info(program: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_prog_info> {
    // SAFETY: a structure of numbers; its pointers are null.
    unsafe { info(program, libbpf_sys::bpf_prog_info::default()) }
}

/// A program's name: 15 characters at most.
pub(crate) fn program_name(program: BorrowedFd<'_>) -> io::Result<String> {
    Ok(text(&program_info(program)?.name))
}

/// A program's number.
pub(crate) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(program_info(program)?.id)
}

/// Has the kernel count the runs of all programs, and their time, until this is closed. Linux 5.8.
pub(crate) fn count_runs() -> io::Result<OwnedFd> {
    // SAFETY: takes a number only.
    opened(unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) })
}

/// A map of a program: its name, how many entries it has, whether these are programs that it can go
/// on to, a hold on it.
#[derive(Debug)]
pub(crate) struct Map {
    pub name: String,
    pub entries: u32,
    pub of_programs: bool,
    pub fd: OwnedFd,
}

/// The maps a program uses.
pub(crate) fn maps_of(program: BorrowedFd<'_>) -> io::Result<Vec<Map>> {
    let mut ids = [0u32; 64];
    let question = libbpf_sys::bpf_prog_info {
        nr_map_ids: ids.len() as u32,
        map_ids: ids.as_mut_ptr().expose_provenance() as u64,
        ..Default::default()
    };
    // SAFETY: `map_ids` leads to as many numbers as `nr_map_ids` says.
    let count = unsafe { info(program, question) }?.nr_map_ids as usize;
    ids.iter()
        .take(count)
        .map(|&id| {
            // SAFETY: takes numbers only.
            let fd = opened(unsafe { libbpf_sys::bpf_map_get_fd_by_id(id) })?;
            let info = map_info(fd.as_fd())?;
            let of_programs = info.type_ == libbpf_sys::BPF_MAP_TYPE_PROG_ARRAY;
            Ok(Map { name: text(&info.name), entries: info.max_entries, of_programs, fd })
        })
        .collect()
}

/// Makes a map one of the program's, though its code does not use it.
pub(crate) fn tie(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes numbers only; no options.
    checked(unsafe {
        libbpf_sys::bpf_prog_bind_map(program.as_raw_fd(), map.as_raw_fd(), std::ptr::null())
    })
    .map(|_| ())
}
