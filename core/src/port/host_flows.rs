//! Flows that a program leaves to the host.

use std::io;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::xdp::flows::{Flow, FlowCounts, FlowTable};
use sluicegate_base::ring::Packet;

/// The flows that a `host:` port with `flows=` leaves to the host: the kernel passes their packets in
/// both directions, past the port and past `xdp:` ports on the interface, until they are taken back
/// or the port ends. A flow is TCP or UDP between two addresses and ports, of IPv4 or IPv6, without
/// VLAN tags. A full table forgets a flow that was not seen for long: its packets come to the ports again.
///
/// Clones share the flows, and any thread may have one.
#[derive(Clone, Debug)]
pub struct HostFlows {
    table: Arc<FlowTable>,
    interface: Arc<str>,
}

impl HostFlows {
    pub(super) fn new(table: &Arc<FlowTable>, interface: &str) -> Self {
        Self { table: Arc::clone(table), interface: interface.into() }
    }

    /// Leaves both directions of a packet's flow to the host, from the next packet on. The packet's
    /// [`direction`](sluicegate_base::ring::Meta::direction) tells the host's side: out for a packet of a
    /// `host:` port, anything else for one of the wire. Returns false if the packet has no flow, like a
    /// fragment.
    ///
    /// Costs a system call: for one packet of a flow, not for each.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn give(&self, packet: &Packet<'_>) -> Result<bool> {
        let Some(flow) = flow_of(packet) else { return Ok(false) };
        self.table.insert(&flow).map_err(|error| self.failed("leave a flow to", error))?;
        Ok(true)
    }

    /// Takes a packet's flow back: both directions come to the ports again. Returns false if it was not left
    /// to the host.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn take_back(&self, packet: &Packet<'_>) -> Result<bool> {
        let Some(flow) = flow_of(packet) else { return Ok(false) };
        self.table.remove(&flow).map_err(|error| self.failed("take a flow back from", error))
    }

    /// Takes all flows back.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn clear(&self) -> Result<()> {
        self.table.clear().map_err(|error| self.failed("take all flows back from", error))
    }

    /// Returns the packets of these flows since the port was opened.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn counts(&self) -> Result<FlowCounts> {
        self.table.counts().map_err(|error| self.failed("count the flows of", error))
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        Error::system(operation, format!("the host on {}", self.interface), error)
    }
}

/// The headers of a flow are in a packet's first piece.
fn flow_of(packet: &Packet<'_>) -> Option<Flow> {
    Flow::of(packet.head(), packet.meta().direction)
}
