//! Descriptors in messages of UNIX sockets.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    recvmsg, sendmsg, socketpair,
};

use crate::forks::{ends_well, in_child};
use crate::port::{Port, frame};
use crate::program::{is_netmap, is_preloaded, is_preloaded_with_server, open, pipe};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

fn send(socket: &OwnedFd, files: &[RawFd]) -> Result<(), Errno> {
    let rights = [ControlMessage::ScmRights(files)];
    let pieces = [IoSlice::new(b"x")];
    sendmsg::<UnixAddr>(socket.as_raw_fd(), &pieces, &rights, MsgFlags::empty(), None).map(drop)
}

fn receive(socket: &OwnedFd, flags: MsgFlags) -> Vec<OwnedFd> {
    let (mut byte, mut space) = ([0], cmsg_space!([RawFd; 4]));
    let mut pieces = [IoSliceMut::new(&mut byte)];
    let message =
        recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut pieces, Some(&mut space), flags).unwrap();
    let files = message.cmsgs().unwrap().flat_map(|it| match it {
        ControlMessageOwned::ScmRights(files) => files,
        _ => Vec::new(),
    });
    // SAFETY: the kernel has made them for this process.
    files.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

/// Makes a message of one byte.
fn message(iov: &mut libc::iovec, control: &mut [u64]) -> libc::mmsghdr {
    // SAFETY: all zeros are a message of nothing.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_iov = iov;
    message.msg_hdr.msg_iovlen = 1;
    message.msg_hdr.msg_control = control.as_mut_ptr().cast();
    message.msg_hdr.msg_controllen = size_of_val(control);
    message
}

#[test]
fn a_file_that_a_process_sends_to_itself_has_another_number() {
    if !is_preloaded_with_server(
        "passing::a_file_that_a_process_sends_to_itself_has_another_number",
    ) {
        return;
    }
    let [one, two] = ["vale1:a", "vale1:b"].map(Port::register);
    let ((from, to), (reader, _writer)) = (pair(), pipe());
    for (flags, close_on_exec) in [(MsgFlags::empty(), 0), (MsgFlags::MSG_CMSG_CLOEXEC, 1)] {
        send(&from, &[reader.as_raw_fd(), one.fd(), two.fd()]).unwrap();
        let files = receive(&to, flags);
        let are_netmap: Vec<_> = files.iter().map(|it| is_netmap(it.as_raw_fd())).collect();
        assert_eq!(are_netmap, [false, true, true]);
        for file in &files {
            // SAFETY: the command has no argument.
            let kept = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(kept & libc::FD_CLOEXEC, close_on_exec);
        }
    }
    // The last one closes it.
    send(&from, &[one.fd()]).unwrap();
    let copy = receive(&to, MsgFlags::empty());
    drop(one);
    assert!(is_netmap(copy[0].as_raw_fd()));
    two.send(&frame(1));
    assert_eq!(two.rxsync(), Ok(()));
}

#[test]
fn lists_of_messages_have_files_too() {
    if !is_preloaded_with_server("passing::lists_of_messages_have_files_too") {
        return;
    }
    let (file, (from, to)) = (open(0), pair());
    let mut byte = [0_u8];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let descriptor = u64::from(file.as_raw_fd().cast_unsigned());
    // A header has 16 bytes: the length, and the level and type of SCM_RIGHTS, both 1.
    let mut control = [[20, 1 << 32 | 1, descriptor]; 2];
    let [first, second] = &mut control;
    let mut list = [message(&mut iov, first), message(&mut iov, second)];
    // SAFETY: the messages and their control data live as long as the calls.
    unsafe {
        assert_eq!(libc::sendmmsg(from.as_raw_fd(), list.as_mut_ptr(), 2, 0), 2);
        assert_eq!([list[0].msg_len, list[1].msg_len], [1, 1]);
        assert_eq!(control[0][2], descriptor, "the program's own memory stays");
        let mut space = [[0_u64; 3]; 2];
        let [first, second] = &mut space;
        let mut list = [message(&mut iov, first), message(&mut iov, second)];
        let none = std::ptr::null_mut();
        assert_eq!(libc::recvmmsg(to.as_raw_fd(), list.as_mut_ptr(), 2, 0, none), 2);
        for received in space {
            let file = OwnedFd::from_raw_fd(received[2] as RawFd);
            assert!(is_netmap(file.as_raw_fd()));
        }
    }
}

#[test]
fn a_process_registers_a_port_for_the_one_that_sent_the_file() {
    if !is_preloaded_with_server(
        "passing::a_process_registers_a_port_for_the_one_that_sent_the_file",
    ) {
        return;
    }
    let (from, to) = pair();
    // Forked before the open: it knows the file only by the message.
    let child = in_child(|| {
        let file = receive(&to, MsgFlags::empty()).remove(0);
        let port = Port::register_with(file, "vale1:a").unwrap();
        port.send(&frame(7));
        // SAFETY: the child ends without closing what it shares.
        unsafe { libc::_exit(0) }
    });
    let other = Port::register("vale1:b");
    let file = open(0);
    send(&from, &[file.as_raw_fd()]).unwrap();
    ends_well(child);
    assert_eq!(other.rxsync(), Ok(()));
    assert_eq!(other.received(), [7]);
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let memory = unsafe {
        let (access, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), 4096, access, flags, file.as_raw_fd(), 0)
    };
    assert_ne!(memory, libc::MAP_FAILED, "the child has registered the port");
}

#[test]
fn a_file_without_a_server_is_not_sent() {
    if !is_preloaded("passing::a_file_without_a_server_is_not_sent") {
        return;
    }
    let (file, (from, _to)) = (open(0), pair());
    assert_eq!(send(&from, &[file.as_raw_fd()]), Err(Errno::EOPNOTSUPP));
    assert_eq!(send(&from, &[from.as_raw_fd()]), Ok(()));
}

#[test]
fn a_header_with_a_wrong_length_is_an_error() {
    if !is_preloaded_with_server("passing::a_header_with_a_wrong_length_is_an_error") {
        return;
    }
    let (file, (from, _to)) = (open(0), pair());
    let mut byte = [0_u8];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let descriptor = u64::from(file.as_raw_fd().cast_unsigned());
    for length in [0, 15, 32, u64::MAX - 15, u64::MAX] {
        // The first header is valid, or the wrong one.
        let mut both = [20, 1 << 32 | 1, descriptor, length, 1 << 32 | 1, descriptor];
        for control in [&mut both[..], &mut [length, 1 << 32 | 1, descriptor]] {
            let message = message(&mut iov, control).msg_hdr;
            // SAFETY: the message and its control data live as long as the call.
            let sent = unsafe { libc::sendmsg(from.as_raw_fd(), &raw const message, 0) };
            assert_eq!(Errno::result(sent), Err(Errno::EINVAL), "{length}");
        }
    }
}
