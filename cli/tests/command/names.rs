//! Names of files with any bytes, which Linux allows.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::support::*;

#[test]
fn no_control_character_of_a_name_reaches_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (red, absent) = (path("\x1b[31m.pcap"), path("no\x1b[31m.pcap"));
    pcap_file(red.as_ref(), &[frame(0)]);
    let out = path("\x1b[32m.pcap");
    let rows: [(&str, &[&str], i32, &str); 5] = [
        ("a report", &["count", &red], 0, r"\x1b[31m.pcap, read in"),
        ("a file written", &["edit", &red, &out], 0, r"\x1b[32m.pcap"),
        ("an error", &["count", &absent], 2, r"no\x1b[31m.pcap"),
        ("an invalid port", &["count", "xdq:\x1b[31m"], 2, r"xdq:\x1b[31m"),
        ("an unknown flag", &["count", "--\x1b[31m", "lo"], 2, r"--\x1b[31m"),
    ];
    for (what, arguments, status, printed) in rows {
        let ended = run(arguments);
        assert_eq!(ended.status, Some(status), "{what}: {}", ended.err);
        let text = ended.out + &ended.err;
        assert!(text.contains(printed) && !text.contains('\x1b'), "{what}: {text:?}");
    }
}

#[test]
fn a_file_whose_name_is_not_utf8_is_edited_and_refused_as_a_port() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to, copy] = [b"a\xff.pcap", b"b\xff.pcap", b"c\xff.pcap"]
        .map(|name| folder.path().join(OsStr::from_bytes(name)));
    pcap_file(&from, &[frame(0)]);
    let plain = folder.path().join("a.pcap");
    std::fs::copy(&from, &plain).unwrap();
    let mut edit = sluice(&["edit", "--json"]);
    let mut capture = sluice(&["capture", plain.to_str().unwrap(), "--json", "-w"]);
    for command in [edit.args([&from, &to]), capture.arg(&copy)] {
        assert_eq!(ended(command).good()["packets"], 1);
    }
    assert!(to.exists() && copy.exists());
    for words in [&["capture"][..], &["capture", "-r"], &["count"], &["replay"]] {
        let ended = ended(sluice(words).arg(&from));
        assert_eq!(ended.status, Some(2), "{words:?}: {}", ended.err);
        let said = r#"a\xFF.pcap" is not UTF-8"#;
        assert!(ended.err.contains(said) && ended.err.contains("ln -s"), "{}", ended.err);
    }
}
