//! Requests to a running switch, as a line of JSON, and its answers (docs/commands/switch.md).

use std::io::{self, Write, stdout};

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluicegate::Result;
use sluicegate::control::Client;
use sluicegate::error::Error;

use super::Where;
use super::ports::Settings;
use crate::units::show_count;

/// A request.
#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// All ports.
    Show {},
    /// The table, from a place on that the last answer told.
    Table {
        #[serde(default)]
        from: usize,
    },
    Add {
        /// As on the command line: `NAME=PORT`.
        port: String,
        #[serde(default, flatten)]
        set: Set,
    },
    Remove {
        port: String,
    },
    Static {
        mac: String,
        port: String,
        #[serde(default)]
        vlan: u16,
    },
    /// Takes one entry out, learned or static.
    Forget {
        mac: String,
        #[serde(default)]
        vlan: u16,
    },
    /// Takes out all that was learned.
    Flush {
        #[serde(default)]
        port: Option<String>,
    },
}

/// The settings of one port.
#[derive(clap::Args, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct Set {
    /// Its VLAN, if hosts there know no tags
    #[arg(long, value_name = "VLAN", conflicts_with_all = ["trunk", "native"])]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<String>,

    /// Its VLANs with tags: 10,20-29
    #[arg(long, value_name = "VLANS")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trunk: Option<String>,

    /// The VLAN of packets without a tag
    #[arg(long, value_name = "VLAN")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    native: Option<String>,

    /// Packets a second that it may have flooded
    #[arg(long, value_name = "PPS")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    storm_limit: Option<String>,

    /// Packets only come from it
    #[arg(long, conflicts_with = "tx_only")]
    #[serde(default)]
    rx_only: bool,

    /// Packets only go to it
    #[arg(long)]
    #[serde(default)]
    tx_only: bool,
}

impl Set {
    /// These settings for the port with this name.
    pub fn of(&self, name: &str) -> Settings {
        let pair = |value: &Option<String>| {
            value.iter().map(|value| (name.to_owned(), value.clone())).collect()
        };
        let named = |is: bool| if is { vec![name.to_owned()] } else { Vec::new() };
        Settings {
            access: pair(&self.access),
            trunk: pair(&self.trunk),
            native: pair(&self.native),
            storm_limit: self.storm_limit.clone().into_iter().collect(),
            rx_only: named(self.rx_only),
            tx_only: named(self.tx_only),
        }
    }
}

/// A switch that runs, to ask it.
pub struct SwitchClient(Client);

impl SwitchClient {
    /// The one of a name, or at a socket.
    pub fn at(place: &Where) -> Result<Self> {
        Client::connect(&place.path()?).map(Self)
    }

    /// Asks; what it cannot do is an error as if it were our own.
    pub fn ask(&mut self, request: &Request) -> anyhow::Result<Value> {
        let (answer, _) = self.0.ask(&serde_json::to_string(request)?)?;
        let answer: Value = serde_json::from_str(&answer)?;
        let Some(error) = answer["error"].as_str() else { return Ok(answer) };
        Err(match answer["kind"].as_str() {
            Some("usage") => Error::Usage(error.into()).into(),
            // Its message has the remedy.
            _ => anyhow::anyhow!("{error}"),
        })
    }
}

/// A request to a running switch.
#[derive(Subcommand)]
pub enum RequestAction {
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
    /// Set the port of an address, until the switch ends
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
pub fn ask(action: RequestAction) -> anyhow::Result<()> {
    let (place, request) = match action {
        RequestAction::Show { place, json } => return show(&place, json),
        RequestAction::Add { port, set, place } => (place, Request::Add { port, set }),
        RequestAction::Remove { port, place } => (place, Request::Remove { port }),
        RequestAction::Static { mac, port, vlan, place } => {
            (place, Request::Static { mac, port, vlan })
        }
        RequestAction::Forget { mac, vlan, place } => (place, Request::Forget { mac, vlan }),
        RequestAction::Flush { port, place } => (place, Request::Flush { port }),
    };
    let answer = SwitchClient::at(&place)?.ask(&request)?;
    if let Some(entries) = answer["forgotten"].as_u64() {
        writeln!(stdout(), "{} entries taken out", show_count(entries))?;
    }
    Ok(())
}

fn show(place: &Where, as_json: bool) -> anyhow::Result<()> {
    let mut asked = SwitchClient::at(place)?;
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
        let down = if port["down"] == true { "  (down)" } else { "" };
        writeln!(
            out,
            "{:<12} {:>14} {:>14} {:>14} {:>10} {:>8}  {}{down}",
            text(&port["name"]),
            count(&port["packets"]),
            count(&port["flooded"]),
            count(&port["sent"]),
            show_count(lost),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_are_what_the_manual_says() {
        let set = Set { access: Some("10".into()), rx_only: true, ..Set::default() };
        for (text, request) in [
            (r#"{"do":"show"}"#, Request::Show {}),
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
        fn no_line_is_more_than_a_request_or_an_error(line: String) {
            let _ = serde_json::from_str::<Request>(&line);
        }

        #[test]
        fn nor_one_that_looks_like_a_request(key in "[a-z]{1,8}", value in any::<i64>()) {
            for word in ["show", "table", "add", "remove", "static", "forget", "flush"] {
                let line = json!({"do": word, "port": "a", "mac": "b", key.as_str(): value});
                let _ = serde_json::from_str::<Request>(&line.to_string());
            }
        }
    }
}
