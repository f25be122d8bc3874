//! The interfaces that a `packet:` port receives from, and XDP programs that take their packets before
//! packet sockets see them.

use sluicegate::Result;
use sluicegate::link::{self, Interface, netns};
use sluicegate::port::{Kind, PortName};
use sluicegate::xdp::resident::{Action, Owner, Resident};

use crate::args::Common;
use crate::notice;
use crate::report::Report;

/// Names, on stderr and in the report, the claims, drops and forwards that hide packets from a
/// `packet:` port, and the command that sees these packets all the same.
pub fn warn(port: &PortName, common: &Common, report: &mut Report) {
    let netns = common.netns.as_deref();
    if port.kind() != Kind::Packet {
        return;
    }
    for interface in interfaces(port, netns).unwrap_or_default() {
        let hidden = match owners(netns, &interface) {
            Ok(owners) => describe(&owners, &interface.name, netns),
            Err(error) => Some(format!(
                "{}: an XDP program may take packets before packet: sees them: {error}",
                interface.name
            )),
        };
        if let Some(hidden) = hidden {
            notice::say(&hidden);
            report.notices.push(hidden);
        }
    }
}

/// The users of the interface's XDP program, none where it has no program.
///
/// # Errors
/// It has one, and this process cannot tell what it does.
fn owners(netns: Option<&str>, interface: &Interface) -> Result<Vec<Owner>> {
    netns::run_in(netns, || {
        let Some(resident) = Resident::find(interface)? else { return Ok(Vec::new()) };
        Ok(resident.claims()?.into_iter().map(|claimed| claimed.owner).collect())
    })
}

/// Describes the owners that hide packets; none if no owner does.
fn describe(owners: &[Owner], interface: &str, netns: Option<&str>) -> Option<String> {
    let hidden: Vec<String> = owners.iter().filter_map(hides).collect();
    let netns = netns.map_or_else(String::new, |netns| format!("--netns {netns} "));
    (!hidden.is_empty()).then(|| {
        format!(
            "{interface}: XDP hides packets from packet: {}; `sluice capture \
             {netns}mirror:{interface}` captures all that comes in",
            hidden.join(", ")
        )
    })
}

/// The packets that an owner hides from packet sockets; none if it passes all of them on.
fn hides(owner: &Owner) -> Option<String> {
    let verb = match owner.action {
        Action::Take => "takes",
        Action::Drop => "drops",
        Action::Forward => "forwards",
        Action::Pass | Action::Mirror => return None,
    };
    let packets = match owner.filter.as_str() {
        "" => "all".into(),
        filter => format!("'{filter}'"),
    };
    let Owner { command, pid, .. } = owner;
    Some(format!("{command} (process {pid}) {verb} {packets}"))
}

/// Returns true if a port receives from all interfaces.
pub fn is_any(port: &PortName) -> bool {
    port.kind() == Kind::Packet && port.name() == "any"
}

/// The interfaces that a port receives from now.
///
/// # Errors
/// There is none of its name, or they cannot be listed.
fn interfaces(port: &PortName, netns: Option<&str>) -> Result<Vec<Interface>> {
    match is_any(port) {
        true => link::interfaces(netns),
        false => Ok(vec![link::interface(netns, port.name())?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(action: Action, filter: &str) -> Owner {
        Owner {
            since_ns: 0,
            pid: 7,
            command: "sluice".into(),
            first_queue: 0,
            queues: 1,
            action,
            filter: filter.into(),
        }
    }

    #[test]
    fn owners_that_remove_packets_are_described_and_those_that_copy_are_not() {
        let remedy = "`sluice capture mirror:eth0` captures all that comes in";
        for (sentence, owners, expected) in [
            ("nobody", vec![], None),
            ("those that pass packets on", vec![(Action::Mirror, ""), (Action::Pass, "udp")], None),
            ("a claim", vec![(Action::Take, "udp")], Some("sluice (process 7) takes 'udp'")),
            ("a forward", vec![(Action::Forward, "")], Some("sluice (process 7) forwards all")),
            (
                "several",
                vec![(Action::Take, "udp"), (Action::Mirror, ""), (Action::Drop, "")],
                Some("sluice (process 7) takes 'udp', sluice (process 7) drops all"),
            ),
        ] {
            let owners: Vec<Owner> = owners.into_iter().map(|(it, text)| owner(it, text)).collect();
            let expected = expected
                .map(|hidden| format!("eth0: XDP hides packets from packet: {hidden}; {remedy}"));
            assert_eq!(describe(&owners, "eth0", None), expected, "{sentence}");
        }
    }
}
