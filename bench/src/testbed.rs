//! The testbed: two interfaces that are joined, and the CPUs that the two sides have.
//!
//! ```text
//!   left: sends, from the first CPUs     right: receives, on the others
//!   ┌──────────────────┐                 ┌───────────────────┐
//!   │ interface        ├─────────────────┤ interface         │
//!   └──────────────────┘                 └───────────────────┘
//! ```
//!
//! Where something between them is measured, a host stands there (a [`Line`]).
//!
//! A CPU sends for each queue. On a veth it also does the kernel's share of receiving what it sends (the
//! softirq), by the queue of its number: several queues get packets where several CPUs send.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use sluicegate::error::{Error, Result};
use sluicegate::link::{Interface, Lab, LabConfig, Mac, Shape, interface};
use tempfile::TempDir;

use crate::process::Program;

/// An MTU for frames of up to 9000 bytes.
const JUMBO: u32 = 9000;

/// One side: an interface, and where it is.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its network namespace; this process's if none.
    pub netns: Option<String>,
    /// The interface's name.
    pub interface: String,
}

impl Side {
    /// The interface as it is now.
    ///
    /// # Errors
    /// There is none of its name, or its namespace cannot be entered.
    pub fn look(&self) -> Result<Interface> {
        interface(self.netns.as_deref(), &self.interface)
    }

    /// Its Ethernet address.
    ///
    /// # Errors
    /// As [`look`](Self::look); it has none.
    pub fn mac(&self) -> Result<Mac> {
        let none = || Error::Usage(format!("{} has no Ethernet address", self.interface));
        self.look()?.mac.ok_or_else(none)
    }
}

/// Which host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The side that sends.
    Left,
    /// The side that receives.
    Right,
    /// Between them, where there is one.
    Middle,
}

/// A host between the two sides: what comes in by one interface is to leave by the other.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its network namespace.
    netns: String,
    /// The interface to the side that sends.
    pub from: String,
    /// The interface to the side that receives.
    pub to: String,
}

impl Line {
    /// The Ethernet address of the interface to the side that sends.
    ///
    /// # Errors
    /// As [`Side::mac`].
    pub fn mac(&self) -> Result<Mac> {
        Side { netns: Some(self.netns.clone()), interface: self.from.clone() }.mac()
    }
}

/// Two interfaces that are joined.
#[derive(Debug)]
pub struct Testbed {
    /// The side that sends.
    pub left: Side,
    /// The side that receives.
    pub right: Side,
    /// The host between them; none where they are joined by a cable.
    pub line: Option<Line>,
    /// Gone with this value.
    lab: Option<Lab>,
    /// For files that steps make: nobody else can put any there. Gone with this value.
    folder: TempDir,
}

/// The properties of a testbed that is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TestbedConfig {
    /// Queues of each interface.
    pub queues: u32,
    /// For frames of more than 1514 bytes.
    pub jumbo: bool,
    /// With a host between the sides.
    pub line: bool,
}

impl Testbed {
    /// Makes one of namespaces and a veth link. It goes when the value does.
    ///
    /// # Errors
    /// A missing privilege, as of [`Lab`]; `ip` is not there (for jumbo frames).
    pub fn make(config: TestbedConfig) -> Result<Self> {
        let queues = config.queues.min(LabConfig::MAX_QUEUES);
        let shape = if config.line { Shape::Line } else { Shape::Pair };
        let lab = Lab::scratch_with(shape, queues)?;
        let side = |host, interface: &str| Side {
            netns: Some(lab.netns(host)),
            interface: interface.to_owned(),
        };
        let line = config.line.then(|| Line {
            netns: lab.netns("middle"),
            from: "middle0".into(),
            to: "middle1".into(),
        });
        let (left, right) = (side("left", "left0"), side("right", "right0"));
        let testbed = Self { left, right, line, lab: Some(lab), folder: folder()? };
        if config.jumbo {
            let middle = testbed.line.iter().flat_map(|line| [&line.from, &line.to]);
            let middle = middle.map(|name| (End::Middle, name));
            let ends =
                [(End::Left, &testbed.left.interface), (End::Right, &testbed.right.interface)];
            for (end, name) in ends.into_iter().chain(middle) {
                let mtu = JUMBO.to_string();
                Program::tool("ip", ["link", "set", "dev", name, "mtu", &mtu])
                    .run(&testbed, end)?;
            }
        }
        Ok(testbed)
    }

    /// A testbed of two existing interfaces, which stay unchanged.
    ///
    /// # Errors
    /// One of them is not there, or has no Ethernet address; both are the same.
    pub fn of(left: Side, right: Side) -> Result<Self> {
        if left.netns == right.netns && left.interface == right.interface {
            let name = &left.interface;
            return Err(Error::Usage(format!("{name} twice: a bench has two interfaces")));
        }
        left.mac()?;
        right.mac()?;
        Ok(Self { left, right, line: None, lab: None, folder: folder()? })
    }

    /// Of this process's own namespace, without a look.
    #[cfg(test)]
    pub(crate) fn here(left: Side, right: Side) -> Self {
        Self { left, right, line: None, lab: None, folder: folder().unwrap() }
    }

    /// Where steps have a file of this name.
    pub fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// True if the bench created it, so that steps may change it.
    pub fn is_ours(&self) -> bool {
        self.lab.is_some()
    }

    /// The network namespace of a host; this process's if none.
    pub fn netns(&self, end: End) -> Option<&str> {
        match end {
            End::Left => self.left.netns.as_deref(),
            End::Right => self.right.netns.as_deref(),
            End::Middle => self.line.as_ref().map(|line| line.netns.as_str()),
        }
    }
}

fn folder() -> Result<TempDir> {
    tempfile::tempdir().map_err(|error| Error::system("make", "a folder for a bench", error))
}

/// The CPUs that may be used.
#[derive(Clone, Debug)]
pub struct Cpus(Vec<usize>);

impl Cpus {
    /// Those that this process may run on.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn allowed() -> Result<Self> {
        let set = sched_getaffinity(Pid::from_raw(0))
            .map_err(|error| Error::system("look up the CPUs of", "this process", error))?;
        Ok(Self((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()))
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// `n` of them for a sender, from the first on.
    pub fn senders(&self, n: u32) -> Vec<usize> {
        self.0.iter().copied().take(n as usize).collect()
    }

    /// Up to `n` CPUs for a receiver, after those of `senders` senders; the last one if all CPUs send.
    pub fn receivers(&self, n: u32, senders: u32) -> Vec<usize> {
        let first = (senders as usize).min(self.0.len().saturating_sub(1));
        self.0[first..].iter().copied().take(n as usize).collect()
    }
}

/// CPUs as flags have them: "0,1".
pub fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Nobody's Ethernet address, as on a mirror port: the host drops these packets early.
pub const NOBODY: &str = "02:00:00:00:00:99";
/// The IPv4 address that packets are sent to.
pub const ADDRESS: &str = "198.18.0.2";

/// The command that sends UDP packets of a size to an Ethernet address, into a port.
pub fn generate(port: &str, bytes: u32, to: &str) -> Program {
    Program::sluice(["generate", port, "--json", "--size", &bytes.to_string(), "--dmac", to]).and([
        "--src",
        "198.18.0.1",
        "--dst",
        ADDRESS,
        "--dport",
        "9",
    ])
}

/// Sends them from the left end by a thread on each of these CPUs, each packet from another source port.
pub fn from_left(testbed: &Testbed, cpus: &[usize], bytes: u32, to: &str) -> Program {
    let threads = cpus.len().to_string();
    generate(&testbed.left.interface, bytes, to).and([
        "--sport",
        "1..65535",
        "--threads",
        &threads,
        "--cpus",
        &list(cpus),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cpus_send_and_the_others_receive() {
        let cpus = Cpus(vec![2, 3, 5]);
        assert_eq!(cpus.senders(1), [2]);
        assert_eq!(cpus.receivers(1, 1), [3]);
        assert_eq!(cpus.receivers(9, 1), [3, 5], "there are no more");
        assert_eq!(cpus.receivers(9, 2), [5]);
        assert_eq!(cpus.receivers(1, 9), [5], "all send");
        assert_eq!(Cpus(vec![4]).receivers(1, 1), [4], "one CPU does both");
        assert_eq!(list(&cpus.senders(2)), "2,3");
    }

    #[test]
    fn an_interface_is_not_joined_with_itself() {
        let side = || Side { netns: None, interface: "lo".into() };
        let error = Testbed::of(side(), side()).unwrap_err().to_string();
        assert_eq!(error, "lo twice: a bench has two interfaces");
    }
}
