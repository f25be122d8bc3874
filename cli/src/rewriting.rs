//! Flags that rewrite packets of capture files, for `replay` and `edit`.

use std::path::{Path, PathBuf};

use sluicegate::error::{Error, Result};
use sluicegate::forward::Vlan;
use sluicegate_traffic::rewrite::{Rewrite, Rule};

use crate::{notice, text_file};

/// Flags that rewrite packets.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Rewriting")]
pub struct Rewriting {
    /// Replace an Ethernet address, on either side; may be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = Rule::of_macs)]
    rewrite_mac: Vec<Rule>,

    /// Replace the bits of the first prefix by those of the second, which is not shorter; also in tunnels and
    /// ICMP errors; may be repeated
    #[arg(long, value_name = "PREFIX=PREFIX", value_parser = Rule::of_prefixes)]
    rewrite_ip: Vec<Rule>,

    /// Replace a port of TCP or UDP, on either side; may be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = Rule::of_ports)]
    rewrite_port: Vec<Rule>,

    /// File of these rules, one per line as after the flags: PREFIX=PREFIX, OLD=NEW; # begins a comment
    #[arg(long, value_name = "FILE")]
    rewrite: Option<PathBuf>,

    /// Source address of all frames
    #[arg(long, value_name = "MAC", value_parser = mac)]
    smac: Option<[u8; 6]>,

    /// Destination address of all frames; auto: that of the next hop, if they are sent by an interface
    #[arg(long, value_name = "MAC|auto", value_parser = dmac)]
    dmac: Option<Dmac>,

    /// Time to live or hop limit of all packets
    #[arg(long, value_name = "HOPS")]
    ttl: Option<u8>,

    /// VLAN tags: push:10 adds one, set:10 changes the outer one, pop removes it
    #[arg(long, value_name = "CHANGE")]
    vlan: Option<Vlan>,

    /// Recompute checksums: IPv4, TCP, UDP, ICMP, ICMPv6
    #[arg(long)]
    fix_checksums: bool,
}

/// The destination MAC of all frames.
#[derive(Clone, Copy, Debug)]
enum Dmac {
    /// The next hop's address.
    Auto,
    /// This address.
    Mac([u8; 6]),
}

fn dmac(text: &str) -> std::result::Result<Dmac, String> {
    if text == "auto" { Ok(Dmac::Auto) } else { mac(text).map(Dmac::Mac) }
}

fn mac(text: &str) -> std::result::Result<[u8; 6], String> {
    Rule::address(text).map_err(|error| error.to_string())
}

impl Rewriting {
    /// Returns true if the destination of all frames is the next hop.
    pub fn asks_next_hop(&self) -> bool {
        matches!(self.dmac, Some(Dmac::Auto))
    }

    /// The rules of all flags: those on the command line before those in the file.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is no rule.
    pub fn rewrite(&self) -> Result<Rewrite> {
        let replaced = self.rewrite_mac.iter().chain(&self.rewrite_ip).chain(&self.rewrite_port);
        let destination = match self.dmac {
            Some(Dmac::Mac(mac)) => Some(Rule::Destination(mac)),
            Some(Dmac::Auto) | None => None,
        };
        let set = [
            self.smac.map(Rule::Source),
            destination,
            self.ttl.map(Rule::HopLimit),
            self.vlan.map(Rule::Vlan),
            self.fix_checksums.then_some(Rule::Checksums),
        ];
        let mut all: Vec<Rule> = replaced.copied().chain(set.into_iter().flatten()).collect();
        if let Some(path) = &self.rewrite {
            all.extend(rules(path, &text_file::read(path)?)?);
        }
        if all.iter().any(Rule::merges_addresses) {
            notice::say(
                "rewrite: a new prefix is longer than the old one; different addresses may become equal",
            );
        }
        Ok(all.into_iter().collect())
    }
}

fn rules(path: &Path, text: &str) -> Result<Vec<Rule>> {
    let lines = text.lines().enumerate();
    let lines = lines.map(|(number, line)| (number, line.split('#').next().unwrap_or("").trim()));
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(number, line)| {
            let wrong = |error| format!("{}, line {}: {error}", path.display(), number + 1);
            line.parse().map_err(|error| Error::Usage(wrong(error)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_rule_per_line() {
        let path = Path::new("map");
        let text =
            "# the lab\n\n192.0.2.0/24=198.18.0.0/24 # all of it\n  2:0:0:0:0:1=2:0:0:0:0:2\n";
        let one_by_one = ["192.0.2.0/24=198.18.0.0/24", "02:00:00:00:00:01=02:00:00:00:00:02"];
        assert_eq!(rules(path, text).unwrap(), one_by_one.map(|rule| rule.parse().unwrap()));
        let error = rules(path, "# fine\nnonsense").unwrap_err().to_string();
        assert!(error.starts_with("map, line 2: "), "{error}");
    }
}
