//! Packets that go in at one end come out at the other.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use sluicegate::error::ErrorKind;
use sluicegate::forward::forward;
use sluicegate::memory::{Pool, PoolConfig};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::Wait;

use super::{
    both, bytes_of, in_pool, noticed, open, open_with, pull, pull_some, push, socket, until,
};

/// Lengths of one piece and of several, with those about a buffer's end, and about where copying begins to
/// take a call.
const LENGTHS: [usize; 15] =
    [60, 1514, 14, 2111, 2112, 2113, 4224, 9000, 61, 31, 32, 33, 63, 64, 65];

/// Sends packets from one queue to another, and looks at each.
fn exchange(from: &mut Queue, to: &mut Queue, packets: usize, wait: Wait) {
    let length = |number: usize| LENGTHS[number % LENGTHS.len()];
    let (mut sent, mut received) = (0, 0);
    until("all packets", || {
        while sent < packets && push(from, &bytes_of(sent, length(sent))) {
            sent += 1;
        }
        from.sync_tx().unwrap();
        to.wait_rx(wait, Duration::from_millis(1)).unwrap();
        for packet in pull(to) {
            assert_eq!(packet, bytes_of(received, length(received)), "packet {received}");
            received += 1;
        }
        (received == packets).then_some(())
    });
}

#[test]
fn packets_of_all_lengths_go_both_ways_and_stay_in_order() {
    for (options, row) in [
        ("", "as they are"),
        ("&interrupt=off", "without wake-ups"),
        ("&slots=8&ring_size=32", "in small rings"),
    ] {
        let (mut server, mut client) = both("exchange", options, options);
        let (server, client) = (&mut server.queues[0], &mut client.queues[0]);
        for (wait, packets) in [(Wait::Spin, 3000), (Wait::Sleep, 500), (Wait::default(), 1000)] {
            exchange(client, server, packets, wait);
            exchange(server, client, packets, wait);
        }
        assert_eq!(pull(server).len() + pull(client).len(), 0);
        for queue in [server, client] {
            queue.close_tx().unwrap();
            let stats = queue.stats().unwrap();
            assert_eq!((stats.received, stats.sent), (4500, 4500), "{row}");
            assert_eq!((stats.refused, stats.sent_or_lost), (0, 0), "{row}");
        }
    }
}

#[test]
fn the_ends_may_have_buffers_of_different_sizes() {
    for (server, client) in
        [("&buffer=9216", ""), ("", "&buffer=9216"), ("&buffer=9216", "&buffer=256&ring_size=64")]
    {
        let (mut server, mut client) = both("sizes", server, client);
        let (server, client) = (&mut server.queues[0], &mut client.queues[0]);
        // One at a time: without a packet behind it the sender does not look for more room.
        for (number, length) in LENGTHS.into_iter().enumerate() {
            for to_client in [true, false] {
                let (from, to) = if to_client {
                    (&mut *server, &mut *client)
                } else {
                    (&mut *client, &mut *server)
                };
                let bytes = bytes_of(number, length);
                assert!(push(from, &bytes));
                let came = until("the packet", || {
                    from.sync_tx().unwrap();
                    Some(pull(to)).filter(|packets| !packets.is_empty())
                });
                assert_eq!(came, [bytes]);
            }
        }
    }
}

#[test]
fn what_the_other_end_cannot_hold_is_refused_and_what_follows_goes() {
    let (mut server, mut client) = both("too-long", "&buffer=9216", "&buffer=64&ring_size=32");
    let (server, client) = (&mut server.queues[0], &mut client.queues[0]);
    assert!(push(server, &bytes_of(1, 9000)) && push(server, &bytes_of(2, 2048)));
    let came = until("what can be held", || {
        server.sync_tx().unwrap();
        Some(pull(client)).filter(|packets| !packets.is_empty())
    });
    assert_eq!(came, [bytes_of(2, 2048)]);
    let stats = server.stats().unwrap();
    assert_eq!((stats.sent, stats.too_long, stats.refused), (1, 1, 1), "{stats:?}");
}

#[test]
fn a_packet_longer_than_a_slots_buffer_lies_in_several_slots() {
    for role in ["server", "client"] {
        let (mut server, mut client) = match role {
            "server" => both("spread", "", "&buffer=9216"),
            _ => both("spread", "&buffer=9216", ""),
        };
        let (server, client) = (&mut server.queues[0], &mut client.queues[0]);
        let (from, to) = if role == "server" { (client, server) } else { (server, client) };
        assert!(push(from, &bytes_of(1, 9000)));
        until("the packet", || {
            from.sync_tx().unwrap();
            (to.sync_rx().unwrap() > 0).then_some(())
        });
        let packet = to.rx().packets().next().unwrap();
        let lengths: Vec<usize> = packet.segments().map(<[u8]>::len).collect();
        assert_eq!(lengths, [2112, 2112, 2112, 2112, 552], "received by a {role}");
        assert_eq!(pull(to), [bytes_of(1, 9000)]);
    }
}

#[test]
fn a_sleeping_receiver_is_woken() {
    let (mut server, mut client) = both("wake", "", "");
    let (server, client) = (&mut server.queues[0], &mut client.queues[0]);
    std::thread::scope(|scope| {
        let sleeper =
            scope.spawn(|| (0..20).map(|_| pull_some(server, Wait::Sleep).len()).sum::<usize>());
        let mut sent = 0;
        until("the sleeper", || {
            sent += usize::from(push(client, &bytes_of(sent, 60)));
            std::thread::sleep(Duration::from_millis(2));
            sleeper.is_finished().then_some(())
        });
        assert!(sleeper.join().unwrap() >= 20);
    });
}

#[test]
fn one_packet_wakes_an_event_loop_that_waits_for_the_descriptors_alone() {
    let (mut server, mut client) = both("event-loop", "", "");
    let (from, to) = (&mut server.queues[0], &mut client.queues[0]);
    exchange(from, to, 1, Wait::Sleep);
    for number in 0..20 {
        // Gives the last packet's slot back.
        assert_eq!(to.sync_rx().unwrap(), 0);
        let events = to.begin_sleep();
        let fds: Vec<_> =
            events.descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        assert_eq!(to.sync_rx().unwrap(), 0, "nothing has come");
        assert!(push(from, &bytes_of(number, 60)));
        from.sync_tx().unwrap();
        // Without the limit of the sleep, which would hide a lost wake-up.
        let wanted = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut waited: Vec<_> = fds.iter().map(|fd| wanted(fd.as_fd())).collect();
        assert_eq!(poll(&mut waited, 60_000u16), Ok(1), "packet {number} wakes nobody");
        to.end_sleep().unwrap();
        assert_eq!(pull(to), [bytes_of(number, 60)]);
    }
}

#[test]
fn a_peer_that_connects_before_the_sleep_ends_it() {
    let name = format!("memif:{}", socket("late"));
    let mut server = open(&name);
    let to = &mut server.queues[0];
    let events = |queue: &mut Queue| -> Vec<_> {
        let events = queue.begin_sleep();
        assert_eq!(events.limit, None, "the descriptors alone end the sleep");
        events.descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect()
    };
    let ready = |fds: &[OwnedFd]| {
        let wanted = |fd: &OwnedFd| poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], 0u16);
        fds.iter().any(|fd| wanted(fd) == Ok(1))
    };
    let before = events(to);
    assert!(!ready(&before), "nobody has connected");
    let client = open(&name);
    noticed(to, "connected to sluice");
    assert_eq!(to.sync_rx().unwrap(), 0, "nothing has come, but the rings are another's now");
    assert!(ready(&before), "the sleep would not end with the peer's packets");
    to.end_sleep().unwrap();
    drop(client);
    noticed(to, "disconnected");
    assert_eq!(to.sync_rx().unwrap(), 0);
    assert!(!ready(&events(to)), "a change that the queue has seen wakes it again");
}

#[test]
fn a_peer_that_only_a_sync_to_send_has_seen_ends_the_sleep() {
    let name = format!("memif:{}", socket("seen-by-tx"));
    let mut server = open(&name);
    let to = &mut server.queues[0];
    let first = open(&name);
    noticed(to, "connected to sluice");
    assert_eq!(to.sync_rx().unwrap(), 0);
    drop(first);
    noticed(to, "disconnected");
    let _second = open(&name);
    noticed(to, "connected to sluice");
    to.sync_tx().unwrap();
    assert_eq!(to.begin_sleep().limit, Some(Duration::ZERO), "a sync takes the peer's ring");
    assert_eq!(to.sync_rx().unwrap(), 0);
    assert!(!to.begin_sleep().descriptors.is_empty(), "and the next sleep waits for its packets");
}

#[test]
fn without_a_role_the_first_serves_and_the_second_connects() {
    let name = format!("memif:{}", socket("roles"));
    let mut first = open(&name);
    let mut second = open(&name);
    assert_eq!((first.method, second.method), ("server", "client"));
    noticed(&mut first.queues[0], "connected to sluice");
    noticed(&mut second.queues[0], "connected to sluice");
    exchange(&mut second.queues[0], &mut first.queues[0], 10, Wait::Spin);

    let refused =
        Port::open(&format!("{name}?role=server").parse().unwrap(), &OpenOptions::default());
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Runtime);
    let said = refused.to_string();
    assert!(said.contains("is served already by") && said.contains("role=client"), "{said}");

    let mut third = open(&name);
    noticed(&mut third.queues[0], "already connected");
    drop(second);
    noticed(&mut first.queues[0], "disconnected: the port was closed; waiting");
    noticed(&mut third.queues[0], "connected to sluice");
    exchange(&mut first.queues[0], &mut third.queues[0], 10, Wait::Spin);
}

#[test]
fn each_queue_has_rings_of_its_own_and_the_fewer_count() {
    let (mut server, mut client) = both("queues", "&queues=4", "&queues=3");
    let notice = noticed(&mut server.queues[0], "connected to");
    assert!(notice.ends_with("it has 3 of 4 queues"), "{notice}");
    for number in 0..3 {
        exchange(&mut client.queues[number], &mut server.queues[number], 100, Wait::Spin);
        exchange(&mut server.queues[number], &mut client.queues[number], 100, Wait::Spin);
    }
    assert!(push(&mut server.queues[3], b"nobody has this queue"));
    assert_eq!(server.queues[3].stats().unwrap().sent, 0);
}

#[test]
fn what_does_not_fit_the_other_end_is_refused_with_the_reason() {
    for (name, server, client, reason) in [
        ("id", "&id=7", "&id=8", "interface id 8 is not here, 7 is"),
        ("secret", "&secret=abc", "", "a secret is required"),
        ("other", "&secret=abc", "&secret=abd", "another secret"),
    ] {
        let (mut server, mut client) = both(name, server, client);
        noticed(&mut server.queues[0], reason);
        noticed(&mut client.queues[0], &format!("the peer refuses: {reason}"));
    }
    let (mut server, _client) = both("same", "&secret=abc&id=7", "&secret=abc&id=7");
    noticed(&mut server.queues[0], "connected to");
}

#[test]
fn packets_swap_between_memif_ports_of_one_pool() {
    let pool = Pool::new(PoolConfig { buffers: 8192, ..PoolConfig::default() }).unwrap();
    let (from, to) = (socket("swap-from"), socket("swap-to"));
    let mut source = open(&format!("memif:{from}?role=server"));
    let mut sink = open(&format!("memif:{to}?role=server"));
    let mut middle = [from, to].map(|socket| {
        let name = format!("memif:{socket}?role=client");
        open_with(&name, &in_pool(&pool)).queues.remove(0)
    });
    let (mut sent, mut received, mut swapped) = (0, 0, 0);
    until("all packets", || {
        while sent < 5000 && push(&mut source.queues[0], &bytes_of(sent, 60 + sent % 1400)) {
            sent += 1;
        }
        source.queues[0].sync_tx().unwrap();
        let [left, right] = &mut middle;
        left.sync_rx().unwrap();
        let moved = forward(left.rx_mut(), right.tx_mut());
        assert_eq!(moved.copied_packets, 0);
        swapped += moved.swapped_slots;
        right.sync_tx().unwrap();
        for packet in pull(&mut sink.queues[0]) {
            assert_eq!(packet, bytes_of(received, 60 + received % 1400));
            received += 1;
        }
        (received == 5000).then_some(())
    });
    assert_eq!(swapped, 5000);
    drop(middle);
    assert_eq!(pool.free_buffers(), 8192, "every buffer is back");
}

#[test]
fn ports_for_one_direction_refuse_the_other() {
    let name = format!("memif:{}", socket("one-way"));
    let options = |usage| OpenOptions { usage, ..OpenOptions::default() };
    let mut server = open_with(&name, &options(Directions::Receive));
    let mut client = open_with(&name, &options(Directions::Send));
    exchange(&mut client.queues[0], &mut server.queues[0], 2000, Wait::Spin);
    let error = server.queues[0].sync_tx().unwrap_err().to_string();
    assert!(error.contains("only receives"), "{error}");
    assert_eq!(client.queues[0].sync_rx().unwrap(), 0);
}

#[test]
fn packets_present_when_receiving_stops_still_come() {
    let (mut server, mut client) = both("close", "", "");
    let (server, client) = (&mut server.queues[0], &mut client.queues[0]);
    exchange(client, server, 1, Wait::Spin);
    (0..100).for_each(|number| assert!(push(client, &bytes_of(number, 60))));
    assert!(!server.is_finished());
    server.stop_rx().unwrap();
    assert!(push(client, b"too late"));
    let mut came = 0;
    until("the end", || {
        came += pull(server).len();
        server.is_finished().then_some(())
    });
    assert_eq!(came, 100);
    drop(client.close_tx_within(Duration::ZERO));
    assert_eq!(client.stats().unwrap().sent_or_lost, 1, "not taken");
}
