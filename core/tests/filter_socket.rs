//! Filters in the kernel: what a packet socket lets through is what the filter says of the frame
//! as it was on the wire, VLAN tag and all.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::Command;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use sluicegate::filter::cbpf::Op;
use sluicegate::filter::{Filter, Instruction};
use sluicegate::port::LINKTYPE_ETHERNET;

/// Our frames' source address: other traffic on the link is not ours to judge.
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0x18, 1];

const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "arp",
    "ip6",
    "vlan",
    "not vlan",
    "vlan 5",
    "vlan 5 and udp",
    "vlan and vlan",
    "vlan 5 and vlan 6 and udp port 53",
    "udp port 53",
    "ether proto 0x88a8",
    "ether proto 0x8100",
    "ether dst 02:00:00:00:18:02",
    "ether multicast",
    "len > 100",
    "len = 104 or len = 61",
    "ether[len - 1] = 7",
    "ether[9:4] & 0xff = 0x88",
    "ether[11:4] & 0xffff00 = 0x810000",
    "ether[12:4] = 0x81000005",
    "ether[13:4] & 0xffff00 = 0x000500",
    "ether[14:2] & 0x1000 != 0",
    "ether[14] & 0xe0 = 0xa0",
    "ether[15:4] = 0x05080045",
    "ether[ether[15] + 7:2] = 0x8100",
    "ether[ether[15] + 8:4] & 0xffff = 0x4500",
    "ether[ether[15]:4] != 0",
    "1 << ether[15] = 0x20",
    "1 << (ether[15] + 32) = 0x20",
    "ether[ether[26:4] - 0xc6120001 + 23] = 17",
    "ether[ether[26:4] | 0xfff00000:1] >= 0",
    "ip[ip[0] & 0xf] = 6",
    "vlan and ip[8] = 64",
    "inbound",
];

/// A UDP packet behind tags, its payload numbered.
fn frame(tags: &[(u16, u16)], payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0x18, 2];
    frame.extend(SOURCE);
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    let total = (28 + payload as u16).to_be_bytes();
    frame.extend([0x08, 0x00, 0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([198, 18, 0, 1, 198, 18, 0, 2, 0, 53, 0x10, 0, 0, 8, 0, 0]);
    frame.extend((0..payload).map(|i| i as u8));
    frame
}

fn frames() -> Vec<Vec<u8>> {
    let mut broadcast = frame(&[(0x8100, 0xa005)], 30);
    broadcast[..6].fill(0xff);
    let mut arp = frame(&[(0x8100, 0x1006)], 20);
    arp[16..18].copy_from_slice(&[8, 6]);
    vec![
        frame(&[], 20),
        frame(&[], 62),
        frame(&[(0x8100, 5)], 20),
        frame(&[(0x8100, 0xb005)], 58),
        frame(&[(0x8100, 0)], 15),
        frame(&[(0x88a8, 5)], 20),
        frame(&[(0x88a8, 5), (0x8100, 6)], 20),
        frame(&[(0x8100, 5), (0x8100, 6)], 54),
        frame(&[(0x88a8, 0xffff), (0x8100, 0x1fff)], 8),
        broadcast,
        arp,
        // Told apart from the others by nothing but its length; the last to be sent.
        frame(&[], 99),
    ]
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A packet socket on an interface that passes what the program passes.
fn open(interface: &str, program: Option<&[Instruction]>) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    if let Some(program) = program {
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
        };
        // SAFETY: `filter` points to `len` instructions, laid out as sock_filter, which outlive
        // the call; the kernel only reads them.
        check(unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of_val(&program) as u32,
            )
        })?;
    }
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: nix::net::if_::if_nametoindex(interface)?.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the address is a whole sockaddr_ll, of the size given.
    check(unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) })?;
    Ok(socket)
}

/// The frames a socket holds, as they arrived: without their outer tag.
fn drain(socket: &OwnedFd) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut buffer = [0; 2048];
    while let Ok(bytes) = nix::unistd::read(socket, &mut buffer) {
        if buffer[6..12] == SOURCE {
            frames.push(buffer[..bytes].to_vec());
        }
    }
    frames
}

/// The frame as a packet socket shows it.
fn without_tag(frame: &[u8]) -> Vec<u8> {
    match frame[12..14] {
        [0x81, 0x00] | [0x88, 0xa8] => [&frame[..12], &frame[16..]].concat(),
        _ => frame.to_vec(),
    }
}

/// A veth pair in a network namespace that ends with this thread.
fn link() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("no network namespace: {error}"))?;
    for command in [
        "link add left0 type veth peer name right0",
        "link set left0 up",
        "link set right0 up promisc on",
    ] {
        let done = Command::new("ip").args(command.split(' ')).status();
        if !done.is_ok_and(|status| status.success()) {
            return Err(format!("`ip {command}` failed"));
        }
    }
    // Until the kernel has noticed the carrier, what is sent is dropped.
    let runs = |name| sluicegate::link::interface(None, name).is_ok_and(|link| link.running);
    while !(runs("left0") && runs("right0")) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(())
}

/// True if the expression asks for what only the kernel knows: a load at one of its extensions.
fn asks_kernel(filter: &Filter) -> bool {
    let is_extension = |op: &Op| matches!(op, Op::Load(_, 0xffff_f000..));
    filter.program().ops().iter().any(is_extension)
}

fn judge_every_frame(expression: &str, frames: &[Vec<u8>]) {
    let filter = Filter::compile(expression, LINKTYPE_ETHERNET).expect(expression);
    let program = filter.for_packet_socket().expect(expression);
    let filtered = open("right0", Some(&program)).expect(expression);
    let all = open("right0", None).unwrap();
    let sender = open("left0", None).unwrap();
    for frame in frames {
        assert_eq!(nix::unistd::write(&sender, frame), Ok(frame.len()));
    }
    // A frame goes to every socket before the next one goes to any: once the last is seen here,
    // the other has had them all.
    let mut arrived = Vec::new();
    while arrived.len() < frames.len() {
        let mut wait = [PollFd::new(all.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut wait, PollTimeout::from(10_000_u16)).unwrap();
        assert!(ready > 0, "{expression}: {} of {} arrived", arrived.len(), frames.len());
        arrived.extend(drain(&all));
    }
    let shown: Vec<_> = frames.iter().map(|frame| without_tag(frame)).collect();
    assert_eq!(arrived, shown, "the kernel takes the outer tag out");
    let expected: Vec<_> = frames
        .iter()
        .filter(|frame| asks_kernel(&filter) || filter.matches(frame, frame.len() as u32))
        .map(|frame| without_tag(frame))
        .collect();
    let lengths = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
    let passed = drain(&filtered);
    assert!(
        passed == expected,
        "'{expression}': passed are frames of {:?} bytes, expected {:?}",
        lengths(&passed),
        lengths(&expected)
    );
}

#[test]
fn a_packet_socket_passes_what_the_filter_says_of_the_wire() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root; get it by sudo");
        return;
    }
    // The namespace belongs to this thread and ends with it, even by a panic.
    let tried = std::thread::spawn(|| {
        if let Err(reason) = link() {
            eprintln!("skipped: needs a network namespace; get it by sudo: {reason}");
            return;
        }
        let frames = frames();
        for expression in EXPRESSIONS {
            judge_every_frame(expression, &frames);
        }
        eprintln!("{} expressions judged {} frames each", EXPRESSIONS.len(), frames.len());
    });
    if let Err(panic) = tried.join() {
        std::panic::resume_unwind(panic);
    }
}
