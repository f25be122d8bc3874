//! Manual pages and completion, which `make install` brings beside the command.

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};

use crate::support::*;

/// The completions of a line, whose last word is incomplete.
fn completions(line: &str) -> Vec<String> {
    completions_by(sluice(&[]), line)
}

/// The completions of a line by the command `sluice`, as this user or another.
fn completions_by(mut sluice: std::process::Command, line: &str) -> Vec<String> {
    let ended = ended(sluice.arg("--").args(line.split(' ')).env("COMPLETE", "fish"));
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
        ("sluice attach l", "lo"),
        ("sluice replay trace.pcap lo l", "lo"),
        ("sluice switch a=xdp:l", "a=xdp:lo"),
        ("sluice switch a=null: --access a", "a="),
        ("sluice switch a=null: --tx-only ", "a"),
        ("sluice edit pcap:/etc/passw", "pcap:/etc/passwd"),
        ("sluice replay pcap:/etc/passw", "pcap:/etc/passwd"),
        ("sluice capture -c 5 lo ud", "udp"),
        ("sluice generate lo --receive mi", "mirror:"),
        ("sluice capture xdp:lo,mode=na", "xdp:lo,mode=native"),
        ("sluice capture lo?me", "lo?method="),
        ("sluice capture lo?method=recv&pro", "lo?method=recv&promisc="),
        ("sluice capture pcap:/etc/passw", "pcap:/etc/passwd"),
        ("sluice capture lo --compress=zs", "--compress=zstd"),
        ("sluice capture lo --time-format=da", "--time-format=date"),
        ("sluice capture lo --user roo", "root"),
        ("sluice capture lo -Q ", "inout"),
        ("sluice capture lo ud", "udp"),
        ("sluice capture lo udp and ho", "host"),
        ("sluice count lo tc", "tcp"),
        ("sluice capture lo -w x -z gzi", "gzip"),
        ("sluice capture lo --mode ", "skb"),
        ("sluice capture lo --wait ", "adaptive"),
        ("sluice edit in out --format ", "pcapng"),
        ("sluice generate lo --profile syn", "syn-flood"),
        ("sluice generate lo --payload file:/etc/passw", "file:/etc/passwd"),
        ("sluice generate li", "live:"),
        ("sluice bench ndr --between l", "lo,"),
        ("sluice bench ndr --between lo,l", "lo,lo"),
        ("sluice lab up --shape ", "star"),
        ("sluice lab exec left -- gzi", "gzip"),
        ("sluice lab exec left -- gzip /etc/passw", "/etc/passwd"),
        ("sluice scrub rehearse policy.toml --peace /etc/passw", "/etc/passwd"),
        ("sluice scrub explain policy.toml --proto u", "udp"),
        ("sluice netmap r", "run"),
        ("sluice netmap run --backend ", "packet"),
        ("sluice netmap run --allow l", "lo"),
        ("sluice netmap run -- gzi", "gzip"),
    ] {
        let found = completions(line);
        assert!(found.iter().any(|it| it == expected), "{line}: {found:?}");
    }
    for (line, not_expected) in [
        ("sluice count xdp:lo,", "xdp:lo,tx_copies="),
        ("sluice capture ud", "udp"),
        ("sluice capture -c 5 ud", "udp"),
        ("sluice capture -nc 5 ud", "udp"),
        ("sluice capture li", "live:"),
        ("sluice generate lo --receive li", "live:"),
        ("sluice switch a=null: --access a=10 --age 5m --access ", "5m="),
        ("sluice switch a=null: --name b --access ", "b="),
        ("sluice capture -w ", "."),
        ("sluice capture ", "."),
        ("sluice edit in out --dmac ", "auto"),
        ("sluice switch remove ", "lo"),
        ("sluice switch static 02:00:00:00:00:01 ", "lo"),
    ] {
        let found = completions(line);
        assert!(!found.iter().any(|it| it == not_expected), "{line}: {found:?}");
    }
    // The shell adds no blank after one of two candidates, so that options may follow.
    assert_eq!(completions("sluice capture xdp:l"), ["xdp:lo", "xdp:lo,"]);
}

/// Returns the texts that bash would insert for a line, which it splits into these words.
fn completions_in_bash(line: &str, words: &str, typed: &str) -> Vec<String> {
    let script = format!(
        "source <(COMPLETE=bash sluice); before=$COMP_WORDBREAKS; COMP_LINE='{line}'; \
         COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _clap_complete_sluice sluice '{typed}' 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\"; \
         [[ $before == \"$COMP_WORDBREAKS\" ]]"
    );
    in_shell(std::process::Command::new("bash").args(["--norc", "-c", &script]))
}

/// Runs a shell that finds the command. Returns the lines that it prints.
fn in_shell(shell: &mut std::process::Command) -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_sluice")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let ended = ended(shell.env("PATH", path));
    assert_eq!(ended.status, Some(0), "{ended:?}");
    ended.out.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_after_colons_and_equals_signs() {
    if !have(&["bash"]) {
        return;
    }
    for (line, words, typed, expected) in [
        ("sluice capture xdp:l", "sluice capture xdp : l", "l", &["lo", "lo,"][..]),
        ("sluice capture xdp:lo,mode=na", "sluice capture xdp : lo,mode = na", "na", &["native"]),
        ("sluice count lo --wait=", "sluice count lo --wait =", "", &["spin", "sleep", "adaptive"]),
        ("sluice  cap", "sluice cap", "cap", &["capture"]),
        ("sluice count xd", "sluice count xd", "xd", &["xdp:"]),
        ("sluice count xdp:", "sluice count xdp :", "", &["lo"]),
        ("sluice count packet:lo,fan", "sluice count packet : lo,fan", "lo,fan", &["lo,fanout="]),
        ("sluice forward xdp:lo packet:l", "sluice forward xdp : lo packet : l", "l", &["lo"]),
        ("sluice forward xdp:lo pack", "sluice forward xdp : lo pack", "pack", &["packet:"]),
        ("sluice count -f udp xdp:l", "sluice count -f udp xdp : l", "l", &["lo"]),
    ] {
        let found = completions_in_bash(line, words, typed);
        assert!(
            expected.iter().all(|it| found.iter().any(|found| found == it)),
            "{line}: {found:?}"
        );
    }
}

#[test]
fn zsh_completes_the_first_time_and_puts_no_blank_after_a_beginning() {
    if !have(&["zsh"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some folder");
    std::fs::create_dir(&file).unwrap();
    std::fs::write(file.join("a.pcap"), "").unwrap();
    // As the completion system loads the function. It would offer the candidates of the array `$3`, with a
    // blank after them, or with `-S ''` nothing.
    let script = r#"COMPLETE=zsh sluice >$1/_sluice; fpath=($1 $fpath); autoload -Uz _sluice
        _describe() { local it; for it in ${(P)3}; print -r -- "${4-blank}$5 $it" }
        shift; words=("$@"); CURRENT=$#words; _sluice"#;
    let at = folder.path().display();
    let [upper, inner] = [format!("pcap:{at}/"), format!("pcap:{at}/some\\ folder/")];
    for (words, expected) in [
        (["sluice", "cap"], "blank capture"),
        (["capture", "xdp"], "-S xdp\\:"),
        (["capture", "packet:lo,met"], "-S packet\\:lo,method="),
        (["capture", "xdp:lo,mode=na"], "blank xdp\\:lo,mode=native"),
        (["capture", &upper], &format!("-S pcap\\:{}/", file.display())),
        (["capture", &inner], &format!("blank pcap\\:{}/a.pcap", file.display())),
    ] {
        let mut zsh = std::process::Command::new("zsh");
        zsh.args(["-fc", script, "zsh"]).arg(folder.path());
        let found = in_shell(zsh.args((words[0] != "sluice").then_some("sluice")).args(words));
        let is_it = |it: &String| {
            let rest = it.strip_prefix(expected);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        assert!(found.iter().any(is_it), "{words:?}: {found:?}");
    }
}

#[test]
fn interfaces_and_names_of_a_namespace_are_completed() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let found = completions(&format!("sluice capture --netns {left} le"));
    assert!(found.iter().any(|it| it == "left0"), "{found:?}");
    let found = completions(&format!("sluice capture --netns {}", &left[..left.len() - 1]));
    assert!(found.contains(&left), "{found:?}");
    let right = lab.netns("right");
    let generate = format!("sluice generate left0 --netns {left}");
    for (more, expected) in [
        ("--receive ".to_owned(), "left0"),
        (format!("--receive-netns {right} --receive "), "right0"),
        (format!("--receive-netns {right} --receive mirror:"), "mirror:right0"),
    ] {
        let found = completions(&format!("{generate} {more}"));
        assert!(found.iter().any(|it| it == expected), "{more}: {found:?}");
        assert!(!found.iter().any(|it| it.contains("0") && it != expected), "{more}: {found:?}");
    }
}

#[test]
fn ports_of_running_commands_are_completed() {
    if !is_root() {
        return;
    }
    let id = std::process::id();
    let name = format!("completed-{id}");
    let memif = |port: &str| format!("memif:@completed-{port}-{id}");
    let [up, down] = ["up", "down"].map(memif);
    let [first, second] = [format!("first={up}"), format!("second={down}")];
    let switch = Running::unawaited(&mut sluice(&["switch", &first, &second, "--name", &name]));
    let names = || completions(&format!("sluice switch show --name {name}"));
    eventually("the switch listens", || names() == [name.as_str()]);
    for words in ["remove", "flush", "static 02:00:00:00:00:01"] {
        let found = completions(&format!("sluice switch {words} --name {name} "));
        assert_eq!(found[..2], ["first", "second"], "{words}");
    }
    let found = completions(&format!("sluice capture monitor:{name}"));
    assert_eq!(found, [format!("monitor:{name}/")]);
    let found = completions(&format!("sluice capture monitor:{name}/"));
    assert_eq!(found, ["first", "second"].map(|port| format!("monitor:{name}/{port}")));
    switch.signal(nix::sys::signal::Signal::SIGKILL);
    switch.end();
    assert_eq!(names(), [""; 0], "its socket remains");
    let folder = sluicegate::control::socket_path("switch", &name).unwrap();
    std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();

    let forward = Running::unawaited(&mut sluice(&["forward", &up, &down, "--name", &name]));
    let ports = || completions(&format!("sluice capture monitor:{name}/"));
    let expected = [&up, &down].map(|it| format!("monitor:{name}/{}", &it["memif:".len()..]));
    eventually("the forwarder listens", || ports() == expected);
    forward.stop();
}

/// Listens as a command of this name, and answers nothing, as a suspended command does.
fn suspended(name: &str) -> (tempfile::TempDir, UnixListener) {
    let socket = sluicegate::control::socket_path("switch", name).unwrap();
    let switches = socket.parent().unwrap().parent().unwrap();
    std::fs::create_dir_all(switches).unwrap();
    let folder = tempfile::Builder::new().prefix(name).rand_bytes(0).tempdir_in(switches).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    (folder, listener)
}

/// Returns how many of the clients that came to a command, and left, have sent a request.
fn requests(listener: &UnixListener) -> usize {
    let clients = std::iter::from_fn(|| listener.accept().ok());
    let asked = |(mut client, _): (UnixStream, _)| {
        let mut request = String::new();
        client.read_to_string(&mut request).unwrap();
        !request.is_empty()
    };
    clients.map(asked).filter(|asked| *asked).count()
}

#[test]
fn completion_asks_only_the_named_command_and_does_not_wait_for_one_that_hangs() {
    if !is_root() {
        return;
    }
    let prefix = format!("hangs-{}-", std::process::id());
    let names: [String; 2] = ["a", "b"].map(|letter| format!("{prefix}{letter}"));
    let [(_a, a), (_b, b)] = [0, 1].map(|at| suspended(&names[at]));
    for (line, expected, asked) in [
        (format!("switch show --name {prefix}"), names.to_vec(), [0, 0]),
        (
            format!("capture monitor:{prefix}"),
            names.iter().map(|name| format!("monitor:{name}/")).collect(),
            [0, 0],
        ),
        (format!("capture monitor:{}/", names[0]), vec![], [1, 0]),
        (format!("switch remove --name {} ", names[1]), vec![], [0, 1]),
    ] {
        let mut limited = std::process::Command::new("timeout");
        limited.args(["15", env!("CARGO_BIN_EXE_sluice")]);
        let mut found = completions_by(limited, &format!("sluice {line}"));
        found.retain(|it| !it.is_empty() && !it.starts_with('-'));
        found.sort();
        assert_eq!(found, expected, "{line}");
        assert_eq!([&a, &b].map(requests), asked, "{line}");
    }
}

#[test]
fn an_ordinary_user_completes_the_names_of_commands_that_run_as_root() {
    if !is_root() || !have(&["setpriv"]) {
        return;
    }
    let nobody = || {
        let mut setpriv = std::process::Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        setpriv.arg(env!("CARGO_BIN_EXE_sluice"));
        setpriv
    };
    if ended(nobody().arg("--version")).status != Some(0) {
        return eprintln!("skipped: needs a build that nobody may run; get it by chmod o+x");
    }
    let name = format!("roots-{}", std::process::id());
    let switch =
        Running::unawaited(&mut sluice(&["switch", "null:", "--tx-only", "null", "--name", &name]));
    let show = format!("sluice switch show --name {name}");
    eventually("the switch listens", || completions(&show) == [name.as_str()]);
    assert_eq!(completions_by(nobody(), &show), [name.as_str()]);
    let found = completions_by(nobody(), &format!("sluice capture monitor:{name}"));
    assert_eq!(found, [format!("monitor:{name}/")]);
    let found = completions_by(nobody(), &format!("sluice capture monitor:{name}/"));
    assert_eq!(found, [""; 0], "the user may not ask for the ports");
    switch.stop();
}

/// Writes all manual pages, and returns their names and texts.
fn manual_pages(folder: &std::path::Path) -> Vec<(std::path::PathBuf, String)> {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
    let ended = run(&["manual", folder.to_str().unwrap(), "--docs", docs]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let entries = |path| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let paths = ["man1", "man7"].into_iter().flat_map(|section| entries(folder.join(section)));
    paths.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = manual_pages(folder.path());
    for command in [
        "",
        "-capture",
        "-generate",
        "-switch-add",
        "-lab-exec",
        "-netmap-run",
        "-bench-ndr",
        "-ports",
    ] {
        let name = format!("sluice{command}.1");
        let (_, page) = pages.iter().find(|(path, _)| path.ends_with(&name)).unwrap();
        for part in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"SEE ALSO\""] {
            assert!(page.contains(&format!("\n.SH {part}\n")), "{name}: {part}");
        }
        assert!(page.contains(".SH EXAMPLES") || ["", "-ports"].contains(&command), "{name}");
    }
    let (_, page) = pages.iter().find(|(path, _)| path.ends_with("sluice-capture.1")).unwrap();
    assert!(page.contains(".SH NOTES\n") && page.contains(".SS \"The flags of tcpdump\"\n"));
    let (_, page) = pages.iter().find(|(path, _)| path.ends_with("sluice-ports.1")).unwrap();
    assert!(page.contains(".SS \"Offloads and veths\"\n"));
    // References lead to pages of this manual, not to files of the source.
    for (path, page) in &pages {
        let page = page.replace("\\-", "-");
        assert!(!page.contains(".md"), "{}", path.display());
        let mut references = 0;
        for begin in page.match_indices("sluice").map(|(at, _)| &page[at..]) {
            let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
            let Some((name, rest)) = begin.split_once('(') else { continue };
            let section = rest.split(')').next().filter(|it| matches!(*it, "1" | "7"));
            if let (Some(section), true) = (section, name.chars().all(is_name)) {
                let file = folder.path().join(format!("man{section}/{name}.{section}"));
                assert!(file.exists(), "{}: {name}({section})", path.display());
                references += 1;
            }
        }
        assert!(references > 0, "{}", path.display());
    }
}

#[test]
fn formatters_accept_the_manual_pages() {
    let folder = tempfile::tempdir().unwrap();
    let pages = manual_pages(folder.path());
    assert!(pages.iter().all(|(_, page)| page.is_ascii()));
    for checker in
        [&["mandoc", "-T", "lint", "-W", "warning"][..], &["groff", "-ww", "-man", "-Tutf8", "-z"]]
    {
        let mut command = std::process::Command::new(checker[0]);
        let files = pages.iter().map(|(path, _)| path);
        match command.args(&checker[1..]).args(files).output() {
            Ok(found) => {
                let text = [found.stdout, found.stderr].concat();
                assert!(text.is_empty(), "{}: {}", checker[0], String::from_utf8_lossy(&text));
            }
            Err(error) => println!("skipped: needs {} ({error})", checker[0]),
        }
    }
}
