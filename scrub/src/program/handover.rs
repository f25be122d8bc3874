//! Hand-over: the kernel completes the connections of SYNs that the XDP program answered by SYN cookies
//! (`bpf/handover.h`).
//!
//! ```text
//!   SYN --> XDP: a listener here? --> SYN-ACK with a cookie
//!   ACK --> XDP --> tc: bpf/handover.bpf.c --> the listener accepts
//! ```
//!
//! The program at tc ends with this process, and the XDP program only answers by cookies while the stage's owner lives. A
//! thread in the interfaces' network namespace writes the host's addresses and settings for the XDP program. On kernels
//! before Linux 6.9, the cookies are the kernel's own ([`kernel_cookie`]), which need no program at tc.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
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

use super::kernel_cookie::{self, CookieSetting};
use super::load::{failed, map, program};
use crate::policy::{self, Challenge, Policy};

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

/// The SYN cookies in answers, as `enum scrub_cookies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cookies {
    /// Sluice's own, whose connections the program at tc completes.
    Own = 1,
    /// The kernel's.
    Kernel = 2,
}

impl Cookies {
    /// Returns the cookies that this kernel supports, the better ones if it supports both.
    fn supported() -> Result<Self> {
        let types = Btf::from_vmlinux().ok();
        let has = |name: &str| {
            types.as_ref().is_some_and(|it| it.type_by_name::<Func<'_>>(name).is_some())
        };
        if has(ASSIGN) {
            return Ok(Self::Own);
        }
        if has(kernel_cookie::LATEST_HELPER) {
            return Ok(Self::Kernel);
        }
        Err(Error::Unsupported {
            feature: "hand-over of connections to the kernel".into(),
            remedy: "use Linux 6.0 or later".into(),
        })
    }
}

/// Connections that the kernel completes, until this value is dropped.
#[derive(Debug)]
pub struct Handover {
    cookies: Cookies,
    /// Hold the program at tc.
    _links: Vec<OwnedFd>,
    shared: Arc<SharedCounters>,
    obstacle: Arc<Mutex<Option<String>>>,
    /// The modes of the policy.
    needed: Arc<AtomicU64>,
    /// Wakes the thread; dropped to stop it.
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Handover {
    /// Prepares interfaces of this thread's network namespace, by these cookies or by those that the kernel supports.
    /// Without a policy, nothing is handed over yet.
    ///
    /// # Errors
    /// The kernel is older than Linux 6.0, or refuses.
    pub(super) fn start(
        maps: &Object,
        interfaces: &[Interface],
        policy: Option<&Policy>,
        cookies: Option<Cookies>,
    ) -> Result<Self> {
        let cookies = cookies.map_or_else(Cookies::supported, Ok)?;
        let (links, setting) = match cookies {
            Cookies::Own => (attach(maps, interfaces)?, None),
            Cookies::Kernel => (Vec::new(), Some(CookieSetting::default())),
        };
        let memory = map(maps, SHARED).as_fd().try_clone_to_owned();
        let memory = memory.and_then(|fd| SharedCounters::over(fd, SHARED_WORDS));
        let shared = memory.map_err(|error| Error::system("map", "memory of hand-over", error))?;
        let shared = Arc::new(shared);
        let local = MapHandle::try_from(&map(maps, "scrub_local"));
        let local = local.map_err(|error| failed("share a map of", error))?;
        let needed = Arc::new(AtomicU64::new(policy.map_or(0, modes_of)));
        let (shared_by_watch, needed_by_watch) = (Arc::clone(&shared), Arc::clone(&needed));
        let mut watch = Watch { local, shared: shared_by_watch, needed: needed_by_watch, setting };
        let obstacle = Arc::new(Mutex::new(watch.update()));
        let (wake, woken) = channel();
        let shown = Arc::clone(&obstacle);
        let thread = Builder::new()
            .name("handover".into())
            .spawn(move || watch.run(&woken, &shown))
            .map_err(|error| Error::start("a thread for hand-over", error))?;
        Ok(Self {
            cookies,
            _links: links,
            shared,
            obstacle,
            needed,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Returns the cookies in answers.
    pub fn cookies(&self) -> Cookies {
        self.cookies
    }

    /// Sets the policy; without one, nothing is handed over. Then the host's firewall does not matter, and is not looked for.
    pub fn set_policy(&self, policy: Option<&Policy>) {
        self.needed.store(policy.map_or(0, modes_of), Ordering::Relaxed);
        if let Some(wake) = &self.wake {
            let _ = wake.send(());
        }
    }

    /// Returns why connections are not handed over now in all modes of the policy.
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

/// Returns the modes by which a policy hands connections over.
fn modes_of(policy: &Policy) -> u64 {
    let modes = policy.profiles.iter().map(|it| match (it.tcp.challenge, it.tcp.handover) {
        (Challenge::Off, _) | (_, policy::Handover::Off) => 0,
        (_, policy::Handover::Auto) => AUTO,
        (_, policy::Handover::On) => ON,
    });
    modes.fold(0, |all, mode| all | mode)
}

/// Attaches the program at tc.
fn attach(maps: &Object, interfaces: &[Interface]) -> Result<Vec<OwnedFd>> {
    let object = load(maps)?;
    let attach = |interface: &Interface| {
        let attached = attach_ingress(program(&object, "scrub_complete").as_fd(), interface);
        attached.map_err(|error| Error::system("attach to tc of", &interface.name, error))
    };
    interfaces.iter().map(attach).collect()
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

/// Writes the host's addresses and settings for the XDP program.
struct Watch {
    local: MapHandle,
    shared: Arc<SharedCounters>,
    needed: Arc<AtomicU64>,
    /// The setting that the kernel's cookies need.
    setting: Option<CookieSetting>,
}

impl Watch {
    fn run(&mut self, woken: &Receiver<()>, obstacle: &Mutex<Option<String>>) {
        while woken.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Disconnected) {
            let found = self.update();
            *obstacle.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
    }

    /// Reads the host's state, and writes it. Returns the obstacle.
    fn update(&mut self) -> Option<String> {
        let needed = self.needed.load(Ordering::Relaxed);
        let (mut modes, mut obstacle) = match (needed != 0).then(read_modes) {
            Some(Ok(found)) => found,
            Some(Err(error)) => (0, Some(error.to_string())),
            None => (0, None),
        };
        let setting = self.setting.as_mut().map_or(Ok(()), |it| it.set(needed & modes != 0));
        if let Err(reason) = setting {
            (modes, obstacle) = (0, Some(reason));
        }
        // Without all addresses, the clients of the others are challenged.
        if let Ok(interfaces) = link::interfaces(None) {
            let addresses = interfaces.iter().flat_map(|it| &it.addresses);
            self.write_addresses(&addresses.map(|it| key(it.ip)).collect());
        }
        // Without a mode, too: clients may return cookies that had this scale.
        self.shared.set(SETTINGS, modes | settings());
        obstacle.filter(|_| needed & !modes != 0)
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
        return Ok((0, Some("net.ipv4.tcp_syncookies is 0; set it to 1".into())));
    }
    if link::has_netfilter_tables()? {
        let reason = "nftables or iptables may drop or redirect the first packet of a connection that lacks a SYN; if yours \
                      does not, write handover = \"on\"";
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
