//! The flags of `sluice capture`, as typed and as meant, and the list of interfaces to capture from.

use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::tz::TimeZone;
use sluicegate::error::{Error, Result};
use sluicegate::file::write::{EncoderConfig, HistoryConfig, OutputConfig, Rotation};
use sluicegate::file::{Compression, Format};
use sluicegate::filter::{Filter, Instruction};
use sluicegate::port::{Directions, Kind, LINKTYPE_ETHERNET, OpenOptions, Port, PortName};
use sluicegate::{link, units};

use super::keep::KeepArgs;
use super::lines::LineStarts;
use super::post_rotate;
use super::tcpdump::{self, TcpdumpArgs};
use crate::args::{Common, PortFlags, Receiving};
use crate::file_flags::FileFlags;
use crate::notice::printable;
use crate::ports;
use crate::print::{Printer, TimeFormat};
use crate::run::RunOptions;
use crate::stats;

/// A part of a chunk is passed on after this time when the output is an ordinary file; at once
/// when it is a pipe.
const FILE_HOLD_TIME: Duration = Duration::from_millis(100);
/// Compression works better on larger pieces.
const COMPRESSED_HOLD_TIME: Duration = Duration::from_secs(1);

/// The bytes kept of a packet, without `--snaplen`.
const SNAPLEN: u32 = 262_144;
/// BPF_RET | BPF_K
const RETURN: u16 = 0x06;

const EXAMPLES: &str = "\
Examples:
  sluice capture                               list the interfaces
  sluice capture eth0 udp port 53              print packets, a line each
  sluice capture eth0 -w trace.pcapng.zst --duration 1m
  sluice capture eth0 -w %F-%H%M%S.pcapng --rotate-time 1h --files 24
  sluice capture eth0 -w event.pcapng --keep 30s
  sluice capture eth0 eth1 -w both.pcapng      one file, ordered by time
  sluice capture eth0 -w - | tshark -i -
  sluice capture trace.pcapng -X               print a file, with the packets' bytes

Includes packets for other hosts (promisc=off omits them) and packets that the host
sends (tx_copies=off omits them).";

/// Record packets as pcapng or pcap, or print them; without a port, list interfaces
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("source").args(["words", "interface", "read"]).multiple(true))]
pub struct Args {
    /// Ports to receive from: eth0, any, mirror:eth0, xdp:eth0, packet:eth0,method=recv, trace.pcapng;
    /// several go into one file, ordered by time. A filter may follow: eth0 udp port 53
    #[arg(value_name = "PORT|FILTER")]
    words: Vec<String>,

    /// Capture only packets that match a pcap-filter expression. Protocols and ports of packets with
    /// a VLAN tag match only after the word vlan: vlan and udp port 53
    #[arg(short, long, value_name = "EXPR", requires = "source")]
    filter: Option<String>,

    /// Write to a file; - is standard output; the name may contain strftime conversions
    #[arg(short, long, value_name = "FILE", requires = "source")]
    write: Option<PathBuf>,

    /// pcap or pcapng [default: by the extension, otherwise pcapng]
    #[arg(long)]
    format: Option<Format>,

    #[command(flatten)]
    file: FileFlags,

    /// Maximum bytes kept per packet; 0: the default [default: 262144]
    #[arg(short, long, value_name = "BYTES", value_parser = units::bytes)]
    snaplen: Option<u64>,

    /// Begin a new file before one exceeds this size, uncompressed: 100MiB
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    rotate_size: Option<u64>,

    /// Begin a new file after N packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rotate_count: Option<u64>,

    /// Begin a new file for each period, by the packets' clock: 60s, 1h
    #[arg(short = 'G', long, value_name = "TIME", value_parser = units::duration)]
    rotate_time: Option<Duration>,

    /// Keep the newest N files of this run's rotation, delete older ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    files: Option<u32>,

    /// End after N files of the rotation: with --rotate-size and 1, at this size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_files: Option<u64>,

    /// Run PROGRAM FILE after each complete file; one at a time, beside the capture
    #[arg(short = 'z', long, value_name = "PROGRAM", requires = "write")]
    pub post_rotate: Option<PathBuf>,

    /// fsync each file before closing it
    #[arg(long)]
    sync: bool,

    /// pcap with microseconds, for old readers [default: nanoseconds]
    #[arg(long)]
    micro: bool,

    /// How long a packet waits for earlier packets of other queues and ports
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::duration)]
    pub reorder_window: Duration,

    /// Print a line per packet, or with --json an object; the default without -w. Ethernet, ARP, IP, ICMP, TCP,
    /// UDP and DNS as tcpdump -nn prints them, other protocols by name and length
    #[arg(long)]
    print: bool,

    /// Count by protocol, conversation and address, and print the N with most bytes [default: 10];
    /// packets are printed only with --print
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10",
        value_parser = stats::top
    )]
    pub stats: Option<usize>,

    /// Write the result to FILE instead of standard output or stderr
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,

    /// Times of printed lines: time of day, date, epoch (seconds since 1970), delta (since the line
    /// before), elapsed (since the first line) or none
    #[arg(
        long,
        value_name = "time|date|epoch|delta|elapsed|none",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        conflicts_with = "json"
    )]
    time_format: TimeFormat,

    /// Print times in nanoseconds [default: microseconds]
    #[arg(long, conflicts_with = "json")]
    pub nano: bool,

    /// Print also addresses, VLAN tags and length of the link layer
    #[arg(short = 'e', long, conflicts_with = "json")]
    link_header: bool,

    #[command(flatten)]
    pub keep: KeepArgs,

    #[command(flatten)]
    tcpdump: TcpdumpArgs,

    #[command(flatten)]
    port_flags: PortFlags,

    #[command(flatten)]
    pub common: Common,

    #[command(flatten)]
    pub receiving: Receiving,
}

/// The flags, validated together.
pub struct Options {
    /// The flags as typed.
    pub args: Args,
    /// The ports, with the filter and the snapshot length of the flags where their names have none.
    pub ports: Vec<PortName>,
    pub filter: Option<String>,
    pub output: Option<OutputConfig>,
    /// The limits of packets that stay in memory until a file is asked for.
    pub history: Option<HistoryConfig>,
    pub encoder: EncoderConfig,
    /// How long a part of a chunk may be held back.
    pub hold_time: Duration,
    pub print: bool,
    /// Packets go to standard output, so the report goes to stderr.
    pub stdout_is_taken: bool,
}

impl Options {
    /// How ports are opened: packets on standard output are passed on at once.
    pub fn opening(&self) -> OpenOptions {
        if self.stdout_is_taken { self.args.common.options() } else { self.args.common.recording() }
    }

    /// How the run is controlled.
    pub fn run(&self) -> RunOptions<'_> {
        let (wait, stdout_is_taken) = (self.args.receiving.wait, self.stdout_is_taken);
        RunOptions { common: &self.args.common, wait, stdout_is_taken }
    }

    pub fn of(args: Args) -> Result<Self> {
        let (mut ports, filter) = args.sources()?;
        if args.summary.as_deref() == Some(Path::new("-")) {
            let message = "--summary -: the result is on standard output or stderr without it";
            return Err(Error::Usage(message.into()));
        }
        args.post_rotate.as_deref().map_or(Ok(()), post_rotate::check)?;
        let (output, history) = args.output()?.unzip();
        let history = history.flatten();
        let print = args.print || output.is_none() && args.stats.is_none();
        let to_stdout = output.as_ref().is_some_and(|o| o.path == Path::new("-"));
        if print && to_stdout {
            let message = "-w - and --print both use standard output; remove one of them";
            return Err(Error::Usage(message.into()));
        }
        let pcap = output.as_ref().is_some_and(|output| output.format == Format::Pcap);
        let (only_received, not_promiscuous) =
            (args.tcpdump.only_received()?, args.tcpdump.not_promiscuous);
        let snaplen = args.snaplen();
        for port in &mut ports {
            if pcap && ports::is_any(port) {
                // A pcap file has one link type.
                port.set_default("cooked", "on");
            }
            if port.kind() == Kind::Null
                && args.common.count.is_none()
                && args.common.duration.is_none()
                && output.as_ref().is_none_or(|output| output.rotation.last_file.is_none())
            {
                return Err(port.error("the run would never end; add --count or --duration"));
            }
            if port.option("action").is_some_and(|action| action != "take") {
                return Err(
                    port.error("action= is for `sluice count` only: it delivers no packets")
                );
            }
            let has_times = port.kind() != Kind::Null && port.option("timestamp") != Some("off");
            if history.is_some() && !has_times {
                return Err(port.error("--keep needs the packets' times, which this port omits"));
            }
            ports::apply_filter(port, filter.as_deref())?;
            ports::apply_flags(port, &args.port_flags)?;
            if let Some(bytes) = snaplen {
                port.set_default("snaplen", &bytes.to_string());
            }
            if not_promiscuous {
                port.set_default("promisc", "off");
            }
            let chosen = !only_received || port.set_default("tx_copies", "off");
            if !chosen && matches!(port.kind(), Kind::Pcap | Kind::Monitor) {
                return Err(port.error("-Q in: its packets are of both directions; leave -Q out"));
            }
        }
        let hold_time = match &output {
            Some(_) if to_stdout || args.tcpdump.unbuffered => Duration::ZERO,
            // Small pieces are joined in memory before they are compressed.
            Some(o) if o.compression != Compression::None && history.is_none() => {
                COMPRESSED_HOLD_TIME
            }
            _ => FILE_HOLD_TIME,
        };
        // The end of the last file is known only once its first packet has been passed on.
        let last_period = output.as_ref().map(|output| &output.rotation);
        let last_period = last_period.filter(|it| it.last_file.is_some()).and_then(|it| it.period);
        let hold_time = last_period.map_or(hold_time, |period| hold_time.min(period / 4));
        let encoder = EncoderConfig {
            format: output.as_ref().map_or_else(Format::default, |o| o.format),
            microseconds: args.micro,
            snaplen: snaplen.unwrap_or(0),
            loss_cause: "ring full".into(),
            ..EncoderConfig::default()
        };
        let stdout_is_taken = print || to_stdout;
        Ok(Self {
            args,
            ports,
            filter,
            output,
            history,
            encoder,
            hold_time,
            print,
            stdout_is_taken,
        })
    }

    /// Returns the fate of packets that no file keeps, for the ledger.
    pub fn unwritten(&self) -> &'static str {
        if self.print { "printed" } else { "counted" }
    }

    /// Creates the writer of packet lines.
    pub fn printer(&self) -> Printer {
        let mut printer = Printer::new(self.time_format(), TimeZone::system());
        printer.clock.nanoseconds = self.args.nano;
        printer.link_header = self.args.link_header;
        printer.quiet = self.args.tcpdump.quiet;
        printer.absolute = self.args.tcpdump.absolute;
        printer.json = self.args.common.json;
        printer.hex_dump = self.args.tcpdump.hex_dump();
        printer
    }

    /// Returns how lines begin, in the order in which they are printed.
    pub fn line_starts(&self) -> LineStarts {
        LineStarts::new(self.args.tcpdump.number, self.time_format(), self.args.nano)
    }

    /// Returns the format of the lines' times. Objects have their own.
    fn time_format(&self) -> TimeFormat {
        if self.args.common.json {
            return TimeFormat::None;
        }
        self.args.tcpdump.time_format().unwrap_or(self.args.time_format)
    }
}

impl Args {
    /// Rejects flags of tcpdump that have an equivalent elsewhere, and names it.
    pub fn check_flags(&self) -> Result<()> {
        // The filter of `-F` is not read here: a pipe can be read only once.
        let mut ports = self.tcpdump.ports().unwrap_or_default();
        ports.extend(tcpdump::split(&self.words).into_iter().flat_map(|(named, _)| named));
        let port = ports.iter().find(|port| port.kind() == Kind::Packet);
        self.tcpdump.check(port.map_or("eth0", PortName::name))
    }

    /// Returns true if the interfaces are to be listed.
    pub fn lists_interfaces(&self) -> bool {
        self.tcpdump.list
            || self.tcpdump.listing().is_none()
                && self.words.is_empty()
                && self.tcpdump.names_no_port()
    }

    /// Returns the ports, and the filter of a flag, a file or the words after the ports.
    fn sources(&self) -> Result<(Vec<PortName>, Option<String>)> {
        let (named, words) = tcpdump::split(&self.words)?;
        let mut ports = self.tcpdump.ports()?;
        ports.extend(named);
        if ports.is_empty() && self.tcpdump.listing().is_none() {
            return Err(self.port_first(&words.unwrap_or_default()));
        }
        let flag = self.filter.clone().or(self.tcpdump.filter()?);
        let own = ports.iter().find_map(|port| port.option("filter")).filter(|_| words.is_some());
        match (flag.or_else(|| own.map(str::to_owned)), words) {
            (Some(flag), Some(words)) => Err(Error::Usage(format!(
                "two filters: '{flag}' and '{words}'; join them with 'and'"
            ))),
            (flag, words) => Ok((ports, flag.or(words))),
        }
    }

    /// Returns the bytes to keep of a packet, if a flag limits them.
    fn snaplen(&self) -> Option<u32> {
        let limit = self.snaplen.filter(|&bytes| bytes > 0)?;
        Some(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Prints the program of the filter, for packets of the file or, by default, of Ethernet. Returns false if
    /// it is not wanted.
    pub fn print_program(&self) -> anyhow::Result<bool> {
        let Some(listing) = self.tcpdump.listing() else { return Ok(false) };
        let (ports, filter) = self.sources()?;
        let link_type = match ports.first() {
            Some(file) if file.kind() == Kind::Pcap => {
                let queue = Port::open_one(&file.to_string(), Directions::Receive)?;
                queue.interfaces().first().map_or(LINKTYPE_ETHERNET, |it| it.link_type)
            }
            _ => LINKTYPE_ETHERNET,
        };
        let filter = Filter::compile(filter.as_deref().unwrap_or_default(), link_type)?;
        let snaplen = self.snaplen().unwrap_or(SNAPLEN);
        // A program returns the bytes to keep of a packet. libpcap's compiler is told no length, and uses 0xffff.
        let instructions = filter.program().instructions().iter().map(|&it| match it {
            Instruction { code: RETURN, k: 0xffff, .. } => Instruction { k: snaplen, ..it },
            _ => it,
        });
        let listed = listing.of(&instructions.collect::<Vec<_>>());
        stdout().lock().write_all(listed.as_bytes())?;
        Ok(true)
    }

    /// Makes the error for a filter without a port before it. The port may be the last word.
    fn port_first(&self, filter: &str) -> Error {
        let netns = self.common.netns.as_deref();
        let (filter, port) = match filter.rsplit_once(' ') {
            Some((filter, last)) if link::interface(netns, last).is_ok() => (filter, last),
            _ => (filter, "eth0"),
        };
        Error::Usage(format!(
            "no port to capture from; it comes before the filter: sluice capture {port} {filter}"
        ))
    }

    /// Returns the description of the file, and the limits of packets kept in memory before it.
    fn output(&self) -> Result<Option<(OutputConfig, Option<HistoryConfig>)>> {
        let mut rotation = Rotation {
            bytes: self.rotate_size.or(self.tcpdump.rotate_bytes()),
            packets: self.rotate_count,
            period: self.rotate_time,
            files: self.files,
            last_file: self.max_files,
            on_request: false,
        };
        self.tcpdump.limit_files(&mut rotation)?;
        let Some(path) = &self.write else {
            let needs_file = rotation != Rotation::default()
                || self.format.is_some()
                || self.file.need_file()
                || self.sync;
            return match needs_file {
                true => Err(Error::Usage("flags for files need -w FILE".into())),
                false => Ok(None),
            };
        };
        let mut config = self.file.output(path, self.format, self.micro)?;
        let history = self.keep.history(&config.path, &rotation)?;
        rotation.on_request = history.is_some();
        config.rotation = rotation;
        config.snaplen = self.snaplen().unwrap_or(0);
        config.sync = self.sync;
        config.access = self.common.access();
        Ok(Some((config, history)))
    }
}

/// Lists the interfaces one can capture from.
pub fn list_interfaces(common: &Common) -> anyhow::Result<()> {
    let interfaces = link::interfaces(common.netns.as_deref())?;
    let mut out = stdout().lock();
    if common.json {
        let listed: serde_json::Value = interfaces.iter().map(listed).collect();
        return Ok(writeln!(out, "{listed}")?);
    }
    for interface in interfaces {
        writeln!(out, "{}", printable(&interface.to_string()))?;
    }
    if stdout().is_terminal() {
        let example = common.netns.as_ref().map_or_else(String::new, |n| format!(" --netns {n}"));
        writeln!(out, "\nprint packets:   sluice capture IFACE{example}")?;
        writeln!(out, "write to a file: sluice capture IFACE{example} -w trace.pcapng")?;
    }
    Ok(())
}

/// An interface as `--json` lists it.
fn listed(interface: &link::Interface) -> serde_json::Value {
    let addresses: Vec<String> = interface.addresses.iter().map(ToString::to_string).collect();
    serde_json::json!({
        "name": interface.name,
        "kind": interface.kind,
        "state": interface.state(),
        "loopback": interface.loopback,
        "mac": interface.mac.map(|mac| mac.to_string()),
        "mtu": interface.mtu,
        "addresses": addresses,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CaptureFlags {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn pieces_are_held_back_where_larger_ones_compress_better() {
        for (flags, expected) in [
            (&["-w", "a.pcapng"][..], FILE_HOLD_TIME),
            (&["-w", "a.pcapng.zst"], COMPRESSED_HOLD_TIME),
            (&["-w", "a.pcapng.zst", "--keep", "1s"], FILE_HOLD_TIME),
            (&["-w", "a.pcapng.zst", "-U"], Duration::ZERO),
            (&["-w", "/dev/stdout"], Duration::ZERO),
        ] {
            let CaptureFlags { args } =
                CaptureFlags::parse_from([&["capture", "a.pcap"], flags].concat());
            assert_eq!(Options::of(args).unwrap().hold_time, expected, "{flags:?}");
        }
    }
}
