//! Loading of bpf/scrub.bpf.c: once for its maps, and once for each interface, with these maps.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{
    ErrorKind, Map, MapCore, MapInfo, Object, ObjectBuilder, OpenMapMut, OpenObject, ProgramMut,
};
use sluicegate::error::{Error, Result};
use sluicegate::xdp::resident::{ChainMaps, KeptProgram};

use super::{Cookies, ReturnPath};
use crate::counters::COUNTERS;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scrub.bpf.o"));
/// The program at the stage.
const STAGE: &str = "scrub_stage";
/// The program for BPF_PROG_RUN.
pub(super) const REHEARSE: &str = "scrub_rehearse";
/// BPF_F_XDP_HAS_FRAGS.
const HAS_FRAGS: u32 = 1 << 5;

/// Bytes of a map's name in the kernel.
const NAME_BYTES: usize = 15;
/// Parts of the names of maps that a stage's program does not use, or has of its own, as those of its interface's chain.
const IS_OWN: [&str; 4] = ["rodata", ".data.rehearse", ".data.return", "sluice_"];
/// The map of `struct scrub_return`.
const RETURN_PATH: &str = ".rodata.return";
/// The map of `has_answer_cache`.
const ANSWER_CACHE: &str = ".rodata.cache";

/// Turns libbpf's error into one for users.
pub(super) fn failed(operation: &'static str, error: libbpf_rs::Error) -> Error {
    let object = "the scrubber's program";
    match error.kind() {
        ErrorKind::PermissionDenied => Error::Privilege {
            operation: format!("permission to {operation} {object}"),
            capability: "CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN",
            remedy: "run it with sudo".into(),
        },
        // Older kernels lack BPF's compare-and-swap (kernel/bpf/verifier.c, `check_atomic`).
        ErrorKind::InvalidInput if operation == "load" => {
            Error::system(operation, object, io::Error::other(format!("{error:#}")))
                .remedy("it needs Linux 5.12")
        }
        _ => Error::system(operation, object, io::Error::other(format!("{error:#}"))),
    }
}

/// Returns a map of an object. It has all maps of bpf/scrub.bpf.c.
pub(super) fn map<'a>(object: &'a Object, name: &str) -> Map<'a> {
    let map = object.maps().find(|it| it.name() == name);
    map.unwrap_or_else(|| panic!("bpf/scrub.bpf.c has no map {name}"))
}

/// Returns a program of an object. It has all programs of bpf/scrub.bpf.c.
pub(super) fn program<'a>(object: &'a Object, name: &str) -> ProgramMut<'a> {
    let program = object.progs_mut().find(|it| it.name() == name);
    program.unwrap_or_else(|| panic!("bpf/scrub.bpf.c has no program {name}"))
}

/// Opens the object file, to load one of its programs, or none.
fn open(program: Option<&str>) -> Result<OpenObject> {
    libbpf_rs::set_print(None);
    let mut open =
        ObjectBuilder::default().open_memory(OBJECT).map_err(|error| failed("open", error))?;
    for mut each in open.progs_mut() {
        let wanted = program.is_some_and(|name| each.name() == name);
        each.set_autoload(wanted);
    }
    Ok(open)
}

fn load(
    mut open: OpenObject,
    set: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
) -> Result<Object> {
    set(&mut open).and_then(|()| open.load()).map_err(|error| failed("load", error))
}

/// Opens the maps of a program that an earlier owner of some stages kept. None if it is another version of the program,
/// or another one at some of the stages.
pub(super) fn kept_maps(kept: &[&KeptProgram]) -> Result<Option<Object>> {
    let mut open = open(None)?;
    for mut each in open.maps_mut() {
        let name = each.name().to_string_lossy().into_owned();
        if IS_OWN.iter().any(|own| name.contains(own)) {
            continue;
        }
        let short = &name[..name.len().min(NAME_BYTES)];
        let mut maps = Vec::new();
        for program in kept {
            let Some((_, map)) = program.maps.iter().find(|(name, _)| name == short) else {
                return Ok(None);
            };
            let info = MapInfo::new(map.as_fd()).map_err(|error| failed("take over", error))?;
            maps.push((info.info.id, map));
        }
        let (id, map) = maps[0];
        if maps.iter().any(|it| it.0 != id) {
            return Ok(None);
        }
        each.reuse_fd(map.as_fd()).map_err(|error| failed("take over", error))?;
    }
    load(open, |_| Ok(())).map(Some)
}

/// Sizes the maps.
fn size(
    open: &mut OpenObject,
    cpus: u32,
    limit_lines: u32,
    flow_lines: u32,
) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut() {
        match map.name().to_str() {
            Some("scrub_counters") => map.set_max_entries(cpus * 2 * u32::from(COUNTERS))?,
            Some("scrub_flows") => map.set_max_entries(flow_lines)?,
            Some("scrub_limits" | "scrub_sources") => map.set_max_entries(limit_lines)?,
            _ => {}
        }
    }
    Ok(())
}

/// Makes the maps, with a number of lines of limits and of flows, and loads a program.
pub(super) fn maps(
    program: Option<&str>,
    cpus: u32,
    (limit_lines, flow_lines): (u32, u32),
    caches_answers: bool,
    path: Option<&ReturnPath>,
) -> Result<Object> {
    load(open(program)?, |open| {
        size(open, cpus, limit_lines, flow_lines)?;
        for mut each in open.maps_mut() {
            match each.name().to_str() {
                Some(RETURN_PATH) => set_return_path(&mut each, path)?,
                Some(ANSWER_CACHE) => set_answer_cache(&mut each, caches_answers)?,
                _ => {}
            }
        }
        Ok(())
    })
}

/// Returns the bytes of the maps that [`maps`] makes.
pub(super) fn map_bytes(cpus: u32, limit_lines: u32, flow_lines: u32) -> Result<u64> {
    let mut open = open(None)?;
    size(&mut open, cpus, limit_lines, flow_lines).map_err(|error| failed("size", error))?;
    let bytes = open.maps().map(|map| {
        let copies = if map.map_type().is_percpu() { cpus } else { 1 };
        // Values are aligned (kernel/bpf/arraymap.c, `array_map_alloc`).
        u64::from(map.value_size().next_multiple_of(8))
            * u64::from(map.max_entries())
            * u64::from(copies)
    });
    Ok(bytes.sum())
}

fn set_return_path(map: &mut OpenMapMut<'_>, path: Option<&ReturnPath>) -> libbpf_rs::Result<()> {
    path.map_or(Ok(()), |path| map.set_initial_value(&path.encode()))
}

fn set_answer_cache(map: &mut OpenMapMut<'_>, caches_answers: bool) -> libbpf_rs::Result<()> {
    map.set_initial_value(&u32::from(caches_answers).to_ne_bytes())
}

/// Loads the program at the stage for an interface's chain, with the maps of another instance.
pub(super) fn stage(
    maps: &Object,
    chain: &ChainMaps<'_>,
    cookies: Option<Cookies>,
    caches_answers: bool,
    path: Option<&ReturnPath>,
) -> Result<OwnedFd> {
    let object = load(open(Some(STAGE))?, |open| {
        for mut each in open.maps_mut() {
            let name = each.name().to_string_lossy().into_owned();
            match name.as_str() {
                "sluice_stages" => each.reuse_fd(chain.stages)?,
                "sluice_alive" => each.reuse_fd(chain.alive)?,
                "sluice_tallies" => each.reuse_fd(chain.tallies)?,
                ".rodata.frags" => each.set_initial_value(&u32::from(chain.frags).to_ne_bytes())?,
                ".rodata.handover" => {
                    let cookies = cookies.map_or(0, |it| it as u32);
                    each.set_initial_value(&cookies.to_ne_bytes())?;
                }
                RETURN_PATH => set_return_path(&mut each, path)?,
                ANSWER_CACHE => set_answer_cache(&mut each, caches_answers)?,
                // Other constants.
                name if name.ends_with(".rodata") => {}
                name => each.reuse_fd(map(maps, name).as_fd())?,
            }
        }
        if chain.frags {
            open.progs_mut().for_each(|mut it| it.set_flags(HAS_FRAGS));
        }
        Ok(())
    })?;
    let fd = program(&object, STAGE).as_fd().try_clone_to_owned();
    fd.map_err(|error| Error::system("keep", "the scrubber's program", error))
}
