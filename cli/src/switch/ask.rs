//! `sluice switch show`, `add`, `remove`, `static`, `forget` and `flush`: asking one that runs.

use std::io::{self, Write, stdout};

use clap::Subcommand;
use serde_json::{Value, json};

use super::Where;
use super::request::{Asked, Request, Set};
use crate::units::show_count;

/// What a running switch can be asked.
#[derive(Subcommand)]
pub enum Action {
    /// Show a running switch's ports, and which hosts are behind them
    Show {
        #[command(flatten)]
        place: Where,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Add a port to a running switch
    Add {
        /// xdp:eth0, NAME=PORT
        #[arg(value_name = "[NAME=]PORT")]
        port: String,
        #[command(flatten)]
        set: Set,
        #[command(flatten)]
        place: Where,
    },
    /// Take a port out of a running switch; what is on its way is still forwarded
    Remove {
        /// Its name in the switch
        #[arg(value_name = "NAME")]
        port: String,
        #[command(flatten)]
        place: Where,
    },
    /// Say for good that an address is behind a port
    Static {
        mac: String,
        /// The port's name in the switch
        port: String,
        /// The VLAN, where the switch knows VLANs
        #[arg(default_value_t = 0, value_name = "VLAN")]
        vlan: u16,
        #[command(flatten)]
        place: Where,
    },
    /// Take an entry out of the table, a static one too
    Forget {
        mac: String,
        /// The VLAN, where the switch knows VLANs
        #[arg(default_value_t = 0, value_name = "VLAN")]
        vlan: u16,
        #[command(flatten)]
        place: Where,
    },
    /// Take all that was learned out of the table
    Flush {
        /// Of this port only
        #[arg(value_name = "NAME")]
        port: Option<String>,
        #[command(flatten)]
        place: Where,
    },
}

/// Asks, and shows the answer.
pub fn ask(action: Action) -> anyhow::Result<()> {
    let (place, request) = match action {
        Action::Show { place, json } => return show(&place, json),
        Action::Add { port, set, place } => (place, Request::Add { port, set }),
        Action::Remove { port, place } => (place, Request::Remove { port }),
        Action::Static { mac, port, vlan, place } => (place, Request::Static { mac, port, vlan }),
        Action::Forget { mac, vlan, place } => (place, Request::Forget { mac, vlan }),
        Action::Flush { port, place } => (place, Request::Flush { port }),
    };
    let answer = Asked::at(&place)?.ask(&request)?;
    if let Some(entries) = answer["forgotten"].as_u64() {
        writeln!(stdout(), "{} entries taken out", show_count(entries))?;
    }
    Ok(())
}

fn show(place: &Where, as_json: bool) -> anyhow::Result<()> {
    let mut asked = Asked::at(place)?;
    let mut shown = asked.ask(&Request::Show {})?;
    let mut entries = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next {
        let mut answer = asked.ask(&Request::Table { from: from as usize })?;
        if let Value::Array(some) = answer["entries"].take() {
            entries.extend(some);
        }
        // It only goes up: an answer that does not is the end.
        next = answer["next"].as_u64().filter(|&next| next > from);
    }
    shown["table"] = entries.into();
    let out = &mut stdout().lock();
    if as_json {
        let mut object = json!({"command": "switch show"});
        object["ports"] = shown["ports"].take();
        object["table"] = shown["table"].take();
        writeln!(out, "{object}")?;
        return Ok(());
    }
    Ok(print(&shown, out)?)
}

fn print(shown: &Value, out: &mut impl Write) -> io::Result<()> {
    let count = |value: &Value| show_count(value.as_u64().unwrap_or(0)).to_string();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    writeln!(
        out,
        "{:<12} {:>14} {:>14} {:>14} {:>10} {:>8}  port",
        "name", "received", "flooded", "sent", "lost", "hosts"
    )?;
    for port in shown["ports"].as_array().into_iter().flatten() {
        let losses = port["ledger"]["losses"].as_object().into_iter().flat_map(|all| all.values());
        let lost: u64 = losses.filter_map(Value::as_u64).sum();
        let down = if port["down"] == true { "  (down)" } else { "" };
        writeln!(
            out,
            "{:<12} {:>14} {:>14} {:>14} {:>10} {:>8}  {}{down}",
            text(&port["name"]),
            count(&port["packets"]),
            count(&port["flooded"]),
            count(&port["sent"]),
            show_count(lost).to_string(),
            count(&port["learned"]),
            text(&port["port"]),
        )?;
    }
    let entries = shown["table"].as_array();
    if entries.is_some_and(|entries| !entries.is_empty()) {
        writeln!(out, "\n{:<18} {:>5} {:<12} seen", "address", "vlan", "port")?;
    }
    for entry in entries.into_iter().flatten() {
        let seen = match entry["idle_s"].as_f64() {
            Some(seconds) => format!("{seconds:.1} s ago"),
            None => "static".into(),
        };
        let vlan = entry["vlan"].as_u64().map_or_else(String::new, |vlan| vlan.to_string());
        writeln!(out, "{:<18} {vlan:>5} {:<12} {seen}", text(&entry["mac"]), text(&entry["port"]))?;
    }
    Ok(())
}
