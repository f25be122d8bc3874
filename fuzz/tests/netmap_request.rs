//! Requests of a netmap program: any header, body and list of options is a request or an errno, and neither
//! reading nor answering overwrites anything of the program's memory but the answer.

#[path = "../../netmap/tests/caller/memory.rs"]
mod memory;
#[path = "netmap/wild_request.rs"]
mod wild_request;

use std::ops::Range;

use nix::errno::Errno;
use sluicegate_netmap::abi::{PortKind, PortName, read_request};
use wild_request::{ARGUMENT, BODY, WildRequest};

/// Options that fit in a request of 4096 bytes.
const MAX_OPTIONS: usize = 128;

/// Takes a name apart, pipe by pipe.
fn take_apart(mut name: PortName) {
    while let Ok(PortKind::Pipe { parent, .. }) = name.kind() {
        assert!(parent.as_str().len() < name.as_str().len(), "{name}");
        name = parent;
    }
}

/// Checks that only these bytes of a structure have changed.
fn assert_unchanged(before: &[u8], after: &[u8], but: &Range<usize>, address: u64) {
    let changed = |offset: &usize| before[*offset] != after[*offset] && !but.contains(offset);
    let overwritten: Vec<usize> = (0..before.len()).filter(changed).collect();
    assert!(overwritten.is_empty(), "bytes {overwritten:?} at {address:#x} were overwritten");
}

/// Reads a request and answers it as it came.
fn try_request(wild: &WildRequest) {
    let memory = wild.place();
    let before = wild.addresses().into_iter().map(|address| (address, memory.piece(address)));
    let before: Vec<_> = before.collect();
    match read_request(wild.ioctl(), &memory, wild.argument()) {
        Ok(incoming) => {
            assert!(incoming.options.len() <= MAX_OPTIONS);
            take_apart(incoming.port.clone());
            assert_eq!(incoming.answer(&memory, Err(Errno::EBUSY)), Err(Errno::EBUSY));
            assert_eq!(incoming.answer(&memory, Ok(())), Ok(()));
        }
        Err(error) => {
            let expected = [Errno::EINVAL, Errno::EFAULT, Errno::EMSGSIZE, Errno::EOPNOTSUPP];
            assert!(expected.contains(&error), "{error}");
        }
    }
    for (address, bytes) in before {
        let answer = match address {
            // A list's name, and the legacy fields that stand for the body's.
            ARGUMENT => 0..72,
            BODY => 0..0,
            _ => 12..16,
        };
        assert_unchanged(&bytes, &memory.piece(address), &answer, address);
    }
}

#[test]
fn netmap_request() {
    bolero::check!().with_type::<WildRequest>().for_each(try_request);
}
