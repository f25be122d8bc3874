//! The counts as tables for people, and as JSON.

use std::fmt::{self, Display};
use std::io::{self, Write};

use serde_json::{Value, json};
use sluicegate::error::Result;

use super::table::{Counters, DirectionCounters, Table};
use super::{Conversation, End, PacketCounts, Protocol};
use crate::print::{ethertype_name, protocol_name};
use crate::units::{show_bytes, show_count, show_percent};

/// The counts of all queues, so far or at the end, and how many lines of each table to show.
#[derive(Debug)]
pub struct Stats {
    counts: PacketCounts,
    top: usize,
}

impl Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, number, port) = match *self {
            Self::Unknown => return f.write_str("unknown"),
            Self::Ethertype(ethertype) => {
                return match ethertype_name(ethertype) {
                    Some(name) => f.write_str(&name.to_lowercase()),
                    None => write!(f, "{ethertype:#06x}"),
                };
            }
            Self::Ip { version, number, port } => (version, number, port),
        };
        match protocol_name(number) {
            Some(name) => write!(f, "ip{version} {name}")?,
            None => write!(f, "ip{version} protocol {number}")?,
        }
        port.map_or(Ok(()), |port| write!(f, " {port}"))
    }
}

/// An end of a conversation as text: `198.18.0.1:53`, `[2001:db8::1]:53`.
fn end((address, port): End) -> String {
    match (address.to_string(), port) {
        (address, None) => address,
        (address, Some(port)) if address.contains(':') => format!("[{address}]:{port}"),
        (address, Some(port)) => format!("{address}:{port}"),
    }
}

impl Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.ends.map(end);
        write!(f, "{a} - {b} {}", self.protocol)
    }
}

fn counters_json(counters: Counters) -> Value {
    json!({"packets": counters.packets, "bytes": counters.bytes})
}

impl Stats {
    pub fn of(counts: PacketCounts, top: usize) -> Self {
        Self { counts, top }
    }

    /// The counts in the JSON.
    pub fn to_json(&self) -> Value {
        let PacketCounts { all, protocols, conversations, addresses } = &self.counts;
        json!({
            "packets": all.packets,
            "bytes": all.bytes,
            "protocols": self.table_json(protocols, |protocol, counters| {
                json!({
                    "protocol": protocol.to_string(),
                    "packets": counters.there.packets,
                    "bytes": counters.there.bytes,
                })
            }),
            "conversations": self.table_json(conversations, |it, counters| {
                let [a, b] = it.ends;
                let mut object = json!({
                    "protocol": it.protocol.to_string(),
                    "a": a.0.to_string(),
                    "b": b.0.to_string(),
                    "a_to_b": counters_json(counters.there),
                    "b_to_a": counters_json(counters.back),
                });
                for (name, port) in [("a_port", a.1), ("b_port", b.1)] {
                    if let Some(port) = port {
                        object[name] = port.into();
                    }
                }
                object
            }),
            "addresses": self.table_json(addresses, |address, counters| {
                json!({
                    "address": address.to_string(),
                    "sent": counters_json(counters.there),
                    "received": counters_json(counters.back),
                })
            }),
        })
    }

    fn table_json<K: Copy + Ord + std::hash::Hash>(
        &self,
        table: &Table<K>,
        row: impl Fn(K, DirectionCounters) -> Value,
    ) -> Value {
        let top: Vec<Value> =
            table.top(self.top).into_iter().map(|(key, counters)| row(key, counters)).collect();
        json!({"known": table.len(), "top": top, "forgotten": counters_json(table.others())})
    }

    /// Prints the tables.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let PacketCounts { protocols, conversations, addresses, .. } = &self.counts;
        self.print_table("protocols", ["", ""], protocols, out)?;
        self.print_table("conversations", ["there", "back"], conversations, out)?;
        self.print_table("addresses", ["sent", "received"], addresses, out)
    }

    /// Prints a table; packets by direction if these have names. A packet counts for two addresses, which have
    /// no shares therefore.
    fn print_table<K: Copy + Ord + std::hash::Hash + Display>(
        &self,
        name: &str,
        directions: [&str; 2],
        table: &Table<K>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let rows = table.top(self.top);
        if rows.is_empty() {
            return Ok(());
        }
        let (shown, known) = (rows.len(), table.len());
        let head = match shown == known {
            true => name.to_owned(),
            false => {
                format!("{name}: {} of {}", show_count(shown as u64), show_count(known as u64))
            }
        };
        let rows: Vec<_> =
            rows.iter().map(|(key, counters)| (key.to_string(), *counters)).collect();
        let width = rows.iter().map(|(key, _)| key.len() + 2).fold(head.len(), usize::max);
        let [there, back] = directions;
        let line =
            format!("{head:<width$}{:>15}{:>9}{:>12}{there:>15}{back:>15}", "packets", "", "bytes");
        writeln!(out, "{}", line.trim_end())?;
        for (key, counters) in rows {
            let Counters { packets, bytes } = counters.sum();
            let share = match there {
                "sent" => String::new(),
                _ => show_percent(packets, self.counts.all.packets),
            };
            let (count, bytes) = (show_count(packets), show_bytes(bytes));
            write!(out, "  {key:<0$}{count:>15}{share:>9}{bytes:>12}", width - 2)?;
            if !there.is_empty() {
                let [there, back] =
                    [counters.there, counters.back].map(|it| show_count(it.packets));
                write!(out, "{there:>15}{back:>15}")?;
            }
            writeln!(out)?;
        }
        let Counters { packets, .. } = table.others();
        if packets > 0 {
            writeln!(
                out,
                "  {} packets are of {name} that were forgotten: too many",
                show_count(packets)
            )?;
        }
        Ok(())
    }
}

/// Parses the number of lines of each table.
pub fn top(text: &str) -> std::result::Result<usize, String> {
    let lines: Result<u64, _> = sluicegate::units::count(text);
    match lines {
        Ok(lines @ 1..=10_000) => Ok(lines as usize),
        _ => Err("use a number from 1 to 10000".into()),
    }
}
