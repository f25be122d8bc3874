//! `sluice lab` and `sluice top` as their users see them. Tests that make a lab need root: where
//! they cannot, they say so and pass.

use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::screen::{Screen, on_a_terminal};
use crate::{child, lines};

fn sluice(arguments: &[&str]) -> Output {
    let mut sluice = Command::new(env!("CARGO_BIN_EXE_sluice"));
    sluice.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    child::end(sluice.spawn().unwrap())
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether the tools are there; says which is not.
fn have(tools: &[(&str, &str)]) -> bool {
    tools.iter().all(|(tool, source)| {
        let which = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        let found = which.is_ok_and(|output| output.status.success());
        if !found {
            eprintln!("skipped: needs {tool}; get it by {source}");
        }
        found
    })
}

const PING: (&str, &str) = ("ping", "scripts/setup.sh");

/// A lab of a name of its own that goes when it is dropped.
struct Lab(String);

impl Lab {
    fn up(test: &str, more: &[&str]) -> Option<Self> {
        let lab = Self(format!("{test}-{}", std::process::id()));
        let mut arguments = vec!["lab", "up", "--name", &lab.0];
        arguments.extend(more);
        let output = sluice(&arguments);
        match output.status.code() {
            Some(0) => Some(lab),
            Some(3) => {
                eprintln!("skipped: needs root; get it by sudo: {}", err(&output));
                None
            }
            _ => panic!("{}", err(&output)),
        }
    }

    fn exec(&self, host: &str, command: &[&str]) -> Output {
        let mut arguments = vec!["lab", "exec", "--name", &self.0, host, "--"];
        arguments.extend(command);
        sluice(&arguments)
    }

    /// Starts a command on a host; it lasts as long as what this returns.
    fn beside(&self, host: &str, command: &[&str]) -> Beside {
        let arguments = ["lab", "exec", "--name", &self.0, host, "--"];
        let mut beside = Command::new(env!("CARGO_BIN_EXE_sluice"));
        Beside(beside.args(arguments).args(command).stdout(Stdio::null()).spawn().unwrap())
    }
}

struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        sluice(&["lab", "down", "--name", &self.0]);
    }
}

/// The program on right0 of a namespace; it goes with this, however the test ends.
struct Attached<'a>(&'a str);

impl Attached<'_> {
    fn detach(&self) -> Output {
        sluice(&["detach", "right0", "--netns", self.0])
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.detach();
    }
}

#[test]
fn a_command_in_the_lab_keeps_its_status_and_streams() {
    let Some(lab) = Lab::up("exec", &[]) else {
        return;
    };
    for (sentence, command, status) in [
        ("success", &["true"][..], Some(0)),
        ("its own failure", &["sh", "-c", "exit 42"][..], Some(42)),
        ("no such command", &["no-such-command"][..], Some(127)),
        ("not a command", &["/etc/passwd"][..], Some(126)),
        ("a signal is the signal, not a number", &["sh", "-c", "kill -TERM $$"][..], None),
    ] {
        assert_eq!(lab.exec("left", command).status.code(), status, "{sentence}");
    }
    let output = lab.exec("right", &["sh", "-c", "ls /sys/class/net; echo to stderr >&2"]);
    let listed = out(&output);
    let names: Vec<&str> = listed.split_whitespace().collect();
    assert!(names.contains(&"lo") && names.contains(&"right0") && names.len() < 5, "{names:?}");
    assert_eq!(err(&output), "to stderr\n");
    let wrong = lab.exec("middle", &["true"]);
    assert_eq!(wrong.status.code(), Some(2), "no such host: {}", err(&wrong));
}

#[test]
fn up_draws_what_it_made_and_list_tells_the_same() {
    let Some(lab) = Lab::up("draw", &["--shape", "line", "--queues", "2"]) else {
        return;
    };
    let again = sluice(&["lab", "up", "--name", &lab.0, "--shape", "line", "--queues", "2"]);
    assert!(again.status.success(), "up twice: {}", err(&again));
    let drawn = out(&again);
    for part in ["├──────┤ middle0 ", " middle1 ├──────┤ right0 ", " 198.18.0.2/24 "]
    {
        assert!(drawn.contains(part), "{part} in\n{drawn}");
    }
    let other = sluice(&["lab", "up", "--name", &lab.0]);
    assert_eq!(other.status.code(), Some(2), "another shape: {}", err(&other));

    let listed: Value = serde_json::from_str(&out(&sluice(&["lab", "list", "--json"]))).unwrap();
    let labs = listed["labs"].as_array().unwrap();
    let ours = labs.iter().find(|entry| entry["name"] == *lab.0).unwrap();
    assert_eq!(ours["shape"], "line");
    assert_eq!(ours["queues"], 2);
    assert_eq!(ours["hosts"][1]["netns"], format!("{}-middle", lab.0));
    assert_eq!(ours["hosts"][2]["interfaces"][0]["addresses"][1], "2001:db8:18::2/64");
    assert!(out(&sluice(&["lab", "list"])).contains(&lab.0));

    assert!(sluice(&["lab", "down", "--name", &lab.0]).status.success());
    let twice = sluice(&["lab", "down", "--name", &lab.0]);
    assert_eq!(twice.status.code(), Some(2), "down twice: {}", err(&twice));
}

#[test]
fn a_missing_capability_is_named_and_nothing_half_made_is_left() {
    let Some(_able) = Lab::up("able", &[]) else {
        return;
    };
    for (dropped, named) in [("net_admin", "CAP_NET_ADMIN"), ("sys_admin", "CAP_SYS_ADMIN")] {
        let name = format!("half-{dropped}-{}", std::process::id());
        let setpriv = Command::new("setpriv")
            .args([&format!("--bounding-set=-{dropped}"), &format!("--inh-caps=-{dropped}")])
            .args([env!("CARGO_BIN_EXE_sluice"), "lab", "up", "--name", &name])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let output = match setpriv {
            Ok(setpriv) => child::end(setpriv),
            Err(error) => {
                return eprintln!(
                    "skipped: needs setpriv ({error}); get it by installing util-linux"
                );
            }
        };
        let said = err(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains(&format!("needs {named}: run it with sudo")), "{said}");
        assert!(!out(&sluice(&["lab", "list"])).contains(&name), "no record of {name}");
        let netns = format!("/run/netns/{name}-left");
        assert!(!std::path::Path::new(&netns).exists(), "{netns} is left");
    }
}

#[test]
fn top_counts_what_was_sent() {
    if !have(&[PING]) {
        return;
    }
    let Some(lab) = Lab::up("top", &[]) else {
        return;
    };
    let netns = format!("{}-right", lab.0);
    let top = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args([
            "top",
            "right0",
            "--netns",
            &netns,
            "--json",
            "--interval",
            "200ms",
            "--count",
            "10",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let ping = lab.exec("left", &["ping", "-q", "-c", "50", "-i", "0.01", "198.18.0.2"]);
    let output = child::end(top);
    assert!(ping.status.success(), "{}", err(&ping));
    assert!(output.status.success());
    let lines: Vec<Value> =
        out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 10, "a line an interval");
    let sum = |of: fn(&Value) -> &Value| -> f64 {
        let counts = lines.iter().map(|line| {
            let right0 = &line["interfaces"][0];
            assert_eq!(right0["name"], "right0");
            of(right0).as_f64().unwrap() * line["interval_s"].as_f64().unwrap()
        });
        counts.sum()
    };
    // What is sent before the first reading or after the last is not seen.
    let packets = sum(|i| &i["rx"]["pps"]);
    assert!(packets > 0.5 && packets < 50.5, "{packets} packets");
    let bits = sum(|i| &i["rx"]["bps_l2"]);
    // A veth with NAPI counts bytes behind the Ethernet header (drivers/net/veth.c, veth_xdp_rcv).
    assert!((bits / packets - 84.0 * 8.0).abs() < 0.01, "84 bytes each: {bits} / {packets}");
    assert_eq!(sum(|i| &i["rx"]["drops_per_s"]["missed"]), 0.0);
    assert!(!lines[0]["cpus"].as_array().unwrap().is_empty());
    assert_eq!(lines[0]["netns"], netns);
}

#[test]
fn a_veths_queue_has_a_rate_where_it_counts_all_that_comes() {
    if !have(&[PING]) {
        return;
    }
    let Some(lab) = Lab::up("queue", &[]) else {
        return;
    };
    let netns = format!("{}-right", lab.0);
    let packets = || {
        let arguments = ["top", "right0", "--netns", &netns, "--json", "--interval", "100ms"];
        let top = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(arguments)
            .args(["--count", "5"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let ping = lab.beside("left", &["ping", "-q", "-i", "0.01", "198.18.0.2"]);
        let output = child::end(top);
        drop(ping);
        let text = out(&output);
        let rates = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let queue = &line["interfaces"][0]["queues"][0];
            assert_eq!((&queue["direction"], &queue["queue"]), (&"rx".into(), &0.into()));
            queue.get("pps").and_then(Value::as_f64)
        });
        // None in one line: none at all.
        rates.collect::<Option<Vec<f64>>>().map(|rates| rates.iter().sum::<f64>())
    };
    assert_eq!(packets(), None, "some of what comes is not counted");
    let attached = sluice(&["attach", "right0", "--netns", &netns]);
    if !attached.status.success() {
        return eprintln!(
            "skipped: needs a BPF file system; get it by mount -t bpf bpf /sys/fs/bpf: {}",
            err(&attached)
        );
    }
    let attached = Attached(&netns);
    assert!(packets() > Some(0.0), "the program has all of it");
    assert!(attached.detach().status.success());
}

#[test]
fn top_prints_aligned_lines_where_there_is_no_terminal() {
    let output = sluice(&["top", "lo", "--interval", "50ms", "--count", "2"]);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    let heads: Vec<&str> = text.lines().filter(|line| line.contains("rx pkt/s")).collect();
    let rows: Vec<&str> = text.lines().filter(|line| line.contains(" lo ")).collect();
    assert_eq!((heads.len(), rows.len()), (2, 2), "{text}");
    assert_eq!(heads[0].len(), rows[0].len(), "{text}");
}

#[test]
fn top_says_what_is_wrong() {
    for (sentence, arguments, status, part) in [
        ("no interface", &["top", "no-such"][..], 2, "no interface 'no-such'; there are: lo"),
        ("no namespace", &["top", "--netns", "no-such"][..], 2, "no network namespace 'no-such'"),
        ("no time", &["top", "--interval", "5x"][..], 2, "250ms"),
        ("too short", &["top", "--interval", "1us"][..], 2, "10ms is the shortest"),
        ("both", &["top", "--plain", "--json"][..], 2, "cannot be used with"),
    ] {
        let output = sluice(arguments);
        assert_eq!(output.status.code(), Some(status), "{sentence}: {}", err(&output));
        assert!(err(&output).contains(part), "{sentence}: {}", err(&output));
    }
}

#[test]
fn a_signal_ends_top_cleanly() {
    let mut top = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["top", "lo", "--json", "--interval", "20ms"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Its first line shows that it waits for signals.
    let (first, mut rest) = lines::until(top.id(), top.stdout.take().unwrap(), "");
    assert!(first.starts_with('{'), "{first}");
    let pid = nix::unistd::Pid::from_raw(top.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(child::end(top).status.code(), Some(0));
    let mut more = String::new();
    rest.read_to_string(&mut more).unwrap();
    assert!(more.is_empty() || more.ends_with('\n'), "no half line: {more}");
}

#[test]
fn control_z_stops_top_and_other_control_letters_do_nothing() {
    let tools = [
        ("script", "installing bsdutils"),
        ("bash", "installing bash"),
        ("timeout", "installing coreutils"),
    ];
    if !have(&tools) {
        return;
    }
    let shell = format!(
        "stty cols 80 rows 24; {} top lo; echo was $?; fg >/dev/null; echo then $?",
        env!("CARGO_BIN_EXE_sluice")
    );
    let mut script = on_a_terminal(&shell);
    let mut keys = script.stdin.take().unwrap();
    let mut screen = Screen::of(script.stdout.take().unwrap());
    screen.until("q quit");
    // ^P, ^Q and ^D first: if one were a key it would pause or end the command.
    keys.write_all(b"\x10\x11\x04\x1a").unwrap();
    let seen = screen.until("\x1b[?1049l");
    assert!(!seen.contains("PAUSED") && seen.ends_with("\x1b[?25h"), "the cursor is back: {seen}");
    screen.until("was 148");
    screen.until("\x1b[?1049h");
    screen.until("q quit");
    keys.write_all(b"q").unwrap();
    screen.until("then 0");
    script.wait().unwrap();
}
