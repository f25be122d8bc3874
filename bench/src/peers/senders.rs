//! Programs that send.

use super::{Peer, Work, sender};
use crate::process::Program;
use crate::step::{Step, Way};
use crate::suite::{Kind, StepContext};
use crate::testbed::{ADDRESS, NOBODY};

/// trafgen sends by a transmit ring, from a description of packets.
pub const TRAFGEN: Peer = Peer {
    package: "netsniff-ng",
    ..Peer::new(
        "trafgen",
        &[Work::Sends {
            how: "",
            program: |place| {
                let flags = ["--dev", place.left(), "--conf", "-", "--cpus", "1", "--no-sock-mem"];
                Some(Program::tool("trafgen", flags).reading(packet(place.setting.size)))
            },
        }],
    )
};

/// Ethernet, IPv4 and UDP headers.
const HEADERS: u32 = 42;

fn packet(size: u32) -> String {
    format!(
        "{{ eth(da={NOBODY}, sa=02:00:00:00:00:01), ipv4(saddr=198.18.0.1, daddr={ADDRESS}), \
         udp(sp=9, dp=9), fill(0, {}) }}\n",
        size - HEADERS
    )
}

/// tcpreplay sends the packets of a capture file.
pub const TCPREPLAY: Peer = Peer::new("tcpreplay", &[Work::Other(Kind::Tx, replay)]);

fn replay(place: &StepContext<'_>) -> Option<Step> {
    let file = place.capture_file();
    let flags = ["--quiet", "--topspeed", "--preload-pcap", "--loop=0", "-i", place.left(), &file];
    let way = Way::Send(sender(place, Program::tool("tcpreplay", flags)));
    let step = Step::new(TCPREPLAY.name, "tcpreplay --topspeed", place.plain(), way);
    Some(place.with_capture_file(step))
}

/// masscan sends TCP SYN packets as fast as it can, as scans do: addresses and ports for years, packets of its own size, to nobody's address.
pub const MASSCAN: Peer = Peer::new(
    "masscan",
    &[Work::Sends {
        how: "SYN",
        program: |place| {
            let ports = ["198.18.0.0/16", "-p1-60000", "--rate", "100000000", "--wait", "0"];
            let program = Program::tool("masscan", ports)
                .and(["--adapter", place.left(), "--adapter-ip", "198.18.0.1"])
                .and(["--adapter-mac", "02-00-00-00-00-01", "--router-mac", "02-00-00-00-00-99"]);
            (place.setting.size == 60).then_some(program)
        },
    }],
);
