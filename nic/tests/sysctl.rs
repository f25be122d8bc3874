//! Numbers of network namespaces: raised, recorded and restored. The tests need root.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use sluicegate_base::error::ErrorKind;
use sluicegate_link::{Lab, netns};
use sluicegate_nic::{RaisedSysctl, Sysctl};

const SYNCOOKIES: Sysctl = Sysctl { name: "net.ipv4.tcp_syncookies", value: 2 };
const FILE: &str = "/proc/sys/net/ipv4/tcp_syncookies";
/// The namespace in which a process of `holds_a_number_for_another_test` raises the number.
const TO_HOLD: &str = "SLUICE_TEST_SYSCTL_TO_HOLD";

fn lab() -> Option<Lab> {
    match Lab::scratch() {
        Ok(lab) => Some(lab),
        Err(error) if error.kind() == ErrorKind::Privilege => {
            println!("skipped: needs root; get it by sudo: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn on<T: Send>(lab: &Lab, work: impl FnOnce() -> T + Send) -> T {
    netns::run_in(Some(&lab.netns("right")), || Ok(work())).unwrap()
}

fn raise(lab: &Lab) -> RaisedSysctl {
    on(lab, || SYNCOOKIES.raise().unwrap())
}

fn restore(lab: &Lab) -> bool {
    on(lab, || SYNCOOKIES.restore().unwrap())
}

fn value(lab: &Lab) -> String {
    on(lab, || fs::read_to_string(FILE).unwrap().trim().to_owned())
}

fn set(lab: &Lab, value: &str) {
    on(lab, || fs::write(FILE, value).unwrap());
}

fn record(lab: &Lab) -> PathBuf {
    let netns = fs::metadata(format!("/run/netns/{}", lab.netns("right"))).unwrap().ino();
    PathBuf::from(format!("/run/sluice/sysctls/{netns}-{}", SYNCOOKIES.name))
}

/// A process that raises the number.
struct Holder(Child);

impl Holder {
    /// Starts one, and waits until it has raised the number.
    fn start(lab: &Lab) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "holds_a_number_for_another_test", "--nocapture"])
            .env(TO_HOLD, lab.netns("right"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "raised"), "it failed");
        Self(child)
    }

    /// Ends it as `kill -9` does.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn holds_a_number_for_another_test() {
    let Ok(netns) = std::env::var(TO_HOLD) else { return };
    let _raised = netns::run_in(Some(&netns), || SYNCOOKIES.raise()).unwrap();
    println!("\nraised");
    // Ends with the test that started it.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn the_last_user_restores_the_former_value() {
    let Some(lab) = lab() else { return };
    for (former, raised) in [("0", "2"), ("1", "2"), ("2", "2")] {
        set(&lab, former);
        let first = raise(&lab);
        let second = raise(&lab);
        let killed = Holder::start(&lab);
        assert_eq!((value(&lab).as_str(), first.value().unwrap()), (raised, 2));
        assert_eq!(record(&lab).exists(), former != raised, "a change is recorded");
        drop(first);
        killed.kill();
        assert_eq!(value(&lab), raised, "{former}: one is left");
        drop(second);
        assert_eq!(value(&lab), former, "restored by the last");
        assert!(!record(&lab).exists());
    }
}

#[test]
fn the_next_user_restores_a_number_that_a_killed_process_raised() {
    let Some(lab) = lab() else { return };
    let by_restore = |lab: &Lab| assert!(restore(lab));
    let by_raise = |lab: &Lab| drop(raise(lab));
    for mend in [by_restore, by_raise] {
        Holder::start(&lab).kill();
        assert_eq!(value(&lab), "2", "it could not restore it");
        mend(&lab);
        assert_eq!(value(&lab), "1");
        assert!(!record(&lab).exists());
    }
    assert!(!restore(&lab), "nothing is left to restore");
    let raised = raise(&lab);
    assert!(!restore(&lab), "a living user keeps it");
    assert_eq!(value(&lab), "2");
    drop(raised);
}

#[test]
fn a_value_of_another_program_stays() {
    let Some(lab) = lab() else { return };
    for meanwhile in ["0", "1"] {
        set(&lab, "1");
        let raised = raise(&lab);
        let holder = Holder::start(&lab);
        set(&lab, meanwhile);
        assert_eq!(raised.value().unwrap().to_string(), meanwhile);
        drop(raised);
        holder.kill();
        assert!(restore(&lab), "the record is of a killed process");
        assert_eq!(value(&lab), meanwhile);
        assert!(!record(&lab).exists());
    }
}

#[test]
fn records_of_removed_namespaces_are_removed() {
    let (Some(lab), Some(other)) = (lab(), lab()) else { return };
    let (raised, of_lab) = (raise(&lab), record(&lab));
    assert!(of_lab.exists());
    drop(lab);
    drop(raised);
    assert!(!of_lab.exists(), "its user has ended");
    let Some(lab) = self::lab() else { return };
    let of_lab = record(&lab);
    Holder::start(&lab).kill();
    restore(&other);
    assert!(of_lab.exists(), "the namespace exists");
    drop(lab);
    // Another test may start a process in the namespace's last moment.
    let cleared = (0..500).any(|_| {
        restore(&other);
        !of_lab.exists()
    });
    assert!(cleared, "the next user clears it, in any namespace");
}
