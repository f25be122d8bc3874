//! Peers: what people would use in place of Sluice, on the same work.
//!
//! To add one: a [`Peer`] that says what it does in which suite, as those of `captures` do in ten lines,
//! and its line in [`ALL`].

mod captures;
mod clang;
pub mod firewalls;
mod senders;
mod testpmd;
mod xdp_tools;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::{Program, Ready};
use crate::process_output::Count;
use crate::step::{Intake, Job, Step, To, Way};
use crate::suite::{Kind, StepContext};

/// Somebody else's program.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// As it is called.
    pub name: &'static str,
    /// Its command.
    pub command: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
    /// Who says its version.
    version: Version,
    /// What it does, besides steps that are part of a suite anyway.
    works: &'static [Work],
}

/// Who says a peer's version.
#[derive(Clone, Copy, Debug)]
enum Version {
    /// It does, when asked by `--version`.
    Itself,
    /// Its package.
    Package,
}

/// What a peer is started with; none where it cannot do what is wanted.
type Make = fn(&StepContext<'_>) -> Option<Program>;

/// What a peer does in a suite.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// It receives, by one thread: it is ready when it has said that, and says how many packets it got.
    Receives { how: &'static str, program: Make, ready: &'static str, count: Count },
    /// It sends, by one thread. What it says of itself is not asked.
    Sends { how: &'static str, program: Make },
    /// It passes packets on, by one thread: it is ready when it has said that.
    Forwards { how: &'static str, program: Make, ready: &'static str },
    /// It does something else, or it takes more.
    Other(Kind, fn(&StepContext<'_>) -> Option<Step>),
}

/// All that are known.
pub const ALL: &[Peer] = &[
    captures::TCPDUMP,
    captures::DUMPCAP,
    captures::NETSNIFF_NG,
    testpmd::PEER,
    senders::TRAFGEN,
    senders::TCPREPLAY,
    senders::MASSCAN,
    xdp_tools::PEER,
    firewalls::NFTABLES,
    firewalls::IPTABLES,
    clang::PEER,
];

/// A peer, and whether it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Its name.
    pub name: String,
    /// As JSON has it, one key beside the name.
    #[serde(flatten)]
    pub state: PeerState,
}

/// Whether a peer is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// What it says of its version.
    Version(String),
    /// It is not: how to get it.
    Missing(String),
}

impl Peer {
    /// One whose command and package are called as it is, and which says its version.
    const fn new(name: &'static str, works: &'static [Work]) -> Self {
        Self { name, command: name, package: name, version: Version::Itself, works }
    }

    /// Looks whether it is there.
    pub fn look(&self) -> Presence {
        let name = self.name.to_owned();
        if find(self.command).is_none() {
            return Presence { name, state: PeerState::Missing(remedy(self.command)) };
        }
        let ask = match self.version {
            Version::Itself => Program::tool(self.command, ["--version"]),
            Version::Package => {
                Program::tool("dpkg-query", ["-W", "-f", "${Package} ${Version}", self.package])
            }
        };
        // Some say it to stderr, and some end with an error then.
        let text = ask.ask().map_or_else(|_| String::new(), |said| said.out + &said.err);
        let first =
            text.lines().map(str::trim).find(|line| line.contains(|c: char| c.is_numeric()));
        let version = first.unwrap_or("of unknown version").into();
        Presence { name, state: PeerState::Version(version) }
    }

    /// Its steps in a suite.
    pub fn steps(&self, kind: Kind, place: &StepContext<'_>) -> Vec<Step> {
        self.works.iter().filter_map(|work| work.step(self, kind, place)).collect()
    }
}

impl Work {
    fn step(&self, peer: &Peer, kind: Kind, place: &StepContext<'_>) -> Option<Step> {
        let named = |how: &str| format!("{} {how}", peer.name).trim_end().to_owned();
        let (how, way) = match (*self, kind) {
            (Self::Other(of, step), _) if of == kind => return step(place),
            (Self::Receives { how, program, ready, count }, Kind::Rx) => {
                let (program, ready) = (program(place)?, Ready::Says(ready));
                let job = Job { program, cpu: place.receiver(), ready, count: Some(count) };
                (how, Way::Receive(Intake::of(job, To::Nobody)))
            }
            (Self::Sends { how, program }, Kind::Tx) => {
                (how, Way::Send(sender(place, program(place)?)))
            }
            (Self::Forwards { how, program, ready }, Kind::Forward) => {
                let ready = Ready::Says(ready);
                let job =
                    Job { program: program(place)?, cpu: place.receiver(), ready, count: None };
                (how, Way::Receive(Intake::relayed(Some(job), To::Host)))
            }
            _ => return None,
        };
        Some(Step::new(peer.name, named(how), place.plain(), way))
    }
}

/// A program that sends by one thread, as soon as it runs.
fn sender(place: &StepContext<'_>, program: Program) -> Job {
    Job { program, cpu: place.sender(), ready: Ready::After(Duration::ZERO), count: None }
}

/// Where a command is; none where it is not installed.
pub fn find(command: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(command)).find(|file| file.is_file())
}

/// That a command is not there, and the way to get it.
pub fn missing(command: &str) -> String {
    format!("{command} is not installed: {}", remedy(command))
}

/// How to get a command.
pub fn remedy(command: &str) -> String {
    let peer = ALL.iter().find(|peer| peer.command == command);
    let package = match (command, peer) {
        (_, Some(peer)) => peer.package,
        ("tc" | "ip", None) => "iproute2",
        ("iptables-restore", None) => "iptables",
        ("xdp-trafficgen", None) => "xdp-tools",
        (other, None) => other,
    };
    format!("apt-get install {package}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_missing_is_named_with_the_way_to_get_it() {
        let presence = Peer::new("no-such-command", &[]).look();
        assert_eq!(presence.state, PeerState::Missing("apt-get install no-such-command".into()));
        let written = serde_json::to_string(&presence).unwrap();
        let expected = r#"{"name":"no-such-command","missing":"apt-get install no-such-command"}"#;
        assert_eq!(written, expected);
        assert_eq!(serde_json::from_str::<Presence>(&written).unwrap(), presence);
        assert_eq!(remedy("nft"), "apt-get install nftables");
        assert_eq!(remedy("trafgen"), "apt-get install netsniff-ng");
    }

    #[test]
    fn one_that_is_there_says_its_version() {
        let state = Peer::new("cat", &[]).look().state;
        let is = |version: &str| version.starts_with("cat (");
        assert!(matches!(&state, PeerState::Version(version) if is(version)), "{state:?}");
    }
}
