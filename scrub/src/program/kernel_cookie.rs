//! The kernel's own SYN cookies, by which kernels before Linux 6.9 get the connections of challenged clients
//! (`bpf/kernel_cookie.h`).
//!
//! The kernel makes a cookie for the XDP program only if it would make one itself: if the listener's queue is full, or
//! `net.ipv4.tcp_syncookies` is 2. So the setting is 2 while the policy hands connections over.

use sluicegate::nic::{RaisedSysctl, Sysctl};

/// The latest of the helpers of bpf/kernel_cookie.h and of what it needs (Linux 5.18).
pub(super) const LATEST_HELPER: &str = "bpf_xdp_load_bytes";
const SYNCOOKIES: Sysctl = Sysctl { name: "net.ipv4.tcp_syncookies", value: 2 };

/// Restores the setting of this thread's network namespace if a killed scrubber left it.
pub fn restore_settings() {
    // After a failure the next start tries again.
    let _ = SYNCOOKIES.restore();
}

/// The setting of a network namespace, which is restored when this value is dropped.
#[derive(Debug, Default)]
pub(super) struct CookieSetting {
    raised: Option<RaisedSysctl>,
}

impl CookieSetting {
    /// Makes the kernel of this thread's network namespace make cookies, or restores the setting. The error is the reason
    /// why it makes none, for users.
    pub(super) fn set(&mut self, is_needed: bool) -> Result<(), String> {
        if !is_needed {
            self.raised = None;
            return Ok(());
        }
        let raised = match self.raised.take() {
            Some(raised) => raised,
            None => SYNCOOKIES.raise().map_err(|error| error.to_string())?,
        };
        let value = self.raised.insert(raised).value().map_err(|error| error.to_string())?;
        match value == SYNCOOKIES.value {
            true => Ok(()),
            false => Err(format!(
                "another program has set {} to {value}; set it to {}",
                SYNCOOKIES.name, SYNCOOKIES.value
            )),
        }
    }
}
