//! A forwarding thread: some queues of both ports, and the paths between them.
//!
//! ```text
//!   sync receiving queues → move along each path → sync sending queues → again, or wait
//! ```
//!
//! Packets for a full target stay in their source's ring; losses occur there, as `ring_full`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::error::Result;
use sluicegate::forward::{Moved, Rewriter, forward_some};
use sluicegate::port::{Kind, Port, Queue, wait_any};
use sluicegate::ring::{Direction, Readiness, Wait};

use super::host::HostFlowFilter;
use super::monitor_service::Watchers;
use super::queues::{ForwardQueue, QueuePair};
use super::result::SideCounts;
use crate::run::{CHECK_INTERVAL, DRAIN_INTERVAL, IN_FLIGHT_TIMEOUT, Work, WorkerThread};

/// The longest sleep of a thread between two checks of the stop flag.
const TICK: Duration = Duration::from_millis(50);
/// Nothing wakes a thread when a full target has room again. It sleeps for this fraction of the time it has
/// been stuck, which bounds the added delay of a packet.
const STUCK_SHARE: u32 = 8;
/// Bounds of these sleeps.
const MIN_NAP: Duration = Duration::from_micros(50);
const MAX_NAP: Duration = Duration::from_millis(5);
/// Time to forward the remaining packets after the end, and again to send them; the rest is dropped.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time for a target's peer to take the last packets, however slow others were.
const MIN_CLOSE_TIMEOUT: Duration = Duration::from_millis(40);
/// Rounds between two reads of the clock.
const ROUNDS: u32 = 64;

/// The packets that a thread forwarded.
#[derive(Clone, Debug)]
pub struct ForwardCounts {
    pub thread: u32,
    pub sides: [SideCounts; 2],
}

/// The forwarder of one thread.
#[derive(Default)]
pub struct ForwardThread {
    number: u32,
    pub queues: Vec<ForwardQueue>,
    pub paths: Vec<QueuePair>,
    /// Maximum of packets that move along a path at once.
    pub batch: u32,
    /// The header rewriter for packets from each side.
    pub rewriters: [Option<Rewriter>; 2],
    /// Flows that are left to the host.
    pub leaving: Option<Arc<HostFlowFilter>>,
    pub watchers: Watchers,
    passed: [SideCounts; 2],
    /// The time since which pending packets have not moved.
    stuck: Option<Instant>,
    /// The time when reception stopped.
    closed: Option<Instant>,
}

impl ForwardThread {
    /// Forwards until stopped, until all sources have ended, or until a failure.
    fn forward(&mut self, thread: &mut WorkerThread<'_, ForwardCounts>) -> Result<()> {
        let mut checked_at = Instant::now();
        let mut rounds = 0;
        let mut result = Ok(());
        loop {
            if thread.run.stop.is_set() {
                result = result.and(self.close());
            }
            let step = match result.is_err() || self.is_over() {
                true => self.discard(),
                false => self.round(thread),
            };
            let idle = *step.as_ref().unwrap_or(&0) == 0;
            let mut step = step.map(|_| ());
            if idle {
                if self.is_finished() {
                    return result.and(step);
                }
                step = step.and_then(|()| self.wait(thread));
            }
            rounds += 1;
            if idle || rounds >= ROUNDS {
                rounds = 0;
                self.watchers.run_requests();
                if thread.wants_snapshot() {
                    let (sides, counted) = self.counted();
                    thread.publish(ForwardCounts { thread: self.number, sides });
                    step = step.and(counted);
                }
                if checked_at.elapsed() > CHECK_INTERVAL {
                    checked_at = Instant::now();
                    step = step.and(self.check_ports(thread));
                }
            }
            if step.is_err() {
                // Packets received before the failure are still accounted for.
                thread.run.stop.set();
                result = result.and(step);
            }
        }
    }

    /// Describes the sources that are known before the first packet.
    ///
    /// # Errors
    /// A target sends packets of another link type.
    pub fn describe(&mut self) -> Result<()> {
        for QueuePair { from, to, .. } in &self.paths {
            if let Ok([source, target]) = self.queues.get_disjoint_mut([*from, *to]) {
                source.describe_to(target)?;
            }
        }
        Ok(())
    }

    /// Drops incoming packets, which have no target any more, and counts them.
    fn discard(&mut self) -> Result<u64> {
        let mut progress = 0;
        for served in self.queues.iter_mut().filter(|served| served.receives) {
            // A source whose interface was removed has no more packets.
            let _ = served.queue.sync_rx();
            let packets = served.discard();
            self.passed[served.side].unsent += packets;
            progress += packets;
        }
        Ok(progress)
    }

    /// Receives, moves and sends once. Returns the progress: packets moved, and slots freed.
    fn round(&mut self, thread: &mut WorkerThread<'_, ForwardCounts>) -> Result<u64> {
        let mut progress = 0;
        for served in self.queues.iter_mut().filter(|served| served.receives) {
            served.queue.sync_rx()?;
        }
        let (mut packets, mut bytes) = (0, 0);
        for index in 0..self.paths.len() {
            let moved = self.pass(index, thread)?;
            packets += u64::from(moved.packets());
            progress += u64::from(moved.packets() + moved.too_long_packets);
            bytes += moved.bytes;
        }
        if packets > 0 {
            thread.counters.add(packets, bytes);
        }
        self.watchers.publish();
        for index in 0..self.queues.len() {
            let served = &mut self.queues[index];
            if !served.sends {
                continue;
            }
            let (slots, down) = served.send()?;
            progress += u64::from(slots);
            if down {
                self.went_down(index, thread);
            } else if slots > 0 {
                self.came_up(index, thread);
            }
        }
        if progress > 0 {
            self.stuck = None;
        }
        Ok(progress)
    }

    /// Moves the received packets, up to the limit, along a path.
    fn pass(
        &mut self,
        index: usize,
        thread: &mut WorkerThread<'_, ForwardCounts>,
    ) -> Result<Moved> {
        let QueuePair { from, to, seen, .. } = self.paths[index];
        let Ok([source, target]) = self.queues.get_disjoint_mut([from, to]) else {
            return Ok(Moved::default());
        };
        let there = source.queue.rx().available();
        if there == 0 {
            (self.paths[index].blocked, self.paths[index].seen) = (false, 0);
            return Ok(Moved::default());
        }
        source.describe_to(target)?;
        let side = source.side;
        // No more packets than slots: enough for all in nearly every batch.
        let room = if target.is_sending() { target.queue.tx().available() } else { u32::MAX };
        let most = there.min(room);
        let wanted = thread.run.wanted.reserve(most.min(self.batch));
        let slots = if wanted < most { first_packets(&source.queue, wanted) } else { most };
        if let Some(leaving) = &self.leaving {
            leaving.inspect(source.unseen(seen, slots))?;
        }
        if self.watchers.is_watched(side) {
            self.watchers.show(side, Direction::In, source.unseen(seen, slots));
        }
        let given = target.queue.tx().head();
        let (from_ring, to_ring) = (source.queue.rx_mut(), target.queue.tx_mut());
        let moved = match &mut self.rewriters[side] {
            Some(rewriter) => rewriter.forward(from_ring, to_ring, slots),
            None => forward_some(from_ring, to_ring, slots),
        };
        if self.watchers.is_watched(target.side) {
            self.watchers.show(target.side, Direction::Out, target.queue.tx().pending_tx(given));
        }
        let used = moved.packets();
        self.passed[side].moved(&moved);
        if thread.run.wanted.settle(wanted, used) {
            thread.run.stop.set();
            self.passed[side].after_end += source.discard();
        }
        let left = source.queue.rx().available();
        self.paths[index].seen = seen.max(slots).saturating_sub(there - left);
        self.paths[index].blocked = used == 0 && left > 0;
        if used > 0 && source.down_since.is_some_and(|since| since.elapsed() > IN_FLIGHT_TIMEOUT) {
            self.came_up(from, thread);
        }
        Ok(moved)
    }

    /// Waits for packets, or for a moment. An error means that no more packets will arrive.
    fn wait(&mut self, thread: &mut WorkerThread<'_, ForwardCounts>) -> Result<()> {
        if self.closed.is_some() {
            std::thread::sleep(DRAIN_INTERVAL);
            return Ok(());
        }
        let is_stuck = self.paths.iter().any(|path| path.blocked)
            || self.queues.iter_mut().any(ForwardQueue::is_stuck);
        let mut timeout = TICK;
        if is_stuck {
            let stuck = self.stuck.get_or_insert_with(Instant::now).elapsed();
            match thread.run.wait {
                Wait::Spin => return Ok(()),
                // A reader in memory makes room sooner than a sleep ends.
                Wait::Adaptive(spin) if stuck < spin => return Ok(()),
                Wait::Adaptive(_) | Wait::Sleep => {}
            }
            timeout = (stuck / STUCK_SHARE).clamp(MIN_NAP, MAX_NAP);
        } else {
            self.stuck = None;
        }
        let (mut receivers, mut queues) = (Vec::new(), Vec::new());
        for (index, served) in self.queues.iter_mut().enumerate() {
            let blocked = self.paths.iter().any(|path| path.from == index && path.blocked);
            if served.receives && !blocked && !served.queue.is_finished() {
                receivers.push(index);
                queues.push(&mut served.queue);
            }
        }
        let (index, readiness) = wait_any(&mut queues, thread.run.wait, timeout)?;
        if readiness == Readiness::Down {
            self.went_down(receivers[index], thread);
        }
        Ok(())
    }

    fn went_down(&mut self, index: usize, thread: &mut WorkerThread<'_, ForwardCounts>) {
        let served = &mut self.queues[index];
        if served.down_since.replace(Instant::now()).is_none() {
            self.passed[served.side].downs += 1;
            thread.report_link(&served.queue, false);
        }
    }

    fn came_up(&mut self, index: usize, thread: &mut WorkerThread<'_, ForwardCounts>) {
        let served = &mut self.queues[index];
        if served.down_since.take().is_some() {
            thread.report_link(&served.queue, true);
        }
    }

    /// Stops reception.
    fn close(&mut self) -> Result<()> {
        if self.closed.is_some() {
            return Ok(());
        }
        self.closed = Some(Instant::now());
        let mut result = Ok(());
        for served in self.queues.iter_mut().filter(|served| served.receives) {
            result = result.and(served.queue.stop_rx());
        }
        result
    }

    /// Returns true if the time to forward the remaining packets has passed.
    fn is_over(&self) -> bool {
        self.closed.is_some_and(|closed| closed.elapsed() >= DRAIN_TIMEOUT)
    }

    /// Returns true if no packet is left to move.
    fn is_finished(&mut self) -> bool {
        let mut sources = self.queues.iter_mut().filter(|served| served.receives);
        sources.all(|served| served.queue.is_finished() && served.queue.rx().available() == 0)
    }

    /// Checks the ports, and prints their notices.
    fn check_ports(&mut self, thread: &mut WorkerThread<'_, ForwardCounts>) -> Result<()> {
        let (sides, mut result) = self.counted();
        let [a, b] = sides.map(|passed| passed.stats);
        let lost = a.dropped_ring_full + b.dropped_ring_full;
        thread.counters.note(a.received + b.received, lost);
        for served in &mut self.queues {
            if self.closed.is_none() {
                result = result.and(served.queue.check());
            }
            thread.say_notices(&mut served.queue);
        }
        result
    }

    /// The packets that have passed so far, with the queues' own counts.
    fn counted(&mut self) -> ([SideCounts; 2], Result<()>) {
        let (mut sides, mut result) = (self.passed, Ok(()));
        for served in &mut self.queues {
            let passed = &mut sides[served.side];
            match served.queue.stats() {
                Ok(stats) => passed.stats = passed.stats.plus(stats),
                Err(error) => result = result.and(Err(error)),
            }
        }
        (sides, result)
    }

    /// Sends the targets' remaining packets, all until the same deadline: a slow target takes no time from
    /// others.
    fn send_last(&mut self, last: Instant) -> Result<()> {
        let mut result = Ok(());
        loop {
            let mut left = false;
            for served in self.queues.iter_mut().filter(|served| served.is_sending()) {
                match served.send() {
                    Ok((_, down)) => left |= !down && served.is_sending(),
                    Err(error) => result = result.and(Err(error)),
                }
            }
            if !left || Instant::now() >= last {
                return result;
            }
            std::thread::sleep(DRAIN_INTERVAL);
        }
    }

    /// Ends sending, and takes the counts of all queues.
    fn end(&mut self) -> Result<()> {
        let last = Instant::now() + DRAIN_TIMEOUT;
        let mut result = self.send_last(last);
        for served in self.queues.iter_mut().filter(|served| served.sends) {
            let left = last.saturating_duration_since(Instant::now()).max(MIN_CLOSE_TIMEOUT);
            result = result.and(served.end(left));
        }
        let (sides, counted) = self.counted();
        self.passed = sides;
        result.and(counted)
    }
}

impl Work for ForwardThread {
    type Counts = ForwardCounts;

    fn name(&self) -> String {
        format!("forward-{}", self.number)
    }

    fn run(mut self, thread: &mut WorkerThread<'_, ForwardCounts>) -> (ForwardCounts, Result<()>) {
        let mut result = self.forward(thread);
        thread.ended_at(Instant::now());
        self.queues.iter_mut().for_each(|served| thread.say_notices(&mut served.queue));
        result = result.and(self.end());
        (ForwardCounts { thread: self.number, sides: self.passed }, result)
    }
}

/// Counts the slots of the first `packets` packets in a queue's receive ring.
fn first_packets(queue: &Queue, packets: u32) -> u32 {
    queue.rx().packets().take(packets as usize).map(|packet| packet.slots()).sum()
}

/// Distributes the queues of two ports over threads: as many as the port with fewer queues has, at most
/// `most`. `sources` are the ports to receive from. Each queue belongs to one thread, and packets of one
/// source queue leave by one target queue, so that packets of a flow stay in order.
///
/// ```text
///   port 0: 3 queues        port 1: 2 queues        threads: 2, as many as the fewer
///     0 ───────────────────── 0                       0: queues 0 and 2 of port 0, 0 of port 1
///     1 ───────────────────── 1                       1: queue 1 of both
///     2 ──────────────(0)
/// ```
///
/// # Errors
/// A port cannot receive or send as requested.
pub fn threads(
    ports: &mut [Port; 2],
    sources: &[usize],
    most: Option<u32>,
) -> Result<Vec<ForwardThread>> {
    let mut count = most.map_or(usize::MAX, |most| most as usize);
    for &source in sources {
        let target = 1 - source;
        let receive = ports[source].queues.iter().filter(|queue| receives(queue)).count();
        let send = ports[target].queues.iter().filter(|queue| sends(queue)).count();
        if receive == 0 {
            return Err(ports[source].name.error("it is send-only"));
        }
        if send == 0 {
            return Err(ports[target].name.error("it is receive-only"));
        }
        count = count.min(receive).min(send);
    }
    let thread = |number| ForwardThread { number, batch: u32::MAX, ..ForwardThread::default() };
    let mut threads: Vec<ForwardThread> = (0..count as u32).map(thread).collect();
    for (side, port) in ports.iter_mut().enumerate() {
        for (index, queue) in port.queues.drain(..).enumerate() {
            let mut served = ForwardQueue::new(queue, side);
            served.receives = sources.contains(&side) && receives(&served.queue);
            served.sends = sources.contains(&(1 - side)) && sends(&served.queue);
            // Its thread in the kernel ends with the interface.
            served.waits = port.name.kind() != Kind::Live;
            threads[index % count].queues.push(served);
        }
    }
    threads.iter_mut().for_each(|thread| thread.paths = paths(&thread.queues));
    Ok(threads)
}

/// Pairs each receiving queue with a sending queue of the other side, in turns.
fn paths(queues: &[ForwardQueue]) -> Vec<QueuePair> {
    let mut paths = Vec::new();
    for side in [0, 1] {
        let targets: Vec<usize> = (0..queues.len())
            .filter(|&index| queues[index].side != side && queues[index].sends)
            .collect();
        let sources =
            (0..queues.len()).filter(|&index| queues[index].side == side && queues[index].receives);
        paths.extend(sources.zip(targets.iter().cycle()).map(|(from, &to)| QueuePair {
            from,
            to,
            ..QueuePair::default()
        }));
    }
    paths
}

/// The ring of a direction that a queue lacks has no slots.
fn receives(queue: &Queue) -> bool {
    queue.rx().num_slots() > 1
}

fn sends(queue: &Queue) -> bool {
    queue.tx().num_slots() > 1
}

#[cfg(test)]
mod tests {
    use sluicegate::port::{Directions, OpenOptions};

    use super::*;

    /// Returns the paths from queue to queue of each thread: side and number of both queues.
    fn plan(names: [&str; 2], sources: &[usize], most: Option<u32>) -> Vec<Vec<[(usize, u32); 2]>> {
        let ports = names.map(|name| (name.parse().unwrap(), Directions::Both));
        let ports = Port::open_all(&ports, &OpenOptions::default()).unwrap();
        let forwarders = threads(&mut ports.try_into().unwrap(), sources, most).unwrap();
        let end = |forwarder: &ForwardThread, index: usize| {
            (forwarder.queues[index].side, forwarder.queues[index].queue.number())
        };
        let path = |forwarder: &ForwardThread, path: &QueuePair| {
            [end(forwarder, path.from), end(forwarder, path.to)]
        };
        forwarders
            .iter()
            .map(|forwarder| forwarder.paths.iter().map(|it| path(forwarder, it)).collect())
            .collect()
    }

    #[test]
    fn packets_of_a_source_queue_leave_by_one_target_queue() {
        let (there, back) = ([(0, 0), (1, 0)], [(1, 0), (0, 0)]);
        let rows = [
            (["null:", "null:"], vec![0, 1], None, vec![vec![there, back]], "one thread for both"),
            (["null:", "null:"], vec![0], None, vec![vec![there]], "one way"),
            (
                ["null:/0-1", "null:/0-1"],
                vec![0, 1],
                None,
                vec![vec![there, back], vec![[(0, 1), (1, 1)], [(1, 1), (0, 1)]]],
                "a thread for each pair",
            ),
            (
                ["null:/0-2", "null:/0-1"],
                vec![0, 1],
                None,
                vec![vec![there, [(0, 2), (1, 0)], back], vec![[(0, 1), (1, 1)], [(1, 1), (0, 1)]]],
                "two queues share a target, and nothing comes back by the third",
            ),
            (
                ["null:/0-1", "null:/0-1"],
                vec![0, 1],
                Some(1),
                vec![vec![there, [(0, 1), (1, 1)], back, [(1, 1), (0, 1)]]],
                "one thread for all, as it is wanted",
            ),
        ];
        for (names, sources, most, expected, why) in rows {
            assert_eq!(plan(names, &sources, most), expected, "{names:?}: {why}");
        }
    }

    #[test]
    fn a_port_that_cannot_is_refused() {
        let file = tempfile::Builder::new().suffix(".pcap").tempfile().unwrap();
        let file = format!("pcap:{}", file.path().display());
        let ports = [
            (file.parse().unwrap(), Directions::Send),
            ("null:".parse().unwrap(), Directions::Both),
        ];
        let ports = Port::open_all(&ports, &OpenOptions::default()).unwrap();
        let error = threads(&mut ports.try_into().unwrap(), &[0], None).err().unwrap().to_string();
        assert!(error.contains("it is send-only"), "{error}");
    }
}
