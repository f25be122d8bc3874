//! TCP (RFC 9293), with sequence numbers relative to the beginning of the connection, and its options:
//! window scale and timestamps (RFC 7323), selective acknowledgements (RFC 2018).

use super::dns;
use super::line::{BAD_HEADER, Base, Bytes, Cut, Line, Network};

const HEADER: u32 = 20;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;

/// The letter of each flag, from the lowest bit.
const FLAGS: [(u8, &str); 8] = [
    (FIN, "F"),
    (SYN, "S"),
    (RST, "R"),
    (8, "P"),
    (ACK, "."),
    (URG, "U"),
    (0x40, "E"),
    (0x80, "W"),
];

/// Writes a segment of `length` bytes.
pub fn print(line: &mut Line, network: &Network, data: &[u8], length: u32) -> Result<(), Cut> {
    let header = Bytes::new(data, "tcp");
    let ports = network.ports(line, header)?;
    header.slice(0, HEADER as usize)?;
    let header_length = u32::from(header.u8(12)? >> 4) * 4;
    if header_length < HEADER {
        line.text(BAD_HEADER);
        return Ok(());
    }
    if line.quiet {
        line.text("tcp ");
        line.decimal(length.saturating_sub(header_length));
        return Ok(());
    }
    let flags = header.u8(13)?;
    print_flags(line, flags);
    let (mut seq, mut ack) = (header.u32(4)?, header.u32(8)?);
    let mut base = Base::default();
    if flags & ACK != 0 && !line.absolute {
        let source = (ports.0, network.source);
        let destination = (ports.1, network.destination);
        base = line.flows.base(source, destination, (seq, ack), flags & SYN != 0);
        if !base.fresh {
            seq = seq.wrapping_sub(base.sent);
            ack = ack.wrapping_sub(base.acknowledged);
        }
    }
    let Some(length) = length.checked_sub(header_length) else {
        line.text(BAD_HEADER);
        return Ok(());
    };
    if length > 0 || flags & (SYN | FIN | RST) != 0 {
        line.text(", seq ");
        line.decimal(seq);
        if length > 0 {
            line.text(":");
            line.decimal(seq.wrapping_add(length));
        }
    }
    if flags & ACK != 0 {
        line.text(", ack ");
        line.decimal(ack);
    }
    line.text(", win ");
    line.decimal(header.u16(14)?);
    if flags & URG != 0 {
        line.text(", urg ");
        line.decimal(header.u16(18)?);
    }
    if header_length > HEADER {
        let there = header.len().min(header_length as usize);
        let bytes = header.slice(HEADER as usize, there - HEADER as usize)?;
        if !options(line, bytes, base.acknowledged) {
            // The header ends within an option: it is truncated, or its own length is too short.
            header.slice(0, header_length as usize)?;
            line.text(BAD_HEADER);
            return Ok(());
        }
    }
    header.slice(0, header_length as usize)?;
    line.length(length);
    if length > 0 && (ports.0 == dns::PORT || ports.1 == dns::PORT) {
        return dns::print_segment(line, header.after(header_length as usize), length);
    }
    Ok(())
}

fn print_flags(line: &mut Line, flags: u8) {
    line.text("Flags [");
    if flags == 0 {
        line.text("none");
    }
    flag_letters(flags).for_each(|letter| line.text(letter));
    line.text("]");
}

/// Returns the letters of the flags that are set.
pub fn flag_letters(flags: u8) -> impl Iterator<Item = &'static str> {
    FLAGS.into_iter().filter(move |(flag, _)| flags & flag != 0).map(|(_, letter)| letter)
}

/// Writes the options; the edges of a selective acknowledgement count from `base`. Returns false if the bytes
/// end within an option.
fn options(line: &mut Line, bytes: &[u8], base: u32) -> bool {
    const END: u8 = 0;
    const NOP: u8 = 1;
    line.text(", options [");
    let mut rest = bytes;
    while let [kind, after @ ..] = rest {
        if rest.len() < bytes.len() {
            line.text(",");
        }
        let mut value: &[u8] = &[];
        rest = after;
        if !matches!(*kind, END | NOP) {
            let says = after.first().and_then(|&says| usize::from(says).checked_sub(1));
            let says = says.filter(|&says| says > 0);
            let Some((option, next)) = says.and_then(|says| after.split_at_checked(says)) else {
                return false;
            };
            value = option.get(1..).unwrap_or_default();
            rest = next;
        }
        option(line, *kind, value, base);
        if *kind == END {
            break;
        }
    }
    line.text("]");
    true
}

fn option(line: &mut Line, kind: u8, value: &[u8], base: u32) {
    let word = |bytes: [u8; 4]| u32::from_be_bytes(bytes);
    match (kind, value) {
        (0, _) => line.text("eol"),
        (1, _) => line.text("nop"),
        (2, &[a, b]) => write!(line, "mss {}", u16::from_be_bytes([a, b])),
        (3, [shift]) => write!(line, "wscale {shift}"),
        (4, []) => line.text("sackOK"),
        (5, blocks) if blocks.len().is_multiple_of(8) => {
            write!(line, "sack {} ", blocks.len() / 8);
            for block in blocks.as_chunks::<4>().0.as_chunks::<2>().0 {
                let [from, to] = block.map(|edge| word(edge).wrapping_sub(base));
                write!(line, "{{{from}:{to}}}");
            }
        }
        (8, &[a, b, c, d, e, f, g, h]) => {
            write!(line, "TS val {} ecr {}", word([a, b, c, d]), word([e, f, g, h]));
        }
        _ => {
            write!(line, "unknown-{kind} 0x");
            line.hex(value, "");
        }
    }
}
