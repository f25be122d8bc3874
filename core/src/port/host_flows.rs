//! Flows that a program leaves to the host.

use std::io;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::xdp::flows::{Flow, FlowCounts, FlowTable};
use sluicegate_base::ring::Packet;

/// The flows that a `host:` port with `flows=` leaves to the host. The kernel passes their packets in both
/// directions, bypassing the port and `xdp:` ports on the interface, until they are taken back or the port
/// ends. A flow is TCP or UDP between two addresses and ports, in IPv4 or IPv6, without VLAN tags. A full
/// table drops the least recently used flow: its packets go to the ports again.
///
/// Clones share the flows, and can be used in any thread.
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
    /// [`direction`](sluicegate_base::ring::Meta::direction) identifies the host's side: out for a packet
    /// from a `host:` port, anything else for a packet from the wire. Returns false if the packet has no
    /// flow, for example if it is a fragment.
    ///
    /// It takes a system call: call it for one packet of a flow, not for each.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn give(&self, packet: &Packet<'_>) -> Result<bool> {
        let Some(flow) = flow_of(packet) else { return Ok(false) };
        self.table.insert(&flow).map_err(|error| self.failed("leave a flow to", error))?;
        Ok(true)
    }

    /// Takes a packet's flow back: packets in both directions go to the ports again. Returns false if the
    /// flow was not left to the host.
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

    /// Returns the number of packets in these flows since the port was opened.
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

/// A packet's first piece contains the headers of its flow.
fn flow_of(packet: &Packet<'_>) -> Option<Flow> {
    Flow::of(packet.head(), packet.meta().direction)
}
