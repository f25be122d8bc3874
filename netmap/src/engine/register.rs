//! REGISTER: modes and flags become the rings that a file binds.

use std::sync::Arc;

use nix::errno::Errno;

use super::EngineOptions;
use super::adapter::{Adapter, Geometry, PortRings, Selection};
use super::binding::{Binding, PollPolicy};
use super::control::Control;
use super::region::NewInterface;
use super::ring::Way;
use crate::abi::PortName;
use crate::abi::bodies::{Register, modes, register_flags};

/// The flags of a monitor.
pub(super) const MONITOR: u64 = register_flags::MONITOR_TX | register_flags::MONITOR_RX;

/// Registers a port for a file, and turns the request into its answer.
pub(super) fn register(
    control: &mut Control,
    port: &PortName,
    body: &mut Register,
    options: &EngineOptions,
) -> Result<Binding, Errno> {
    if body.flags & register_flags::ZCOPY_MON != 0 {
        // In netmap, too, a zero-copy monitor sees both directions.
        body.flags |= MONITOR;
    }
    let adapter = match body.mode {
        modes::NULL if body.mem_id == 0 => return Err(Errno::EINVAL),
        modes::NULL => {
            let region = control.region(body.mem_id)?;
            // Programs read back the rings that they named, none of which exists.
            let geometry = Geometry {
                tx_rings: body.tx_rings.into(),
                rx_rings: body.rx_rings.into(),
                tx_slots: body.tx_slots,
                rx_slots: body.rx_slots,
                ..Geometry::default()
            };
            let memory = PortRings { region, geometry };
            Arc::new(Adapter::new(port.as_str(), memory, None))
        }
        modes::ALL_NIC | modes::SW | modes::NIC_SW | modes::ONE_NIC | modes::ONE_SW => {
            control.adapter(port, body, options)?
        }
        _ => return Err(Errno::EINVAL),
    };
    let region = &adapter.port.region;
    if body.mem_id != 0 && body.mem_id != region.id {
        return Err(Errno::EINVAL);
    }
    let geometry = adapter.port.geometry;
    let selection = selection(&geometry, body)?;
    let krings = adapter.bind(&selection, body.flags & register_flags::EXCLUSIVE != 0)?;
    let offsets: Vec<_> = [Way::Transmit, Way::Receive]
        .into_iter()
        .flat_map(|way| (0..geometry.rings(way).1).map(move |number| (way, number)))
        .map(|(way, number)| {
            let found = krings.iter().find(|kring| kring.way == way && kring.number == number);
            found.map(|kring| kring.offset)
        })
        .collect();
    let Geometry { tx_rings, rx_rings, host_tx_rings, host_rx_rings, .. } = geometry;
    let interface = region.make_interface(&NewInterface {
        name: &adapter.name,
        counts: [tx_rings, rx_rings, host_tx_rings, host_rx_rings],
        ring_offsets: &offsets,
    });
    let interface = interface.inspect_err(|_| adapter.unbind(&selection))?;
    body.offset = interface as u64;
    body.memsize = region.memory.bytes() as u64;
    (body.tx_slots, body.rx_slots) = (geometry.tx_slots, geometry.rx_slots);
    (body.tx_rings, body.rx_rings) = (tx_rings as u16, rx_rings as u16);
    (body.host_tx_rings, body.host_rx_rings) = (host_tx_rings as u16, host_rx_rings as u16);
    body.mem_id = region.id;
    body.extra_bufs = region.take_extra_buffers(interface, body.extra_bufs);
    let policy = PollPolicy {
        transmit: body.flags & register_flags::NO_TX_POLL == 0,
        receive: body.flags & register_flags::DO_RX_POLL != 0,
    };
    Ok(Binding::new(&adapter, selection, krings, interface, policy))
}

/// Returns the rings of a mode, with its flags.
///
/// # Errors
/// EINVAL: the port has no such ring.
fn selection(geometry: &Geometry, body: &Register) -> Result<Selection, Errno> {
    let ringid = u32::from(body.ringid);
    let counts = [Way::Transmit, Way::Receive].map(|way| geometry.rings(way));
    let is_host = matches!(body.mode, modes::SW | modes::NIC_SW | modes::ONE_SW);
    if is_host && !geometry.has_host {
        return Err(Errno::EINVAL);
    }
    // A direction with fewer rings has its first one.
    let one = |first: u32, end: u32| {
        let number = if first + ringid < end { first + ringid } else { first };
        number..number + 1
    };
    let within = |number: fn((u32, u32)) -> u32| counts.iter().any(|&it| ringid < number(it));
    let range = |(card, all): (u32, u32)| match body.mode {
        modes::ALL_NIC => Ok(0..card),
        modes::SW => Ok(card..all),
        modes::NIC_SW => Ok(0..all),
        modes::ONE_NIC if within(|(card, _)| card) => Ok(one(0, card)),
        modes::ONE_SW if within(|(card, all)| all - card) => Ok(one(card, all)),
        modes::NULL => Ok(0..0),
        _ => Err(Errno::EINVAL),
    };
    let (mut tx, mut rx) = (range(counts[0])?, range(counts[1])?);
    if body.flags & (register_flags::RX_RINGS_ONLY | MONITOR) != 0 {
        tx = 0..0;
    }
    if body.flags & register_flags::TX_RINGS_ONLY != 0 {
        rx = 0..0;
    }
    Ok(Selection { tx, rx })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_flags_select_rings() {
        use modes::*;
        use register_flags::*;
        let geometry = Geometry {
            tx_rings: 2,
            rx_rings: 4,
            host_tx_rings: 1,
            host_rx_rings: 1,
            has_host: true,
            ..Geometry::default()
        };
        for (mode, ringid, flags, expected, why) in [
            (ALL_NIC, 9, 0, Ok((0..2, 0..4)), "the ring number has no meaning"),
            (SW, 0, 0, Ok((2..3, 4..5)), "the host's"),
            (NIC_SW, 0, 0, Ok((0..3, 0..5)), "all"),
            (ONE_NIC, 1, 0, Ok((1..2, 1..2)), "one pair"),
            (ONE_NIC, 3, 0, Ok((0..1, 3..4)), "with fewer transmit rings"),
            (ONE_NIC, 4, 0, Err(Errno::EINVAL), "no such ring"),
            (ONE_SW, 0, 0, Ok((2..3, 4..5)), "one pair of the host"),
            (ONE_SW, 1, 0, Err(Errno::EINVAL), "no such ring of the host"),
            (ALL_NIC, 0, RX_RINGS_ONLY, Ok((0..0, 0..4)), "to receive"),
            (ALL_NIC, 0, TX_RINGS_ONLY, Ok((0..2, 0..0)), "to send"),
            (ALL_NIC, 0, MONITOR_TX, Ok((0..0, 0..4)), "a monitor receives"),
            (5, 0, 0, Err(Errno::EINVAL), "a legacy mode"),
        ] {
            let body = Register { mode, ringid, flags, ..Register::default() };
            let found = selection(&geometry, &body).map(|it| (it.tx, it.rx));
            assert_eq!(found, expected, "{why}");
        }
        let without_host = Geometry { has_host: false, ..geometry };
        let body = Register { mode: SW, ..Register::default() };
        assert_eq!(selection(&without_host, &body), Err(Errno::EINVAL));
    }
}
