//! The control socket of a switch: requests, each a line of JSON (docs/commands/switch.md), the running
//! switch's answers, and the commands that send requests.

use std::io::{self, Write, stdout};
use std::path::Path;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluicegate::control::{Answer, Client, Service};
use sluicegate::error::{Error, Result};
use sluicegate::link::Mac;
use sluicegate::monitor::{WatchRequest, Writer};
use sluicegate_switch::mac_table::TICKS_PER_SECOND;
use sluicegate_switch::vlan::Vlans;
use sluicegate_switch::{Handle, Switch};

use super::ports::{Ports, port_ledger, switching};
use super::{NamedPort, PortSettings};
use crate::notice::{answer, failed_answer, failure, write_printable};
use crate::report::ledger_value;
use crate::units::show_count;

/// A request to a running switch, from the command line or from the socket.
#[derive(Debug, Deserialize, PartialEq, Serialize, Subcommand)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Show a running switch's ports, and the hosts behind them
    Show {
        /// Print one JSON object
        #[arg(long)]
        #[serde(skip)]
        json: bool,
    },
    /// A part of the table, from the bucket that the last answer named.
    #[command(skip)]
    Table {
        #[serde(default)]
        from: usize,
    },
    /// Add a port to a running switch
    Add {
        /// Port: xdp:eth0, NAME=PORT
        #[arg(value_name = "[NAME=]PORT")]
        port: String,
        #[command(flatten)]
        #[serde(default, flatten)]
        set: PortSettings,
    },
    /// Remove a port from a running switch; packets in transit are still forwarded
    Remove {
        /// Name of the port in the switch
        #[arg(value_name = "NAME")]
        port: String,
    },
    /// Add a static table entry, until the switch ends
    Static {
        /// Address of the host
        mac: String,
        /// Name of the port in the switch
        port: String,
        /// VLAN, if the switch has VLANs
        #[arg(default_value_t = 0, value_name = "VLAN")]
        #[serde(default)]
        vlan: u16,
    },
    /// Remove an entry from the table, also a static one
    Forget {
        /// Address of the host
        mac: String,
        /// VLAN, if the switch has VLANs
        #[arg(default_value_t = 0, value_name = "VLAN")]
        #[serde(default)]
        vlan: u16,
    },
    /// Remove all learned entries from the table
    Flush {
        /// Only those of this port
        #[arg(value_name = "NAME")]
        #[serde(default)]
        port: Option<String>,
    },
}

/// Buckets of the table read between two batches, and for one answer.
const PIECE: usize = 256;
const PIECES: usize = 8;

/// A running switch and its ports, for the control socket.
pub struct ControlService<'a, 'b> {
    pub handle: &'a Handle,
    pub ports: &'a mut Ports<'b>,
}

impl Service for ControlService<'_, '_> {
    fn answer(&mut self, client: u64, request: &str) -> Answer {
        // A watcher gets a line of text and a file instead of JSON.
        if request.starts_with("watch ") {
            let watched = request.parse().and_then(|watch| self.watch(client, watch));
            return watched.unwrap_or_else(answer);
        }
        let understood = serde_json::from_str(request)
            .map_err(|error| Error::Usage(format!("invalid request: {error}")));
        let value = understood.and_then(|request| self.act(request));
        answer(value.unwrap_or_else(|error| failure(&error)))
    }

    fn left(&mut self, client: u64) {
        // A switch that has ended has no watchers.
        let _ = self.handle.ask(move |switch| switch.unwatch(client));
    }
}

impl ControlService<'_, '_> {
    fn act(&mut self, request: Request) -> Result<Value> {
        match request {
            Request::Show { .. } => self.show(),
            Request::Table { from } => self.table(from),
            Request::Add { port, set } => {
                let named: NamedPort = port.parse()?;
                self.ports.add(&named, &set, self.handle)?;
                Ok(json!({"added": named.name}))
            }
            Request::Remove { port } => {
                let name = port.clone();
                self.ask(move |switch| switch.remove(&name))??;
                Ok(json!({"removed": port}))
            }
            Request::Static { mac, port, vlan } => {
                let mac = number(&mac)?;
                self.ask(move |switch| switch.set_static(vlan, mac, &port))??;
                Ok(json!({}))
            }
            Request::Forget { mac, vlan } => {
                let mac = number(&mac)?;
                let known = self.ask(move |switch| switch.forget(vlan, mac))?;
                Ok(json!({"forgotten": usize::from(known)}))
            }
            Request::Flush { port } => {
                let flushed = self.ask(move |switch| switch.flush(port.as_deref()))??;
                Ok(json!({"forgotten": flushed}))
            }
        }
    }

    /// Gives a watcher its ring, until it disconnects.
    fn watch(&self, client: u64, watch: WatchRequest) -> Result<Answer> {
        let (writer, files) = Writer::new(&watch)?;
        let line = format!("watching {}", watch.port);
        self.ask(move |switch| switch.watch(&watch.port, client, writer))??;
        Ok(Answer { line, files: files.into(), keep: true })
    }

    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Switch) -> T + Send + 'static,
    ) -> Result<T> {
        self.handle.ask(work).ok_or_else(|| Error::Usage("the switch is ending".into()))
    }

    fn show(&self) -> Result<Value> {
        let states = self.ask(Switch::states)?;
        let port = |state| {
            let mut value = Value::from(switching(state));
            let report = self.ports.reports.get(state.id as usize);
            value["port"] = report.map_or("", |report| &report.port).into();
            if let Some(vlans) = &state.vlans {
                show_vlans(vlans, &mut value);
            }
            value["packets"] = state.counts.packets.into();
            value["bytes"] = state.counts.bytes.into();
            value["ledger"] = ledger_value(&port_ledger(state, None));
            value
        };
        Ok(json!({"ports": states.iter().map(port).collect::<Vec<_>>()}))
    }

    fn table(&self, from: usize) -> Result<Value> {
        let (mut entries, mut next) = (Vec::new(), Some(from));
        for _ in 0..PIECES {
            let Some(from) = next else { break };
            let (some, then) = self.ask(move |switch| {
                let (entries, next) = switch.entries(from, PIECE);
                let entries = entries.into_iter().map(|(known, port)| (known, port.to_owned()));
                (entries.collect::<Vec<_>>(), next)
            })?;
            entries.extend(some.into_iter().map(|(known, port)| {
                let [_, _, mac @ ..] = known.mac.to_be_bytes();
                let mut entry = json!({
                    "mac": Mac(mac).to_string(),
                    "port": port,
                    "static": known.is_static,
                });
                if known.vlan > 0 {
                    entry["vlan"] = known.vlan.into();
                }
                if !known.is_static {
                    entry["idle_s"] = (f64::from(known.idle) / f64::from(TICKS_PER_SECOND)).into();
                }
                entry
            }));
            next = then;
        }
        Ok(json!({"entries": entries, "next": next}))
    }
}

/// Adds the VLANs of a port, in the form of a request to add it.
fn show_vlans(vlans: &Vlans, port: &mut Value) {
    let tagged = vlans.tagged.to_string();
    let untagged = if tagged.is_empty() { "access" } else { "native" };
    if let Some(vlan) = vlans.untagged {
        port[untagged] = vlan.to_string().into();
    }
    if !tagged.is_empty() {
        port["trunk"] = tagged.into();
    }
}

/// Parses an address as a number, the form of the table.
fn number(text: &str) -> Result<u64> {
    let Mac([a, b, c, d, e, f]) =
        text.parse().map_err(|error| Error::Usage(format!("'{text}': {error}")))?;
    match a & 1 {
        0 => Ok(u64::from_be_bytes([0, 0, a, b, c, d, e, f])),
        _ => Err(Error::Usage(format!("'{text}' is a group address; use the address of a host"))),
    }
}

/// Sends a request to the running switch of a control socket, and shows the answer.
pub fn ask(request: &Request, socket: &Path) -> anyhow::Result<()> {
    let mut client = Client::connect(socket)?;
    if let Request::Show { json, .. } = request {
        return show(&mut client, request, *json);
    }
    let answer = send(&mut client, request)?;
    if let Some(entries) = answer["forgotten"].as_u64() {
        let word = if entries == 1 { "entry" } else { "entries" };
        writeln!(stdout(), "{} {word} removed", show_count(entries))?;
    }
    Ok(())
}

/// Sends a request. An error of the switch becomes this command's.
fn send(client: &mut Client, request: &Request) -> anyhow::Result<Value> {
    let answer: Value = serde_json::from_str(&client.ask(&serde_json::to_string(request)?)?.0)?;
    let Some(error) = answer["error"].as_str() else { return Ok(answer) };
    Err(failed_answer(error, answer["kind"].as_str()).into())
}

fn show(client: &mut Client, request: &Request, as_json: bool) -> anyhow::Result<()> {
    let mut shown = send(client, request)?;
    let mut entries = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next {
        let mut answer = send(client, &Request::Table { from: from as usize })?;
        if let Value::Array(some) = answer["entries"].take() {
            entries.extend(some);
        }
        // Bucket numbers only grow; any other answer ends the listing.
        next = answer["next"].as_u64().filter(|&next| next > from);
    }
    shown["table"] = entries.into();
    let out = &mut stdout().lock();
    if as_json {
        let (ports, table) = (&shown["ports"], &shown["table"]);
        let object = json!({"command": "switch show", "ports": ports, "table": table});
        return Ok(writeln!(out, "{object}")?);
    }
    Ok(write_printable(out, |text| print(&shown, text))?)
}

fn print(shown: &Value, out: &mut impl Write) -> io::Result<()> {
    let count = |value: &Value| show_count(value.as_u64().unwrap_or(0));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    writeln!(
        out,
        "{:<12} {:>14} {:>14} {:>14} {:>10} {:>8}  port",
        "name", "received", "flooded", "sent", "lost", "hosts"
    )?;
    for port in shown["ports"].as_array().into_iter().flatten() {
        let losses = port["ledger"]["losses"].as_object().into_iter().flat_map(|all| all.values());
        let lost: u64 = losses.filter_map(Value::as_u64).sum();
        let vlans = ["access", "trunk", "native"].map(|key| match port[key].as_str() {
            Some(vlans) => format!("  {key} {vlans}"),
            None => String::new(),
        });
        let down = if port["down"] == true { "  (down)" } else { "" };
        writeln!(
            out,
            "{:<12} {:>14} {:>14} {:>14} {:>10} {:>8}  {}{}{down}",
            text(&port["name"]),
            count(&port["packets"]),
            count(&port["flooded"]),
            count(&port["sent"]),
            show_count(lost),
            count(&port["learned"]),
            text(&port["port"]),
            vlans.concat(),
        )?;
    }
    let entries = shown["table"].as_array();
    if entries.is_some_and(|entries| !entries.is_empty()) {
        writeln!(out, "\n{:<18} {:>5} {:<12} seen", "address", "vlan", "port")?;
    }
    for entry in entries.into_iter().flatten() {
        let idle = entry["idle_s"].as_f64();
        let seen = idle.map_or("static".into(), |seconds| format!("{seconds:.1} s ago"));
        let vlan = entry["vlan"].as_u64().map_or_else(String::new, |vlan| vlan.to_string());
        writeln!(out, "{:<18} {vlan:>5} {:<12} {seen}", text(&entry["mac"]), text(&entry["port"]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_have_the_documented_form() {
        let set =
            PortSettings { access: Some("10".into()), rx_only: true, ..PortSettings::default() };
        for (text, request) in [
            (r#"{"do":"show"}"#, Request::Show { json: false }),
            (r#"{"do":"table"}"#, Request::Table { from: 0 }),
            (
                r#"{"do":"add","port":"up=xdp:eth1","access":"10","rx_only":true}"#,
                Request::Add { port: "up=xdp:eth1".into(), set },
            ),
            (r#"{"do":"flush","port":"up"}"#, Request::Flush { port: Some("up".into()) }),
            (
                r#"{"do":"static","mac":"02:00:00:00:00:01","port":"up"}"#,
                Request::Static { mac: "02:00:00:00:00:01".into(), port: "up".into(), vlan: 0 },
            ),
        ] {
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request, "{text}");
            let again = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<Request>(&again).unwrap(), request, "{again}");
        }
        for text in
            ["", "{}", r#"{"do":"fly"}"#, r#"{"do":"remove"}"#, r#"{"do":"static","vlan":-1}"#]
        {
            assert!(serde_json::from_str::<Request>(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_a_request_or_an_error(line: String) {
            let _ = serde_json::from_str::<Request>(&line);
        }

        #[test]
        fn any_object_like_a_request_is_a_request_or_an_error(key in "[a-z]{1,8}", value in any::<i64>()) {
            for word in ["show", "table", "add", "remove", "static", "forget", "flush"] {
                let line = json!({"do": word, "port": "a", "mac": "b", key.as_str(): value});
                let _ = serde_json::from_str::<Request>(&line.to_string());
            }
        }
    }
}
