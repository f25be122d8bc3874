//! The cache of answers to A2S queries: its program at tc fills it (`bpf/answer_cache.h`).

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{Object, ObjectBuilder};
use nix::libc::EINVAL;
use sluicegate::error::{Error, Result};
use sluicegate::link::Interface;
use sluicegate::xdp::resident::attach_egress;

use super::load::{failed, map, program};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/answer_cache.bpf.o"));

/// Keeps what this host answers to A2S queries, until this value is dropped. Then answers grow old.
#[derive(Debug)]
pub struct AnswerCache {
    /// Hold the program at tc.
    _links: Vec<OwnedFd>,
}

impl AnswerCache {
    /// Attaches the program at tc to interfaces of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel is older than Linux 6.6, or refuses.
    pub(super) fn start(maps: &Object, interfaces: &[Interface]) -> Result<Self> {
        let object = load(maps)?;
        let attach = |interface| {
            let attached = attach_egress(program(&object, "scrub_learn").as_fd(), interface);
            attached.map_err(|error| match error.raw_os_error() {
                Some(EINVAL) => Error::Unsupported {
                    feature: "a cache of answers".into(),
                    remedy: "use Linux 6.6 or later".into(),
                },
                _ => Error::system("attach to tc of", &interface.name, error),
            })
        };
        Ok(Self { _links: interfaces.iter().map(attach).collect::<Result<_>>()? })
    }
}

/// Loads the program at tc with the maps of the XDP program, which has all of them.
fn load(maps: &Object) -> Result<Object> {
    let loaded = ObjectBuilder::default().open_memory(OBJECT).and_then(|mut open| {
        for mut each in open.maps_mut() {
            let name = each.name().to_string_lossy().into_owned();
            if !name.contains("rodata") {
                each.reuse_fd(map(maps, &name).as_fd())?;
            }
        }
        open.load()
    });
    loaded.map_err(|error| failed("keep answers by", error))
}
