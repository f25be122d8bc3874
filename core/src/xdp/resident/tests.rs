//! Stages that change owners, on an interface of a lab.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::shared::{SCRUB, has_program};
use super::*;
use crate::link::{self, Lab, netns};
use crate::tests;

/// Returns a lab and its interface, or prints why there is none.
fn lab() -> Option<(Lab, Interface)> {
    let lab = tests::lab()?;
    let interface = link::interface(Some(&lab.netns("right")), "right0").unwrap();
    Some((lab, interface))
}

fn join(lab: &Lab, interface: &Interface) -> Arc<Resident> {
    let joined = netns::run_in(Some(&lab.netns("right")), || {
        Resident::join(interface, ModeRequest::Best).map(|(resident, _)| resident)
    });
    Arc::new(joined.unwrap())
}

fn owner() -> Owner {
    Owner::myself(Action::Drop, "", 0..=0)
}

/// Takes and completes a claim that drops everything.
fn take(resident: &Arc<Resident>, stages: std::ops::Range<u32>) -> Stage {
    let stage = Stage::take(resident, stages, &owner()).unwrap();
    let program = has_program(stage.number())
        .then(|| load_program(&stage, resident, Action::Drop, None, None, None).unwrap());
    stage.complete(program.as_ref().map(AsFd::as_fd)).unwrap();
    stage
}

/// Does only what the kernel does when an owner is killed.
fn kill(resident: &Resident, stage: Stage) {
    for map in [&resident.owned, &resident.alive] {
        bpf::remove(map.as_fd(), stage.number()).unwrap();
    }
    std::mem::forget(stage);
}

#[test]
fn joining_cleans_up_after_killed_owners() {
    let Some((lab, interface)) = lab() else { return };
    let resident = join(&lab, &interface);
    let program_in = |stage_number: u32| {
        let mut id = [0; 4];
        has_program(stage_number)
            && bpf::read_entry(resident.stages.as_fd(), stage_number, &mut id).unwrap()
    };
    let goes_out = |stage_number: u32| {
        let mut index = [0; 4];
        bpf::read_entry(resident.out.as_fd(), stage_number, &mut index).unwrap()
    };
    let left_in = |stage_number: u32| {
        let direct = resident.control.has_direct();
        (
            program_in(stage_number),
            resident.entry(stage_number).unwrap().is_some(),
            direct,
            goes_out(stage_number),
        )
    };
    let living = take(&resident, FILTERED);
    for stages in [MIRRORS, SCRUB, FILTERED, WHOLE, FORWARD..FORWARD + 1, DROP..DROP + 1] {
        let stage = take(&resident, stages.clone());
        let stage_number = stage.number();
        let is_whole = stages == WHOLE;
        if is_whole {
            resident.control.set_direct(3, stage_number);
        }
        let forwards = stages.start == FORWARD || stages == FILTERED;
        if forwards {
            netns::run_in(Some(&lab.netns("right")), || stage.forward_to(&interface)).unwrap();
        }
        kill(&resident, stage);
        let left = (has_program(stage_number), true, is_whole, forwards);
        assert_eq!(left_in(stage_number), left, "{stages:?}: as it was left");
        assert!(resident.control.is_present(stage_number));
        join(&lab, &interface);
        assert_eq!(left_in(stage_number), (false, false, false, false), "{stages:?}: cleaned up");
        assert!(!resident.control.is_present(stage_number));
        let again = take(&resident, stages.clone());
        assert_eq!(again.number(), stage_number, "{stages:?}: and free");
    }
    let stage_number = living.number();
    assert!(
        program_in(stage_number) && resident.control.is_present(stage_number),
        "a living owner keeps everything"
    );
    assert_eq!(resident.owned_stages().unwrap().len(), 1);
}

#[test]
fn a_detached_program_is_noticed_by_the_link_or_by_the_mark() {
    let Some((lab, interface)) = lab() else { return };
    type Take = fn(&Resident);
    let ways: [(&str, Take); 2] = [
        ("another tool detached it", |it| bpf::detach(it.link.as_fd()).unwrap()),
        ("the kernel does not answer, but the detaching process set the mark", |it| {
            it.control.set_detached()
        }),
    ];
    for (what, take_off) in ways {
        let resident = join(&lab, &interface);
        resident.check_attached().unwrap();
        take_off(&resident);
        let error = resident.check_attached().expect_err(what);
        assert!(matches!(error, Error::Removed { .. }), "{what}: {error}");
    }
}

#[test]
fn a_program_of_another_version_can_be_detached() {
    let Some((lab, interface)) = lab() else { return };
    let within =
        |work: &(dyn Fn() -> Result<bool> + Sync)| netns::run_in(Some(&lab.netns("right")), work);
    let resident = join(&lab, &interface);
    let mut control = [0; size_of::<shared::ControlLayout>()];
    bpf::read_entry(resident.control_fd.as_fd(), 0, &mut control).unwrap();
    control[..4].copy_from_slice(&(shared::VERSION + 1).to_ne_bytes());
    bpf::write_entry(resident.control_fd.as_fd(), 0, &control, bpf::Write::Any).unwrap();
    let error = within(&|| Resident::find(&interface).map(|it| it.is_some())).unwrap_err();
    assert!(error.to_string().contains("another version of sluice attached it"), "{error}");
    assert!(within(&|| Resident::detach_any(&interface)).unwrap(), "whatever its layout");
    assert!(!within(&|| Resident::detach_any(&interface)).unwrap(), "it is detached");
    assert!(!within(&|| Resident::find(&interface).map(|it| it.is_some())).unwrap());
    resident.check_attached().expect_err("its users notice by the link");
}

#[test]
fn pins_of_removed_interfaces_are_swept() {
    let (Some((old, before)), Some((lab, interface))) = (lab(), lab()) else { return };
    let keep = |lab: &Lab, interface: &Interface| {
        let resident = join(lab, interface);
        netns::run_in(Some(&lab.netns("right")), || {
            resident.keep(interface).and_then(|()| pin::pins(interface))
        })
    };
    let folder = match keep(&old, &before) {
        Ok(folder) => folder,
        Err(error) => {
            return println!(
                "skipped: needs a BPF file system; get it by mount -t bpf bpf /sys/fs/bpf: {error}"
            );
        }
    };
    // Before the other interface is removed, because `keep` sweeps, too.
    let ours = keep(&lab, &interface).unwrap();
    drop(old);
    // A namespace is removed a moment after its last name.
    let swept = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let swept = netns::run_in(Some(&lab.netns("right")), || {
            let (resident, _) = Resident::join(&interface, ModeRequest::Best)?;
            assert!(resident.is_pinned(&interface), "pins in use stay");
            Ok(!folder.exists())
        });
        swept.unwrap()
    });
    netns::run_in(Some(&lab.netns("right")), || Resident::detach_any(&interface)).unwrap();
    assert!(swept, "{} still exists", folder.display());
    assert!(!ours.exists(), "removed with its program");
}

#[test]
fn joining_while_another_cleans_up_gets_a_stage() {
    let Some((lab, interface)) = lab() else { return };
    let resident = join(&lab, &interface);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                resident.clean().unwrap();
            }
        });
        let mut lost = Vec::new();
        for round in 0..300 {
            let stage = take(&resident, DROP..DROP + 1);
            // The other process must not clean up what this one has taken.
            let whole =
                resident.control.is_present(DROP) && resident.entry(DROP).unwrap().is_some();
            if !whole {
                lost.push(round);
            }
            kill(&resident, stage);
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(lost, [0; 0]);
    });
}

#[test]
fn reading_claims_blocks_no_owner_and_shows_no_dead_ones() {
    let Some((lab, interface)) = lab() else { return };
    let resident = join(&lab, &interface);
    kill(&resident, take(&resident, FILTERED));
    let over = AtomicBool::new(false);
    let look = || {
        let mut ghosts = 0;
        while !over.load(Ordering::Relaxed) {
            let claims = resident.owned_stages().unwrap();
            ghosts += claims.iter().filter(|claim| claim.stage != DROP).count();
        }
        ghosts
    };
    std::thread::scope(|scope| {
        let watchers = [scope.spawn(look), scope.spawn(look)];
        let take = |_: &i32| Stage::take(&resident, DROP..DROP + 1, &owner()).is_ok();
        let taken = (0..1000).filter(take).count();
        over.store(true, Ordering::Relaxed);
        let ghosts = watchers.map(|watcher| watcher.join().unwrap());
        assert_eq!(taken, 1000, "a stage that is only read can be taken");
        assert_eq!(ghosts, [0, 0], "another reader does not make dead owners appear");
    });
}

#[test]
fn the_claim_lock_makes_others_wait_while_it_is_held() {
    let Some((lab, interface)) = lab() else { return };
    let resident = join(&lab, &interface);
    let turn = ClaimLock::wait(&resident).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let turn = ClaimLock::wait(&resident);
            (turn.is_ok(), over.load(Ordering::Relaxed))
        });
        std::thread::sleep(5 * RETRY_INTERVAL);
        over.store(true, Ordering::Relaxed);
        drop(turn);
        assert_eq!(next.join().unwrap(), (true, true));
    });
    let _turn = ClaimLock::wait(&resident).unwrap();
    let error = ClaimLock::wait(&resident).unwrap_err().to_string();
    assert!(error.contains("another process holds the lock"), "{error}");
}
