//! Reading numbers out of bytes, front to back, in the byte order of whoever wrote them.

/// The order of a number's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

/// Bytes and how far they have been read. Every call answers `None` where they run out.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    order: Order,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8], order: Order) -> Self {
        Self { rest: bytes, order }
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(super) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Option<u16> {
        let bytes = self.array()?;
        Some(match self.order {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        })
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Option<u32> {
        let bytes = self.array()?;
        Some(match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        })
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Option<u64> {
        let bytes = self.array()?;
        Some(match self.order {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        })
    }
}
