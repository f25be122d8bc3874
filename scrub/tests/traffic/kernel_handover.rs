//! Hand-over as before Linux 6.9: by the kernel's own cookies.

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::Backlog;

use super::handover::*;
use super::*;

/// Returns options as `attach` does, with the kernel's cookies.
fn by_kernel_cookies(mode: Mode) -> Options {
    Options { kernel_cookies: true, ..attach(mode) }
}

/// Returns the number of a setting of the right host.
fn syncookies(lab: &Lab) -> String {
    let read = || Ok(fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies").unwrap());
    netns::run_in(Some(&lab.netns("right")), read).unwrap().trim().to_owned()
}

#[test]
fn connections_need_one_round_trip_in_native_mode() {
    need_one_round_trip(&by_kernel_cookies(Mode::Native));
}

#[test]
fn connections_need_one_round_trip_in_skb_mode() {
    need_one_round_trip(&by_kernel_cookies(Mode::Skb));
}

#[test]
fn connections_survive_the_ladder() {
    survive_the_ladder(&by_kernel_cookies(Mode::Native));
}

#[test]
fn data_arrives_both_ways() {
    data_arrives(&by_kernel_cookies(Mode::Native));
}

#[test]
fn data_and_tags_come_with_the_acknowledgement() {
    data_and_tags_come(&by_kernel_cookies(Mode::Native));
}

#[test]
fn without_a_listener_a_client_is_refused() {
    client_is_refused(&by_kernel_cookies(Mode::Native));
}

#[test]
fn connections_have_an_mss_alone() {
    let Some(lab) = lab() else { return };
    if Command::new("ss").arg("-V").output().is_err() {
        return println!("skipped: needs ss; get it by apt install iproute2");
    }
    let _woken = wake(&lab);
    for (number, address) in (0..).zip(["198.18.0.2", "2001:db8:18::2"]) {
        // Timestamps take 12 bytes of an MSS.
        run(&lab, "left", "sysctl -qw net.ipv4.tcp_timestamps=0");
        let mut right = options_of_connection(&lab, address, number);
        run(&lab, "left", "sysctl -qw net.ipv4.tcp_timestamps=1");
        right.retain(|it| it.starts_with("mss:") || it.starts_with("advmss:"));
        if right.is_empty() {
            return println!("skipped: needs options of sockets; get them by modprobe tcp_diag");
        }
        let scrubber = scrub(&lab, ALWAYS_ON, &by_kernel_cookies(Mode::Native));
        let found = options_of_connection(&lab, address, number);
        assert_eq!(found, right, "{address}");
        assert_eq!(scrubber.handed_over(), 1);
    }
}

/// The kernel's setting is 2 while a policy hands connections over.
#[test]
fn a_setting_is_raised_and_restored() {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let server = listen(&lab, "198.18.0.2");
    let mut scrubber = scrub(&lab, ALWAYS_ON, &by_kernel_cookies(Mode::Native));
    assert_eq!((syncookies(&lab).as_str(), scrubber.handover_obstacle()), ("2", None));
    connect_all(&lab, &server, 0, 10);
    assert_eq!(scrubber.handed_over(), 10);
    let until = |is_reached: &dyn Fn() -> bool| {
        let until = Instant::now() + TIMEOUT;
        while !is_reached() {
            assert!(Instant::now() < until, "the scrubber does not notice");
            thread::sleep(Duration::from_millis(10));
        }
    };
    run(&lab, "right", "sysctl -qw net.ipv4.tcp_syncookies=1");
    until(&|| scrubber.handover_obstacle().is_some());
    assert!(scrubber.handover_obstacle().unwrap().contains("another program"));
    connect_all(&lab, &server, 10, 10);
    assert_eq!((scrubber.handed_over(), count(&scrubber, "challenge-answered")), (10, 10));
    run(&lab, "right", "sysctl -qw net.ipv4.tcp_syncookies=2");
    until(&|| scrubber.handover_obstacle().is_none());
    scrubber.apply(Policy::parse(&format!("profile.default.tcp = {ALWAYS}")).unwrap()).unwrap();
    until(&|| syncookies(&lab) == "1");
    scrubber.apply(Policy::parse(&format!("profile.default.tcp = {ALWAYS_ON}")).unwrap()).unwrap();
    until(&|| syncookies(&lab) == "2");
    scrubber.set_mode(program::Mode { monitor: true, ..scrubber.mode() });
    until(&|| syncookies(&lab) == "1");
    scrubber.set_mode(program::Mode { monitor: false, ..scrubber.mode() });
    until(&|| syncookies(&lab) == "2");
    drop(scrubber);
    assert_eq!(syncookies(&lab), "1");
    run(&lab, "right", "sysctl -qw net.ipv4.tcp_syncookies=0");
    let scrubber = scrub(&lab, ALWAYS_ON, &by_kernel_cookies(Mode::Native));
    assert!(scrubber.handover_obstacle().unwrap().contains("tcp_syncookies is 0"));
    assert_eq!(syncookies(&lab), "0", "the administrator wants no cookies");
}

/// Returns a listener of Multipath TCP on the right host, as Go's are. None if the kernel has no such protocol.
#[expect(unsafe_code, reason = "nix does not have the protocol")]
fn listen_by_mptcp(lab: &Lab, address: &str) -> Option<(TcpListener, SocketAddr)> {
    let address = SocketAddr::new(address.parse().unwrap(), 0);
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let listener = netns::run_in(Some(&lab.netns("right")), || {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the function takes numbers.
        let socket = unsafe { libc::socket(family, kind, libc::IPPROTO_MPTCP) };
        // SAFETY: a new descriptor has no other owner.
        let socket = (socket >= 0).then(|| unsafe { OwnedFd::from_raw_fd(socket) });
        if let Some(socket) = &socket {
            bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
            nix::sys::socket::listen(socket, Backlog::MAXCONN).unwrap();
        }
        Ok(socket.map(TcpListener::from))
    });
    let listener = listener.unwrap()?;
    let address = listener.local_addr().unwrap();
    Some((listener, address))
}

#[test]
fn a_listener_of_multipath_tcp_accepts_connections() {
    let Some(lab) = lab() else { return };
    let _woken = wake(&lab);
    let scrubber = scrub(&lab, ALWAYS_ON, &by_kernel_cookies(Mode::Native));
    for (kind, address) in (1..).zip(["198.18.0.2", "2001:db8:18::2"]) {
        let Some(server) = listen_by_mptcp(&lab, address) else {
            return println!("skipped: needs Multipath TCP in the kernel (CONFIG_MPTCP)");
        };
        connect_all(&lab, &server, 0, 10);
        assert_eq!(scrubber.handed_over(), kind * 10, "{address}");
    }
}
