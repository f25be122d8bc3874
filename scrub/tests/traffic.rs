//! Sockets of Linux connect through a scrubber in a lab, under floods. The tests need root.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use sluicegate::link::{self, Lab, netns};
use sluicegate::port::{Directions, OpenOptions, Port};
use sluicegate::ring::{Meta, Packet, Wait};
use sluicegate::xdp::Mode;
use sluicegate::xdp::resident::{ModeRequest, Resident};
use sluicegate_scrub::packet::{Parsed, parse};
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::program;
use sluicegate_scrub::scrubber::{Candidate, NamedCause, Options, Scrubber, StageName};
use sluicegate_scrub::testing::{FrameSpec, Random, a2s_query};

mod lab;

#[path = "traffic/answer_cache.rs"]
mod answer_cache;
#[path = "traffic/devices.rs"]
mod devices;
#[path = "traffic/handover.rs"]
mod handover;
#[path = "traffic/kernel_handover.rs"]
mod kernel_handover;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Sources of floods are in 11.0.0.0/8.
const FLOOD: u8 = 11;
const SYN: u8 = 2;
const ACK: u8 = 16;
const CLIENT_THREADS: usize = 8;
/// All clients are challenged, and none is handed over to the kernel.
const ALWAYS: &str = "{ challenge = 'always', handover = 'off' }";

/// A lab whose left host has the addresses 198.19.0.0/16 and 2001:db8:77::/48.
fn lab() -> Option<Lab> {
    let lab = lab::privileged(Lab::scratch())?;
    for (host, command) in [
        ("left", "ip link set lo up"),
        ("left", "ip route add local 198.19.0.0/16 dev lo"),
        ("left", "ip -6 route add local 2001:db8:77::/48 dev lo"),
        ("left", "echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind"),
        ("right", "ip route add 198.19.0.0/16 via 198.18.0.1"),
        ("right", "ip -6 route add 2001:db8:77::/48 via 2001:db8:18::1"),
    ] {
        run(&lab, host, command);
    }
    Some(lab)
}

fn run(lab: &Lab, host: &str, command: &str) {
    let mut shell = Command::new("sh");
    let status =
        netns::spawn(&lab.netns(host), shell.args(["-c", command])).unwrap().wait().unwrap();
    assert!(status.success(), "{host}: {command}");
}

fn scrub(lab: &Lab, tcp: &str, options: &Options) -> Scrubber {
    scrub_by(lab, &format!("profile.default.tcp = {tcp}"), options)
}

fn scrub_by(lab: &Lab, policy: &str, options: &Options) -> Scrubber {
    let policy = Policy::parse(policy).unwrap();
    let right0 = link::interface(Some(&lab.netns("right")), "right0").unwrap();
    netns::run_in(Some(&lab.netns("right")), || {
        let candidate = Candidate::build(policy)?;
        Scrubber::start(&[right0], candidate, options, None)
    })
    .unwrap()
}

/// Joins a program on left0: a veth is not woken for frames by XDP_TX while its own end has none (veth_xdp_flush in
/// drivers/net/veth.c).
fn wake(lab: &Lab) -> Resident {
    let left = lab.netns("left");
    let left0 = link::interface(Some(&left), "left0").unwrap();
    netns::run_in(Some(&left), || Resident::join(&left0, ModeRequest::Only(Mode::Native)))
        .unwrap()
        .0
}

fn attach(mode: Mode) -> Options {
    Options { attach: ModeRequest::Only(mode), limit_keys: 1 << 18, ..Options::default() }
}

fn count(scrubber: &Scrubber, name: &str) -> u64 {
    let verdict = if name == "challenge" { Verdict::Answer } else { Verdict::Drop };
    let cause = NamedCause { stage: StageName::Tcp, name: name.into(), verdict: Some(verdict) };
    scrubber.report().find(&cause).packets
}

fn listen(lab: &Lab, address: &str) -> (TcpListener, SocketAddr) {
    let listener =
        netns::run_in(Some(&lab.netns("right")), || Ok(TcpListener::bind((address, 0)).unwrap()));
    let listener = listener.unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Connects from an address of this thread's host.
fn connect_from(src: IpAddr, server: SocketAddr) -> nix::Result<TcpStream> {
    let family = if src.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(src, 0)))?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(server))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    Ok(stream)
}

/// Sends a byte, and gets it back.
fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(&[7])?;
    stream.read_exact(&mut [0])
}

/// Returns bytes until the client ends the connection.
fn echo(stream: &mut TcpStream) {
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 {
        stream.write_all(&byte).unwrap();
    }
}

fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false).unwrap();
            Some(stream)
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

fn client(is_v4: bool, number: u32) -> IpAddr {
    match is_v4 {
        true => IpAddr::from((198 << 24 | 19 << 16 | (number + 1)).to_be_bytes()),
        false => format!("2001:db8:77:{number:x}::1").parse().unwrap(),
    }
}

fn connect_all(lab: &Lab, server: &(TcpListener, SocketAddr), first: u32, connections: u32) {
    connect_all_by(CLIENT_THREADS, lab, server, first, connections);
}

/// Returns the byte of each client until `over`. Returns the number of bytes. Another CPU may bring an acknowledgement
/// behind its connection's end. To the kernel's SYN cookies it is valid, and begins a connection without data and end.
fn serve(listener: &TcpListener, over: &AtomicBool) -> u32 {
    let (mut streams, mut served) = (Vec::new(), 0);
    while !over.load(Ordering::Relaxed) {
        match accept(listener) {
            Some(stream) => {
                stream.set_nonblocking(true).unwrap();
                streams.push(stream);
            }
            None => thread::sleep(Duration::from_micros(100)),
        }
        streams.retain_mut(|stream| {
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(1) => stream.write_all(&byte).unwrap(),
                Ok(_) => return false,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(error) => panic!("{error}"),
            }
            served += 1;
            true
        });
    }
    served
}

/// Makes connections from as many addresses of the left host, `first` on, and exchanges a byte over each.
fn connect_all_by(
    client_threads: usize,
    lab: &Lab,
    (listener, address): &(TcpListener, SocketAddr),
    first: u32,
    connections: u32,
) {
    let next = AtomicU32::new(0);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(listener, &over));
        let failed = netns::run_in(Some(&lab.netns("left")), || {
            let clients = || {
                let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
                for number in numbers.take_while(|it| *it < connections) {
                    let src = client(address.is_ipv4(), first + number);
                    let connection = connect_from(src, *address).map_err(std::io::Error::from);
                    connection
                        .and_then(|mut it| exchange(&mut it))
                        .map_err(|error| format!("{src}: {error}"))?;
                }
                Ok(())
            };
            thread::scope(|scope| {
                let threads: Vec<_> = (0..client_threads).map(|_| scope.spawn(clients)).collect();
                let results: Result<Vec<()>, String> =
                    threads.into_iter().map(|it| it.join().unwrap()).collect();
                Ok(results.err())
            })
        });
        over.store(true, Ordering::Relaxed);
        assert_eq!(failed.unwrap(), None);
        assert_eq!(server.join().unwrap(), connections);
    });
}

/// Sends packets with these flags and random sources to a server until `over`. Returns their number.
fn flood(lab: &Lab, server: SocketAddr, tcp_flags: u8, pause: Duration, over: &AtomicBool) -> u64 {
    let options = OpenOptions {
        usage: Directions::Send,
        netns: Some(lab.netns("left")),
        ..OpenOptions::default()
    };
    let mut port = Port::open(&"packet:left0?slots=256".parse().unwrap(), &options).unwrap();
    let mac = |host: &str, name: &str| {
        link::interface(Some(&lab.netns(host)), name).unwrap().mac.unwrap()
    };
    let addresses = [mac("right", "right0").0, mac("left", "left0").0].concat();
    let mut random = Random::new(3);
    let (queue, mut sent) = (&mut port.queues[0], 0);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..32 {
            let number = random.number();
            let src =
                IpAddr::from((u32::from(FLOOD) << 24 | number as u32 & 0xff_ffff).to_be_bytes());
            let spec = FrameSpec {
                src,
                dst: server.ip(),
                dport: server.port(),
                tcp_flags,
                ..FrameSpec::default()
            };
            let mut frame = FrameSpec { seq: (number >> 32) as u32, ..spec }.build();
            frame[..12].copy_from_slice(&addresses);
            while !queue.tx_mut().push(&Packet::new(&Meta::default(), &frame)) {
                queue.sync_tx().unwrap();
            }
            sent += 1;
        }
        queue.sync_tx().unwrap();
        thread::sleep(pause);
    }
    queue.close_tx().unwrap();
    sent
}

/// Packets that reached the right host's stack.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    flood: u64,
    resets: u64,
    syns: u64,
    /// Packets that did not fit into the ring.
    lost: u64,
}

/// Counts what the right host's stack gets until `over`.
fn tap(mut port: Port, over: &AtomicBool) -> Seen {
    let (queue, mut seen) = (&mut port.queues[0], Seen::default());
    let mut all = 0;
    loop {
        let last = over.load(Ordering::Relaxed);
        if queue.sync_rx().unwrap() == 0 {
            // The kernel keeps a block of packets until it is full, or for some time.
            let stats = queue.stats().unwrap();
            if last && all + stats.dropped_ring_full >= stats.received {
                seen.lost = stats.dropped_ring_full;
                return seen;
            }
            queue.wait_rx(Wait::default(), Duration::from_millis(5)).unwrap();
        }
        for packet in queue.rx().packets() {
            let Parsed::Packet(packet) = parse(packet.head()) else { continue };
            if packet.sport == 0 || packet.protocol != 6 {
                continue;
            }
            seen.flood +=
                u64::from(matches!(packet.src, IpAddr::V4(src) if src.octets()[0] == FLOOD));
            seen.resets += u64::from(packet.tcp_flags & 4 != 0);
            seen.syns += u64::from(packet.tcp_flags & 0x12 == 2);
        }
        let slots = queue.rx().available();
        all += u64::from(slots);
        queue.rx_mut().release(slots);
    }
}

/// Does something while a tap counts and a flood comes. Returns what the tap saw, and the packets of the flood.
fn under_flood(
    lab: &Lab,
    server: SocketAddr,
    tcp_flags: u8,
    pause: Duration,
    work: impl FnOnce(),
) -> (Seen, u64) {
    let (flood_over, tap_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let options = OpenOptions { netns: Some(lab.netns("right")), ..OpenOptions::default() };
    let port = Port::open(&"packet:right0".parse().unwrap(), &options).unwrap();
    thread::scope(|scope| {
        let tap = scope.spawn(|| tap(port, &tap_over));
        let flood = scope.spawn(|| flood(lab, server, tcp_flags, pause, &flood_over));
        // The threads must end if an assertion fails.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        flood_over.store(true, Ordering::Relaxed);
        let sent = flood.join();
        tap_over.store(true, Ordering::Relaxed);
        let seen = tap.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (seen, sent.unwrap())
    })
}

/// Connections of a test, of each version of IP; a slow machine (an emulated one) may thin them out.
fn connections() -> u32 {
    let number = |name| std::env::var(name).ok().map(|it| it.parse::<u32>().expect("a number"));
    number("SCRUB_CONNECTIONS").unwrap_or(1000) / number("SLUICE_TEST_THIN").unwrap_or(1)
}

/// Many connections of each kind, while all sources are challenged.
fn connections_succeed(mode: Mode) {
    let connections = connections();
    let Some(lab) = lab() else { return };
    let _woken = (mode == Mode::Native).then(|| wake(&lab));
    let scrubber = scrub(&lab, ALWAYS, &attach(mode));
    for (kind, address) in (1..).zip(["198.18.0.2", "2001:db8:18::2"]) {
        let server = listen(&lab, address);
        let flooded = SocketAddr::new("198.18.0.2".parse().unwrap(), server.1.port());
        let (seen, sent) = under_flood(&lab, flooded, SYN, Duration::from_millis(2), || {
            connect_all(&lab, &server, 0, connections);
        });
        println!("{address}: {seen:?} of {sent}, {:?}", scrubber.report());
        let connections = u64::from(connections);
        assert_eq!((seen.flood, seen.resets), (0, 0), "{address}");
        // A client that waits for a CPU may repeat a SYN once more.
        let repeated = 1 + connections / 100;
        let least = connections - seen.lost.min(connections);
        assert!((least..=connections + repeated).contains(&seen.syns), "{address}: {seen:?}");
        assert_eq!(count(&scrubber, "challenge-answered"), kind * connections);
        assert!(count(&scrubber, "challenge") >= kind * connections + sent);
    }
}

#[test]
fn connections_succeed_in_native_mode() {
    connections_succeed(Mode::Native);
}

#[test]
fn connections_succeed_in_skb_mode() {
    connections_succeed(Mode::Skb);
}

#[test]
fn connections_survive_the_ladder() {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let tcp = "{ above = 200, below = 50, state = 'on', handover = 'off' }";
    let scrubber = scrub(&lab, tcp, &attach(Mode::Native));
    let server = listen(&lab, "198.18.0.2");
    let left = lab.netns("left");
    let early =
        netns::run_in(Some(&left), || Ok(connect_from(client(true, 60_000), server.1).unwrap()));
    let mut early = early.unwrap();
    let mut accepted = std::iter::repeat_with(|| accept(&server.0)).flatten().next().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || echo(&mut accepted));
        exchange(&mut early).unwrap();
        let until = Instant::now() + TIMEOUT;
        let (_, sent) = under_flood(&lab, server.1, SYN, Duration::from_millis(10), || {
            while count(&scrubber, "challenge") < 1000 {
                exchange(&mut early).unwrap();
                assert!(Instant::now() < until, "level 2 is not reached");
            }
            connect_all(&lab, &server, 0, 100);
            exchange(&mut early).unwrap();
        });
        assert!(count(&scrubber, "first-syn") > 0, "level 1 was passed");
        assert!(count(&scrubber, "challenge-answered") >= 100);
        println!("{sent} SYNs: {:?}", scrubber.report());
        // Level 0: new sources connect without a challenge.
        for number in 100.. {
            let decided =
                |scrubber: &Scrubber| count(scrubber, "challenge") + count(scrubber, "first-syn");
            let before = decided(&scrubber);
            connect_all(&lab, &server, number, 1);
            exchange(&mut early).unwrap();
            if decided(&scrubber) == before {
                break;
            }
            assert!(Instant::now() < until, "level 0 is not reached");
            thread::sleep(Duration::from_millis(500));
        }
        assert_eq!(count(&scrubber, "unknown-flow"), 0);
        early.shutdown(std::net::Shutdown::Write).unwrap();
    });
}

#[test]
fn a_monitor_answers_nothing() {
    let Some(lab) = lab() else { return };
    let mode = program::Mode { monitor: true, ..program::Mode::default() };
    let scrubber = scrub(&lab, ALWAYS, &Options { mode, ..attach(Mode::Native) });
    let server = listen(&lab, "198.18.0.2");
    connect_all(&lab, &server, 0, 10);
    assert_eq!(count(&scrubber, "challenge"), 10);
    assert_eq!(count(&scrubber, "challenge-answered"), 0);
}

#[test]
fn known_connections_survive_a_flood_of_acks() {
    let Some(lab) = lab() else { return };
    let options = Options { learning_time: Duration::ZERO, ..attach(Mode::Native) };
    let server = listen(&lab, "198.18.0.2");
    let left = lab.netns("left");
    let early = netns::run_in(Some(&left), || Ok(connect_from(client(true, 0), server.1).unwrap()));
    let mut early = early.unwrap();
    let mut accepted = std::iter::repeat_with(|| accept(&server.0)).flatten().next().unwrap();
    let tcp = "{ challenge = 'off', state = 'on', above = 200, below = 50 }";
    let scrubber = scrub(&lab, tcp, &options);
    thread::scope(|scope| {
        scope.spawn(move || echo(&mut accepted));
        exchange(&mut early).unwrap();
        let until = Instant::now() + TIMEOUT;
        let (seen, sent) = under_flood(&lab, server.1, ACK, Duration::from_millis(10), || {
            while count(&scrubber, "unknown-flow") < 5000 {
                exchange(&mut early).unwrap();
                assert!(Instant::now() < until, "packets pass");
            }
            connect_all(&lab, &server, 1, 100);
            exchange(&mut early).unwrap();
        });
        println!("{seen:?} of {sent}: {:?}", scrubber.report());
        // As many as are normal, in the second in which the flood begins and in the next one.
        assert!(seen.flood <= 400, "{seen:?}");
        early.shutdown(std::net::Shutdown::Write).unwrap();
    });
}

#[test]
fn clients_behind_a_firewall_connect() {
    if Command::new("nft").arg("--version").output().is_err() {
        return println!("skipped: needs nft; get it by apt install nftables");
    }
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    run(
        &lab,
        "left",
        "nft 'add table ip f; add chain ip f in { type filter hook input priority 0; policy drop; }; \
         add rule ip f in iif lo accept; add rule ip f in ct state established,related accept'",
    );
    let scrubber = scrub(&lab, ALWAYS, &attach(Mode::Native));
    let server = listen(&lab, "198.18.0.2");
    connect_all(&lab, &server, 0, 200);
    assert_eq!(count(&scrubber, "challenge"), 200);
    assert_eq!(count(&scrubber, "challenge-answered"), 200);
}

#[test]
fn a_syn_of_several_buffers_is_answered() {
    let Some(lab) = lab() else { return };
    run(&lab, "left", "ip link set left0 mtu 9000");
    run(&lab, "right", "ip link set right0 mtu 9000");
    let _woken = wake(&lab);
    let scrubber = scrub(&lab, ALWAYS, &attach(Mode::Native));
    let netns = Some(lab.netns("left"));
    let options = OpenOptions { usage: Directions::Both, netns, ..OpenOptions::default() };
    let mut port = Port::open(&"packet:left0?slots=256".parse().unwrap(), &options).unwrap();
    for payload in [100, 4000, 8000] {
        let payload = vec![0xaa; payload];
        let spec = FrameSpec { tcp_flags: SYN, payload, ..FrameSpec::default() };
        let queue = &mut port.queues[0];
        while !queue.tx_mut().push(&Packet::new(&Meta::default(), &spec.build())) {
            queue.sync_tx().unwrap();
        }
        queue.sync_tx().unwrap();
        let until = Instant::now() + TIMEOUT;
        'answered: loop {
            assert!(Instant::now() < until, "no answer");
            queue.sync_rx().unwrap();
            for packet in queue.rx().packets() {
                let Parsed::Packet(answer) = parse(packet.head()) else { continue };
                if answer.src == spec.dst && answer.tcp_flags == SYN | ACK {
                    assert_eq!(packet.head().len(), 60);
                    break 'answered;
                }
            }
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    assert_eq!(count(&scrubber, "challenge"), 3);
}

const CHALLENGES: &str = "
    profile.default.tcp = 'always'
    [[rule]]
    name = 'dns'
    match = { protocol = 'udp', dport = 53 }
    challenge = 'dns'
    [[rule]]
    name = 'game'
    match = { protocol = 'udp', dport = 27015 }
    challenge = 'a2s'
";

/// Returns the packets that a challenge of a rule answered.
fn answered(scrubber: &Scrubber, name: &str) -> u64 {
    let verdict = Some(Verdict::Answer);
    scrubber
        .report()
        .find(&NamedCause { stage: StageName::Udp, name: name.into(), verdict })
        .packets
}

/// Returns a socket of the right host, which does not wait for long.
fn udp_server(lab: &Lab, address: SocketAddr) -> UdpSocket {
    let right = lab.netns("right");
    let socket = netns::run_in(Some(&right), || Ok(UdpSocket::bind(address).unwrap())).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    socket
}

/// Ends a server's thread, also if a client fails.
struct EndsServer<'a>(&'a AtomicBool);

impl Drop for EndsServer<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the answer to a DNS query: an address.
fn resolve(query: &[u8]) -> Vec<u8> {
    let name = query[12..].iter().position(|it| *it == 0).unwrap();
    let mut answer = query[..12 + name + 5].to_vec();
    answer[2] |= 0x84;
    answer[7] = 1;
    answer[11] = 0;
    // The name of the question, A, IN, 60 s, 192.0.2.7.
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
    answer
}

/// Answers DNS queries until `over`. Returns the number of those over UDP and TCP.
fn name_server(udp: &UdpSocket, tcp: &TcpListener, over: &AtomicBool) -> (u32, u32) {
    let (mut by_udp, mut by_tcp) = (0, 0);
    let mut query = [0; 512];
    while !over.load(Ordering::Relaxed) {
        if let Ok((length, client)) = udp.recv_from(&mut query) {
            udp.send_to(&resolve(&query[..length]), client).unwrap();
            by_udp += 1;
        }
        if let Some(mut stream) = accept(tcp) {
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let query = &mut query[..u16::from_be_bytes(length).into()];
            stream.read_exact(query).unwrap();
            let answer = resolve(query);
            let length = (answer.len() as u16).to_be_bytes();
            stream.write_all(&[&length, answer.as_slice()].concat()).unwrap();
            by_tcp += 1;
        }
    }
    (by_udp, by_tcp)
}

#[test]
fn dig_repeats_a_challenged_query_over_tcp() {
    if Command::new("dig").arg("-v").output().is_err() {
        return println!("skipped: needs dig; get it by apt install bind9-dnsutils");
    }
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub_by(&lab, CHALLENGES, &attach(Mode::Native));
    for (kind, address) in (1..).zip(["198.18.0.2", "2001:db8:18::2"]) {
        let server = SocketAddr::new(address.parse().unwrap(), 53);
        let udp = udp_server(&lab, server);
        let right = lab.netns("right");
        let tcp = netns::run_in(Some(&right), || Ok(TcpListener::bind(server).unwrap())).unwrap();
        tcp.set_nonblocking(true).unwrap();
        let dig = || {
            let mut dig = Command::new("dig");
            dig.args([&format!("@{address}"), "+tries=1", "+time=20", "example.org", "A"]);
            let dig = netns::spawn(&lab.netns("left"), dig.stdout(Stdio::piped())).unwrap();
            String::from_utf8(dig.wait_with_output().unwrap().stdout).unwrap()
        };
        let over = AtomicBool::new(false);
        let (first, second, served) = thread::scope(|scope| {
            let served = scope.spawn(|| name_server(&udp, &tcp, &over));
            let end = EndsServer(&over);
            let (first, second) = (dig(), dig());
            drop(end);
            (first, second, served.join().unwrap())
        });
        let is_truncated = |text: &str| text.contains("Truncated, retrying in TCP mode");
        for text in [&first, &second] {
            assert!(text.contains("status: NOERROR") && text.contains("192.0.2.7"), "{text}");
            assert!(!text.contains("Warning"), "{text}");
        }
        assert!(is_truncated(&first) && !is_truncated(&second), "{first}\n{second}");
        assert_eq!(served, (1, 1), "{address}");
        assert_eq!(answered(&scrubber, "challenge-dns"), kind);
        // By a reset, or by a SYN cookie.
        assert_eq!(count(&scrubber, "challenge-answered") + scrubber.handed_over(), kind);
    }
}

/// Asks a game server as its clients do. Returns the answer, and the challenges before it.
fn ask_game_server(socket: &UdpSocket, server: SocketAddr, kind: u8) -> (Vec<u8>, u32) {
    let mut challenge = if kind == b'T' { None } else { Some(u32::MAX) };
    let (mut answer, mut challenges) = ([0; 1400], 0);
    loop {
        socket.send_to(&a2s_query(kind, challenge), server).unwrap();
        let (length, from) = socket.recv_from(&mut answer).unwrap();
        assert_eq!(from, server);
        match answer[..length].strip_prefix(b"\xff\xff\xff\xffA") {
            Some(number) => challenge = Some(u32::from_be_bytes(number.try_into().unwrap())),
            None => return (answer[..length].to_vec(), challenges),
        }
        challenges += 1;
    }
}

#[test]
fn clients_of_a_game_server_answer_challenges() {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub_by(&lab, CHALLENGES, &attach(Mode::Native));
    let left = lab.netns("left");
    for (at, address) in (0..).zip(["198.18.0.2", "2001:db8:18::2"]) {
        let server = SocketAddr::new(address.parse().unwrap(), 27015);
        let socket = udp_server(&lab, server);
        let over = AtomicBool::new(false);
        let served = thread::scope(|scope| {
            let served = scope.spawn(|| {
                let (mut served, mut query) = (0, [0; 64]);
                while !over.load(Ordering::Relaxed) {
                    if let Ok((length, client)) = socket.recv_from(&mut query) {
                        let answer = [b"\xff\xff\xff\xffI", &query[..length]].concat();
                        socket.send_to(&answer, client).unwrap();
                        served += 1;
                    }
                }
                served
            });
            let end = EndsServer(&over);
            for (number, kind) in (1..).zip(*b"TUV") {
                let src = SocketAddr::new(client(address.contains('.'), number), 0);
                let client = netns::run_in(Some(&left), || Ok(UdpSocket::bind(src).unwrap()));
                let client = client.unwrap();
                client.set_read_timeout(Some(TIMEOUT)).unwrap();
                let (answer, challenges) = ask_game_server(&client, server, kind);
                assert_eq!((answer[4], challenges), (b'I', 1));
                let (answer, challenges) = ask_game_server(&client, server, b'T');
                assert_eq!((answer[4], challenges), (b'I', 0), "the source is verified");
            }
            drop(end);
            served.join().unwrap()
        });
        assert_eq!(served, 6, "{address}");
        assert_eq!(answered(&scrubber, "challenge-a2s"), 3 * (at + 1));
    }
}
