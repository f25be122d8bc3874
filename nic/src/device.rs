//! A network interface whose settings are read and set.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use sluicegate_base::error::{Error, Result};
use sluicegate_link::{Ethtool, Interface, Netlink, netns};

use crate::setting::{Flag, Number, Setting};
use crate::this_netns;

/// An interface of the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Device {
    netlink: Netlink,
    ethtool: Ethtool,
    /// `/sys/class/net` of the interface's namespace.
    sysfs: File,
    netns: u64,
    index: u32,
}

impl Device {
    /// Opens an interface of this thread's network namespace.
    ///
    /// # Errors
    /// No socket is available, or no `/sys` of the namespace.
    pub fn open(interface: &Interface) -> Result<Self> {
        Ok(Self {
            netlink: Netlink::open(None)?,
            ethtool: Ethtool::open(None)?,
            sysfs: netns::sysfs_interfaces()?,
            netns: this_netns()?,
            index: interface.index,
        })
    }

    /// Returns the name of the interface's records: its namespace, and its number there.
    pub(crate) fn id(&self) -> String {
        format!("{}-{}", self.netns, self.index)
    }

    /// Parses the name of a record: the namespace, and the interface's number.
    pub(crate) fn parse_id(id: &str) -> Option<(u64, u32)> {
        let (netns, index) = id.split_once('-')?;
        Some((netns.parse().ok()?, index.parse().ok()?))
    }

    /// Returns the present name: an interface may be renamed.
    ///
    /// # Errors
    /// The interface was removed.
    pub fn name(&mut self) -> Result<String> {
        let index = self.index;
        let found = self.netlink.interfaces()?.into_iter().find(|it| it.index == index);
        found.map(|it| it.name).ok_or_else(|| Error::Removed {
            object: format!("interface {index}"),
            remedy: "its settings went with it".into(),
        })
    }

    /// Returns a setting's value; `None` if the interface does not have the setting.
    ///
    /// # Errors
    /// The interface was removed, or the driver fails.
    pub fn read(&mut self, setting: &Setting) -> Result<Option<String>> {
        let name = self.name()?;
        let ethtool = &mut self.ethtool;
        Ok(match setting {
            Setting::Number(number) => {
                read_number(ethtool, &name, *number)?.map(|it| it.to_string())
            }
            Setting::Flag(flag) => read_flag(ethtool, &name, *flag)?.map(on_off),
            Setting::Feature(feature) => {
                let features = ethtool.features(&name)?;
                features.into_iter().find(|it| it.name == *feature).map(|it| on_off(it.active))
            }
            Setting::PrivateFlag(flag) => {
                let flags = ethtool.private_flags(&name)?;
                flags.into_iter().find(|it| it.name == *flag).map(|it| on_off(it.on))
            }
            Setting::RssTable => {
                let table = ethtool.rss(&name)?.map(|it| it.table).filter(|it| !it.is_empty());
                table.map(|it| joined(it.iter().map(u32::to_string), ","))
            }
            Setting::RssKey => {
                let key = ethtool.rss(&name)?.map(|it| it.key).filter(|it| !it.is_empty());
                key.map(|it| joined(it.iter().map(|byte| format!("{byte:02x}")), ":"))
            }
            Setting::RxQueueCpus(queue) => self.read_file(&name, &rps_file(*queue))?,
            Setting::TxQueueCpus(queue) => self.read_file(&name, &xps_file(*queue))?,
        })
    }

    /// Sets a setting.
    ///
    /// # Errors
    /// The interface was removed or does not have the setting; a missing `CAP_NET_ADMIN`; the driver refuses.
    pub fn set(&mut self, setting: &Setting, value: &str) -> Result<()> {
        let name = self.name()?;
        let wrong = || Error::Usage(format!("{setting} of {name}: '{value}' is no value of it"));
        let ethtool = &mut self.ethtool;
        match setting {
            Setting::Number(number) => {
                set_number(ethtool, &name, *number, value.parse().map_err(|_| wrong())?)
            }
            Setting::Flag(flag) => set_flag(ethtool, &name, *flag, is_on(value).ok_or_else(wrong)?),
            Setting::Feature(feature) => {
                ethtool.set_feature(&name, feature, is_on(value).ok_or_else(wrong)?)
            }
            Setting::PrivateFlag(flag) => {
                ethtool.set_private_flag(&name, flag, is_on(value).ok_or_else(wrong)?)
            }
            Setting::RssTable => {
                let table: Option<Vec<u32>> = value.split(',').map(|it| it.parse().ok()).collect();
                ethtool.set_rss(&name, Some(&table.ok_or_else(wrong)?), None)
            }
            Setting::RssKey => {
                let byte = |it| u8::from_str_radix(it, 16).ok();
                let key: Option<Vec<u8>> = value.split(':').map(byte).collect();
                ethtool.set_rss(&name, None, Some(&key.ok_or_else(wrong)?))
            }
            Setting::RxQueueCpus(queue) => self.write_file(&name, &rps_file(*queue), value),
            Setting::TxQueueCpus(queue) => self.write_file(&name, &xps_file(*queue), value),
        }
    }

    /// Reads a file of the interface in sysfs; `None` if it does not exist.
    fn read_file(&self, interface: &str, file: &str) -> Result<Option<String>> {
        let failed = |error| Error::system("read", format!("{file} of {interface}"), error);
        let path = folder_of(&self.sysfs, self.index).map_err(failed)?.join(file);
        match fs::read_to_string(path) {
            Ok(text) => Ok(Some(short_mask(text.trim()))),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn write_file(&self, interface: &str, file: &str, value: &str) -> Result<()> {
        let folder = folder_of(&self.sysfs, self.index);
        folder.and_then(|it| fs::write(it.join(file), value)).map_err(|error| {
            let object = format!("{file} of {interface}");
            sluicegate_link::refused("set", object, "CAP_NET_ADMIN", error)
        })
    }
}

/// Returns the folder of an interface in `/sys/class/net`, found by its number, because its name may have changed.
pub(crate) fn folder_of(sysfs: &File, index: u32) -> io::Result<PathBuf> {
    let folder = PathBuf::from(format!("/proc/self/fd/{}", sysfs.as_raw_fd()));
    let is_it = |path: &PathBuf| {
        let text = fs::read_to_string(path.join("ifindex"));
        text.is_ok_and(|text| text.trim().parse() == Ok(index))
    };
    let mut there = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    there.find(is_it).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Returns a mask of CPUs without its leading zeros: the kernel writes one of 64 CPUs as "00000000,00000001".
fn short_mask(mask: &str) -> String {
    let short = mask.trim_start_matches(['0', ',']);
    if short.is_empty() { "0" } else { short }.into()
}

/// XPS of an interface with one queue is read as ENOENT (net/core/net-sysfs.c, `netif_is_multiqueue`).
fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn rps_file(queue: u32) -> String {
    format!("queues/rx-{queue}/rps_cpus")
}

fn xps_file(queue: u32) -> String {
    format!("queues/tx-{queue}/xps_cpus")
}

fn joined(parts: impl Iterator<Item = String>, separator: &str) -> String {
    parts.collect::<Vec<_>>().join(separator)
}

fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.into()
}

fn is_on(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn read_number(ethtool: &mut Ethtool, name: &str, number: Number) -> Result<Option<u32>> {
    Ok(match number {
        Number::RxRing => ethtool.rings(name)?.map(|it| it.rx),
        Number::TxRing => ethtool.rings(name)?.map(|it| it.tx),
        Number::RxChannels => ethtool.channels(name)?.filter(|it| it.rx_max > 0).map(|it| it.rx),
        Number::TxChannels => ethtool.channels(name)?.filter(|it| it.tx_max > 0).map(|it| it.tx),
        Number::CombinedChannels => {
            ethtool.channels(name)?.filter(|it| it.combined_max > 0).map(|it| it.combined)
        }
        Number::RxUsecs => ethtool.coalescing(name)?.map(|it| it.rx_usecs),
        Number::RxFrames => ethtool.coalescing(name)?.map(|it| it.rx_frames),
        Number::TxUsecs => ethtool.coalescing(name)?.map(|it| it.tx_usecs),
        Number::TxFrames => ethtool.coalescing(name)?.map(|it| it.tx_frames),
    })
}

/// Sets a number, and leaves the others that the kernel takes with it.
fn set_number(ethtool: &mut Ethtool, name: &str, number: Number, value: u32) -> Result<()> {
    match number {
        Number::RxRing | Number::TxRing => {
            let mut rings = ethtool.rings(name)?.ok_or_else(|| missing(name, "rings"))?;
            *(if number == Number::RxRing { &mut rings.rx } else { &mut rings.tx }) = value;
            ethtool.set_rings(name, rings)
        }
        Number::RxChannels | Number::TxChannels | Number::CombinedChannels => {
            let mut channels = ethtool.channels(name)?.ok_or_else(|| missing(name, "channels"))?;
            match number {
                Number::RxChannels => channels.rx = value,
                Number::TxChannels => channels.tx = value,
                _ => channels.combined = value,
            }
            ethtool.set_channels(name, channels)
        }
        Number::RxUsecs | Number::RxFrames | Number::TxUsecs | Number::TxFrames => {
            let mut now = ethtool.coalescing(name)?.ok_or_else(|| missing(name, "coalescing"))?;
            match number {
                Number::RxUsecs => now.rx_usecs = value,
                Number::RxFrames => now.rx_frames = value,
                Number::TxUsecs => now.tx_usecs = value,
                _ => now.tx_frames = value,
            }
            ethtool.set_coalescing(name, now)
        }
    }
}

fn read_flag(ethtool: &mut Ethtool, name: &str, flag: Flag) -> Result<Option<bool>> {
    Ok(match flag {
        Flag::AdaptiveRx => ethtool.coalescing(name)?.map(|it| it.adaptive_rx),
        Flag::AdaptiveTx => ethtool.coalescing(name)?.map(|it| it.adaptive_tx),
        Flag::PauseAutonegotiation => ethtool.pause(name)?.map(|it| it.autonegotiation),
        Flag::RxPause => ethtool.pause(name)?.map(|it| it.rx),
        Flag::TxPause => ethtool.pause(name)?.map(|it| it.tx),
    })
}

fn set_flag(ethtool: &mut Ethtool, name: &str, flag: Flag, on: bool) -> Result<()> {
    match flag {
        Flag::AdaptiveRx | Flag::AdaptiveTx => {
            let mut now = ethtool.coalescing(name)?.ok_or_else(|| missing(name, "coalescing"))?;
            *(if flag == Flag::AdaptiveRx { &mut now.adaptive_rx } else { &mut now.adaptive_tx }) =
                on;
            ethtool.set_coalescing(name, now)
        }
        Flag::PauseAutonegotiation | Flag::RxPause | Flag::TxPause => {
            let mut now = ethtool.pause(name)?.ok_or_else(|| missing(name, "pause frames"))?;
            match flag {
                Flag::PauseAutonegotiation => now.autonegotiation = on,
                Flag::RxPause => now.rx = on,
                _ => now.tx = on,
            }
            ethtool.set_pause(name, now)
        }
    }
}

fn missing(interface: &str, what: &str) -> Error {
    Error::Unsupported {
        feature: format!("setting {what} of {interface}"),
        remedy: format!("`ethtool -i {interface}` shows its driver, which does not have them"),
    }
}
