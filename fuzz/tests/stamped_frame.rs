//! The search for a frame's stamp: no bytes cause a panic, whole or cut, and bytes behind the end of a
//! frame make no difference.

use bolero::TypeGenerator;
use sluicegate_traffic::analyse::{Analyser, Analysis, Condition, Stamp, inspect};

#[derive(Clone, Debug, TypeGenerator)]
struct Input {
    /// Headers that lead somewhere, to begin with.
    begin: u8,
    bytes: Vec<u8>,
    whole: bool,
}

/// Beginnings of frames: random bytes alone hardly find a header.
const BEGINNINGS: &[&[u8]] = &[
    &[],
    &[0x08, 0x00, 0x45],
    &[0x86, 0xdd, 0x60],
    &[0x81, 0x00, 0, 1, 0x08, 0x00, 0x46],
    &[0x88, 0xa8, 0, 1, 0x81, 0x00, 0, 2, 0x86, 0xdd, 0x60],
    &[0x88, 0x47, 0, 0, 0, 1, 0x88, 0x47, 0, 0, 1, 1, 0x45],
    &[
        0x08, 0x00, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 0x12,
        0xb5,
    ],
    &[0x08, 0x00, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 47, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0xb0, 0],
    &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 0, 64],
];

#[test]
fn stamped_frame() {
    bolero::check!().with_type::<Input>().for_each(|input| {
        let begin = BEGINNINGS[usize::from(input.begin) % BEGINNINGS.len()];
        let frame = [&[2; 12][..], begin, &input.bytes].concat();
        let found = inspect(&frame, input.whole);
        if let Some(stamp) = found.stamp {
            let is_there = |bytes: &[u8]| Stamp::read(bytes) == Some(stamp);
            assert!(frame.windows(Stamp::BYTES).any(is_there), "made up");
        }
        if !input.whole {
            // What was cut off cannot be held against it.
            let whole = inspect(&frame, true);
            assert!(whole.condition != Condition::Intact || found.condition != Condition::Corrupt);
        }
        let mut analyser = Analyser::new(|| 0);
        analyser.found(found, Some(u64::from(input.begin)));
        analyser.found(found, None);
        let analysis = Analysis::of(&[analyser.share()]);
        let of_streams = |stream: &sluicegate_traffic::analyse::StreamAnalysis| {
            stream.sum(|it| it.counts.received + it.counts.corrupt)
        };
        let counted: u64 = analysis.streams.iter().map(of_streams).sum();
        let others = analysis.others;
        assert_eq!(counted + others.unstamped + others.corrupt + others.untracked, 2);
    });
}
