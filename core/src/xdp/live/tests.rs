//! The ring between a writer and the program: indices that wrap, and invalid contents of the shared
//! memory.
#![allow(unsafe_code)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::ring::{LiveCounts, LiveMemory, LiveWriter, at, load, slot};
use super::ring_program::Access;
use super::*;
use crate::filter::ebpf::{Assembler, Reg, xdp_action};
use crate::link::{self, Lab, netns};
use crate::port::{OpenOptions, Port};
use crate::tests;
use sluicegate_base::ring::{Meta, Ordering, Packet};

const PATIENCE: Duration = Duration::from_secs(60);
const CONFIG: LiveRingConfig = LiveRingConfig { slots: 64, max_bytes: 1518 };

/// A lab with a receiver on the right side and a sender on the left.
struct Bench {
    lab: Lab,
    receiver: Port,
    sender: LiveSender,
}

impl Bench {
    fn new(start: u32) -> Option<Self> {
        let lab = tests::lab()?;
        let receiver = receiver(&lab);
        let left = lab.netns("left");
        let interface = link::interface(Some(&left), "left0").unwrap();
        let open = || {
            let target = Arc::new(RedirectTarget::by(&interface)?);
            let config = LiveThreadConfig { target, cpu: None, first_runs: 1 << 13, waits: false };
            LiveSender::start(start, CONFIG, &config)
        };
        let sender = match netns::run_in(Some(&left), open) {
            Err(error) if error.to_string().contains("Linux 5.18") => {
                println!("skipped: {error}");
                return None;
            }
            sender => sender.unwrap(),
        };
        Some(Self { lab, receiver, sender })
    }

    /// Publishes frames with these numbers.
    fn send(&mut self, numbers: impl IntoIterator<Item = u8>) {
        write(&mut self.sender.writer, numbers);
        self.sender.publish();
    }

    fn receive(&mut self, n: usize) -> Vec<u8> {
        receive(&mut self.receiver, n)
    }

    /// Waits until the program has counted this many packets.
    fn wait_for(&self, wanted: LiveCounts) {
        let deadline = Instant::now() + PATIENCE;
        while self.sender.memory.counts() != wanted {
            assert!(Instant::now() < deadline, "{:?}, not {wanted:?}", self.sender.memory.counts());
        }
    }

    fn memory(&self) -> &LiveMemory {
        &self.sender.memory
    }
}

/// Opens a receiver on the right side.
fn receiver(lab: &Lab) -> Port {
    let options = OpenOptions { netns: Some(lab.netns("right")), ..OpenOptions::default() };
    Port::open(&"packet:right0".parse().unwrap(), &options).unwrap()
}

/// Receives `n` frames or more, and returns their numbers.
fn receive(receiver: &mut Port, n: usize) -> Vec<u8> {
    let queue = &mut receiver.queues[0];
    let (mut got, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while got.len() < n && Instant::now() < deadline {
        queue.sync_rx().unwrap();
        let ours = queue.rx().packets().filter(|packet| packet.head()[12..14] == [0x88, 0xb5]);
        got.extend(ours.map(|packet| {
            assert_eq!(packet.head(), frame(packet.head()[14]));
            packet.head()[14]
        }));
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    got
}

fn write(writer: &mut LiveWriter, numbers: impl IntoIterator<Item = u8>) {
    for number in numbers {
        assert!(writer.room(1) > 0, "no room for {number}");
        writer.write(&Packet::new(&Meta::default(), &frame(number)));
    }
}

fn hand_over(writer: &mut LiveWriter, numbers: impl IntoIterator<Item = u8>) {
    write(writer, numbers);
    writer.publish();
}

fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 12];
    frame.extend([0x88, 0xb5, number]);
    frame.resize(60 + usize::from(number), number);
    frame
}

/// Loads a program that drops frames of `bytes` bytes.
fn dropping(bytes: usize) -> LiveProgram {
    let mut asm = Assembler::new();
    asm.mov(Reg::R0, xdp_action::DROP);
    asm.exit();
    LiveProgram::load(c"sluice_test", &asm.finish().unwrap(), vec![0; bytes]).unwrap()
}

#[test]
fn an_invalid_frame_is_not_reported_as_a_kernel_without_live_frames() {
    if !tests::is_root() {
        return;
    }
    if let Err(error) = dropping(60).run(1) {
        assert!(error.to_string().contains("Linux 5.18"), "{error}");
        return println!("skipped: {error}");
    }
    for bytes in [13, 1 << 16] {
        let error = dropping(bytes).run(1).unwrap_err();
        assert!(error.to_string().contains("an Ethernet header at least"), "{bytes}: {error}");
        assert_eq!(error.errno(), Some(libc::EINVAL), "{bytes}");
    }
}

/// A run that never ends would block everything that waits for RCU readers.
#[test]
fn a_run_ends_by_itself_while_more_is_to_be_sent() {
    if !tests::is_root() {
        return;
    }
    let program = dropping(60);
    // The program drops all frames, so nothing is sent.
    let target = Arc::new(RedirectTarget::by(&link::interface(None, "lo").unwrap()).unwrap());
    let asked = Arc::<AtomicU64>::default();
    let asked_there = Arc::clone(&asked);
    let next = move || {
        asked_there.fetch_add(1, Ordering::Relaxed);
        ThreadAction::Run(u64::MAX)
    };
    let config = LiveThreadConfig { target, cpu: None, first_runs: 1 << 10, waits: false };
    let mut running = LiveThread::start(program, &config, next).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while asked.load(Ordering::Relaxed) < 50 && !running.is_finished() {
        assert!(Instant::now() < deadline, "the run goes on: {asked:?} before");
        std::thread::sleep(Duration::from_millis(1));
    }
    match running.end() {
        Err(error) if error.to_string().contains("Linux 5.18") => println!("skipped: {error}"),
        ended => ended.unwrap(),
    }
}

#[test]
fn a_removal_right_before_the_end_is_reported() {
    let Some(mut bench) = Bench::new(0) else { return };
    // The thread sleeps, so nothing but its end makes it check the interface.
    let mut ip =
        bench.lab.spawn("left", Command::new("ip").args(["link", "del", "left0"])).unwrap();
    assert!(ip.wait().unwrap().success());
    let error = bench.sender.thread.end().unwrap_err();
    assert!(matches!(error, Error::Removed { .. }), "{error}");
}

#[test]
fn a_forked_child_ends_without_the_thread_of_its_parent() {
    let Some(mut bench) = Bench::new(0) else { return };
    // SAFETY: the child calls only `end` and _exit.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let failed = bench.sender.thread.end().is_err() && bench.sender.thread.end().is_ok();
            // SAFETY: ends the process.
            unsafe { nix::libc::_exit(i32::from(!failed)) }
        }
    };
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap() {
            WaitStatus::StillAlive if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            WaitStatus::StillAlive => {
                kill(child, Signal::SIGKILL).unwrap();
                waitpid(child, None).unwrap();
                panic!("the child waits for the thread");
            }
            ended => break ended,
        }
    };
    assert_eq!(ended, WaitStatus::Exited(child, 0));
    bench.send(0..10);
    assert_eq!(bench.receive(10), (0..10).collect::<Vec<_>>(), "the parent sends on");
}

#[test]
fn indices_wrap_at_the_end_of_their_32_bits() {
    let Some(mut bench) = Bench::new(u32::MAX - 100) else { return };
    for round in 0..8 {
        let numbers = round * 30..round * 30 + 30;
        bench.send(numbers.clone());
        assert_eq!(bench.receive(30), numbers.collect::<Vec<_>>());
    }
    bench.wait_for(LiveCounts { sent: 240, refused: 0 });
    assert!(bench.memory().index(at::OWN_HEAD).load(Ordering::Relaxed) < 240, "it did wrap");
}

#[test]
fn a_length_that_no_packet_has_is_refused_and_the_next_packet_sent() {
    let Some(mut bench) = Bench::new(0) else { return };
    let wrong = [0, 13, 1519, 2048, 4096, 65_535, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    for (i, &length) in wrong.iter().enumerate() {
        let number = i as u8;
        let before = frame(number);
        let index = bench.memory().index(at::TAIL).load(Ordering::Relaxed);
        bench.sender.writer.write(&Packet::new(&Meta::default(), &before));
        let place = bench.memory().slot(index, slot::LENGTH as usize);
        // SAFETY: the length field of a slot that is not published.
        unsafe { place.cast::<u32>().write(length) };
        bench.sender.publish();
        bench.send([100 + number]);
        assert_eq!(bench.receive(1), [100 + number], "{length}");
    }
    bench.wait_for(LiveCounts { sent: 9, refused: 9 });
}

#[test]
fn an_invalid_tail_is_ignored() {
    for access in [Access::Direct, Access::Calls] {
        let Some(lab) = tests::lab() else { return };
        let mut receiver = receiver(&lab);
        let memory = LiveMemory::new(CONFIG, 7, "a test").unwrap();
        let left = lab.netns("left");
        let interface = link::interface(Some(&left), "left0").unwrap();
        let load = || load(&memory, &RedirectTarget::by(&interface)?, access);
        let program = netns::run_in(Some(&left), load).unwrap();
        let mut writer = LiveWriter::new(&memory, 7);
        // Without a thread: the test runs the program itself.
        let run = |times| program.run(times).map(|ended| assert_eq!(ended, RunEnd::Done));
        hand_over(&mut writer, 0..10);
        match run(10) {
            Err(error) if error.to_string().contains("Linux 5.18") => {
                return println!("skipped: {error}");
            }
            ran => ran.unwrap(),
        }
        assert_eq!(receive(&mut receiver, 10), (0..10).collect::<Vec<_>>());
        let tail = memory.index(at::TAIL);
        for (round, far) in [65, 1000, 1 << 31, u32::MAX].into_iter().enumerate() {
            let right = tail.load(Ordering::Relaxed);
            tail.store(right.wrapping_add(far), Ordering::Relaxed);
            assert_eq!((memory.waiting(), memory.longest_waiting()), (0, None), "{far}");
            run(3).unwrap();
            assert_eq!(memory.count(at::FAULTS), 3 * (round as u64 + 1), "{far}");
            assert_eq!(memory.index(at::OWN_TAIL).load(Ordering::Relaxed), right, "{far}");
            hand_over(&mut writer, [10 + round as u8]);
            run(1).unwrap();
            assert_eq!(receive(&mut receiver, 1), [10 + round as u8], "{far}: that puts it right");
        }
        assert_eq!(memory.counts(), LiveCounts { sent: 14, refused: 0 }, "{access:?}");
    }
}

#[test]
fn an_invalid_head_makes_no_room() {
    if !tests::is_root() {
        return;
    }
    let memory = LiveMemory::new(CONFIG, 5, "a test").unwrap();
    let mut writer = LiveWriter::new(&memory, 5);
    let frame = frame(0);
    for _ in 0..64 {
        assert!(writer.room(1) == 1);
        writer.write(&Packet::new(&Meta::default(), &frame));
    }
    writer.publish();
    assert_eq!(writer.room(1), 0, "full");
    for head in [4, 70, 1 << 31, u32::MAX] {
        memory.index(at::HEAD).store(head, Ordering::Relaxed);
        assert_eq!(writer.room(64), 0, "{head}");
    }
    memory.index(at::HEAD).store(8, Ordering::Relaxed);
    assert_eq!(writer.room(64), 3);
    assert_eq!(writer.waiting(), 61);
}
