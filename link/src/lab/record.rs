//! The labs that are up, recorded one a file under `/run/sluice/labs`.

use super::LabConfig;
use crate::records::{Process, RecordDir, Records};
use sluicegate_base::error::Result;

const LABS: RecordDir = RecordDir {
    folder: "/run/sluice/labs",
    lock: "/run/sluice/lab.lock",
    purpose: "making or removing a lab",
    // Only files have refused: those of root, where the caller is another.
    capability: "CAP_DAC_OVERRIDE, CAP_SYS_ADMIN and CAP_NET_ADMIN",
};

/// The record of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LabRecord {
    pub config: LabConfig,
    /// The process a scratch lab belongs to.
    pub owner: Option<Process>,
}

impl LabRecord {
    fn to_text(&self) -> String {
        let mut text = format!("shape {}\nqueues {}\n", self.config.shape, self.config.queues);
        if let Some(owner) = self.owner {
            text += &format!("owner {} {}\n", owner.pid, owner.started);
        }
        text
    }

    fn parse(name: &str, text: &str) -> Option<Self> {
        let mut config = LabConfig { name: name.into(), ..LabConfig::default() };
        let mut owner = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["shape", shape] => config.shape = shape.parse().ok()?,
                ["queues", queues] => config.queues = queues.parse().ok()?,
                ["owner", pid, started] => {
                    let (pid, started) = (pid.parse().ok()?, started.parse().ok()?);
                    owner = Some(Process { pid, started });
                }
                _ => return None,
            }
        }
        config.check().ok()?;
        Some(Self { config, owner })
    }
}

/// The records, and the lock where there is one.
pub(super) struct Registry(Records);

impl Registry {
    /// Waits for others to be done with making or removing labs, and keeps them from it.
    pub fn lock() -> Result<Self> {
        Records::lock(&LABS).map(Self)
    }

    /// For looking only.
    pub fn read() -> Self {
        Self(Records::read(&LABS))
    }

    /// The labs, by name. What is no record is passed over.
    pub fn list(&self) -> Vec<LabRecord> {
        self.0.names().iter().filter_map(|name| self.get(name)).collect()
    }

    pub fn get(&self, name: &str) -> Option<LabRecord> {
        LabRecord::parse(name, &self.0.get(name)?)
    }

    pub fn put(&self, record: &LabRecord) -> Result<()> {
        self.0.put(&record.config.name, &record.to_text())
    }

    pub fn forget(&self, name: &str) -> Result<()> {
        self.0.forget(name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for (shape, queues, owner) in
            [(Shape::Pair, 1, None), (Shape::Line, 8, Some(Process { pid: 7, started: 1 << 40 }))]
        {
            let name = "lab".to_owned();
            let config = LabConfig { name, shape, queues };
            let record = LabRecord { config, owner };
            assert_eq!(LabRecord::parse("lab", &record.to_text()), Some(record));
        }
    }

    #[test]
    fn what_is_no_record_is_none() {
        for (sentence, name, text) in [
            ("an unknown shape", "lab", "shape ring\n"),
            ("an unknown line", "lab", "shape pair\ncolour red\n"),
            ("no number of queues", "lab", "queues many\n"),
            ("too many queues", "lab", "queues 1000000\n"),
            ("half an owner", "lab", "owner 7\n"),
            ("a name that is none", "../lab", "shape pair\n"),
        ] {
            assert_eq!(LabRecord::parse(name, text), None, "{sentence}");
        }
    }
}
