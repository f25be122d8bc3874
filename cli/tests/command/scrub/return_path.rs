//! `sluice scrub run --return`: passes leave in a tunnel to a host behind the scrubber's.

use std::rc::Rc;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use sluicegate::link::{Lab, Shape};

use super::{Scrubber, text};
use crate::support::*;

const POLICY: &str = "[protect.web]\nnetworks = ['198.51.100.0/24']\n\
                      [set.bad]\naction = 'drop'\nnetworks = ['203.0.113.0/24']\n";
/// The router's end of the link, which the lab's host right has.
const ROUTER: &str = "192.0.2.9";
const TUNNEL: &str = "192.0.2.1,192.0.2.9,7";

/// A scrubber on the middle host of a line, which returns packets by middle1.
struct Returning<'a>(Scrubber<'a>);

/// A line whose right link has addresses that the hosts ask for by ARP.
fn line() -> Option<Lab> {
    let lab = have(&["ip"]).then(|| lab_of(Shape::Line, 1)).flatten()?;
    for (host, address, interface) in
        [("middle", "192.0.2.1/24", "middle1"), ("right", "192.0.2.9/24", "right0")]
    {
        let ended = on(&lab, host, &["ip", "addr", "add", address, "dev", interface]);
        assert_eq!(ended.status, Some(0), "{}", ended.err);
    }
    Some(lab)
}

impl<'a> Returning<'a> {
    /// Starts it, and waits until it answers.
    fn start(lab: &'a Lab, more: &[&str]) -> Self {
        let folder = Rc::new(tempfile::tempdir().unwrap());
        Self(Scrubber::start_on(["middle", "middle0"], folder, lab, POLICY, more, |_| {}))
    }

    fn count(&self, stage: &str, name: &str) -> u64 {
        self.0.count(stage, name)
    }

    /// Sends packets from the left host.
    fn send(&self, packets: u64, more: &[&str]) {
        let (netns, count) = (self.0.lab.netns("left"), packets.to_string());
        let arguments =
            ["generate", "packet:left0", "--netns", &netns, "--count", &count, "--json"];
        let fixed = ["--dmac", NOBODY, "--rate", "10kpps"];
        run(&[&arguments[..], &fixed, more].concat()).good();
    }

    /// Returns the frames in tunnels that come to the right host while `work` sends as many.
    fn returned(&self, packets: u64, work: impl FnOnce()) -> Vec<Vec<u8>> {
        let file = self.0.folder.path().join("returned.pcapng");
        let (netns, count) = (self.0.lab.netns("right"), packets.to_string());
        let capture = Running::start(&[
            "capture",
            "right0",
            "--netns",
            &netns,
            "-f",
            "ip proto 47 or vlan",
            "--count",
            &count,
            "-w",
            text(&file),
        ]);
        work();
        let ended = capture.end();
        assert_eq!(ended.status, Some(0), "{}", ended.err);
        crate::support::packets(&file).into_iter().map(|(_, frame)| frame).collect()
    }
}

const TO_SERVER: [&str; 4] = ["--src", "198.18.0.1", "--dst", "198.51.100.7"];

#[test]
fn what_passes_comes_to_the_router_in_the_tunnel_and_the_rest_to_the_host() {
    let Some(lab) = line() else { return };
    for more in [&[][..], &["--monitor"], &["--mode", "skb"]] {
        let scrubber =
            Returning::start(&lab, &[&["--return", "middle1", "--gre", TUNNEL], more].concat());
        let is_monitor = more == ["--monitor"];
        let returned = scrubber.returned(if is_monitor { 150 } else { 100 }, || {
            scrubber.send(50, &["--src", "203.0.113.9", "--dst", "198.51.100.7"]);
            scrubber.send(50, &["--src", "198.18.0.1", "--dst", "198.18.0.2"]);
            // With its headers, a packet of 1,472 bytes has the size of the link.
            scrubber.send(50, &[&TO_SERVER[..], &["--size", "1487"]].concat());
            scrubber.send(100, &[&TO_SERVER[..], &["--size", "1486"]].concat());
        });
        assert_eq!(scrubber.count("set", "bad"), 50);
        assert_eq!(scrubber.count("parse", "not-protected"), 50);
        assert_eq!(scrubber.count("return", "too-long"), 50);
        assert_eq!(scrubber.count("default", "default"), 100);
        let mut whole = 0;
        for frame in &returned {
            assert_eq!(frame[..12], [2, 0, 198, 18, 0, 2, 2, 0, 198, 18, 0, 0x11]);
            let packet = SlicedPacket::from_ethernet(frame).unwrap();
            let Some(NetSlice::Ipv4(outer)) = packet.net else { panic!("{frame:02x?}") };
            let outer = outer.header().to_header();
            assert_eq!((outer.source, outer.destination), ([192, 0, 2, 1], [192, 0, 2, 9]));
            assert_eq!(outer.header_checksum, outer.calc_header_checksum());
            assert_eq!(frame[34..42], [0x20, 0, 8, 0, 0, 0, 0, 7]);
            let inner = SlicedPacket::from_ip(&frame[42..]).unwrap();
            let Some(NetSlice::Ipv4(inner)) = inner.net else { panic!("{frame:02x?}") };
            let inner = inner.header().to_header();
            assert_eq!(inner.destination, [198, 51, 100, 7]);
            assert_eq!(inner.header_checksum, inner.calc_header_checksum());
            whole += u32::from(frame.len() == 1514);
        }
        assert_eq!(whole, 100);
        assert_eq!(scrubber.0.stop().status, Some(0));
    }
}

#[test]
fn a_syn_in_the_tunnel_has_a_lower_mss() {
    let Some(lab) = line() else { return };
    for (more, mss) in [(&[][..], 1432), (&["--mss", "1300"], 1300)] {
        let scrubber =
            Returning::start(&lab, &[&["--return", "middle1", "--gre", TUNNEL], more].concat());
        let file = scrubber.0.folder.path().join("syn.pcap");
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 51, 100, 7]);
        frame.extend([0x80, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 2, 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend([2, 4, 5, 0xb4]);
        let sum = |frame: &[u8]| {
            let packet = SlicedPacket::from_ip(frame).unwrap();
            let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) =
                (packet.net, packet.transport)
            else {
                panic!("TCP over IPv4")
            };
            let header = ip.header().to_header();
            let sum = tcp.to_header().calc_checksum_ipv4(&header, &[]).unwrap();
            (sum, tcp.to_header().checksum)
        };
        let right = sum(&frame[14..]).0.to_be_bytes();
        frame[50..52].copy_from_slice(&right);
        pcap_file(&file, &[frame]);
        let returned = scrubber.returned(1, || {
            let left = lab.netns("left");
            run(&["replay", text(&file), "packet:left0", "--netns", &left, "--json"]).good();
        });
        let inner = &returned[0][42..];
        assert_eq!(inner[40..44], [&[2, 4][..], &u16::to_be_bytes(mss)].concat());
        let (right, found) = sum(&inner[..44]);
        assert_eq!(right, found);
    }
}

#[test]
fn packets_get_a_tag_and_follow_the_router() {
    let Some(lab) = line() else { return };
    let tagged = ["--return", "middle1", "--return-vlan", "30", "--next-hop", NOBODY];
    let scrubber = Returning::start(&lab, &tagged);
    let returned = scrubber.returned(100, || scrubber.send(100, &TO_SERVER));
    for frame in returned {
        assert_eq!(frame[..6], [2, 0, 0, 0, 0, 0x99]);
        assert_eq!(frame[12..18], [0x81, 0, 0, 30, 8, 0]);
    }
    assert_eq!(scrubber.0.stop().status, Some(0));
    let scrubber = Returning::start(&lab, &["--return", "middle1", "--gre", TUNNEL]);
    let replace = ["ip", "neigh", "replace", ROUTER, "lladdr", NOBODY, "dev", "middle1"];
    let ended = on(&lab, "middle", &[&replace[..], &["nud", "permanent"]].concat());
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    eventually("packets go to the router's new address", || {
        let returned = scrubber.returned(1, || scrubber.send(1, &TO_SERVER));
        returned[0][..6] == [2, 0, 0, 0, 0, 0x99]
    });
}

#[test]
fn a_return_path_without_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, socket) = (folder.path().join("policy.toml"), folder.path().join("socket"));
    std::fs::write(&file, POLICY).unwrap();
    let open = folder.path().join("open.toml");
    std::fs::write(&open, "").unwrap();
    let start = ["scrub", "run", "middle0", "--control", text(&socket), "--policy", text(&file)];
    let with = |more: &[&'static str]| [&start[..], more].concat();
    for (more, said) in [
        (&["--gre", TUNNEL][..], "--return"),
        (&["--mss", "1400"], "--return"),
        (&["--return", "middle1", "--gre", "192.0.2.1"], "two IPv4 addresses"),
        (&["--return", "middle1", "--gre", "192.0.2.1,192.0.2.1"], "same address"),
        (&["--return", "middle1", "--gre", TUNNEL, "--mss", "100"], "536"),
        (&["--return", "middle1", "--gre", TUNNEL, "--bridge"], "cannot be used with"),
        (&["--return", "middle1", "--return-vlan", "4095", "--next-hop", NOBODY], "4094"),
        (&["--return", "middle1", "--gre", TUNNEL, "--next-hop", "router"], "IP address or a MAC"),
    ] {
        refused(&with(more), said);
    }
    let Some(lab) = line() else { return };
    let netns = lab.netns("middle");
    for (more, said) in [
        (&["--return", "middle1"][..], "add --gre SRC,DST or --next-hop ADDRESS"),
        (&["--return", "middle0", "--next-hop", NOBODY], "the packets come from there"),
        (&["--return", "middle2", "--gre", TUNNEL], "middle2"),
        (&["--return", "middle1", "--gre", "192.0.2.1,198.18.0.9"], "cannot resolve"),
        (
            &["--return", "middle1", "--return-vlan", "30", "--gre", TUNNEL],
            "name middle1.30 type vlan id 30",
        ),
    ] {
        refused(&[&with(more)[..], &["--netns", &netns]].concat(), said);
    }
    let path = ["--return", "middle1", "--gre", TUNNEL, "--netns", &netns];
    let open = ["scrub", "run", "middle0", "--control", text(&socket), "--policy", text(&open)];
    refused(&[&open[..], &path].concat(), "names no protected networks");
    let scrubber = Returning::start(&lab, &["--return", "middle1", "--gre", TUNNEL]);
    scrubber.0.refused(&["apply", open[6]], "names no protected networks");
}
