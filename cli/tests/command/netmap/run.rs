//! The program that `sluice netmap run` becomes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::support::*;

/// Runs a line of shell, with these options of `run`.
fn shell(options: &[&str], line: &str) -> Ended {
    run(&[&["netmap", "run"], options, &["--", "sh", "-c", line]].concat())
}

#[test]
fn the_program_keeps_its_status_streams_and_words() {
    for (line, status) in [("true", Some(0)), ("exit 42", Some(42)), ("kill -TERM $$", None)] {
        assert_eq!(shell(&[], line).status, status, "{line}");
    }
    for (program, status) in [("no-such-command", 127), ("/no/such", 127), ("/etc/passwd", 126)] {
        let ended = run(&["netmap", "run", "--", program]);
        assert_eq!(ended.status, Some(status), "{}", ended.err);
        assert!(ended.err.contains(program), "{}", ended.err);
    }
    let ended = shell(&[], "echo \"$0\" to stdout; echo to stderr >&2");
    assert_eq!((&*ended.out, &*ended.err), ("sh to stdout\n", "to stderr\n"));
}

#[test]
fn options_become_the_librarys_environment() {
    const PRINT: &str = "env | grep ^SLUICE_NETMAP_ | grep -v LIBRARY | sort";
    assert_eq!(shell(&[], PRINT).out, "", "without options");
    let options =
        ["--backend", "packet", "--filter", "udp port 9", "--allow", "eth0,eth1", "--log", "debug"];
    assert_eq!(
        shell(&options, PRINT).out,
        "SLUICE_NETMAP_ALLOW=eth0,eth1\nSLUICE_NETMAP_BACKEND=packet\n\
         SLUICE_NETMAP_FILTER=udp port 9\nSLUICE_NETMAP_LOG=debug\n"
    );
    let preloaded = shell(&[], "echo $LD_PRELOAD").out;
    assert!(preloaded.trim_end().ends_with("/libsluice_netmap.so"), "{preloaded}");
    // libc is loaded anyway.
    let mut command = sluice(&["netmap", "run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let both = ended(command.env("LD_PRELOAD", "libc.so.6"));
    assert_eq!(both.out.trim_end(), format!("{}:libc.so.6", preloaded.trim_end()));
}

#[test]
fn a_path_of_a_server_does_not_depend_on_the_programs_directory() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let server = |options: &[&str]| {
        let words = [&["netmap", "run"], options, &["--", "sh", "-c"]].concat();
        let mut command = sluice(&words);
        command.arg("echo $SLUICE_NETMAP_SERVER").current_dir(&folder).env("TMPDIR", ".");
        let ended = ended(&mut command);
        assert_eq!(ended.status, Some(0), "{}", ended.err);
        ended.out.trim_end().to_owned()
    };
    assert_eq!(server(&["--server", "socket"]), folder.join("socket").to_str().unwrap());
    for unchanged in ["/socket", "off", ""] {
        assert_eq!(server(&["--server", unchanged]), unchanged);
    }
    let shared = server(&["--shared"]);
    assert!(Path::new(&shared).starts_with(&folder), "{shared}");
}

#[test]
fn a_filter_that_cannot_be_compiled_is_an_error_before_the_program_starts() {
    let ended = shell(&["--filter", "udp prot 9"], "echo started");
    assert_eq!((ended.status, &*ended.out), (Some(2), ""), "{}", ended.err);
    assert!(ended.err.contains("udp prot 9"), "{}", ended.err);
    let ended = shell(&["--filter", ""], "echo started");
    assert_eq!((ended.status, &*ended.out), (Some(0), "started\n"), "{}", ended.err);
}

#[test]
fn a_filter_of_the_environment_is_checked_unless_an_option_replaces_it() {
    for (option, status) in [(None, 2), (Some("--filter=udp port 9"), 0), (Some("--filter="), 0)] {
        let mut command = sluice(&["netmap", "run"]);
        command.args(option).args(["--", "true"]).env("SLUICE_NETMAP_FILTER", "udp prot 9");
        let ended = ended(&mut command);
        assert_eq!(ended.status, Some(status), "{option:?}: {}", ended.err);
        assert_eq!(ended.err.contains("udp prot 9"), status == 2, "{option:?}: {}", ended.err);
    }
}

#[test]
fn a_filter_of_the_environment_that_is_not_utf_8_is_an_error() {
    let mut command = sluice(&["netmap", "run", "--", "true"]);
    let ended = ended(command.env("SLUICE_NETMAP_FILTER", OsStr::from_bytes(b"udp port 9\xff")));
    assert_eq!(ended.status, Some(2), "{}", ended.err);
    assert!(ended.err.contains("udp port 9\u{fffd}"), "{}", ended.err);
}

#[test]
fn a_library_that_cannot_be_loaded_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let blank = folder.path().join("a library.so");
    std::fs::write(&blank, "").unwrap();
    for (path, reason) in
        [("/no/such.so", "name a file that exists"), (blank.to_str().unwrap(), "blank or colon")]
    {
        let mut command = sluice(&["netmap", "run", "--", "true"]);
        let ended = ended(command.env("SLUICE_NETMAP_LIBRARY", path));
        assert_eq!(ended.status, Some(2), "{}", ended.err);
        assert!(ended.err.contains(path) && ended.err.contains(reason), "{}", ended.err);
    }
}
