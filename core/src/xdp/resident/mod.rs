//! The resident program: one per interface, shared by all processes that use it.
//!
//! ```text
//!   process A --+--> bpf_link --> program on eth0 --> maps
//!               +--> maps: stages, sockets, counters     ^
//!   process B --+--> bpf_link (the same, found by id)    |
//!               +--> maps (the same, found by id) -------+
//! ```
//!
//! The first process attaches it. Later ones find it by the kernel's id and hold the same link and
//! maps. The kernel detaches it with the last holder, however the processes end: nothing needs
//! cleaning up after a crash, and opening or closing a port changes maps, not the attachment.
//!
//! A stage of the chain of programs (bpf/ingress.h) belongs to the process that inserted a socket
//! into its empty entry of `sluice_owned`: the kernel decides which of two is first, and removes the
//! socket when its owner ends. The stage acts from the moment the same socket is in `sluice_alive`.
//! Counters continue from owner to owner: each notes what it found.
//!
//! Needs Linux 5.10 (bpf_link for XDP 5.9, tying maps to a program 5.10), CAP_NET_ADMIN, CAP_BPF,
//! and CAP_SYS_ADMIN to find what another process has attached.

mod attach;
mod metadata;
mod pin;
mod program;
mod shared;
mod stage;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use metadata::obstacle as metadata_obstacle;
pub use program::Inspect;
pub(crate) use program::{
    Sockets, load as load_program, load_copying, load_flows, load_forwarding,
};
pub use shared::Counters;
pub(crate) use shared::{COUNTERS, DROP, FILTERED, FLOWS, FORWARD, MIRRORS, QUEUES_MAX, WHOLE};
pub use stage::{Action, Owner};
pub(crate) use stage::{ClaimLock, Direct, Stage};

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use shared::{ControlPage, END, Tallies};

use super::bpf::{self, Mode, ProgramMap};
use crate::error::{Error, Result};
use crate::link::Interface;

/// Pause between two attempts while other processes attach, detach or clean up.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Number of attempts: a second in all.
const LOOKS: usize = 100;

/// The resident program of an interface, as one of its users holds it.
#[derive(Debug)]
pub struct Resident {
    interface: String,
    mode: Mode,
    program: u32,
    link: OwnedFd,
    stages: OwnedFd,
    owned: OwnedFd,
    alive: OwnedFd,
    direct: OwnedFd,
    out: OwnedFd,
    owners: OwnedFd,
    control: ControlPage,
    /// The mapped counters' map, for programs that count.
    tallies_fd: OwnedFd,
    control_fd: OwnedFd,
    tallies: Tallies,
    /// The map where a reader leaves a packet's driver metadata.
    metadata: Option<OwnedFd>,
    /// Why there is no reader, if there is none.
    no_metadata: String,
}

/// A stage with an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The stage's number in the chain.
    pub place: u32,
    /// Its owner.
    pub owner: Owner,
    /// Its counters since the owner took it.
    pub tally: Counters,
}

/// Requested attachment mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModeWish {
    /// Native if the driver supports it, skb mode otherwise.
    #[default]
    Best,
    /// This mode only.
    Only(Mode),
}

impl ModeWish {
    fn preferred(self) -> Mode {
        match self {
            Self::Best => Mode::Native,
            Self::Only(mode) => mode,
        }
    }
}

impl Resident {
    /// Joins the users of the interface's resident program, or attaches it. Call it in the
    /// interface's network namespace. It also removes what killed owners have left, and pins of
    /// programs whose interfaces were removed. The second value says why the mode is not native,
    /// if native was possible to ask for.
    ///
    /// # Errors
    /// A foreign program on the interface, a missing privilege, a driver that cannot.
    pub fn join(interface: &Interface, wish: ModeWish) -> Result<(Self, Option<String>)> {
        Self::join_for(interface, wish, false)
    }

    /// Joins as [`join`](Self::join) does; with `metadata`, a program that this call attaches also
    /// reads the driver's metadata of packets, the card's time and hash (Linux 6.16). If that is not
    /// possible, [`no_metadata`](Self::no_metadata) says why.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_for(
        interface: &Interface,
        wish: ModeWish,
        metadata: bool,
    ) -> Result<(Self, Option<String>)> {
        pin::sweep_now();
        // A process that comes or goes at this moment makes another attempt necessary.
        for _ in 0..LOOKS {
            if let Some(resident) = Self::find(interface)? {
                // What is left does no harm; if it cannot be removed, the next process tries.
                let _ = resident.clean();
                let wanted = wish.preferred();
                if resident.mode == wanted {
                    return Ok((resident, None));
                }
                let reason = format!(
                    "the resident program of {0} is attached in {1} mode already; its users have to \
                     end (see `sluice claims {0}`; `sluice detach {0}` ends them and takes it off) \
                     before it can be in {2} mode",
                    interface.name,
                    resident.mode.name(),
                    wanted.name()
                );
                return match wish {
                    ModeWish::Best => Ok((resident, Some(reason))),
                    ModeWish::Only(_) => Err(Error::Usage(reason)),
                };
            }
            if let Some(attached) = attach::attach(interface, wish, metadata)? {
                return Ok(attached);
            }
            // Another process is attaching it, which takes some drivers a while.
            std::thread::sleep(LOOK_AGAIN);
        }
        let busy = io::Error::from_raw_os_error(libc::EBUSY);
        Err(Error::system("attach the XDP program to", &interface.name, busy)
            .remedy("other programs come and go there: try again"))
    }

    /// Returns the interface's resident program, if it has one. Call it in the interface's network
    /// namespace.
    ///
    /// # Errors
    /// A foreign program on the interface, a missing privilege.
    pub fn find(interface: &Interface) -> Result<Option<Self>> {
        let failed = |error| not_found(error, interface);
        let Some((id, mode, program)) = open_program(interface)? else { return Ok(None) };
        // In this order: a process that ends closes the link before the map of stages, which is
        // emptied with its last descriptor. So if a link still exists, that map was never emptied.
        let maps = match bpf::maps_of(program.as_fd()) {
            Err(error) if no_longer_exists(&error) => return Ok(None),
            other => other.map_err(failed)?,
        };
        let Some(link) = bpf::link_of(id).map_err(failed)? else { return Ok(None) };
        Self::from_parts(interface, mode, id, link, maps).map(Some)
    }

    fn from_parts(
        interface: &Interface,
        mode: Mode,
        program: u32,
        link: OwnedFd,
        mut maps: Vec<ProgramMap>,
    ) -> Result<Self> {
        let mut take = |name: &str| {
            let name = &name[..name.len().min(15)];
            let at = maps.iter().position(|map| map.name == name);
            at.map(|at| maps.swap_remove(at)).ok_or_else(|| other_version(interface))
        };
        let failed = |error| privileged(error, "map the memory of", interface.name.as_str());
        let control_fd = take(".data.control")?.fd;
        let control = ControlPage::map(control_fd.as_fd()).map_err(failed)?;
        if control.version() != shared::VERSION {
            return Err(other_version(interface));
        }
        let tallies = take("sluice_tallies")?;
        let mapped = Tallies::map(tallies.fd.as_fd(), tallies.entries).map_err(failed)?;
        Ok(Self {
            interface: interface.name.clone(),
            mode,
            program,
            link,
            stages: take("sluice_stages")?.fd,
            owned: take("sluice_owned")?.fd,
            alive: take("sluice_alive")?.fd,
            direct: take("sluice_direct")?.fd,
            out: take("sluice_out")?.fd,
            owners: take("sluice_owners")?.fd,
            control,
            tallies_fd: tallies.fd,
            control_fd,
            tallies: mapped,
            metadata: take(metadata::MAP).ok().map(|map| map.fd),
            no_metadata: metadata::not_at_attaching(interface),
        })
    }

    /// Says why the card's times and hashes are not read; none if they are.
    pub fn no_metadata(&self) -> Option<&str> {
        self.metadata().err()
    }

    /// Returns the map where a reader leaves a packet's driver metadata, or why there is no reader.
    pub(crate) fn metadata(&self) -> std::result::Result<&OwnedFd, &str> {
        self.metadata.as_ref().ok_or(&self.no_metadata)
    }

    /// Returns the mode it is attached in.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the program's id, as `bpftool prog` shows it.
    pub fn program(&self) -> u32 {
        self.program
    }

    /// Returns true if frames may span several buffers.
    pub fn frags(&self) -> bool {
        self.control.frags()
    }

    /// Returns the counters of all packets that came to the interface since the program was attached;
    /// `dropped` are those of the owner that drops what the others leave.
    pub fn total(&self) -> Counters {
        self.tallies.of(END)
    }

    /// Returns the counters of a stage since the program was attached.
    pub fn tally(&self, stage: u32) -> Counters {
        self.tallies.of(stage)
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        privileged(error, operation, &self.interface)
    }
}

/// Opens the interface's program, if it has one; fails if it is not sluice's, of any version.
fn open_program(interface: &Interface) -> Result<Option<(u32, Mode, OwnedFd)>> {
    let failed = |error| not_found(error, interface);
    let Some((id, mode)) = bpf::attached(interface.index).map_err(failed)? else {
        return Ok(None);
    };
    let program = match bpf::program(id) {
        Err(error) if no_longer_exists(&error) => return Ok(None),
        other => other.map_err(failed)?,
    };
    let name = bpf::program_name(program.as_fd()).map_err(failed)?;
    match name == attach::PROGRAM {
        true => Ok(Some((id, mode, program))),
        false => Err(foreign(interface, id, &name)),
    }
}

fn no_longer_exists(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}

fn not_found(error: io::Error, interface: &Interface) -> Error {
    privileged(error, "look for the XDP program of", &interface.name)
}

/// Turns a failed bpf(2) into an error for users.
pub(super) fn privileged(error: io::Error, operation: &'static str, interface: &str) -> Error {
    bpf::privileged(error, "CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN", operation, interface)
}

fn foreign(interface: &Interface, id: u32, name: &str) -> Error {
    Error::Unsupported {
        feature: format!("XDP on {}", interface.name),
        remedy: format!(
            "another program is attached there, '{name}' (id {id}): end its user, or detach it \
             by `ip link set {} xdp off` (`bpftool net`, `bpftool prog show id {id}` say \
             more); packet:{0} works beside it",
            interface.name
        ),
    }
}

fn other_version(interface: &Interface) -> Error {
    Error::Unsupported {
        feature: format!("the resident program on {}", interface.name),
        remedy: format!(
            "another version of sluice attached it: end its users, or `sluice detach {}`, after \
             which they get no more packets",
            interface.name
        ),
    }
}
