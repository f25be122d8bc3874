//! sendmsg and recvmsg: descriptors in messages.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use libc::{cmsghdr, mmsghdr, msghdr, ssize_t, timespec};
use nix::errno::Errno;

use crate::file::File;
use crate::{passing, real, table};

/// Returns pointers to the descriptors in a message; they may be unaligned.
///
/// # Safety
/// The message has its control data.
unsafe fn descriptors(message: &msghdr) -> impl Iterator<Item = *mut c_int> {
    let end = message.msg_control as usize + message.msg_controllen;
    // SAFETY: the caller's. The next header is null, or lies in the control data, like this one.
    let headers = unsafe {
        let first = libc::CMSG_FIRSTHDR(message);
        std::iter::successors(first.as_mut(), |header| libc::CMSG_NXTHDR(message, *header).as_mut())
    };
    let with_files = headers.filter(|header| {
        header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS
    });
    with_files.flat_map(move |header| {
        let header: *mut cmsghdr = header;
        // SAFETY: the header lies in the control data. No descriptor lies behind the end of the data.
        unsafe {
            let data = libc::CMSG_DATA(header).cast::<c_int>();
            let bytes = (header as usize + (*header).cmsg_len).min(end);
            let count = bytes.saturating_sub(data as usize) / size_of::<c_int>();
            (0..count).map(move |at| data.add(at))
        }
    })
}

/// Returns true if a message has a descriptor of a netmap file.
///
/// # Safety
/// `message` is null or valid.
unsafe fn has_ours(message: *const msghdr) -> bool {
    // SAFETY: the caller's.
    unsafe {
        message.as_ref().is_some_and(|message| {
            message.msg_controllen > 0
                && !table::is_empty()
                && descriptors(message).any(|at| table::netmap(at.read_unaligned()).is_some())
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
        let all = 0..count as usize;
        if !all.clone().any(|at| has_ours(&raw const (*messages.add(at)).msg_hdr)) {
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
    count as c_int
}

/// Makes the received sockets of netmap files their descriptors, without a change of errno.
///
/// # Safety
/// The message was received.
unsafe fn receive(message: &msghdr) {
    if message.msg_controllen > 0 {
        let errno = Errno::last();
        // SAFETY: the caller's; the kernel has written the control data.
        unsafe { descriptors(message).for_each(|at| passing::receive(at.read_unaligned())) };
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
