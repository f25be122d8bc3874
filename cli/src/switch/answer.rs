//! How a running switch answers what it is asked.

use serde_json::{Value, json};
use sluicegate::control::{Answer, Service};
use sluicegate::error::{Error, Result};
use sluicegate::link::Mac;
use sluicegate::monitor::{WatchRequest, Writer};
use sluicegate_switch::table::TICKS_PER_SECOND;
use sluicegate_switch::{Handle, Switch};

use super::ports::Named;
use super::report::{port_ledger, switching};
use super::request::Request;
use super::run::Ports;
use crate::notice::{failure, said};
use crate::report::ledger_value;

/// Buckets of the table that are looked at between two batches, and for one answer.
const PIECE: usize = 256;
const PIECES: usize = 8;

/// A switch, and what is known of its ports.
pub struct Answering<'a, 'b> {
    pub handle: &'a Handle,
    pub ports: &'a mut Ports<'b>,
}

impl Service for Answering<'_, '_> {
    fn answer(&mut self, client: u64, request: &str) -> Answer {
        // A watcher is told in plain words: he wants a file, and no JSON.
        if request.starts_with("watch ") {
            let watched = request.parse().and_then(|watch| self.watch(client, watch));
            return watched.unwrap_or_else(said);
        }
        let understood = serde_json::from_str(request)
            .map_err(|error| Error::Usage(format!("request not understood: {error}")));
        let value = understood.and_then(|request| self.act(request));
        said(value.unwrap_or_else(|error| failure(&error)))
    }

    fn left(&mut self, client: u64) {
        // A switch that has ended has let go of all.
        let _ = self.handle.ask(move |switch| switch.unwatch(client));
    }
}

impl Answering<'_, '_> {
    fn act(&mut self, request: Request) -> Result<Value> {
        match request {
            Request::Show {} => self.show(),
            Request::Table { from } => self.table(from),
            Request::Add { port, set } => {
                let named: Named = port.parse()?;
                let settings = set.of(&named.name);
                self.ports.add(&named, &settings, self.handle)?;
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

    /// A watcher gets his ring, and has it until he goes.
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
            let mut value = json!(switching(state));
            value["port"] = self.ports.name_of(state).into();
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

/// An address as the table has it.
fn number(text: &str) -> Result<u64> {
    let Mac([a, b, c, d, e, f]) =
        text.parse().map_err(|error| Error::Usage(format!("'{text}': {error}")))?;
    match a & 1 {
        0 => Ok(u64::from_be_bytes([0, 0, a, b, c, d, e, f])),
        _ => Err(Error::Usage(format!("'{text}' is a group's: only a host is behind a port"))),
    }
}
