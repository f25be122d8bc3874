//! Which CPU a thread runs on.

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{Error, Result};

/// Has this thread run on one CPU and no other.
///
/// # Errors
/// There is no such CPU, or a cpuset keeps it from this process.
pub fn pin_thread(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    match set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)) {
        Err(Errno::EINVAL) => {
            let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
            let online = online.as_deref().map_or("unknown", str::trim);
            Err(Error::Usage(format!(
                "no CPU {cpu} to pin a thread to: online are {online}, and a cpuset may allow fewer"
            )))
        }
        pinned => {
            pinned.map_err(|error| Error::system("pin a thread to", format!("CPU {cpu}"), error))
        }
    }
}
