//! The unit of systemd: its commands and capabilities, without systemd.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::SETS;
use super::scratch::Scratch;
use crate::support::*;

const UNIT: &str = include_str!("../../../../scrub/systemd/sluice-scrub@.service");

/// Returns the values of a setting of the unit.
fn settings(key: &str) -> Vec<&'static str> {
    let values = UNIT.lines().filter_map(|it| it.strip_prefix(key)?.strip_prefix('='));
    let values: Vec<_> = values.collect();
    assert!(!values.is_empty(), "the unit has no {key}");
    values
}

/// The unit's commands, for an interface of a lab.
struct Unit<'a> {
    scratch: &'a Scratch,
    netns: &'a str,
    name: String,
}

impl Unit<'_> {
    /// Returns a command of the unit, with the unit's capabilities.
    fn command(&self, line: &str) -> Command {
        let capabilities = settings("CapabilityBoundingSet")[0].replace("CAP_", "+").to_lowercase();
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set=-all,{}", capabilities.replace(' ', ",")));
        command.args(["--no-new-privs", env!("CARGO_BIN_EXE_sluice")]);
        let words = line.strip_prefix("/usr/local/bin/sluice ").unwrap();
        for (word, before) in words.split(' ').zip(std::iter::once("").chain(words.split(' '))) {
            match word {
                "$OPTIONS" => command.args(["--netns", self.netns]),
                "%i" if before == "--name" => command.arg(&self.name),
                "/etc/sluice/scrub/%i.toml" => command.arg(self.scratch.file("policy.toml")),
                word => command.arg(word.replace("%i", "right0")),
            };
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the service, and waits until it is ready.
    fn start(&self) -> Running {
        let socket = self.scratch.file("manager");
        let _ = std::fs::remove_file(&socket);
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let service =
            Running::unawaited(self.command(settings("ExecStart")[0]).env("NOTIFY_SOCKET", socket));
        let mut message = [0; 100];
        let length = manager.recv(&mut message).expect("it becomes ready");
        assert_eq!(&message[..length], b"READY=1");
        self.run("ExecStartPost");
        service
    }

    fn run(&self, key: &str) {
        for line in settings(key) {
            let ended = ended(&mut self.command(line));
            assert_eq!(ended.status, Some(0), "{line}: {}", ended.err);
        }
    }

    fn claims(&self) -> Value {
        let claims = run(&["claims", "right0", "--netns", self.netns, "--json"]).out;
        serde_json::from_str::<Value>(&claims).unwrap()["claims"].clone()
    }
}

#[test]
fn the_unit_starts_reloads_and_restarts_without_a_gap() {
    let Some(lab) = lab_with(&["setpriv", "ip"]) else { return };
    // A host that protects itself: its interface carries the default route.
    let route = ["ip", "route", "add", "default", "via", "198.18.0.1", "dev", "right0"];
    assert_eq!(on(&lab, "right", &route).status, Some(0));
    let netns = lab.netns("right");
    let Some(_attached) = Attached::to(&netns, &[]) else { return };
    let scratch = Scratch::with_policy(SETS);
    let name = format!("unit-{}", std::process::id());
    let unit = Unit { scratch: &scratch, netns: &netns, name };
    let service = unit.start();
    let other = "[set.other]\naction = 'drop'\nnetworks = []\n";
    std::fs::write(scratch.file("policy.toml"), format!("{SETS}{other}")).unwrap();
    unit.run("ExecReload");
    let sets = run(&["scrub", "sets", "list", "--name", &unit.name]).out;
    assert!(sets.contains("other"), "{sets}");
    let status = run(&["scrub", "status", "--name", &unit.name, "--json"]).out;
    assert!(!status.contains("confirm_within_s"), "{status}");
    service.signal(Signal::SIGTERM);
    assert_eq!(service.end().status, Some(0));
    let claims = unit.claims();
    assert_eq!(claims.as_array().map(Vec::len), Some(1), "the program stays: {claims}");
    let service = unit.start();
    let stopped = run(&["scrub", "stop", "--name", &unit.name]);
    assert_eq!(stopped.status, Some(0), "{}", stopped.err);
    let ended = service.end();
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    assert_eq!(unit.claims().as_array().map(Vec::len), Some(0));
    assert!(!Path::new(&format!("/run/sluice/scrub/{}.counters", unit.name)).exists());
}

#[test]
fn systemd_accepts_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sluice-scrub@.service");
    let unit = UNIT.replace("/usr/local/bin/sluice", env!("CARGO_BIN_EXE_sluice"));
    std::fs::write(&file, unit).unwrap();
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(file).output() {
        Ok(found) => {
            let said = String::from_utf8_lossy(&found.stderr);
            assert!(found.status.success() && !said.contains("sluice"), "{said}");
        }
        Err(error) => println!("skipped: needs systemd-analyze ({error})"),
    }
}
