//! The journal of an interface: each change of a setting is written down before it is made, and can be undone.
//!
//! ```text
//!   begin    undoes what a killed process has left --> this process owns the journal
//!   change   former and new value --> journal --> set
//!   keep     the changes stay, and the journal, without an owner
//!   drop     undoes the changes since `begin`
//!   undo     undoes all changes
//! ```
//!
//! The last change is undone first. A value that another program has set since is not overwritten. Journals are in
//! `/run/sluice/settings`; a reboot ends them together with the changes.

mod record;

use sluicegate_base::error::{Error, Result};
use sluicegate_link::records::{Process, RecordDir, Records};

use crate::device::Device;
use crate::setting::Setting;
pub use record::Change;
use record::{JournalOwner, Record};

const RECORDS: RecordDir = RecordDir {
    folder: "/run/sluice/settings",
    lock: "/run/sluice/settings.lock",
    purpose: "changing the settings of an interface",
    capability: "CAP_NET_ADMIN and the right to write to /run/sluice",
};

/// Changes of an interface's settings, of which others see all or none. Dropping it undoes them.
#[derive(Debug)]
pub struct Transaction<'a> {
    device: &'a mut Device,
    me: Process,
    is_kept: bool,
}

/// A change that was undone, or not.
#[derive(Debug)]
pub struct Undone {
    /// The setting.
    pub setting: Setting,
    /// The value before the change.
    pub former: String,
    /// The outcome.
    pub outcome: Outcome,
}

impl Undone {
    fn is_failure_of(&self, setting: &Setting) -> bool {
        self.setting == *setting && matches!(self.outcome, Outcome::Failed(_))
    }
}

/// The outcome of an undo.
#[derive(Debug)]
pub enum Outcome {
    /// The setting has its former value.
    Restored,
    /// Another program has set this value since; it stays.
    Foreign(String),
    /// The interface does not have the setting any more.
    Missing,
    /// The driver refused. The change stays in the journal.
    Failed(Error),
}

impl<'a> Transaction<'a> {
    /// Begins changes of an interface, and undoes those that a killed process has left.
    ///
    /// # Errors
    /// Another process is changing the interface; the journal cannot be written.
    pub fn begin(device: &'a mut Device, command: &str) -> Result<Self> {
        let me = Process::this()?;
        let records = Records::lock(&RECORDS)?;
        let id = device.id();
        recover(&records, device)?;
        let mut record = Record::load(&records, &id)?;
        let name = device.name()?;
        if let Some(owner) = &record.owner {
            return Err(in_use(&name, owner));
        }
        record.interface = name;
        record.owner = Some(JournalOwner {
            process: me,
            first: record.changes.len(),
            command: command.into(),
        });
        records.put(&id, &record.to_text())?;
        Ok(Self { device, me, is_kept: false })
    }

    /// Returns the interface.
    pub fn device(&mut self) -> &mut Device {
        self.device
    }

    /// Changes a setting. Returns the value that it then has: some drivers round.
    ///
    /// # Errors
    /// The interface does not have the setting; the driver refuses; the journal cannot be written.
    pub fn change(&mut self, setting: &Setting, value: &str) -> Result<String> {
        let name = self.device.name()?;
        let former = self.device.read(setting)?.ok_or_else(|| Error::Unsupported {
            feature: format!("{setting} of {name}"),
            remedy: "its driver does not have this setting: leave it out".into(),
        })?;
        if former == value {
            return Ok(former);
        }
        let records = Records::lock(&RECORDS)?;
        let mut record = self.own_record(&records, &name)?;
        let (setting, former, new) = (setting.clone(), former, value.into());
        record.changes.push(Change { setting, former, new, is_made: false });
        records.put(&self.device.id(), &record.to_text())?;
        let Some(mut change) = record.changes.pop() else { return Ok(value.into()) };
        let set = self.device.set(&change.setting, value);
        let now = self.device.read(&change.setting)?.unwrap_or_default();
        if now != change.former {
            change.new.clone_from(&now);
            change.is_made = true;
            record.changes.push(change);
        }
        records.put(&self.device.id(), &record.to_text())?;
        set.map(|()| now)
    }

    /// Keeps the changes, until [`undo`].
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn keep(mut self) -> Result<()> {
        let records = Records::lock(&RECORDS)?;
        let name = self.device.name()?;
        let mut record = self.own_record(&records, &name)?;
        record.owner = None;
        end(&records, &self.device.id(), &record)?;
        self.is_kept = true;
        Ok(())
    }

    /// Returns true if [`confirm`] has kept the changes.
    pub fn is_confirmed(&mut self) -> bool {
        let record = Record::load(&Records::read(&RECORDS), &self.device.id());
        self.is_kept |= record.is_ok_and(|it| it.owner.is_none());
        self.is_kept
    }

    fn own_record(&self, records: &Records, name: &str) -> Result<Record> {
        let record = Record::load(records, &self.device.id())?;
        let is_own = record.owner.as_ref().is_some_and(|it| it.process == self.me);
        is_own.then_some(record).ok_or_else(|| Error::Removed {
            object: format!("the journal of {name}"),
            remedy: "another process has ended these changes: begin again".into(),
        })
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // After a failure, `undo` tries again.
        let Ok(records) = Records::lock(&RECORDS) else { return };
        let owner = Record::load(&records, &self.device.id()).ok().and_then(|it| it.owner);
        if let Some(first) = owner.filter(|it| it.process == self.me).map(|it| it.first) {
            let _ = roll_back(&records, self.device, first);
        }
    }
}

/// Keeps the changes of the process that owns an interface's journal.
///
/// # Errors
/// No process is changing the interface; the journal cannot be written.
pub fn confirm(device: &mut Device) -> Result<()> {
    let records = Records::lock(&RECORDS)?;
    let mut record = Record::load(&records, &device.id())?;
    if record.owner.is_none() || record.is_abandoned() {
        return Err(Error::Usage(format!(
            "no change of {} waits for a confirmation",
            device.name()?
        )));
    }
    record.owner = None;
    end(&records, &device.id(), &record)
}

/// Undoes all changes of an interface.
///
/// # Errors
/// Another process is changing the interface; the journal cannot be written.
pub fn undo(device: &mut Device) -> Result<Vec<Undone>> {
    let records = Records::lock(&RECORDS)?;
    let owner = Record::load(&records, &device.id())?.owner;
    if let Some(owner) = owner.filter(|it| it.process.lives()) {
        return Err(in_use(&device.name()?, &owner));
    }
    roll_back(&records, device, 0)
}

/// Undoes the changes that a killed process has left. Returns them.
///
/// # Errors
/// The journal cannot be written.
pub fn restore(device: &mut Device) -> Result<Vec<Undone>> {
    if !Record::load(&Records::read(&RECORDS), &device.id())?.is_abandoned() {
        return Ok(Vec::new());
    }
    recover(&Records::lock(&RECORDS)?, device)
}

/// Returns the changes of an interface that can be undone, the first one first.
///
/// # Errors
/// Another version of Sluice has written the journal.
pub fn changes(device: &Device) -> Result<Vec<Change>> {
    Ok(Record::load(&Records::read(&RECORDS), &device.id())?.changes)
}

/// Undoes the changes of an owner that has exited.
fn recover(records: &Records, device: &mut Device) -> Result<Vec<Undone>> {
    let record = Record::load(records, &device.id())?;
    match &record.owner {
        Some(owner) if record.is_abandoned() => roll_back(records, device, owner.first),
        _ => Ok(Vec::new()),
    }
}

/// Undoes the changes from one on, and ends the ownership. Those that fail stay.
fn roll_back(records: &Records, device: &mut Device, first: usize) -> Result<Vec<Undone>> {
    let id = device.id();
    let mut record = Record::load(records, &id)?;
    if record == Record::default() {
        return Ok(Vec::new());
    }
    let mut undone: Vec<Undone> = Vec::new();
    let mut at = record.changes.len();
    while at > first {
        at -= 1;
        let change = record.changes[at].clone();
        // A failed undo leaves a later value, so the setting's earlier changes wait for the next undo.
        let is_blocked = undone.iter().any(|it| it.is_failure_of(&change.setting));
        if is_blocked {
            continue;
        }
        let outcome = undo_change(device, &change);
        if !matches!(outcome, Outcome::Failed(_)) {
            record.changes.remove(at);
            records.put(&id, &record.to_text())?;
        }
        undone.push(Undone { setting: change.setting, former: change.former, outcome });
    }
    record.owner = None;
    end(records, &id, &record)?;
    Ok(undone)
}

/// Writes a journal that has no owner any more.
fn end(records: &Records, id: &str, record: &Record) -> Result<()> {
    match record.changes.is_empty() {
        true => records.forget(id),
        false => records.put(id, &record.to_text()),
    }
}

fn undo_change(device: &mut Device, change: &Change) -> Outcome {
    let Change { setting, former, new, is_made } = change;
    match device.read(setting) {
        Ok(Some(now)) if now == *former => Outcome::Restored,
        Ok(Some(now)) if now != *new && *is_made => Outcome::Foreign(now),
        Ok(Some(_)) => match device.set(setting, former).and_then(|()| device.read(setting)) {
            Ok(Some(now)) if now == *former => Outcome::Restored,
            Ok(now) => Outcome::Failed(Error::Unsupported {
                feature: format!("{former} as the value of {setting}"),
                remedy: format!("the driver keeps {}: set it by ethtool", now.unwrap_or_default()),
            }),
            Err(error) => Outcome::Failed(error),
        },
        Ok(None) | Err(Error::Removed { .. }) => Outcome::Missing,
        Err(error) => Outcome::Failed(error),
    }
}

fn in_use(name: &str, owner: &JournalOwner) -> Error {
    let JournalOwner { process, command, .. } = owner;
    Error::InUse(format!(
        "process {} ({command}) is changing the settings of {name}: wait for its end",
        process.pid
    ))
}
