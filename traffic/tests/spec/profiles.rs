//! Packets of profiles match their descriptions.

use std::collections::HashSet;

use sluicegate_traffic::plan::Plan;
use sluicegate_traffic::spec::{Defaults, PROFILES, Spec};

use crate::frames;
use crate::tshark::{have_tshark, tshark, write};

fn planned(name: &str) -> Plan {
    let spec = Spec::profile(name).unwrap_or_else(|error| panic!("{error}"));
    spec.plan(&Defaults::default()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn each_profile_has_a_description_and_test_addresses() {
    for profile in PROFILES {
        assert!(profile.about().len() > 30, "{}: {}", profile.name, profile.about());
        assert!(profile.text.starts_with("# "), "{}", profile.name);
        for frame in frames(&planned(profile.name), 0, 1, 500) {
            assert_eq!(frame[12..14], [8, 0], "{}", profile.name);
            for address in [&frame[26..30], &frame[30..34]] {
                assert_eq!((address[0], address[1] & !1), (198, 18), "{}", profile.name);
            }
        }
    }
}

#[test]
fn sizes_of_rfc_2544_count_the_frame_check_sequence() {
    for size in [64, 128, 256, 512, 1024, 1280, 1518] {
        let plan = planned(&format!("rfc2544-{size}"));
        assert_eq!(frames(&plan, 0, 1, 1)[0].len() + 4, size);
    }
    assert_eq!(frames(&planned("rfc2544"), 0, 1, 7).len(), 7);
}

#[test]
fn an_unknown_profile_lists_the_names() {
    let error = Spec::profile("syn").unwrap_err().to_string();
    assert!(error.contains("'syn'; available: syn-flood, udp-flood, dns-amplification"), "{error}");
}

#[test]
fn tshark_recognizes_the_profiles() {
    if !have_tshark() {
        return;
    }
    // The expected values in these fields of the first packets.
    let rows: &[(&str, &[&str], &[&str])] = &[
        (
            "syn-flood",
            &["tcp.flags.str", "tcp.options.mss_val", "tcp.checksum.status"],
            &["··········S·", "1460", "1"],
        ),
        ("udp-flood", &["udp.checksum.status"], &["1"]),
        (
            "dns-amplification",
            &["dns.flags.response", "dns.count.answers", "dns.qry.name", "_ws.malformed"],
            &["1", "80", "example.com", ""],
        ),
        ("ntp-amplification", &["ntp.priv.reqcode", "_ws.malformed"], &["42", ""]),
        ("icmp-flood", &["icmp.type", "icmp.checksum.status"], &["8", "1"]),
        ("imix", &["udp.dstport", "udp.checksum.status"], &["9", "1"]),
        ("rfc2544", &["udp.dstport", "udp.checksum.status"], &["7", "1"]),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcap");
    for (name, fields, expected) in rows {
        write(&path, &frames(&planned(name), 0, 1, 20));
        for line in tshark(&path, fields) {
            assert_eq!(line, *expected, "{name}: {fields:?}");
        }
    }
}

#[test]
fn three_fragments_are_one_datagram() {
    let packets = frames(&planned("fragments"), 0, 1, 400);
    for pieces in packets.chunks(4) {
        let numbers: HashSet<_> = pieces[..3].iter().map(|piece| &piece[18..20]).collect();
        let sources: HashSet<_> = pieces[..3].iter().map(|piece| &piece[26..30]).collect();
        assert_eq!((numbers.len(), sources.len()), (1, 1));
        let carried = |piece: &[u8]| {
            let more = piece[20] & 0x20 != 0;
            let offset = usize::from(u16::from_be_bytes([piece[20] & 0x1f, piece[21]])) * 8;
            let length = usize::from(u16::from_be_bytes([piece[16], piece[17]])) - 20;
            (more, offset, length)
        };
        assert_eq!(carried(&pieces[0]), (true, 0, 1480));
        assert_eq!(carried(&pieces[1]), (true, 1480, 1480));
        assert_eq!(carried(&pieces[2]), (false, 2960, 8));
        assert!(carried(&pieces[3]).0);
        assert_eq!(pieces[0][38..42], [11, 152, 0, 0], "2968 bytes, and no checksum");
    }
}
