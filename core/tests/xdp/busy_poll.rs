//! Busy polling: the interface's settings while it lasts, and after.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use sluicegate::error::ErrorKind;
use sluicegate::link::{self, Lab, Shape, netns};
use sluicegate::nic::restore_interrupts;

use super::scratch::lab_of;
use super::wire::{Holder, TO_HOLD, frame, open, receive, send};
use super::{child, exec, lab, lines, linux, output, right0, run, wait_until_removed};

/// Polls that find nothing, and ns between them.
fn settings(lab: &Lab) -> [u64; 2] {
    ["napi_defer_hard_irqs", "gro_flush_timeout"].map(|setting| {
        let value = output(lab, "right", &format!("cat /sys/class/net/right0/{setting}"));
        value.trim().parse().unwrap()
    })
}

fn set(lab: &Lab, settings: [u64; 2]) {
    let names = ["napi_defer_hard_irqs", "gro_flush_timeout"];
    for (setting, value) in names.into_iter().zip(settings) {
        let path = format!("/sys/class/net/right0/{setting}");
        let words = ["sh", "-c", &format!("echo {value} > {path}")];
        assert!(exec(lab, "right", &words).success());
    }
}

/// The record of right0 of this lab.
fn record(lab: &Lab) -> PathBuf {
    let netns = fs::metadata(format!("/run/netns/{}", lab.netns("right"))).unwrap().ino();
    PathBuf::from(format!("/run/sluice/interrupts/{netns}-{}", right0(lab).index))
}

fn polling(queue: u32) -> String {
    format!("xdp:right0/{queue}?busy_poll=50us&filter=udp port 9")
}

#[test]
fn the_interface_waits_with_interrupts_as_long_as_somebody_polls() {
    let Some(lab) = lab_of(Shape::Pair, 3) else { return };
    for (former, raised, why) in [
        ([0, 0], [2, 200_000], "what a kernel starts with"),
        ([1, 1000], [2, 200_000], "less than needed"),
        ([5, 0], [5, 200_000], "one is higher already"),
        ([0, 1_000_000], [2, 1_000_000], "the other is"),
        ([2, 200_000], [2, 200_000], "somebody wants them so"),
    ] {
        set(&lab, former);
        drop(open(&lab, "xdp:right0").unwrap());
        assert_eq!(settings(&lab), former, "{why}: nobody polls");
        let first = open(&lab, &polling(0)).unwrap();
        let second = open(&lab, &polling(1)).unwrap();
        let other = Holder::of(&lab, &polling(2));
        assert_eq!(settings(&lab), raised, "{why}");
        drop(first);
        other.kill();
        assert_eq!(settings(&lab), raised, "{why}: one is left");
        drop(second);
        assert_eq!(settings(&lab), former, "{why}: put back by the last");
        assert!(!record(&lab).exists(), "{why}");
    }
}

#[test]
fn what_a_killed_process_has_changed_is_put_back_by_the_next() {
    let Some(lab) = lab() else { return };
    let mend = || netns::run_in(Some(&lab.netns("right")), || restore_interrupts(&right0(&lab)));
    let by = |name: &str| drop(open(&lab, name).unwrap());
    let ways: [(&dyn Fn(), &str); 5] = [
        (&|| by("xdp:right0"), "a port that does not poll"),
        (&|| by("xdp:right0?action=pass"), "one that counts"),
        (&|| by("mirror:right0"), "a mirror"),
        (&|| by(&polling(0)), "one that polls, when it has ended"),
        (&|| assert!(mend().unwrap()), "who asks for it"),
    ];
    for (mend_by, why) in ways {
        set(&lab, [1, 1000]);
        Holder::of(&lab, &polling(0)).kill();
        assert_eq!(settings(&lab), [2, 200_000], "{why}: it could not put them back");
        mend_by();
        assert_eq!(settings(&lab), [1, 1000], "{why}");
        assert!(!record(&lab).exists(), "{why}");
    }
    assert!(!mend().unwrap(), "there is nothing any more");
    let alive = open(&lab, &polling(0)).unwrap();
    assert!(!mend().unwrap(), "who polls is left alone");
    assert_eq!(settings(&lab), [2, 200_000]);
    drop(alive);
}

#[test]
fn a_driver_that_does_not_say_how_it_is_polled_is_named() {
    let Some(lab) = lab() else { return };
    // Up to 6.12 a NAPI has its number from the start.
    let unnumbered = linux() > (6, 12);
    for (options, said, why) in [
        ("busy_poll=50us", unnumbered, "veth registers its queues before their NAPIs are on"),
        ("mode=skb&busy_poll=50us", true, "nor do they have one behind the driver"),
        ("timestamp=off", false, "nobody polls"),
    ] {
        wait_until_removed(&lab);
        let mut port = open(&lab, &format!("xdp:right0?{options}")).unwrap();
        let queue = &mut port.queues[0];
        queue.check().unwrap();
        assert_eq!(queue.take_notice(), None, "{why}: before the first packet nothing is known");
        for _ in 0..2 {
            send(&lab, &[frame(1, 0, 60)]);
            assert_eq!(receive(queue, 1).len(), 1, "{why}: packets come");
        }
        queue.check().unwrap();
        let notice = queue.take_notice();
        let expected = "busy_poll= does nothing on right0: its driver does not say";
        assert_eq!(notice.is_some(), said, "{why}: {notice:?}");
        assert!(notice.is_none_or(|notice| notice.starts_with(expected)), "{why}");
        assert_eq!(queue.take_notice(), None, "{why}: once");
    }
}

#[test]
fn settings_that_another_program_changed_meanwhile_stay() {
    let Some(lab) = lab() else { return };
    let port = open(&lab, &polling(0)).unwrap();
    set(&lab, [2, 20_000]);
    drop(port);
    assert_eq!(settings(&lab), [0, 20_000]);
    assert!(!record(&lab).exists());
}

#[test]
fn an_interface_that_goes_takes_its_settings_along() {
    let Some(lab) = lab() else { return };
    let (port, record) = (open(&lab, &polling(0)).unwrap(), record(&lab));
    assert!(record.exists());
    run(&lab, "right", "ip link del right0");
    drop(port);
    assert!(!record.exists(), "nothing is left to put back");
}

#[test]
fn records_of_removed_interfaces_and_namespaces_are_cleared_by_the_next() {
    let (Some(lab), Some(other)) = (lab(), lab()) else { return };
    let by_other = || drop(open(&other, "xdp:right0").unwrap());
    // An interface that was removed, in a namespace that stays.
    let removed = record(&lab);
    Holder::of(&lab, &polling(0)).kill();
    run(&lab, "right", "ip link del right0");
    by_other();
    assert!(removed.exists(), "another namespace cannot tell");
    run(&lab, "right", "ip link add right1 type veth peer name right2");
    let right1 = link::interface(Some(&lab.netns("right")), "right1").unwrap();
    netns::run_in(Some(&lab.netns("right")), || restore_interrupts(&right1)).unwrap();
    assert!(!removed.exists(), "the next port in the namespace clears it");
    // A namespace that was removed, with its interface.
    let other = lab_of(Shape::Pair, 1).unwrap();
    let removed = record(&other);
    Holder::of(&other, &polling(0)).kill();
    by_other();
    assert!(removed.exists(), "the namespace exists");
    drop(other);
    // Another test may start a process in the namespace's last moment.
    let cleared = (0..500).any(|_| {
        by_other();
        !removed.exists()
    });
    assert!(cleared, "the next port clears it, wherever it is opened");
}

#[test]
fn one_that_was_renamed_gets_its_settings_back() {
    let Some(lab) = lab() else { return };
    if linux() < (6, 2) {
        println!("skipped: an interface that is up is renamed from Linux 6.2 on");
        return;
    }
    let port = open(&lab, &polling(0)).unwrap();
    run(&lab, "right", "ip link set right0 name other0");
    drop(port);
    run(&lab, "right", "ip link set other0 name right0");
    assert_eq!(settings(&lab), [0, 0]);
}

/// Makes the settings of the host's interfaces read-only as long as the child runs.
fn read_only(lab: &Lab) -> Child {
    // Each mount of this namespace's sysfs has the same options.
    let keep = "mount -o remount,ro /sys && echo done && exec sleep 60";
    let mut sh = Command::new("sh");
    let mut keeper = lab.spawn("right", sh.args(["-c", keep]).stdout(Stdio::piped())).unwrap();
    lines::until(keeper.id(), keeper.stdout.take().unwrap(), "done");
    keeper
}

#[test]
fn a_poller_that_fails_does_not_sign_another_off() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let first = open(&lab, &polling(0)).unwrap();
    let recorded = fs::read_to_string(record(&lab)).unwrap();
    set(&lab, [0, 0]);
    let mut keeper = read_only(&lab);
    let error = open(&lab, &polling(1)).unwrap_err();
    assert!(error.to_string().contains("Read-only file system"), "{error}");
    assert_eq!(fs::read_to_string(record(&lab)).unwrap(), recorded, "the first polls");
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    drop(first);
    // Where the settings stayed read-only for the first, too, it has left its record.
    let _ = fs::remove_file(record(&lab));
}

#[test]
fn read_only_settings_are_reported_and_nothing_is_changed() {
    let Some(lab) = lab() else { return };
    let mut keeper = read_only(&lab);
    let error = open(&lab, &polling(0)).unwrap_err();
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    let text = error.to_string();
    assert!(text.contains("napi_defer_hard_irqs of right0: Read-only file system"), "{text}");
    assert!(text.contains("or leave busy_poll= out"), "{text}");
    assert_eq!(error.kind(), ErrorKind::Runtime);
    assert_eq!((settings(&lab), record(&lab).exists()), ([0, 0], false));
}

#[test]
fn where_no_record_can_be_written_nothing_is_changed() {
    let Some(lab) = lab() else { return };
    fs::create_dir_all("/run/sluice").unwrap();
    let read_only = "mount --bind /run/sluice /run/sluice && \
                     mount -o remount,ro,bind /run/sluice && exec \"$@\"";
    let opened = Command::new("unshare")
        .args(["--mount", "sh", "-c", read_only, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "wire::holds_a_port_for_another_test", "--nocapture"])
        .env(TO_HOLD, format!("{} {}", lab.netns("right"), polling(0)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let opened = child::end(opened);
    let text = String::from_utf8_lossy(&opened.stderr);
    assert!(text.contains("Read-only file system"), "{text}");
    assert!(text.contains("/run/sluice has to be writable"), "{text}");
    assert_eq!(settings(&lab), [0, 0], "{text}");
}
