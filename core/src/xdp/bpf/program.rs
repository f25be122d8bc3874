//! Programs: loading, running and describing them.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{fs, io};

use libbpf_rs::btf::{Btf, types};

use super::map::{map_info, read_entry};
use super::{checked, info, opened, privileged, text};
use crate::error::{Error, Result};
use crate::filter::ebpf::{Insn, KernelFunction};

/// Capabilities that the kernel requires for reading other processes' programs.
const CAPABILITY: &str = "CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN";

/// A program that the kernel rejected.
#[derive(Debug)]
pub(crate) struct LoadError {
    pub error: io::Error,
    /// The last lines of the verifier's log; empty if a limit of open files or memory was reached.
    pub log: String,
}

/// Returns true if a limit of open files or memory was reached: the program is not the reason.
pub(crate) fn is_limit(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Loads an XDP program.
pub(crate) fn load(name: &CStr, instructions: &[Insn], frags: bool) -> Result<OwnedFd, LoadError> {
    load_xdp(name, instructions, frags, None)
}

/// Loads an XDP program for one interface of this thread's network namespace (`BPF_F_XDP_DEV_BOUND_ONLY`).
/// Only such a program may ask the driver for a packet's metadata. Linux 6.3.
pub(crate) fn load_bound(
    interface: u32,
    name: &CStr,
    instructions: &[Insn],
    frags: bool,
) -> Result<OwnedFd, LoadError> {
    load_xdp(name, instructions, frags, Some(interface))
}

fn load_xdp(
    name: &CStr,
    instructions: &[Insn],
    frags: bool,
    interface: Option<u32>,
) -> Result<OwnedFd, LoadError> {
    let bound = if interface.is_some() { libbpf_sys::BPF_F_XDP_DEV_BOUND_ONLY } else { 0 };
    let fragments = if frags { libbpf_sys::BPF_F_XDP_HAS_FRAGS } else { 0 };
    let options = libbpf_sys::bpf_prog_load_opts {
        prog_flags: bound | fragments,
        prog_ifindex: interface.unwrap_or_default(),
        expected_attach_type: libbpf_sys::BPF_XDP,
        ..Default::default()
    };
    load_as(libbpf_sys::BPF_PROG_TYPE_XDP, name, instructions, options)
}

/// Loads a program that sees packets as they enter or leave the host's stack.
pub(crate) fn load_tc(name: &CStr, instructions: &[Insn]) -> Result<OwnedFd, LoadError> {
    load_as(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, name, instructions, Default::default())
}

/// Loads a program that runs at a tracepoint and sees its raw arguments.
pub(super) fn load_raw_tracepoint(
    name: &CStr,
    instructions: &[Insn],
) -> Result<OwnedFd, LoadError> {
    load_as(libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT, name, instructions, Default::default())
}

fn load_as(
    kind: libbpf_sys::bpf_prog_type,
    name: &CStr,
    instructions: &[Insn],
    options: libbpf_sys::bpf_prog_load_opts,
) -> Result<OwnedFd, LoadError> {
    let load = |log: &mut [u8]| {
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: size_of_val(log) as u32,
            log_buf: if log.is_empty() { std::ptr::null_mut() } else { log.as_mut_ptr().cast() },
            ..options
        };
        // SAFETY: everything that `options` and the arguments point at is live; an instruction has 8 bytes
        // (struct bpf_insn), and the kernel reads `instructions.len()` of them.
        opened(unsafe {
            libbpf_sys::bpf_prog_load(
                kind,
                name.as_ptr(),
                c"Dual BSD/GPL".as_ptr(),
                instructions.as_ptr().cast(),
                instructions.len() as u64,
                &raw mut options,
            )
        })
    };
    load(&mut []).map_err(|error| {
        if is_limit(&error) {
            return LoadError { error, log: String::new() };
        }
        // Before Linux 6.4 a log that is too long keeps its beginning and loses its end.
        let mut log = vec![0; 1 << 20];
        let _ = load(&mut log);
        // Before 6.4 the verifier also rewinds the log when it leaves a path. The path's old text follows
        // the terminating NUL.
        let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let lines = text.trim_end_matches('\n').lines().rev().take(4).collect::<Vec<_>>();
        LoadError { error, log: lines.into_iter().rev().collect::<Vec<_>>().join("; ") }
    })
}

/// Runs an XDP program on a packet (`BPF_PROG_TEST_RUN`). Returns the options with the results filled in.
fn test_run(
    program: BorrowedFd<'_>,
    packet: &[u8],
    out: &mut [u8],
    [repeat, flags, batch_size]: [u32; 3],
) -> io::Result<libbpf_sys::bpf_test_run_opts> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        data_out: if out.is_empty() { std::ptr::null_mut() } else { out.as_mut_ptr().cast() },
        data_size_out: out.len() as u32,
        repeat: repeat.cast_signed(),
        flags,
        batch_size,
        ..Default::default()
    };
    // SAFETY: `options` contains its own size; `options` and its buffers, whose sizes it contains, outlive
    // the call. It contains no other pointer.
    checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    Ok(options)
}

/// Runs an XDP program once. Returns its verdict and the bytes from `data_meta` on.
pub(crate) fn run(program: BorrowedFd<'_>, packet: &[u8]) -> io::Result<(i32, Vec<u8>)> {
    let mut out = vec![0; 4096];
    let options = test_run(program, packet, &mut out, [0; 3])?;
    out.truncate(options.data_size_out as usize);
    Ok((options.retval.cast_signed(), out))
}

/// Runs an XDP program `times` times on copies of a frame, and sends them according to its verdicts, until
/// a signal is pending ([`io::ErrorKind::Interrupted`]). Linux 5.18.
pub(crate) fn run_live(
    program: BorrowedFd<'_>,
    frame: &[u8],
    times: u32,
    batch: u32,
) -> io::Result<()> {
    let options = [times, libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES, batch];
    test_run(program, frame, &mut [], options).map(|_| ())
}

/// Opens a program by its id.
pub(crate) fn program(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    opened(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })
}

fn program_info(program: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_prog_info> {
    // SAFETY: a structure of numbers; its pointers are null.
    unsafe { info(program, libbpf_sys::bpf_prog_info::default()) }
}

/// Returns a program's name: at most 15 characters.
pub(crate) fn program_name(program: BorrowedFd<'_>) -> io::Result<String> {
    Ok(text(&program_info(program)?.name))
}

/// Returns a program's id.
pub(crate) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(program_info(program)?.id)
}

/// A map that a program uses.
#[derive(Debug)]
pub(crate) struct ProgramMap {
    pub name: String,
    pub entries: u32,
    /// True if the entries are programs, for tail calls.
    of_programs: bool,
    pub fd: OwnedFd,
}

/// Returns the maps a program uses.
pub(crate) fn maps_of(program: BorrowedFd<'_>) -> io::Result<Vec<ProgramMap>> {
    let mut ids = [0u32; 64];
    let query = libbpf_sys::bpf_prog_info {
        nr_map_ids: ids.len() as u32,
        map_ids: ids.as_mut_ptr().expose_provenance() as u64,
        ..Default::default()
    };
    // SAFETY: `map_ids` points to as many numbers as `nr_map_ids` says.
    let count = unsafe { info(program, query) }?.nr_map_ids as usize;
    ids.iter()
        .take(count)
        .map(|&id| {
            // SAFETY: takes numbers only.
            let fd = opened(unsafe { libbpf_sys::bpf_map_get_fd_by_id(id) })?;
            let info = map_info(fd.as_fd())?;
            let of_programs = info.type_ == libbpf_sys::BPF_MAP_TYPE_PROG_ARRAY;
            Ok(ProgramMap { name: text(&info.name), entries: info.max_entries, of_programs, fd })
        })
        .collect()
}

/// Adds a map to the program's maps, even if its code does not use it.
pub(crate) fn bind_map(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes numbers only; no options.
    checked(unsafe {
        libbpf_sys::bpf_prog_bind_map(program.as_raw_fd(), map.as_raw_fd(), std::ptr::null())
    })
    .map(|_| ())
}

/// Looks up a kernel function that programs may call (kfunc), by its id in the kernel's own BTF
/// (Linux 5.13, CONFIG_DEBUG_INFO_BTF). None if this kernel has no such function.
pub(crate) fn kernel_function(types: &Btf<'_>, name: &str) -> Option<KernelFunction> {
    let function: types::Func<'_> = types.type_by_name(name)?;
    Some(KernelFunction(u32::from(function.type_id()).cast_signed()))
}

/// A loaded BPF program: its size, and how often and how long it ran.
///
/// Sources: linux/bpf.h (`struct bpf_prog_info`), kernel/bpf/syscall.c (`bpf_prog_show_fdinfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgInfo {
    /// The kernel's id.
    pub id: u32,
    /// The name: 15 characters at most.
    pub name: String,
    /// Instructions after verification: without dead code, with some helper calls inlined.
    pub instructions: u32,
    /// Bytes of machine code; 0 if the kernel interprets the program.
    pub bytes: u32,
    /// Number of runs while [`RunStatistics`] existed. Runs by a call or tail call count for the calling
    /// program.
    pub runs: u64,
    /// Duration of these runs in ns, including the clock reads.
    pub run_ns: u64,
}

impl ProgInfo {
    /// Returns the programs that a process holds by file descriptor or link, and those that they can
    /// tail-call; ordered by id.
    ///
    /// # Errors
    /// The process does not exist or belongs to another user; CAP_SYS_ADMIN is missing.
    pub fn of_process(pid: u32) -> Result<Vec<Self>> {
        Self::held_by(pid).map_err(|error| {
            let object = format!("process {pid}");
            privileged(error, CAPABILITY, "look up the BPF programs of", &object)
        })
    }

    fn held_by(pid: u32) -> io::Result<Vec<Self>> {
        let mut ids = BTreeSet::new();
        for file in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
            // A file that was closed in the meantime counts as not held.
            let text = fs::read_to_string(file?.path()).unwrap_or_default();
            ids.extend(id_in(&text));
        }
        for held in ids.clone() {
            ids.extend(reached_from(held)?);
        }
        let mut programs = Vec::new();
        for id in ids {
            let Some(program) = existing(id)? else { continue };
            let info = program_info(program.as_fd())?;
            programs.push(Self {
                id,
                name: text(&info.name),
                instructions: info.xlated_prog_len / size_of::<Insn>() as u32,
                bytes: info.jited_prog_len,
                runs: info.run_cnt,
                run_ns: info.run_time_ns,
            });
        }
        Ok(programs)
    }
}

/// Opens a program by its id. None if it does not exist any more.
fn existing(id: u32) -> io::Result<Option<OwnedFd>> {
    match program(id) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        program => program.map(Some),
    }
}

/// Returns the ids of the programs that a program can tail-call.
fn reached_from(id: u32) -> io::Result<Vec<u32>> {
    let Some(program) = existing(id)? else { return Ok(vec![]) };
    let mut ids = Vec::new();
    for table in maps_of(program.as_fd())?.iter().filter(|map| map.of_programs) {
        for key in 0..table.entries {
            let mut number = [0; 4];
            if read_entry(table.fd.as_fd(), key, &mut number)? {
                ids.push(u32::from_ne_bytes(number));
            }
        }
    }
    Ok(ids)
}

/// Finds the program's id in the /proc fdinfo of a program or a link.
fn id_in(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("prog_id:"))?.trim().parse().ok()
}

/// Makes the kernel count the runs of all BPF programs on this host as long as this value exists. Each run
/// then reads the clock twice (Linux 5.8, CAP_SYS_ADMIN).
#[derive(Debug)]
pub struct RunStatistics {
    _fd: OwnedFd,
}

impl RunStatistics {
    /// Starts counting.
    ///
    /// # Errors
    /// A privilege is missing, or the kernel is too old.
    pub fn enable() -> Result<Self> {
        // SAFETY: takes a number only.
        let fd = opened(unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) });
        fd.map(|_fd| Self { _fd }).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Error::Unsupported {
                feature: "counting the runs of BPF programs (Linux 5.8)".into(),
                remedy: "use a newer kernel".into(),
            },
            _ => privileged(error, CAPABILITY, "count the runs of", "BPF programs"),
        })
    }
}

/// An XDP program for test runs only.
#[derive(Debug)]
pub struct ProgTestRun(OwnedFd);

impl ProgTestRun {
    /// Loads a program.
    ///
    /// # Errors
    /// The kernel rejects it, or a privilege is missing.
    pub fn load(name: &CStr, instructions: &[Insn]) -> Result<Self> {
        load(name, instructions, false).map(Self).map_err(|LoadError { error, log }| {
            match log.is_empty() {
                true => privileged(error, CAPABILITY, "load", "a program for a test run"),
                false => Error::Unsupported {
                    feature: "this program".into(),
                    remedy: format!("the kernel's verifier says: {log}"),
                },
            }
        })
    }

    /// Runs the program on a packet `times` times. Returns its verdict (`xdp_action`) and the average
    /// duration of a run in ns.
    ///
    /// # Errors
    /// The kernel refuses, for example because the packet is shorter than an Ethernet header.
    pub fn run(&self, packet: &[u8], times: u32) -> Result<(i32, u32)> {
        test_run(self.0.as_fd(), packet, &mut [], [times, 0, 0])
            .map(|done| (done.retval.cast_signed(), done.duration))
            .map_err(|error| Error::system("run a program on", "a packet", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_of_a_program_and_of_its_link_names_the_program() {
        let program =
            "pos:\t0\nflags:\t02\nprog_type:\t6\nprog_tag:\tab\nprog_id:\t71\nrun_cnt:\t0\n";
        let link =
            "pos:\t0\nlink_type:\txdp\nlink_id:\t3\nprog_tag:\tab\nprog_id:\t72\nifindex:\t9\n";
        assert_eq!((id_in(program), id_in(link)), (Some(71), Some(72)));
        assert_eq!(id_in("pos:\t0\nmap_type:\t2\nmap_id:\t5\n"), None);
    }

    #[test]
    fn only_a_function_is_found_as_a_kernel_function() {
        let Ok(types) = Btf::from_vmlinux() else {
            println!("skipped: needs the kernel's types; get it by CONFIG_DEBUG_INFO_BTF");
            return;
        };
        assert!(kernel_function(&types, "schedule").is_some(), "every kernel has one");
        assert_eq!(kernel_function(&types, "no_such_function_anywhere"), None);
        assert_eq!(kernel_function(&types, "task_struct"), None, "a type, no function");
    }
}
