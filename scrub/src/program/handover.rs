//! Hand-over: the kernel completes the connections of SYNs that the XDP program answered by SYN cookies
//! (`bpf/handover.h`).
//!
//! ```text
//!   SYN --> XDP: a listener here? --> SYN-ACK with a cookie
//!   ACK --> XDP --> tc: bpf/handover.bpf.c --> the listener accepts
//! ```
//!
//! The program at tc ends with this process, and the XDP program only answers by cookies while the stage's owner lives. A
//! thread in the interfaces' network namespace writes the host's addresses and settings for the XDP program.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
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
/// Bits of the settings: modes, and HANDOVER_ of bpf/handover_settings.h.
const AUTO: u64 = 1 << 1;
const ON: u64 = 1 << 2;
const TIMESTAMPS: u64 = 0x08;
const SCALE: u64 = 0x10;
const SACK: u64 = 0x20;
const ECN: u64 = 0x40;
const SCALE_SHIFT: u32 = 8;
const MAX_SCALE: u32 = 14;
/// The function of the kernel by which the program at tc hands a connection over.
const ASSIGN: &str = "bpf_sk_assign_tcp_reqsk";
/// Time between two looks at the host.
const INTERVAL: Duration = Duration::from_secs(1);

/// Connections that the kernel completes, until this value is dropped.
#[derive(Debug)]
pub struct Handover {
    /// Hold the program at tc.
    _links: Vec<OwnedFd>,
    shared: Arc<SharedCounters>,
    obstacle: Arc<Mutex<Option<String>>>,
    /// The policy hands connections over.
    is_needed: Arc<AtomicBool>,
    /// Wakes the thread; dropped to stop it.
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Handover {
    /// Attaches the program at tc to interfaces of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel is older than Linux 6.9, or refuses.
    pub(super) fn start(maps: &Object, interfaces: &[Interface], is_needed: bool) -> Result<Self> {
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
        let is_needed = Arc::new(AtomicBool::new(is_needed));
        let watch = Watch { local, shared: Arc::clone(&shared), is_needed: Arc::clone(&is_needed) };
        let obstacle = Arc::new(Mutex::new(watch.update()));
        let (wake, woken) = channel();
        let shown = Arc::clone(&obstacle);
        let thread = Builder::new()
            .name("handover".into())
            .spawn(move || watch.run(&woken, &shown))
            .map_err(|error| Error::start("a thread for hand-over", error))?;
        Ok(Self {
            _links: links,
            shared,
            obstacle,
            is_needed,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Sets whether the policy hands connections over. If not, the host's firewall does not matter, and is not looked for.
    pub fn set_needed(&self, is_needed: bool) {
        self.is_needed.store(is_needed, Ordering::Relaxed);
        if let Some(wake) = &self.wake {
            let _ = wake.send(());
        }
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
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // The scale stays: the program at tc may still complete a connection.
        self.shared.set(SETTINGS, self.shared.get(SETTINGS) & !(AUTO | ON));
    }
}

/// Loads the program at tc with the maps of the XDP program.
fn load(maps: &Object) -> Result<Object> {
    let has_function = |types: Btf<'_>| types.type_by_name::<Func<'_>>(ASSIGN).is_some();
    if !Btf::from_vmlinux().is_ok_and(has_function) {
        return Err(Error::Unsupported {
            feature: "hand-over of connections to the kernel".into(),
            remedy: "use Linux 6.9 or later".into(),
        });
    }
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

/// Writes the host's addresses and settings for the XDP program.
struct Watch {
    local: MapHandle,
    shared: Arc<SharedCounters>,
    is_needed: Arc<AtomicBool>,
}

impl Watch {
    fn run(&self, woken: &Receiver<()>, obstacle: &Mutex<Option<String>>) {
        while woken.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Disconnected) {
            let found = self.update();
            *obstacle.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
    }

    /// Reads the host's state, and writes it. Returns the obstacle.
    fn update(&self) -> Option<String> {
        let (modes, obstacle) = match self.is_needed.load(Ordering::Relaxed).then(read_modes) {
            Some(Ok(found)) => found,
            Some(Err(error)) => (0, Some(error.to_string())),
            None => (0, None),
        };
        // Without all addresses, the clients of the others are challenged.
        if let Ok(interfaces) = link::interfaces(None) {
            let addresses = interfaces.iter().flat_map(|it| &it.addresses);
            self.write_addresses(&addresses.map(|it| key(it.ip)).collect());
        }
        // Without a mode, too: clients may return cookies that had this scale.
        self.shared.set(SETTINGS, modes | settings());
        obstacle
    }

    /// Makes the map hold these keys. It may hold others of an earlier owner; what does not fit is tried again.
    fn write_addresses(&self, now: &HashSet<Vec<u8>>) {
        let written: HashSet<_> = self.local.keys().collect();
        for old in written.difference(now) {
            let _ = self.local.delete(old);
        }
        for new in now.difference(&written) {
            let _ = self.local.update(new, &[1], MapFlags::ANY);
        }
    }
}

/// Encodes `struct scrub_local_address`.
fn key(address: IpAddr) -> Vec<u8> {
    let (bits, version) = match address {
        IpAddr::V4(it) => (u128::from(it.to_bits()) << 96, 4_u64),
        IpAddr::V6(it) => (it.to_bits(), 6),
    };
    [(bits >> 64) as u64, bits as u64, version].map(u64::to_ne_bytes).concat()
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
