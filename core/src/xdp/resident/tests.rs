//! Places that change hands, on the interface of a lab.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::shared::has_program;
use super::*;
use crate::link::{self, Lab, netns};
use crate::tests;

/// A lab for one test and what its interface is, or the reason why there is none.
fn lab() -> Option<(Lab, Interface)> {
    let lab = tests::lab()?;
    let interface = link::interface(Some(&lab.netns("right")), "right0").unwrap();
    Some((lab, interface))
}

fn join(lab: &Lab, interface: &Interface) -> Arc<Resident> {
    let joined = netns::run_in(Some(&lab.netns("right")), || {
        Resident::join(interface, ModeWish::Best).map(|(resident, _)| resident)
    });
    Arc::new(joined.unwrap())
}

fn owner() -> Owner {
    Owner::myself(Action::Drop, "", 0..=0)
}

/// A claim that drops everything, complete, with a program where its place has one.
fn take(resident: &Arc<Resident>, places: std::ops::Range<u32>) -> Stage {
    let stage = Stage::take(resident, places, &owner()).unwrap();
    let program = has_program(stage.number())
        .then(|| load_program(&stage, resident, Action::Drop, None, None, None).unwrap());
    stage.complete(program.as_ref().map(AsFd::as_fd)).unwrap();
    stage
}

/// Does with an owner what the kernel does when its process is killed, and no more.
fn kill(resident: &Resident, stage: Stage) {
    for map in [&resident.owned, &resident.alive] {
        bpf::remove(map.as_fd(), stage.number()).unwrap();
    }
    std::mem::forget(stage);
}

#[test]
fn whoever_joins_takes_away_what_the_killed_have_left() {
    let Some((lab, interface)) = lab() else { return };
    let resident = join(&lab, &interface);
    let program_in = |place: u32| {
        let mut id = [0; 4];
        has_program(place) && bpf::read_entry(resident.stages.as_fd(), place, &mut id).unwrap()
    };
    let goes_out = |place: u32| {
        let mut index = [0; 4];
        bpf::read_entry(resident.out.as_fd(), place, &mut index).unwrap()
    };
    let left_in = |place: u32| {
        let direct = resident.control.has_direct();
        (program_in(place), resident.owner(place).unwrap().is_some(), direct, goes_out(place))
    };
    let living = take(&resident, FILTERED);
    for places in [MIRRORS, FILTERED, WHOLE, FORWARD..FORWARD + 1, DROP..DROP + 1] {
        let stage = take(&resident, places.clone());
        let place = stage.number();
        let is_whole = places == WHOLE;
        if is_whole {
            resident.control.set_direct(3, place);
        }
        let forwards = places.start == FORWARD || places == FILTERED;
        if forwards {
            netns::run_in(Some(&lab.netns("right")), || stage.forward_to(&interface)).unwrap();
        }
        kill(&resident, stage);
        let left = (has_program(place), true, is_whole, forwards);
        assert_eq!(left_in(place), left, "{places:?}: as it was left");
        assert!(resident.control.is_present(place));
        join(&lab, &interface);
        assert_eq!(left_in(place), (false, false, false, false), "{places:?}: cleaned up");
        assert!(!resident.control.is_present(place));
        let again = take(&resident, places.clone());
        assert_eq!(again.number(), place, "{places:?}: and free");
    }
    let place = living.number();
    assert!(program_in(place) && resident.control.is_present(place), "who lives keeps all");
    assert_eq!(resident.claims().unwrap().len(), 1);
}

#[test]
fn a_program_that_was_taken_off_is_known_by_the_link_or_by_the_mark() {
    let Some((lab, interface)) = lab() else { return };
    type Take = fn(&Resident);
    let ways: [(&str, Take); 2] = [
        ("another tool took it off", |it| bpf::detach(it.link.as_fd()).unwrap()),
        ("the kernel does not tell, but who took it off does", |it| it.control.set_detached()),
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
fn a_program_of_another_version_can_be_taken_off() {
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
    assert!(within(&|| Resident::detach_any(&interface)).unwrap(), "nothing is asked of it");
    assert!(!within(&|| Resident::detach_any(&interface)).unwrap(), "it is off");
    assert!(!within(&|| Resident::find(&interface).map(|it| it.is_some())).unwrap());
    resident.check_attached().expect_err("its users are told by the link");
}

#[test]
fn what_was_kept_of_interfaces_that_are_gone_is_swept_away() {
    let (Some((gone, before)), Some((lab, interface))) = (lab(), lab()) else { return };
    let keep = |lab: &Lab, interface: &Interface| {
        let resident = join(lab, interface);
        netns::run_in(Some(&lab.netns("right")), || {
            resident.keep(interface).and_then(|()| pin::pins(interface))
        })
    };
    let folder = match keep(&gone, &before) {
        Ok(folder) => folder,
        Err(error) => {
            return println!(
                "skipped: needs a BPF file system; get it by mount -t bpf bpf /sys/fs/bpf: {error}"
            );
        }
    };
    // Before the other interface goes: who keeps something sweeps, too.
    let ours = keep(&lab, &interface).unwrap();
    drop(gone);
    // Namespaces go a moment after their last name.
    let swept = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let swept = netns::run_in(Some(&lab.netns("right")), || {
            let (resident, _) = Resident::join(&interface, ModeWish::Best)?;
            assert!(resident.is_pinned(&interface), "what is in use stays");
            Ok(!folder.exists())
        });
        swept.unwrap()
    });
    netns::run_in(Some(&lab.netns("right")), || Resident::detach_any(&interface)).unwrap();
    assert!(swept, "{} is there still", folder.display());
    assert!(!ours.exists(), "gone with its program");
}

#[test]
fn who_joins_while_another_cleans_up_gets_a_place() {
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
            // Nothing that was cleaned up was ours.
            let whole =
                resident.control.is_present(DROP) && resident.owner(DROP).unwrap().is_some();
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
fn who_looks_at_claims_is_in_nobodys_way_and_sees_no_ghosts() {
    let Some((lab, interface)) = lab() else { return };
    let resident = join(&lab, &interface);
    kill(&resident, take(&resident, FILTERED));
    let over = AtomicBool::new(false);
    let look = || {
        let mut ghosts = 0;
        while !over.load(Ordering::Relaxed) {
            let claims = resident.claims().unwrap();
            ghosts += claims.iter().filter(|claim| claim.place != DROP).count();
        }
        ghosts
    };
    std::thread::scope(|scope| {
        let watchers = [scope.spawn(look), scope.spawn(look)];
        let take = |_: &i32| Stage::take(&resident, DROP..DROP + 1, &owner()).is_ok();
        let taken = (0..1000).filter(take).count();
        over.store(true, Ordering::Relaxed);
        let ghosts = watchers.map(|watcher| watcher.join().unwrap());
        assert_eq!(taken, 1000, "a place that is only looked at can be had");
        assert_eq!(ghosts, [0, 0], "the dead are not shown because somebody else looks");
    });
}

#[test]
fn who_has_the_turn_lets_the_others_wait_and_no_longer() {
    let Some((lab, interface)) = lab() else { return };
    let resident = join(&lab, &interface);
    let turn = ClaimLock::wait(&resident).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let turn = ClaimLock::wait(&resident);
            (turn.is_ok(), over.load(Ordering::Relaxed))
        });
        std::thread::sleep(5 * LOOK_AGAIN);
        over.store(true, Ordering::Relaxed);
        drop(turn);
        assert_eq!(next.join().unwrap(), (true, true));
    });
    let _turn = ClaimLock::wait(&resident).unwrap();
    let error = ClaimLock::wait(&resident).unwrap_err().to_string();
    assert!(error.contains("another process has begun to"), "{error}");
}
