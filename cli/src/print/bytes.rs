//! Reading headers that may be cut anywhere.

/// The packet was cut inside this protocol's header: the line ends with `[|name]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut(pub &'static str);

/// The captured bytes of one protocol's header and payload. A read past the end is a [`Cut`] that
/// names the protocol.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    data: &'a [u8],
    protocol: &'static str,
}

impl<'a> Bytes<'a> {
    pub fn new(data: &'a [u8], protocol: &'static str) -> Self {
        Self { data, protocol }
    }

    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// The end of the packet, met while reading.
    pub fn cut(&self) -> Cut {
        Cut(self.protocol)
    }

    /// Returns true if `count` bytes at `at` were captured.
    pub fn has(&self, at: usize, count: usize) -> bool {
        at + count <= self.data.len()
    }

    pub fn slice(&self, at: usize, count: usize) -> Result<&'a [u8], Cut> {
        self.data.get(at..at + count).ok_or(Cut(self.protocol))
    }

    pub fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Cut> {
        let found = self.data.get(at..).and_then(|rest| rest.first_chunk());
        found.copied().ok_or(Cut(self.protocol))
    }

    pub fn u8(&self, at: usize) -> Result<u8, Cut> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    pub fn u16(&self, at: usize) -> Result<u16, Cut> {
        self.array(at).map(u16::from_be_bytes)
    }

    pub fn u32(&self, at: usize) -> Result<u32, Cut> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// The bytes from `at` on; empty if the packet ends before it.
    pub fn after(&self, at: usize) -> &'a [u8] {
        self.data.get(at..).unwrap_or_default()
    }
}

/// The first `length` bytes, or as many as there are.
pub fn first(data: &[u8], length: u32) -> &[u8] {
    &data[..data.len().min(length as usize)]
}
