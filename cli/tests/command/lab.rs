//! `sluice lab`. Tests that make one need root: where they cannot, they say so and pass.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{self, Ended, Running, ended, eventually, have, run, sluice};

/// A lab with its own name; dropping it removes the lab.
struct Lab(String);

impl Lab {
    fn up(test: &str, more: &[&str]) -> Option<Self> {
        let lab = Self(format!("{test}-{}", std::process::id()));
        let up = run(&[&["lab", "up", "--name", &lab.0], more].concat());
        match up.status {
            Some(0) => Some(lab),
            Some(3) => {
                eprintln!("skipped: needs root; get it by sudo: {}", up.err);
                None
            }
            _ => panic!("{}", up.err),
        }
    }

    fn exec(&self, host: &str, command: &[&str]) -> Ended {
        run(&[&["lab", "exec", "--name", &self.0, host, "--"], command].concat())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        run(&["lab", "down", "--name", &self.0]);
    }
}

/// The lab of this name in `lab list --json`.
fn listed(name: &str) -> Value {
    let listed: Value = serde_json::from_str(&run(&["lab", "list", "--json"]).out).unwrap();
    let labs = listed["labs"].as_array().unwrap();
    labs.iter().find(|entry| entry["name"] == name).unwrap().clone()
}

#[test]
fn a_command_in_the_lab_keeps_its_status_and_streams() {
    let Some(lab) = Lab::up("exec", &[]) else { return };
    for (sentence, command, status) in [
        ("success", &["true"][..], Some(0)),
        ("its own failure", &["sh", "-c", "exit 42"][..], Some(42)),
        ("no such command", &["no-such-command"][..], Some(127)),
        ("not a command", &["/etc/passwd"][..], Some(126)),
        ("a signal is the signal, not a number", &["sh", "-c", "kill -TERM $$"][..], None),
    ] {
        assert_eq!(lab.exec("left", command).status, status, "{sentence}");
    }
    let listed = lab.exec("right", &["sh", "-c", "ls /sys/class/net; echo to stderr >&2"]);
    let names: Vec<&str> = listed.out.split_whitespace().collect();
    assert!(names.contains(&"lo") && names.contains(&"right0") && names.len() < 5, "{names:?}");
    assert_eq!(listed.err, "to stderr\n");
    let wrong = lab.exec("middle", &["true"]);
    assert_eq!(wrong.status, Some(2), "no such host: {}", wrong.err);
}

#[test]
fn up_draws_the_lab_and_list_shows_the_same() {
    let Some(lab) = Lab::up("draw", &["--shape", "line", "--queues", "2"]) else { return };
    let again = run(&["lab", "up", "--name", &lab.0, "--shape", "line", "--queues", "2"]);
    assert_eq!(again.status, Some(0), "up twice: {}", again.err);
    let drawn = again.out;
    for part in ["├──────┤ middle0 ", " middle1 ├──────┤ right0 ", " 198.18.0.2/24 "]
    {
        assert!(drawn.contains(part), "{part} in\n{drawn}");
    }
    let other = run(&["lab", "up", "--name", &lab.0]);
    assert_eq!(other.status, Some(2), "another shape: {}", other.err);

    let ours = listed(&lab.0);
    assert_eq!(ours["shape"], "line");
    assert_eq!(ours["queues"], 2);
    assert_eq!(ours["hosts"][1]["netns"], format!("{}-middle", lab.0));
    assert_eq!(ours["hosts"][2]["interfaces"][0]["addresses"][1], "2001:db8:18::2/64");
    assert!(run(&["lab", "list"]).out.contains(&lab.0));

    assert_eq!(run(&["lab", "down", "--name", &lab.0]).status, Some(0));
    let twice = run(&["lab", "down", "--name", &lab.0]);
    assert_eq!(twice.status, Some(2), "down twice: {}", twice.err);
}

#[test]
fn up_keeps_a_complete_lab_and_makes_a_broken_one_again() {
    let Some(lab) = Lab::up("broken", &[]) else { return };
    let ip = |arguments: &str| {
        let ended = lab.exec("left", &["sh", "-c", &format!("ip {arguments}")]);
        assert_eq!(ended.status, Some(0), "{arguments}: {}", ended.err);
        ended.out
    };
    let netns = format!("{}-right", lab.0);
    let no_netns = format!("netns {netns}");
    let lacks = |interface: &str, part: &str| json!({"interface": interface, "lacks": part});
    let equipment = [("addresses or routes of left0", lacks("left0", "addresses_or_routes"))];
    let link = |name: &str| lacks(name, "link");
    let interface = |name: &str| lacks(name, "interface");
    for (breakage, missing) in [
        ("link show left0", &[][..]),
        ("addr flush dev left0", &equipment),
        ("route delete 198.18.0.0/15", &equipment),
        ("-6 route delete 2001:db8::/32", &equipment),
        (
            "link set left0 down",
            &[("the link of left0", link("left0")), ("the link of right0", link("right0"))],
        ),
        ("link set left0 down && ip link set left0 up", &equipment),
        ("link delete left0", &[("left0", interface("left0")), ("right0", interface("right0"))]),
        (
            &format!("netns delete {netns}"),
            &[("left0", interface("left0")), (&no_netns, json!({"netns": netns}))],
        ),
    ] {
        let remains = missing.is_empty();
        let (texts, values): (Vec<_>, Vec<_>) = missing.iter().cloned().unzip();
        ip("link set left0 alias first");
        ip(breakage);
        // A link follows its ends, and its namespace, a moment later.
        eventually(breakage, || {
            listed(&lab.0)["missing"].as_array().into_iter().flatten().eq(&values)
        });
        let text = run(&["lab", "list"]).out;
        let remedy =
            format!("repair it with `sluice lab up --name {} --shape pair --queues 1`", lab.0);
        let broken = format!("  broken, without {}; {remedy}", texts.join(", "));
        assert_eq!(text.contains(&broken), !remains, "{breakage}: {text}");
        let again = run(&["lab", "up", "--name", &lab.0]);
        assert_eq!(again.status, Some(0), "{breakage}: {}", again.err);
        assert_eq!(ip("link show left0").contains("alias first"), remains, "{breakage}");
        assert!(ip("route get 198.19.0.1").contains("src 198.18.0.1"), "{breakage}");
        assert!(ip("route get 2001:db8:ffff::1").contains("src 2001:db8:18::1"), "{breakage}");
    }
}

#[test]
fn list_waits_until_the_change_of_a_lab_is_complete() {
    let Some(lab) = Lab::up("changing", &[]) else { return };
    // Its record exists before its hosts, and is removed after them.
    let brief = Lab(format!("brief-{}", std::process::id()));
    let record = Path::new("/run/sluice/labs").join(&brief.0);
    let ip = |arguments: &str| {
        let ended = lab.exec("left", &["sh", "-c", &format!("ip {arguments}")]);
        assert_eq!(ended.status, Some(0), "{arguments}: {}", ended.err);
    };

    let lock = File::options().write(true).open("/run/sluice/lab.lock").unwrap();
    lock.lock().unwrap();
    ip("route delete 198.18.0.0/15");
    fs::write(&record, "shape pair\nqueues 1\n").unwrap();
    let mut list = Running::unawaited(&mut sluice(&["lab", "list"]));
    let pid = format!(" {} ", list.child().id());
    eventually("the list waits for the lock", || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&pid))
    });
    ip("route add 198.18.0.0/15 via 198.18.0.2");
    fs::remove_file(&record).unwrap();
    drop(lock);

    let list = list.end();
    assert_eq!(list.status, Some(0), "{}", list.err);
    for name in [&lab.0, &brief.0] {
        let entry = list.out.lines().skip_while(|line| !line.starts_with(name.as_str()));
        let entry: Vec<&str> = entry.take(2).collect();
        assert!(!entry.is_empty(), "{name}: {}", list.out);
        assert!(!entry.iter().any(|line| line.starts_with("  broken")), "{name}: {}", list.out);
    }
}

#[test]
fn list_has_no_remedy_for_the_lab_of_a_running_test() {
    let Some(lab) = support::lab_with(&["ip"]) else { return };
    let deleted = support::on(&lab, "left", &["ip", "link", "delete", "left0"]);
    assert_eq!(deleted.status, Some(0), "{}", deleted.err);
    eventually("the list has the lab without a remedy", || {
        let text = run(&["lab", "list"]).out;
        let mut entry = text.lines().skip_while(|line| !line.starts_with(lab.name()));
        entry.nth(1) == Some("  broken, without left0, right0")
    });
}

/// Runs `sluice` as root without a capability.
fn without(capability: &str, arguments: &[&str]) -> Ended {
    let mut setpriv = Command::new("setpriv");
    setpriv.args([format!("--bounding-set=-{capability}"), format!("--inh-caps=-{capability}")]);
    ended(setpriv.arg(env!("CARGO_BIN_EXE_sluice")).args(arguments))
}

#[test]
fn up_fails_where_it_may_not_check_a_lab() {
    if !have(&["setpriv", "ip"]) {
        return;
    }
    let Some(lab) = Lab::up("unseen", &[]) else { return };
    assert_eq!(lab.exec("left", &["ip", "link", "delete", "left0"]).status, Some(0));
    let up = without("sys_admin", &["lab", "up", "--name", &lab.0]);
    assert_eq!(up.status, Some(3), "{}{}", up.out, up.err);
    assert!(up.err.contains("needs CAP_SYS_ADMIN: run it with sudo"), "{}", up.err);

    let netns = format!("{}-right", lab.0);
    let broken = format!("  broken, without netns {netns}; ");
    let list = || without("sys_admin", &["lab", "list"]);
    let unseen = list();
    assert!(unseen.out.contains(&netns) && !unseen.out.contains(&broken), "{}", unseen.out);
    assert_eq!(lab.exec("left", &["ip", "netns", "delete", &netns]).status, Some(0));
    let seen = list();
    assert!(seen.out.contains(&broken), "{}", seen.out);
}

#[test]
fn a_missing_capability_is_named_and_no_partial_lab_is_left() {
    if !have(&["setpriv"]) {
        return;
    }
    let Some(_able) = Lab::up("able", &[]) else { return };
    for (dropped, named) in [("net_admin", "CAP_NET_ADMIN"), ("sys_admin", "CAP_SYS_ADMIN")] {
        let name = format!("half-{dropped}-{}", std::process::id());
        let up = without(dropped, &["lab", "up", "--name", &name]);
        assert_eq!(up.status, Some(3), "{}", up.err);
        assert!(up.err.contains(&format!("needs {named}: run it with sudo")), "{}", up.err);
        assert!(!run(&["lab", "list"]).out.contains(&name), "no record of {name}");
        let netns = format!("/run/netns/{name}-left");
        assert!(!Path::new(&netns).exists(), "{netns} is left");
    }
}

#[test]
fn an_ordinary_user_makes_a_lab_with_only_the_named_capabilities() {
    if !have(&["setpriv"]) {
        return;
    }
    let Some(_able) = Lab::up("named", &[]) else { return };
    let name = format!("nobody-{}", std::process::id());
    let nobody = |capabilities: &[&str], command: &[&str]| {
        let only = capabilities.iter().fold("-all".to_owned(), |all, one| format!("{all},+{one}"));
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        setpriv.args(
            ["--inh-caps", "--ambient-caps", "--bounding-set"].map(|set| format!("{set}={only}")),
        );
        ended(setpriv.arg(env!("CARGO_BIN_EXE_sluice")).args(command))
    };
    if nobody(&[], &["--version"]).status != Some(0) {
        return eprintln!("skipped: needs a build that nobody may run; get it by chmod o+x");
    }
    let named = ["sys_admin", "net_admin", "dac_override"];
    let up = ["lab", "up", "--name", &name];
    for missing in named {
        let others: Vec<_> = named.into_iter().filter(|one| *one != missing).collect();
        let refused = nobody(&others, &up);
        assert_eq!(refused.status, Some(3), "{missing}: {}", refused.err);
        let capability = format!("CAP_{}", missing.to_uppercase());
        assert!(refused.err.contains(&capability), "{}", refused.err);
    }
    let exec = ["lab", "exec", "--name", &name, "left", "--", "cat", "/sys/class/net/left0/mtu"];
    for (capabilities, command) in [
        (&named[..], &up[..]),
        (&["sys_admin"], &exec),
        (&named, &["lab", "down", "--name", &name]),
    ] {
        let ended = nobody(capabilities, command);
        assert_eq!(ended.status, Some(0), "{command:?}: {}", ended.err);
    }
}
