//! The stamp that identifies a packet to the receiver (docs/generate.md).

/// The fields of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The stream's number in its specification.
    pub stream: u8,
    /// The thread that sent it.
    pub worker: u8,
    /// The packet's number in both; after 2³² packets it starts over.
    pub number: u32,
    /// When it was made, in ns of the sender's CLOCK_MONOTONIC.
    pub time_ns: u64,
}

impl Stamp {
    /// Bytes it has.
    pub const BYTES: usize = 16;
    /// Its first two bytes.
    pub const MAGIC: [u8; 2] = *b"Sl";

    /// Reads one at the start of some bytes; none if there is none.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let &[s, l, stream, worker, a, b, c, d, ref time @ ..] = bytes.first_chunk::<16>()?;
        let (number, time_ns) = (u32::from_be_bytes([a, b, c, d]), u64::from_be_bytes(*time));
        ([s, l] == Self::MAGIC).then_some(Self { stream, worker, number, time_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_where_it_is_whole() {
        let bytes = b"Sl\x07\x02\x00\x01\x00\x09\x00\x00\x00\x00\x00\x00\x01\x00and on";
        let stamp = Stamp { stream: 7, worker: 2, number: 0x1_0009, time_ns: 256 };
        assert_eq!(Stamp::read(bytes), Some(stamp));
        assert_eq!(Stamp::read(&bytes[..16]), Some(stamp), "nothing behind it");
        assert_eq!(Stamp::read(&bytes[..15]), None, "cut");
        assert_eq!(Stamp::read(&bytes[1..]), None, "something else");
    }
}
