//! Peers that come and go, and what is known of the packets then.

use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate::port::{OpenOptions, Port};

use super::by_hand::{RING_ENTRIES, TO_CLIENT, TO_SERVER, connect_by_hand};
use super::{both, bytes_of, noticed, open, pull, push, socket, until};

/// A receiver that is dropped with packets handed to it: each packet was received, or is counted as
/// lost with the connection, or goes to the next one.
#[test]
fn no_packet_is_unaccounted_for_when_receivers_go() {
    for (sender, receiver) in [("client", "server"), ("server", "client")] {
        let name = format!("memif:{}", socket(&format!("account-{sender}")));
        let mut from = open(&format!("{name}?role={sender}"));
        let from = &mut from.queues[0];
        let (mut sent, mut received) = (0u64, 0u64);
        for _ in 0..10 {
            let mut to = open(&format!("{name}?role={receiver}"));
            let to = &mut to.queues[0];
            let mut last = 0;
            let end = received + 700;
            until("some packets", || {
                while push(from, &sent.to_ne_bytes()) {
                    sent += 1;
                }
                from.sync_tx().unwrap();
                for packet in pull(to) {
                    let number = u64::from_ne_bytes(packet.try_into().unwrap());
                    assert!(last == 0 || number == last + 1, "{number} behind {last}");
                    last = number;
                    received += 1;
                }
                (received >= end).then_some(())
            });
            received += pull(to).len() as u64;
        }
        noticed(from, "waiting");
        drop(from.close_tx_within(Duration::from_millis(10)));
        let stats = from.stats().unwrap();
        let known = stats.sent + stats.sent_or_lost + stats.unsent;
        assert_eq!(known, sent, "{stats:?}");
        assert!(stats.sent <= received, "{received} received: {stats:?}");
    }
}

#[test]
fn a_peer_that_goes_leaves_what_it_has_sent() {
    for (sender, receiver) in [("client", "server"), ("server", "client")] {
        let name = format!("memif:{}", socket(&format!("leaves-{sender}")));
        let mut to = open(&format!("{name}?role={receiver}"));
        let to = &mut to.queues[0];
        for turn in 0..10 {
            let mut from = open(&format!("{name}?role={sender}"));
            let from = &mut from.queues[0];
            let mut sent = 0;
            until("a connection", || {
                sent += usize::from(push(from, &bytes_of(turn, 60)));
                to.sync_rx().unwrap();
                (from.stats().unwrap().sent >= 50).then_some(())
            });
            let handed = from.stats().unwrap().sent as usize;
            // Gone without a word, and without having seen what was taken.
            drop(std::mem::replace(from, open("null:").queues.remove(0)));
            let mut received = 0;
            until("what was sent", || {
                received += pull(to).len();
                (received >= handed).then_some(())
            });
            assert_eq!(received + pull(to).len(), handed, "{sent} pushed");
        }
        assert_eq!(to.stats().unwrap().sent_or_lost, 0);
    }
}

#[test]
fn a_client_that_goes_before_it_offers_anything_was_sent_nothing() {
    let name = socket("offers-nothing");
    let mut server = open(&format!("memif:{name}?role=server"));
    let queue = &mut server.queues[0];
    let (wire, memory, _event) = connect_by_hand(&name);
    (0..RING_ENTRIES).for_each(|i| memory.descriptor(TO_CLIENT, i, (0, 0, 2048, 8192)));
    let offered = memory.index(TO_CLIENT + 6);
    offered.store(RING_ENTRIES as u16, Ordering::Release);
    (0..3).for_each(|_| assert!(push(queue, &bytes_of(1, 60))));
    until("three packets", || {
        queue.sync_tx().unwrap();
        (memory.index(TO_CLIENT + 64).load(Ordering::Acquire) == 3).then_some(())
    });
    // It has taken all of them.
    offered.store(RING_ENTRIES as u16 + 3, Ordering::Release);
    drop(wire);
    noticed(queue, "disconnected");
    queue.sync_tx().unwrap();

    let (wire, memory, _event) = connect_by_hand(&name);
    memory.descriptor(TO_SERVER, 0, (0, 0, 60, 4096));
    memory.index(TO_SERVER + 6).store(1, Ordering::Release);
    until("its packet", || pull(queue).pop());
    drop(wire);
    noticed(queue, "disconnected");
    queue.sync_tx().unwrap();
    let stats = queue.stats().unwrap();
    assert_eq!((stats.sent, stats.sent_or_lost), (3, 0), "{stats:?}");
}

#[test]
fn slots_outlive_the_peer_whose_packets_they_hold() {
    for (receiver, sender) in [("server", "client"), ("client", "server")] {
        let name = format!("memif:{}", socket(&format!("outlive-{sender}")));
        let mut port = open(&format!("{name}?role={receiver}"));
        let queue = &mut port.queues[0];
        let mut old = open(&format!("{name}?role={sender}"));
        // Several packets, pushed before the connection, could fill the receiver's ring.
        assert!(push(&mut old.queues[0], &bytes_of(3, 1000)));
        until("a packet", || {
            old.queues[0].sync_tx().unwrap();
            (queue.sync_rx().unwrap() > 0).then_some(())
        });
        drop(old);
        noticed(queue, "disconnected");
        let mut next = open(&format!("{name}?role={sender}"));
        until("the next peer's packet, while the old one's is still there", || {
            push(&mut next.queues[0], &bytes_of(4, 99));
            queue.sync_rx().unwrap();
            let mut packets = queue.rx().packets();
            assert_eq!(packets.next().unwrap().head(), bytes_of(3, 1000), "{receiver}");
            packets.any(|packet| packet.head() == bytes_of(4, 99)).then_some(())
        });
    }
}

/// Packets of a disconnected peer that the program has not taken delay those of the next peer, but not
/// packets to it.
#[test]
fn the_next_peer_is_sent_to_while_the_old_ones_packets_wait() {
    for (receiver, sender) in [("server", "client"), ("client", "server")] {
        let name = format!("memif:{}", socket(&format!("waiting-{sender}")));
        let mut port = open(&format!("{name}?role={receiver}&slots=4"));
        let queue = &mut port.queues[0];
        let mut old = open(&format!("{name}?role={sender}"));
        noticed(queue, "connected to");
        // More than the queue has room for: the rest waits in the peer's ring.
        until("eight packets sent", || {
            push(&mut old.queues[0], &bytes_of(3, 1000));
            queue.sync_rx().unwrap();
            (old.queues[0].stats().unwrap().sent >= 8).then_some(())
        });
        drop(old);
        noticed(queue, "disconnected");
        let mut next = open(&format!("{name}?role={sender}"));
        noticed(queue, "connected to");
        push(queue, &bytes_of(5, 60));
        until("a packet to the next peer", || {
            queue.sync_rx().unwrap();
            queue.sync_tx().unwrap();
            pull(&mut next.queues[0]).contains(&bytes_of(5, 60)).then_some(())
        });
        assert_eq!(queue.rx().available(), 3, "the packets that had come are still in the ring");
        let mut olds = 0;
        until("the next peer's packets", || {
            push(&mut next.queues[0], &bytes_of(4, 99));
            let packets = pull(queue);
            olds += packets.iter().filter(|packet| **packet == bytes_of(3, 1000)).count();
            packets.contains(&bytes_of(4, 99)).then_some(())
        });
        assert!(olds >= 8, "{receiver}: {olds} of the old peer's");
    }
}

#[test]
fn a_socket_that_cannot_be_is_an_error_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = |file: &str| folder.path().join(file).display().to_string();
    std::fs::write(path("file"), "").unwrap();
    let _other = std::os::unix::net::UnixListener::bind(path("stream")).unwrap();
    let long = "x".repeat(200);
    for (name, part) in [
        (format!("memif:{}/none/socket", folder.path().display()), "make the folder"),
        (format!("memif:{}?role=server", path("file")), "the path is in use"),
        (format!("memif:{}", path("stream")), "another kind of socket"),
        (format!("memif:{}", path(&long)), "File name too long"),
        ("memif:".to_owned(), "no socket named"),
        ("memif:@x?ring_size=100".to_owned(), "a power of two"),
        (format!("memif:@x?secret={long}"), "24 bytes at most"),
        ("memif:@x?copy=on".to_owned(), "option 'copy=on': memif: has the options role="),
        ("memif:@x?role=client&queues=64&ring_size=16384&buffer=4K".to_owned(), "4 GiB at most"),
    ] {
        let opened = name.parse().and_then(|name| Port::open(&name, &OpenOptions::default()));
        let said = opened.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(part), "{name}: {said}");
    }
}

#[test]
fn a_socket_file_is_there_as_long_as_its_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let name = format!("memif:{}", path.display());
    let first = open(&name);
    assert!(path.exists());
    drop(first);
    assert!(!path.exists());
    let (_server, mut client) = both("file", "", "");
    noticed(&mut client.queues[0], "connected");
}

#[test]
fn two_that_start_at_the_same_moment_find_each_other() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let file = folder.path().join(round.to_string());
        let name = match round % 2 {
            0 => format!("memif:{}", file.display()),
            _ => format!("memif:{}", socket(&format!("together-{round}"))),
        };
        let together = Barrier::new(2);
        let start = || {
            together.wait();
            open(&name)
        };
        let (mut one, mut other) = std::thread::scope(|scope| {
            let other = scope.spawn(start);
            (start(), other.join().unwrap())
        });
        assert_ne!(one.method, other.method, "{round}");
        let (from, to) = (&mut one.queues[0], &mut other.queues[0]);
        until("a packet", || {
            push(from, &bytes_of(round, 60));
            Some(pull(to)).filter(|packets| !packets.is_empty())
        });
    }
}
