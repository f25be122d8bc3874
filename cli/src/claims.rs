//! `sluice claims`, `attach`, `detach`: the resident XDP program of an interface, and the owners of
//! its packets.

use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use sluicegate::Result;
use sluicegate::link::{self, Interface, netns};
use sluicegate::port::{detach_host, host_left, host_owner};
use sluicegate::xdp::Mode;
use sluicegate::xdp::resident::{Claimed, Counters, ModeWish, Resident};

use crate::units::{packets_word, show_bytes, show_count, show_duration};

const CLAIMS_EXAMPLES: &str = "\
Examples:
  sluice claims eth0
  sluice claims right0 --netns lab-right --json";

/// Show who takes which packets of an interface from the host by XDP
#[derive(clap::Args)]
#[command(after_help = CLAIMS_EXAMPLES)]
pub struct ClaimsArgs {
    #[command(flatten)]
    place: Place,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Keep the XDP program on an interface, so that ports come and go without attaching it anew
///
/// Until `sluice detach`, or until the interface or the machine goes. With nobody using it every
/// packet goes to the host.
#[derive(clap::Args)]
pub struct AttachArgs {
    #[command(flatten)]
    place: Place,

    /// By the driver, or by the kernel behind it [default: native where the driver can]
    #[arg(long, value_name = "native|skb")]
    mode: Option<ModeName>,

    /// Clock of the packets' timestamps: `hardware` lets ports with timestamp=hardware, too, find
    /// what they need [default: xdp]
    #[arg(long, value_name = "xdp|hardware")]
    timestamp: Option<Times>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Times {
    Xdp,
    Hardware,
}

/// Remove the programs from an interface, even while ports use them: all packets go to the host, and
/// the host's go out
///
/// Removes the XDP program and those of a host: port. A host: port that was killed with
/// fallback=drop has left the host cut off: this restores its traffic.
#[derive(clap::Args)]
pub struct DetachArgs {
    #[command(flatten)]
    place: Place,
}

#[derive(clap::Args)]
struct Place {
    /// The interface
    interface: String,

    /// Network namespace it is in: a name (of `ip netns`), a path, or the PID of a process in it
    #[arg(long, value_name = "NETNS")]
    netns: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ModeName {
    Native,
    Skb,
}

impl Place {
    /// Does something with the interface, in its namespace. Settings that a killed port left are
    /// put back on the way, where we may.
    fn with<T: Send>(&self, work: impl FnOnce(&Interface) -> Result<T> + Send) -> Result<T> {
        let interface = link::interface(self.netns.as_deref(), &self.interface)?;
        netns::run_in(self.netns.as_deref(), || {
            let _ = sluicegate::nic::restore_interrupts(&interface);
            work(&interface)
        })
    }
}

/// Runs `sluice attach`.
pub fn attach(args: AttachArgs) -> anyhow::Result<()> {
    let wish = match args.mode {
        None => ModeWish::Best,
        Some(ModeName::Native) => ModeWish::Only(Mode::Native),
        Some(ModeName::Skb) => ModeWish::Only(Mode::Skb),
    };
    let by_card = args.timestamp == Some(Times::Hardware);
    let (mode, fallback, no_times) = args.place.with(|interface| {
        let (resident, fallback) = Resident::join_for(interface, wish, by_card)?;
        resident.keep(interface)?;
        let no_times = resident.no_metadata().filter(|_| by_card).map(str::to_owned);
        Ok((resident.mode(), fallback, no_times))
    })?;
    let name = &args.place.interface;
    if let Some(reason) = fallback {
        crate::notice::say(format_args!("{name}: skb mode, a tenth as fast as native: {reason}"));
    }
    if let Some(reason) = no_times {
        crate::notice::say(format_args!("{name}: no hardware timestamps: {reason}"));
    }
    let mode = mode.name();
    writeln!(io::stdout(), "{name}: the program stays, {mode} mode; sluice detach {name} ends it")?;
    Ok(())
}

/// Runs `sluice detach`.
pub fn detach(args: DetachArgs) -> anyhow::Result<()> {
    // First: a foreign XDP program, which is an error, does not keep the host from its wire.
    let host = args.place.with(detach_host)?;
    let name = &args.place.interface;
    if host {
        writeln!(io::stdout(), "{name}: what the host sends goes out without a port again")?;
    }
    let users = args.place.with(|interface| match Resident::find(interface) {
        Ok(None) => Ok(None),
        Ok(Some(resident)) => {
            let users = resident.claims()?.len();
            resident.detach(interface)?;
            Ok(Some(Some(users)))
        }
        // Another version's can be taken off all the same, if nothing else is wrong.
        Err(_) => Ok(Resident::detach_any(interface)?.then_some(None)),
    })?;
    match users {
        None if host => {}
        None => writeln!(io::stdout(), "{name} has no XDP program")?,
        Some(None) => writeln!(
            io::stdout(),
            "{name}: the program, of another version, is off; who used it gets no more packets"
        )?,
        Some(Some(0)) => writeln!(io::stdout(), "{name}: the program is off")?,
        Some(Some(n)) => writeln!(
            io::stdout(),
            "{name}: the program is off; {n} that used it get no more packets, and end"
        )?,
    }
    Ok(())
}

/// The output of `sluice claims --json`.
#[derive(Serialize)]
struct ClaimsJson {
    command: &'static str,
    interface: String,
    /// None: there is no program, all packets are the host's.
    program: Option<ProgramJson>,
    claims: Vec<Claim>,
    /// The owner of the host's outgoing packets, by a host: port.
    host: Option<String>,
    /// A host: port that has exited left its filters on the interface.
    host_left: bool,
}

#[derive(Serialize)]
struct ProgramJson {
    id: u32,
    mode: &'static str,
    /// The program stays after its last user has exited.
    pinned: bool,
    /// All that came since it was attached.
    packets: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Claim {
    place: u32,
    action: &'static str,
    filter: String,
    command: String,
    pid: u32,
    first_queue: u32,
    queues: u32,
    age_s: f64,
    packets: u64,
    bytes: u64,
    taken: u64,
    missed: u64,
    dropped: u64,
}

impl Claim {
    fn of(claimed: Claimed) -> Self {
        let Claimed { place, owner, tally } = claimed;
        let Counters { packets, bytes, taken, missed, dropped, .. } = tally;
        let since = SystemTime::UNIX_EPOCH + Duration::from_nanos(owner.since_ns);
        Self {
            place,
            action: owner.action.name(),
            filter: owner.filter,
            command: owner.command,
            pid: owner.pid,
            first_queue: owner.first_queue,
            queues: owner.queues,
            age_s: SystemTime::now().duration_since(since).unwrap_or_default().as_secs_f64(),
            packets,
            bytes,
            taken,
            missed,
            dropped,
        }
    }

    fn queue_range(&self) -> String {
        match self.queues {
            0 | 1 => self.first_queue.to_string(),
            n => format!("{}-{}", self.first_queue, self.first_queue + n - 1),
        }
    }
}

/// Runs `sluice claims`.
pub fn claims(args: ClaimsArgs) -> anyhow::Result<()> {
    let found = args.place.with(|interface| {
        let Some(resident) = Resident::find(interface)? else { return Ok(None) };
        let total = resident.total();
        let program = ProgramJson {
            id: resident.program(),
            mode: resident.mode().name(),
            pinned: resident.is_pinned(interface),
            packets: total.packets,
            bytes: total.bytes,
        };
        Ok(Some((program, resident.claims()?)))
    })?;
    let (program, claims) = found.map_or((None, Vec::new()), |(program, claims)| {
        (Some(program), claims.into_iter().map(Claim::of).collect())
    });
    let host = args.place.with(host_owner)?;
    let host_left = args.place.with(host_left)?;
    let interface = args.place.interface;
    let shown = ClaimsJson { command: "claims", interface, program, claims, host, host_left };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &shown)?;
        writeln!(out)?;
        return Ok(());
    }
    shown.print(&mut out)?;
    Ok(())
}

impl ClaimsJson {
    fn print(&self, out: &mut impl io::Write) -> io::Result<()> {
        if let Some(host) = &self.host {
            writeln!(out, "{}: what the host sends there comes to {host}", self.interface)?;
        }
        if self.host_left {
            writeln!(
                out,
                "{0}: a host: port that has ended left filters there, which with fallback=drop cut \
                 the host off; `sluice detach {0}` takes them away",
                self.interface
            )?;
        }
        let Some(program) = &self.program else {
            if self.host_left {
                return writeln!(out, "{}: no XDP program", self.interface);
            }
            return writeln!(out, "{}: no XDP program; all packets are the host's", self.interface);
        };
        let ProgramJson { id, mode, pinned, packets, bytes } = program;
        let pinned = if *pinned { ", pinned" } else { "" };
        writeln!(
            out,
            "{}: program {id}, {mode} mode{pinned}; {} {}, {} so far",
            self.interface,
            show_count(*packets),
            packets_word(*packets),
            show_bytes(*bytes)
        )?;
        if self.claims.is_empty() {
            return writeln!(out, "nobody takes any: all are the host's");
        }
        writeln!(
            out,
            "{:<7} {:<6} {:>15} {:>12} {:>8}  {:<20} filter",
            "action", "queues", "packets", "missed", "since", "process"
        )?;
        for claim in &self.claims {
            let filter = if claim.filter.is_empty() { "(everything)" } else { &claim.filter };
            writeln!(
                out,
                "{:<7} {:<6} {:>15} {:>12} {:>8}  {:<20} {filter}",
                claim.action,
                claim.queue_range(),
                show_count(claim.packets).to_string(),
                show_count(claim.missed).to_string(),
                show_duration(Duration::from_secs(claim.age_s as u64)).to_string(),
                format!("{} ({})", claim.command, claim.pid),
            )?;
        }
        Ok(())
    }
}
