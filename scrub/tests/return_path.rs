//! Packets that pass leave by the return path: byte by byte, and on the wire of a lab. The tests need root.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use etherparse::{Ipv4Header, NetSlice, SlicedPacket, TransportSlice};
use sluicegate::error::Result;
use sluicegate::link::{self, Interface, Lab, Mac, Shape, netns};
use sluicegate::port::{Directions, OpenOptions, Port};
use sluicegate::ring::{Meta, Packet, Wait};
use sluicegate::xdp::Mode;
use sluicegate::xdp::resident::{ModeRequest, Resident};
use sluicegate_scrub::cause::{Cause, Decision};
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::program::{self, Gre, NextHop, Program, ReturnPath};
use sluicegate_scrub::scrubber::{Candidate, NamedCause, Options, Scrubber, StageName};
use sluicegate_scrub::tables::Tables;
use sluicegate_scrub::testing::{FrameSpec, Random, TunnelSpec};

mod lab;
mod root;

const TIMEOUT: Duration = Duration::from_secs(60);
const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 0x11]);
const OURS: Mac = Mac([2, 0, 0, 0, 0, 0x22]);
const SYN: u8 = 2;
const SYN_ACK: u8 = 0x12;
const PROTECTED: &str = "tunnels = ['gre', 'ipip']\n[protect.web]\nnetworks = ['198.51.100.0/24', '2001:db8:80::/48']\n\
                         [[rule]]\nname = 'voice'\nmatch = { dport = 5060 }\nmark = 'ef'\naction = 'pass'\n\
                         [[rule]]\nname = 'bad'\nmatch = { dport = 666 }\naction = 'drop'\n";

fn gre(key: Option<u32>) -> Gre {
    Gre { src: Ipv4Addr::new(192, 0, 2, 1), dst: Ipv4Addr::new(203, 0, 113, 9), key }
}

fn path(vlan: Option<u16>, gre: Option<Gre>, mtu: u32, mss: Option<u16>) -> ReturnPath {
    let interface = Interface { index: 1, name: "lo".into(), ..Interface::default() };
    let next_hop = NextHop { dst_mac: ROUTER, src_mac: OURS, mtu, mss };
    ReturnPath { interface, vlan, gre, next_hop }
}

fn program(path: ReturnPath) -> Program {
    let mut program = Program::for_rehearsal_of(64, path).unwrap();
    let policy = Policy::parse(PROTECTED).unwrap();
    program.install(&Tables::build(&policy, 5).unwrap()).unwrap();
    program
}

/// Between a client and a protected server.
fn addresses(is_v4: bool) -> [&'static str; 2] {
    if is_v4 { ["192.0.2.77", "198.51.100.1"] } else { ["2001:db8::77", "2001:db8:80::1"] }
}

/// Returns a frame whose IPv4 and TCP checksums are right.
fn with_checksums(spec: &FrameSpec) -> Vec<u8> {
    let mut frame = spec.build();
    let ip = 14 + 4 * spec.tags.len();
    if spec.src.is_ipv4() {
        let sum = Ipv4Header::from_slice(&frame[ip..]).unwrap().0.calc_header_checksum();
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    if let Some(sum) = tcp_checksum(&frame) {
        let tcp = ip + if spec.src.is_ipv4() { 20 + spec.options } else { 40 };
        frame[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// Returns the checksum that a frame's TCP header should have.
fn tcp_checksum(frame: &[u8]) -> Option<u16> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { return None };
    let (header, payload) = (tcp.to_header(), tcp.payload());
    match packet.net? {
        NetSlice::Ipv4(ip) => header.calc_checksum_ipv4(&ip.header().to_header(), payload).ok(),
        NetSlice::Ipv6(ip) => header.calc_checksum_ipv6(&ip.header().to_header(), payload).ok(),
        NetSlice::Arp(_) => None,
    }
}

/// Returns the checksum that a frame of UDP over IPv6 should have.
fn udp_checksum(frame: &[u8]) -> Option<u16> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let (NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) = (packet.net?, packet.transport?) else {
        return None;
    };
    udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), udp.payload()).ok()
}

/// Returns the frame that leaves, by plain code: `packet` is the frame's IP packet without padding.
fn returned(path: &ReturnPath, mut packet: Vec<u8>) -> Vec<u8> {
    let is_v4 = packet[0] >> 4 == 4;
    if is_v4 {
        packet[8] -= 1;
        let sum = Ipv4Header::from_slice(&packet).unwrap().0.calc_header_checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[7] -= 1;
    }
    let tos = if is_v4 { packet[1] } else { packet[0] << 4 | packet[1] >> 4 };
    let mut frame = [ROUTER.0, OURS.0].concat();
    if let Some(vlan) = path.vlan {
        frame.extend([0x81, 0x00]);
        frame.extend(vlan.to_be_bytes());
    }
    let ethertype: [u8; 2] = if is_v4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    let Some(gre) = path.gre else {
        frame.extend(ethertype);
        return [frame, packet].concat();
    };
    frame.extend([0x08, 0x00]);
    let key = gre.key.map(u32::to_be_bytes);
    let inside = 4 + key.map_or(0, |it| it.len()) + packet.len();
    let mut outer =
        Ipv4Header::new(inside as u16, 64, 47.into(), gre.src.octets(), gre.dst.octets()).unwrap();
    outer.dont_fragment = true;
    let mut bytes = outer.to_bytes().to_vec();
    bytes[1] = tos;
    let sum = Ipv4Header::from_slice(&bytes).unwrap().0.calc_header_checksum();
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(bytes);
    frame.extend([if key.is_some() { 0x20 } else { 0 }, 0]);
    frame.extend(ethertype);
    frame.extend(key.into_iter().flatten());
    [frame, packet].concat()
}

/// Returns a frame's IP packet, and the padding behind it.
fn packet_of<'a>(spec: &FrameSpec, frame: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    frame[14 + 4 * spec.tags.len()..]
        .split_at(frame.len() - 14 - 4 * spec.tags.len() - spec.padding)
}

/// Each kind of path.
fn paths() -> impl Iterator<Item = ReturnPath> {
    let tunnels = [None, Some(gre(None)), Some(gre(Some(0x0102_0304)))];
    tunnels
        .into_iter()
        .flat_map(|gre| [None, Some(30), Some(4094)].map(|vlan| path(vlan, gre, 1500, None)))
}

#[test]
fn a_packet_that_passes_leaves_in_its_tunnel_byte_by_byte() {
    if !root::is_root() {
        return;
    }
    for path in paths() {
        let program = program(path.clone());
        for (is_v4, tags, padding, dport) in [true, false].into_iter().flat_map(|is_v4| {
            [vec![], vec![(0x8100, 7)], vec![(0x88a8, 7), (0x8100, 8)]].into_iter().flat_map(
                move |tags| {
                    [(0, 80), (18, 80), (0, 5060)].map(|(p, d)| (is_v4, tags.clone(), p, d))
                },
            )
        }) {
            let [src, dst] = addresses(is_v4);
            for options in [0, 8] {
                let spec = FrameSpec {
                    tags: tags.clone(),
                    padding,
                    dscp: 12,
                    df: is_v4,
                    options: if is_v4 { options } else { 0 },
                    ..FrameSpec::udp(1000, dport, &[7; 33]).between(src, dst)
                };
                let frame = with_checksums(&spec);
                let (decision, leaves) = program.rehearse_answer(&frame).unwrap();
                assert_eq!(decision.verdict, Verdict::Pass);
                // A rule's mark is on both headers.
                let marked =
                    FrameSpec { dscp: if dport == 5060 { 46 } else { 12 }, ..spec.clone() };
                let marked = marked.build();
                let (packet, behind) = packet_of(&spec, &marked);
                let expected = [returned(&path, packet.to_vec()), behind.to_vec()].concat();
                assert_eq!(leaves, expected, "{path:?} {spec:?}");
            }
        }
    }
}

/// Returns a frame with the packet of another one inside of a tunnel.
fn inside(frame: &[u8], outer: &FrameSpec, gre: Option<[u8; 2]>) -> FrameSpec {
    let packet = &frame[14..];
    let is_v4 = packet[0] >> 4 == 4;
    let kind: [u8; 2] = if is_v4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    let (protocol, header) = match gre {
        Some(flags @ [0x20, _]) => (47, [flags, kind, [0, 0], [0, 7]].concat()),
        Some(flags) => (47, [flags, kind].concat()),
        None => (if is_v4 { 4 } else { 41 }, vec![]),
    };
    FrameSpec { protocol, payload: [header, packet.to_vec()].concat(), ..outer.clone() }
}

#[test]
fn a_tunnel_is_replaced_by_that_of_the_return_path() {
    if !root::is_root() {
        return;
    }
    let outer = FrameSpec { ttl: 1, options: 12, ..FrameSpec::default() };
    let outer6 = FrameSpec::default().between("2001:db8::8", "2001:db8::9");
    // Behind the longest extension header.
    let far = |spec: &FrameSpec| {
        let header = [[spec.protocol, 255].as_slice(), &[0; 2046]].concat();
        FrameSpec { protocol: 60, payload: [header, spec.payload.clone()].concat(), ..spec.clone() }
    };
    for path in paths() {
        let path = ReturnPath { next_hop: NextHop { mss: Some(1400), ..path.next_hop }, ..path };
        let program = program(path.clone());
        for (is_v4, outer) in [true, false].into_iter().flat_map(|it| [(it, &outer), (it, &outer6)])
        {
            let [src, dst] = addresses(is_v4);
            for gre in [None, Some([0, 0]), Some([0x20, 0])] {
                for dport in [80, 5060] {
                    let spec = FrameSpec::udp(1000, dport, &[7; 33]).between(src, dst);
                    let dscp = if dport == 5060 { 46 } else { 0 };
                    let marked = FrameSpec { dscp, ..spec.clone() }.build();
                    let tunnel = inside(&with_checksums(&spec), outer, gre);
                    let tagged = FrameSpec { tags: vec![(0x8100, 7)], ..tunnel.clone() };
                    let far = if outer.src.is_ipv4() { tunnel.clone() } else { far(&tagged) };
                    for spec in [tunnel, tagged, far] {
                        let frame = spec.build();
                        let (decision, leaves) = program.rehearse_answer(&frame).unwrap();
                        assert_eq!(decision.verdict, Verdict::Pass);
                        let expected = returned(&path, marked[14..].to_vec());
                        assert_eq!(leaves, expected, "{path:?} {outer:?} {gre:?}");
                    }
                }
                // The MSS of the SYN inside is lowered.
                let tcp_options = 4;
                let syn = FrameSpec { tcp_flags: SYN, tcp_options, ..FrameSpec::default() };
                let mut syn = with_checksums(&syn.between(src, dst));
                let options = syn.len() - 4;
                syn[options..].copy_from_slice(&[2, 4, 5, 0xb4]);
                let frame = inside(&syn, outer, gre).build();
                let (_, leaves) = program.rehearse_answer(&frame).unwrap();
                let mss: u16 = if is_v4 { 1400 } else { 1380 };
                assert_eq!(leaves[leaves.len() - 2..], mss.to_be_bytes(), "{outer:?} {gre:?}");
            }
        }
    }
}

/// A destination inside that is not protected: the tunnel decides, and is returned as it is.
#[test]
fn a_tunnel_to_an_unprotected_destination_is_returned_whole() {
    if !root::is_root() {
        return;
    }
    let path = path(None, Some(gre(None)), 1500, None);
    let program = program(path.clone());
    let udp = FrameSpec::udp(1, 666, &[0; 20]).between("192.0.2.77", "192.0.2.78");
    let mut spec = udp.inside(&FrameSpec::default(), TunnelSpec::Gre(0));
    let (decision, leaves) = program.rehearse_answer(&with_checksums(&spec)).unwrap();
    assert_eq!(decision, Decision { verdict: Verdict::Pass, cause: Cause::Default });
    assert_eq!(leaves, returned(&path, spec.build()[14..].to_vec()));
    spec.dst = "192.0.2.9".parse().unwrap();
    let (decision, leaves) = program.rehearse_answer(&with_checksums(&spec)).unwrap();
    assert_eq!(decision, Decision { verdict: Verdict::Pass, cause: Cause::Unprotected });
    assert_eq!(leaves, [0_u8; 0]);
}

#[test]
fn all_other_packets_go_to_the_host_unchanged() {
    if !root::is_root() {
        return;
    }
    let program = program(path(None, Some(gre(None)), 1500, Some(1400)));
    let arp = [[0xff; 12].as_slice(), &[0x08, 0x06], &[0; 46]].concat();
    let unprotected = FrameSpec::udp(1, 2, &[0; 20]).between("192.0.2.77", "192.0.2.78").build();
    let neighbor = FrameSpec {
        protocol: 58,
        icmp_type: 135,
        ttl: 255,
        ..FrameSpec::default().between("2001:db8::77", "2001:db8:80::1")
    };
    for (frame, cause) in [
        (arp, Cause::NotIp),
        (unprotected, Cause::Unprotected),
        (neighbor.build(), Cause::Neighbor),
    ] {
        let (decision, leaves) = program.rehearse_answer(&frame).unwrap();
        assert_eq!(decision, Decision { verdict: Verdict::Pass, cause });
        assert_eq!(leaves, [0_u8; 0]);
    }
}

#[test]
fn a_packet_that_cannot_be_returned_is_dropped_with_its_cause() {
    if !root::is_root() {
        return;
    }
    for path in paths() {
        let program = program(path.clone());
        let fits = 1500 - path.gre.map_or(0, |it| it.bytes()) as usize;
        for is_v4 in [true, false] {
            let [src, dst] = addresses(is_v4);
            let headers = if is_v4 { 28 } else { 48 };
            for (bytes, ttl, dport, verdict, cause) in [
                (fits, 2, 80, Verdict::Pass, Cause::Default),
                (fits + 1, 64, 80, Verdict::Drop, Cause::ReturnTooLong),
                (fits, 1, 80, Verdict::Drop, Cause::ReturnExpired),
                (fits, 0, 80, Verdict::Drop, Cause::ReturnExpired),
                // The policy drops first.
                (fits + 1, 1, 666, Verdict::Drop, Cause::Rule(1)),
            ] {
                let spec = FrameSpec::udp(1000, dport, &vec![0; bytes - headers]).between(src, dst);
                let frame = FrameSpec { ttl, ..spec }.build();
                let found = program.rehearse(&frame).unwrap();
                assert_eq!(found, Decision { verdict, cause }, "{path:?} {bytes} {ttl}");
            }
        }
    }
}

/// Lowers the MSS among TCP options, by plain code.
fn lower(options: &mut [u8], mss: u16) {
    let mut at = 0;
    while at + 4 <= options.len() {
        match options[at..] {
            [0, ..] => return,
            [1, ..] => at += 1,
            [2, 4, high, low, ..] => {
                let lower = mss.min(u16::from_be_bytes([high, low]));
                options[at + 2..at + 4].copy_from_slice(&lower.to_be_bytes());
                return;
            }
            [_, 0 | 1, ..] => return,
            [_, length, ..] => at += usize::from(length),
            _ => return,
        }
    }
}

/// Returns options of a SYN, often with an MSS at any place.
fn random_options(random: &mut Random) -> Vec<u8> {
    let mut options = Vec::new();
    let mut below = |most: u64| random.number() % most;
    while options.len() < 40 && below(8) > 0 {
        match below(6) {
            0 => options.push(1),
            1 => options.extend([4, 2]),
            2 => options.extend([8, 10, 0, 0, 0, 1, 0, 0, 0, 0]),
            3 => options.extend([2, 4, below(256) as u8, below(256) as u8]),
            4 => options.extend([below(10) as u8, below(12) as u8]),
            _ => options.extend([2, 4, 5, 0xb4]),
        }
    }
    options.resize(options.len().next_multiple_of(4).min(40), 0);
    options
}

#[test]
fn the_mss_of_a_syn_is_lowered_wherever_it_is() {
    if !root::is_root() {
        return;
    }
    let path = path(None, Some(gre(None)), 1500, Some(1436));
    let program = program(path.clone());
    let (mut random, mut lowered) = (Random::new(7), 0);
    for number in 0..20_000 {
        let is_v4 = number % 2 == 0;
        let [src, dst] = addresses(is_v4);
        let options = match number {
            0 | 1 => vec![2, 4, 5, 0xb4],
            2 | 3 => vec![1, 2, 4, 5, 0xb4, 1, 1, 0],
            4 | 5 => [[1; 36].as_slice(), &[2, 4, 5, 0xb4]].concat(),
            _ => random_options(&mut random),
        };
        let tcp_flags = [SYN, SYN_ACK, 0x10][number % 3];
        let spec = FrameSpec { tcp_flags, tcp_options: options.len(), ..FrameSpec::default() };
        let spec = FrameSpec { options: if is_v4 { number % 2 * 4 } else { 0 }, ..spec };
        let mut spec = spec.between(src, dst);
        spec.payload = vec![9; number % 5];
        let mut frame = with_checksums(&spec);
        let tcp = 14 + if is_v4 { 20 + spec.options } else { 40 };
        frame[tcp + 20..][..options.len()].copy_from_slice(&options);
        // A checksum that is wrong stays wrong by as much.
        let right = tcp_checksum(&frame).unwrap();
        let sum = if number % 7 == 0 { right ^ 0x1234 } else { right };
        frame[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
        let (decision, leaves) = program.rehearse_answer(&frame).unwrap();
        assert_eq!(decision.verdict, Verdict::Pass);

        let mss = if is_v4 { 1436 } else { 1416 };
        let mut expected = frame.clone();
        if tcp_flags & SYN != 0 {
            lower(&mut expected[tcp + 20..][..options.len()], mss);
        }
        let is_lower = expected != frame;
        lowered += u32::from(is_lower);
        let inner = leaves.len() - (frame.len() - 14);
        let check = inner + tcp - 14 + 16;
        let found = u16::from_be_bytes([leaves[check], leaves[check + 1]]);
        let right = tcp_checksum(&expected).unwrap();
        if !is_lower {
            assert_eq!(found, sum, "{options:?}");
        } else if number % 7 != 0 {
            // Both are 0 (RFC 1624, 3).
            assert!(found == right || (found ^ right) == 0xffff, "{options:?}: {found} {right}");
        }
        expected[tcp + 16..tcp + 18].copy_from_slice(&found.to_be_bytes());
        assert_eq!(leaves, returned(&path, expected[14..].to_vec()), "{options:?}");
    }
    assert!(lowered > 3000, "{lowered}");
}

/// A lab whose middle host scrubs what comes to middle0, and returns it by middle1.
fn lab() -> Option<Lab> {
    lab::privileged(Lab::scratch_with(Shape::Line, 1))
}

fn run(lab: &Lab, host: &str, command: &str) -> bool {
    let mut shell = Command::new("sh");
    netns::spawn(&lab.netns(host), shell.args(["-c", command])).unwrap().wait().unwrap().success()
}

fn interface(lab: &Lab, host: &str, name: &str) -> Interface {
    link::interface(Some(&lab.netns(host)), name).unwrap()
}

/// Returns options of a scrubber on the middle host that returns by middle1.
fn options(lab: &Lab, attach: Mode, mode: program::Mode, gre: Gre) -> Options {
    let path = ReturnPath {
        interface: interface(lab, "middle", "middle1"),
        vlan: None,
        gre: Some(gre),
        next_hop: NextHop {
            dst_mac: interface(lab, "right", "right0").mac.unwrap(),
            src_mac: interface(lab, "middle", "middle1").mac.unwrap(),
            mtu: 1500,
            mss: Some(1436),
        },
    };
    Options {
        attach: ModeRequest::Only(attach),
        limit_keys: 1 << 10,
        mode,
        return_path: Some(path),
        ..Options::default()
    }
}

/// Starts a scrubber on interfaces of the middle host.
fn start(lab: &Lab, names: &[&str], options: &Options) -> Result<Scrubber> {
    let interfaces: Vec<_> = names.iter().map(|name| interface(lab, "middle", name)).collect();
    netns::run_in(Some(&lab.netns("middle")), || {
        let candidate = Candidate::build(Policy::parse(PROTECTED).unwrap())?;
        Scrubber::start(&interfaces, candidate, options, None)
    })
}

fn scrub(lab: &Lab, attach: Mode, monitor: bool, gre: Gre) -> Scrubber {
    let mode = program::Mode { monitor, ..program::Mode::default() };
    start(lab, &["middle0"], &options(lab, attach, mode, gre)).unwrap()
}

fn open(lab: &Lab, host: &str, port: &str, usage: Directions) -> Port {
    let options = OpenOptions { usage, netns: Some(lab.netns(host)), ..OpenOptions::default() };
    Port::open(&port.parse().unwrap(), &options).unwrap()
}

/// Sends frames from the left host.
fn send(port: &mut Port, frames: &[Vec<u8>]) {
    let queue = &mut port.queues[0];
    for frame in frames {
        while !queue.tx_mut().push(&Packet::new(&Meta::default(), frame)) {
            queue.sync_tx().unwrap();
        }
    }
    queue.sync_tx().unwrap();
}

/// Receives frames that a test sent, in tunnels, until there are `count`.
fn receive(port: &mut Port, count: usize) -> Vec<Vec<u8>> {
    let (queue, mut frames, until) = (&mut port.queues[0], Vec::new(), Instant::now() + TIMEOUT);
    while frames.len() < count {
        assert!(Instant::now() < until, "{} of {count} frames", frames.len());
        if queue.sync_rx().unwrap() == 0 {
            queue.wait_rx(Wait::default(), Duration::from_millis(5)).unwrap();
        }
        let is_gre = |frame: &&[u8]| frame.len() > 34 && frame[12..14] == [8, 0] && frame[23] == 47;
        frames
            .extend(queue.rx().packets().map(|it| it.head().to_vec()).filter(|it| is_gre(&&**it)));
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    frames
}

fn count(scrubber: &Scrubber, stage: StageName, name: &str, verdict: Verdict) -> u64 {
    let cause = NamedCause { stage, name: name.into(), verdict: Some(verdict) };
    scrubber.report().find(&cause).packets
}

/// Every packet of a mix is counted, and those that pass leave, once each and intact.
fn returns(mode: Mode, monitor: bool) {
    let Some(lab) = lab() else { return };
    let gre = gre(Some(7));
    let scrubber = scrub(&lab, mode, monitor, gre);
    let mut left = open(&lab, "left", "packet:left0?slots=256", Directions::Send);
    let mut right = open(&lab, "right", "packet:right0?slots=1024", Directions::Receive);
    let (mut frames, mut expected) = (Vec::new(), HashMap::<Vec<u8>, usize>::new());
    let path = path(None, Some(gre), 1500, Some(1436));
    for number in 0..300_u16 {
        let [src, dst] = addresses(number % 2 == 0);
        // Dropped, too long, expired, not protected, not IP, and 4 of 9 that pass.
        let spec = FrameSpec::udp(number, 80, &[5; 100]).between(src, dst);
        let is_returned = match number % 9 {
            0 => {
                frames.push(FrameSpec { dport: 666, ..spec.clone() });
                monitor
            }
            1 => {
                frames.push(FrameSpec { payload: vec![0; 1445], ..spec.clone() });
                false
            }
            2 => {
                frames.push(FrameSpec { ttl: 1, ..spec.clone() });
                false
            }
            3 => {
                let to: IpAddr =
                    if spec.src.is_ipv4() { "192.0.2.9" } else { "2001:db8::9" }.parse().unwrap();
                frames.push(FrameSpec { dst: to, ..spec.clone() });
                false
            }
            _ => {
                frames.push(spec.clone());
                true
            }
        };
        let spec = frames.last().unwrap().clone();
        // Some come in tunnels, whose ends are anywhere.
        if number % 4 == 1 && spec.payload.len() < 1000 {
            let (frame, outer) = (with_checksums(&spec), FrameSpec::default());
            let outer = outer.between("203.0.113.3", "203.0.113.4");
            *frames.last_mut().unwrap() = inside(&frame, &outer, Some([0x20, 0]));
        }
        if is_returned {
            let mut packet = with_checksums(&spec)[14..].to_vec();
            if spec.src.is_ipv4() {
                packet[10..12].copy_from_slice(&[0, 0]);
            }
            *expected.entry(returned(&path, packet)[14..].to_vec()).or_default() += 1;
        }
    }
    let built: Vec<_> = frames.iter().map(with_checksums).collect();
    for some in built.chunks(50) {
        send(&mut left, some);
    }
    let total = expected.values().sum();
    let found = receive(&mut right, total);
    let macs = ["right", "middle"].map(|host| {
        let name = if host == "right" { "right0" } else { "middle1" };
        interface(&lab, host, name).mac.unwrap().0
    });
    for frame in found {
        assert_eq!(frame[..12], macs.concat());
        let left = expected.get_mut(&frame[14..]);
        let left = left.unwrap_or_else(|| panic!("not sent, or changed: {frame:02x?}"));
        *left = left.checked_sub(1).expect("it comes once");
    }
    let of = |kind: u16| (0..300).filter(|it| it % 9 == kind).count() as u64;
    let drop = Verdict::Drop;
    let counts = [
        count(&scrubber, StageName::Rule, "bad", drop),
        count(&scrubber, StageName::Return, "too-long", drop),
        count(&scrubber, StageName::Return, "expired", drop),
        count(&scrubber, StageName::Parse, "not-protected", Verdict::Pass),
        count(&scrubber, StageName::Default, "default", Verdict::Pass),
    ];
    let passed = (4..9).map(of).sum();
    assert_eq!(counts, [of(0), of(1), of(2), of(3), passed], "{:?}", scrubber.report());
}

#[test]
fn packets_are_returned_in_native_mode() {
    returns(Mode::Native, false);
}

#[test]
fn packets_are_returned_in_skb_mode() {
    returns(Mode::Skb, false);
}

#[test]
fn a_monitor_returns_what_it_would_drop() {
    returns(Mode::Native, true);
}

/// The kernel of the protected network gets the packets out of the tunnel.
#[test]
fn the_kernels_end_of_the_tunnel_takes_them() {
    let Some(lab) = lab() else { return };
    let gre = gre(Some(7));
    let ends = format!("local {} remote {} key 7", gre.dst, gre.src);
    if !run(&lab, "right", &format!("ip link add gre1 type gre {ends} 2>/dev/null")) {
        return println!("skipped: needs GRE in the kernel; get it by modprobe ip_gre");
    }
    for command in [
        &*format!("ip addr add {}/24 dev right0", gre.dst),
        "ip addr add 198.51.100.1/32 dev gre1",
        "ip addr add 2001:db8:80::1/128 dev gre1 nodad",
        "ip link set gre1 up",
        "echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter",
        "echo 0 > /proc/sys/net/ipv4/conf/gre1/rp_filter",
        // No route back is needed to receive.
        "ip route add 192.0.2.0/24 dev gre1",
        "ip -6 route add 2001:db8::/64 dev gre1",
    ] {
        assert!(run(&lab, "right", command), "{command}");
    }
    let scrubber = scrub(&lab, Mode::Native, false, gre);
    let mut left = open(&lab, "left", "packet:left0?slots=256", Directions::Send);
    for is_v4 in [true, false] {
        let [src, dst] = addresses(is_v4);
        let socket = netns::run_in(Some(&lab.netns("right")), || {
            Ok(std::net::UdpSocket::bind((dst, 80)).unwrap())
        });
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        for number in 0..100 {
            let mut frame = with_checksums(&FrameSpec::udp(9, 80, &[number; 60]).between(src, dst));
            if let Some(sum) = udp_checksum(&frame).filter(|_| !is_v4) {
                frame[14 + 40 + 6..][..2].copy_from_slice(&sum.to_be_bytes());
            }
            send(&mut left, &[frame]);
            let mut bytes = [0; 100];
            let (length, from) = socket.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..length], from.ip()), (&[number; 60][..], src.parse().unwrap()));
        }
    }
    assert_eq!(count(&scrubber, StageName::Default, "default", Verdict::Pass), 200);
}

#[test]
fn a_policy_that_protects_this_host_is_rejected() {
    let Some(lab) = lab() else { return };
    assert!(run(&lab, "middle", "ip addr add 198.51.100.5/32 dev middle0"));
    let options = options(&lab, Mode::Native, program::Mode::default(), gre(None));
    let error = start(&lab, &["middle0"], &options).unwrap_err().to_string();
    assert!(error.contains("the policy protects 198.51.100.5, an address of this host"), "{error}");
}

#[test]
fn a_kept_scrubber_pins_its_return_interface_until_it_is_released() {
    let Some(lab) = lab() else { return };
    let mode = program::Mode { resident: true, ..program::Mode::default() };
    let options = options(&lab, Mode::Native, mode, gre(None));
    let mut scrubber = start(&lab, &["middle0"], &options).unwrap();
    let pinned = || {
        ["middle0", "middle1"].map(|name| {
            let interface = interface(&lab, "middle", name);
            let find = || Resident::find(&interface);
            let found = netns::run_in(Some(&lab.netns("middle")), find).unwrap();
            found.unwrap().is_pinned(&interface)
        })
    };
    scrubber.keep().unwrap();
    assert_eq!(pinned(), [true; 2]);
    scrubber.release();
    assert_eq!(pinned(), [false; 2]);
}

#[test]
fn a_scrubber_kept_on_two_interfaces_is_taken_over() {
    let Some(lab) = lab() else { return };
    let mode = program::Mode { resident: true, ..program::Mode::default() };
    let options = Options { return_path: None, ..options(&lab, Mode::Native, mode, gre(None)) };
    let mut first = start(&lab, &["middle0", "middle1"], &options).unwrap();
    first.keep().unwrap();
    drop(first);
    let more_keys = Options { limit_keys: 1 << 12, ..options };
    let second = start(&lab, &["middle0", "middle1"], &more_keys).unwrap();
    assert_eq!(second.limit_keys(), 1 << 10, "it has the maps of the first one");
}
