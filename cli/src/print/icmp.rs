//! ICMP (RFC 792, 950, 1191, 1256).

use super::bytes::{Bytes, Cut};
use super::line::{Address, Line, name};
use super::payload::{TCP, UDP};

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const REDIRECT: u8 = 5;
const ECHO: u8 = 8;
const ROUTER_ADVERTISEMENT: u8 = 9;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
const TIMESTAMP: u8 = 13;
const TIMESTAMP_REPLY: u8 = 14;
const MASK_REPLY: u8 = 18;

/// Messages of which only the name is shown.
const NAMES: &[(u8, &str)] = &[
    (4, "source quench"),
    (10, "router solicitation"),
    (15, "information request"),
    (16, "information reply"),
    (17, "address mask request"),
];

/// Why something cannot be reached: what stands before its address, and after.
const UNREACHABLE_CODES: &[(u8, (&str, &str))] = &[
    (0, ("net ", "")),
    (1, ("host ", "")),
    (5, ("", " - source route failed")),
    (6, ("net ", " - unknown")),
    (7, ("host ", " - unknown")),
    (8, ("", " - source host isolated")),
    (9, ("net ", " - admin prohibited")),
    (10, ("host ", " - admin prohibited")),
    (11, ("net ", " - tos prohibited")),
    (12, ("host ", " - tos prohibited")),
    (13, ("host ", " - admin prohibited filter")),
    (14, ("host ", " - host precedence violation")),
    (15, ("host ", " - precedence cutoff")),
];

/// Where the packet that a message is about begins.
const INNER: usize = 8;

/// A message of `length` bytes.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    let message = Bytes::new(data, "icmp");
    let start = line.mark();
    line.text("ICMP ");
    let whole = body(line, message);
    if whole.is_err() {
        // tcpdump shows a message whole or not at all.
        line.back_to(start);
    }
    whole?;
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
        REDIRECT => redirect(line, message, code)?,
        ROUTER_ADVERTISEMENT => router(line, message)?,
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
        MASK_REPLY => write!(line, "address mask is {:#010x}", message.u32(8)?),
        TIMESTAMP => {
            let (id, seq) = (message.u16(4)?, message.u16(6)?);
            write!(line, "time stamp query id {id} seq {seq}");
        }
        TIMESTAMP_REPLY => {
            let (id, seq) = (message.u16(4)?, message.u16(6)?);
            write!(line, "time stamp reply id {id} seq {seq}: org ");
            time_of_day(line, message.u32(8)?);
            line.text(", recv ");
            time_of_day(line, message.u32(12)?);
            line.text(", xmit ");
            time_of_day(line, message.u32(16)?);
        }
        _ => match name(NAMES, kind) {
            Some(name) => line.text(name),
            None => write!(line, "type-#{kind}"),
        },
    }
    Ok(())
}

/// Where the packet that the message is about was going.
fn destination(message: Bytes) -> Result<Address, Cut> {
    message.array(INNER + 16).map(Address::V4)
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
        _ => match UNREACHABLE_CODES.iter().find(|(number, _)| *number == code) {
            Some((_, (before, after))) => write!(line, "{before}{address} unreachable{after}"),
            None => write!(line, "{address} unreachable - #{code}"),
        },
    }
    Ok(())
}

fn redirect(line: &mut Line, message: Bytes, code: u8) -> Result<(), Cut> {
    let (address, gateway) = (destination(message)?, Address::V4(message.array(4)?));
    match code {
        0 => write!(line, "redirect {address} to net {gateway}"),
        1 => write!(line, "redirect {address} to host {gateway}"),
        2 => write!(line, "redirect-tos {address} to net {gateway}"),
        3 => write!(line, "redirect-tos {address} to host {gateway}"),
        _ => write!(line, "redirect-#{code} {address} to {gateway}"),
    }
    Ok(())
}

/// A router advertisement (RFC 1256).
fn router(line: &mut Line, message: Bytes) -> Result<(), Cut> {
    let (count, words, lifetime) = (message.u8(4)?, message.u8(5)?, message.u16(6)?);
    let (hours, minutes, seconds) = (lifetime / 3600, lifetime / 60 % 60, lifetime % 60);
    line.text("router advertisement lifetime ");
    match lifetime {
        0..60 => write!(line, "{seconds}"),
        60..3600 => write!(line, "{minutes}:{seconds:02}"),
        _ => write!(line, "{hours}:{minutes:02}:{seconds:02}"),
    }
    write!(line, " {count}:");
    if words != 2 {
        write!(line, " [size {words}]");
        return Ok(());
    }
    for index in 0..usize::from(count) {
        let address = Address::V4(message.array(8 + index * 8)?);
        let preference = message.u32(12 + index * 8)?;
        write!(line, " {{{address} {preference}}}");
    }
    Ok(())
}

/// Milliseconds since midnight UTC.
fn time_of_day(line: &mut Line, ms: u32) {
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    write!(line, "{hours:02}:{minutes:02}:{:02}.{ms:03}", seconds % 60);
}
