//! Requests of a netmap program: any header, body and list of options is a request or an errno, and neither
//! reading nor answering overwrites anything of the program's memory but the answer. An engine performs any
//! requests of several files in any order, and keeps nothing when it ends.

#[path = "../../netmap/tests/caller/memory.rs"]
mod memory;
#[path = "netmap/wild_request.rs"]
mod wild_request;

use std::ops::Range;

use bolero::{TypeGenerator, produce};
use memory::Memory;
use nix::errno::Errno;
use nix::poll::PollFlags;
use sluicegate_netmap::abi::ioctls::{NIOCRXSYNC, NIOCTXSYNC};
use sluicegate_netmap::abi::{PortKind, PortName, read_request};
use sluicegate_netmap::engine::{Engine, EngineOptions, NetmapFile, OpenFile};
use wild_request::{ARGUMENT, BODY, WildRequest};

/// Options that fit in a request of 4096 bytes.
const MAX_OPTIONS: usize = 128;

/// Bytes that the calls of a program are made of.
const INPUT_BYTES: usize = 1 << 16;
/// Calls of a program.
const MAX_CALLS: usize = 64;

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

/// A call of a program.
#[derive(Clone, Debug, TypeGenerator)]
enum Call {
    Open,
    Close(u8),
    Request { file: u8, request: WildRequest },
    Sync { file: u8, transmits: bool },
    Poll { file: u8, events: u16 },
}

/// Checks an ioctl's result: it is a success or one of netmap's errnos.
fn check(result: Result<(), Errno>) {
    use Errno::{
        E2BIG, EBUSY, EEXIST, EFAULT, EINVAL, EIO, EMSGSIZE, ENODEV, ENOENT, ENOMEM, ENXIO,
        EOPNOTSUPP,
    };
    let netmaps = [
        E2BIG, EBUSY, EEXIST, EFAULT, EINVAL, EIO, EMSGSIZE, ENODEV, ENOENT, ENOMEM, ENXIO,
        EOPNOTSUPP,
    ];
    assert!(result.is_ok() || result.is_err_and(|error| netmaps.contains(&error)), "{result:?}");
}

/// Performs calls on an engine. No name is that of an interface.
fn perform(calls: &[Call]) {
    let engine = Engine::new(EngineOptions::default());
    let mut files = vec![engine.open()];
    let pick = |files: &[OpenFile], file: u8| usize::from(file) % files.len();
    for call in calls {
        match call {
            Call::Open => files.push(engine.open()),
            Call::Close(file) => {
                drop(files.swap_remove(pick(&files, *file)));
                files.push(engine.open());
            }
            Call::Request { file, request } => {
                let file = &files[pick(&files, *file)];
                check(file.ioctl(request.ioctl(), &request.place(), request.argument()));
                let bytes = file.region().map_or(0, |region| region.bytes);
                assert!(bytes <= u32::MAX.into(), "a region of {bytes} bytes");
            }
            Call::Sync { file, transmits } => {
                let ioctl = if *transmits { NIOCTXSYNC } else { NIOCRXSYNC };
                let memory = Memory::default();
                check(files[pick(&files, *file)].ioctl(ioctl, &memory, 0));
            }
            Call::Poll { file, events } => {
                let file = &files[pick(&files, *file)];
                let events = PollFlags::from_bits_truncate(*events as i16);
                file.poll(events);
                file.wait(events);
            }
        }
    }
}

/// Returns the descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

#[test]
fn netmap_ioctl() {
    let calls = produce::<Vec<Call>>().with().len(0..MAX_CALLS);
    bolero::check!().with_generator(calls).with_max_len(INPUT_BYTES).for_each(|calls| {
        let before = descriptors();
        perform(calls);
        assert_eq!(descriptors(), before, "all memory is freed");
    });
}

#[test]
fn netmap_request() {
    bolero::check!().with_type::<WildRequest>().for_each(try_request);
}
