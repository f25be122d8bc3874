//! From the first header of a frame to its stamp, and whether all on the way is as it was sent.
//!
//! Headers are gone through one by one, each as the one before says; the stamp stands where they
//! end. It is not searched for: bytes that look like one are in any traffic.

use super::stamp::Stamp;
use crate::plan::fold;

/// IANA's ports of what is in UDP.
const VXLAN_PORT: u16 = 4789;
const MPLS_PORT: u16 = 6635;
const GRE_PORT: u16 = 4754;

/// Whether a frame is as it was sent, as far as its headers can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Lengths agree, and every checksum there is is right.
    Intact,
    /// A checksum covers more than is here: the packet is cut, or a fragment.
    Unchecked,
    /// A checksum is wrong, or a length says more than there is.
    Corrupt,
}

/// What was found in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The stamp, if there is one.
    pub stamp: Option<Stamp>,
    /// The frame's condition.
    pub condition: Condition,
}

/// Goes through an Ethernet frame. `whole` says that none of its end was cut off.
#[inline]
pub fn look(frame: &[u8], whole: bool) -> Found {
    let mut walk = Walk { rest: frame, whole, below: None, condition: Condition::Intact };
    let mut next = Next::Ether;
    while next != Next::Data {
        // What cannot be read as a header is data.
        next = walk.header(next).unwrap_or(Next::Data);
    }
    Found { stamp: Stamp::read(walk.rest), condition: walk.condition }
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Ether,
    /// By EtherType.
    Type(u16),
    /// By IP protocol.
    Ip(u8),
    Vxlan,
    Gre,
    Data,
}

/// What is below a transport's header.
#[derive(Clone, Copy, Debug)]
struct Below {
    /// The sum of the addresses.
    sum: u64,
    v6: bool,
    fragment: bool,
}

struct Walk<'a> {
    /// What is left, as far as the headers say that it goes.
    rest: &'a [u8],
    whole: bool,
    below: Option<Below>,
    condition: Condition,
}

impl<'a> Walk<'a> {
    /// Reads a header, and says what comes behind it; `None` if there is none.
    fn header(&mut self, next: Next) -> Option<Next> {
        match next {
            Next::Ether => self.ether(),
            Next::Type(number) => match number {
                0x0800 => self.ipv4(),
                0x6558 => self.ether(),
                0x8100 | 0x88a8 => self.vlan(),
                0x86dd => self.ipv6(),
                0x8847 => self.mpls(),
                _ => None,
            },
            Next::Ip(number) => match number {
                0 | 43 | 60 => self.extension(),
                1 => self.icmp(None),
                6 => self.tcp(),
                17 => self.udp(),
                44 => self.fragment(),
                47 => self.gre(),
                58 => self.icmp(Some(58)),
                _ => None,
            },
            Next::Vxlan => self.take(8).map(|_| Next::Ether),
            Next::Gre => self.gre(),
            Next::Data => None,
        }
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (header, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(header)
    }

    /// A worse condition than there was.
    fn worsen(&mut self, condition: Condition) {
        if self.condition != Condition::Corrupt {
            self.condition = condition;
        }
    }

    /// What is behind so many bytes of the rest does not belong to it.
    #[inline]
    fn cut(&mut self, bytes: usize) {
        match self.rest.get(..bytes) {
            Some(rest) => {
                self.rest = rest;
                // What was cut off is behind it.
                self.whole = true;
            }
            None if self.whole => self.worsen(Condition::Corrupt),
            None => self.worsen(Condition::Unchecked),
        }
    }

    /// Checks a sum over all that it covers, itself too.
    #[inline]
    fn check(&mut self, sum: u64) {
        if fold(sum) != 0xffff {
            self.worsen(Condition::Corrupt);
        }
    }

    /// Checks the sum of what is left, with a pseudo header if there is a protocol in it.
    fn check_rest(&mut self, protocol: Option<u8>) {
        let below = self.below.unwrap_or(Below { sum: 0, v6: false, fragment: false });
        if below.fragment || !self.whole {
            self.worsen(Condition::Unchecked);
            return;
        }
        let pseudo = protocol.map_or(0, |protocol| {
            let number = |number: usize| sum(&(number as u32).to_be_bytes());
            below.sum + number(protocol.into()) + number(self.rest.len())
        });
        self.check(pseudo + sum(self.rest));
    }

    fn ether(&mut self) -> Option<Next> {
        let number = self.take(14)?.last_chunk()?;
        self.below = None;
        Some(Next::Type(u16::from_be_bytes(*number)))
    }

    fn vlan(&mut self) -> Option<Next> {
        let number = self.take(4)?.last_chunk()?;
        Some(Next::Type(u16::from_be_bytes(*number)))
    }

    fn mpls(&mut self) -> Option<Next> {
        let bottom = self.take(4)?[2] & 1 != 0;
        // What a label is for nobody says; a receiver guesses by the first bits (RFC 4928).
        Some(match (bottom, self.rest.first()? >> 4) {
            (false, _) => Next::Type(0x8847),
            (true, 4) => Next::Type(0x0800),
            (true, 6) => Next::Type(0x86dd),
            (true, _) if Stamp::read(self.rest).is_some() => Next::Data,
            (true, _) => Next::Ether,
        })
    }

    fn ipv4(&mut self) -> Option<Next> {
        let fixed = self.rest.first_chunk::<20>()?;
        let header_bytes = usize::from(fixed[0] & 0xf) * 4;
        let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if fixed[0] >> 4 != 4 || header_bytes < 20 || total < header_bytes {
            self.worsen(Condition::Corrupt);
            return None;
        }
        self.cut(total);
        let header = self.take(header_bytes)?;
        self.check(sum(header));
        let fragment = u16::from_be_bytes([fixed[6], fixed[7]]);
        let addresses = sum(&fixed[12..20]);
        self.below = Some(Below { sum: addresses, v6: false, fragment: fragment & 0x3fff != 0 });
        // Only the first piece has the next header.
        Some(if fragment & 0x1fff == 0 { Next::Ip(fixed[9]) } else { Next::Data })
    }

    fn ipv6(&mut self) -> Option<Next> {
        let header = self.take(40)?;
        if header[0] >> 4 != 6 {
            self.worsen(Condition::Corrupt);
        }
        self.cut(u16::from_be_bytes([header[4], header[5]]).into());
        self.below = Some(Below { sum: sum(&header[8..40]), v6: true, fragment: false });
        Some(Next::Ip(header[6]))
    }

    fn extension(&mut self) -> Option<Next> {
        let &[next, length, ..] = self.rest else { return None };
        self.take((usize::from(length) + 1) * 8)?;
        Some(Next::Ip(next))
    }

    fn fragment(&mut self) -> Option<Next> {
        let header = self.take(8)?;
        let word = u16::from_be_bytes([header[2], header[3]]);
        if let Some(below) = &mut self.below {
            below.fragment |= word & !6 != 0;
        }
        Some(if word >> 3 == 0 { Next::Ip(header[0]) } else { Next::Data })
    }

    fn udp(&mut self) -> Option<Next> {
        let &[_, _, high, low, long, short, sum, sum_low, ..] = self.rest else { return None };
        let below = self.below?;
        if !below.fragment {
            let length = usize::from(u16::from_be_bytes([long, short]));
            if length < 8 {
                self.worsen(Condition::Corrupt);
            } else {
                self.cut(length);
            }
        }
        if below.v6 || (sum, sum_low) != (0, 0) {
            self.check_rest(Some(17));
        }
        self.take(8)?;
        Some(match u16::from_be_bytes([high, low]) {
            _ if Stamp::read(self.rest).is_some() => Next::Data,
            VXLAN_PORT => Next::Vxlan,
            MPLS_PORT => Next::Type(0x8847),
            GRE_PORT => Next::Gre,
            _ => Next::Data,
        })
    }

    fn tcp(&mut self) -> Option<Next> {
        let header_bytes = usize::from(self.rest.get(12)? >> 4) * 4;
        self.check_rest(Some(6));
        if header_bytes < 20 {
            self.worsen(Condition::Corrupt);
            return None;
        }
        self.take(header_bytes)?;
        Some(Next::Data)
    }

    fn icmp(&mut self, protocol: Option<u8>) -> Option<Next> {
        self.check_rest(protocol);
        self.take(8)?;
        Some(Next::Data)
    }

    fn gre(&mut self) -> Option<Next> {
        let all = self.rest;
        let &[flags, _, high, low] = self.take(4)? else { return None };
        if flags & 0x80 != 0 {
            self.take(4)?;
            match self.whole && !self.below.is_some_and(|below| below.fragment) {
                true => self.check(sum(all)),
                false => self.worsen(Condition::Unchecked),
            }
        }
        for flag in [0x20, 0x10] {
            if flags & flag != 0 {
                self.take(4)?;
            }
        }
        Some(Next::Type(u16::from_be_bytes([high, low])))
    }
}

/// The sum of 16-bit numbers, as they stand in memory; a last byte alone is the first of two. What
/// is wanted of it is whether all its bits are set, and that is so in either order (RFC 1071).
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let whole: u64 = words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
    whole + u64::from(u32::from_ne_bytes(last))
}
