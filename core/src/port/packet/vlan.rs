//! VLAN tags: the kernel takes the outer one out of every frame; here it goes back to where it
//! was on the wire, behind the two addresses.

/// Bytes of a tag: protocol and control information.
pub(in crate::port) const TAG_BYTES: usize = 4;
/// Bytes before it: two MAC addresses.
pub(in crate::port) const ADDRESS_BYTES: usize = 12;

/// The tag's protocol: what the kernel says (Linux 3.14), or 802.1Q.
#[inline]
pub(super) fn tpid(status: u32, tpid: u16) -> u16 {
    if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { libc::ETH_P_8021Q as u16 }
}

/// Puts a tag back into a frame with four bytes of room in front: `frame` begins with the room.
/// The addresses move, the payload stays.
pub(super) fn put_back_in_front(frame: &mut [u8], tpid: u16, tci: u16) {
    frame.copy_within(TAG_BYTES..TAG_BYTES + ADDRESS_BYTES, 0);
    write_tag(frame, tpid, tci);
}

/// Puts a tag back into a frame with four bytes of room at its end: `frame` ends with the room.
/// The payload moves.
pub(super) fn put_back_at_end(frame: &mut [u8], tpid: u16, tci: u16) {
    let end = frame.len() - TAG_BYTES;
    frame.copy_within(ADDRESS_BYTES..end, ADDRESS_BYTES + TAG_BYTES);
    write_tag(frame, tpid, tci);
}

fn write_tag(frame: &mut [u8], tpid: u16, tci: u16) {
    frame[ADDRESS_BYTES..ADDRESS_BYTES + 2].copy_from_slice(&tpid.to_be_bytes());
    frame[ADDRESS_BYTES + 2..ADDRESS_BYTES + 4].copy_from_slice(&tci.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGGED: &[u8] = b"ddddddssssss\x88\xa8\x20\x05\x08\x00payload";

    #[test]
    fn the_tag_is_back_where_it_was_whichever_side_has_room() {
        let mut front = b"....ddddddssssss\x08\x00payload".to_vec();
        put_back_in_front(&mut front, 0x88a8, 0x2005);
        assert_eq!(front, TAGGED);

        let mut end = b"ddddddssssss\x08\x00payload....".to_vec();
        put_back_at_end(&mut end, 0x88a8, 0x2005);
        assert_eq!(end, TAGGED);
    }
}
