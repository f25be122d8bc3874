//! What a running switch can be asked for, as a line of JSON, and how it answers (docs/cli.md).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sluicegate::Result;
use sluicegate::control::Client;
use sluicegate::error::Error;

use super::Where;
use super::ports::Settings;

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

/// What is said of one port.
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
    /// The same, said of a port by its name.
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
pub struct Asked(Client);

impl Asked {
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
