//! The lab: hosts made of network namespaces and veth links, for trials and tests without a network.
//!
//! ```text
//!   pair    left (left0) ──────────────────────────── (right0) right
//!   line    left (left0) ── (middle0) middle (middle1) ── (right0) right
//!   star    left (left0) ── (middle0) middle; right, upper and lower at middle1 to middle3
//! ```
//!
//! Host HOST of the lab NAME is the namespace NAME-HOST, also for `ip netns`. All hosts except `middle` have
//! addresses, permanent neighbour entries for each other, and routes to the rest of 198.18.0.0/15 and
//! 2001:db8::/32 through each other. The other host drops packets that are not for it, because no host of a
//! lab forwards. Nothing else sends on the links, so a test counts only its own packets. Packets on the links
//! are as on a wire: with checksums, and TCP segmented. Creating and removing labs needs `CAP_SYS_ADMIN` and
//! `CAP_NET_ADMIN`; a user other than root also needs `CAP_DAC_OVERRIDE`. NAPI on a veth needs Linux 5.13.

mod build;
mod plan;

pub use plan::{Host, HostInterface, Shape};

use std::fmt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use super::netns;
use super::records::{Process, RecordDir, Records};
use sluicegate_base::error::{Error, Result};

/// The configuration of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabConfig {
    /// Its name: letters, digits, `-`, `_` and `.`, 64 at most.
    pub name: String,
    /// Its hosts and links.
    pub shape: Shape,
    /// Receive and transmit queues of each interface.
    pub queues: u32,
}

impl Default for LabConfig {
    fn default() -> Self {
        Self { name: "lab".into(), shape: Shape::Pair, queues: 1 }
    }
}

impl LabConfig {
    /// Maximum of queues of a lab's interface.
    pub const MAX_QUEUES: u32 = 64;

    fn check(&self) -> Result<()> {
        let fits = (1..=64).contains(&self.name.len());
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !fits || !self.name.chars().all(plain) || self.name.starts_with(['.', '-']) {
            return Err(Error::Usage(format!(
                "'{}' cannot be a lab's name: use letters, digits, '-', '_' and '.', 64 at most",
                self.name
            )));
        }
        if !(1..=Self::MAX_QUEUES).contains(&self.queues) {
            return Err(Error::Usage(format!(
                "a lab's interfaces have 1 to {} queues, not {}",
                Self::MAX_QUEUES,
                self.queues
            )));
        }
        Ok(())
    }
}

/// A part that a broken lab lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingPart {
    /// The namespace of a host.
    Netns(String),
    /// An interface.
    Interface(&'static str),
    /// The link of an interface: an end is down.
    Link(&'static str),
    /// Addresses or routes of an interface.
    AddressesOrRoutes(&'static str),
}

impl fmt::Display for MissingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Netns(name) => write!(f, "netns {name}"),
            Self::Interface(name) => f.write_str(name),
            Self::Link(name) => write!(f, "the link of {name}"),
            Self::AddressesOrRoutes(name) => write!(f, "addresses or routes of {name}"),
        }
    }
}

/// The records of existing labs, one per file.
const LABS: RecordDir = RecordDir {
    folder: "/run/sluice/labs",
    lock: "/run/sluice/lab.lock",
    purpose: "making or removing a lab",
    // The records report these only when they may not access root's files, for a caller other than root.
    capability: "CAP_DAC_OVERRIDE, CAP_SYS_ADMIN and CAP_NET_ADMIN",
};

/// An existing lab.
#[derive(Debug, PartialEq, Eq)]
pub struct Lab {
    config: LabConfig,
    /// The process that owns a scratch lab.
    owner: Option<Process>,
    /// True if dropping this value removes the lab: only for a lab created for a test.
    scratch: bool,
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.scratch {
            // If this fails, the next `scratch` call tries again.
            let _ = Records::lock(&LABS).and_then(|records| remove(&records, &self.config));
        }
    }
}

impl Lab {
    /// Creates a lab. A complete lab stays unchanged; a broken one is created again.
    ///
    /// # Errors
    /// A lab of this name with another shape or number of queues exists; a namespace of its name belongs to
    /// no lab; a missing privilege, also to check an existing lab. A failed creation leaves nothing.
    pub fn up(config: &LabConfig) -> Result<Self> {
        config.check()?;
        let records = Records::lock(&LABS)?;
        if let Some(there) = Self::load(&records, &config.name) {
            if there.config != *config {
                return Err(Error::Usage(format!(
                    "lab '{0}' is up as {1} with {2}, not as {3} with {4}: take another --name, \
                     or remove it first with `sluice lab down --name {0}`",
                    config.name,
                    there.config.shape,
                    queues(there.config.queues),
                    config.shape,
                    queues(config.queues),
                )));
            }
            if build::missing(&there.config)?.is_empty() {
                return Ok(there);
            }
            remove(&records, &there.config)?;
        }
        Self::make(&records, config.clone(), None)
    }

    /// Creates a lab of shape pair with one queue for a test. Dropping it removes the lab.
    ///
    /// # Errors
    /// The errors of [`Lab::scratch_with`].
    pub fn scratch() -> Result<Self> {
        Self::scratch_with(Shape::Pair, 1)
    }

    /// Creates a lab with a unique name. Dropping it removes the lab. Also removes scratch labs whose process
    /// has ended without dropping them.
    ///
    /// # Errors
    /// The errors of [`Lab::up`].
    pub fn scratch_with(shape: Shape, queues: u32) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let owner = Process::this()?;
        // Relaxed: the number only has to be unique, and publishes nothing.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let config = LabConfig {
            name: format!("scratch-{}-{}-{count}", owner.pid, owner.started),
            shape,
            queues,
        };
        config.check()?;
        let records = Records::lock(&LABS)?;
        for lab in Self::recorded(&records) {
            if lab.owner.is_some_and(|owner| !owner.lives()) {
                remove(&records, &lab.config)?;
            }
        }
        let mut lab = Self::make(&records, config, Some(owner))?;
        lab.scratch = true;
        Ok(lab)
    }

    /// Removes a lab. Commands still running in it keep a namespace without links.
    ///
    /// # Errors
    /// No lab has this name (the error lists all), a missing privilege.
    pub fn down(name: &str) -> Result<()> {
        // Checked before the lock, so that a wrong name is reported without privileges; and again under the
        // lock, because another process may have been faster.
        Self::find(name)?;
        let records = Records::lock(&LABS)?;
        let lab = Self::find(name)?;
        remove(&records, &lab.config)
    }

    /// Returns the existing labs, by name; needs no privilege.
    pub fn list() -> Vec<Self> {
        Self::recorded(&Records::read(&LABS))
    }

    /// Returns the lab of this name; needs no privilege.
    ///
    /// # Errors
    /// No lab has this name (the error lists all).
    pub fn find(name: &str) -> Result<Self> {
        Self::load(&Records::read(&LABS), name).ok_or_else(|| {
            let labs = Self::list();
            let names: Vec<&str> = labs.iter().map(Self::name).collect();
            Error::Usage(if names.is_empty() {
                format!("no lab '{name}' is up; create it with `sluice lab up --name {name}`")
            } else {
                format!("no lab '{name}' is up; available: {}", names.join(", "))
            })
        })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Returns its shape.
    pub fn shape(&self) -> Shape {
        self.config.shape
    }

    /// Receive and transmit queues of each interface.
    pub fn queues(&self) -> u32 {
        self.config.queues
    }

    /// Returns the process that owns a scratch lab.
    pub fn owner(&self) -> Option<u32> {
        self.owner.map(|owner| owner.pid)
    }

    /// True if the process that owns a scratch lab still runs.
    pub fn owner_lives(&self) -> bool {
        self.owner.is_some_and(Process::lives)
    }

    /// Returns its hosts, from left to right.
    pub fn hosts(&self) -> &'static [Host] {
        self.config.shape.hosts()
    }

    /// Returns the name of a host's namespace: "lab-left".
    pub fn netns(&self, host: &str) -> String {
        plan::netns(&self.config.name, host)
    }

    /// Returns the parts that were removed, or never created because the creation was interrupted. Without
    /// CAP_SYS_ADMIN only missing hosts. Waits while another process creates or removes a lab; a user who may
    /// not lock the records does not wait, and gets the missing parts of an unfinished lab.
    ///
    /// # Errors
    /// The lab was removed meanwhile; or all hosts exist, and a missing `CAP_SYS_ADMIN` prevents a look into
    /// one.
    pub fn missing(&self) -> Result<Vec<MissingPart>> {
        let _records = Records::lock(&LABS);
        build::missing(&Self::find(self.name())?.config)
    }

    /// Starts a command on a host.
    ///
    /// # Errors
    /// The lab has no such host, the process lacks a privilege, or the kernel cannot start the command.
    pub fn spawn(&self, host: &str, command: &mut Command) -> Result<Child> {
        netns::spawn(&self.known(host)?, command)
    }

    /// Replaces this process by a command on a host; returns only on failure.
    pub fn become_command(&self, host: &str, command: &mut Command) -> Error {
        self.known(host).map_or_else(|error| error, |netns| netns::exec(&netns, command))
    }

    fn known(&self, host: &str) -> Result<String> {
        if self.hosts().iter().any(|known| known.name == host) {
            return Ok(self.netns(host));
        }
        let names: Vec<&str> = self.hosts().iter().map(|host| host.name).collect();
        Err(Error::Usage(format!(
            "lab '{}' has no host '{host}'; it has {}",
            self.name(),
            names.join(", ")
        )))
    }

    /// Loads the lab of this name; `None` if the file is not a valid record.
    fn load(records: &Records, name: &str) -> Option<Self> {
        Self::parse(name, &records.get(name)?)
    }

    /// Loads all labs, by name.
    fn recorded(records: &Records) -> Vec<Self> {
        records.names().iter().filter_map(|name| Self::load(records, name)).collect()
    }

    /// Formats its record.
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
        Some(Self { config, owner, scratch: false })
    }

    fn make(records: &Records, config: LabConfig, owner: Option<Process>) -> Result<Self> {
        build::refuse_foreign(&config)?;
        // Recorded first, so that the lab can be found and removed after any later failure.
        let lab = Self { config, owner, scratch: false };
        records.put(&lab.config.name, &lab.to_text())?;
        if let Err(error) = build::build(&lab.config) {
            // The error of the build matters more than one of the removal.
            let _ = remove(records, &lab.config);
            return Err(error);
        }
        Ok(lab)
    }
}

fn remove(records: &Records, config: &LabConfig) -> Result<()> {
    build::tear_down(config)?;
    records.forget(&config.name)
}

fn queues(count: u32) -> String {
    format!("{count} {}", if count == 1 { "queue" } else { "queues" })
}

/// Labs for the unit tests of this crate; prints the reason if none can be created.
#[cfg(test)]
pub(crate) mod for_tests {
    use super::{Lab, Shape};

    /// True if a test can create labs and load programs; otherwise prints the reason.
    pub(crate) fn is_root() -> bool {
        let is_root = nix::unistd::geteuid().is_root();
        if !is_root {
            println!("skipped: needs root; get it by sudo");
        }
        is_root
    }

    /// Creates two hosts and a link between them.
    pub(crate) fn lab() -> Option<Lab> {
        lab_with(1)
    }

    /// Creates two hosts and a link with `queues` queues at each end.
    pub(crate) fn lab_with(queues: u32) -> Option<Lab> {
        is_root().then(|| Lab::scratch_with(Shape::Pair, queues).expect("a scratch lab"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_queues_are_checked_before_anything_is_made() {
        let long = "l".repeat(65);
        for (name, queues) in [
            ("", 1),
            ("../etc", 1),
            ("a b", 1),
            (".hidden", 1),
            ("-flag", 1),
            (long.as_str(), 1),
            ("lab", 0),
            ("lab", 65),
        ] {
            let config = LabConfig { name: name.into(), queues, ..LabConfig::default() };
            let error = Lab::up(&config).unwrap_err();
            assert!(matches!(error, Error::Usage(_)), "{name:?} {queues}: {error}");
        }
    }

    #[test]
    fn an_unknown_lab_is_said_with_a_remedy() {
        let error = Lab::down("no-such-lab").unwrap_err().to_string();
        assert!(error.starts_with("no lab 'no-such-lab' is up; "), "{error}");
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for (shape, queues, owner) in
            [(Shape::Pair, 1, None), (Shape::Line, 8, Some(Process { pid: 7, started: 1 << 40 }))]
        {
            let name = "lab".to_owned();
            let config = LabConfig { name, shape, queues };
            let lab = Lab { config, owner, scratch: false };
            assert_eq!(Lab::parse("lab", &lab.to_text()), Some(lab));
        }
    }

    #[test]
    fn an_invalid_record_is_none() {
        for (sentence, name, text) in [
            ("an unknown shape", "lab", "shape ring\n"),
            ("an unknown line", "lab", "shape pair\ncolour red\n"),
            ("no number of queues", "lab", "queues many\n"),
            ("too many queues", "lab", "queues 1000000\n"),
            ("half an owner", "lab", "owner 7\n"),
            ("a name that is none", "../lab", "shape pair\n"),
        ] {
            assert_eq!(Lab::parse(name, text), None, "{sentence}");
        }
    }
}
