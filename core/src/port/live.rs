//! `live:`, an interface through live frames: the port writes packets into memory, and a program in the
//! kernel, on a thread of its own, sends them. It only sends.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `ring_size` | packets in a queue's ring on the kernel's side, 64 to 65536, rounded up to a power of two | 2048 |
//! | `cpu` | the CPU of the first queue's thread; further queues use the CPUs after it | any but the sender's |
//! | `slots` | slots in the queue's transmit ring, 2 to 16384 | 512 |
//!
//! The thread runs the program while there are packets and a moment longer, then sleeps until the next sync.
//! While it runs it uses a whole CPU; on a single CPU the port is slower.
//!
//! A port can have more queues than the card. The rings of all queues together have at most 4 GiB. Packets
//! of a queue leave in order. A packet has at least 14 bytes and at most the interface's MTU plus its
//! header. It has at most 3368 bytes, because a live frame has one page. Longer packets are refused, and
//! counted as `too_long`.
//!
//! Needs Linux 5.18, CAP_BPF and CAP_NET_ADMIN; CAP_PERFMON and CAP_SYS_ADMIN make it faster. The driver must
//! take packets that XDP redirects (`ndo_xdp_xmit`): a veth does if its other end has NAPI.

use super::interface::{described, find_ethernet};
use super::live_queue::{DEFAULT_RING, LiveQueue, geometry, open_sender};
use super::name::PortName;
use super::options::{Directions, OpenOptions};
use super::queue::Port;
use super::rings::{PoolRequirements, RingMaker};
use crate::error::Result;
use crate::link::{self, netns};
use crate::xdp::live::check_target;

/// Maximum kernel memory in bytes for the rings of a port.
const MAX_BYTES_OF_RINGS: u64 = 4 << 30;

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    if options.usage != Directions::Send {
        return Err(name.error("it only sends; packet:, xdp: and mirror: receive"));
    }
    let ring = ring_slots(name)?;
    let first_cpu = name.count("cpu", 0..=4095)?;
    let slots = name.slots(2..=16_384)?;
    let netns = options.netns.as_deref();
    let otherwise = "live frames are for Ethernet interfaces; packet: sends to others";
    let interface = find_ethernet(name, netns, otherwise)?;
    check_target(&interface, netns)?;
    let numbers = name.queue_numbers(options);
    let count = numbers.clone().count();
    check_memory(name, ring, &interface, count)?;
    let pool = PoolRequirements::usual(count as u32, slots).pool_of(options)?;
    let rings = RingMaker { pool, usage: Directions::Send, slots };
    // A program sends to an interface of the namespace in which it runs.
    let open = |i: usize| {
        let cpu = first_cpu.map(|first| first as usize + i);
        LiveQueue::new(open_sender(ring, cpu, &interface, false)?, &interface)
    };
    let queues = netns::run_in(netns, || (0..count).map(open).collect::<Result<Vec<_>>>())?;
    let queues = rings.queues(&described(&*interface.name, ""), numbers.zip(queues))?;
    Ok(Port { method: "ring", ..Port::plain(name, queues) })
}

/// Returns the number of slots in the program's ring of a queue.
fn ring_slots(name: &PortName) -> Result<u32> {
    let slots = name.count("ring_size", 64..=65_536)?.unwrap_or(DEFAULT_RING);
    Ok(slots.next_power_of_two())
}

/// Rejects rings that would take too much of the host's memory.
fn check_memory(
    name: &PortName,
    slots: u32,
    interface: &link::Interface,
    queues: usize,
) -> Result<()> {
    let bytes = u64::from(geometry(slots, interface).bytes()) * queues as u64;
    if bytes <= MAX_BYTES_OF_RINGS {
        return Ok(());
    }
    let gib = bytes.div_ceil(1 << 30);
    Err(name.error(format!(
        "rings of {slots} packets for {queues} queues take {gib} GiB, and 4 are the most: use a \
         smaller ring_size=, or fewer queues"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_a_bound_over_all_queues() {
        let interface = link::Interface { mtu: 1500, ..link::Interface::default() };
        for (text, queues, fits) in [
            ("live:eth0", 1024, true),
            ("live:eth0?ring_size=65536", 32, true),
            ("live:eth0?ring_size=65536", 1024, false),
        ] {
            let name: PortName = text.parse().unwrap();
            let slots = ring_slots(&name).unwrap();
            let checked = check_memory(&name, slots, &interface, queues);
            assert_eq!(checked.is_ok(), fits, "{text}, {queues}");
            if let Err(error) = checked {
                let said = error.to_string();
                assert!(said.contains("use a smaller ring_size=, or fewer queues"), "{said}");
            }
        }
    }
}
