//! `mirror:`, copies of an interface's packets, made before the host has made anything of them;
//! the host still gets its packet. Faster than `packet:`, and what comes in only: what the host
//! sends is not seen.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `filter` | a pcap-filter expression: what is copied | everything |
//! | `snaplen` | most bytes of a packet that are kept | a frame of the interface's MTU |
//! | `promisc` | packets for other hosts too, while the port is open | on |
//! | `mode` | `native` or `skb`: this one or none | native where the driver can |
//! | `ring_size` | packets a queue's ring of copies has room for, a power of two | 16384, or 32 MiB |
//! | `slots` | slots in the ring | 512 |
//! | `timestamp` | `xdp`: taken when it is copied; `off` | `xdp` |
//! | `latency` | how long a packet may lie there before the reader, asleep, sees it; 0 is at once | see `OpenOptions` |
//!
//! Each port has rings of its own (`xdp/copies`), so that a slow reader loses its own copies and
//! nobody else's. In skb mode there is one queue, into which the rings of all CPUs come, and so it
//! is where the driver runs the program for one queue on several CPUs: of bonds, hv_netvsc and TAP.
//!
//! Times are the kernel's, taken when the packet was copied (see `xdp/clock.rs` for their
//! error). Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN, and Linux 5.18.

mod queue;

pub(super) use queue::CopyQueue;
use queue::{Filling, MirrorRx, QueueContext};

use std::ops::{Range, RangeInclusive};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::cells::CellIntake;
use super::packet::Promiscuous;
use super::pool_sizing::PoolRequirements;
use super::queue::Queue;
use super::watch::InterfaceWatch;
use super::xdp::{fallbacks, mode_name};
use super::{Kind, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Use, claim_conflict, lookup};
use crate::cell_ring::MAX_SNAPLEN;
use crate::error::Result;
use crate::filter::Filter;
use crate::link::{self, Ethtool, netns};
use crate::xdp::Mode;
use crate::xdp::copies::{Copies, Geometry, Sharing};
use crate::xdp::resident::{Action, MIRRORS, ModeWish, Owner, Resident, load_copying};
use sluicegate_base::ring::{Interface, Ring};

/// An Ethernet header and two VLAN tags: what a frame may have besides the MTU.
pub(super) const HEADER_BYTES: u32 = 22;

/// A number that no queue has: the kernel counts them in 16 bits.
const ANY_QUEUE: u32 = u16::MAX as u32;

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    if options.usage != Use::Receive {
        return Err(name.error("it only receives; xdp: and packet: send"));
    }
    let modes = [("native", ModeWish::Only(Mode::Native)), ("skb", ModeWish::Only(Mode::Skb))];
    let wish = name.choice("mode", &modes)?.unwrap_or_default();
    let size = RingSize {
        slots: name.count("slots", 2..=16_384)?.unwrap_or(512) as u32,
        snaplen: name.number("snaplen", 1..=262_144)?.map(|bytes| bytes as u32),
        cells: name.count("ring_size", 2..=65_536)?.map(|cells| cells as u32),
    };
    let filter = name.option("filter").filter(|filter| !filter.trim().is_empty());
    let filter = filter.map(|text| Filter::compile(text, LINKTYPE_ETHERNET)).transpose()?;
    let netns = options.netns.as_deref();
    let interface = lookup::interface(name, netns)?;
    if interface.hardware != libc::ARPHRD_ETHER {
        return Err(name.error("XDP is for Ethernet interfaces; packet: takes all kinds"));
    }
    let promiscuous = name.switch("promisc")?.unwrap_or(true);
    let stamped = name.choice("timestamp", &[("xdp", true), ("off", false)])?.unwrap_or(true);
    netns::run_in(netns, || {
        // As `xdp:` does: what killed processes have left on the interface is put right here.
        let _ = crate::nic::restore_interrupts(&interface);
        let promiscuous =
            promiscuous.then(|| Promiscuous::new(name, interface.index)).transpose()?;
        let mut watch = InterfaceWatch::over(name, &interface, options.usage)?;
        let (resident, reason) = Resident::join(&interface, wish)?;
        let queues = watch.attached(name)?;
        let job = CopyJob {
            name,
            interface: &interface,
            resident: &Arc::new(resident),
            filter: filter.as_ref(),
            action: Action::Mirror,
            places: MIRRORS,
            queues,
            watch: &Arc::new(watch),
            size,
            stamped,
            latency: name.latency(options)?,
            promiscuous: promiscuous.map(Arc::new),
        };
        Ok(Port {
            name: name.clone(),
            method: "ring",
            mode: Some(mode_name(job.resident.mode())),
            fallbacks: fallbacks(reason),
            queues: job.open(options)?,
        })
    })
}

/// How much there is to be room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingSize {
    /// Slots in a queue's ring.
    pub slots: u32,
    /// Bytes that are kept of a packet, if not all.
    pub snaplen: Option<u32>,
    /// Cells in a ring of copies, if somebody says.
    pub cells: Option<u32>,
}

/// Packets to be copied into rings: those of a mirror, or of a claim.
#[derive(Debug)]
pub(super) struct CopyJob<'a> {
    pub name: &'a PortName,
    pub interface: &'a link::Interface,
    pub resident: &'a Arc<Resident>,
    pub filter: Option<&'a Filter>,
    /// Takes the packets from the host (`Take`) or copies them (`Mirror`).
    pub action: Action,
    /// Places in the chain that its program may have.
    pub places: Range<u32>,
    pub queues: RangeInclusive<u32>,
    pub watch: &'a Arc<InterfaceWatch>,
    pub size: RingSize,
    /// True if the packets' times are taken.
    pub stamped: bool,
    /// See [`OpenOptions::latency`].
    pub latency: Option<Duration>,
    /// Has the card take packets for others.
    pub promiscuous: Option<Arc<Promiscuous>>,
}

impl CopyJob<'_> {
    /// Makes the rings and has packets copied into them. To be called in the interface's network
    /// namespace.
    pub fn open(&self, options: &OpenOptions) -> Result<Vec<Queue>> {
        let geometry = self.geometry()?;
        let (copies, readers) = Copies::new(geometry, &self.name.short(), self.cells_option())?;
        let pool = match &options.pool {
            Some(pool) => Arc::clone(pool),
            None => PoolRequirements::usual(geometry.rings, 0).pool()?,
        };
        let expression = self.filter.map_or("", Filter::expression);
        let owner = Owner::myself(self.action, expression, self.queues.clone());
        let stage =
            Arc::new(claim_conflict::take(self.name, self.resident, self.places.clone(), &owner)?);
        let program = load_copying(&stage, self.resident, self.action, self.filter, &copies)?;
        if self.size.snaplen.is_none_or(|snaplen| snaplen > geometry.ring.snaplen) {
            let then = "are cut to that: start again to have them whole";
            self.watch.limit(geometry.ring.snaplen, then, self.interface.mtu);
        }
        let intake = MirrorRx::of(&stage);
        let described = self.described(&geometry);
        let queues = readers.into_iter().map(|(number, reader)| {
            let queue = CopyQueue::new(
                number,
                CellIntake::new(reader, self.latency),
                Filling { intake: Some(Arc::clone(&intake)), stage: Arc::clone(&stage) },
                QueueContext {
                    watch: Arc::clone(self.watch),
                    _promiscuous: self.promiscuous.clone(),
                },
            );
            let rx = Ring::receive_indirect(&pool, self.size.slots)?;
            Ok(Queue::new(number, rx, Ring::absent(&pool)?, queue, vec![described.clone()]))
        });
        let queues = queues.collect::<Result<Vec<_>>>()?;
        // The rings are complete: now packets may come.
        stage.complete(Some(program.as_fd()))?;
        Ok(queues)
    }

    fn geometry(&self) -> Result<Geometry> {
        let frame_bytes = self.interface.mtu.saturating_add(HEADER_BYTES).min(MAX_SNAPLEN);
        let (sharing, queues) = self.sharing()?;
        let rings = match sharing {
            Sharing::Queue => queues.clone().count(),
            Sharing::Cpu => libbpf_rs::num_possible_cpus().unwrap_or(1),
        };
        let snaplen = match (self.size.snaplen, self.resident.mode()) {
            (Some(snaplen), Mode::Native) => snaplen.min(frame_bytes),
            // The kernel may have put packets together before: they are longer than the MTU.
            (Some(snaplen), Mode::Skb) => snaplen,
            (None, _) => frame_bytes,
        };
        let cells = self.size.cells;
        let fitting = Geometry::new(sharing, rings as u32, queues, snaplen, cells);
        let geometry = fitting.map_err(|too_large| {
            let remedy = match cells {
                Some(_) => format!("use fewer {}", self.cells_option()),
                None => format!("say {}, or use a smaller snaplen=", self.cells_option()),
            };
            self.name.error(format!("{too_large}: {remedy}"))
        })?;
        Ok(Geometry { stamped: self.stamped, ..geometry })
    }

    /// How users say how many cells a ring has.
    fn cells_option(&self) -> &'static str {
        match self.name.kind() {
            Kind::Xdp => "ring_size=",
            _ => "ring_size=",
        }
    }

    /// Which ring a packet goes to, so that each has one writer at a time, and the queues, as the
    /// program sees them, whose packets come.
    fn sharing(&self) -> Result<(Sharing, RangeInclusive<u32>)> {
        let queues = self.queues.clone();
        let serving = match self.resident.mode() {
            Mode::Native => Serving::of(self.interface),
            Mode::Skb => return Ok((Sharing::Cpu, queues)),
        };
        match serving {
            Serving::Apart => Ok((Sharing::Queue, queues)),
            Serving::Together => Ok((Sharing::Cpu, queues)),
            Serving::Below if self.name.queues().is_none() => Ok((Sharing::Cpu, 0..=ANY_QUEUE)),
            Serving::Below => Err(self.name.error(format!(
                "{} receives by queues of the interfaces below it, which have numbers of their \
                 own: leave the queues out, or open a port on one of those",
                self.interface.name
            ))),
        }
    }

    fn described(&self, geometry: &Geometry) -> Interface {
        Interface {
            name: self.interface.name.clone(),
            link_type: LINKTYPE_ETHERNET,
            snaplen: geometry.ring.snaplen,
            comment: match geometry.stamped {
                true => "timestamps: software (kernel), taken in XDP".into(),
                false => String::new(),
            },
        }
    }
}

/// The receive queues that the program sees (`rx_queue_index`), and the number of CPUs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serving {
    /// The driver's own, each on one CPU at a time.
    Apart,
    /// Its own, each on as many CPUs as there are processes that write to it.
    Together,
    /// Those of interfaces below it, each with numbers of its own from 0.
    Below,
}

impl Serving {
    /// In native mode. To be called in the interface's network namespace.
    pub fn of(interface: &link::Interface) -> Self {
        let driver = Ethtool::open(None).and_then(|mut it| it.driver(&interface.name));
        Self::by(&interface.kind, &driver.unwrap_or_default())
    }

    fn by(kind: &str, driver: &str) -> Self {
        match (kind, driver) {
            // bond_xdp_set puts the program on each of its ports; netvsc_vf_setxdp on the virtual
            // function, too, beside which it goes on to receive itself.
            ("bond", _) | (_, "bonding" | "hv_netvsc") => Self::Below,
            // tun_build_skb runs the program where a process writes: macvtap has none.
            ("tun", _) | (_, "tun") => Self::Together,
            _ => Self::Apart,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_the_program_depends_on_the_driver() {
        for (kind, driver, expected, why) in [
            ("", "ice", Serving::Apart, "a card"),
            ("veth", "veth", Serving::Apart, "a pair"),
            ("", "", Serving::Apart, "nothing is said"),
            ("bond", "bonding", Serving::Below, "a bond: its ports do"),
            ("", "hv_netvsc", Serving::Below, "Hyper-V: the virtual function does, too"),
            ("tun", "tun", Serving::Together, "who writes to it does"),
        ] {
            assert_eq!(Serving::by(kind, driver), expected, "{why}");
        }
    }
}
