//! Headers that kernels put before a packet in their own byte order. This module converts those from a host
//! of the other byte order to this host's order.
//!
//! libpcap does the same (`pcap_post_process`), so every reader shows the same bytes. In a truncated header
//! it converts the fields that exist.

use super::source::{ByteOrder, Fields};

const LINUX_SLL: u16 = 113;
const PFLOG: u16 = 117;
const USB_LINUX: u16 = 189;
const USB_LINUX_MMAPPED: u16 = 220;
const NFLOG: u16 = 239;
const LINUX_SLL2: u16 = 276;

/// A field's offset and width in bytes.
type Field = (usize, usize);

/// uid, pid, and the rule's uid and pid (OpenBSD's net/if_pflog.h).
const PFLOG_FIELDS: &[Field] = &[(44, 4), (48, 4), (52, 4), (56, 4)];

/// id, busnum, ts_sec, ts_usec, status, length, len_cap
/// (Linux's Documentation/usb/usbmon.rst).
const USB_FIELDS: &[Field] = &[(0, 8), (12, 2), (16, 8), (24, 4), (28, 4), (32, 4), (36, 4)];
/// error_count, numdesc.
const USB_ISOCHRONOUS_FIELDS: &[Field] = &[(40, 4), (44, 4)];
/// interval, start_frame, xfer_flags, ndesc.
const USB_MMAPPED_FIELDS: &[Field] = &[(48, 4), (52, 4), (56, 4), (USB_DESCRIPTORS, 4)];
/// iso_status, iso_off, iso_len.
const USB_DESCRIPTOR_FIELDS: &[Field] = &[(0, 4), (4, 4), (8, 4)];
const USB_TRANSFER_TYPE: usize = 9;
const USB_DESCRIPTORS: usize = 60;
const USB_HEADER_BYTES: usize = 64;
const USB_DESCRIPTOR_BYTES: usize = 16;
const ISOCHRONOUS: u8 = 0;

/// The byte order of this host.
const HOST: ByteOrder =
    if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };

/// Converts a packet's header to this host's byte order, and corrects a wire length that is known to be
/// wrong.
#[inline]
pub(super) fn to_host(link_type: u16, written: ByteOrder, data: &mut [u8], wire_bytes: &mut u32) {
    if written != HOST {
        turn(link_type, data, *wire_bytes as usize);
    }
    if link_type == USB_LINUX_MMAPPED {
        correct_length(data, wire_bytes);
    }
}

fn turn(link_type: u16, data: &mut [u8], wire_bytes: usize) {
    let on_wire = data.len().min(wire_bytes);
    match link_type {
        LINUX_SLL => turn_can_id(&mut data[..on_wire], 14, 16),
        LINUX_SLL2 => turn_can_id(&mut data[..on_wire], 0, 20),
        PFLOG => {
            let header = data.first().map_or(0, |n| usize::from(*n));
            turn_fields(&mut data[..on_wire.min(header)], PFLOG_FIELDS);
        }
        USB_LINUX => turn_usb(data, false),
        USB_LINUX_MMAPPED => turn_usb(data, true),
        NFLOG => turn_nflog(data, wire_bytes),
        _ => {}
    }
}

/// Swaps the bytes of the fields; false if some are missing.
fn turn_fields(data: &mut [u8], fields: &[Field]) -> bool {
    fields.iter().all(|(at, width)| {
        let field = data.get_mut(*at..at + width);
        field.map(<[u8]>::reverse).is_some()
    })
}

/// Swaps the identifier, in the host's byte order, at the start of a cooked SocketCAN packet.
fn turn_can_id(data: &mut [u8], protocol_at: usize, payload_at: usize) {
    const CAN: [u8; 2] = [0, 0x0c];
    const CAN_FD: [u8; 2] = [0, 0x0d];
    let protocol = data.get(protocol_at..protocol_at + 2);
    if protocol.is_some_and(|p| p == CAN || p == CAN_FD) {
        turn_fields(data, &[(payload_at, 4)]);
    }
}

fn is_isochronous(data: &[u8]) -> bool {
    data.get(USB_TRANSFER_TYPE) == Some(&ISOCHRONOUS)
}

/// Swaps the fields in order, up to the first missing one.
fn turn_usb(data: &mut [u8], memory_mapped: bool) {
    let isochronous = is_isochronous(data);
    let mut there = turn_fields(data, USB_FIELDS);
    if isochronous {
        there = there && turn_fields(data, USB_ISOCHRONOUS_FIELDS);
    }
    if !memory_mapped || !there || !turn_fields(data, USB_MMAPPED_FIELDS) || !isochronous {
        return;
    }
    let count = number_at(data, USB_DESCRIPTORS) as usize;
    let descriptors = data[USB_HEADER_BYTES..].chunks_mut(USB_DESCRIPTOR_BYTES);
    for descriptor in descriptors.take(count) {
        turn_fields(descriptor, USB_DESCRIPTOR_FIELDS);
    }
}

/// Swaps the lengths and types of netfilter log attributes, which are in the host's byte order; their values
/// are not.
fn turn_nflog(data: &mut [u8], wire_bytes: usize) {
    /// Bytes of the packet's header, and of each attribute's header.
    const HEADER_BYTES: usize = 4;
    const VERSION: usize = 1;
    if data.len() < HEADER_BYTES || wire_bytes < HEADER_BYTES || data[VERSION] != 0 {
        return;
    }
    let mut left_on_wire = wire_bytes - HEADER_BYTES;
    let mut rest = &mut data[HEADER_BYTES..];
    while rest.len() >= HEADER_BYTES {
        turn_fields(rest, &[(0, 2), (2, 2)]);
        let length = Fields::new(rest, HOST).u16().unwrap_or(0);
        // libpcap rounds up in 16 bits.
        let length = usize::from(length.wrapping_add(3) & !3);
        if length < HEADER_BYTES || length > left_on_wire || length > rest.len() {
            return;
        }
        left_on_wire -= length;
        rest = &mut rest[length..];
    }
}

/// Corrects the length of an incoming isochronous transfer, which older libpcaps took from the request: it is
/// the end of the last piece.
fn correct_length(data: &[u8], wire_bytes: &mut u32) {
    const EVENT: usize = 8;
    const ENDPOINT: usize = 10;
    const NO_DATA: usize = 15;
    const REQUESTED: usize = 32;
    if data.len() < USB_HEADER_BYTES {
        return;
    }
    let count = number_at(data, USB_DESCRIPTORS);
    let before_data =
        count.wrapping_mul(USB_DESCRIPTOR_BYTES as u32).wrapping_add(USB_HEADER_BYTES as u32);
    let has_data = data[NO_DATA] == 0;
    let complete = data[EVENT] == b'C' && data[ENDPOINT] & 0x80 != 0 && is_isochronous(data);
    let requested = before_data.wrapping_add(number_at(data, REQUESTED));
    if !has_data || !complete || *wire_bytes != requested {
        return;
    }
    let end = data[USB_HEADER_BYTES..]
        .chunks_exact(USB_DESCRIPTOR_BYTES)
        .take(count as usize)
        .map(|descriptor| (number_at(descriptor, 4), number_at(descriptor, 8)))
        .filter(|(_, length)| *length != 0)
        .map(|(offset, length)| offset.wrapping_add(length))
        .max()
        .unwrap_or(0);
    let corrected = before_data.wrapping_add(end);
    let captured = data.len() as u32;
    if corrected >= captured {
        *wire_bytes = corrected;
    }
    *wire_bytes = captured.max(*wire_bytes);
}

fn number_at(data: &[u8], at: usize) -> u32 {
    let field = data.get(at..).unwrap_or_default();
    Fields::new(field, HOST).u32().unwrap_or(0)
}
