//! The options of a `packet:` port.

use std::time::Duration;

use crate::error::Result;
use crate::port::name::PortName;
use crate::port::options::OpenOptions;

use super::fanout::{self, Fanout};

/// The default of `block_timeout=`: the kernel passes a partial block of a `packet:` port to user space
/// after this time.
pub const BLOCK_TIMEOUT: Duration = Duration::from_millis(10);
/// The minimum block timeout, because the kernel counts in milliseconds.
const MIN_BLOCK_TIMEOUT: Duration = Duration::from_millis(1);

/// Methods of receiving packets from the kernel, from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketMethod {
    /// recvmsg(2): one system call per packet.
    Recv,
    /// recvmmsg(2): one system call per batch.
    Recvmmsg,
    /// TPACKET_V2: frames in memory shared with the kernel, passed one by one.
    Frames,
    /// TPACKET_V3: blocks of packets in memory shared with the kernel, without a copy to user space.
    Ring,
}

impl PacketMethod {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Recv => "recv",
            Self::Recvmmsg => "recvmmsg",
            Self::Frames => "frames",
            Self::Ring => "ring",
        }
    }
}

/// Methods of passing packets to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// sendmmsg(2): one system call per batch.
    Sendmmsg,
    /// send(2), or sendmsg(2) for packets of several slots: one system call per packet.
    Sendto,
    /// PACKET_TX_RING: frames in memory shared with the kernel, one system call for all of them.
    Ring,
}

impl Sending {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sendmmsg => "sendmmsg",
            Self::Sendto => "sendto",
            Self::Ring => "ring",
        }
    }
}

/// The clock of packets' timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    Software,
    Hardware,
}

/// The options of a `packet:` port.
#[derive(Clone, Debug)]
pub(super) struct PacketConfig {
    pub method: PacketMethod,
    pub sending: Sending,
    /// True if packets to send bypass the queueing discipline.
    pub bypass: bool,
    pub filter: Option<String>,
    /// Maximum number of bytes kept of a packet.
    pub snaplen: u32,
    pub promiscuous: bool,
    /// True if packets that the host sends are received, too.
    pub tx_copies: bool,
    pub clock: Clock,
    /// Microseconds for which a blocking call polls the driver's queue.
    pub busy_poll_us: Option<u32>,
    /// Ring: number and size of its blocks.
    pub blocks: u32,
    pub block_bytes: u32,
    /// Ring: the time after which the kernel passes a partial block to user space.
    pub block_timeout: Duration,
    /// recv and recvmmsg: size of the socket's buffer in bytes.
    pub buffer_bytes: u32,
    /// recv and recvmmsg: packets per sync; sendmmsg: packets per system call.
    pub batch: u32,
    /// Number of slots in the ring.
    pub slots: u32,
    pub fanout: Option<Fanout>,
    /// `packet:any`: a cooked header replaces each link-layer header.
    pub cooked: bool,
}

/// tcpdump's limit, which is enough for every frame.
pub(super) const MAX_SNAPLEN: u32 = 262_144;

impl PacketConfig {
    pub(super) fn of(name: &PortName, options: &OpenOptions) -> Result<Self> {
        let queues = name.queue_numbers(options).count() as u32;
        let methods =
            [PacketMethod::Ring, PacketMethod::Frames, PacketMethod::Recvmmsg, PacketMethod::Recv];
        let method = name.choice("method", &methods.map(|method| (method.name(), method)))?;
        let latency = name.latency(options)?.unwrap_or(BLOCK_TIMEOUT);
        let by_latency =
            if latency < MIN_BLOCK_TIMEOUT { PacketMethod::Frames } else { PacketMethod::Ring };
        let ways = [Sending::Sendmmsg, Sending::Sendto, Sending::Ring];
        let sending = name.choice("send", &ways.map(|way| (way.name(), way)))?;
        let clock = name
            .choice("timestamp", &[("software", Clock::Software), ("hardware", Clock::Hardware)])?;
        let number = |key, low, high, default| -> Result<u32> {
            Ok(name.number(key, low..=high)?.unwrap_or(default))
        };
        let count = |key, low, high, default| -> Result<u32> {
            Ok(name.count(key, low..=high)?.unwrap_or(default))
        };
        let block_bytes = number("block_size", 4096, 1 << 30, 1 << 20)?;
        if block_bytes % 4096 != 0 {
            let value = block_bytes.to_string();
            return Err(name.bad_option("block_size", &value, "use a multiple of 4096"));
        }
        let timeout = name
            .duration("block_timeout")?
            .unwrap_or(latency.clamp(MIN_BLOCK_TIMEOUT, BLOCK_TIMEOUT));
        if timeout < MIN_BLOCK_TIMEOUT || timeout > Duration::from_secs(60) {
            return Err(name.bad_option(
                "block_timeout",
                &format!("{timeout:?}"),
                "use 1ms to 60s",
            ));
        }
        let busy_poll = name.duration("busy_poll")?;
        if busy_poll.is_some_and(|time| time > Duration::from_secs(1)) {
            return Err(name.bad_option("busy_poll", &format!("{busy_poll:?}"), "use 1s at most"));
        }
        Ok(Self {
            method: method.unwrap_or(by_latency),
            sending: sending.unwrap_or(Sending::Sendmmsg),
            bypass: name.choice("qdisc", &[("normal", false), ("bypass", true)])?.unwrap_or(false),
            filter: name.filter_text().map(str::to_owned),
            snaplen: number("snaplen", 1, MAX_SNAPLEN, MAX_SNAPLEN)?,
            promiscuous: name.switch("promisc")?.unwrap_or(true),
            tx_copies: name.switch("tx_copies")?.unwrap_or(true),
            clock: clock.unwrap_or(Clock::Software),
            busy_poll_us: busy_poll.map(|time| time.as_micros() as u32),
            blocks: count("blocks", 2, 65536, default_blocks(queues, block_bytes))?,
            block_bytes,
            block_timeout: timeout,
            buffer_bytes: number("buffer", 4096, 1 << 30, 64 << 20)?,
            batch: count("batch", 1, 1024, 64)?,
            slots: name.slots(16..=65536)?,
            fanout: Self::fanout(name)?,
            cooked: name.switch("cooked")?.unwrap_or(false),
        })
    }

    /// Rejects receive rings larger than the system's memory. The kernel fills them with zeros: 8 GiB take
    /// half a minute.
    pub(super) fn check_memory(&self, name: &PortName, queues: usize) -> Result<()> {
        let needed = queues as u64 * u64::from(self.blocks) * u64::from(self.block_bytes);
        let is_mapped = matches!(self.method, PacketMethod::Ring | PacketMethod::Frames);
        match total_memory() {
            Some(total) if is_mapped && needed > total => {
                let [needed, total] = [needed, total].map(|bytes| bytes >> 20);
                Err(name.error(format!(
                    "the rings of {queues} queues take {needed} MiB, and the system has {total} MiB of memory: \
                     use fewer blocks=, a smaller block_size= or fewer threads"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Rejects options that need a single interface, for a port of all interfaces.
    pub(super) fn check_any(&self, name: &PortName) -> Result<()> {
        if self.method != PacketMethod::Ring {
            return Err(name.error("all interfaces are received from by method=ring only"));
        }
        if self.clock != Clock::Software {
            return Err(name.error("timestamp=hardware is for one interface"));
        }
        Ok(())
    }

    fn fanout(name: &PortName) -> Result<Option<Fanout>> {
        let mode = name.choice("fanout", fanout::MODES)?;
        let mut fanout = Fanout {
            mode: mode.unwrap_or_default(),
            program: name.option("fanout_prog").map(str::to_owned),
            ..Fanout::default()
        };
        let flags = name.option("fanout_flags");
        for flag in flags.into_iter().flat_map(|text| text.split(',')) {
            match flag {
                "defrag" => fanout.defrag = true,
                "rollover" => fanout.rollover = true,
                // The kernel always chooses the number; the word is accepted for clarity.
                "unique" => {}
                _ => {
                    let advice = "use defrag, rollover, unique, separated by commas";
                    return Err(name.bad_option("fanout_flags", flag, advice));
                }
            }
        }
        if fanout.program.is_some() && mode != Some(libc::PACKET_FANOUT_CBPF) {
            return Err(name.error("fanout_prog= goes with fanout=bpf"));
        }
        Ok((mode.is_some() || flags.is_some()).then_some(fanout))
    }
}

/// Returns the default of `blocks=`: 32, or fewer so that the rings of all queues take 1 GiB together, but at
/// least 4.
fn default_blocks(queues: u32, block_bytes: u32) -> u32 {
    let row_bytes = u64::from(queues.max(1)) * u64::from(block_bytes);
    ((1 << 30) / row_bytes).clamp(4, 32) as u32
}

/// Returns the system's memory in bytes (proc_meminfo(5)). The memory available at the moment would make the
/// refusal unpredictable.
fn total_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<PacketConfig> {
        PacketConfig::of(&text.parse().unwrap(), &OpenOptions::default())
    }

    #[test]
    fn the_defaults_are_the_fast_and_complete_choice() {
        let config = config("packet:eth0").unwrap();
        assert_eq!(config.method, PacketMethod::Ring);
        assert_eq!(config.snaplen, MAX_SNAPLEN);
        assert!(config.promiscuous && config.tx_copies && config.fanout.is_none());
    }

    #[test]
    fn the_method_follows_how_long_a_packet_may_wait() {
        use PacketMethod::{Frames, Recvmmsg, Ring};
        let [at_once, recording] = [0, 20].map(|ms| Some(Duration::from_millis(ms)));
        for (text, latency, method, timeout_ms) in [
            ("eth0", None, Ring, 10),
            ("eth0", recording, Ring, 10),
            ("eth0", at_once, Frames, 1),
            ("eth0?latency=2ms", at_once, Ring, 2),
            ("eth0?latency=0s", recording, Frames, 1),
            ("eth0?method=ring", at_once, Ring, 1),
            ("eth0?method=ring&block_timeout=7ms", at_once, Ring, 7),
            ("eth0?method=recvmmsg", at_once, Recvmmsg, 1),
        ] {
            let options = OpenOptions { latency, ..OpenOptions::default() };
            let config = PacketConfig::of(&text.parse().unwrap(), &options).unwrap();
            let expected = (method, Duration::from_millis(timeout_ms));
            assert_eq!((config.method, config.block_timeout), expected, "{text}, {latency:?}");
        }
    }

    #[test]
    fn options_are_checked() {
        for (text, complaint) in [
            ("eth0?method=fast", "ring, frames, recvmmsg, recv"),
            ("eth0?send=fast", "sendmmsg, sendto, ring"),
            ("eth0?qdisc=on", "normal, bypass"),
            ("eth0?block_size=5000", "multiple of 4096"),
            ("eth0?block_timeout=0ms", "1ms to 60s"),
            ("eth0?snaplen=0", "1 to 262144"),
            ("eth0?fanout=hash&fanout_flags=fast", "defrag, rollover"),
            ("eth0?fanout=hash&fanout_prog=x", "fanout=bpf"),
            ("eth0?busy_poll=2s", "1s at most"),
            ("eth0?fanout=magic", "hash, lb, cpu"),
        ] {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }

    #[test]
    fn many_queues_share_the_memory_of_the_default() {
        for (queues, block_bytes, blocks) in [
            (1, 1 << 20, 32),
            (32, 1 << 20, 32),
            (33, 1 << 20, 31),
            (256, 1 << 20, 4),
            (4096, 1 << 20, 4),
            (256, 4096, 32),
            (1, 64 << 20, 16),
            (2, 64 << 20, 8),
            (1, 1 << 30, 4),
        ] {
            let default = default_blocks(queues, block_bytes);
            assert_eq!(default, blocks, "{queues} queues, blocks of {block_bytes} bytes");
        }
    }

    #[test]
    fn rings_larger_than_the_memory_are_refused() {
        let check = |text: &str| {
            let name = text.parse().unwrap();
            config(text).unwrap().check_memory(&name, 256)
        };
        check("eth0?blocks=2&block_size=4096").unwrap();
        check("eth0?blocks=2&block_size=4096&method=frames").unwrap();
        for method in ["recv", "recvmmsg"] {
            check(&format!("eth0?blocks=65536&block_size=1G&method={method}")).unwrap();
        }
        for method in ["ring", "frames"] {
            let text = format!("eth0?blocks=65536&block_size=1G&method={method}");
            let error = check(&text).unwrap_err().to_string();
            assert!(error.contains("256 queues take 17179869184 MiB"), "{error}");
            assert!(error.contains("use fewer blocks=, a smaller block_size="), "{error}");
        }
    }

    #[test]
    fn fanout_flags_alone_ask_for_a_fanout_by_hash() {
        let config = config("eth0?fanout_flags=defrag,rollover").unwrap();
        let fanout = config.fanout.unwrap();
        assert_eq!(fanout.mode, libc::PACKET_FANOUT_HASH);
        assert!(fanout.defrag && fanout.rollover);
    }
}
