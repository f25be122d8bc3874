//! XDP programs to compare the scrubber with: of the suite `scrub` with the kernel's own maps, of floods a bare drop.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use ipnet::Ipv4Net;
use libbpf_rs::{Link, Map, MapCore, MapFlags, Object, ObjectBuilder, OpenMapMut, Xdp, XdpFlags};
use sluicegate::error::{Error, Result};
use sluicegate::link::Interface;

const LPM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lpm.bpf.o"));
const NETWORK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/network.bpf.o"));
const LRU: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lru.bpf.o"));

/// The most sources in the LRU hash.
const SOURCES: u32 = 1_000_000;
/// Networks of one system call.
const BATCH: usize = 1 << 16;

/// A program that drops packets of an interface. Dropping it detaches the program.
#[derive(Debug)]
pub struct BpfPeer {
    object: Object,
    _link: Link,
}

fn failed(operation: &'static str, error: &libbpf_rs::Error) -> Error {
    Error::system(operation, "an XDP program of the bench", io::Error::other(format!("{error:#}")))
}

fn map<'a>(object: &'a Object, name: &str) -> Map<'a> {
    let map = object.maps().find(|it| it.name() == name);
    map.unwrap_or_else(|| panic!("the program has no map {name}"))
}

impl BpfPeer {
    /// Looks up the source in an LPM trie of the networks of a file, one a line.
    ///
    /// # Errors
    /// The file cannot be read; a missing privilege or too little memory; another XDP program is attached.
    pub fn lpm(interface: &Interface, file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file);
        let text =
            text.map_err(|error| Error::system("read", file.display().to_string(), error))?;
        let network = |line: &str| line.parse::<Ipv4Net>();
        let networks: Vec<_> = text
            .lines()
            .map(network)
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| Error::Usage(format!("{}: {error}", file.display())))?;
        if networks.is_empty() {
            let problem = "it has no networks; write one a line";
            return Err(Error::Usage(format!("{}: {problem}", file.display())));
        }
        let object = load(LPM, "networks", networks.len() as u32)?;
        let fill = |networks: &[Ipv4Net]| {
            let key = |it: &Ipv4Net| {
                [u32::from(it.prefix_len()).to_ne_bytes(), it.network().octets()].concat()
            };
            let keys: Vec<_> = networks.iter().flat_map(key).collect();
            let (values, count) = (vec![1; networks.len()], networks.len() as u32);
            map(&object, "networks").update_batch(
                &keys,
                &values,
                count,
                MapFlags::ANY,
                MapFlags::ANY,
            )
        };
        networks.chunks(BATCH).try_for_each(fill).map_err(|error| failed("fill", &error))?;
        Self::attach(object, interface)
    }

    /// Limits each source, in an LRU hash. It is full, as after the first second of a flood.
    ///
    /// # Errors
    /// A missing privilege or too little memory; another XDP program is attached.
    pub fn lru(interface: &Interface) -> Result<Self> {
        let object = load(LRU, "sources", SOURCES)?;
        let keys: Vec<_> = (0..SOURCES).flat_map(u32::to_be_bytes).collect();
        let values = vec![0; SOURCES as usize * size_of::<u64>()];
        let sources = map(&object, "sources");
        let filled = sources.update_batch(&keys, &values, SOURCES, MapFlags::ANY, MapFlags::ANY);
        filled.map_err(|error| failed("fill", &error))?;
        Self::attach(object, interface)
    }

    /// Drops packets from a network, and passes others.
    ///
    /// # Errors
    /// A missing privilege; another XDP program is attached.
    pub fn source(interface: &Interface, network: Ipv4Net) -> Result<Self> {
        Self::attach(load_network(network, false)?, interface)
    }

    /// Drops packets to a network, and passes others, for as long as the interface exists. XDP's answers from the other
    /// end reach a veth only if a program is attached to it: `veth_xdp_flush` (drivers/net/veth.c).
    ///
    /// # Errors
    /// As [`source`](Self::source).
    pub fn attach_destination(interface: &Interface, network: Ipv4Net) -> Result<()> {
        let object = load_network(network, true)?;
        let program = object.progs_mut().next().expect("the object has one program");
        let attached = Xdp::new(program.as_fd());
        let attached = attached.attach(interface.index.cast_signed(), XdpFlags::DRV_MODE);
        attached.map_err(|error| failed("attach", &error))
    }

    /// Attaches the only program. A driver that has native XDP gets it there.
    fn attach(object: Object, interface: &Interface) -> Result<Self> {
        let program = object.progs_mut().next().expect("the object has one program");
        let link = program.attach_xdp(interface.index.cast_signed());
        let link = link.map_err(|error| failed("attach", &error))?;
        Ok(Self { object, _link: link })
    }

    /// Returns the packets that it has dropped.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn dropped(&self) -> Result<u64> {
        let mut sum = 0;
        for at in [0_u32, 1] {
            let counts =
                map(&self.object, "dropped").lookup_percpu(&at.to_ne_bytes(), MapFlags::ANY);
            let counts = counts.map_err(|error| failed("read", &error))?;
            let count =
                |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |it| u64::from_ne_bytes(*it));
            sum += counts.iter().flatten().map(count).sum::<u64>();
        }
        Ok(sum)
    }
}

/// Loads an object, whose map `resized` has room for some entries.
fn load(object: &[u8], resized: &str, entries: u32) -> Result<Object> {
    load_with(object, resized, |map| map.set_max_entries(entries))
}

/// Loads the program that drops what comes from a network, or goes to it.
fn load_network(network: Ipv4Net, is_destination: bool) -> Result<Object> {
    let [address, mask] = [network.network(), network.netmask()].map(u32::from);
    let value = [address, mask, is_destination.into()].map(u32::to_ne_bytes);
    load_with(NETWORK, ".rodata.network", |map| map.set_initial_value(value.as_flattened()))
}

/// Loads an object, after a change of one of its maps.
fn load_with(
    object: &[u8],
    name: &str,
    change: impl Fn(&mut OpenMapMut<'_>) -> libbpf_rs::Result<()>,
) -> Result<Object> {
    let loaded = || {
        libbpf_rs::set_print(None);
        let mut open = ObjectBuilder::default().open_memory(object)?;
        open.maps_mut().filter(|it| it.name() == name).try_for_each(|mut it| change(&mut it))?;
        open.load()
    };
    loaded().map_err(|error| failed("load", &error))
}
