//! Loading the resident program and attaching it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::{MapCore, Object, ObjectBuilder, OpenObject, ProgramHandle};

use super::metadata;
use super::refusal::{self, Refusal};
use super::shared::{self, END, INGRESS, STAGES};
use super::{ModeWish, Resident, privileged};
use crate::error::{Error, Result};
use crate::link::Interface;
use crate::xdp::bpf::{self, Mode, ProgramMap, Write};

/// The resident program's name, by which it is known.
pub(super) const PROGRAM: &str = "sluice_ingress";
const LAST_STAGE: &str = "sluice_end";

/// The compiled `bpf/ingress.bpf.c`.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ingress.bpf.o"));

/// A page holds headroom (256 bytes), the frame, and what an skb needs at its end: an MTU up to
/// here fits one buffer everywhere.
pub(super) const ONE_BUFFER_MTU: u32 = 3000;

/// `BPF_F_XDP_HAS_FRAGS` of linux/bpf.h, Linux 5.18.
const HAS_FRAGS: u32 = 1 << 5;

/// Attaches the program, after a reader of the driver's metadata if that is wanted and can be.
/// None if another was there first; what comes second is why the mode is not native.
pub(super) fn attach(
    interface: &Interface,
    wish: ModeWish,
    metadata: bool,
) -> Result<Option<(Resident, Option<String>)>> {
    let object = load(interface)?;
    let program = program(&object, PROGRAM)?;
    let mut mode = match wish {
        ModeWish::Best => Mode::Native,
        ModeWish::Only(mode) => mode,
    };
    let mut reader = match (metadata, mode) {
        (false, _) => Err(metadata::not_at_attaching(interface)),
        (true, Mode::Skb) => Err(metadata::not_in_skb_mode(interface)),
        (true, Mode::Native) => reader(interface, program.as_fd()),
    };
    let mut reason = None;
    loop {
        let first = reader.as_ref().map_or(program.as_fd(), |reader| reader.as_fd());
        // Before the link: a process that is killed closes its files from the last on, and the map
        // of stages is emptied when nobody has it. So it never goes before the link.
        let (id, maps) = parts(interface, first)?;
        match refusal::attach(first, interface, mode) {
            Ok(Some(link)) => {
                let no_metadata = reader.as_ref().err().cloned();
                let mut resident = Resident::from_parts(interface, mode, id, link, maps)?;
                resident.no_metadata = no_metadata.unwrap_or_default();
                return Ok(Some((resident, reason)));
            }
            Ok(None) => return Ok(None),
            // It may be the binding that the driver does not take: without, then.
            Err(refusal) if reader.is_ok() && refusal.is_of_mode() => {
                reader = Err(format!("the driver of {} refused it: {refusal}", interface.name));
            }
            Err(refusal)
                if mode == Mode::Native && wish == ModeWish::Best && refusal.is_of_mode() =>
            {
                reason = Some(format!("the driver of {} refused: {refusal}", interface.name));
                mode = Mode::Skb;
            }
            Err(refusal) => return Err(refused(refusal, interface, mode)),
        }
    }
}

/// The number of a program, and its maps.
fn parts(interface: &Interface, program: BorrowedFd<'_>) -> Result<(u32, Vec<ProgramMap>)> {
    let failed = |error| privileged(error, "look at the XDP program of", &interface.name);
    let id = bpf::program_id(program).map_err(failed)?;
    Ok((id, bpf::maps_of(program).map_err(failed)?))
}

/// A reader that goes on to `program`, under its name and with its maps; or why there is none.
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

fn refused(refusal: Refusal, interface: &Interface, mode: Mode) -> Error {
    let elsewhere = mode == Mode::Native && refusal.is_of_mode();
    let mode = elsewhere.then(|| "mode=skb works everywhere, slowly".to_owned());
    let remedy: Vec<String> = refusal.reason.into_iter().chain(mode).collect();
    let error = privileged(refusal.error, "attach the XDP program to", &interface.name);
    if remedy.is_empty() { error } else { error.remedy(remedy.join("; ")) }
}

/// Brings the program and its maps into the kernel, with the last stage in its place.
fn load(interface: &Interface) -> Result<Object> {
    bpf::silence_libbpf();
    let failed = |error: libbpf_rs::Error| {
        let error = match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => io::Error::from_raw_os_error(libc::EPERM),
            _ => io::Error::other(format!("{error:#}")),
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

/// Whether frames may lie in several buffers.
fn needs_frags(interface: &Interface) -> bool {
    interface.mtu > ONE_BUFFER_MTU
}

/// Sets what is known only now.
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
            // Its one constant: `frags`.
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

/// Puts the last stage in its place, and ties the maps that only users use to the program, for
/// them to be found.
fn complete(object: &Object) -> io::Result<()> {
    let find = |name: &str| {
        let map = object.maps().find(|map| map.name().to_string_lossy() == name);
        map.ok_or_else(|| io::Error::other(format!("no map {name}")))
    };
    let ingress = program(object, PROGRAM).map_err(io::Error::other)?;
    for name in ["sluice_owned", "sluice_owners"] {
        bpf::bind_map(ingress.as_fd(), find(name)?.as_fd())?;
    }
    let last = program(object, LAST_STAGE).map_err(io::Error::other)?;
    bpf::put(find("sluice_stages")?.as_fd(), END, &last.as_fd(), Write::Any)
}

fn program(object: &Object, name: &str) -> Result<ProgramHandle> {
    let program = object.progs_mut().find(|program| program.name().to_string_lossy() == name);
    program
        .and_then(|program| ProgramHandle::try_from(&program).ok())
        .ok_or_else(|| Error::Usage(format!("bpf/ingress.bpf.c has no program {name}")))
}
