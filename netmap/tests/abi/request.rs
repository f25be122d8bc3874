//! Headers and bodies of NIOCCTRL.

use nix::errno::Errno;
use sluicegate_netmap::abi::ioctls::{NIOCCONFIG, NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCTXSYNC};
use sluicegate_netmap::abi::{PortName, Request, read_request};

use crate::layout::{ARGUMENT, BODY, Bytes, counted, header, memory, read, request};
use crate::memory::Memory;

/// Bytes of each type's body; 0 for a type without one.
const BODY_BYTES: [(u16, usize); 15] = [
    (1, 56),
    (2, 32),
    (3, 64),
    (4, 8),
    (5, 8),
    (6, 8),
    (7, 8),
    (8, 16),
    (9, 0),
    (10, 16),
    (11, 16),
    (12, 64),
    (13, 8),
    (14, 0),
    (15, 0),
];

/// Returns the request of a type, of a body whose bytes count.
fn counting(reqtype: u16, bytes: usize) -> Request {
    let memory = memory(&header(reqtype, "eth0"), &Bytes::counting(bytes));
    request(&memory).expect("a whole body").request
}

/// Compares fields with the bytes at offsets and of sizes.
macro_rules! assert_fields {
    ($body:expr, $($($field:ident).+ at $offset:literal: $bytes:literal,)*) => {$(
        assert_eq!(
            u64::from($body.$($field).+), counted($offset, $bytes), "{}", stringify!($($field).+));
    )*};
}

#[test]
fn each_field_of_a_registration_is_at_its_offset() {
    let Request::Register(body) = counting(1, 56) else { panic!("not a registration") };
    assert_fields! { body,
        offset at 0: 8, memsize at 8: 8, tx_slots at 16: 4, rx_slots at 20: 4, tx_rings at 24: 2,
        rx_rings at 26: 2, host_tx_rings at 28: 2, host_rx_rings at 30: 2, mem_id at 32: 2,
        ringid at 34: 2, mode at 36: 4, extra_bufs at 40: 4, flags at 48: 8,
    }
}

#[test]
fn each_field_of_a_port_s_facts_is_at_its_offset() {
    let Request::PortInfo(body) = counting(2, 32) else { panic!("not facts") };
    assert_fields! { body,
        memsize at 0: 8, tx_slots at 8: 4, rx_slots at 12: 4, tx_rings at 16: 2, rx_rings at 18: 2,
        host_tx_rings at 20: 2, host_rx_rings at 22: 2, mem_id at 24: 2,
    }
}

#[test]
fn each_field_of_a_request_to_a_switch_is_at_its_offset() {
    let Request::ValeAttach(body) = counting(3, 64) else { panic!("not an attachment") };
    assert_fields! { body, register.mem_id at 32: 2, register.flags at 48: 8, port_index at 56: 4, }
    let Request::ValeDetach(body) = counting(4, 8) else { panic!("not a detachment") };
    assert_fields! { body, port_index at 0: 4, }
    let Request::ValeList(body) = counting(5, 8) else { panic!("not a list") };
    assert_fields! { body, bridge_index at 0: 2, port_index at 4: 4, }
    let Request::ValeNewInterface(body) = counting(8, 16) else { panic!("not a new interface") };
    assert_fields! { body,
        tx_slots at 0: 4, rx_slots at 4: 4, tx_rings at 8: 2, rx_rings at 10: 2, mem_id at 12: 2,
    }
    for reqtype in [10, 11] {
        let (Request::PollingEnable(body) | Request::PollingDisable(body)) = counting(reqtype, 16)
        else {
            panic!("not polling")
        };
        assert_fields! { body, mode at 0: 4, first_cpu at 4: 4, cpus at 8: 4, }
    }
}

#[test]
fn each_field_of_the_other_bodies_is_at_its_offset() {
    for reqtype in [6, 7] {
        let (Request::PortHeaderSet(body) | Request::PortHeaderGet(body)) = counting(reqtype, 8)
        else {
            panic!("not a header's size")
        };
        assert_fields! { body, header_bytes at 0: 4, }
    }
    let Request::PoolsInfo(body) = counting(12, 64) else { panic!("not pools") };
    assert_fields! { body,
        memsize at 0: 8, mem_id at 8: 2, if_pool_offset at 16: 8, if_pool_objtotal at 24: 4,
        if_pool_objsize at 28: 4, ring_pool_offset at 32: 8, ring_pool_objtotal at 40: 4,
        ring_pool_objsize at 44: 4, buf_pool_offset at 48: 8, buf_pool_objtotal at 56: 4,
        buf_pool_objsize at 60: 4,
    }
    let Request::KloopStart(body) = counting(13, 8) else { panic!("not a loop") };
    assert_fields! { body, sleep_us at 0: 4, }
}

#[test]
fn every_body_returns_as_it_came() {
    for (reqtype, bytes) in BODY_BYTES.into_iter().filter(|(_, bytes)| *bytes > 0) {
        let body = Bytes::counting(bytes);
        let memory = memory(&header(reqtype, "vale0:1"), &body);
        let incoming = request(&memory).unwrap();
        assert_eq!(incoming.port.as_str(), "vale0:1");
        memory.place(BODY, &vec![0; bytes]);
        assert_eq!(incoming.answer(&memory, Ok(())), Ok(()));
        assert_eq!(memory.piece(BODY), body.0, "type {reqtype}");
    }
}

#[test]
fn an_answer_is_written_at_its_offset_and_a_failed_request_s_body_is_not() {
    let memory = memory(&header(1, "eth0"), &Bytes::zeros(56));
    let mut incoming = request(&memory).unwrap();
    let Request::Register(register) = &mut incoming.request else { panic!("not a registration") };
    (register.offset, register.mem_id, register.extra_bufs) = (0x1_0000_4000, 7, 9);
    assert_eq!(incoming.answer(&memory, Err(Errno::EBUSY)), Err(Errno::EBUSY));
    assert_eq!(read::<56>(&memory, BODY), [0; 56]);
    assert_eq!(incoming.answer(&memory, Ok(())), Ok(()));
    let expected = Bytes::zeros(56).u64(0, 0x1_0000_4000).u16(32, 7).u32(40, 9);
    assert_eq!(read::<56>(&memory, BODY)[..], expected.0);
}

#[test]
fn a_list_answers_with_the_name_that_it_found_and_others_leave_the_name() {
    for (reqtype, name) in [(5, "vale1:eth0"), (2, "before")] {
        let memory = memory(&header(reqtype, "before"), &Bytes::zeros(32));
        let mut incoming = request(&memory).unwrap();
        incoming.port = PortName::from("vale1:eth0");
        incoming.answer(&memory, Ok(())).unwrap();
        let field = read::<64>(&memory, ARGUMENT + 8);
        assert_eq!(field[..=name.len()], [name.as_bytes(), b"\0"].concat());
    }
}

#[test]
fn a_body_must_exist_if_and_only_if_the_type_has_one() {
    use crate::layout::header;
    for (reqtype, bytes) in BODY_BYTES {
        let with_body = memory(&header(reqtype, "eth0"), &Bytes::zeros(64));
        let without = memory(&header(reqtype, "eth0").u64(header::BODY, 0), &Bytes::zeros(64));
        let (right, wrong) = if bytes > 0 { (with_body, without) } else { (without, with_body) };
        assert!(request(&right).is_ok(), "type {reqtype}");
        assert_eq!(request(&wrong).unwrap_err(), Errno::EINVAL, "type {reqtype}");
    }
}

#[test]
fn an_invalid_header_is_rejected() {
    use crate::layout::header::{RESERVED, VERSION};
    let cases = [
        ("version 13", header(1, "eth0").u16(VERSION, 13)),
        ("version 16", header(1, "eth0").u16(VERSION, 16)),
        ("a reserved bit", header(1, "eth0").u32(RESERVED, 1)),
        ("type 0", header(0, "eth0")),
        ("type 16", header(16, "eth0")),
    ];
    for (case, bytes) in cases {
        let memory = memory(&bytes, &Bytes::zeros(64));
        assert_eq!(request(&memory).unwrap_err(), Errno::EINVAL, "{case}");
    }
    let memory = memory(&header(1, "eth0").u16(VERSION, 15), &Bytes::zeros(64));
    assert!(request(&memory).is_ok(), "version 15");
}

#[test]
fn an_address_is_null_unreadable_or_too_short() {
    for ioctl in [NIOCCTRL, NIOCREGIF, NIOCGINFO, NIOCCONFIG] {
        let memory = Memory::default();
        memory.place(ARGUMENT, &[0; 59]);
        assert_eq!(read_request(ioctl, &memory, 0).unwrap_err(), Errno::EINVAL);
        for address in [8, ARGUMENT, u64::MAX] {
            assert_eq!(read_request(ioctl, &memory, address).unwrap_err(), Errno::EFAULT);
        }
    }
    let memory = memory(&header(1, "eth0"), &Bytes::zeros(55));
    assert_eq!(request(&memory).unwrap_err(), Errno::EFAULT, "a short body");
}

#[test]
fn an_ioctl_without_a_request_is_rejected() {
    let memory = Memory::default();
    memory.place(ARGUMENT, &[0; 272]);
    for (ioctl, errno) in
        [(NIOCTXSYNC, Errno::EOPNOTSUPP), (0x8933, Errno::EOPNOTSUPP), (NIOCCONFIG, Errno::EINVAL)]
    {
        assert_eq!(read_request(ioctl, &memory, ARGUMENT).unwrap_err(), errno, "{ioctl:#x}");
    }
}

#[test]
fn a_name_without_an_end_is_cut_off() {
    let memory = memory(&header(1, &"a".repeat(64)), &Bytes::zeros(56));
    assert_eq!(request(&memory).unwrap().port.as_str(), "a".repeat(63));
}
