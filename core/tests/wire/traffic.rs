//! Packets that are sent and looked for.

use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use sluicegate::Error;
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::Wait;

use crate::hosts::{PATIENCE, Wire};
use crate::{program, rings};

/// UDP to port 9 of the right host, by Ethernet's broadcast address: nobody answers. The payload
/// is the number; each flow has an address and a port of its own.
pub fn frames(n: u32, flows: u32) -> Vec<Vec<u8>> {
    let frame = |number: u32| {
        let builder = PacketBuilder::ethernet2([2, 0, 198, 18, 0, 1], [0xff; 6])
            .ipv4([198, 18, 1, (number % flows) as u8], [198, 18, 0, 2], 64)
            .udp(10_000 + (number % flows) as u16, 9);
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(18 + (number as usize * 37) % 1400, number as u8);
        let mut frame = Vec::new();
        builder.write(&mut frame, &payload).unwrap();
        frame
    };
    (0..n).map(frame).collect()
}

/// Opens a port of a host. A port with a program waits until that of the port before is removed: it may
/// have another mode.
pub fn open(wire: &Wire, host: &str, name: &str, usage: Directions) -> sluicegate::Result<Port> {
    if name.starts_with("xdp:") || name.starts_with("mirror:") {
        program::wait_until_removed(&wire.netns(host), &format!("{host}0"));
    }
    let options = OpenOptions { usage, netns: Some(wire.netns(host)), ..OpenOptions::default() };
    Port::open(&name.parse()?, &options)
}

/// Opens a port of the right host to receive, or prints why it is refused.
pub fn open_if_possible(wire: &Wire, name: &str) -> Option<Port> {
    match open(wire, "right", name, Directions::Receive) {
        Ok(port) => Some(port),
        Err(error) => {
            left_out(wire, name, &error);
            None
        }
    }
}

/// Prints which port was refused; fails if it must not be.
pub fn left_out(wire: &Wire, name: &str, error: &Error) {
    assert!(may_be_refused(wire, name, error), "{name}: {error}");
    println!("left out: {name}: {error}");
}

/// Returns true if a port may be refused: in a lab only in zero-copy mode, elsewhere in each mode that
/// needs the driver. Linux itself provides packet sockets and skb mode, which is the least that a port
/// without a mode gets; sockets take packets of several buffers since 6.6.
pub fn may_be_refused(wire: &Wire, name: &str, error: &Error) -> bool {
    if wire.is_lab() {
        return name.contains("zero-copy");
    }
    let by_driver = name.contains("mode=") && !name.contains("mode=skb");
    by_driver || error.to_string().contains("need Linux 6.6")
}

/// Puts frames into a queue and waits until they are sent.
pub fn push(queue: &mut Queue, frames: &[Vec<u8>]) {
    rings::push(queue, frames, PATIENCE);
    queue.close_tx().unwrap();
}

/// Sends frames out of left0 by a packet socket.
pub fn send(wire: &Wire, frames: &[Vec<u8>]) {
    wire.wait_for_link();
    let mut port = open(wire, "left", "packet:left0?slots=256", Directions::Send).unwrap();
    push(&mut port.queues[0], frames);
    assert_eq!(port.queues[0].stats().unwrap().sent, frames.len() as u64);
}

/// Receives `n` of the tests' frames, or fewer by the timeout; each with the number of its queue.
pub fn receive(queues: &mut [Queue], n: usize) -> Vec<(u32, Vec<u8>)> {
    let mut got = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while got.len() < n && Instant::now() < deadline {
        for queue in &mut *queues {
            if queue.sync_rx().unwrap() == 0 {
                queue.wait_rx(Wait::Sleep, Duration::from_millis(5)).unwrap();
            }
            let number = queue.number();
            let ours = queue.rx().packets().map(|it| it.head().to_vec()).filter(|it| is_ours(it));
            got.extend(ours.map(|bytes| (number, bytes)));
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
    }
    got
}

/// UDP to port 9 over IPv4.
fn is_ours(bytes: &[u8]) -> bool {
    bytes.len() > 42 && bytes[12..14] == [8, 0] && bytes[23] == 17 && bytes[36..38] == [0, 9]
}

/// How many of the frames that were sent are among those that came, each once and none besides.
pub fn found(got: &[(u32, Vec<u8>)], sent: &[Vec<u8>]) -> usize {
    let mut got: Vec<&Vec<u8>> = got.iter().map(|(_, bytes)| bytes).collect();
    got.sort();
    let all = got.len();
    got.dedup();
    assert_eq!(got.len(), all, "none comes twice");
    for bytes in got {
        let number = u32::from_be_bytes(bytes[42..46].try_into().unwrap()) as usize;
        let (here, there) = (bytes.len(), sent[number].len());
        assert!(*bytes == sent[number], "frame {number}: {here} bytes of {there}");
    }
    all
}
