//! The examples of README, docs and help, run as they are typed.
//!
//! Each runs on a host of its own that has all it names: interfaces with packets on them, a lab, files.
//! A line that does not end by itself is interrupted once it works, and must then exit with 0. A new
//! example that needs anything else fails here.

mod files;
mod text;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::support::*;
use text::{Unit, asks, asks_scrubber, last_of_demo};
use world::World;

/// Worlds at once.
const AT_ONCE: usize = 4;
const TOOLS: [&str; 8] = ["unshare", "nsenter", "mount", "bash", "ip", "ping", "tcpdump", "tshark"];

/// Returns true if examples can be run here; prints why not.
fn able() -> bool {
    // A lab shows that there are privileges.
    have(&TOOLS) && lab().is_some()
}

/// Names in a text that are interfaces of the host where it runs.
fn interfaces(text: &str) -> Vec<String> {
    let mut named: Vec<String> = text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| word.strip_prefix("eth").is_some_and(|it| it.parse::<u8>().is_ok()))
        .map(str::to_owned)
        .collect();
    if !in_lab(text) {
        named
            .extend(["left0", "right0"].into_iter().filter(|it| text.contains(it)).map(Into::into));
    }
    named.sort_unstable();
    named.dedup();
    named
}

fn in_lab(text: &str) -> bool {
    text.contains("lab-")
}

/// Runs a unit. Returns its faults.
fn run_unit(unit: &Unit) -> Result<(), String> {
    let text = unit.lines.join("\n");
    let folder = tempfile::tempdir().unwrap();
    files::prepare(folder.path());
    let makes_lab = text.starts_with("sluice lab up");
    let mut named = interfaces(&text);
    // The switch and the forwarder that requests or watchers need.
    let asked = unit.lines.iter().any(|line| asks(line)) || text.contains("monitor:");
    if asked {
        named.extend(["eth0", "eth1", "eth2", "eth3"].map(Into::into));
    }
    let asks_scrubber = unit.lines.iter().any(|line| asks_scrubber(line));
    if text.contains("capture any") || asks_scrubber {
        named.push("eth0".into());
    }
    named.sort_unstable();
    named.dedup();
    let mut world = World::new(&named, folder.path());
    if in_lab(&text) && !makes_lab {
        expect(&world, "sluice lab up")?;
        world.feed_lab();
    }
    if asked {
        let vlans = if text.contains("--trunk") { "--trunk eth3=1,10,20" } else { "" };
        world.start(&format!("exec sluice switch xdp:eth0 xdp:eth3 {vlans}"));
        world.has("/run/sluice/switch/switch/control.sock");
        world.start("exec sluice forward xdp:eth1 xdp:eth2 --name wan");
        world.has("/run/sluice/forward/wan/control.sock");
    }
    let scrubber = "/run/sluice/scrub/scrub/control.sock";
    if asks_scrubber && !text.contains("sluice scrub run") {
        world.start("exec sluice scrub run eth0 --policy policy.toml --confirm 10m");
        world.has(scrubber);
    }
    if text.contains("sluice netmap list") {
        world.start("exec sluice netmap serve");
        world.has("/run/sluice/netmap.sock");
    }
    for line in &unit.lines {
        match line.split_once(" &").filter(|(_, rest)| rest.trim_start().is_empty()) {
            Some((line, _)) => {
                world.start(line);
                if line.starts_with("sluice scrub run") {
                    world.has(scrubber);
                }
            }
            None => expect(&world, line)?,
        }
        if makes_lab && line == &unit.lines[0] {
            world.watch_lab();
        }
    }
    for (line, status) in world.end_background() {
        if status.and_then(|status| status.code()) != Some(0) {
            return Err(format!("{line} &: {status:?}"));
        }
    }
    Ok(())
}

/// Runs a line. It must succeed, and a ledger must have packets.
fn expect(world: &World<'_>, line: &str) -> Result<(), String> {
    let result = world.run(line);
    let below = ["sluice: stopped", "below their thresholds"];
    let short = below.iter().any(|reason| result.text.contains(reason));
    let well = match result.status.and_then(|status| status.code()) {
        Some(0) => true,
        // Rates depend on the machine, and a stopped run has none.
        Some(1) => line.starts_with("sluice bench") && short,
        // The interrupt came after the run had printed its ledger.
        None | Some(130) => result.text.contains("unexplained"),
        Some(_) => false,
    };
    let idle = ["      in                   0", "\"ledger\":{\"in\":0,"];
    if well && !idle.iter().any(|nothing| result.text.contains(nothing)) {
        return Ok(());
    }
    Err(format!("{line}: {:?}\n{}", result.status, result.text))
}

/// Runs all, several at once. Returns the faults.
fn failures<T: Sync>(all: &[T], work: impl Fn(&T) -> Result<(), String> + Sync) -> Vec<String> {
    let (next, failed) = (Mutex::new(all.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(one) = next.lock().unwrap().next() else { return };
                    // A line that never ends does not hide the others.
                    let panicked = |_| Err("a line does not end, see above".to_owned());
                    let ended = catch_unwind(AssertUnwindSafe(|| work(one)));
                    if let Err(error) = ended.unwrap_or_else(panicked) {
                        failed.lock().unwrap().push(error);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

#[test]
fn all_examples_work_as_they_are_typed() {
    if !able() {
        return;
    }
    let help = |words: &[&str]| {
        let ended = run(words);
        assert_eq!(ended.status, Some(0), "{words:?}: {}", ended.err);
        ended.out
    };
    let units = text::all(&help);
    for place in ["README.md", "docs/commands/lab.md", "docs/bench.md", "sluice help capture"] {
        assert!(units.iter().any(|unit| unit.place == place), "{place} has examples");
    }
    let failed =
        failures(&units, |unit| run_unit(unit).map_err(|error| format!("{}: {error}", unit.place)));
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), units.len(), failed.join("\n"));
}

#[test]
fn suggestions_of_a_new_lab_and_of_the_demo_work_as_typed() {
    if !able() {
        return;
    }
    let failed = failures(&["pair", "line", "star"], |shape| {
        let folder = tempfile::tempdir().unwrap();
        files::prepare(folder.path());
        let world = World::new(&[], folder.path());
        let up = world.run(&format!("sluice lab up --shape {shape}"));
        let suggested = up.text.lines().skip_while(|line| !line.starts_with("Try:"));
        let lines: Vec<_> = suggested.map(|line| &line[6..]).collect();
        assert!(lines.len() >= 3, "{}", up.text);
        // All in one shell, as they are for one terminal.
        std::fs::write(folder.path().join("try.sh"), lines.join("\n")).unwrap();
        expect(&world, "bash -e try.sh").map_err(|error| format!("{shape}: {error}"))
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let folder = tempfile::tempdir().unwrap();
    files::prepare(folder.path());
    let world = World::new(&[], folder.path());
    let last = last_of_demo(env!("CARGO_BIN_EXE_sluice"));
    assert!(last.ends_with("/sluice lab up"), "{last}");
    expect(&world, &last).unwrap();
}
