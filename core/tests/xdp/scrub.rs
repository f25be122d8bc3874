//! A program at the scrub stage, from an object of its own (`bpf/scrub_test.bpf.c`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libbpf_rs::ObjectBuilder;
use sluicegate::link::{self, Lab, netns};
use sluicegate::port::Queue;
use sluicegate::xdp::Mode;
use sluicegate::xdp::resident::{Action, ModeRequest, Resident, ScrubStage};

use super::wire::{Holder, PATIENCE, frame, is_ours, open, receive, send, take};
use super::{find, join, lab, linux, run};

/// The namespace in which a child of a test owns the stage.
const TO_SCRUB: &str = "SLUICE_TEST_STAGE_TO_HOLD";

/// Kinds of frames: the program drops them, a claim takes them, the host gets them.
const ATTACK: u8 = 1;
const CLAIMED: u8 = 2;
const OTHER: u8 = 3;

/// Loads a program that drops frames of a kind.
fn load(resident: &Resident, kind: u8) -> OwnedFd {
    try_load(resident, [kind, 0], resident.chain_maps().frags).unwrap()
}

/// Loads one of `[kind, kept]`; a kept one acts without a living owner.
fn try_load(resident: &Resident, options: [u8; 2], frags: bool) -> libbpf_rs::Result<OwnedFd> {
    const HAS_FRAGS: u32 = 1 << 5;
    let object = include_bytes!(concat!(env!("OUT_DIR"), "/scrub_test.bpf.o"));
    let maps = resident.chain_maps();
    let mut open = ObjectBuilder::default().open_memory(object).unwrap();
    for mut map in open.maps_mut() {
        match map.name().to_str().unwrap() {
            "sluice_stages" => map.reuse_fd(maps.stages),
            "sluice_alive" => map.reuse_fd(maps.alive),
            "sluice_tallies" => map.reuse_fd(maps.tallies),
            // The only constant: `options`.
            _ => map.set_initial_value(&options),
        }
        .unwrap();
    }
    if frags {
        open.progs_mut().for_each(|mut program| program.set_flags(HAS_FRAGS));
    }
    let object = open.load()?;
    let program = object.progs().next().unwrap();
    Ok(program.as_fd().try_clone_to_owned().unwrap())
}

/// Takes the stage of right0 and drops attacks there.
fn scrub(resident: &Arc<Resident>) -> ScrubStage {
    let stage = ScrubStage::take(resident, "kind 1").unwrap();
    stage.install(load(resident, ATTACK).as_fd()).unwrap();
    stage
}

fn joined(lab: &Lab, mode: Mode) -> Arc<Resident> {
    Arc::new(join(lab, ModeRequest::Only(mode)).unwrap().0)
}

/// A socket that receives what the host gets.
fn host(lab: &Lab) -> Queue {
    open(lab, "packet:right0").unwrap().queues.remove(0)
}

/// Frames of all kinds in turn: `n` of each.
fn frames(n: u32) -> Vec<Vec<u8>> {
    let kinds = [ATTACK, CLAIMED, OTHER].into_iter().cycle();
    (0..3 * n).zip(kinds).map(|(number, kind)| frame(number, kind, 100)).collect()
}

/// The kinds of the tests' frames, `n` of which come.
fn kinds(queue: &mut Queue, n: usize) -> Vec<u8> {
    receive(queue, n).into_iter().map(|(_, bytes)| bytes[18]).collect()
}

#[test]
fn the_program_drops_attacks_and_later_stages_get_the_rest() {
    for (mode, name) in [(Mode::Native, "native"), (Mode::Skb, "skb")] {
        let Some(lab) = lab() else { return };
        let resident = joined(&lab, mode);
        let mut host = host(&lab);
        let mut mirror = open(&lab, &format!("mirror:right0?mode={name}")).unwrap();
        let claim = format!("xdp:right0?mode={name}&filter=ether[18] = {CLAIMED}");
        let mut claim = open(&lab, &claim).unwrap();
        let stage = ScrubStage::take(&resident, "kind 1").unwrap();
        send(&lab, &frames(1));
        assert_eq!(kinds(&mut host, 2), [ATTACK, OTHER], "{name}: without a program all pass");
        assert_eq!(kinds(&mut claim.queues[0], 1), [CLAIMED], "{name}");
        stage.install(load(&resident, ATTACK).as_fd()).unwrap();
        send(&lab, &frames(20));
        assert_eq!(kinds(&mut host, 20), [OTHER; 20], "{name}");
        assert_eq!(kinds(&mut claim.queues[0], 20), [CLAIMED; 20], "{name}");
        assert_eq!(kinds(&mut mirror.queues[0], 63).len(), 63, "{name}: it runs before");
        let tally = stage.tally();
        assert!(tally.packets >= 60 && tally.bytes >= 60 * 100, "{name}: {tally:?}");
        assert_eq!((tally.dropped, tally.dropped_bytes), (20, 20 * 100), "{name}");
        let owned = find(&lab).unwrap().unwrap().owned_stages().unwrap();
        let actions: Vec<Action> = owned.iter().map(|it| it.owner.action).collect();
        assert_eq!(actions, [Action::Mirror, Action::Scrub, Action::Take], "{name}");
        assert_eq!((owned[1].stage, owned[1].tally.dropped), (8, 20), "{name}");
        assert_eq!((owned[1].owner.filter.as_str(), owned[1].owner.queues), ("kind 1", 1));
        drop(stage);
        send(&lab, &frames(5));
        assert_eq!(kinds(&mut host, 10), [ATTACK, OTHER].repeat(5), "{name}: all pass again");
        assert_eq!(kinds(&mut claim.queues[0], 5), [CLAIMED; 5], "{name}");
    }
}

#[test]
fn marks_are_handled_behind_the_stage() {
    let Some(lab) = lab() else { return };
    let resident = joined(&lab, Mode::Native);
    let _stage = scrub(&resident);
    // Its sockets get their packets from the end, without a program.
    let mut all = open(&lab, "xdp:right0?method=af_xdp&timestamp=off").unwrap();
    send(&lab, &frames(10));
    assert_eq!(kinds(&mut all.queues[0], 20), [CLAIMED, OTHER].repeat(10));
    drop(all);
    let drops = open(&lab, "xdp:right0?action=drop").unwrap();
    let mut host = host(&lab);
    send(&lab, &frames(10));
    drop(drops);
    send(&lab, &[frame(0, CLAIMED, 60)]);
    assert_eq!(kinds(&mut host, 1), [CLAIMED], "the port dropped all that came before");
}

#[test]
fn a_second_owner_is_refused_and_a_killed_one_drops_nothing() {
    let Some(lab) = lab() else { return };
    let resident = joined(&lab, Mode::Native);
    let holder =
        Holder::running("scrub::holds_the_stage_for_another_test", TO_SCRUB, &lab.netns("right"));
    let error = ScrubStage::take(&resident, "").unwrap_err().to_string();
    for part in [
        "drop attacks on right0",
        &format!("(process {}) already does the same there", holder.id()),
        "end it first (`sluice claims right0` shows it)",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let mut host = host(&lab);
    send(&lab, &frames(2));
    assert_eq!(kinds(&mut host, 4), [CLAIMED, OTHER].repeat(2));
    holder.kill();
    send(&lab, &frames(2));
    let all = [ATTACK, CLAIMED, OTHER].repeat(2);
    assert_eq!(kinds(&mut host, 6), all, "its program still runs");
    let stage = ScrubStage::take(&resident, "").unwrap();
    assert_eq!(stage.tally().packets, 0, "not the killed owner's");
    send(&lab, &frames(2));
    assert_eq!(kinds(&mut host, 6), all);
    assert_eq!(stage.tally().packets, 0, "its program was removed");
}

#[test]
fn holds_the_stage_for_another_test() {
    let Ok(netns) = std::env::var(TO_SCRUB) else { return };
    let interface = link::interface(Some(&netns), "right0").unwrap();
    let joined = netns::run_in(Some(&netns), || Resident::join(&interface, ModeRequest::Best));
    let _stage = scrub(&Arc::new(joined.unwrap().0));
    println!("\nopened");
    std::thread::sleep(2 * PATIENCE);
}

#[test]
fn a_program_is_replaced_while_packets_flow() {
    let Some(lab) = lab() else { return };
    let resident = joined(&lab, Mode::Native);
    let stage = scrub(&resident);
    let mut host = host(&lab);
    let attacks: Vec<_> = (0..256).map(|number| frame(number, ATTACK, 60)).collect();
    let over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                send(&lab, &attacks);
                sent += attacks.len() as u64;
            }
            sent
        });
        // The sender must stop if an assertion here fails.
        let replaced = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut seen = 0;
            for _ in 0..100 {
                stage.install(load(&resident, ATTACK).as_fd()).unwrap();
                while stage.tally().dropped <= seen {
                    assert!(!sender.is_finished(), "it failed");
                    std::thread::yield_now();
                }
                seen = stage.tally().dropped;
            }
        }));
        over.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        replaced.unwrap();
        sent
    });
    assert_eq!(stage.tally().dropped, sent, "one of the programs dropped each packet");
    assert!(!take(&mut host).iter().any(|(_, bytes)| is_ours(bytes)));
    stage.install(load(&resident, OTHER).as_fd()).unwrap();
    send(&lab, &frames(1));
    assert_eq!(kinds(&mut host, 2), [ATTACK, CLAIMED], "the last one acts");
}

#[test]
fn a_program_for_other_frames_is_refused_and_the_earlier_one_stays() {
    if linux() < (5, 18) {
        return println!("skipped: needs frames of several buffers; get it by Linux 5.18");
    }
    let Some(lab) = lab() else { return };
    run(&lab, "left", "ip link set left0 mtu 9000");
    run(&lab, "right", "ip link set right0 mtu 9000");
    let resident = joined(&lab, Mode::Native);
    assert!(resident.chain_maps().frags);
    let stage = scrub(&resident);
    assert!(try_load(&resident, [ATTACK, 0], false).is_err());
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = stage.install(file.as_fd()).unwrap_err().to_string();
    assert!(error.contains("install an XDP program, loaded with BPF_F_XDP_HAS_FRAGS"), "{error}");
    let mut host = host(&lab);
    let jumbo = [ATTACK, OTHER].map(|kind| frame(0, kind, 9000));
    send(&lab, &jumbo);
    assert_eq!(kinds(&mut host, 1), [OTHER]);
    assert_eq!(stage.tally().dropped, 1);
}

#[test]
fn the_stage_of_a_detached_program_is_reported() {
    let Some(lab) = lab() else { return };
    let resident = joined(&lab, Mode::Native);
    let stage = scrub(&resident);
    stage.check_attached().unwrap();
    let interface = super::right0(&lab);
    netns::run_in(Some(&lab.netns("right")), || resident.detach(&interface)).unwrap();
    let error = stage.check_attached().unwrap_err();
    assert!(matches!(error, sluicegate::error::Error::Removed { .. }), "{error}");
}

#[test]
fn a_kept_program_acts_without_an_owner_and_the_next_owner_gets_it() {
    let Some(lab) = lab() else { return };
    let resident = joined(&lab, Mode::Native);
    let mut host = host(&lab);
    let stage = ScrubStage::take(&resident, "kept").unwrap();
    let program = try_load(&resident, [ATTACK, 1], resident.chain_maps().frags).unwrap();
    stage.install(program.as_fd()).unwrap();
    let interface = super::right0(&lab);
    let netns = lab.netns("right");
    if let Err(error) = netns::run_in(Some(&netns), || stage.keep(&interface)) {
        return println!(
            "skipped: needs a BPF file system; get it by mount -t bpf bpf /sys/fs/bpf: {error}"
        );
    }
    let _kept = super::resident::Kept(&lab);
    drop((stage, resident, program));
    // Another process joins, which cleans up after owners that were killed.
    let resident = joined(&lab, Mode::Native);
    send(&lab, &frames(10));
    assert_eq!(kinds(&mut host, 20), [CLAIMED, OTHER].repeat(10));
    let owned = resident.owned_stages().unwrap();
    let shown =
        |at: usize| (owned[at].owner.filter.as_str(), owned[at].is_owned, owned[at].tally.dropped);
    assert_eq!((owned.len(), shown(0)), (1, ("kept", false, 10)));
    // The next owner.
    let stage = ScrubStage::take(&resident, "next").unwrap();
    let kept = stage.kept().unwrap().expect("a program");
    assert!(kept.maps.iter().any(|(name, _)| name == "sluice_tallies"), "{:?}", kept.maps);
    send(&lab, &frames(10));
    assert_eq!(kinds(&mut host, 20), [CLAIMED, OTHER].repeat(10));
    assert_eq!(stage.tally().dropped, 20, "its counters go on");
    // Released, it ends with its owner.
    stage.release();
    assert!(stage.kept().unwrap().is_none());
    drop(stage);
    send(&lab, &frames(1));
    assert_eq!(kinds(&mut host, 3), [ATTACK, CLAIMED, OTHER]);
    assert!(ScrubStage::take(&resident, "").unwrap().kept().unwrap().is_none());
}
