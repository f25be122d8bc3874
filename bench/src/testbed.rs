//! The testbed: a pair of connected interfaces, and the CPUs of the two sides.
//!
//! ```text
//!   left: sends, from the first CPUs     right: receives, on the others
//!   ┌──────────────────┐                 ┌───────────────────┐
//!   │ interface        ├─────────────────┤ interface         │
//!   └──────────────────┘                 └───────────────────┘
//! ```
//!
//! To measure a device, a host stands between them.
//!
//! One CPU sends for each queue. On a veth it also runs the softirq that receives what it sends, on the queue
//! of its number: several queues get packets if several CPUs send.

use sluicegate::error::{Error, Result};
use sluicegate::link::{Allowed, Interface, Lab, LabConfig, Mac, Shape, interface};
use tempfile::TempDir;

use crate::observer::{BenchObserver, Failure};
use crate::process::{COUNTING, Count, LabHost, Program, Running};
use crate::step::Setting;

/// An MTU for frames of up to 9000 bytes.
const JUMBO_MTU: &str = "9000";

/// An interface and its network namespace.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its network namespace; this process's if none.
    pub netns: Option<String>,
    /// The interface's name.
    pub interface: String,
}

impl Side {
    /// Reads the interface's current state.
    ///
    /// # Errors
    /// No interface has its name, or its namespace cannot be entered.
    pub fn read(&self) -> Result<Interface> {
        interface(self.netns.as_deref(), &self.interface)
    }

    /// Its Ethernet address.
    ///
    /// # Errors
    /// As [`read`](Self::read); it has none.
    pub fn mac(&self) -> Result<Mac> {
        let none = || Error::Usage(format!("{} has no Ethernet address", self.interface));
        self.read()?.mac.ok_or_else(none)
    }
}

/// A pair of connected interfaces.
#[derive(Debug)]
pub struct Testbed {
    /// The side that sends.
    pub left: Side,
    /// The side that receives.
    pub right: Side,
    /// The left and right interfaces of the host between them; `None` if they are connected directly.
    pub middle: Option<[Side; 2]>,
    /// The CPUs of both sides.
    pub cpus: Cpus,
    /// Removed on drop.
    lab: Option<Lab>,
    /// The folder for files of steps. Removed on drop.
    folder: TempDir,
}

/// The properties of a new testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TestbedConfig {
    /// Queues of each interface.
    pub queues: u32,
    /// For frames of more than 1514 bytes.
    pub jumbo: bool,
    /// With a host between the sides.
    pub middle: bool,
}

impl TestbedConfig {
    /// One queue and ordinary frames, without a host between the sides.
    pub const PAIR: Self = Self { queues: 1, jumbo: false, middle: false };
    /// A host between the sides, otherwise as [`PAIR`](Self::PAIR).
    pub const LINE: Self = Self { middle: true, ..Self::PAIR };
}

impl Testbed {
    /// Makes a testbed of namespaces and veth links. Dropping it removes them.
    ///
    /// # Errors
    /// A missing privilege, as of [`Lab`]; `ip` is not installed (for jumbo frames).
    pub fn make(config: TestbedConfig) -> Result<Self, Failure> {
        let queues = config.queues.min(LabConfig::MAX_QUEUES);
        let shape = if config.middle { Shape::Line } else { Shape::Pair };
        let lab = Lab::scratch_with(shape, queues)?;
        let side = |host, interface: &str| Side {
            netns: Some(lab.netns(host)),
            interface: interface.to_owned(),
        };
        let middle = config.middle.then(|| ["middle0", "middle1"].map(|it| side("middle", it)));
        let (left, right) = (side("left", "left0"), side("right", "right0"));
        let mut testbed = Self::new(left, right)?;
        (testbed.middle, testbed.lab) = (middle, Some(lab));
        if config.jumbo {
            let middle = testbed.middle.iter().flatten().map(|side| (LabHost::Middle, side));
            let ends = [(LabHost::Left, &testbed.left), (LabHost::Right, &testbed.right)];
            for (host, side) in ends.into_iter().chain(middle) {
                let set = ["link", "set", "dev", &side.interface, "mtu", JUMBO_MTU];
                testbed.run(&Program::tool("ip", set).at(host))?;
            }
        }
        Ok(testbed)
    }

    /// Makes a testbed of two existing interfaces, which stay unchanged.
    ///
    /// # Errors
    /// An interface does not exist or has no Ethernet address; both are the same.
    pub fn of(left: Side, right: Side) -> Result<Self, Failure> {
        if left.netns == right.netns && left.interface == right.interface {
            let name = &left.interface;
            return Err(Error::Usage(format!("{name} twice: a bench has two interfaces")).into());
        }
        left.mac()?;
        right.mac()?;
        Ok(Self::new(left, right)?)
    }

    /// Makes a testbed of two interfaces without reading their state.
    pub(crate) fn new(left: Side, right: Side) -> Result<Self> {
        let folder = tempfile::tempdir();
        let folder =
            folder.map_err(|error| Error::system("make", "a folder for a bench", error))?;
        Ok(Self { left, right, middle: None, cpus: Cpus::allowed()?, lab: None, folder })
    }

    /// The path of a file of this name, for steps.
    pub fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Returns true if the bench created it, so that steps may change it.
    pub fn is_ours(&self) -> bool {
        self.lab.is_some()
    }

    /// The network namespace of a host; this process's if none.
    fn netns(&self, host: LabHost) -> Option<&str> {
        let side = match host {
            LabHost::Left => Some(&self.left),
            LabHost::Right => Some(&self.right),
            LabHost::Middle => self.middle.as_ref().map(|[side, _]| side),
        };
        side?.netns.as_deref()
    }

    /// Starts a program on its host.
    ///
    /// # Errors
    /// As [`Program::start`].
    pub fn start(&self, program: &Program) -> Result<Running, Failure> {
        program.start(self.netns(program.host))
    }

    /// Starts a program, and waits until it is ready.
    ///
    /// # Errors
    /// As [`Program::start`] and [`Running::until`].
    pub fn start_ready(
        &self,
        program: &Program,
        watch: &dyn BenchObserver,
    ) -> Result<Running, Failure> {
        let mut running = self.start(program)?;
        running.until(&program.ready, watch)?;
        Ok(running)
    }

    /// Runs a program to its end, and returns its standard output.
    ///
    /// # Errors
    /// As [`Program::run`].
    pub fn run(&self, program: &Program) -> Result<String, Failure> {
        program.run(self.netns(program.host))
    }

    /// A program that sends UDP packets from the left by a thread on each of these CPUs, each packet from
    /// another source port.
    pub fn sender(&self, cpus: &[usize], bytes: u32, dmac: &str) -> Program {
        self.sender_to(cpus, bytes, dmac, DISCARD.into())
    }

    /// As [`sender`](Self::sender), to this UDP port.
    pub fn sender_to(&self, cpus: &[usize], bytes: u32, dmac: &str, port: usize) -> Program {
        let threads = cpus.len().to_string();
        let flags = ["--sport", "1..65535", "--threads", &threads, "--cpus", &list(cpus)];
        generate_to(&self.left.interface, bytes, dmac, port).and(flags)
    }

    /// A program that counts and drops all packets at the right in XDP.
    pub fn counter(&self) -> Program {
        let port = format!("xdp:{}?action=drop", self.right.interface);
        let program = Program::sluice(["count", &port, "--json", "--interval", "100ms"]);
        program.at(LabHost::Right).ready(COUNTING)
    }
}

/// The CPUs that may be used.
#[derive(Clone, Debug)]
pub struct Cpus(Vec<usize>);

impl Cpus {
    /// Reads the CPUs that this process may run on.
    ///
    /// # Errors
    /// The kernel does not report them.
    pub fn allowed() -> Result<Self> {
        Ok(Self(Allowed::here()?.cpus().collect()))
    }

    /// Number of CPUs.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Up to `n` CPUs for a sender, from the first on.
    pub fn senders(&self, n: u32) -> &[usize] {
        &self.0[..self.0.len().min(n as usize)]
    }

    /// Up to `n` CPUs for a receiver, after those of `senders` senders; the last one if all CPUs send.
    pub fn receivers(&self, n: u32, senders: u32) -> &[usize] {
        let rest = &self.0[(senders as usize).min(self.0.len().saturating_sub(1))..];
        &rest[..rest.len().min(n as usize)]
    }
}

/// Formats CPUs for a flag: "0,1".
pub fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// An Ethernet address without a host, as on a mirror port: the receiving host drops these packets early.
pub const NOBODY: &str = "02:00:00:00:00:99";
/// The UDP port that packets are sent to.
pub const DISCARD: u16 = 9;
/// The IPv4 address that packets are sent to.
pub const ADDRESS: &str = "198.18.0.2";

/// A program that sends UDP packets of a size, or of IMIX, to an Ethernet address, into a port.
pub fn generate(port: &str, bytes: u32, dmac: &str) -> Program {
    generate_to(port, bytes, dmac, DISCARD.into())
}

fn generate_to(port: &str, bytes: u32, dmac: &str, udp_port: usize) -> Program {
    let size = if bytes == Setting::MIXED { "imix".to_owned() } else { bytes.to_string() };
    Program::sluice(["generate", port, "--json", "--size", &size, "--dmac", dmac])
        .and(["--src", "198.18.0.1", "--dst", ADDRESS, "--dport", &udp_port.to_string()])
        .counting(Count::SENT)
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
        assert_eq!(list(cpus.senders(2)), "2,3");
    }

    #[test]
    fn an_interface_is_not_joined_with_itself() {
        let side = || Side { netns: None, interface: "lo".into() };
        let error = Testbed::of(side(), side()).unwrap_err().to_string();
        assert_eq!(error, "lo twice: a bench has two interfaces");
    }
}
