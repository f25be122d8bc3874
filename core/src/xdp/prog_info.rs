//! BPF programs that are loaded: how long they are, how often they ran, and for how long.
//!
//! Sources: linux/bpf.h (`struct bpf_prog_info`), kernel/bpf/syscall.c (`bpf_prog_show_fdinfo`,
//! `bpf_enable_stats`).

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::{fs, io};

use super::bpf;
use super::resident::privileged;
use crate::error::{Error, Result};
use crate::filter::ebpf::Insn;

/// Bytes of an instruction (struct bpf_insn).
const INSTRUCTION_BYTES: u32 = 8;

/// A BPF program that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgInfo {
    /// Its number.
    pub id: u32,
    /// Its name: 15 characters at most.
    pub name: String,
    /// Instructions that the verifier has made of it: what could never run is gone, and some
    /// calls of helpers have become instructions. A jump passes some of them by.
    pub instructions: u32,
    /// Bytes of machine code that the kernel has made of these; 0 where it interprets them.
    pub bytes: u32,
    /// How often it ran while somebody had [`RunStatistics`]; what another program has called or
    /// jumped to counts as that one's.
    pub runs: u64,
    /// How long that took, in ns, with the reading of a clock before and behind.
    pub run_ns: u64,
}

impl ProgInfo {
    /// The programs that a process has a file descriptor of, or of a link to, and those that they
    /// can go on to by a tail call; by their numbers.
    ///
    /// # Errors
    /// There is no such process, or it is somebody else's; CAP_SYS_ADMIN is missing.
    pub fn by(pid: u32) -> Result<Vec<Self>> {
        Self::held_by(pid).map_err(|error| {
            privileged(error, "look up the BPF programs of", &format!("process {pid}"))
        })
    }

    fn held_by(pid: u32) -> io::Result<Vec<Self>> {
        let mut ids = BTreeSet::new();
        for file in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
            // What is closed meanwhile is held no more.
            let text = fs::read_to_string(file?.path()).unwrap_or_default();
            ids.extend(id(&text));
        }
        for held in ids.clone() {
            ids.extend(reached_from(held)?);
        }
        ids.into_iter().map(Self::look).filter_map(Result::transpose).collect()
    }

    /// One by its number; none where it is gone.
    fn look(id: u32) -> io::Result<Option<Self>> {
        let Some(program) = there(id)? else { return Ok(None) };
        let info = bpf::program_info(program.as_fd())?;
        Ok(Some(Self {
            id,
            name: bpf::program_name(program.as_fd())?,
            instructions: info.xlated_prog_len / INSTRUCTION_BYTES,
            bytes: info.jited_prog_len,
            runs: info.run_cnt,
            run_ns: info.run_time_ns,
        }))
    }
}

/// A hold on a program, where it is still there.
fn there(id: u32) -> io::Result<Option<OwnedFd>> {
    match bpf::program(id) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        program => program.map(Some),
    }
}

/// The programs that one can go on to.
fn reached_from(id: u32) -> io::Result<Vec<u32>> {
    let Some(program) = there(id)? else { return Ok(vec![]) };
    let mut ids = Vec::new();
    for table in bpf::maps_of(program.as_fd())?.iter().filter(|map| map.of_programs) {
        for key in 0..table.entries {
            let mut number = [0; 4];
            if bpf::read_entry(table.fd.as_fd(), key, &mut number)? {
                ids.push(u32::from_ne_bytes(number));
            }
        }
    }
    Ok(ids)
}

/// The program that a file descriptor is of, by what /proc tells of it.
fn id(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("prog_id:"))?.trim().parse().ok()
}

/// The kernel counts the runs of all BPF programs on this host while there is such a value, which
/// costs each run two readings of a clock (Linux 5.8, CAP_SYS_ADMIN).
#[derive(Debug)]
pub struct RunStatistics {
    /// The kernel stops when this is closed.
    _fd: OwnedFd,
}

impl RunStatistics {
    /// From now on.
    ///
    /// # Errors
    /// A privilege is missing, or the kernel is too old.
    pub fn on() -> Result<Self> {
        bpf::count_runs().map(|_fd| Self { _fd }).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Error::Unsupported {
                feature: "counting the runs of BPF programs (Linux 5.8)".into(),
                remedy: "use a newer kernel".into(),
            },
            _ => privileged(error, "count the runs of", "BPF programs"),
        })
    }
}

/// An XDP program to be tried.
#[derive(Debug)]
pub struct ProgTestRun(OwnedFd);

impl ProgTestRun {
    /// Loads a program.
    ///
    /// # Errors
    /// The kernel does not take it, or a privilege is missing.
    pub fn load(name: &CStr, instructions: &[Insn]) -> Result<Self> {
        bpf::load(name, instructions, false).map(Self).map_err(|refused| {
            match refused.said.as_str() {
                "" => super::resident::privileged(refused.error, "load a program for", "a trial"),
                said => Error::Unsupported {
                    feature: "this program".into(),
                    remedy: format!("the kernel's verifier says: {said}"),
                },
            }
        })
    }

    /// Runs it on a packet so many times, and says its answer (`xdp_action`) and how long one run
    /// took on average, in ns.
    ///
    /// # Errors
    /// The kernel refuses, as it does packets shorter than an Ethernet header.
    pub fn run(&self, packet: &[u8], times: u32) -> Result<(i32, u32)> {
        bpf::run_times(self.0.as_fd(), packet, times)
            .map_err(|error| Error::system("try a program on", "a packet", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_its_file_and_by_that_of_its_link() {
        let program =
            "pos:\t0\nflags:\t02\nprog_type:\t6\nprog_tag:\tab\nprog_id:\t71\nrun_cnt:\t0\n";
        let link =
            "pos:\t0\nlink_type:\txdp\nlink_id:\t3\nprog_tag:\tab\nprog_id:\t72\nifindex:\t9\n";
        assert_eq!((id(program), id(link)), (Some(71), Some(72)));
        assert_eq!(id("pos:\t0\nmap_type:\t2\nmap_id:\t5\n"), None);
    }
}
