//! `--user`: a process gives up all privileges, however it got them.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use nix::unistd::{User, getgrouplist};

use crate::support::*;

/// An ordinary user that every system has.
const USER: &str = "daemon";
/// The ordinary user that runs the command.
const NOBODY: u32 = 65_534;

/// Faults of a process's threads, all of which must be the user's, and the number of threads.
fn threads(pid: u32, user: &str) -> (Vec<String>, usize) {
    let name = std::ffi::CString::new(user).unwrap();
    let user = User::from_name(user).unwrap().unwrap();
    let groups = getgrouplist(&name, user.gid).unwrap();
    let is_group = |word: &str| groups.iter().any(|group| word == group.to_string());
    let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
    let tasks: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().collect();
    let wrong = tasks.iter().flat_map(|task| {
        // A thread that has just ended has no status.
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let lines = status.lines().filter(|line| match line.split_once(":\t") {
            Some(("Uid", ids)) => ids.split('\t').any(|id| id != uid),
            Some(("Gid", ids)) => ids.split('\t').any(|id| id != gid),
            Some(("Groups", ids)) => !ids.split_whitespace().all(is_group),
            Some(("CapPrm" | "CapEff" | "CapAmb" | "CapBnd", set)) => set != "0000000000000000",
            Some(("NoNewPrivs", set)) => set != "1",
            _ => false,
        });
        lines.map(str::to_owned).collect::<Vec<_>>()
    });
    (wrong.collect(), tasks.len())
}

/// A copy of the command that anybody may run, with capabilities of its own.
fn with_capabilities(folder: &Path, capabilities: &str) -> Option<String> {
    let copy = folder.join("sluice");
    // A copy by this process would leave its descriptor to children of other threads for a moment, and a
    // file that is open for writing cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_sluice")).arg(&copy).status();
    assert!(copied.unwrap().success());
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    let copy = copy.to_str().unwrap().to_owned();
    let set = Command::new("setcap").args([capabilities, &copy]).status();
    if !set.is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs a file system that keeps capabilities; get it by TMPDIR: {copy}");
        return None;
    }
    Some(copy)
}

#[test]
fn no_thread_keeps_a_privilege() {
    let Some(lab) = lab_with(&["setcap", "setpriv"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let capabilities = "cap_net_raw,cap_setuid,cap_setgid,cap_setpcap+ep";
    let Some(copy) = with_capabilities(folder.path(), capabilities) else { return };
    let own = env!("CARGO_BIN_EXE_sluice");
    let to = folder.path().join("files");
    std::fs::create_dir(&to).unwrap();
    chown(&to, Some(NOBODY), Some(NOBODY)).unwrap();
    let to = to.join("a.pcapng.zst");
    // Several ports and a compressed file need threads that start before the privileges are dropped.
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
fn a_process_that_would_keep_privileges_is_refused() {
    let Some(lab) = lab_with(&["setpriv"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("a.pcapng");
    let own = env!("CARGO_BIN_EXE_sluice");
    let many = ["packet:right0", "packet:right0", "-w", to.to_str().unwrap()];
    for (command, arguments, user, status, said) in [
        // The merging thread has begun, and keeps root's privileges.
        (
            &["setpriv", "--securebits", "+no_setuid_fixup", own][..],
            &[&["capture"], &many[..]].concat()[..],
            USER,
            3,
            "dropping all privileges (CapPrm:",
        ),
        (&[own], &["count", "packet:right0"], "root", 2, "name an ordinary user"),
        (&[own], &["count", "packet:right0"], "no-such-user", 2, "no such user"),
    ] {
        let ended = on(&lab, "right", &[command, arguments, &["--user", user]].concat());
        assert_eq!(ended.status, Some(status), "{}", ended.err);
        assert!(ended.err.contains(said), "{}", ended.err);
    }
}

/// A folder that others may enter but not list, and a port of a file in it, of 1000 packets.
fn open_folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.pcap");
    numbered(&source, 0..1000, 0, 1000);
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let port = format!("pcap:{}", source.display());
    (folder, port)
}

#[test]
fn a_user_who_may_not_list_the_directory_brings_files_to_the_disk() {
    if !is_root() {
        return;
    }
    let (folder, port) = open_folder();
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

/// Permission bits and owner of a file.
fn access(path: &Path) -> (u32, u32) {
    let metadata = std::fs::metadata(path).unwrap();
    (metadata.mode() & 0o777, metadata.uid())
}

#[test]
fn only_the_owner_reads_capture_files_unless_a_mode_allows_more() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.pcap");
    numbered(&source, 0..100, 0, 1000);
    let source = source.to_str().unwrap();
    let (read, own) = (format!("pcap:{source}"), nix::unistd::geteuid().as_raw());
    // An old file keeps neither its bytes nor its mode.
    let old = folder.path().join("old.pcap");
    std::fs::write(&old, "old").unwrap();
    std::fs::set_permissions(&old, PermissionsExt::from_mode(0o666)).unwrap();
    for (name, port, more, mode) in [
        ("a.pcapng", "", &[][..], 0o600),
        ("old.pcap", "", &[], 0o600),
        ("b.pcapng.zst", "", &["--file-mode", "0640"], 0o640),
        ("%Y.pcap", "", &["--file-mode", "0644"], 0o644),
        ("c.pcap", "replay", &[], 0o600),
        ("d.pcap", "replay", &["--file-mode", "0640"], 0o640),
        ("e.pcap", "forward", &["--file-mode", "0640"], 0o640),
    ] {
        let path = folder.path().join(name);
        let to = format!("pcap:{}", path.display());
        let arguments = match port {
            "replay" => vec!["replay", source, &to],
            "forward" => vec!["forward", &read, &to, "--one-way"],
            _ => vec!["capture", &read, "-w", path.to_str().unwrap()],
        };
        assert_eq!(run(&[&arguments[..], &["--json"], more].concat()).status, Some(0), "{name}");
        let made = std::fs::read_dir(folder.path()).unwrap().flatten().map(|it| it.path());
        let made = made.into_iter().find(|it| *it == path || name == "%Y.pcap" && is_year(it));
        assert_eq!(access(&made.unwrap()), (mode, own), "{name}");
    }
    refused(
        &["count", "null:", "--count", "1", "--file-mode", "0060"],
        "lets the owner read and write",
    );
}

#[test]
fn an_overwritten_file_gets_the_group_of_its_user() {
    if !is_root() {
        return;
    }
    let (folder, port) = open_folder();
    let path = folder.path().join("old.pcap");
    std::fs::write(&path, "old").unwrap();
    let user = User::from_name(USER).unwrap().unwrap();
    let foreign_group = user.gid.as_raw() - 1;
    chown(&path, Some(user.uid.as_raw()), Some(foreign_group)).unwrap();
    let arguments = ["capture", &port, "-w", path.to_str().unwrap(), "--json"];
    run(&[&arguments[..], &["--file-mode", "0640", "--user", USER]].concat()).good();
    assert_eq!(access(&path), (0o640, user.uid.as_raw()));
    assert_eq!(std::fs::metadata(&path).unwrap().gid(), user.gid.as_raw());
}

fn is_year(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem.to_str().unwrap().parse::<u32>().is_ok())
}

#[test]
fn a_symlink_in_a_shared_folder_is_not_followed() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.pcap");
    numbered(&source, 0..100, 0, 1000);
    let port = format!("pcap:{}", source.display());
    for (what, owner, mode, follows) in [
        ("a folder of ours", 0, 0o755, true),
        ("a folder of ours and our group", 0, 0o775, true),
        ("one for all", 0, 0o777, false),
        ("one for all that have their own", 0, 0o1777, false),
        ("another's", NOBODY, 0o755, false),
    ] {
        let to = folder.path().join("to");
        std::fs::create_dir(&to).unwrap();
        let victim = folder.path().join("victim");
        std::os::unix::fs::symlink(&victim, to.join("link.pcap")).unwrap();
        std::os::unix::fs::lchown(to.join("link.pcap"), Some(owner), None).unwrap();
        chown(&to, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&to, PermissionsExt::from_mode(mode)).unwrap();
        let link = to.join("link.pcap").display().to_string();
        for flags in [&["-w", &link, "--json"], &["--stats", "--summary", &link]] {
            std::fs::write(&victim, "precious").unwrap();
            let ended = run(&[&["capture", &port], &flags[..]].concat());
            assert_eq!(ended.status, Some(if follows { 0 } else { 2 }), "{what}: {}", ended.err);
            let kept = std::fs::read(&victim).unwrap() == b"precious";
            assert_eq!(kept, !follows, "{what}");
            assert!(follows || ended.err.contains("symbolic link"), "{what}: {}", ended.err);
        }
        std::fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn a_user_owns_the_files_or_is_refused_at_the_start() {
    if !is_root() {
        return;
    }
    let (folder, port) = open_folder();
    let user = User::from_name(USER).unwrap().unwrap().uid.as_raw();
    for (what, name, owner, mode, rotates, status) in [
        ("a file in root's folder", "a.pcap", 0, 0o755, false, 0),
        ("files in a folder of the user's", "a.pcap", user, 0o755, true, 0),
        ("files in a folder for all", "a.pcap.zst", 0, 0o1777, true, 0),
        ("files in root's folder", "a.pcap", 0, 0o755, true, 3),
        ("a file that is begun later in root's folder", "%Y.pcap", 0, 0o755, false, 3),
    ] {
        let to = folder.path().join("to");
        std::fs::create_dir(&to).unwrap();
        chown(&to, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&to, PermissionsExt::from_mode(mode)).unwrap();
        let path = to.join(name);
        let mut arguments = vec!["capture", &port, "-w", path.to_str().unwrap(), "--json"];
        arguments.extend(["--user", USER]);
        if rotates {
            arguments.extend(["--rotate-size", "10K", "--files", "3"]);
        }
        let ended = run(&arguments);
        assert_eq!(ended.status, Some(status), "{what}: {}", ended.err);
        let files: Vec<_> = std::fs::read_dir(&to).unwrap().flatten().map(|it| it.path()).collect();
        let expected = if status != 0 {
            0
        } else if rotates {
            3
        } else {
            1
        };
        assert_eq!(files.len(), expected, "{what}: {files:?}");
        files.iter().for_each(|file| assert_eq!(access(file), (0o600, user), "{what}"));
        let remedy = format!("chown {USER} the directory");
        assert!(status == 0 || ended.err.contains(&remedy), "{what}: {}", ended.err);
        std::fs::remove_dir_all(&to).unwrap();
    }
}

/// Makes a folder that belongs to a user, with a mode.
fn folder_of(path: &Path, user: u32, mode: u32) {
    std::fs::create_dir(path).unwrap();
    chown(path, Some(user), Some(user)).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_users_file_is_overwritten_unless_another_may_have_prepared_it() {
    if !is_root() {
        return;
    }
    let (folder, port) = open_folder();
    let user = User::from_name(USER).unwrap().unwrap().uid.as_raw();
    for (what, mode) in [("a folder of the user's", 0o755), ("a folder for all", 0o1777)] {
        let to = folder.path().join("to");
        folder_of(&to, user, mode);
        let path = to.join("a.pcap");
        let capture =
            || run(&["capture", &port, "-w", path.to_str().unwrap(), "--user", USER, "--json"]);
        for sentence in ["a new file", "the file of the run before", "a file with another mode"] {
            capture().good();
            assert_eq!(access(&path), (0o600, user), "{what}: {sentence}");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        }
        let refused = |reason: &str| {
            let ended = capture();
            assert_eq!(ended.status, Some(2), "{what}: {reason}: {}", ended.err);
            assert!(ended.err.contains(reason), "{what}: {}", ended.err);
            assert!(ended.err.contains("; remove it first, or"), "{what}: {}", ended.err);
        };
        let link = to.join("link");
        std::fs::hard_link(&path, &link).unwrap();
        refused("another user may have prepared it: it has 2 names");
        std::fs::remove_file(&link).unwrap();
        chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        refused("another user may have prepared it: it belongs to user ID 65534");
        // It could be a hard link whose second name was removed.
        chown(&path, Some(0), Some(0)).unwrap();
        std::fs::write(&path, "precious").unwrap();
        refused("another user may have prepared it: it belongs to user ID 0");
        assert_eq!(access(&path), (0o666, 0), "{what}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious", "{what}");
        std::fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn a_summary_is_protected_as_a_capture_file_is() {
    if !is_root() {
        return;
    }
    let (folder, port) = open_folder();
    let to = folder.path().join("to");
    folder_of(&to, 0, 0o1777);
    let path = to.join("summary");
    let capture =
        || run(&["capture", &port, "--stats", "--summary", path.to_str().unwrap(), "--json"]);
    // An old file keeps neither its text nor its mode.
    std::fs::write(&path, "old").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(capture().status, Some(0));
    assert_eq!(access(&path), (0o600, 0));
    let prepared = |what: &str| {
        let ended = capture();
        assert_eq!(ended.status, Some(2), "{what}: {}", ended.err);
        assert!(ended.err.contains(path.to_str().unwrap()), "{what}: {}", ended.err);
        assert!(ended.err.contains("remove it"), "{what}: {}", ended.err);
    };
    std::fs::write(&path, "precious").unwrap();
    chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    prepared("a file of another user");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::fs::hard_link(&victim, &path).unwrap();
    prepared("a hard link");
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    prepared("a pipe of another user");
}

#[test]
fn af_xdp_with_capabilities_of_the_file_needs_to_lock_its_buffers() {
    let Some(lab) = lab_with(&["setcap", "setpriv", "prlimit"]) else { return };
    let sockets = "xdp:right0?method=af_xdp";
    for (what, more, limit, port, status) in [
        ("no right to lock memory", "", "65536", sockets, 3),
        ("the usual limit", "", "8388608", sockets, 3),
        (
            "the usual limit, fewer frames",
            "",
            "8388608",
            "xdp:right0?method=af_xdp&ring_size=2048",
            0,
        ),
        ("the capability", ",cap_ipc_lock", "65536", sockets, 0),
        ("copies, which lock nothing", "", "65536", "xdp:right0", 0),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let capabilities = format!("cap_net_admin,cap_net_raw,cap_bpf,cap_sys_admin{more}+ep");
        let Some(copy) = with_capabilities(folder.path(), &capabilities) else { return };
        let memory = format!("--memlock={limit}:{limit}");
        let ordinary = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", &copy];
        let arguments = ["count", port, "--duration", "10ms", "--json"];
        let ended = on(&lab, "right", &[&["prlimit", &memory], &ordinary[..], &arguments].concat());
        assert_eq!(ended.status, Some(status), "{what}: {}", ended.err);
        assert!(status == 0 || ended.err.contains("CAP_IPC_LOCK"), "{what}: {}", ended.err);
    }
}

#[test]
fn a_user_can_remove_the_sockets_or_is_refused_at_the_start() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let [ours, shared] = ["ours", "shared"].map(|name| folder.path().join(name));
    for (folder, mode) in [(&ours, 0o755), (&shared, 0o1777)] {
        std::fs::create_dir(folder).unwrap();
        std::fs::set_permissions(folder, PermissionsExt::from_mode(mode)).unwrap();
    }
    // Nobody else's switch has this name.
    let name = format!("test-{}", std::process::id());
    let in_folder = |folder: &Path| folder.join("a.sock").display().to_string();
    let memif = |folder: &Path| format!("memif:{}", in_folder(folder));
    let (own, all) = (in_folder(&ours), in_folder(&shared));
    let (own_memif, all_memif) = (memif(&ours), memif(&shared));
    // Without a file.
    let [one, two] = ["one", "two"].map(|end| format!("memif:@{name}-{end}"));
    let named = |command| format!("/run/sluice/{command}/{name}/control.sock");
    for (arguments, socket, status) in [
        (vec!["switch", &one, &two, "--name", &name], named("switch"), 0),
        (vec!["forward", &one, &two, "--name", &name], named("forward"), 0),
        (vec!["forward", &one, &two, "--control", &all], all.clone(), 0),
        (vec!["count", &all_memif], all.clone(), 0),
        (vec!["count", &own_memif], own.clone(), 3),
        (vec!["switch", &one, &two, "--control", &own], own.clone(), 3),
    ] {
        let running =
            Running::unawaited(&mut sluice(&[&arguments[..], &["--user", USER]].concat()));
        if status == 0 {
            let is_the_users = || threads(running.pid(), USER).0.is_empty() || running.has_ended();
            eventually("it has become the user", is_the_users);
            running.catches_signals();
            assert!(Path::new(&socket).exists(), "{arguments:?}");
            running.signal(nix::sys::signal::Signal::SIGTERM);
        }
        let ended = running.end();
        assert_eq!(ended.status, Some(status), "{arguments:?}: {}", ended.err);
        if status == 0 {
            assert!(!Path::new(&socket).exists(), "{arguments:?}");
        } else {
            assert!(ended.err.contains("removing the socket"), "{arguments:?}: {}", ended.err);
            std::fs::remove_file(&socket).unwrap();
        }
    }
    for command in ["switch", "forward"] {
        let _ = std::fs::remove_dir(Path::new(&named(command)).parent().unwrap());
    }
}
