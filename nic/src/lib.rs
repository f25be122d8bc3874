//! Settings of network cards and hosts: read, changed, recorded, and restored, even after a kill.
//!
//! ```text
//!   Device    reads and sets the settings of an interface       ethtool, sysfs
//!   journal   records changes, keeps them, and undoes them
//!
//!   raise     record former values and this process --> write the settings
//!   drop      last process: restore the former values --> remove the record
//!   killed    the next process that uses the object restores them
//! ```
//!
//! [`Deferred`] defers an interface's interrupts while a process busy-polls its driver. [`Sysctl`] raises a number of a
//! network namespace. These settings outlive the process that wrote them. So each object has a record of its users and
//! the former values, written before any change. A setting that another program has changed since is not restored.
#![warn(unreachable_pub)]

mod device;
mod interrupts;
pub mod journal;
mod raised;
mod setting;
mod sysctl;

pub use device::Device;
pub use interrupts::{Deferred, restore_interrupts};
pub use setting::{Flag, NoSetting, Number, Setting};
pub use sysctl::{RaisedSysctl, Sysctl};

use std::fs;
use std::os::unix::fs::MetadataExt;

use sluicegate_base::error::{Error, Result};

/// Returns the number of this thread's network namespace.
fn this_netns() -> Result<u64> {
    let netns = fs::metadata("/proc/thread-self/ns/net");
    Ok(netns.map_err(|e| Error::system("look at", "this network namespace", e))?.ino())
}

/// Returns the numbers of the network namespaces that exist.
fn live_netns() -> Result<std::collections::HashSet<u64>> {
    sluicegate_link::live_namespaces()
        .map_err(|e| Error::system("list the network namespaces of", "all processes", e))
}
