//! `-s` has the same effect in the file for every kind of live port.

use std::path::Path;

use sluicegate::file::read::Reader;

use crate::support::*;

/// Bytes that are kept: fewer than some frames have and more than others.
const SNAPLEN: usize = 70;

#[test]
fn a_snap_length_cuts_the_same_on_every_port() {
    let Some(lab) = lab_with(&["tcpreplay"]) else { return };
    let (folder, netns) = (tempfile::tempdir().unwrap(), lab.netns("right"));
    let sent = folder.path().join("sent.pcap");
    const FRAMES: u32 = 100;
    numbered(&sent, 0..FRAMES, 0, 1000);
    let expected: Vec<_> = (0..FRAMES)
        .map(|number| {
            let mut bytes = frame(number);
            let wire_bytes = bytes.len();
            bytes.truncate(SNAPLEN);
            (wire_bytes, bytes)
        })
        .collect();
    let ports = [
        "packet:right0",
        "packet:right0?method=recvmmsg",
        "packet:right0?method=recv",
        "xdp:right0?method=af_xdp",
        "xdp:right0?method=ring",
        "xdp:right0?mode=skb",
        "mirror:right0",
        "mirror:right0?mode=skb",
    ];
    for port in ports {
        for format in ["pcapng", "pcap"] {
            let path = folder.path().join(format!("of.{format}"));
            let to = path.to_str().unwrap();
            let snaplen = SNAPLEN.to_string();
            let capture = Running::start(&[
                "capture", port, "-s", &snaplen, "--netns", &netns, "-f", NUMBERED, "--json", "-w",
                to,
            ]);
            replay(&lab, "left", "left0", &sent, 50_000);
            let report = capture.stop().good();
            // The length on the wire, however few bytes are kept.
            let bytes: usize = expected.iter().map(|(wire_bytes, _)| wire_bytes).sum();
            assert_eq!((&report["packets"], &report["bytes"]), (&FRAMES.into(), &bytes.into()));
            let (told, got) = read(&path);
            assert_eq!(told, SNAPLEN as u32, "{port}, {format}: what the file says of itself");
            assert!(got == expected, "{port}, {format}: {} packets", got.len());
        }
    }
}

/// A file's snap length and its packets: length on the wire, and bytes.
fn read(path: &Path) -> (u32, Vec<(usize, Vec<u8>)>) {
    let mut reader = Reader::open(path).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_packet().unwrap() {
        let packet = record.packet();
        packets.push((packet.meta().wire_bytes as usize, packet.head().to_vec()));
    }
    (reader.interfaces()[0].snaplen, packets)
}
