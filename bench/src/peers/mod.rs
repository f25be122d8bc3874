//! Peers: what people would use in place of Sluice, on the same work.
//!
//! To add one: a file with a [`Peer`] that says how it is called, and what it does in which ladder;
//! and its line in [`ALL`].

mod dumpcap;
pub mod iptables;
mod masscan;
mod netsniff_ng;
pub mod nftables;
mod tcpdump;
mod tcpreplay;
mod testpmd;
mod trafgen;
mod xdp_tools;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::ladder::{Kind, Place};
use crate::process::{Program, Ready, Said};
use crate::step::{Intake, Job, Step, To, Way};

/// Somebody else's program.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// As it is called.
    pub name: &'static str,
    /// Its command.
    pub command: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
    /// The command that says its version.
    pub version: &'static [&'static str],
    /// Its steps in a ladder, besides those that are part of the ladder anyway.
    pub steps: fn(Kind, &Place<'_>) -> Vec<Step>,
}

/// All that are known.
pub const ALL: &[Peer] = &[
    tcpdump::PEER,
    dumpcap::PEER,
    netsniff_ng::PEER,
    testpmd::PEER,
    trafgen::PEER,
    tcpreplay::PEER,
    masscan::PEER,
    xdp_tools::PEER,
    nftables::PEER,
    iptables::PEER,
];

/// Whether a peer is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Its name.
    pub name: String,
    /// What it says of its version; absent where it is missing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub version: Option<String>,
    /// How to get it, where it is missing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub missing: Option<String>,
}

impl Peer {
    /// Looks whether it is there.
    pub fn look(&self) -> Presence {
        let name = self.name.to_owned();
        if find(self.command).is_none() {
            return Presence { name, version: None, missing: Some(remedy(self.command)) };
        }
        let said = self.version.split_first().and_then(|(command, arguments)| {
            Program::tool(command, arguments.iter().copied()).ask().ok()
        });
        // Some say it to stderr, and some end with an error then.
        let text = said.map_or_else(String::new, |said| said.out + &said.err);
        let first =
            text.lines().map(str::trim).find(|line| line.contains(|c: char| c.is_numeric()));
        Presence {
            name,
            version: Some(first.unwrap_or("of unknown version").into()),
            missing: None,
        }
    }
}

/// Where a command is; none where it is not installed.
pub fn find(command: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(command)).find(|file| file.is_file())
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

/// A step in which a peer receives, by one thread.
fn receives(
    peer: &Peer,
    how: &str,
    place: &Place<'_>,
    program: Program,
    ready: Ready,
    count: fn(&Said) -> Option<u64>,
) -> Step {
    let job = Job { program, cpu: place.receiver(), ready, count };
    let intake = Intake { job: Some(job), tally: None, to: To::Nobody };
    Step::new(peer.name, named(peer, how), place.plain(), Way::Receive(intake))
}

/// A step in which a peer sends, by one thread. What it says of itself is not asked.
fn sends(peer: &Peer, how: &str, place: &Place<'_>, program: Program, ready: Ready) -> Step {
    let job = Job { program, cpu: place.sender(), ready, count: |_| None };
    Step::new(peer.name, named(peer, how), place.plain(), Way::Send(job))
}

fn named(peer: &Peer, how: &str) -> String {
    format!("{} {how}", peer.name).trim_end().to_owned()
}

/// The number with which the last line begins that has these words.
fn last_count(text: &str, words: &str) -> Option<u64> {
    let line = text.lines().rev().find(|line| line.contains(words))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Of a peer whose steps are part of the ladders.
fn none(_: Kind, _: &Place<'_>) -> Vec<Step> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_missing_is_named_with_the_way_to_get_it() {
        let peer = Peer {
            name: "nosuch",
            command: "no-such-command",
            package: "nosuch-utils",
            version: &["no-such-command", "--version"],
            steps: none,
        };
        let presence = peer.look();
        assert_eq!(presence.version, None);
        assert_eq!(presence.missing.as_deref(), Some("apt-get install no-such-command"));
        assert_eq!(remedy("nft"), "apt-get install nftables");
    }

    #[test]
    fn one_that_is_there_says_its_version() {
        let peer = Peer {
            name: "cat",
            command: "cat",
            package: "coreutils",
            version: &["cat", "--version"],
            steps: none,
        };
        let version = peer.look().version.expect("coreutils are everywhere");
        assert!(version.starts_with("cat ("), "{version}");
    }
}
