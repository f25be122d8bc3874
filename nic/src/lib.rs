//! Temporary settings of network cards: changed, recorded, and restored, even after a kill.
//!
//! At present: the settings that defer interrupts while a process busy-polls a driver.
//!
//! ```text
//!   Deferred::new     record former values and this process --> write the settings
//!   drop              last process: restore the former values --> remove the record
//!   killed            restore_interrupts, called by the next process that uses the interface
//! ```
//!
//! Busy polling (SO_PREFER_BUSY_POLL, Linux 5.11) replaces interrupts only if the interface defers them: for
//! `napi_defer_hard_irqs` empty polls, each `gro_flush_timeout` ns after the previous one. These settings
//! outlive the process that wrote them. So each interface has a record of its polling processes and the
//! former values, written before any change. A setting that another program has changed since is not
//! restored.
//!
//! Sources: Documentation/networking/napi.rst and af_xdp.rst, which recommend these values;
//! Documentation/ABI/testing/sysfs-class-net.
#![warn(unreachable_pub)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use sluicegate_base::error::{Error, Result};
use sluicegate_link::records::{Process, RecordDir, Records};
use sluicegate_link::{Interface, Netlink, live_namespaces, netns};

const RECORDS: RecordDir = RecordDir {
    folder: "/run/sluice/interrupts",
    lock: "/run/sluice/interrupts.lock",
    purpose: "putting off the interrupts of an interface, for busy polling,",
    capability: "CAP_NET_ADMIN and the right to write to /run/sluice",
};

/// The settings to raise, and their values: empty polls, and ns between them.
const SETTINGS: [(&str, u64); 2] = [("napi_defer_hard_irqs", 2), ("gro_flush_timeout", 200_000)];

/// Defers the interrupts of an interface until this value is dropped.
#[derive(Debug)]
pub struct Deferred {
    files: SysFiles,
    me: Process,
    /// False if the settings already had the required values, so that nothing must be restored.
    recorded: bool,
}

impl Deferred {
    /// Defers the interface's interrupts, if they are not already deferred that far. Call it in the
    /// interface's network namespace.
    ///
    /// # Errors
    /// The settings or the record cannot be written; nothing is changed then.
    pub fn new(interface: &Interface) -> Result<Self> {
        // Creates no `Self` before the record has its entry: its drop would remove another entry of this
        // process.
        let (files, me) = (SysFiles::of(interface)?, Process::this()?);
        let records = Records::lock(&RECORDS)?;
        let mut record = InterruptRecord::load(&records, &files.id).unwrap_or_default();
        record.interface.clone_from(&interface.name);
        record.users.retain(|user| user.lives());
        let mut raised = Vec::new();
        for ((setting, wanted), former) in SETTINGS.iter().zip(&mut record.former) {
            let now = files.read(setting).map_err(|e| files.failed("read", setting, e))?;
            if now < *wanted {
                let file = files.writer(setting);
                raised.push((file.map_err(|e| files.failed("set", setting, e))?, setting, wanted));
                *former = Some(now);
            } else if now > *wanted {
                // Another program's value.
                *former = None;
            }
        }
        if record.former == [None; 2] {
            // Another program has set these values: there is nothing to restore.
            return Ok(Self { files, me, recorded: false });
        }
        record.users.push(me);
        records.put(&files.id, &record.to_text())?;
        for (file, setting, wanted) in raised {
            if let Err(error) = write(file, *wanted) {
                // Restores the settings raised so far.
                leave(&records, &files, me);
                return Err(files.failed("set", setting, error));
            }
        }
        Ok(Self { files, me, recorded: true })
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if !self.recorded {
            return;
        }
        // This fails in a process that has dropped its privileges; then the next user of the interface
        // restores.
        if let Ok(records) = Records::lock(&RECORDS) {
            leave(&records, &self.files, self.me);
        }
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
    let records = Records::read(&RECORDS);
    let names = records.names().into_iter();
    let dead: Vec<String> = names.filter(|name| is_dead(&records, name)).collect();
    if !dead.is_empty() {
        // After a failure the next caller tries again.
        let _ = forget_removed(&dead);
    }
    if !dead.contains(&id) {
        return Ok(false);
    }
    let files = SysFiles::of(interface)?;
    let records = Records::lock(&RECORDS)?;
    // Checks again, because another process may have been faster.
    match InterruptRecord::load(&records, &id).filter(InterruptRecord::is_dead) {
        Some(record) => put_back(&records, &files, &record).map(|()| true),
        None => Ok(false),
    }
}

/// True if every user of a record has exited.
fn is_dead(records: &Records, name: &str) -> bool {
    InterruptRecord::load(records, name).is_some_and(|record| record.is_dead())
}

/// Removes the records of interfaces that were removed: this namespace does not have them, or their namespace
/// does not exist.
fn forget_removed(dead: &[String]) -> Result<()> {
    let here = this_netns()?;
    let interfaces = Netlink::open(None)?.interfaces()?;
    let namespaces = live_namespaces()
        .map_err(|e| Error::system("list the network namespaces of", "all processes", e))?;
    let is_removed = |name: &&String| match parse_id(name) {
        Some((netns, index)) if netns == here => !interfaces.iter().any(|it| it.index == index),
        Some((netns, _)) => !namespaces.contains(&netns),
        None => false,
    };
    let removed: Vec<&String> = dead.iter().filter(is_removed).collect();
    if removed.is_empty() {
        return Ok(());
    }
    let records = Records::lock(&RECORDS)?;
    // Checks again, because a new interface may have the same numbers by now.
    removed
        .into_iter()
        .filter(|name| is_dead(&records, name))
        .try_for_each(|name| records.forget(name))
}

/// Removes one user from the record; the last one restores all settings.
fn leave(records: &Records, files: &SysFiles, me: Process) {
    let Some(mut record) = InterruptRecord::load(records, &files.id) else { return };
    if let Some(at) = record.users.iter().position(|user| *user == me) {
        record.users.swap_remove(at);
    }
    record.users.retain(|user| user.lives());
    // After a failure the record stays for the next user of the interface.
    let _ = match record.users.is_empty() {
        true => put_back(records, files, &record),
        false => records.put(&files.id, &record.to_text()),
    };
}

/// Restores the former values of settings that still have ours, and removes the record.
fn put_back(records: &Records, files: &SysFiles, record: &InterruptRecord) -> Result<()> {
    for ((setting, wanted), former) in SETTINGS.iter().zip(record.former) {
        let Some(former) = former else { continue };
        let restored = match files.read(setting) {
            Ok(now) if now == *wanted => files.writer(setting).and_then(|f| write(f, former)),
            other => other.map(|_| ()),
        };
        match restored {
            // The interface was removed, and its settings with it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            other => other.map_err(|e| files.failed("put back", setting, e))?,
        }
    }
    records.forget(&files.id)
}

/// Returns the name of an interface's record: its namespace, and its number there.
fn id_of(interface: &Interface) -> Result<String> {
    Ok(format!("{}-{}", this_netns()?, interface.index))
}

/// Parses a record's name: the namespace and the interface's number.
fn parse_id(id: &str) -> Option<(u64, u32)> {
    let (netns, index) = id.split_once('-')?;
    Some((netns.parse().ok()?, index.parse().ok()?))
}

/// Returns the number of this thread's network namespace.
fn this_netns() -> Result<u64> {
    let netns = fs::metadata("/proc/thread-self/ns/net");
    Ok(netns.map_err(|e| Error::system("look at", "this network namespace", e))?.ino())
}

/// The record of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InterruptRecord {
    /// Its name, for human readers of the file.
    interface: String,
    /// The values to restore, in the order of SETTINGS.
    former: [Option<u64>; 2],
    /// The processes that poll; one that polls twice is listed twice.
    users: Vec<Process>,
}

impl InterruptRecord {
    fn load(records: &Records, id: &str) -> Option<Self> {
        Self::parse(&records.get(id)?)
    }

    /// True if every user has exited.
    fn is_dead(&self) -> bool {
        !self.users.iter().any(|user| user.lives())
    }

    fn to_text(&self) -> String {
        let mut text = format!("interface {}\n", self.interface);
        for ((setting, _), former) in SETTINGS.iter().zip(self.former) {
            if let Some(former) = former {
                text += &format!("former {setting} {former}\n");
            }
        }
        for Process { pid, started } in &self.users {
            text += &format!("user {pid} {started}\n");
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let mut record = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["interface", name] => record.interface = name.into(),
                ["former", setting, value] => {
                    let at = SETTINGS.iter().position(|(known, _)| *known == setting)?;
                    record.former[at] = Some(value.parse().ok()?);
                }
                ["user", pid, started] => {
                    let (pid, started) = (pid.parse().ok()?, started.parse().ok()?);
                    record.users.push(Process { pid, started });
                }
                _ => return None,
            }
        }
        Some(record)
    }
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

    fn read(&self, setting: &str) -> io::Result<u64> {
        number(&fs::read_to_string(self.path(setting)?)?)
    }

    fn writer(&self, setting: &str) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path(setting)?)
    }

    /// Returns a setting's file, found by the interface's number, because its name may have changed.
    fn path(&self, setting: &str) -> io::Result<PathBuf> {
        let folder = PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()));
        let is_it = |path: &PathBuf| {
            let index = fs::read_to_string(path.join("ifindex")).and_then(|text| number(&text));
            index.is_ok_and(|index| index == u64::from(self.index))
        };
        let mut there = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let found = there.find(is_it).ok_or(io::ErrorKind::NotFound)?;
        Ok(found.join(setting))
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

fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

fn write(mut file: File, value: u64) -> io::Result<()> {
    io::Write::write_all(&mut file, value.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is() {
        let user = |pid| Process { pid, started: 1 << 40 };
        for (former, users) in
            [([None, Some(0)], vec![]), ([Some(1), Some(20_000)], vec![user(7), user(8), user(7)])]
        {
            let record = InterruptRecord { interface: "eth0".into(), former, users };
            assert_eq!(InterruptRecord::parse(&record.to_text()), Some(record));
        }
        for (sentence, text) in [
            ("an unknown line", "colour red\n"),
            ("an unknown setting", "former mtu 1500\n"),
            ("no number", "former gro_flush_timeout much\n"),
            ("half a user", "user 7\n"),
        ] {
            assert_eq!(InterruptRecord::parse(text), None, "{sentence}");
        }
    }
}
