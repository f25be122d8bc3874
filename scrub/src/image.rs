//! The image: most tables of a policy in 64-byte lines, as the XDP program reads them.
//!
//! ```text
//!   params --> first line of each table                            (one value)
//!   image  --> [ line | line | ... ] [ line | line | ... ] ...     (one map a segment, written once)
//! ```
//!
//! A line is one cache line. Tables are appended and never change, so a new policy is a new image beside the old one.
//! Segments have one size, so the kernel reads them without a call (bpf/image.h).

/// Bytes of a line.
pub const LINE_BYTES: usize = 64;
/// Lines of a segment.
pub const SEGMENT_LINES: usize = 1 << 16;
/// Segments of an image, at most.
pub const MAX_SEGMENTS: usize = 512;
/// Bytes of an image, at most.
pub const MAX_BYTES: usize = MAX_SEGMENTS * SEGMENT_LINES * LINE_BYTES;

/// A line of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [u8; LINE_BYTES]);

impl Line {
    /// A line of zeros.
    pub const ZERO: Self = Self([0; LINE_BYTES]);
}

/// The lines of tables.
#[derive(Debug, Default)]
pub struct Image {
    lines: Vec<Line>,
}

impl Image {
    /// Appends a table whose elements fill lines exactly, as 1, 2, 4, ... 64 bytes do. Returns the number of its first line.
    pub fn append<const N: usize>(&mut self, elements: impl Iterator<Item = [u8; N]>) -> u32 {
        const { assert!(N > 0 && LINE_BYTES.is_multiple_of(N)) };
        let first = self.lines.len();
        let mut used = LINE_BYTES;
        for element in elements {
            if used == LINE_BYTES {
                self.lines.push(Line::ZERO);
                used = 0;
            }
            if let Some(Line(line)) = self.lines.last_mut() {
                line[used..used + N].copy_from_slice(&element);
            }
            used += N;
        }
        first as u32
    }

    /// Returns the lines.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Returns the bytes of the image, in whole segments.
    pub fn bytes(&self) -> usize {
        self.lines.len().next_multiple_of(SEGMENT_LINES) * LINE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_begin_at_lines() {
        let mut image = Image::default();
        let numbers = |count: u16| (0..count).map(u16::to_ne_bytes);
        assert_eq!(image.append(numbers(33)), 0);
        assert_eq!(image.append(numbers(0)), 2);
        assert_eq!(image.append([[7_u8; 64]].into_iter()), 2);
        assert_eq!(image.append(numbers(32)), 3);
        assert_eq!(image.lines().len(), 4);
        assert_eq!(image.bytes(), 4 << 20);
        assert_eq!(image.lines()[1].0[..4], [32, 0, 0, 0], "the rest of a line is zero");
        assert_eq!(image.lines()[2], Line([7; 64]));
    }
}
