//! One queue of a `host:` port: a queue of its device, and the programs that redirect packets to it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::device::DeviceQueue;
use super::hooks::Hooks;
use super::program::Liveness;
use crate::error::{Error, Result};
use crate::link::{Interface, Mac, Netlink};
use crate::port::backend::{Backend, WakeSource};
use crate::port::host_flows::HostFlows;
use crate::port::stats::QueueStats;
use crate::port::tap_queue::TapQueue;
use crate::xdp::resident::Stage;
use sluicegate_base::ring::{Readiness, Ring, Wait};

/// The interval of checks of the interface.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Redirects packets to the device until the last queue has stopped receiving.
#[derive(Debug)]
pub(super) struct HostRx {
    pub(super) hooks: Mutex<Hooks>,
    /// Passes the host's flows from the wire, if the port has flows.
    pub(super) stage: Option<Stage>,
    pub(super) liveness: Liveness,
}

impl HostRx {
    /// Checks that the programs are still attached.
    ///
    /// # Errors
    /// [`Error::Removed`]: another process detached the programs.
    fn check(&self, interface: &str) -> Result<()> {
        self.stage.as_ref().map_or(Ok(()), Stage::check_attached)?;
        let mut hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel may not answer a process that has dropped its privileges.
        match hooks.are_there() {
            Ok(false) => Err(Error::Removed {
                object: format!("the program for what the host sends out of {interface}"),
                remedy: "somebody took it off (`sluice detach` does): start again".into(),
            }),
            Ok(true) | Err(_) => Ok(()),
        }
    }
}

impl Drop for HostRx {
    fn drop(&mut self) {
        // Before the programs are removed, so that they let everything pass if removing fails.
        self.liveness.end();
    }
}

/// The interface's Ethernet address, which its device also has.
#[derive(Debug)]
pub(super) struct DeviceAddress {
    netlink: Netlink,
    interface: Interface,
    device: String,
    mac: Option<Mac>,
}

impl DeviceAddress {
    pub(super) fn new(interface: Interface, device: String) -> Result<Self> {
        Ok(Self { netlink: Netlink::open(None)?, mac: interface.mac, interface, device })
    }

    /// Sets the device's address to the interface's current one.
    fn follow(&mut self) -> Result<()> {
        let now = self.netlink.again(&self.interface)?;
        if now.mac == self.mac {
            return Ok(());
        }
        if let Some(mac) = now.mac {
            self.netlink.set_mac(&self.device, mac)?;
        }
        self.mac = now.mac;
        Ok(())
    }
}

/// A queue of a `host:` port.
#[derive(Debug)]
pub(super) struct HostQueue {
    // Before the device, so that no packets are redirected to a removed device.
    pub(super) rx: Option<Arc<HostRx>>,
    pub(super) tap: TapQueue,
    pub(super) refused: DeviceQueue,
    pub(super) name: String,
    /// Only in the port's first queue.
    pub(super) address: Option<DeviceAddress>,
    pub(super) flows: Option<HostFlows>,
    pub(super) checked: Instant,
}

impl Backend for HostQueue {
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        self.tap.sync_rx(ring)
    }

    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        self.tap.sync_tx(ring)
    }

    /// Checks the interface, its address, and the programs on it.
    fn check(&mut self) -> Result<()> {
        self.checked = Instant::now();
        self.tap.check()?;
        if let Some(address) = &mut self.address {
            address.follow()?;
        }
        self.rx.as_ref().map_or(Ok(()), |rx| rx.check(&self.name))
    }

    fn is_finished(&mut self) -> bool {
        self.tap.is_finished()
    }

    /// Stops receiving. When all queues of the port have stopped, the host's packets leave through the
    /// interface itself. Waiting packets can still be received.
    fn stop_rx(&mut self) -> Result<()> {
        self.rx = None;
        self.tap.stop_rx()
    }

    fn close_tx(&mut self, ring: &mut Ring, timeout: Duration) -> Result<()> {
        self.tap.close_tx(ring, timeout)
    }

    fn stats(&mut self) -> Result<QueueStats> {
        let stats = self.tap.stats()?;
        let refused = self.refused.of(stats.sent);
        Ok(QueueStats { sent: stats.sent - refused, refused: stats.refused + refused, ..stats })
    }

    fn host_flows(&self) -> Option<&HostFlows> {
        self.flows.as_ref()
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        self.tap.look()
    }

    fn spins(&mut self, wait: Wait) -> bool {
        self.tap.spins(wait)
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        self.tap.wake_source()
    }

    fn slept(&mut self, ready: bool) -> Result<Readiness> {
        if !ready && self.checked.elapsed() >= CHECK_INTERVAL {
            self.check()?;
        }
        self.tap.slept(ready)
    }
}
