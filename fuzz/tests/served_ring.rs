//! A ring that a program in another process has: whatever it writes there, between any two syncs, is
//! taken or refused, and costs nobody else a buffer or a packet.

#[path = "../../netmap/tests/served/program.rs"]
mod program;

use bolero::TypeGenerator;
use program::{Memory, Ring, echo, field};
use sluicegate::Error;
use sluicegate::port::OpenOptions;
use sluicegate_netmap::{Region, RegionConfig, Served};

const BUFFERS: u32 = 64;
const SLOTS: u32 = 8;

#[derive(Clone, Debug, TypeGenerator)]
enum ServedStep {
    /// Gives slots back, as a program should.
    Give {
        tx: bool,
        slots: u8,
    },
    /// Moves packets, as a program should.
    Echo,
    /// Writes a word of the header.
    Header {
        tx: bool,
        word: u8,
        value: u32,
    },
    /// Writes a small number there, which may be one that can be.
    Cursor {
        tx: bool,
        word: u8,
        value: u8,
    },
    /// Writes a field of a slot.
    Buffer {
        tx: bool,
        slot: u8,
        value: u8,
    },
    Length {
        tx: bool,
        slot: u8,
        value: u16,
    },
    Flags {
        tx: bool,
        slot: u8,
        value: u16,
    },
    Start {
        tx: bool,
        slot: u8,
        value: u16,
    },
    Word {
        tx: bool,
        slot: u8,
        word: u8,
        value: u32,
    },
    SyncRx,
    SyncTx,
}

fn serve() -> (Region, Vec<Served>) {
    let config =
        RegionConfig { buffers: BUFFERS, ring_area_bytes: 16_384, ..RegionConfig::default() };
    let region = Region::new(config).unwrap();
    let name = format!("null:/0-1?slots={SLOTS}").parse().unwrap();
    let (_, queues) = region.open(&name, &OpenOptions::default()).unwrap();
    (region, queues)
}

/// A queue's rings: the one to receive by, and the one to send by.
fn rings<'a>(memory: &'a Memory, queue: &Served) -> [Ring<'a>; 2] {
    [queue.rx_offset(), queue.tx_offset()].map(|at| memory.ring(at))
}

fn play(rings: [Ring<'_>; 2], queue: &mut Served, step: &ServedStep) -> sluicegate::Result<()> {
    let ring = |tx: &bool| rings[usize::from(*tx)];
    let slot = |tx: &bool, slot: &u8| (ring(tx), u32::from(*slot) % SLOTS);
    match step {
        ServedStep::Give { tx, slots } => {
            let ring = ring(tx);
            ring.give(u32::from(*slots).min(ring.available()));
        }
        ServedStep::Echo => {
            echo(rings[0], rings[1]);
        }
        ServedStep::Header { tx, word, value } => ring(tx).set(usize::from(*word % 64) * 4, *value),
        ServedStep::Cursor { tx, word, value } => {
            let fields = [field::HEAD, field::CUR, field::TAIL];
            ring(tx).set(fields[usize::from(*word) % 3], u32::from(*value) % (SLOTS + 1));
        }
        ServedStep::Buffer { tx, slot: index, value } => {
            let (ring, index) = slot(tx, index);
            ring.set_slot(index, field::BUF, u32::from(*value) % (BUFFERS + 4));
        }
        ServedStep::Length { tx, slot: index, value } => {
            let (ring, index) = slot(tx, index);
            ring.set_slot(index, field::LEN, *value);
        }
        ServedStep::Flags { tx, slot: index, value } => {
            let (ring, index) = slot(tx, index);
            ring.set_slot(index, field::FLAGS, *value);
        }
        ServedStep::Start { tx, slot: index, value } => {
            let (ring, index) = slot(tx, index);
            ring.set_slot(index, field::PTR, u64::from(*value));
        }
        ServedStep::Word { tx, slot: index, word, value } => {
            let (ring, index) = slot(tx, index);
            ring.set_slot(index, usize::from(word % 4) * 4, *value);
        }
        ServedStep::SyncRx => return queue.sync_rx().map(|_| ()),
        ServedStep::SyncTx => return queue.sync_tx().map(|_| ()),
    }
    Ok(())
}

/// The packets that an honest program passes on.
fn pass(memory: &Memory, queue: &mut Served) -> u32 {
    queue.sync_rx().unwrap();
    let [rx, tx] = rings(memory, queue);
    let n = echo(rx, tx);
    queue.sync_tx().unwrap();
    n
}

#[test]
fn served_ring() {
    bolero::check!().with_type::<Vec<ServedStep>>().for_each(|steps| {
        let (region, mut queues) = serve();
        let memory = Memory::map(region.fd(), region.bytes());
        let rings = rings(&memory, &queues[0]);
        let mut has_ended = false;
        for step in steps {
            match play(rings, &mut queues[0], step) {
                Ok(()) => {
                    let syncs = matches!(step, ServedStep::SyncRx | ServedStep::SyncTx);
                    assert!(!(has_ended && syncs), "ended, and yet it goes on");
                }
                Err(Error::Corrupt { .. }) => has_ended = true,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(pass(&memory, &mut queues[1]), SLOTS - 1, "the other queue goes on");
        drop(queues);
        assert_eq!(region.free_buffers(), BUFFERS as usize, "all buffers come home");
    });
}
