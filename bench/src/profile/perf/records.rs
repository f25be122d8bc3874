//! The records of a ring, as values.

use super::event::{self, record};

/// One moment on one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The event it is of.
    pub event: u64,
    pub process: u32,
    pub cpu: u32,
    /// What it stands for: ns, cycles or context switches.
    pub weight: u64,
    /// Whether the CPU was in the kernel.
    pub kernel: bool,
    /// Where it was, then who called that, as far as the kernel goes.
    pub chain: Vec<u64>,
}

/// What a ring tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerfRecord {
    Sample(Sample),
    /// Code that got a name while it was watched: a BPF program.
    Symbol {
        address: u64,
        bytes: u32,
        name: String,
    },
    /// So many records found no room.
    Lost(u64),
}

/// Goes through records that stand one behind the other; those of other kinds are left out, and
/// all behind one that makes no sense.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = PerfRecord> {
    std::iter::from_fn(move || {
        loop {
            let mut header = Words(bytes);
            let kind = header.u32()?;
            let (misc, size) = (header.u16()?, usize::from(header.u16()?));
            let body = bytes.get(8..size)?;
            bytes = &bytes[size..];
            let found = match kind {
                record::SAMPLE => sample(Words(body), misc),
                record::KERNEL_SYMBOL => symbol(Words(body)),
                record::LOST => lost(Words(body)),
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
    })
}

fn sample(mut words: Words<'_>, misc: u16) -> Option<PerfRecord> {
    let event = words.u64()?;
    let address = words.u64()?;
    let (process, _thread) = (words.u32()?, words.u32()?);
    let (cpu, _reserved) = (words.u32()?, words.u32()?);
    let weight = words.u64()?;
    let length = words.u64()?;
    let kernel = misc & event::MISC_CPU_MODE == event::MISC_KERNEL;
    let mut chain = Vec::new();
    let mut in_kernel = false;
    for _ in 0..length {
        let address = words.u64()?;
        if address >= event::CHAIN_MARKS {
            in_kernel = address == event::CHAIN_KERNEL;
        } else if in_kernel {
            chain.push(address);
        }
    }
    if chain.first() != Some(&address) {
        chain.insert(0, address);
    }
    Some(PerfRecord::Sample(Sample { event, process, cpu, weight, kernel, chain }))
}

fn symbol(mut words: Words<'_>) -> Option<PerfRecord> {
    let address = words.u64()?;
    let bytes = words.u32()?;
    let (_kind, flags) = (words.u16()?, words.u16()?);
    const UNREGISTERED: u16 = 1;
    if flags & UNREGISTERED != 0 {
        return None;
    }
    let name = words.0.split(|byte| *byte == 0).next()?;
    Some(PerfRecord::Symbol { address, bytes, name: String::from_utf8_lossy(name).into_owned() })
}

fn lost(mut words: Words<'_>) -> Option<PerfRecord> {
    let _event = words.u64()?;
    Some(PerfRecord::Lost(words.u64()?))
}

/// Takes numbers off the front of bytes.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend((body.len() as u16 + 8).to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn sample_of(chain: &[u64]) -> Vec<u8> {
        let mut body = Vec::new();
        for word in [7, 0xff10, 42 | 43 << 32, 1, 1_000_000, chain.len() as u64] {
            body.extend(u64::to_ne_bytes(word));
        }
        body.extend(chain.iter().flat_map(|address| address.to_ne_bytes()));
        record(record::SAMPLE, event::MISC_KERNEL, &body)
    }

    #[test]
    fn a_sample_has_where_it_was_and_who_called_that() {
        let user = 512u64.wrapping_neg();
        for (sentence, chain, expected) in [
            (
                "with its own address",
                &[event::CHAIN_KERNEL, 0xff10, 0xff20][..],
                &[0xff10, 0xff20][..],
            ),
            ("without", &[event::CHAIN_KERNEL, 0xff20], &[0xff10, 0xff20]),
            ("callers in user space are left out", &[user, 0x400], &[0xff10]),
            ("no chain", &[], &[0xff10]),
        ] {
            let bytes = sample_of(chain);
            let Some(PerfRecord::Sample(sample)) = records(&bytes).next() else {
                panic!("{sentence}");
            };
            assert_eq!(sample.chain, expected, "{sentence}");
            assert_eq!((sample.event, sample.process, sample.cpu), (7, 42, 1));
            assert!(sample.kernel && sample.weight == 1_000_000);
        }
    }

    #[test]
    fn other_records_are_passed_over_and_names_and_losses_are_told() {
        let mut body = 0xffu64.to_ne_bytes().to_vec();
        body.extend(64u32.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(b"bpf_prog_12_x\0\0\0");
        let mut bytes = record(3, 0, &[0; 24]);
        bytes.extend(record(record::KERNEL_SYMBOL, 0, &body));
        bytes.extend(record(record::LOST, 0, &[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]));
        let found: Vec<PerfRecord> = records(&bytes).collect();
        let name = "bpf_prog_12_x".into();
        assert_eq!(
            found,
            [PerfRecord::Symbol { address: 0xff, bytes: 64, name }, PerfRecord::Lost(9)]
        );
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = records(&bytes).count();
        }
    }
}
