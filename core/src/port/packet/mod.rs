//! `packet:`, an interface through packet sockets (AF_PACKET): the port gets a copy of each packet, and the
//! host keeps its own. Works alongside any other program. Linux 3.17 and CAP_NET_RAW.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `method` | `ring` (TPACKET_V3), `frames` (TPACKET_V2), `recvmmsg`, `recv` | ring; frames if `latency` is below 1 ms |
//! | `send` | how a port sends: `sendmmsg`, one system call per batch; `sendto`, one per packet; `ring` (PACKET_TX_RING), one for all released packets | sendmmsg |
//! | `qdisc` | for sent packets: `normal`, through the interface's queueing discipline, or `bypass` | normal |
//! | `filter` | a pcap-filter expression, run in the kernel | all |
//! | `snaplen` | maximum bytes kept of a packet | 262144 |
//! | `promisc` | also receives packets for other hosts, while the port is open | on |
//! | `tx_copies` | also receives packets that the host sends | on |
//! | `timestamp` | `software`, or `hardware`: the card's, once `hwstamp_ctl` enables them | software |
//! | `busy_poll` | time to poll the driver instead of sleeping, SO_BUSY_POLL; at most 1s. It has no effect up to Linux 6.18, where packet sockets do not know which driver queue to poll | off |
//! | `blocks`, `block_size`, `block_timeout` | the ring: number of blocks, their size, the time after which the kernel passes a partial block. Rings and frames larger than the system's memory are refused | 32 (fewer if all queues would take more than 1 GiB: 1 GiB together, at least 4 each), 1M, 10ms |
//! | `buffer`, `batch` | recv and recvmmsg: size of the socket's buffer, packets per sync | 64M, 64 |
//! | `fanout` | how the kernel spreads packets over several queues: `hash`, `lb`, `cpu`, `rollover`, `rnd`, `qm`, `bpf` | hash |
//! | `fanout_flags` | `defrag`, `rollover` | none |
//! | `fanout_prog` | for `bpf`: a pinned eBPF program or a file from `tcpdump -ddd`; its result, modulo the number of queues, is the queue | both directions of two hosts' packets go to one queue |
//! | `slots` | slots in the ring | 512 |
//! | `cooked` | `packet:any`: packets of all devices begin with LINUX_SLL2 headers | off |
//!
//! `packet:any` receives from [all interfaces](any) of the network namespace.
//!
//! On a loopback interface the port sees each packet once, when it is received. If an interface goes down,
//! the port reports [`Readiness::Down`](sluicegate_base::ring::Readiness) once, and receives packets again
//! when it is up.
//!
//! `send=ring` (Linux 2.6.31; 4.20 for a veth) is for ports that only send, and not for loopback, where
//! sendmmsg is used, with a notice. Packets are copied into frames once, and the driver reads them there. A
//! frame has room for the MTU at the time when the port was opened, at least 2016 bytes. Longer packets are
//! refused, even if the MTU has grown.
//!
//! `qdisc=bypass` (PACKET_QDISC_BYPASS, Linux 3.14) hands packets straight to the driver. That is
//! faster, and bypasses
//!
//! - the queueing discipline. While the driver's queue is full, or the interface has no carrier, the kernel
//!   drops the packet and returns an error: the packet stays in the ring, and each sync tries again;
//! - shaping, and `tc` rules on egress;
//! - copies for others: tcpdump on this host, and other receiving ports, do not see sent packets
//!   (dev_queue_xmit_nit is not called).

mod any;
mod block;
mod config;
mod fanout;
mod frames;
mod link_header;
mod queue;
mod receive;
mod send;
mod tpacket;

pub use config::BLOCK_TIMEOUT;

use std::time::Instant;

use any::{ANY, Devices};
use config::{Clock, PacketConfig, PacketMethod};
use fanout::Fanout;
use link_header::link_type;
use queue::PacketQueue;

use super::name::PortName;
use super::options::{Directions, Fallback, OpenOptions};
use super::packet_socket::Socket;
use super::queue::{Port, Queue};
use super::rings::{PoolRequirements, RingMaker};
use super::{card_clock, interface};
use crate::error::Result;
use crate::filter::Instruction;
use crate::filter::cbpf::Op;
use crate::link::{LinkNames, netns};
use sluicegate_base::ring::Interface;

/// Opens the port. All sockets are bound and joined before any of them accepts packets, so that no socket
/// receives unfiltered packets, and each packet goes to one socket only.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let mut config = PacketConfig::of(name, options)?;
    let numbers = name.queue_numbers(options);
    let count = numbers.clone().count();
    if options.usage.receives() {
        // A fanout joins no more (net/packet/af_packet.c, fanout_add).
        if count > 256 {
            return Err(name.error("it receives by at most 256 queues: name or request fewer"));
        }
        config.check_memory(name, count)?;
    }
    let netns = options.netns.as_deref();
    if config.cooked && name.name() != ANY {
        return Err(name.error("cooked= is for packet:any"));
    }
    let interface = match name.name() == ANY && options.usage == Directions::Receive {
        true => None,
        false => Some(interface::find(name, netns)?),
    };
    let mut fallbacks = Vec::new();
    let (link_type, program) = match &interface {
        None => {
            config.check_any(name)?;
            config.promiscuous = false;
            let (program, fallback) = any::program(config.filter.as_deref())?;
            fallbacks.extend(fallback);
            (0, Some(program))
        }
        Some(interface) => {
            let link_type = link_type(interface)?;
            // A packet on loopback is sent and received, and captured once, as in libpcap.
            config.tx_copies &= !interface.loopback;
            if options.usage.receives()
                && config.clock == Clock::Hardware
                && let Some(reason) = card_clock::socket_obstacle(&interface.name, netns)
            {
                config.clock = Clock::Software;
                let (from, to) = ("hardware timestamps", "software timestamps");
                fallbacks.push(Fallback::new(from, to, reason));
            }
            let filter = name.filter(link_type)?;
            (link_type, filter.map(|filter| filter.for_packet_socket()).transpose()?)
        }
    };
    let admission = admission(&config, program, interface.is_none());
    let directions = if options.usage == Directions::Both { 2 } else { 1 };
    let own = PoolRequirements::usual(count as u32, directions * config.slots);
    let pool = own.pool_of(options)?;
    let rings = RingMaker { pool, usage: options.usage, slots: config.slots };

    // Before the sockets, so that it sees every device from which packets arrive.
    let names = (interface.is_none() && !config.cooked).then(|| LinkNames::open(netns));
    let names = names.transpose()?;
    let opened = netns::run_in(netns, || {
        let open = |_| {
            let socket = Socket::open(&name.short())?;
            socket.reject_all()?;
            PacketQueue::new(socket, &config, interface.as_ref(), &rings, &mut fallbacks)
        };
        (0..count).map(open).collect::<Result<Vec<_>>>()
    })?;
    let mut opened_at = Instant::now();
    if options.usage.receives() {
        let sockets = || opened.iter().map(|(queue, _, _)| queue.socket());
        let (index, up) = interface.as_ref().map_or((0, true), |it| (it.index, it.up));
        receive_from(index, sockets, &config, up)?;
        opened_at = Instant::now();
        sockets().try_for_each(|socket| admit(socket, admission.as_deref()))?;
    } else {
        // Without a protocol: it receives nothing, and does not slow down receiving sockets.
        let index = interface.as_ref().map_or(0, |interface| interface.index);
        opened.iter().try_for_each(|(queue, _, _)| queue.socket().bind(index, 0))?;
    }
    let first = opened.first().map(|(queue, _, _)| queue);
    if interface.is_none() && first.and_then(PacketQueue::method) != Some(PacketMethod::Ring) {
        let reason = fallbacks.last().map_or("", |fallback| &fallback.reason);
        return Err(name.error(format!("all interfaces need method=ring: {reason}")));
    }
    let method = first.map_or("", PacketQueue::method_name);
    let described = Interface {
        name: name.name().to_owned(),
        link_type,
        snaplen: match first.and_then(PacketQueue::method) {
            Some(PacketMethod::Ring | PacketMethod::Frames) | None => config.snaplen,
            // A slot's length has 16 bits, and these methods use one slot per packet.
            Some(PacketMethod::Recv | PacketMethod::Recvmmsg) => {
                config.snaplen.min(u16::MAX.into())
            }
        },
        comment: match config.clock {
            Clock::Software => "timestamps: software (kernel)".into(),
            Clock::Hardware => {
                "timestamps: hardware (card), software (kernel) where it gave none".into()
            }
        },
    };
    let devices = interface.is_none().then(|| Devices::new(described.clone(), names));
    let queues = numbers
        .zip(opened)
        .map(|(number, (mut queue, rx, tx))| {
            let mut interfaces = vec![described.clone()];
            if let Some(devices) = &devices {
                interfaces = devices.interfaces();
                queue.receive_from(devices.share());
            }
            Queue::new(number, rx, tx, queue, interfaces).receiving_since(opened_at)
        })
        .collect();
    Ok(Port { name: name.clone(), method, mode: None, fallbacks, queues })
}

/// Binds the sockets to the interface, joins them if there are several, and makes it promiscuous if
/// requested.
fn receive_from<'a, I>(
    ifindex: u32,
    sockets: impl Fn() -> I,
    config: &PacketConfig,
    up: bool,
) -> Result<()>
where
    I: ExactSizeIterator<Item = &'a Socket>,
{
    for socket in sockets() {
        if !config.tx_copies {
            let operation = "leave out sent packets on";
            socket
                .set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1i32, operation)
                .map_err(|error| error.remedy("tx_copies=off needs Linux 4.20"))?;
        }
        if let Some(microseconds) = config.busy_poll_us {
            let operation = "set busy polling on";
            let value = microseconds.cast_signed();
            socket.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, value, operation).map_err(
                |error| match error.errno() {
                    Some(libc::EPERM) => error.remedy("busy_poll= needs CAP_NET_ADMIN"),
                    _ => error.remedy("busy_poll= needs a kernel with CONFIG_NET_RX_BUSY_POLL"),
                },
            )?;
        }
        socket.bind(ifindex, libc::ETH_P_ALL as u16)?;
        if config.promiscuous {
            socket.be_promiscuous(ifindex)?;
        }
    }
    let default = (sockets().len() > 1).then(Fanout::default);
    let Some(fanout) = config.fanout.clone().or(default) else { return Ok(()) };
    fanout.join(sockets()).map_err(|error| match error.errno() {
        Some(libc::EINVAL) if !up => {
            error.remedy("several queues share an interface only when it is up: bring it up first")
        }
        _ => error,
    })
}

/// Returns the program that accepts the port's packets: the filter's, with the snap length as the number of
/// bytes to accept. None if everything is accepted.
fn admission(
    config: &PacketConfig,
    program: Option<Vec<Instruction>>,
    any: bool,
) -> Option<Vec<Instruction>> {
    // The header that `any` writes before the network header must end within the frame that the kernel lays
    // out.
    let admitted = if any { config.snaplen.max(any::MIN_ADMITTED) } else { config.snaplen };
    let mut program = match program {
        Some(program) => program,
        None if config.snaplen == config::MAX_SNAPLEN => return None,
        None => vec![Op::Return(u32::MAX).encode()],
    };
    for instruction in &mut program {
        if let Some(Op::Return(1..)) = Op::decode(*instruction) {
            instruction.k = admitted;
        }
    }
    Some(program)
}

/// Makes a socket accept packets.
fn admit(socket: &Socket, program: Option<&[Instruction]>) -> Result<()> {
    match program {
        Some(program) => socket.attach_filter(program).map_err(|error| match error.errno() {
            Some(libc::ENOMEM) => {
                error.remedy("the filter is too long for net.core.optmem_max: raise it")
            }
            _ => error,
        }),
        None => socket.detach_filter(),
    }
}
