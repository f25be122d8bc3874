//! Other addresses for frames that nobody made: cut, mangled, or random behind an Ethernet header.

use std::net::IpAddr;

use bolero::TypeGenerator;
use sluicegate::ring::LINKTYPE_ETHERNET;
use sluicegate_traffic::rewrite::{Rewrite, Rule};

#[derive(Clone, Debug, TypeGenerator)]
struct RewriteInput {
    /// Tags in front, and then what the frame says it carries.
    tags: u8,
    carries: u8,
    /// The tunnel around it.
    tunnel: u8,
    /// The first byte behind it and the protocols on the way, mostly ones that mean something.
    first: u8,
    next: u8,
    bytes: Vec<u8>,
    to: [u8; 16],
    mac: [u8; 6],
}

impl RewriteInput {
    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2; 12];
        (0..self.tags % 4).for_each(|_| frame.extend([0x81, 0, 0, 1]));
        let types = [[8, 0], [0x86, 0xdd], [8, 6], [0x88, 0x47]];
        frame.extend(types[usize::from(self.carries) % 4]);
        let mut bytes = self.bytes.clone();
        let nexts = [6, 17, 58, 0, 43, 44, 51, 60, 136, 33, self.next];
        let next = nexts[usize::from(self.next) % nexts.len()];
        let (first, at) = match self.carries % 4 {
            0 => (0x40 | self.first % 16, 9),
            1 => (0x60, 6),
            2 => (0, 1),
            _ => (self.first, 0),
        };
        for (at, byte) in [(0, first), (at, next)] {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        if self.carries % 4 == 2 {
            let head = [0, 1, 8, 0, 6, 4];
            bytes.iter_mut().zip(head).for_each(|(byte, head)| *byte = head);
        }
        frame.extend(bytes);
        self.in_tunnel(frame)
    }

    /// Puts a frame, or what it carries, into a packet of IPv4 with these headers behind.
    fn in_tunnel(&self, inner: Vec<u8>) -> Vec<u8> {
        const UDP: u8 = 17;
        let network = 14 + usize::from(self.tags % 4) * 4;
        let labels = [0, 0, 0x10, 1, 0, 0, 0x21, 1];
        let udp = |port: u16, head: &[u8]| {
            let [high, low] = port.to_be_bytes();
            [&[4, 0, high, low, 0, 0, self.first, self.next][..], head].concat()
        };
        let (protocol, head, from) = match self.tunnel % 12 {
            1 => (4, vec![], network),
            2 => (41, vec![], network),
            3 => (47, vec![0x80, 0, 0x65, 0x58, 0, 0, 0, 0], 0),
            4 => (UDP, udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0]), 0),
            5 => (UDP, udp(4790, &[12, 0, 0, self.first, 0, 0, 7, 0]), network),
            6 => (UDP, udp(6081, &[0, 0, 0x65, 0x58, 0, 0, 7, 0]), 0),
            7 => (UDP, udp(6635, &labels), network),
            8 => (137, labels.to_vec(), network),
            9 => (143, vec![], 0),
            10 => (1, vec![3, 1, 0, 0, 0, 0, 0, 0], network),
            _ => return inner,
        };
        let content = [&head, &inner[from..]].concat();
        let [high, low] = (20 + content.len() as u16).to_be_bytes();
        let ip = [0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        [&[2; 12][..], &[8, 0], &ip, &content].concat()
    }

    fn rules(&self) -> Rewrite {
        let v4: [u8; 4] = [self.to[0], self.to[1], self.to[2], self.to[3]];
        let bits = self.to[4];
        let all =
            |any: IpAddr, to: IpAddr, most: u8| Rule::Prefix((any, 0), (to, bits % (most + 1)));
        [
            all([0; 4].into(), v4.into(), 32),
            all([0; 16].into(), self.to.into(), 128),
            Rule::Mac([2; 6], self.mac),
            Rule::HopLimit(self.to[5]),
            Rule::Port(u16::from_be_bytes([self.to[6], self.to[7]]), 9),
        ]
        .into_iter()
        .chain((self.to[8] & 1 == 1).then_some(Rule::Checksums))
        .collect()
    }
}

#[test]
fn rewrite() {
    bolero::check!().with_type::<RewriteInput>().for_each(|input| {
        let frame = input.frame();
        let mut changed = frame.clone();
        input.rules().apply(LINKTYPE_ETHERNET, &mut changed);
        assert_eq!(changed.len(), frame.len());
        // Addresses of Ethernet, of IP or ARP, ports, hops and two checksums, in each of six packets: no more.
        let most = 6 * (12 + 32 + 4 + 1 + 4);
        let differ = frame.iter().zip(&changed).filter(|(before, now)| before != now).count();
        assert!(differ <= most, "{differ} bytes have changed");
        // All addresses are what they are to be.
        let once = changed.clone();
        input.rules().apply(LINKTYPE_ETHERNET, &mut changed);
        assert_eq!(changed, once, "done twice");
        // No rules, no changes.
        let mut same = frame.clone();
        Rewrite::default().apply(LINKTYPE_ETHERNET, &mut same);
        assert_eq!(same, frame);
    });
}
