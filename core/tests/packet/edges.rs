//! Interfaces that are down, loopback, tags, short snap lengths, clocks, busy polling.

use std::process::{Command, Stdio};
use std::time::Duration;

use sluicegate::file::read::Reader;
use sluicegate::port::Directions;
use sluicegate::ring::{Direction, Readiness, TimestampSource, Wait};

use crate::{
    METHODS, OURS, PATIENCE, before_marker, child, collect, frame, is_ours, lab, lines,
    receive_from, rings, run, send, send_to, try_open, wait_for_carrier,
};

#[test]
fn an_interface_that_is_down_says_so_once_and_delivers_when_it_comes_up() {
    let Some(lab) = lab() else { return };
    for method in METHODS {
        for sync_first in [false, true] {
            run(&lab, "right", "ip link set right0 down");
            let mut port = receive_from(&lab, "right", &format!("packet:right0?{method}"));
            let queue = &mut port.queues[0];
            if sync_first {
                assert_eq!(queue.sync_rx().unwrap(), 0);
            }
            let answer = queue.wait_rx(Wait::default(), Duration::from_secs(5)).unwrap();
            assert_eq!(answer, Readiness::Down, "{method}, synced first: {sync_first}");
            let answer = queue.wait_rx(Wait::default(), Duration::from_millis(1)).unwrap();
            assert_eq!(answer, Readiness::TimedOut, "{method}: it is said once");
            run(&lab, "right", "ip link set right0 up");
            wait_for_carrier(&lab, true);
            send(&mut send_to(&lab, "left", "left0"), &[frame(1, 60)]);
            assert_eq!(collect(queue, 1, is_ours).len(), 1, "{method}");
        }
    }
}

/// Since Linux 6.13 a fanout can be joined before the interface is up.
#[test]
fn several_queues_on_an_interface_that_is_down_wait_or_are_refused_with_the_remedy() {
    let Some(lab) = lab() else { return };
    run(&lab, "right", "ip link set right0 down");
    let mut port = match try_open(&lab, "right", "packet:right0/0-1?fanout=lb", Directions::Receive)
    {
        Ok(port) => port,
        Err(error) => {
            assert!(error.to_string().contains("bring it up first"), "{error}");
            return;
        }
    };
    run(&lab, "right", "ip link set right0 up");
    wait_for_carrier(&lab, true);
    let sent: Vec<Vec<u8>> = (0..10).map(|i| frame(i, 60)).collect();
    send(&mut send_to(&lab, "left", "left0"), &sent);
    for queue in &mut port.queues {
        let answer = queue.wait_rx(Wait::Sleep, Duration::from_secs(1)).unwrap();
        assert_eq!(answer, Readiness::Down, "it is said to each");
    }
    let came = rings::collect(&mut port.queues, 10, PATIENCE, is_ours).len();
    let more = before_marker(&lab, "left", "left0", &mut port.queues);
    assert_eq!((came, more), (10, 0));
}

#[test]
fn a_packet_on_loopback_is_seen_once_as_tcpdump_sees_it() {
    let Some(lab) = lab() else { return };
    // A second copy of any but the last would come before that.
    let sent: Vec<Vec<u8>> = (0..20).map(|i| frame(i, 60)).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lo.pcap");
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-i", "lo", "-U", "-c", "20", "-w"]).arg(&path).args(["ether", "proto"]);
    tcpdump.arg(format!("{}", u16::from_be_bytes(OURS))).stderr(Stdio::piped());
    let tcpdump = lab.spawn("left", &mut tcpdump).ok().map(|mut tcpdump| {
        let stderr = tcpdump.stderr.take().unwrap();
        // From here on it captures.
        let (_, rest) = lines::until(tcpdump.id(), stderr, "tcpdump: listening on lo");
        (tcpdump, rest)
    });
    let mut ports: Vec<_> = METHODS
        .iter()
        .map(|method| receive_from(&lab, "left", &format!("packet:lo?{method}")))
        .collect();
    send(&mut send_to(&lab, "left", "lo"), &sent);
    for (port, method) in ports.iter_mut().zip(METHODS) {
        let queue = &mut port.queues[0];
        let got = collect(queue, sent.len(), is_ours);
        assert!(got.iter().map(|(_, bytes)| bytes).eq(&sent), "{method}: {}", got.len());
        assert!(got.iter().all(|(meta, _)| meta.direction == Direction::In), "{method}");
    }
    let Some((tcpdump, _rest)) = tcpdump else {
        println!("not compared: there is no tcpdump");
        return;
    };
    assert!(child::end(tcpdump).status.success());
    let mut reader = Reader::open(&path).unwrap();
    for frame in &sent {
        let record = reader.next_packet().unwrap().expect("tcpdump has all of them");
        assert_eq!(record.packet().head(), frame, "once, in order");
    }
}

#[test]
fn tags_of_vlan_devices_are_back_in_the_frame_on_either_end() {
    let Some(lab) = lab() else { return };
    let outer = "ip link add link left0 name outer type vlan proto 802.1ad id 100";
    let mut ip = lab.spawn("left", Command::new("ip").args(outer.split(' ').skip(1))).unwrap();
    if !ip.wait().unwrap().success() {
        println!("skipped: needs VLAN devices; get it by modprobe 8021q");
        return;
    }
    run(&lab, "left", "ip link add link outer name inner type vlan proto 802.1Q id 5");
    run(&lab, "left", "ip link add link left0 name plain type vlan id 7");
    for device in ["outer", "inner", "plain"] {
        run(&lab, "left", &format!("ip link set {device} up"));
    }
    let [s100, q5, q7] = [[0x88, 0xa8, 0, 100], [0x81, 0, 0, 5], [0x81, 0, 0, 7]];
    let both = [s100, q5].concat();
    let rows: [(&str, &[u8]); 3] = [("plain", &q7), ("outer", &s100), ("inner", &both)];
    for method in METHODS {
        for (device, tags) in rows {
            let mut left = receive_from(&lab, "left", &format!("packet:left0?{method}"));
            let mut right = receive_from(&lab, "right", &format!("packet:right0?{method}"));
            let untagged = frame(3, 80);
            send(&mut send_to(&lab, "left", device), std::slice::from_ref(&untagged));
            let mut expected = untagged;
            expected.splice(12..12, tags.iter().copied());
            for (port, direction) in [(&mut left, Direction::Out), (&mut right, Direction::In)] {
                let wanted = |bytes: &[u8]| bytes[6..12] == [2, 0, 0, 0, 0, 1];
                let got = collect(&mut port.queues[0], 1, wanted);
                let (meta, bytes) = &got[0];
                assert_eq!(bytes, &expected, "{method}, {device}, {direction:?}");
                assert_eq!(meta.wire_bytes as usize, expected.len());
                let outer = (u16::from_be_bytes([tags[0], tags[1]]), u16::from(tags[3]));
                assert_eq!((meta.vlan_tpid, meta.vlan_tci), outer, "{method}, {device}");
                assert_eq!(meta.direction, direction, "{method}, {device}");
            }
        }
    }
}

#[test]
fn a_snap_length_within_addresses_or_tag_leaves_the_length_and_the_tag_known() {
    let Some(lab) = lab() else { return };
    let mut tagged = frame(9, 60);
    tagged.splice(12..12, [0x81, 0, 0x20, 5]);
    for method in METHODS {
        for snaplen in [1, 11, 12, 13, 15, 16, 17, 63, 64, 65] {
            // The frame is tagged, so the kernel is asked for its source address.
            let name = format!(
                "packet:right0?{method}&snaplen={snaplen}&filter=ether src 02:00:00:00:00:01"
            );
            let mut port = receive_from(&lab, "right", &name);
            send(&mut send_to(&lab, "left", "left0"), std::slice::from_ref(&tagged));
            let got = collect(&mut port.queues[0], 1, |_| true);
            let (meta, bytes) = &got[0];
            assert_eq!(bytes, &tagged[..snaplen.min(64)], "{method}, {snaplen}");
            assert_eq!(meta.wire_bytes, 64, "{method}, {snaplen}");
            assert_eq!((meta.vlan_tpid, meta.vlan_tci), (0x8100, 0x2005), "{method}, {snaplen}");
        }
    }
}

#[test]
fn hardware_times_are_asked_of_a_card_that_takes_them_only() {
    let Some(lab) = lab() else { return };
    for method in METHODS {
        let name = format!("packet:right0?{method}&timestamp=hardware");
        let mut port = receive_from(&lab, "right", &name);
        let [fallback] = &port.fallbacks[..] else { panic!("{method}: {:?}", port.fallbacks) };
        assert_eq!((fallback.from, fallback.to), ("hardware timestamps", "software timestamps"));
        assert!(fallback.reason.contains("right0 has no clock"), "{}", fallback.reason);
        assert_eq!(port.queues[0].interfaces()[0].comment, "timestamps: software (kernel)");
        send(&mut send_to(&lab, "left", "left0"), &[frame(1, 60)]);
        let got = collect(&mut port.queues[0], 1, is_ours);
        assert_eq!(got[0].0.timestamp_source, TimestampSource::Software, "{method}");
        let port = receive_from(&lab, "right", &format!("packet:right0?{method}"));
        assert!(port.fallbacks.is_empty(), "{method}: nobody asked, nobody is told");
    }
}

#[test]
fn busy_polling_receives_like_sleeping() {
    let Some(lab) = lab() else { return };
    for method in METHODS {
        let name = format!("packet:right0?{method}&busy_poll=50us");
        let mut port = receive_from(&lab, "right", &name);
        let sent: Vec<Vec<u8>> = (0..100).map(|i| frame(i, 60)).collect();
        send(&mut send_to(&lab, "left", "left0"), &sent);
        let got = collect(&mut port.queues[0], sent.len(), is_ours);
        assert!(got.iter().map(|(_, bytes)| bytes).eq(&sent), "{method}");
    }
}
