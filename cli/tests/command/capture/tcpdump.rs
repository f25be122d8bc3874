//! The command lines of tcpdump, as people type them: the same packets, and the same lines.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::real_captures::real_captures;
use crate::support::*;

/// Command lines that print the file F.
const PRINT: [&str; 37] = [
    "-nr F",
    "-nnr F",
    "-nlKr F",
    "-n -e -r F",
    "-nne -c 5 -r F",
    "-nn -e -q -r F",
    "-t -nr F",
    "-tt -nr F",
    "-ttt -nr F",
    "-tttt -nr F",
    "-ttttt -nr F",
    "-nxr F",
    "-nxxr F",
    "-nXr F",
    "-nXXr F",
    "-nAr F",
    "-nnqr F",
    "-nnS -r F tcp",
    "-nn -AA -r F",
    "-nnr F icmp",
    "-nnr F icmp or icmp6",
    "-nnr F udp port 53",
    "-nnr F tcp port 8000",
    "-nnr F host 198.18.0.1",
    "-nnr F src host 198.18.0.2 and tcp",
    "-nnr F dst net 198.18.0.0/15",
    "-nnr F ip6",
    "-nnr F not arp",
    "-nnr F tcp[tcpflags]&tcp-syn!=0",
    "-nnr F (arp or vlan)",
    "-nnr F portrange 1-1024 and greater 100",
    "-nn -F EXPR -r F",
    "-nnt -c 7 -r F less 200",
    "-#nr F",
    "--number -ttt -nr F",
    "-# -nxr F udp",
    "-nOr F tcp or udp",
];

/// Command lines that write the file OUT.
const WRITE: [&str; 10] = [
    "-r F -w OUT",
    "-nr F -w OUT udp",
    "-r F -w OUT tcp port 8000 and host 198.18.0.2",
    "-c 3 -r F -w OUT",
    "-w OUT -r F vlan or ip",
    "-s 0 -r F -w OUT ip6",
    "-U -r F -w OUT arp or icmp",
    "-F EXPR -r F -w OUT",
    "-c 1 -nn -r F -w OUT ether broadcast",
    "-r F -w OUT !udp",
];

/// Runs a program with a command line; F, OUT and EXPR in it are files.
fn ran(program: &mut Command, line: &str, file: &Path, out: &Path, expression: &Path) -> Ended {
    // A word of more letters is not one of them.
    let argument = |word: &str| match word {
        "F" => file.to_owned(),
        "OUT" => out.to_owned(),
        "EXPR" => expression.to_owned(),
        word => PathBuf::from(word),
    };
    ended(program.env("TZ", "UTC").args(line.split(' ').map(argument)))
}

/// The captures whose lines are compared: one file of each recorded conversation.
fn captures() -> impl Iterator<Item = PathBuf> {
    real_captures().into_iter().filter(|path| path.to_string_lossy().ends_with("-micro.pcap"))
}

/// Returns true if lines are the same as far as ours goes: tcpdump also reads payloads, and later versions than
/// Debian's know type 65 of DNS.
fn same(ours: &str, theirs: &str) -> bool {
    let theirs = theirs.replace("Type65", "HTTPS");
    let head = ours.split_once(": UDP, length").map_or(ours, |(head, _)| head);
    theirs.starts_with(ours.trim_end()) || head != ours && theirs.starts_with(head)
}

#[test]
fn the_lines_of_tcpdump_are_printed_for_its_command_lines() {
    if !have(&["tcpdump"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let expression = folder.path().join("expression");
    std::fs::write(&expression, "tcp or\n  (udp and port 53)\n").unwrap();
    let (mut compared, mut faults) = (0, Vec::new());
    for file in captures() {
        for line in PRINT {
            let run = |program: &mut Command| ran(program, line, &file, &file, &expression);
            let (ours, theirs) =
                (run(&mut sluice(&["capture"])), run(&mut Command::new("tcpdump")));
            assert_eq!(theirs.status, Some(0), "tcpdump {line}: {}", theirs.err);
            assert_eq!(ours.status, Some(0), "{line}: {}", ours.err);
            let pairs = || ours.out.lines().zip(theirs.out.lines());
            compared += pairs().count();
            if let Some((ours, theirs)) = pairs().find(|(ours, theirs)| !same(ours, theirs)) {
                faults.push(format!("{line}, {}:\n  {ours}\n  {theirs}", file.display()));
            } else if ours.out.lines().count() != theirs.out.lines().count() {
                faults.push(format!("{line}, {}: another number of lines", file.display()));
            }
        }
    }
    println!("{compared} lines compared");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn bytes_are_printed_as_text_like_tcpdumps() {
    if !have(&["tcpdump"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.pcap");
    // Four bytes of these five in every order, at a packet's end and within.
    let alphabet = b"A\r\n\x01 ";
    let frames = (0..5usize.pow(4)).flat_map(|number| {
        let text = [1, 5, 25, 125].map(|place| alphabet[number / place % 5]);
        let frame = [&[2; 12][..], &[0x88, 0xb5], &text].concat();
        [[&frame[..], b"end"].concat(), frame]
    });
    pcap_file(&file, &frames.collect::<Vec<_>>());
    let run = |program: &mut Command| ran(program, "-nAtr F", &file, &file, &file).out;
    let (ours, theirs) = (run(&mut sluice(&["capture"])), run(&mut Command::new("tcpdump")));
    let text_of = |out: &str| {
        // The bytes' text alone: an unknown type has lines of its own in tcpdump's output.
        let of_packet = |line: &&str| !line.contains("0x") && !line.contains("02:02:02");
        out.split('\n').filter(of_packet).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(text_of(&ours).len() > 1250, "{ours}");
    assert_eq!(text_of(&ours), text_of(&theirs));
}

#[test]
fn the_packets_of_tcpdump_are_written_for_its_command_lines() {
    if !have(&["tcpdump"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [expression, ours, theirs] =
        ["expression", "ours.pcap", "theirs.pcap"].map(|n| folder.path().join(n));
    std::fs::write(&expression, "udp").unwrap();
    for file in captures() {
        for line in WRITE {
            // tcpdump reads microseconds.
            let ended = ran(&mut sluice(&["capture", "--micro"]), line, &file, &ours, &expression);
            assert_eq!(ended.status, Some(0), "{line}: {}", ended.err);
            let ended = ran(&mut Command::new("tcpdump"), line, &file, &theirs, &expression);
            assert_eq!(ended.status, Some(0), "tcpdump {line}: {}", ended.err);
            assert!(packets(&ours) == packets(&theirs), "{line}, {}", file.display());
        }
    }
}

#[test]
fn a_filter_comes_through_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.pcap");
    pcap_file(&file, &[vec![2; 60], vec![3; 60]]);
    let script = format!(
        "echo 'ether[0] = 3' | {} capture -F /dev/stdin -r {} --json -w /dev/null",
        env!("CARGO_BIN_EXE_sluice"),
        file.display()
    );
    let report = ended(Command::new("sh").args(["-c", &script])).good();
    assert_eq!(report["packets"], 1, "{report}");
}

#[test]
fn flags_for_interfaces_mean_the_same() {
    let Some(lab) = lab() else { return };
    let left = lab.netns("left");
    let listed = run(&["capture", "-D", "--netns", &left]);
    assert!(listed.out.contains("left0"), "{listed:?}");
    for (line, marks) in [
        ("-ni left0 -c 2 icmp", &["ICMP echo request", "ICMP echo reply"][..]),
        ("-n -p -i left0 -c 1 icmp", &["ICMP echo request"]),
        ("-n -Q in -i left0 -c 2 icmp", &["ICMP echo reply", "ICMP echo reply"]),
        ("left0 -c 2 icmp[0]=8 or arp", &["198.18.0", "198.18.0"]),
    ] {
        let words = ["capture", "--netns", &left].into_iter().chain(line.split(' '));
        let running = Running::start(&words.collect::<Vec<_>>());
        let _ping = background(&lab, "left", &["ping", "-i", "0.2", "-c", "50", "198.18.0.2"]);
        let ended = running.end();
        let lines: Vec<&str> = ended.out.lines().collect();
        assert_eq!(lines.len(), marks.len(), "{line}: {ended:?}");
        assert!(
            lines.iter().zip(marks).all(|(line, mark)| line.contains(mark)),
            "{line}: {lines:?}"
        );
    }
}

#[test]
fn a_command_line_that_cannot_work_is_answered_with_one_that_does() {
    for (line, answer) in [
        ("capture udp port 53", "sluice capture eth0 udp port 53"),
        ("capture udp port 53 lo", "sluice capture lo udp port 53"),
        ("capture lo -Q out", "ether src MAC"),
        ("capture lo -f udp tcp", "join them with 'and'"),
        ("capture lo -F /dev/null -f udp", "cannot be used with"),
        ("replay lo trace.pcap", "sluice replay trace.pcap lo"),
        ("capture lo -B 4096", "sluice capture lo,blocks=4"),
        ("capture -B 65536 -i lo", "sluice capture lo,blocks=64"),
        ("capture -L -i lo", "one link type"),
        ("capture -y EN10MB -i lo", "one link type"),
        ("capture -V list", "sed s/^/-r/ list | xargs -d '\\n' sluice capture"),
        ("capture lo -x --json", "cannot be used with '--json'"),
        ("capture lo -XX --json", "cannot be used with '--json'"),
        ("capture lo -A --json", "cannot be used with '--json'"),
        ("capture lo -e --json", "cannot be used with '--json'"),
        ("capture lo -q --json", "cannot be used with '--json'"),
        ("capture lo -S --json", "cannot be used with '--json'"),
        ("capture lo -# --json", "cannot be used with '--json'"),
        ("capture lo -tt --json", "cannot be used with '--json'"),
        ("capture lo --time-format date --json", "cannot be used with '--json'"),
        ("capture lo --nano --json", "cannot be used with '--json'"),
    ] {
        refused(&line.split(' ').collect::<Vec<_>>(), answer);
    }
}

#[test]
fn files_in_a_list_are_read_as_the_error_says() {
    if !have(&["sh", "sed", "xargs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    numbered(Path::new(&path("a.cap")), 0..3, 1_000_000_000, 1000);
    numbered(Path::new(&path("b 2.cap")), 3..5, 2_000_000_000, 1000);
    std::fs::write(path("my list"), format!("{}\n{}\n", path("a.cap"), path("b 2.cap"))).unwrap();
    let refused = run(&["capture", "-V", &path("my list")]);
    let command = refused.err.trim_end().rsplit_once("name the files: ").unwrap().1;
    let ours = format!("{} capture -#", env!("CARGO_BIN_EXE_sluice"));
    let line = command.replace("sluice capture", &ours);
    let printed = ended(Command::new("sh").args(["-c", &line]));
    let numbers = printed.out.lines().map(|line| line.split_whitespace().next().unwrap());
    assert!(numbers.eq(["1", "2", "3", "4", "5"]), "{printed:?}");
}

#[test]
fn a_filters_program_returns_the_snapshot_length_as_tcpdumps_does() {
    if !have(&["tcpdump"]) {
        return;
    }
    for flags in [&["-d"][..], &["-d", "-s", "96"], &["-dd", "-s", "0"], &["-ddd"]] {
        let words = [flags, &["udp", "port", "53"]].concat();
        let theirs = ended(Command::new("tcpdump").args(["-y", "EN10MB"]).args(&words));
        let ours = run(&[&["capture"], &words[..]].concat());
        assert_eq!((ours.status, &*ours.out), (Some(0), &*theirs.out), "{words:?}");
    }
}

#[test]
fn filters_that_need_the_kernel_are_refused_for_files() {
    if !have(&["tcpdump"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, out) = (path("in.pcap"), path("out.pcap"));
    numbered(Path::new(&file), 0..10, 1_000_000_000, 1000);
    let theirs = ended(Command::new("tcpdump").args(["-r", &file, "inbound"]));
    let reason = "inbound/outbound not supported on Ethernet when reading savefiles";
    assert!(theirs.status != Some(0) && theirs.err.contains(reason), "{theirs:?}");
    for words in [
        &["capture", &file, "inbound"][..],
        &["count", &file, "-f", "not outbound"],
        &["edit", &file, &out, "-f", "inbound"],
        &["capture", &file, "-w", &out, "--keep", "1s", "--trigger", "inbound"],
    ] {
        refused(words, reason);
    }
    assert!(!Path::new(&out).exists());
    refused(&["count", &file, "--duration", "0"], "use more than 0");
}

#[test]
fn lines_of_other_types_end_with_the_length_and_name_their_protocol() {
    if !have(&["tcpdump"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    // A numbered frame, the same with a VLAN tag, and one of LLC.
    let plain = frame(0);
    let tagged = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
    let llc = [&plain[..12], &[0, 46], &[0x42; 46][..]].concat();
    pcap_file(&path, &[plain, tagged, llc]);
    let file = path.to_str().unwrap();
    let lines = |program: &mut Command, flags: &[&str]| {
        let ended = ended(program.args(flags).args(["-t", "-r", file]));
        let lines = ended.out.lines().filter(|line| !line.starts_with('\t'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for flags in [&["-nn", "-e"][..], &["-nn", "-e", "-q"], &["-nn", "-q"]] {
        let ours = lines(&mut sluice(&["capture"]), flags);
        let theirs = lines(&mut Command::new("tcpdump"), flags);
        assert_eq!((ours.len(), theirs.len()), (3, 3), "{ours:?} {theirs:?}");
        for (ours, theirs) in ours.iter().zip(&theirs).take(2) {
            // A dump of the bytes follows there.
            assert_eq!(ours, theirs.trim_end_matches([' ', ':', ',']), "{flags:?}");
        }
        assert!(ours[2].ends_with("802.3, length 60"), "{flags:?}: {}", ours[2]);
    }
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] = 6;
    std::fs::write(&path, bytes).unwrap();
    let lines = lines(&mut sluice(&["capture"]), &["-nn"]);
    assert_eq!(lines[0], "link type IEEE802_5 (6), length 60");
}
