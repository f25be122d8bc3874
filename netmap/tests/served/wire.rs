//! Tests over a lab's interfaces: a program's changes of its own ring do not affect the other queue of its
//! port, another program, or the host.

use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use sluicegate::link::{Lab, Shape};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, Packet};
use sluicegate_netmap::{Region, Served};

use crate::corruptions::rows;
use crate::program::{Memory, Ring, echo, field};
use crate::roles::play;
use crate::scratch::lab_of;
use crate::{BUFFERS, child, served};

/// The time that a test waits for expected packets.
const PATIENCE: Duration = Duration::from_secs(60);
/// Flows sent to the program, enough for both queues to get some.
const FLOWS: u16 = 40;
/// Packets that the other program returns.
const ECHOED: u32 = 4000;

/// Makes a broadcast UDP frame, which no host answers.
fn frame(from: u16, to: u16) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 198, 18, 0, 1], [0xff; 6])
        .ipv4([198, 18, 0, 1], [198, 18, 0, 255], 64)
        .udp(from, to);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[0; 100]).unwrap();
    frame
}

fn options(lab: &Lab, host: &str, usage: Directions) -> OpenOptions {
    OpenOptions { usage, netns: Some(lab.netns(host)), ..OpenOptions::default() }
}

fn left(lab: &Lab, name: &str) -> Queue {
    let options = options(lab, "left", Directions::Both);
    Port::open(&name.parse().unwrap(), &options).unwrap().queues.remove(0)
}

/// Creates the program's region and its two queues.
fn program(lab: &Lab, name: &str) -> (Region, Vec<Served>) {
    served(name, &options(lab, "right", Directions::Both))
}

/// Background traffic: another program that echoes packets, and pings.
struct Others {
    pings: std::process::Child,
    program: std::process::Child,
    server: JoinHandle<u64>,
    counted: JoinHandle<u32>,
}

impl Others {
    fn start(lab: &Lab) -> Self {
        let mut ping = Command::new("ping");
        ping.args(["-q", "-c", "300", "-i", "0.01", "-W", "10", "198.18.0.2"]);
        let pings = lab.spawn("left", ping.stdout(Stdio::piped())).unwrap();
        let name = "packet:right0?filter=udp port 9001&tx_copies=off&slots=64";
        let (region, mut queues) = served(name, &options(lab, "right", Directions::Both));
        let mut queue = queues.remove(0);
        let program = play(&format!("echo {ECHOED}"), &region, &queue);
        let server = std::thread::spawn(move || {
            let end = Instant::now() + PATIENCE;
            while queue.stats().unwrap().sent < ECHOED.into() && Instant::now() < end {
                queue.sync_rx().unwrap();
                queue.sync_tx().unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
            queue.stats().unwrap().sent
        });
        let mut wire = left(lab, "packet:left0?filter=udp port 9001&tx_copies=off&slots=64");
        let counted = std::thread::spawn(move || {
            let (mut sent, mut back, end) = (0, 0, Instant::now() + PATIENCE);
            while back < ECHOED && Instant::now() < end {
                // Each portion fits all rings on the path.
                if sent == back {
                    while sent < back + 40 {
                        let bytes = frame(sent as u16, 9001);
                        assert!(wire.tx_mut().push(&Packet::new(&Meta::default(), &bytes)));
                        sent += 1;
                    }
                    wire.sync_tx().unwrap();
                }
                wire.sync_rx().unwrap();
                let slots = wire.rx().available();
                wire.rx_mut().release(slots);
                back += slots;
            }
            back
        });
        Self { pings, program, server, counted }
    }

    /// Asserts that all packets to the other program came back, and that all pings were answered.
    fn assert_whole(self) {
        assert_eq!(self.counted.join().unwrap(), ECHOED);
        assert_eq!(self.server.join().unwrap(), ECHOED.into());
        assert!(child::end(self.program).status.success());
        let pings = child::end(self.pings);
        let said = String::from_utf8_lossy(&pings.stdout).into_owned();
        assert!(pings.status.success() && said.contains(" 0% packet loss"), "{said}");
    }
}

/// Sends one packet of each flow, and syncs the queues until all have arrived. Returns the number in each
/// queue. If the first queue has ended, waits only for those of the second.
fn offer(
    wire: &mut Queue,
    queues: &mut [Served],
    memory: &Memory,
    of_second: Option<u32>,
) -> [u32; 2] {
    let before = available(queues, memory);
    for flow in 0..FLOWS {
        let bytes = frame(20_000 + flow, 9000);
        assert!(wire.tx_mut().push(&Packet::new(&Meta::default(), &bytes)));
    }
    wire.sync_tx().unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        // The first queue may have ended.
        let _ = queues[0].sync_rx();
        queues[1].sync_rx().unwrap();
        let [first, second] = available(queues, memory);
        let new = [first - before[0], second - before[1]];
        let all = new[0] + new[1] == FLOWS.into();
        let those = of_second.is_some_and(|all| new[1] >= all) && quiet(queues, memory);
        if all || those || Instant::now() > end {
            return new;
        }
    }
}

/// Returns true if the second queue receives nothing for a time much longer than the path's delay.
fn quiet(queues: &mut [Served], memory: &Memory) -> bool {
    let before = available(queues, memory);
    let end = Instant::now() + Duration::from_millis(50);
    while Instant::now() < end {
        queues[1].sync_rx().unwrap();
    }
    available(queues, memory) == before
}

fn available(queues: &[Served], memory: &Memory) -> [u32; 2] {
    [0, 1].map(|i| memory.ring(queues[i].rx_offset()).available())
}

/// Plays a program that returns parts of a packet that never ends: slots that it does not get again.
fn give_pieces(queue: &mut Served, tx: Ring<'_>) {
    for _ in 0..10 {
        tx.set_slot(tx.head(), field::LEN, 20u16);
        tx.set_slot(tx.head(), field::FLAGS, 0x20u16);
        tx.give(1);
    }
    assert_eq!(queue.sync_tx().unwrap(), 0);
}

fn every_corruption_ends_its_queue(name: &str) {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let mut wire = left(&lab, "packet:left0?filter=udp port 9000&tx_copies=off&slots=64");
    let others = Others::start(&lab);
    for role in ["corrupt-rx", "corrupt-tx"] {
        for (number, row) in rows().iter().enumerate() {
            let (region, mut queues) = program(&lab, name);
            let memory = Memory::map(region.fd(), region.bytes());
            let tx = memory.ring(queues[0].tx_offset());
            give_pieces(&mut queues[0], tx);
            let [first, second] = offer(&mut wire, &mut queues, &memory, None);
            assert_eq!(first + second, FLOWS.into(), "{name}: {}", row.sentence);
            let status = child::end(play(&format!("{role} {number}"), &region, &queues[0])).status;
            assert!(status.success(), "{}", row.sentence);
            let error = match role {
                "corrupt-rx" => queues[0].sync_rx(),
                _ => queues[0].sync_tx(),
            };
            let said = error.expect_err(row.sentence).to_string();
            assert!(said.contains(&row.says), "{name}: {}: {said}", row.sentence);
            assert!(said.contains("right0, queue 0"), "{said}");
            // The other queue still has the same flows.
            let [_, again] = offer(&mut wire, &mut queues, &memory, Some(second));
            assert_eq!(again, second, "{name}: {}", row.sentence);
            drop(queues);
            assert_eq!(region.free_buffers(), BUFFERS as usize, "{name}: {}", row.sentence);
        }
    }
    others.assert_whole();
}

#[test]
fn packet_by_blocks() {
    every_corruption_ends_its_queue(
        "packet:right0/0-1?filter=udp port 9000&tx_copies=off&slots=64",
    );
}

#[test]
fn packet_by_calls() {
    let name =
        "packet:right0/0-1?method=recvmmsg&filter=udp port 9000&tx_copies=off&slots=64&buffer=1M";
    every_corruption_ends_its_queue(name);
}

#[test]
fn xdp() {
    every_corruption_ends_its_queue("xdp:right0/0-1?filter=udp port 9000&slots=64&ring_size=512");
}

#[test]
fn a_port_that_makes_its_own_pool_is_served() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let name = "xdp:right0?action=drop";
    let (region, mut queues) = served(name, &options(&lab, "right", Directions::Receive));
    let memory = Memory::map(region.fd(), region.bytes());
    let tx = memory.ring(queues[0].tx_offset());
    assert_eq!(queues[0].sync_rx().unwrap(), 0, "it only counts");
    assert_eq!((tx.num_slots, tx.available()), (1, 0), "it does not send");
}

#[test]
fn a_program_that_writes_while_the_server_reads() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let mut wire = left(&lab, "packet:left0?filter=udp port 9000&tx_copies=off&slots=64");
    let others = Others::start(&lab);
    let mut ended = 0;
    for seed in 1..=12 {
        let name = match seed % 3 {
            0 => "packet:right0/0-1?filter=udp port 9000&tx_copies=off&slots=64",
            1 => "packet:right0/0-1?method=recvmmsg&filter=udp port 9000&slots=64&buffer=1M",
            _ => "xdp:right0/0-1?filter=udp port 9000&slots=64&ring_size=512",
        };
        let (region, mut queues) = program(&lab, name);
        let memory = Memory::map(region.fd(), region.bytes());
        let second = queues.remove(1);
        let (rx, tx) = (memory.ring(second.rx_offset()), memory.ring(second.tx_offset()));
        let mut queues = [queues.remove(0), second];
        let mut scribbler = play(&format!("scribble {seed}"), &region, &queues[0]);
        // The test waits for the first writer of invalid values.
        let time = if seed == 1 { PATIENCE } else { Duration::from_millis(500) };
        let end = Instant::now() + time;
        let mut result = Ok(());
        while result.is_ok() && Instant::now() < end {
            for flow in 0..FLOWS {
                let bytes = frame(20_000 + flow, 9000);
                wire.tx_mut().push(&Packet::new(&Meta::default(), &bytes));
            }
            wire.sync_tx().unwrap();
            result = queues[0].sync_rx().and_then(|_| queues[0].sync_tx()).map(|_| ());
            // The second queue has a correct program.
            queues[1].sync_rx().unwrap();
            echo(rx, tx);
            queues[1].sync_tx().unwrap();
        }
        if let Err(error) = &result {
            let corrupt = matches!(error, sluicegate::Error::Corrupt { .. });
            assert!(corrupt && seed % 2 == 1, "{name}, seed {seed}: {error}");
            ended += 1;
        }
        assert!(result.is_err() || seed != 1, "{name}: whatever it writes, it goes on");
        drop(queues);
        assert_eq!(region.free_buffers(), BUFFERS as usize, "{name}, seed {seed}");
        scribbler.kill().unwrap();
        child::end(scribbler);
    }
    println!("{ended} of 6 were ended");
    others.assert_whole();
}
