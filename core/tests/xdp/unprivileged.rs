//! Ports whose process may not call bpf(2) any more: it has given up its privileges, on a kernel
//! before 5.19. A seccomp filter answers as those kernels do, with EPERM.
#![allow(unsafe_code)]

use std::io;

use sluicegate::link::Shape;

use super::claims::{host_answers, host_is_silent, try_open};
use super::scratch::lab_of;
use super::wire::{bytes_of, drain, frame, receive, send, whose};
use super::{lab, wait_until_removed};

/// Does something in a thread whose bpf(2) is refused.
fn without_bpf<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_bpf().expect("a seccomp filter");
            work()
        });
        thread.join().unwrap()
    })
}

/// For this thread, until it ends.
fn refuse_bpf() -> io::Result<()> {
    let statement = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // struct seccomp_data begins with the call's number.
    let program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_bpf as u32, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, refused, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: plain numbers; four of them are read.
    let status = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the filter is live and as long as it says; the kernel copies it.
    let status = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    if status != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[test]
fn a_claim_ends_without_privileges() {
    let Some(lab) = lab() else { return };
    for name in [
        "xdp:right0?method=af_xdp",
        "xdp:right0?method=af_xdp&timestamp=off",
        "xdp:right0?method=af_xdp&filter=icmp",
        "xdp:right0?method=ring",
        "xdp:right0?mode=skb",
        "xdp:right0?action=drop",
        "xdp:right0?action=drop&filter=icmp",
    ] {
        let mut queue = try_open(&lab, name).unwrap().queues.remove(0);
        assert!(host_is_silent(&lab), "{name}: the host gets nothing");
        let closed = without_bpf(|| queue.stop_rx());
        closed.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(host_answers(&lab), "{name}: the port is open still, and takes nothing");
        without_bpf(move || drop(queue));
        // What it could not take away does nothing, and is the next user's to clean up.
        wait_until_removed(&lab);
    }
}

#[test]
fn a_queue_that_ends_without_privileges_leaves_the_others_their_packets() {
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    // One flow, so they all come to one queue.
    for name in ["xdp:right0?method=af_xdp&timestamp=off", "xdp:right0?method=af_xdp"] {
        let mut port = try_open(&lab, name).unwrap();
        let sent: Vec<_> = (0..50).map(|i| frame(i, 0, 60)).collect();
        send(&lab, &sent);
        let busy = whose(&mut port.queues);
        let idle = &mut port.queues[1 - busy];
        without_bpf(|| idle.stop_rx()).unwrap();
        send(&lab, &sent);
        let queue = &mut port.queues[busy];
        assert!(bytes_of(receive(queue, 100)) == [&sent[..], &sent[..]].concat(), "{name}");
        without_bpf(|| queue.stop_rx()).unwrap();
        assert!(host_answers(&lab), "{name}: the last has left");
        drain(queue);
    }
}
