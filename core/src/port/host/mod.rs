//! `host:`, the host's side of an interface. The port receives the packets that the host sends through the
//! interface. Packets sent to the port enter the host's stack as if the interface had received them. netmap
//! calls this host rings.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `fallback` | the host's packets after the port's process was killed: `pass`, as without a port; `drop`, until another port is opened, or `sluice detach` | pass |
//! | `hook` | where the program takes the host's packets: `tcx` or `clsact` | tcx if the kernel has it (6.6) and `fallback` is not `drop` |
//! | `flows` | number of flows that the program can leave to the host, 64 to 16777216; 0 for none | 0 |
//! | `mode` | with `flows`: mode in which the XDP program is attached, if it is not yet: `native` or `skb` | native if the driver can |
//! | `ring_size` | number of packets that can wait in each queue, 64 to 65536 | 4096 |
//! | `slots` | slots in each of a queue's rings | 512 |
//!
//! ```text
//!            host's stack
//!       leaves |        ^ enters
//!   program, redirect   | as if from the wire
//!              v        |
//!            device of the port (TAP) <--> queues
//!
//!            the interface <--> wire
//! ```
//!
//! With a port for the other side, such as `xdp:` on the same interface, a program sits between the host
//! and the wire: it forwards in both directions, and the host's connections work through it. Before the
//! port is opened and after it is closed, packets pass as without it.
//!
//! Frames look as on a wire: before the port receives a frame, the kernel segments it (GSO) and computes
//! its checksums. Packets sent to the port need correct checksums, too. Packets from a veth's other end
//! lack them unless `ethtool -K IFACE tx off` is set there.
//!
//! Packets that a port sends through the interface do not return to this port: AF_XDP and live frames
//! bypass the hook, and packet sockets of ports mark their packets. Packets that enter the host do not pass
//! XDP again, even in skb mode.
//!
//! tcpdump on the interface sees the packets that enter the host. Packets that the host sends are visible
//! on the port's device (`ip link` shows it: sluice-NUMBER).
//!
//! While the interface is down or has no carrier, the kernel drops packets sent to the port
//! (net/sched/act_mirred.c); they count as refused.
//!
//! With `flows=` the program can leave a flow to the host ([`HostFlows`]): the interface's XDP program
//! passes the flow's packets before any claim sees them, and the hook passes those that the host sends.
//! When the port is closed, all flows are taken back.
//!
//! Needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, with `flows=` CAP_SYS_ADMIN, too, and Linux 5.10.

mod device;
mod hooks;
mod program;
mod queue;

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use device::{Device, DeviceQueue};
use hooks::{Hook, Hooks};
use program::{DeadOwner, Liveness, lacking};
use queue::{DeviceAddress, HostQueue, HostRx};

use super::host_flows::HostFlows;
use super::interface::find_ethernet;
use super::name::PortName;
use super::options::{Fallback, OpenOptions};
use super::queue::Port;
use super::tap_queue::{DeviceDrops, TapQueue, described, frame_bytes, rings};
use crate::error::{Error, Result};
use crate::link::{self, LinkState, TcHook, netns};
use crate::xdp::Mode;
use crate::xdp::flows::FlowTable;
use crate::xdp::resident::{self, Action, FLOWS, ModeRequest, Owner, Resident, Stage, load_flows};

/// With fewer flows the kernel's table, which divides its room between CPUs, would drop flows at once.
const MIN_FLOWS: u32 = 64;

/// The values of the options.
struct HostConfig {
    dead_owner: DeadOwner,
    hook: Option<Hook>,
    flows: Option<u32>,
    mode: ModeRequest,
    ring: u32,
    slots: u32,
}

impl HostConfig {
    fn of(name: &PortName) -> Result<Self> {
        let fallbacks = [("pass", DeadOwner::Pass), ("drop", DeadOwner::Drop)];
        let dead_owner = name.choice("fallback", &fallbacks)?.unwrap_or(DeadOwner::Pass);
        let mut hook = name.choice("hook", &[("tcx", Hook::Tcx), ("clsact", Hook::Clsact)])?;
        if dead_owner == DeadOwner::Drop {
            if hook == Some(Hook::Tcx) {
                return Err(name.error(
                    "hook=tcx ends with its owner, and fallback=drop is for what comes then: use \
                     hook=clsact",
                ));
            }
            hook = Some(Hook::Clsact);
        }
        let flows = name.count("flows", 0..=1 << 24)?.filter(|&flows| flows > 0);
        if flows.is_some_and(|flows| flows < MIN_FLOWS) {
            let advice = format!("use at least {MIN_FLOWS}, or 0 for none");
            return Err(name.bad_option(
                "flows",
                name.option("flows").unwrap_or_default(),
                &advice,
            ));
        }
        let modes = [("native", Mode::Native), ("skb", Mode::Skb)]
            .map(|(word, mode)| (word, ModeRequest::Only(mode)));
        let mode = name.choice("mode", &modes)?;
        if mode.is_some() && flows.is_none() {
            return Err(name.error("mode= is for flows=: without, the port has no XDP program"));
        }
        Ok(Self {
            dead_owner,
            hook,
            flows,
            mode: mode.unwrap_or_default(),
            ring: name.count("ring_size", 64..=65_536)?.unwrap_or(4096),
            slots: name.slots(2..=65_536)?,
        })
    }
}

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let config = HostConfig::of(name)?;
    let netns = options.netns.as_deref();
    let interface = find_ethernet(name, netns, "host: is for Ethernet interfaces")?;
    let numbers = name.queue_numbers(options);
    let count = numbers.clone().count();
    let rings = rings(name, options, config.slots, count, frame_bytes(interface.mtu))?;
    let (queues, hook, not_native) = netns::run_in(netns, || between(&config, &interface, count))?;
    let queues = rings.queues(&described(&interface.name), numbers.zip(queues))?;
    let fallbacks = Fallback::from_native(not_native);
    Ok(Port { method: hook.name(), fallbacks, ..Port::plain(name, queues) })
}

/// Takes the packets that the host sends through an interface of this thread's network namespace. The last
/// value describes why the XDP program is not native, if it is not.
fn between(
    config: &HostConfig,
    interface: &link::Interface,
    queues: usize,
) -> Result<(Vec<HostQueue>, Hook, Option<String>)> {
    let failed = |error| lacking(error, "take what the host sends out of", &interface.name);
    let (device, taps) = Device::make(interface, queues, config.ring)?;
    // The resident program is joined first, because the kernel rejects a program with the table without naming
    // the missing privilege.
    let join = |_| Resident::join(interface, config.mode);
    let joined = config.flows.map(join).transpose();
    let joined = joined.map_err(|error| error.with_capabilities(program::CAPABILITIES));
    let (resident, not_native) = joined?.unzip();
    // After the device: when a process is killed, the kernel closes its last files first
    // (kernel/task_work.c). So the programs see that the owner is dead before they would redirect to a
    // removed device.
    let liveness = Liveness::new(&interface.name)?;
    let table = config.flows.map(FlowTable::new).transpose().map_err(failed)?.map(Arc::new);
    let out = program::leaving(&liveness, device.index, config.dead_owner, table.as_deref());
    let out = out.map_err(failed)?;
    let cut_off = config.dead_owner == DeadOwner::Drop;
    let inward = cut_off.then(|| program::entering(&liveness)).transpose().map_err(failed)?;
    let mut programs = vec![(TcHook::Egress, &out)];
    programs.extend(inward.as_ref().map(|program| (TcHook::Ingress, program)));
    let presences = taps.iter().map(|_| LinkState::of(interface)).collect::<Result<Vec<_>>>()?;
    let put = |hook| Hooks::put(interface.index, hook, &programs).map(|hooks| (hooks, hook));
    let put = match config.hook {
        Some(hook) => put(hook).map_err(|error| no_tcx(error, hook, &interface.name)),
        None => match put(Hook::Tcx) {
            // The kernel has no tcx.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                put(Hook::Clsact).map_err(failed)
            }
            other => other.map_err(failed),
        },
    };
    let (hooks, hook) = put?;
    let mut drops = Some(DeviceDrops::of(&device.name)?);
    let shares = DeviceQueue::of_each(device.index, queues)?;
    let mut address = Some(DeviceAddress::new(interface.clone(), device.name)?);
    let passing = resident.zip(table.as_ref());
    let stage =
        passing.map(|(resident, table)| pass_flows(resident, interface, table)).transpose()?;
    liveness.begin().map_err(failed)?;
    let rx = Arc::new(HostRx { hooks: Mutex::new(hooks), stage, liveness });
    let flows = table.as_ref().map(|table| HostFlows::new(table, &interface.name));
    let queues = taps.into_iter().zip(shares).zip(presences).map(|((tap, share), presence)| {
        let name = interface.name.clone();
        let tap = TapQueue::new(tap, &name, presence, drops.take(), config.ring, interface.up);
        HostQueue {
            rx: Some(Arc::clone(&rx)),
            tap,
            refused: share,
            name,
            address: address.take(),
            flows: flows.clone(),
            checked: Instant::now(),
        }
    });
    Ok((queues.collect(), hook, not_native.flatten()))
}

/// Makes the interface's XDP program pass the flows in the table.
fn pass_flows(resident: Resident, interface: &link::Interface, table: &FlowTable) -> Result<Stage> {
    let resident = Arc::new(resident);
    let queues = 0..=interface.rx_queues.max(1) - 1;
    let owner = Owner::myself(Action::Pass, "(flows of the host)", queues);
    let stage = Stage::take(&resident, FLOWS, &owner)?;
    let program = load_flows(&stage, &resident, table)?;
    stage.complete(Some(program.as_fd()))?;
    Ok(stage)
}

fn no_tcx(error: std::io::Error, hook: Hook, interface: &str) -> Error {
    match (hook, error.raw_os_error()) {
        (Hook::Tcx, Some(libc::EINVAL)) => Error::Unsupported {
            feature: "tcx (Linux 6.6)".into(),
            remedy: "leave hook= out, or use hook=clsact".into(),
        },
        _ => lacking(error, "take what the host sends out of", interface),
    }
}

/// Returns the owner of the `host:` port of an interface of this thread's network namespace, for
/// display: "host:eth0 of sluice (4711)". None if no process has it.
///
/// # Errors
/// The kernel does not answer.
pub fn host_owner(interface: &link::Interface) -> Result<Option<String>> {
    device::owner(interface)
}

/// Returns true if a closed `host:` port left filters on an interface of this thread's network namespace.
/// They apply its `fallback` until [`detach_host`] is called, or another port is opened.
///
/// # Errors
/// The kernel does not answer.
pub fn host_left(interface: &link::Interface) -> Result<bool> {
    let any = hooks::any_filters(interface.index)
        .map_err(|error| lacking(error, "list the filters of", &interface.name))?;
    Ok(any && device::owner(interface)?.is_none())
}

/// Removes the programs of a `host:` port from an interface of this thread's network namespace, even those
/// in use: the host's packets take their normal path again, and an open port ends with an error. It also
/// removes the programs of a killed owner. Returns false if it found none.
///
/// # Errors
/// A privilege is missing.
pub fn detach_host(interface: &link::Interface) -> Result<bool> {
    let operation = "remove the programs of the host: port from";
    hooks::clear(interface.index).map_err(|error| {
        // Finding the programs of other processes needs more than a port of its own.
        lacking(error, operation, &interface.name).with_capabilities(resident::CAPABILITIES)
    })
}
