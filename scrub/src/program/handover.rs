//! Hand-over: the kernel completes the connections of SYNs that the XDP program answered by SYN cookies
//! (`bpf/handover.h`).
//!
//! ```text
//!   SYN --> XDP: a listener here? --> SYN-ACK with a cookie
//!   ACK --> XDP --> tc: bpf/handover.bpf.c --> the listener accepts
//! ```
//!
//! The program at tc ends with this process, and the XDP program only answers by cookies while the stage's owner lives. A
//! thread in the interfaces' network namespace tells the XDP program the host's addresses and settings.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use sluicegate::error::{Error, Result};
use sluicegate::link::{self, Interface};
use sluicegate::xdp::live::SharedCounters;
use sluicegate::xdp::resident::attach_ingress;

use super::load::{failed, map, program};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/handover.bpf.o"));
/// The map of `struct scrub_handover`.
pub(super) const SHARED: &str = ".data.handover";
const SHARED_WORDS: usize = 3;
/// Words of `struct scrub_handover`.
const SETTINGS: usize = 1;
const CONNECTIONS: usize = 2;
/// Bits of the settings: modes, and HANDOVER_ of bpf/syncookie.h.
const AUTO: u64 = 1 << 1;
const ON: u64 = 1 << 2;
const TIMESTAMPS: u64 = 0x08;
const SCALE: u64 = 0x10;
const SACK: u64 = 0x20;
const ECN: u64 = 0x40;
const SCALE_SHIFT: u32 = 8;
const MAX_SCALE: u32 = 14;
/// Time between two looks at the host.
const INTERVAL: Duration = Duration::from_secs(1);

/// Connections that the kernel completes, until this value is dropped.
#[derive(Debug)]
pub struct Handover {
    /// Hold the program at tc.
    _links: Vec<OwnedFd>,
    shared: Arc<SharedCounters>,
    obstacle: Arc<Mutex<Option<String>>>,
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Handover {
    /// Attaches the program at tc to interfaces of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel is older than Linux 6.9, or refuses.
    pub(super) fn start(maps: &Object, interfaces: &[Interface]) -> Result<Self> {
        let object = load(maps)?;
        let attach = |interface| {
            let attached = attach_ingress(program(&object, "scrub_complete").as_fd(), interface);
            attached.map_err(|error| Error::system("attach to tc of", &interface.name, error))
        };
        let links = interfaces.iter().map(attach).collect::<Result<_>>()?;
        let memory = map(maps, SHARED).as_fd().try_clone_to_owned();
        let memory = memory.and_then(|fd| SharedCounters::over(fd, SHARED_WORDS));
        let shared = memory.map_err(|error| Error::system("map", "memory of hand-over", error))?;
        let shared = Arc::new(shared);
        let local = MapHandle::try_from(&map(maps, "scrub_local"));
        let local = local.map_err(|error| failed("share a map of", error))?;
        let mut watch = Watch { local, shared: Arc::clone(&shared), written: HashSet::new() };
        let obstacle = Arc::new(Mutex::new(watch.update()));
        let (stop, stopped) = channel();
        let shown = Arc::clone(&obstacle);
        let thread = Builder::new()
            .name("handover".into())
            .spawn(move || watch.run(&stopped, &shown))
            .map_err(|error| Error::start("a thread for hand-over", error))?;
        Ok(Self { _links: links, shared, obstacle, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns why connections are not handed over now, those of the mode `auto` at least.
    pub fn obstacle(&self) -> Option<String> {
        self.obstacle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of connections that the kernel got.
    pub fn connections(&self) -> u64 {
        self.shared.get(CONNECTIONS)
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.set(SETTINGS, 0);
    }
}

/// Loads the program at tc with the maps of the XDP program.
fn load(maps: &Object) -> Result<Object> {
    let loaded = ObjectBuilder::default().open_memory(OBJECT).and_then(|mut open| {
        for mut each in open.maps_mut() {
            let name = each.name().to_string_lossy().into_owned();
            if name.starts_with(".data") {
                each.reuse_fd(map(maps, &name).as_fd())?;
            }
        }
        open.load()
    });
    loaded.map_err(|error| failed("complete connections by", error))
}

/// Tells the XDP program what it must know of the host.
struct Watch {
    local: MapHandle,
    shared: Arc<SharedCounters>,
    /// The addresses in the map.
    written: HashSet<IpAddr>,
}

impl Watch {
    fn run(&mut self, stopped: &Receiver<()>, obstacle: &Mutex<Option<String>>) {
        while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let found = self.update();
            *obstacle.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
    }

    /// Reads the host's state, and writes it. Returns the obstacle.
    fn update(&mut self) -> Option<String> {
        let (settings, obstacle) = match read_modes() {
            Ok((modes, obstacle)) => (modes | settings(), obstacle),
            Err(error) => (0, Some(error.to_string())),
        };
        // Without all addresses, the clients of the others are challenged.
        if let Ok(interfaces) = link::interfaces(None) {
            let addresses = interfaces.iter().flat_map(|it| &it.addresses);
            self.write_addresses(&addresses.map(|it| it.ip).collect());
        }
        self.shared.set(SETTINGS, settings);
        obstacle
    }

    fn write_addresses(&mut self, now: &HashSet<IpAddr>) {
        for old in self.written.difference(now) {
            let _ = self.local.delete(&key(*old));
        }
        for new in now.difference(&self.written) {
            let _ = self.local.update(&key(*new), &[1], MapFlags::ANY);
        }
        self.written.clone_from(now);
    }
}

/// Encodes `struct scrub_local_address`.
fn key(address: IpAddr) -> [u8; 24] {
    let (bits, version) = match address {
        IpAddr::V4(it) => (u128::from(it.to_bits()) << 96, 4_u64),
        IpAddr::V6(it) => (it.to_bits(), 6),
    };
    let mut bytes = [0; 24];
    for (to, word) in bytes.chunks_exact_mut(8).zip([(bits >> 64) as u64, bits as u64, version]) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Returns a number of a setting of this thread's network namespace.
fn sysctl(name: &str, at: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
    text.split_whitespace().nth(at)?.parse().ok()
}

/// Returns the modes that work on this host, and what hinders.
fn read_modes() -> Result<(u64, Option<String>)> {
    if sysctl("ipv4/tcp_syncookies", 0).unwrap_or(0) == 0 {
        return Ok((0, Some("net.ipv4.tcp_syncookies is 0".into())));
    }
    if link::has_netfilter_tables()? {
        let reason = "nftables or iptables may drop or redirect the first packet of a connection that lacks a SYN";
        return Ok((ON, Some(reason.into())));
    }
    Ok((AUTO | ON, None))
}

/// Returns which options the kernel accepts, and its window scale.
fn settings() -> u64 {
    let is_on = |name: &str| sysctl(&format!("ipv4/{name}"), 0).is_some_and(|it| it > 0);
    let bits = [
        ("tcp_timestamps", TIMESTAMPS),
        ("tcp_window_scaling", SCALE),
        ("tcp_sack", SACK),
        ("tcp_ecn", ECN),
    ];
    let bits = bits.iter().filter(|(name, _)| is_on(name)).fold(0, |all, (_, bit)| all | bit);
    // As the kernel computes it (net/ipv4/tcp_output.c, tcp_select_initial_window).
    let sizes = [sysctl("ipv4/tcp_rmem", 2), sysctl("core/rmem_max", 0)];
    let space = sizes.into_iter().flatten().max().unwrap_or(1).max(1);
    let scale = space.ilog2().saturating_sub(15).min(MAX_SCALE);
    bits | u64::from(scale) << SCALE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_encoded_as_packets_have_them() {
        let words = |address: &str| {
            let bytes = key(address.parse().unwrap());
            let mut words = bytes.chunks_exact(8);
            std::array::from_fn(|_| u64::from_ne_bytes(words.next().unwrap().try_into().unwrap()))
        };
        assert_eq!(words("198.18.0.2"), [0xc612_0002 << 32, 0, 4]);
        assert_eq!(words("2001:db8::2"), [0x2001_0db8 << 32, 2, 6]);
    }
}
