//! Loading the resident program and attaching it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fmt, io};

use libbpf_rs::{Object, ObjectBuilder, OpenObject, ProgramHandle};

use super::metadata;
use super::shared::{self, END, INGRESS, RESUME, STAGES};
use super::{ModeRequest, Resident, privileged};
use crate::error::{Error, Result};
use crate::link::{Channels, Ethtool, Interface};
use crate::xdp::bpf::{self, AttachFailure, Mode, Write};

/// Name of the resident program, by which other processes recognise it.
pub(super) const PROGRAM: &str = "sluice_ingress";
/// Programs that stages tail-call, and their entries in `sluice_stages`.
const TAILS: [(&str, u32); 2] = [("sluice_resumed", RESUME), ("sluice_end", END)];

/// The compiled `bpf/ingress.bpf.c`.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ingress.bpf.o"));

/// Largest MTU that fits one buffer everywhere: a page holds headroom (256 bytes), the frame, and an
/// skb's data at its end.
const ONE_BUFFER_MTU: u32 = 3000;

/// `BPF_F_XDP_HAS_FRAGS` of linux/bpf.h, Linux 5.18.
const HAS_FRAGS: u32 = 1 << 5;

/// Attaches the program. With `metadata`, and if possible, it runs after a reader of the driver's metadata.
/// None if another program is attached meanwhile. The second value describes why the mode is not native.
pub(super) fn attach(
    interface: &Interface,
    request: ModeRequest,
    metadata: bool,
) -> Result<Option<(Resident, Option<String>)>> {
    let object = load(interface)?;
    let program = program(&object, PROGRAM)?;
    let mut mode = request.preferred();
    let mut reader = match (metadata, mode) {
        (false, _) => Err(metadata::not_at_attaching(interface)),
        (true, Mode::Skb) => {
            Err(format!("in skb mode {} is not asked: only its driver has them", interface.name))
        }
        (true, Mode::Native) => reader(interface, program.as_fd()),
    };
    let mut reason = None;
    loop {
        let first = reader.as_ref().map_or(program.as_fd(), |reader| reader.as_fd());
        // The maps are opened before the link. A killed process closes its files from the last one on, and
        // the map of stages is emptied when its last descriptor is closed. So that descriptor outlives the
        // link.
        let look = || Ok((bpf::program_id(first)?, bpf::maps_of(first)?));
        let (id, maps) = look()
            .map_err(|error| privileged(error, "look at the XDP program of", &interface.name))?;
        match try_attach(first, interface, mode) {
            Ok(Some(link)) => {
                let no_metadata = reader.as_ref().err().cloned();
                let mut resident = Resident::from_parts(interface, mode, id, link, maps)?;
                resident.no_metadata = no_metadata.unwrap_or_default();
                return Ok(Some((resident, reason)));
            }
            Ok(None) => return Ok(None),
            // The driver may reject only the device-bound reader: try without it.
            Err(refusal) if reader.is_ok() && refusal.is_of_mode() => {
                reader = Err(format!("the driver of {} refused it: {refusal}", interface.name));
            }
            Err(refusal)
                if mode == Mode::Native && request == ModeRequest::Best && refusal.is_of_mode() =>
            {
                reason = Some(format!("the driver of {} refused: {refusal}", interface.name));
                mode = Mode::Skb;
            }
            Err(refusal) => {
                let elsewhere = mode == Mode::Native && refusal.is_of_mode();
                let skb = elsewhere.then(|| "mode=skb works everywhere, slowly".to_owned());
                let remedy: Vec<String> = refusal.reason.into_iter().chain(skb).collect();
                return Err(privileged(
                    refusal.error,
                    "attach the XDP program to",
                    &interface.name,
                )
                .remedy(remedy.join("; ")));
            }
        }
    }
}

/// Loads a metadata reader that tail-calls `program`, with the program's name and maps. The error describes
/// why that is not possible.
fn reader(interface: &Interface, program: BorrowedFd<'_>) -> std::result::Result<OwnedFd, String> {
    let failed = |error: io::Error| error.to_string();
    let maps = bpf::maps_of(program).map_err(failed)?;
    let frags = needs_frags(interface);
    let reader = metadata::load_reader(interface, frags, &maps)?;
    for map in &maps {
        bpf::bind_map(reader.as_fd(), map.fd.as_fd()).map_err(failed)?;
    }
    if let Some(stages) = maps.iter().find(|map| map.name == "sluice_stages") {
        bpf::put(stages.fd.as_fd(), INGRESS, &program.as_fd(), Write::Any).map_err(failed)?;
    }
    Ok(reader)
}

/// Loads the program and its maps, with the programs that stages tail-call.
fn load(interface: &Interface) -> Result<Object> {
    bpf::silence_libbpf();
    let failed = |error: libbpf_rs::Error| {
        let error = match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => io::Error::from_raw_os_error(libc::EPERM),
            _ => of_limit(&error).unwrap_or_else(|| io::Error::other(format!("{error:#}"))),
        };
        privileged(error, "load the XDP program for", &interface.name)
    };
    let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(failed)?;
    prepare(&mut open, needs_frags(interface)).map_err(failed)?;
    let object = open.load().map_err(failed)?;
    complete(&object)
        .map_err(|error| privileged(error, "set up the XDP program for", &interface.name))?;
    Ok(object)
}

/// Recovers the kernel's error if a limit of open files or memory was reached: libbpf-rs returns it only as
/// the end of its text.
fn of_limit(error: &libbpf_rs::Error) -> Option<io::Error> {
    let text = format!("{error:#}");
    let limits = [libc::EMFILE, libc::ENFILE, libc::ENOMEM].map(io::Error::from_raw_os_error);
    limits.into_iter().find(|limit| text.ends_with(&limit.to_string()))
}

/// Returns true if frames may span several buffers.
fn needs_frags(interface: &Interface) -> bool {
    interface.mtu > ONE_BUFFER_MTU
}

/// Sets the sizes and constants that are known only at run time.
fn prepare(open: &mut OpenObject, frags: bool) -> libbpf_rs::Result<()> {
    let cpus = libbpf_rs::num_possible_cpus()? as u32;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "sluice_tallies" => map.set_max_entries(cpus * STAGES)?,
            ".data.control" => {
                if let Some(value) = map.initial_value_mut() {
                    shared::write_constants(value, frags);
                }
            }
            // The only constant: `frags`.
            name if name.ends_with(".rodata") => {
                map.set_initial_value(&u32::from(frags).to_ne_bytes())?
            }
            _ => {}
        }
    }
    if frags {
        open.progs_mut().for_each(|mut program| program.set_flags(HAS_FRAGS));
    }
    Ok(())
}

/// Installs the programs that stages tail-call. Binds the maps that only users access to the program, so that other processes
/// find them.
fn complete(object: &Object) -> io::Result<()> {
    let ingress = program(object, PROGRAM).map_err(io::Error::other)?;
    for name in ["sluice_owned", "sluice_owners"] {
        bpf::bind_map(ingress.as_fd(), bpf::map_in(object, name)?.as_fd())?;
    }
    let stages = bpf::map_in(object, "sluice_stages")?;
    for (name, stage) in TAILS {
        let tail = program(object, name).map_err(io::Error::other)?;
        bpf::put(stages.as_fd(), stage, &tail.as_fd(), Write::Any)?;
    }
    Ok(())
}

fn program(object: &Object, name: &str) -> Result<ProgramHandle> {
    let program = object.progs_mut().find(|program| program.name() == name);
    program
        .and_then(|program| ProgramHandle::try_from(&program).ok())
        .ok_or_else(|| Error::Usage(format!("bpf/ingress.bpf.c has no program {name}")))
}

/// A refused attachment.
#[derive(Debug)]
struct Refusal {
    error: io::Error,
    /// The kernel's reason, or the cause that the interface's settings suggest.
    reason: Option<String>,
}

impl Refusal {
    /// Returns true if another mode may succeed.
    fn is_of_mode(&self) -> bool {
        has_reason(&self.error) && self.error.raw_os_error() != Some(libc::EEXIST)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{}: {reason}", self.error),
            None => self.error.fmt(f),
        }
    }
}

/// Attaches a program. None if the interface already has one. Call it in the interface's network namespace.
fn try_attach(
    program: BorrowedFd<'_>,
    interface: &Interface,
    mode: Mode,
) -> Result<Option<OwnedFd>, Refusal> {
    match bpf::attach(program, interface.index, mode) {
        Ok(link) => return Ok(Some(link)),
        Err(error) if is_taken(&error, interface) => return Ok(None),
        Err(error) if !has_reason(&error) => return Err(Refusal { error, reason: None }),
        Err(_) => {}
    }
    // Attaches again to record the reason: most attachments succeed and need no recorder.
    let listener = AttachFailure::listen();
    let error = match bpf::attach(program, interface.index, mode) {
        Ok(link) => return Ok(Some(link)),
        Err(error) if is_taken(&error, interface) => return Ok(None),
        Err(error) => error,
    };
    let reason = listener.ok().and_then(|listener| listener.text());
    let reason = reason.or_else(|| likely_cause(&error, interface));
    Err(Refusal { error, reason })
}

/// Returns true if another program is on the interface, or was a moment ago.
fn is_taken(error: &io::Error, interface: &Interface) -> bool {
    match error.raw_os_error() {
        Some(libc::EBUSY) => true,
        // The kernel also returns it if a bridge or a bond above the interface has a program.
        Some(libc::EEXIST) => bpf::attached(interface.index).is_ok_and(|found| found.is_some()),
        _ => false,
    }
}

/// Returns true if the reason may be the interface or its driver, not this process.
fn has_reason(error: &io::Error) -> bool {
    use libc::{EACCES, EINTR, EMFILE, ENFILE, ENODEV, ENXIO, EPERM};
    let others = [EACCES, EINTR, EMFILE, ENFILE, ENODEV, ENXIO, EPERM];
    error.raw_os_error().is_some_and(|errno| !others.contains(&errno))
}

/// Guesses the cause from the interface's settings.
fn likely_cause(error: &io::Error, interface: &Interface) -> Option<String> {
    let mut ethtool = Ethtool::open(None).ok()?;
    let lro = ethtool.lro(&interface.name).unwrap_or(false);
    let channels = ethtool.channels(&interface.name).ok().flatten();
    cause(error.raw_os_error()?, &interface.name, interface.mtu, lro, channels)
}

fn cause(
    errno: i32,
    name: &str,
    mtu: u32,
    lro: bool,
    channels: Option<Channels>,
) -> Option<String> {
    match errno {
        libc::EEXIST => Some(format!("a bridge or a bond above {name} has an XDP program")),
        _ if lro => Some(format!("large receive offload is on: `ethtool -K {name} lro off`")),
        libc::ENOSPC => {
            let counts = channels.map_or_else(String::new, |it| {
                let (rx, tx) = (it.combined + it.rx, it.combined + it.tx);
                format!(" ({rx} to receive by, {tx} to send by)")
            });
            Some(format!("{name} has too few queues for XDP{counts}: `ethtool -L` changes them"))
        }
        _ if mtu > ONE_BUFFER_MTU => Some(format!(
            "the MTU of {name}, {mtu}, may be too large for XDP: `ip link set {name} mtu \
             {ONE_BUFFER_MTU}`"
        )),
        libc::ERANGE => Some(format!("the MTU of {name} or of its other end is too large for XDP")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_an_interface_suggest_the_cause() {
        let queues = Channels { rx: 0, tx: 1, combined: 2, rx_max: 0, tx_max: 1, combined_max: 2 };
        for (sentence, errno, mtu, lro, expected) in [
            ("LRO", libc::EOPNOTSUPP, 9000, true, Some("large receive offload is on")),
            ("queues", libc::ENOSPC, 1500, false, Some("queues for XDP (2 to receive by, 3 to")),
            ("its own MTU", libc::EOPNOTSUPP, 9000, false, Some("ip link set eth0 mtu 3000")),
            ("another's MTU", libc::ERANGE, 1500, false, Some("of its other end")),
            ("a bond", libc::EEXIST, 1500, false, Some("a bond above eth0")),
            ("nothing to see", libc::EOPNOTSUPP, 1500, false, None),
        ] {
            let found = cause(errno, "eth0", mtu, lro, Some(queues));
            match (&found, expected) {
                (Some(found), Some(expected)) if found.contains(expected) => {}
                (None, None) => {}
                _ => panic!("{sentence}: {found:?}"),
            }
        }
    }
}
