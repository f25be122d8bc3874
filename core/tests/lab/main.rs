//! Labs against what iproute2, ethtool and the kernel say of them. Needs root: where a lab
//! cannot be made, each test says so and passes.

#[path = "../child/limit.rs"]
mod child;
mod next_hops;
mod on;
mod scratch;

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use on::on;
use scratch::lab_of;
use sluicegate::error::{Error, ErrorKind};
use sluicegate::filter::ebpf::{Assembler, Helper, Reg};
use sluicegate::link::{
    self, Backlog, Direction, Ethtool, Lab, LabConfig, LinkStats, Netlink, Rates, Sample, Sampler,
    Shape, VethEnd, netns,
};
use sluicegate::port::{OpenOptions, Port};
use sluicegate::ring::Wait;
use sluicegate::xdp::live::{LiveProgram, RunEnd};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The output of a tool. If it is missing or fails, prints the reason and returns `None`.
fn tool(command: &[&str]) -> Option<String> {
    let output: Output = match Command::new(command[0]).args(&command[1..]).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: needs {} ({error}); get it by scripts/setup.sh", command[0]);
            return None;
        }
    };
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        eprintln!("skipped: needs {command:?} to work; get it by sudo: {why}");
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn sent(stats: &LinkStats) -> (u64, u64) {
    (stats.tx_packets, stats.tx_bytes)
}

fn received(stats: &LinkStats) -> (u64, u64) {
    (stats.rx_packets, stats.rx_bytes)
}

fn stats(netns: &str, name: &str) -> LinkStats {
    link::interface(Some(netns), name).unwrap().stats
}

#[test]
fn iproute2_sees_the_lab_as_it_is_described() {
    let Some(lab) = lab_of(Shape::Line, 2) else {
        return;
    };
    let Some(listed) = tool(&["ip", "netns", "list"]) else {
        return;
    };
    for host in lab.hosts() {
        let netns = lab.netns(host.name);
        let known = listed.lines().any(|line| line.split(' ').next() == Some(&netns));
        assert!(known, "{netns} in {listed}");
        for interface in host.interfaces {
            let name = interface.name;
            let show = ["ip", "-n", &netns, "-d", "address", "show", "dev", name];
            let Some(shown) = tool(&show) else { return };
            for part in ["state UP", "veth", "numtxqueues 2", "numrxqueues 2"] {
                assert!(shown.contains(part), "{part} in {shown}");
            }
            assert!(shown.contains(&interface.mac.to_string()), "{shown}");
            assert!(!shown.contains("tentative"), "usable at once: {shown}");
            assert!(!shown.contains("fe80:"), "no link-local address: {shown}");
            let addresses = interface.addresses();
            assert_eq!(addresses.len(), shown.matches("scope global").count(), "{shown}");
            for address in addresses {
                assert!(shown.contains(&format!(" {address} ")), "{address} in {shown}");
            }
            let features = ["ip", "netns", "exec", &netns, "ethtool", "-k", name];
            if let Some(features) = tool(&features) {
                assert!(features.contains("generic-receive-offload: on"), "{features}");
            }
        }
    }
}

#[test]
fn our_view_of_an_interface_is_that_of_ip() {
    let Some(lab) = lab_of(Shape::Pair, 1) else {
        return;
    };
    let netns = lab.netns("left");
    let left = link::interface(Some(&netns), "left0").unwrap();
    assert_eq!((left.kind.as_str(), left.state(), left.mtu), ("veth", "up", 1500));
    assert_eq!(left.hardware, 1, "Ethernet");
    let interfaces = link::interfaces(Some(&netns)).unwrap();
    let names: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["lo", "left0"]);
    let error = link::interface(Some(&netns), "right0").unwrap_err().to_string();
    assert_eq!(error, "no interface 'right0'; available: lo, left0");
    let Some(shown) = tool(&["ip", "-n", &netns, "-o", "link", "show", "dev", "left0"]) else {
        return;
    };
    assert!(shown.starts_with(&format!("{}: left0@", left.index)), "{shown}");
}

#[test]
fn our_ethtool_reads_what_ethtool_reads() {
    let Some(lab) = lab_of(Shape::Pair, 3) else {
        return;
    };
    let netns = lab.netns("right");
    let mut ours = Ethtool::open(Some(&netns)).unwrap();
    assert_eq!(ours.driver("right0").unwrap(), "veth");
    assert!(ours.gro("right0").unwrap());
    let channels = ours.channels("right0").unwrap().unwrap();
    assert_eq!((channels.rx_max, channels.tx_max), (3, 3));
    let names = ours.statistics_names("right0").unwrap();
    let statistics = names.into_iter().zip(ours.statistics_values("right0").unwrap());
    let stamps = ours.timestamping("right0").unwrap().unwrap();
    assert_eq!(stamps.clock, None);
    assert_eq!(ours.hardware_stamps("right0").unwrap(), None);
    let ethtool = ["ip", "netns", "exec", &netns, "ethtool", "-T", "right0"];
    let Some(theirs) = tool(&ethtool) else { return };
    // The bits are those of SOF_TIMESTAMPING_ in linux/net_tstamp.h.
    for (bit, name) in [
        (0, "hardware-transmit"),
        (1, "software-transmit"),
        (2, "hardware-receive"),
        (3, "software-receive"),
    ] {
        assert_eq!(stamps.flags & (1 << bit) != 0, theirs.contains(name), "{name}: {theirs}");
    }
    let speed = ours.speed("right0").unwrap().expect("a veth has a speed");
    let ethtool = ["ip", "netns", "exec", &netns, "ethtool", "right0"];
    let Some(theirs) = tool(&ethtool) else { return };
    assert!(theirs.contains(&format!("Speed: {speed}Mb/s")), "{speed}: {theirs}");
    let ethtool = ["ip", "netns", "exec", &netns, "ethtool", "-S", "right0"];
    let Some(theirs) = tool(&ethtool) else { return };
    let theirs: Vec<&str> = theirs.lines().skip(1).map(str::trim).collect();
    let ours: Vec<String> = statistics.map(|(name, value)| format!("{name}: {value}")).collect();
    assert!(ours.len() > 10, "{ours:?}");
    assert_eq!(ours, theirs);
}

#[test]
fn packets_are_counted_exactly_for_nothing_else_talks() {
    let Some(lab) = lab_of(Shape::Pair, 1) else {
        return;
    };
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let before = (stats(&left, "left0"), stats(&right, "right0"));
    if tool(&["ping", "-V"]).is_none() {
        return;
    }
    let ping = ["ping", "-q", "-c", "10", "-i", "0.01", "-s", "1000", "198.18.0.2"];
    assert!(on(&left, &ping).status.success(), "no answer");
    let after = (stats(&left, "left0"), stats(&right, "right0"));
    // A veth with NAPI counts bytes behind the Ethernet header (drivers/net/veth.c, veth_xdp_rcv).
    let bytes = 20 + 8 + 1000;
    for (sentence, before, after) in [
        ("left sent", sent(&before.0), sent(&after.0)),
        ("left received", received(&before.0), received(&after.0)),
        ("right sent", sent(&before.1), sent(&after.1)),
        ("right received", received(&before.1), received(&after.1)),
    ] {
        let counted = (after.0 - before.0, after.1 - before.1);
        assert_eq!(counted, (10, 10 * bytes), "{sentence}");
    }
    let sample = Sampler::open(Some(&right), &["right0".into()]).unwrap().sample().unwrap();
    assert_eq!(sample.interfaces.len(), 1);
    let queues = &sample.interfaces[0].queues;
    let queue = queues.iter().find(|queue| queue.direction == Direction::Rx).unwrap();
    // A veth counts by queue only what takes the way of NAPI: here all, but that is its affair.
    assert_eq!(queue.packets, None, "a part is no count");
}

#[test]
fn a_sampler_follows_interfaces_and_queues_that_come_and_go() {
    let Some(lab) = lab_of(Shape::Pair, 3) else {
        return;
    };
    let netns = lab.netns("right");
    let mut sampler = Sampler::open(Some(&netns), &[]).unwrap();
    let mut netlink = Netlink::open(Some(&netns)).unwrap();
    let end = |name| VethEnd { name, netns: None, mac: None };
    let first = sampler.sample().unwrap();
    netlink.add_veth(&end("a0"), &end("b0"), 1).unwrap();
    let second = sampler.sample().unwrap();
    let rates = Rates::between(&first, &second);
    let reset = |name: &str| rates.interfaces.iter().find(|i| i.name == name).unwrap().reset;
    assert!(reset("a0") && reset("b0") && !reset("right0"));
    netlink.delete("a0").unwrap();
    let third = sampler.sample().unwrap();
    assert_eq!(Rates::between(&second, &third).interfaces.len(), 2, "lo and right0");

    let received = |sample: &Sample| {
        let right0 = sample.interfaces.iter().find(|i| i.interface.name == "right0").unwrap();
        right0.queues.iter().filter(|queue| queue.direction == Direction::Rx).count()
    };
    assert_eq!(received(&third), 3);
    let right0 = ["ethtool", "-L", "right0", "rx", "1", "tx", "1"];
    let left0 = ["ethtool", "-L", "left0", "rx", "3", "tx", "1"];
    // A veth has no fewer queues to receive than its peer has to send.
    for (host, fewer) in [("left", left0), ("right", right0)] {
        let netns = lab.netns(host);
        if tool(&[&["ip", "netns", "exec", &netns], &fewer[..]].concat()).is_none() {
            return;
        }
    }
    let fourth = sampler.sample().unwrap();
    assert_eq!(received(&fourth), 1, "fewer queues, other names");
}

#[test]
fn ipv6_works_at_once() {
    let Some(lab) = lab_of(Shape::Pair, 1) else {
        return;
    };
    if tool(&["ping", "-V"]).is_none() {
        return;
    }
    let ping = ["ping", "-q", "-c", "1", "-W", "5", "2001:db8:18::2"];
    assert!(on(&lab.netns("left"), &ping).status.success(), "no answer");
}

struct Down<'a>(&'a str);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        let _ = Lab::down(self.0);
    }
}

#[test]
fn up_is_idempotent_and_mends_what_is_broken() {
    if lab_of(Shape::Pair, 1).is_none() {
        return;
    }
    let config = LabConfig { name: format!("test-{}", std::process::id()), ..LabConfig::default() };
    let _down = Down(&config.name);
    let identity = |lab: &Lab| {
        let netns = lab.netns("left");
        let file = std::fs::metadata(format!("/run/netns/{netns}")).unwrap();
        (file.ino(), link::interface(Some(&netns), "left0").unwrap().index)
    };
    let first = Lab::up(&config).unwrap();
    let again = Lab::up(&config).unwrap();
    assert_eq!(identity(&again), identity(&first), "up twice is the same lab");

    let other = LabConfig { shape: Shape::Line, ..config.clone() };
    let error = Lab::up(&other).unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
    assert!(error.to_string().contains("sluice lab down --name"), "{error}");

    netns::delete(&first.netns("right")).unwrap();
    let mended = Lab::up(&config).unwrap();
    assert!(link::interface(Some(&mended.netns("right")), "right0").unwrap().running);
    assert!(Lab::list().iter().any(|lab| lab.name() == config.name));

    Lab::down(&config.name).unwrap();
    assert!(!netns::exists(&mended.netns("left")) && !netns::exists(&mended.netns("right")));
    assert!(Lab::down(&config.name).is_err(), "down twice says so");
}

#[test]
fn a_foreign_namespace_is_left_alone() {
    if lab_of(Shape::Pair, 1).is_none() {
        return;
    }
    let name = format!("foreign-{}", std::process::id());
    let taken = format!("{name}-right");
    netns::create(&taken).unwrap();
    let up = Lab::up(&LabConfig { name: name.clone(), ..LabConfig::default() });
    let there = (netns::exists(&format!("{name}-left")), netns::exists(&taken));
    let again = netns::create(&taken).unwrap_err().to_string();
    netns::delete(&taken).unwrap();
    assert!(matches!(up, Err(Error::Usage(_))), "{up:?}");
    assert_eq!(there, (false, true));
    assert!(again.contains("ip netns delete"), "{again}");
}

#[test]
fn labs_made_at_once_do_not_meet() {
    if lab_of(Shape::Pair, 1).is_none() {
        return;
    }
    let make = || {
        let lab = Lab::scratch().unwrap();
        assert!(link::interface(Some(&lab.netns("left")), "left0").unwrap().running);
        lab.netns("left")
    };
    let names: Vec<String> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    for name in &names {
        assert!(!netns::exists(name), "{name} went when it was dropped");
        assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
    }
}

const ABANDON: &str = "SLUICE_TEST_ABANDON";

/// Not a test of its own: the process that `labs_of_dead_processes_are_swept` starts, which ends
/// without dropping its lab.
#[test]
fn abandon_a_lab() {
    if std::env::var_os(ABANDON).is_some() {
        let lab = Lab::scratch().unwrap();
        println!("\nabandoned {}", lab.name());
        std::process::exit(0);
    }
}

#[test]
fn labs_of_dead_processes_are_swept() {
    if lab_of(Shape::Pair, 1).is_none() {
        return;
    }
    let abandoning = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "abandon_a_lab", "--nocapture"])
        .env(ABANDON, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let abandoned = child::end(abandoning);
    let printed = String::from_utf8_lossy(&abandoned.stdout);
    let name = printed.lines().find_map(|line| line.strip_prefix("abandoned "));
    let name = name.unwrap_or_else(|| panic!("{printed}"));
    // Another test's scratch lab may have swept it already: what counts is that it goes.
    let _sweeper = Lab::scratch().unwrap();
    assert!(Lab::list().iter().all(|lab| lab.name() != name), "{name} is swept");
    assert!(!netns::exists(&format!("{name}-left")) && !netns::exists(&format!("{name}-right")));
}

#[test]
fn the_caller_stays_where_it_was() {
    let Some(lab) = lab_of(Shape::Pair, 1) else {
        return;
    };
    let here = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let before = here();
    let there = netns::run_in(Some(&lab.netns("left")), || Ok(here())).unwrap();
    assert_ne!(there, before);
    assert_eq!(here(), before);
    let panicked = std::panic::catch_unwind(|| {
        netns::run_in::<(), _>(Some(&lab.netns("left")), || panic!("in the other namespace"))
    });
    assert!(panicked.is_err(), "a panic is passed on");
    assert_eq!(here(), before);
    let test = ["-c", "test -d /sys/class/net/left0 && exit 7"];
    let status = lab.spawn("left", Command::new("sh").args(test)).unwrap().wait();
    assert_eq!(status.unwrap().code(), Some(7), "/sys shows the host's interfaces");
    let error = lab.spawn("middle", &mut Command::new("true")).unwrap_err().to_string();
    assert!(error.ends_with("has no host 'middle'; it has left, right"), "{error}");
}

#[test]
fn a_namespace_is_entered_by_name_path_and_pid() {
    let Some(lab) = lab_of(Shape::Pair, 1) else {
        return;
    };
    let left = lab.netns("left");
    let mut sleep = Command::new("sleep");
    let mut process = netns::spawn(&left, sleep.arg("60").stdin(Stdio::null())).unwrap();
    let pid = process.id().to_string();
    for (sentence, text) in [
        ("its name", left.clone()),
        ("the path of that name", format!("/run/netns/{left}")),
        ("the path of a process's", format!("/proc/{pid}/ns/net")),
        ("a process that is in it", pid.clone()),
    ] {
        let names = link::interfaces(Some(&text)).map(|all| all.into_iter().map(|i| i.name));
        assert_eq!(names.unwrap().collect::<Vec<_>>(), ["lo", "left0"], "{sentence}");
    }
    // A namespace that is called as the process is numbered: the name wins.
    netns::create(&pid).unwrap();
    let named = link::interfaces(Some(&pid)).unwrap();
    netns::delete(&pid).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(named.len(), 1, "a namespace just made has loopback only: {named:?}");
}

#[test]
fn a_change_that_fails_says_what_it_was() {
    let Some(lab) = lab_of(Shape::Pair, 1) else {
        return;
    };
    let mut netlink = Netlink::open(Some(&lab.netns("left"))).unwrap();
    let end = |name| VethEnd { name, netns: None, mac: None };
    let error = netlink.add_veth(&end("left0"), &end("other"), 1).unwrap_err();
    assert_eq!(error.errno(), Some(nix::libc::EEXIST), "{error}");
    assert!(error.to_string().starts_with("create veth pair left0-other: "), "{error}");
    netlink.add_veth(&end("a0"), &end("b0"), 2).unwrap();
    netlink.delete("a0").unwrap();
    assert!(netlink.delete("b0").is_err(), "with one end goes the other");
}

#[test]
fn every_end_of_a_lab_takes_live_frames() {
    let Some(lab) = lab_of(Shape::Line, 1) else {
        return;
    };
    let ends = lab.hosts().iter().flat_map(|host| host.interfaces.iter().map(move |i| (host, i)));
    for (host, interface) in ends {
        let netns = lab.netns(host.name);
        let sent = || stats(&netns, interface.name).tx_packets;
        match netns::run_in(Some(&netns), || send_live(interface.name, sent)) {
            Ok(RunEnd::Done) => {}
            Ok(RunEnd::Interrupted) => panic!("{}: a signal came", interface.name),
            Err(error) if error.kind() == ErrorKind::Privilege => {
                return eprintln!(
                    "skipped: needs live frames; get it by Linux 5.18 and sudo: {error}"
                );
            }
            Err(error) => panic!("{}: {error}", interface.name),
        }
    }
}

/// Sends frames of zeros, to nobody, out of an interface of this thread's namespace, which says how many
/// it has sent: no more at a time than the other end has room for (VETH_RING_SIZE, drivers/net/veth.c).
fn send_live(interface: &str, sent: impl Fn() -> u64) -> sluicegate::error::Result<RunEnd> {
    const AT_ONCE: u32 = 200;
    let mut asm = Assembler::new();
    asm.mov(Reg::R1, link::interface(None, interface)?.index.cast_signed());
    asm.mov(Reg::R2, 0);
    asm.call(Helper::REDIRECT);
    asm.exit();
    let maker = LiveProgram::load(c"all_alike", &asm.finish().unwrap(), vec![0; 60])?;
    let deadline = Instant::now() + PATIENCE;
    let before = sent();
    for times in 1..=20 {
        let all = before + times * u64::from(AT_ONCE);
        let ended = maker.run(AT_ONCE)?;
        if ended != RunEnd::Done {
            return Ok(ended);
        }
        while sent() < all {
            assert!(Instant::now() < deadline, "{interface}: {} of {all}", sent());
        }
    }
    Ok(RunEnd::Done)
}

#[test]
fn packets_have_their_checksums_on_the_link() {
    let Some(lab) = lab_of(Shape::Pair, 1) else {
        return;
    };
    let options = OpenOptions { netns: Some(lab.netns("right")), ..OpenOptions::default() };
    let name = "packet:right0?method=recvmmsg&filter=udp port 9".parse().unwrap();
    let mut port = Port::open(&name, &options).unwrap();
    let send = || {
        let socket = std::net::UdpSocket::bind("198.18.0.1:0").unwrap();
        socket.send_to(b"as on a wire", "198.18.0.2:9").unwrap();
        Ok(())
    };
    netns::run_in(Some(&lab.netns("left")), send).unwrap();
    let queue = &mut port.queues[0];
    queue.wait_rx(Wait::Sleep, PATIENCE).unwrap();
    queue.sync_rx().unwrap();
    let packet = queue.rx().packets().next().expect("the packet");
    let frame = packet.head();
    // Ethernet 14, IPv4 20 with the addresses at its end: RFC 768, with the pseudo header.
    let (addresses, datagram) = (&frame[26..34], &frame[34..]);
    let words = addresses.chunks_exact(2).chain(datagram.chunks_exact(2));
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = sum + 17 + datagram.len() as u32;
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{frame:02x?}");
}

#[test]
fn a_removed_queueing_discipline_is_reported_but_not_clsact() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let left = lab.netns("left");
    let interface = link::interface(Some(&left), "left0").unwrap();
    let mut backlog = Backlog::open(Some(&left), &interface).unwrap();
    let mut has_clsact = true;
    for (command, removed) in [
        ("add dev left0 clsact", false),
        ("del dev left0 clsact", false),
        ("replace dev left0 root pfifo", false),
        ("del dev left0 root", true),
    ] {
        let tc = ["tc", "qdisc"].into_iter().chain(command.split(' ')).collect::<Vec<_>>();
        let output = on(&left, &tc);
        if String::from_utf8_lossy(&output.stderr).contains("qdisc kind is unknown") {
            has_clsact = false;
            println!("skipped: clsact needs sch_ingress; get it by modprobe sch_ingress");
        }
        if !has_clsact && command.ends_with("clsact") {
            continue;
        }
        assert!(output.status.success(), "{command}: {output:?}");
        assert_eq!(backlog.read().unwrap().removed, removed, "{command}");
    }
}
