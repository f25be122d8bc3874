//! Ports of a lab's right host: frames for them, what came, and processes that hold one.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use sluicegate::link::Lab;
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::Meta;

use super::{lines, right0, rings};

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn open(lab: &Lab, name: &str) -> sluicegate::Result<Port> {
    let options = OpenOptions { netns: Some(lab.netns("right")), ..OpenOptions::default() };
    Port::open(&name.parse()?, &options)
}

/// A frame of the experimental ethertype 0x88b5, its number and kind behind the header.
pub fn frame(number: u32, kind: u8, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.push(kind);
    let pattern = (0u32..).map(|i| (i.wrapping_mul(37) ^ number) as u8);
    frame.extend(pattern.take(bytes - frame.len()));
    frame
}

/// Sends frames out of left0.
pub fn send(lab: &Lab, frames: &[Vec<u8>]) {
    send_by(lab, "packet:left0?slots=256", frames);
}

/// Sends frames by a port of left.
pub fn send_by(lab: &Lab, name: &str, frames: &[Vec<u8>]) {
    let options = OpenOptions {
        usage: Directions::Send,
        netns: Some(lab.netns("left")),
        ..OpenOptions::default()
    };
    let mut port = Port::open(&name.parse().unwrap(), &options).unwrap();
    let queue = &mut port.queues[0];
    dealt_with(lab, frames.len() as u64, || {
        rings::push(queue, frames, PATIENCE);
        queue.close_tx().unwrap();
        assert_eq!(queue.stats().unwrap().sent, frames.len() as u64);
    });
}

/// Sends packets to right0 and waits until it has received `packets`: its CPU may be busy.
pub fn dealt_with(lab: &Lab, packets: u64, send: impl FnOnce()) {
    let received = || right0(lab).stats.rx_packets;
    let all = received() + packets;
    send();
    let deadline = Instant::now() + PATIENCE;
    while received() < all {
        assert!(Instant::now() < deadline, "{} of {all} have come", received());
        std::thread::yield_now();
    }
    softirqs_have_ended();
}

/// Waits until what the kernel's softirqs are at has been done: a veth counts the packets of a poll before
/// the stack has the last of them (veth_poll, drivers/net/veth.c). A packet socket ends when nobody in one
/// can be at it any more (synchronize_net in packet_release, net/packet/af_packet.c).
fn softirqs_have_ended() {
    let flags = SockFlag::SOCK_CLOEXEC;
    drop(socket(AddressFamily::Packet, SockType::Raw, flags, None).unwrap());
}

/// Takes the packets that have come, and releases them.
pub fn take(queue: &mut Queue) -> Vec<(Meta, Vec<u8>)> {
    queue.sync_rx().unwrap();
    let got = queue.rx().packets().map(|p| (*p.meta(), p.head().to_vec())).collect();
    let slots = queue.rx().available();
    queue.rx_mut().release(slots);
    got
}

/// Stops receiving and takes all that came.
pub fn drain(queue: &mut Queue) -> Vec<(Meta, Vec<u8>)> {
    let mut got = Vec::new();
    queue.stop_rx().unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let more = take(queue);
        if more.is_empty() && queue.is_finished() {
            return got;
        }
        got.extend(more);
        assert!(Instant::now() < deadline, "it does not end");
    }
}

/// Receives `n` of the tests' frames.
pub fn receive(queue: &mut Queue, n: usize) -> Vec<(Meta, Vec<u8>)> {
    rings::collect(std::slice::from_mut(queue), n, PATIENCE, is_ours)
}

/// The place of the queue that some of our frames have come to, which stay there.
pub fn whose(queues: &mut [Queue]) -> usize {
    let deadline = Instant::now() + PATIENCE;
    let has_some = |queue: &mut Queue| {
        queue.sync_rx().unwrap();
        queue.rx().packets().any(|packet| is_ours(packet.head()))
    };
    loop {
        if let Some(at) = queues.iter_mut().position(has_some) {
            return at;
        }
        assert!(Instant::now() < deadline, "nothing has come");
    }
}

pub fn is_ours(bytes: &[u8]) -> bool {
    bytes[12..14] == [0x88, 0xb5]
}

pub fn bytes_of(got: Vec<(Meta, Vec<u8>)>) -> Vec<Vec<u8>> {
    got.into_iter().map(|(_, bytes)| bytes).collect()
}

/// Has this thread run on one CPU.
pub fn pin(cpu: usize) {
    use nix::sched::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    set.set(cpu).unwrap();
    // With one CPU only, all is well too.
    let _ = sched_setaffinity(nix::unistd::Pid::from_raw(0), &set);
}

/// The namespace and the name of the port that a child of a test opens, and holds.
pub const TO_HOLD: &str = "SLUICE_TEST_PORT_TO_HOLD";

/// A process that has a port, or a stage, and does nothing with it.
pub struct Holder(std::process::Child);

impl Holder {
    /// Starts one, and waits until it has the port.
    pub fn of(lab: &Lab, name: &str) -> Self {
        let wish = format!("{} {name}", lab.netns("right"));
        Self::running("wire::holds_a_port_for_another_test", TO_HOLD, &wish)
    }

    /// Runs a test with a variable in a process of its own, and waits until it prints "opened".
    pub fn running(test: &str, variable: &str, value: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(variable, value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let holder = Self(child);
        lines::until(holder.0.id(), stdout, "opened");
        holder
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(mut self) {
        // SIGKILL.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn holds_a_port_for_another_test() {
    let Ok(wish) = std::env::var(TO_HOLD) else { return };
    let (netns, name) = wish.split_once(' ').unwrap();
    let options = OpenOptions { netns: Some(netns.into()), ..OpenOptions::default() };
    let port = Port::open(&name.parse().unwrap(), &options);
    let _port = port.unwrap_or_else(|error| panic!("{error}"));
    println!("\nopened");
    std::thread::sleep(2 * PATIENCE);
}
