//! `sluice scrub samples`: sampled packets of a running scrubber, with what decided on them.

use std::io::{Write as _, stdout};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use serde_json::Value;
use sluicegate::control::Client;
use sluicegate::file::write::{Chunk, Encoder, EncoderConfig, Output, OutputConfig};
use sluicegate::port::LINKTYPE_ETHERNET;
use sluicegate::ring::{Direction, Interface, Meta, Packet};

use super::SocketArgs;
use super::control::{Request, exchange};
use super::subscribers::SampleChoice;
use crate::notice::{printable, say};
use crate::print::{Printer, TimeFormat};
use crate::signals::Signals;
use crate::units::{packets_word, show_count};

/// Time between two requests.
const INTERVAL: Duration = Duration::from_millis(100);
/// N of `--dropped`, by default.
const DROPPED_RATE: NonZeroU32 = NonZeroU32::new(100).expect("not 0");

const NOTES: &str = "\
A CPU's buffer has 256 KiB, and a reader's buffer 4,096 packets; packets without room are counted.
A sample has the first 256 bytes of its packet.

Examples:
  sluice scrub samples                             one of 100 dropped packets, as lines
  sluice scrub samples --dropped 1 --rule no-telnet
  sluice scrub samples --passed 1000 -w passed.pcapng
  sluice scrub samples -w - | tshark -r - -T fields -e frame.comment";

/// Options of `samples`.
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct SamplesArgs {
    /// Write the packets to a pcapng file, `-` for standard output; the comment of a packet is its verdict and cause
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// Sample one of N dropped packets [default: 100 without --passed]
    #[arg(long, value_name = "N")]
    dropped: Option<NonZeroU32>,

    /// Sample one of N passed packets
    #[arg(long, value_name = "N")]
    passed: Option<NonZeroU32>,

    /// Only packets that this rule matched
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,

    /// End after N packets
    #[arg(long, value_name = "N", default_value_t = 1000)]
    count: u64,

    /// Print a JSON object per packet, one a line
    #[arg(long, conflicts_with = "write")]
    json: bool,

    #[command(flatten)]
    socket: SocketArgs,
}

/// Reads samples until a signal, or until there are enough.
pub fn samples(args: &SamplesArgs) -> anyhow::Result<()> {
    let mut client = Client::connect(&args.socket.path()?)?;
    let signals = Signals::catch()?;
    let dropped = args.dropped.or(args.passed.is_none().then_some(DROPPED_RATE));
    let choice = SampleChoice { dropped, passed: args.passed, rule: args.rule.clone() };
    let request = Request::Samples(choice);
    // An error comes before a file is created.
    let mut answer = exchange(&mut client, &request)?;
    let mut sink = Sink::create(args)?;
    let (mut count, mut lost) = (0, 0);
    let read = loop {
        lost += answer["lost"].as_u64().unwrap_or(0);
        for sample in answer["samples"].as_array().into_iter().flatten() {
            if count < args.count {
                sink.add(sample)?;
                count += 1;
            }
        }
        sink.flush()?;
        if count == args.count || signals.wait(Instant::now() + INTERVAL)? {
            break Ok(());
        }
        answer = match exchange(&mut client, &request) {
            Ok(answer) => answer,
            // The file is completed first.
            Err(error) => break Err(error),
        };
    };
    sink.finish()?;
    let lost = if lost > 0 { format!(", {} lost", show_count(lost)) } else { String::new() };
    say(format_args!("{} {}{lost}", show_count(count), packets_word(count)));
    read
}

enum Sink {
    Json,
    Lines(Box<Printer>, String),
    File(Box<(Encoder, Chunk, Output)>),
}

impl Sink {
    fn create(args: &SamplesArgs) -> anyhow::Result<Self> {
        if args.json {
            return Ok(Self::Json);
        }
        let Some(path) = &args.write else {
            let printer = Printer::new(TimeFormat::default(), TimeZone::system());
            return Ok(Self::Lines(Box::new(printer), String::new()));
        };
        let config = OutputConfig::new(path);
        let encoder = EncoderConfig { format: config.format, ..EncoderConfig::default() };
        let encoder = Encoder::new(&encoder);
        let mut output = Output::create(config)?;
        let (name, comment) = (String::new(), "samples of sluice scrub".into());
        let interface = Interface { name, link_type: LINKTYPE_ETHERNET, snaplen: 0, comment };
        output.add_interface(&interface, None)?;
        let chunk = encoder.chunk();
        Ok(Self::File(Box::new((encoder, chunk, output))))
    }

    fn add(&mut self, sample: &Value) -> anyhow::Result<()> {
        let bytes = bytes_of(sample["packet"].as_str().unwrap_or_default());
        let meta = Meta {
            timestamp_ns: sample["time_ns"].as_u64().unwrap_or(0),
            wire_bytes: sample["frame_bytes"].as_u64().unwrap_or(0) as u32,
            direction: Direction::In,
            ..Meta::default()
        };
        let packet = Packet::new(&meta, &bytes);
        match self {
            Self::Json => writeln!(stdout(), "{sample}")?,
            Self::Lines(printer, line) => {
                line.clear();
                printer.line(line, LINKTYPE_ETHERNET, None, &packet);
                writeln!(stdout(), "{}  {}", line.trim_end(), printable(&cause(sample)))?;
            }
            Self::File(file) => {
                let (encoder, chunk, output) = &mut **file;
                if !encoder.append_with_comment(chunk, &packet, &cause(sample)) {
                    output.write(chunk)?;
                    chunk.clear();
                    encoder.append_with_comment(chunk, &packet, &cause(sample));
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if let Self::File(file) = self {
            let (_, chunk, output) = &mut **file;
            output.write(chunk)?;
            chunk.clear();
            output.flush()?;
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.2.finish().failure.map_or(Ok(()), |error| Err(error.into())),
            Self::Json | Self::Lines(..) => Ok(()),
        }
    }
}

/// Returns what decided on a packet: "drop rule no-telnet".
fn cause(sample: &Value) -> String {
    let [verdict, stage, name] =
        ["verdict", "stage", "name"].map(|key| sample[key].as_str().unwrap_or_default());
    let rule = sample["rule"].as_str().filter(|_| stage != "rule");
    let rule = rule.map(|it| format!(", matched rule {it}")).unwrap_or_default();
    match stage == name || name.is_empty() {
        true => format!("{verdict} {stage}{rule}"),
        false => format!("{verdict} {stage} {name}{rule}"),
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks_exact(2).map(|it| std::str::from_utf8(it).unwrap_or("00"));
    pairs.map(|it| u8::from_str_radix(it, 16).unwrap_or(0)).collect()
}
