//! `sluice edit`: cuts, filters, merges and rewrites capture files.
//!
//! ```text
//!   files → in order of time → cut, filter → rewrite → encoder → file
//! ```
//!
//! One thread does everything but compression. Numbers, times and the filter refer to packets as they are in
//! the files.

mod editor;
mod selection;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use sluicegate::error::{Error, Result};
use sluicegate::file::Format;
use sluicegate::file::read::MergedReader;
use sluicegate::file::write::{EncoderConfig, OutputConfig, output_path};
use sluicegate::units;

use crate::args::file_mode;
use crate::file_flags::FileFlags;
use crate::rewriting::Rewriting;
use crate::signals::Signals;
use crate::{notice, pipe_reader, ports};
pub use editor::wait;
use editor::{Changes, Editor, PacketWriter};
use selection::{PacketNumbers, Selection, Time};

const EXAMPLES: &str = "\
Examples:
  sluice edit trace.pcapng part.pcapng.zst --packets 1-100,200-
  sluice edit trace.pcapng part.pcap --from +0.01s --until +0.02s -f 'udp port 53'
  sluice edit trace.pcap big.pcapng both.pcapng      merged by time
  sluice edit trace.pcap headers.pcap -s 96
  sluice edit trace.pcap other.pcap --rewrite-ip 0.0.0.0/0=198.18.0.0/15 --rewrite-port 80=8080
  sluice edit trace.pcap other.pcap --smac 02:00:00:00:00:01 --vlan pop --ttl 64
  sluice edit trace.pcap fixed.pcap --fix-checksums --shift -1h
  sluice edit trace.pcapng - --format pcap | tcpdump -nn -r -";

/// Cut, filter, merge and rewrite capture files
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, override_usage = "sluice edit [OPTIONS] <IN>... <OUT>")]
// A file has no next hop.
#[command(mut_arg("dmac", |dmac| dmac.value_name("MAC").help("Destination address of all frames")))]
pub struct Args {
    /// IN: capture files to read, merged by time. OUT: the file to write, whose extensions decide its
    /// format. - is standard input or output
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Keep packets with these numbers: 1-100,200-
    #[arg(long, value_name = "LIST")]
    packets: Option<PacketNumbers>,

    /// Keep packets from this time on: 2026-11-20T21:43:33Z, without Z local; 1795211013.5, seconds
    /// since 1970; +5s, after the first packet
    #[arg(long, value_name = "TIME")]
    from: Option<Time>,

    /// Keep packets before this time
    #[arg(long, value_name = "TIME")]
    until: Option<Time>,

    /// Keep packets that match a pcap-filter expression
    #[arg(short, long, value_name = "EXPR")]
    filter: Option<String>,

    /// Maximum bytes kept per packet; 0: the default [default: 262144]
    #[arg(short, long, value_name = "BYTES", value_parser = snaplen)]
    snaplen: Option<u32>,

    /// Move all times: 1h, -2.5s
    #[arg(long, value_name = "TIME", value_parser = shift, allow_hyphen_values = true)]
    shift: Option<i64>,

    /// pcap or pcapng [default: by the extension, otherwise pcapng]
    #[arg(long)]
    format: Option<Format>,

    /// pcap with microseconds, for old readers [default: nanoseconds]
    #[arg(long)]
    micro: bool,

    #[command(flatten)]
    file: FileFlags,

    /// Permission bits of the written file: 0640 lets the group read it
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = file_mode)]
    file_mode: u32,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    rewriting: Rewriting,
}

/// Returns the path of a file that may have the name of a port: `pcap:trace.pcap`.
fn path(name: &Path) -> PathBuf {
    let bytes = name.as_os_str().as_bytes();
    OsStr::from_bytes(bytes.strip_prefix(b"pcap:").unwrap_or(bytes)).into()
}

/// Rejects editcap's numbers of packets after the files.
fn refuse_numbers(files: &[PathBuf]) -> Result<()> {
    fn numbers(name: &Path) -> Option<&str> {
        let text = name.to_str()?;
        let is_range = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        (is_range && text.parse::<PacketNumbers>().is_ok()).then_some(text)
    }
    let mut words: Vec<&str> = files.iter().rev().map_while(|name| numbers(name)).collect();
    words.reverse();
    let list = words.join(",");
    let Ok(numbers) = list.parse::<PacketNumbers>() else { return Ok(()) };
    let remove = match numbers.others() {
        others if others.is_empty() => String::new(),
        others => format!("to remove these packets, as editcap does, use --packets {others}; "),
    };
    Err(Error::Usage(format!(
        "{}: {remove}to keep them, as editcap -r, use --packets {list}; a file with such a name is ./{}",
        words.join(" "),
        words.last().unwrap_or(&"")
    )))
}

/// Rejects files of different link types, which a pcap file cannot hold together.
fn refuse_link_types<'a>(inputs: impl Iterator<Item = &'a Path>) -> Result<()> {
    let mut first = None;
    // A pipe can be read only once.
    for path in inputs.filter(|path| path.is_file()) {
        for interface in MergedReader::open([path])?.interfaces() {
            let (name, link_type) = *first.get_or_insert((path, interface.link_type));
            if link_type != interface.link_type {
                return Err(Error::Usage(format!(
                    "a pcap file holds one link type: {} has {link_type}, {} has {}; write pcapng",
                    name.display(),
                    path.display(),
                    interface.link_type
                )));
            }
        }
    }
    Ok(())
}

fn snaplen(text: &str) -> std::result::Result<u32, String> {
    let bytes = units::bytes(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes).map_err(|_| "use less than 4 GiB".into())
}

/// Parses a change of times, in ns.
fn shift(text: &str) -> std::result::Result<i64, String> {
    let (is_back, time) = match text.strip_prefix('-') {
        Some(time) => (true, time),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let time = units::duration(time).map_err(|error| error.to_string())?;
    let ns = i64::try_from(time.as_nanos()).map_err(|_| "use at most 292 years")?;
    Ok(if is_back { -ns } else { ns })
}

/// Runs the command.
pub fn edit(args: Args) -> anyhow::Result<()> {
    refuse_numbers(&args.files)?;
    let files: Vec<PathBuf> = args.files.iter().map(|name| path(name)).collect();
    let Some((output, inputs)) = files.split_last().filter(|(_, inputs)| !inputs.is_empty()) else {
        let usage = "name the files to read, and last the file to write: sluice edit IN OUT";
        return Err(Error::Usage(usage.into()).into());
    };
    let output = &output_path(output.clone());
    if args.rewriting.asks_next_hop() {
        let wrong = "--dmac auto: a file has no next hop; set a MAC";
        return Err(Error::Usage(wrong.into()).into());
    }
    let merges = inputs.len() > 1;
    let inputs = || inputs.iter().map(PathBuf::as_path);
    ports::refuse_overwriting_files(inputs(), output)?;
    if merges && output.is_file() {
        // `sluice edit *.pcap` would overwrite the last one.
        return Err(Error::Usage(format!(
            "{} exists, and a merge overwrites no file: name a new file last, or remove it",
            output.display()
        ))
        .into());
    }
    let is_device = output.exists() || output == Path::new("-");
    if merges && args.format.is_none() && Format::of(output).is_none() && !is_device {
        // The last word may be meant as something else, and the last input as the output.
        let output = output.display();
        return Err(Error::Usage(format!(
            "{output}: the file to write comes last; name it {output}.pcapng, or add --format"
        ))
        .into());
    }
    let config = args.output(output)?;
    let rewrite = args.rewriting.rewrite()?;
    if output == Path::new("-") {
        inputs().try_for_each(pipe_reader::await_input)?;
    }
    let mut reader = MergedReader::open(inputs())?;
    if merges && config.format == Format::Pcap {
        refuse_link_types(inputs())?;
    }
    let mut selection =
        Selection::new(args.packets.clone(), [args.from, args.until], args.filter.clone());
    // An invalid filter empties no file.
    selection.add_interfaces(reader.interfaces())?;
    let signals = Signals::catch()?;
    let (encoder, interfaces) = (args.encoder(&config), reader.interfaces());
    let writer = PacketWriter::create(
        &encoder,
        config,
        interfaces,
        args.filter.as_deref(),
        rewrite.growth(),
    )?;
    let changes = Changes::new(rewrite, args.shift.unwrap_or(0));
    let mut editor = Editor::new(inputs(), selection, changes, writer);
    // A reader that does not read blocks the loop.
    signals.end_at_second()?;
    let edited = editor.run(&mut reader, &signals, args.json);
    let (report, failure) = editor.finish();
    drop(signals);
    report.publish(output == Path::new("-"), args.json)?;
    match failure {
        Some(failure) if failure.errno() == Some(Errno::EPIPE as i32) => {
            notice::say("the reader closed the pipe");
        }
        Some(failure) => return Err(failure.into()),
        None => {}
    }
    Ok(edited?)
}

impl Args {
    fn output(&self, path: &Path) -> Result<OutputConfig> {
        let mut config = self.file.output(path, self.format, self.micro)?;
        config.access.mode = self.file_mode;
        config.snaplen = self.snaplen.unwrap_or(0);
        Ok(config)
    }

    fn encoder(&self, config: &OutputConfig) -> EncoderConfig {
        EncoderConfig {
            format: config.format,
            microseconds: config.microseconds,
            snaplen: config.snaplen,
            ..EncoderConfig::default()
        }
    }
}
