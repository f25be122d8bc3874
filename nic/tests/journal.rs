//! Changes of an interface's settings: made, kept and undone, also after a kill. The tests need root.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use sluicegate_base::error::ErrorKind;
use sluicegate_link::lab::Shape;
use sluicegate_link::{Lab, interface, netns};
use sluicegate_nic::journal::{self, Outcome, Transaction};
use sluicegate_nic::{Device, Setting};

/// The namespace in which a process of `changes_settings_for_another_test` changes settings.
const NAMESPACE: &str = "SLUICE_TEST_SETTINGS_OF";
/// The number of changes after which it waits.
const STEPS: &str = "SLUICE_TEST_SETTINGS_STEPS";

/// Settings of a veth with four queues, and other values of them.
const CHANGES: [(&str, &str); 4] = [
    ("channels.rx", "2"),
    ("feature.rx-gro", "off"),
    ("rps.0", "1"),
    ("feature.tx-nocache-copy", "on"),
];

fn lab() -> Option<Lab> {
    match Lab::scratch_with(Shape::Pair, 4) {
        Ok(lab) => Some(lab),
        Err(error) if error.kind() == ErrorKind::Privilege => {
            println!("skipped: needs root; get it by sudo: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn setting(name: &str) -> Setting {
    name.parse().unwrap()
}

/// Opens the interface of the host on the right.
fn device(netns: &str) -> Device {
    let found = interface(Some(netns), "right0").unwrap();
    netns::run_in(Some(netns), || Device::open(&found)).unwrap()
}

fn values(device: &mut Device) -> Vec<String> {
    CHANGES.iter().map(|(name, _)| device.read(&setting(name)).unwrap().unwrap()).collect()
}

fn change_all(transaction: &mut Transaction<'_>) {
    for (name, value) in CHANGES {
        assert_eq!(transaction.change(&setting(name), value).unwrap(), value, "{name}");
    }
}

/// Makes all changes, and keeps them.
fn keep_all(device: &mut Device) {
    let mut transaction = Transaction::begin(device, "a test").unwrap();
    change_all(&mut transaction);
    transaction.keep().unwrap();
}

fn wanted() -> Vec<String> {
    CHANGES.iter().map(|(_, value)| (*value).to_owned()).collect()
}

#[test]
fn changes_that_are_not_kept_are_undone() {
    let Some(lab) = lab() else { return };
    let mut device = device(&lab.netns("right"));
    let before = values(&mut device);
    let mut transaction = Transaction::begin(&mut device, "a test").unwrap();
    change_all(&mut transaction);
    assert_eq!(values(transaction.device()), wanted());
    drop(transaction);
    assert_eq!(values(&mut device), before);
    assert_eq!(journal::changes(&device).unwrap(), []);
}

#[test]
fn changes_that_are_kept_are_undone_later() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let mut first = device(&netns);
    let before = values(&mut first);
    keep_all(&mut first);
    assert_eq!(values(&mut first), wanted());
    // A second run changes a setting again.
    let mut transaction = Transaction::begin(&mut first, "a test").unwrap();
    transaction.change(&setting("channels.rx"), "3").unwrap();
    transaction.keep().unwrap();
    let mut later = device(&netns);
    assert_eq!(journal::changes(&later).unwrap().len(), CHANGES.len() + 1);
    let undone = journal::undo(&mut later).unwrap();
    assert!(undone.iter().all(|it| matches!(it.outcome, Outcome::Restored)), "{undone:?}");
    assert_eq!(values(&mut later), before);
    assert!(journal::undo(&mut later).unwrap().is_empty());
}

#[test]
fn a_value_that_another_program_has_set_stays() {
    let Some(lab) = lab() else { return };
    let mut device = device(&lab.netns("right"));
    let before = values(&mut device);
    keep_all(&mut device);
    device.set(&setting("channels.rx"), "3").unwrap();
    let undone = journal::undo(&mut device).unwrap();
    let foreign: Vec<_> =
        undone.iter().filter(|it| matches!(it.outcome, Outcome::Foreign(_))).collect();
    assert_eq!(foreign.len(), 1, "{undone:?}");
    assert_eq!(foreign[0].setting, setting("channels.rx"));
    assert!(matches!(&foreign[0].outcome, Outcome::Foreign(now) if now == "3"));
    let now = values(&mut device);
    assert_eq!((now[0].as_str(), &now[1..]), ("3", &before[1..]));
}

#[test]
fn a_second_process_is_refused_with_the_name_of_the_first() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let (mut first, mut second) = (device(&netns), device(&netns));
    let transaction = Transaction::begin(&mut first, "sluice tune right0").unwrap();
    for error in [
        Transaction::begin(&mut second, "a test").map(drop).unwrap_err(),
        journal::undo(&mut second).map(drop).unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains("sluice tune right0") && text.contains("right0"), "{text}");
        assert!(text.contains(&std::process::id().to_string()), "{text}");
    }
    drop(transaction);
    drop(Transaction::begin(&mut second, "a test").unwrap());
}

#[test]
fn another_process_confirms_changes_once() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let (mut first, mut second) = (device(&netns), device(&netns));
    journal::confirm(&mut second).unwrap_err();
    let mut transaction = Transaction::begin(&mut first, "a test").unwrap();
    change_all(&mut transaction);
    assert!(!transaction.is_confirmed());
    journal::confirm(&mut second).unwrap();
    journal::confirm(&mut second).unwrap_err();
    assert!(transaction.is_confirmed());
    drop(transaction);
    assert_eq!(values(&mut second), wanted());
    // Renamed, it keeps its journal.
    let renamed = "ip link set right0 down && ip link set right0 name wan0 && ip link set wan0 up";
    let ran = lab.spawn("right", Command::new("sh").args(["-c", renamed])).unwrap().wait().unwrap();
    assert!(ran.success());
    let undone = journal::undo(&mut second).unwrap();
    assert_eq!(undone.len(), CHANGES.len());
    assert!(undone.iter().all(|it| matches!(it.outcome, Outcome::Restored)), "{undone:?}");
}

#[test]
fn a_setting_that_the_driver_lacks_is_an_error_and_changes_nothing() {
    let Some(lab) = lab() else { return };
    let mut device = device(&lab.netns("right"));
    let mut transaction = Transaction::begin(&mut device, "a test").unwrap();
    for (name, value) in
        [("ring.rx", "512"), ("channels.combined", "2"), ("rps.9", "1"), ("feature.none", "on")]
    {
        let error = transaction.change(&setting(name), value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Privilege, "{name}: {error}");
    }
    // More queues than there are, and a feature that a veth cannot switch off.
    transaction.change(&setting("channels.rx"), "5").unwrap_err();
    transaction.change(&setting("feature.tx-lockless"), "off").unwrap_err();
    assert_eq!(journal::changes(transaction.device()).unwrap(), []);
}

/// Changes settings in the namespace that another test names, and waits for its end. Without a name it does nothing.
#[test]
fn changes_settings_for_another_test() {
    let Ok(netns) = std::env::var(NAMESPACE) else { return };
    let steps: usize = std::env::var(STEPS).unwrap().parse().unwrap();
    let mut device = device(&netns);
    let mut transaction = Transaction::begin(&mut device, "another test").unwrap();
    for (name, value) in CHANGES.into_iter().take(steps) {
        transaction.change(&setting(name), value).unwrap();
    }
    println!("changed");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Starts a process that makes some changes, and kills it.
fn killed_after(netns: &str, steps: usize) {
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "changes_settings_for_another_test"])
        .env(NAMESPACE, netns)
        .env(STEPS, steps.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("changed")), "it changes {steps} settings");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_next_process_undoes_what_a_killed_one_has_left() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let mut device = device(&netns);
    let before = values(&mut device);
    for steps in 0..=CHANGES.len() {
        killed_after(&netns, steps);
        let left = values(&mut device);
        assert_eq!(left.iter().zip(&before).filter(|(now, former)| now != former).count(), steps);
        assert_eq!(journal::restore(&mut device).unwrap().len(), steps);
        assert_eq!(values(&mut device), before, "after {steps} steps");
        assert!(journal::restore(&mut device).unwrap().is_empty());
    }
    // Beginning undoes, too, and what was kept before the killed process stays.
    let mut transaction = Transaction::begin(&mut device, "a test").unwrap();
    transaction.change(&setting("rps.0"), "2").unwrap();
    transaction.keep().unwrap();
    killed_after(&netns, 2);
    drop(Transaction::begin(&mut device, "a test").unwrap());
    let now = values(&mut device);
    assert_eq!((&now[..2], now[2].as_str()), (&before[..2], "2"));
    journal::undo(&mut device).unwrap();
    assert_eq!(values(&mut device), before);
}
