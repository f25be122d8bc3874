//! Assigns flows to workers, so that the packets of a flow stay in order. Each worker reads the whole file
//! and skips other workers' packets. So no worker waits for another, and no packet moves between CPU caches.
//! Reading costs a fraction of sending.

use sluicegate_base::headers::{self, Ip, protocol};

use super::sides::{Side, Sides};

/// The packets of a file that one worker sends.
#[derive(Debug)]
pub(super) struct Share {
    /// The number of the worker, and the number of workers of its target.
    worker: (u32, u32),
    /// The side that its target sends, if there are two targets.
    side: Option<(Side, Sides)>,
}

impl Share {
    pub(super) fn new(worker: (u32, u32), side: Option<(Side, Sides)>) -> Self {
        Self { worker, side }
    }

    /// Reports whether the worker sends a packet, the next one in the file.
    #[inline]
    pub(super) fn owns(&mut self, frame: &[u8]) -> bool {
        let (worker, workers) = self.worker;
        // A side depends on all earlier packets.
        let is_side =
            self.side.as_mut().is_none_or(|(side, sides)| sides.sender_of(frame) == *side);
        is_side && worker == worker_of(frame, workers)
    }

    /// Reports whether the worker counts the packets that no worker sends.
    pub(super) fn counts_others(&self) -> bool {
        self.worker.0 == 0 && self.side.as_ref().is_none_or(|(side, _)| *side == Side::Client)
    }

    /// Begins to read the file again.
    pub(super) fn begin_round(&mut self) {
        if let Some((_, sides)) = &mut self.side {
            sides.clear();
        }
    }
}

/// Returns the worker, of `workers`, that sends a packet.
#[inline]
fn worker_of(frame: &[u8], workers: u32) -> u32 {
    match workers {
        1 => 0,
        _ => ((u64::from(flow(frame)) * u64::from(workers)) >> 32) as u32,
    }
}

/// Hashes addresses, ports and protocol: equal for both directions of a flow. For fragments it hashes only
/// addresses, because only the first fragment has ports; for non-IP packets, MAC addresses and EtherType.
#[inline]
fn flow(frame: &[u8]) -> u32 {
    let Some(found) = headers::find(frame) else { return 0 };
    let Some(ip) = &found.ip else {
        return both(&frame[0..6], &frame[6..12], u64::from(found.ethertype));
    };
    let (source, destination) = (&frame[ip.source.clone()], &frame[ip.destination.clone()]);
    let (ports, kind) = match &ip.transport {
        Some(_) if !ip.fragment => (ports(frame, ip), u64::from(ip.protocol)),
        _ => (0, 0),
    };
    both(source, destination, ports << 8 | kind)
}

/// Returns both ports, the lower one first; 0 without ports.
#[inline]
fn ports(frame: &[u8], ip: &Ip) -> u64 {
    use protocol::{DCCP, SCTP, TCP, UDP, UDP_LITE};
    let Some(at) = &ip.transport else { return 0 };
    if !matches!(ip.protocol, TCP | UDP | SCTP | DCCP | UDP_LITE) {
        return 0;
    }
    let carried = &frame[at.clone()];
    match headers::be16(carried, 0).zip(headers::be16(carried, 2)) {
        Some((a, b)) => u64::from(a.min(b)) << 16 | u64::from(a.max(b)),
        None => 0,
    }
}

/// Hashes two addresses in either order, and `more`.
#[inline]
fn both(a: &[u8], b: &[u8], more: u64) -> u32 {
    let whole = mix(folded(a).wrapping_add(folded(b)) ^ more.rotate_left(17));
    (whole >> 32) as u32
}

#[inline]
fn folded(address: &[u8]) -> u64 {
    address.chunks(4).fold(0, |hash, part| {
        let number = part.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        mix(hash ^ number)
    })
}

/// Spreads a number over all bits (the finalizer of splitmix64 without its last step).
#[inline]
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewrite::tests::frame;

    /// Swaps addresses and ports.
    fn reversed(frame: &[u8], v6: bool) -> Vec<u8> {
        let mut back = frame.to_vec();
        let (at, bytes) = if v6 { (22, 16) } else { (26, 4) };
        let (source, rest) = back[at..].split_at_mut(bytes);
        source.swap_with_slice(&mut rest[..bytes]);
        let ports = at + 2 * bytes;
        back[ports..ports + 4].rotate_left(2);
        let (a, b) = back.split_at_mut(6);
        a.swap_with_slice(&mut b[..6]);
        back
    }

    #[test]
    fn both_directions_of_a_flow_are_one_worker_s() {
        for v6 in [false, true] {
            for port in 0..200 {
                let there = frame(0, v6, 6, &[4, port, 0, 80, 1, 2, 3, 4]);
                assert_eq!(flow(&there), flow(&reversed(&there, v6)), "IPv6 {v6}, port {port}");
            }
        }
    }

    #[test]
    fn pieces_of_a_datagram_stay_together() {
        let piece = |position: [u8; 2], carried: &[u8]| {
            let mut piece = frame(0, false, 17, carried);
            piece[20..22].copy_from_slice(&position);
            flow(&piece)
        };
        let first = piece([0x20, 0], &[4, 1, 0, 53, 9, 9, 9, 9]);
        assert_eq!(first, piece([0x20, 1], &[7; 8]));
        assert_eq!(first, piece([0, 2], &[8; 4]));
    }

    #[test]
    fn flows_are_spread_evenly_and_tags_do_not_matter() {
        let mut counts = [0; 4];
        for port in 0..4000_u16 {
            let ports = [port.to_be_bytes(), 80_u16.to_be_bytes()];
            let plain = frame(0, false, 17, ports.as_flattened());
            assert_eq!(flow(&plain), flow(&frame(1, false, 17, ports.as_flattened())));
            counts[worker_of(&plain, 4) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    #[test]
    fn every_packet_has_a_worker() {
        let whole = frame(1, true, 6, &[7; 20]);
        for workers in 1..9 {
            for bytes in 0..whole.len() {
                assert!(worker_of(&whole[..bytes], workers) < workers, "{bytes} bytes, {workers}");
            }
        }
    }
}
