//! Peers that break the protocol, written by hand: each is cut off with a message, and the port goes on
//! with the next.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::fcntl::SealFlag;
use nix::sys::eventfd::EventFd;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluicegate::port::{Port, Queue};
use sluicegate::ring::{Meta, Packet, Wait};
use sluicegate_memif::{AddRing, Hello, Init, Message};

use super::by_hand::{
    REGION_BYTES, RING_BYTES, RING_ENTRIES, Server, SharedMemory, TO_CLIENT, TO_SERVER, Wire,
    connect_by_hand, hello, init, memory, ring,
};
use super::{bytes_of, noticed, open, pull, pull_some, push, socket, until};

/// A client by hand.
struct Client {
    wire: Wire,
    memory: SharedMemory,
    /// Of both rings.
    event: EventFd,
}

impl Client {
    fn connect(name: &str) -> Self {
        let (wire, memory, event) = connect_by_hand(name);
        Self { wire, memory, event }
    }
}

impl Wire {
    /// The reason the other end gives.
    pub fn reason(&self) -> String {
        loop {
            match self.hear() {
                Some((Message::Disconnect { reason, .. }, _)) => return reason,
                Some(_) => {}
                None => return "nothing".into(),
            }
        }
    }
}

/// Has a server send a packet to a client by hand: it has the rings then.
fn sends_a_packet(queue: &mut Queue, to: &Client) {
    to.memory.descriptor(TO_CLIENT, 0, (0, 0, 2048, 8192));
    to.memory.index(TO_CLIENT + 6).store(1, Ordering::Release);
    until("a packet from the server", || {
        push(queue, &bytes_of(1, 60));
        (to.memory.index(TO_CLIENT + 64).load(Ordering::Acquire) == 1).then_some(())
    });
    assert!(
        (8192..).map(|at| to.memory.byte(at)).take(60).eq(bytes_of(1, 60)),
        "where it was asked for"
    );
}

/// A server's queue does all it does, until the client by hand is told why it was cut off.
fn serve_until_cut_off(queue: &mut Queue, client: &Client) -> String {
    std::thread::scope(|scope| {
        let reason = scope.spawn(|| client.wire.reason());
        until("the end of the connection", || {
            push(queue, &bytes_of(1, 300));
            pull(queue);
            reason.is_finished().then_some(())
        });
        reason.join().unwrap()
    })
}

/// After a bad peer a good one is served as if nothing had been.
pub fn serves_a_good_peer(name: &str, queue: &mut Queue) {
    let mut good = open(&format!("memif:{name}?role=client"));
    until("a packet of a good peer", || {
        push(&mut good.queues[0], &bytes_of(7, 99));
        pull(queue).contains(&bytes_of(7, 99)).then_some(())
    });
}

#[test]
fn a_client_that_describes_what_cannot_be_is_cut_off() {
    let name = socket("hostile-client");
    let mut server = open(&format!("memif:{name}?role=server"));
    let queue = &mut server.queues[0];
    let far = REGION_BYTES as u32;
    type Deed = fn(&SharedMemory);
    let in_ring: [(&str, Deed); 10] = [
        ("a packet of 60 bytes at 65536 in region 0", |m| m.descriptor(0, 0, (0, 0, 60, 65_536))),
        ("a packet of 61 bytes at 65476", |m| m.descriptor(0, 0, (0, 0, 61, 65_476))),
        ("in region 1, which", |m| m.descriptor(0, 0, (0, 1, 60, 4096))),
        ("in region 65535, which", |m| m.descriptor(0, 0, (0, u16::MAX, 60, 4096))),
        ("a packet of 4294967295 bytes", |m| m.descriptor(0, 0, (0, 0, u32::MAX, u32::MAX))),
        ("a packet of 65536 bytes at 0", |m| m.descriptor(0, 0, (0, 0, 65_536, 0))),
        ("a packet of 1 bytes at 65536 in region 0", |m| {
            m.descriptor(0, 0, (1, 0, 60, 4096));
            m.descriptor(0, 1, (0, 0, 1, 65_536));
            m.index(6).store(2, Ordering::Release);
        }),
        ("a ring's head is out of range", |m| m.index(6).store(33, Ordering::Release)),
        ("a ring's head is out of range", |m| m.index(6).store(0x8000, Ordering::Release)),
        ("a packet of 0 bytes at 4294967295", |m| {
            m.descriptor(TO_CLIENT, 0, (0, 0, 0, u32::MAX));
            m.index(TO_CLIENT + 6).store(1, Ordering::Release);
        }),
    ];
    assert_eq!(far, 65_536, "as the rows have it");
    for (reason, deed) in in_ring {
        let client = Client::connect(&name);
        deed(&client.memory);
        let head = client.memory.index(6);
        if head.load(Ordering::Relaxed) == 0 && !reason.contains("of 0 bytes") {
            head.store(1, Ordering::Release);
        }
        let said = serve_until_cut_off(queue, &client);
        assert!(said.contains(reason), "{said}, not {reason}");
        noticed(queue, "broke the protocol and was cut off");
        serves_a_good_peer(&name, queue);
    }
}

/// A server at a socket of its own, and a client that speaks as it likes.
fn server_and_client(test: &str, options: &str) -> (String, Port, Client) {
    let name = socket(test);
    let server = open(&format!("memif:{name}?role=server{options}"));
    let client = Client::connect(&name);
    (name, server, client)
}

/// A server looks at several entries before it fills the first of them.
#[test]
fn a_buffer_that_cannot_be_ends_the_batch_there() {
    const SENT: usize = 16;
    let buffer = |i| 8192 + 512 * i;
    for bad in [0, 3, 7, 8, 12] {
        let (name, mut server, client) = server_and_client("hostile-batch", "");
        let queue = &mut server.queues[0];
        let given = |i| (0, 0, 512, buffer(i) as u32);
        (0..SENT).for_each(|i| client.memory.descriptor(TO_CLIENT, i, given(i)));
        client.memory.descriptor(TO_CLIENT, bad, (0, 0, 512, 65_025));
        client.memory.index(TO_CLIENT + 6).store(SENT as u16, Ordering::Release);
        for i in 0..SENT {
            assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &bytes_of(i + 1, 60))));
        }
        let reason = std::thread::scope(|scope| {
            let reason = scope.spawn(|| client.wire.reason());
            until("the end of the connection", || {
                queue.sync_tx().unwrap();
                reason.is_finished().then_some(())
            });
            reason.join().unwrap()
        });
        assert!(reason.contains("a packet of 512 bytes at 65025 in region 0"), "{bad}: {reason}");
        let untouched = (buffer(bad)..REGION_BYTES).all(|at| client.memory.byte(at) == 0);
        assert!(untouched, "{bad}: nothing is written there and behind");
        assert_eq!(queue.stats().unwrap().sent, 0, "{bad}: the client was told of none");
        let mut good = open(&format!("memif:{name}?role=client"));
        let mut received = Vec::new();
        until("all of them, at the next client", || {
            queue.sync_tx().unwrap();
            received.extend(pull(&mut good.queues[0]));
            (received.len() >= SENT).then_some(())
        });
        assert!(received.iter().cloned().eq((1..=SENT).map(|i| bytes_of(i, 60))), "{bad}");
        assert_eq!(queue.stats().unwrap().sent, SENT as u64, "{bad}");
    }
}

#[test]
fn a_packet_without_end_is_cut_off() {
    let (name, mut server, client) = server_and_client("hostile-endless", "&slots=8");
    (0..RING_ENTRIES).for_each(|i| client.memory.descriptor(0, i, (1, 0, 60, 4096)));
    client.memory.index(6).store(RING_ENTRIES as u16, Ordering::Release);
    let said = serve_until_cut_off(&mut server.queues[0], &client);
    assert!(said.contains("more pieces than there are slots"), "{said}");
    serves_a_good_peer(&name, &mut server.queues[0]);
}

#[test]
fn a_client_that_goes_in_the_middle_of_a_packet_holds_up_nobody() {
    let (name, mut server, client) = server_and_client("hostile-half", "");
    let queue = &mut server.queues[0];
    client.memory.descriptor(TO_SERVER, 0, (1, 0, 60, 4096));
    client.memory.index(6).store(1, Ordering::Release);
    sends_a_packet(queue, &client);
    assert!(pull(queue).is_empty(), "the end has not come");
    drop(client);
    noticed(queue, "disconnected");
    serves_a_good_peer(&name, queue);
}

/// A packet that came, and its bytes again after `rewrite` has changed those that the peer can reach.
fn before_and_after(queue: &mut Queue, rewrite: impl FnOnce()) -> [Vec<u8>; 2] {
    until("a packet", || (queue.sync_rx().unwrap() > 0).then_some(()));
    let packet = queue.rx().packets().next().unwrap();
    let before = packet.head().to_vec();
    rewrite();
    [before, packet.head().to_vec()]
}

#[test]
fn a_peer_cannot_change_a_packet_that_was_received() {
    let (_, mut port, client) = server_and_client("rewrites-server", "");
    client.memory.put(4096, &bytes_of(3, 60));
    client.memory.descriptor(TO_SERVER, 0, (0, 0, 60, 4096));
    client.memory.index(TO_SERVER + 6).store(1, Ordering::Release);
    let rewrite = || client.memory.put(4096, &[0xbb; 60]);
    let seen = before_and_after(&mut port.queues[0], rewrite);
    assert_eq!(seen, [bytes_of(3, 60), bytes_of(3, 60)], "received by a server");

    let name = socket("rewrites-client");
    let server = Server::new(&name);
    let mut port = open(&format!("memif:{name}?role=client"));
    let queue = &mut port.queues[0];
    let (_wire, memory) = server.client();
    // The ring to the client comes behind the one to the server.
    let to_client = RING_BYTES;
    until("the client's buffers", || {
        queue.sync_rx().unwrap();
        (memory.index(to_client + 6).load(Ordering::Acquire) > 0).then_some(())
    });
    let descriptor = to_client + 128;
    let offset = std::array::from_fn(|i| memory.byte(descriptor + 8 + i));
    let buffer = u32::from_ne_bytes(offset) as usize;
    memory.put(buffer, &bytes_of(5, 60));
    memory.put(descriptor + 4, &60u32.to_ne_bytes());
    memory.index(to_client + 64).store(1, Ordering::Release);
    let seen = before_and_after(queue, || memory.put(buffer, &[0xbb; 60]));
    assert_eq!(seen, [bytes_of(5, 60), bytes_of(5, 60)], "received by a client");
}

#[test]
fn what_came_before_a_breach_is_received() {
    let (_, mut server, client) = server_and_client("hostile-before", "");
    let queue = &mut server.queues[0];
    client.memory.put(4096, &bytes_of(3, 60));
    client.memory.descriptor(TO_SERVER, 0, (0, 0, 60, 4096));
    client.memory.descriptor(TO_SERVER, 1, (0, 9, 60, 4096));
    client.memory.index(6).store(2, Ordering::Release);
    let mut received = Vec::new();
    until("the breach", || {
        received.extend(pull(queue));
        queue.take_notice().filter(|notice| notice.contains("in region 9, which"))
    });
    assert_eq!(received, [bytes_of(3, 60)]);
    assert_eq!(queue.stats().unwrap().received, 1);
}

#[test]
fn a_client_that_says_what_cannot_be_is_refused() {
    let name = socket("hostile-words");
    let mut server = open(&format!("memif:{name}?role=server"));
    let queue = &mut server.queues[0];
    let (good, _) = memory(c"good", SealFlag::F_SEAL_SHRINK);
    let (unsealed, _) = memory(c"unsealed", SealFlag::empty());
    let event = EventFd::new().unwrap();
    let (good, unsealed, event) =
        (good.as_raw_fd(), unsealed.as_raw_fd(), event.as_fd().as_raw_fd());
    let region = |bytes| Message::AddRegion { index: 0, bytes };
    let all = REGION_BYTES as u64;
    let other = |change: fn(&mut Init)| {
        let Message::Init(mut it) = init() else { panic!() };
        change(&mut it);
        Message::Init(it)
    };
    let bad_ring = |change: fn(&mut AddRing)| {
        let mut it = ring(true, 0);
        change(&mut it);
        Message::AddRing(it)
    };
    type Said = Vec<(Message, Vec<RawFd>)>;
    let rows: Vec<(Said, &str)> = vec![
        (vec![], "handshake took too long"),
        (vec![(Message::Connect("x".into()), vec![])], "unexpected message CONNECT"),
        (vec![(other(|it| it.version = 0x100), vec![])], "memif 2.0 is spoken here"),
        (vec![(other(|it| it.mode = 1), vec![])], "the mode here is ethernet"),
        (vec![(other(|it| it.id = 1), vec![])], "interface id 1 is not here"),
        (vec![(init(), vec![]), (init(), vec![])], "unexpected message INIT"),
        (vec![(init(), vec![]), (region(all), vec![])], "ADD_REGION without a file"),
        (vec![(init(), vec![]), (region(all), vec![good, good])], "more than one file"),
        (vec![(init(), vec![]), (region(all), vec![good; 200])], "more than one file"),
        (vec![(init(), vec![]), (region(all), vec![unsealed])], "F_SEAL_SHRINK"),
        (vec![(init(), vec![]), (region(all + 1), vec![good])], "smaller than was said"),
        (vec![(init(), vec![]), (region(u64::MAX), vec![good])], "too much memory"),
        (vec![(init(), vec![]), (bad_ring(|it| it.index = 1), vec![event])], "out of turn"),
        (vec![(init(), vec![]), (bad_ring(|_| {}), vec![good])], "no event"),
        (vec![(init(), vec![]), (bad_ring(|it| it.private_header = 8), vec![event])], "private"),
        (
            vec![
                (init(), vec![]),
                (region(all), vec![good]),
                (bad_ring(|it| it.offset = u32::MAX - 7), vec![event]),
                (Message::Connect("x".into()), vec![]),
            ],
            "not in a region",
        ),
        (
            vec![
                (init(), vec![]),
                (region(all), vec![good]),
                (bad_ring(|it| it.log2_entries = 200), vec![event]),
                (Message::Connect("x".into()), vec![]),
            ],
            "too many entries",
        ),
    ];
    for (said, reason) in rows {
        let wire = Wire::to(&name);
        for (message, files) in &said {
            wire.send(message, files);
        }
        let heard = wire.reason();
        assert!(heard.contains(reason), "{heard}, not {reason}");
    }
    for bytes in [&b"short"[..], &[0xff; 128], &[9; 300]] {
        let wire = Wire::to(&name);
        wire.send_bytes(bytes, &[]);
        let heard = wire.reason();
        assert!(heard.contains("message"), "{heard}");
    }
    serves_a_good_peer(&name, queue);
    assert!(noticed(queue, "F_SEAL_SHRINK").contains("sealed=off"));
}

#[test]
fn silent_clients_hold_up_no_other() {
    // A machine that stalls for a second lets them time out; a server that serves them in turn always does.
    let served_first = (0..5).any(|round| {
        let name = socket(&format!("silent-{round}"));
        let _server = open(&format!("memif:{name}?role=server"));
        let silent = [(); 3].map(|()| Wire::to(&name));
        let _good = connect_by_hand(&name);
        silent.iter().all(|it| it.reason().contains("already connected"))
    });
    assert!(served_first);
}

/// A sleeper also wakes by itself after a while, so packets alone do not prove that it was woken.
#[test]
fn a_receiver_says_that_it_sleeps_and_only_then_is_woken() {
    const FLAGS: usize = 4;
    let (_, mut server, client) = server_and_client("asleep", "");
    let queue = &mut server.queues[0];
    let flags = client.memory.index(TO_SERVER + FLAGS);
    assert_eq!(flags.load(Ordering::Acquire), 1, "a server that does not sleep");
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| pull_some(queue, Wait::Sleep));
        until("a sleeper", || (flags.load(Ordering::Acquire) == 0).then_some(()));
        client.memory.descriptor(TO_SERVER, 0, (0, 0, 60, 4096));
        client.memory.index(6).store(1, Ordering::Release);
        client.event.write(1).unwrap();
        assert_eq!(sleeper.join().unwrap().len(), 1);
    });
    assert_eq!(flags.load(Ordering::Acquire), 1, "awake again");
    // It may have looked before the event came.
    let _ = client.event.read();

    let flags = client.memory.index(TO_CLIENT + FLAGS);
    for (asleep, rings) in [(false, Err(nix::Error::EAGAIN)), (true, Ok(1))] {
        flags.store(u16::from(!asleep), Ordering::Release);
        let sent = client.memory.index(TO_CLIENT + 64).load(Ordering::Acquire);
        client.memory.descriptor(TO_CLIENT, sent.into(), (0, 0, 2048, 8192));
        client.memory.index(TO_CLIENT + 6).store(sent + 1, Ordering::Release);
        until("a packet", || {
            push(queue, &bytes_of(1, 60));
            (client.memory.index(TO_CLIENT + 64).load(Ordering::Acquire) > sent).then_some(())
        });
        assert_eq!(client.event.read(), rings, "asleep: {asleep}");
    }
}

#[test]
fn a_server_that_answers_what_cannot_be_is_cut_off() {
    let name = socket("hostile-server");
    let server = Server::new(&name);
    let mut port = open(&format!("memif:{name}?role=client"));
    let queue = &mut port.queues[0];
    // The ring to the client comes behind the one to the server.
    let to_client = RING_BYTES;
    type Deed = fn(&SharedMemory, usize);
    let rows: [(&str, Deed); 4] = [
        ("a ring's tail is out of range", |m, _| m.index(64).store(5000, Ordering::Release)),
        ("a ring's tail is out of range", |m, at| m.index(at + 64).store(33, Ordering::Release)),
        ("2113 bytes in a buffer of 2112", |m, at| {
            m.descriptor(at, 0, (0, 1, 2113, 0));
            m.index(at + 64).store(1, Ordering::Release);
        }),
        ("4294967295 bytes in a buffer", |m, at| {
            m.descriptor(at, 0, (0, 1, u32::MAX, u32::MAX));
            m.index(at + 64).store(1, Ordering::Release);
        }),
    ];
    for (reason, deed) in rows {
        let (wire, memory) = server.client();
        noticed(queue, "connected to by hand");
        // Both rings are the queue's once it has offered its buffers.
        until("the client's buffers", || {
            push(queue, &bytes_of(1, 60));
            pull(queue);
            (memory.index(to_client + 6).load(Ordering::Acquire) > 0).then_some(())
        });
        deed(&memory, to_client);
        let said = std::thread::scope(|scope| {
            let reason = scope.spawn(|| wire.reason());
            until("the end of the connection", || {
                push(queue, &bytes_of(1, 60));
                pull(queue);
                reason.is_finished().then_some(())
            });
            reason.join().unwrap()
        });
        assert!(said.contains(reason), "{said}, not {reason}");
        noticed(queue, "broke the protocol and was cut off");
    }
    // Where a server says a packet lies is not looked at: it lies where it was to be put.
    let (_wire, memory) = server.client();
    until("a packet", || {
        if memory.index(to_client + 6).load(Ordering::Acquire) > 0 {
            memory.descriptor(to_client, 0, (0, 77, 5, 0xffff_fff0));
            memory.index(to_client + 64).store(1, Ordering::Release);
        }
        (pull(queue).len() == 1).then_some(())
    });
}

#[test]
fn a_server_that_says_what_cannot_be_is_refused() {
    let name = socket("hostile-hello");
    let server = Server::new(&name);
    let mut port = open(&format!("memif:{name}?role=client"));
    let queue = &mut port.queues[0];
    let Message::Hello(good) = hello() else { panic!() };
    for (message, reason) in [
        (Message::Ack, "unexpected message ACK"),
        (Message::Hello(Hello { versions: (0x300, 0x300), ..good.clone() }), "memif 2.0 is spoken"),
    ] {
        let wire = server.accept();
        wire.send(&message, &[]);
        let said = wire.reason();
        assert!(said.contains(reason), "{said}");
        noticed(queue, reason);
    }
}

/// A peer that has disconnected and still writes into its ring delays nobody.
#[test]
fn what_is_sent_after_the_end_is_not_received() {
    let name = socket("hostile-after");
    // With fewer slots than are in its ring, there is always more.
    let mut server = open(&format!("memif:{name}?role=server&slots=4"));
    let queue = &mut server.queues[0];
    let Client { wire, memory, event: _event } = Client::connect(&name);
    for place in 0..RING_ENTRIES {
        memory.descriptor(TO_SERVER, place, (0, 0, 60, 8192));
    }
    let fill_up = || {
        let taken = memory.index(TO_SERVER + 64).load(Ordering::Acquire);
        memory
            .index(TO_SERVER + 6)
            .store(taken.wrapping_add(RING_ENTRIES as u16), Ordering::Release);
    };
    until("a packet", || {
        fill_up();
        (!pull(queue).is_empty()).then_some(())
    });
    drop(wire);
    noticed(queue, "disconnected");
    let mut next = open(&format!("memif:{name}?role=client"));
    until("the next one's packet", || {
        fill_up();
        push(&mut next.queues[0], &bytes_of(4, 99));
        pull(queue).contains(&bytes_of(4, 99)).then_some(())
    });
}

/// Anything in the rings, while the queue works on them.
#[test]
fn whatever_is_in_the_rings_the_process_lives() {
    let name = socket("hostile-random");
    let mut server = open(&format!("memif:{name}?role=server"));
    let queue = RefCell::new(&mut server.queues[0]);
    let mut runner = TestRunner::new(Config { cases: 64, ..Config::default() });
    let descriptor = (any::<u16>(), 0u16..3, 0u32..70_000, 0u32..70_000);
    let rings = (
        prop::collection::vec((any::<bool>(), 0..RING_ENTRIES, descriptor), 1..60),
        any::<[u16; 4]>(),
        0u16..64,
    );
    runner
        .run(&rings, |(descriptors, indices, near)| {
            let client = Client::connect(&name);
            let queue = &mut **queue.borrow_mut();
            for (to_client, place, fields) in descriptors {
                let start = if to_client { TO_CLIENT } else { TO_SERVER };
                client.memory.descriptor(start, place, fields);
            }
            // Near the truth, so that descriptors are looked at, and then anywhere.
            client.memory.index(6).store(near, Ordering::Release);
            client.memory.index(TO_CLIENT + 6).store(near / 2, Ordering::Release);
            let end = Instant::now() + Duration::from_millis(2);
            while Instant::now() < end {
                push(queue, &bytes_of(2, 3000));
                pull(queue);
            }
            for (at, index) in [6, 64, TO_CLIENT + 6, TO_CLIENT + 64].into_iter().zip(indices) {
                client.memory.index(at).store(index, Ordering::Release);
            }
            push(queue, &bytes_of(2, 60));
            pull(queue);
            Ok(())
        })
        .unwrap();
    // The last peer closed its socket without a message.
    serves_a_good_peer(&name, &mut queue.borrow_mut());
}
