//! Several queues, one file.

use std::time::Instant;

use super::*;

#[test]
fn several_queues_become_one_file_in_order() {
    if !have(&["tcpdump"]) {
        return;
    }
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.pcapng");
    let all = packets(3000);
    let mut merger = Merger::new(3);
    for queue in 0..3 {
        let mut encoder = Encoder::new(&EncoderConfig {
            queue: queue as u32,
            queues: 3,
            ..EncoderConfig::default()
        });
        let own: Vec<Seen> = all.iter().skip(queue).step_by(3).cloned().collect();
        for some in own.chunks(100) {
            merger.push(queue, chunk_of(&mut encoder, some), Instant::now());
        }
        merger.close(queue);
    }
    let mut output = Output::create(OutputConfig::new(&path)).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    let mut out = Encoder::new(&EncoderConfig::default()).chunk_of(30_000);
    loop {
        let more = merger.drain(None, &mut out);
        output.write(&out).unwrap();
        out.clear();
        if !more {
            break;
        }
    }
    assert_eq!(merger.late(), 0);
    assert_eq!(output.finish().packets, 3000);
    assert_eq!(by_tcpdump(fs::read(&path).unwrap()), all);
}
