//! The exit status of commands that cannot begin: 2 for wrong usage, 3 for a missing privilege or kernel
//! feature.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::*;

/// An ordinary user, by its number.
const NOBODY: u32 = 65_534;

/// Runs lines of words in turn; each must exit with the status and print the text.
fn all_end(program: &str, as_nobody: bool, status: i32, rows: &[(&str, &str)]) {
    for (line, said) in rows {
        let mut command = Command::new(program);
        command.args(line.split_whitespace());
        if as_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        let ended = ended(&mut command);
        assert_eq!(ended.status, Some(status), "{line}: {}", ended.err);
        assert!(ended.err.contains(said), "{line}: {}", ended.err);
    }
}

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

#[test]
fn a_missing_file_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().display();
    let missing = "No such file or directory";
    let rows = [
        "capture pcap:DIR/no.pcap",
        "capture pcap:DIR/no.pcap -w DIR/a.pcap",
        "count pcap:DIR/no.pcap",
        "replay DIR/no.pcap null:",
        "replay DIR/no.pcap null: --loop 2",
        "forward pcap:DIR/no.pcap null: --one-way",
        "switch a=pcap:DIR/no.pcap b=null: --rx-only a --tx-only b --control DIR/s",
        "capture null: --count 1 -w DIR/no/a.pcap",
        "capture null: --count 1 -w DIR/no/%F.pcap",
        "generate pcap:DIR/no/a.pcap --count 1 --dst 198.18.0.9",
        "generate null: --spec DIR/no.toml --count 1",
        "generate null: --rate-file DIR/no.rate --count 1",
        "replay /dev/null null: --rewrite DIR/no.rules",
        "edit DIR/no.pcap DIR/a.pcap",
        "edit /dev/null DIR/a.pcap --rewrite DIR/no.rules",
        "bench show DIR/no.json",
        "bench check DIR/no.json",
        "bench rx --compare DIR/no.json",
    ];
    let rows = rows.map(|row| row.replace("DIR", &folder.to_string()));
    let rows: Vec<_> = rows.iter().map(|row| (row.as_str(), missing)).collect();
    all_end(SLUICE, false, 2, &rows);
    let rows = [
        (format!("count pcap:{folder}"), "Is a directory"),
        (format!("capture null: --count 1 -w {folder}"), "Is a directory"),
        (format!("count memif:{folder}/no/a.sock --count 1"), "make the folder"),
    ];
    all_end(SLUICE, false, 2, &rows.each_ref().map(|(row, said)| (row.as_str(), *said)));
    let damaged = run(&["count", "pcap:/etc/passwd"]);
    assert_eq!(damaged.status, Some(1), "a file that is no capture file: {}", damaged.err);
}

#[test]
fn wrong_words_are_wrong_usage() {
    let rows = [
        ("count null: --no-such-flag", "unexpected argument"),
        ("count nosuch:eth0", "no port kind"),
        ("count null:?nosuch=1", "nosuch"),
        ("count null:?slots=1", "slots=1"),
        ("count null: --duration soon", "duration"),
        ("edit one.pcap", "sluice edit IN OUT"),
        ("edit in.pcap out.pcap --packets 0-5", "the first is 1"),
        ("edit in.pcap out.pcap --from soon", "2026-11-20T21:43:33Z"),
        ("edit in.pcap out.pcap --shift soon", "duration"),
        ("edit in.pcap out.pcap --dmac auto", "has no next hop"),
        ("edit in.pcap out.pcapng --micro", "--format pcap"),
        ("edit in.pcap out.pcap.xz", "use .zst"),
        ("replay in.pcap null: --rewrite-port 80=http", "no port"),
        ("replay in.pcap null: --vlan set:5000", "1 to 4094"),
        ("count null: --count 1 --cpus 4000", "no CPU 4000"),
        ("generate null: --count 1 --cpus 4000", "no CPU 4000"),
        ("forward null: null: --one-way --count 1 --cpus 4000", "no CPU 4000"),
        ("count null: --count 1 --user no-such-user", "no such user"),
        ("count null: --count 1 --mode skb", "--mode is for xdp: and mirror: ports"),
        ("generate --profile list", "available: "),
        ("edit in.pcap -A", "tip: --from TIME"),
        ("capture monitor:no-such-switch/eth0", "no running command"),
        ("switch show --name no-such-switch", "no running command"),
        ("switch --name no-such-switch show", "write it before all flags"),
        ("lab exec --name no-such-lab left -- true", "no lab"),
        ("lab down --name no-such-lab", "no lab"),
    ];
    all_end(SLUICE, false, 2, &rows);
}

#[test]
fn a_refused_command_empties_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kept.pcap");
    std::fs::write(&file, "kept").unwrap();
    let path = file.display();
    let rows = [
        (format!("capture null: --count 1 -w {path} --user no-such-user"), "no such user"),
        (format!("capture null: --count 1 -w {path} --cpus 4000"), "no CPU 4000"),
        (format!("generate pcap:{path} --count 1 --dst 198.18.0.9 --cpus 4000"), "no CPU 4000"),
        (format!("replay no.pcap pcap:{path} --user root"), "name an ordinary user"),
        (format!("forward null: pcap:{path} --one-way --count 1 --cpus 0,4000"), "no CPU 4000"),
    ];
    all_end(SLUICE, false, 2, &rows.each_ref().map(|row| (row.0.as_str(), row.1)));
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
}

#[test]
fn a_limit_of_the_size_of_files_is_an_error_and_files_are_whole() {
    if !have(&["prlimit"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcapng");
    let path = file.display();
    let capture = format!("{SLUICE} capture null:?size=1500 -w {path} --count 100000 --json");
    let limited = |bytes: &str, command: &str| {
        let limit = format!("--fsize={bytes}");
        ended(Command::new("prlimit").arg(limit).args(command.split_whitespace()))
    };
    let captured = limited("20000000", &capture);
    assert_eq!(captured.status, Some(1), "{captured:?}");
    let remedy =
        "the limit of a file's size is reached: raise it (ulimit -f), or begin new files by size";
    assert!(captured.err.contains(remedy), "{}", captured.err);
    let written = captured.report()["ledger"]["out"].clone();
    assert_eq!(run(&["count", &format!("pcap:{path}"), "--json"]).good()["packets"], written);
    let counted = limited("2000", &format!("{SLUICE} count null: --count 1"));
    assert_eq!(counted.status, Some(1), "{counted:?}");
    assert!(counted.err.contains("ulimit -f"), "{}", counted.err);
}

#[test]
fn too_few_open_files_are_a_failure_with_a_remedy() {
    let Some(lab) = lab_with(&["prlimit"]) else { return };
    let succeeds = |command: &str, files: u32| {
        let limit = format!("--nofile={files}");
        let mut words = vec!["prlimit", &limit, SLUICE];
        words.extend(command.split(' '));
        let ended = on(&lab, "left", &words);
        let has_failed = ended.status == Some(1) && ended.err.contains("ulimit -n");
        assert!(has_failed || ended.status == Some(0), "{files} files: {command}: {ended:?}");
        !has_failed
    };
    let live = "generate live:left0 --count 1 --dmac 02:00:00:00:00:99";
    let enough = (7..100).find(|files| succeeds(live, *files));
    assert!(enough > Some(8), "{enough:?}");
    assert!(!succeeds("count xdp:left0 --duration 1ms", 8));
}

#[test]
fn a_full_standard_output_is_named() {
    for line in [
        "count null: --count 1",
        "capture null: --count 1",
        "generate --show 1",
        "capture",
        "capture --help",
        "--version",
    ] {
        let mut command = sluice(&line.split_whitespace().collect::<Vec<_>>());
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = command.stdout(full).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        let named = "sluice: write standard output: No space left on device (os error 28)\n";
        assert!(said.ends_with(named), "{line}: {said}");
        assert_eq!(ended.status.code(), Some(1), "{line}");
    }
}

#[test]
fn a_capture_reports_its_own_failure_and_that_of_its_result() {
    for flag in ["-w", "--summary"] {
        let mut command = sluice(&["capture", "null:", "--count", "9", flag, "/dev/full"]);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = Ended::from(command.stdout(full).output().unwrap());
        assert_eq!(ended.status, Some(1), "{ended:?}");
        for output in ["standard output", "/dev/full"] {
            let failed = format!("sluice: write {output}: No space left on device (os error 28)");
            assert_eq!(ended.err.matches(&failed).count(), 1, "{flag}: {ended:?}");
        }
    }
}

#[test]
fn every_command_reports_a_missing_interface_or_namespace_as_wrong_usage() {
    let to = "--count 1 --dst 198.18.0.9 --dmac 02:00:00:00:00:99";
    let rows = [
        "capture no0".to_owned(),
        "count packet:no0".to_owned(),
        "count xdp:no0".to_owned(),
        "count xdp:no0?action=drop".to_owned(),
        "count mirror:no0".to_owned(),
        "count host:no0".to_owned(),
        format!("generate no0 {to}"),
        format!("generate packet:no0 {to}"),
        format!("generate xdp:no0 {to}"),
        format!("generate live:no0 {to}"),
        format!("generate host:no0 {to}"),
        format!("generate no0 --method live {to}"),
        format!("generate no0 --method xdp {to}"),
        format!("generate no0 --method tx-ring {to}"),
        format!("generate no0 --method sendmmsg {to}"),
        "forward packet:no0 packet:no1".to_owned(),
        "forward xdp:no0 xdp:no1".to_owned(),
        "forward xdp:no0 xdp:no1 --in-kernel".to_owned(),
        "switch packet:no0 packet:no1".to_owned(),
        "switch a=null: b=null: --count 1 --allow-default-route no0".to_owned(),
        "claims no0".to_owned(),
        "attach no0".to_owned(),
        "detach no0".to_owned(),
        "top no0 --plain".to_owned(),
        "bench rx --between no0,no1".to_owned(),
        "bench ndr --between no0,no1".to_owned(),
    ];
    if !is_root() {
        return;
    }
    let rows: Vec<_> = rows.iter().map(|row| (row.as_str(), "no interface 'no0'")).collect();
    all_end(SLUICE, false, 2, &rows);
    all_end(SLUICE, false, 2, &[("count lo -f ,", "filter ','")]);
    let rows = ["capture", "count", "top", "claims", "attach", "detach"];
    let rows = rows.map(|command| format!("{command} eth0 --netns no-such-namespace"));
    let said = "no network namespace 'no-such-namespace'";
    all_end(SLUICE, false, 2, &rows.each_ref().map(|row| (row.as_str(), said)));
}

#[test]
fn a_mode_or_method_that_the_kernel_or_driver_lacks_is_a_missing_feature() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let to = "--count 1 --dst 198.18.0.9 --dmac 02:00:00:00:00:99";
    let rows = [
        (format!("count xdp:right0?mode=zero-copy --netns {netns}"), "has no zero-copy"),
        (format!("capture xdp:right0?mode=zero-copy --netns {netns}"), "has no zero-copy"),
        (format!("generate xdp:right0?mode=zero-copy --netns {netns} {to}"), "has no zero-copy"),
        (
            format!("forward xdp:right0?mode=zero-copy null: --one-way --netns {netns} --count 1"),
            "has no zero-copy",
        ),
        (format!("generate lo --method live --netns {netns} {to}"), "takes no redirected packets"),
    ];
    let rows: Vec<_> = rows.iter().map(|row| (row.0.as_str(), row.1)).collect();
    all_end(SLUICE, false, 3, &rows);
    let attach =
        format!("mount -t tmpfs none /sys/fs/bpf && {SLUICE} attach right0 --netns {netns}");
    let attached = ended(Command::new("unshare").args(["--mount", "sh", "-c", &attach]));
    assert_eq!(attached.status, Some(3), "{attached:?}");
    assert!(attached.err.contains("mount -t bpf bpf /sys/fs/bpf"), "{}", attached.err);
}

#[test]
fn a_port_that_fails_to_open_leaves_a_tap_device_as_it_was() {
    let Some(lab) = lab_with(&["setpriv"]) else { return };
    let exists = || on(&lab, "left", &["ip", "link", "show", "dev", "tap0"]).status == Some(0);
    let without = |port: &str| {
        let setpriv = ["setpriv", "--inh-caps", "-all", "--bounding-set", "-all"];
        let ended = on(&lab, "left", &[&setpriv[..], &[SLUICE, "count", port]].concat());
        // Anybody may use the device, and only an administrator may set its MTU.
        assert_eq!(ended.status, Some(3), "{ended:?}");
        assert!(ended.err.contains("MTU"), "{ended:?}");
    };
    let add = ["ip", "tuntap", "add", "dev", "tap0", "mode", "tap"];
    assert_eq!(on(&lab, "left", &add).status, Some(0));
    without("tap:tap0?persist=off&mtu=1400");
    assert!(exists(), "it was persistent");
}

#[test]
fn a_missing_privilege_is_named_whatever_needs_it() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let anybody = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    anybody(folder.path(), 0o755);
    let copy = folder.path().join("sluice");
    std::fs::copy(SLUICE, &copy).unwrap();
    // A forked child of another test has the copy open until it executes its command.
    let runs = || Command::new(&copy).arg("--version").output().is_ok();
    eventually("the copy can be run", runs);
    let secret = folder.path().join("secret.pcap");
    numbered(&secret, 0..1, 0, 0);
    anybody(&secret, 0o600);
    let (folder, netns) = (folder.path().display(), lab.netns("right"));
    let rows = [
        ("capture lo --count 1".to_owned(), "CAP_NET_RAW"),
        ("count packet:lo".to_owned(), "CAP_NET_RAW"),
        ("count tap:tap9".to_owned(), "CAP_NET_ADMIN"),
        (format!("count right0 --netns {netns}"), "CAP_SYS_ADMIN"),
        (format!("top --netns {netns} --plain"), "CAP_SYS_ADMIN"),
        (format!("claims right0 --netns {netns}"), "CAP_SYS_ADMIN"),
        ("detach lo".to_owned(), "to detach the XDP program from lo needs CAP_NET_ADMIN"),
        (format!("detach right0 --netns {netns}"), "to enter"),
        ("lab up --name never".to_owned(), "CAP_NET_ADMIN"),
        ("bench rx".to_owned(), "CAP_SYS_ADMIN"),
        ("bench ndr".to_owned(), "CAP_SYS_ADMIN"),
        ("forward packet:lo null: --one-way --count 1".to_owned(), "CAP_NET_RAW"),
        (format!("count pcap:{folder}/secret.pcap"), "Permission denied"),
        (format!("replay {folder}/secret.pcap null:"), "Permission denied"),
        (format!("capture null: --count 1 -w {folder}/a.pcap"), "Permission denied"),
        (format!("capture null: --count 1 -w {folder}/%F.pcap"), "Permission denied"),
        (format!("generate pcap:{folder}/a.pcap --count 1 --dst 198.18.0.9"), "Permission denied"),
        (format!("count memif:{folder}/a.sock --count 1"), "the right to write"),
        (
            format!("forward null: null: --one-way --count 1 --control {folder}/s"),
            "the right to write",
        ),
        ("count null: --count 1 --user daemon".to_owned(), "root as its caller"),
    ];
    let rows: Vec<_> = rows.iter().map(|row| (row.0.as_str(), row.1)).collect();
    all_end(copy.to_str().unwrap(), true, 3, &rows);
}

#[test]
fn commands_name_the_documented_capabilities_and_need_no_more() {
    let Some(lab) = lab_with(&["cp", "setpriv", "unshare"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let copy = folder.path().join("sluice").display().to_string();
    assert!(Command::new("cp").args([SLUICE, &copy]).status().unwrap().success());
    // On right, where root has attached the program, in a BPF file system of its own.
    let nobody = |arguments: &str, capabilities: &[&str]| {
        let set: String = capabilities.iter().map(|it| format!(",+{it}")).collect();
        let script = format!(
            "mount -t bpf bpf /sys/fs/bpf && {copy} attach right0 >&2 && exec setpriv --reuid 65534 \
             --regid 65534 --clear-groups --inh-caps=-all{set} --ambient-caps=-all{set} {copy} {arguments}"
        );
        on(&lab, "right", &["unshare", "--mount", "sh", "-c", &script])
    };
    let xdp = &["net_admin", "net_raw", "sys_admin"][..];
    let pins = &["net_admin", "net_raw", "sys_admin", "dac_override"];
    let live = &["net_admin", "bpf"];
    let packets = "--count 1 --dmac 02:00:00:00:00:99";
    for (arguments, needed) in [
        ("claims right0", xdp),
        ("attach right0", pins),
        ("detach right0", pins),
        ("count packet:right0 --duration 1ms", &["net_raw"]),
        ("capture right0 --duration 1ms", &["net_raw"]),
        ("count xdp:right0 --duration 1ms", xdp),
        ("count 'xdp:right0,action=drop,filter=len > 60' --duration 1ms", xdp),
        ("count mirror:right0 --duration 1ms", xdp),
        ("count host:right0 --duration 1ms", &["net_admin", "net_raw", "bpf"]),
        (
            "count host:right0,flows=64 --duration 1ms",
            &["net_admin", "net_raw", "bpf", "sys_admin"],
        ),
        (&format!("generate right0 --method live {packets}"), live),
        (&format!("generate live:right0 {packets}"), live),
        (&format!("generate packet:right0 {packets}"), &["net_raw"]),
    ] {
        let ended = nobody(arguments, needed);
        assert_eq!(ended.status, Some(0), "{arguments}: {}", ended.err);
        for left_out in needed {
            let others: Vec<_> = needed.iter().copied().filter(|it| it != left_out).collect();
            let ended = nobody(arguments, &others);
            let name = format!("CAP_{}", left_out.to_uppercase());
            let is_named = ended.status == Some(3) && ended.err.contains(&name);
            // CAP_SYS_ADMIN includes CAP_BPF, and an unused capability is no fault.
            assert!(is_named || ended.status == Some(0), "{arguments}: {name}: {}", ended.err);
        }
        let ended = nobody(arguments, &[]);
        assert_eq!(ended.status, Some(3), "{arguments}: {}", ended.err);
        assert!(ended.err.contains("sudo"), "{arguments}: {}", ended.err);
        for name in needed.iter().filter(|it| **it != "dac_override") {
            let name = format!("CAP_{}", name.to_uppercase());
            assert!(ended.err.contains(&name), "{arguments}: {name}: {}", ended.err);
        }
    }
}
