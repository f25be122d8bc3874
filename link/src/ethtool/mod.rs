//! Statistics and settings of a driver: queues, rings, offloads, coalescing, RSS, timestamps.
//!
//! Uses `SIOCETHTOOL` and `SIOCGHWTSTAMP`. Reading needs no privilege; setting needs `CAP_NET_ADMIN`.
//! Sources: netdevice(7), linux/ethtool.h, linux/net_tstamp.h.
#![allow(unsafe_code)]

mod channels;
mod coalescing;
mod features;
mod pause;
mod rings;
mod rss;

pub use channels::Channels;
pub use coalescing::Coalescing;
pub use features::{Feature, PrivateFlag};
pub use pause::Pause;
pub use rings::Rings;
pub use rss::{HashFunction, Rss};

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::netlink::{self, word};
use super::{ifreq, netns, refused};
use sluicegate_base::error::{Error, Result};
use sluicegate_base::memory::{Mmap, PAGE_BYTES};

// linux/ethtool.h
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
const ETH_FLAG_LRO: u32 = 1 << 15;
const ETH_SS_STATS: u32 = 1;
const ETH_GSTRING_LEN: usize = 32;

/// The size of the area for requests and answers, enough for 131,071 names of statistics. Pages are allocated
/// on first access.
const AREA_BYTES: usize = 4 << 20;

/// Bytes of a `struct ethtool_gstrings`, and of a `struct ethtool_stats`, before their entries.
const STRINGS_BYTES: usize = 12;
const STATISTICS_BYTES: usize = 8;

/// Creates a kernel structure of `N` 32-bit words, the first of which is a command. The answer overwrites the
/// request.
fn request<const N: usize>(command: u32) -> [u32; N] {
    let mut words = [0; N];
    words[0] = command;
    words
}

/// The timestamps that an interface can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamping {
    /// `SOF_TIMESTAMPING_` bits (linux/net_tstamp.h) that its sockets can request.
    pub flags: u32,
    /// The card's clock: N of `/dev/ptpN`; `None` without a clock.
    pub clock: Option<u32>,
    /// Bit N is set if `HWTSTAMP_TX_` N is possible.
    pub tx_types: u32,
    /// Bit N is set if `HWTSTAMP_FILTER_` N is possible.
    pub rx_filters: u32,
}

impl Timestamping {
    /// True if the card can stamp each packet it receives (`HWTSTAMP_FILTER_ALL`).
    pub fn stamps_all_received(&self) -> bool {
        self.rx_filters & (1 << libc::HWTSTAMP_FILTER_ALL) != 0
    }
}

/// The hardware timestamps that an interface makes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareStamps {
    /// `HWTSTAMP_TX_` value; 0 is off.
    pub tx: i32,
    /// `HWTSTAMP_FILTER_` value; 0 is off, 1 is all packets.
    pub rx: i32,
}

/// A socket for requests to the drivers of one network namespace.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
    area: Mmap,
}

impl Ethtool {
    /// Opens a socket in the namespace `netns`, or in this thread's.
    ///
    /// # Errors
    /// The errors of [`netns::run_in`]; no socket is available.
    pub fn open(netns: Option<&str>) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = netns::run_in(netns, || {
            socket(AddressFamily::Inet, SockType::Datagram, flags, None)
                .map_err(|e| Error::system("open", "a socket for ethtool", e))
        })?;
        Ok(Self { socket, area: guarded_area()? })
    }

    /// Returns the name of the interface's driver: "ixgbe", "veth".
    ///
    /// # Errors
    /// No such interface; it has no driver.
    pub fn driver(&mut self, interface: &str) -> Result<String> {
        // struct ethtool_drvinfo
        let info = self.ask(interface, "driver", request::<49>(ETHTOOL_GDRVINFO))?;
        Ok(text(info.map(u32::to_ne_bytes)[1..9].as_flattened()))
    }

    /// Returns the names of the driver's statistics; empty if it has none.
    ///
    /// # Errors
    /// No such interface; more names than 131,071.
    pub fn statistics_names(&mut self, interface: &str) -> Result<Vec<String>> {
        self.names(interface, "statistics", ETH_SS_STATS)
    }

    /// Returns the names in a set of strings (`ETH_SS_`); empty if the driver does not have it.
    fn names(&mut self, interface: &str, what: &'static str, set: u32) -> Result<Vec<String>> {
        // struct ethtool_sset_info: a mask of 64 bits, and the count of the single set in it.
        let mask = (1u64 << set).to_ne_bytes();
        let [first, second] = [0, 4].map(|at| word(&mask, at).unwrap_or_default());
        let request = [ETHTOOL_GSSET_INFO, 0, first, second, 0, 0];
        let count = match supported(self.ask(interface, what, request))? {
            Some([_, _, first, second, count, _]) if first | second != 0 && count > 0 => count,
            _ => return Ok(Vec::new()),
        };
        let [_, _, count] = self.ask(interface, what, [ETHTOOL_GSTRINGS, set, count])?;
        let names = self.rest(STRINGS_BYTES, count, ETH_GSTRING_LEN)?;
        Ok(names.chunks_exact(ETH_GSTRING_LEN).map(text).collect())
    }

    /// Returns the driver's statistics, in the order of their names. Their number changes with the number of
    /// queues. If it differs from the number of names, read the names again.
    ///
    /// # Errors
    /// No such interface.
    pub fn statistics_values(&mut self, interface: &str) -> Result<Vec<u64>> {
        let answer = supported(self.ask(interface, "statistics", [ETHTOOL_GSTATS, 0]))?;
        let Some([_, count]) = answer else { return Ok(Vec::new()) };
        let bytes = self.rest(STATISTICS_BYTES, count, size_of::<u64>())?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// Returns the link's speed in Mbit/s; `None` without a link, or if the driver does not report it.
    ///
    /// # Errors
    /// No such interface.
    pub fn speed(&mut self, interface: &str) -> Result<Option<u32>> {
        // The first answer contains the number of words of each set of modes, negated (linux/ethtool.h): the
        // last byte of the structure's fourth word. The second answer contains the sets.
        let mut settings = request::<12>(ETHTOOL_GLINKSETTINGS);
        let Some(asked) = supported(self.ask(interface, "speed", settings))? else {
            return Ok(None);
        };
        let [.., mode_words] = asked[3].to_ne_bytes();
        settings[3] = u32::from_ne_bytes([0, 0, 0, mode_words.wrapping_neg()]);
        let settings = supported(self.ask(interface, "speed", settings))?;
        // SPEED_UNKNOWN is -1.
        let known = |speed: &u32| *speed != 0 && *speed != u32::MAX;
        Ok(settings.map(|[_, speed, ..]| speed).filter(known))
    }

    /// True if received packets are merged (generic receive offload).
    ///
    /// # Errors
    /// No such interface.
    pub fn gro(&mut self, interface: &str) -> Result<bool> {
        let [_, on] = self.ask(interface, "GRO", [ETHTOOL_GGRO, 0])?;
        Ok(on != 0)
    }

    /// True if the card merges received packets (large receive offload).
    ///
    /// # Errors
    /// No such interface.
    pub fn lro(&mut self, interface: &str) -> Result<bool> {
        let [_, flags] = self.ask(interface, "LRO", [ETHTOOL_GFLAGS, 0])?;
        Ok(flags & ETH_FLAG_LRO != 0)
    }

    /// Switches generic receive offload. On a veth this also switches NAPI, which the interface needs to
    /// accept redirected packets (Linux 5.13).
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`.
    pub fn set_gro(&mut self, interface: &str, on: bool) -> Result<()> {
        self.ask(interface, "set GRO of", [ETHTOOL_SGRO, on.into()]).map(drop)
    }

    /// Switches checksum offload of the host's packets. Without it the host itself fills in checksums and
    /// segments TCP.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`.
    pub fn set_transmit_checksums(&mut self, interface: &str, on: bool) -> Result<()> {
        let request = [ETHTOOL_STXCSUM, on.into()];
        self.ask(interface, "set transmit checksums of", request).map(drop)
    }

    /// Returns the timestamps that the interface can make; `None` if the driver does not report them.
    ///
    /// # Errors
    /// No such interface.
    pub fn timestamping(&mut self, interface: &str) -> Result<Option<Timestamping>> {
        // struct ethtool_ts_info; a negative clock means none.
        let info = supported(self.ask(interface, "timestamps", request(ETHTOOL_GET_TS_INFO)))?;
        Ok(info.map(|[_, flags, clock, tx_types, _, _, _, rx_filters, _, _, _]| Timestamping {
            flags,
            clock: clock.cast_signed().try_into().ok(),
            tx_types,
            rx_filters,
        }))
    }

    /// Returns the hardware timestamps that the interface makes now; `None` if it can make none.
    ///
    /// # Errors
    /// No such interface.
    pub fn hardware_stamps(&mut self, interface: &str) -> Result<Option<HardwareStamps>> {
        // struct hwtstamp_config, whose first word is flags.
        let mut words = [0; 3];
        let answer = self.call(interface, libc::SIOCGHWTSTAMP, &mut words);
        let answer = supported(answer.map_err(|e| failed("timestamps", interface, e)))?;
        let [_, tx, rx] = words.map(u32::cast_signed);
        Ok(answer.map(|()| HardwareStamps { tx, rx }))
    }

    /// Sends a structure of words, the first of which is a command, and returns the answer.
    fn ask<const N: usize>(
        &mut self,
        interface: &str,
        what: &'static str,
        mut words: [u32; N],
    ) -> Result<[u32; N]> {
        self.ask_words(interface, what, &mut words)?;
        Ok(words)
    }

    /// Sends a structure whose length depends on the driver. The answer overwrites the words.
    fn ask_words(&mut self, interface: &str, what: &'static str, words: &mut [u32]) -> Result<()> {
        let asked = self.call(interface, libc::SIOCETHTOOL, words);
        asked.map_err(|e| failed(what, interface, e))
    }

    /// Copies words to the area's start, calls the kernel, and reads as many back.
    fn call(&mut self, interface: &str, number: u64, words: &mut [u32]) -> io::Result<()> {
        if interface.len() >= libc::IFNAMSIZ {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        if size_of_val(words) > AREA_BYTES {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let area = self.area.base().as_ptr();
        let data = libc::__c_anonymous_ifr_ifru { ifru_data: area.cast() };
        let mut ifreq = ifreq(interface, data);
        // SAFETY: the area is page-aligned, at least as large as the words, and not accessed by anything else while
        // `self` is borrowed mutably. The ioctl reads and writes the ifreq, which lives on this stack, and
        // memory from `area` on: up to the length in the request, or for statistics up to a length that
        // depends on the driver's number of queues at that moment. Beyond the area it hits the inaccessible
        // page and fails with EFAULT. The bytes read back were written above; any bytes are valid words.
        unsafe {
            area.cast::<u32>().copy_from_nonoverlapping(words.as_ptr(), words.len());
            if libc::ioctl(self.socket.as_raw_fd(), number, &raw mut ifreq) < 0 {
                return Err(io::Error::last_os_error());
            }
            words.as_mut_ptr().copy_from_nonoverlapping(area.cast(), words.len());
        }
        Ok(())
    }

    /// Returns the `count` entries after an answer of `offset` bytes.
    fn rest(&mut self, offset: usize, count: u32, entry_bytes: usize) -> Result<&[u8]> {
        let bytes = (count as usize).saturating_mul(entry_bytes);
        if bytes > AREA_BYTES - offset {
            return Err(Error::Unsupported {
                feature: format!("a driver with {count} statistics"),
                remedy: "lower the number of its queues with `ethtool -L`".into(),
            });
        }
        // SAFETY: offset + bytes lie within the area's accessible part, which is mapped for as
        // long as `self` lives and zeroed or written by a finished ioctl; the borrow of `self`
        // keeps the next call from writing there.
        Ok(unsafe { std::slice::from_raw_parts(self.area.at(offset).as_ptr(), bytes) })
    }
}

/// Creates the area, followed by an inaccessible page.
fn guarded_area() -> Result<Mmap> {
    let area = Mmap::anonymous(AREA_BYTES + PAGE_BYTES)?;
    let guard = area.at(AREA_BYTES);
    // SAFETY: the last page of a new mapping, into which no reference exists.
    if unsafe { libc::mprotect(guard.as_ptr().cast(), PAGE_BYTES, libc::PROT_NONE) } != 0 {
        return Err(Error::last_os("protect", "a page behind the ethtool area"));
    }
    Ok(area)
}

fn failed(what: &'static str, interface: &str, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM) => refused(what, interface, "CAP_NET_ADMIN", error),
        Some(libc::ENODEV) => Error::system("ask the driver of", interface, error)
            .remedy("`ip link` lists the interfaces"),
        _ if what.starts_with("set ") => Error::system(what, interface, error)
            .remedy(format!("`ethtool` shows the values that the driver of {interface} takes")),
        _ => Error::system("ask the driver of", format!("{interface} for {what}"), error),
    }
}

/// Converts the error of an unsupported request to `None`.
fn supported<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(e) if matches!(e.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY)) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

fn text(bytes: &[u8]) -> String {
    netlink::text(bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_an_error_not_a_crash() {
        let mut ethtool = Ethtool::open(None).unwrap();
        for name in ["no-such-iface", "", "a-name-that-is-much-too-long"] {
            let error = ethtool.driver(name).unwrap_err();
            assert_eq!(error.errno(), Some(libc::ENODEV), "{name}: {error}");
        }
    }

    #[test]
    fn loopback_has_neither_queues_to_set_nor_hardware_stamps() {
        let mut ethtool = Ethtool::open(None).unwrap();
        assert_eq!(ethtool.channels("lo").unwrap(), None);
        assert_eq!(ethtool.speed("lo").unwrap(), None);
        assert_eq!(ethtool.hardware_stamps("lo").unwrap(), None);
        assert!(ethtool.statistics_names("lo").unwrap().is_empty());
        let stamps = ethtool.timestamping("lo").unwrap().unwrap();
        assert_eq!(stamps.clock, None);
        assert!(!stamps.stamps_all_received());
    }

    #[test]
    fn nobody_may_touch_the_page_behind_the_area() {
        let ethtool = Ethtool::open(None).unwrap();
        let guard = ethtool.area.at(AREA_BYTES).addr();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let starts = format!("{guard:x}-");
        let line = maps.lines().find(|line| line.starts_with(&starts));
        assert!(line.is_some_and(|line| line.contains(" ---p ")), "{line:?}");
    }

    #[test]
    fn more_statistics_than_there_is_room_for_are_refused() {
        let mut ethtool = Ethtool::open(None).unwrap();
        for (count, entry_bytes, fits) in
            [(0, 32, true), (131_071, 32, true), (131_072, 32, false), (u32::MAX, 8, false)]
        {
            let rest = ethtool.rest(12, count, entry_bytes);
            assert_eq!(rest.is_ok(), fits, "{count} entries of {entry_bytes} bytes");
        }
    }

    #[test]
    fn a_veth_answers_every_question() {
        let Some(lab) = crate::for_tests::lab_with(4) else { return };
        let mut ethtool = Ethtool::open(Some(&lab.netns("left"))).unwrap();
        assert_eq!(ethtool.driver("left0").unwrap(), "veth");
        assert_eq!(ethtool.speed("left0").unwrap(), Some(10_000));
        let channels = ethtool.channels("left0").unwrap().unwrap();
        assert_eq!((channels.rx, channels.tx, channels.rx_max, channels.tx_max), (4, 4, 4, 4));
        assert_eq!((channels.combined, channels.combined_max), (0, 0));
        assert!(ethtool.gro("left0").unwrap() && !ethtool.lro("left0").unwrap());
        let names = ethtool.statistics_names("left0").unwrap();
        assert!(names.iter().any(|name| name == "rx_queue_3_xdp_packets"), "{names:?}");
        assert_eq!(ethtool.statistics_values("left0").unwrap().len(), names.len());
        let stamps = ethtool.timestamping("left0").unwrap().unwrap();
        assert!(stamps.flags != 0 && stamps.clock.is_none(), "{stamps:?}");
    }
}
