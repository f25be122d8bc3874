//! A ring whose other end belongs to a peer that writes there what it likes, in both roles: what cannot
//! be is refused, all that is received was in the peer's memory, nothing is written elsewhere, and every
//! buffer comes home.

#[path = "../../core/tests/memif/by_hand.rs"]
mod by_hand;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bolero::TypeGenerator;
use by_hand::{
    REGION_BYTES, RING_BYTES, RING_ENTRIES, Server, SharedMemory, TO_CLIENT, TO_SERVER,
    connect_by_hand,
};
use sluicegate::memory::{Pool, PoolConfig};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, Packet, Wait};

/// Only a broken port needs so long.
const LIMIT: Duration = Duration::from_secs(60);
/// Start of the buffers in a region made by hand, behind the rings.
const BUFFERS_AT: usize = 4096;
/// Bytes of a buffer of the pool, and of what a fair peer describes.
const BUFFER_BYTES: u16 = 2112;
const HEAD_AT: usize = 6;
const TAIL_AT: usize = 64;
/// The byte that fills every packet of the port.
const SENT: u8 = 0xee;

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum MemifStep {
    /// Describes a packet, or room for one, that can be.
    Fair {
        sends: bool,
        place: u8,
        goes_on: bool,
        length: u16,
        offset: u16,
    },
    /// Describes anything.
    Wild {
        sends: bool,
        place: u8,
        flags: u16,
        region: u8,
        length: u32,
        offset: u32,
    },
    /// A place near the region's end.
    Edge {
        sends: bool,
        place: u8,
        region: bool,
        length: u8,
        before_end: u8,
    },
    /// Hands over as many entries, which may be more than it has.
    HandOver {
        sends: bool,
        entries: u8,
    },
    /// Writes an index, its own or the other's.
    Index {
        sends: bool,
        tail: bool,
        value: u16,
    },
    /// Writes the flags: whether it wants to be woken.
    Flags {
        sends: bool,
        value: u16,
    },
    Send {
        bytes: u16,
    },
    /// Looks at what has come, and gives it back.
    Receive,
    /// Looks, and keeps it.
    Look,
    Sleep,
}

/// The peer's writes to places that the port reads.
struct Peer<'a> {
    memory: &'a SharedMemory,
    /// The ring that the port receives from, and the one that it sends to.
    rings: [usize; 2],
    /// Where the peer's own index stands.
    own: usize,
    /// The ranges of its memory that it described as room for packets.
    described: Vec<(usize, usize)>,
    /// It has described the rings themselves, whose bytes change.
    rings_too: bool,
}

impl Peer<'_> {
    fn play(&mut self, step: MemifStep, queue: &mut Queue) {
        let at = |sends: bool| self.rings[usize::from(sends)];
        match step {
            MemifStep::Fair { sends, place, goes_on, length, offset } => {
                let length = u32::from(length % (BUFFER_BYTES + 1));
                let room = (REGION_BYTES - BUFFERS_AT - usize::from(BUFFER_BYTES)) as u32;
                let offset = BUFFERS_AT as u32 + u32::from(offset) % room;
                self.describe(sends, place, (u16::from(goes_on), 0, length, offset));
            }
            MemifStep::Wild { sends, place, flags, region, length, offset } => {
                self.describe(sends, place, (flags, region.into(), length, offset));
            }
            MemifStep::Edge { sends, place, region, length, before_end } => {
                let offset = REGION_BYTES as u32 - u32::from(before_end);
                self.describe(sends, place, (0, region.into(), length.into(), offset));
            }
            MemifStep::HandOver { sends, entries } => {
                let index = self.memory.index(at(sends) + self.own);
                let to = index.load(Ordering::Relaxed).wrapping_add((entries % 40).into());
                index.store(to, Ordering::Release);
            }
            MemifStep::Index { sends, tail, value } => {
                let field = if tail { TAIL_AT } else { HEAD_AT };
                self.memory.index(at(sends) + field).store(value, Ordering::Release);
            }
            MemifStep::Flags { sends, value } => {
                self.memory.index(at(sends) + 4).store(value, Ordering::Release);
            }
            MemifStep::Send { bytes } => {
                let bytes = vec![SENT; usize::from(bytes % 6000)];
                queue.tx_mut().push(&Packet::new(&Meta::default(), &bytes));
                queue.sync_tx().unwrap();
            }
            MemifStep::Receive => {
                queue.sync_rx().unwrap();
                self.check_received(queue);
                let slots = queue.rx().available();
                queue.rx_mut().release(slots);
            }
            MemifStep::Look => {
                queue.sync_rx().unwrap();
                self.check_received(queue);
            }
            MemifStep::Sleep => {
                queue.wait_rx(Wait::Sleep, Duration::ZERO).unwrap();
            }
        }
    }

    fn describe(&mut self, sends: bool, place: u8, fields: (u16, u16, u32, u32)) {
        let (_, region, length, offset) = fields;
        let (from, to) = (offset as usize, offset as usize + length as usize);
        if from < BUFFERS_AT {
            self.rings_too = true;
        }
        // Room is what the ring that the port sends to says, in the one region that there is.
        if sends && region == 0 {
            self.described.push((from, to));
        }
        let ring = self.rings[usize::from(sends)];
        self.memory.descriptor(ring, usize::from(place) % RING_ENTRIES, fields);
    }

    /// All bytes of packets are in the peer's memory, one behind the other.
    fn check_received(&self, queue: &Queue) {
        for packet in queue.rx().packets() {
            assert_eq!(packet.meta().wire_bytes as usize, packet.captured_bytes());
            if self.own == HEAD_AT && !self.rings_too {
                packet.segments().for_each(|bytes| assert!(is_in_pattern(bytes), "{bytes:x?}"));
            }
        }
    }

    /// Nothing was written but what was described.
    fn check_written(&self) {
        if self.own == HEAD_AT && !self.rings_too {
            for at in BUFFERS_AT..REGION_BYTES {
                let byte = self.memory.byte(at);
                let described =
                    || self.described.iter().any(|&(from, to)| (from..to).contains(&at));
                assert!(byte == pattern(at) || byte == SENT && described(), "{byte:x} at {at}");
            }
        }
    }
}

/// The initial bytes of the region: each two encode their place.
fn pattern(at: usize) -> u8 {
    ((at / 2) as u16).to_le_bytes()[at % 2]
}

/// True if bytes lie contiguously in the region, except bytes that were sent there.
fn is_in_pattern(bytes: &[u8]) -> bool {
    let from = |start: usize| {
        bytes.iter().zip(start..).all(|(&byte, at)| byte == pattern(at) || byte == SENT)
    };
    // Where they begin, by the first bytes that tell; too few tell nothing.
    let told = |i: &usize| bytes[*i] != SENT && bytes[*i + 1] != SENT;
    let Some(i) = (0..bytes.len().saturating_sub(3)).find(|i| told(i) && told(&(i + 1))) else {
        return true;
    };
    let even = |i: usize| 2 * usize::from(u16::from_le_bytes([bytes[i], bytes[i + 1]]));
    let starts = [even(i).checked_sub(i), even(i + 1).checked_sub(i + 1)];
    starts.into_iter().flatten().any(from)
}

fn until(what: &str, mut attempt: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !attempt() {
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::yield_now();
    }
}

fn open(name: &str, pool: &Arc<Pool>) -> Port {
    let options = OpenOptions {
        usage: Directions::Both,
        pool: Some(Arc::clone(pool)),
        ..OpenOptions::default()
    };
    Port::open(&name.parse().unwrap(), &options).unwrap()
}

/// The port is a server, whose client is by hand and has all the memory.
fn play_client(steps: &[MemifStep], pool: &Arc<Pool>) {
    let socket = format!("@sluice-fuzz-{}", std::process::id());
    let mut port = open(&format!("memif:{socket}?role=server&slots=16&ring_size=32"), pool);
    let queue = &mut port.queues[0];
    let (_wire, memory, _event) = connect_by_hand(&socket);
    let bytes: Vec<u8> = (BUFFERS_AT..REGION_BYTES).map(pattern).collect();
    memory.put(BUFFERS_AT, &bytes);
    // It has the rings when it has sent something.
    memory.descriptor(TO_CLIENT, 0, (0, 0, 1, BUFFERS_AT as u32));
    memory.index(TO_CLIENT + HEAD_AT).store(1, Ordering::Release);
    queue.tx_mut().push(&Packet::new(&Meta::default(), &[SENT]));
    until("a packet from the server", || {
        queue.sync_tx().unwrap();
        memory.index(TO_CLIENT + TAIL_AT).load(Ordering::Acquire) == 1
    });
    let described = vec![(BUFFERS_AT, BUFFERS_AT + 1)];
    let rings = [TO_SERVER, TO_CLIENT];
    let mut peer = Peer { memory: &memory, rings, own: HEAD_AT, described, rings_too: false };
    steps.iter().for_each(|&step| peer.play(step, queue));
    peer.check_written();
}

/// The port is a client, whose server is by hand.
fn play_server(steps: &[MemifStep], pool: &Arc<Pool>) {
    let socket = format!("@sluice-fuzz-{}", std::process::id());
    let server = Server::new(&socket);
    let mut port = open(&format!("memif:{socket}?role=client&slots=16&ring_size=32"), pool);
    let queue = &mut port.queues[0];
    let (_wire, memory) = server.client();
    // The ring to the client comes behind the one to the server.
    let rings = [RING_BYTES, 0];
    until("the client's buffers", || {
        queue.sync_rx().unwrap();
        memory.index(RING_BYTES + HEAD_AT).load(Ordering::Acquire) > 0
    });
    let mut peer =
        Peer { memory: &memory, rings, own: TAIL_AT, described: Vec::new(), rings_too: false };
    steps.iter().for_each(|&step| peer.play(step, queue));
}

#[test]
fn memif_ring() {
    let config =
        PoolConfig { buffers: 128, buffer_bytes: BUFFER_BYTES.into(), ..PoolConfig::default() };
    let pool = Pool::new(config).unwrap();
    bolero::check!().with_type::<(u8, Vec<MemifStep>)>().for_each(|(role, steps)| {
        match role % 2 {
            0 => play_client(steps, &pool),
            _ => play_server(steps, &pool),
        }
        assert_eq!(pool.free_buffers(), 128, "all buffers come home");
    });
}
