//! sendmsg and recvmsg: descriptors in messages.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use libc::{cmsghdr, mmsghdr, msghdr, ssize_t, timespec};
use nix::errno::Errno;

use crate::file::File;
use crate::{passing, real, table};

/// The messages of one call, at most (net/socket.c: UIO_MAXIOV).
const MAX_MESSAGES: c_uint = 1024;
/// The bytes of a header of control data, and the unit to which they are padded (cmsg(3)).
const HEADER: usize = size_of::<cmsghdr>();
const UNIT: usize = size_of::<usize>();

/// Returns pointers to the descriptors in a message; they may be unaligned. Allocates no memory, because recvmsg may be
/// called in a signal handler.
///
/// # Safety
/// The message has its control data, as long as the answer is used.
unsafe fn descriptors(message: &msghdr) -> impl Iterator<Item = *mut c_int> + use<> {
    let (data, bytes) = (message.msg_control.cast::<u8>(), message.msg_controllen);
    let mut at = 0_usize;
    let headers = std::iter::from_fn(move || {
        let left = bytes.saturating_sub(at);
        if data.is_null() || left < HEADER {
            return None;
        }
        // SAFETY: the header lies in the control data, and may be unaligned.
        let header = unsafe { data.add(at).cast::<cmsghdr>().read_unaligned() };
        let length = header.cmsg_len;
        // The kernel refuses to send such a message, and receives none.
        if length < HEADER || length > left {
            return None;
        }
        let has_descriptors =
            (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        let count = if has_descriptors { (length - HEADER) / size_of::<c_int>() } else { 0 };
        let first = data.wrapping_add(at + HEADER).cast::<c_int>();
        at = at.saturating_add(length.div_ceil(UNIT).saturating_mul(UNIT));
        Some((0..count).map(move |number| first.wrapping_add(number)))
    });
    headers.flatten()
}

/// Returns true if a message has a descriptor of a netmap file.
///
/// # Safety
/// `message` is null or valid, if the process has netmap files.
unsafe fn has_ours(message: *const msghdr) -> bool {
    // SAFETY: the caller's.
    unsafe {
        !table::is_empty()
            && message.as_ref().is_some_and(|message| {
                let is_ours = |at: *mut c_int| table::netmap(at.read_unaligned()).is_some();
                message.msg_controllen > 0 && descriptors(message).any(is_ours)
            })
    }
}

/// A message that has the sockets of netmap files in place of their descriptors.
struct Outgoing {
    header: msghdr,
    /// The control data, in words for its alignment.
    _control: Vec<u64>,
    /// Keeps the sockets open.
    _files: Vec<Arc<File>>,
}

impl Outgoing {
    /// Copies a message.
    ///
    /// # Errors
    /// EOPNOTSUPP: a file has no socket.
    ///
    /// # Safety
    /// The message has its control data.
    unsafe fn new(message: &msghdr) -> Result<Self, Errno> {
        let bytes = message.msg_controllen;
        let mut control = vec![0_u64; bytes.div_ceil(size_of::<u64>())];
        let mut header = *message;
        header.msg_control = control.as_mut_ptr().cast();
        let mut files = Vec::new();
        // SAFETY: the caller's; the copy has the same size. Nothing else refers to it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                message.msg_control.cast::<u8>(),
                header.msg_control.cast::<u8>(),
                bytes,
            );
            for at in descriptors(&header) {
                if let Some(file) = table::netmap(at.read_unaligned()) {
                    at.write_unaligned(passing::send(&file)?);
                    files.push(file);
                }
            }
        }
        Ok(Self { header, _control: control, _files: files })
    }
}

/// sendmsg(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(
    socket: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's.
    unsafe {
        if !has_ours(message) {
            return real::sendmsg(socket, message, flags);
        }
        match Outgoing::new(&*message) {
            Ok(outgoing) => real::sendmsg(socket, &outgoing.header, flags),
            Err(errno) => {
                errno.set();
                -1
            }
        }
    }
}

/// sendmmsg(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's; the list has this length.
    unsafe {
        // The kernel sends no more at once.
        let all = 0..count.min(MAX_MESSAGES) as usize;
        if table::is_empty()
            || !all.clone().any(|at| has_ours(&raw const (*messages.add(at)).msg_hdr))
        {
            return real::sendmmsg(socket, messages, count, flags);
        }
        for at in all {
            let message = messages.add(at);
            let sent = sendmsg(socket, &raw const (*message).msg_hdr, flags);
            if sent < 0 {
                return if at == 0 { -1 } else { at as c_int };
            }
            (*message).msg_len = sent as c_uint;
        }
    }
    count.min(MAX_MESSAGES) as c_int
}

/// Makes the received sockets of netmap files their descriptors, without a change of errno.
///
/// # Safety
/// The message was received.
unsafe fn receive(message: &msghdr) {
    if message.msg_controllen > 0 {
        let errno = Errno::last();
        // SAFETY: the caller's; the kernel has written the control data.
        unsafe {
            descriptors(message).for_each(|at| passing::receive(at.read_unaligned()));
        }
        errno.set();
    }
}

/// recvmsg(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(
    socket: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's; after a success, the message is valid.
    unsafe {
        let received = real::recvmsg(socket, message, flags);
        if received >= 0 {
            receive(&*message);
        }
        received
    }
}

/// recvmmsg(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    room: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller's; as many messages as the answer says are valid.
    unsafe {
        let received = real::recvmmsg(socket, messages, room, flags, timeout);
        (0..usize::try_from(received).unwrap_or(0))
            .for_each(|at| receive(&(*messages.add(at)).msg_hdr));
        received
    }
}
