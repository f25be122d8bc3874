//! Checksums that cover changed fields.

use sluicegate_base::headers::{Headers, Ip, be16, ethertype, protocol};

use crate::plan::{fold, words};

/// Corrects a transport checksum, if it covers the packet's addresses.
pub(super) fn correct_transport(
    carried: &mut [u8],
    (kind, v6): (u8, bool),
    difference: Difference,
) {
    use protocol::{DCCP, ICMPV6, TCP, UDP, UDP_LITE};
    let at = match kind {
        TCP => 16,
        UDP | UDP_LITE | DCCP => 6,
        ICMPV6 => 2,
        // Mobile IPv6 and HIP.
        135 | 139 => 4,
        // OSPFv3 and PIM; over IPv4 neither covers addresses.
        89 if v6 => 12,
        103 if v6 => 2,
        // VRRP of version 3; older versions do not cover addresses.
        112 if carried.first().is_some_and(|version| version >> 4 == 3) => 6,
        _ => return,
    };
    // In UDP 0 means no checksum; a checksum of 0 is written as 0xffff.
    if kind == UDP && be16(carried, at) == Some(0) {
        return;
    }
    correct(carried, at, difference);
    if matches!(kind, UDP | UDP_LITE) && be16(carried, at) == Some(0) {
        carried[at..at + 2].fill(0xff);
    }
}

pub(super) fn correct(bytes: &mut [u8], at: usize, difference: Difference) {
    if let Some(checksum) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *checksum = difference.correct(*checksum);
    }
}

/// Recomputes the checksums of an IP packet. Those of a truncated packet or a fragment stay, because they
/// cover missing bytes.
pub(super) fn recompute(frame: &mut [u8], found: &Headers, ip: &Ip) {
    use protocol::{ICMP, ICMPV6, TCP, UDP};
    let (v6, network) = (found.ethertype == ethertype::IPV6, found.network);
    if !v6 {
        let bytes = usize::from(frame[network] & 0xf) * 4;
        if let Some(header) = frame.get_mut(network..network + bytes) {
            put_checksum(header, 10, 0);
        }
    }
    let (length_at, besides) = if v6 { (4, 40) } else { (2, 0) };
    // 0 is the length of a packet that the card splits later, which may be cut, too.
    let length = be16(frame, network + length_at).map_or(0, usize::from);
    let is_whole = length > 0 && network + besides + length <= frame.len();
    if !is_whole || ip.fragment || ip.segments_left {
        return;
    }
    let Some(at) = ip.transport.clone() else { return };
    let kind = ip.protocol;
    let addresses = words(&frame[ip.source.clone()]) + words(&frame[ip.destination.clone()]);
    let carried = &mut frame[at];
    let bytes = match kind {
        UDP => be16(carried, 4).map_or(0, usize::from),
        _ => carried.len(),
    };
    let Some(carried) = carried.get_mut(..bytes) else { return };
    let pseudo_header = addresses + u64::from(kind) + bytes as u64;
    match kind {
        TCP => put_checksum(carried, 16, pseudo_header),
        // In UDP over IPv4 0 means no checksum; a checksum of 0 is written as 0xffff.
        UDP if v6 || be16(carried, 6) != Some(0) => {
            put_checksum(carried, 6, pseudo_header);
            if be16(carried, 6) == Some(0) {
                carried[6..8].fill(0xff);
            }
        }
        ICMP if !v6 => put_checksum(carried, 2, 0),
        ICMPV6 if v6 => put_checksum(carried, 2, pseudo_header),
        _ => {}
    }
}

/// Stores the checksum of some bytes at an even offset in them; `besides` is the sum of what it covers besides
/// them.
fn put_checksum(bytes: &mut [u8], at: usize, besides: u64) {
    let Some(field) = bytes.get_mut(at..at + 2) else { return };
    field.fill(0);
    let checksum = !fold(words(bytes) + besides);
    bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// The effect of changed words on a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference(u64);

impl Difference {
    /// Adds the change from one byte string at an even offset to another of the same length; an odd last byte
    /// is padded with 0.
    pub(super) fn change(&mut self, before: &[u8], now: &[u8]) {
        // Adding the complement of a word subtracts it.
        self.0 += 0xffff * before.len().div_ceil(2) as u64 - words(before) + words(now);
    }

    /// Adds the change of the sum of `bytes` bytes at an even offset.
    pub(super) fn change_sum(&mut self, before: u64, now: u64, bytes: usize) {
        if before != now {
            self.0 += 0xffff * bytes.div_ceil(2) as u64 - before + now;
        }
    }

    /// Adds another change.
    pub(super) fn add(&mut self, other: Self) {
        self.0 += other.0;
    }

    /// Reports whether no word has changed.
    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Corrects a checksum.
    pub(super) fn correct(self, checksum: [u8; 2]) -> [u8; 2] {
        let sum = u64::from(!u16::from_be_bytes(checksum)) + self.0;
        (!fold(sum)).to_be_bytes()
    }
}
