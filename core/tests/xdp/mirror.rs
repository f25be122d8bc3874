//! `mirror:` ports: copies, while the host keeps its packets.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use nix::poll::{PollFd, PollFlags, poll};
use sluicegate::error::ErrorKind;
use sluicegate::link::{Lab, Shape};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Direction, Readiness, TimestampSource, Wait};

use super::scratch::lab_of;
use super::wire::{
    Holder, PATIENCE, bytes_of, drain, frame, is_ours, open, pin, receive, send, take, whose,
};
use super::{exec, find, lab, run, wait_until_removed};

fn frames(longest: usize) -> Vec<Vec<u8>> {
    let sizes = [60, 61, 64, 127, 128, 500, 1513, 1514, 2000, 4096, 8999, 9014];
    let sizes = sizes.into_iter().filter(|&bytes| bytes <= longest).cycle();
    sizes.take(300).enumerate().map(|(i, bytes)| frame(i as u32, 0, bytes)).collect()
}

#[test]
fn copies_are_whole_and_the_host_keeps_its_packets() {
    let Some(lab) = lab() else { return };
    for name in ["mirror:right0", "mirror:right0?mode=skb", "mirror:right0/0?ring_size=512&slots=7"]
    {
        let mut port = open(&lab, name).unwrap();
        let queue = &mut port.queues[0];
        let sent = frames(1514);
        send(&lab, &sent);
        let got = receive(queue, sent.len());
        assert_eq!(got.len(), sent.len(), "{name}");
        let mut last_ns = 0;
        for (i, ((meta, bytes), sent)) in got.iter().zip(&sent).enumerate() {
            assert_eq!(bytes, sent, "{name}: frame {i}");
            assert_eq!(meta.wire_bytes as usize, sent.len(), "{name}: frame {i}");
            assert_eq!(meta.timestamp_source, TimestampSource::Software);
            assert_eq!(meta.direction, Direction::In);
            assert!(last_ns <= meta.timestamp_ns, "{name}: in the order of time");
            last_ns = meta.timestamp_ns;
        }
        run(&lab, "left", "ping -q -c 5 -i 0.002 198.18.0.2");
        let pings = drain(queue).iter().filter(|(_, bytes)| bytes[23] == 1).count();
        assert!(pings >= 5, "{name}: requests were copied, and answered");
        let stats = queue.stats().unwrap();
        assert_eq!(stats.dropped_ring_full, 0, "{name}");
        assert!(stats.received >= 305, "{name}: {stats:?}");
        run(&lab, "left", "ping -q -c 2 -i 0.002 198.18.0.2");
        assert_eq!(take(queue).len(), 0, "{name}: nothing more is let in");
        drop(port);
        // Nothing is left behind.
        wait_until_removed(&lab);
    }
}

/// Returns true if a thread of this process sleeps.
fn is_asleep(thread: nix::unistd::Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
}

/// Sends frames when this thread sleeps in waiting for packets. What the wait says.
fn wait_and_send(lab: &Lab, queue: &mut Queue, frames: &[Vec<u8>]) -> Readiness {
    std::thread::scope(|scope| {
        let me = nix::unistd::gettid();
        scope.spawn(move || {
            while !is_asleep(me) {
                std::thread::yield_now();
            }
            send(lab, frames);
        });
        queue.wait_rx(Wait::Sleep, Duration::from_millis(900)).unwrap()
    })
}

#[test]
fn the_first_packet_wakes_a_reader_and_later_ones_when_a_quarter_of_its_ring_is_full() {
    let Some(lab) = &lab() else { return };
    pin(0);
    let sent: &Vec<_> = &(0..16).map(|number| frame(number, 0, 60)).collect();
    let ours = "ring_size=64&latency=1s&filter=ether proto 0x88b5";
    for name in [format!("mirror:right0?{ours}"), format!("mirror:right0?mode=skb&{ours}")] {
        let mut port = open(lab, &name).unwrap();
        let queue = &mut port.queues[0];
        for (round, count) in [1, 16, 16, 16].into_iter().enumerate() {
            // From the second round on it looks in a second only, unless the program wakes it before.
            assert_eq!(queue.sync_rx().unwrap(), 0, "{name}: nothing has come in round {round}");
            let told = wait_and_send(lab, queue, &sent[..count as usize]);
            assert_eq!(told, Readiness::Ready, "{name}: round {round}");
            assert_eq!(queue.sync_rx().unwrap(), count, "{name}: round {round}");
            queue.rx_mut().release(count);
            // Gives the cells back; a wake-up that is over does not end the next sleep.
            queue.sync_rx().unwrap();
            let told = queue.wait_rx(Wait::Sleep, Duration::from_millis(1)).unwrap();
            assert_eq!(told, Readiness::TimedOut, "{name}: round {round}");
        }
    }
}

#[test]
fn one_packet_wakes_an_event_loop_that_waits_for_the_descriptor_alone() {
    let Some(lab) = &lab() else { return };
    let filter = "filter=ether proto 0x88b5";
    for name in ["mirror:right0?", "mirror:right0?mode=skb&", "xdp:right0?"] {
        let name = format!("{name}{filter}");
        let mut port = open(lab, &name).unwrap();
        assert_eq!(port.method, "ring", "{name}");
        let queue = &mut port.queues[0];
        for number in 0..20 {
            let events = queue.begin_sleep();
            let [fd] = events.descriptors[..] else { panic!("{name}: {events:?}") };
            let fd = fd.try_clone_to_owned().unwrap();
            assert_eq!(queue.sync_rx().unwrap(), 0, "{name}: nothing has come");
            send(lab, &[frame(number, 0, 60)]);
            // Without the limit of the sleep, which would hide a lost wake-up.
            let mut waited = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut waited, 60_000u16), Ok(1), "{name}: packet {number} wakes nobody");
            queue.end_sleep().unwrap();
            assert_eq!(queue.sync_rx().unwrap(), 1, "{name}: packet {number}");
            queue.rx_mut().release(1);
            queue.sync_rx().unwrap();
        }
    }
}

#[test]
fn jumbo_frames_are_copied_from_all_their_buffers() {
    let Some(lab) = lab() else { return };
    run(&lab, "left", "ip link set left0 mtu 9000");
    run(&lab, "right", "ip link set right0 mtu 9000");
    for name in ["mirror:right0", "mirror:right0?mode=skb"] {
        let mut port = open(&lab, name).unwrap();
        let sent = frames(9014);
        send(&lab, &sent);
        let got = receive(&mut port.queues[0], sent.len());
        assert_eq!(got.len(), sent.len(), "{name}");
        for (i, ((meta, bytes), sent)) in got.iter().zip(&sent).enumerate() {
            assert!(bytes == sent, "{name}: frame {i} of {} bytes differs", sent.len());
            assert_eq!(meta.wire_bytes as usize, sent.len(), "{name}: frame {i}");
        }
        drop(port);
        wait_until_removed(&lab);
    }
}

#[test]
fn a_snap_length_cuts_the_bytes_and_keeps_the_length() {
    let Some(lab) = lab() else { return };
    for snaplen in [1, 14, 60, 96, 1513, 262_144] {
        let mut port = open(&lab, &format!("mirror:right0?snaplen={snaplen}")).unwrap();
        let sent = frames(1514);
        send(&lab, &sent);
        let queue = &mut port.queues[0];
        let got = drain(queue);
        assert!(queue.interfaces()[0].snaplen <= 1522, "no larger than a frame can be");
        let got: Vec<_> = got.iter().filter(|(meta, _)| meta.wire_bytes >= 60).collect();
        let mut left = got.iter();
        for sent in &sent {
            let wanted = &sent[..snaplen.min(sent.len())];
            let found =
                left.any(|(meta, bytes)| meta.wire_bytes as usize == sent.len() && bytes == wanted);
            assert!(found, "snaplen {snaplen}: {} bytes", sent.len());
        }
    }
}

#[test]
fn every_length_is_copied_whole_or_up_to_the_snap_length() {
    let Some(lab) = lab() else { return };
    let sent: Vec<_> =
        (15..=300).map(|bytes| frame(bytes, 0, 300)[..bytes as usize].to_vec()).collect();
    for snaplen in [15, 16, 17, 100, 127, 128, 129, 143, 144, 145, 1500] {
        let name = format!("mirror:right0?filter=ether proto 0x88b5&snaplen={snaplen}");
        let mut port = open(&lab, &name).unwrap();
        send(&lab, &sent);
        let got = drain(&mut port.queues[0]);
        assert_eq!(got.len(), sent.len(), "snaplen {snaplen}");
        for ((meta, bytes), sent) in got.iter().zip(&sent) {
            assert_eq!(meta.wire_bytes as usize, sent.len(), "snaplen {snaplen}");
            let kept = &sent[..snaplen.min(sent.len())];
            assert_eq!(bytes, kept, "snaplen {snaplen}: {} bytes", sent.len());
        }
    }
}

#[test]
fn without_timestamps_a_packet_says_that_it_has_none() {
    let Some(lab) = lab() else { return };
    let name = "mirror:right0?timestamp=off&filter=ether proto 0x88b5";
    let mut port = open(&lab, name).unwrap();
    assert_eq!(port.queues[0].interfaces()[0].comment, "", "no word about them");
    send(&lab, &[frame(1, 0, 60)]);
    let got = drain(&mut port.queues[0]);
    let [(meta, _)] = got.as_slice() else { panic!("{} packets", got.len()) };
    assert_eq!((meta.timestamp_ns, meta.timestamp_source), (0, TimestampSource::None));
}

#[test]
fn several_mirrors_each_get_what_their_filters_match() {
    let Some(lab) = lab() else { return };
    let filters = ["ether[18] = 0", "ether[18] = 1", "ether proto 0x88b5", "ether[18] > 5"];
    let names = filters.map(|filter| format!("mirror:right0?filter={filter}"));
    let mut ports = names.map(|name| open(&lab, &name).unwrap());
    let sent: Vec<_> = (0..400).map(|i| frame(i, (i % 4) as u8, 60)).collect();
    send(&lab, &sent);
    let matches: [fn(u8) -> bool; 4] = [|kind| kind == 0, |kind| kind == 1, |_| true, |_| false];
    for ((port, matches), filter) in ports.iter_mut().zip(matches).zip(filters) {
        let queue = &mut port.queues[0];
        let got = drain(queue);
        let stats = queue.stats().unwrap();
        assert_eq!((stats.received, stats.dropped_ring_full), (got.len() as u64, 0), "{filter}");
        let got: Vec<_> = bytes_of(got).into_iter().filter(|bytes| is_ours(bytes)).collect();
        let expected: Vec<_> = sent.iter().filter(|bytes| matches(bytes[18])).cloned().collect();
        assert!(got == expected, "{filter}: {} of {}", got.len(), expected.len());
    }
}

/// UDP to the right host, each number a flow of its own.
fn flow(number: u16) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [0xff; 6])
        .ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64)
        .udp(number, 9);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[0; 18]).unwrap();
    frame
}

#[test]
fn each_queue_gets_its_own_packets() {
    let Some(lab) = lab_of(Shape::Pair, 3) else { return };
    let filter = "filter=udp dst port 9";
    for mode in ["native", "skb"] {
        wait_until_removed(&lab);
        let name = |queues| format!("mirror:right0{queues}?mode={mode}&{filter}");
        let mut all = open(&lab, &name("")).unwrap();
        assert_eq!(all.queues.len(), if mode == "native" { 3 } else { 1 });
        let [mut first, mut rest] = ["/0", "/1-2"].map(|queues| open(&lab, &name(queues)).unwrap());
        let numbers = rest.queues.iter().map(Queue::number);
        assert!(numbers.eq(if mode == "native" { vec![1, 2] } else { vec![1] }), "{mode}");
        // The queue of a flow is chosen by a hash of its headers. In skb mode each CPU has a ring,
        // and there the sender's CPU receives, too.
        let sent: Vec<_> = (0..300).map(flow).collect();
        for (i, part) in sent.chunks(100).enumerate() {
            pin(i % 2);
            send(&lab, part);
        }
        let drained = |port: &mut Port| -> Vec<Vec<Vec<u8>>> {
            port.queues.iter_mut().map(|queue| bytes_of(drain(queue))).collect()
        };
        let [all, first, rest] = [&mut all, &mut first, &mut rest].map(drained);
        let count = |queues: &[Vec<Vec<u8>>]| queues.iter().map(Vec::len).collect::<Vec<_>>();
        let counts = [&all, &first, &rest].map(|queues| count(queues));
        assert!(!counts[0].contains(&0), "{mode}: packets in each queue: {counts:?}");
        if mode == "native" {
            let parts = [&first[..], &rest].concat();
            assert!(all == parts, "{mode}: equal in a queue, with any owner: {counts:?}");
        }
        for queues in [all, [first, rest].concat()] {
            let mut got = queues.concat();
            got.sort();
            assert!(got == sent, "{mode}: each once: {counts:?}");
        }
    }
}

/// Two processes that write to a TAP device at the same time, each on a CPU of its own: for each
/// a number of frames of its own ethertype, numbered.
const WRITE_TO_TAP: &str = r"
import fcntl, os, struct
tap = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tap, 0x400454ca, struct.pack('16sH22x', b'tap0', 0x1002))
children = []
for cpu in 0, 1:
    child = os.fork()
    if child == 0:
        try:
            os.sched_setaffinity(0, [cpu])
        except OSError:
            pass
        head = b'\xff' * 6 + b'\x02\0\0\0\0\x01\x88\xb5'
        for number in range(20000):
            os.write(tap, head + struct.pack('>IB41x', number, cpu))
        os._exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
";

#[test]
fn writers_of_one_queue_do_not_write_over_each_other() {
    let Some(lab) = lab() else { return };
    if !std::path::Path::new("/dev/net/tun").exists() {
        println!("skipped: needs /dev/net/tun; get it by `modprobe tun`");
        return;
    }
    run(&lab, "right", "ip tuntap add dev tap0 mode tap");
    run(&lab, "right", "ip link set tap0 up");
    let name = "mirror:tap0?mode=native&ring_size=65536&filter=ether proto 0x88b5";
    let mut port = open(&lab, name).unwrap();
    assert_eq!((port.mode, port.queues.len()), (Some("native"), 1));
    assert!(exec(&lab, "right", &["python3", "-c", WRITE_TO_TAP]).success());
    let queue = &mut port.queues[0];
    let got = bytes_of(drain(queue));
    assert_eq!(queue.stats().unwrap().received, 40_000, "each is counted");
    for writer in 0..2 {
        let numbers = got.iter().filter(|bytes| bytes[18] == writer);
        let numbers = numbers.map(|bytes| u32::from_be_bytes(bytes[14..18].try_into().unwrap()));
        assert!(numbers.eq(0..20_000), "writer {writer}: each once, in order");
    }
}

/// Copies of a bond's packets, which come by two interfaces; needs a kernel with bonds.
#[test]
fn a_bond_brings_the_packets_of_all_its_interfaces() {
    let Some(lab) = lab() else { return };
    let add = ["ip", "link", "add", "bond0", "type", "bond", "mode", "balance-rr"];
    if !exec(&lab, "right", &add).success() {
        println!("skipped: needs bonds; get them by `modprobe bonding`");
        return;
    }
    for command in [
        "ip link add two type veth peer name two0",
        "ip link set two master bond0",
        "ip link set right0 down",
        "ip link set right0 master bond0",
        "ip link set bond0 up",
        "ip link set two0 up",
    ] {
        run(&lab, "right", command);
    }
    let filter = "filter=ether proto 0x88b5";
    let error = open(&lab, &format!("mirror:bond0/0?mode=native&{filter}")).unwrap_err();
    assert!(error.to_string().contains("leave the queues out"), "{error}");
    let mut port = open(&lab, &format!("mirror:bond0?mode=native&{filter}")).unwrap();
    assert_eq!(port.queues.len(), 1, "the rings of all CPUs come to one queue");
    let sent: Vec<_> = (0..300).map(|i| frame(i, 0, 60)).collect();
    send(&lab, &sent);
    assert!(bytes_of(drain(&mut port.queues[0])) == sent);
}

#[test]
fn the_last_queue_to_be_closed_ends_the_copies() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let ours = "filter=ether proto 0x88b5";
    for (name, why) in [("mirror:right0", "a mirror"), ("xdp:right0", "a claim by copying")] {
        let mut port = open(&lab, &format!("{name}?{ours}")).unwrap();
        assert_eq!((port.method, port.queues.len()), ("ring", 2), "{why}");
        // Nothing in them tells one flow from another: they all come to one queue.
        send(&lab, &[frame(0, 0, 60)]);
        let at = whose(&mut port.queues);
        let mut busy = port.queues.remove(at);
        assert_eq!(take(&mut busy).len(), 1, "{why}");
        let mut quiet = port.queues.remove(0);
        quiet.stop_rx().unwrap();
        let sent: Vec<_> = (1..101).map(|i| frame(i, 0, 60)).collect();
        send(&lab, &sent);
        let got = bytes_of(receive(&mut busy, 100));
        assert!(got == sent, "{why}: {} of 100 come to the queue that is open", got.len());
        assert_eq!(drain(&mut quiet).len(), 0, "{why}");
        busy.stop_rx().unwrap();
        send(&lab, &sent);
        assert_eq!(drain(&mut busy).len(), 0, "{why}: nothing is copied any more");
        assert_eq!(busy.stats().unwrap().received, 101, "{why}");
    }
}

#[test]
fn a_queue_that_is_closed_lets_nothing_more_in() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let ours = "filter=ether proto 0x88b5";
    for (name, host) in
        [("mirror:right0?ring_size=64", 200), ("xdp:right0?ring_size=64&slots=16", 100)]
    {
        let mut port = open(&lab, &format!("{name}&{ours}")).unwrap();
        let mut stack = open(&lab, &format!("packet:right0?tx_copies=off&{ours}")).unwrap();
        assert_eq!((port.method, port.queues.len()), ("ring", 2), "{name}");
        let sent: Vec<_> = (0..100).map(|i| frame(i, 0, 60)).collect();
        send(&lab, &sent);
        // One flow is in one queue. That has 64 of them, and has lost the others.
        let received = |queue: &mut Queue| queue.stats().unwrap().received;
        let at = port.queues.iter_mut().position(|queue| received(queue) > 0).unwrap();
        let mut queue = port.queues.remove(at);
        queue.stop_rx().unwrap();
        send(&lab, &sent);
        let got = bytes_of(drain(&mut queue));
        assert!(got == sent[..64], "{name}, {}: those from before", got.len());
        let stats = queue.stats().unwrap();
        assert_eq!(
            (stats.received, stats.dropped_ring_full),
            (100, 36),
            "{name}: what comes is not ours"
        );
        assert_eq!(drain(&mut stack.queues[0]).len(), host, "{name}: but the host's");
    }
    let mut port = open(&lab, &format!("xdp:right0?{ours}")).unwrap();
    let mut stack = open(&lab, &format!("packet:right0?tx_copies=off&{ours}")).unwrap();
    let sent: Vec<_> = (0..100).map(|i| frame(i, 0, 60)).collect();
    send(&lab, &sent);
    let at = port.queues.iter_mut().position(|queue| queue.stats().unwrap().received > 0).unwrap();
    drop(port.queues.remove(at));
    send(&lab, &sent);
    let got = drain(&mut stack.queues[0]).len();
    assert_eq!(got, 100, "what comes to a queue that was dropped is the host's");
}

#[test]
fn places_run_out_and_come_back() {
    let Some(lab) = lab() else { return };
    let mut ports: Vec<_> = (0..8).map(|_| open(&lab, "mirror:right0").unwrap()).collect();
    let error = open(&lab, "mirror:right0").unwrap_err();
    let says =
        "copy packets from right0: it has at most 8 mirrors; `sluice claims right0` shows them";
    assert_eq!(error.to_string(), says);
    assert_eq!(error.kind(), ErrorKind::Runtime, "another time there is room");
    let leaving = ports.remove(3);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(leaving);
        });
        open(&lab, "mirror:right0").unwrap();
    });
}

#[test]
fn a_slow_reader_loses_its_own_copies_and_they_are_counted() {
    let Some(lab) = lab() else { return };
    let filter = "filter=ether proto 0x88b5";
    for mode in ["native", "skb"] {
        wait_until_removed(&lab);
        let slow = format!("mirror:right0?ring_size=64&mode={mode}&{filter}");
        let (mut slow, mut other) =
            (open(&lab, &slow).unwrap(), open(&lab, &format!("mirror:right0?{filter}")).unwrap());
        let sent: Vec<_> = (0..1000).map(|i| frame(i, 0, 60)).collect();
        send(&lab, &sent);
        let all = drain(&mut other.queues[0]);
        assert_eq!(all.len(), 1000, "{mode}: another reader does not notice");
        let queue = &mut slow.queues[0];
        let got = drain(queue);
        let stats = queue.stats().unwrap();
        assert_eq!(stats.received, 1000, "{mode}");
        assert_eq!(stats.received, got.len() as u64 + stats.dropped_ring_full, "{mode}");
        assert!(stats.dropped_ring_full > 0, "{mode}: {stats:?}");
        if mode == "native" {
            assert_eq!(bytes_of(got), sent[..64], "the first ones are kept");
            assert_eq!(stats.dropped_ring_full, 936);
        }
    }
}

#[test]
fn a_removed_interface_is_an_error_that_says_so() {
    let Some(lab) = lab() else { return };
    let mut port = open(&lab, "mirror:right0").unwrap();
    run(&lab, "right", "ip link del right0");
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match port.queues[0].wait_rx(Wait::Sleep, Duration::from_millis(50)) {
            Ok(_) => assert!(Instant::now() < deadline, "nothing was said"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, sluicegate::Error::Removed { .. }), "{error}");
}

#[test]
fn ports_that_cannot_work_are_refused() {
    let Some(lab) = lab() else { return };
    for (name, advice) in [
        ("mirror:right0/7", "1 receive queue"),
        ("mirror:right0?filter=inbound", "packet: accepts all but protochain"),
        ("mirror:lo", "packet: takes all kinds"),
        ("mirror:right0?ring_size=1", "use a number from 2"),
        (
            "mirror:right0?mode=skb&snaplen=65535&ring_size=65536",
            "MiB is the most: use fewer ring_size=",
        ),
        (
            "xdp:right0?method=ring&mode=skb&snaplen=65535&ring_size=65536",
            "MiB is the most: use fewer ring_size=",
        ),
    ] {
        let error = open(&lab, name).unwrap_err().to_string();
        assert!(error.contains(advice), "{name}: {error}");
    }
    let hosts: Vec<String> =
        (0..700).map(|n| format!("host 198.18.{}.{}", n / 250, n % 250)).collect();
    let error = open(&lab, &format!("mirror:right0?filter={}", hosts.join(" or "))).unwrap_err();
    let error = error.to_string();
    let advice = "…' in XDP on right0 is not available: it is too long for an XDP program; write address \
                  ranges as `net`";
    assert!(error.ends_with(advice) && error.len() < 300, "{error}");
    let options = OpenOptions {
        usage: Directions::Both,
        netns: Some(lab.netns("right")),
        ..OpenOptions::default()
    };
    let error = Port::open(&"mirror:right0".parse().unwrap(), &options).unwrap_err().to_string();
    assert!(error.contains("only receives"), "{error}");
}

#[test]
fn an_owner_that_is_killed_leaves_nothing_behind() {
    let Some(lab) = lab() else { return };
    let alone = Holder::of(&lab, "mirror:right0");
    assert!(find(&lab).unwrap().is_some());
    alone.kill();
    wait_until_removed(&lab);
    // With another user the program stays, and the dead one's stage does nothing.
    let mut port = open(&lab, "mirror:right0?filter=ether proto 0x88b5").unwrap();
    let dead = Holder::of(&lab, "mirror:right0");
    assert_eq!(find(&lab).unwrap().unwrap().owned_stages().unwrap().len(), 2);
    dead.kill();
    let resident = find(&lab).unwrap().unwrap();
    assert_eq!(resident.owned_stages().unwrap().len(), 1, "its stage is free");
    let before = resident.tally(1);
    let sent: Vec<_> = (0..100).map(|i| frame(i, 0, 60)).collect();
    send(&lab, &sent);
    assert!(bytes_of(receive(&mut port.queues[0], 100)) == sent);
    assert_eq!(resident.tally(1), before, "nothing is copied for the dead");
    run(&lab, "left", "ping -q -c 2 -i 0.002 198.18.0.2");
}
