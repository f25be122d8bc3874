//! `sluice claims`, `attach`, `detach`: the resident XDP program of an interface, and the owners of
//! its packets.

use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use sluicegate::error::Error;
use sluicegate::link::{self, Interface, netns};
use sluicegate::port::{detach_host, host_left, host_owner};
use sluicegate::xdp::Mode;
use sluicegate::xdp::resident::{ModeRequest, OwnedStage, Resident, StageCounters};

use crate::advice;
use crate::notice::write_printable;
use crate::units::{packets_word, show_bytes, show_count, show_duration};

const ATTACH_EXAMPLES: &str = "\
Examples:
  sluice attach eth0
  sluice attach eth0 --mode skb
  sluice detach eth0";

const CLAIMS_EXAMPLES: &str = "\
Examples:
  sluice claims eth0
  sluice claims right0 --netns lab-right --json";

/// Show the ports that use an interface's XDP program
#[derive(clap::Args)]
#[command(after_help = CLAIMS_EXAMPLES)]
pub struct ClaimsArgs {
    #[command(flatten)]
    target: InterfaceArgs,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Keep the XDP program on an interface without a port
///
/// Until `sluice detach`, or the interface is removed. While no port uses the program, the host gets
/// all packets.
#[derive(clap::Args)]
#[command(after_help = ATTACH_EXAMPLES)]
pub struct AttachArgs {
    #[command(flatten)]
    target: InterfaceArgs,

    /// native (driver) or skb (kernel) [default: native if the driver supports it]
    #[arg(long, value_name = "native|skb", value_parser = ["native", "skb"])]
    mode: Option<String>,

    /// Clock of the packets' timestamps; hardware is for ports with timestamp=hardware [default: xdp]
    #[arg(long, value_name = "xdp|hardware", value_parser = ["xdp", "hardware"])]
    timestamp: Option<String>,
}

/// Remove the XDP program from an interface, and the programs and filters of a host: port
///
/// Ports that use them process the earlier packets and end. This also reconnects a host that a killed
/// host: port with fallback=drop has disconnected.
#[derive(clap::Args)]
#[command(after_help = ATTACH_EXAMPLES)]
pub struct DetachArgs {
    #[command(flatten)]
    target: InterfaceArgs,
}

#[derive(clap::Args)]
struct InterfaceArgs {
    /// The interface
    interface: String,

    /// Network namespace of the interface: a name of `ip netns`, a path, or the PID of a process in it
    #[arg(long, value_name = "NETNS")]
    netns: Option<String>,
}

impl InterfaceArgs {
    /// Works on the interface in its namespace. First restores settings that a killed port or scrubber
    /// left, if permitted.
    fn with<T: Send>(
        &self,
        work: impl FnOnce(&Interface) -> sluicegate::Result<T> + Send,
    ) -> sluicegate::Result<T> {
        let interface = link::interface(self.netns.as_deref(), &self.interface)?;
        netns::run_in(self.netns.as_deref(), || {
            let _ = sluicegate::nic::restore_interrupts(&interface);
            sluicegate_scrub::program::restore_settings();
            work(&interface)
        })
    }
}

/// Runs `sluice attach`.
pub fn attach(args: AttachArgs) -> anyhow::Result<()> {
    let request = match args.mode.as_deref() {
        None => ModeRequest::Best,
        Some("skb") => ModeRequest::Only(Mode::Skb),
        Some(_) => ModeRequest::Only(Mode::Native),
    };
    let by_card = args.timestamp.as_deref() == Some("hardware");
    let (mode, fallback, no_times) = args.target.with(|interface| {
        let (resident, fallback) = Resident::join_for(interface, request, by_card)?;
        resident.keep(interface)?;
        let no_times = resident.no_metadata().filter(|_| by_card).map(str::to_owned);
        Ok((resident.mode(), fallback, no_times))
    })?;
    let name = &args.target.interface;
    if let Some(reason) = fallback {
        crate::notice::say(format_args!("{name}: skb mode, a tenth as fast as native: {reason}"));
    }
    if let Some(reason) = no_times {
        crate::notice::say(format_args!("{name}: no hardware timestamps: {reason}"));
    }
    let mode = mode.name();
    writeln!(
        io::stdout(),
        "{}",
        advice::with_namespace(&format!(
            "{name}: program attached, {mode} mode; `sluice detach {name}` removes it"
        ))
    )?;
    Ok(())
}

/// Runs `sluice detach`.
pub fn detach(args: DetachArgs) -> anyhow::Result<()> {
    let name = &args.target.interface;
    // First: a foreign XDP program, which is an error, does not keep the host from its wire.
    let host = args.target.with(|interface| {
        detach_host(interface).map_err(|error| match error {
            // Without the privilege the search for a host: port fails, too, and few interfaces have one.
            Error::Privilege { capability, remedy, .. } => Error::Privilege {
                operation: format!("permission to detach the XDP program from {name}"),
                capability,
                remedy,
            },
            other => other,
        })
    })?;
    if host {
        writeln!(
            io::stdout(),
            "{name}: removed the filters of a host: port; the host sends directly again"
        )?;
    }
    let users = args.target.with(|interface| match Resident::find(interface) {
        Ok(None) => Ok(None),
        Ok(Some(resident)) => {
            let users = resident.owned_stages()?.len();
            resident.detach(interface)?;
            Ok(Some(Some(users)))
        }
        // A program of another version can still be removed.
        Err(_) => Ok(Resident::detach_any(interface)?.then_some(None)),
    })?;
    match users {
        None if host => {}
        None => writeln!(io::stdout(), "{name} has no XDP program")?,
        Some(None) => writeln!(
            io::stdout(),
            "{name}: removed the program of another version; ports that used it get no more packets"
        )?,
        Some(Some(0)) => writeln!(io::stdout(), "{name}: program removed")?,
        Some(Some(n)) => writeln!(
            io::stdout(),
            "{name}: program removed; the claims that used it ({n}) get no more packets and end"
        )?,
    }
    Ok(())
}

/// Runs `sluice claims`.
pub fn claims(args: ClaimsArgs) -> anyhow::Result<()> {
    let found = args.target.with(|interface| {
        let Some(resident) = Resident::find(interface)? else { return Ok(None) };
        let StageCounters { packets, bytes, .. } = resident.total();
        let (id, mode) = (resident.program(), resident.mode().name());
        let program =
            ResidentReport { id, mode, pinned: resident.is_pinned(interface), packets, bytes };
        Ok(Some((program, resident.owned_stages()?)))
    })?;
    let (program, claims) = found.unzip();
    let shown = ClaimsReport {
        command: "claims",
        program,
        claims: claims.unwrap_or_default(),
        host: args.target.with(host_owner)?,
        host_left: args.target.with(host_left)?,
        interface: args.target.interface,
    };
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string(&shown)?)?,
        false => write_printable(&mut out, |text| shown.print(text))?,
    }
    Ok(())
}

/// The users of an interface by XDP.
#[derive(Serialize)]
struct ClaimsReport {
    command: &'static str,
    interface: String,
    /// None: all packets are the host's.
    program: Option<ResidentReport>,
    #[serde(serialize_with = "claims_json")]
    claims: Vec<OwnedStage>,
    /// The owner of the host's outgoing packets, by a host: port.
    host: Option<String>,
    /// A host: port that has exited left its filters on the interface.
    host_left: bool,
}

#[derive(Serialize)]
struct ResidentReport {
    id: u32,
    mode: &'static str,
    /// The program stays after its last user has exited.
    pinned: bool,
    /// All that came since it was attached.
    packets: u64,
    bytes: u64,
}

fn age(claimed: &OwnedStage) -> Duration {
    let since = SystemTime::UNIX_EPOCH + Duration::from_nanos(claimed.owner.since_ns);
    SystemTime::now().duration_since(since).unwrap_or_default()
}

/// Formats an age in whole seconds.
fn show_age(age: Duration) -> String {
    match age.as_secs() {
        0 => "< 1 s".into(),
        seconds => show_duration(Duration::from_secs(seconds)),
    }
}

fn claim_json(claimed: &OwnedStage) -> Value {
    let OwnedStage { stage, owner, tally, is_owned } = claimed;
    json!({
        "stage": stage,
        "action": owner.action.name(),
        "filter": owner.filter,
        "command": owner.command,
        "pid": is_owned.then_some(owner.pid),
        "first_queue": owner.first_queue,
        "queues": owner.queues,
        "age_s": age(claimed).as_secs_f64(),
        "packets": tally.packets,
        "bytes": tally.bytes,
        "taken": tally.taken,
        "missed": tally.missed,
        "dropped": tally.dropped,
    })
}

fn claims_json<S: Serializer>(claims: &[OwnedStage], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(claims.iter().map(claim_json))
}

impl ClaimsReport {
    fn print(&self, out: &mut impl io::Write) -> io::Result<()> {
        let Self { interface, program, claims, host, host_left, .. } = self;
        if let Some(host) = host {
            writeln!(out, "{interface}: packets sent by the host go to {host}")?;
        }
        if *host_left {
            let text = format!(
                "{interface}: filters of a closed host: port remain, which with fallback=drop \
                 disconnect the host; `sluice detach {interface}` removes them"
            );
            writeln!(out, "{}", advice::with_namespace(&text))?;
        }
        let Some(ResidentReport { id, mode, pinned, packets, bytes }) = program else {
            let all = if *host_left { "" } else { "; the host gets all packets" };
            return writeln!(out, "{interface}: no XDP program{all}");
        };
        let pinned = if *pinned { ", pinned" } else { "" };
        let (packets, word) = (show_count(*packets), packets_word(*packets));
        let bytes = show_bytes(*bytes);
        writeln!(
            out,
            "{interface}: program {id}, {mode} mode{pinned}; {packets} {word}, {bytes} so far"
        )?;
        if claims.is_empty() {
            return writeln!(out, "no claims; the host gets all packets");
        }
        writeln!(
            out,
            "{:<7} {:<6} {:>15} {:>12} {:>15} {:>8}  {:<20} filter",
            "action", "queues", "packets", "missed", "dropped", "since", "process"
        )?;
        for claimed in claims {
            let OwnedStage { owner, tally, is_owned, .. } = claimed;
            let filter = if owner.filter.is_empty() { "(everything)" } else { &owner.filter };
            let first = owner.first_queue;
            let queues = match owner.queues {
                0 | 1 => first.to_string(),
                n => format!("{first}-{}", first + n - 1),
            };
            writeln!(
                out,
                "{:<7} {queues:<6} {:>15} {:>12} {:>15} {:>8}  {:<20} {filter}",
                owner.action.name(),
                show_count(tally.packets),
                show_count(tally.missed),
                show_count(tally.dropped),
                show_age(age(claimed)),
                match is_owned {
                    true => format!("{} ({})", owner.command, owner.pid),
                    false => "resident, no process".into(),
                },
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::xdp::resident::{Action, Owner};

    use super::*;

    #[test]
    fn a_scrub_stage_is_shown_with_its_packets_and_drops() {
        let owner = Owner {
            since_ns: 0,
            pid: 7,
            command: "scrubber".into(),
            first_queue: 0,
            queues: 4,
            action: Action::Scrub,
            filter: "floods".into(),
        };
        let tally = StageCounters { packets: 1000, dropped: 900, ..StageCounters::default() };
        let claims = vec![OwnedStage { stage: 8, owner, tally, is_owned: true }];
        let json = claim_json(&claims[0]);
        assert_eq!((&json["action"], &json["dropped"]), (&json!("scrub"), &json!(900)));
        let program = ResidentReport { id: 1, mode: "native", pinned: false, packets: 0, bytes: 0 };
        let shown = ClaimsReport {
            command: "claims",
            interface: "eth0".into(),
            program: Some(program),
            claims,
            host: None,
            host_left: false,
        };
        let mut text = Vec::new();
        shown.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words[..5], ["scrub", "0-3", "1,000", "0", "900"], "{text}");
        assert!(text.ends_with("scrubber (7)         floods\n"), "{text}");
    }
}
