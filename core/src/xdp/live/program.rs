//! A program that makes packets, its runs, and the interface through which its frames leave.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::privileged;
use crate::error::{Error, Result};
use crate::filter::ebpf::Reg::{R0, R1, R2, R3};
use crate::filter::ebpf::{Assembler, Helper, Insn, xdp_action};
use crate::link::{Interface, netns, xdp_abilities};
use crate::xdp::RedirectCounts;
use crate::xdp::bpf::{self, SharedCounters};
use crate::xdp::redirects::{RedirectSender, ThreadMark};

/// Number of frames between two checks for a signal. 256 is possible, but not faster.
const BATCH: u32 = 64;
/// More than the kernel allows (`TEST_XDP_MAX_BATCH`).
const TOO_MANY: u32 = 257;
/// Loopback is the first interface of every namespace.
const LOOPBACK: u32 = 1;

/// A program that makes packets for live frames.
#[derive(Debug)]
pub struct LiveProgram {
    program: OwnedFd,
    frame: Vec<u8>,
    /// The namespace whose interface keeps the program registered in the kernel.
    known: Option<File>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// All packets were made.
    Done,
    /// A signal arrived.
    Interrupted,
}

impl LiveProgram {
    /// Loads a program. `frame` is the content of each frame before the program's first run on it.
    ///
    /// # Errors
    /// The kernel rejects the program, or a privilege is missing.
    pub fn load(name: &CStr, instructions: &[Insn], frame: Vec<u8>) -> Result<Self> {
        let program = bpf::load(name, instructions, false).map_err(|refused| {
            match refused.log.as_str() {
                "" => privileged(refused.error, "load a program for", "live frames"),
                // The errno is the same as for a missing privilege.
                log => Error::Unsupported {
                    feature: "a program for these live frames".into(),
                    remedy: format!("send by another method; the kernel's verifier says: {log}"),
                },
            }
        })?;
        // On x86 the kernel calls XDP programs through a dispatcher with a branch for each program in use.
        // A run changes it at its start and its end, and waits for all RCU readers each time: some 25 ms
        // per run, and as long as runs on other CPUs take (net/bpf/test_run.c and kernel/bpf/dispatcher.c,
        // `bpf_dispatcher_change_prog`). An attached program stays in the dispatcher. So this one is
        // attached where no packets arrive, until the descriptor is closed: to the loopback interface,
        // which is down, of a private namespace. Without CAP_SYS_ADMIN runs start slowly, and are longer.
        let known = netns::private(|| {
            bpf::attach_permanently(program.as_fd(), LOOPBACK)
                .map_err(|error| Error::system("attach", "a program of live frames", error))
        })
        .ok();
        Ok(Self { program, frame, known })
    }

    /// Returns true if runs start and end without delay.
    pub(super) fn is_quick(&self) -> bool {
        self.known.is_some()
    }

    /// Makes the next packet without sending it.
    ///
    /// # Errors
    /// The program did not make one.
    pub fn once(&self) -> Result<Vec<u8>> {
        let failed = |error| Error::system("make", "a packet", error);
        let (answer, packet) = bpf::run(self.program.as_fd(), &self.frame).map_err(failed)?;
        match answer {
            xdp_action::REDIRECT => Ok(packet),
            _ => Err(failed(io::Error::other(format!("the program answered {answer}")))),
        }
    }

    /// Runs the program `times` times, or until this thread gets a signal.
    ///
    /// # Errors
    /// The kernel does not support live frames, or not of this length.
    pub fn run(&self, times: u32) -> Result<RunEnd> {
        self.run_on(times, self.frame.len())
    }

    /// Runs as [`run`](Self::run) does, on frames of at most `bytes` bytes.
    pub(super) fn run_on(&self, times: u32, bytes: usize) -> Result<RunEnd> {
        let frame = &self.frame[..bytes.min(self.frame.len())];
        match bpf::run_live(self.program.as_fd(), frame, times, BATCH) {
            Ok(()) => Ok(RunEnd::Done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(RunEnd::Interrupted),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(self.refused(error)),
            Err(error) => Err(privileged(error, "send", "live frames")),
        }
    }

    /// Explains EINVAL. A kernel with live frames rejects a batch that is too large before it checks the
    /// frame, and with another errno (net/bpf/test_run.c, `bpf_prog_test_run_xdp`).
    fn refused(&self, error: io::Error) -> Error {
        let probe = bpf::run_live(self.program.as_fd(), &self.frame, 1, TOO_MANY);
        match probe.map_err(|error| error.raw_os_error()) {
            Err(Some(libc::E2BIG)) => Error::system("send", "live frames", error).remedy(
                "they have an Ethernet header at least, and one page at most: send others, or by \
                 another method",
            ),
            _ => Error::Unsupported {
                feature: "sending live frames (Linux 5.18)".into(),
                remedy: "send by another method".into(),
            },
        }
    }
}

/// The interface through which a program's frames leave, in a map of one entry (`DEVMAP`, Linux 4.14).
///
/// For a redirect by index the kernel looks up the interface for each frame, some 3 % of a frame's cost; a
/// redirect by a map avoids that (net/core/filter.c, `__xdp_do_redirect_frame`). The kernel removes the
/// entry when the interface is removed.
#[derive(Debug)]
pub struct RedirectTarget {
    interface: Interface,
    map: OwnedFd,
    /// One counter: frames for which the map was empty.
    removed: SharedCounters,
    /// None without CAP_PERFMON or BTF.
    redirects: Option<Arc<RedirectSender>>,
}

impl RedirectTarget {
    /// Creates a target that is an interface of this thread's network namespace.
    ///
    /// # Errors
    /// The interface does not exist, or a privilege is missing.
    pub fn by(interface: &Interface) -> Result<Self> {
        let failed = |error| privileged(error, "make a map for live frames to", &interface.name);
        let map = bpf::create_interface_map(c"sluice_exit", interface.index).map_err(failed)?;
        let redirects = RedirectSender::new(map.as_fd(), 0).ok().map(Arc::new);
        let removed = SharedCounters::new(&[0])?;
        Ok(Self { interface: interface.clone(), map, removed, redirects })
    }

    /// Returns the interface as it was when the target was created.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Writes the end of a program: it redirects the frame. Clobbers R1 to R3.
    pub fn emit_redirect(&self, asm: &mut Assembler) {
        let end = asm.label();
        asm.load_map(R1, &self.map);
        asm.mov(R2, 0);
        // The verdict if the interface was removed.
        asm.mov(R3, xdp_action::DROP);
        asm.call(Helper::REDIRECT_MAP);
        asm.jeq(R0, xdp_action::REDIRECT, end);
        asm.load_map_value(R2, &self.removed, 0);
        bpf::write_add(asm, R2 + 0, 1);
        asm.place(end);
        asm.exit();
    }

    /// Returns the fate of the frames. Without CAP_PERFMON or BTF, it includes only frames whose interface
    /// was removed.
    pub fn counts(&self) -> RedirectCounts {
        let traced = self.redirects.as_ref().map(|sender| sender.counts()).unwrap_or_default();
        RedirectCounts { removed: self.removed.get(0), ..traced }
    }

    /// Counts the frames that the calling thread sends, until it drops the mark.
    pub(super) fn mark_thread(&self) -> Option<ThreadMark> {
        self.redirects.as_ref()?.mark_thread().ok()
    }
}

/// Checks that live frames can leave through an interface of the namespace `netns`, or of this thread's, as
/// far as the kernel reports it (since 6.3).
///
/// # Errors
/// The interface is down, or its driver does not accept redirected packets.
pub fn check_target(interface: &Interface, netns: Option<&str>) -> Result<()> {
    let name = &interface.name;
    if !interface.up {
        return Err(Error::Usage(format!("{name} is down: ip link set {name} up")));
    }
    match xdp_abilities(netns, interface)? {
        Some(abilities) if !abilities.sends_redirected() => Err(Error::Unsupported {
            feature: format!("sending live frames out of {name}"),
            remedy: match interface.kind.as_str() {
                "veth" => "the other end needs NAPI: ethtool -K OTHER_END gro on".into(),
                _ => format!(
                    "the driver takes no redirected packets; some do with a program attached: \
                     sluice attach {name}"
                ),
            },
        }),
        _ => Ok(()),
    }
}
