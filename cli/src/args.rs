//! Flags that every traffic command takes.

use std::ops::RangeInclusive;
use std::time::Duration;

use sluicegate::file::write::FileAccess;
use sluicegate::port::{Kind, OpenOptions, RECORDING_LATENCY, parse_queues};
use sluicegate::ring::Wait;
use sluicegate::units;

use crate::privileges;
use crate::units::{duration_in, interval};

/// Flags of every command that receives or sends.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// Network namespace of the ports: a name of `ip netns`, a path, or the PID of a process in it
    #[arg(long, value_name = "NETNS")]
    pub netns: Option<String>,

    /// Stop after this time: 5s, 1m30s
    #[arg(long, value_name = "TIME", value_parser = run_time)]
    pub duration: Option<Duration>,

    /// Stop after N packets, over all threads: 1000, 5M
    #[arg(short, long, value_name = "N", value_parser = packets)]
    pub count: Option<u64>,

    /// CPUs to pin the threads to, in turn: 0-3,8
    #[arg(long, value_name = "LIST", value_parser = cpu_list)]
    pub cpus: Option<Box<[usize]>>,

    /// Threads per port, each with a queue; xdp: and mirror: ports that receive use all their queues
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    /// Time between status lines [default: 1s on a terminal, 10s elsewhere]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub interval: Option<Duration>,

    /// Become this user once all ports are open; the user owns capture files
    #[arg(short = 'Z', long, value_name = "NAME")]
    pub user: Option<String>,

    /// Permission bits of capture files: 0640 lets the group read them
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = file_mode)]
    pub file_mode: u32,

    /// With a fallback, print the kernel's answer
    #[arg(short, long, overrides_with = "verbose")]
    pub verbose: bool,

    /// Print the result as one JSON object; with --interval, also one per interval
    #[arg(long)]
    pub json: bool,
}

/// Options of every command that receives.
#[derive(clap::Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Common options")]
pub struct Receiving {
    /// How a thread waits for packets; adaptive spins for 20 µs, then sleeps
    #[arg(long, default_value = "adaptive", value_name = "spin|sleep|adaptive")]
    pub wait: Wait,
}

/// Flags that stand for parts of a receiving port's name.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Common options")]
pub struct PortFlags {
    /// Queues of each port whose name has none: 0-3 is eth0/0-3
    #[arg(long, value_name = "QUEUES", value_parser = queues)]
    pub queues: Option<RangeInclusive<u32>>,

    /// Mode of XDP of each port whose name has none: skb is xdp:eth0,mode=skb
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
}

fn queues(text: &str) -> Result<RangeInclusive<u32>, &'static str> {
    parse_queues(text).ok_or("use a number or a range such as 0-3")
}

/// Parses the time of a run.
fn run_time(text: &str) -> Result<Duration, String> {
    duration_in(Duration::from_nanos(1)..=Duration::MAX, text, "use more than 0")
}

fn packets(text: &str) -> Result<u64, String> {
    match units::count(text) {
        Ok(0) => Err("the count must be at least 1; omit --count for a run without a limit".into()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses the permission bits of capture files.
pub fn file_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o777 == 0);
    let mode = mode.filter(|mode| mode & 0o600 == 0o600);
    mode.ok_or_else(|| {
        "use an octal mode that lets the owner read and write: 0600, 0640, 0644".into()
    })
}

fn cpu_list(text: &str) -> Result<Box<[usize]>, units::ParseError> {
    units::cpus(text).map(|cpus| cpus.into_iter().map(usize::from).collect())
}

/// Returns the options for a port of this kind: without `--threads` if it does not set the port's queues.
pub fn options_for_kind(options: OpenOptions, kind: Kind) -> OpenOptions {
    let queues = if kind.takes_queue_count() { options.queues } else { 0 };
    OpenOptions { queues, ..options }
}

impl Common {
    /// Returns the options of ports whose packets are shown at once.
    pub fn options(&self) -> OpenOptions {
        OpenOptions {
            netns: self.netns.clone(),
            queues: self.threads.unwrap_or(0),
            access: self.access(),
            ..OpenOptions::default()
        }
    }

    /// Returns the options of ports whose packets are only recorded or counted.
    pub fn recording(&self) -> OpenOptions {
        OpenOptions { latency: Some(RECORDING_LATENCY), ..self.options() }
    }

    /// Returns the options of ports whose packets are forwarded.
    pub fn forwarding(&self) -> OpenOptions {
        OpenOptions { latency: Some(Duration::ZERO), ..self.options() }
    }

    /// Returns the owner and mode of capture files. The user of `--user` owns them.
    pub fn access(&self) -> FileAccess {
        let owner = self.user.as_deref().and_then(privileges::ids_of);
        FileAccess { mode: self.file_mode, owner }
    }

    /// Rejects an invalid user or CPU. Call it first, because opening a port may empty a file.
    pub fn check(&self) -> sluicegate::Result<()> {
        if let Some(user) = &self.user {
            privileges::user(user)?;
        }
        self.cpus().iter().copied().try_for_each(sluicegate::link::may_pin)
    }

    /// Gives up privileges if `--user` is set, once everything is open.
    pub fn become_user(&self) -> sluicegate::Result<()> {
        self.user.as_deref().map_or(Ok(()), privileges::become_user)
    }

    /// Returns the CPUs for the threads, used in turn; empty for any CPU.
    pub fn cpus(&self) -> &[usize] {
        self.cpus.as_deref().unwrap_or_default()
    }

    /// Returns one worker's share of the `--count` packets.
    pub fn share(&self, index: usize, workers: usize) -> Option<u64> {
        let (index, workers) = (index as u64, workers as u64);
        self.count.map(|count| count / workers + u64::from(index < count % workers))
    }

    /// Returns the CPU of the thread with this index.
    pub fn cpu(&self, index: usize) -> Option<usize> {
        self.cpus().iter().copied().cycle().nth(index)
    }
}
