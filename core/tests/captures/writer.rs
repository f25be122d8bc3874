//! Capture files made by hand, and by chance.

/// The order of a number's bytes.
#[derive(Clone, Copy, PartialEq)]
pub enum Order {
    Little,
    Big,
}

/// Puts a file together, number by number.
pub struct CaptureWriter {
    order: Order,
    pub bytes: Vec<u8>,
}

impl CaptureWriter {
    pub fn new(order: Order) -> Self {
        let bytes = Vec::new();
        Self { order, bytes }
    }

    pub fn u16(&mut self, n: u16) -> &mut Self {
        self.raw(&match self.order {
            Order::Little => n.to_le_bytes(),
            Order::Big => n.to_be_bytes(),
        })
    }

    pub fn u32(&mut self, n: u32) -> &mut Self {
        self.raw(&match self.order {
            Order::Little => n.to_le_bytes(),
            Order::Big => n.to_be_bytes(),
        })
    }

    pub fn u64(&mut self, n: u64) -> &mut Self {
        self.raw(&match self.order {
            Order::Little => n.to_le_bytes(),
            Order::Big => n.to_be_bytes(),
        })
    }

    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn padded(&mut self, bytes: &[u8]) -> &mut Self {
        self.raw(bytes);
        self.raw(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])
    }

    pub fn pcap_header(&mut self, magic: u32, version: (u16, u16), snaplen: u32, link: u32) {
        self.u32(magic).u16(version.0).u16(version.1);
        self.u64(0).u32(snaplen).u32(link);
    }

    pub fn two_records(&mut self, magic: u32, version: (u16, u16), first: u32, second: u32) {
        let captured = match version {
            (2, 4) => first,
            (2, 3) => first.min(second),
            _ => second,
        };
        for i in 0..2 {
            self.u32(1_700_000_000).u32(999_999).u32(first).u32(second);
            if magic == 0xa1b2_cd34 {
                self.u64(7);
            }
            self.raw(&vec![i; captured as usize]);
        }
    }

    pub fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inner = Self::new(self.order);
        body(&mut inner);
        let length = inner.bytes.len() as u32 + 12;
        self.u32(kind).u32(length).raw(&inner.bytes).u32(length)
    }

    pub fn section(&mut self) -> &mut Self {
        self.block(0x0a0d_0d0a, |b| {
            b.u32(0x1a2b_3c4d).u16(1).u16(0).u64(u64::MAX);
        })
    }

    pub fn interface(&mut self, link: u16, snaplen: u32, options: &[(u16, &[u8])]) -> &mut Self {
        self.block(1, |b| {
            b.u16(link).u16(0).u32(snaplen);
            b.options(options);
        })
    }

    pub fn options(&mut self, options: &[(u16, &[u8])]) {
        for (code, value) in options {
            self.u16(*code).u16(value.len() as u16).padded(value);
        }
        if !options.is_empty() {
            self.u32(0);
        }
    }

    pub fn enhanced(
        &mut self,
        interface: u32,
        ticks: u64,
        data: &[u8],
        options: &[(u16, &[u8])],
    ) -> &mut Self {
        self.block(6, |b| {
            b.u32(interface).u32((ticks >> 32) as u32).u32(ticks as u32);
            b.u32(data.len() as u32).u32(1500).padded(data);
            b.options(options);
        })
    }

    pub fn number32(&self, n: u32) -> [u8; 4] {
        match self.order {
            Order::Little => n.to_le_bytes(),
            Order::Big => n.to_be_bytes(),
        }
    }
}

/// Pseudo-random numbers, equal in every run (xorshift64).
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }
}
