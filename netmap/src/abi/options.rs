//! Options of a request: a list of `struct nmreq_option` in the program's memory, linked by addresses.

use nix::errno::Errno;

use super::CallerMemory;
use super::bodies::{Body, body};

/// Types of options. Each has netmap's value; none is supported.
pub mod option_types {
    /// Memory of the program as the region, with a `struct nmreq_pools_info`.
    pub const EXTMEM: u32 = 1;
    /// eventfds of the kernel's loop, as many as the option's size says.
    pub const KLOOP_EVENTFDS: u32 = 2;
    /// Ring cursors outside the rings.
    pub const CSB: u32 = 3;
    /// The mode of the kernel's loop.
    pub const KLOOP_MODE: u32 = 4;
    /// Packets that begin at an offset in their buffer.
    pub const OFFSETS: u32 = 5;
}

/// Bytes that a body and its options may have in all.
const MAX_REQUEST_BYTES: usize = 4096;
/// Bytes that each option costs besides its own: netmap stores the program's pointer to the next one.
const SAVED_POINTER_BYTES: usize = 8;
/// The offset of `nro_status`.
const STATUS_OFFSET: u64 = 12;

body! {
    /// `struct nmreq_option`: the header that all options begin with.
    #[derive(Clone, Copy)]
    struct OptionHeader, 24 {
        next: u64,
        kind: u32,
        _status: u32,
        bytes: u64,
    }
}

/// One option of a request, and its place in the program's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionInHand {
    /// One of [`option_types`], or an unknown type.
    pub kind: u32,
    /// Answer: the option's error; None once the request has processed it.
    pub status: Option<Errno>,
    address: u64,
}

/// Reads the list that begins at `first`, of a request with a body of `body_bytes`. Every option has the status
/// EOPNOTSUPP until the request processes it. The list's memory holds the statuses already if this fails.
///
/// The options' own bodies are not read, because none is supported.
///
/// # Errors
/// EMSGSIZE if the list is too long or a loop, EINVAL for type 0 or a second option of a known type, EFAULT.
pub(super) fn read_options(
    memory: &dyn CallerMemory,
    first: u64,
    body_bytes: usize,
) -> Result<Vec<OptionInHand>, Errno> {
    let mut options = Vec::new();
    match follow(memory, first, body_bytes, &mut options) {
        Ok(()) => {
            options.iter_mut().for_each(|option| option.status = Some(Errno::EOPNOTSUPP));
            Ok(options)
        }
        // The list may be a loop: nothing is written there.
        Err(Errno::EMSGSIZE) => Err(Errno::EMSGSIZE),
        Err(error) => write_statuses(memory, &options).and(Err(error)),
    }
}

/// Writes the status of each option to the program's memory.
///
/// # Errors
/// EFAULT if the memory of one is not writable.
pub(super) fn write_statuses(
    memory: &dyn CallerMemory,
    options: &[OptionInHand],
) -> Result<(), Errno> {
    options.iter().try_for_each(|option| {
        let status = option.status.map_or(0, |error| error as u32);
        memory.write(option.address.wrapping_add(STATUS_OFFSET), &status.to_ne_bytes())
    })
}

/// Appends the options of the list to `options`, in an error those up to the invalid one.
fn follow(
    memory: &dyn CallerMemory,
    first: u64,
    body_bytes: usize,
    options: &mut Vec<OptionInHand>,
) -> Result<(), Errno> {
    let mut bytes = body_bytes;
    let mut address = first;
    while address != 0 {
        bytes += OptionHeader::BYTES + SAVED_POINTER_BYTES;
        if bytes > MAX_REQUEST_BYTES {
            return Err(Errno::EMSGSIZE);
        }
        let header = OptionHeader::read(memory, address)?;
        let mut option = OptionInHand { kind: header.kind, status: None, address };
        let known = (option_types::EXTMEM..=option_types::OFFSETS).contains(&header.kind);
        let twin = options.iter_mut().find(|earlier| known && earlier.kind == header.kind);
        if header.kind == 0 || twin.is_some() {
            option.status = Some(Errno::EINVAL);
            if let Some(twin) = twin {
                twin.status = option.status;
            }
            options.push(option);
            return Err(Errno::EINVAL);
        }
        options.push(option);
        if known {
            bytes += content_bytes(&header)?;
        }
        if bytes > MAX_REQUEST_BYTES {
            return Err(Errno::EMSGSIZE);
        }
        address = header.next;
    }
    Ok(())
}

/// Returns the bytes of an option of a known type behind its header.
fn content_bytes(header: &OptionHeader) -> Result<usize, Errno> {
    let bytes = usize::try_from(header.bytes).unwrap_or(usize::MAX);
    if bytes > MAX_REQUEST_BYTES {
        return Err(Errno::EMSGSIZE);
    }
    Ok(match header.kind {
        option_types::EXTMEM => 72,
        option_types::KLOOP_EVENTFDS => bytes.saturating_sub(OptionHeader::BYTES),
        option_types::CSB => 16,
        option_types::KLOOP_MODE => 8,
        _ => 32,
    })
}
