//! Both programs run by BPF_PROG_RUN, with frames that are longer than those a lab has room for.

use std::net::IpAddr;

use libbpf_rs::ProgramInput;

use super::*;
use crate::cause::Cause;
use crate::packet::{Parsed, parse};
use crate::policy::{Policy, Verdict};
use crate::program::{Program, load};
use crate::tables::Tables;
use crate::testing::{Fragment, FrameSpec, a2s_query};

const MS: u64 = 1_000_000;
const SERVERS: [&str; 2] = ["198.18.0.2", "2001:db8:18::2"];
const GAME: u16 = 27015;
/// The offset of this member in `struct __sk_buff` (linux/bpf.h).
const INGRESS_IFINDEX: usize = 36;
/// Kinds of queries, and of their answers.
const KINDS: [(u8, u8); 3] = [(b'T', b'I'), (b'U', b'D'), (b'V', b'E')];

/// The XDP program and the one at tc, which run by BPF_PROG_RUN.
struct Pair {
    program: Program,
    tc: Object,
    now: u64,
}

impl Pair {
    /// Makes them for a rule that uses answers for a second. None if they cannot be loaded here.
    fn new() -> Option<Self> {
        Self::with("")
    }

    /// Makes them for such a rule behind more of a policy.
    fn with(more: &str) -> Option<Self> {
        let mut program = match Program::with(Some(load::REHEARSE), 1 << 12, None, true) {
            Err(error @ Error::Privilege { .. }) => {
                println!("skipped: {error}");
                return None;
            }
            made => made.unwrap(),
        };
        let rule = "[[rule]]\nname = 'game'\nmatch = { protocol = 'udp' }\nchallenge = 'a2s'\ncache = '1s'\n";
        let policy = Policy::parse(&format!("{more}\n{rule}")).unwrap();
        program.install(&Tables::build(&policy, 1).unwrap()).unwrap();
        let tc = load(&program.object).unwrap();
        let pair = Self { program, tc, now: 1_000_000 * MS };
        pair.program.set_time(pair.now);
        Some(pair)
    }

    fn wait(&mut self, ms: u64) {
        self.now += ms * MS;
        self.program.set_time(self.now);
    }

    /// Receives a query. Returns the cause, and the frame of an answer.
    fn receive(&self, query: &FrameSpec) -> (Cause, Vec<u8>) {
        let (decision, answer) = self.program.rehearse_answer(&query.build()).unwrap();
        assert_eq!(decision.verdict == Verdict::Answer, !answer.is_empty());
        (decision.cause, answer)
    }

    /// Returns a query of a client whose source is verified.
    fn verified(&self, server: &str) -> FrameSpec {
        let client = if server.contains('.') { "192.0.2.1" } else { "2001:db8:1::1" };
        let query = FrameSpec::udp(1234, GAME, &a2s_query(b'T', None)).between(client, server);
        assert_eq!(self.receive(&query).0, Cause::ChallengeA2s);
        assert_eq!(self.ask(&query).0, Cause::Default);
        query
    }

    /// Asks as a client does, which repeats its query with the number of a challenge.
    fn ask(&self, query: &FrameSpec) -> (Cause, Vec<u8>) {
        let (cause, answer) = self.receive(query);
        if cause != Cause::ChallengeA2s {
            return (cause, answer);
        }
        let Parsed::Packet(challenge) = parse(&answer) else { panic!("{answer:02x?}") };
        let number = u32::from_be_bytes(*challenge.payload.last_chunk().unwrap());
        self.receive(&with_payload(query, &a2s_query(query.payload[4], Some(number))))
    }

    /// Sends a packet of the host.
    fn send(&self, packet: &FrameSpec) {
        self.send_from(packet, 0);
    }

    /// Sends a packet that came from the interface of this index, if it is not 0.
    fn send_from(&self, packet: &FrameSpec, interface: u32) {
        let frame = packet.build();
        let mut context = [0; INGRESS_IFINDEX + 4];
        context[INGRESS_IFINDEX..].copy_from_slice(&interface.to_ne_bytes());
        let input = ProgramInput {
            data_in: Some(&frame),
            context_in: Some(&mut context),
            ..ProgramInput::default()
        };
        program(&self.tc, "scrub_learn").test_run(input).unwrap();
    }
}

fn with_payload(spec: &FrameSpec, payload: &[u8]) -> FrameSpec {
    FrameSpec { payload: payload.to_vec(), ..spec.clone() }
}

/// Returns the packet that has the server's answer.
fn answer_to(query: &FrameSpec, payload: &[u8]) -> FrameSpec {
    let FrameSpec { src, dst, sport, dport, .. } = query.clone();
    FrameSpec { src: dst, dst: src, ..FrameSpec::udp(dport, sport, payload) }
}

/// Returns an answer of a kind and length.
fn payload(kind: u8, length: usize) -> Vec<u8> {
    let text = (0..length).map(|it| (it * 31 % 251) as u8);
    [0xff, 0xff, 0xff, 0xff, kind].into_iter().chain(text).take(length).collect()
}

/// Returns the sum of 16-bit words: 0xffff of bytes with their own checksum.
fn sum(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let words = bytes.into_iter().enumerate();
    let sum = words.map(|(at, byte)| u32::from(byte) << if at % 2 == 0 { 8 } else { 0 }).sum();
    std::iter::successors(Some(sum), |it| Some((it >> 16) + (it & 0xffff))).nth(2).unwrap()
}

/// Checks that a frame is the server's answer with this payload.
#[track_caller]
fn check(frame: &[u8], query: &FrameSpec, payload: &[u8]) {
    let Parsed::Packet(packet) = parse(frame) else { panic!("{frame:02x?}") };
    assert_eq!((packet.src, packet.dst), (query.dst, query.src));
    assert_eq!((packet.sport, packet.dport), (query.dport, query.sport));
    assert!(packet.payload == payload, "{frame:02x?}");
    let link = 14 + 4 * query.tags.len();
    let headers = if query.src.is_ipv4() { 20 } else { 40 };
    let end = link + headers + 8 + payload.len();
    assert_eq!(frame.len(), end.max(60));
    assert!(frame[end..].iter().all(|it| *it == 0), "padding {frame:02x?}");
    let datagram = &frame[link + headers..end];
    let addresses = match query.src {
        IpAddr::V4(_) => &frame[link + 12..link + 20],
        IpAddr::V6(_) => &frame[link + 8..link + 40],
    };
    let pseudo = [&[0, 17], &(datagram.len() as u16).to_be_bytes()[..], addresses].concat();
    assert_eq!(sum([&pseudo, datagram].concat()), 0xffff);
    assert_ne!(datagram[6..8], [0, 0], "has a checksum");
    if query.src.is_ipv4() {
        assert_eq!(sum(frame[link..link + 20].iter().copied()), 0xffff);
    }
}

#[test]
fn queries_get_the_answer_of_the_server() {
    for server in SERVERS {
        let Some(mut pair) = Pair::new() else { return };
        let client = pair.verified(server);
        for (query, answer) in KINDS {
            for length in [6, 7, 8, 9, 21, 64, 1399, 1400] {
                let payload = payload(answer, length);
                for (tags, padding) in [(vec![], 0), (vec![(0x8100, 5)], 30)] {
                    let query = with_payload(&client, &a2s_query(query, Some(7)));
                    let query = FrameSpec { tags, padding, ..query };
                    assert_eq!(pair.receive(&query).0, Cause::Default, "nothing is known");
                    pair.send(&answer_to(&query, &payload));
                    for _ in 0..3 {
                        let (cause, frame) = pair.ask(&query);
                        assert_eq!(cause, Cause::CachedA2s);
                        check(&frame, &query, &payload);
                        pair.wait(333);
                    }
                    pair.wait(1);
                }
            }
        }
    }
}

#[test]
fn each_kind_of_query_has_its_answer() {
    let Some(mut pair) = Pair::new() else { return };
    let client = pair.verified(SERVERS[0]);
    let queries = KINDS.map(|(kind, _)| with_payload(&client, &a2s_query(kind, Some(7))));
    queries.iter().for_each(|it| assert_eq!(pair.receive(it).0, Cause::Default));
    let answers = KINDS.map(|(_, kind)| payload(kind, 50 + usize::from(kind)));
    answers.iter().zip(&queries).for_each(|(it, query)| pair.send(&answer_to(query, it)));
    for (query, answer) in queries.iter().zip(&answers) {
        assert_eq!(pair.receive(query).0, Cause::ChallengeA2s, "its source may be forged");
        check(&pair.ask(query).1, query, answer);
    }
    let other = client.clone().between("192.0.2.9", SERVERS[0]);
    assert_eq!(pair.receive(&other).0, Cause::ChallengeA2s, "its source is not verified");
    // A new answer replaces the old one, but not at once.
    let new = payload(b'I', 77);
    pair.send(&answer_to(&client, &new));
    check(&pair.ask(&client).1, &client, &answers[0]);
    pair.wait(50);
    pair.send(&answer_to(&client, &new));
    check(&pair.ask(&client).1, &client, &new);
}

#[test]
fn other_packets_are_no_answers() {
    for server in SERVERS {
        let Some(pair) = Pair::new() else { return };
        let query = pair.verified(server);
        let right = answer_to(&query, &payload(b'I', 100));
        let split = [&[0xfe], &right.payload[1..]].concat();
        let other = if server == SERVERS[0] { "198.18.0.3" } else { "2001:db8:18::3" };
        let mut packets = vec![
            with_payload(&right, &split),
            with_payload(&right, &payload(b'A', 9)),
            with_payload(&right, &payload(b'D', 100)),
            with_payload(&right, &payload(b'I', 5)),
            with_payload(&right, &payload(b'I', 1401)),
            FrameSpec { fragment: Some(Fragment { offset: 0, more: true }), ..right.clone() },
            FrameSpec { sport: GAME + 1, ..right.clone() },
            FrameSpec { src: other.parse().unwrap(), ..right.clone() },
            FrameSpec { protocol: 6, ..right.clone() },
        ];
        match server == SERVERS[0] {
            true => packets.push(FrameSpec { options: 4, ..right.clone() }),
            false => packets.push(FrameSpec { extensions: vec![60], ..right.clone() }),
        }
        for packet in packets {
            pair.send(&packet);
            assert_eq!(pair.receive(&query).0, Cause::Default, "{packet:?}");
        }
        pair.send_from(&right, 1);
        assert_eq!(pair.receive(&query).0, Cause::Default, "a forwarded packet");
        pair.send(&right);
        assert_eq!(pair.ask(&query).0, Cause::CachedA2s);
    }
}

#[test]
fn an_answer_is_only_kept_for_a_query() {
    let Some(mut pair) = Pair::new() else { return };
    let query = pair.verified(SERVERS[0]);
    pair.wait(2001);
    pair.send(&answer_to(&query, &payload(b'I', 100)));
    assert_eq!(pair.receive(&query).0, Cause::Default, "it came too late");
    pair.send(&answer_to(&query, &payload(b'I', 100)));
    assert_eq!(pair.ask(&query).0, Cause::CachedA2s);
}

#[test]
fn answers_count_for_the_limits_of_the_profile() {
    let limit = "profile.default.limits = [{ by = 'source', packets = '1pps', burst = '2s' }]";
    let Some(pair) = Pair::with(limit) else { return };
    let query = pair.verified(SERVERS[0]);
    pair.send(&answer_to(&query, &payload(b'I', 100)));
    assert_eq!([(); 2].map(|()| pair.ask(&query).0), [Cause::CachedA2s; 2]);
    // A challenge is no longer than the query, and free.
    assert_eq!(pair.receive(&query).0, Cause::ChallengeA2s);
    assert_eq!(pair.ask(&query).0, Cause::Limit(0));
}

#[test]
fn no_query_takes_the_entry_of_a_living_answer() {
    let Some(mut pair) = Pair::new() else { return };
    let first = pair.verified(SERVERS[0]);
    let of = |port: u16| {
        let answer = [payload(b'I', 10).as_slice(), &port.to_be_bytes()].concat();
        (FrameSpec { dport: port, ..first.clone() }, answer)
    };
    let answered = |pair: &Pair, ports: std::ops::Range<u16>| -> Vec<u16> {
        let has_answer = |port: &u16| {
            let (query, answer) = of(*port);
            let (cause, frame) = pair.ask(&query);
            let is_cached = cause == Cause::CachedA2s;
            if is_cached {
                check(&frame, &query, &answer);
            }
            is_cached
        };
        ports.filter(has_answer).collect()
    };
    let ask_all = |pair: &Pair, ports: std::ops::Range<u16>| {
        assert_eq!(answered(pair, ports.clone()), []);
        for port in ports.clone() {
            let (query, answer) = of(port);
            pair.send(&answer_to(&query, &answer));
        }
        answered(pair, ports)
    };
    let few = ask_all(&pair, 1000..1100);
    assert_eq!(few.len(), 100);
    let many = ask_all(&pair, 2000..5000);
    assert!((800..=924).contains(&many.len()), "{} entries", many.len());
    assert_eq!(answered(&pair, 1000..1100), few);
    // Entries without an answer are free after a second, all others after a minute.
    pair.wait(62_000);
    assert!(ask_all(&pair, 6000..9000).len() > 900);
}
