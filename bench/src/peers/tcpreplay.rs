//! tcpreplay: sending what a capture file holds.

use super::{Peer, Work, sender};
use crate::ladder::{Kind, Place};
use crate::process::Program;
use crate::step::{Step, Way};

pub const PEER: Peer = Peer::new("tcpreplay", &[Work::Other(Kind::Tx, step)]);

fn step(place: &Place<'_>) -> Option<Step> {
    let file = place.capture_file();
    let flags = ["--quiet", "--topspeed", "--preload-pcap", "--loop=0", "-i", place.left(), &file];
    let way = Way::Send(sender(place, Program::tool("tcpreplay", flags)));
    let step = Step::new(PEER.name, "tcpreplay --topspeed", place.plain(), way);
    Some(place.with_capture_file(step))
}
