//! Fanout: the sockets of several threads share an interface's packets (Linux 3.1).
//!
//! The kernel numbers the group itself (PACKET_FANOUT_FLAG_UNIQUEID, Linux 4.12), so that two
//! programs on one host never meet in one group by accident.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{Error, Result};
use crate::filter::Instruction;
use crate::port::packet_socket::Socket;
use crate::xdp::bpf;

/// By what a packet's socket is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FanoutMode {
    /// The flow's hash: a flow stays with one thread.
    Hash,
    /// In turns.
    LoadBalance,
    /// The CPU the packet arrived on.
    Cpu,
    /// The first socket with room.
    Rollover,
    /// At random.
    Random,
    /// The card's receive queue.
    Queue,
    /// A BPF program's answer.
    Bpf,
}

/// A fanout as a port's options describe it.
#[derive(Clone, Debug)]
pub(super) struct Fanout {
    pub mode: FanoutMode,
    /// Put fragments together first, so that all of a datagram meet in one socket.
    pub defrag: bool,
    /// Try the next socket when one is full.
    pub rollover: bool,
    /// For [`FanoutMode::Bpf`]: a file of classic BPF instructions or a pinned eBPF program.
    pub program: Option<String>,
}

impl FanoutMode {
    pub(super) const WORDS: &[(&str, Self)] = &[
        ("hash", Self::Hash),
        ("lb", Self::LoadBalance),
        ("cpu", Self::Cpu),
        ("rollover", Self::Rollover),
        ("rnd", Self::Random),
        ("qm", Self::Queue),
        ("bpf", Self::Bpf),
    ];
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
            FanoutMode::Bpf => Some(self.load_program()?),
            _ => None,
        };
        let mut group = None;
        for socket in sockets {
            let unique = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
            let kind = self.kernel_mode(program.as_ref()) | self.kernel_flags() | unique;
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

    fn kernel_mode(&self, program: Option<&FanoutProgram>) -> u32 {
        match self.mode {
            FanoutMode::Hash => libc::PACKET_FANOUT_HASH,
            FanoutMode::LoadBalance => libc::PACKET_FANOUT_LB,
            FanoutMode::Cpu => libc::PACKET_FANOUT_CPU,
            FanoutMode::Rollover => libc::PACKET_FANOUT_ROLLOVER,
            FanoutMode::Random => libc::PACKET_FANOUT_RND,
            FanoutMode::Queue => libc::PACKET_FANOUT_QM,
            FanoutMode::Bpf => match program {
                Some(FanoutProgram::Extended(_)) => libc::PACKET_FANOUT_EBPF,
                _ => libc::PACKET_FANOUT_CBPF,
            },
        }
    }

    fn kernel_flags(&self) -> u32 {
        let defrag = if self.defrag { libc::PACKET_FANOUT_FLAG_DEFRAG } else { 0 };
        // The mode rollover is the flag's meaning already, and the kernel refuses both together.
        let rollover = self.rollover && self.mode != FanoutMode::Rollover;
        defrag | if rollover { libc::PACKET_FANOUT_FLAG_ROLLOVER } else { 0 }
    }

    fn set_program(&self, socket: &Socket, program: Option<&FanoutProgram>) -> Result<()> {
        let operation = "set the fanout program of";
        match program {
            None => Ok(()),
            Some(FanoutProgram::Classic(code)) => {
                let option = libc::PACKET_FANOUT_DATA;
                socket.set_program(libc::SOL_PACKET, option, code, operation)
            }
            Some(FanoutProgram::Extended(fd)) => {
                let option = libc::PACKET_FANOUT_DATA;
                socket.set(libc::SOL_PACKET, option, fd.as_raw_fd(), operation)
            }
        }
    }

    fn load_program(&self) -> Result<FanoutProgram> {
        let Some(path) = &self.program else { return Ok(FanoutProgram::Classic(both_ways())) };
        if let Ok(path) = CString::new(path.as_str())
            && let Ok(program) = bpf::kept(&path)
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
            reason: "not a classic BPF program: expected a count, then as many groups of four \
                     numbers, as `tcpdump -ddd` and bpf_asm print them"
                .into(),
        })
    }
}

// Where a load counts from other than the packet's first byte, and what it then means
// (linux/filter.h): the network header, the link-layer header, facts beside the packet.
pub(super) const NET: u32 = libc::SKF_NET_OFF.cast_unsigned();
const LINK: u32 = libc::SKF_LL_OFF.cast_unsigned();
const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL).cast_unsigned();

/// Reads classic BPF as text: a count and as many groups of `code jt jf k`.
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
    rest.chunks_exact(4)
        .map(|group| {
            let code = u16::try_from(group[0]).ok()?;
            Some(Instruction {
                code,
                jt: u8::try_from(group[1]).ok()?,
                jf: u8::try_from(group[2]).ok()?,
                k: load_from(LINK, code, group[3]),
            })
        })
        .collect()
}

/// An instruction's constant, so that a load counts from a header, [`LINK`] or [`NET`]. tcpdump and
/// bpf_asm mean the link-layer header, but the kernel runs a fanout program from the network header
/// for packets that arrive, and from the link-layer header for those that are sent.
pub(super) fn load_from(header: u32, code: u16, k: u32) -> u32 {
    const CLASS_AND_MODE: u16 = 0xe7;
    const LD_ABS: u16 = 0x20;
    const LD_IND: u16 = 0x40;
    const LDX_MSH: u16 = 0xa1;
    let loads = matches!(code & CLASS_AND_MODE, LD_ABS | LD_IND | LDX_MSH);
    // Beyond that it would count from the network header, and no packet is so long.
    let in_packet = k < NET.wrapping_sub(LINK);
    if loads && in_packet { header + k } else { k }
}

/// The program used when none is named: both directions of a conversation meet in one socket.
/// It folds the two addresses of an IPv4 or IPv6 packet into one number; all else goes to the
/// first socket.
fn both_ways() -> Vec<Instruction> {
    const LDH_ABS: u16 = 0x28;
    const LD_ABS: u16 = 0x20;
    const TAX: u16 = 0x07;
    const XOR_X: u16 = 0xac;
    const MUL_K: u16 = 0x24;
    const RSH_K: u16 = 0x74;
    const JA: u16 = 0x05;
    const JEQ_K: u16 = 0x15;
    const RET_K: u16 = 0x06;
    const RET_A: u16 = 0x16;
    let op = |code, k| Instruction { code, jt: 0, jf: 0, k };
    let jump = |k, jt, jf| Instruction { code: JEQ_K, jt, jf, k };
    let fold = |source, target| {
        [op(LD_ABS, NET + source), op(TAX, 0), op(LD_ABS, NET + target), op(XOR_X, 0)]
    };
    let load_protocol =
        [op(LDH_ABS, PROTOCOL), jump(0x0800, 2, 0), jump(0x86dd, 6, 0), op(RET_K, 0)];
    let ipv4 = fold(12, 16);
    let to_mix = [op(JA, 4)];
    let ipv6 = fold(20, 36);
    // The kernel takes the answer modulo the number of sockets, that is its low bits: a product
    // with an odd constant (2³² divided by the golden ratio) has the best ones on top.
    let mix = [op(MUL_K, 0x9e37_79b1), op(RSH_K, 16)];
    [&load_protocol[..], &ipv4, &to_mix, &ipv6, &mix, &[op(RET_A, 0)]].concat()
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
            assert_eq!(load_from(LINK, code, k), expected, "{sentence}");
        }
    }
}
