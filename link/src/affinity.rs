//! Which CPU a thread runs on.

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use sluicegate_base::error::{Error, Result};

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

/// Whether a thread may run on a CPU, tried by one that ends with that.
///
/// # Errors
/// As [`pin_thread`]; no thread to be had.
pub fn may_pin(cpu: usize) -> Result<()> {
    std::thread::Builder::new()
        .spawn(move || pin_thread(cpu))
        .map_err(|error| Error::system("start", "a thread for a while", error))?
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How many CPUs there can be, those that are not plugged in included: numbers of CPUs are below.
///
/// # Errors
/// The system does not say.
pub fn possible_cpus() -> Result<usize> {
    libbpf_rs::num_possible_cpus().map_err(|error| {
        Error::system("look up the CPUs of", "this host", std::io::Error::other(error))
    })
}

/// The CPUs that a thread may run on.
#[derive(Clone, Copy, Debug)]
pub struct Allowed(CpuSet);

impl Allowed {
    /// Those of this thread.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn here() -> Result<Self> {
        let set = sched_getaffinity(Pid::from_raw(0));
        set.map(Self).map_err(|error| Error::system("look up the CPUs of", "this thread", error))
    }

    /// How many.
    pub fn count(&self) -> usize {
        (0..CpuSet::count()).filter(|&cpu| self.has(cpu)).count()
    }

    /// Has this thread run on all of these but one. Where that leaves none, or the kernel does not
    /// want it, the thread stays where it is.
    pub fn but(&self, cpu: usize) {
        let mut set = self.0;
        if self.count() > 1 && set.unset(cpu).is_ok() {
            let _ = sched_setaffinity(Pid::from_raw(0), &set);
        }
    }

    fn has(&self, cpu: usize) -> bool {
        self.0.is_set(cpu).unwrap_or(false)
    }
}
