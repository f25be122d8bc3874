//! ICMPv6 (RFC 4443), neighbour discovery (RFC 4861), multicast listeners (RFC 2710, 3810).

use super::bytes::{Bytes, Cut};
use super::line::{Address, Line, name};
use super::payload::{AH, TCP, UDP};

const UNREACHABLE: u8 = 1;
const TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const LISTENER_QUERY: u8 = 130;
const LISTENER_REPORT: u8 = 131;
const LISTENER_DONE: u8 = 132;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const LISTENER_REPORT_2: u8 = 143;
const HOME_AGENT_REQUEST: u8 = 144;
const PREFIX_SOLICITATION: u8 = 146;

/// Names of messages (IANA's ICMPv6 parameters), with the words tcpdump has for them.
const NAMES: &[(u8, &str)] = &[
    (UNREACHABLE, "destination unreachable"),
    (TOO_BIG, "packet too big"),
    (TIME_EXCEEDED, "time exceeded in-transit"),
    (PARAMETER_PROBLEM, "parameter problem"),
    (ECHO_REQUEST, "echo request"),
    (ECHO_REPLY, "echo reply"),
    (LISTENER_QUERY, "multicast listener query"),
    (LISTENER_REPORT, "multicast listener report"),
    (LISTENER_DONE, "multicast listener done"),
    (133, "router solicitation"),
    (134, "router advertisement"),
    (NEIGHBOUR_SOLICITATION, "neighbor solicitation"),
    (NEIGHBOUR_ADVERTISEMENT, "neighbor advertisement"),
    (REDIRECT, "redirect"),
    (138, "router renumbering"),
    (139, "who-are-you request"),
    (140, "who-are-you reply"),
    (141, "inverse neighbor solicitation"),
    (142, "inverse neighbor advertisement"),
    (LISTENER_REPORT_2, "multicast listener report v2"),
    (HOME_AGENT_REQUEST, "ha discovery request"),
    (145, "ha discovery reply"),
    (PREFIX_SOLICITATION, "mobile router solicitation"),
    (147, "mobile router advertisement"),
    (155, "RPL"),
    (200, "mtrace response"),
    (201, "mtrace message"),
];

/// Where the packet that an error is about begins.
const INNER: usize = 8;

/// A message of `length` bytes.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    if length == 0 {
        line.text("ICMP6, length 0 (invalid)");
        return Ok(());
    }
    let message = Bytes::new(data, "icmp6");
    let kind = message.u8(0)?;
    match name(NAMES, kind) {
        Some(name) => write!(line, "ICMP6, {name}"),
        None => write!(line, "ICMP6, unknown icmp6 type ({kind})"),
    }
    let code = message.u8(1)?;
    match kind {
        UNREACHABLE if unreachable(line, message, code)? => {}
        UNREACHABLE => return Ok(()),
        TOO_BIG => write!(line, ", mtu {}", message.u32(4)?),
        TIME_EXCEEDED => match code {
            0 => write!(line, " for {}", destination(message)?),
            1 => line.text(" (reassembly)"),
            _ => write!(line, ", unknown code ({code})"),
        },
        PARAMETER_PROBLEM => parameter(line, message, code)?,
        ECHO_REQUEST | ECHO_REPLY => {
            let (id, seq) = (message.u16(4)?, message.u16(6)?);
            write!(line, ", id {id}, seq {seq}");
        }
        LISTENER_QUERY => query(line, message, length)?,
        LISTENER_REPORT | LISTENER_DONE => listener(line, message)?,
        LISTENER_REPORT_2 if length < 8 => write!(line, " [invalid len {length}]"),
        LISTENER_REPORT_2 => write!(line, ", {} group record(s)", message.u16(6)?),
        NEIGHBOUR_SOLICITATION => write!(line, ", who has {}", address(message, 8)?),
        NEIGHBOUR_ADVERTISEMENT => write!(line, ", tgt is {}", address(message, 8)?),
        REDIRECT => {
            write!(line, ", {}", address(message, 24)?);
            write!(line, " to {}", address(message, 8)?);
        }
        HOME_AGENT_REQUEST | PREFIX_SOLICITATION => {
            write!(line, ", id {:#06x}", message.u16(4)?);
        }
        _ => {}
    }
    line.length(length);
    Ok(())
}

fn address(message: Bytes, at: usize) -> Result<Address, Cut> {
    message.array(at).map(Address::V6)
}

/// Where the packet that an error is about was going.
fn destination(message: Bytes) -> Result<Address, Cut> {
    address(message, INNER + 24)
}

/// False where the code is none, and nobody knows what follows.
fn unreachable(line: &mut Line, message: Bytes, code: u8) -> Result<bool, Cut> {
    match code {
        0 => line.text(", unreachable route"),
        1 => line.text(",  unreachable prohibited"),
        2 => line.text(", beyond scope"),
        3 => line.text(", unreachable address"),
        4 => line.text(", unreachable port"),
        _ => {
            write!(line, ", unknown unreach code ({code})");
            return Ok(false);
        }
    }
    match code {
        2 => {
            let (to, from) = (destination(message)?, address(message, INNER + 8)?);
            write!(line, " {to}, source address {from}");
        }
        4 => {
            let (protocol, port) = inner_port(message)?;
            let to = destination(message)?;
            write!(line, ", {to} {protocol} port {port}");
        }
        _ => write!(line, " {}", destination(message)?),
    }
    Ok(true)
}

/// The transport protocol and destination port of the packet that an error is about.
fn inner_port(message: Bytes) -> Result<(&'static str, u16), Cut> {
    let mut next = message.u8(INNER + 6)?;
    let mut at = INNER + 40;
    // Each header takes eight bytes or more: this ends with the packet.
    loop {
        let bytes = match next {
            UDP => return Ok(("udp", message.u16(at + 2)?)),
            TCP => return Ok(("tcp", message.u16(at + 2)?)),
            0 | 43 | 60 => (usize::from(message.u8(at + 1)?) + 1) * 8,
            44 if message.u16(at + 2)? & 0xfff8 == 0 => 8,
            AH => (usize::from(message.u8(at + 1)?) + 2) * 4,
            _ => return Err(message.cut()),
        };
        next = message.u8(at)?;
        at += bytes;
    }
}

fn parameter(line: &mut Line, message: Bytes, code: u8) -> Result<(), Cut> {
    destination(message)?;
    let what = match code {
        0 => "erroneous",
        1 => "next header",
        2 => "option",
        3 => "incomplete header chain",
        _ => {
            write!(line, ", code-#{code}");
            return Ok(());
        }
    };
    write!(line, ", {what} - octet {}", message.u32(4)?);
    Ok(())
}

/// Version 1 of the listener protocol; nothing is said of a message that is cut.
fn listener(line: &mut Line, message: Bytes) -> Result<(), Cut> {
    if message.len() >= 24 {
        let (delay, group) = (message.u16(4)?, address(message, 8)?);
        write!(line, "max resp delay: {delay} addr: {group}");
    }
    Ok(())
}

fn query(line: &mut Line, message: Bytes, length: u32) -> Result<(), Cut> {
    match length {
        24 => return listener(line, message),
        28.. => line.text(" v2"),
        _ => {
            write!(line, " unknown-version (len {length}) ");
            return Ok(());
        }
    }
    message.u16(4)?;
    write!(line, " [gaddr {}", address(message, 8)?);
    match u32::from(message.u16(26)?) {
        0 => {}
        sources if length < 28 + sources * 16 => line.text(" [invalid number of sources]"),
        sources => write!(line, ", {sources} source(s)"),
    }
    line.text("]");
    Ok(())
}
