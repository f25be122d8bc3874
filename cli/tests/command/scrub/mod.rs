//! `sluice scrub`: a running scrubber on right0 of a lab, and its control socket.

mod answer_cache;
mod explain;
mod handover;
mod json;
mod leftovers;
mod metrics;
mod outputs;
mod rehearse;
mod resident;
mod return_path;
mod rules;
mod samples;
mod scratch;
mod sets;
mod start;
mod top;
mod unit;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use nix::sys::signal::Signal;
use serde_json::Value;
use sluicegate::control::Client;
use sluicegate::link::Lab;
use tempfile::TempDir;

use crate::support::*;

/// A set that passes, and one that drops.
pub const SETS: &str = "[set.good]\naction = 'pass'\nnetworks = ['198.18.0.1', '192.0.2.0/24']\n\
                        [set.bad]\naction = 'drop'\nnetworks = ['203.0.113.0/24']\n";

/// Packets of unknown TCP flows are dropped.
pub const STATE: &str = "profile.default.tcp = { above = 10, state = 'on' }\n";

/// A scrubber that runs on right0.
pub struct Scrubber<'a> {
    lab: &'a Lab,
    pub folder: Rc<TempDir>,
    socket: String,
    running: Running,
}

impl<'a> Scrubber<'a> {
    /// Starts it, and waits until it answers.
    pub fn start(lab: &'a Lab, policy: &str, more: &[&str]) -> Self {
        Self::start_in(Rc::new(tempfile::tempdir().unwrap()), lab, policy, more)
    }

    /// Starts it with a folder that may be an earlier one's.
    pub fn start_in(folder: Rc<TempDir>, lab: &'a Lab, policy: &str, more: &[&str]) -> Self {
        Self::start_with(folder, lab, policy, more, |_| {})
    }

    /// Starts it as [`start_in`](Self::start_in) does, with changes of the command.
    pub fn start_with(
        folder: Rc<TempDir>,
        lab: &'a Lab,
        policy: &str,
        more: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        Self::start_on(["right", "right0"], folder, lab, policy, more, change)
    }

    /// Starts it as [`start_with`](Self::start_with) does, on an interface of a host.
    pub fn start_on(
        [host, interface]: [&str; 2],
        folder: Rc<TempDir>,
        lab: &'a Lab,
        policy: &str,
        more: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let file = folder.path().join("policy.toml");
        std::fs::write(&file, policy).unwrap();
        let (netns, file) = (lab.netns(host), file.to_str().unwrap().to_owned());
        // A killed scrubber leaves its socket.
        let socket = folder.path().join("socket").to_str().unwrap().to_owned();
        let place = ["--netns", &netns, "--control", &socket];
        // The maps of the default take a part of the time of a start.
        let keys = ["--limit-keys", "64k"];
        let keys = if more.contains(&keys[0]) { &[][..] } else { &keys[..] };
        let arguments =
            [&["scrub", "run", interface, "--policy", &file], &place[..], keys].concat();
        let mut command = sluice(&[&arguments[..], more].concat());
        command.env("SSH_CONNECTION", "198.51.100.77 5022 198.18.0.2 22");
        change(&mut command);
        let running = Running::unawaited(&mut command);
        let scrubber = Self { lab, folder, socket, running };
        eventually("it answers", || {
            assert!(!scrubber.running.has_ended(), "it ended");
            scrubber.try_ask(&["status", "--json"]).status == Some(0)
        });
        scrubber
    }

    /// The words of a command on it.
    pub fn words<'b>(&'b self, what: &[&'b str]) -> Vec<&'b str> {
        [&["scrub"], what, &["--control", &self.socket]].concat()
    }

    /// Runs a command on it.
    pub fn try_ask(&self, what: &[&str]) -> Ended {
        run(&self.words(what))
    }

    /// Runs a command on it, which succeeds.
    pub fn ask(&self, what: &[&str]) -> String {
        let ended = self.try_ask(what);
        assert_eq!(ended.status, Some(0), "{what:?}: {}", ended.err);
        ended.out
    }

    /// Runs a command on it, which is refused.
    pub fn refused(&self, what: &[&str], said: &str) {
        refused(&self.words(what), said);
    }

    /// The JSON of a command.
    pub fn json(&self, what: &[&str]) -> Value {
        serde_json::from_str(&self.ask(&[what, &["--json"]].concat())).unwrap()
    }

    /// Packets that a counter has.
    pub fn count(&self, stage: &str, name: &str) -> u64 {
        let status = self.json(&["status"]);
        let mut counters = status["counters"].as_array().unwrap().iter();
        let counter = counters.find(|it| it["stage"] == stage && it["name"] == name);
        counter.map_or(0, |it| it["packets"].as_u64().unwrap())
    }

    /// Sends UDP packets from an address, and waits until a counter has them.
    pub fn send(&self, packets: u64, from: &str, stage: &str, name: &str) {
        let before = self.count(stage, name);
        self.generate(packets, from);
        let what = format!("{packets} packets from {from}: {stage} {name}");
        eventually(&what, || self.count(stage, name) == before + packets);
    }

    /// Sends UDP packets from an address.
    pub fn generate(&self, packets: u64, from: &str) {
        let (netns, count) = (self.lab.netns("left"), packets.to_string());
        let arguments = [
            "generate",
            "packet:left0",
            "--netns",
            &netns,
            "--count",
            &count,
            "--rate",
            "10kpps",
            "--json",
        ];
        let addresses = ["--src", from, "--dst", "198.18.0.2", "--dmac", NOBODY];
        run(&[&arguments[..], &addresses].concat()).good();
    }

    /// Sends packets of 1,000 TCP flows that no SYN began. Returns how many of them are dropped.
    pub fn drops_unknown(&self) -> u64 {
        let counted =
            || [("tcp", "unknown-flow"), ("default", "default")].map(|it| self.count(it.0, it.1));
        let [dropped, passed] = counted();
        let netns = self.lab.netns("left");
        let packets = ["--proto", "tcp", "--tcp-flags", "ack", "--sport", "1..1000"];
        let addresses = ["--dst", "198.18.0.2", "--dmac", NOBODY, "--netns", &netns];
        let count = ["--count", "1000", "--rate", "100kpps", "--json"];
        run(&[&["generate", "packet:left0"], &count[..], &packets, &addresses].concat()).good();
        let all = dropped + passed + 1000;
        eventually("all are counted", || counted().iter().sum::<u64>() >= all);
        counted()[0] - dropped
    }

    /// The file of its first policy.
    pub fn policy(&self) -> PathBuf {
        self.folder.path().join("policy.toml")
    }

    /// Writes a file in its folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Kills the command.
    pub fn kill(self) {
        self.running.signal(Signal::SIGKILL);
        self.running.end();
    }

    pub fn stop(self) -> Ended {
        self.running.stop()
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_policy_that_is_invalid_leaves_the_earlier_one() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    scrubber.send(10, "203.0.113.9", "set", "bad");
    let invalid = scrubber.file("invalid.toml", "[set.bad]\naction = 'dorp'\nnetworks = []\n");
    scrubber.refused(&["apply", text(&invalid)], "set bad: action: 'dorp'");
    scrubber.refused(&["apply", "/nowhere/policy.toml"], "it cannot be read");
    scrubber.send(10, "203.0.113.9", "set", "bad");
    let valid =
        scrubber.file("valid.toml", "[set.bad]\naction = 'drop'\nnetworks = ['192.0.2.0/24']\n");
    assert!(scrubber.ask(&["apply", text(&valid)]).contains("valid.toml applied"));
    scrubber.send(10, "192.0.2.9", "set", "bad");
    scrubber.send(10, "203.0.113.9", "default", "default");
    assert_eq!(scrubber.stop().status, Some(0));
}

#[test]
fn an_unconfirmed_policy_is_taken_back_and_additions_stay() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    let other = scrubber.file("other.toml", "[set.bad]\naction = 'drop'\nnetworks = []\n");
    scrubber.ask(&["sets", "add", "bad", "2001:db8::/32", "198.51.100.1"]);
    scrubber.ask(&["sets", "add", "good", "203.0.113.7"]);
    scrubber.ask(&["sets", "add", "good", "192.0.3.0/24", "--for", "1s"]);
    let rule = "{ name = 'of good', match = { src_set = 'good' }, action = 'continue' }";
    scrubber.ask(&["rules", "add", rule]);
    let ended = scrubber.try_ask(&["apply", text(&other), "--confirm", "2s"]);
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    assert!(ended.err.contains(" of set good, which"), "{}", ended.err);
    assert!(ended.err.contains("removed: the added rule of good: "), "{}", ended.err);
    let sets = || scrubber.json(&["sets", "list"])["sets"].clone();
    eventually("it is taken back", || sets()[0]["name"] == "good");
    assert_eq!((&sets()[0]["added"], &sets()[1]["added"]), (&1.into(), &2.into()));
    assert_eq!(scrubber.json(&["rules", "list"])["rules"][0]["name"], "of good");
    scrubber.send(10, "203.0.113.7", "set", "good");
    scrubber.send(10, "203.0.113.9", "set", "bad");
}

#[test]
fn an_applied_policy_does_not_confirm_another_one() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &["--confirm", "60s"]);
    let other = scrubber.file("other.toml", "[set.bad]\naction = 'drop'\nnetworks = []\n");
    let unconfirmed = || scrubber.json(&["status"])["confirm_within_s"].is_f64();
    scrubber.refused(&["apply", text(&other)], "the present policy is not confirmed; run `sluice");
    assert!(unconfirmed());
    scrubber.ask(&["apply", text(&other), "--confirm", "60s"]);
    scrubber.refused(&["apply", text(&scrubber.policy())], "the present policy is not confirmed");
    assert!(unconfirmed());
    scrubber.ask(&["confirm"]);
    scrubber.ask(&["apply", text(&scrubber.policy())]);
    assert!(!unconfirmed());
    scrubber.send(10, "203.0.113.9", "set", "bad");
}

#[test]
fn a_policy_is_confirmed_whatever_its_name() {
    let Some(lab) = lab() else { return };
    let name = OsStr::from_bytes(b"policy-\xff.toml");
    let folder = Rc::new(tempfile::tempdir().unwrap());
    let path = folder.path().join(name);
    std::fs::write(&path, SETS).unwrap();
    let more = ["--confirm", "60s"];
    let scrubber = Scrubber::start_with(folder, &lab, SETS, &more, |command| {
        let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let is_policy = |it: &OsString| it.as_bytes().ends_with(b"policy.toml");
        *command = sluice(&[]);
        command.args(
            words.iter().map(|it| if is_policy(it) { path.as_os_str() } else { it.as_os_str() }),
        );
    });
    assert!(scrubber.ask(&["confirm"]).contains("policy-\u{fffd}.toml confirmed"));
    scrubber.send(10, "203.0.113.9", "set", "bad");
    assert_eq!(scrubber.stop().status, Some(0));
}

#[test]
fn the_session_on_the_default_route_passes_until_it_confirms() {
    let Some(lab) = lab_with(&["ip"]) else { return };
    let route = ["ip", "route", "add", "default", "via", "198.18.0.1", "dev", "right0"];
    assert_eq!(on(&lab, "right", &route).status, Some(0));
    let all = "[set.bad]\naction = 'drop'\nnetworks = ['0.0.0.0/0']\n";
    let scrubber = Scrubber::start(&lab, all, &["--confirm", "60s"]);
    scrubber.send(10, "198.51.100.77", "set", "session");
    scrubber.send(10, "198.51.100.78", "set", "bad");
    let taken = scrubber.file("taken.toml", "[set.session]\nnetworks = []\n");
    scrubber.refused(&["apply", text(&taken), "--confirm", "60s"], "another name");
    scrubber.ask(&["confirm"]);
    eventually("the session's set ends", || {
        let before = scrubber.count("set", "bad");
        scrubber.generate(1, "198.51.100.77");
        scrubber.count("set", "bad") > before
    });
}

#[test]
fn a_default_route_by_an_interface_above_needs_a_confirmation() {
    let Some(lab) = lab_with(&["ip"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    std::fs::write(&file, SETS).unwrap();
    let (netns, socket) = (lab.netns("right"), folder.path().join("socket"));
    let place = ["--netns", &netns, "--control", text(&socket)];
    let arguments = [&["scrub", "run", "right0", "--policy", text(&file)], &place[..]].concat();
    for setup in [
        "ip link add link right0 name upper type vlan id 10",
        "ip link add upper type bridge; ip link set right0 master upper",
    ] {
        let script = format!("{setup}; ip link set upper up; ip route add default dev upper");
        let ended = on(&lab, "right", &["sh", "-ec", &script]);
        if ended.err.contains("Unknown device type") {
            println!("skipped: needs the kernel's devices of `{setup}`");
            continue;
        }
        assert_eq!(ended.status, Some(0), "{}", ended.err);
        refused(&arguments, "right0 carries this host's default route");
        assert_eq!(on(&lab, "right", &["ip", "link", "del", "upper"]).status, Some(0));
    }
}

#[test]
fn a_policy_on_the_default_route_is_applied_with_a_confirmation() {
    let Some(lab) = lab_with(&["ip"]) else { return };
    let route = ["ip", "route", "add", "default", "via", "198.18.0.1", "dev", "right0"];
    assert_eq!(on(&lab, "right", &route).status, Some(0));
    let scrubber = Scrubber::start(&lab, SETS, &["--confirm", "60s"]);
    scrubber.ask(&["confirm"]);
    let policy = scrubber.policy();
    scrubber.refused(&["apply", text(&policy)], "add --confirm 60s");
    scrubber.ask(&["apply", text(&policy), "--confirm", "60s"]);
    scrubber.ask(&["confirm"]);
    scrubber.stop();
    let scrubber = Scrubber::start(&lab, SETS, &["--monitor"]);
    scrubber.ask(&["apply", text(&scrubber.policy())]);
}

#[test]
fn the_name_of_the_sessions_set_is_reserved() {
    let Some(lab) = lab_with(&["ip"]) else { return };
    let route = ["ip", "route", "add", "default", "via", "198.18.0.1", "dev", "right0"];
    assert_eq!(on(&lab, "right", &route).status, Some(0));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    let (netns, socket) = (lab.netns("right"), folder.path().join("socket"));
    let place = ["--netns", &netns, "--control", text(&socket), "--confirm", "60s"];
    let arguments = [&["scrub", "run", "right0", "--policy", text(&file)], &place[..]].concat();
    let many: String = (0..64).map(|it| format!("[set.s{it}]\nnetworks = []\n")).collect();
    for (policy, said) in [
        ("[set.session]\nnetworks = []\n", "give the policy's set another name"),
        (&*many, "join two sets"),
    ] {
        std::fs::write(&file, policy).unwrap();
        let ended =
            ended(sluice(&arguments).env("SSH_CONNECTION", "198.51.100.77 5022 198.18.0.2 22"));
        assert_eq!(ended.status, Some(2), "{}", ended.err);
        assert!(ended.err.contains(said), "{}", ended.err);
    }
}

#[test]
fn templates_are_valid_policies() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    for name in ["web", "server"] {
        let template = run(&["scrub", "template", name]);
        assert_eq!(template.status, Some(0), "{}", template.err);
        std::fs::write(&file, template.out).unwrap();
        let checked = run(&["scrub", "check", text(&file)]);
        assert_eq!(checked.status, Some(0), "{}", checked.err);
        assert!(checked.out.contains("valid: 0 protected networks, 2 sets"), "{}", checked.out);
    }
}

#[test]
fn a_pipe_is_no_policy_and_no_list() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused(&["scrub", "check", text(&pipe)], "not a regular file; copy");
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    scrubber.refused(&["apply", text(&pipe)], "not a regular file; copy");
    scrubber.refused(&["sets", "load", "bad", text(&pipe)], "not a regular file; copy");
}

#[test]
fn a_status_has_modes_and_a_confirmation_numbers() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(
        &lab,
        SETS,
        &["--confirm", "60s", "--json", "--interval", "10ms", "--mode", "skb"],
    );
    let status = scrubber.json(&["status"]);
    assert_eq!((&status["mode"], &status["fallbacks"]), (&"skb".into(), &serde_json::json!([])));
    let mut client = Client::connect(Path::new(&scrubber.socket)).unwrap();
    let answer: Value =
        serde_json::from_str(&client.ask(r#"{"do":"confirm"}"#).unwrap().0).unwrap();
    assert!(answer["left_s"].as_f64().is_some_and(|it| it <= 60.0), "{answer}");
    let ended = scrubber.stop();
    for line in ended.out.lines() {
        assert_eq!(serde_json::from_str::<Value>(line).unwrap()["command"], "scrub run");
    }
}
