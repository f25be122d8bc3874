//! Answers UDP echo requests (RFC 862) of one receive queue before the host's network stack sees them. All
//! other packets stay the host's, also requests on other queues or with a VLAN tag that the card leaves in
//! place. It does not assemble fragments.
//!
//! ```text
//! cargo run --release --example claim -- eth0
//! ```
//!
//! A port that receives and sends has an AF_XDP socket: it needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN
//! and locked memory (docs/running.md). For all queues, open `xdp:eth0` with `Port::open`, and run the loop in
//! a thread for each of `Port::queues`. Another port gets the packets first if its claim has a lower stage
//! (`sluice claims`).

use std::thread::sleep;
use std::time::Duration;

use sluicegate::port::{Directions, Port};
use sluicegate::ring::{Packet, Wait};

fn main() -> sluicegate::Result<()> {
    let interface = std::env::args().nth(1).unwrap_or_else(|| "lo".into());
    let filter = "ip[0] = 0x45 and udp dst port 7 and udp src portrange 1024-65535";
    let mut queue =
        Port::open_one(&format!("xdp:{interface}/0?filter={filter}"), Directions::Both)?;
    loop {
        if queue.sync_rx()? == 0 {
            match queue.needs_sync_tx() {
                true => sleep(Duration::from_micros(50)),
                false => drop(queue.wait_rx(Wait::default(), Duration::from_secs(1))?),
            }
        }
        let (mut requests, mut answers) = queue.rings_mut();
        for request in requests.packets() {
            let mut answer: Vec<u8> = request.segments().flatten().copied().collect();
            swap_addresses(&mut answer);
            // Without room the answer is lost, which UDP allows.
            answers.push(&Packet::new(request.meta(), &answer));
        }
        requests.release(requests.available());
        queue.sync_tx()?;
    }
}

/// Swaps source and destination of Ethernet, IPv4 and UDP, which leaves all checksums as they are.
fn swap_addresses(frame: &mut [u8]) {
    for (at, bytes) in [(0, 6), (26, 4), (34, 2)] {
        let (first, second) = frame[at..at + 2 * bytes].split_at_mut(bytes);
        first.swap_with_slice(second);
    }
}
