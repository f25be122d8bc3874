//! `--user`: whatever way a process got its privileges, it gives up all of them.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use nix::unistd::{User, getgrouplist};

use crate::support::*;

/// An ordinary user that every system has.
const USER: &str = "daemon";
/// Who runs the command: another ordinary user, by its number.
const NOBODY: u32 = 65_534;

/// What is wrong with the threads of a process that is to be the user's; how many threads it has.
fn threads(pid: u32, user: &str) -> (Vec<String>, usize) {
    let name = std::ffi::CString::new(user).unwrap();
    let user = User::from_name(user).unwrap().unwrap();
    let groups = getgrouplist(&name, user.gid).unwrap();
    let is_group = |word: &str| groups.iter().any(|group| word == group.to_string());
    let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
    let tasks: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().collect();
    let wrong = tasks.iter().flat_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let lines = status.lines().filter(|line| match line.split_once(":\t") {
            Some(("Uid", ids)) => ids.split('\t').any(|id| id != uid),
            Some(("Gid", ids)) => ids.split('\t').any(|id| id != gid),
            Some(("Groups", ids)) => !ids.split_whitespace().all(is_group),
            Some(("CapPrm" | "CapEff" | "CapAmb", set)) => set != "0000000000000000",
            _ => false,
        });
        lines.map(str::to_owned).collect::<Vec<_>>()
    });
    (wrong.collect(), tasks.len())
}

/// A copy of the command that anybody may run, with capabilities of its own.
fn with_capabilities(folder: &Path, capabilities: &str) -> Option<String> {
    let copy = folder.join("sluice");
    std::fs::copy(env!("CARGO_BIN_EXE_sluice"), &copy).unwrap();
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    let copy = copy.to_str().unwrap().to_owned();
    let set = std::process::Command::new("setcap").args([capabilities, &copy]).status();
    if !set.is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs a file system that keeps capabilities; get it by TMPDIR: {copy}");
        return None;
    }
    Some(copy)
}

#[test]
fn no_thread_keeps_a_privilege() {
    if !have(&["setcap", "setpriv"]) {
        return;
    }
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let capabilities = "cap_net_raw,cap_setuid,cap_setgid,cap_setpcap+ep";
    let Some(copy) = with_capabilities(folder.path(), capabilities) else { return };
    let own = env!("CARGO_BIN_EXE_sluice");
    let to = folder.path().join("files");
    std::fs::create_dir(&to).unwrap();
    chown(&to, Some(NOBODY), Some(NOBODY)).unwrap();
    let to = to.join("a.pcapng.zst");
    // Several ports into a compressed file take threads that are there before the privileges go.
    let many = ["packet:right0", "packet:right0?filter=icmp", "-w", to.to_str().unwrap()];
    let ordinary = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", &copy];
    let keeping = ["setpriv", "--securebits", "+no_setuid_fixup", own];
    let nobody = User::from_uid(NOBODY.into()).unwrap().unwrap().name;
    for (what, command, arguments, user) in [
        ("root", &[own][..], &["count", "packet:right0"][..], USER),
        ("root, several threads", &[own], &[&["capture"], &many[..]].concat(), USER),
        ("capabilities of the file", &ordinary, &["count", "packet:right0"], &nobody),
        ("the same, several threads", &ordinary, &[&["capture"], &many[..]].concat(), &nobody),
        ("root that would keep its own", &keeping, &["count", "packet:right0"], USER),
    ] {
        let _ = std::fs::remove_file(&to);
        let running =
            background(&lab, "right", &[command, arguments, &["--user", user, "--json"]].concat());
        running.has_begun();
        let (wrong, count) = threads(running.pid(), user);
        assert!(wrong.is_empty(), "{what}: {wrong:?}");
        assert!(count > if arguments[0] == "capture" { 3 } else { 1 }, "{what}: {count} threads");
        assert_eq!(on(&lab, "left", &["ping", "-qc", "2", "198.18.0.2"]).status, Some(0));
        let report = running.stop().good();
        assert!(report["packets"].as_u64().unwrap() >= 2, "{what}: {report}");
    }
    let other = [&ordinary[..], &["count", "packet:right0", "--user", USER]].concat();
    let ended = on(&lab, "right", &other);
    assert_eq!(ended.status, Some(3), "{}", ended.err);
    assert!(ended.err.contains("or name yourself"), "{}", ended.err);
}

#[test]
fn who_would_keep_privileges_is_told() {
    if !have(&["setpriv"]) {
        return;
    }
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("a.pcapng");
    let own = env!("CARGO_BIN_EXE_sluice");
    let many = ["packet:right0", "packet:right0", "-w", to.to_str().unwrap()];
    for (command, arguments, user, status, said) in [
        // The thread that merges has begun, and keeps what root has.
        (
            &["setpriv", "--securebits", "+no_setuid_fixup", own][..],
            &[&["capture"], &many[..]].concat()[..],
            USER,
            3,
            "the privileges are still there (CapPrm:",
        ),
        (&[own], &["count", "packet:right0"], "root", 2, "name an ordinary user"),
        (&[own], &["count", "packet:right0"], "no-such-user", 2, "there is no such user"),
    ] {
        let ended = on(&lab, "right", &[command, arguments, &["--user", user]].concat());
        assert_eq!(ended.status, Some(status), "{}", ended.err);
        assert!(ended.err.contains(said), "{}", ended.err);
    }
}

#[test]
fn a_user_who_may_not_list_the_directory_brings_files_to_the_disk() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.pcap");
    numbered(&source, 0..1000, 0, 1000);
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let port = format!("pcap:{}", source.display());
    for name in ["a.pcap", "%Y.pcapng.zst"] {
        let to = folder.path().join(name.len().to_string());
        std::fs::create_dir(&to).unwrap();
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o733)).unwrap();
        let path = to.join(name);
        let rotated = ["--sync", "--rotate-size", "10K", "--user", USER, "--json"];
        let named = ["capture", &port, "-w", path.to_str().unwrap()];
        let report = run(&[&named[..], &rotated].concat()).good();
        assert!(report["files"]["count"].as_u64() > Some(5), "{name}: {report}");
    }
}
