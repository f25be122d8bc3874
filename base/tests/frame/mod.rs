//! A frame for tests of headers.

/// Returns a frame to 198.18.0.2 or 2001:db8::2 with a payload.
pub(crate) fn frame(tags: usize, v6: bool, protocol: u8, carried: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((carried.len() as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        for host in [1, 2] {
            frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
        }
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + carried.len() as u16).to_be_bytes());
        frame.extend([0, 1, 0, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    }
    frame.extend(carried);
    frame
}
