//! The server: its files, its list, and clients that keep no rules.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind,
    connect, listen, recvmsg, send, sendmsg, socket,
};
use sluicegate_base::memory::Mmap;
use sluicegate_base::socket_file::files_in_message;
use sluicegate_netmap::abi::Request;
use sluicegate_netmap::abi::bodies::{Register, register_flags};
use sluicegate_netmap::shared::{RemoteFile, list};

use crate::engine;
use crate::host::Host;
use crate::hostile::Random;
use crate::program::{Program, TIMEOUT, all, frame};

/// The requests for a list of ports, and for the region.
const LIST: u32 = 0x1_0003;
const REGION: u32 = 0x1_0006;
/// A message's number, the size of its body, its tag, and a port's name.
const HEADER_BYTES: usize = 4 + 4 + 8 + 64;

fn dial(host: &Host) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    connect(socket.as_raw_fd(), &UnixAddr::new(&host.socket()).unwrap()).unwrap();
    socket
}

/// Receives a message's number and files; None at the end.
fn receive(socket: &OwnedFd) -> Option<(u32, Vec<OwnedFd>)> {
    let (mut bytes, mut space) = ([0; 4096], cmsg_space!([RawFd; 2]));
    let length = {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received =
            recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut pieces, Some(&mut space), flags);
        received.map_or(0, |it| it.bytes)
    };
    let number = bytes[..length].first_chunk().map(|word| u32::from_ne_bytes(*word));
    number.map(|number| (number, files_in_message(&space)))
}

/// Programs of the server still exchange packets.
fn still_works(host: &Host) {
    let [a, b] = ["vale9:a", "vale9:b"].map(|name| Program::open(host, name, all()).unwrap());
    let packet = frame(0xff, 1, 5, 60);
    a.send(std::slice::from_ref(&packet));
    assert_eq!(b.wait_for(1), [packet]);
}

#[test]
fn the_list_has_regions_ports_files_and_cursors() {
    let host = engine();
    let [a, _b] = ["vale1:a", "vale1:b"].map(|name| Program::open(&host, name, all()).unwrap());
    a.send(&[frame(0xff, 1, 0, 60)]);
    let text = list(&host.socket()).unwrap().unwrap();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names: Vec<_> = list["ports"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["vale1:a", "vale1:b"]);
    let ring = &list["ports"][0]["rings"][0];
    let cursors = ["direction", "number", "slots", "head", "tail", "files"].map(|key| &ring[key]);
    let expected = serde_json::json!(["tx", 0, 1024, 1, 0, 1]);
    assert_eq!(cursors.map(Clone::clone).to_vec(), *expected.as_array().unwrap());
    let own = list["files"].as_array().unwrap();
    let pids: Vec<_> = own.iter().map(|it| it["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids, [u64::from(std::process::id()); 2]);
    assert_eq!(own[1]["port"], "vale1:b");
    assert!(list["regions"][0]["free_buffers"].as_u64() > Some(0));
    drop(a);
    let text = sluicegate_netmap::shared::list(&host.socket()).unwrap().unwrap();
    assert!(!text.contains("vale1:a"), "{text}");
}

#[test]
fn a_path_without_a_server_and_a_server_of_another_version() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let log = |line: &str| LINES.lock().unwrap().push(line.into());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    assert!(RemoteFile::open(&path, false, log).unwrap().is_none());
    assert_eq!(list(&path), Ok(None));
    let flags = SockFlag::SOCK_CLOEXEC;
    let other = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(other.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&other, Backlog::new(4).unwrap()).unwrap();
    for (hello, errno, reason) in [
        (Some(77u32), Errno::EPROTO, "another version"),
        // No message: shorter than one, or its end.
        (None, Errno::ENXIO, "has ended"),
    ] {
        let answer = std::thread::scope(|scope| {
            let opened = scope.spawn(|| RemoteFile::open(&path, false, log).map(drop));
            let client = accept(other.as_raw_fd()).unwrap();
            if let Some(number) = hello {
                let mut bytes = vec![0; HEADER_BYTES];
                bytes[..4].copy_from_slice(&number.to_ne_bytes());
                send(client, &bytes, MsgFlags::empty()).unwrap();
            }
            nix::unistd::close(client).unwrap();
            opened.join().unwrap()
        });
        assert_eq!(answer.err(), Some(errno), "{reason}");
        let lines = std::mem::take(&mut *LINES.lock().unwrap());
        assert!(lines.len() == 1 && lines[0].contains(reason), "{lines:?}");
    }
}

#[test]
fn a_program_of_another_network_namespace_does_not_use_the_default_server() {
    let host = engine();
    let open = |here| RemoteFile::open(&host.socket(), here, |_| {}).unwrap().is_some();
    let elsewhere = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // Needs CAP_SYS_ADMIN.
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            Some((open(true), open(false)))
        });
        other.join().unwrap()
    });
    assert!(open(true));
    match elsewhere {
        Some(opened) => assert_eq!(opened, (false, true)),
        None => eprintln!("skipped: needs CAP_SYS_ADMIN; get it by sudo"),
    }
}

#[test]
fn threads_make_requests_and_calls_of_one_file_at_the_same_time() {
    let host = engine();
    let file = host.open();
    file.register(&"vale1:a".into(), &mut all()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut name = "vale1:a".into();
                    let mut info = Request::PortInfo(Default::default());
                    file.request(&mut name, &mut info).unwrap();
                    file.txsync().unwrap();
                    assert_eq!(file.poll(PollFlags::POLLIN), PollFlags::empty());
                    file.wait(PollFlags::POLLIN);
                }
            });
        }
    });
}

#[test]
fn a_connection_that_is_half_closed_ends_its_file() {
    let host = engine();
    let socket = dial(&host);
    let _hello = receive(&socket).unwrap();
    nix::sys::socket::shutdown(socket.as_raw_fd(), nix::sys::socket::Shutdown::Write).unwrap();
    assert!(receive(&socket).is_none());
    still_works(&host);
}

#[test]
fn a_port_is_free_once_its_last_process_has_exited() {
    let host = engine();
    for round in 0..200 {
        let file = host.open();
        let mut body = Register { flags: register_flags::EXCLUSIVE, ..all() };
        let registered = file.register(&"vale1:a".into(), &mut body);
        assert_eq!(registered, Ok(()), "round {round}");
        // Only the socket is closed, as at the end of a process.
        file.leave();
    }
}

#[test]
fn an_answer_that_a_killed_process_did_not_read_is_no_other_request_s() {
    let host = engine();
    let file = host.open();
    file.register(&"vale1:a".into(), &mut all()).unwrap();
    let region = file.region().unwrap().bytes;
    let joined = file.connection().unwrap().try_clone_to_owned().unwrap();
    for number in [REGION, LIST] {
        let mut message = [0; HEADER_BYTES];
        message[..4].copy_from_slice(&number.to_ne_bytes());
        send(joined.as_raw_fd(), &message, MsgFlags::empty()).unwrap();
        let mut info = Request::PortInfo(Default::default());
        file.request(&mut "vale1:a".into(), &mut info).unwrap();
        let Request::PortInfo(info) = info else { unreachable!() };
        assert_eq!(info.memsize, region);
    }
}

#[test]
fn files_beyond_the_limit_are_refused_with_the_reason() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let log = |line: &str| LINES.lock().unwrap().push(line.into());
    let host = engine();
    let open = || RemoteFile::open(&host.socket(), true, log);
    let mut files: Vec<_> = (0..512).map(|_| open().unwrap().unwrap()).collect();
    assert_eq!(open().err(), Some(Errno::EMFILE));
    assert!(LINES.lock().unwrap()[0].contains("512 files"), "{LINES:?}");
    files.pop();
    assert!(open().unwrap().is_some());
}

#[test]
fn wild_clients_end_only_their_own_files() {
    let host = engine();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 1..=40 {
                wild_client(&host, &mut Random(seed));
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            still_works(&host);
        }
    });
    still_works(&host);
    // The server notices the end of a connection by itself.
    let end = Instant::now() + TIMEOUT;
    loop {
        let text = list(&host.socket()).unwrap().unwrap();
        let list: serde_json::Value = serde_json::from_str(&text).unwrap();
        if ["files", "ports"].iter().all(|it| list[it] == serde_json::json!([])) {
            break;
        }
        assert!(Instant::now() < end, "{text}");
    }
}

/// Writes anything into a file's memory, wakes its server, and sends any message, also with files.
fn wild_client(host: &Host, random: &mut Random) {
    let socket = dial(host);
    let (_, files) = receive(&socket).unwrap();
    let page = Mmap::shared(files[0].as_fd(), 4096).unwrap();
    for _ in 0..50 {
        for _ in 0..20 {
            let at = random.next() as usize % 1024 * 4;
            let value = [0, 1, 2, 3, 0x2_0005, 0x3_0005, random.next() as u32];
            let value = value[random.next() as usize % value.len()];
            // SAFETY: the word lies in the mapping, which both sides access as atomics.
            unsafe {
                let word = page.at(at).cast::<std::sync::atomic::AtomicU32>();
                word.as_ref().store(value, Ordering::Relaxed);
            }
        }
        let _ = nix::unistd::write(&files[1], &1u64.to_ne_bytes());
        let numbers =
            [1, 3, 5, 8, 0x1_0001, 0x1_0002, 0x1_0003, 0x1_0005, 0x1_0006, random.next() as u32];
        let number = numbers[random.next() as usize
            % (numbers.len() - usize::from(!random.next().is_multiple_of(4)))];
        let mut message = vec![0; HEADER_BYTES + random.next() as usize % 64];
        message[..4].copy_from_slice(&number.to_ne_bytes());
        let body =
            (message.len() - HEADER_BYTES) as u32 + u32::from(random.next().is_multiple_of(8));
        message[4..8].copy_from_slice(&body.to_ne_bytes());
        message[16..22].copy_from_slice(b"vale7:");
        message[22] = b'a' + (random.next() % 4) as u8;
        message[HEADER_BYTES..]
            .fill_with(|| if random.next().is_multiple_of(2) { 0 } else { random.next() as u8 });
        let (fds, pieces) = ([files[1].as_raw_fd()], [IoSlice::new(&message)]);
        let rights = [ControlMessage::ScmRights(&fds)];
        let control = if random.next().is_multiple_of(8) { &rights[..] } else { &[] };
        let flags = MsgFlags::MSG_NOSIGNAL;
        if sendmsg::<UnixAddr>(socket.as_raw_fd(), &pieces, control, flags, None).is_err() {
            // Ended by the server. Linux 6.16 may also refuse the files, then the next message passes.
            return;
        }
        if !random.next().is_multiple_of(16) && receive(&socket).is_none() {
            return;
        }
    }
}
