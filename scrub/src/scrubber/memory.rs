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
    /// Limits, verified sources, flows and counters of the program that compares new tables with the oracle, during a
    /// change.
    pub check: u64,
}

impl Memory {
    /// Returns the memory for these tables, with limits that tell this number of keys apart.
    ///
    /// # Errors
    /// libbpf cannot read the program.
    pub fn of(tables: &Tables, limit_keys: u32) -> Result<Self> {
        Self::of_tables(tables.bytes(), limit_keys)
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
    Some(available_in_groups().into_iter().fold(kib << 10, u64::min))
}

/// Returns the available bytes of this process's control group, and of those above it, if they have a limit.
fn available_in_groups() -> Vec<u64> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(group) = groups.lines().find_map(|it| it.strip_prefix("0::/")) else {
        return Vec::new();
    };
    let folder = Path::new(GROUPS).join(group);
    let folders = folder.ancestors().take_while(|it| it.starts_with(GROUPS));
    folders.filter_map(available_in).collect()
}

/// Returns the available bytes of a control group. Without a limit, its `memory.max` is "max".
fn available_in(group: &Path) -> Option<u64> {
    let read = |file: &str| read_to_string(group.join(file)).ok();
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let limit = number(&read("memory.max")?)?;
    let used = number(&read("memory.current")?)?;
    // The kernel frees cached files first.
    let statistics = read("memory.stat").unwrap_or_default();
    let cached = statistics.lines().find_map(|it| number(it.strip_prefix("inactive_file ")?));
    Some(limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
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
    fn a_group_has_the_rest_of_its_limit() {
        let group = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(group.path().join(file), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "900\n");
        assert_eq!(available_in(group.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(available_in(group.path()), Some(100));
        write("memory.stat", "anon 500\ninactive_file 300\n");
        assert_eq!(available_in(group.path()), Some(400));
        write("memory.max", "500\n");
        assert_eq!(available_in(group.path()), Some(0));
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
