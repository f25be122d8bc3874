//! The owner is killed: a process of its own, which runs the bridge.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use sluicegate::error::ErrorKind;
use sluicegate::link::{self, Lab, netns};
use sluicegate::port::{Directions, OpenOptions, Port, detach_host};

use super::bridge::{Bridge, run_ports};
use super::edges::{nothing_is_left, traces};
use super::through::{bytes, ping};
use super::{child, lab, open, program};

/// Says what the process is to be: a namespace, and the names of two ports.
const OWNER: &str = "SLUICE_TEST_HOST_OWNER";
const READY: &str = "the owner serves";

/// The owner's process; no test otherwise.
#[test]
fn owner() {
    let Ok(told) = env::var(OWNER) else { return };
    let words: Vec<&str> = told.split(' ').collect();
    let options = OpenOptions {
        usage: Directions::Both,
        netns: Some(words[0].to_owned()),
        ..OpenOptions::default()
    };
    let port = |name: &str| Port::open(&name.parse().unwrap(), &options).unwrap().queues.remove(0);
    let queues = [port(words[1]), port(words[2])];
    println!("\n{READY}");
    run_ports(queues, &Default::default(), &Default::default());
}

/// A process that owns ports on right0, until it is killed.
struct Owner(Option<Child>);

impl Owner {
    fn start(lab: &Lab, wire: &str, host: &str) -> Self {
        program::wait_until_removed(&lab.netns("right"), "right0");
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "killed::owner", "--nocapture"])
            .env(OWNER, format!("{} {wire} {host}", lab.netns("right")))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut owner = Self(Some(child));
        let child = owner.0.as_mut().unwrap();
        let (id, out) = (child.id(), child.stdout.take().unwrap());
        let ready = child::limited(id, || {
            BufReader::new(out).lines().map_while(Result::ok).any(|line| line == READY)
        });
        assert!(ready, "{host}: the owner did not come so far");
        owner
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child::end(child);
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.kill();
    }
}

fn detach(lab: &Lab) {
    let netns = lab.netns("right");
    let right0 = link::interface(Some(&netns), "right0").unwrap();
    assert!(netns::run_in(Some(&netns), || detach_host(&right0)).unwrap());
}

/// Returns true if the kernel has tcx; a port uses it then by default.
fn has_tcx(lab: &Lab) -> bool {
    let method = |name| open(lab, name, Directions::Both).map(|port| port.method);
    let usual = method("host:right0").unwrap();
    match method("host:right0?hook=tcx") {
        Ok(method) => {
            assert_eq!((method, usual), ("tcx", "tcx"));
            true
        }
        Err(error) => {
            assert_eq!((error.kind(), usual), (ErrorKind::Privilege, "clsact"), "{error}");
            println!("without tcx: {error}");
            false
        }
    }
}

/// A connection that goes on through whatever happens: bytes are sent and come back, a piece at a
/// time.
struct TestConnection(TcpStream);

impl TestConnection {
    fn open(lab: &Lab) -> Self {
        let within = |host: &str| lab.netns(host);
        let listen = || Ok(TcpListener::bind("198.18.0.1:0").unwrap());
        let listener = netns::run_in(Some(&within("left")), listen).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
        });
        let connect = || Ok(TcpStream::connect(address).unwrap());
        let stream = netns::run_in(Some(&within("right")), connect).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(stream)
    }

    fn works(&mut self) -> bool {
        use std::io::{Read, Write};
        let piece: Vec<u8> = (0..bytes() as u32 / 8).map(|i| (i * 7) as u8).collect();
        let mut reader = self.0.try_clone().unwrap();
        let (sent, bytes) = (piece.clone(), piece.len());
        let got = thread::spawn(move || {
            let mut got = vec![0; bytes];
            reader.read_exact(&mut got).map(|()| got)
        });
        self.0.write_all(&piece).is_ok() && got.join().unwrap().is_ok_and(|got| got == sent)
    }
}

#[test]
fn with_pass_a_connection_survives_its_owner() {
    let Some(lab) = lab() else { return };
    let tcx = has_tcx(&lab);
    for (host, left) in [("host:right0?hook=clsact", true), ("host:right0", !tcx)] {
        let mut owner = Owner::start(&lab, "xdp:right0", host);
        let mut connection = TestConnection::open(&lab);
        assert!(connection.works(), "{host}: through the owner");
        owner.kill();
        assert!(connection.works(), "{host}: without it");
        assert_eq!(!traces(&lab).is_empty(), left, "{host}: {:?}", traces(&lab));
        // The next takes what was left with it.
        let bridge = Bridge::open(&lab, "xdp:right0", host).unwrap();
        assert!(connection.works(), "{host}: through the next");
        drop(bridge);
        nothing_is_left(&lab);
        assert!(connection.works(), "{host}: at the end");
    }
}

#[test]
fn with_drop_the_host_is_cut_off_until_somebody_comes() {
    let Some(lab) = lab() else { return };
    for mode in ["native", "skb"] {
        let wire = format!("xdp:right0?mode={mode}");
        let mut owner = Owner::start(&lab, &wire, "host:right0?fallback=drop");
        let mut connection = TestConnection::open(&lab);
        assert!(connection.works(), "{mode}: through the owner");
        owner.kill();
        assert!(!ping(&lab, "right", "198.18.0.1"), "{mode}: nothing leaves");
        assert!(!ping(&lab, "left", "198.18.0.2"), "{mode}: nothing comes");
        let bridge = Bridge::open(&lab, &wire, "host:right0?fallback=drop").unwrap();
        assert!(connection.works(), "{mode}: through the next");
        drop(bridge);
        nothing_is_left(&lab);

        Owner::start(&lab, &wire, "host:right0?fallback=drop").kill();
        assert!(!ping(&lab, "right", "198.18.0.1"), "{mode}: cut off again");
        detach(&lab);
        assert!(connection.works(), "{mode}: after it was taken off");
        nothing_is_left(&lab);
    }
}
