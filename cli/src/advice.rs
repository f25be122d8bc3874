//! Commands in messages: they name the network namespace of the run, so that they work as printed.

use std::borrow::Cow;
use std::sync::OnceLock;

use clap::ArgMatches;
use sluicegate::link::netns;

/// The value of `--netns`, if it is the namespace of all ports of the run.
static NETNS: OnceLock<String> = OnceLock::new();

/// The beginnings of commands of Sluice that take `--netns`.
const OWN: [&str; 4] = ["sluice attach ", "sluice capture ", "sluice claims ", "sluice detach "];
/// The beginnings of other tools' commands.
const OTHERS: [&str; 6] =
    ["bpftool net", "ethtool -", "hwstamp_ctl -", "ip -s ", "ip link", "tc -s "];
/// The other end of a veth, which may be in any namespace.
const OTHER_END: &str = "ethtool -K OTHER_END";

/// Stores the namespace of the command to run.
pub fn set_netns(matches: &ArgMatches) {
    let Some((_, command)) = matches.subcommand() else { return };
    let value = |id| command.try_get_one::<String>(id).ok().flatten();
    let netns = value("netns").filter(|it| value("receive_netns").is_none_or(|other| other == *it));
    if let Some(netns) = netns {
        // A process runs one command.
        let _ = NETNS.set(netns.clone());
    }
}

/// Adds the namespace of the run to the commands in a text.
pub fn with_namespace(text: &str) -> Cow<'_, str> {
    match NETNS.get() {
        Some(netns) => add_netns(text, netns).into(),
        None => text.into(),
    }
}

fn add_netns(text: &str, netns: &str) -> String {
    let entering = entering(netns);
    let mut all = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let begins_word = !all.ends_with(|c: char| c.is_alphanumeric() || "-_./".contains(c));
        let own = OWN.iter().find(|it| begins_word && rest.starts_with(**it));
        let other = begins_word && OTHERS.iter().any(|it| rest.starts_with(it));
        if other && !rest.starts_with(OTHER_END) {
            all += &entering;
        }
        let taken = own.map_or(c.len_utf8(), |it| it.len());
        let (now, later) = rest.split_at(taken);
        all += now;
        if own.is_some() {
            all += &format!("--netns {netns} ");
        }
        rest = later;
    }
    all
}

/// Returns the command that runs another one in a namespace: a name, a path or a PID.
fn entering(netns: &str) -> String {
    match () {
        () if netns.contains('/') => format!("nsenter --net={netns} "),
        () if netns::exists(netns) || netns.parse::<u32>().is_err() => {
            format!("ip netns exec {netns} ")
        }
        () => format!("nsenter -t {netns} -n "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::REMEDIES;

    #[test]
    fn commands_get_the_namespace_and_other_words_stay() {
        for (text, expected) in [
            ("down: ip link set a up", "down: ip netns exec lab ip link set a up"),
            ("(ethtool -K a gro off); b", "(ip netns exec lab ethtool -K a gro off); b"),
            ("`sluice detach a` ends", "`sluice detach --netns lab a` ends"),
            ("sluice attach IFACE", "sluice attach --netns lab IFACE"),
            ("as by `sluice detach`: start", "as by `sluice detach`: start"),
            ("`ip link` lists", "`ip netns exec lab ip link` lists"),
            ("far end (ethtool -K OTHER_END gro on)", "far end (ethtool -K OTHER_END gro on)"),
            ("`ip netns delete x`", "`ip netns delete x`"),
            (
                "(`bpftool net`, `bpftool prog show id 7` say more)",
                "(`ip netns exec lab bpftool net`, `bpftool prog show id 7` say more)",
            ),
            ("a clip linked, µ", "a clip linked, µ"),
        ] {
            assert_eq!(add_netns(text, "lab"), expected);
        }
    }

    #[test]
    fn remedies_of_losses_name_the_namespace_in_each_command() {
        let [mut own, mut others] = [0; 2];
        for (loss, remedy) in REMEDIES {
            let text = add_netns(remedy, "lab").replace("ip netns exec lab ", "@");
            let commands = |tool: &'static str| {
                let found = text.match_indices(tool).map(|(at, _)| text.split_at(at));
                found.filter(|it| !it.0.ends_with(char::is_alphanumeric))
            };
            for tool in ["bpftool ", "ethtool ", "hwstamp_ctl ", "ip ", "tc "] {
                for (before, command) in commands(tool).filter(|it| !it.1.starts_with(OTHER_END)) {
                    assert!(before.ends_with('@'), "{loss}: {command}");
                    others += 1;
                }
            }
            for (_, command) in OWN.into_iter().flat_map(|it| commands(it.trim_end())) {
                let flag = command.split(' ').nth(2);
                assert_eq!(flag, Some("--netns"), "{loss}: {command}");
                own += 1;
            }
        }
        assert!(own > 0 && others > 0, "{own} {others}");
    }

    #[test]
    fn a_namespace_is_entered_by_name_path_or_pid() {
        for (netns, expected) in [
            ("lab-left", "ip netns exec lab-left "),
            ("/proc/7/ns/net", "nsenter --net=/proc/7/ns/net "),
            ("4711", "nsenter -t 4711 -n "),
        ] {
            assert_eq!(entering(netns), expected);
        }
    }
}
