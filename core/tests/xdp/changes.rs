//! Changes to an interface while a port is open.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sluicegate::link::{Interface, Lab, Shape, netns};
use sluicegate::memory::{Pool, PoolConfig};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Readiness, Wait};
use sluicegate::xdp::XskConfig;
use sluicegate::xdp::resident::Resident;
use sluicegate::{Error, Result};

use super::scratch::lab_of;
use super::wire::{Holder, TO_HOLD, drain, frame, open, receive, send};
use super::{child, exec, find, lab, linux, right0, run, wait_until_removed};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits at all queues until there is something to tell or an error; lets packets go.
fn wait_for_word(port: &mut Port) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        for queue in &mut port.queues {
            queue.wait_rx(Wait::Sleep, Duration::from_millis(20))?;
            queue.sync_rx()?;
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
            if let Some(notice) = queue.take_notice() {
                return Ok(notice);
            }
        }
    }
    panic!("nothing was said");
}

/// Switches right0 off. Returns a queue's notices until it reports that: by then it has looked at the
/// interface once more.
fn notices_until_down(lab: &Lab, queue: &mut Queue) -> Vec<String> {
    run(lab, "right", "ip link set right0 down");
    let deadline = Instant::now() + PATIENCE;
    let mut notices = Vec::new();
    loop {
        queue.sync_rx().unwrap();
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
        let readiness = queue.wait_rx(Wait::Sleep, Duration::from_millis(20)).unwrap();
        notices.extend(std::iter::from_fn(|| queue.take_notice()));
        if readiness == Readiness::Down {
            return notices;
        }
        assert!(Instant::now() < deadline, "it does not report that right0 is down");
    }
}

/// A lab whose interfaces can have three queues, and have `queues`.
fn lab_with(queues: u32) -> Option<Lab> {
    let lab = lab_of(Shape::Pair, 3)?;
    set_queues(&lab, "left", queues);
    set_queues(&lab, "right", queues);
    Some(lab)
}

fn set_queues(lab: &Lab, host: &str, queues: u32) {
    run(lab, host, &format!("ethtool -L {host}0 rx {queues} tx {queues}"));
}

#[test]
fn queues_that_are_new_are_told_of_once() {
    for name in ["xdp:right0?method=af_xdp", "xdp:right0?mode=skb", "xdp:right0", "mirror:right0"] {
        let Some(lab) = lab_with(1) else { return };
        let mut port = open(&lab, name).unwrap();
        assert_eq!(port.queues.len(), 1, "{name}");
        set_queues(&lab, "right", 3);
        let notice = wait_for_word(&mut port).unwrap();
        let expected = "right0 has 3 receive queues now, 1 when this was opened";
        assert!(notice.starts_with(expected), "{name}: {notice}");
        let queue = &mut port.queues[0];
        // What comes to the port's own queue still comes.
        send(&lab, &[frame(1, 0, 60)]);
        assert_eq!(receive(queue, 1).len(), 1, "{name}");
        assert_eq!(notices_until_down(&lab, queue), [""; 0], "{name}: said once");
        run(&lab, "right", "ip link set right0 up");
        // A port with named queues is not told of others.
        drop(port);
        wait_until_removed(&lab);
        set_queues(&lab, "right", 1);
        let mut named = open(&lab, &format!("{}/0", name.split('?').next().unwrap())).unwrap();
        set_queues(&lab, "right", 2);
        assert_eq!(notices_until_down(&lab, &mut named.queues[0]), [""; 0], "{name}");
    }
}

#[test]
fn a_queue_that_the_interface_lost_ends_with_that_error() {
    for name in ["mirror:right0", "xdp:right0"] {
        let Some(lab) = lab_with(2) else { return };
        let mut port = open(&lab, name).unwrap();
        assert_eq!((port.method, port.queues.len()), ("ring", 2), "{name}");
        // With a program on right0, left0 may not send by more queues than that receives by.
        set_queues(&lab, "left", 1);
        set_queues(&lab, "right", 1);
        let error = wait_for_word(&mut port).unwrap_err();
        assert!(matches!(error, Error::Removed { .. }), "{name}: {error}");
        let text = error.to_string();
        let expected = "queue 1 of right0 no longer exists: the interface has 1 receive";
        assert!(text.starts_with(expected), "{name}: {text}");
        // The other goes on, and the one that is back, too.
        send(&lab, &[frame(1, 0, 60)]);
        assert_eq!(receive(&mut port.queues[0], 1).len(), 1, "{name}");
        set_queues(&lab, "right", 2);
        let deadline = Instant::now() + PATIENCE;
        while port.queues[1].check().is_err() {
            assert!(Instant::now() < deadline, "{name}: it is back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_kernel_keeps_a_queue_that_has_a_socket() {
    let Some(lab) = lab_with(2) else { return };
    let mut port = open(&lab, "xdp:right0?method=af_xdp").unwrap();
    set_queues(&lab, "left", 1);
    let fewer = exec(&lab, "right", &["ethtool", "-L", "right0", "rx", "1", "tx", "1"]);
    assert!(!fewer.success(), "it was let go: see that the port notices, then");
    for queue in &mut port.queues {
        queue.check().unwrap();
    }
    port.queues.remove(1);
    let end = Instant::now() + PATIENCE;
    let fewer = || exec(&lab, "right", &["ethtool", "-L", "right0", "rx", "1", "tx", "1"]);
    while !fewer().success() {
        assert!(Instant::now() < end, "its socket has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    send(&lab, &[frame(1, 0, 60)]);
    assert_eq!(receive(&mut port.queues[0], 1).len(), 1, "the other goes on");
}

#[test]
fn a_port_of_both_directions_receives_by_queues_too_that_nobody_may_send_by() {
    let Some(lab) = lab_with(3) else { return };
    run(&lab, "right", "ethtool -L right0 rx 3 tx 1");
    let netns = Some(lab.netns("right"));
    let options = OpenOptions { usage: Directions::Both, netns, ..Default::default() };
    let mut port = Port::open(&"xdp:right0".parse().unwrap(), &options).unwrap();
    let notice = port.queues[0].take_notice().expect("at once");
    let expected = "right0 has 3 receive queues, and 1 transmit queue that a port may send by";
    assert!(notice.starts_with(expected), "{notice}");
    let room: Vec<_> = port.queues.iter_mut().map(|it| it.tx_mut().available() > 0).collect();
    assert_eq!(room, [true, false, false], "the others have no ring to send from");
    // To whichever queue they come.
    send(&lab, &(0..30).map(|number| frame(number, 0, 60)).collect::<Vec<_>>());
    let deadline = Instant::now() + PATIENCE;
    let mut came = [0; 3];
    while came.iter().sum::<u32>() < 30 {
        assert!(Instant::now() < deadline, "{came:?}");
        for (queue, came) in port.queues.iter_mut().zip(&mut came) {
            *came += drain(queue).len() as u32;
        }
    }
}

#[test]
fn a_program_that_was_taken_off_is_noticed_without_waiting_too() {
    let Some(lab) = lab() else { return };
    let (interface, netns) = (right0(&lab), lab.netns("right"));
    type Take = fn(&Lab, &Interface) -> Result<()>;
    let take_off: [Take; 2] = [
        // As `sluice detach` does, and as other tools do.
        |lab, interface| find(lab).unwrap().unwrap().detach(interface),
        |_, interface| Resident::detach_any(interface).map(|_| ()),
    ];
    for (name, usage, sentence) in [
        ("xdp:right0?method=af_xdp", Directions::Receive, "sockets"),
        ("xdp:right0?method=ring", Directions::Receive, "a claim by copying"),
        ("mirror:right0", Directions::Receive, "a mirror"),
        ("xdp:right0?action=drop", Directions::Receive, "packets that are only counted"),
        ("xdp:right0", Directions::Both, "both directions"),
        ("xdp:right0", Directions::Send, "it only sends"),
    ] {
        for take_off in take_off {
            let options = OpenOptions { usage, netns: Some(netns.clone()), ..Default::default() };
            let mut port = Port::open(&name.parse().unwrap(), &options).unwrap();
            port.queues[0].check().unwrap();
            netns::run_in(Some(&netns), || take_off(&lab, &interface)).unwrap();
            let text = word_without_waiting(&mut port.queues[0]);
            assert!(
                text.starts_with("the XDP program of right0 no longer exists"),
                "{sentence}: {text}"
            );
        }
    }
}

#[test]
fn a_lost_program_is_reported_before_its_lost_queue() {
    for name in ["mirror:right0", "xdp:right0"] {
        let Some(lab) = lab_with(2) else { return };
        let mut port = open(&lab, name).unwrap();
        let (resident, interface) = (find(&lab).unwrap().unwrap(), right0(&lab));
        netns::run_in(Some(&lab.netns("right")), || resident.detach(&interface)).unwrap();
        // As virtio_net does.
        set_queues(&lab, "left", 1);
        set_queues(&lab, "right", 1);
        // The queue that is no more: the other has nothing else to say.
        port.queues.remove(0);
        let error = wait_for_word(&mut port).unwrap_err().to_string();
        assert!(error.starts_with("the XDP program of right0 no longer exists"), "{name}: {error}");
    }
}

#[test]
fn a_removed_interface_is_reported_rather_than_its_program() {
    for name in ["xdp:right0?method=af_xdp", "mirror:right0", "xdp:right0?action=drop"] {
        let Some(lab) = lab() else { return };
        let mut port = open(&lab, name).unwrap();
        run(&lab, "right", "ip link del right0");
        let text = word_without_waiting(&mut port.queues[0]);
        assert!(
            !text.contains("program") && text.contains("right0 no longer exists"),
            "{name}: {text}"
        );
    }
}

/// The error of a queue that is synced and checked, and never waits.
fn word_without_waiting(queue: &mut Queue) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        queue.sync_rx().unwrap();
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
        match queue.check() {
            Ok(()) => assert!(Instant::now() < deadline, "nothing is said"),
            Err(error @ Error::Removed { .. }) => return error.to_string(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn set_mtu(lab: &Lab, mtu: u32) {
    run(lab, "right", &format!("ip link set right0 mtu {mtu}"));
    run(lab, "left", &format!("ip link set left0 mtu {mtu}"));
}

#[test]
fn frames_of_each_mtu_fit_the_buffers() {
    let Some(lab) = lab() else { return };
    for mtu in [1500, 1770, 1771, 2000, 3000, 3001, 9000] {
        set_mtu(&lab, mtu);
        for name in ["xdp:right0?method=af_xdp", "xdp:right0?mode=skb", "mirror:right0"] {
            let opened = open(&lab, name);
            if mtu > 3000 && name.starts_with("xdp:") && linux() < (6, 6) {
                let error = opened.err().unwrap().to_string();
                assert!(error.contains("several buffers need Linux 6.6"), "{name}: {error}");
                continue;
            }
            let mut port = opened.unwrap();
            let queue = &mut port.queues[0];
            queue.check().unwrap();
            assert_eq!(queue.take_notice(), None, "{name}, MTU {mtu}");
            send(&lab, &[frame(1, 0, mtu as usize + 14)]);
            let got = receive(queue, 1);
            let stats = queue.stats().unwrap();
            assert_eq!(got.len(), 1, "{name}, MTU {mtu}: {stats:?}");
            assert_eq!(got[0].0.wire_bytes, mtu + 14, "{name}");
            assert_eq!(stats.dropped_ring_full, 0, "{name}, MTU {mtu}");
            drop(port);
            wait_until_removed(&lab);
        }
    }
}

#[test]
fn an_mtu_that_is_too_much_for_the_port_is_told() {
    let Some(lab) = lab() else { return };
    for (name, expected) in [
        ("xdp:right0?mode=skb", "frames of more than 1792 bytes do not fit the buffers"),
        ("mirror:right0?mode=skb", "frames of more than 1522 bytes are cut to that"),
    ] {
        set_mtu(&lab, 1500);
        let mut port = open(&lab, name).unwrap();
        set_mtu(&lab, 9000);
        let notice = wait_for_word(&mut port).unwrap();
        assert!(notice.starts_with("right0 has an MTU of 9000, and "), "{notice}");
        assert!(notice.contains(expected), "{notice}");
        let queue = &mut port.queues[0];
        send(&lab, &[frame(1, 0, 9014), frame(2, 0, 60)]);
        let got = drain(queue);
        let lengths: Vec<_> = got.iter().map(|(meta, _)| meta.wire_bytes).collect();
        let stats = queue.stats().unwrap();
        let is_mirror = name.starts_with("mirror");
        assert_eq!(lengths.contains(&9014), is_mirror, "{name}: {lengths:?}");
        assert!(lengths.contains(&60), "{name}: what fits comes");
        assert_eq!(stats.dropped_ring_full, u64::from(!is_mirror), "{name}: {stats:?}");
        assert_eq!(queue.take_notice(), None, "{name}: said once");
    }
    // A port with a snap length needs no notice.
    set_mtu(&lab, 1500);
    let mut port = open(&lab, "mirror:right0?mode=skb&snaplen=100").unwrap();
    set_mtu(&lab, 9000);
    assert_eq!(notices_until_down(&lab, &mut port.queues[0]), [""; 0]);
}

#[test]
fn a_pool_whose_buffers_are_too_small_is_told() {
    let Some(lab) = lab() else { return };
    set_mtu(&lab, 2000);
    let pool = Pool::new(PoolConfig { buffers: 8192, ..PoolConfig::default() }).unwrap();
    let netns = Some(lab.netns("right"));
    let options = OpenOptions { netns, pool: Some(pool), ..OpenOptions::default() };
    let mut port = Port::open(&"xdp:right0".parse().unwrap(), &options).unwrap();
    assert_eq!(port.method, "af_xdp");
    let notice = port.queues[0].take_notice().expect("at once");
    assert!(notice.contains("frames of more than 1792 bytes do not fit"), "{notice}");
    drop(port);
    // Rings of copies have no such buffers, whatever was tried before them.
    let mut port = open(&lab, "xdp:right0").unwrap();
    assert_eq!((port.method, port.queues[0].take_notice()), ("ring", None));
}

/// Ports of every way that packets come.
const PORTS: [&str; 7] = [
    "xdp:right0?method=af_xdp",
    "xdp:right0?method=af_xdp&busy_poll=50us",
    "xdp:right0?mode=skb",
    "xdp:right0",
    "xdp:right0?action=pass",
    "mirror:right0",
    "mirror:right0?mode=skb",
];

#[test]
fn an_interface_that_is_down_or_goes_down_is_reported_once_and_comes_up() {
    for name in PORTS {
        for down_before in [false, true] {
            let Some(lab) = lab() else { return };
            let down = || run(&lab, "right", "ip link set right0 down");
            if down_before {
                down();
            }
            let mut port = open(&lab, name).unwrap();
            let queue = &mut port.queues[0];
            if !down_before {
                down();
            }
            let deadline = Instant::now() + PATIENCE;
            loop {
                queue.sync_rx().unwrap();
                let slots = queue.rx().available();
                queue.rx_mut().release(slots);
                let readiness = queue.wait_rx(Wait::Sleep, Duration::from_millis(20)).unwrap();
                if readiness == Readiness::Down {
                    break;
                }
                queue.take_kernel_counters();
                assert!(Instant::now() < deadline, "{name}, {down_before}: nothing is said");
            }
            let readiness = queue.wait_rx(Wait::Sleep, Duration::from_millis(1)).unwrap();
            assert_eq!(readiness, Readiness::TimedOut, "{name}, {down_before}: it is said once");
            run(&lab, "right", "ip link set right0 up");
            // More than what a host says when its link comes up.
            let sent: Vec<_> = (0..20).map(|number| frame(number, 0, 60)).collect();
            queue.take_kernel_counters();
            send(&lab, &sent);
            match name.contains("action") {
                true => wait_for_count(queue, sent.len() as u64),
                false => assert_eq!(receive(queue, 20).len(), 20, "{name}: packets come"),
            }
        }
    }
}

/// Waits until the kernel has counted a number of packets.
fn wait_for_count(queue: &mut Queue, packets: u64) {
    let deadline = Instant::now() + PATIENCE;
    let mut counted = 0;
    while counted < packets {
        counted += queue.take_kernel_counters().0;
        assert!(Instant::now() < deadline, "{counted} of {packets} packets are counted");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_removed_interface_is_an_error_that_says_so() {
    for name in PORTS {
        let Some(lab) = lab() else { return };
        let mut port = open(&lab, name).unwrap();
        run(&lab, "right", "ip link del right0");
        let error = wait_for_word(&mut port).unwrap_err();
        assert!(matches!(error, Error::Removed { .. }), "{name}: {error}");
        assert!(error.to_string().contains("the interface was removed"), "{name}: {error}");
        let queue = &mut port.queues[0];
        queue.stop_rx().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !queue.is_finished() {
            // Gone is all that it may say.
            match queue.sync_rx() {
                Ok(_) | Err(Error::Removed { .. }) => {}
                Err(error) => panic!("{name}: {error}"),
            }
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
            queue.take_kernel_counters();
            assert!(Instant::now() < deadline, "{name}: it does not end");
        }
        queue.stats().unwrap();
    }
}

#[test]
fn a_queue_that_a_strangers_socket_has_is_read_by_copies() {
    let Some(lab) = lab() else { return };
    let pool = Pool::new(PoolConfig { buffers: 3000, ..PoolConfig::default() }).unwrap();
    let stranger = XskConfig {
        interface: "right0".into(),
        netns: Some(lab.netns("right")),
        ..XskConfig::default()
    };
    let _stranger = stranger.open(&pool).unwrap();
    let mut port = open(&lab, "xdp:right0?busy_poll=50us").unwrap();
    assert_eq!(port.method, "ring");
    let reason = &port.fallbacks.last().unwrap().reason;
    assert!(reason.contains("another socket has queue 0 of right0"), "{reason}");
    send(&lab, &[frame(1, 0, 60)]);
    assert_eq!(receive(&mut port.queues[0], 1).len(), 1);
    drop(port);
    let error = open(&lab, "xdp:right0?method=af_xdp").unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY), "{error}");
    assert!(error.to_string().contains("ss --xdp --processes"), "{error}");
    wait_until_removed(&lab);
}

#[test]
fn a_tight_limit_on_locked_memory_is_named() {
    let Some(lab) = lab() else { return };
    let exists = |tool| Command::new(tool).arg("--version").output().is_ok();
    if !exists("prlimit") || !exists("setpriv") {
        println!("skipped: needs prlimit and setpriv; get it by installing util-linux");
        return;
    }
    let opened = Command::new("prlimit")
        .args(["--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock,-sys_resource"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "wire::holds_a_port_for_another_test", "--nocapture"])
        .env(TO_HOLD, format!("{} xdp:right0?method=af_xdp", lab.netns("right")))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let opened = child::end(opened);
    let text = String::from_utf8_lossy(&opened.stderr);
    assert!(text.contains("KiB of packet buffers for right0/0"), "{text}");
    assert!(text.contains("raise the limit (ulimit -l"), "{text}");
    wait_until_removed(&lab);
    // A privileged process raises the limit itself.
    let holder = Holder::of(&lab, "xdp:right0?method=af_xdp");
    holder.kill();
}
