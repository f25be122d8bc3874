//! The settings that defer an interface's interrupts while a process busy-polls its driver.
//!
//! Busy polling (SO_PREFER_BUSY_POLL, Linux 5.11) replaces interrupts only if the interface defers them: for
//! `napi_defer_hard_irqs` empty polls, each `gro_flush_timeout` ns after the previous one.
//!
//! Sources: Documentation/networking/napi.rst and af_xdp.rst, which recommend these values;
//! Documentation/ABI/testing/sysfs-class-net.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;

use sluicegate_base::error::{Error, Result};
use sluicegate_link::records::RecordDir;
use sluicegate_link::{Interface, Netlink, netns};

use crate::device::{Device, folder_of};
use crate::raised::{self, Raised, Settings, number};
use crate::{live_netns, this_netns};

/// The settings to raise, and their values: empty polls, and ns between them.
const SETTINGS: [(&str, u64); 2] = [("napi_defer_hard_irqs", 2), ("gro_flush_timeout", 200_000)];

/// Defers the interrupts of an interface until this value is dropped.
#[derive(Debug)]
pub struct Deferred {
    _raised: Raised<SysFiles>,
}

impl Deferred {
    /// Defers the interface's interrupts, if they are not already deferred that far. Call it in the
    /// interface's network namespace.
    ///
    /// # Errors
    /// The settings or the record cannot be written; nothing is changed then.
    pub fn new(interface: &Interface) -> Result<Self> {
        Ok(Self { _raised: Raised::new(SysFiles::of(interface)?)? })
    }
}

/// Restores the settings left by killed processes. Returns true if there were any. Call it in the interface's
/// network namespace. Also removes the records of interfaces that no longer exist in this namespace, or whose
/// namespace no longer exists.
///
/// # Errors
/// The settings or the record cannot be written.
pub fn restore_interrupts(interface: &Interface) -> Result<bool> {
    let id = id_of(interface)?;
    let dead = raised::dead_records(&SysFiles::RECORDS);
    if !dead.is_empty() {
        // After a failure the next caller tries again.
        let _ = forget_removed(&dead);
    }
    match dead.contains(&id) {
        true => raised::restore(&SysFiles::of(interface)?),
        false => Ok(false),
    }
}

/// Removes the records of interfaces that were removed: this namespace does not have them, or their namespace
/// does not exist.
fn forget_removed(dead: &[String]) -> Result<()> {
    let here = this_netns()?;
    let interfaces = Netlink::open(None)?.interfaces()?;
    let namespaces = live_netns()?;
    let is_removed = |name: &&String| match Device::parse_id(name) {
        Some((netns, index)) if netns == here => !interfaces.iter().any(|it| it.index == index),
        Some((netns, _)) => !namespaces.contains(&netns),
        None => false,
    };
    raised::forget(&SysFiles::RECORDS, &dead.iter().filter(is_removed).collect::<Vec<_>>())
}

/// Returns the name of an interface's record: its namespace, and its number there.
fn id_of(interface: &Interface) -> Result<String> {
    Ok(format!("{}-{}", this_netns()?, interface.index))
}

/// The interface's settings in sysfs.
#[derive(Debug)]
struct SysFiles {
    /// `/sys/class/net` of the interface's namespace, independent of the process's namespace.
    folder: File,
    id: String,
    index: u32,
    /// For messages.
    name: String,
}

impl SysFiles {
    /// Opens the settings. Call it in the interface's network namespace.
    fn of(interface: &Interface) -> Result<Self> {
        let (folder, id) = (netns::sysfs_interfaces()?, id_of(interface)?);
        Ok(Self { folder, id, index: interface.index, name: interface.name.clone() })
    }

    /// Returns a setting's file, found by the interface's number, because its name may have changed.
    fn path(&self, setting: &str) -> io::Result<PathBuf> {
        Ok(folder_of(&self.folder, self.index)?.join(setting))
    }
}

impl Settings for SysFiles {
    const RECORDS: RecordDir = RecordDir {
        folder: "/run/sluice/interrupts",
        lock: "/run/sluice/interrupts.lock",
        purpose: "putting off the interrupts of an interface, for busy polling,",
        capability: "CAP_NET_ADMIN and the right to write to /run/sluice",
    };

    fn id(&self) -> &str {
        &self.id
    }

    fn object(&self) -> &str {
        &self.name
    }

    fn wanted(&self) -> &[(&'static str, u64)] {
        &SETTINGS
    }

    fn read(&self, setting: &str) -> io::Result<u64> {
        number(&fs::read_to_string(self.path(setting)?)?)
    }

    fn writer(&self, setting: &str) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path(setting)?)
    }

    fn failed(&self, operation: &'static str, setting: &str, error: io::Error) -> Error {
        let object = format!("{setting} of {}", self.name);
        let [(defer, polls), (timeout, ns)] = SETTINGS;
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                sluicegate_link::refused(operation, object, "CAP_NET_ADMIN", error)
            }
            Some(libc::EROFS) => Error::system(operation, object, error).remedy(format!(
                "busy polling needs it, and /sys is read-only: mount it writable, or set \
                 {defer} to {polls} and {timeout} to {ns} before, or leave busy_poll= out"
            )),
            _ => Error::system(operation, object, error),
        }
    }
}
