//! ICMPv6 (RFC 4443) and neighbour discovery (RFC 4861).

use sluicegate::headers::protocol::{DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING, TCP, UDP};

use super::line::{Bytes, Cut, IpAddress, Line, name};

const UNREACHABLE: u8 = 1;
const TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// Names of messages (IANA's registry), in tcpdump's words.
const NAMES: &[(u8, &str)] = &[
    (UNREACHABLE, "destination unreachable"),
    (TOO_BIG, "packet too big"),
    (TIME_EXCEEDED, "time exceeded in-transit"),
    (PARAMETER_PROBLEM, "parameter problem"),
    (ECHO_REQUEST, "echo request"),
    (ECHO_REPLY, "echo reply"),
    (130, "multicast listener query"),
    (131, "multicast listener report"),
    (132, "multicast listener done"),
    (133, "router solicitation"),
    (134, "router advertisement"),
    (NEIGHBOUR_SOLICITATION, "neighbor solicitation"),
    (NEIGHBOUR_ADVERTISEMENT, "neighbor advertisement"),
    (REDIRECT, "redirect"),
    (143, "multicast listener report v2"),
];

/// The offset of the packet quoted in an error.
const INNER: usize = 8;

/// Writes a message of `length` bytes.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    let message = Bytes::new(data, "icmp6");
    let kind = message.u8(0)?;
    match name(NAMES, kind) {
        Some(name) => write!(line, "ICMP6, {name}"),
        None => write!(line, "ICMP6, unknown icmp6 type ({kind})"),
    }
    let code = message.u8(1)?;
    match kind {
        UNREACHABLE => unreachable(line, message, code)?,
        TOO_BIG => write!(line, ", mtu {}", message.u32(4)?),
        TIME_EXCEEDED => match code {
            0 => write!(line, " for {}", destination(message)?),
            1 => line.text(" (reassembly)"),
            _ => write!(line, ", unknown code ({code})"),
        },
        PARAMETER_PROBLEM => {
            destination(message)?;
            let octet = message.u32(4)?;
            match code {
                0 => write!(line, ", erroneous - octet {octet}"),
                1 => write!(line, ", next header - octet {octet}"),
                2 => write!(line, ", option - octet {octet}"),
                3 => write!(line, ", incomplete header chain - octet {octet}"),
                _ => write!(line, ", code-#{code}"),
            }
        }
        ECHO_REQUEST | ECHO_REPLY => {
            let (id, seq) = (message.u16(4)?, message.u16(6)?);
            write!(line, ", id {id}, seq {seq}");
        }
        NEIGHBOUR_SOLICITATION => write!(line, ", who has {}", address(message, 8)?),
        NEIGHBOUR_ADVERTISEMENT => write!(line, ", tgt is {}", address(message, 8)?),
        REDIRECT => {
            write!(line, ", {}", address(message, 24)?);
            write!(line, " to {}", address(message, 8)?);
        }
        _ => {}
    }
    line.length(length);
    Ok(())
}

fn address(message: Bytes, at: usize) -> Result<IpAddress, Cut> {
    message.array(at).map(IpAddress::V6)
}

/// Returns the destination of the packet quoted in an error.
fn destination(message: Bytes) -> Result<IpAddress, Cut> {
    address(message, INNER + 24)
}

fn unreachable(line: &mut Line, message: Bytes, code: u8) -> Result<(), Cut> {
    match code {
        0 => write!(line, ", unreachable route {}", destination(message)?),
        1 => write!(line, ",  unreachable prohibited {}", destination(message)?),
        2 => {
            let (to, from) = (destination(message)?, address(message, INNER + 8)?);
            write!(line, ", beyond scope {to}, source address {from}");
        }
        3 => write!(line, ", unreachable address {}", destination(message)?),
        4 => {
            let (protocol, port) = inner_port(message)?;
            write!(line, ", unreachable port, {} {protocol} port {port}", destination(message)?);
        }
        _ => write!(line, ", unknown unreach code ({code})"),
    }
    Ok(())
}

/// Returns the transport protocol and destination port of the packet quoted in an error.
fn inner_port(message: Bytes) -> Result<(&'static str, u16), Cut> {
    let mut next = message.u8(INNER + 6)?;
    let mut at = INNER + 40;
    // The loop ends with the packet, because each header takes at least eight bytes.
    loop {
        let bytes = match next {
            UDP => return Ok(("udp", message.u16(at + 2)?)),
            TCP => return Ok(("tcp", message.u16(at + 2)?)),
            HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(message.u8(at + 1)?) + 1) * 8,
            FRAGMENT if message.u16(at + 2)? & 0xfff8 == 0 => 8,
            _ => return Err(message.cut()),
        };
        next = message.u8(at)?;
        at += bytes;
    }
}
