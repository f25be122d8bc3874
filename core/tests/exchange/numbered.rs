//! Frames that tests know again.

/// The experimental ethertype, which nobody else speaks (IEEE 802).
const OURS: [u8; 2] = [0x88, 0xb5];

/// A broadcast frame of our ethertype, with tags, a number and a pattern.
pub fn frame(number: u32, bytes: usize, tags: &[(u16, u16)]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(OURS);
    frame.extend(number.to_be_bytes());
    let fill = bytes.saturating_sub(frame.len());
    frame.extend((0..fill as u32).map(|i| (i.wrapping_mul(31) ^ number) as u8));
    frame
}

/// Returns true if a frame is a numbered one, also behind tags.
pub fn is_ours(bytes: &[u8]) -> bool {
    let mut at = 12;
    while matches!(bytes.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8])) {
        at += 4;
    }
    bytes.get(at..at + 2) == Some(&OURS)
}
