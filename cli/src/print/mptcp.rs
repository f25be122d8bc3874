//! TCP's multipath option (RFC 8684).

use super::bytes::{Bytes, Cut};
use super::line::{Address, Line};
use super::tcp::{ACK, SYN};

const SUBTYPES: [&str; 8] =
    ["capable", "join", "dss", "add-addr", "rem-addr", "prio", "fail", "fast-close"];

/// The option with its kind and length. False when it makes no sense.
pub fn print(line: &mut Line, option: Bytes, flags: u8) -> Result<bool, Cut> {
    if option.len() < 3 {
        return Ok(false);
    }
    let subtype = usize::from(option.u8(2)? >> 4);
    let name = SUBTYPES.get(subtype).unwrap_or(&"unknown");
    write!(line, " {} {name}", option.len());
    match subtype {
        0 => capable(line, option, flags),
        1 => join(line, option, flags),
        2 => sequence(line, option, flags),
        3 => add_address(line, option),
        4 => remove_address(line, option),
        5 => priority(line, option),
        6 if option.len() == 12 => {
            write!(line, " seq {}", option.u64(4)?);
            Ok(true)
        }
        7 if option.len() == 12 => {
            write!(line, " key {:#x}", option.u64(4)?);
            Ok(true)
        }
        6 | 7 => Ok(false),
        _ => Ok(true),
    }
}

fn capable(line: &mut Line, option: Bytes, flags: u8) -> Result<bool, Cut> {
    let length = option.len();
    let fits = match length {
        4 | 12 => flags & SYN != 0,
        20 | 22 => flags & (SYN | ACK) == ACK,
        _ => false,
    };
    if !fits {
        return Ok(false);
    }
    match option.u8(2)? & 15 {
        version @ 0..=1 => write!(line, " v{version}"),
        version => {
            write!(line, " Unknown Version ({version})");
            return Ok(true);
        }
    }
    if option.u8(3)? & 0x80 != 0 {
        line.text(" csum");
    }
    if length >= 12 {
        write!(line, " {{{:#x}", option.u64(4)?);
        if length >= 20 {
            write!(line, ",{:#x}", option.u64(12)?);
        }
        line.text("}");
    }
    Ok(true)
}

fn join(line: &mut Line, option: Bytes, flags: u8) -> Result<bool, Cut> {
    let fits = match option.len() {
        12 => flags & SYN != 0,
        16 => flags & (SYN | ACK) == SYN | ACK,
        24 => flags & ACK != 0,
        _ => false,
    };
    if !fits {
        return Ok(false);
    }
    if option.len() != 24 {
        if option.u8(2)? & 1 != 0 {
            line.text(" backup");
        }
        write!(line, " id {}", option.u8(3)?);
    }
    match option.len() {
        12 => {
            let (token, nonce) = (option.u32(4)?, option.u32(8)?);
            write!(line, " token {token:#x} nonce {nonce:#x}");
        }
        16 => {
            let (code, nonce) = (option.u64(4)?, option.u32(12)?);
            write!(line, " hmac {code:#x} nonce {nonce:#x}");
        }
        _ => {
            line.text(" hmac 0x");
            line.hex(option.slice(4, 20)?, "");
        }
    }
    Ok(true)
}

/// The data sequence signal: which bytes of the whole this subflow carries and has.
fn sequence(line: &mut Line, option: Bytes, flags: u8) -> Result<bool, Cut> {
    const FIN: u8 = 0x10;
    const LONG_SEQUENCE: u8 = 8;
    const SEQUENCE: u8 = 4;
    const LONG_ACK: u8 = 2;
    const HAS_ACK: u8 = 1;
    if option.len() < 4 || flags & SYN != 0 {
        return Ok(false);
    }
    let says = option.u8(3)?;
    if says & FIN != 0 {
        line.text(" fin");
    }
    let mut at = 4;
    let numbers = [(HAS_ACK, LONG_ACK, " ack "), (SEQUENCE, LONG_SEQUENCE, " seq ")];
    for (has, long, name) in numbers {
        if says & has == 0 {
            continue;
        }
        line.text(name);
        let bytes = if says & long != 0 { 8 } else { 4 };
        if !option.has(at, bytes) {
            return Ok(false);
        }
        match bytes {
            8 => write!(line, "{}", option.u64(at)?),
            _ => write!(line, "{}", option.u32(at)?),
        }
        at += bytes;
    }
    if says & SEQUENCE != 0 {
        if !option.has(at, 4) {
            return Ok(false);
        }
        write!(line, " subseq {}", option.u32(at)?);
        if !option.has(at + 4, 2) {
            return Ok(false);
        }
        write!(line, " len {}", option.u16(at + 4)?);
        at += 6;
        // Checksums are there when both ends agreed on them.
        if option.has(at, 2) {
            write!(line, " csum {:#x}", option.u16(at)?);
            at += 2;
        }
    }
    Ok(at == option.len())
}

fn add_address(line: &mut Line, option: Bytes) -> Result<bool, Cut> {
    let (address_bytes, port) = match option.len() {
        8 | 16 => (4, false),
        10 | 18 => (4, true),
        20 | 28 => (16, false),
        22 | 30 => (16, true),
        _ => return Ok(false),
    };
    match option.u8(2)? & 15 {
        0 => line.text(" v1"),
        1 => line.text(" v1-echo"),
        _ => line.text(" [bad version/echo]"),
    }
    let address = match address_bytes {
        4 => Address::V4(option.array(4)?),
        _ => Address::V6(option.array(4)?),
    };
    write!(line, " id {} {address}", option.u8(3)?);
    let mut at = 4 + address_bytes;
    if port {
        write!(line, ":{}", option.u16(at)?);
        at += 2;
    }
    if option.has(at, 8) {
        write!(line, " hmac {:#x}", option.u64(at)?);
    }
    Ok(true)
}

fn remove_address(line: &mut Line, option: Bytes) -> Result<bool, Cut> {
    if option.len() < 4 {
        return Ok(false);
    }
    line.text(" id");
    for id in option.after(3) {
        write!(line, " {id}");
    }
    Ok(true)
}

fn priority(line: &mut Line, option: Bytes) -> Result<bool, Cut> {
    if !matches!(option.len(), 3 | 4) {
        return Ok(false);
    }
    line.text(match option.u8(2)? & 1 {
        0 => " non-backup",
        _ => " backup",
    });
    if option.len() == 4 {
        write!(line, " id {}", option.u8(3)?);
    }
    Ok(true)
}
