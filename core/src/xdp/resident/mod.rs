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
//! `sluice_alive`.
//!
//! Needs Linux 5.10 (bpf_link for XDP 5.9, tying maps to a program 5.10), CAP_NET_ADMIN, CAP_BPF, and CAP_SYS_ADMIN to find what
//! another process has attached.

mod attach;
mod metadata;
mod program;
mod shared;
mod stage;

pub(crate) use metadata::obstacle as metadata_obstacle;
pub(crate) use program::{Sockets, load as load_program, load_copying};
pub use shared::{Action, Owner, Tally};
pub(crate) use shared::{DROP, FILTERED, MIRRORS, QUEUES_MAX, WHOLE};
pub(crate) use stage::{Direct, Stage};

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::{CLAIMS, Control, END, OWNER_BYTES, Tallies};

use super::bpf::{self, Map, Mode, Write};
use crate::error::{Error, Result};
use crate::link::Interface;

/// Between two looks at an interface where others come and go.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How often one looks.
const LOOKS: usize = 100;

/// Where `sluice attach` keeps programs resident.
const PINS: &str = "/sys/fs/bpf/sluice";

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
    /// What the place has counted since the program was attached.
    pub tally: Tally,
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
    /// interface's network namespace. The second value says why it is not native, where it was
    /// to be if possible.
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
        // Whoever else comes or goes at this moment makes another look necessary, not many.
        for _ in 0..LOOKS {
            if let Some(resident) = Self::find(interface)? {
                return match wish {
                    ModeWish::Only(mode) if mode != resident.mode => Err(Error::Usage(format!(
                        "{}: the resident program is attached in {} mode; its users have to end \
                         (see `sluice claims {0}`) before it can be in {} mode",
                        interface.name,
                        resident.mode.name(),
                        mode.name()
                    ))),
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
        let failed =
            |error| privileged(error, "look for the XDP program of", interface.name.as_str());
        let Some((id, mode)) = bpf::attached(interface.index).map_err(failed)? else {
            return Ok(None);
        };
        let gone = |error: &io::Error| error.raw_os_error() == Some(libc::ENOENT);
        let program = match bpf::program(id) {
            Err(error) if gone(&error) => return Ok(None),
            other => other.map_err(failed)?,
        };
        let name = bpf::program_name(program.as_fd()).map_err(failed)?;
        if name != attach::PROGRAM {
            return Err(foreign(interface, id, &name));
        }
        // In this order: whoever leaves lets the link go before the map of stages, which is
        // emptied when nobody has it. So if there is still a link, that map was never let go.
        let maps = match bpf::maps_of(program.as_fd()) {
            Err(error) if gone(&error) => return Ok(None),
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
        mut maps: Vec<Map>,
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

    /// All packets that came to the interface since the program was attached; `taken` of these
    /// by the end of the chain, `missed` there.
    pub fn total(&self) -> Tally {
        self.tallies.of(END)
    }

    /// What a stage has counted since the program was attached.
    pub fn tally(&self, stage: u32) -> Tally {
        self.tallies.of(stage)
    }

    /// Who has a stage or had it last.
    pub fn owner(&self, stage: u32) -> Result<Option<Owner>> {
        let mut bytes = [0; OWNER_BYTES];
        let found = bpf::read_entry(self.owners.as_fd(), stage, &mut bytes);
        let failed = |error| self.failed("read who has a claim on", error);
        Ok(if found.map_err(failed)? { Owner::from_bytes(&bytes) } else { None })
    }

    /// The stages that somebody has, in the order in which they see a packet.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn claims(&self) -> Result<Vec<Claimed>> {
        let mut claims = Vec::new();
        for place in MIRRORS.chain(CLAIMS).chain([DROP]) {
            if self.is_held(place)?
                && let Some(owner) = self.owner(place)?
            {
                claims.push(Claimed { place, owner, tally: self.tally(place) });
            }
        }
        Ok(claims)
    }

    /// Whether a place has an owner that lives.
    fn is_held(&self, place: u32) -> Result<bool> {
        let failed = |error| self.failed("look for claims on", error);
        // Of maps of sockets the kernel tells nothing but whether there is room.
        let probe = bpf::token().map_err(failed)?;
        match bpf::put(self.owned.as_fd(), place, &probe, Write::New) {
            Ok(()) => bpf::remove(self.owned.as_fd(), place).map_err(failed).map(|()| false),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(true),
            Err(error) => Err(failed(error)),
        }
    }

    /// Keeps the program on the interface though all users end, until [`detach`](Self::detach).
    ///
    /// # Errors
    /// No BPF file system, or a missing privilege.
    pub fn keep(&self, interface: &Interface) -> Result<()> {
        let folder = self.pins(interface)?;
        let failed = |error| {
            Error::system("keep the XDP program in", folder.display().to_string(), error)
                .remedy("a BPF file system is needed: mount -t bpf bpf /sys/fs/bpf")
        };
        std::fs::create_dir_all(&folder).map_err(failed)?;
        // The stages too: a map of programs is emptied when nobody has it.
        for (object, name) in [(&self.stages, "stages"), (&self.link, "link")] {
            let path = path_text(&folder.join(name));
            match bpf::pin(object.as_fd(), &path) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    // Of a program that is no more: the interface was made anew.
                    std::fs::remove_file(folder.join(name)).map_err(failed)?;
                    bpf::pin(object.as_fd(), &path).map_err(failed)?;
                }
                other => other.map_err(failed)?,
            }
        }
        Ok(())
    }

    /// Whether it is kept though all users end.
    pub fn is_kept(&self, interface: &Interface) -> bool {
        self.pins(interface).is_ok_and(|folder| folder.join("link").exists())
    }

    /// Takes the program off the interface, whoever uses it.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn detach(&self, interface: &Interface) -> Result<()> {
        let folder = self.pins(interface)?;
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(self.failed("take the pins away of", error));
            }
            _ => {}
        }
        bpf::detach(self.link.as_fd()).map_err(|error| self.failed("detach from", error))
    }

    /// Interfaces of several network namespaces may have the same name and number.
    fn pins(&self, interface: &Interface) -> Result<PathBuf> {
        let netns = std::fs::read_link("/proc/thread-self/ns/net")
            .map_err(|error| self.failed("find the network namespace of", error))?;
        let netns = netns.to_string_lossy().replace(|c: char| !c.is_ascii_digit(), "");
        Ok(Path::new(PINS).join(format!("{}-{}", netns, interface.index)))
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        privileged(error, operation, &self.interface)
    }
}

fn path_text(path: &Path) -> CString {
    // Made of our own words and numbers: no NUL is in it.
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default()
}

/// What a failed bpf(2) means for the user.
fn privileged(error: io::Error, operation: &'static str, interface: &str) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::Privilege {
            operation: format!("{operation} {interface}"),
            capability: "CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN",
            remedy: "run as root or with sudo".into(),
        },
        _ => Error::system(operation, interface, error),
    }
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
            "another version of sluice attached it: end its users, or `sluice detach {}`",
            interface.name
        ),
    }
}
