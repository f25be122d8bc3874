//! Memory that a scrubber needs, and that this host has.

use std::fs::read_to_string;
use std::io;
use std::path::Path;

use sluicegate::error::{Error, Result};

use super::LIMIT_KEYS;
use crate::program::Program;
use crate::tables::Tables;

/// Mount point of control groups (cgroups(7), version 2).
const GROUPS: &str = "/sys/fs/cgroup";

/// Memory that a scrubber needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The tables of its policy.
    pub tables: u64,
    /// Limits, verified sources, flows and counters.
    pub state: u64,
    /// Limits, sources, flows and counters of the program that compares new tables with the oracle, during a change.
    pub check: u64,
}

impl Memory {
    /// Returns the memory for these tables, with limits that tell this number of keys apart.
    ///
    /// # Errors
    /// libbpf cannot read the program.
    pub fn of(tables: &Tables, limit_keys: u32) -> Result<Self> {
        Self::of_tables(tables.image.bytes() as u64, limit_keys)
    }

    /// Returns the memory for tables of these bytes.
    pub(super) fn of_tables(tables: u64, limit_keys: u32) -> Result<Self> {
        Ok(Self {
            tables,
            state: Program::map_bytes(limit_keys)?,
            check: Program::map_bytes(LIMIT_KEYS)?,
        })
    }

    /// Returns the maximum, during a change. Then three tables exist: the present ones, the new ones, and their copy in
    /// this process.
    pub fn total(&self) -> u64 {
        3 * self.tables + self.state + self.check
    }
}

/// Fails if this host or the control group of this process has less memory.
pub(super) fn ensure_available(object: &str, bytes: u64) -> Result<()> {
    let Some(available) = available().filter(|it| *it < bytes) else { return Ok(()) };
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (needed, available) = (mib(bytes), mib(available));
    let problem = format!("{needed} MiB are needed, but {available} MiB are available");
    let error = io::Error::new(io::ErrorKind::OutOfMemory, problem);
    Err(Error::system("allocate", object, error)
        .remedy("lower --limit-keys, make the sets of the policy smaller, or free memory"))
}

/// Returns the available bytes; none if the kernel does not report them.
fn available() -> Option<u64> {
    let memory = read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|it| it.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(group_limits().into_iter().fold(kib << 10, u64::min))
}

/// Returns the limits of this process's control group, and of those above it.
fn group_limits() -> Vec<u64> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(group) = groups.lines().find_map(|it| it.strip_prefix("0::/")) else {
        return Vec::new();
    };
    let folder = Path::new(GROUPS).join(group);
    let folders = folder.ancestors().take_while(|it| it.starts_with(GROUPS));
    // A group without a limit has "max".
    let limit = |it: &Path| read_to_string(it.join("memory.max")).ok()?.trim().parse().ok();
    folders.filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn memory_grows_with_keys_and_tables() {
        let tables = Tables::build(&Policy::default(), 1).unwrap();
        let [few, many] = [1 << 20, 1 << 26].map(|keys| Memory::of(&tables, keys).unwrap());
        // 64 bytes for 4 keys of limits, for 4 sources, and for 2 flows.
        assert_eq!(many.state - few.state, 64 * ((1 << 26) - (1 << 20)));
        assert_eq!(few.check, few.state);
        let larger = Memory { tables: few.tables + 1000, ..few };
        assert_eq!(larger.total(), few.total() + 3000);
    }

    #[test]
    fn too_little_memory_is_an_error_with_a_remedy() {
        ensure_available("the test", 1 << 20).unwrap();
        let error = ensure_available("the test", 1 << 60).unwrap_err().to_string();
        assert!(
            error.starts_with("allocate the test: 1099511627776 MiB are needed, but"),
            "{error}"
        );
        assert!(error.contains("lower --limit-keys"), "{error}");
    }
}
