//! `memif:` ports against each other, and against peers that break the protocol. Needs no privilege.

mod by_hand;
#[path = "../child/limit.rs"]
mod child;
mod exchange;
mod files;
mod hostile;
mod interop;
mod killed;
mod peers;

use std::time::{Duration, Instant};

use sluicegate::memory::Pool;
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, Packet, Wait};

/// A limit that only a broken program reaches, however loaded the machine is.
const LIMIT: Duration = Duration::from_secs(60);

/// A socket's name that no other test has.
fn socket(name: &str) -> String {
    format!("@sluice-test-{}-{name}", std::process::id())
}

fn open(name: &str) -> Port {
    open_with(name, &OpenOptions { usage: Directions::Both, ..OpenOptions::default() })
}

fn open_with(name: &str, options: &OpenOptions) -> Port {
    Port::open(&name.parse().unwrap(), options).unwrap()
}

fn in_pool(pool: &std::sync::Arc<Pool>) -> OpenOptions {
    OpenOptions { usage: Directions::Both, pool: Some(pool.clone()), ..OpenOptions::default() }
}

/// Both ends of a new socket: server and client, with options.
fn both(name: &str, server: &str, client: &str) -> (Port, Port) {
    let socket = socket(name);
    let server = open(&format!("memif:{socket}?role=server{server}"));
    let client = open(&format!("memif:{socket}?role=client{client}"));
    (server, client)
}

/// Does something again and again until it gives a result.
fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::yield_now();
    }
}

/// Waits for a notice with a text in it.
fn noticed(queue: &mut Queue, part: &str) -> String {
    until(part, || queue.take_notice().filter(|notice| notice.contains(part)))
}

/// A packet's bytes: every place tells which packet it is of, and which place it is.
fn bytes_of(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (number.wrapping_mul(31) + i) as u8).collect()
}

/// Sends packets, from as many as there is room for on.
fn push(queue: &mut Queue, bytes: &[u8]) -> bool {
    let pushed = queue.tx_mut().push(&Packet::new(&Meta::default(), bytes));
    queue.sync_tx().unwrap();
    pushed
}

/// Takes the packets that have come, and releases their slots.
fn pull(queue: &mut Queue) -> Vec<Vec<u8>> {
    queue.sync_rx().unwrap();
    let packets = queue.rx().packets();
    let packets: Vec<Vec<u8>> = packets
        .map(|packet| {
            let mut scratch = Vec::new();
            let bytes = packet.contiguous(&mut scratch).to_vec();
            assert_eq!(packet.meta().wire_bytes as usize, bytes.len());
            bytes
        })
        .collect();
    let slots = queue.rx().available();
    queue.rx_mut().release(slots);
    packets
}

/// Waits until something comes, and takes it.
fn pull_some(queue: &mut Queue, wait: Wait) -> Vec<Vec<u8>> {
    until("packets", || {
        queue.wait_rx(wait, Duration::from_secs(1)).unwrap();
        Some(pull(queue)).filter(|packets| !packets.is_empty())
    })
}
