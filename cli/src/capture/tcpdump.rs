//! The command line as users of tcpdump type it: its flags, and a filter after the port.

use std::borrow::Cow;
use std::path::PathBuf;

use clap::ArgAction::Count;
use sluicegate::error::{Error, Result};
use sluicegate::file::write::Rotation;
use sluicegate::filter::Listing;
use sluicegate::port::PortName;

use crate::print::{HexDump, TimeFormat};
use crate::text_file;

/// Flags that have another name, or another form, in the other commands.
#[derive(clap::Args)]
#[command(next_help_heading = "As tcpdump")]
pub struct TcpdumpArgs {
    /// Receive from this port; as PORT
    #[arg(short = 'i', value_name = "PORT")]
    interface: Vec<PortName>,

    /// Read this capture file; as pcap:FILE
    #[arg(short = 'r', value_name = "FILE")]
    read: Vec<String>,

    /// Read the filter from a file
    #[arg(short = 'F', value_name = "FILE", conflicts_with = "filter")]
    filter_file: Option<PathBuf>,

    /// List the interfaces; as without a port
    #[arg(short = 'D')]
    pub list: bool,

    /// Print the program of the filter, and exit; -dd as C, -ddd as numbers
    #[arg(short = 'd', action = Count)]
    program: u8,

    /// Leave the interface out of promiscuous mode; as promisc=off
    #[arg(short = 'p')]
    pub not_promiscuous: bool,

    /// Packets of this direction: in (as tx_copies=off) or inout
    #[arg(short = 'Q', value_name = "in|inout")]
    direction: Option<String>,

    /// Times of printed lines: -t none, -tt epoch, -ttt delta, -tttt date, -ttttt elapsed
    #[arg(short = 't', action = Count, conflicts_with_all = ["time_format", "json"])]
    times: u8,

    /// Begin each line with the packet's number
    #[arg(short = '#', long, conflicts_with = "json")]
    pub number: bool,

    /// Print less of each packet
    #[arg(short = 'q', conflicts_with = "json")]
    pub quiet: bool,

    /// Print TCP's sequence numbers as they are, not relative to the connection's first
    #[arg(short = 'S', conflicts_with = "json")]
    pub absolute: bool,

    /// Print the packet in hexadecimal, without its link-layer header; -xx with it
    #[arg(short = 'x', action = Count, conflicts_with = "json")]
    hex: u8,

    /// Print the packet in hexadecimal and ASCII; -XX with its link-layer header
    #[arg(short = 'X', action = Count, conflicts_with = "json")]
    hex_and_ascii: u8,

    /// Print the packet in ASCII; -AA with its link-layer header
    #[arg(short = 'A', action = Count, conflicts_with = "json")]
    ascii: u8,

    /// Begin a new file before one exceeds N million bytes; --rotate-size takes units
    #[arg(short = 'C', value_name = "N", conflicts_with = "rotate_size",
          value_parser = clap::value_parser!(u32).range(1..))]
    rotate_megabytes: Option<u32>,

    /// With -G: end after N files; with -C: keep the newest N files
    #[arg(short = 'W', value_name = "N", conflicts_with_all = ["files", "max_files"],
          value_parser = clap::value_parser!(u32).range(1..))]
    file_count: Option<u32>,

    /// Write each packet to the file at once
    #[arg(short = 'U')]
    pub unbuffered: bool,

    /// Accepted without effect: -n no names, -l lines are written at once, -K no checksums, -O filter as it is
    #[arg(short = 'n', short_aliases = ['l', 'K', 'O'], action = Count)]
    _always: u8,

    #[command(flatten)]
    absent: AbsentFlags,
}

/// Flags of tcpdump that have an equivalent elsewhere.
#[derive(clap::Args)]
struct AbsentFlags {
    #[arg(short = 'B', hide = true)]
    buffer_kib: Option<u64>,
    #[arg(short = 'L', hide = true)]
    list_link_types: bool,
    #[arg(short = 'y', hide = true)]
    link_type: Option<String>,
    #[arg(short = 'V', hide = true)]
    file_list: Option<String>,
}

impl AbsentFlags {
    /// Names the equivalent of a flag that was given, for a port of this interface.
    fn check(&self, interface: &str) -> Result<()> {
        let problem = if let Some(kib) = self.buffer_kib {
            // A block of a packet: ring has a megabyte.
            let blocks = kib.div_ceil(1024).max(4);
            format!(
                "-B {kib}: use an option of the port: sluice capture {interface},blocks={blocks}"
            )
        } else if self.list_link_types || self.link_type.is_some() {
            "-L, -y: an interface has one link type; leave the flag out (any,cooked=on is that of \
             `tcpdump -i any`)"
                .into()
        } else if let Some(list) = &self.file_list {
            let quoted = quoted(list);
            format!(
                "-V {list}: name the files: sed s/^/-r/ {quoted} | xargs -d '\\n' sluice capture"
            )
        } else {
            return Ok(());
        };
        Err(Error::Usage(problem))
    }
}

/// Quotes a word for a shell, if it needs that.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./+:@,%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")).into(),
    }
}

impl TcpdumpArgs {
    /// Rejects flags that have an equivalent elsewhere, and names it for a port of this interface.
    pub fn check(&self, interface: &str) -> Result<()> {
        self.absent.check(interface)
    }

    pub fn names_no_port(&self) -> bool {
        self.interface.is_empty() && self.read.is_empty()
    }

    /// Returns the ports of the flags.
    pub fn ports(&self) -> Result<Vec<PortName>> {
        let files = self.read.iter().map(|file| format!("pcap:{file}").parse());
        self.interface.iter().cloned().map(Ok).chain(files).collect()
    }

    /// Returns the filter in the file of `-F`.
    pub fn filter(&self) -> Result<Option<String>> {
        let Some(path) = &self.filter_file else { return Ok(None) };
        let text = text_file::read(path)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok((!words.is_empty()).then(|| words.join(" ")))
    }

    /// Returns true if packets that the host sends are to be left out.
    pub fn only_received(&self) -> Result<bool> {
        match self.direction.as_deref() {
            None | Some("inout") => Ok(false),
            Some("in") => Ok(true),
            Some("out") => Err(Error::Usage(
                "-Q out: no port receives only what the host sends; use the filter \
                 'ether src MAC', with the MAC of the interface"
                    .into(),
            )),
            Some(other) => Err(Error::Usage(format!("-Q {other}: use in or inout"))),
        }
    }

    pub fn time_format(&self) -> Option<TimeFormat> {
        use TimeFormat::{Date, Delta, Elapsed, Epoch, None as NoTime};
        let index = usize::from(self.times.min(5)).checked_sub(1)?;
        [NoTime, Epoch, Delta, Date, Elapsed].get(index).copied()
    }

    pub fn hex_dump(&self) -> Option<HexDump> {
        let dump = |hex, ascii, count| HexDump { hex, ascii, link_header: count > 1 };
        match (self.hex_and_ascii, self.hex, self.ascii) {
            (0, 0, 0) => None,
            (0, 0, count) => Some(dump(false, true, count)),
            (0, count, _) => Some(dump(true, false, count)),
            (count, ..) => Some(dump(true, true, count)),
        }
    }

    /// Returns the form of the filter's program to print.
    pub fn listing(&self) -> Option<Listing> {
        match self.program {
            0 => None,
            1 => Some(Listing::Assembly),
            2 => Some(Listing::C),
            _ => Some(Listing::Decimal),
        }
    }

    pub fn rotate_bytes(&self) -> Option<u64> {
        self.rotate_megabytes.map(|megabytes| u64::from(megabytes) * 1_000_000)
    }

    /// Applies `-W` to a rotation: a ring, but an end if new files begin by time.
    pub fn limit_files(&self, rotation: &mut Rotation) -> Result<()> {
        let Some(count) = self.file_count else { return Ok(()) };
        let by_content = rotation.bytes.is_some() || rotation.packets.is_some();
        match rotation.period {
            Some(_) if by_content => {
                return Err(Error::Usage(format!(
                    "-W {count} with both -G and -C: the versions of tcpdump disagree; keep the newest \
                     files by --files {count}, or end by --max-files {count}"
                )));
            }
            Some(_) => rotation.last_file = Some(count.into()),
            None => rotation.files = Some(count),
        }
        Ok(())
    }
}

/// Words that begin a filter (pcap-filter(7)). An interface with such a name is `packet:NAME`.
pub const FILTER_WORDS: &[&str] = &[
    "aarp",
    "ah",
    "arp",
    "atalk",
    "broadcast",
    "carp",
    "clnp",
    "decnet",
    "dst",
    "esis",
    "esp",
    "ether",
    "fddi",
    "gateway",
    "geneve",
    "greater",
    "host",
    "icmp",
    "icmp6",
    "ifname",
    "igmp",
    "igrp",
    "inbound",
    "ip",
    "ip6",
    "ipx",
    "isis",
    "iso",
    "lat",
    "len",
    "less",
    "link",
    "llc",
    "mpls",
    "multicast",
    "net",
    "netbeui",
    "not",
    "outbound",
    "pim",
    "port",
    "portrange",
    "pppoed",
    "pppoes",
    "proto",
    "protochain",
    "rarp",
    "sctp",
    "src",
    "stp",
    "tcp",
    "udp",
    "vlan",
    "vrrp",
    "vxlan",
    "wlan",
];

/// Splits words into ports and a filter, which begins at the first word of its language.
pub fn split(words: &[String]) -> Result<(Vec<PortName>, Option<String>)> {
    let at = words.iter().position(|word| begins_filter(word)).unwrap_or(words.len());
    let (ports, filter) = words.split_at(at);
    let ports = ports.iter().map(|word| word.parse()).collect::<Result<_>>()?;
    Ok((ports, (!filter.is_empty()).then(|| filter.join(" "))))
}

/// Returns true for the first word of a filter.
pub fn begins_filter(word: &str) -> bool {
    let first =
        word.split([' ', '[', '(', '<', '>', '=', '!', '&', '|']).next().unwrap_or_default();
    word.starts_with(['(', '!']) || FILTER_WORDS.contains(&first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_follows_the_ports() {
        let rows: [(&str, &[&str], Option<&str>); 10] = [
            ("eth0", &["eth0"], None),
            ("eth0 udp port 53", &["eth0"], Some("udp port 53")),
            ("eth0 eth1 not arp", &["eth0", "eth1"], Some("not arp")),
            ("a.pcap host 198.18.0.1 and port 9", &["a.pcap"], Some("host 198.18.0.1 and port 9")),
            ("eth0 ( udp or tcp )", &["eth0"], Some("( udp or tcp )")),
            ("eth0 tcp[13]&2!=0", &["eth0"], Some("tcp[13]&2!=0")),
            ("any !arp", &["any"], Some("!arp")),
            ("any len>100", &["any"], Some("len>100")),
            ("ip-tun0 not(udp)", &["ip-tun0"], Some("not(udp)")),
            ("udp port 53", &[], Some("udp port 53")),
        ];
        for (words, ports, filter) in rows {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let (found, expression) = split(&words).unwrap();
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(
                (&found[..], expression.as_deref()),
                (&ports.iter().map(|p| p.to_string()).collect::<Vec<_>>()[..], filter),
                "{words:?}"
            );
        }
        let words = ["eth0".to_owned(), "udp port 53".to_owned()];
        assert_eq!(split(&words).unwrap().1.as_deref(), Some("udp port 53"), "in one word");
    }

    #[test]
    fn a_quoted_word_is_one_word_for_a_shell() {
        for (word, is_plain) in
            [("list", true), ("/a/b-1.txt", true), ("my list", false), ("it's $HOME", false)]
        {
            let line = format!("printf %s, {}", quoted(word));
            let printed = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(printed.stdout).unwrap(), format!("{word},"));
            assert_eq!(quoted(word) == word, is_plain, "{word}");
        }
    }
}
