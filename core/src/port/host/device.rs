//! The device of a `host:` port: its own TAP. Packets that the host sends through the interface are
//! redirected to it; packets that are written to it enter the interface.
//!
//! Its name contains the interface's number, so an interface has at most one device. The kernel removes it
//! when its owner exits.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use super::program::{self, lacking};
use crate::error::{Error, Result};
use crate::link::{FilterPlace, Interface, Making, Netlink, Tap, TcHook, Then, interface};

/// The maximum MTU of a TAP, because the interface's MTU may grow.
const MTU: u32 = 65_521;

/// The device of an interface: its name and number.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub name: String,
    pub index: u32,
}

impl Device {
    /// Makes the device for an interface of this thread's network namespace, with `queues` queues of `ring`
    /// packets each. It receives no packets yet.
    ///
    /// # Errors
    /// Another port has the interface, a privilege is missing, or the kernel lacks a feature.
    pub(super) fn make(target: &Interface, queues: usize, ring: u32) -> Result<(Self, Vec<Tap>)> {
        let name = name_for(target);
        let taps = Tap::open(&name, queues, Making::New).map_err(|error| match error.errno() {
            Some(libc::EBUSY) => taken(&name, target),
            _ => error.with_capabilities(program::CAPABILITIES),
        })?;
        // The device itself sends nothing: without IPv6, and without an address for ARP.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        let mut netlink = Netlink::open(None)?;
        netlink.set_mtu(&name, MTU)?;
        netlink.set_queue_length(&name, ring)?;
        netlink.set_alias(&name, &alias(target))?;
        // Frames to the interface's address are for the host on the device, too.
        if let Some(mac) = target.mac {
            netlink.set_mac(&name, mac)?;
        }
        let index = interface(None, &name)?.index;
        enter(&mut netlink, index, target)
            .map_err(|error| lacking(error, "have packets enter", &target.name))?;
        netlink.set_up(&name, true)?;
        Ok((Self { name, index }, taps))
    }
}

/// Makes packets that are written to the device enter the interface, and lets only redirected packets leave
/// through the device.
fn enter(netlink: &mut Netlink, device: u32, target: &Interface) -> io::Result<()> {
    netlink.add_clsact(device)?;
    let place =
        |hook, name: &str| FilterPlace { hook, priority: 1, handle: 1, name: name.to_owned() };
    let (every, gate) = (program::every()?, program::gate()?);
    let inward = place(TcHook::Ingress, "sluice_every");
    netlink.add_filter(device, &inward, every.as_fd(), Then::Enter(target.index))?;
    let outward = place(TcHook::Egress, "sluice_gate");
    netlink.add_filter(device, &outward, gate.as_fd(), Then::AsProgramSays)
}

/// "sluice-17".
fn name_for(target: &Interface) -> String {
    format!("sluice-{}", target.index)
}

/// Returns the device's alias, which describes its purpose and owner.
fn alias(target: &Interface) -> String {
    let command = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    format!("host:{} of {} ({})", target.name, command.trim_end(), std::process::id())
}

/// Returns the owner of an interface's device from its alias. The interface is in this thread's network
/// namespace. None if the device does not exist.
pub(super) fn owner(target: &Interface) -> Result<Option<String>> {
    match Netlink::open(None)?.alias(&name_for(target)) {
        Ok(alias) => Ok(Some(alias.unwrap_or_else(|| "unknown owner".into()))),
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

fn taken(name: &str, target: &Interface) -> Error {
    let owner = owner(target).ok().flatten().unwrap_or_else(|| "meanwhile removed".into());
    Error::InUse(format!(
        "cannot open a second host: port of {}; end the first (device {name}: {owner})",
        target.name
    ))
}

/// The kernel's count of packets from all queues of a device that did not enter the interface. The device's
/// queueing discipline drops packets that are redirected to an interface that is down
/// (net/sched/act_mirred.c, net/core/dev.c), and no other packets, because the gate consumes those it
/// stops.
#[derive(Debug)]
struct Refused {
    netlink: Netlink,
    device: u32,
    /// The kernel's count at the last call, of 32 bits.
    seen: u32,
    /// The part that is not assigned to a queue yet.
    unclaimed: u64,
}

/// One queue's share of the count.
#[derive(Debug)]
pub(super) struct DeviceQueue {
    refused: Arc<Mutex<Refused>>,
    claimed: u64,
}

impl DeviceQueue {
    /// Makes a share for each queue of a new device in this thread's network namespace.
    pub(super) fn of_each(device: u32, queues: usize) -> Result<Vec<Self>> {
        let refused = Refused { netlink: Netlink::open(None)?, device, seen: 0, unclaimed: 0 };
        let refused = Arc::new(Mutex::new(refused));
        let share = || Self { refused: Arc::clone(&refused), claimed: 0 };
        Ok(std::iter::repeat_with(share).take(queues).collect())
    }

    /// Returns how many packets of the `written` ones of this queue did not enter the interface. The kernel
    /// counts all queues together: no queue is assigned more than it has written.
    pub(super) fn of(&mut self, written: u64) -> u64 {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.look();
        let mine = refused.unclaimed.min(written.saturating_sub(self.claimed));
        refused.unclaimed -= mine;
        self.claimed += mine;
        self.claimed
    }
}

impl Refused {
    /// Reads the device's count. Keeps the last count of a removed device.
    fn look(&mut self) {
        if let Ok(Some(drops)) = self.netlink.clsact_drops(self.device) {
            self.unclaimed += u64::from(drops.wrapping_sub(self.seen));
            self.seen = drops;
        }
    }
}
