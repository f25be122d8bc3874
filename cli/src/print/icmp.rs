//! ICMP (RFC 792, 1191).

use sluicegate::headers::protocol::{TCP, UDP};

use super::line::{Bytes, Cut, IpAddress, Line, name};

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const REDIRECT: u8 = 5;
const ECHO: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

/// Messages printed by name (IANA's registry), in tcpdump's words.
const NAMES: &[(u8, &str)] = &[
    (4, "source quench"),
    (9, "router advertisement"),
    (10, "router solicitation"),
    (13, "time stamp query"),
    (14, "time stamp reply"),
    (17, "address mask request"),
    (18, "address mask"),
];

/// The reasons why a destination is unreachable: the words before and after its address.
const UNREACHABLE_CODES: &[(u8, (&str, &str))] = &[
    (0, ("net ", "")),
    (1, ("host ", "")),
    (5, ("", " - source route failed")),
    (9, ("net ", " - admin prohibited")),
    (10, ("host ", " - admin prohibited")),
    (13, ("host ", " - admin prohibited filter")),
];

/// The offset of the packet quoted in an error.
const INNER: usize = 8;

/// Writes a message of `length` bytes, whole or not at all.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    let start = line.mark();
    line.text("ICMP ");
    body(line, Bytes::new(data, "icmp")).inspect_err(|_| line.back_to(start))?;
    line.length(length);
    Ok(())
}

fn body(line: &mut Line, message: Bytes) -> Result<(), Cut> {
    let (kind, code) = (message.u8(0)?, message.u8(1)?);
    match kind {
        ECHO | ECHO_REPLY => {
            let what = if kind == ECHO { "request" } else { "reply" };
            let (id, seq) = (message.u16(4)?, message.u16(6)?);
            write!(line, "echo {what}, id {id}, seq {seq}");
        }
        UNREACHABLE => unreachable(line, message, code)?,
        REDIRECT => {
            let (address, gateway) = (destination(message)?, IpAddress::V4(message.array(4)?));
            match code {
                0 => write!(line, "redirect {address} to net {gateway}"),
                1 => write!(line, "redirect {address} to host {gateway}"),
                2 => write!(line, "redirect-tos {address} to net {gateway}"),
                3 => write!(line, "redirect-tos {address} to host {gateway}"),
                _ => write!(line, "redirect-#{code} {address} to {gateway}"),
            }
        }
        TIME_EXCEEDED => {
            destination(message)?;
            match code {
                0 => line.text("time exceeded in-transit"),
                1 => line.text("ip reassembly time exceeded"),
                _ => write!(line, "time exceeded-#{code}"),
            }
        }
        PARAMETER_PROBLEM if code != 0 => write!(line, "parameter problem - code {code}"),
        PARAMETER_PROBLEM => write!(line, "parameter problem - octet {}", message.u8(4)?),
        _ => match name(NAMES, kind) {
            Some(name) => line.text(name),
            None => write!(line, "type-#{kind}"),
        },
    }
    Ok(())
}

/// Returns the destination of the packet quoted in an error.
fn destination(message: Bytes) -> Result<IpAddress, Cut> {
    message.array(INNER + 16).map(IpAddress::V4)
}

fn unreachable(line: &mut Line, message: Bytes, code: u8) -> Result<(), Cut> {
    let address = destination(message)?;
    let protocol = message.u8(INNER + 9)?;
    match code {
        2 => write!(line, "{address} protocol {protocol} unreachable"),
        3 => {
            let header = usize::from(message.u8(INNER)? & 15) * 4;
            let port = message.u16(INNER + header + 2)?;
            match protocol {
                TCP => write!(line, "{address} tcp port {port} unreachable"),
                UDP => write!(line, "{address} udp port {port} unreachable"),
                _ => write!(line, "{address} protocol {protocol} port {port} unreachable"),
            }
        }
        4 => {
            write!(line, "{address} unreachable - need to frag");
            match message.u16(6)? {
                0 => {}
                mtu => write!(line, " (mtu {mtu})"),
            }
        }
        _ => match name(UNREACHABLE_CODES, code) {
            Some((before, after)) => write!(line, "{before}{address} unreachable{after}"),
            None => write!(line, "{address} unreachable - #{code}"),
        },
    }
    Ok(())
}
