//! All frames that were sent are received, in order, from the shortest to the longest.

use std::time::{Instant, SystemTime};

use sluicegate::file::read::Reader;
use sluicegate::forward::forward;
use sluicegate::port::{Directions, Port};
use sluicegate::ring::{Direction, Meta, Packet, TimestampSource};

use super::frames::{frames, receive, send};
use super::{lab, open, receiver, sources, xdp_sources};
use crate::hosts::PATIENCE;
use crate::numbered::is_ours;
use crate::traffic;

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
        send(&lab, &sent);
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
fn every_method_receives_frames_longer_than_a_buffer() {
    let Some(lab) = lab() else { return };
    let (mtu, longest) = if lab.is_lab() { (65_535, 65_000) } else { (9100, 9014) };
    if !lab.set_mtu(mtu) {
        return;
    }
    let sent = frames(longest);
    let mut failed = Vec::new();
    for source in sources() {
        let Some(mut port) = receiver(&lab, &source) else { continue };
        send(&lab, &sent);
        let got = receive(&mut port.queues, sent.len());
        if got.len() != sent.len() {
            failed.push(format!("{source}: {}", who_lost(&mut port, got.len(), sent.len())));
            continue;
        }
        for (i, ((meta, bytes), sent)) in got.iter().zip(&sent).enumerate() {
            assert!(bytes == sent, "{source}: frame {i} of {} bytes differs", sent.len());
            assert_eq!(meta.wire_bytes as usize, sent.len(), "{source}: frame {i}");
        }
    }
    assert!(failed.is_empty(), "rows that failed: {failed:#?}");
}

/// Why fewer packets came than were sent: the port has to account for those that it was received;
/// what it was never received was lost before it.
fn who_lost(port: &mut Port, came: usize, sent: usize) -> String {
    let (mut received, mut lost) = (0, 0);
    for queue in &mut port.queues {
        let stats = queue.stats().unwrap();
        received += stats.received;
        lost += stats.dropped_ring_full;
    }
    if received == came as u64 && lost == 0 && came < sent {
        return format!("{received} of {sent} were received");
    }
    format!(
        "the port lost packets: {sent} sent, {received} received, {came} came, {lost} dropped_ring_full"
    )
}

#[test]
fn xdp_receives_frames_of_several_buffers() {
    let Some(lab) = lab() else { return };
    if !lab.set_mtu(9100) {
        return;
    }
    let sent = frames(9014);
    if let Err(error) = traffic::open(&lab, "right", "xdp:right0?mode=skb", Directions::Receive)
        && error.to_string().contains("need Linux 6.6")
    {
        println!("skipped: {error}");
        return;
    }
    for name in &xdp_sources(&lab) {
        let Some(mut port) = receiver(&lab, name) else { continue };
        send(&lab, &sent);
        let got = receive(&mut port.queues, sent.len());
        assert_eq!(got.len(), sent.len(), "{name}: packets, {:?}", port.queues[0].stats());
        for (i, ((meta, bytes), sent)) in got.iter().zip(&sent).enumerate() {
            assert!(bytes == sent, "{name}: frame {i} of {} bytes differs", sent.len());
            assert_eq!(meta.wire_bytes as usize, sent.len(), "{name}: frame {i}");
        }
    }
}

#[test]
fn xdp_sends_what_the_other_end_receives() {
    let Some(lab) = lab() else { return };
    let sent = frames(1514);
    for mode in ["native", "skb"] {
        let name = format!("xdp:left0?mode={mode}");
        let mut from = match traffic::open(&lab, "left", &name, Directions::Send) {
            Ok(port) => port,
            Err(error) => {
                traffic::left_out(&lab, &name, &error);
                continue;
            }
        };
        let mut to = open(&lab, "right", "packet:right0", Directions::Receive);
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
fn packets_forwarded_from_an_interface_into_a_file_are_there_as_they_were_on_the_wire() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let sent = frames(1514);
    for source in sources() {
        for name in ["a.pcapng", "a.pcap.zst"] {
            let path = folder.path().join(name);
            let Some(mut port) = receiver(&lab, &source) else { continue };
            let mut file =
                open(&lab, "right", &format!("pcap:{}", path.display()), Directions::Send).queues;
            let (from, to) = (&mut port.queues[0], &mut file[0]);
            to.describe_sent(from.interfaces()).unwrap();
            send(&lab, &sent);
            let deadline = Instant::now() + PATIENCE;
            // Whatever else is on the link comes too.
            let (mut moved, mut received) = (0, u64::MAX);
            while moved < received.max(sent.len() as u64) && Instant::now() < deadline {
                from.sync_rx().unwrap();
                moved += u64::from(forward(from.rx_mut(), to.tx_mut()).copied_packets);
                to.sync_tx().unwrap();
                received = from.stats().unwrap().received;
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
