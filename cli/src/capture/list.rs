//! The interfaces one can capture from.

use std::io::{IsTerminal, Write, stdout};

use sluicegate::link;

use crate::args::Common;

/// Lists the interfaces one can capture from.
pub fn interfaces(common: &Common) -> anyhow::Result<()> {
    let interfaces = link::interfaces(common.netns.as_deref())?;
    let mut out = stdout().lock();
    if common.json {
        let listed: Vec<_> = interfaces.iter().map(listed).collect();
        serde_json::to_writer(&mut out, &listed)?;
        writeln!(out)?;
        return Ok(());
    }
    for interface in interfaces {
        writeln!(out, "{interface}")?;
    }
    if stdout().is_terminal() {
        let example = common.netns.as_ref().map_or_else(String::new, |n| format!(" --netns {n}"));
        writeln!(out, "\nto see packets:  sluice capture IFACE{example}")?;
        writeln!(out, "into a file:     sluice capture IFACE{example} -w trace.pcapng")?;
    }
    Ok(())
}

/// An interface as `--json` lists it.
fn listed(interface: &link::Interface) -> serde_json::Value {
    let addresses: Vec<String> = interface.addresses.iter().map(ToString::to_string).collect();
    serde_json::json!({
        "name": interface.name,
        "kind": interface.kind,
        "state": interface.state(),
        "loopback": interface.loopback,
        "mac": interface.mac.map(|mac| mac.to_string()),
        "mtu": interface.mtu,
        "addresses": addresses,
    })
}
