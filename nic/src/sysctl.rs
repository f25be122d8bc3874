//! Sysctls of a network namespace (`/proc/sys/net`, sysctl(8)), raised while a process needs them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use sluicegate_base::error::{Error, Result};
use sluicegate_link::records::RecordDir;

use crate::raised::{self, Raised, Settings, number};
use crate::{live_netns, this_netns};

/// A sysctl of a network namespace, and the value that it needs at least. All users of a name need the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// Its name, as of sysctl(8): `net.ipv4.tcp_syncookies`.
    pub name: &'static str,
    /// The value.
    pub value: u64,
}

impl Sysctl {
    /// Raises the sysctl of this thread's network namespace.
    ///
    /// # Errors
    /// The sysctl or the record cannot be written; nothing is changed then.
    pub fn raise(self) -> Result<RaisedSysctl> {
        Ok(RaisedSysctl { raised: Raised::new(SysctlFile::open(self)?)? })
    }

    /// Restores the sysctl of this thread's network namespace if killed processes left it raised. Returns true if they
    /// did. Also removes the records of namespaces that no longer exist.
    ///
    /// # Errors
    /// The sysctl or the record cannot be written.
    pub fn restore(self) -> Result<bool> {
        let dead = raised::dead_records(&SysctlFile::RECORDS);
        if !dead.is_empty() {
            // After a failure the next caller tries again.
            let _ = forget_removed(&dead);
        }
        match dead.contains(&self.id()?) {
            true => raised::restore(&SysctlFile::open(self)?),
            false => Ok(false),
        }
    }

    /// Returns the name of its record: this namespace, and the sysctl's name.
    fn id(self) -> Result<String> {
        Ok(format!("{}-{}", this_netns()?, self.name))
    }
}

/// A sysctl that is raised until this value is dropped, on any thread.
#[derive(Debug)]
pub struct RaisedSysctl {
    raised: Raised<SysctlFile>,
}

impl RaisedSysctl {
    /// Returns the present value, which another program may have changed.
    ///
    /// # Errors
    /// The namespace was removed.
    pub fn value(&self) -> Result<u64> {
        let file = self.raised.settings();
        file.read(file.name()).map_err(|error| file.failed("read", file.name(), error))
    }
}

/// Removes the records of namespaces that do not exist.
fn forget_removed(dead: &[String]) -> Result<()> {
    let namespaces = live_netns()?;
    let netns_of = |name: &str| name.split_once('-')?.0.parse::<u64>().ok();
    let is_removed = |name: &&String| netns_of(name).is_some_and(|it| !namespaces.contains(&it));
    raised::forget(&SysctlFile::RECORDS, &dead.iter().filter(is_removed).collect::<Vec<_>>())
}

/// The file of a sysctl.
#[derive(Debug)]
struct SysctlFile {
    /// Stays in the namespace in which it was opened.
    file: File,
    id: String,
    wanted: [(&'static str, u64); 1],
}

impl SysctlFile {
    /// Opens a sysctl of this thread's network namespace.
    fn open(sysctl: Sysctl) -> Result<Self> {
        let path = format!("/proc/sys/{}", sysctl.name.replace('.', "/"));
        let file = File::open(&path).map_err(|e| Error::path("open", Path::new(&path), e))?;
        Ok(Self { file, id: sysctl.id()?, wanted: [(sysctl.name, sysctl.value)] })
    }

    fn name(&self) -> &'static str {
        self.wanted[0].0
    }

    /// Returns a path that opens the same file again.
    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }
}

impl Settings for SysctlFile {
    const RECORDS: RecordDir = RecordDir {
        folder: "/run/sluice/sysctls",
        lock: "/run/sluice/sysctls.lock",
        purpose: "changing a setting of the network",
        capability: "CAP_NET_ADMIN and the right to write to /run/sluice",
    };

    fn id(&self) -> &str {
        &self.id
    }

    fn object(&self) -> &str {
        self.name()
    }

    fn wanted(&self) -> &[(&'static str, u64)] {
        &self.wanted
    }

    fn read(&self, _: &str) -> io::Result<u64> {
        number(&fs::read_to_string(self.path())?)
    }

    fn writer(&self, _: &str) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path())
    }

    fn failed(&self, operation: &'static str, setting: &str, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                sluicegate_link::refused(operation, setting, "CAP_NET_ADMIN", error)
            }
            Some(libc::EROFS) => Error::system(operation, setting, error).remedy(format!(
                "/proc/sys is read-only: mount it writable, or run `sysctl -w {setting}={}` where it is",
                self.wanted[0].1
            )),
            _ => Error::system(operation, setting, error),
        }
    }
}
