//! Forwarding between a host and its wire: the allowed pairs of ports, and flows that are left to the host
//! after their first packet.

use std::sync::Arc;

use crate::ledger::Section;
use sluicegate::error::{Error, Result};
use sluicegate::filter::Filter;
use sluicegate::port::{HostFlows, Kind, LINKTYPE_ETHERNET, Port, PortName, Queue};
use sluicegate::ring::Packet;

use crate::notice;
use crate::report::Report;

/// The default size of a host: port's flow table.
const FLOWS: &str = "65536";

/// Returns true if the two ports are the host side and the wire side of one interface.
///
/// # Errors
/// The wire-side port also leaves its packets to the host.
pub fn are_its_sides(ports: [&PortName; 2], one_way: bool) -> Result<bool> {
    let same = ports[0].name() == ports[1].name();
    let kinds = ports.map(PortName::kind);
    let Some(host) = kinds.iter().position(|&kind| kind == Kind::Host).filter(|_| same) else {
        return Ok(false);
    };
    let wire = ports[1 - host];
    // Sending by packet sockets and live frames is harmless.
    let receives = !one_way || host == 1;
    match wire.kind() {
        Kind::Xdp => Ok(true),
        Kind::Host => Ok(false),
        Kind::Packet | Kind::Mirror if receives => Err(wire.error(
            "the host has these packets already and would get them twice; use xdp:, which takes them",
        )),
        _ => Ok(true),
    }
}

/// Makes the host: port keep flows, for `--host-flows`.
///
/// # Errors
/// No port is a host: port, or the other port is of another interface.
pub fn keep_flows(ports: [&mut PortName; 2]) -> Result<()> {
    let same = ports[0].name() == ports[1].name();
    let Some(host) = ports.iter().position(|port| port.kind() == Kind::Host) else {
        return Err(Error::Usage("--host-flows needs a host: port".into()));
    };
    let wire = &ports[1 - host];
    let kinds = [Kind::Packet, Kind::Xdp, Kind::Mirror, Kind::Live, Kind::Host];
    if kinds.contains(&wire.kind()) && !same {
        return Err(wire.error(format!(
            "--host-flows needs the host's own interface on the other side, because flows left to the \
             host leave by it; use xdp:{}",
            ports[host].name()
        )));
    }
    ports[host].set_default("flows", FLOWS);
    Ok(())
}

/// The flows that are left to the host.
#[derive(Debug)]
pub struct HostFlowFilter {
    filter: Filter,
    flows: HostFlows,
}

impl HostFlowFilter {
    /// Leaves flows that match an expression to the host: port among these; `None` without such a port.
    ///
    /// # Errors
    /// The expression does not compile.
    pub fn of(expression: &str, ports: &[Port; 2]) -> Result<Option<Arc<Self>>> {
        let filter = Filter::compile(expression, LINKTYPE_ETHERNET)?;
        let mut queues = ports.iter().flat_map(|port| &port.queues);
        let flows = queues.find_map(Queue::host_flows).cloned();
        Ok(flows.map(|flows| Arc::new(Self { filter, flows })))
    }

    /// Passes the flows of matching packets to the host; the packets themselves are still forwarded.
    ///
    /// # Errors
    /// The kernel refuses a flow.
    pub fn inspect<'a>(&self, packets: impl Iterator<Item = Packet<'a>>) -> Result<()> {
        for packet in packets {
            if self.filter.matches(packet.head(), packet.meta().wire_bytes) {
                self.flows.give(&packet)?;
            }
        }
        Ok(())
    }

    /// Adds the number of packets that bypassed the forwarder to the report, or the reason why it is unknown.
    pub fn account(&self, report: &mut Report) {
        let counts = match self.flows.counts() {
            Ok(counts) => counts,
            Err(error) => {
                let said = format!("packets of the host's flows are not counted: {error}");
                notice::say(&said);
                report.notices.push(said);
                return;
            }
        };
        report.ledger.add(Section::Note, "host_flows_from_wire", counts.from_wire);
        report.ledger.add(Section::Note, "host_flows_from_host", counts.from_host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_and_its_wire_are_two_sides() {
        for (names, one_way, expected) in [
            (["xdp:eth0", "host:eth0"], false, Some(true)),
            (["host:eth0/0-1", "xdp:eth0"], false, Some(true)),
            (["host:eth0", "live:eth0"], true, Some(true)),
            (["host:eth0", "packet:eth0"], true, Some(true)),
            (["host:eth0", "packet:eth0"], false, None),
            (["packet:eth0", "host:eth0"], true, None),
            (["mirror:eth0", "host:eth0"], true, None),
            (["host:eth0", "host:eth0"], false, Some(false)),
            (["xdp:eth0", "host:eth1"], false, Some(false)),
            (["xdp:eth0", "xdp:eth0"], false, Some(false)),
        ] {
            let ports: [PortName; 2] = names.map(|name| name.parse().unwrap());
            let sides = are_its_sides([&ports[0], &ports[1]], one_way).ok();
            assert_eq!(sides, expected, "{names:?}, one way: {one_way}");
        }
    }

    #[test]
    fn flows_are_left_only_to_a_host_port() {
        let mut ports: [PortName; 2] = ["xdp:eth0", "xdp:eth1"].map(|name| name.parse().unwrap());
        let [a, b] = &mut ports;
        assert!(keep_flows([a, b]).is_err());
        ports[1] = "host:eth0?flows=99".parse().unwrap();
        let [a, b] = &mut ports;
        keep_flows([a, b]).unwrap();
        let mut other: PortName = "xdp:eth1".parse().unwrap();
        let error = keep_flows([&mut other, b]).unwrap_err().to_string();
        assert!(error.contains("use xdp:eth0"), "{error}");
        assert!(keep_flows([&mut "pcap:file".parse().unwrap(), b]).is_ok());
        assert_eq!(ports[1].option("flows"), Some("99"), "the name wins");
    }
}
