//! Every backend shows the same packets the same way: what one end of a lab's link sends, the
//! other end receives with the same bytes, lengths and order, VLAN tags where they were, times
//! and their source said. Sent through the transmit ring, so that is tested too.
//!
//! The same holds for two interfaces of the machine's (see `hosts`), as far as their drivers go:
//! there, what cannot be opened is said, and left out.

use std::time::{Duration, Instant, SystemTime};

use sluicegate::port::{OpenOptions, Port, PortName, Queue, Use};
use sluicegate::ring::{Direction, Meta, Packet, TimestampSource, Wait};

use crate::hosts::{self, Wire, patience, thinned};

const METHODS: &[&str] = &[
    "method=recv",
    "method=recvmmsg",
    "method=recvmmsg&batch=3",
    "method=ring",
    "method=ring&block_size=256K&blocks=64&retire=1ms",
    "method=ring&slots=16",
];

/// Ways of receiving by XDP. What is not said is zero-copy where a driver has it, and veth has not.
const XDP: &[&str] = &[
    "xdp:right0?mode=native",
    "xdp:right0?mode=native&filter=not icmp6",
    "xdp:right0?method=ring&slots=16&frames=1024",
    "xdp:right0?method=ring&mode=skb&filter=not icmp6",
    "xdp:right0?method=af_xdp",
    "xdp:right0?method=af_xdp&slots=16&frames=1024",
    "xdp:right0?method=af_xdp&filter=not icmp6",
    "xdp:right0?mode=skb",
];

/// And what only other drivers can, or cannot.
const XDP_OF_DRIVERS: &[&str] =
    &["xdp:right0", "xdp:right0?mode=zero-copy", "xdp:right0?mode=copy"];

/// All that receive and leave the host its packets, in the ways they can.
fn sources() -> Vec<String> {
    let packet = METHODS.iter().map(|method| format!("packet:right0?{method}"));
    let mirror = ["native", "skb"].map(|mode| format!("mirror:right0?cells=256&mode={mode}"));
    packet.chain(mirror).collect()
}

/// All that receive by XDP.
fn xdp_sources(lab: &Wire) -> Vec<String> {
    let of_drivers = if lab.is_lab() { &[] } else { XDP_OF_DRIVERS };
    XDP.iter().chain(of_drivers).map(|&name| name.to_owned()).collect()
}

/// A wire for this test, or the reason why there is none.
fn lab() -> Option<Wire> {
    hosts::wire(1)
}

/// A port that receives on the right host; none if its driver cannot have it. In a lab each can be
/// had.
fn receiver(lab: &Wire, name: &str) -> Option<Port> {
    match try_open(lab, "right", name, Use::Receive) {
        Err(error) if !lab.is_lab() => {
            println!("left out: {name}: {error}");
            None
        }
        port => Some(port.unwrap()),
    }
}

fn open(lab: &Wire, host: &str, name: &str, usage: Use) -> Port {
    try_open(lab, host, name, usage).unwrap()
}

fn try_open(lab: &Wire, host: &str, name: &str, usage: Use) -> sluicegate::Result<Port> {
    let name: PortName = name.parse()?;
    let options = OpenOptions { usage, netns: Some(lab.netns(host)), ..OpenOptions::default() };
    Port::open(&name, &options)
}

/// An Ethernet frame for the experimental ethertype 0x88b5, with a number and a pattern.
fn frame(number: u32, bytes: usize, tags: &[(u16, u16)]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(0x88b5u16.to_be_bytes());
    frame.extend(number.to_be_bytes());
    let pattern = (0..).map(|i: u32| (i.wrapping_mul(31) ^ number) as u8);
    let fill = bytes.saturating_sub(frame.len());
    frame.extend(pattern.take(fill));
    frame
}

/// Frames of many kinds: plain, tagged, doubly tagged, short and long.
fn frames(longest: usize) -> Vec<Vec<u8>> {
    let kinds: &[&[(u16, u16)]] = &[
        &[],
        &[(0x8100, 0x2005)],
        &[(0x88a8, 0x0064), (0x8100, 0x0fff)],
        &[(0x8100, 0x0000)],
        &[(0x8100, 7), (0x8100, 8)],
    ];
    let sizes = [60, 64, 127, 590, 1514, 2043, 2044, 2045, 2048, 2049, 9014, 40_000, 65_000];
    let mut frames = Vec::new();
    for bytes in sizes.into_iter().filter(|&bytes| bytes <= longest) {
        for tags in kinds {
            let bytes = bytes.min(longest - 4 * tags.len());
            frames.push(frame(frames.len() as u32, bytes, tags));
        }
    }
    frames
}

fn send(lab: &Wire, host: &str, interface: &str, frames: &[Vec<u8>]) {
    lab.wait_for_link();
    let name = format!("packet:{interface}?slots=256");
    let mut port = open(lab, host, &name, Use::Send);
    let queue = &mut port.queues[0];
    for frame in frames {
        let meta = Meta::default();
        let deadline = Instant::now() + patience();
        while !queue.tx_mut().push(&Packet::new(&meta, frame)) {
            queue.sync_tx().unwrap();
            assert!(Instant::now() < deadline, "the transmit ring stays full");
        }
    }
    let deadline = Instant::now() + patience();
    while queue.stats().unwrap().sent < frames.len() as u64 {
        queue.sync_tx().unwrap();
        assert!(Instant::now() < deadline, "{:?}", queue.stats());
    }
}

/// Receives until `n` packets of our ethertype have come, or our patience has ended.
fn receive(queues: &mut [Queue], n: usize) -> Vec<(Meta, Vec<u8>)> {
    let mut got = Vec::new();
    let deadline = Instant::now() + patience();
    while got.len() < n && Instant::now() < deadline {
        for queue in &mut *queues {
            if queue.sync_rx().unwrap() == 0 {
                queue.wait_rx(Wait::default(), Duration::from_millis(5)).unwrap();
            }
            let mut scratch = Vec::new();
            for packet in queue.rx().packets() {
                let bytes = packet.contiguous(&mut scratch);
                if is_ours(bytes) {
                    got.push((*packet.meta(), bytes.to_vec()));
                }
            }
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
    }
    got
}

fn is_ours(bytes: &[u8]) -> bool {
    let mut at = 12;
    while matches!(bytes.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8])) {
        at += 4;
    }
    bytes.get(at..at + 2) == Some(&[0x88, 0xb5])
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64
}

#[test]
fn every_method_receives_what_was_sent() {
    let Some(lab) = lab() else { return };
    let sent = frames(1514);
    for source in sources().into_iter().chain(xdp_sources(&lab)) {
        let Some(mut port) = receiver(&lab, &source) else { continue };
        let before = now_ns();
        send(&lab, "left", "left0", &sent);
        let got = receive(&mut port.queues, sent.len());
        let after = now_ns();
        assert_eq!(got.len(), sent.len(), "{source}: packets, {:?}", port.queues[0].stats());
        let mut last_ns = before;
        for (i, ((meta, bytes), sent)) in got.iter().zip(&sent).enumerate() {
            assert_eq!(bytes, sent, "{source}: frame {i}");
            assert_eq!(meta.wire_bytes as usize, sent.len(), "{source}: frame {i}");
            let outer = u16::from_be_bytes([sent[12], sent[13]]);
            let tagged = matches!(outer, 0x8100 | 0x88a8);
            // XDP comes before the kernel takes a tag out.
            let put_back = tagged && source.starts_with("packet:");
            assert_eq!(meta.vlan_tpid, if put_back { outer } else { 0 }, "{source}: frame {i}");
            assert_eq!(meta.timestamp_source, TimestampSource::Software, "{source}");
            assert_eq!(meta.direction, Direction::In, "{source}");
            let time = meta.timestamp_ns;
            assert!(last_ns <= time && time <= after, "{source}: frame {i} is in time");
            last_ns = time;
        }
    }
}

#[test]
fn xdp_receives_frames_of_several_buffers() {
    let Some(lab) = lab() else { return };
    if !lab.set_mtu(9100) {
        return;
    }
    let sent = frames(9014);
    if let Err(error) = try_open(&lab, "right", "xdp:right0?mode=skb", Use::Receive)
        && error.to_string().contains("need Linux 6.6")
    {
        println!("skipped: {error}");
        return;
    }
    for name in &xdp_sources(&lab) {
        let Some(mut port) = receiver(&lab, name) else { continue };
        send(&lab, "left", "left0", &sent);
        let got = receive(&mut port.queues, sent.len());
        assert_eq!(got.len(), sent.len(), "{name}: packets, {:?}", port.queues[0].stats());
        for (i, ((meta, bytes), sent)) in got.iter().zip(&sent).enumerate() {
            assert!(bytes == sent, "{name}: frame {i} of {} bytes differs", sent.len());
            assert_eq!(meta.wire_bytes as usize, sent.len(), "{name}: frame {i}");
        }
    }
}

#[test]
fn xdp_takes_every_queue_or_those_that_are_named() {
    let Some(lab) = hosts::wire(4) else { return };
    if !lab.is_lab() {
        println!("skipped: which queue of a card a packet comes to is the card's to say");
        return;
    }
    let sent: Vec<Vec<u8>> = (0..500).map(|i| frame(i, 60, &[])).collect();
    for (queues, count) in [("", 4), ("/0-3", 4), ("/0-1", 2), ("/2", 1)] {
        for way in ["method=ring", "method=af_xdp", "mode=skb"] {
            let name = format!("xdp:right0{queues}?{way}");
            let Some(mut port) = receiver(&lab, &name) else { continue };
            assert_eq!(port.queues.len(), count, "{name}");
            send(&lab, "left", "left0", &sent);
            if count < 4 {
                continue; // What comes to other queues is the host's.
            }
            let mut got: Vec<Vec<u8>> =
                receive(&mut port.queues, sent.len()).into_iter().map(|(_, it)| it).collect();
            got.sort();
            let mut expected = sent.clone();
            expected.sort();
            assert!(got == expected, "{name}: {} of {}", got.len(), expected.len());
        }
    }
}

#[test]
fn xdp_sends_what_the_other_end_receives() {
    let Some(lab) = lab() else { return };
    let sent = frames(1514);
    for mode in ["native", "skb"] {
        let mut from = match try_open(&lab, "left", &format!("xdp:left0?mode={mode}"), Use::Send) {
            Err(error) if !lab.is_lab() => {
                println!("left out: {mode}: {error}");
                continue;
            }
            port => port.unwrap(),
        };
        let mut to = open(&lab, "right", "packet:right0", Use::Receive);
        lab.wait_for_link();
        let queue = &mut from.queues[0];
        let meta = Meta::default();
        for frame in &sent {
            while !queue.tx_mut().push(&Packet::new(&meta, frame)) {
                queue.sync_tx().unwrap();
            }
        }
        queue.close_tx().unwrap();
        assert_eq!(queue.stats().unwrap().sent, sent.len() as u64, "{mode}");
        let got = receive(&mut to.queues, sent.len());
        let got: Vec<&[u8]> = got.iter().map(|(_, bytes)| &bytes[..]).collect();
        assert!(got == sent.iter().map(|it| &it[..]).collect::<Vec<_>>(), "{mode}");
    }
}

#[test]
fn every_method_receives_frames_longer_than_a_buffer() {
    let Some(lab) = lab() else { return };
    let (mtu, longest) = if lab.is_lab() { (65_535, 65_000) } else { (9100, 9014) };
    if !lab.set_mtu(mtu) {
        return;
    }
    let sent = frames(longest);
    for source in sources() {
        let Some(mut port) = receiver(&lab, &source) else { continue };
        send(&lab, "left", "left0", &sent);
        let got = receive(&mut port.queues, sent.len());
        assert_eq!(got.len(), sent.len(), "{source}: packets, {:?}", port.queues[0].stats());
        for (i, ((meta, bytes), sent)) in got.iter().zip(&sent).enumerate() {
            assert!(bytes == sent, "{source}: frame {i} of {} bytes differs", sent.len());
            assert_eq!(meta.wire_bytes as usize, sent.len(), "{source}: frame {i}");
        }
    }
}

#[test]
fn a_snap_length_cuts_the_bytes_and_keeps_the_length() {
    let Some(lab) = lab() else { return };
    let sent = frames(1514);
    for source in sources() {
        for snaplen in [14, 60, 100] {
            let name = format!("{source}&snaplen={snaplen}");
            let Some(mut port) = receiver(&lab, &name) else { continue };
            send(&lab, "left", "left0", &sent);
            let n = sent.len();
            let mut got = Vec::new();
            let deadline = Instant::now() + patience();
            while got.len() < n && Instant::now() < deadline {
                let queue = &mut port.queues[0];
                if queue.sync_rx().unwrap() == 0 {
                    queue.wait_rx(Wait::Sleep, Duration::from_millis(5)).unwrap();
                }
                let own = |p: &Packet<'_>| p.head()[6..12] == [2, 0, 0, 0, 0, 1];
                let packets = queue.rx().packets().filter(own);
                got.extend(packets.map(|p| (p.meta().wire_bytes as usize, p.head().to_vec())));
                let slots = queue.rx().available();
                queue.rx_mut().release(slots);
            }
            assert_eq!(got.len(), n, "{source} snaplen {snaplen}");
            for ((wire, bytes), sent) in got.iter().zip(&sent) {
                assert_eq!(*wire, sent.len(), "{source} snaplen {snaplen}");
                assert_eq!(bytes, &sent[..snaplen.min(sent.len())], "{source} snaplen {snaplen}");
            }
        }
    }
}

#[test]
fn a_fanout_gives_each_packet_to_one_queue() {
    let Some(lab) = lab() else { return };
    let sent: Vec<Vec<u8>> = (0..thinned(2000)).map(|i| frame(i, 60, &[])).collect();
    for fanout in ["hash", "lb", "cpu", "rollover", "rnd", "qm", "bpf"] {
        for method in ["ring", "recvmmsg"] {
            for flags in ["", "&fanout_flags=defrag,rollover"] {
                let name = format!("packet:right0/0-2?method={method}&fanout={fanout}{flags}");
                let Some(mut port) = receiver(&lab, &name) else { continue };
                assert_eq!(port.queues.len(), 3);
                send(&lab, "left", "left0", &sent);
                let mut got = receive(&mut port.queues, sent.len());
                // What comes twice would come now.
                got.extend(receive(&mut port.queues, 0));
                let mut bytes: Vec<Vec<u8>> = got.into_iter().map(|(_, bytes)| bytes).collect();
                bytes.sort();
                let mut expected = sent.clone();
                expected.sort();
                assert!(bytes == expected, "{name}: {} of {}", bytes.len(), expected.len());
            }
        }
    }
}

#[test]
fn a_filter_lets_nothing_else_in_and_sees_tags_on_the_wire() {
    let Some(lab) = lab() else { return };
    let sent = frames(1514);
    for source in sources() {
        for (filter, matches) in [
            ("vlan", (|f: &[u8]| f[12..14] != [0x88, 0xb5]) as fn(&[u8]) -> bool),
            ("ether proto 0x88b5", |f| f[12..14] == [0x88, 0xb5]),
            ("vlan 5", |f| f[12] != 0x88 && f[15] == 5 && f[14] & 0x0f == 0),
            ("greater 600", |f| f.len() >= 600),
            ("ether[16:2] = 0x88b5", |f| f[16..18] == [0x88, 0xb5]),
        ] {
            let name = format!("{source}&filter={filter}");
            let expected: Vec<&Vec<u8>> = sent.iter().filter(|f| matches(f)).collect();
            assert!(!expected.is_empty(), "{filter}");
            let Some(mut port) = receiver(&lab, &name) else { continue };
            send(&lab, "left", "left0", &sent);
            let got = receive(&mut port.queues, expected.len());
            assert_eq!(got.len(), expected.len(), "{name}");
            assert!(got.iter().zip(expected).all(|((_, got), sent)| got == sent), "{name}");
            assert_eq!(port.queues[0].stats().unwrap().offered, got.len() as u64, "{name}");
        }
    }
}

#[test]
fn sent_packets_are_seen_unless_left_out() {
    let Some(lab) = lab() else { return };
    let sent: Vec<Vec<u8>> = (0..10).map(|i| frame(i, 60, &[])).collect();
    for method in METHODS {
        let mut with = open(&lab, "left", &format!("packet:left0?{method}"), Use::Receive);
        let mut without =
            open(&lab, "left", &format!("packet:left0?{method}&outgoing=off"), Use::Receive);
        send(&lab, "left", "left0", &sent);
        let got = receive(&mut with.queues, sent.len());
        assert_eq!(got.len(), sent.len(), "{method}: {:?}", with.queues[0].stats());
        assert!(got.iter().all(|(meta, _)| meta.direction == Direction::Out), "{method}");
        let queue = &mut without.queues[0];
        queue.wait_rx(Wait::Sleep, Duration::from_millis(30)).unwrap();
        assert_eq!(queue.sync_rx().unwrap(), 0, "{method}");
    }
}

#[test]
fn promiscuous_mode_is_on_while_the_port_is_open() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let promiscuous = || {
        let output = std::process::Command::new("ip")
            .args(["-n", &netns, "-d", "link", "show", "right0"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        !text.contains("promiscuity 0")
    };
    assert!(lab.run("right", "ip link set right0 promisc off"));
    assert!(!promiscuous());
    let port = open(&lab, "right", "right0", Use::Receive);
    assert!(promiscuous());
    drop(port);
    assert!(!promiscuous());
    let port = open(&lab, "right", "mirror:right0", Use::Receive);
    assert!(promiscuous());
    drop(port);
    assert!(!promiscuous());
    for name in ["packet:right0?promisc=off", "mirror:right0?promisc=off"] {
        let _port = open(&lab, "right", name, Use::Receive);
        assert!(!promiscuous(), "{name}");
    }
}

#[test]
fn a_slow_reader_loses_packets_by_count_and_every_gap_is_marked() {
    let Some(lab) = lab() else { return };
    let sent: Vec<Vec<u8>> = (0..thinned(20_000)).map(|i| frame(i, 1514, &[])).collect();
    for name in [
        "packet:right0?method=ring&block_size=64K&blocks=4",
        "packet:right0?method=recvmmsg&buffer=64K",
        "packet:right0?method=recv&buffer=64K",
        "mirror:right0?cells=64",
    ] {
        let Some(mut port) = receiver(&lab, name) else { continue };
        send(&lab, "left", "left0", &sent);
        let queue = &mut port.queues[0];
        // Empties the buffer and gives it back, then one more packet closes the gap.
        let mut got = receive_now(queue);
        loop {
            let more = receive_now(queue);
            if more.is_empty() {
                break;
            }
            got.extend(more);
        }
        send(&lab, "left", "left0", &[frame(99_999, 60, &[])]);
        queue.close_intake().unwrap();
        let deadline = Instant::now() + patience();
        while !queue.is_finished() && Instant::now() < deadline {
            got.extend(receive_now(queue));
        }
        let stats = queue.stats().unwrap();
        assert!(stats.lost_full > 0, "{name}: the buffer ran full");
        assert_eq!(stats.offered, got.len() as u64 + stats.lost_full, "{name}");
        let marked: u64 = got.iter().map(|(meta, _)| u64::from(meta.lost_before)).sum();
        assert_eq!(marked, stats.lost_full, "{name}: losses marked at packets");
        let mut expected = 0;
        for (meta, bytes) in &got {
            let number = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
            if number != 99_999 {
                assert_eq!(number, expected + meta.lost_before, "{name}: the gap is where it is");
                expected = number + 1;
            }
        }
    }
}

#[test]
fn packets_forwarded_from_an_interface_into_a_file_are_there_as_they_were_on_the_wire() {
    use sluicegate::file::read::Reader;
    use sluicegate::forward::forward;
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let sent = frames(1514);
    for source in sources() {
        for name in ["a.pcapng", "a.pcap.zst"] {
            let path = folder.path().join(name);
            let Some(mut port) = receiver(&lab, &source) else { continue };
            let mut file =
                open(&lab, "right", &format!("pcap:{}", path.display()), Use::Send).queues;
            let (from, to) = (&mut port.queues[0], &mut file[0]);
            to.describe_sent(from.interfaces()).unwrap();
            send(&lab, "left", "left0", &sent);
            let deadline = Instant::now() + patience();
            // Whatever else is on the link comes too.
            let (mut moved, mut offered) = (0, u64::MAX);
            while moved < offered.max(sent.len() as u64) && Instant::now() < deadline {
                from.sync_rx().unwrap();
                moved += u64::from(forward(from.rx_mut(), to.tx_mut()).copied_packets);
                to.sync_tx().unwrap();
                offered = from.stats().unwrap().offered;
            }
            to.close_tx().unwrap();
            assert_eq!(to.stats().unwrap().sent, moved, "{source} {name}");
            let mut reader = Reader::open(&path).unwrap();
            let mut got = Vec::new();
            while let Some(record) = reader.next_packet().unwrap() {
                let packet = record.packet();
                if is_ours(packet.head()) {
                    assert_eq!(packet.meta().wire_bytes as usize, packet.head().len());
                    got.push(packet.head().to_vec());
                }
            }
            assert!(got == sent, "{source} {name}: {} of {}", got.len(), sent.len());
            let interface = &reader.interfaces()[0];
            if name.ends_with("pcapng") {
                assert_eq!(interface.name, "right0");
                assert!(interface.comment.starts_with("timestamps: software (kernel)"));
            }
        }
    }
}

fn receive_now(queue: &mut Queue) -> Vec<(Meta, Vec<u8>)> {
    queue.sync_rx().unwrap();
    let got = queue.rx().packets().map(|p| (*p.meta(), p.head().to_vec())).collect();
    let slots = queue.rx().available();
    queue.rx_mut().release(slots);
    got
}

#[test]
fn an_interface_that_goes_away_is_said_to_be_gone_and_one_that_is_down_comes_back() {
    use sluicegate::ring::Readiness;
    let Some(lab) = lab() else { return };
    let set = |state| {
        assert!(lab.run("right", &format!("ip link set right0 {state}")));
    };
    for source in sources() {
        let Some(mut port) = receiver(&lab, &source) else { continue };
        set("down");
        let queue = &mut port.queues[0];
        let deadline = Instant::now() + patience();
        // What came before may be told first.
        while queue.wait_rx(Wait::Sleep, Duration::from_secs(5)).unwrap() != Readiness::Down {
            receive_now(queue);
            assert!(Instant::now() < deadline, "{source}: that it is down is not said");
        }
        set("up");
        let sent = [frame(1, 60, &[])];
        send(&lab, "left", "left0", &sent);
        assert_eq!(receive(&mut port.queues, 1).len(), 1, "{source}: it goes on");
    }
    let mut port = open(&lab, "right", "packet:right0", Use::Receive);
    lab.remove_right0();
    let error = loop {
        match port.queues[0].wait_rx(Wait::Sleep, Duration::from_secs(5)) {
            Ok(Readiness::TimedOut) => panic!("nothing was said"),
            Ok(_) => continue,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, sluicegate::Error::Gone { .. }), "{error}");
}
