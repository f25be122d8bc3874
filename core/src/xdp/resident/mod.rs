//! The resident program: one per interface, shared by all processes that use it.
//!
//! ```text
//!   process A --+--> bpf_link --> program on eth0 --> maps
//!               +--> maps: stages, sockets, counters     ^
//!   process B --+--> bpf_link (the same, found by id)    |
//!               +--> maps (the same, found by id) -------+
//! ```
//!
//! The first process attaches it. Later ones find it by the kernel's id and hold the same link and maps.
//! When the last holder exits, no matter how, the kernel detaches it. Nothing of a killed process affects
//! packets; the next process that joins frees what is left. Opening or closing a port changes maps, not the
//! attachment.
//!
//! A stage of the chain of programs (bpf/ingress.h) belongs to the process that inserted a socket into its
//! empty entry of `sluice_owned`. The kernel decides which of two processes is first, and removes the
//! socket when its owner exits. The stage acts from the moment the same socket is in `sluice_alive`.
//! Counters continue from owner to owner: each owner records their initial values.
//!
//! Needs Linux 5.10 (bpf_link for XDP: 5.9; binding maps to a program: 5.10), CAP_NET_ADMIN, CAP_NET_RAW, and
//! CAP_SYS_ADMIN to find objects that another process has created.

mod attach;
mod metadata;
mod pin;
mod program;
mod scrub_stage;
mod shared;
mod stage;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use metadata::obstacle as metadata_obstacle;
pub use program::Inspect;
pub(crate) use program::{
    Sockets, load as load_program, load_copying, load_flows, load_forwarding,
};
pub use scrub_stage::{ChainMaps, KeptProgram, ScrubStage, attach_egress, attach_ingress};
pub use shared::StageCounters;
pub(crate) use shared::{COUNTERS, DROP, FILTERED, FLOWS, FORWARD, MIRRORS, QUEUES_MAX, WHOLE};
pub use stage::{Action, Owner};
pub(crate) use stage::{ClaimLock, Direct, Stage};

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use shared::{ControlPage, END, Tallies};

use super::bpf::{self, Mode, ProgramMap};
use crate::error::{Error, Result};
use crate::link::Interface;

/// Pause between two attempts while other processes attach, detach or clean up.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Number of attempts: one second in total.
const MAX_ATTEMPTS: usize = 100;

/// The resident program of an interface, as one of its users holds it.
#[derive(Debug)]
pub struct Resident {
    interface: String,
    /// The folder of its pins.
    pins: PathBuf,
    rx_queues: u32,
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
    /// Descriptor of the map of counters, for programs that count.
    tallies_fd: OwnedFd,
    control_fd: OwnedFd,
    tallies: Tallies,
    /// The map in which a reader stores a packet's driver metadata.
    metadata: Option<OwnedFd>,
    /// The reason if there is no reader.
    no_metadata: String,
}

/// A stage with an owner, or kept without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedStage {
    /// The number of the stage.
    pub stage: u32,
    /// Its owner.
    pub owner: Owner,
    /// Its counters since the owner took it.
    pub tally: StageCounters,
    /// False if the owner has exited, and its program was kept ([`ScrubStage::keep`]).
    pub is_owned: bool,
}

/// Requested attachment mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModeRequest {
    /// Native if the driver supports it, skb mode otherwise.
    #[default]
    Best,
    /// This mode only.
    Only(Mode),
}

impl ModeRequest {
    fn preferred(self) -> Mode {
        match self {
            Self::Best => Mode::Native,
            Self::Only(mode) => mode,
        }
    }
}

impl Resident {
    /// Joins the users of the interface's resident program, or attaches it. Call it in the interface's
    /// network namespace. Also removes what killed owners left behind, and pins of programs whose
    /// interfaces were removed. The second value describes why the mode is not native, if native was
    /// requested.
    ///
    /// # Errors
    /// A foreign program on the interface, a missing privilege, or a driver without support.
    pub fn join(interface: &Interface, request: ModeRequest) -> Result<(Self, Option<String>)> {
        Self::join_for(interface, request, false)
    }

    /// Joins as [`join`](Self::join) does; with `metadata`, a program that this call attaches also
    /// reads the driver's metadata of packets, the card's time and hash (Linux 6.16). If that is not
    /// possible, [`no_metadata`](Self::no_metadata) says why.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_for(
        interface: &Interface,
        request: ModeRequest,
        metadata: bool,
    ) -> Result<(Self, Option<String>)> {
        pin::sweep_now();
        // A process that attaches or exits at this moment makes another attempt necessary.
        for _ in 0..MAX_ATTEMPTS {
            if let Some(resident) = Self::find(interface)? {
                // Leftovers do no harm; if they cannot be removed, the next process tries.
                let _ = resident.clean();
                let wanted = request.preferred();
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
                return match request {
                    ModeRequest::Best => Ok((resident, Some(reason))),
                    ModeRequest::Only(_) => Err(Error::Usage(reason)),
                };
            }
            if let Some(attached) = attach::attach(interface, request, metadata)? {
                return Ok(attached);
            }
            // Another process is attaching it, which takes a while with some drivers.
            std::thread::sleep(RETRY_INTERVAL);
        }
        let busy = io::Error::from_raw_os_error(libc::EBUSY);
        Err(Error::system("attach the XDP program to", &interface.name, busy)
            .remedy("other programs come and go there: try again"))
    }

    /// Returns the interface's resident program, if it has one. Call it in the interface's network
    /// namespace.
    ///
    /// # Errors
    /// A foreign program on the interface, or a missing privilege.
    pub fn find(interface: &Interface) -> Result<Option<Self>> {
        let failed = |error| not_found(error, interface);
        let Some((id, mode, program)) = open_program(interface)? else { return Ok(None) };
        // In this order: a process that exits closes the link before the map of stages, which is emptied
        // when its last descriptor is closed. So if a link still exists, that map was never emptied.
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
            pins: pin::pins(interface)?,
            rx_queues: interface.rx_queues,
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

    /// Returns why the card's times and hashes are not read. None if they are.
    pub fn no_metadata(&self) -> Option<&str> {
        self.metadata().err()
    }

    /// Returns the map in which a reader stores a packet's driver metadata, or why there is no reader.
    pub(crate) fn metadata(&self) -> std::result::Result<&OwnedFd, &str> {
        self.metadata.as_ref().ok_or(&self.no_metadata)
    }

    /// Returns the mode in which it is attached.
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

    /// Returns the counters of all packets received on the interface since the program was attached;
    /// `dropped` counts packets dropped by the owner of DROP, which no other stage took.
    pub fn total(&self) -> StageCounters {
        self.tallies.of(END)
    }

    /// Returns the counters of a stage since the program was attached.
    pub fn tally(&self, stage: u32) -> StageCounters {
        self.tallies.of(stage)
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        privileged(error, operation, &self.interface)
    }
}

/// Opens the interface's program, if it has one. Fails if the program is not sluice's, of any version.
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

/// The capabilities that ports by XDP need, as in docs/running.md. CAP_SYS_ADMIN includes CAP_BPF.
pub(crate) const CAPABILITIES: &str = "CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN";

/// Turns a failed bpf(2) into an error for users.
pub(crate) fn privileged(error: io::Error, operation: &'static str, interface: &str) -> Error {
    bpf::privileged(error, CAPABILITIES, operation, interface)
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
