//! Real captures come out as they are.

use sluicegate::file::read::Reader;
use sluicegate_traffic::source::{Replay, Tempo};

use crate::real_captures::real_captures;
use crate::support::*;

#[test]
fn real_captures_are_sent_byte_by_byte() {
    let folder = tempfile::tempdir().unwrap();
    let mut tried = 0;
    let captures = real_captures();
    for path in &captures {
        let Ok(reader) = Reader::open(path) else { continue };
        let ethernet = reader.interfaces().iter().all(|interface| interface.link_type == 1);
        if !ethernet {
            assert!(Replay::open(&name(path), &options(Tempo::Top), 1).is_err(), "{path:?}");
            continue;
        }
        let (packets, good) = read(path);
        for workers in [1, 3] {
            let all = sent(folder.path(), path, &options(Tempo::Top), workers);
            let bytes = |packets: &[Recorded]| -> Vec<Vec<u8>> {
                packets.iter().map(|(_, bytes)| bytes.clone()).collect()
            };
            let mut came: Vec<_> = all.iter().flat_map(|(packets, _)| bytes(packets)).collect();
            let mut there = bytes(&packets);
            if workers > 1 {
                came.sort();
                there.sort();
            }
            assert!(came == there, "{path:?}, {workers} workers");
            assert!(all.iter().all(|(_, failure)| failure.is_none() == good), "{path:?}");
        }
        tried += 1;
    }
    assert!(captures.is_empty() || tried > 100, "{tried}");
}
