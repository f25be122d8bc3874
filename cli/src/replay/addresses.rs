//! Address rules from flags and a file, and the next hop for `--dmac auto`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use sluicegate::error::{Error, Result};
use sluicegate::link::{Interface, Mac, NextHops};
use sluicegate::port::{OpenOptions, Port, PortName};
use sluicegate_traffic::rewrite::{Rewrite, Rule};

use crate::target::{common_hop, destination};

/// Flags that rewrite addresses.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Addresses")]
pub struct Addresses {
    /// Write another Ethernet address for one: OLD=NEW; may be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = Rule::of_macs)]
    rewrite_mac: Vec<Rule>,

    /// Write another IP prefix for one, and keep the bits behind it; may be repeated
    #[arg(long, value_name = "PREFIX=PREFIX", value_parser = Rule::of_prefixes)]
    rewrite_ip: Vec<Rule>,

    /// Rules of either kind in a file, one a line; # begins a remark
    #[arg(long, value_name = "FILE")]
    rewrite: Option<PathBuf>,

    /// Source address of all frames
    #[arg(long, value_name = "MAC", value_parser = mac)]
    smac: Option<[u8; 6]>,

    /// Destination address of all frames: a MAC, or auto for that of the next hop
    #[arg(long, value_name = "MAC|auto", value_parser = dmac)]
    dmac: Option<Dmac>,
}

/// The destination MAC of all frames.
#[derive(Clone, Copy, Debug)]
enum Dmac {
    /// The next hop's.
    Auto,
    /// This one.
    Mac([u8; 6]),
}

fn dmac(text: &str) -> std::result::Result<Dmac, String> {
    if text == "auto" { Ok(Dmac::Auto) } else { mac(text).map(Dmac::Mac) }
}

fn mac(text: &str) -> std::result::Result<[u8; 6], String> {
    Rule::address(text).map_err(|error| error.to_string())
}

impl Addresses {
    /// Reports whether the next hop's MAC must be resolved.
    pub fn ask_for_next_hop(&self) -> bool {
        matches!(self.dmac, Some(Dmac::Auto))
    }

    /// The rules of all flags: those on the command line before those in the file.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is no rule.
    pub fn rewrite(&self) -> Result<Rewrite> {
        let given = self.rewrite_mac.iter().chain(&self.rewrite_ip).copied();
        let fixed = self.smac.map(Rule::Source).into_iter();
        let fixed = fixed.chain(match self.dmac {
            Some(Dmac::Mac(mac)) => Some(Rule::Destination(mac)),
            Some(Dmac::Auto) | None => None,
        });
        let mut rewrite: Rewrite = given.chain(fixed).collect();
        if let Some(path) = &self.rewrite {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| Error::path("read", path, error))?;
            rules(path, &text)?.into_iter().for_each(|rule| rewrite.add(rule));
        }
        Ok(rewrite)
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

/// Packets of the file that are looked at for their destinations.
const SAMPLED: usize = 1000;

/// The MAC that all packets of a file are sent to.
///
/// # Errors
/// The file cannot be read twice, the port is no interface, or a next hop does not resolve.
pub fn next_hop_mac(
    file: &PortName,
    port: &PortName,
    interface: Option<&Interface>,
    netns: Option<&str>,
    rewrite: &Rewrite,
) -> Result<Mac> {
    let Some(interface) = interface.filter(|it| it.mac.is_some()) else {
        let short = port.short();
        return Err(Error::Usage(format!(
            "--dmac auto: {short} is no Ethernet interface: it has no next hop; name a MAC"
        )));
    };
    if !Path::new(file.name()).is_file() {
        return Err(Error::Usage(format!(
            "--dmac auto: {} can be read only once: write it to a file first, or name a MAC",
            file.name()
        )));
    }
    let destinations = destinations(file, rewrite)?;
    let mut hops = NextHops::open(netns, interface)?;
    let (destination, _) = common_hop(&mut hops, file.name(), &destinations)?;
    hops.mac(destination)
}

/// The IP destinations of the first packets, as they are sent.
fn destinations(file: &PortName, rewrite: &Rewrite) -> Result<Vec<IpAddr>> {
    let mut port = Port::open(file, &OpenOptions::default())?;
    let mut found = Vec::new();
    let Some(queue) = port.queues.first_mut() else { return Ok(found) };
    let mut packets = 0;
    // What is broken behind some packets is for the run to report, which sends these.
    while packets < SAMPLED && !queue.is_finished() && queue.sync_rx().is_ok() {
        for packet in queue.rx().packets() {
            let mut frame = packet.head().to_vec();
            rewrite.apply(&mut frame);
            found.extend(destination(&frame));
            packets += 1;
        }
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_rule_a_line() {
        let path = Path::new("map");
        let text =
            "# the lab\n\n192.0.2.0/24=198.18.0.0/24 # all of it\n  2:0:0:0:0:1=2:0:0:0:0:2\n";
        let shown: Vec<_> = rules(path, text).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.0/24=198.18.0.0/24", "02:00:00:00:00:01=02:00:00:00:00:02"]);
        let error = rules(path, "# fine\nnonsense").unwrap_err().to_string();
        assert!(error.starts_with("map, line 2: "), "{error}");
    }
}
