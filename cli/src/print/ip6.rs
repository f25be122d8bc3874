//! IPv6 (RFC 8200) and its extension headers.

use super::bytes::{Bytes, Cut, first};
use super::line::{Address, Line};
use super::payload::{self, Network, has_ports};

const HEADER: u32 = 40;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
const MOBILITY_OLD: u8 = 62;
const MOBILITY: u8 = 135;

/// A packet in `length` bytes; what it says of its own length counts.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    let header = Bytes::new(data, "ip6");
    header.slice(0, HEADER as usize)?;
    if length < HEADER {
        write!(line, "truncated-ip6 {length}");
        return Ok(());
    }
    if !line.link_header {
        line.text("IP6 ");
    }
    let version = header.u8(0)? >> 4;
    if version != 6 {
        write!(line, "version error: {version} != 6");
        return Ok(());
    }
    let payload = u32::from(header.u16(4)?);
    missing(line, length, payload + HEADER);
    if !line.deeper() {
        return Ok(());
    }
    let network = Network {
        source: Address::V6(header.array(8)?),
        destination: Address::V6(header.array(24)?),
        protocol: header.u8(6)?,
    };
    if !has_ports(network.protocol) {
        network.print(line, ": ");
    }
    let mut chain = Chain {
        data,
        length,
        payload,
        at: HEADER,
        jumbo: false,
        options: false,
        says: payload,
        fragmented: false,
    };
    chain.print(line, &network)
}

fn missing(line: &mut Line, length: u32, total: u32) {
    if length < total {
        let missing = total - length;
        write!(line, "truncated-ip6 - {missing} bytes missing!");
    }
}

/// The extension headers of a packet, one after the other.
struct Chain<'a> {
    data: &'a [u8],
    /// Bytes the packet had on the way.
    length: u32,
    /// Bytes after the fixed header, as that or a jumbo option says; 0 when neither does.
    payload: u32,
    /// Where the next header begins.
    at: u32,
    jumbo: bool,
    /// Hop-by-hop options were there.
    options: bool,
    /// The fixed header's length of what follows it.
    says: u32,
    fragmented: bool,
}

impl<'a> Chain<'a> {
    /// What is there of the packet from `at` on, padding left out.
    fn rest(&self, protocol: &'static str) -> Bytes<'a> {
        let total = match self.payload {
            0 => self.length,
            payload => payload.saturating_add(HEADER),
        };
        let packet = Bytes::new(first(self.data, total), protocol);
        Bytes::new(packet.after(self.at as usize), protocol)
    }

    fn print(&mut self, line: &mut Line, network: &Network) -> Result<(), Cut> {
        let mut next = network.protocol;
        loop {
            let bytes = match next {
                HOP_BY_HOP => self.hop_by_hop(line)?,
                DESTINATION => {
                    let header = self.rest("dstopt");
                    let bytes = (u32::from(header.u8(1)?) + 1) * 8;
                    header.slice(0, bytes as usize)?;
                    line.text("DSTOPT ");
                    Some(bytes)
                }
                ROUTING if self.rest("ip6").len() == 0 => return Err(Cut("ip6")),
                ROUTING => routing(line, self.rest("rt6"))?,
                FRAGMENT => self.fragment(line)?,
                MOBILITY | MOBILITY_OLD => {
                    let header = self.rest("mobility");
                    let bytes = (u32::from(header.u8(1)?) + 1) * 8;
                    write!(line, "mobility: type-#{}, length {bytes}", header.u8(2)?);
                    return Ok(());
                }
                _ => return self.payload(line, network, next),
            };
            let Some(bytes) = bytes else {
                return Ok(());
            };
            next = self.rest("ip6").u8(0)?;
            self.at += bytes;
            if self.payload != 0 && !self.jumbo && self.at > self.payload + HEADER {
                return Err(Cut("ip6"));
            }
        }
    }

    /// Hop-by-hop options: once, and first.
    fn hop_by_hop(&mut self, line: &mut Line) -> Result<Option<u32>, Cut> {
        if self.options || self.at != HEADER {
            line.text(match self.options {
                true => "[The Hop-by-Hop Options header was already found] (invalid)",
                false => "[The Hop-by-Hop Options header don't follow the IPv6 header] (invalid)",
            });
            return Ok(None);
        }
        self.options = true;
        let header = self.rest("hbhopt");
        let bytes = (u32::from(header.u8(1)?) + 1) * 8;
        let mut whole = false;
        if let Ok(content) = header.slice(2, bytes as usize - 2) {
            line.text("HBH ");
            whole = self.options(line, Bytes::new(content, "hbhopt"))?;
        }
        if self.payload == 0 {
            if !whole {
                line.text(" [|hbhopt]");
            }
            line.text("[No valid Jumbo Payload Hop-by-Hop option found] (invalid)");
            return Ok(None);
        }
        self.jumbo = self.says == 0;
        if whole { Ok(Some(bytes)) } else { Err(header.cut()) }
    }

    /// Checks the options and looks for a jumbo payload's length. False where one is wrong.
    fn options(&mut self, line: &mut Line, options: Bytes) -> Result<bool, Cut> {
        const PAD1: u8 = 0;
        const ROUTER_ALERT: u8 = 5;
        const JUMBO: u8 = 0xc2;
        const HOME_ADDRESS: u8 = 0xc9;
        let mut at = 0;
        while at < options.len() {
            let kind = options.u8(at)?;
            if kind == PAD1 {
                at += 1;
                continue;
            }
            if !options.has(at, 2) {
                return Ok(false);
            }
            let says = options.u8(at + 1)?;
            let bytes = usize::from(says) + 2;
            if !options.has(at, bytes) {
                return Ok(false);
            }
            // Name, bytes the option has, whether it may have more.
            let (name, must, more) = match kind {
                ROUTER_ALERT => ("rtalert", 4, false),
                JUMBO => ("jumbo", 6, false),
                HOME_ADDRESS => ("homeaddr", 18, true),
                _ => ("", 0, true),
            };
            if options.len() - at < must {
                write!(line, "({name}: trunc)");
                return Ok(false);
            }
            if bytes < must || (bytes > must && !more) {
                write!(line, "({name}: invalid len {says})");
                return Ok(false);
            }
            if kind == JUMBO && self.payload == 0 {
                // RFC 2675: less fits the ordinary field.
                let jumbo = options.u32(at + 2)?;
                self.payload = if jumbo > 65_535 { jumbo } else { 0 };
            }
            at += bytes;
        }
        Ok(true)
    }

    /// The fragment header; nothing that could be read follows it but in the first fragment.
    fn fragment(&mut self, line: &mut Line) -> Result<Option<u32>, Cut> {
        const BYTES: u32 = 8;
        let header = self.rest("frag6");
        let offset = header.u16(2)? & 0xfff8;
        let bytes = i64::from(self.says + HEADER) - i64::from(self.at + BYTES);
        write!(line, "frag ({offset}|{bytes})");
        if offset != 0 {
            return Ok(None);
        }
        line.text(" ");
        self.fragmented = true;
        Ok((header.len() > BYTES as usize).then_some(BYTES))
    }

    fn payload(&mut self, line: &mut Line, network: &Network, next: u8) -> Result<(), Cut> {
        if self.jumbo {
            missing(line, self.length, self.payload.saturating_add(HEADER));
        }
        if self.payload == 0 {
            // No room for the headers there were.
            if self.at != HEADER {
                return Err(Cut("ip6"));
            }
            return payload::print(line, network, next, &[], 0, self.fragmented);
        }
        let left = self.payload.saturating_add(HEADER).checked_sub(self.at);
        let left = left.ok_or(Cut("ip6"))?;
        let data = self.rest("ip6").after(0);
        payload::print(line, network, next, data, left, self.fragmented)
    }
}

/// The routing header: types 0 and 2 (RFC 6275), and 4, segment routing (RFC 8754).
fn routing(line: &mut Line, header: Bytes) -> Result<Option<u32>, Cut> {
    line.text("RT6");
    let words = header.u8(1)?;
    write!(line, " (len={words}");
    let kind = header.u8(2)?;
    write!(line, ", type={kind}");
    if kind == 0 {
        line.text(" [Deprecated]");
    }
    write!(line, ", segleft={}", header.u8(3)?);
    match kind {
        0 | 2 => match header.u32(4)? {
            0 => {}
            reserved => write!(line, ", rsv={reserved:#x}"),
        },
        4 => {
            write!(line, ", last-entry={}", header.u8(4)?);
            match header.u8(5)? {
                0 => {}
                flags => write!(line, ", flags={flags:#x}"),
            }
            write!(line, ", tag={:x}", header.u16(6)?);
        }
        _ => {
            line.text(" (unknown type) (invalid)");
            return Ok(None);
        }
    }
    if !words.is_multiple_of(2) {
        write!(line, " (invalid length {words}) (invalid)");
        return Ok(None);
    }
    for index in 0..usize::from(words / 2) {
        let address = Address::V6(header.array(8 + index * 16)?);
        write!(line, ", [{index}]{address}");
    }
    line.text(") ");
    Ok(Some((u32::from(words) + 1) * 8))
}
