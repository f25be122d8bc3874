//! The network namespaces that exist, by the inode numbers that `/proc/PID/ns/net` shows.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The namespaces of all processes that this one may look at, and those that a mount of this mount
/// namespace keeps (`ip netns`, containers). A namespace that only a socket or another mount namespace
/// keeps is not among them.
///
/// # Errors
/// No /proc.
pub fn live_namespaces() -> io::Result<HashSet<u64>> {
    // A path in it may be of any bytes.
    let mounts = fs::read("/proc/self/mountinfo")?;
    let mounts = String::from_utf8_lossy(&mounts);
    let mut namespaces: HashSet<u64> = mounts.lines().filter_map(mounted).collect();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path().join("ns/net");
        // Not every entry is a process, one may have just ended, and another's may not be looked at.
        namespaces.extend(fs::metadata(&path).map(|namespace| namespace.ino()));
    }
    Ok(namespaces)
}

/// The namespace that a line of mountinfo is about: the fourth field is `net:[4026532208]`.
fn mounted(line: &str) -> Option<u64> {
    let root = line.split(' ').nth(3)?;
    root.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_a_network_namespace_is_told_from_others() {
        for (sentence, line, expected) in [
            (
                "ip netns",
                "97 61 0:4 net:[4026532208] /run/netns/a rw - nsfs nsfs rw",
                Some(4026532208),
            ),
            ("another kind", "98 61 0:4 mnt:[4026532209] /run/mnt/a rw - nsfs nsfs rw", None),
            ("a folder", "25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw", None),
            ("half a line", "25 30", None),
        ] {
            assert_eq!(mounted(line), expected, "{sentence}");
        }
    }

    #[test]
    fn the_namespace_of_this_process_exists() {
        let here = fs::metadata("/proc/self/ns/net").unwrap().ino();
        assert!(live_namespaces().unwrap().contains(&here));
    }
}
