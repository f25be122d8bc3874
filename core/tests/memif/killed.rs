//! Peers that are killed, without a chance to say anything, and start again: what arrives is whole and
//! in order, and what is missing is named.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sluicegate::port::Queue;
use sluicegate::ring::{Meta, Packet, Wait};

use super::{LIMIT, open, pull, push, socket, until};

/// The task of a process that will be killed, the socket, and the file that it records its work in.
const TASK: &str = "SLUICE_TEST_MEMIF_TASK";
/// How often a peer is killed, and how many frames go before, each time: ten million in all, where
/// checking each byte of them does not take minutes.
const KILLS: u64 = if cfg!(debug_assertions) { 3 } else { 10 };
const FRAMES: u64 = if cfg!(debug_assertions) { 2000 } else { 1_000_000 };
/// Packets that a peer's slots hold at most.
const SLOTS: u64 = 512;
/// Of one piece and of several.
const LENGTHS: [usize; 9] = [60, 61, 590, 1514, 2111, 2112, 2113, 4224, 9000];

/// The frame of a number, from one of several senders.
fn frame(sender: u64, number: u64) -> Vec<u8> {
    let length = LENGTHS[number as usize % LENGTHS.len()];
    let mut bytes: Vec<u8> = (0..length).map(|i| (number as usize * 31 + i) as u8).collect();
    bytes[..8].copy_from_slice(&sender.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Checks every byte of a frame. Returns its sender and its number.
fn read(bytes: &[u8]) -> (u64, u64) {
    let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (sender, number) = (field(0), field(8));
    assert!(frame(sender, number) == bytes, "frame {number} of {sender} is not what was sent");
    (sender, number)
}

/// The numbers that a killed process recorded, 8 bytes each.
fn written(path: &Path) -> Vec<u64> {
    // The process creates the file when it starts.
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect()
}

/// How many numbers that are, which is asked often.
fn count(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len() / 8)
}

/// Sends one's frames, and writes down after each sync how many were handed over.
fn send(queue: &mut Queue, sender: u64, to: &mut File) {
    for number in 0.. {
        let bytes = frame(sender, number);
        while !queue.tx_mut().push(&Packet::new(&Meta::default(), &bytes)) {
            match queue.sync_tx().unwrap() {
                0 => std::thread::yield_now(),
                _ => to.write_all(&queue.stats().unwrap().sent.to_le_bytes()).unwrap(),
            }
        }
    }
}

/// Writes down each frame that comes, and gives it back then.
fn receive(queue: &mut Queue, to: &mut File) {
    loop {
        queue.wait_rx(Wait::default(), Duration::from_millis(1)).unwrap();
        queue.sync_rx().unwrap();
        let numbers = queue.rx().packets().flat_map(|packet| {
            let mut scratch = Vec::new();
            read(packet.contiguous(&mut scratch)).1.to_le_bytes()
        });
        let numbers: Vec<u8> = numbers.collect();
        to.write_all(&numbers).unwrap();
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
}

/// The process that is to be killed; it ends by itself if nobody does.
#[test]
fn peer() {
    let Ok(task) = std::env::var(TASK) else { return };
    let [what, sender, port, path] = task.split('|').collect::<Vec<_>>()[..] else { panic!() };
    std::thread::spawn(|| {
        std::thread::sleep(LIMIT);
        std::process::exit(1);
    });
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    let mut port = open(port);
    match what {
        "send" => send(&mut port.queues[0], sender.parse().unwrap(), &mut file),
        _ => receive(&mut port.queues[0], &mut file),
    }
}

/// Starts such a process.
fn start(what: &str, sender: u64, port: &str, path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::peer"]).stdout(Stdio::null());
    command.env(TASK, format!("{what}|{sender}|{port}|{}", path.display()));
    command.spawn().unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn packets_in_the_rings_of_killed_receivers_are_counted() {
    for (sends, receives) in [("server", "client"), ("client", "server")] {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("memif:{}", socket(&format!("killed-receiver-{receives}")));
        let mut port = open(&format!("{name}?role={sends}"));
        let queue = &mut port.queues[0];
        let mut sent = 0;
        let mut more = |queue: &mut Queue| {
            sent += u64::from(push(queue, &frame(0, sent)));
            sent
        };
        let mut children = Vec::new();
        for turn in 0..KILLS {
            let path = folder.path().join(turn.to_string());
            let child = start("receive", 0, &format!("{name}?role={receives}"), &path);
            until("frames at the other end", || {
                more(queue);
                (count(&path) >= FRAMES).then_some(())
            });
            kill(child);
            children.push(path);
        }
        // The last one takes all there is.
        children.push(folder.path().join("last"));
        let child =
            start("receive", 0, &format!("{name}?role={receives}"), children.last().unwrap());
        let end = more(queue) + FRAMES;
        until("the last frames", || (more(queue) >= end).then_some(()));
        queue.close_tx_within(LIMIT).unwrap();
        let stats = queue.stats().unwrap();
        // A receiver hands entries back as it copies the packets, before it writes anything down.
        let (last, unwritten) = (sent - 1, KILLS * SLOTS);
        until("the last frame", || {
            (written(&children[KILLS as usize]).last()? == &last).then_some(())
        });
        kill(child);
        assert_eq!(stats.sent + stats.sent_or_lost, sent, "{stats:?}");
        let (mut taken, mut next) = (0, 0);
        for numbers in children.iter().map(|path| written(path)) {
            // Between two of them some may be missing, with one none.
            assert!(numbers[0] >= next, "{} again", numbers[0]);
            assert!((numbers[0]..).zip(&numbers).all(|(due, &number)| due == number));
            next = numbers[0] + numbers.len() as u64;
            taken += numbers.len() as u64;
        }
        assert_eq!(next, sent, "the last frame has come");
        assert!(taken + unwritten >= stats.sent, "{taken} written down, {stats:?}");
    }
}

#[test]
fn what_killed_senders_had_handed_over_arrives() {
    for (sends, receives) in [("server", "client"), ("client", "server")] {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("memif:{}", socket(&format!("killed-sender-{sends}")));
        let mut port = open(&format!("{name}?role={receives}"));
        let queue = &mut port.queues[0];
        // Of each sender, how many frames have come.
        let mut came = Vec::new();
        let take = |queue: &mut Queue, came: &mut Vec<u64>| {
            for bytes in pull(queue) {
                let (sender, number) = read(&bytes);
                came.resize(came.len().max(sender as usize + 1), 0);
                assert_eq!((sender as usize + 1, number), (came.len(), came[sender as usize]));
                came[sender as usize] += 1;
            }
        };
        for sender in 0..KILLS {
            let path = folder.path().join(sender.to_string());
            let child = start("send", sender, &format!("{name}?role={sends}"), &path);
            until("frames of the sender", || {
                take(queue, &mut came);
                (came.get(sender as usize).is_some_and(|&n| n >= FRAMES)).then_some(())
            });
            kill(child);
            let handed_over = *written(&path).last().expect("more than its ring holds");
            until("what it had handed over", || {
                take(queue, &mut came);
                (came[sender as usize] >= handed_over).then_some(())
            });
        }
        assert_eq!(queue.stats().unwrap().received, came.iter().sum::<u64>());
    }
}
