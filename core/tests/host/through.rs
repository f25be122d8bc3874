//! The host's own traffic through a program in user space.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use sluicegate::link::{Lab, netns};

use super::bridge::Bridge;
use super::{MODES, lab, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// The ways in which the host's packets are taken, where the kernel has both.
pub const HOSTS: &[&str] = &["host:right0", "host:right0?hook=clsact"];

pub fn ping(lab: &Lab, host: &str, to: &str) -> bool {
    run(lab, host, &format!("ping -q -c 20 -i 0.01 -W 1 {to}"))
}

/// Bytes of a connection, each way; what is slow (an emulated machine) may thin them out.
pub fn bytes() -> usize {
    let thin = std::env::var("SLUICE_TEST_THIN").ok().and_then(|it| it.parse::<usize>().ok());
    (8 << 20) / thin.unwrap_or(1)
}

/// A pattern that shows what is missing or in the wrong place.
fn pattern() -> Vec<u8> {
    (0..bytes() as u32 / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_ne_bytes()).collect()
}

/// Sends from one host to the other by TCP, and back what has come; whether it is the same.
pub fn tcp_there_and_back(lab: &Lab, from: &str, to: (&str, &str)) -> bool {
    let within = |host: &str| lab.netns(host);
    let listener =
        netns::run_in(Some(&within(to.0)), || Ok(TcpListener::bind((to.1, 0)).unwrap())).unwrap();
    let address = listener.local_addr().unwrap();
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        stream.write_all(&got).unwrap();
    });
    let connect = || Ok(TcpStream::connect_timeout(&address, PATIENCE).unwrap());
    let mut stream = netns::run_in(Some(&within(from)), connect).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent = pattern();
    stream.write_all(&sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    echo.join().unwrap();
    got == sent
}

#[test]
fn ping_and_neighbour_discovery_pass() {
    let Some(lab) = lab() else { return };
    for (mode, host) in MODES.iter().flat_map(|mode| HOSTS.iter().map(move |host| (mode, host))) {
        let bridge = Bridge::open(&lab, &format!("xdp:right0?mode={mode}"), host).unwrap();
        // The lab knows its neighbours: here they have to be asked for.
        for at in ["left", "right"] {
            assert!(run(&lab, at, &format!("ip neigh flush dev {at}0 nud permanent")));
        }
        assert!(ping(&lab, "right", "198.18.0.1"), "{mode} {host}");
        assert!(ping(&lab, "left", "198.18.0.2"), "{mode} {host}");
        assert!(ping(&lab, "right", "2001:db8:18::1"), "{mode} {host}");
        assert!(ping(&lab, "left", "2001:db8:18::2"), "{mode} {host}");
        bridge.wait_until(&format!("{mode} {host}: all goes through"), |passed| {
            passed.from_wire.load(Relaxed) >= 80 && passed.from_host.load(Relaxed) >= 80
        });
    }
    assert!(ping(&lab, "right", "198.18.0.1"), "afterwards without");
}

#[test]
fn tcp_passes_whole() {
    let Some(lab) = lab() else { return };
    for (mode, host) in MODES.iter().zip(HOSTS) {
        let bridge = Bridge::open(&lab, &format!("xdp:right0?mode={mode}"), host).unwrap();
        assert!(tcp_there_and_back(&lab, "right", ("left", "198.18.0.1")), "{mode} {host}");
        assert!(tcp_there_and_back(&lab, "left", ("right", "2001:db8:18::2")), "{mode} {host}");
        let least = (4 * bytes() / 1448 / 2) as u64;
        assert!(bridge.passed.from_host.load(Relaxed) > least, "{mode} {host}");
    }
}
