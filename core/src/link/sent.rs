//! What an interface has sent, asked so that nobody waits: `/proc/net/dev` takes no lock of the
//! kernel's (net/core/net-procfs.c), as netlink's answers do (rtnl), which whoever ends a program of
//! live frames holds for as long as a run takes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::netns;
use crate::error::{Error, Result};

const PATH: &str = "/proc/thread-self/net/dev";

/// Where an interface's counters are read. The file is that of the namespace it was opened in.
#[derive(Debug)]
pub struct SentCounters {
    file: File,
    name: String,
}

/// What an interface has counted of packets to be sent, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets that it sent.
    pub packets: u64,
    /// Packets that it dropped in place of that.
    pub dropped: u64,
}

impl SentCounters {
    /// Of an interface of a network namespace, or of this thread's.
    ///
    /// # Errors
    /// No such namespace, no privilege to enter it, or no `/proc`.
    pub fn open(netns: Option<&str>, name: &str) -> Result<Self> {
        let file = netns::within(netns, || {
            File::open(PATH).map_err(|error| Error::system("open", PATH, error))
        })?;
        Ok(Self { file, name: name.to_owned() })
    }

    /// The counts now; none if there is no interface of that name any more.
    pub fn read(&self) -> Option<Sent> {
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match self.file.read_at(&mut piece, text.len() as u64).ok()? {
                0 => return sent(&String::from_utf8_lossy(&text), &self.name),
                bytes => text.extend_from_slice(&piece[..bytes]),
            }
        }
    }
}

/// What the line of an interface says. Eight numbers of what it has received are in front: bytes,
/// packets, errors, drops, and so on; then the same of what it has sent.
fn sent(text: &str, name: &str) -> Option<Sent> {
    const RECEIVED: usize = 8;
    // No interface's name has a colon (net/core/dev.c, dev_valid_name).
    let (_, counts) =
        text.lines().filter_map(|line| line.split_once(':')).find(|it| it.0.trim() == name)?;
    let mut counts = counts.split_ascii_whitespace().skip(RECEIVED).map(str::parse);
    let [_bytes, packets, _errors, dropped] = [(); 4].map(|()| counts.next().and_then(Result::ok));
    Some(Sent { packets: packets?, dropped: dropped? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 100       2    0    0    0     0          0         0      100       2    0    0    0     0       0          0
left0:18446744073709551615 7 0 1 0 0 0 0 900 18446744073709551615 0 12 0 0 0 0
 left: 1 2 3 4 5 6 7 8 9 10
";

    #[test]
    fn an_interfaces_line_says_what_it_sent_and_dropped() {
        for (name, expected) in [
            ("lo", Some(Sent { packets: 2, dropped: 0 })),
            ("left0", Some(Sent { packets: u64::MAX, dropped: 12 })),
            ("left", None),
            ("eth0", None),
            ("", None),
        ] {
            assert_eq!(sent(TEXT, name), expected, "{name}");
        }
    }

    #[test]
    fn the_kernels_own_file_has_a_line_for_the_loopback_interface() {
        let counters = SentCounters::open(None, "lo").unwrap();
        let first = counters.read().unwrap();
        assert!(counters.read().unwrap().packets >= first.packets, "it can be read again");
        assert_eq!(SentCounters::open(None, "no-such-one").unwrap().read(), None);
    }
}
