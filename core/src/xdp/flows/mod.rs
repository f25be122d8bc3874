//! The host's own flows: a table for programs between wire and host, which pass packets of its flows.
//!
//! A flow is TCP or UDP between two addresses and two ports. The table stores it once, with a local and a
//! remote end. For packets from the wire the destination is local; for packets of the host the source is. A
//! full table drops the least recently used flow (LRU).
//!
//! These packets belong to no flow: fragments, including the first one, because the others have no ports;
//! IPv6 with extension headers; other protocols; and tagged frames, whose addresses belong to another
//! network.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType};

use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Label, Memory, Reg, Size};
use crate::xdp::bpf;
use sluicegate_base::ring::Direction;

// Lengths of headers; IPv4 without options.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const PORTS: usize = 4;
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// IPv4: more fragments follow, or this is not the first (RFC 791).
const FRAGMENT: [u8; 2] = [0x3f, 0xff];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A flow as a key of the table: remote and local address, remote and local port, protocol, IP
/// version, and zeros. IPv4 addresses are padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow([u8; Self::BYTES]);

// Offsets in a flow.
const REMOTE: Endpoint = Endpoint { address: 0, port: 32 };
const LOCAL: Endpoint = Endpoint { address: 16, port: 34 };
const PROTOCOL: i16 = 36;
const VERSION: i16 = 37;

/// Offsets of an end's address and port in a flow.
#[derive(Clone, Copy)]
struct Endpoint {
    address: i16,
    port: i16,
}

impl Flow {
    pub(crate) const BYTES: usize = 40;

    /// Returns a packet's flow, if it has one. Packets of `Direction::Out` were sent by the host; all
    /// others come from the wire.
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
        let from = if direction == Direction::Out { Origin::Host } else { Origin::Wire };
        let [from, to] = from.endpoints();
        let mut put = |offset: i16, bytes: &[u8]| {
            flow[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        };
        put(from.address, source);
        put(from.port, &ports[..2]);
        put(to.address, destination);
        put(to.port, &ports[2..]);
        put(PROTOCOL, &[protocol, version]);
        Some(Self(flow))
    }
}

/// Origin of the packets that a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Wire,
    Host,
}

impl Origin {
    /// Returns the ends of a flow that a packet's source and destination are.
    fn endpoints(self) -> [Endpoint; 2] {
        match self {
            Self::Wire => [REMOTE, LOCAL],
            Self::Host => [LOCAL, REMOTE],
        }
    }
}

/// Registers and stack for code that looks up a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowLookup {
    /// The packet's start and end, in registers that calls preserve.
    pub data: Reg,
    pub end: Reg,
    /// Stack offset of [`Flow::BYTES`] bytes and 8 more that the code uses.
    pub stack: i16,
}

/// Number of packets that passed because their flow belongs to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// From the wire to the host.
    pub from_wire: u64,
    /// From the host to the wire.
    pub from_host: u64,
}

/// The table of flows.
#[derive(Debug)]
pub(crate) struct FlowTable {
    flows: MapHandle,
    /// Two counters per CPU in the order of [`Origin`], each written by that CPU only.
    counts: OwnedFd,
    cpus: u32,
}

/// Bytes of a CPU's counters: a cache line.
const COUNTS_BYTES: u32 = 64;

impl FlowTable {
    /// Creates an empty table for `entries` flows.
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

    /// Adds a flow, if it is not in the table.
    pub(crate) fn insert(&self, flow: &Flow) -> io::Result<()> {
        self.flows.update(&flow.0, &[0; 4], MapFlags::ANY).map_err(io::Error::other)
    }

    /// Removes a flow; false if it was not in the table.
    pub(crate) fn remove(&self, flow: &Flow) -> io::Result<bool> {
        remove(&self.flows, &flow.0)
    }

    /// Removes all flows.
    pub(crate) fn clear(&self) -> io::Result<()> {
        // `keys` hides errors such as a missing privilege; a lookup reports them.
        self.flows.lookup(&[0; Flow::BYTES], MapFlags::ANY).map_err(io::Error::other)?;
        let mut flows = self.flows.keys().peekable();
        while let Some(flow) = flows.next() {
            // Takes the next key first: after a key that no longer exists the kernel begins anew.
            flows.peek();
            remove(&self.flows, &flow)?;
        }
        Ok(())
    }

    /// Returns the number of passed packets.
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

    /// Writes code that counts a packet whose flow is in the table and continues after the code, and jumps
    /// to `miss` for any other packet. Clobbers R0 to R5.
    pub(crate) fn write(&self, asm: &mut Assembler, regs: FlowLookup, from: Origin, miss: Label) {
        write_key(asm, regs, from, miss);
        bpf::write_lookup(asm, &self.flows, regs.stack, miss);
        let number = regs.stack + Flow::BYTES as i16;
        asm.call(Helper::CPU);
        asm.store(Size::W, R10 + number, R0);
        bpf::write_lookup(asm, &self.counts, number, miss);
        let count = R0 + if from == Origin::Wire { 0 } else { 8 };
        bpf::write_add(asm, count, 1);
    }
}

/// Removes an entry; false if it did not exist.
fn remove(flows: &MapHandle, flow: &[u8]) -> io::Result<bool> {
    match flows.delete(flow) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        other => other.map(|()| true).map_err(io::Error::other),
    }
}

/// Writes the packet's flow to the stack, as [`Flow::of`] returns it. Jumps to `miss` if the packet has
/// none.
fn write_key(asm: &mut Assembler, regs: FlowLookup, from: Origin, miss: Label) {
    let FlowLookup { data, end, stack } = regs;
    let [ipv6, ports] = asm.labels();
    let key = |at: i16| R10 + (stack + at);
    for word in 0..Flow::BYTES as i16 / 8 {
        asm.store(Size::DW, key(word * 8), 0);
    }
    let [source, destination] = from.endpoints();
    let ip = ETHERNET as i16;
    reach(asm, regs, ETHERNET + IPV4, miss);
    asm.load(Size::H, R1, data + (ip - 2));
    asm.jeq32(R1, as_loaded(TYPE_IPV6), ipv6);
    asm.jne32(R1, as_loaded(TYPE_IPV4), miss);

    asm.load(Size::B, R4, data + ip);
    version(asm, R4, 4, key(VERSION), miss);
    asm.load(Size::H, R1, data + (ip + 6));
    asm.jset32(R1, as_loaded(FRAGMENT), miss);
    asm.load(Size::B, R5, data + (ip + 9));
    copy(asm, Size::W, data + (ip + 12), key(source.address));
    copy(asm, Size::W, data + (ip + 16), key(destination.address));
    // R4 = length of the header, with options.
    asm.and32(R4, 0xf);
    asm.lsh32(R4, 2);
    asm.jlt32(R4, IPV4 as i32, miss);
    asm.jump(ports);

    asm.place(ipv6);
    reach(asm, regs, ETHERNET + IPV6, miss);
    asm.load(Size::B, R4, data + ip);
    version(asm, R4, 6, key(VERSION), miss);
    asm.load(Size::B, R5, data + (ip + 6));
    for half in [0, 8] {
        copy(asm, Size::DW, data + (ip + 8 + half), key(source.address + half));
        copy(asm, Size::DW, data + (ip + 24 + half), key(destination.address + half));
    }
    asm.mov(R4, IPV6 as i32);

    asm.place(ports);
    let has_ports = asm.label();
    asm.jeq32(R5, i32::from(TCP), has_ports);
    asm.jne32(R5, i32::from(UDP), miss);
    asm.place(has_ports);
    asm.store(Size::B, key(PROTOCOL), R5);
    asm.add(R4, data);
    asm.mov(R1, R4).add((ETHERNET + PORTS) as i32).jgt(end, miss);
    copy(asm, Size::H, R4 + ip, key(source.port));
    copy(asm, Size::H, R4 + (ip + 2), key(destination.port));
}

/// Jumps to `miss` if the packet has fewer bytes.
fn reach(asm: &mut Assembler, regs: FlowLookup, bytes: usize, miss: Label) {
    asm.mov(R1, regs.data).add(bytes as i32).jgt(regs.end, miss);
}

/// Writes the IP version to `note`. Jumps to `miss` if a header's first byte has another version.
fn version(asm: &mut Assembler, first: Reg, version: i32, note: Memory, miss: Label) {
    asm.mov32(R1, first);
    asm.rsh32(R1, 4);
    asm.jne32(R1, version, miss);
    asm.store(Size::B, note, R1);
}

fn copy(asm: &mut Assembler, size: Size, from: Memory, to: Memory) {
    asm.load(size, R1, from).store(size, to);
}

/// Returns two bytes of a packet as a load would read them.
fn as_loaded(bytes: [u8; 2]) -> i32 {
    u16::from_ne_bytes(bytes).into()
}

#[cfg(all(test, not(loom)))]
mod tests;
