//! `--dmac auto`: the next hop of a capture file's packets, once they have their new addresses.

use std::net::IpAddr;
use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::link::{Interface, Mac, NextHops};
use sluicegate::port::{OpenOptions, Port, PortName};
use sluicegate_traffic::rewrite::Rewrite;

use crate::send::{common_hop, destination};

/// Packets of the file that are looked at for their destinations.
const SAMPLED: usize = 1000;

/// The MAC that all packets of a file are sent to.
///
/// A file that cannot be read twice; no interface to send out of; a next hop that does not resolve.
pub fn mac(
    file: &PortName,
    port: &PortName,
    interface: Option<&Interface>,
    netns: Option<&str>,
    rewrite: &Rewrite,
) -> Result<Mac> {
    let Some(interface) = interface.filter(|it| it.mac.is_some()) else {
        let short = port.short();
        return Err(Error::Usage(format!(
            "--dmac auto: {short} is no Ethernet interface: it has no next hop; name a MAC"
        )));
    };
    if !Path::new(file.name()).is_file() {
        return Err(Error::Usage(format!(
            "--dmac auto: {} can be read only once: write it to a file first, or name a MAC",
            file.name()
        )));
    }
    let destinations = destinations(file, rewrite)?;
    let mut hops = NextHops::open(netns, interface)?;
    let (destination, _) = common_hop(&mut hops, file.name(), &destinations)?;
    hops.mac(destination)
}

/// The IP destinations of the first packets, as they are sent.
fn destinations(file: &PortName, rewrite: &Rewrite) -> Result<Vec<IpAddr>> {
    let mut port = Port::open(file, &OpenOptions::default())?;
    let mut found = Vec::new();
    let Some(queue) = port.queues.first_mut() else { return Ok(found) };
    let mut packets = 0;
    // What is broken behind some packets is for the run to report, which sends these.
    while packets < SAMPLED && !queue.is_finished() && queue.sync_rx().is_ok() {
        for packet in queue.rx().packets() {
            let mut frame = packet.head().to_vec();
            rewrite.apply(&mut frame);
            found.extend(destination(&frame));
            packets += 1;
        }
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    Ok(found)
}
