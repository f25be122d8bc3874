//! `sluice forward`: moves packets from one port to another, and back.
//!
//! ```text
//!   thread: queues of both ports → threads; each thread: receive → move → send, or wait
//!   result: packets moved, how, and the ledger of each direction
//! ```

mod host;
mod in_kernel;
mod monitor_service;
mod queues;
mod result;
mod thread;

use std::ops::ControlFlow;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::forward::{Rewriter, Vlan};
use sluicegate::link::{Ethtool, Mac};
use sluicegate::port::{Directions, Kind, Port, PortName};

use crate::args::{Common, PortFlags, Receiving};
use crate::report::{Report, Thread};
use crate::run::{Outcome, Outcomes, RunControl, RunOptions, supervise};
use crate::signals::Signals;
use crate::status::Status;
use crate::target::{interface_to_send, say_unneeded};
use crate::{notice, ports};
use host::HostFlowFilter;
use monitor_service::{MonitorArgs, MonitorService};
use result::{SideCounts, Sides, all_passed};
use thread::ForwardCounts;

const EXAMPLES: &str = "\
Examples:
  sluice forward xdp:eth1 xdp:eth2                a bridge without copies in user space
  sluice forward xdp:eth1 xdp:eth2 -f 'not port 25'
  sluice forward xdp:eth1 xdp:eth2 --in-kernel
  sluice forward xdp:eth1,send=live xdp:eth2,send=live    faster if a card has no zero-copy
  sluice forward xdp:eth1 host:eth1               between the host and its wire
  sluice forward xdp:eth1 host:eth1 --host-flows 'tcp port 22'
  sluice forward xdp:eth1 xdp:eth2 --name wan     for sluice capture monitor:wan/eth1
  sluice forward packet:eth1 pcap:trace.pcapng --one-way --duration 10s

An xdp: port takes its packets from the host, also those addressed to the host; with a
filter the host gets the rest. A packet: port copies them.";

/// Forward packets between two ports, both ways
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// First port: xdp:eth1, packet:eth1, host:eth1, tap:tap0, pcap:FILE, null:
    #[arg(value_name = "PORT")]
    from: PortName,

    /// Second port: xdp:eth2, packet:eth2, live:eth2, host:eth1, tap:tap0, pcap:FILE, null:
    #[arg(value_name = "TO")]
    to: PortName,

    /// Forward from the first port to the second only
    #[arg(long)]
    one_way: bool,

    /// Forward only packets that match a pcap-filter expression; xdp: leaves the rest to the host
    #[arg(short, long, value_name = "EXPR")]
    filter: Option<String>,

    /// Leave flows to the host, after a first packet that matches this pcap-filter expression;
    /// between xdp:eth1 and host:eth1
    #[arg(long, value_name = "EXPR")]
    host_flows: Option<String>,

    /// Maximum packets per move [default: all available]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: Option<u32>,

    /// XDP redirects packets between two xdp: ports in the kernel; no thread sees them
    #[arg(long, conflicts_with_all = ["batch", "threads", "cpus", "host_flows"])]
    in_kernel: bool,

    #[command(flatten)]
    headers: Headers,

    #[command(flatten)]
    monitor: MonitorArgs,

    /// Allow an interface with the host's default route; may be given twice
    #[arg(long, value_name = "IFACE")]
    allow_default_route: Vec<String>,

    #[command(flatten)]
    port_flags: PortFlags,

    #[command(flatten)]
    common: Common,

    #[command(flatten)]
    receiving: Receiving,
}

/// Runs the command.
pub fn forward(mut args: Args) -> anyhow::Result<()> {
    args.common.check()?;
    args.prepare()?;
    if args.in_kernel {
        return in_kernel::forward(&args);
    }
    let Args { from, to, batch, common, receiving, .. } = &args;
    let mut monitor = args.monitor.listen()?.map(|server| MonitorService::new(server, [from, to]));
    let wanted = args.usage().map(|(name, usage)| (name.clone(), usage));
    ports::await_input(from)?;
    let Ok(mut ports) = <[Port; 2]>::try_from(Port::open_all(&wanted, &common.forwarding())?)
    else {
        return Err(Error::Usage("two ports are needed".into()).into());
    };
    let leaving = match &args.host_flows {
        Some(expression) => HostFlowFilter::of(expression, &ports)?,
        None => None,
    };
    let reports = ports.each_ref().map(|port| Report::of_port("forward", port, common));
    let sides = Sides::new(reports, args.sources());
    for port in &ports {
        ports::say_fallbacks(port, common.verbose);
    }
    let merged = args.merged();
    merged.iter().for_each(notice::say);
    if !host::are_its_sides([from, to], args.one_way)? {
        args.sources().iter().for_each(|&source| ports::say_diverts([from, to][source]));
    }
    let mut threads = thread::threads(&mut ports, args.sources(), common.threads)?;
    for thread in &mut threads {
        thread.batch = batch.unwrap_or(u32::MAX);
        thread.rewriters = args.headers.rewriters();
        thread.leaving = leaving.clone();
        thread.watchers = monitor.as_mut().map(MonitorService::thread).unwrap_or_default();
        thread.describe()?;
    }
    common.become_user()?;
    let mut control =
        ForwardControl { sides, monitor: monitor.as_mut(), leaving: leaving.as_deref() };
    let stdout_is_taken = ports::is_standard_output(to);
    let options = RunOptions { common, wait: receiving.wait, stdout_is_taken };
    let ended = supervise(threads, options, &Signals::catch()?, &mut control);
    let ForwardControl { sides, .. } = control;
    // Dropped only now, because a watcher treats a lost connection as a killed forwarder.
    drop(monitor);
    let ended = ended?;
    let mut report = report(sides, &ended.outcomes, ended.elapsed, leaving.as_deref());
    report.notices.splice(..0, merged);
    report.publish(stdout_is_taken, common.json)?;
    Ok(ended.end()?)
}

/// Controls a forwarder.
struct ForwardControl<'a> {
    sides: Sides,
    monitor: Option<&'a mut MonitorService>,
    leaving: Option<&'a HostFlowFilter>,
}

impl RunControl<ForwardCounts> for ForwardControl<'_> {
    fn report_so_far(&mut self, outcomes: &Outcomes<ForwardCounts>, elapsed: Duration) -> Report {
        report(self.sides.so_far(), outcomes, elapsed, self.leaving)
    }

    fn tick(&mut self, _status: &mut Status, _elapsed: Duration) -> ControlFlow<()> {
        if let Some(monitor) = &mut self.monitor {
            monitor.serve();
        }
        ControlFlow::Continue(())
    }

    fn at_end(&mut self) {
        self.sides.read_interfaces();
    }
}

/// The report on the whole.
fn report(
    sides: Sides,
    outcomes: &Outcomes<ForwardCounts>,
    elapsed: Duration,
    leaving: Option<&HostFlowFilter>,
) -> Report {
    let passed = all_passed(outcomes.iter().flatten().map(|outcome| &outcome.counts.sides));
    let mut whole = sides.report(&passed, outcomes, elapsed);
    for outcome in outcomes.iter().flatten() {
        let Outcome { cpu, busy, counts: ForwardCounts { thread, sides }, .. } = &**outcome;
        let packets = sides.iter().map(SideCounts::packets).sum();
        whole.threads.push(Thread { cpu: *cpu, queue: *thread, packets, busy: *busy });
    }
    if let Some(leaving) = leaving {
        leaving.account(&mut whole);
    }
    whole
}

impl Args {
    /// The ports to receive from.
    fn sources(&self) -> &'static [usize] {
        if self.one_way { &[0] } else { &[0, 1] }
    }

    /// The ports and their use.
    fn usage(&self) -> [(&PortName, Directions); 2] {
        match self.one_way {
            true => [(&self.from, Directions::Receive), (&self.to, Directions::Send)],
            false => [(&self.from, Directions::Both), (&self.to, Directions::Both)],
        }
    }

    /// Warns of sources whose packets the host merges (GRO) before the port receives them.
    fn merged(&self) -> Vec<String> {
        let mut ethtool = Ethtool::open(self.common.netns.as_deref()).ok();
        let merges = |port: &&PortName| {
            port.kind() == Kind::Packet
                && ethtool.as_mut().is_some_and(|it| it.gro(port.name()).unwrap_or(false))
        };
        let text = |port: &PortName| {
            format!(
                "{0} merges TCP packets (GRO), and merged packets above the MTU are lost as too long; \
                 turn GRO off: `ethtool -K {0} gro off`",
                port.name()
            )
        };
        let ports = [&self.from, &self.to].into_iter().take(self.sources().len());
        ports.filter(merges).map(text).collect()
    }

    /// Rejects invalid and harmful requests, and fills in the ports' defaults.
    fn prepare(&mut self) -> Result<()> {
        self.refuse_loops()?;
        self.headers.check(self.one_way)?;
        if self.in_kernel {
            in_kernel::check(self)?;
        }
        if !self.one_way {
            let single =
                |port: &&PortName| matches!(port.kind(), Kind::Live | Kind::Mirror | Kind::Pcap);
            if let Some(port) = [&self.from, &self.to].into_iter().find(single) {
                return Err(port.error("the port has one direction; add --one-way"));
            }
        }
        let netns = self.common.netns.as_deref();
        let mut targets = Vec::new();
        for (port, usage) in self.usage() {
            if usage != Directions::Receive {
                interface_to_send(port, netns, &self.allow_default_route)?;
                targets.push(port);
            }
        }
        say_unneeded(&self.allow_default_route, targets, netns);
        let endless = [&self.from, &self.to].map(|port| port.kind() == Kind::Null);
        let ends = self.common.count.is_some() || self.common.duration.is_some();
        if (endless[0] || endless[1] && !self.one_way) && !ends {
            return Err(self.from.error("the run would never end; add --count or --duration"));
        }
        let to_file = self.to.kind() == Kind::Pcap;
        let to_host = host::are_its_sides([&self.from, &self.to], self.one_way)?;
        if self.host_flows.is_some() {
            host::keep_flows([&mut self.from, &mut self.to])?;
        }
        let sources = if self.one_way { 1 } else { 2 };
        for port in [&mut self.from, &mut self.to].into_iter().take(sources) {
            if port.option("action").is_some_and(|action| action != "take") {
                return Err(
                    port.error("action= is for `sluice count` only: it delivers no packets")
                );
            }
            ports::apply_filter(port, self.filter.as_deref())?;
            ports::apply_flags(port, &self.port_flags)?;
            // The host has already sent its own packets.
            port.set_default("tx_copies", "off");
            if port.kind() == Kind::Xdp {
                // Forwarded packets are for others, unless the target is the host.
                port.set_default("promisc", if to_host { "off" } else { "on" });
                if !to_file && !self.in_kernel {
                    port.set_default("timestamp", "off");
                }
            }
        }
        Ok(())
    }

    /// Rejects a target that feeds the source: packets would be received again, or overwrite the input.
    fn refuse_loops(&self) -> Result<()> {
        let [from, to] = [&self.from, &self.to];
        match (from.kind(), to.kind()) {
            (Kind::Null, _) | (_, Kind::Null) => Ok(()),
            (_, Kind::Pcap) => ports::refuse_overwriting([from], to.name().as_ref()),
            (Kind::Pcap, _) => Ok(()),
            _ if host::are_its_sides([from, to], self.one_way)? => Ok(()),
            _ if from.name() == to.name() => Err(Error::Usage(format!(
                "{from} and {to} are the same interface, so packets would loop; name another \
                 interface"
            ))),
            _ => Ok(()),
        }
    }
}

/// Changes to Ethernet headers, in both directions.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "headers", multiple = true, conflicts_with = "in_kernel")]
#[command(next_help_heading = "Ethernet headers")]
pub struct Headers {
    /// Source address of packets to the second port
    #[arg(long, value_name = "MAC")]
    smac: Option<Mac>,

    /// Destination address of packets to the second port
    #[arg(long, value_name = "MAC")]
    dmac: Option<Mac>,

    /// VLAN tags of packets to the second port: push:10, set:10 or pop
    #[arg(long, value_name = "CHANGE")]
    vlan: Option<Vlan>,

    /// Source address of packets to the first port
    #[arg(long, value_name = "MAC")]
    reverse_smac: Option<Mac>,

    /// Destination address of packets to the first port
    #[arg(long, value_name = "MAC")]
    reverse_dmac: Option<Mac>,

    /// VLAN tags of packets to the first port: push:10, set:10 or pop
    #[arg(long, value_name = "CHANGE")]
    reverse_vlan: Option<Vlan>,
}

impl Headers {
    /// Rejects changes to the reverse direction if there is none.
    pub fn check(&self, one_way: bool) -> Result<()> {
        let back = self.reverse_smac.is_some()
            || self.reverse_dmac.is_some()
            || self.reverse_vlan.is_some();
        match one_way && back {
            true => Err(Error::Usage(
                "--one-way forwards nothing to the first port; remove the --reverse- flags".into(),
            )),
            false => Ok(()),
        }
    }

    /// Returns the rewriters of packets received at each port; `None` if nothing changes.
    pub fn rewriters(&self) -> [Option<Rewriter>; 2] {
        [
            rewriter(self.smac, self.dmac, self.vlan),
            rewriter(self.reverse_smac, self.reverse_dmac, self.reverse_vlan),
        ]
    }
}

fn rewriter(smac: Option<Mac>, dmac: Option<Mac>, vlan: Option<Vlan>) -> Option<Rewriter> {
    let changes = smac.is_some() || dmac.is_some() || vlan.is_some();
    let [source, destination] = [smac, dmac].map(|mac| mac.map(|mac| mac.0));
    changes.then(|| Rewriter::new(source, destination, vlan))
}
