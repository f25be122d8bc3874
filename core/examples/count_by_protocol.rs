//! Counts the packets of a file, or of the first ten seconds of an interface, by transport protocol.
//!
//! ```text
//! cargo run --release --example count_by_protocol -- pcap:trace.pcapng
//! ```

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use etherparse::{SlicedPacket, TransportSlice};
use sluicegate::port::{Directions, LINKTYPE_ETHERNET, Port};
use sluicegate::ring::Packet;

fn main() -> sluicegate::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "packet:lo".into());
    let mut queue = Port::open_one(&name, Directions::Receive)?;
    let (mut counts, mut scratch) = (BTreeMap::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs(10);
    while !queue.is_finished() && Instant::now() < end {
        let batch = queue.receive(Duration::from_secs(1))?;
        for packet in batch.packets() {
            let interface = &batch.interfaces()[packet.meta().interface as usize];
            let protocol = match interface.link_type {
                LINKTYPE_ETHERNET => protocol(&packet, &mut scratch),
                _ => "not Ethernet",
            };
            *counts.entry(protocol).or_insert(0u64) += 1;
        }
    }
    // Ignore the error: the reader has exited.
    let _ = writeln!(stdout(), "{counts:#?}");
    Ok(())
}

/// Reads the headers; `scratch` holds the bytes of a packet that lies in several slots.
fn protocol(packet: &Packet<'_>, scratch: &mut Vec<u8>) -> &'static str {
    match SlicedPacket::from_ethernet(packet.contiguous(scratch)).map(|headers| headers.transport) {
        Ok(Some(TransportSlice::Tcp(_))) => "TCP",
        Ok(Some(TransportSlice::Udp(_))) => "UDP",
        Ok(Some(TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_))) => "ICMP",
        Ok(_) => "other",
        Err(_) => "malformed",
    }
}
