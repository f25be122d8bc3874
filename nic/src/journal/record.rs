//! The journal of an interface as a text.

use std::io;

use sluicegate_base::error::{Error, Result};
use sluicegate_link::records::{Process, Records};

use crate::setting::Setting;

/// The journal of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The interface's name, for human readers.
    pub(super) interface: String,
    /// The process that is changing the settings.
    pub(super) owner: Option<JournalOwner>,
    /// The changes, in their order.
    pub(super) changes: Vec<Change>,
}

/// A process that changes settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JournalOwner {
    pub(super) process: Process,
    /// The number of the first change that is its own.
    pub(super) first: usize,
    pub(super) command: String,
}

/// A change of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The setting.
    pub setting: Setting,
    /// The value before.
    pub former: String,
    /// The value after.
    pub new: String,
    /// False between the record and the change: the setting may have either value, or one that the driver has rounded.
    pub is_made: bool,
}

impl Record {
    /// Returns the journal of an interface; an empty one if it has none.
    ///
    /// # Errors
    /// Another version of Sluice has written it.
    pub(super) fn load(records: &Records, id: &str) -> Result<Self> {
        let Some(text) = records.get(id) else { return Ok(Self::default()) };
        Self::parse(&text).ok_or_else(|| {
            let path = format!("{}/{id}", super::RECORDS.folder);
            let unreadable = io::Error::from(io::ErrorKind::InvalidData);
            Error::system("read", &path, unreadable).remedy(format!(
                "undo the changes by the version of Sluice that made them, or by hand, and remove {path}"
            ))
        })
    }

    /// True if the owner has exited.
    pub(super) fn is_abandoned(&self) -> bool {
        self.owner.as_ref().is_some_and(|it| !it.process.lives())
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = format!("interface {}\n", self.interface);
        if let Some(JournalOwner { process: Process { pid, started }, first, command }) =
            &self.owner
        {
            text += &format!("owner {pid} {started} {first} {command}\n");
        }
        for Change { setting, former, new, is_made } in &self.changes {
            let word = if *is_made { "made" } else { "pending" };
            text += &format!("{word} {former} {new} {setting}\n");
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let mut record = Self::default();
        for line in text.lines() {
            let (word, rest) = line.split_once(' ')?;
            match word {
                "interface" => record.interface = rest.into(),
                "owner" => {
                    let mut words = rest.splitn(4, ' ');
                    let (pid, started) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                    let (first, command) = (words.next()?.parse().ok()?, words.next()?.into());
                    let process = Process { pid, started };
                    record.owner = Some(JournalOwner { process, first, command });
                }
                "made" | "pending" => {
                    let mut words = rest.splitn(3, ' ');
                    let (former, new) = (words.next()?.into(), words.next()?.into());
                    let setting = words.next()?.parse().ok()?;
                    let is_made = word == "made";
                    record.changes.push(Change { setting, former, new, is_made });
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
    fn a_journal_is_read_as_it_was_written_and_nothing_else_is() {
        let process = Process { pid: 7, started: 1 << 40 };
        let owner =
            JournalOwner { process, first: 1, command: "sluice tune eth0 --for capture".into() };
        let change = |setting: &str, former: &str, new: &str| Change {
            setting: setting.parse().unwrap(),
            former: former.into(),
            new: new.into(),
            is_made: setting != "rss.table",
        };
        let changes = vec![
            change("ring.rx", "256", "4096"),
            change("feature.rx-gro", "on", "off"),
            change("rss.table", "0,1,0,1", "0,0,0,0"),
        ];
        for owner in [None, Some(owner)] {
            let record = Record { interface: "eth0".into(), owner, changes: changes.clone() };
            assert_eq!(Record::parse(&record.to_text()), Some(record));
        }
        for (sentence, text) in [
            ("an unknown line", "colour red\n"),
            ("half a change", "made 256 4096\n"),
            ("no such setting", "made 256 4096 ring.both\n"),
            ("half an owner", "owner 7 8\n"),
        ] {
            assert_eq!(Record::parse(text), None, "{sentence}");
        }
    }
}
