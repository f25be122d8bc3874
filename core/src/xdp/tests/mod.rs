//! AF_XDP sockets in a lab: both modes of attachment, both directions, sharing, closing.

pub(super) mod mock;
mod program;

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use program::Redirect;

use super::*;
use crate::error::Error;
use crate::link::{self, Lab};
use crate::port::{Directions, OpenOptions, Port, Queue};
use crate::tests;
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::{Meta, Packet, Ring, RingMut, Wait};

/// Maximum time that a test waits for packets that must arrive.
const PATIENCE: Duration = Duration::from_secs(60);
const SLOTS: u32 = 256;
const BUFFERS: u32 = 3000;
/// The experimental EtherType, which nothing else uses.
const OURS: [u8; 2] = [0x88, 0xb5];

/// Creates a lab for one test, or prints why it cannot.
fn lab() -> Option<Lab> {
    let lab = tests::lab()?;
    if let Err(error) = crate::raw_socket::RawSocket::open(libc::AF_XDP) {
        println!("skipped: needs AF_XDP sockets ({error}); get it by CONFIG_XDP_SOCKETS");
        return None;
    }
    Some(lab)
}

fn pool() -> Arc<Pool> {
    Pool::new(PoolConfig { buffers: BUFFERS, ..PoolConfig::default() }).unwrap()
}

/// Returns the configuration of a socket on a host of the pair.
fn config(lab: &Lab, host: &str) -> XskConfig {
    XskConfig {
        interface: format!("{host}0"),
        netns: Some(lab.netns(host)),
        receive_frames: SLOTS,
        send_slots: SLOTS,
        ..XskConfig::default()
    }
}

/// A socket with one ring per direction, as a queue has them.
struct End {
    xsk: Xsk,
    rx: Ring,
    tx: Ring,
    _redirect: Redirect,
}

impl End {
    fn open(lab: &Lab, host: &str, pool: &Arc<Pool>, mode: Mode, config: &XskConfig) -> Self {
        let rx = Ring::receive(pool, SLOTS).unwrap();
        let tx = Ring::transmit(pool, SLOTS).unwrap();
        let xsk = config.open(pool).unwrap();
        let netns = lab.netns(host);
        let index = link::interface(Some(&netns), &config.interface).unwrap().index;
        let redirect = Redirect::attach(&netns, index, mode).unwrap();
        redirect.serve(config.queue, &*xsk.socket);
        Self { xsk, rx, tx, _redirect: redirect }
    }

    fn receive(&mut self) -> Received {
        self.xsk.receiver.as_mut().unwrap().receive(&mut self.rx).unwrap()
    }

    fn send(&mut self) -> u32 {
        self.xsk.sender.as_mut().unwrap().send(&mut self.tx).unwrap()
    }

    /// Receives until `got` has `n` packets of the test.
    fn collect(&mut self, n: usize, got: &mut Vec<Vec<u8>>) {
        let deadline = Instant::now() + PATIENCE;
        let mut scratch = Vec::new();
        while got.len() < n && Instant::now() < deadline {
            if self.receive().packets == 0 {
                self.xsk.socket.wait_rx(Duration::from_millis(10)).unwrap();
            }
            for packet in self.rx.packets() {
                let bytes = packet.contiguous(&mut scratch);
                assert_eq!(packet.meta().wire_bytes as usize, bytes.len());
                if is_ours(bytes) {
                    got.push(bytes.to_vec());
                }
            }
            self.rx.release(self.rx.available());
        }
    }
}

fn is_ours(bytes: &[u8]) -> bool {
    bytes.get(12..14) == Some(&OURS)
}

/// Builds a broadcast frame with a number and bytes derived from it.
fn frame(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(OURS);
    frame.extend(number.to_be_bytes());
    frame.extend((18..bytes).map(|i| (i as u32 * 7 + number) as u8));
    frame
}

fn frames(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|i| frame(i, [60, 61, 590, 1514][i as usize % 4])).collect()
}

fn packet_port(lab: &Lab, host: &str, usage: Directions) -> Queue {
    let options = OpenOptions { usage, netns: Some(lab.netns(host)), ..OpenOptions::default() };
    Port::open(&format!("packet:{host}0").parse().unwrap(), &options).unwrap().queues.remove(0)
}

/// Sends through a packet: port.
fn push(queue: &mut Queue, frames: &[Vec<u8>]) {
    for frame in frames {
        while !queue.tx_mut().push(&Packet::new(&Meta::default(), frame)) {
            queue.sync_tx().unwrap();
        }
    }
    queue.close_tx().unwrap();
}

#[test]
fn what_a_host_sends_arrives_in_order_and_byte_for_byte() {
    let Some(lab) = lab() else { return };
    for (mode, why) in [(Mode::Skb, "after an skb was made"), (Mode::Native, "in the driver")] {
        let pool = pool();
        let mut end = End::open(&lab, "right", &pool, mode, &config(&lab, "right"));
        assert_eq!(end.xsk.mode, BindMode::Copy);
        let reason = &end.xsk.fallback.as_ref().expect("a reason").reason;
        assert!(reason.contains("the driver has no zero-copy"), "{reason}");
        let mut queue = packet_port(&lab, "left", Directions::Send);
        let (sent, mut got) = (frames(2000), Vec::new());
        for batch in sent.chunks(100) {
            push(&mut queue, batch);
            end.collect(got.len() + batch.len(), &mut got);
        }
        assert!(got == sent, "{why}: {} of {}", got.len(), sent.len());
        let stats = end.xsk.receiver.as_ref().unwrap().stats();
        assert_eq!((stats.refused, stats.too_long, stats.index_faults), (0, 0, 0), "{why}");
        let kernel = end.xsk.socket.statistics().unwrap();
        assert_eq!((kernel.rx_dropped, kernel.rx_ring_full), (0, 0), "{why}: {kernel:?}");
        drop(end);
        assert_eq!(pool.free_buffers(), BUFFERS as usize, "{why}: all frames come home");
    }
}

#[test]
fn valid_packets_arrive_at_the_other_host_and_others_are_refused() {
    let Some(lab) = lab() else { return };
    let pool = pool();
    let only_send = XskConfig { receive_frames: 0, ..config(&lab, "left") };
    let mut xsk = only_send.open(&pool).unwrap();
    assert!(xsk.receiver.is_none());
    let sender = xsk.sender.as_mut().unwrap();
    let mut tx = Ring::transmit(&pool, SLOTS).unwrap();
    let mut queue = packet_port(&lab, "right", Directions::Receive);
    let sent = frames(1000);
    let deadline = Instant::now() + PATIENCE;
    for (i, frame) in sent.iter().enumerate() {
        let bad = [&frame[..13], &[7; 1519], &[]][i % 3];
        for packet in [&frame[..], bad] {
            while !RingMut::new(&mut tx).push(&Packet::new(&Meta::default(), packet)) {
                sender.send(&mut tx).unwrap();
                assert!(Instant::now() < deadline, "{:?}", sender.stats());
            }
        }
    }
    while (sender.unsent(&tx) > 0 || tx.available() < SLOTS - 1) && Instant::now() < deadline {
        sender.send(&mut tx).unwrap();
    }
    let stats = sender.stats();
    let all = SenderStats { sent: 1000, refused: 1000, ..SenderStats::default() };
    assert_eq!((stats, tx.available()), (all, SLOTS - 1), "nothing is stuck");
    assert_eq!(xsk.socket.statistics().unwrap().tx_invalid_descs, 0);
    let mut got = Vec::new();
    while got.len() < sent.len() && Instant::now() < deadline {
        if queue.sync_rx().unwrap() == 0 {
            queue.wait_rx(Wait::Sleep, Duration::from_millis(20)).unwrap();
        }
        got.extend(queue.rx().packets().map(|it| it.head().to_vec()).filter(|it| is_ours(it)));
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    assert!(got == sent, "{} of {}", got.len(), sent.len());
    drop((xsk, tx));
    assert_eq!(pool.free_buffers(), BUFFERS as usize);
}

#[test]
fn two_sockets_share_a_pool_and_packets_go_round_without_a_copy() {
    let Some(lab) = lab() else { return };
    let pool = pool();
    let [left, right] = ["left", "right"].map(|host| config(&lab, host));
    let mut right = End::open(&lab, "right", &pool, Mode::Native, &right);
    // The first socket registers the UMEM; the second, in another namespace, shares it.
    let mut left = End::open(&lab, "left", &pool, Mode::Native, &left);
    let (sent, mut got) = (frames(600), Vec::new());
    for batch in sent.chunks(50) {
        for frame in batch {
            assert!(RingMut::new(&mut left.tx).push(&Packet::new(&Meta::default(), frame)));
        }
        let deadline = Instant::now() + PATIENCE;
        let mut round = 0;
        while round < batch.len() && Instant::now() < deadline {
            left.send();
            right.receive();
            round += RingMut::new(&mut right.rx)
                .swap_packets(&mut RingMut::new(&mut right.tx), u32::MAX)
                .slots as usize;
            right.send();
        }
        left.collect(got.len() + batch.len(), &mut got);
        left.send();
        right.send();
    }
    assert!(got == sent, "{} of {}", got.len(), sent.len());
    assert_eq!(right.xsk.sender.as_ref().unwrap().stats().sent, 600);
    drop(right);
    // The remaining socket continues, and the next one shares its UMEM.
    let mut again = End::open(&lab, "right", &pool, Mode::Skb, &config(&lab, "right"));
    assert!(RingMut::new(&mut left.tx).push(&Packet::new(&Meta::default(), &frame(9, 60))));
    left.send();
    let mut got = Vec::new();
    again.collect(1, &mut got);
    assert_eq!(got, [frame(9, 60)]);
    drop((left, again));
    assert_eq!(pool.free_buffers(), BUFFERS as usize);
}

fn run_ip(lab: &Lab, host: &str, words: &[&str]) {
    let mut ip = lab.spawn(host, std::process::Command::new("ip").args(words)).unwrap();
    assert!(ip.wait().unwrap().success(), "{words:?}");
}

#[test]
fn packets_of_several_frames_are_received_and_sent_whole() {
    let Some(lab) = lab() else { return };
    for host in ["left", "right"] {
        run_ip(&lab, host, &["link", "set", &format!("{host}0"), "mtu", "9000"]);
    }
    let pool = pool();
    let several = |host| XskConfig { multi_buffer: true, ..config(&lab, host) };
    let mut right = End::open(&lab, "right", &pool, Mode::Native, &several("right"));
    let mut left = End::open(&lab, "left", &pool, Mode::Native, &several("left"));
    let sent: Vec<_> = (0..60).map(|i| frame(i, [60, 2000, 4000, 9014][i as usize % 4])).collect();
    let mut got = Vec::new();
    for batch in sent.chunks(6) {
        for frame in batch {
            assert!(RingMut::new(&mut left.tx).push(&Packet::new(&Meta::default(), frame)));
        }
        left.send();
        right.collect(got.len() + batch.len(), &mut got);
        left.send();
    }
    let lengths = |all: &[Vec<u8>]| all.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(&got), lengths(&sent), "{:?}", right.xsk.socket.statistics());
    assert!(got == sent);
    assert_eq!(left.xsk.sender.as_ref().unwrap().stats().sent, 60);
}

#[test]
fn a_taken_queue_is_reported_and_is_free_when_its_socket_has_ended() {
    let Some(lab) = lab() else { return };
    let (ours, theirs) = (pool(), pool());
    let config = config(&lab, "right");
    let first = config.open(&ours).unwrap();
    for (pool, why) in [(&theirs, "of another pool"), (&ours, "which would share its UMEM")] {
        let error = config.open(pool).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EBUSY), "a socket {why}: {error}");
        assert!(error.to_string().contains("another socket has queue 0 of right0"), "{error}");
    }
    let netns = lab.netns("right");
    let index = link::interface(Some(&netns), "right0").unwrap().index;
    let probe = || {
        let open = || Ok(crate::raw_socket::RawSocket::open(libc::AF_XDP).unwrap());
        let fd = link::netns::run_in(Some(&netns), open).unwrap();
        socket::Probe { fd, ifindex: index, queue: 0 }
    };
    assert!(!probe().sees_it_free(), "it is taken");
    drop(first);
    assert!(probe().sees_it_free(), "it is free");
    let again = config.open(&theirs).unwrap();
    drop(again);
    assert_eq!(theirs.free_buffers(), BUFFERS as usize);
    assert_eq!(ours.free_buffers(), BUFFERS as usize);
}

#[test]
fn a_failed_opening_says_why() {
    let Some(lab) = lab() else { return };
    let good = config(&lab, "right");
    let rows = [
        (
            XskConfig { mode: Some(BindMode::ZeroCopy), ..good.clone() },
            "the driver has no zero-copy: use copy mode",
        ),
        (XskConfig { queue: 1, ..good.clone() }, "right0 has no queue 1: they are numbered from"),
        (XskConfig { interface: "nope0".into(), ..good.clone() }, "no interface 'nope0'"),
        (XskConfig { receive_frames: 5000, ..good.clone() }, "the pool has 3000 buffers left"),
        (XskConfig { receive_frames: 0, send_slots: 0, ..good.clone() }, "use 1 to"),
        (XskConfig { receive_frames: u32::MAX, ..good.clone() }, "use 1 to"),
    ];
    let pool = pool();
    for (config, expected) in rows {
        let error = config.open(&pool).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(pool.free_buffers(), BUFFERS as usize, "nothing is kept: {error}");
    }
}

#[test]
fn an_interface_that_is_down_or_removed_is_reported() {
    let Some(lab) = lab() else { return };
    let pool = pool();
    let mut end = End::open(&lab, "right", &pool, Mode::Skb, &config(&lab, "right"));
    let run = |words: &[&str]| run_ip(&lab, "right", words);
    assert_eq!(end.xsk.socket.state().unwrap(), State::Up);
    run(&["link", "set", "right0", "down"]);
    assert_eq!(end.xsk.socket.state().unwrap(), State::Down);
    assert!(RingMut::new(&mut end.tx).push(&Packet::new(&Meta::default(), &frame(1, 60))));
    let sender = end.xsk.sender.as_mut().unwrap();
    let error = sender.send(&mut end.tx).unwrap_err();
    assert!(error.to_string().ends_with("the interface is down: bring it up"), "{error}");
    run(&["link", "set", "right0", "up"]);
    assert_eq!(end.xsk.socket.state().unwrap(), State::Up);
    end.send();
    assert_eq!(end.xsk.sender.as_ref().unwrap().stats().sent, 1, "it goes now");
    run(&["link", "del", "right0"]);
    assert_eq!(end.xsk.socket.state().unwrap(), State::Gone);
    assert!(RingMut::new(&mut end.tx).push(&Packet::new(&Meta::default(), &frame(1, 60))));
    let error = end.xsk.sender.as_mut().unwrap().send(&mut end.tx).unwrap_err();
    assert!(matches!(error, Error::Removed { .. }), "{error}");
    end.receive();
    drop(end);
    assert_eq!(pool.free_buffers(), BUFFERS as usize);
}

#[test]
fn a_donor_has_the_same_pool_and_the_same_traits() {
    let Some(_lab) = lab() else { return };
    let (ours, other) = (pool(), pool());
    let settings = socket::BindSettings { zero_copy: false, multi_buffer: false };
    let socket = || {
        let fd = crate::raw_socket::RawSocket::open(libc::AF_XDP).unwrap();
        XskSocket::new(fd, &ours, settings, None, false, "a test".into())
    };
    let (first, second) = (socket(), socket());
    let found = |pool, settings| XskSocket::donor(pool, settings).map(|it| it.as_raw_fd());
    assert_eq!(found(&ours, settings), Some(first.as_raw_fd()));
    let zero_copy = socket::BindSettings { zero_copy: true, ..settings };
    assert_eq!(found(&ours, zero_copy), None, "another mode");
    assert_eq!(found(&other, settings), None, "another pool");
    drop(first);
    assert_eq!(found(&ours, settings), Some(second.as_raw_fd()), "any other will do");
    drop(second);
    assert_eq!(found(&ours, settings), None, "none is left");
}
