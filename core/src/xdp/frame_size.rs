//! How much of a packet a card can put into a frame, where no copy is made.

use crate::link::Ethtool;

/// What the kernel keeps free in front of a packet: XDP_PACKET_HEADROOM of linux/bpf.h.
pub(crate) const HEADROOM_BYTES: u32 = 256;
/// An Ethernet header and one VLAN tag: what a packet may have besides the MTU.
pub(super) const HEADER_BYTES: u32 = 18;

/// Drivers that tell their card of a frame's room in whole KiB (SRRCTL.BSIZEPKT) and take no
/// notice of what is left over: a longer packet comes in pieces, each as a packet of its own.
/// Of 2048 bytes 1024 are used. igb: seen with Linux 7.2; igc_configure_rx_ring has the same.
const WHOLE_KIB: &[&str] = &["igb", "igc"];

/// Bytes that buffers need for packets of that interface: 2048, unless its driver needs more.
pub(crate) fn buffer_bytes(netns: Option<&str>, interface: &str, mtu: u32) -> u32 {
    if holds(2048, &driver(netns, interface), mtu) { 2048 } else { 4096 }
}

/// Why frames of that size do not hold the interface's packets, if they do not.
pub(super) fn too_small(
    frame_bytes: u32,
    netns: Option<&str>,
    interface: &str,
    mtu: u32,
) -> Option<String> {
    let driver = driver(netns, interface);
    (!holds(frame_bytes, &driver, mtu)).then(|| {
        format!(
            "{driver} uses {} of a buffer's {frame_bytes} bytes and would cut longer packets into \
             pieces: use buffers of 4096 bytes, an MTU below {}, or copy mode",
            room(frame_bytes),
            (room(frame_bytes) - HEADER_BYTES + 1)
        )
    })
}

fn holds(frame_bytes: u32, driver: &str, mtu: u32) -> bool {
    !WHOLE_KIB.contains(&driver) || mtu.saturating_add(HEADER_BYTES) <= room(frame_bytes)
}

fn room(frame_bytes: u32) -> u32 {
    (frame_bytes - HEADROOM_BYTES) / 1024 * 1024
}

/// Empty where it has none to tell of.
fn driver(netns: Option<&str>, interface: &str) -> String {
    let driver = Ethtool::open(netns).and_then(|mut it| it.driver(interface));
    driver.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_frame_holds_depends_on_the_driver() {
        for (frame_bytes, driver, mtu, expected, why) in [
            (2048, "igb", 1500, false, "1024 bytes of it are used"),
            (2048, "igb", 1006, true, "a header and a tag besides"),
            (2048, "igb", 1007, false, "one byte more"),
            (4096, "igb", 1500, true, "3072 bytes of it are used"),
            (4096, "igc", 3055, false, "one byte too many"),
            (2048, "ice", 1500, true, "knows its room to the byte"),
            (2048, "", 9000, true, "for the kernel to refuse"),
        ] {
            assert_eq!(holds(frame_bytes, driver, mtu), expected, "{driver} {mtu}: {why}");
        }
    }
}
