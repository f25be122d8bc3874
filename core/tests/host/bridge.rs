//! A program between a host and its wire: a thread that forwards from each to the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluicegate::forward::forward;
use sluicegate::link::Lab;
use sluicegate::memory::{Pool, PoolConfig};
use sluicegate::port::{Directions, HostFlows, OpenOptions, Port, Queue, wait_any};
use sluicegate::ring::Wait;

use super::program;

const PATIENCE: Duration = Duration::from_secs(60);

/// Packets that have passed so far.
#[derive(Debug, Default)]
pub struct Passed {
    pub from_wire: AtomicU64,
    pub from_host: AtomicU64,
    /// Leave the flows of packets to the host.
    pub gives: AtomicBool,
}

/// The program, until it is dropped.
pub struct Bridge {
    pub passed: Arc<Passed>,
    /// Those that are left to the host, where the port can.
    pub flows: Option<HostFlows>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bridge {
    /// On right0, by two ports of these names, when it has no program of the bridge before.
    pub fn open(lab: &Lab, wire: &str, host: &str) -> sluicegate::Result<Self> {
        program::wait_until_removed(&lab.netns("right"), "right0");
        let pool = Pool::new(PoolConfig { buffers: 8192, ..PoolConfig::default() })?;
        let options = OpenOptions {
            usage: Directions::Both,
            netns: Some(lab.netns("right")),
            pool: Some(pool),
            ..OpenOptions::default()
        };
        // The wire first: what comes in meanwhile waits there, and the host's goes the usual way.
        let mut wire = Port::open(&wire.parse()?, &options)?;
        let mut host = Port::open(&host.parse()?, &options)?;
        let (wire, host) = (wire.queues.remove(0), host.queues.remove(0));
        let flows = host.host_flows().cloned();
        let (passed, end) = (Arc::new(Passed::default()), Arc::new(AtomicBool::new(false)));
        let (counts, ended) = (Arc::clone(&passed), Arc::clone(&end));
        let thread = std::thread::spawn(move || run_ports([wire, host], &counts, &ended));
        Ok(Self { passed, flows, end, thread: Some(thread) })
    }

    /// Waits until so much has passed: ping ends when it has had some answers and waited a moment, whatever
    /// is still on its way then.
    #[track_caller]
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&Passed) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(&self.passed) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.passed);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the bridge failed");
        }
    }
}

/// Forwards between two ports until it is ended.
pub fn run_ports([mut wire, mut host]: [Queue; 2], passed: &Passed, end: &AtomicBool) {
    let flows = host.host_flows().cloned();
    while !end.load(Relaxed) {
        let give = |queue: &Queue| match &flows {
            Some(flows) if passed.gives.load(Relaxed) => {
                queue.rx().packets().for_each(|packet| {
                    flows.give(&packet).unwrap();
                });
            }
            _ => {}
        };
        let from_wire = pass(&mut wire, &mut host, &passed.from_wire, give);
        let from_host = pass(&mut host, &mut wire, &passed.from_host, give);
        if from_wire + from_host == 0 {
            let wait = Wait::Sleep;
            wait_any(&mut [&mut wire, &mut host], wait, Duration::from_millis(20)).unwrap();
        }
    }
}

/// Calls `look` when packets have come, and counts them before they go on. So a setting made before a
/// packet was sent applies to it, and the packet's receiver reads a count that includes it.
fn pass(from: &mut Queue, to: &mut Queue, count: &AtomicU64, look: impl Fn(&Queue)) -> u64 {
    from.sync_rx().unwrap();
    look(from);
    let moved = forward(from.rx_mut(), to.tx_mut());
    let packets = u64::from(moved.swapped_slots + moved.copied_packets);
    count.fetch_add(packets, Relaxed);
    to.sync_tx().unwrap();
    packets
}
