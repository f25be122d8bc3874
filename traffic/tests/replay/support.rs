//! Files to replay, and their results.

use std::path::Path;
use std::sync::Arc;

use sluicegate::file::read::Reader;
use sluicegate::port::{Directions, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Queue};
use sluicegate_traffic::rate::{Dial, Pace, Unit};
use sluicegate_traffic::source::{Filled, PacketSource, Replay, ReplayOptions, Tempo};

/// A packet: its time in ns, and its bytes.
pub type Recorded = (u64, Vec<u8>);

/// Writes a pcap file.
pub fn pcap(path: &Path, link_type: u32, packets: &[Recorded]) {
    let mut file = Vec::new();
    let mut words = |words: &[u32]| words.iter().for_each(|w| file.extend(w.to_le_bytes()));
    words(&[0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 262_144, link_type]);
    for (ns, bytes) in packets {
        let length = bytes.len() as u32;
        let head = [(ns / 1_000_000_000) as u32, (ns % 1_000_000_000) as u32, length, length];
        head.iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(bytes);
    }
    std::fs::write(path, file).unwrap();
}

/// Makes a UDP packet of a flow, with the flow in its source port.
pub fn packet(flow: u16, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((bytes as u16 - 14).to_be_bytes());
    frame.extend([0, 1, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    frame.extend((1000 + flow).to_be_bytes());
    frame.extend([0, 9]);
    frame.extend((bytes as u16 - 34).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(bytes, number as u8);
    frame
}

/// Makes packets of seven flows and many lengths, a microsecond apart.
pub fn mix(packets: u32) -> Vec<Recorded> {
    let one = |n: u32| {
        let bytes = 60 + (n as usize * 397) % 1455;
        (1_700_000_000_000_000_000 + u64::from(n) * 1000, packet((n % 7) as u16, n, bytes))
    };
    (0..packets).map(one).collect()
}

pub fn options(tempo: Tempo) -> ReplayOptions {
    ReplayOptions {
        tempo,
        max_gap: None,
        rounds: 1,
        due_times: false,
        unique: false,
        packets: None,
        max_bytes: None,
        cut: false,
        link_type: LINKTYPE_ETHERNET,
        rewrite: Arc::default(),
        keep_bytes: 1 << 30,
    }
}

/// Creates a tempo of this number of units per second.
pub fn paced(pps: f64, of: Unit) -> Tempo {
    Tempo::Paced { dial: Dial::new(Pace { pps, burst: 1 }), of }
}

pub fn name(path: &Path) -> PortName {
    format!("pcap:{}", path.display()).parse().unwrap()
}

/// One worker's source, and the ring that it fills.
pub struct ReplayWorker {
    pub source: Replay,
    pub queue: Queue,
}

impl ReplayWorker {
    /// Creates a target that discards packets.
    pub fn of(source: Replay) -> Self {
        Self::to(source, "null:")
    }

    pub fn to(source: Replay, port: &str) -> Self {
        let options = OpenOptions { usage: Directions::Send, ..OpenOptions::default() };
        let mut port = Port::open(&port.parse().unwrap(), &options).unwrap();
        Self { source, queue: port.queues.remove(0) }
    }

    /// Sends the packets due at a time, as one batch.
    pub fn at(&mut self, now_ns: u64) -> Filled {
        let mut all = Filled::default();
        loop {
            let filled = self.source.fill(&mut self.queue.tx_mut(), 64, now_ns).unwrap();
            self.queue.sync_tx().unwrap();
            if filled.packets == 0 {
                return all;
            }
            self.source.handed_over(now_ns);
            all.packets += filled.packets;
            all.bytes += filled.bytes;
        }
    }
}

/// Opens a file for a single worker.
pub fn only(file: &Path, options: &ReplayOptions) -> ReplayWorker {
    ReplayWorker::of(Replay::open(&name(file), options, 1).unwrap().remove(0))
}

/// Replays a file by `workers` workers as fast as possible. Returns each worker's packets and error.
pub fn sent(
    folder: &Path,
    file: &Path,
    options: &ReplayOptions,
    workers: u32,
) -> Vec<(Vec<Recorded>, Option<String>)> {
    results(folder, Replay::open(&name(file), options, workers).unwrap())
}

/// Sends the packets of sources, each to a file. Returns each source's packets and error.
pub fn results(folder: &Path, sources: Vec<Replay>) -> Vec<(Vec<Recorded>, Option<String>)> {
    let out = |worker: usize| folder.join(format!("sent-by-{worker}.pcap"));
    let to = |worker| format!("pcap:{}", out(worker).display());
    let mut all: Vec<ReplayWorker> = sources
        .into_iter()
        .enumerate()
        .map(|(worker, source)| ReplayWorker::to(source, &to(worker)))
        .collect();
    let mut now_ns = 0;
    while !all.iter().all(|worker| worker.source.is_finished()) {
        now_ns += 1_000_000;
        all.iter_mut().for_each(|worker| {
            worker.at(now_ns);
        });
    }
    let end = |(number, mut worker): (usize, ReplayWorker)| {
        worker.queue.close_tx().unwrap();
        let failure = worker.source.failure().map(|error| error.to_string());
        (read(&out(number)).0, failure)
    };
    all.into_iter().enumerate().map(end).collect()
}

/// Returns a file's packets, and whether the file ends cleanly.
pub fn read(path: &Path) -> (Vec<Recorded>, bool) {
    if path.metadata().unwrap().len() == 0 {
        // No packet was sent to this file.
        return (Vec::new(), true);
    }
    let mut reader = Reader::open(path).unwrap();
    let mut packets = Vec::new();
    loop {
        match reader.next_packet() {
            Ok(Some(record)) => {
                let packet = record.packet();
                packets.push((packet.meta().timestamp_ns, packet.head().to_vec()));
            }
            Ok(None) => return (packets, true),
            Err(_) => return (packets, false),
        }
    }
}
