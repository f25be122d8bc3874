//! The queues of a relay, and which thread serves which: each queue is one thread's, and what comes in by one queue goes out
//! by one, so that packets of a flow stay in order.
//!
//! ```text
//!   port 0: 3 queues        port 1: 2 queues        threads: 2, as many as the fewer
//!     0 ───────────────────── 0                       0: queues 0 and 2 of port 0, 0 of port 1
//!     1 ───────────────────── 1                       1: queue 1 of both
//!     2 ──────────────(0)
//! ```

use std::time::{Duration, Instant};

use sluicegate::error::{Error, Result};
use sluicegate::port::{Kind, Port, Queue};
use sluicegate::ring::Packet;

use super::relay::Relay;
use crate::card::is_down;

/// Puts the queues of two ports into the hands of as many threads as the one with fewer has, of
/// `most` at most. `sources` says which ports are received from; the other one is sent to.
///
/// # Errors
/// A port that cannot do what it is wanted for.
pub fn relays(ports: &mut [Port; 2], sources: &[usize], most: Option<u32>) -> Result<Vec<Relay>> {
    let mut threads = most.map_or(usize::MAX, |most| most as usize);
    for &source in sources {
        let target = 1 - source;
        let receive = ports[source].queues.iter().filter(|queue| receives(queue)).count();
        let send = ports[target].queues.iter().filter(|queue| sends(queue)).count();
        if receive == 0 {
            return Err(ports[source].name.error("nothing comes out of it to be forwarded"));
        }
        if send == 0 {
            return Err(ports[target].name.error("it cannot be sent to"));
        }
        threads = threads.min(receive).min(send);
    }
    let mut relays: Vec<Relay> = (0..threads as u32).map(Relay::new).collect();
    for (side, port) in ports.iter_mut().enumerate() {
        for (index, queue) in port.queues.drain(..).enumerate() {
            let mut served = Served::new(queue, side);
            served.receives = sources.contains(&side) && receives(&served.queue);
            served.sends = sources.contains(&(1 - side)) && sends(&served.queue);
            // Its thread in the kernel ends with the interface.
            served.waits = port.name.kind() != Kind::Live;
            relays[index % threads].queues.push(served);
        }
    }
    relays.iter_mut().for_each(|relay| relay.ways = ways(&relay.queues));
    Ok(relays)
}

/// From each queue that receives to one of the other side, in turns.
fn ways(queues: &[Served]) -> Vec<QueuePair> {
    let mut ways = Vec::new();
    for side in [0, 1] {
        let targets: Vec<usize> = (0..queues.len())
            .filter(|&index| queues[index].side != side && queues[index].sends)
            .collect();
        let sources =
            (0..queues.len()).filter(|&index| queues[index].side == side && queues[index].receives);
        ways.extend(
            sources.zip(targets.iter().cycle()).map(|(from, &to)| QueuePair::new(from, to)),
        );
    }
    ways
}

/// A ring for a direction that a queue does not have holds nothing.
fn receives(queue: &Queue) -> bool {
    queue.rx().num_slots() > 1
}

fn sends(queue: &Queue) -> bool {
    queue.tx().num_slots() > 1
}

/// A queue, and what it is used for.
pub struct Served {
    pub queue: Queue,
    /// Which of the two ports it is of.
    pub side: usize,
    pub receives: bool,
    pub sends: bool,
    /// It can be sent to again when its interface, down, has come up.
    pub waits: bool,
    /// The interface went down then, and nothing has moved since.
    pub down_since: Option<Instant>,
    /// Interfaces of its packets that the targets have been told of.
    pub described: usize,
}

impl Served {
    pub fn new(queue: Queue, side: usize) -> Self {
        Self {
            queue,
            side,
            receives: false,
            sends: false,
            waits: true,
            down_since: None,
            described: 0,
        }
    }

    /// The packets that begin in the first `slots` slots of what has come, but not in the first `seen`.
    pub fn unseen(&self, seen: u32, slots: u32) -> impl Iterator<Item = Packet<'_>> {
        let mut at = 0;
        let places = self.queue.rx().packets().map(move |packet| {
            let first = at;
            at += packet.slots();
            (first, packet)
        });
        let unseen = places.skip_while(move |(first, _)| *first < seen);
        unseen.take_while(move |(first, _)| *first < slots).map(|(_, packet)| packet)
    }

    /// Lets all go that has come. How many packets.
    pub fn let_go(&mut self) -> u64 {
        let packets = self.queue.rx().packets().count() as u64;
        let slots = self.queue.rx().available();
        self.queue.rx_mut().release(slots);
        packets
    }

    /// Returns true if the queue holds packets that it has not sent.
    pub fn is_sending(&self) -> bool {
        self.sends && self.queue.tx().available() + 1 < self.queue.tx().num_slots()
    }

    /// Returns true if packets wait for another call of [`send`](Self::send).
    pub fn is_stuck(&mut self) -> bool {
        self.sends && self.queue.needs_sync_tx()
    }

    /// Sends what it was given, as far as the interface takes it. Returns how many slots are room
    /// again, and whether it is down.
    pub fn send(&mut self) -> Result<(u32, bool)> {
        match self.queue.sync_tx() {
            Ok(slots) => Ok((slots, false)),
            // It may come up again; until then packets wait.
            Err(error) if self.may_come_up(&error) => Ok((0, true)),
            Err(error) => Err(error),
        }
    }

    /// Sends what it can of what it was given in this time, and no more after that.
    pub fn end(&mut self, patience: Duration) -> Result<()> {
        match self.queue.close_tx_within(patience) {
            // What is not sent is counted.
            Err(error) if self.may_come_up(&error) => Ok(()),
            result => result,
        }
    }

    fn may_come_up(&self, error: &Error) -> bool {
        self.waits && is_down(error)
    }
}

/// From a queue to a queue, by their places in the relay.
#[derive(Debug)]
pub struct QueuePair {
    pub from: usize,
    pub to: usize,
    /// The target was full at the last look.
    pub blocked: bool,
    /// Slots of packets that wait at the source and have been looked at: the first ones.
    pub looked_at: u32,
}

impl QueuePair {
    pub fn new(from: usize, to: usize) -> Self {
        Self { from, to, blocked: false, looked_at: 0 }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::port::{OpenOptions, Use};

    use super::*;

    /// For each thread, the ways from queue to queue: side and number of each.
    fn plan(names: [&str; 2], sources: &[usize], most: Option<u32>) -> Vec<Vec<[(usize, u32); 2]>> {
        let ports = names.map(|name| (name.parse().unwrap(), Use::Both));
        let ports = Port::open_all(&ports, &OpenOptions::default()).unwrap();
        let relays = relays(&mut ports.try_into().unwrap(), sources, most).unwrap();
        let end = |relay: &Relay, index: usize| {
            (relay.queues[index].side, relay.queues[index].queue.number())
        };
        let way = |relay: &Relay, way: &QueuePair| [end(relay, way.from), end(relay, way.to)];
        relays.iter().map(|relay| relay.ways.iter().map(|it| way(relay, it)).collect()).collect()
    }

    #[test]
    fn what_comes_in_by_one_queue_goes_out_by_one() {
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
        let ports = [(file.parse().unwrap(), Use::Send), ("null:".parse().unwrap(), Use::Both)];
        let ports = Port::open_all(&ports, &OpenOptions::default()).unwrap();
        let error = relays(&mut ports.try_into().unwrap(), &[0], None).err().unwrap().to_string();
        assert!(error.contains("nothing comes out of it"), "{error}");
    }

    #[test]
    fn what_was_looked_at_is_not_looked_at_again() {
        let name = "null:?slots=8".parse().unwrap();
        let mut port = Port::open(&name, &OpenOptions::default()).unwrap();
        let mut served = Served::new(port.queues.remove(0), 0);
        served.queue.sync_rx().unwrap();
        for (seen, slots, left) in
            [(0, 7, 7), (3, 7, 4), (7, 7, 0), (9, 7, 0), (2, 5, 3), (5, 5, 0)]
        {
            assert_eq!(served.unseen(seen, slots).count(), left, "{seen} seen of {slots}");
        }
    }
}
