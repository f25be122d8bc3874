//! The interface of a port: finding it by name, its description, and the lengths of packets it can send.

use super::name::PortName;
use crate::error::{Error, Result};
use crate::headers::{ETHERNET_BYTES, MAC_ADDRESSES_BYTES, VLAN_TAG_BYTES, ethertype};
use crate::link::{self, netns};
use sluicegate_base::ring::{Interface, LINKTYPE_ETHERNET, Packet};

/// Mark (`SO_MARK`) of packets that a port of this library sends through the host's stack: they leave by
/// the interface, and `host:` ports do not take them for the host's own.
pub(super) const HOST_MARK: i32 = 0x736c_6963;
/// An Ethernet header and two VLAN tags: the bytes that a frame may have in addition to the MTU.
pub(super) const MAX_HEADER_BYTES: u32 = (ETHERNET_BYTES + 2 * VLAN_TAG_BYTES) as u32;
/// Maximum number of namespaces to search for a better error message.
const MAX_NAMESPACES: usize = 64;
/// Maximum MTU that frames are sized for: the kernel limits the pages of a packet (MAX_SKB_FRAGS, 17).
const MAX_MTU: usize = 1 << 16;

/// Finds the interface of a port's name in the namespace `netns`, or in this thread's.
pub(super) fn find(name: &PortName, netns: Option<&str>) -> Result<link::Interface> {
    let wanted = name.name();
    if wanted == "any" {
        return Err(name.error("'any' is for packet: ports that receive: name each interface"));
    }
    link::interface(netns, wanted).map_err(|error| match error {
        Error::Usage(text) if netns.is_none_or(netns::exists) => {
            Error::Usage(format!("{text}{}", elsewhere(wanted, netns)))
        }
        error => error,
    })
}

/// Finds an interface like [`find`], and rejects one that is not Ethernet with the message `otherwise`.
pub(super) fn find_ethernet(
    name: &PortName,
    netns: Option<&str>,
    otherwise: &str,
) -> Result<link::Interface> {
    let interface = find(name, netns)?;
    match interface.hardware {
        libc::ARPHRD_ETHER => Ok(interface),
        _ => Err(name.error(otherwise)),
    }
}

/// Returns a hint for an interface that is in another namespace. The hint is empty if no accessible
/// namespace has it.
fn elsewhere(wanted: &str, netns: Option<&str>) -> String {
    let is_in = |place: Option<&str>| link::interface(place, wanted).is_ok();
    let names = netns::list();
    let others = names.iter().filter(|other| Some(other.as_str()) != netns).take(MAX_NAMESPACES);
    let have: Vec<&str> = others.map(String::as_str).filter(|other| is_in(Some(other))).collect();
    match have.as_slice() {
        [other] => format!(
            "; network namespace '{other}' has an interface of that name: use --netns {other}"
        ),
        [first, ..] => format!(
            "; these network namespaces have an interface of that name: {}: use --netns {first}, or another",
            have.join(", ")
        ),
        [] if netns.is_some() && is_in(None) => {
            "; this namespace has an interface of that name: leave --netns out".into()
        }
        [] => String::new(),
    }
}

/// Describes an interface whose packets are Ethernet frames, of any length.
pub(super) fn described(name: impl Into<String>, comment: impl Into<String>) -> Interface {
    Interface {
        name: name.into(),
        link_type: LINKTYPE_ETHERNET,
        snaplen: 0,
        comment: comment.into(),
    }
}

/// The limits on a packet's length.
#[derive(Clone, Copy, Debug)]
pub(super) struct LengthLimits {
    /// Length of the header that the MTU does not include; no packet is shorter.
    header_bytes: usize,
    /// The interface's MTU at the last query.
    mtu: usize,
    /// Maximum length for any MTU: the size of a frame.
    max_bytes: usize,
}

impl LengthLimits {
    pub(super) fn of(interface: &link::Interface, link_type: u16) -> Self {
        let header_bytes = if link_type == LINKTYPE_ETHERNET { ETHERNET_BYTES } else { 0 };
        Self::new(header_bytes, interface.mtu as usize)
    }

    pub(super) fn new(header_bytes: usize, mtu: usize) -> Self {
        let max_bytes = mtu.min(MAX_MTU) + header_bytes + VLAN_TAG_BYTES;
        Self { header_bytes, mtu, max_bytes }
    }

    /// Returns the maximum length of a packet, even if the MTU increases.
    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Sets the size of a frame.
    pub(super) fn set_room(&mut self, bytes: usize) {
        self.max_bytes = bytes.min(MAX_MTU + self.header_bytes + VLAN_TAG_BYTES);
    }

    /// Sets the interface's current MTU.
    pub(super) fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    /// Returns true if the kernel accepts a packet: it has a complete header and is not longer than the
    /// MTU. An 802.1Q tag does not count toward the MTU, other tags do (net/packet/af_packet.c,
    /// dev_validate_header and packet_extra_vlan_len_allowed).
    #[inline]
    pub(super) fn allow(&self, packet: &Packet<'_>) -> bool {
        let bytes = packet.captured_bytes();
        let plain = self.mtu + self.header_bytes;
        let longest =
            if bytes > plain && self.is_tagged(packet) { plain + VLAN_TAG_BYTES } else { plain };
        (self.header_bytes.max(1)..=longest.min(self.max_bytes)).contains(&bytes)
    }

    /// Returns true if the packet is refused because it is too long.
    #[cold]
    pub(super) fn is_too_long(&self, packet: &Packet<'_>) -> bool {
        !self.allow(packet) && packet.captured_bytes() >= self.header_bytes.max(1)
    }

    #[cold]
    fn is_tagged(&self, packet: &Packet<'_>) -> bool {
        let [high, low] = ethertype::VLAN.to_be_bytes();
        let mut protocol = packet.segments().flatten().skip(MAC_ADDRESSES_BYTES);
        self.header_bytes == ETHERNET_BYTES
            && [protocol.next(), protocol.next()] == [Some(&high), Some(&low)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_base::ring::Meta;

    #[test]
    fn what_the_kernel_takes_is_allowed_and_nothing_else() {
        let (ethernet, tunnel) =
            (LengthLimits::new(ETHERNET_BYTES, 1500), LengthLimits::new(0, 1480));
        let mut grown = LengthLimits::new(ETHERNET_BYTES, 1500);
        grown.set_room(2016);
        grown.set_mtu(9000);
        let huge = LengthLimits::new(ETHERNET_BYTES, 1 << 20);
        let meta = Meta::default();
        for (sentence, limits, protocol, bytes, expected) in [
            ("nothing is no packet", ethernet, 0x0800, 0, false),
            ("a header that is cut", ethernet, 0x0800, 13, false),
            ("a header alone", ethernet, 0x0800, 14, true),
            ("all of the MTU", ethernet, 0x0800, 1514, true),
            ("one byte more", ethernet, 0x0800, 1515, false),
            ("all of the MTU, and a tag", ethernet, 0x8100, 1518, true),
            ("a tag, and one byte more", ethernet, 0x8100, 1519, false),
            ("a provider's tag counts as payload", ethernet, 0x88a8, 1515, false),
            ("nothing, to a tunnel", tunnel, 0x0800, 0, false),
            ("one byte, to a tunnel", tunnel, 0x0800, 1, true),
            ("all of a tunnel's MTU", tunnel, 0x0800, 1480, true),
            ("no tag in a tunnel", tunnel, 0x8100, 1481, false),
            ("the MTU has grown, and there is room", grown, 0x0800, 2016, true),
            ("the MTU has grown beyond the room", grown, 0x0800, 2017, false),
            ("as many pages as a packet may have", huge, 0x0800, 65_550, true),
            ("more pages than a packet may have", huge, 0x0800, 65_555, false),
        ] {
            let mut frame = vec![0u8; bytes.max(14)];
            frame[12..14].copy_from_slice(&u16::to_be_bytes(protocol));
            let packet = Packet::new(&meta, &frame[..bytes]);
            assert_eq!(limits.allow(&packet), expected, "{sentence}");
        }
    }
}
