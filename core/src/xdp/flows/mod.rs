//! Flows that are the host's: a table which the programs between the wire and the host ask of each
//! packet, and pass what they find there.
//!
//! A flow is TCP or UDP between two addresses and two ports. It stands in the table once, as the
//! host sees it: what is local and what is remote. The program that sees what comes from the wire
//! takes a packet's destination for local, that which sees what the host sends its source. When the
//! table is full the kernel makes room by forgetting one that was not seen for long (LRU).
//!
//! Whatever has no ports where a flow's are is no flow's: fragments, the first included, for the
//! others have none; IPv6 with extension headers; other protocols; and tagged frames, whose
//! addresses are those of another network.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType};

use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Label, Memory, Reg, Size};
use crate::xdp::bpf;
use sluicegate_base::ring::Direction;

/// An Ethernet header, a short IPv4 header, one of IPv6, and two ports.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const PORTS: usize = 4;
/// EtherTypes.
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// IPv4: more fragments follow, or this is not the first (RFC 791).
const FRAGMENT: [u8; 2] = [0x3f, 0xff];
/// Protocols with ports where a flow's are.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A flow, as the table has it: remote and local address, remote and local port, protocol, version
/// of IP, and zeros. Addresses of IPv4 have zeros behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow([u8; Self::BYTES]);

/// Where the parts of a flow stand.
mod at {
    pub(super) const REMOTE: i16 = 0;
    pub(super) const LOCAL: i16 = 16;
    pub(super) const REMOTE_PORT: i16 = 32;
    pub(super) const LOCAL_PORT: i16 = 34;
    pub(super) const PROTOCOL: i16 = 36;
    pub(super) const VERSION: i16 = 37;
}

impl Flow {
    pub(crate) const BYTES: usize = 40;

    /// The flow that a packet is of: one that the host has sent where it says so, or else one that
    /// comes from the wire. None if it is of no flow.
    pub(crate) fn of(packet: &[u8], direction: Direction) -> Option<Self> {
        let ip = packet.get(ETHERNET..)?;
        let (version, protocol, header, source, destination) = match packet.get(12..ETHERNET)? {
            [0x08, 0x00] => {
                let fixed = ip.first_chunk::<IPV4>()?;
                let header = usize::from(fixed[0] & 0xf) * 4;
                let in_fragments = (fixed[6] & FRAGMENT[0]) | (fixed[7] & FRAGMENT[1]) != 0;
                if fixed[0] >> 4 != 4 || header < IPV4 || in_fragments {
                    return None;
                }
                (4, fixed[9], header, &ip[12..16], &ip[16..20])
            }
            [0x86, 0xdd] => {
                let fixed = ip.first_chunk::<IPV6>()?;
                if fixed[0] >> 4 != 6 {
                    return None;
                }
                (6, fixed[6], IPV6, &ip[8..24], &ip[24..40])
            }
            _ => return None,
        };
        let ports = ip.get(header..)?.first_chunk::<PORTS>()?;
        if !matches!(protocol, TCP | UDP) {
            return None;
        }
        let mut flow = [0; Self::BYTES];
        let (remote, local) = match direction {
            Direction::Out => (at::LOCAL, at::REMOTE),
            Direction::In | Direction::Unknown => (at::REMOTE, at::LOCAL),
        };
        let (remote_port, local_port) = (port_of(remote), port_of(local));
        let mut put = |place: i16, bytes: &[u8]| {
            flow[place as usize..][..bytes.len()].copy_from_slice(bytes);
        };
        put(remote, source);
        put(local, destination);
        put(remote_port, &ports[..2]);
        put(local_port, &ports[2..]);
        put(at::PROTOCOL, &[protocol, version]);
        Some(Self(flow))
    }
}

/// Where the port that belongs to an address stands.
fn port_of(address: i16) -> i16 {
    if address == at::REMOTE { at::REMOTE_PORT } else { at::LOCAL_PORT }
}

/// Which packets a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Those from the wire: they go to a local address.
    Wire,
    /// Those that the host sends.
    Host,
}

/// Where a packet is, and what of the stack is free, for the piece of a program that asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowLookup {
    /// Hold the packet's begin and end; they survive calls.
    pub data: Reg,
    pub end: Reg,
    /// Where [`Flow::BYTES`] and 8 more begin that are the piece's, from the frame pointer.
    pub stack: i16,
}

/// Packets that were passed because their flow is the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// From the wire to the host.
    pub from_wire: u64,
    /// From the host to the wire.
    pub from_host: u64,
}

/// The table.
#[derive(Debug)]
pub(crate) struct FlowTable {
    flows: MapHandle,
    /// Two counts for each CPU, which alone writes them, in the order of [`Origin`].
    counts: OwnedFd,
    cpus: u32,
}

/// Bytes of a CPU's counts: a line of the cache.
const COUNTS_BYTES: u32 = 64;

impl FlowTable {
    /// An empty table with room for so many flows.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(io::Error::other)? as u32;
        let sz = size_of::<libbpf_sys::bpf_map_create_opts>() as u64;
        let options = libbpf_sys::bpf_map_create_opts { sz, ..Default::default() };
        Ok(Self {
            flows: MapHandle::create(
                MapType::LruHash,
                Some("sluice_flows"),
                Flow::BYTES as u32,
                4,
                entries,
                &options,
            )
            .map_err(io::Error::other)?,
            counts: bpf::create_mapped_array(c"sluice_flow_n", COUNTS_BYTES, cpus)?,
            cpus,
        })
    }

    /// Puts a flow in, or leaves it there.
    pub(crate) fn insert(&self, flow: &Flow) -> io::Result<()> {
        self.flows.update(&flow.0, &[0; 4], MapFlags::ANY).map_err(io::Error::other)
    }

    /// Takes a flow out; whether it was there.
    pub(crate) fn remove(&self, flow: &Flow) -> io::Result<bool> {
        remove(&self.flows, &flow.0)
    }

    /// Takes all flows out.
    pub(crate) fn clear(&self) -> io::Result<()> {
        // `keys` hides errors, such as a missing privilege; a lookup reports them.
        self.flows.lookup(&[0; Flow::BYTES], MapFlags::ANY).map_err(io::Error::other)?;
        let flows: Vec<_> = self.flows.keys().collect();
        flows.iter().try_for_each(|flow| remove(&self.flows, flow).map(|_| ()))
    }

    /// How many packets were passed so far.
    pub(crate) fn counts(&self) -> io::Result<FlowCounts> {
        let mut sum = FlowCounts::default();
        for cpu in 0..self.cpus {
            let mut value = [0; COUNTS_BYTES as usize];
            bpf::read_entry(self.counts.as_fd(), cpu, &mut value)?;
            let word =
                |at: usize| value[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            sum.from_wire += word(0);
            sum.from_host += word(8);
        }
        Ok(sum)
    }

    /// Writes a piece of program that goes on behind itself with a packet of a flow in the table, and
    /// counts it, and at `miss` with any other. R0 to R5 are lost.
    pub(crate) fn write(&self, asm: &mut Assembler, place: FlowLookup, from: Origin, miss: Label) {
        write_key(asm, place, from, miss);
        asm.load_map(R1, &self.flows);
        asm.mov(R2, R10);
        asm.add(R2, i32::from(place.stack));
        asm.call(Helper::MAP_LOOKUP);
        asm.jeq(R0, 0, miss);
        let number = place.stack + Flow::BYTES as i16;
        asm.call(Helper::CPU);
        asm.store(Size::W, R10 + number, R0);
        asm.load_map(R1, &self.counts);
        asm.mov(R2, R10);
        asm.add(R2, i32::from(number));
        asm.call(Helper::MAP_LOOKUP);
        asm.jeq(R0, 0, miss);
        let count = R0 + if from == Origin::Wire { 0 } else { 8 };
        asm.load(Size::DW, R1, count);
        asm.add(R1, 1);
        asm.store(Size::DW, count, R1);
    }
}

/// Removes an entry; false if it did not exist.
fn remove(flows: &MapHandle, flow: &[u8]) -> io::Result<bool> {
    match flows.delete(flow) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        other => other.map(|()| true).map_err(io::Error::other),
    }
}

/// Writes the packet's flow to the stack, as [`Flow::of`] has it; on to `miss` with what is of none.
fn write_key(asm: &mut Assembler, place: FlowLookup, from: Origin, miss: Label) {
    let FlowLookup { data, end, stack } = place;
    let [ipv6, ports] = asm.labels();
    let key = |at: i16| R10 + (stack + at);
    for word in 0..Flow::BYTES as i16 / 8 {
        asm.store(Size::DW, key(word * 8), 0);
    }
    let (source, destination) = match from {
        Origin::Wire => (at::REMOTE, at::LOCAL),
        Origin::Host => (at::LOCAL, at::REMOTE),
    };
    let ip = ETHERNET as i16;
    reach(asm, place, ETHERNET + IPV4, miss);
    asm.load(Size::H, R1, data + (ip - 2));
    asm.jeq32(R1, as_loaded(TYPE_IPV6), ipv6);
    asm.jne32(R1, as_loaded(TYPE_IPV4), miss);

    asm.load(Size::B, R4, data + ip);
    version(asm, R4, 4, key(at::VERSION), miss);
    asm.load(Size::H, R1, data + (ip + 6));
    asm.jset32(R1, as_loaded(FRAGMENT), miss);
    asm.load(Size::B, R5, data + (ip + 9));
    copy(asm, Size::W, data + (ip + 12), key(source));
    copy(asm, Size::W, data + (ip + 16), key(destination));
    // R4 = bytes of the header, with options.
    asm.and32(R4, 0xf);
    asm.lsh32(R4, 2);
    asm.jlt32(R4, IPV4 as i32, miss);
    asm.jump(ports);

    asm.place(ipv6);
    reach(asm, place, ETHERNET + IPV6, miss);
    asm.load(Size::B, R4, data + ip);
    version(asm, R4, 6, key(at::VERSION), miss);
    asm.load(Size::B, R5, data + (ip + 6));
    for half in [0, 8] {
        copy(asm, Size::DW, data + (ip + 8 + half), key(source + half));
        copy(asm, Size::DW, data + (ip + 24 + half), key(destination + half));
    }
    asm.mov(R4, IPV6 as i32);

    asm.place(ports);
    let has_ports = asm.label();
    asm.jeq32(R5, i32::from(TCP), has_ports);
    asm.jne32(R5, i32::from(UDP), miss);
    asm.place(has_ports);
    asm.store(Size::B, key(at::PROTOCOL), R5);
    asm.add(R4, data);
    asm.mov(R1, R4);
    asm.add(R1, (ETHERNET + PORTS) as i32);
    asm.jgt(R1, end, miss);
    copy(asm, Size::H, R4 + ip, key(port_of(source)));
    copy(asm, Size::H, R4 + (ip + 2), key(port_of(destination)));
}

/// Goes on at `miss` if the packet has fewer bytes.
fn reach(asm: &mut Assembler, place: FlowLookup, bytes: usize, miss: Label) {
    asm.mov(R1, place.data);
    asm.add(R1, bytes as i32);
    asm.jgt(R1, place.end, miss);
}

/// Goes on at `miss` unless a header's first byte is one of this version, which is noted.
fn version(asm: &mut Assembler, first: Reg, version: i32, note: Memory, miss: Label) {
    asm.mov32(R1, first);
    asm.rsh32(R1, 4);
    asm.jne32(R1, version, miss);
    asm.store(Size::B, note, R1);
}

fn copy(asm: &mut Assembler, size: Size, from: Memory, to: Memory) {
    asm.load(size, R1, from);
    asm.store(size, to, R1);
}

/// Two bytes of a packet as a load has them.
fn as_loaded(bytes: [u8; 2]) -> i32 {
    u16::from_ne_bytes(bytes).into()
}

#[cfg(all(test, not(loom)))]
mod tests;
