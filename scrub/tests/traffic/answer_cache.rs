//! Answers of a game server come from the cache.

use super::handover::kernel;
use super::*;

/// Bytes of a query that is as long as any answer: a veth has no room behind a frame for a longer one.
const PADDED: usize = 1452;
/// Kinds of queries, and the kinds and lengths of their answers.
const KINDS: [(u8, u8, usize); 3] = [(b'T', b'I', 1400), (b'U', b'D', 777), (b'V', b'E', 10)];

/// Returns a policy that uses answers for this time.
fn policy(time: &str) -> String {
    format!(
        "[[rule]]\nname = 'game'\nmatch = {{ dport = 27015 }}\nchallenge = 'a2s'\ncache = '{time}'\n"
    )
}

/// Returns true if answers are kept; otherwise prints that the test is skipped.
fn keeps_answers(scrubber: &Scrubber) -> bool {
    let obstacle = scrubber.answer_cache_obstacle();
    if let Some(obstacle) = obstacle {
        assert!(kernel() < [6, 6], "{obstacle}");
        println!("skipped: {obstacle}");
    }
    obstacle.is_none()
}

/// Returns the answer to the query of this number, from 0.
fn answer(kind: u8, number: u32) -> Vec<u8> {
    let (_, kind, length) = KINDS.into_iter().find(|it| it.0 == kind).unwrap();
    let bytes = [b"\xff\xff\xff\xff", [kind].as_slice(), &number.to_be_bytes()].concat();
    bytes.into_iter().chain((0..=250).cycle()).take(length).collect()
}

/// Does something while a game server of the right host answers, and counts queries.
fn with_server(
    lab: &Lab,
    address: &str,
    answer: impl Fn(u8, u32) -> Vec<u8> + Sync,
    work: impl FnOnce(SocketAddr, &AtomicU32),
) {
    let server = SocketAddr::new(address.parse().unwrap(), 27015);
    let socket = udp_server(lab, server);
    let (over, served) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut query = [0; 2048];
            while !over.load(Ordering::Relaxed) {
                if let Ok((_, client)) = socket.recv_from(&mut query) {
                    let number = served.fetch_add(1, Ordering::Relaxed);
                    socket.send_to(&answer(query[4], number), client).unwrap();
                }
            }
        });
        let _end = EndsServer(&over);
        work(server, &served);
    });
}

/// Returns a socket of a client.
fn client_socket(lab: &Lab, server: SocketAddr, number: u32) -> UdpSocket {
    let src = SocketAddr::new(client(server.is_ipv4(), number), 0);
    let bind = || Ok(UdpSocket::bind(src).unwrap());
    let socket = netns::run_in(Some(&lab.netns("left")), bind).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// Asks by queries of these bytes at least. Returns the answer, and the challenges before it.
fn ask(socket: &UdpSocket, server: SocketAddr, kind: u8, bytes: usize) -> (Vec<u8>, u32) {
    let (mut number, mut found) = (u32::MAX, [0; 2048]);
    for challenges in 0.. {
        let mut query = a2s_query(kind, Some(number));
        query.resize(query.len().max(bytes), 0);
        socket.send_to(&query, server).unwrap();
        let (length, from) = socket.recv_from(&mut found).unwrap();
        assert_eq!(from, server);
        match found[..length].strip_prefix(b"\xff\xff\xff\xffA") {
            Some(given) => number = u32::from_be_bytes(given.try_into().unwrap()),
            None => return (found[..length].to_vec(), challenges),
        }
    }
    unreachable!()
}

fn one_query_of_many_reaches_the_server(mode: Mode) {
    let Some(lab) = lab() else { return };
    let _woken = (mode == Mode::Native).then(|| wake(&lab));
    let scrubber = scrub_by(&lab, &policy("60s"), &attach(mode));
    if !keeps_answers(&scrubber) {
        return;
    }
    for (version, address) in (1..).zip(["198.18.0.2", "2001:db8:18::2"]) {
        with_server(&lab, address, answer, |server, served| {
            let first = client_socket(&lab, server, 0);
            for (number, (kind, ..)) in (0..).zip(KINDS) {
                let right = answer(kind, number);
                let challenges = u32::from(number == 0);
                assert_eq!(ask(&first, server, kind, PADDED), (right.clone(), challenges));
                for _ in 0..10 {
                    // A verified source may be forged.
                    assert_eq!(ask(&first, server, kind, PADDED), (right.clone(), 1));
                }
                // Another client proves its source, and gets it, too.
                let other = client_socket(&lab, server, 1 + number);
                assert_eq!(ask(&other, server, kind, PADDED), (right, 1));
                assert_eq!(served.load(Ordering::Relaxed), number + 1);
            }
        });
        assert_eq!(answered(&scrubber, "a2s-cached"), 33 * version);
        assert_eq!(answered(&scrubber, "challenge-a2s"), 34 * version);
    }
}

#[test]
fn one_query_of_many_reaches_the_server_in_native_mode() {
    one_query_of_many_reaches_the_server(Mode::Native);
}

#[test]
fn one_query_of_many_reaches_the_server_in_skb_mode() {
    one_query_of_many_reaches_the_server(Mode::Skb);
}

#[test]
fn a_new_answer_comes_after_the_time() {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub_by(&lab, &policy("100ms"), &attach(Mode::Native));
    if !keeps_answers(&scrubber) {
        return;
    }
    with_server(&lab, "198.18.0.2", answer, |server, served| {
        let socket = client_socket(&lab, server, 0);
        let until = Instant::now() + TIMEOUT;
        let mut last = 0;
        while last < 3 {
            let (found, _) = ask(&socket, server, b'T', PADDED);
            let number = u32::from_be_bytes(*found[5..].first_chunk().unwrap());
            assert_eq!(found, answer(b'T', number));
            assert!(number == last || number == last + 1, "{number} after {last}");
            last = number;
            assert!(Instant::now() < until, "the answer stays");
        }
        assert_eq!(served.load(Ordering::Relaxed), 4);
    });
    assert!(answered(&scrubber, "a2s-cached") > 0);
}

/// An answer that does not fit into the query's frame comes from the server, if the driver has no room behind the frame.
#[test]
fn short_queries_are_answered() {
    for mode in [Mode::Native, Mode::Skb] {
        let Some(lab) = lab() else { return };
        let _woken = (mode == Mode::Native).then(|| wake(&lab));
        let scrubber = scrub_by(&lab, &policy("60s"), &attach(mode));
        if !keeps_answers(&scrubber) {
            return;
        }
        with_server(
            &lab,
            "198.18.0.2",
            |kind, _| answer(kind, 0),
            |server, served| {
                let socket = client_socket(&lab, server, 0);
                for (kind, ..) in KINDS {
                    for _ in 0..20 {
                        assert_eq!(ask(&socket, server, kind, 0).0, answer(kind, 0));
                    }
                }
                let served = u64::from(served.load(Ordering::Relaxed));
                let cached = answered(&scrubber, "a2s-cached");
                println!("{mode:?}: {cached} from the cache");
                assert_eq!(served + cached, 60);
                assert!(cached >= 19, "the rules fit");
            },
        );
    }
}

#[test]
fn a_split_answer_is_not_kept() {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub_by(&lab, &policy("60s"), &attach(Mode::Native));
    if !keeps_answers(&scrubber) {
        return;
    }
    let split = |number: u32| [&[0xfe, 0xff, 0xff, 0xff], [number as u8; 50].as_slice()].concat();
    let of_kind =
        move |kind, number| if kind == b'V' { split(number) } else { answer(kind, number) };
    with_server(&lab, "198.18.0.2", of_kind, |server, _| {
        let socket = client_socket(&lab, server, 0);
        for number in 0..5 {
            assert_eq!(ask(&socket, server, b'V', PADDED).0, split(number));
        }
        assert_eq!(answered(&scrubber, "a2s-cached"), 0);
        for _ in 0..2 {
            assert_eq!(ask(&socket, server, b'T', PADDED).0, answer(b'T', 5));
        }
        assert_eq!(answered(&scrubber, "a2s-cached"), 1, "another answer is kept");
    });
}

#[test]
fn a_monitor_answers_no_query() {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let mut scrubber = scrub_by(&lab, &policy("60s"), &attach(Mode::Native));
    if !keeps_answers(&scrubber) {
        return;
    }
    with_server(&lab, "198.18.0.2", answer, |server, _| {
        let socket = client_socket(&lab, server, 0);
        assert_eq!(ask(&socket, server, b'T', PADDED), (answer(b'T', 0), 1));
        scrubber.set_mode(program::Mode { monitor: true, ..program::Mode::default() });
        for number in 1..5 {
            assert_eq!(ask(&socket, server, b'T', PADDED), (answer(b'T', number), 0));
        }
    });
    assert_eq!(answered(&scrubber, "challenge-a2s"), 5, "it would challenge");
}
