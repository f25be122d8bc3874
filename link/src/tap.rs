//! TAP devices: interfaces whose wire is a file descriptor.
//!
//! A read from the descriptor returns one frame that the host sends; the host receives each frame written to
//! it. Each descriptor is a queue of the device. The kernel removes a non-persistent device with its last
//! descriptor, even if the process is killed.
//!
//! Needs `CAP_NET_ADMIN`, and `/dev/net/tun`. Source: linux/if_tun.h, drivers/net/tun.c.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::{ifreq, refused};
use sluicegate_base::error::{Error, Result};

const DEVICE: &str = "/dev/net/tun";
const ADMIN: &str = "CAP_NET_ADMIN";

/// Permits an existing device, or requires a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Making {
    /// Uses an existing device, if no other process has it.
    OrUse,
    /// The device must be new: the kernel rejects a second creation.
    New,
}

/// One queue of a TAP device. Calls do not block.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

impl Tap {
    /// Opens `queues` queues of the device with this name in this thread's network namespace. A new device is
    /// down.
    ///
    /// # Errors
    /// A missing privilege; no `/dev/net/tun`; another kind of interface has the name.
    pub fn open(name: &str, queues: usize, making: Making) -> Result<Vec<Self>> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['/', '\0', ' ', '%']) {
            return Err(Error::Usage(format!(
                "'{name}' cannot be an interface's name: use 1 to 15 letters and digits"
            )));
        }
        let exclusive = if making == Making::New { libc::IFF_TUN_EXCL } else { 0 };
        let several = libc::IFF_MULTI_QUEUE;
        let first = match attach(name, exclusive | if queues > 1 { several } else { 0 }) {
            // The device exists, and was created for several queues.
            Err(error) if error.errno() == Some(libc::EINVAL) && queues == 1 => {
                attach(name, exclusive | several)
            }
            other => other,
        };
        let others = (1..queues).map(|_| attach(name, several));
        std::iter::once(first).chain(others).collect()
    }

    /// Makes the device persistent or not. A persistent device stays when no process has it open.
    pub fn set_persistent(&self, name: &str, persistent: bool) -> Result<()> {
        // SAFETY: the request takes a number.
        let status = unsafe {
            libc::ioctl(self.file.as_raw_fd(), libc::TUNSETPERSIST, libc::c_ulong::from(persistent))
        };
        if status == 0 { Ok(()) } else { Err(Error::last_os("make persistent", name)) }
    }

    /// Reads the next frame that the host has sent: into the first buffer, and the rest into the second.
    /// Returns its length. [`io::ErrorKind::WouldBlock`] means that there is none.
    #[inline]
    pub fn read(&self, first: &mut [u8], rest: &mut [u8]) -> io::Result<usize> {
        (&self.file).read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(rest)])
    }

    /// Writes a frame, which the host receives.
    #[inline]
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        (&self.file).write(frame).map(|_| ())
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens one queue.
fn attach(name: &str, flags: i32) -> Result<Tap> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(DEVICE).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::Unsupported {
            feature: format!("a TAP device (no {DEVICE})"),
            remedy: "load the driver: modprobe tun".into(),
        },
        _ => refused("open", DEVICE, ADMIN, error),
    })?;
    // The kernel reads 16 bits, without a sign (linux/if.h, linux/if_tun.h).
    let ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | flags) as libc::c_short;
    let mut request = ifreq(name, libc::__c_anonymous_ifr_ifru { ifru_flags });
    // SAFETY: the kernel reads and writes an ifreq, which outlives the call.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if status == 0 {
        return Ok(Tap { file });
    }
    let error = io::Error::last_os_error();
    let remedy = match error.raw_os_error() {
        Some(libc::EBUSY) => "another process has it: take another name, or end that one",
        Some(libc::EINVAL) => "it is no TAP device, or one of one queue: take another name, or /0",
        Some(libc::E2BIG) => "a TAP device has at most 256 queues",
        _ => "",
    };
    Err(refused("open TAP device", name, ADMIN, error).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_interface_can_have_is_refused() {
        for name in ["", "a-name-of-sixteen", "a/b", "a b", "tap%d", "a\0b"] {
            let error = Tap::open(name, 1, Making::OrUse).unwrap_err();
            assert!(matches!(error, Error::Usage(_)), "{name:?}: {error}");
        }
    }
}
