//! Queues of packets that the resident XDP program copies into rings (`xdp/cell_rings`). For `mirror:`, and
//! `xdp:` with `method=ring`.

use std::ops::{Range, RangeInclusive};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backend::{Backend, WakeSource};
use super::cell_ring_rx::CellRingRx;
use super::claim_conflict;
use super::interface::{MAX_HEADER_BYTES, described};
use super::interface_watch::{InterfaceWatch, QueueLoad};
use super::name::PortName;
use super::options::OpenOptions;
use super::packet_socket::Promiscuous;
use super::queue::Queue;
use super::rings::PoolRequirements;
use super::stats::QueueStats;
use crate::cell_ring::MAX_SNAPLEN;
use crate::error::Result;
use crate::filter::Filter;
use crate::link::{self, Ethtool};
use crate::xdp::Mode;
use crate::xdp::cell_rings::{CellRings, CellRingsConfig, RingAssignment};
use crate::xdp::resident::{Action, Owner, Resident, Stage, load_copying};
use crate::xdp::rx_metadata::WallClock;
use sluicegate_base::ring::{Interface, Readiness, Ring, Wait};

/// Maximum time that a packet takes through the program.
const DRAIN_TIME: Duration = Duration::from_millis(5);
/// The interval of checks of the interface.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// An invalid queue number: the kernel counts queues in 16 bits.
const ANY_QUEUE: u32 = u16::MAX as u32;

/// The packets to copy into rings, for a mirror or a claim.
#[derive(Debug)]
pub(super) struct CellRingPort<'a> {
    pub name: &'a PortName,
    pub interface: &'a link::Interface,
    pub resident: &'a Arc<Resident>,
    pub filter: Option<&'a Filter>,
    /// Takes the packets from the host (`Take`) or copies them (`Mirror`).
    pub action: Action,
    /// Range of stages that its program may take.
    pub stages: Range<u32>,
    pub queues: RangeInclusive<u32>,
    pub watch: &'a Arc<InterfaceWatch>,
    /// Slots in a queue's ring.
    pub slots: u32,
    /// Maximum number of bytes kept of a packet, if limited.
    pub snaplen: Option<u32>,
    /// Cells of a ring, if not the default.
    pub cells: Option<u32>,
    /// True if packets get timestamps.
    pub stamped: bool,
    /// See [`OpenOptions::latency`].
    pub latency: Option<Duration>,
    /// Keeps the card receiving packets for other hosts.
    pub promiscuous: Option<Arc<Promiscuous>>,
}

impl CellRingPort<'_> {
    /// Makes the rings and starts copying packets into them. Call it in the interface's network namespace.
    pub(super) fn open(&self, options: &OpenOptions) -> Result<Vec<Queue>> {
        let geometry = self.geometry()?;
        let (rings, readers) = CellRings::new(geometry, &self.name.short(), "ring_size=")?;
        self.name.check_queue_count(options, readers.len())?;
        let pool = PoolRequirements::usual(0, 0).pool_of(options)?;
        let expression = self.filter.map_or("", Filter::expression);
        let owner = Owner::myself(self.action, expression, self.queues.clone());
        let stage =
            Arc::new(claim_conflict::take(self.name, self.resident, self.stages.clone(), &owner)?);
        let program = load_copying(&stage, self.resident, self.action, self.filter, &rings)?;
        if self.snaplen.is_none_or(|snaplen| snaplen > geometry.ring.snaplen) {
            let then = "are cut to that: start again to have them whole";
            self.watch.limit(geometry.ring.snaplen, then, self.interface.mtu);
        }
        let open = Arc::new(OpenStage(Arc::clone(&stage)));
        let described = self.described(&geometry);
        let queues = readers.into_iter().map(|(number, reader)| {
            let queue = CellRingQueue {
                number,
                open: Some(Arc::clone(&open)),
                stage: Arc::clone(&stage),
                cells: CellRingRx::new(reader, self.latency),
                clock: WallClock::new(),
                watch: Arc::clone(self.watch),
                _promiscuous: self.promiscuous.clone(),
                checked: Instant::now(),
                came: false,
                // The first poll reports an interface that is already down.
                down: false,
            };
            let rx = Ring::receive_indirect(&pool, self.slots)?;
            Ok(Queue::new(number, rx, Ring::absent(&pool)?, queue, vec![described.clone()]))
        });
        let queues = queues.collect::<Result<Vec<_>>>()?;
        // The rings are complete, so packets may arrive now.
        stage.complete(Some(program.as_fd()))?;
        Ok(queues)
    }

    fn geometry(&self) -> Result<CellRingsConfig> {
        let frame_bytes = self.interface.mtu.saturating_add(MAX_HEADER_BYTES).min(MAX_SNAPLEN);
        let (assignment, queues) = self.assignment()?;
        let rings = match assignment {
            RingAssignment::Queue => queues.clone().count(),
            RingAssignment::Cpu => link::possible_cpus()?,
        };
        let snaplen = match (self.snaplen, self.resident.mode()) {
            (Some(snaplen), Mode::Native) => snaplen.min(frame_bytes),
            // The kernel may already have merged packets (GRO): they are longer than the MTU.
            (Some(snaplen), Mode::Skb) => snaplen,
            (None, _) => frame_bytes,
        };
        let cells = self.cells;
        let fitting = CellRingsConfig::new(assignment, rings as u32, queues, snaplen, cells);
        let geometry = fitting.map_err(|too_large| {
            let remedy = match cells {
                Some(_) => "use fewer ring_size=",
                None => "say ring_size=, or use a smaller snaplen=",
            };
            self.name.error(format!("{too_large}: {remedy}"))
        })?;
        Ok(CellRingsConfig { stamped: self.stamped, ..geometry })
    }

    /// Chooses rings so that each has one writer at a time. Returns the choice, and the queues as the
    /// program sees them.
    fn assignment(&self) -> Result<(RingAssignment, RangeInclusive<u32>)> {
        let queues = self.queues.clone();
        let model = match self.resident.mode() {
            Mode::Native => QueueModel::of(self.interface),
            Mode::Skb => return Ok((RingAssignment::Cpu, queues)),
        };
        match model {
            QueueModel::PerCpu => Ok((RingAssignment::Queue, queues)),
            QueueModel::Shared => Ok((RingAssignment::Cpu, queues)),
            QueueModel::Lower if self.name.queues().is_none() => {
                Ok((RingAssignment::Cpu, 0..=ANY_QUEUE))
            }
            QueueModel::Lower => Err(self.name.error(format!(
                "{} receives by queues of the interfaces below it, which have numbers of their \
                 own: leave the queues out, or open a port on one of those",
                self.interface.name
            ))),
        }
    }

    fn described(&self, geometry: &CellRingsConfig) -> Interface {
        let comment =
            if geometry.stamped { "timestamps: software (kernel), taken in XDP" } else { "" };
        let snaplen = geometry.ring.snaplen;
        Interface { snaplen, ..described(&*self.interface.name, comment) }
    }
}

/// The model of the receive queues that the program sees (`rx_queue_index`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueModel {
    /// The driver's queues, each on one CPU at a time.
    PerCpu,
    /// The driver's queues, each on the CPUs of all processes that write to it.
    Shared,
    /// The queues of lower interfaces, each numbered from 0.
    Lower,
}

impl QueueModel {
    /// Returns the model in native mode. Call it in the interface's network namespace.
    pub(crate) fn of(interface: &link::Interface) -> Self {
        let driver = Ethtool::open(None).and_then(|mut it| it.driver(&interface.name));
        Self::by(&interface.kind, &driver.unwrap_or_default())
    }

    fn by(kind: &str, driver: &str) -> Self {
        match (kind, driver) {
            // bond_xdp_set attaches the program to each of its ports. netvsc_vf_setxdp also attaches it to
            // the virtual function, while the device itself continues to receive.
            ("bond", _) | (_, "bonding" | "hv_netvsc") => Self::Lower,
            // tun_build_skb runs the program in the process that writes; macvtap has no such function.
            ("tun", _) | (_, "tun") => Self::Shared,
            _ => Self::PerCpu,
        }
    }
}

/// Enables copying into the rings of a port. Each queue holds it until it stops receiving. When the last
/// queue releases it, copying stops.
#[derive(Debug)]
struct OpenStage(Arc<Stage>);

impl Drop for OpenStage {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A queue whose packets are copied into rings.
#[derive(Debug)]
struct CellRingQueue {
    number: u32,
    // Dropped before the memory: after that, nothing is copied any more.
    open: Option<Arc<OpenStage>>,
    stage: Arc<Stage>,
    cells: CellRingRx,
    clock: WallClock,
    watch: Arc<InterfaceWatch>,
    _promiscuous: Option<Arc<Promiscuous>>,
    checked: Instant,
    /// True if packets have arrived since the last check.
    came: bool,
    down: bool,
}

impl CellRingQueue {
    /// Returns true once after the interface went down. Queries the kernel at intervals.
    fn is_newly_down(&mut self) -> Result<bool> {
        if self.checked.elapsed() >= CHECK_INTERVAL {
            self.checked = Instant::now();
            self.check_attached()?;
            self.check_interface(QueueLoad::Idle)?;
        }
        let up = self.watch.is_up()?;
        let was_down = std::mem::replace(&mut self.down, !up);
        Ok(self.down && !was_down)
    }

    fn check_interface(&self, load: QueueLoad) -> Result<()> {
        self.watch.look(self.number, load).or_else(|error| {
            // A driver that adds queues with the program removes them together with it.
            self.check_attached()?;
            Err(error)
        })
    }

    fn check_attached(&self) -> Result<()> {
        let attached = self.stage.check_attached();
        attached.map_err(|error| self.watch.explain(error))
    }
}

impl Backend for CellRingQueue {
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        let Self { cells, clock, .. } = self;
        let slots = cells.sync(ring, |ns| clock.wall_ns(ns));
        self.came |= slots > 0;
        Ok(slots)
    }

    /// Checks the program and the interface.
    fn check(&mut self) -> Result<()> {
        // As with sockets: received packets prove that the program is attached.
        if !std::mem::replace(&mut self.came, false) {
            self.check_attached()?;
        }
        self.check_interface(QueueLoad::Busy)
    }

    fn take_notice(&mut self) -> Option<String> {
        self.watch.take_notice()
    }

    /// Returns true if receiving was stopped and all copies were received.
    fn is_finished(&mut self) -> bool {
        let settled = self.cells.closed().is_some_and(|closed| closed.elapsed() >= DRAIN_TIME);
        settled && !self.cells.finds_packets()
    }

    /// Makes the program skip this queue's rings; the last queue of the port to stop stops the program.
    fn stop_rx(&mut self) -> Result<()> {
        if let Some(open) = self.open.take() {
            self.cells.close();
            drop(open);
        }
        Ok(())
    }

    fn stats(&mut self) -> Result<QueueStats> {
        Ok(self.cells.stats())
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        if self.cells.finds_packets() {
            return Ok(Some(Readiness::Ready));
        }
        Ok(self.is_newly_down()?.then_some(Readiness::Down))
    }

    fn spins(&mut self, wait: Wait) -> bool {
        self.cells.begin_wait(wait)
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        self.cells.wake_source()
    }

    fn slept(&mut self, ready: bool) -> Result<Readiness> {
        Ok(self.cells.slept(ready))
    }
}

impl Drop for CellRingQueue {
    fn drop(&mut self) {
        // Nothing reads these rings any more: their packets go to the next claim or to the host, even if
        // other queues of the port continue.
        let _ = self.stop_rx();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_decides_which_cpus_run_the_program() {
        for (kind, driver, expected, why) in [
            ("", "ice", QueueModel::PerCpu, "a card"),
            ("veth", "veth", QueueModel::PerCpu, "a pair"),
            ("", "", QueueModel::PerCpu, "an unknown driver"),
            ("bond", "bonding", QueueModel::Lower, "a bond: its ports do"),
            ("", "hv_netvsc", QueueModel::Lower, "Hyper-V: the virtual function does, too"),
            ("tun", "tun", QueueModel::Shared, "each process that writes to it does"),
        ] {
            assert_eq!(QueueModel::by(kind, driver), expected, "{why}");
        }
    }
}
