//! `sluice edit`, beside editcap, mergecap and tcprewrite for the same job.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::real_captures::real_captures;
use crate::support::*;

const START_NS: u64 = 1_700_000_000_123_456_000;
const GAP_NS: u64 = 1_000_000;
/// Files of the machine's own captures that are compared: one in this number.
const EVERY: usize = 5;

/// Packets of all kinds that rules change. None is padded, because tcprewrite takes padding into the packet.
const PACKETS: &str = "\
    [[stream]]\npad = false\nlayers = ['ETHER', 'ipv4', { udp = { sport = '53,9', dport = 53 } }, { payload = { text = 'odd' } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', 'ipv4', { tcp = { sport = '80,9' } }, { payload = { length = 40 } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', { vlan = { id = 7, pcp = 3 } }, 'ipv4', { udp = { dport = 53 } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', 'ipv6', { tcp = { dport = 80 } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', 'ipv6', { udp = { dport = 53 } }, { payload = { length = 30 } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', 'ipv4', 'icmp']\n\
    [[stream]]\npad = false\nlayers = ['ETHER', 'ipv6', 'icmpv6']\n\
    [[stream]]\npad = false\nlayers = ['ETHER', 'arp']\n";
const STREAMS: usize = 8;

/// Packets with wrong checksums.
const WRONG: &str = "\
    [[stream]]\npad = false\nlayers = ['ETHER', { ipv4 = { checksum = 1 } }, { udp = { checksum = 2 } }, { payload = { text = 'odd' } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', { ipv4 = { checksum = 1 } }, { tcp = { checksum = 2 } }, { payload = { text = 'odd' } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', { ipv4 = { checksum = 1 } }, { icmp = { checksum = 2 } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', { vlan = { id = 7 } }, { ipv4 = { checksum = 1 } }, { udp = { checksum = 2 } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', 'ipv6', { udp = { checksum = 2 } }, { payload = { text = 'odd' } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', 'ipv6', { tcp = { checksum = 2 } }]\n\
    [[stream]]\npad = false\nlayers = ['ETHER', 'ipv6', { icmpv6 = { checksum = 2 } }]\n";

/// Makes a file of packets to a specification, a millisecond apart.
fn generated(path: &Path, specification: &str, count: usize) {
    let (spec, raw) = (path.with_extension("toml"), path.with_extension("raw"));
    let ether = format!("{{ ether = {{ dst = '{NOBODY}' }} }}");
    std::fs::write(&spec, specification.replace("'ETHER'", &ether)).unwrap();
    let (to, count) = (format!("pcap:{}", raw.display()), count.to_string());
    let spec = spec.to_str().unwrap();
    run(&["generate", &to, "--spec", spec, "--count", &count, "--json"]).good();
    let frames = packets(&raw).into_iter().zip(0..);
    timed(path, frames.map(|((_, bytes), place)| (START_NS + place * GAP_NS, bytes)));
}

/// A packet as libpcap reads it: time in ns, length on the wire, bytes.
type Recorded = (u64, u32, Vec<u8>);

/// The packets that libpcap finds in a file; none if it refuses the file.
fn recorded(path: &Path) -> Vec<Recorded> {
    let opened = pcap::Capture::from_file_with_precision(path, pcap::Precision::Nano);
    let Ok(mut capture) = opened else { return Vec::new() };
    let mut packets = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        let (time, length) = (packet.header.ts, packet.header.len);
        // A hostile file may hold any time.
        let time_ns = (time.tv_sec as u64).wrapping_mul(1_000_000_000);
        packets.push((time_ns.wrapping_add(time.tv_usec as u64), length, packet.to_vec()));
    }
    packets
}

/// Edits files. The run must succeed and account for all packets.
fn edited(inputs: &[&Path], out: &Path, flags: &[&str]) -> Value {
    // A merge overwrites no file.
    let _ = std::fs::remove_file(out);
    let files = inputs.iter().chain([&out]).map(|path| path.to_str().unwrap());
    let words: Vec<_> = ["edit"].into_iter().chain(files).chain(flags.iter().copied()).collect();
    run(&[&words[..], &["--json"]].concat()).good()
}

/// Runs another tool. Returns false if it refuses its input.
fn other(words: &[&str]) -> bool {
    ended(Command::new(words[0]).args(&words[1..])).status == Some(0)
}

/// Compares packet by packet; `unit_ns` is the finer of both tools' units.
fn assert_same(sentence: &str, path: &Path, ours: &[Recorded], theirs: &[Recorded], unit_ns: u64) {
    let what = format!("{sentence}, {}", path.display());
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (number, (ours, theirs)) in (1..).zip(ours.iter().zip(theirs)) {
        assert_eq!(ours.0 / unit_ns, theirs.0 / unit_ns, "{what}: time of packet {number}");
        assert_eq!(ours.1, theirs.1, "{what}: length of packet {number}");
        assert_eq!(ours.2, theirs.2, "{what}: bytes of packet {number}");
    }
}

/// Returns true if Wireshark's tools read a file as libpcap does: they do not cut packets that are longer than
/// the file allows. Writes to `scratch`.
fn reads_alike(path: &Path, scratch: &Path) -> bool {
    other(&["editcap", path.to_str().unwrap(), scratch.to_str().unwrap()])
        && recorded(path) == recorded(scratch)
}

/// A time in seconds since 1970, as both tools read it.
fn seconds(time_ns: u64) -> String {
    format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000)
}

/// A generated capture, and some of the real ones.
fn captures(folder: &Path) -> Vec<PathBuf> {
    let made = folder.join("made.pcap");
    generated(&made, PACKETS, 100);
    [made].into_iter().chain(real_captures().into_iter().step_by(EVERY)).collect()
}

#[test]
fn packets_are_cut_as_editcap_cuts_them() {
    if !have(&["editcap"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (folder.path().join("ours.pcapng"), folder.path().join("theirs.pcapng"));
    let mut compared = 0;
    for path in captures(folder.path()) {
        let all = recorded(&path);
        // Without a first and a last packet there is nothing to cut.
        let (Some(first), Some(last)) = (all.get(all.len() / 4), all.get(all.len() * 3 / 4)) else {
            continue;
        };
        if !reads_alike(&path, &theirs) {
            continue;
        }
        let (from, until) = (seconds(first.0), seconds(last.0));
        let to = theirs.to_str().unwrap();
        let name = path.to_str().unwrap();
        for (sentence, flags, before, after) in [
            (
                "by number",
                &["--packets", "2-3,5,8-"][..],
                &["-r"][..],
                &["2-3", "5", "8-9999999"][..],
            ),
            ("from a time", &["--from", &from], &["-A", &from], &[]),
            ("until a time", &["--until", &until], &["-B", &until], &[]),
            ("snapped", &["-s", "41"], &["-s", "41"], &[]),
            ("moved", &["--shift", "1.5s"], &["-t", "1.5"], &[]),
        ] {
            let words = [&["editcap"], before, &[name, to], after].concat();
            if !other(&words) {
                continue;
            }
            edited(&[&path], &ours, flags);
            assert_same(sentence, &path, &recorded(&ours), &recorded(&theirs), 1);
            compared += 1;
        }
    }
    eprintln!("{compared} comparisons");
    assert!(compared >= 5);
}

#[test]
fn files_are_merged_as_mergecap_merges_them() {
    if !have(&["editcap", "mergecap"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (ours, theirs) = (path("ours.pcapng"), path("theirs.pcapng"));
    let inputs = ["1.pcap", "2.pcap", "3.pcap"].map(path);
    // Some have the same time: then mergecap takes the file named last first.
    numbered(&inputs[0], 0..200, START_NS, 2 * GAP_NS);
    numbered(&inputs[1], 200..300, START_NS + 4 * GAP_NS, 3 * GAP_NS);
    numbered(&inputs[2], 300..310, START_NS - GAP_NS, 100 * GAP_NS);
    let mut groups = vec![inputs.to_vec()];
    let real: Vec<_> = real_captures().into_iter().step_by(EVERY).collect();
    groups.extend(real.chunks(3).map(<[PathBuf]>::to_vec));
    for group in groups {
        if !group.iter().all(|path| reads_alike(path, &theirs)) {
            continue;
        }
        let names: Vec<_> = group.iter().map(|path| path.to_str().unwrap()).collect();
        if !other(&[&["mergecap", "-w", theirs.to_str().unwrap()], &names[..]].concat()) {
            continue;
        }
        let report = edited(&group.iter().map(PathBuf::as_path).collect::<Vec<_>>(), &ours, &[]);
        let each: usize = group.iter().map(|path| recorded(path).len()).sum();
        assert_eq!(report["packets"], each, "{names:?}: {report}");
        let [ours, theirs] = [&ours, &theirs].map(|path| {
            let mut packets = recorded(path);
            packets.chunk_by_mut(|one, next| one.0 == next.0).for_each(<[_]>::sort);
            packets
        });
        assert_same("merged", &group[0], &ours, &theirs, 1);
    }
}

/// A sentence, the file, our flags, tcprewrite's, and the packets to compare, by their bytes before.
type Row<'a> = (&'a str, &'a Path, &'a [&'a str], &'a [&'a str], fn(&[u8]) -> bool);

#[test]
fn packets_are_rewritten_as_tcprewrite_rewrites_them() {
    if !have(&["tcprewrite"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let [made, wrong] = ["made.pcap", "wrong.pcap"].map(path);
    generated(&made, PACKETS, 50 * STREAMS);
    generated(&wrong, WRONG, 70);
    let (ours, theirs) = (path("ours.pcap"), path("theirs.pcap"));
    let all = |_: &[u8]| true;
    let not_arp = |frame: &[u8]| frame[12..14] != [8, 6];
    // tcprewrite does not correct their checksums.
    let not_icmp = |frame: &[u8]| match frame[12..14] {
        [8, 0] => frame[23] != 1,
        [0x86, 0xdd] => frame[20] != 58,
        _ => true,
    };
    let untagged = |frame: &[u8]| frame[12..14] != [0x81, 0];
    let mac = "02:00:00:00:00:07";
    let (to, substitutes) = (format!("{NOBODY}={mac}"), format!("--enet-subsmac={NOBODY},{mac}"));
    let (smac, dmac) = (format!("--enet-smac={mac}"), format!("--enet-dmac={mac}"));
    let push = "--enet-vlan=add --enet-vlan-tag=10 --enet-vlan-cfi=0 --enet-vlan-pri=0";
    let push: Vec<_> = push.split(' ').collect();
    let rows: [Row<'_>; 9] = [
        (
            "IPv4 addresses",
            &made,
            &["--rewrite-ip", "198.18.0.0/15=192.0.0.0/15"],
            &["--pnat=198.18.0.0/15:192.0.0.0/15"],
            all,
        ),
        (
            "IPv6 addresses",
            &made,
            &["--rewrite-ip", "2001:db8::/32=2001:db9::/32"],
            &["--pnat=[2001:db8::/32]:[2001:db9::/32]"],
            not_icmp,
        ),
        ("ports", &made, &["--rewrite-port", "53=5353"], &["--portmap=53:5353"], all),
        ("hop limits", &made, &["--ttl", "9"], &["--ttl=9"], all),
        ("all MAC addresses", &made, &["--smac", mac, "--dmac", mac], &[&smac, &dmac], not_arp),
        ("a MAC address", &made, &["--rewrite-mac", &to], &[&substitutes], all),
        ("removed tags", &made, &["--vlan", "pop"], &["--enet-vlan=del"], all),
        ("new tags", &made, &["--vlan", "push:10"], &push, untagged),
        ("checksums", &wrong, &["--fix-checksums"], &["--fixcsum"], not_icmp),
    ];
    for (sentence, path, flags, theirs_flags, which) in rows {
        let (from, to) =
            (format!("--infile={}", path.display()), format!("--outfile={}", theirs.display()));
        let words = [&["tcprewrite"], theirs_flags, &[from.as_str(), &to]].concat();
        let tool = ended(Command::new(words[0]).args(&words[1..]));
        assert_eq!(tool.status, Some(0), "{sentence}: {}", tool.err);
        let report = edited(&[path], &ours, flags);
        assert!(entry(&report, "notes", "rewritten") > 0, "{sentence}: {report}");
        let before = recorded(path);
        // tcprewrite gives IPv6 packets the MAC addresses of multicast.
        let v6 = |frame: &[u8]| frame[12..14] == [0x86, 0xdd];
        let comparable = |packets: Vec<Recorded>| -> Vec<Recorded> {
            let packets = packets.into_iter().zip(&before);
            let packets = packets.filter(|(_, (.., before))| which(before));
            let without_macs = |(mut packet, before): (Recorded, &Recorded)| {
                if v6(&before.2) {
                    packet.2[..12].fill(0);
                }
                packet
            };
            packets.map(without_macs).collect()
        };
        let [ours, theirs] = [&ours, &theirs].map(|path| comparable(recorded(path)));
        assert_same(sentence, path, &ours, &theirs, 1000);
    }
}

/// Packets in others: IPIP, GRE, VXLAN, an ICMP error; and ESP, whose content no rule reaches.
const TUNNELS: &str = "\
    [[stream]]\nlayers = ['ether', { IP }, { IP }, 'tcp']\n\
    [[stream]]\nlayers = ['ether', { IP }, { gre = { checksum = 'right' } }, { IP }, 'udp']\n\
    [[stream]]\nlayers = ['ether', { IP }, { udp = { checksum = 'right' } }, 'vxlan', 'ether', \
    { IP }, 'tcp']\n\
    [[stream]]\nlayers = ['ether', { IP }, { icmp = { type = 3, code = 1 } }, { IP }, 'udp']\n\
    [[stream]]\nlayers = ['ether', { IP6 }, { icmpv6 = { type = 3 } }, { IP6 }, 'udp']\n\
    [[stream]]\nlayers = ['ether', { ipv4 = { src = '10.1.0.1', protocol = 50 } }]\n";

#[test]
fn packets_in_others_are_rewritten_with_right_checksums() {
    if !have(&["tshark"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [made, ours] = ["made.pcap", "ours.pcap"].map(|name| folder.path().join(name));
    let spec = TUNNELS
        .replace("IP6", "ipv6 = { src = 'fd00::1', dst = 'fd00::2' }")
        .replace("IP", "ipv4 = { src = '10.1.0.1', dst = '10.1.0.2' }");
    generated(&made, &spec, 6);
    let flags =
        ["--rewrite-ip", "10.1.0.0/16=198.18.0.0/16", "--rewrite-ip", "fd00::/16=2001::/16"];
    let report = edited(&[&made], &ours, &flags);
    assert_eq!(entry(&report, "notes", "rewritten"), 6, "{report}");
    assert_eq!(entry(&report, "notes", "partly_rewritten"), 1, "{report}");
    let checks =
        "-n -V -o ip.check_checksum:TRUE -o tcp.check_checksum:TRUE -o udp.check_checksum:TRUE";
    let checks: Vec<_> = checks.split(' ').collect();
    let [before, after] = [&made, &ours].map(|path| tshark(path, &checks).join("\n"));
    for old in ["10.1.0.", "fd00::"] {
        assert!(before.contains(old) && !after.contains(old), "{old}: {after}");
    }
    let good = |text: &str| text.matches("[Checksum Status: Good]").count();
    assert!(good(&after) > 3 && good(&after) == good(&before), "{after}");
    assert!(!after.contains("incorrect") && !after.contains("Status: Bad"), "{after}");
}

#[test]
fn replay_rewrites_packets_as_edit_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let [made, ours, sent] = ["made.pcap", "ours.pcap", "sent.pcap"].map(path);
    generated(&made, PACKETS, 5 * STREAMS);
    let bytes = |path: &Path| -> Vec<_> {
        recorded(path).into_iter().map(|(_, length, bytes)| (length, bytes)).collect()
    };
    for flags in ["--vlan push:10 --ttl 9", "--vlan pop --rewrite-port 53=54", "--vlan set:9"] {
        let words: Vec<_> = flags.split(' ').collect();
        edited(&[&made], &ours, &words);
        assert_ne!(bytes(&ours), bytes(&made), "{flags}");
        // The second round is read from memory.
        for rounds in 1..3 {
            let (to, all) = (format!("pcap:{}", sent.display()), rounds.to_string());
            let replay = ["replay", made.to_str().unwrap(), &to, "--top-speed", "--json"];
            run(&[&replay[..], &["--loop", &all], &words].concat()).good();
            let expected = vec![bytes(&ours); rounds].concat();
            assert_eq!(bytes(&sent), expected, "{flags}, {rounds} rounds");
        }
    }
}

/// Fields of tshark that say whether checksums are right.
const CHECKSUMS: &str = "-n -o ip.check_checksum:TRUE -o tcp.check_checksum:TRUE -o udp.check_checksum:TRUE \
    -T fields -E occurrence=f -e ip.checksum.status -e tcp.checksum.status -e udp.checksum.status \
    -e icmpv6.checksum.status";

#[test]
fn rewritten_packets_of_real_captures_have_right_checksums_where_they_had() {
    if !have(&["editcap", "tshark"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.pcapng");
    let fields: Vec<_> = CHECKSUMS.split_whitespace().collect();
    let rules = "--rewrite-ip 0.0.0.0/0=198.18.0.0/15 --rewrite-ip ::/0=2001:db8::/32 \
        --rewrite-port 80=8080 --rewrite-port 53=5353 --ttl 33 --json";
    let rules: Vec<_> = rules.split_whitespace().collect();
    for path in real_captures().into_iter().step_by(3 * EVERY) {
        let files = [path.to_str().unwrap(), out.to_str().unwrap()];
        if reads_alike(&path, &out)
            && run(&[&["edit"], &files[..], &rules].concat()).status == Some(0)
        {
            assert_eq!(tshark(&out, &fields), tshark(&path, &fields), "{}", path.display());
        }
    }
}

#[test]
fn a_file_keeps_its_interfaces_and_comments_and_its_name_decides_the_format() {
    if !have(&["editcap", "tshark", "capinfos", "zstd", "lz4"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let [plain, raw, commented] = ["plain.pcap", "raw.pcap", "commented.pcapng"].map(path);
    numbered(&plain, 0..20, START_NS, GAP_NS);
    let mut bytes = std::fs::read(&plain).unwrap();
    // IP without a link header.
    bytes[20] = 101;
    std::fs::write(&raw, bytes).unwrap();
    let files = [plain.to_str().unwrap(), commented.to_str().unwrap()];
    assert!(other(&[&["editcap", "-a", "3:one\ntwo", "-a", "4:other"], &files[..]].concat()));
    let comments =
        |path: &Path| tshark(path, &["-Y", "frame.comment", "-Tfields", "-e", "frame.comment"]);
    let before = comments(&commented);
    assert_eq!(before.len(), 2, "{before:?}");

    let out = path("out.pcapng");
    let flags = ["--packets", "3-8", "-f", "ether proto 0x88b5", "-s", "64"];
    edited(&[&commented], &out, &flags);
    assert_eq!(comments(&out), before);
    let about = tool(&["capinfos"], &out).out;
    for part in ["Number of packets:   6", "Capture length = 64", "ether proto 0x88b5"] {
        assert!(about.contains(part), "{part}: {about}");
    }

    // One interface for both files with the same description, and one of another link type.
    let both = path("both.pcapng.zst");
    edited(&[&plain, &plain, &raw], &both, &[]);
    let about = tool(&["capinfos"], &unpacked(&both)).out;
    assert!(about.contains("Number of interfaces in file: 2"), "{about}");
    assert!(about.contains("Number of packets:   60"), "{about}");
    for (name, flags, magic) in [
        ("a.pcap", &[][..], 0xa1b2_3c4d_u32),
        ("a.pcap", &["--micro"], 0xa1b2_c3d4),
        ("a.pcap.lz4", &[], 0xa1b2_3c4d),
        ("a.pcapng", &[], 0x0a0d_0d0a),
        ("a", &[], 0x0a0d_0d0a),
        ("a", &["--format", "pcap"], 0xa1b2_3c4d),
    ] {
        edited(&[&plain], &path(name), flags);
        let bytes = std::fs::read(unpacked(&path(name))).unwrap();
        assert_eq!(bytes[..4], magic.to_le_bytes(), "{name} {flags:?}");
        assert_eq!(recorded(&unpacked(&path(name))).len(), 20, "{name} {flags:?}");
    }
}

#[test]
fn every_packet_is_written_or_omitted_and_the_ledger_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let [made, out, broken] = ["made.pcap", "out.pcapng", "broken.pcap"].map(path);
    generated(&made, PACKETS, 10 * STREAMS);
    let report = edited(&[&made], &out, &["--packets", "1-40", "-f", "arp", "--ttl", "9"]);
    let ledger = &report["ledger"];
    assert_eq!((&report["command"], &report["packets"]), (&"edit".into(), &40.into()), "{report}");
    assert_eq!(
        (&ledger["in"], &ledger["out"]),
        (&40.into(), &5.into()),
        "reads no further: {report}"
    );
    assert_eq!(ledger["omitted"], serde_json::json!({"filtered": 35}), "{report}");
    assert_eq!(entry(&report, "notes", "rewritten"), 0, "ARP has no hops: {report}");
    let flags = ["--from", "+10ms", "--until", "+20ms", "--rewrite-port", "53=54"];
    let report = edited(&[&made], &out, &flags);
    assert_eq!(report["ledger"]["omitted"], serde_json::json!({"cut": 70}), "{report}");
    assert!(entry(&report, "notes", "rewritten") > 0, "{report}");
    let text = run(&["edit", made.to_str().unwrap(), out.to_str().unwrap(), "-f", "arp"]).out;
    for line in ["in                  80           read", "omit                70", "unexplained"] {
        assert!(text.contains(line), "{line}: {text}");
    }

    // A damaged file gives its packets before the damage, and the other file all of its own.
    let bytes = std::fs::read(&made).unwrap();
    std::fs::write(&broken, &bytes[..bytes.len() - 10]).unwrap();
    std::fs::remove_file(&out).unwrap();
    let files = [&broken, &made, &out].map(|path| path.to_str().unwrap());
    let ended = run(&[&["edit"], &files[..], &["--json"]].concat());
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.err.contains("broken.pcap") && ended.err.contains("cut short"), "{}", ended.err);
    closes(&ended.report());
    assert_eq!(recorded(&out).len(), 159);

    // 802.11 has no rule.
    let mut wireless = bytes;
    wireless[20] = 105;
    std::fs::write(&broken, wireless).unwrap();
    let report = edited(&[&broken], &out, &["--ttl", "9"]);
    assert_eq!(entry(&report, "notes", "not_rewritten"), 80, "{report}");
}

#[test]
fn a_refused_edit_changes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [made, link, raw, out, new] =
        ["made.pcap", "link.pcap", "raw.pcap", "out.pcap", "new.pcap"].map(path);
    numbered(Path::new(&made), 0..20, START_NS, GAP_NS);
    std::fs::hard_link(&made, &link).unwrap();
    let before = std::fs::read(&made).unwrap();
    // IP without a link header.
    let mut bytes = before.clone();
    bytes[20] = 101;
    std::fs::write(&raw, bytes).unwrap();
    std::fs::write(&out, "kept").unwrap();
    for (words, said) in [
        (vec!["edit", &made, &made], "the same file"),
        (vec!["edit", &out, &made, &link], "the same file"),
        (vec!["edit", &made, &raw, &out], "a merge overwrites no file"),
        (vec!["edit", &made, &raw, &new], "write pcapng"),
        (vec!["edit", &made, &out, "-f", "no such filter"], "filter"),
        (vec!["edit", &made, &out, "--rewrite-ip", "198.18.0.1"], "OLD=NEW"),
        (vec!["edit", &made, &out, "--vlan", "pull"], "push:VLAN"),
        (vec!["edit", &made, &out, "-s", "5G"], "less than 4 GiB"),
    ] {
        refused(&words, said);
        assert_eq!(std::fs::read(&made).unwrap(), before, "{words:?}");
        assert_eq!(std::fs::read(&out).unwrap(), b"kept", "{words:?}");
        assert!(!Path::new(&new).exists(), "{words:?}");
    }
}

#[test]
fn a_time_that_pcap_cannot_hold_is_an_error_and_pcapng_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (made, old, new) = (path("made.pcap"), path("old.pcap"), path("new.pcapng"));
    // Of 20 packets, a second apart, seven are before the end of pcap's time.
    let last = u64::from(u32::MAX) * 1_000_000_000;
    numbered(Path::new(&made), 0..20, last - 3_600_000_000_000 - 6_000_000_000, 1_000_000_000);
    let failed = run(&["edit", &made, &old, "--shift", "1h", "--json"]);
    assert_eq!(failed.status, Some(2), "{failed:?}");
    assert!(failed.err.contains("packet 8 ") && failed.err.contains("pcapng"), "{}", failed.err);
    let report = failed.report();
    let ledger = &report["ledger"];
    assert_eq!(
        (&ledger["out"], &ledger["losses"]["not_written"]),
        (&7.into(), &1.into()),
        "{report}"
    );
    // libpcap reads seconds above 2^31 of pcap as negative.
    edited(&[Path::new(&old)], Path::new(&new), &[]);
    let times: Vec<_> = packets(Path::new(&new)).into_iter().map(|(time, _)| time).collect();
    assert_eq!((times.len(), times[6]), (7, last), "the packets before it");
    edited(&[Path::new(&made)], Path::new(&new), &["--shift", "1h"]);
    let times: Vec<_> = packets(Path::new(&new)).into_iter().map(|(time, _)| time).collect();
    assert_eq!((times.len(), times[19]), (20, last + 13_000_000_000));
}

#[test]
fn the_written_file_has_the_comment_compression_and_mode_of_its_flags() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let [made, out, plain] =
        ["made.pcap", "out.pcapng", "out.pcapng.zst"].map(|name| folder.path().join(name));
    numbered(&made, 0..20, START_NS, GAP_NS);
    let flags = ["--compress", "zstd", "--compress-level", "3", "--compress-threads", "2"];
    let more = ["--comment", "from the lab", "--comment", "twice", "--file-mode", "0640"];
    edited(&[&made], &out, &[&flags[..], &more].concat());
    assert_eq!(out.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(std::fs::read(&out).unwrap()[..4], [0x28, 0xb5, 0x2f, 0xfd], "zstd's magic number");
    std::fs::rename(&out, &plain).unwrap();
    assert_eq!(packets(&plain), packets(&made));
    let bytes = std::fs::read(unpacked(&plain)).unwrap();
    for comment in ["from the lab", "twice"] {
        assert!(bytes.windows(comment.len()).any(|it| it == comment.as_bytes()), "{comment}");
    }
    let (made, out) = (made.to_str().unwrap(), folder.path().join("other.pcap"));
    refused(
        &["edit", made, out.to_str().unwrap(), "--comment", "none"],
        "a pcap file has no comments",
    );
    refused(&["edit", made, out.to_str().unwrap(), "--file-mode", "0200"], "octal mode");
    assert!(!out.exists());
}

#[test]
fn files_may_have_names_of_ports() {
    let folder = tempfile::tempdir().unwrap();
    let [made, out] = ["made.pcap", "out.pcap"].map(|name| folder.path().join(name));
    numbered(&made, 0..20, START_NS, GAP_NS);
    let port = |path: &Path| format!("pcap:{}", path.display());
    assert_eq!(run(&["edit", &port(&made), &port(&out)]).status, Some(0));
    assert_eq!(packets(&out), packets(&made));
    refused(&["edit", &port(&made), made.to_str().unwrap()], "the same file");
}

#[test]
fn a_pipe_is_edited_as_it_comes_and_ends_by_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made.pcap");
    numbered(&made, 0..20, START_NS, GAP_NS);
    let bytes = std::fs::read(&made).unwrap();
    let mut command = sluice(&["edit", "-", "-", "--format", "pcap", "--json"]);
    let mut edit = Running::unawaited(command.stdin(Stdio::piped()));
    let mut pipe = edit.child().stdin.take().unwrap();
    pipe.write_all(&bytes).unwrap();
    // All packets have been passed on, while the pipe is still open.
    edit.has_written(bytes.len());
    edit.signal(Signal::SIGUSR1);
    let so_far: Value = serde_json::from_str(&edit.says()).unwrap();
    assert_eq!(
        (&so_far["so_far"], &so_far["ledger"]["out"]),
        (&true.into(), &20.into()),
        "{so_far}"
    );
    let report = edit.stop().good();
    assert_eq!(report["ledger"]["out"], 20, "{report}");
    drop(pipe);
}

#[test]
fn a_pipe_that_nobody_reads_does_not_keep_the_command_from_ending() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made.pcap");
    numbered(&made, 0..100_000, START_NS, GAP_NS);
    let command = &mut sluice(&["edit", made.to_str().unwrap(), "-", "--format", "pcap", "--json"]);
    let mut edit = Running::unawaited(command);
    // More than the file's header: it writes packets, for which the pipe has no room.
    edit.has_written(1000);
    eventually("it waits for its reader", || edit.has_sleeping("sluice"));
    eventually("it ends without its reader", || {
        edit.signal(Signal::SIGINT);
        edit.has_ended()
    });
    assert_eq!(edit.end().status, Some(130));
}

#[test]
fn an_input_is_not_overwritten_under_a_name_that_its_packets_make() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let seconds = START_NS / 1_000_000_000;
    let (made, template) = (path(&format!("{seconds}.pcap")), path("%s.pcap"));
    numbered(Path::new(&made), 0..20, START_NS, GAP_NS);
    let before = std::fs::read(&made).unwrap();
    for words in [["edit", &made, &template].as_slice(), &["capture", &made, "-w", &template]] {
        let ended = run(words);
        assert!(ended.status == Some(1) && ended.err.contains("holds a lock"), "{ended:?}");
        assert_eq!(std::fs::read(&made).unwrap(), before, "{words:?}");
    }
}

#[test]
fn a_pushed_tag_fits_the_snapshot_length_of_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let [made, cut, tagged] =
        ["made.pcap", "cut.pcapng", "tagged.pcapng"].map(|name| folder.path().join(name));
    numbered(&made, 0..20, START_NS, GAP_NS);
    edited(&[&made], &cut, &["-s", "40"]);
    edited(&[&cut], &tagged, &["--vlan", "push:5"]);
    let lengths: Vec<usize> = packets(&tagged).iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(lengths, [44; 20]);
    let count = run(&["count", tagged.to_str().unwrap(), "--json"]).good();
    assert_eq!(count["packets"], 20, "{count}");
}

#[test]
fn editcaps_numbers_after_the_files_are_refused_with_the_equivalent() {
    if !have(&["editcap"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (made, out, theirs) = (path("made.pcap"), path("out.pcap"), path("theirs.pcap"));
    generated(Path::new(&made), PACKETS, 50);
    for numbers in [&["1-10"][..], &["3", "20-30", "5"], &["40-99"]] {
        // The file of an earlier run would be merged.
        std::fs::copy(&made, &out).unwrap();
        let ended = run(&[&["edit", &made, &out][..], numbers].concat());
        assert_eq!(ended.status, Some(2), "{numbers:?}: {ended:?}");
        let (remove, keep) = ended
            .err
            .split_once("editcap does, use --packets ")
            .unwrap()
            .1
            .split_once("; to keep them, as editcap -r, use --packets ")
            .unwrap();
        let keep = keep.split_once(';').unwrap().0;
        for (flags, list) in [(&[][..], remove), (&["-r"], keep)] {
            let words = [&["editcap"][..], flags, &[&made, &theirs], numbers].concat();
            assert!(other(&words), "{words:?}");
            edited(&[Path::new(&made)], Path::new(&out), &["--packets", list]);
            let [ours, theirs] = [&out, &theirs].map(|path| recorded(Path::new(path)));
            assert!(ours.len() < 50 && ours == theirs, "{words:?}: {list}");
        }
        assert!(!Path::new(&path(numbers[0])).exists());
    }
    std::fs::copy(&made, &out).unwrap();
    refused(&["edit", &made, &out, &path("a name")], "a name.pcapng, or add --format");
    edited(&[Path::new(&made), Path::new(&out)], Path::new(&path("both")), &["--format", "pcap"]);
}

#[test]
fn files_of_two_link_types_are_named_where_pcap_cannot_hold_both() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two, out] = ["one.pcap", "two.pcap", "out.pcap"].map(|name| folder.path().join(name));
    generated(&one, PACKETS, 10);
    let mut bytes = std::fs::read(&one).unwrap();
    bytes[20] = 6;
    std::fs::write(&two, bytes).unwrap();
    let [one, two, out] = [&one, &two, &out].map(|path| path.to_str().unwrap());
    let said = format!("{one} has 1, {two} has 6; write pcapng");
    refused(&["edit", one, two, out], &said);
    assert!(!Path::new(out).exists());
}
