//! `capture --json`: an object per packet, with the fields that tshark finds.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::real_captures::real_captures;
use crate::support::*;

/// Our fields, and tshark's names for them. Packets in packets have several values; the first is compared.
const FIELDS: [(&str, &[&str]); 10] = [
    ("bytes", &["frame.len"]),
    ("captured", &["frame.cap_len"]),
    ("smac", &["eth.src"]),
    ("dmac", &["eth.dst"]),
    ("src", &["ip.src", "ipv6.src"]),
    ("dst", &["ip.dst", "ipv6.dst"]),
    ("ttl", &["ip.ttl", "ipv6.hlim"]),
    ("sport", &["tcp.srcport", "udp.srcport"]),
    ("dport", &["tcp.dstport", "udp.dstport"]),
    ("type", &["icmp.type", "icmpv6.type"]),
];

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[test]
fn the_result_is_written_to_the_file_of_a_summary() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    numbered(Path::new(&path("in.pcap")), 0..7, 0, 1);
    let (input, summary) = (path("in.pcap"), path("result.json"));
    let ended = run(&["capture", &input, "--json", "--summary", &summary]);
    assert_eq!((ended.status, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    assert_eq!(ended.out.lines().count(), 7, "{}", ended.out);
    let result = std::fs::read_to_string(&summary).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["packets"], 7, "{result}");
    refused(&["capture", &input, "--summary", &input], "input");
    let again = path("./result.json");
    // A pipe and files that do not exist are compared, too.
    std::os::unix::fs::symlink("later", path("link")).unwrap();
    for (output, summary) in [
        (&*summary, &*summary),
        (&summary, &again),
        (&path("new"), &path("./new")),
        (&path("later"), &path("link")),
        ("-", "/dev/stdout"),
        ("-", "/dev/fd/1"),
        ("/proc/self/fd/1", "/dev/stdout"),
    ] {
        let said = format!("{output} are the same file");
        let said = if output.ends_with("/1") { "- are the same file" } else { &said };
        refused(&["capture", &input, "-w", output, "--summary", summary], said);
    }
    assert!(!Path::new(&path("new")).exists());
    let null = ["capture", &input, "-w", "/dev/null", "--summary", "/dev/null"];
    assert_eq!(run(&null).status, Some(0));
    // A command that does not begin leaves no file, and an earlier one as it is.
    std::fs::write(&summary, "earlier").unwrap();
    refused(&["capture", &path("none.pcap"), "--summary", &summary], "none.pcap");
    refused(&["capture", &path("none.pcap"), "--summary", &path("new")], "none.pcap");
    assert_eq!(std::fs::read_to_string(&summary).unwrap(), "earlier");
    assert!(!Path::new(&path("new")).exists());
    refused(&["capture", &input, "--summary", "-"], "without it");
    let nowhere = path("no/such");
    refused(&["capture", &input, "--summary", &nowhere], "create");
}

#[test]
fn the_result_is_printed_if_the_file_of_a_summary_was_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (input, summary) = (folder.path().join("in.pcap"), folder.path().join("result.json"));
    numbered(&input, 0..7, 0, 1);
    let path = summary.to_str().unwrap();
    // Another file may have its name, and stays as it is.
    for other in [false, true] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let arguments = ["capture", "pcap:-", "--json", "--summary", path];
        let running = Running::unawaited(sluice(&arguments).stdin(reader));
        writer.write_all(&std::fs::read(&input).unwrap()).unwrap();
        running.catches_signals();
        std::fs::remove_file(&summary).unwrap();
        if other {
            std::fs::write(&summary, "other").unwrap();
        }
        drop(writer);
        let ended = running.end();
        assert_eq!((ended.status, &ended.report()["packets"]), (Some(1), &7.into()), "{ended:?}");
        let error = format!("write {path}: it was removed");
        assert!(ended.err.contains(&error), "{ended:?}");
        assert_eq!(std::fs::read(&summary).ok(), other.then(|| b"other".to_vec()));
    }
}

#[test]
fn a_standard_stream_as_a_summary_keeps_its_mode_and_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    numbered(Path::new(&path("in.pcap")), 0..7, 0, 1);
    let log = path("log");
    for summary in ["/dev/stdout", "/dev/fd/1"] {
        std::fs::write(&log, "earlier\n").unwrap();
        std::fs::set_permissions(&log, PermissionsExt::from_mode(0o644)).unwrap();
        let file = std::fs::File::options().append(true).open(&log).unwrap();
        let arguments = ["capture", &path("in.pcap"), "--json", "--summary", summary];
        let ended = Running::unawaited(sluice(&arguments).stdout(file)).end();
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o644);
        let lines = std::fs::read_to_string(&log).unwrap();
        assert_eq!(lines.lines().count(), 1 + 7 + 1, "{lines}");
    }
}

#[test]
fn a_summary_into_a_closed_pipe_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    numbered(Path::new(&path("in.pcap")), 0..7, 0, 1);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let capture = ["capture", &path("in.pcap"), "-w", &path("out.pcap")];
    let mut command = sluice(&[&capture[..], &["--summary", "/dev/stdout"]].concat());
    let ended = Ended::from(command.stdout(writer).output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(ended.err, "sluice: the reader closed the pipe\n");
}

#[test]
fn objects_have_the_fields_that_tshark_finds() {
    if !have(&["tshark"]) {
        return;
    }
    let names = FIELDS.iter().flat_map(|(_, names)| *names).flat_map(|name| ["-e", name]);
    let more: Vec<&str> = [
        "-T",
        "fields",
        "-E",
        "occurrence=f",
        "-o",
        "ip.defragment:FALSE",
        "-o",
        "ipv6.defragment:FALSE",
    ]
    .into_iter()
    .chain(names)
    .collect();
    let mut compared = 0;
    let files =
        real_captures().into_iter().filter(|path| path.to_string_lossy().ends_with("-nano.pcap"));
    for file in files {
        let ended = run(&["capture", "--json", "-r", file.to_str().unwrap()]);
        assert_eq!(ended.status, Some(0), "{}", ended.err);
        let objects: Vec<Value> =
            ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(ended.report()["packets"], objects.len(), "the result is on stderr");
        let rows = tshark(&file, &more);
        assert_eq!(objects.len(), rows.len(), "{}", file.display());
        let times = packets(&file).into_iter().map(|(time, _)| time);
        for ((object, row), time_ns) in objects.iter().zip(&rows).zip(times) {
            assert_eq!(object["time_ns"], time_ns);
            let mut columns = row.split('\t');
            for (ours, names) in FIELDS {
                let theirs: Vec<&str> =
                    columns.by_ref().take(names.len()).filter(|it| !it.is_empty()).collect();
                // tshark also reads the packet in an ICMP error.
                if ours.ends_with("port") && object.get("type").is_some() {
                    continue;
                }
                let ours_shown = object.get(ours).map(shown);
                assert_eq!(
                    ours_shown.as_deref(),
                    theirs.first().copied(),
                    "{ours} of {object} in {}",
                    file.display()
                );
                compared += 1;
            }
        }
    }
    println!("{compared} fields compared");
}
