//! Challenges to the senders of queries over UDP: the XDP program and the oracle treat them alike, and answers are valid
//! frames.

use std::net::IpAddr;

use sluicegate_scrub::cause::Cause;
use sluicegate_scrub::oracle::Oracle;
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::program::Program;
use sluicegate_scrub::tables::Tables;
use sluicegate_scrub::testing::{Fragment, FrameSpec, a2s_query, dns_query};

mod root;

const SECOND: u64 = 1_000_000_000;
const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
const GAME: u16 = 27015;
const DNS: u16 = 53;
/// Kinds of A2S queries.
const KINDS: [u8; 3] = *b"TUV";

/// The program and the oracle of a policy.
struct Pair {
    program: Program,
    oracle: Oracle,
    now: u64,
}

impl Pair {
    /// Makes them for two rules, with a profile and more keys of the rules.
    fn new(profile: &str, keys: &str) -> Self {
        let rule = |name: &str, port: u16| {
            format!(
                "[[rule]]\nname = '{name}'\nmatch = {{ dport = {port} }}\nchallenge = '{name}'\n{keys}\n"
            )
        };
        let rules = rule("a2s", GAME) + &rule("dns", DNS);
        let policy = Policy::parse(&format!("[profile.default]\n{profile}\n{rules}")).unwrap();
        let mut program = Program::for_rehearsal(1 << 12).unwrap();
        program.set_cookie_key(KEY);
        program.install(&Tables::build(&policy, 1).unwrap()).unwrap();
        let mut oracle = Oracle::new(&policy);
        oracle.set_cookie_key(KEY);
        Self { program, oracle, now: 1000 * SECOND }
    }

    /// Decides on a packet, the same way by both. Also returns the payload of a valid answer over UDP.
    #[track_caller]
    fn exchange(&mut self, spec: &FrameSpec) -> (Cause, Vec<u8>) {
        let frame = spec.build();
        self.program.set_time(self.now);
        let (ours, answer) = self.program.rehearse_answer(&frame).unwrap();
        let explained = self.oracle.explain(&frame, self.now);
        assert_eq!(ours, explained.decision, "{explained}");
        assert_eq!(ours.verdict == Verdict::Answer, !answer.is_empty());
        let is_udp = ours.verdict == Verdict::Answer && spec.protocol == 17;
        let payload = if is_udp { payload_of_answer(spec, &answer) } else { Vec::new() };
        (ours.cause, payload)
    }

    #[track_caller]
    fn decide(&mut self, spec: &FrameSpec) -> Cause {
        self.exchange(spec).0
    }

    /// Returns the number in the answer to an A2S query.
    #[track_caller]
    fn challenge(&mut self, spec: &FrameSpec) -> u32 {
        let (cause, answer) = self.exchange(spec);
        assert_eq!(cause, Cause::ChallengeA2s);
        let number = answer.strip_prefix(b"\xff\xff\xff\xffA").expect("S2C_CHALLENGE");
        let number = u32::from_be_bytes(number.try_into().expect("4 bytes"));
        assert_eq!(Some(number), self.oracle.cookie(&spec.build(), self.now));
        number
    }
}

fn query(src: IpAddr, port: u16, payload: &[u8]) -> FrameSpec {
    let dst = if src.is_ipv4() { "198.18.0.2" } else { "2001:db8:18::2" };
    FrameSpec { src, dst: dst.parse().unwrap(), ..FrameSpec::udp(1234, port, payload) }
}

/// Returns an A2S query of a client.
fn game(number: u32, kind: u8, challenge: Option<u32>) -> FrameSpec {
    query(IpAddr::from((0xc000_0200 + number).to_be_bytes()), GAME, &a2s_query(kind, challenge))
}

/// Returns a query for example.org, as dig sends it.
fn dns(number: u32) -> FrameSpec {
    let opt = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    let payload = dns_query(0x1234, &[b"example", b"org"], &opt);
    query(IpAddr::from((0xc000_0200 + number).to_be_bytes()), DNS, &payload)
}

fn over_v6(number: u32, spec: FrameSpec) -> FrameSpec {
    spec.between(&format!("2001:db8:{number:x}::1"), "2001:db8:18::2")
}

/// Checks headers, checksums and addresses of an answer. Returns its payload.
#[track_caller]
fn payload_of_answer(query: &FrameSpec, answer: &[u8]) -> Vec<u8> {
    let frame = query.build();
    let link = 14 + 4 * query.tags.len();
    assert_eq!((&answer[..6], &answer[6..12]), (&frame[6..12], &frame[..6]));
    assert_eq!(answer[12..link], frame[12..link], "tags and type");
    let (addresses, headers, datagram) = match query.src {
        IpAddr::V4(_) => {
            let (ip, rest) = etherparse::Ipv4Header::from_slice(&answer[link..]).unwrap();
            assert_eq!((ip.header_len(), ip.time_to_live, ip.protocol.0), (20, 64, 17));
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            let length = usize::from(ip.total_len) - 20;
            ((IpAddr::from(ip.source), IpAddr::from(ip.destination)), 20, &rest[..length])
        }
        IpAddr::V6(_) => {
            let (ip, rest) = etherparse::Ipv6Header::from_slice(&answer[link..]).unwrap();
            assert_eq!((ip.hop_limit, ip.next_header.0), (64, 17));
            let length = usize::from(ip.payload_length);
            ((IpAddr::from(ip.source), IpAddr::from(ip.destination)), 40, &rest[..length])
        }
    };
    assert_eq!(addresses, (query.dst, query.src));
    let end = link + headers + datagram.len();
    assert!(end <= frame.len() - query.padding, "no answer is longer than its query");
    assert_eq!(answer.len(), end.max(60));
    assert!(answer[end..].iter().all(|it| *it == 0), "padding {answer:02x?}");
    let (udp, payload) = etherparse::UdpHeader::from_slice(datagram).unwrap();
    assert_eq!((udp.source_port, udp.destination_port), (query.dport, query.sport));
    assert_eq!(usize::from(udp.length), datagram.len());
    let checksum = match addresses {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            udp.calc_checksum_ipv4_raw(src.octets(), dst.octets(), payload)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            udp.calc_checksum_ipv6_raw(src.octets(), dst.octets(), payload)
        }
        _ => unreachable!(),
    };
    assert_eq!(udp.checksum, checksum.unwrap());
    payload.to_vec()
}

/// Checks the answer to a DNS query: the header and the question, truncated.
#[track_caller]
fn check_truncated(query: &[u8], answer: &[u8]) {
    assert_eq!(answer[..2], query[..2], "the identification");
    assert_eq!(answer[2..12], [0x82 | query[2] & 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(answer[12..], query[12..answer.len()], "the question");
}

#[test]
fn an_a2s_client_is_verified_by_its_cookie() {
    if !root::is_root() {
        return;
    }
    let over = |number, is_v6, spec| if is_v6 { over_v6(number, spec) } else { spec };
    for is_v6 in [false, true] {
        for (client, kind) in (1..).zip(KINDS) {
            let mut pair = Pair::new("", "");
            let any = if kind == b'T' { None } else { Some(u32::MAX) };
            let first = over(client, is_v6, game(client, kind, any));
            let number = pair.challenge(&first);
            assert_eq!(pair.challenge(&first), number, "also again");
            let with =
                |number| FrameSpec { payload: a2s_query(kind, Some(number)), ..first.clone() };
            pair.challenge(&with(number ^ 1));
            pair.challenge(&first);
            let other = FrameSpec { sport: first.sport + 1, ..with(number) };
            pair.challenge(&other);
            assert_eq!(pair.decide(&with(number)), Cause::Default);
            assert_eq!(pair.decide(&first), Cause::Default, "the source is verified");
            assert_eq!(pair.decide(&with(7)), Cause::Default, "it has challenges of the server");
            pair.challenge(&over(9, is_v6, game(9, kind, any)));
            pair.now += 601 * SECOND;
            pair.challenge(&first);
        }
    }
}

#[test]
fn a_profile_tells_how_long_sources_are_verified() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("tcp = { challenge = 'off', verified_for = '30s' }", "");
    let number = pair.challenge(&game(1, b'T', None));
    assert_eq!(pair.decide(&game(1, b'T', Some(number))), Cause::Default);
    pair.now += 29 * SECOND;
    assert_eq!(pair.decide(&game(1, b'T', None)), Cause::Default);
    pair.now += 2 * SECOND;
    pair.challenge(&game(1, b'T', None));
}

#[test]
fn cookies_are_valid_in_two_epochs() {
    if !root::is_root() {
        return;
    }
    for (late, is_valid) in [(0_u64, true), (1, true), (2, false)] {
        let mut pair = Pair::new("", "");
        let number = pair.challenge(&game(1, b'U', Some(u32::MAX)));
        pair.now += late << 36;
        let cause = pair.decide(&game(1, b'U', Some(number)));
        assert_eq!(cause == Cause::Default, is_valid, "{late} epochs later");
    }
}

#[test]
fn a_dns_client_is_verified_over_tcp() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("tcp = 'always'", "");
    for first in [dns(1), over_v6(1, dns(1))] {
        let (cause, answer) = pair.exchange(&first);
        assert_eq!((cause, answer.len()), (Cause::ChallengeDns, 29), "without OPT");
        check_truncated(&first.payload, &answer);
        let syn = FrameSpec { protocol: 6, tcp_flags: 2, payload: Vec::new(), ..first.clone() };
        assert_eq!(pair.decide(&syn), Cause::Challenge);
        let seq = pair.oracle.acknowledgement(&syn.build(), pair.now).unwrap();
        let reset = FrameSpec { seq, tcp_flags: 4, ..syn.clone() };
        assert_eq!(pair.decide(&reset), Cause::ChallengeAnswered);
        assert_eq!(pair.decide(&syn), Cause::Default, "TCP is no query");
        assert_eq!(pair.decide(&first), Cause::Default);
    }
}

#[test]
fn answers_to_all_kinds_of_queries_are_valid() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("", "");
    let label = [b'a'; 63];
    let mut queries: Vec<_> = KINDS.iter().map(|kind| (GAME, a2s_query(*kind, Some(5)))).collect();
    queries.push((GAME, a2s_query(b'T', None)));
    // Names of 1 to 255 bytes.
    for length in (0..=63).chain([120, 126, 200, 250, 253]) {
        let mut labels = vec![];
        let mut left: usize = length;
        while left > 0 {
            let bytes = left.min(63);
            labels.push(&label[..bytes]);
            left -= bytes;
            left = left.saturating_sub(1);
        }
        for behind in [&[][..], &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]] {
            for id in [0, 0xffff] {
                queries.push((DNS, dns_query(id, &labels, behind)));
            }
        }
    }
    for (port, payload) in queries {
        for src in ["192.0.2.1", "2001:db8::1"] {
            for tags in [vec![], vec![(0x8100, 5)], vec![(0x88a8, 0x2005), (0x8100, 6)]] {
                for padding in [0, 20] {
                    let spec = query(src.parse().unwrap(), port, &payload);
                    let spec = FrameSpec { tags: tags.clone(), padding, ..spec };
                    let (cause, answer) = pair.exchange(&spec);
                    match cause {
                        Cause::ChallengeA2s => assert_eq!(answer.len(), 9),
                        Cause::ChallengeDns => check_truncated(&payload, &answer),
                        other => panic!("{other:?}: {payload:02x?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn other_packets_go_on() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("", "");
    let mut response = dns(1);
    response.payload[2] |= 0x80;
    let mut update = dns(1);
    update.payload[2] = 0x28;
    let mut questions = dns(1);
    questions.payload[5] = 2;
    let mut compressed = dns(1);
    compressed.payload[12] = 0xc0;
    let long = [b'a'; 63];
    let long_name = dns_query(1, &[&long, &long, &long, &long[..62]], &[]);
    let short = |bytes: usize| {
        let payload = dns_query(1, &[b"example", b"org"], &[]);
        let payload = payload[..payload.len() - bytes].to_vec();
        // Bytes behind the packet do not belong to it.
        FrameSpec { payload, padding: 10, ..dns(1) }
    };
    let first = Some(Fragment { offset: 0, more: true });
    let plain = over_v6(1, dns(1));
    for spec in [
        response,
        update,
        questions,
        compressed,
        FrameSpec { payload: long_name, ..dns(1) },
        short(1),
        short(4),
        short(9),
        short(20),
        FrameSpec { dport: DNS, ..game(1, b'T', None) },
        FrameSpec { dport: GAME, ..dns(1) },
        game(1, b'U', None),
        game(1, b'W', Some(1)),
        FrameSpec {
            payload: b"\xff\xff\xff\xffTSource Engine Query!".to_vec(),
            ..game(1, b'T', None)
        },
        FrameSpec { payload: b"\xff\xff\xff\xffTSource".to_vec(), ..game(1, b'T', None) },
        FrameSpec { payload: b"\xfe\xff\xff\xffU1234".to_vec(), ..game(1, b'T', None) },
        FrameSpec { options: 4, ..dns(1) },
        FrameSpec { options: 40, ..game(1, b'T', None) },
        FrameSpec { extensions: vec![60], ..plain.clone() },
        FrameSpec { fragment: first, ..dns(1) },
        FrameSpec { fragment: first, ..plain },
        FrameSpec { protocol: 6, ..dns(1) },
    ] {
        assert_eq!(pair.decide(&spec), Cause::Default, "{spec:?}");
    }
}

#[test]
fn a_challenge_may_begin_above_a_rate() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("", "above = 10");
    let causes = |pair: &mut Pair, from: u32, count: u32| -> Vec<_> {
        (from..from + count).map(|number| pair.decide(&game(number, b'T', None))).collect()
    };
    let found = causes(&mut pair, 0, 30);
    assert_eq!(found[..10], [Cause::Default; 10]);
    assert_eq!(found[10..], [Cause::ChallengeA2s; 20]);
    assert_eq!(pair.decide(&dns(1)), Cause::Default, "other queries are counted by themselves");
    let other = game(1, b'T', None).between("192.0.2.1", "198.18.0.3");
    assert_eq!(pair.decide(&other), Cause::Default, "other destinations, too");
    // Queries of verified sources and those with a cookie do not count.
    pair.now += SECOND;
    let number = pair.challenge(&game(50, b'T', None));
    for _ in 0..20 {
        assert_eq!(pair.decide(&game(50, b'T', Some(number))), Cause::Default);
    }
    // 2 in a second keep it, fewer do not.
    for _ in 0..10 {
        pair.now += SECOND;
        assert_eq!(causes(&mut pair, 100, 2), [Cause::ChallengeA2s; 2]);
    }
    for _ in 0..5 {
        pair.now += SECOND;
        assert_eq!(causes(&mut pair, 200, 1), [Cause::ChallengeA2s]);
    }
    pair.now += SECOND;
    assert_eq!(causes(&mut pair, 300, 1), [Cause::Default]);
}

#[test]
fn later_stages_decide_on_what_is_not_answered() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("limits = { packets = 1, burst = '10ms' }", "");
    let number = pair.challenge(&game(1, b'T', None));
    assert_eq!(pair.decide(&game(1, b'T', Some(number))), Cause::Default);
    let other = FrameSpec { payload: vec![1], ..game(2, b'T', None) };
    assert_eq!(pair.decide(&other), Cause::Default);
    assert_eq!(pair.decide(&other), Cause::Limit(0));
    assert_eq!(pair.decide(&game(2, b'T', None)), Cause::ChallengeA2s, "it is not charged");
}
