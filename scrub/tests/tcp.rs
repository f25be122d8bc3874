//! The XDP program and the oracle treat sequences of TCP packets alike, and answers to SYNs are valid frames.

use std::net::IpAddr;

use sluicegate_scrub::cause::{Cause, Decision};
use sluicegate_scrub::oracle::Oracle;
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::program::Program;
use sluicegate_scrub::tables::Tables;
use sluicegate_scrub::testing::FrameSpec;

mod root;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// The program and the oracle of a policy.
struct Pair {
    program: Program,
    oracle: Oracle,
    now: u64,
}

impl Pair {
    fn new(tcp: &str) -> Self {
        Self::with_keys(tcp, 1 << 12)
    }

    fn with_keys(tcp: &str, keys: u32) -> Self {
        let policy = Policy::parse(&format!("profile.default.tcp = {tcp}")).unwrap();
        let mut program = Program::for_rehearsal(keys).unwrap();
        program.set_cookie_key(KEY);
        program.install(&Tables::build(&policy, 1).unwrap()).unwrap();
        let mut oracle = Oracle::new(&policy);
        oracle.set_cookie_key(KEY);
        Self { program, oracle, now: 1000 * SECOND }
    }

    /// Decides on a frame, the same way by both, and checks the answer.
    #[track_caller]
    fn decide(&mut self, spec: &FrameSpec) -> Cause {
        let frame = spec.build();
        self.program.set_time(self.now);
        let (ours, answer) = self.program.rehearse_answer(&frame).unwrap();
        let explained = self.oracle.explain(&frame, self.now);
        assert_eq!(ours, explained.decision, "{explained}");
        assert_eq!(ours.verdict == Verdict::Answer, !answer.is_empty());
        if ours.verdict == Verdict::Answer {
            check_answer(spec, &answer, self.cookie(spec));
        }
        let Decision { cause, .. } = ours;
        cause
    }

    /// Decides on SYNs of sources that no other test packet has.
    fn flood(&mut self, count: u32) {
        for number in 0..count {
            self.decide(&FrameSpec { seq: self.now as u32, ..syn(50_000 + number) });
        }
    }

    /// Returns the number that the answer to a SYN acknowledges.
    fn cookie(&self, spec: &FrameSpec) -> u32 {
        self.oracle.acknowledgement(&spec.build(), self.now).unwrap()
    }

    /// Lets SYN cookies come back, until they are too old.
    fn expect_cookies(&mut self) {
        self.program.expect_cookies_until(u64::MAX).unwrap();
        self.oracle.expect_cookies_until(u64::MAX);
    }

    /// Returns the packet of a client that got a SYN cookie as the answer to its SYN.
    fn acknowledgement(&self, syn: &FrameSpec) -> FrameSpec {
        let cookie = self.oracle.syn_cookie(&syn.build(), self.now).unwrap();
        let (seq, ack) = (syn.seq.wrapping_add(1), cookie.wrapping_add(1));
        let tsecr = self.oracle.syn_timestamp(&syn.build(), self.now);
        FrameSpec {
            tcp_flags: ACK,
            seq,
            ack,
            tcp_options: 12,
            tsecr,
            payload: Vec::new(),
            ..syn.clone()
        }
    }

    /// Decides on the RST of a client that was challenged, whose SYN this was.
    #[track_caller]
    fn reset(&mut self, syn: &FrameSpec, seq: u32) -> Cause {
        self.decide(&FrameSpec { tcp_flags: RST, seq, payload: Vec::new(), ..syn.clone() })
    }
}

fn syn(number: u32) -> FrameSpec {
    let src = IpAddr::from((0xc000_0200 + number).to_be_bytes());
    FrameSpec { src, tcp_flags: SYN, seq: number.wrapping_mul(0x9e37_79b9), ..FrameSpec::default() }
}

fn syn_v6(number: u32) -> FrameSpec {
    let spec = syn(number).between(&format!("2001:db8:{number:x}::1"), "2001:db8:ffff::80");
    FrameSpec { seq: number, ..spec }
}

/// Checks headers, checksums and addresses of an answer.
fn check_answer(syn: &FrameSpec, answer: &[u8], cookie: u32) {
    let frame = syn.build();
    let link = 14 + 4 * syn.tags.len();
    assert_eq!((&answer[..6], &answer[6..12]), (&frame[6..12], &frame[..6]));
    assert_eq!(answer[12..link], frame[12..link], "tags and type");
    let (ip, tcp_at) = (&answer[link..], if syn.src.is_ipv4() { 20 } else { 40 });
    assert_eq!(answer.len(), (link + tcp_at + 20).max(60));
    assert!(ip[tcp_at + 20..].iter().all(|it| *it == 0), "padding {ip:02x?}");
    let (headers, tcp) = match syn.src {
        IpAddr::V4(_) => {
            let (ip, rest) = etherparse::Ipv4Header::from_slice(ip).unwrap();
            assert_eq!(
                (ip.header_len(), ip.time_to_live, ip.total_len, ip.dont_fragment),
                (20, 64, 40, true)
            );
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            ((IpAddr::from(ip.source), IpAddr::from(ip.destination)), rest)
        }
        IpAddr::V6(_) => {
            let (ip, rest) = etherparse::Ipv6Header::from_slice(ip).unwrap();
            assert_eq!((ip.hop_limit, ip.payload_length, ip.next_header.0), (64, 20, 6));
            ((IpAddr::from(ip.source), IpAddr::from(ip.destination)), rest)
        }
    };
    assert_eq!(headers, (syn.dst, syn.src));
    let (tcp, _) = etherparse::TcpHeader::from_slice(tcp).unwrap();
    assert_eq!((tcp.source_port, tcp.destination_port), (syn.dport, syn.sport));
    assert!(
        tcp.syn && tcp.ack && !tcp.rst && !tcp.fin && !tcp.psh && !tcp.ece && !tcp.cwr,
        "{tcp:?}"
    );
    assert_eq!((tcp.acknowledgment_number, tcp.header_len()), (cookie, 20));
    let sent = syn.seq.wrapping_sub(cookie);
    assert!(sent <= 1 << 31, "the client must not accept it");
    let checksum = match (headers.0, headers.1) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            tcp.calc_checksum_ipv4_raw(src.octets(), dst.octets(), &[])
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            tcp.calc_checksum_ipv6_raw(src.octets(), dst.octets(), &[])
        }
        _ => unreachable!(),
    };
    assert_eq!(tcp.checksum, checksum.unwrap());
}

#[test]
fn the_reset_of_a_challenged_client_verifies_it() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("'always'");
    for first in [syn(1), syn_v6(1)] {
        assert_eq!(pair.decide(&first), Cause::Challenge);
        assert_eq!(pair.decide(&first), Cause::Challenge, "also again");
        let cookie = pair.cookie(&first);
        assert_eq!(pair.reset(&first, cookie ^ 1), Cause::Default);
        assert_eq!(pair.decide(&first), Cause::Challenge, "a wrong cookie verifies nothing");
        let other = FrameSpec { sport: first.sport + 1, ..first.clone() };
        assert_eq!(pair.reset(&other, cookie), Cause::Default, "it is that of one connection");
        assert_eq!(pair.reset(&first, cookie), Cause::ChallengeAnswered);
        assert_eq!(pair.decide(&first), Cause::Default);
        assert_eq!(pair.decide(&other), Cause::Default, "the source is verified");
        pair.now += 601 * SECOND;
        assert_eq!(pair.decide(&first), Cause::Challenge, "not for longer");
    }
}

#[test]
fn a_new_source_takes_the_place_of_the_one_that_ends_first() {
    if !root::is_root() {
        return;
    }
    // The oracle has room for all: only the program decides.
    let mut pair = Pair::with_keys("'always'", 8);
    let verified = |pair: &Pair, number| {
        pair.program.rehearse(&syn(number).build()).unwrap().cause == Cause::Default
    };
    for number in 0..100 {
        pair.now += SECOND;
        pair.program.set_time(pair.now);
        let spec = FrameSpec { seq: pair.cookie(&syn(number)), tcp_flags: RST, ..syn(number) };
        assert_eq!(pair.program.rehearse(&spec.build()).unwrap().cause, Cause::ChallengeAnswered);
        assert!(verified(&pair, number), "{number}");
    }
    let living: Vec<_> = (0..100).filter(|number| verified(&pair, *number)).collect();
    assert!(living.len() == 8 && living[0] >= 60, "{living:?}");
}

#[test]
fn sources_that_answer_take_the_place_of_those_that_retransmitted() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::with_keys("{ above = 1000, below = 1 }", 8);
    let decide = |pair: &Pair, number| pair.program.rehearse(&syn(number).build()).unwrap().cause;
    // Sources that may be forged fill the table.
    for number in 0..1100 {
        pair.program.set_time(pair.now);
        decide(&pair, number);
    }
    pair.now += SECOND;
    pair.program.set_time(pair.now);
    for number in 1000..1100 {
        assert_eq!(decide(&pair, number), Cause::Default, "retransmission");
    }
    let spec = FrameSpec { seq: pair.cookie(&syn(1)), tcp_flags: RST, ..syn(1) };
    assert_eq!(pair.program.rehearse(&spec.build()).unwrap().cause, Cause::ChallengeAnswered);
    assert_eq!(decide(&pair, 1), Cause::Default);
    pair.now += SECOND;
    pair.program.set_time(pair.now);
    for number in 1000..1100 {
        decide(&pair, number);
    }
    assert_eq!(decide(&pair, 1), Cause::Default, "they do not take its place");
}

#[test]
fn cookies_are_valid_in_two_epochs() {
    if !root::is_root() {
        return;
    }
    const EPOCH: u64 = 1 << 36;
    for (late, cause) in
        [(0, Cause::ChallengeAnswered), (1, Cause::ChallengeAnswered), (2, Cause::Default)]
    {
        let mut pair = Pair::new("'always'");
        let first = syn(1);
        assert_eq!(pair.decide(&first), Cause::Challenge);
        let cookie = pair.cookie(&first);
        pair.now += late * EPOCH;
        assert_eq!(pair.reset(&first, cookie), cause, "{late} epochs later");
    }
}

#[test]
fn a_client_never_accepts_the_answer() {
    if !root::is_root() {
        return;
    }
    for sent in [0, 1, 2, 101, 102, 1 << 31, u32::MAX - 1, u32::MAX] {
        let mut pair = Pair::new("'always'");
        let mut first = FrameSpec { payload: vec![7; 100], ..syn(1) };
        let hash = pair.cookie(&first);
        first.seq = hash.wrapping_sub(sent);
        assert_eq!(pair.decide(&first), Cause::Challenge);
        let cookie = pair.cookie(&first);
        assert_eq!(pair.reset(&first, cookie), Cause::ChallengeAnswered);
    }
}

#[test]
fn answers_to_all_kinds_of_syns_are_valid() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("'always'");
    for first in [syn(1), syn_v6(1)] {
        for tags in [vec![], vec![(0x8100, 5)], vec![(0x88a8, 0x2005), (0x8100, 6)]] {
            for (options, tcp_options, payload) in
                [(0, 0, 0), (0, 20, 0), (40, 40, 0), (4, 4, 1000)]
            {
                for flags in [SYN, SYN | 0xc0] {
                    let mut first = FrameSpec {
                        tags: tags.clone(),
                        tcp_options,
                        tcp_flags: flags,
                        ..first.clone()
                    };
                    first.payload = vec![0xaa; payload];
                    match first.src.is_ipv4() {
                        true => first.options = options,
                        false if options > 0 => first.extensions = vec![0, 60],
                        false => {}
                    }
                    assert_eq!(pair.decide(&first), Cause::Challenge);
                    first.padding = 6;
                    assert_eq!(pair.decide(&first), Cause::Challenge);
                }
            }
        }
    }
}

#[test]
fn the_acknowledgement_of_a_syn_cookie_and_its_timestamp_verifies_the_source() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("{ challenge = 'always', state = 'on', above = 10, below = 4 }");
    pair.expect_cookies();
    for first in [syn(1), syn_v6(1)] {
        let unknown =
            |number: u16| FrameSpec { tcp_flags: ACK, sport: 50_000 + number, ..first.clone() };
        for number in 0..11 {
            pair.decide(&unknown(number));
        }
        assert_eq!(pair.decide(&unknown(20)), Cause::UnknownFlow);
        let answer = pair.acknowledgement(&first);
        for wrong in [
            FrameSpec { ack: answer.ack ^ 16, ..answer.clone() },
            FrameSpec { ack: answer.ack + 1, ..answer.clone() },
            FrameSpec { seq: answer.seq + 1, ..answer.clone() },
            FrameSpec { sport: answer.sport + 1, ..answer.clone() },
            FrameSpec { tcp_flags: ACK | SYN, ..answer.clone() },
        ] {
            assert_eq!(pair.decide(&wrong), Cause::UnknownFlow, "{wrong:?}");
        }
        assert_eq!(pair.decide(&first), Cause::Challenge);
        // The MSS is not hashed.
        let answer = FrameSpec { ack: answer.ack + 6, ..answer };
        for without in [
            FrameSpec { tcp_options: 0, tsecr: None, ..answer.clone() },
            FrameSpec { tsecr: answer.tsecr.map(|it| it ^ 1 << 6), ..answer.clone() },
            FrameSpec { tsecr: answer.tsecr.map(|it| it ^ 1 << 31), ..answer.clone() },
        ] {
            assert_eq!(pair.decide(&without), Cause::Default, "{without:?}");
            assert_eq!(pair.decide(&first), Cause::Challenge, "the number proves too little");
        }
        // Options are not hashed.
        let answer = FrameSpec { tsecr: answer.tsecr.map(|it| it | 63), ..answer };
        assert_eq!(pair.decide(&answer), Cause::Default);
        assert_eq!(pair.decide(&first), Cause::Default, "the source is verified");
        let next = FrameSpec { ack: answer.ack + 1000, ..answer };
        assert_eq!(pair.decide(&next), Cause::Default, "the flow is known");
    }
}

#[test]
fn syn_cookies_are_valid_in_two_epochs() {
    if !root::is_root() {
        return;
    }
    for (late, cause) in [(0, Cause::Default), (1, Cause::Default), (2, Cause::Challenge)] {
        let mut pair = Pair::new("'always'");
        pair.expect_cookies();
        let answer = pair.acknowledgement(&syn(1));
        pair.now += late << 36;
        assert_eq!(pair.decide(&answer), Cause::Default);
        assert_eq!(pair.decide(&syn(1)), cause, "{late} epochs later");
    }
}

#[test]
fn levels_rise_with_the_rate_and_fall_with_time() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("{ above = 10, below = 4 }");
    let causes = |pair: &mut Pair, from: u32, count: u32| -> Vec<_> {
        (from..from + count).map(|number| pair.decide(&syn(number))).collect()
    };
    let found = causes(&mut pair, 0, 50);
    assert_eq!(found[..10], [Cause::Default; 10]);
    assert_eq!(found[10..40], [Cause::FirstSyn; 30]);
    assert_eq!(found[40..], [Cause::Challenge; 10]);
    // 16 in a second keep level 2, fewer do not.
    for _ in 0..10 {
        pair.now += SECOND;
        assert_eq!(causes(&mut pair, 100, 16), [Cause::Challenge; 16]);
    }
    for _ in 0..5 {
        pair.now += SECOND;
        assert_eq!(causes(&mut pair, 200, 15), [Cause::Challenge; 15]);
    }
    // 4 in a second keep level 1.
    for second in 0..20 {
        pair.now += SECOND;
        let numbers = 1000 + second * 4;
        assert_eq!(causes(&mut pair, numbers, 4), [Cause::FirstSyn; 4], "{second}");
    }
    for second in 0..5 {
        pair.now += SECOND;
        assert_eq!(causes(&mut pair, 2000 + second * 3, 3), [Cause::FirstSyn; 3], "{second}");
    }
    pair.now += SECOND;
    assert_eq!(causes(&mut pair, 3000, 3), [Cause::Default; 3]);
    // After silence, at once.
    causes(&mut pair, 4000, 50);
    pair.now += 6 * SECOND;
    assert_eq!(causes(&mut pair, 5000, 3), [Cause::Default; 3]);
}

#[test]
fn a_retransmitted_syn_verifies_its_source() {
    if !root::is_root() {
        return;
    }
    for (delay, cause) in [(699, false), (700, true), (8000, true), (8001, false)] {
        let mut pair = Pair::new("{ above = 10 }");
        pair.flood(11);
        let first = syn(1);
        assert_eq!(pair.decide(&first), Cause::FirstSyn);
        for _ in 0..delay / 1000 {
            pair.now += SECOND;
            // Keeps the level.
            pair.flood(11);
        }
        pair.now += delay % 1000 * MS;
        let other = FrameSpec { seq: first.seq + 1, ..first.clone() };
        assert_eq!(pair.decide(&other), Cause::FirstSyn, "another connection");
        assert_eq!(
            pair.decide(&first),
            if cause { Cause::Default } else { Cause::FirstSyn },
            "after {delay} ms"
        );
        assert_eq!(pair.decide(&other) == Cause::Default, cause, "the source is verified");
        pair.now += 61 * SECOND;
        pair.flood(11);
        assert_eq!(pair.decide(&syn(1)), Cause::FirstSyn, "for a minute");
    }
}

#[test]
fn flows_from_before_the_start_become_known() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("{ challenge = 'off', state = 'on', above = 10, below = 4 }");
    pair.program.learn_flows_until(pair.now + 60 * SECOND);
    pair.oracle.learn_flows_until(pair.now + 60 * SECOND);
    let ack = |number| FrameSpec { tcp_flags: ACK, ..syn(number) };
    pair.now += 54 * SECOND;
    (1000..1100).for_each(|number| assert_eq!(pair.decide(&ack(number)), Cause::Default));
    pair.now += 6 * SECOND;
    (2000..2011).for_each(|number| {
        pair.decide(&ack(number));
    });
    assert_eq!(pair.decide(&ack(2011)), Cause::UnknownFlow);
    (1000..1100).for_each(|number| assert_eq!(pair.decide(&ack(number)), Cause::Default));
}

#[test]
fn packets_of_unknown_flows_are_dropped_while_there_are_many() {
    if !root::is_root() {
        return;
    }
    let mut pair = Pair::new("{ challenge = 'off', state = 'on', above = 10, below = 4 }");
    let ack = |number| FrameSpec { tcp_flags: ACK, ..syn(number) };
    assert_eq!(pair.decide(&syn(1)), Cause::Default);
    assert_eq!(pair.decide(&ack(2)), Cause::Default);
    // RST does not make a flow known.
    assert_eq!(pair.decide(&FrameSpec { tcp_flags: RST, ..syn(3) }), Cause::Default);
    let causes: Vec<_> = (100..120).map(|number| pair.decide(&ack(number))).collect();
    assert_eq!(causes[..8], [Cause::Default; 8]);
    assert_eq!(causes[8..], [Cause::UnknownFlow; 12]);
    for number in [2, 3, 100] {
        assert_eq!(pair.decide(&ack(number)), Cause::UnknownFlow, "{number} began without a SYN");
    }
    pair.now += 5 * SECOND;
    (1000..1011).for_each(|number| assert_eq!(pair.decide(&ack(number)), Cause::UnknownFlow));
    for number in [1, 2, 100] {
        assert_eq!(pair.decide(&ack(number)), Cause::Default, "{number} is older than 5 s");
    }
    assert_eq!(pair.decide(&syn(4)), Cause::Default, "SYNs pass, and begin a flow");
    assert_eq!(pair.decide(&ack(4)), Cause::Default);
    // The attack goes on.
    for second in 0..299 {
        pair.now += SECOND;
        for number in 0..11 {
            assert_eq!(pair.decide(&ack(1000 + number)), Cause::UnknownFlow, "{second}");
        }
    }
    assert_eq!(pair.decide(&ack(1)), Cause::Default, "it was idle for less than 5 minutes");
    pair.now += SECOND;
    assert_eq!(pair.decide(&ack(2)), Cause::UnknownFlow);
    pair.now += 6 * SECOND;
    assert_eq!(pair.decide(&ack(2)), Cause::Default, "it is calm");
}
