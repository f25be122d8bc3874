//! Fanout: the sockets of several threads share an interface's packets (Linux 3.1).
//!
//! The kernel numbers the group itself (PACKET_FANOUT_FLAG_UNIQUEID, Linux 4.12), so that two programs on
//! one host never join the same group by accident.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{Error, Result};
use crate::filter::Instruction;
use crate::filter::cbpf::{Alu, Compare, Op, Operand, Size};
use crate::headers::ethertype;
use crate::port::packet_socket::Socket;
use crate::xdp::bpf;

/// The modes: how the kernel chooses a packet's socket.
pub(super) const MODES: &[(&str, u32)] = &[
    // By the flow's hash: a flow stays with one thread.
    ("hash", libc::PACKET_FANOUT_HASH),
    // Round robin.
    ("lb", libc::PACKET_FANOUT_LB),
    // By the CPU on which the packet arrived.
    ("cpu", libc::PACKET_FANOUT_CPU),
    // The first socket with room.
    ("rollover", libc::PACKET_FANOUT_ROLLOVER),
    // At random.
    ("rnd", libc::PACKET_FANOUT_RND),
    // By the card's receive queue.
    ("qm", libc::PACKET_FANOUT_QM),
    // By the result of a BPF program; PACKET_FANOUT_EBPF for a pinned program.
    ("bpf", libc::PACKET_FANOUT_CBPF),
];

/// A fanout as described by a port's options; by hash by default.
#[derive(Clone, Debug, Default)]
pub(super) struct Fanout {
    /// One of [`MODES`].
    pub mode: u32,
    /// Reassembles fragments first, so that all of a datagram arrive at one socket.
    pub defrag: bool,
    /// Tries the next socket if one is full.
    pub rollover: bool,
    /// For mode bpf: a file of classic BPF instructions, or a pinned eBPF program.
    pub program: Option<String>,
}

/// The program that chooses the socket in mode bpf.
enum FanoutProgram {
    Classic(Vec<Instruction>),
    Extended(OwnedFd),
}

impl Fanout {
    /// Joins bound sockets into a new group.
    pub(super) fn join<'a>(&self, sockets: impl Iterator<Item = &'a Socket>) -> Result<()> {
        let program = match self.mode {
            libc::PACKET_FANOUT_CBPF => Some(self.load_program()?),
            _ => None,
        };
        let mode = match program {
            Some(FanoutProgram::Extended(_)) => libc::PACKET_FANOUT_EBPF,
            _ => self.mode,
        };
        let mut group = None;
        for socket in sockets {
            let unique = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
            let kind = mode | self.kernel_flags() | unique;
            let argument = (kind << 16) | group.unwrap_or(0);
            let operation = "join a fanout with";
            socket.set(libc::SOL_PACKET, libc::PACKET_FANOUT, argument, operation).map_err(
                |error| match error.errno() {
                    Some(libc::EINVAL | libc::ENOPROTOOPT) => {
                        error.remedy("fanout needs Linux 4.12: use one thread")
                    }
                    _ => error,
                },
            )?;
            if group.is_none() {
                let answer: u32 = socket.get(libc::SOL_PACKET, libc::PACKET_FANOUT, operation)?;
                group = Some(answer & 0xffff);
                self.set_program(socket, program.as_ref())?;
            }
        }
        Ok(())
    }

    fn kernel_flags(&self) -> u32 {
        let defrag = if self.defrag { libc::PACKET_FANOUT_FLAG_DEFRAG } else { 0 };
        // The mode rollover already includes the flag, and the kernel rejects both together.
        let rollover = self.rollover && self.mode != libc::PACKET_FANOUT_ROLLOVER;
        defrag | if rollover { libc::PACKET_FANOUT_FLAG_ROLLOVER } else { 0 }
    }

    fn set_program(&self, socket: &Socket, program: Option<&FanoutProgram>) -> Result<()> {
        let operation = "set the fanout program of";
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_FANOUT_DATA);
        match program {
            None => Ok(()),
            Some(FanoutProgram::Classic(code)) => {
                socket.set_program(level, option, code, operation)
            }
            Some(FanoutProgram::Extended(fd)) => {
                socket.set(level, option, fd.as_raw_fd(), operation)
            }
        }
    }

    fn load_program(&self) -> Result<FanoutProgram> {
        let Some(path) = &self.program else { return Ok(FanoutProgram::Classic(both_ways())) };
        if let Ok(path) = CString::new(path.as_str())
            && let Ok(program) = bpf::open_pinned(&path)
        {
            return Ok(FanoutProgram::Extended(program));
        }
        let text = std::fs::read_to_string(path).map_err(|source| {
            Error::path("read the fanout program", path.as_ref(), source)
                .remedy("name a pinned eBPF program or a file that `tcpdump -ddd` made")
        })?;
        parse_classic(&text).map(FanoutProgram::Classic).ok_or_else(|| Error::File {
            path: path.into(),
            offset: 0,
            decompressed: false,
            reason: "not a classic BPF program: expected a count, then as many groups of four \
                     numbers, as `tcpdump -ddd` and bpf_asm print them"
                .into(),
        })
    }
}

// Base offsets for a load that does not count from the packet's first byte (linux/filter.h): the network
// header, the link-layer header, facts that are not in the packet.
pub(super) const NET: u32 = libc::SKF_NET_OFF.cast_unsigned();
const LINK: u32 = libc::SKF_LL_OFF.cast_unsigned();
const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL).cast_unsigned();

/// Reads classic BPF as text: a count, and that many groups of `code jt jf k`.
fn parse_classic(text: &str) -> Option<Vec<Instruction>> {
    let mut numbers = text
        .split([',', ' ', '\t', '\n', '\r'])
        .filter(|word| !word.is_empty())
        .map(str::parse::<u32>);
    let count = numbers.next()?.ok()?;
    let rest = numbers.collect::<std::result::Result<Vec<u32>, _>>().ok()?;
    if count == 0 || count > 4096 || rest.len() != count as usize * 4 {
        return None;
    }
    let instruction = |group: &[u32]| {
        let code = u16::try_from(group[0]).ok()?;
        let (jt, jf) = (u8::try_from(group[1]).ok()?, u8::try_from(group[2]).ok()?);
        Some(load_from(LINK, Instruction { code, jt, jf, k: group[3] }))
    };
    rest.chunks_exact(4).map(instruction).collect()
}

/// Changes an instruction that loads from the packet to count from a header, [`LINK`] or [`NET`]. tcpdump
/// and bpf_asm count from the link-layer header. But the kernel runs a fanout program from the network
/// header for packets that arrive, and from the link-layer header for packets that are sent.
pub(super) fn load_from(header: u32, instruction: Instruction) -> Instruction {
    let op = Op::decode(instruction);
    let loads = matches!(op, Some(Op::Load(..) | Op::LoadIndirect(..) | Op::LoadXHeader(_)));
    // Larger offsets would count from the network header, and no packet is that long.
    let in_packet = instruction.k < NET.wrapping_sub(LINK);
    let k = if loads && in_packet { header + instruction.k } else { instruction.k };
    Instruction { k, ..instruction }
}

/// Returns the default program: both directions of a conversation go to one socket. It folds the two
/// addresses of an IPv4 or IPv6 packet into one number; all other packets go to the first socket.
fn both_ways() -> Vec<Instruction> {
    let branch =
        |ethertype: u16, jt, jf| Op::Branch(Compare::Eq, Operand::K(ethertype.into()), jt, jf);
    let fold = |source, target| {
        let load = |at| Op::Load(Size::W, NET + at);
        [load(source), Op::CopyToX, load(target), Op::Calculate(Alu::Xor, Operand::X)]
    };
    let protocol = [
        Op::Load(Size::H, PROTOCOL),
        branch(ethertype::IPV4, 2, 0),
        branch(ethertype::IPV6, 6, 0),
        Op::Return(0),
    ];
    // The kernel takes the result modulo the number of sockets, which uses its low bits. A product with an
    // odd constant (2³² divided by the golden ratio) has the best bits on top, so the program shifts them
    // down.
    let mix = [
        Op::Calculate(Alu::Mul, Operand::K(0x9e37_79b1)),
        Op::Calculate(Alu::Rsh, Operand::K(16)),
        Op::ReturnA,
    ];
    let ops = [&protocol[..], &fold(12, 16), &[Op::Jump(4)], &fold(20, 36), &mix].concat();
    ops.into_iter().map(Op::encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_as_tcpdump_and_bpf_asm_print_them() {
        let two = vec![
            Instruction { code: 40, jt: 0, jf: 0, k: LINK + 12 },
            Instruction { code: 6, jt: 0, jf: 0, k: 1 },
        ];
        assert_eq!(parse_classic("2\n40 0 0 12\n6 0 0 1\n"), Some(two.clone()));
        assert_eq!(parse_classic("2,40 0 0 12,6 0 0 1,"), Some(two));
        for text in ["", "0", "1\n40 0 0", "2\n40 0 0 12\n", "1\n40 0 256 1", "x", "5000000\n"] {
            assert_eq!(parse_classic(text), None, "{text:?}");
        }
    }

    #[test]
    fn loads_count_from_the_link_header_and_nothing_else_changes() {
        for (code, k, expected, sentence) in [
            (0x28, 12, LINK + 12, "ldh [12]"),
            (0x50, 15, LINK + 15, "ldb [x + 15]"),
            (0xb1, 14, LINK + 14, "ldxb 4*([14]&0xf)"),
            (0x28, PROTOCOL, PROTOCOL, "ldh proto"),
            (0x20, NET + 12, NET + 12, "ld of the network header"),
            (0x20, 0x10_0000, 0x10_0000, "ld beyond any packet"),
            (0x15, 12, 12, "jeq #12"),
            (0x06, 12, 12, "ret #12"),
            (0x80, 0, 0, "ld len"),
            (0x60, 1, 1, "ld M[1]"),
            (0x00, 7, 7, "ld #7"),
        ] {
            let instruction = Instruction { code, jt: 0, jf: 0, k };
            assert_eq!(load_from(LINK, instruction).k, expected, "{sentence}");
        }
    }
}
