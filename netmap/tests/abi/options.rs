//! Lists of options.

use nix::errno::Errno;
use sluicegate_netmap::abi::option_types::{CSB, EXTMEM, KLOOP_EVENTFDS, KLOOP_MODE, OFFSETS};

use crate::layout::{Bytes, OPTIONS, header, memory, read, request};
use crate::memory::Memory;

/// The distance between the options of a test.
const STRIDE: u64 = 0x1000;
/// A status that the program left in its memory.
const UNSET: u32 = 0xFFFF;

/// Returns the address of an option.
fn address(index: usize) -> u64 {
    OPTIONS + index as u64 * STRIDE
}

/// Returns the memory of a registration with options of types and sizes. The last one's next option is `end`.
fn registration(options: &[(u32, u64)], end: u64) -> Memory {
    let argument = header(1, "eth0").u64(header::OPTIONS, OPTIONS);
    let memory = memory(&argument, &Bytes::zeros(56));
    for (index, (kind, bytes)) in options.iter().enumerate() {
        let next = if index + 1 < options.len() { address(index + 1) } else { end };
        let option = Bytes::zeros(24).u64(0, next).u32(8, *kind).u32(12, UNSET).u64(16, *bytes);
        memory.place(address(index), &option.0);
    }
    memory
}

/// Returns the status that an option has in the program's memory.
fn status(memory: &Memory, index: usize) -> u32 {
    u32::from_ne_bytes(read(memory, address(index) + 12))
}

#[test]
fn every_option_is_unsupported_until_it_is_processed() {
    let memory = registration(&[(OFFSETS, 0), (77, 0), (EXTMEM, 0)], 0);
    let mut incoming = request(&memory).unwrap();
    let kinds: Vec<u32> = incoming.options.iter().map(|option| option.kind).collect();
    assert_eq!(kinds, [OFFSETS, 77, EXTMEM]);
    incoming.options[0].status = None;
    incoming.options[2].status = Some(Errno::ENOMEM);
    assert_eq!(incoming.answer(&memory, Err(Errno::EOPNOTSUPP)), Err(Errno::EOPNOTSUPP));
    let statuses = [0, 1, 2].map(|index| status(&memory, index));
    assert_eq!(statuses, [0, Errno::EOPNOTSUPP as u32, Errno::ENOMEM as u32]);
}

#[test]
fn a_second_option_of_a_type_fails_both() {
    let memory = registration(&[(CSB, 0), (OFFSETS, 0), (CSB, 0), (KLOOP_MODE, 0)], 0);
    assert_eq!(request(&memory).unwrap_err(), Errno::EINVAL);
    let statuses = [0, 1, 2, 3].map(|index| status(&memory, index));
    let invalid = Errno::EINVAL as u32;
    assert_eq!(statuses, [invalid, 0, invalid, UNSET], "the last one was not reached");
}

#[test]
fn type_0_is_invalid() {
    let memory = registration(&[(OFFSETS, 0), (0, 0)], 0);
    assert_eq!(request(&memory).unwrap_err(), Errno::EINVAL);
    assert_eq!([status(&memory, 0), status(&memory, 1)], [0, Errno::EINVAL as u32]);
}

#[test]
fn a_list_without_an_end_is_rejected() {
    let unknown = registration(&[(6, 0), (7, 0)], OPTIONS);
    assert_eq!(request(&unknown).unwrap_err(), Errno::EMSGSIZE);
    assert_eq!(status(&unknown, 0), UNSET, "nothing is written into a loop");
    let known = registration(&[(OFFSETS, 0)], OPTIONS);
    assert_eq!(request(&known).unwrap_err(), Errno::EINVAL, "a second one of its type");
}

#[test]
fn a_request_is_at_most_4096_bytes() {
    // The body has 56 bytes, each option 32.
    assert!(request(&registration(&[(99, u64::MAX); 126], 0)).is_ok());
    assert_eq!(request(&registration(&[(99, 0); 127], 0)).unwrap_err(), Errno::EMSGSIZE);
    for (bytes, accepted) in [(4032, true), (4033, false), (4097, false), (u64::MAX, false)] {
        let result = request(&registration(&[(KLOOP_EVENTFDS, bytes)], 0));
        assert_eq!(result.is_ok(), accepted, "{bytes}");
        assert!(accepted || result.unwrap_err() == Errno::EMSGSIZE);
    }
    for kind in [EXTMEM, CSB, KLOOP_MODE, OFFSETS] {
        let result = request(&registration(&[(kind, 4097)], 0));
        assert_eq!(result.unwrap_err(), Errno::EMSGSIZE);
    }
}

#[test]
fn an_unreadable_option_ends_the_request_and_those_before_it_have_no_error() {
    let memory = registration(&[(OFFSETS, 0)], 0x10);
    assert_eq!(request(&memory).unwrap_err(), Errno::EFAULT);
    assert_eq!(status(&memory, 0), 0);
}

#[test]
fn an_unwritable_option_fails_a_request_that_succeeded() {
    let memory = registration(&[(OFFSETS, 0)], 0);
    let incoming = request(&memory).unwrap();
    memory.place(OPTIONS, &[0; 15]);
    assert_eq!(incoming.answer(&memory, Ok(())), Err(Errno::EFAULT));
}
