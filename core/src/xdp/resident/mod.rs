//! The resident program: one on an interface, held by all who use it, gone with the last.
//!
//! ```text
//!   process A --+--> bpf_link --> program on eth0 --> maps
//!               +--> maps: stages, sockets, counters     ^
//!   process B --+--> bpf_link (the same, found by id)    |
//!               +--> maps (the same, found by id) -------+
//! ```
//!
//! Nobody is its master. Who comes first attaches it; who comes later finds it by the number
//! the kernel gives it and takes a hold of the same link and maps. The kernel takes it off when
//! the last hold is gone, however the processes end. So there is nothing to clean up after a
//! crash, and a port that is opened or closed beside others changes maps, not the attachment.
//!
//! A stage, a place in the chain of programs (bpf/include/ingress.h), belongs to who could put
//! a socket into `sluice_owned` where none was: the kernel decides who was first, and takes the
//! socket out again when its owner ends. The stage acts from the moment the same socket is in
//! `sluice_alive`. Counters go on from owner to owner: each notes what it found.
//!
//! Needs Linux 5.10 (bpf_link for XDP 5.9, tying maps to a program 5.10), CAP_NET_ADMIN, CAP_BPF,
//! and CAP_SYS_ADMIN to find what another process has attached.

mod attach;
mod metadata;
mod owner;
mod pin;
mod places;
mod program;
mod refusal;
mod shared;
mod stage;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use metadata::obstacle as metadata_obstacle;
pub use owner::Owner;
pub(crate) use program::{
    Sockets, load as load_program, load_copying, load_flows, load_forwarding,
};
pub use shared::{Action, Counters};
pub(crate) use shared::{COUNTERS, DROP, FILTERED, FLOWS, FORWARD, MIRRORS, QUEUES_MAX, WHOLE};
pub(crate) use stage::{ClaimLock, Direct, Stage};

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use shared::{Control, END, Tallies};

use super::bpf::{self, Mode, ProgramMap};
use crate::error::{Error, Result};
use crate::link::Interface;

/// Between two looks at an interface where others come and go.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How often one looks.
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
    control: Control,
    /// Its memory, for programs that count.
    tallies_fd: OwnedFd,
    control_fd: OwnedFd,
    tallies: Tallies,
    /// Where a reader leaves what the driver knows of a packet.
    metadata: Option<OwnedFd>,
    /// Why there is none, where there is none.
    no_metadata: String,
}

/// A stage that somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Its place in the chain.
    pub place: u32,
    /// Who has it, and what for.
    pub owner: Owner,
    /// What it has counted since its owner took it.
    pub tally: Counters,
}

/// How a program is to be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModeWish {
    /// Native where the driver can, skb mode otherwise.
    #[default]
    Best,
    /// This one or none.
    Only(Mode),
}

impl Resident {
    /// Joins the users of the interface's resident program, or attaches it. To be called in the
    /// interface's network namespace. What owners that were killed have left is taken away, and so
    /// are pins of programs whose interfaces were removed. The second value says why it is not native,
    /// where it was to be if possible.
    ///
    /// # Errors
    /// A foreign program on the interface, a missing privilege, a driver that cannot.
    pub fn join(interface: &Interface, wish: ModeWish) -> Result<(Self, Option<String>)> {
        Self::join_for(interface, wish, false)
    }

    /// The same; with `metadata`, a program that this call attaches also reads what the driver
    /// knows of packets, the card's time and hash (Linux 6.16). Where that cannot be,
    /// [`no_metadata`](Self::no_metadata) says why.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_for(
        interface: &Interface,
        wish: ModeWish,
        metadata: bool,
    ) -> Result<(Self, Option<String>)> {
        pin::sweep_now();
        // Whoever else comes or goes at this moment makes another look necessary, not many.
        for _ in 0..LOOKS {
            if let Some(resident) = Self::find(interface)? {
                // What the dead left does no harm: if it cannot be cleaned up, it is the next's.
                let _ = resident.clean();
                return match wish {
                    ModeWish::Only(mode) if mode != resident.mode => Err(Error::Usage(format!(
                        "{}: the resident program is attached in {} mode; its users have to end \
                         (see `sluice claims {0}`; `sluice detach {0}` ends them and takes it off) \
                         before it can be in {} mode",
                        interface.name,
                        resident.mode.name(),
                        mode.name()
                    ))),
                    ModeWish::Best if resident.mode != Mode::Native => {
                        let reason = format!(
                            "the resident program of {} is attached in {} mode already; its users \
                             have to end (see `sluice claims {0}`; `sluice detach {0}` ends them \
                             and takes it off) before it can be in native mode",
                            interface.name,
                            resident.mode.name()
                        );
                        Ok((resident, Some(reason)))
                    }
                    _ => Ok((resident, None)),
                };
            }
            if let Some(attached) = attach::attach(interface, wish, metadata)? {
                return Ok(attached);
            }
            // Another is attaching it, which with some drivers takes its time.
            std::thread::sleep(LOOK_AGAIN);
        }
        let busy = io::Error::from_raw_os_error(libc::EBUSY);
        Err(Error::system("attach the XDP program to", &interface.name, busy)
            .remedy("other programs come and go there: try again"))
    }

    /// The interface's resident program, if it has one. To be called in the interface's network
    /// namespace.
    ///
    /// # Errors
    /// A foreign program on the interface, a missing privilege.
    pub fn find(interface: &Interface) -> Result<Option<Self>> {
        let failed = |error| not_found(error, interface);
        let Some((id, mode, program)) = look(interface)? else { return Ok(None) };
        // In this order: whoever leaves lets the link go before the map of stages, which is
        // emptied when nobody has it. So if there is still a link, that map was never let go.
        let maps = match bpf::maps_of(program.as_fd()) {
            Err(error) if is_gone(&error) => return Ok(None),
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
        let control = Control::map(control_fd.as_fd()).map_err(failed)?;
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

    /// Why the card's times and hashes are not read; none if they are.
    pub fn no_metadata(&self) -> Option<&str> {
        self.metadata().err()
    }

    /// Where a reader leaves what the driver knows of a packet, or why there is none.
    pub(crate) fn metadata(&self) -> std::result::Result<&OwnedFd, &str> {
        self.metadata.as_ref().ok_or(&self.no_metadata)
    }

    /// How it is attached.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The program's number, as `bpftool prog` shows it.
    pub fn program(&self) -> u32 {
        self.program
    }

    /// Whether frames may lie in several buffers.
    pub fn frags(&self) -> bool {
        self.control.frags()
    }

    /// All packets that came to the interface since the program was attached; `dropped` of these
    /// for who drops everything that others leave.
    pub fn total(&self) -> Counters {
        self.tallies.of(END)
    }

    /// What a stage has counted since the program was attached.
    pub fn tally(&self, stage: u32) -> Counters {
        self.tallies.of(stage)
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        privileged(error, operation, &self.interface)
    }
}

/// The interface's program, if it has one; an error if it is not ours, of whatever version.
fn look(interface: &Interface) -> Result<Option<(u32, Mode, OwnedFd)>> {
    let failed = |error| not_found(error, interface);
    let Some((id, mode)) = bpf::attached(interface.index).map_err(failed)? else {
        return Ok(None);
    };
    let program = match bpf::program(id) {
        Err(error) if is_gone(&error) => return Ok(None),
        other => other.map_err(failed)?,
    };
    let name = bpf::program_name(program.as_fd()).map_err(failed)?;
    match name == attach::PROGRAM {
        true => Ok(Some((id, mode, program))),
        false => Err(foreign(interface, id, &name)),
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}

fn not_found(error: io::Error, interface: &Interface) -> Error {
    privileged(error, "look for the XDP program of", &interface.name)
}

/// What a failed bpf(2) means for the user.
pub(super) fn privileged(error: io::Error, operation: &'static str, interface: &str) -> Error {
    bpf::privileged(error, "CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN", operation, interface)
}

fn foreign(interface: &Interface, id: u32, name: &str) -> Error {
    Error::Unsupported {
        feature: format!("XDP on {}", interface.name),
        remedy: format!(
            "another program is attached there, '{name}' (id {id}): end who uses it, or take it \
             off by `ip link set {} xdp off` (`bpftool net`, `bpftool prog show id {id}` say \
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
