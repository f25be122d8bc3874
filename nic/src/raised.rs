//! Settings that processes raise while they need them, and the records of their former values.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use sluicegate_base::error::{Error, Result};
use sluicegate_link::records::{Process, RecordDir, Records};

/// The settings of an object, which are raised together.
pub(crate) trait Settings {
    /// The location of the records.
    const RECORDS: RecordDir;

    /// Returns the name of the object's record.
    fn id(&self) -> &str;

    /// Returns the object's name, for human readers of the record.
    fn object(&self) -> &str;

    /// Returns the settings, and the values that they need at least.
    fn wanted(&self) -> &[(&'static str, u64)];

    /// Returns a setting's value.
    fn read(&self, setting: &str) -> io::Result<u64>;

    /// Opens a setting, to write it.
    fn writer(&self, setting: &str) -> io::Result<File>;

    /// Turns a failure into an error for users.
    fn failed(&self, operation: &'static str, setting: &str, error: io::Error) -> Error;
}

/// Settings that are raised until this value is dropped.
#[derive(Debug)]
pub(crate) struct Raised<S: Settings> {
    settings: S,
    me: Process,
    /// False if the settings already had the required values, so that nothing must be restored.
    recorded: bool,
}

impl<S: Settings> Raised<S> {
    /// Raises settings that are below their wanted values.
    ///
    /// # Errors
    /// The settings or the record cannot be written; nothing is changed then.
    pub(crate) fn new(settings: S) -> Result<Self> {
        // Creates no `Self` before the record has its entry: its drop would remove another entry of this
        // process.
        let me = Process::this()?;
        let records = Records::lock(&S::RECORDS)?;
        let mut record = Record::load(&records, settings.id()).unwrap_or_default();
        settings.object().clone_into(&mut record.object);
        record.users.retain(|user| user.lives());
        let mut raised = Vec::new();
        for (setting, wanted) in settings.wanted() {
            let now = settings.read(setting).map_err(|e| settings.failed("read", setting, e))?;
            if now < *wanted {
                let file = settings.writer(setting);
                let file = file.map_err(|e| settings.failed("set", setting, e))?;
                raised.push((file, *setting, *wanted));
                record.former.insert((*setting).into(), now);
            } else if now > *wanted {
                // Another program's value.
                record.former.remove(*setting);
            }
        }
        if record.former.is_empty() {
            // Another program has set these values: there is nothing to restore.
            return Ok(Self { settings, me, recorded: false });
        }
        record.users.push(me);
        records.put(settings.id(), &record.to_text())?;
        for (file, setting, wanted) in raised {
            if let Err(error) = write(file, wanted) {
                // Restores the settings raised so far.
                leave(&records, &settings, me);
                return Err(settings.failed("set", setting, error));
            }
        }
        Ok(Self { settings, me, recorded: true })
    }

    pub(crate) fn settings(&self) -> &S {
        &self.settings
    }
}

impl<S: Settings> Drop for Raised<S> {
    fn drop(&mut self) {
        if !self.recorded {
            return;
        }
        // This fails in a process that has dropped its privileges; then the next user of the object restores.
        if let Ok(records) = Records::lock(&S::RECORDS) {
            leave(&records, &self.settings, self.me);
        }
    }
}

/// Restores settings that killed processes left. Returns true if there were any.
///
/// # Errors
/// The settings or the record cannot be written.
pub(crate) fn restore<S: Settings>(settings: &S) -> Result<bool> {
    let records = Records::lock(&S::RECORDS)?;
    // Another process may have been faster.
    match Record::load(&records, settings.id()).filter(Record::is_dead) {
        Some(record) => restore_values(&records, settings, &record).map(|()| true),
        None => Ok(false),
    }
}

/// Returns the names of the records of which every user has exited.
pub(crate) fn dead_records(dir: &RecordDir) -> Vec<String> {
    let records = Records::read(dir);
    let names = records.names().into_iter();
    names.filter(|name| is_dead(&records, name)).collect()
}

/// Removes the records of objects that were removed.
pub(crate) fn forget(dir: &RecordDir, removed: &[&String]) -> Result<()> {
    if removed.is_empty() {
        return Ok(());
    }
    let records = Records::lock(dir)?;
    // Checks again, because a new object may have the same name by now.
    let mut dead = removed.iter().filter(|name| is_dead(&records, name));
    dead.try_for_each(|name| records.forget(name))
}

/// True if every user of a record has exited.
fn is_dead(records: &Records, name: &str) -> bool {
    Record::load(records, name).is_some_and(|record| record.is_dead())
}

/// Removes one user from the record; the last one restores all settings.
fn leave<S: Settings>(records: &Records, settings: &S, me: Process) {
    let Some(mut record) = Record::load(records, settings.id()) else { return };
    if let Some(at) = record.users.iter().position(|user| *user == me) {
        record.users.swap_remove(at);
    }
    record.users.retain(|user| user.lives());
    // After a failure the record stays for the next user of the object.
    let _ = match record.users.is_empty() {
        true => restore_values(records, settings, &record),
        false => records.put(settings.id(), &record.to_text()),
    };
}

/// Restores the former values of settings that still have ours, and removes the record.
fn restore_values<S: Settings>(records: &Records, settings: &S, record: &Record) -> Result<()> {
    for (setting, wanted) in settings.wanted() {
        let Some(former) = record.former.get(*setting) else { continue };
        let restored = match settings.read(setting) {
            Ok(now) if now == *wanted => settings.writer(setting).and_then(|f| write(f, *former)),
            other => other.map(|_| ()),
        };
        match restored {
            // The object was removed, and its settings with it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            other => other.map_err(|e| settings.failed("put back", setting, e))?,
        }
    }
    records.forget(settings.id())
}

/// Parses the number in a setting's file.
pub(crate) fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

fn write(mut file: File, value: u64) -> io::Result<()> {
    io::Write::write_all(&mut file, value.to_string().as_bytes())
}

/// The record of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    /// Its name, for human readers of the file.
    object: String,
    /// The values to restore, by setting.
    former: BTreeMap<String, u64>,
    /// The processes that need the settings; one that raised them twice is listed twice.
    users: Vec<Process>,
}

impl Record {
    fn load(records: &Records, id: &str) -> Option<Self> {
        Self::parse(&records.get(id)?)
    }

    /// True if every user has exited.
    fn is_dead(&self) -> bool {
        !self.users.iter().any(|user| user.lives())
    }

    fn to_text(&self) -> String {
        let mut text = format!("object {}\n", self.object);
        for (setting, former) in &self.former {
            text += &format!("former {setting} {former}\n");
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
                ["object", name] => record.object = name.into(),
                ["former", setting, value] => {
                    record.former.insert(setting.into(), value.parse().ok()?);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is() {
        let user = |pid| Process { pid, started: 1 << 40 };
        let timeout = ("gro_flush_timeout".to_owned(), 0);
        let both = [timeout.clone(), ("napi_defer_hard_irqs".into(), 20_000)];
        for (former, users) in [
            (BTreeMap::from([timeout]), vec![]),
            (BTreeMap::from(both), vec![user(7), user(8), user(7)]),
        ] {
            let record = Record { object: "eth0".into(), former, users };
            assert_eq!(Record::parse(&record.to_text()), Some(record));
        }
        for (sentence, text) in [
            ("an unknown line", "colour red\n"),
            ("no number", "former gro_flush_timeout much\n"),
            ("half a user", "user 7\n"),
        ] {
            assert_eq!(Record::parse(text), None, "{sentence}");
        }
    }
}
