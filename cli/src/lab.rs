//! `sluice lab`: hosts made of network namespaces and veth links.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::Command;

use clap::Subcommand;
use nix::libc;
use serde_json::{Value, json};
use sluicegate::link::lab::MissingPart;
use sluicegate::link::{Lab, LabConfig, Shape, lab};

use crate::notice::{ExitStatus, say};

const EXAMPLES: &str = "\
Examples:
  sluice lab up                                    pair: left0 - right0
  sluice lab up --name three --shape line          left - middle - right
  sluice lab up --name five --shape star           left, right, upper, lower - middle
  sluice lab exec left -- ping -c 3 198.18.0.2
  sluice lab down

Needs root, or CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_DAC_OVERRIDE. left0 has 198.18.0.1/24 and
2001:db8:18::1/64, right0 has 198.18.0.2/24 and 2001:db8:18::2/64.";

/// Create, list and remove labs: hosts of network namespaces, joined by veth links
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: LabAction,
}

#[derive(Subcommand)]
enum LabAction {
    /// Create a lab; keep an existing one
    Up {
        /// Name of the lab; its hosts are the namespaces NAME-left, NAME-right, …
        #[arg(long, default_value = "lab")]
        name: String,
        /// pair: two hosts; line: middle between them; star: four hosts around middle
        #[arg(long, default_value = "pair", value_name = "pair|line|star")]
        shape: Shape,
        /// Receive and transmit queues of each interface
        #[arg(long, default_value_t = 1, value_name = "N")]
        queues: u32,
    },
    /// Remove a lab
    Down {
        /// Name of the lab
        #[arg(long, default_value = "lab")]
        name: String,
    },
    /// List the labs
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run a command on a host, and return its exit status
    #[command(override_usage = "sluice lab exec [--name NAME] HOST -- COMMAND…")]
    Exec {
        /// Name of the lab
        #[arg(long, default_value = "lab")]
        name: String,
        /// Host: left, middle, right, upper or lower
        host: String,
        /// Command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        LabAction::Up { name, shape, queues } => {
            let lab = Lab::up(&LabConfig { name, shape, queues })?;
            print(&describe(&lab))
        }
        LabAction::Down { name } => {
            Lab::down(&name)?;
            print(&format!("lab '{name}' is down\n"))
        }
        LabAction::List { json } => list(json),
        LabAction::Exec { name, host, command } => exec(&Lab::find(&name)?, &host, &command),
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn exec(lab: &Lab, host: &str, command: &[OsString]) -> anyhow::Result<()> {
    let Some((program, arguments)) = command.split_first() else {
        anyhow::bail!("no command to run is named");
    };
    let error = lab.become_command(host, Command::new(program).args(arguments));
    // As in a shell: 127 if the command does not exist, 126 if it cannot be run.
    let status = match error.errno() {
        Some(libc::ENOENT) => 127,
        Some(libc::EACCES | libc::ENOEXEC) => 126,
        _ => return Err(error.into()),
    };
    say(&error);
    Err(ExitStatus(status).into())
}

/// A picture of the lab, and what to try next.
fn describe(lab: &Lab) -> String {
    let (name, shape, queues) = (lab.name(), lab.shape(), lab.queues());
    let plural = if queues == 1 { "queue" } else { "queues" };
    let mut text = format!("lab '{name}' is up: {shape}, {queues} {plural} an interface\n\n");
    for row in picture(lab) {
        let _ = writeln!(text, "  {}", row.trim_end());
    }
    let _ = writeln!(text);
    // A command that is not installed is called by its path.
    let sluice = std::env::args_os().next().filter(|name| !name.is_empty());
    let sluice = sluice.map_or("sluice".into(), |name| name.to_string_lossy().into_owned());
    for (number, command) in suggestions(lab).iter().enumerate() {
        let command = command.replacen("sluice", &sluice, 1);
        let _ = writeln!(text, "{}  {command}", if number == 0 { "Try:" } else { "    " });
    }
    text
}

/// Commands that work in the lab, in this order: a host in the middle passes nothing on by itself.
fn suggestions(lab: &Lab) -> Vec<String> {
    let name = if lab.name() == "lab" { String::new() } else { format!(" --name {}", lab.name()) };
    let ports = |host: &lab::Host| {
        let ports: Vec<_> = host.interfaces.iter().map(|i| format!("xdp:{}", i.name)).collect();
        format!("{} --netns {}", ports.join(" "), lab.netns(host.name))
    };
    let middle = lab.hosts().iter().find(|host| host.interfaces.len() > 1);
    let passes = middle.map(|host| match lab.shape() {
        Shape::Star => format!("sluice switch {} &", ports(host)),
        Shape::Pair | Shape::Line => format!("sluice forward {} &", ports(host)),
    });
    let ends = passes.is_some().then(|| "kill %1".to_owned());
    let tries = [
        format!("sluice lab exec{name} left -- ping -c 3 198.18.0.2"),
        format!("sluice top --netns {} --count 3", lab.netns("right")),
    ];
    let last = format!("sluice lab down{name}");
    passes.into_iter().chain(tries).chain(ends).chain([last]).collect()
}

/// Hosts as boxes in a row, joined by lines at the height of their interfaces:
///
/// ```text
/// ┌ left ─────────────┐      ┌ right ────────────┐
/// │ left0             ├──────┤ right0            │
/// │ 198.18.0.1/24     │      │ 198.18.0.2/24     │
/// └ netns lab-left ───┘      └ netns lab-right ──┘
/// ```
fn picture(lab: &Lab) -> Vec<String> {
    const LINK: &str = "──────";
    if lab.shape() == Shape::Star {
        return star(lab);
    }
    let boxes: Vec<Vec<String>> = lab
        .hosts()
        .iter()
        .map(|host| {
            let names: Vec<&str> = host.interfaces.iter().map(|i| i.name).collect();
            let mut rows = vec![names.join("   ")];
            let addresses = host.interfaces.iter().flat_map(|i| i.addresses());
            rows.extend(addresses.map(|address| address.to_string()));
            rows
        })
        .collect();
    let height = boxes.iter().map(Vec::len).max().unwrap_or(0);
    let mut lines = vec![String::new(); height + 2];
    let last = lab.hosts().len() - 1;
    for (at, (host, rows)) in lab.hosts().iter().zip(&boxes).enumerate() {
        let netns = format!("netns {}", lab.netns(host.name));
        let widest = rows.iter().map(String::len).max().unwrap_or(0);
        let width = widest.max(netns.len()).max(host.name.len());
        let edge = |from: &str, label: &str, to: &str| {
            format!("{from} {label} {}{to}", "─".repeat(width - label.len()))
        };
        let gap = " ".repeat(LINK.chars().count());
        lines[0] += &edge("┌", host.name, "┐");
        lines[height + 1] += &edge("└", &netns, "┘");
        for (row, line) in lines[1..=height].iter_mut().enumerate() {
            let text = match (row, host.interfaces) {
                // The host in the middle has an interface at each side.
                (0, [first, last]) => {
                    format!("{}{:>2$}", first.name, last.name, width - first.name.len())
                }
                _ => rows.get(row).cloned().unwrap_or_default(),
            };
            let left = if row == 0 && at > 0 { "┤" } else { "│" };
            let right = if row == 0 && at < last { "├" } else { "│" };
            let _ = write!(line, "{left} {text:<width$} {right}");
            if at < last {
                *line += if row == 0 { LINK } else { &gap };
            }
        }
        if at < last {
            lines[0] += &gap;
            lines[height + 1] += &gap;
        }
    }
    lines
}

/// The hosts around the middle, a row each.
fn star(lab: &Lab) -> Vec<String> {
    let Some((middle, around)) = lab.hosts().split_last() else { return Vec::new() };
    let links = around.iter().zip(middle.interfaces);
    let row = |(host, there): (&lab::Host, &lab::HostInterface)| {
        let here = host.interfaces.first();
        let addresses = here.map(|i| i.addresses()).unwrap_or_default();
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let name = here.map_or("", |i| i.name);
        let (netns, hub) = (lab.netns(host.name), lab.netns(middle.name));
        format!(
            "netns {netns:<12}  {name:<7} ────── {}  netns {hub}   {}",
            there.name,
            addresses.join("  ")
        )
    };
    links.map(row).collect()
}

fn list(json: bool) -> anyhow::Result<()> {
    let labs = Lab::list();
    if json {
        let labs: Vec<Value> = labs.iter().map(lab_json).collect();
        return print(&format!("{}\n", json!({ "labs": labs })));
    }
    if labs.is_empty() {
        return print("no labs; create one with `sluice lab up`\n");
    }
    let width = labs.iter().map(|lab| lab.name().len()).max().unwrap_or(0).max(4);
    let mut text = format!("{:<width$}  SHAPE  QUEUES  NAMESPACES\n", "NAME");
    for lab in &labs {
        let hosts: Vec<String> = lab.hosts().iter().map(|host| lab.netns(host.name)).collect();
        let (name, shape, queues) = (lab.name(), lab.shape().to_string(), lab.queues());
        let _ = write!(text, "{name:<width$}  {shape:<5}  {queues:>6}  {}", hosts.join(" "));
        if let Some(owner) = lab.owner() {
            let _ = write!(text, "  (scratch, of process {owner})");
        }
        text.push('\n');
        let missing = missing(lab);
        if !missing.is_empty() {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "  broken, without {}{}", missing.join(", "), remedy(lab));
        }
    }
    print(&text)
}

/// Returns the missing parts that this user can see; none of a lab that was removed meanwhile.
fn missing(lab: &Lab) -> Vec<MissingPart> {
    lab.missing().unwrap_or_default()
}

/// Returns what to do about a broken lab, after a semicolon; nothing while a test uses the lab.
fn remedy(lab: &Lab) -> String {
    let name = lab.name();
    match lab.owner() {
        Some(_) if lab.owner_lives() => String::new(),
        Some(_) => format!("; remove it with `sluice lab down --name {name}`"),
        None => {
            let (shape, queues) = (lab.shape(), lab.queues());
            format!(
                "; repair it with `sluice lab up --name {name} --shape {shape} --queues {queues}`"
            )
        }
    }
}

fn lab_json(lab: &Lab) -> Value {
    let interface = |i: &lab::HostInterface| {
        let addresses: Vec<String> = i.addresses().iter().map(ToString::to_string).collect();
        json!({"name": i.name, "mac": i.mac.to_string(), "addresses": addresses})
    };
    let host = |host: &lab::Host| {
        let interfaces: Vec<Value> = host.interfaces.iter().map(interface).collect();
        json!({"name": host.name, "netns": lab.netns(host.name), "interfaces": interfaces})
    };
    let hosts: Vec<Value> = lab.hosts().iter().map(host).collect();
    let (name, shape, queues) = (lab.name(), lab.shape().to_string(), lab.queues());
    let mut object = json!({"name": name, "shape": shape, "queues": queues});
    if let Some(owner) = lab.owner() {
        // The process a scratch lab belongs to.
        object["owner"] = owner.into();
    }
    object["hosts"] = hosts.into();
    let missing = missing(lab);
    if !missing.is_empty() {
        object["missing"] = missing.iter().map(missing_json).collect();
    }
    object
}

fn missing_json(part: &MissingPart) -> Value {
    let of = |interface: &str, lacks: &str| json!({"interface": interface, "lacks": lacks});
    match part {
        MissingPart::Netns(name) => json!({"netns": name}),
        MissingPart::Interface(name) => of(name, "interface"),
        MissingPart::Link(name) => of(name, "link"),
        MissingPart::AddressesOrRoutes(name) => of(name, "addresses_or_routes"),
    }
}
