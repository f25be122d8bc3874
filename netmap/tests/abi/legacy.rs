//! Requests of NIOCREGIF and NIOCGINFO.

use nix::errno::Errno;
use sluicegate_netmap::abi::bodies::{modes, polling_modes, register_flags};
use sluicegate_netmap::abi::ioctls::{NIOCGINFO, NIOCREGIF};
use sluicegate_netmap::abi::{IncomingRequest, PortName, Request, read_request};

use crate::layout::{ARGUMENT, Bytes};
use crate::memory::Memory;

/// Offsets in `struct nmreq`.
const VERSION: usize = 16;
const OFFSET: usize = 20;
const MEMSIZE: usize = 24;
const TX_SLOTS: usize = 28;
const RX_SLOTS: usize = 32;
const TX_RINGS: usize = 36;
const RX_RINGS: usize = 38;
const RINGID: usize = 40;
const CMD: usize = 42;
const ARG1: usize = 44;
const ARG2: usize = 46;
const ARG3: usize = 48;
const FLAGS: usize = 52;

/// Returns a `struct nmreq` that asks for nothing.
fn nmreq(name: &str) -> Bytes {
    Bytes::zeros(60).text(0, name).u32(VERSION, 14)
}

fn read(ioctl: u32, bytes: &Bytes) -> (Memory, Result<IncomingRequest, Errno>) {
    let memory = Memory::default();
    memory.place(ARGUMENT, &bytes.0);
    let incoming = read_request(ioctl, &memory, ARGUMENT);
    (memory, incoming)
}

fn registration(bytes: &Bytes) -> IncomingRequest {
    read(NIOCREGIF, bytes).1.expect("a valid request")
}

/// Changes the request into an answer, and returns the `struct nmreq` then.
fn answered(ioctl: u32, bytes: &Bytes, change: impl Fn(&mut IncomingRequest)) -> Vec<u8> {
    let (memory, incoming) = read(ioctl, bytes);
    let mut incoming = incoming.expect("a valid request");
    change(&mut incoming);
    assert_eq!(incoming.answer(&memory, Ok(())), Ok(()));
    memory.piece(ARGUMENT)
}

#[test]
fn the_ring_number_s_bits_and_the_flags_are_mode_ring_and_flags() {
    use modes::{ALL_NIC, NIC_SW, ONE_NIC, SW};
    use register_flags::{DO_RX_POLL, EXCLUSIVE, NO_TX_POLL};
    let cases = [
        // nr_ringid, nr_flags: mode, ring, flags
        (0x0000, 0x000, (ALL_NIC, 0, 0)),
        (0x4003, 0x000, (ONE_NIC, 3, 0)),
        (0x2000, 0x000, (SW, 0, 0)),
        (0x6001, 0x000, (SW, 1, 0)),
        (0x1000, 0x000, (ALL_NIC, 0, NO_TX_POLL)),
        (0x9005, 0x804, (ONE_NIC, 5, NO_TX_POLL | DO_RX_POLL | EXCLUSIVE)),
        (0x4000, 0x003, (NIC_SW, 0, 0)),
    ];
    for (ringid, flags, expected) in cases {
        let request = registration(&nmreq("eth0").u16(RINGID, ringid).u32(FLAGS, flags));
        let Request::Register(register) = request.request else { panic!("not a registration") };
        let found = (register.mode, register.ringid, register.flags);
        assert_eq!(found, expected, "{ringid:#x} {flags:#x}");
    }
}

#[test]
fn a_pipe_s_end_becomes_part_of_the_name() {
    for (mode, name) in [(5, "eth0{7"), (6, "eth0}7")] {
        let request = registration(&nmreq("eth0").u16(RINGID, 7).u32(FLAGS, mode));
        let Request::Register(register) = request.request else { panic!("not a registration") };
        assert_eq!(request.port.as_str(), name);
        assert_eq!((register.mode, register.ringid), (modes::ALL_NIC, 0));
    }
}

#[test]
fn a_registration_is_read_and_answered_at_netmap_s_offsets() {
    let asked = nmreq("eth0")
        .u32(TX_SLOTS, 11)
        .u32(RX_SLOTS, 12)
        .u16(TX_RINGS, 13)
        .u16(RX_RINGS, 14)
        .u16(ARG1, 15)
        .u16(ARG2, 16)
        .u32(ARG3, 17);
    let Request::Register(register) = registration(&asked).request else { panic!("no register") };
    let slots = (register.tx_slots, register.rx_slots);
    let rings = (register.tx_rings, register.rx_rings);
    assert_eq!((slots, rings), ((11, 12), (13, 14)));
    assert_eq!((register.mem_id, register.extra_bufs), (16, 17));
    let answer = answered(NIOCREGIF, &asked, |incoming| {
        let Request::Register(register) = &mut incoming.request else { panic!("no register") };
        (register.offset, register.memsize) = (0x4000, 0xF000_0000);
        (register.tx_slots, register.rx_slots) = (21, 22);
        (register.tx_rings, register.rx_rings) = (23, 24);
        (register.mem_id, register.extra_bufs, register.host_tx_rings) = (26, 27, 1);
    });
    let expected = nmreq("eth0")
        .u32(OFFSET, 0x4000)
        .u32(MEMSIZE, 0xF000_0000)
        .u32(TX_SLOTS, 21)
        .u32(RX_SLOTS, 22)
        .u16(TX_RINGS, 23)
        .u16(RX_RINGS, 24)
        .u16(ARG1, 15)
        .u16(ARG2, 26)
        .u32(ARG3, 27);
    assert_eq!(answer, expected.0);
}

#[test]
fn a_failed_request_is_not_answered() {
    let asked = nmreq("eth0");
    let (memory, incoming) = read(NIOCREGIF, &asked);
    let mut incoming = incoming.unwrap();
    let Request::Register(register) = &mut incoming.request else { panic!("not a registration") };
    register.offset = 0x4000;
    assert_eq!(incoming.answer(&memory, Err(Errno::ENXIO)), Err(Errno::ENXIO));
    assert_eq!(memory.piece(ARGUMENT), asked.0);
}

#[test]
fn facts_about_a_port_are_read_and_answered() {
    let asked = nmreq("").u16(ARG2, 3);
    let answer = answered(NIOCGINFO, &asked, |incoming| {
        assert!(incoming.port.is_empty());
        let Request::PortInfo(info) = &mut incoming.request else { panic!("not facts") };
        assert_eq!(info.mem_id, 3);
        (info.memsize, info.tx_slots, info.rx_rings, info.mem_id) = (0x1_0000_0007, 512, 2, 4);
    });
    let expected = nmreq("").u32(MEMSIZE, 7).u32(TX_SLOTS, 512).u16(RX_RINGS, 2).u16(ARG2, 4);
    assert_eq!(answer, expected.0, "the size is cut off to 32 bits");
}

#[test]
fn a_switch_s_list_is_read_and_answered_with_a_name() {
    let asked = nmreq("").u16(CMD, 4).u16(ARG1, 1).u16(ARG2, 2);
    let answer = answered(NIOCGINFO, &asked, |incoming| {
        let Request::ValeList(list) = &mut incoming.request else { panic!("not a list") };
        assert_eq!((list.bridge_index, list.port_index), (1, 2));
        (list.bridge_index, list.port_index) = (5, 6);
        incoming.port = PortName::from("vale5:a-name-too-long");
    });
    let expected = nmreq("vale5:a-name-to").u16(CMD, 4).u16(ARG1, 5).u16(ARG2, 6);
    assert_eq!(answer, expected.0);
}

#[test]
fn the_commands_for_switches_are_requests() {
    let of = |command, bytes: Bytes| registration(&bytes.u16(CMD, command)).request;
    for (host, mode) in [(0, modes::ALL_NIC), (1, modes::NIC_SW)] {
        let Request::ValeAttach(attach) = of(1, nmreq("vale0:eth0").u16(ARG1, host)) else {
            panic!("not an attachment")
        };
        assert_eq!(attach.register.mode, mode);
    }
    assert!(matches!(of(2, nmreq("vale0:eth0")), Request::ValeDetach(_)));
    let Request::PortHeaderSet(header) = of(5, nmreq("vale0:1").u16(ARG1, 12)) else {
        panic!("not a header")
    };
    assert_eq!(header.header_bytes, 12);
    let Request::ValeNewInterface(new) = of(6, nmreq("v1").u16(TX_RINGS, 2).u32(RX_SLOTS, 64))
    else {
        panic!("not a new interface")
    };
    assert_eq!((new.tx_rings, new.rx_slots), (2, 64));
    assert_eq!(of(7, nmreq("v1")), Request::ValeDeleteInterface);
    let asked = nmreq("vale0:eth0").u32(FLAGS, 4).u16(RINGID, 0x4003).u16(ARG1, 2);
    let Request::PollingEnable(polling) = of(10, asked) else { panic!("not polling") };
    assert_eq!((polling.mode, polling.first_cpu, polling.cpus), (polling_modes::MULTI_CPU, 3, 2));
    assert!(matches!(of(11, nmreq("vale0:eth0")), Request::PollingDisable(_)));
}

#[test]
fn a_header_s_size_is_answered() {
    let answer = answered(NIOCREGIF, &nmreq("vale0:1").u16(CMD, 12), |incoming| {
        let Request::PortHeaderGet(header) = &mut incoming.request else { panic!("not a header") };
        header.header_bytes = 10;
    });
    assert_eq!(answer, nmreq("vale0:1").u16(CMD, 12).u16(ARG1, 10).0);
}

#[test]
fn old_versions_and_unknown_commands_are_rejected() {
    for (case, bytes) in [
        ("version 13", nmreq("eth0").u32(VERSION, 13)),
        ("command 3", nmreq("eth0").u16(CMD, 3)),
        ("command 99", nmreq("eth0").u16(CMD, 99)),
    ] {
        assert_eq!(read(NIOCREGIF, &bytes).1.unwrap_err(), Errno::EINVAL, "{case}");
    }
    assert!(read(NIOCREGIF, &nmreq("eth0").u32(VERSION, 99)).1.is_ok(), "later versions");
}

#[test]
fn a_name_without_an_end_has_15_bytes() {
    assert_eq!(registration(&nmreq("abcdefghijklmnop")).port.as_str(), "abcdefghijklmno");
}
