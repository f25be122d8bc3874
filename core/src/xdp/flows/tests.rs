//! Compares the program's flows with the library's, on packets of many kinds.

use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;
use crate::filter::Frame;
use crate::filter::ebpf::xdp_action;
use crate::tests;

/// Builds an IPv4 packet with the given options and bits of the fragment field.
fn ipv4(protocol: u8, fragment: u16, options: usize, ports: [u16; 2]) -> Vec<u8> {
    let mut packet = vec![2; 12];
    packet.extend(TYPE_IPV4);
    packet.extend([0x45 + options as u8, 0, 0, 40, 0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    packet.extend(vec![1; options * 4]);
    ports.iter().for_each(|port| packet.extend(port.to_be_bytes()));
    packet.extend([0; 20]);
    packet
}

fn ipv6(next: u8, ports: [u16; 2]) -> Vec<u8> {
    let mut packet = vec![2; 12];
    packet.extend(TYPE_IPV6);
    packet.extend([0x60, 0, 0, 0, 0, 24, next, 64]);
    packet.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    ports.iter().for_each(|port| packet.extend(port.to_be_bytes()));
    packet.extend([0; 20]);
    packet
}

#[test]
fn only_a_packet_with_ports_at_their_usual_place_has_a_flow() {
    let ports = [5000, 53];
    let mut tagged = ipv4(UDP, 0, 0, ports);
    tagged.splice(12..12, [0x81, 0x00, 0, 5]);
    let mut other_version = ipv4(UDP, 0, 0, ports);
    other_version[14] = 0x55;
    let mut short_header = ipv4(UDP, 0, 0, ports);
    short_header[14] = 0x44;
    for (sentence, packet, is_flow) in [
        ("UDP", ipv4(UDP, 0, 0, ports), true),
        ("TCP, with options of IP", ipv4(TCP, 0, 10, ports), true),
        ("a packet that may not be fragmented", ipv4(TCP, 0x4000, 0, ports), true),
        ("the first fragment", ipv4(UDP, 0x2000, 0, ports), false),
        ("another fragment", ipv4(UDP, 0x0001, 0, ports), false),
        ("the last fragment", ipv4(UDP, 0x00ff, 0, ports), false),
        ("ICMP", ipv4(1, 0, 0, ports), false),
        ("SCTP", ipv4(132, 0, 0, ports), false),
        ("IPv6", ipv6(TCP, ports), true),
        ("a fragment of IPv6", ipv6(44, ports), false),
        ("IPv6 with options", ipv6(0, ports), false),
        ("ICMPv6", ipv6(58, ports), false),
        ("tagged", tagged, false),
        ("a version that is not IPv4's", other_version, false),
        ("a header that is none", short_header, false),
        ("cut before the ports' end", ipv4(UDP, 0, 0, ports)[..37].to_vec(), false),
        ("nothing", Vec::new(), false),
    ] {
        for direction in [Direction::In, Direction::Out] {
            assert_eq!(Flow::of(&packet, direction).is_some(), is_flow, "{sentence}");
        }
    }
}

#[test]
fn both_directions_of_a_conversation_are_one_flow() {
    let [there, back] = [[5000, 53], [53, 5000]].map(|ports| ipv4(UDP, 0, 0, ports));
    let mut back = back;
    back[26..34].rotate_left(4);
    assert_eq!(Flow::of(&there, Direction::In), Flow::of(&back, Direction::Out));
    assert_ne!(Flow::of(&there, Direction::In), Flow::of(&there, Direction::Out));
    assert_ne!(Flow::of(&there, Direction::In), Flow::of(&back, Direction::In));
}

/// Loads a program that passes packets whose flow is in the table, and drops others.
fn lookup_program(table: &FlowTable, from: Origin) -> OwnedFd {
    let mut asm = Assembler::new();
    let miss = asm.label();
    let frame = Frame::new(false);
    frame.enter(&mut asm);
    let regs = FlowLookup { data: frame.data, end: frame.end, stack: -48 };
    table.write(&mut asm, regs, from, miss);
    asm.mov(R0, xdp_action::PASS);
    asm.exit();
    asm.place(miss);
    asm.mov(R0, xdp_action::DROP);
    asm.exit();
    bpf::load(c"test", &asm.finish().unwrap(), false).unwrap()
}

fn table(entries: u32) -> Option<FlowTable> {
    tests::is_root().then(|| FlowTable::new(entries).unwrap())
}

fn verdict(program: &OwnedFd, packet: &[u8]) -> i32 {
    bpf::run(program.as_fd(), packet).unwrap().0
}

#[test]
fn the_program_finds_inserted_flows_only() {
    let Some(table) = table(64) else { return };
    let (wire, host) = (lookup_program(&table, Origin::Wire), lookup_program(&table, Origin::Host));
    for packet in [ipv4(UDP, 0, 0, [5000, 53]), ipv4(TCP, 0, 10, [1, 2]), ipv6(TCP, [7, 9])] {
        let flow = Flow::of(&packet, Direction::In).unwrap();
        assert_eq!(verdict(&wire, &packet), xdp_action::DROP);
        table.insert(&flow).unwrap();
        table.insert(&flow).unwrap();
        assert_eq!(verdict(&wire, &packet), xdp_action::PASS);
        assert_eq!(
            verdict(&host, &packet),
            xdp_action::DROP,
            "it is the answer that the host sends"
        );
        assert!(table.remove(&flow).unwrap());
        assert!(!table.remove(&flow).unwrap());
        assert_eq!(verdict(&wire, &packet), xdp_action::DROP);

        table.insert(&Flow::of(&packet, Direction::Out).unwrap()).unwrap();
        assert_eq!(verdict(&host, &packet), xdp_action::PASS);
        table.clear().unwrap();
        assert_eq!(verdict(&host, &packet), xdp_action::DROP);
    }
    assert_eq!(table.counts().unwrap(), FlowCounts { from_wire: 3, from_host: 3 });
}

#[test]
fn a_full_table_forgets_some_and_takes_all() {
    let Some(table) = table(128) else { return };
    let wire = lookup_program(&table, Origin::Wire);
    let packets: Vec<Vec<u8>> = (0..2000).map(|port| ipv4(UDP, 0, 0, [port, 53])).collect();
    for packet in &packets {
        table.insert(&Flow::of(packet, Direction::In).unwrap()).unwrap();
        assert_eq!(verdict(&wire, packet), xdp_action::PASS, "the last one is found");
    }
    let known = packets.iter().filter(|it| verdict(&wire, it) == xdp_action::PASS).count();
    assert!((1..2000).contains(&known), "{known}");
    table.clear().unwrap();
    assert!(packets.iter().all(|it| verdict(&wire, it) == xdp_action::DROP), "all were removed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Runs the program on packets that almost belong to a flow.
    #[test]
    fn the_program_and_the_library_agree(
        changes in prop::collection::vec((0usize..8, 12usize..60, any::<u8>()), 60),
        cut in 14usize..90,
    ) {
        let Some(table) = table(64) else { return Ok(()) };
        let programs = [(Origin::Wire, Direction::In), (Origin::Host, Direction::Out)]
            .map(|(from, direction)| (lookup_program(&table, from), direction));
        for (kind, at, byte) in changes {
            let mut packet = match kind {
                0 => ipv6(TCP, [1, 2]),
                1 => ipv6(UDP, [1, 2]),
                options => ipv4(UDP, 0, options, [1, 2]),
            };
            packet[at] = byte;
            packet.truncate(cut);
            for (program, direction) in &programs {
                let flow = Flow::of(&packet, *direction);
                prop_assert_eq!(verdict(program, &packet), xdp_action::DROP);
                if let Some(flow) = flow {
                    table.insert(&flow).unwrap();
                    prop_assert_eq!(verdict(program, &packet), xdp_action::PASS);
                    table.remove(&flow).unwrap();
                }
            }
        }
    }
}
