//! Attaching, sharing, leaving.

use std::process::Command;

use sluicegate::link::{self, Lab, Shape, netns};
use sluicegate::port::{Directions, OpenOptions, Port};
use sluicegate::xdp::resident::{ModeRequest, Resident};
use sluicegate::xdp::{Mode, ProgInfo, RunStatistics};

use super::scratch::lab_of;
use super::{find, join, lab, linux, right0, run, wait_until_removed};

#[test]
fn the_last_user_takes_the_program_along() {
    let Some(lab) = lab() else { return };
    assert!(find(&lab).unwrap().is_none(), "a new interface has no program");
    let (first, reason) = join(&lab, ModeRequest::Best).unwrap();
    assert_eq!((first.mode(), reason), (Mode::Native, None), "veth can do native XDP");
    let (second, _) = join(&lab, ModeRequest::Best).unwrap();
    assert_eq!(first.program(), second.program(), "they share one program");
    drop(first);
    assert_eq!(find(&lab).unwrap().unwrap().program(), second.program(), "it stays for the other");
    drop(second);
    wait_until_removed(&lab);
}

#[test]
fn a_port_that_only_sends_keeps_the_program_too() {
    let Some(lab) = lab() else { return };
    let options = OpenOptions {
        usage: Directions::Send,
        netns: Some(lab.netns("right")),
        ..OpenOptions::default()
    };
    let port = Port::open(&"xdp:right0".parse().unwrap(), &options).unwrap();
    assert!(find(&lab).unwrap().is_some(), "drivers send without copying only beside a program");
    drop(port);
    wait_until_removed(&lab);
}

#[test]
fn every_packet_is_counted_and_the_host_gets_it() {
    for mode in [Mode::Native, Mode::Skb] {
        // A lab each: what is forked meanwhile may hold the other mode's link for a moment.
        let Some(lab) = lab() else { return };
        let (resident, _) = join(&lab, ModeRequest::Only(mode)).unwrap();
        assert_eq!(resident.mode(), mode);
        let before = resident.total();
        run(&lab, "left", "ping -q -c 20 -i 0.002 -s 100 198.18.0.2");
        let came = resident.total().since(before);
        assert!(came.packets >= 20, "{mode:?}: {came:?}");
        assert!(came.bytes >= 20 * 142, "{mode:?}: whole frames, {came:?}");
        assert_eq!((came.taken, came.missed), (0, 0), "{mode:?}: nothing is taken");
    }
}

#[test]
fn it_is_known_how_long_the_program_is_and_how_often_it_ran() {
    let Some(lab) = lab() else { return };
    let (resident, _) = join(&lab, ModeRequest::Best).unwrap();
    let look = || {
        let ours = ProgInfo::of_process(std::process::id()).unwrap();
        ours.into_iter().find(|it| it.id == resident.program()).expect("this process holds it")
    };
    let before = look();
    assert_eq!(before.name, "sluice_ingress");
    assert!(before.instructions > 20, "{before:?}");
    let last = |it: &ProgInfo| it.name == "sluice_end";
    assert!(
        ProgInfo::of_process(std::process::id()).unwrap().iter().any(last),
        "it goes on to another"
    );
    let statistics = RunStatistics::enable().unwrap();
    run(&lab, "left", "ping -q -c 20 -i 0.002 198.18.0.2");
    let after = look();
    drop(statistics);
    assert!(after.runs >= before.runs + 20 && after.run_ns > before.run_ns, "{before:?} {after:?}");
    let same = (before.instructions, before.bytes);
    assert_eq!((after.instructions, after.bytes), same, "how long it is does not change");
}

#[test]
fn a_mode_is_not_changed_under_its_users() {
    let Some(lab) = lab() else { return };
    let (_resident, _) = join(&lab, ModeRequest::Only(Mode::Skb)).unwrap();
    let error = join(&lab, ModeRequest::Only(Mode::Native)).unwrap_err().to_string();
    assert!(error.contains("attached in skb mode"), "{error}");
    let (other, reason) = join(&lab, ModeRequest::Best).unwrap();
    assert_eq!(other.mode(), Mode::Skb, "a user without a wish takes the mode that is attached");
    let reason = reason.expect("and hears why it is not native");
    assert!(reason.contains("attached in skb mode already"), "{reason}");
    let (_, reason) = join(&lab, ModeRequest::Only(Mode::Skb)).unwrap();
    assert_eq!(reason, None, "who wished for it hears nothing");
    let netns = Some(lab.netns("right"));
    for name in ["xdp:right0", "xdp:right0?action=drop", "mirror:right0"] {
        let options = OpenOptions { netns: netns.clone(), ..OpenOptions::default() };
        let port = Port::open(&name.parse().unwrap(), &options).unwrap();
        let [fallback] = port.fallbacks.as_slice() else { panic!("{name}: {:?}", port.fallbacks) };
        assert_eq!((fallback.from, fallback.to), ("native", "skb"), "{name}");
    }
}

/// A program that is kept on right0, until this goes.
pub struct Kept<'a>(pub &'a Lab);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let interface = right0(self.0);
        let netns = self.0.netns("right");
        let _ = netns::run_in(Some(&netns), || Resident::detach_any(&interface));
    }
}

#[test]
fn what_was_kept_of_another_program_is_not_kept() {
    let Some(lab) = lab() else { return };
    let interface = right0(&lab);
    let netns = lab.netns("right");
    let is_pinned =
        |it: &Resident| netns::run_in(Some(&netns), || Ok(it.is_pinned(&interface))).unwrap();
    let keep = |it: &Resident| netns::run_in(Some(&netns), || it.keep(&interface));
    let detach = |it: &Resident| netns::run_in(Some(&netns), || it.detach(&interface)).unwrap();
    let (first, _) = join(&lab, ModeRequest::Best).unwrap();
    assert!(!is_pinned(&first));
    if let Err(error) = keep(&first) {
        return println!(
            "skipped: needs a BPF file system; get it by mount -t bpf bpf /sys/fs/bpf: {error}"
        );
    }
    let _kept = Kept(&lab);
    assert!(is_pinned(&first));
    keep(&first).expect("what is kept can be kept again");
    // Taken off by somebody who knows nothing of what is kept.
    let number = netns::run_in(Some(&netns), || {
        Ok(std::fs::read_link("/proc/thread-self/ns/net").unwrap().to_string_lossy().into_owned())
    });
    let number = number.unwrap().replace(|c: char| !c.is_ascii_digit(), "");
    let folder = format!("/sys/fs/bpf/sluice/{number}-{}", interface.index);
    let aside = format!("{folder}-aside");
    std::fs::rename(&folder, &aside).unwrap();
    detach(&first);
    std::fs::rename(&aside, &folder).unwrap();
    assert!(!is_pinned(&first), "it is off");
    drop(first);
    let (second, _) = join(&lab, ModeRequest::Best).unwrap();
    assert!(!is_pinned(&second), "another program was kept");
    keep(&second).expect("in place of the other");
    assert!(is_pinned(&second));
    let program = second.program();
    drop(second);
    let found = find(&lab).unwrap().unwrap();
    assert_eq!(found.program(), program, "it stays without users");
    detach(&found);
    assert!(find(&lab).unwrap().is_none(), "though it still has users");
    let error = keep(&found).expect_err("it is off");
    assert!(matches!(error, sluicegate::Error::Removed { .. }), "{error}");
    assert!(!std::path::Path::new(&folder).exists(), "nothing is pinned");
}

#[test]
fn a_foreign_program_is_left_alone_and_named() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, object) = (folder.path().join("a.c"), folder.path().join("a.o"));
    let program = "__attribute__((section(\"xdp\"), used)) int stranger(void *c) { return 2; }\n\
                   char l[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
    std::fs::write(&source, program).unwrap();
    let built = Command::new("clang")
        .args(["-O2", "-target", "bpf", "-c", "-o"])
        .args([&object, &source])
        .status();
    assert!(built.is_ok_and(|status| status.success()), "clang is needed to build at all");
    run(&lab, "right", &format!("ip link set right0 xdpdrv obj {} sec xdp", object.display()));
    for error in [join(&lab, ModeRequest::Best).unwrap_err(), find(&lab).unwrap_err()] {
        assert_eq!(error.kind(), sluicegate::error::ErrorKind::Privilege);
        let message = error.to_string();
        assert!(message.contains("'stranger' (id "), "{message}");
        assert!(message.contains("ip link set right0 xdp off"), "{message}");
    }
    run(&lab, "right", "ip link set right0 xdpdrv off");
    assert!(join(&lab, ModeRequest::Best).is_ok(), "free again");
}

#[test]
fn a_refusal_of_native_mode_is_explained_and_skb_mode_is_used() {
    for (sentence, change, errno, kernel, ours) in [
        (
            "the other end has more queues",
            "ethtool -L left0 rx 3 tx 3",
            "os error 28",
            "XDP expects number of rx queues not less than peer",
            "right0 has too few queues for XDP",
        ),
        (
            "the other end's MTU is too large",
            "ip link set left0 mtu 9000",
            "os error 34",
            "Peer MTU is too large to set XDP",
            "the MTU of right0 or of its other end is too large for XDP",
        ),
    ] {
        let Some(lab) = lab_of(Shape::Pair, 3) else { return };
        run(&lab, "right", "ethtool -L right0 rx 1 tx 1");
        run(&lab, "left", "ethtool -L left0 rx 1 tx 1");
        run(&lab, "left", change);
        let expected = if linux() < (6, 6) { ours } else { kernel };
        let (resident, reason) =
            join(&lab, ModeRequest::Best).unwrap_or_else(|error| panic!("{sentence}: {error}"));
        let reason = reason.unwrap_or_else(|| panic!("{sentence}: {:?}", resident.mode()));
        assert_eq!(resident.mode(), Mode::Skb, "{sentence}");
        assert!(reason.starts_with("the driver of right0 refused: "), "{sentence}: {reason}");
        assert!(reason.contains(errno) && reason.contains(expected), "{sentence}: {reason}");
        drop(resident);
        wait_until_removed(&lab);
        let error = join(&lab, ModeRequest::Only(Mode::Native)).expect_err(sentence).to_string();
        for part in [errno, expected, "mode=skb works everywhere"] {
            assert!(error.contains(part), "{sentence}: {part}: {error}");
        }
    }
}

#[test]
fn an_interface_whose_bridge_has_a_program_is_refused_with_the_reason() {
    let Some(lab) = lab() else { return };
    run(&lab, "right", "ip link add br0 type bridge");
    run(&lab, "right", "ip link set right0 master br0");
    let bridge = netns::run_in(Some(&lab.netns("right")), || {
        Resident::join(&link::interface(None, "br0")?, ModeRequest::Best)
    });
    let _bridge = bridge.unwrap();
    let error = join(&lab, ModeRequest::Best).unwrap_err().to_string();
    assert!(error.contains("attach the XDP program to right0: File exists"), "{error}");
    if linux() >= (6, 6) {
        assert!(error.contains("upper device already has a program"), "{error}");
    }
}

#[test]
fn jumbo_frames_have_a_program_for_several_buffers() {
    let Some(lab) = lab() else { return };
    run(&lab, "left", "ip link set left0 mtu 9000");
    run(&lab, "right", "ip link set right0 mtu 9000");
    let (resident, reason) = join(&lab, ModeRequest::Best).unwrap();
    assert_eq!((resident.mode(), resident.frags(), reason), (Mode::Native, true, None));
    let before = resident.total();
    run(&lab, "left", "ping -q -c 3 -i 0.002 -s 8900 -M do 198.18.0.2");
    let came = resident.total().since(before);
    assert!(came.bytes >= 3 * 8942, "the length of all buffers counts: {came:?}");
}
