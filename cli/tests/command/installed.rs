//! Manual pages and completion, which `make install` brings beside the command.

use crate::support::*;

/// The completions of a line, whose last word is incomplete.
fn completions(line: &str) -> Vec<String> {
    let mut command = sluice(&["--"]);
    let ended = ended(command.args(line.split(' ')).env("COMPLETE", "fish"));
    assert_eq!(ended.status, Some(0), "{ended:?}");
    // A description follows a tab.
    ended.out.lines().filter_map(|line| line.split('\t').next().map(str::to_owned)).collect()
}

#[test]
fn commands_ports_and_options_are_completed() {
    for (line, expected) in [
        ("sluice cap", "capture"),
        ("sluice capture --rotate-s", "--rotate-size"),
        ("sluice capture xd", "xdp:"),
        ("sluice count l", "lo"),
        ("sluice count xdp:l", "xdp:lo"),
        ("sluice count xdp:lo,fil", "xdp:lo,filter="),
        ("sluice count lo,tx", "lo,tx_copies="),
        ("sluice replay trace.pcap l", "lo"),
        ("sluice forward lo l", "lo"),
        ("sluice top l", "lo"),
    ] {
        let found = completions(line);
        assert!(found.iter().any(|it| it == expected), "{line}: {found:?}");
    }
    assert!(!completions("sluice count xdp:lo,").iter().any(|it| it.contains("tx_copies")));
}

#[test]
fn interfaces_and_names_of_a_namespace_are_completed() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let found = completions(&format!("sluice capture --netns {left} le"));
    assert!(found.iter().any(|it| it == "left0"), "{found:?}");
    let found = completions(&format!("sluice capture --netns {}", &left[..left.len() - 1]));
    assert!(found.contains(&left), "{found:?}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(&["manual", folder.path().to_str().unwrap()]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    for command in [
        "",
        "-capture",
        "-count",
        "-generate",
        "-replay",
        "-forward",
        "-switch",
        "-lab-up",
        "-ports",
    ] {
        let page =
            std::fs::read_to_string(folder.path().join(format!("sluice{command}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH OPTIONS"), "sluice{command}.1");
    }
}
