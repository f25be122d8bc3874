//! `tap:` ports on hosts of labs: what the host sends comes, what is sent the host receives, and
//! the device comes and goes as it was asked to.

#[path = "../child/limit.rs"]
mod child;
mod device;
mod passing;

use std::process::Command;
use std::time::{Duration, Instant};

use sluicegate::link::Lab;
use sluicegate::port::{OpenOptions, Port, Queue, Use};
use sluicegate::ring::{Meta, Packet, Wait};

/// The experimental ethertype, which nobody else speaks.
const OURS: [u8; 2] = [0x88, 0xb5];
/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A lab for one test, or the reason why there is none.
pub fn lab() -> Option<Lab> {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root; get it by sudo");
        return None;
    }
    Some(Lab::scratch().expect("a scratch lab"))
}

/// Opens a port on the host `right`.
pub fn open(lab: &Lab, name: &str, usage: Use) -> sluicegate::Result<Port> {
    let options = OpenOptions { usage, netns: Some(lab.netns("right")), ..OpenOptions::default() };
    Port::open(&name.parse()?, &options)
}

/// Runs a command on the host `right`; whether it succeeded.
pub fn run(lab: &Lab, command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    let child = lab.spawn("right", Command::new(words[0]).args(&words[1..])).unwrap();
    child::end(child).status.success()
}

/// A broadcast frame of our ethertype, with tags, a number and a pattern.
pub fn frame(number: u32, bytes: usize, tags: &[(u16, u16)]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(OURS);
    frame.extend(number.to_be_bytes());
    let fill = bytes.saturating_sub(frame.len());
    frame.extend((0..fill).map(|i| ((i as u32 * 31) ^ number) as u8));
    frame
}

/// Frames of many lengths, plain and tagged.
pub fn frames(longest: usize) -> Vec<Vec<u8>> {
    let kinds: &[&[(u16, u16)]] =
        &[&[], &[(0x8100, 0x2005)], &[(0x88a8, 0x0064), (0x8100, 0x0fff)]];
    let sizes = [60, 64, 590, 1514, 2047, 2048, 2049, 4096, 9014, 40_000, 65_000];
    let rows = sizes.iter().filter(|&&bytes| bytes <= longest);
    let rows = rows.flat_map(|&bytes| kinds.iter().map(move |tags| (bytes, tags)));
    (0..).zip(rows).map(|(i, (bytes, tags))| frame(i, bytes - 4 * tags.len(), tags)).collect()
}

/// Whether a frame is one of those, behind any tags.
pub fn is_ours(bytes: &[u8]) -> bool {
    let mut at = 12;
    while matches!(bytes.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8])) {
        at += 4;
    }
    bytes.get(at..at + 2) == Some(&OURS)
}

/// Sends frames, and waits until all have left.
pub fn send(queue: &mut Queue, frames: &[Vec<u8>]) {
    let deadline = Instant::now() + PATIENCE;
    for frame in frames {
        while !queue.tx_mut().push(&Packet::new(&Meta::default(), frame)) {
            queue.sync_tx().unwrap();
            assert!(Instant::now() < deadline, "the transmit ring stays full");
        }
    }
    queue.close_tx().unwrap();
}

/// Receives until `n` of our frames have come, over all queues.
pub fn receive(queues: &mut [Queue], n: usize) -> Vec<(Meta, Vec<u8>)> {
    let mut got = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let mut scratch = Vec::new();
    while got.len() < n && Instant::now() < deadline {
        for queue in &mut *queues {
            if queue.sync_rx().unwrap() == 0 {
                queue.wait_rx(Wait::default(), Duration::from_millis(5)).unwrap();
            }
            for packet in queue.rx().packets() {
                let bytes = packet.contiguous(&mut scratch);
                if is_ours(bytes) {
                    got.push((*packet.meta(), bytes.to_vec()));
                }
            }
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
        }
    }
    got
}
