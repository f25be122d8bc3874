//! The kernel completes connections of SYN cookies: clients need no second SYN.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind::ConnectionRefused;

use sluicegate_scrub::program::Cookies;

use super::*;

pub(super) const ALWAYS_ON: &str = "{ challenge = 'always', handover = 'on' }";

/// Returns the version of this kernel.
pub(super) fn kernel() -> [u32; 2] {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(|it| it.parse().unwrap());
    std::array::from_fn(|_| numbers.next().unwrap())
}

/// Returns why the kernel cannot complete connections, which only an old kernel may have as an excuse.
pub(super) fn missing(scrubber: &Scrubber) -> Option<String> {
    let reason = scrubber.handover_obstacle().filter(|it| it.contains("Linux 6.0"))?;
    assert!(kernel() < [6, 0], "{reason}");
    Some(reason)
}

/// Returns true if connections are handed over by Sluice's own cookies; otherwise prints that the test is skipped.
fn has_own_cookies(scrubber: &Scrubber) -> bool {
    let has_own = scrubber.cookies() == Some(Cookies::Own);
    if !has_own {
        assert!(kernel() < [6, 9]);
        println!("skipped: needs Linux 6.9");
    }
    has_own
}

/// Returns true if this number of connections was handed over. The program counts those of the kernel's cookies by their
/// first packet without data. Packets take their ways over several CPUs: data may overtake this packet, and a packet that
/// comes behind the connection's end begins another one. A segment that the client repeated may be handed over, too, if the
/// kernel has not made the connection of the first one.
pub(super) fn has_handed_over(scrubber: &Scrubber, connections: u64, repeated: u64) -> bool {
    let found = scrubber.handed_over();
    println!("{found} connections of {connections} were handed over");
    match scrubber.cookies() {
        Some(Cookies::Kernel) => found.abs_diff(connections) <= 1 + connections / 10,
        _ => (connections..=connections + repeated).contains(&found),
    }
}

/// Returns true if the kernel can complete connections; otherwise prints that the test is skipped.
fn can_hand_over(scrubber: &Scrubber) -> bool {
    let missing = missing(scrubber);
    if let Some(reason) = &missing {
        println!("skipped: {reason}");
    }
    missing.is_none()
}

/// Returns the TCP segments that hosts of this namespace have retransmitted.
fn retransmissions(lab: &Lab, host: &str) -> u64 {
    let text = netns::run_in(Some(&lab.netns(host)), || {
        Ok(fs::read_to_string("/proc/thread-self/net/snmp").unwrap())
    });
    let text = text.unwrap();
    let mut lines = text.lines().filter(|it| it.starts_with("Tcp:"));
    let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|it| it == "RetransSegs").unwrap();
    numbers.split(' ').nth(at).unwrap().parse().unwrap()
}

pub(super) fn need_one_round_trip(options: &Options) {
    let connections = connections();
    let Some(lab) = lab() else { return };
    let _woken = (options.attach == ModeRequest::Only(Mode::Native)).then(|| wake(&lab));
    let scrubber = scrub(&lab, "'always'", options);
    if !can_hand_over(&scrubber) {
        return;
    }
    let before = retransmissions(&lab, "left");
    for (kind, address) in (1..).zip(["198.18.0.2", "2001:db8:18::2"]) {
        let server = listen(&lab, address);
        let flooded = SocketAddr::new("198.18.0.2".parse().unwrap(), server.1.port());
        let (seen, sent) = under_flood(&lab, flooded, SYN, Duration::from_millis(2), || {
            connect_all(&lab, &server, 0, connections);
        });
        println!("{address}: {seen:?} of {sent}, {:?}", scrubber.report());
        assert_eq!((seen.flood, seen.resets, seen.syns), (0, 0, 0), "{address}");
        // A client that waits for a CPU may repeat a segment.
        let repeated = retransmissions(&lab, "left") - before;
        println!("{repeated} segments were repeated");
        let connections = kind * u64::from(connections);
        assert!(repeated <= 1 + connections / 100, "{address}: {repeated}");
        assert!(has_handed_over(&scrubber, connections, repeated), "{address}");
        assert_eq!(count(&scrubber, "challenge-answered"), 0);
    }
}

#[test]
fn connections_need_one_round_trip_in_native_mode() {
    need_one_round_trip(&attach(Mode::Native));
}

#[test]
fn connections_need_one_round_trip_in_skb_mode() {
    need_one_round_trip(&attach(Mode::Skb));
}

pub(super) fn survive_the_ladder(options: &Options) {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub(&lab, "{ above = 200, below = 50, state = 'on' }", options);
    if !can_hand_over(&scrubber) {
        return;
    }
    let server = listen(&lab, "198.18.0.2");
    let left = lab.netns("left");
    let connect =
        |number| netns::run_in(Some(&left), || Ok(connect_from(client(true, number), server.1)));
    let accept_one = || std::iter::repeat_with(|| accept(&server.0)).flatten().next().unwrap();
    let mut early = connect(60_000).unwrap().unwrap();
    let mut accepted = accept_one();
    thread::scope(|scope| {
        scope.spawn(move || echo(&mut accepted));
        exchange(&mut early).unwrap();
        let until = Instant::now() + TIMEOUT;
        let mut handed_over = None;
        under_flood(&lab, server.1, SYN, Duration::from_millis(10), || {
            while count(&scrubber, "challenge") < 1000 {
                exchange(&mut early).unwrap();
                assert!(Instant::now() < until, "level 2 is not reached");
            }
            connect_all(&lab, &server, 0, 100);
            handed_over = Some(connect(50_000).unwrap().unwrap());
            let mut accepted = accept_one();
            scope.spawn(move || echo(&mut accepted));
            exchange(&mut early).unwrap();
        });
        assert!(has_handed_over(&scrubber, 101, 0));
        let mut handed_over = handed_over.unwrap();
        // Level 0: new sources connect without a challenge.
        for number in 100.. {
            let decided =
                |scrubber: &Scrubber| count(scrubber, "challenge") + count(scrubber, "first-syn");
            let before = decided(&scrubber);
            connect_all(&lab, &server, number, 1);
            exchange(&mut early).unwrap();
            exchange(&mut handed_over).unwrap();
            if decided(&scrubber) == before {
                break;
            }
            assert!(Instant::now() < until, "level 0 is not reached");
            thread::sleep(Duration::from_millis(500));
        }
        assert_eq!(count(&scrubber, "unknown-flow"), 0);
        for stream in [early, handed_over] {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
    });
}

#[test]
fn connections_survive_the_ladder_with_hand_over() {
    survive_the_ladder(&attach(Mode::Native));
}

/// Returns what a server's socket knows of its client, as `ss` prints it.
fn options_of_server(lab: &Lab, port: u16) -> BTreeSet<String> {
    let mut ss = Command::new("ss");
    ss.args(["-tinoH", "state", "established", "sport", "=", &format!(":{port}")]);
    ss.stdout(std::process::Stdio::piped());
    let output = netns::spawn(&lab.netns("right"), &mut ss).unwrap().wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names = ["ts", "sack", "ecn", "wscale:", "mss:", "advmss:"];
    let words = text.split_whitespace();
    words.filter(|it| names.iter().any(|name| it.starts_with(name))).map(str::to_owned).collect()
}

/// Returns the options of one connection from the client's address.
pub(super) fn options_of_connection(lab: &Lab, address: &str, number: u32) -> BTreeSet<String> {
    let (listener, server) = listen(lab, address);
    let connected = netns::run_in(Some(&lab.netns("left")), || {
        Ok(connect_from(client(server.is_ipv4(), number), server).unwrap())
    });
    let mut stream = connected.unwrap();
    let mut accepted = std::iter::repeat_with(|| accept(&listener)).flatten().next().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| accepted.write_all(&[7]));
        stream.read_exact(&mut [0]).unwrap();
    });
    options_of_server(lab, server.port())
}

#[test]
fn connections_have_the_options_of_any_other() {
    let Some(lab) = lab() else { return };
    if Command::new("ss").arg("-V").output().is_err() {
        return println!("skipped: needs ss; get it by apt install iproute2");
    }
    let _woken = wake(&lab);
    let settings = [
        "true",
        "sysctl -qw net.ipv4.tcp_ecn=1",
        "sysctl -qw net.ipv4.tcp_sack=0",
        "sysctl -qw net.ipv4.tcp_window_scaling=0",
        "ip route replace 198.18.0.0/24 dev left0 src 198.18.0.1 advmss 1300; \
         ip -6 route replace 2001:db8:18::/64 dev left0 advmss 1300",
        "sysctl -qw net.ipv4.tcp_sack=1 net.ipv4.tcp_window_scaling=1 net.ipv4.tcp_timestamps=0",
    ];
    let mut number = 0;
    for setting in settings {
        run(&lab, "left", setting);
        for address in ["198.18.0.2", "2001:db8:18::2"] {
            let mut right = options_of_connection(&lab, address, number);
            if right.is_empty() {
                return println!(
                    "skipped: needs options of sockets; get them by modprobe tcp_diag"
                );
            }
            let scrubber = scrub(&lab, ALWAYS_ON, &attach(Mode::Native));
            if !has_own_cookies(&scrubber) {
                return;
            }
            let found = options_of_connection(&lab, address, number);
            println!("{setting}, {address}: {found:?}");
            if !right.contains("ts") {
                right.retain(|it| it.starts_with("mss:") || it.starts_with("advmss:"));
            }
            assert_eq!(found, right, "{setting}, {address}");
            assert_eq!(scrubber.handed_over(), 1);
            number += 1;
        }
    }
}

pub(super) fn data_arrives(options: &Options) {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub(&lab, ALWAYS_ON, options);
    if !can_hand_over(&scrubber) {
        return;
    }
    for address in ["198.18.0.2", "2001:db8:18::2"] {
        let (listener, server) = listen(&lab, address);
        let mut random = Random::new(1);
        let data: Vec<u8> = (0..1 << 19).flat_map(|_| random.number().to_ne_bytes()).collect();
        let connected = netns::run_in(Some(&lab.netns("left")), || {
            Ok(connect_from(client(server.is_ipv4(), 0), server).unwrap())
        });
        let mut stream = connected.unwrap();
        let mut accepted = std::iter::repeat_with(|| accept(&listener)).flatten().next().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| std::io::copy(&mut accepted.try_clone().unwrap(), &mut accepted));
            let mut writer = stream.try_clone().unwrap();
            let bytes = &data;
            scope.spawn(move || {
                writer.write_all(bytes).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut found = vec![0; data.len()];
            stream.read_exact(&mut found).unwrap();
            assert!(found == data, "{address}");
        });
    }
    assert_eq!(scrubber.handed_over(), 2);
}

#[test]
fn data_arrives_both_ways() {
    data_arrives(&attach(Mode::Native));
}

pub(super) fn client_is_refused(options: &Options) {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub(&lab, ALWAYS_ON, options);
    if !can_hand_over(&scrubber) {
        return;
    }
    let refused = netns::run_in(Some(&lab.netns("left")), || {
        let error = connect_from(client(true, 0), "198.18.0.2:9".parse().unwrap()).unwrap_err();
        Ok(std::io::Error::from(error))
    });
    assert_eq!(refused.unwrap().kind(), ConnectionRefused);
    assert_eq!(count(&scrubber, "challenge-answered"), 1);
    assert_eq!(scrubber.handed_over(), 0);
    connect_all(&lab, &listen(&lab, "198.18.0.2"), 1, 1);
    assert_eq!(scrubber.handed_over(), 1, "a listener's client is handed over");
}

#[test]
fn without_a_listener_a_client_is_refused() {
    client_is_refused(&attach(Mode::Native));
}

#[test]
fn only_connections_to_addresses_of_this_host_are_handed_over() {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub(&lab, ALWAYS_ON, &attach(Mode::Native));
    if !can_hand_over(&scrubber) {
        return;
    }
    run(&lab, "left", "ip route add 198.18.99.0/24 via 198.18.0.2");
    // A listener on all addresses, which another host's are not.
    let (listener, server) = listen(&lab, "0.0.0.0");
    let other = SocketAddr::new("198.18.99.1".parse().unwrap(), server.port());
    thread::scope(|scope| {
        let netns = lab.netns("left");
        let client = scope.spawn(move || {
            netns::run_in(Some(&netns), || {
                Ok(TcpStream::connect_timeout(&other, Duration::from_secs(2)).is_err())
            })
        });
        assert!(client.join().unwrap().unwrap(), "no host has the address");
    });
    assert_eq!(count(&scrubber, "challenge-answered"), 1, "it was challenged");
    assert_eq!(scrubber.handed_over(), 0);
    let own = SocketAddr::new("198.18.0.2".parse().unwrap(), server.port());
    connect_all(&lab, &(listener, own), 1, 1);
    assert_eq!(scrubber.handed_over(), 1);
}

#[test]
fn a_firewall_prevents_hand_over_in_mode_auto() {
    let Some(lab) = lab() else { return };
    if Command::new("nft").arg("--version").output().is_err() {
        return println!("skipped: needs nft; get it by apt install nftables");
    }
    let _woken = wake(&lab);
    run(
        &lab,
        "right",
        "nft 'add table ip f; add chain ip f in { type filter hook input priority 0; policy drop; }; \
         add rule ip f in iif lo accept; add rule ip f in ct state established,related accept; \
         add rule ip f in tcp dport 1-65535 accept'",
    );
    let scrubber = scrub(&lab, "'always'", &attach(Mode::Native));
    if !can_hand_over(&scrubber) {
        return;
    }
    assert!(scrubber.handover_obstacle().unwrap().contains("nftables"));
    let server = listen(&lab, "198.18.0.2");
    connect_all(&lab, &server, 0, 10);
    assert_eq!((scrubber.handed_over(), count(&scrubber, "challenge-answered")), (0, 10));
    drop(scrubber);
    let scrubber = scrub(&lab, ALWAYS_ON, &attach(Mode::Native));
    assert_eq!(scrubber.handover_obstacle(), None);
    connect_all(&lab, &server, 10, 10);
    assert_eq!((scrubber.handed_over(), count(&scrubber, "challenge-answered")), (10, 0));
    drop(scrubber);
    // Without its tables, the host is seen anew.
    let scrubber = scrub(&lab, "'always'", &attach(Mode::Native));
    run(&lab, "right", "nft flush ruleset");
    let until = Instant::now() + TIMEOUT;
    while scrubber.handover_obstacle().is_some() {
        assert!(Instant::now() < until, "the obstacle stays");
        thread::sleep(Duration::from_millis(100));
    }
    connect_all(&lab, &server, 20, 10);
    assert_eq!(scrubber.handed_over(), 10);
}

/// Sets the checksums of a frame of TCP over IPv4.
fn set_checksums(frame: &mut [u8], spec: &FrameSpec) {
    let ip_at = 14 + 4 * spec.tags.len();
    let (ip, rest) = etherparse::Ipv4Header::from_slice(&frame[ip_at..]).unwrap();
    let (tcp, payload) = etherparse::TcpHeader::from_slice(rest).unwrap();
    let sums = [
        (ip_at + 10, ip.calc_header_checksum()),
        (ip_at + 36, tcp.calc_checksum_ipv4(&ip, payload).unwrap()),
    ];
    for (at, sum) in sums {
        frame[at..][..2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Sends a frame from left0 to right0.
fn send(lab: &Lab, port: &mut Port, spec: &FrameSpec) {
    let mac = |host: &str, name: &str| {
        link::interface(Some(&lab.netns(host)), name).unwrap().mac.unwrap().0
    };
    let mut frame = spec.build();
    frame[..12].copy_from_slice(&[mac("right", "right0"), mac("left", "left0")].concat());
    set_checksums(&mut frame, spec);
    let queue = &mut port.queues[0];
    while !queue.tx_mut().push(&Packet::new(&Meta::default(), &frame)) {
        queue.sync_tx().unwrap();
    }
    queue.sync_tx().unwrap();
}

/// Waits for the answer to a SYN. Returns its sequence and acknowledgement number.
fn answer(port: &mut Port, syn: &FrameSpec) -> (u32, u32) {
    let (queue, until) = (&mut port.queues[0], Instant::now() + TIMEOUT);
    loop {
        assert!(Instant::now() < until, "no answer");
        queue.sync_rx().unwrap();
        let mut found = None;
        for packet in queue.rx().packets() {
            let Parsed::Packet(it) = parse(packet.head()) else { continue };
            if it.src == syn.dst && it.dport == syn.sport && it.tcp_flags & 0x3f == SYN | ACK {
                found = Some((it.seq, it.ack));
            }
        }
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
        if let Some(numbers) = found {
            return numbers;
        }
    }
}

/// The first packet behind the SYN may have data already, and a tag.
pub(super) fn data_and_tags_come(options: &Options) {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub(&lab, ALWAYS_ON, options);
    if !can_hand_over(&scrubber) {
        return;
    }
    let (listener, server) = listen(&lab, "198.18.0.2");
    let netns = Some(lab.netns("left"));
    let options = OpenOptions { usage: Directions::Both, netns, ..OpenOptions::default() };
    let mut port = Port::open(&"packet:left0?slots=256".parse().unwrap(), &options).unwrap();
    // A tag of VLAN 0 only has a priority: the host takes such packets without an interface for the VLAN.
    for (number, tags) in (0..).zip([vec![], vec![(0x8100, 0xe000)]]) {
        let src = IpAddr::from([198, 18, 0, 70 + number]);
        let syn = FrameSpec {
            src,
            dst: server.ip(),
            dport: server.port(),
            tags,
            tcp_flags: SYN,
            seq: 1000,
            ..FrameSpec::default()
        };
        send(&lab, &mut port, &syn);
        let (seq, ack) = answer(&mut port, &syn);
        assert_eq!(ack, 1001, "the client must accept it");
        let data = FrameSpec {
            tcp_flags: ACK,
            seq: 1001,
            ack: seq.wrapping_add(1),
            payload: b"hello".to_vec(),
            ..syn
        };
        send(&lab, &mut port, &data);
        let mut accepted = std::iter::repeat_with(|| accept(&listener)).flatten().next().unwrap();
        let mut found = [0; 5];
        accepted.read_exact(&mut found).unwrap();
        assert_eq!((&found, accepted.peer_addr().unwrap().ip()), (b"hello", src));
        // Of the kernel's cookies, a first packet with data does not count.
        let counted = u64::from(number + 1) * u64::from(scrubber.cookies() == Some(Cookies::Own));
        assert_eq!(scrubber.handed_over(), counted);
    }
}

#[test]
fn data_and_tags_come_with_the_acknowledgement() {
    data_and_tags_come(&attach(Mode::Native));
}
