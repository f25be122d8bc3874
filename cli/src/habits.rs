//! Flags of other tools that a command does not have, and what to use instead.

use clap::CommandFactory;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::Cli;

/// The commands, the flag, and the tip.
const FLAGS: &[(&[&str], &str, &str)] = &[
    (&["capture"], "-I", "set monitor mode with iw, and capture the interface as any other"),
    (&["capture"], "-j", "the clock is an option of the port: packet:eth0,timestamp=hardware"),
    (&["capture"], "-J", "the clocks are values of the port's option timestamp= (sluice ports)"),
    (&["capture"], "-P", "--print prints as well as writes; --format pcap writes pcap"),
    (&["capture"], "-E", "write a file, and let tshark decrypt it"),
    (&["capture"], "--interface", "-i PORT"),
    (&["capture"], "--list-interfaces", "-D"),
    (&["capture"], "--snapshot-length", "-s BYTES"),
    (&["capture"], "--buffer-size", "an option of the port: eth0,blocks=64 has 64 MiB"),
    (&["capture"], "--direction", "-Q in"),
    (&["capture"], "--no-promiscuous-mode", "-p"),
    (&["capture"], "--absolute-tcp-sequence-numbers", "-S"),
    (&["capture"], "--packet-buffered", "-U"),
    (&["capture"], "--immediate-mode", "lines are always printed at once; leave it out"),
    (&["capture"], "--relinquish-privileges", "-Z USER"),
    (&["count", "forward", "switch", "bench", "top", "claims"], "-i", PORT),
    (&["count"], "-r", "name the file as the port: sluice count trace.pcap"),
    (&["count"], "-w", "files are written by sluice capture PORT -w FILE"),
    (&["edit"], "-r", "numbers of packets to keep are --packets LIST; the files need no flag"),
    (&["edit"], "-w", "the last file is written: sluice edit IN... OUT"),
    (&["edit"], "-A", "--from TIME"),
    (&["edit"], "-B", "--until TIME"),
    (&["edit"], "-t", "--shift TIME"),
    (&["edit"], "-F", "--format pcap or --format pcapng"),
    (&["edit"], "-a", "--comment TEXT"),
    (&["replay"], "-i", "name the port after the file: sluice replay FILE eth0"),
    (&["replay"], "-I", "name the second port last: sluice replay FILE eth0 eth1"),
    (&["replay"], "-t", "--top-speed"),
    (&["replay"], "-x", "--speed X"),
    (&["replay"], "-p", "--rate 1000pps"),
    (&["replay"], "-M", "--rate 100MbpsL2"),
    (&["replay"], "-l", "--loop N"),
    (&["replay"], "-L", "--count N"),
    (&["replay"], "-o", "--step"),
    (&["replay"], "-K", "the file is always read ahead"),
    (&["generate"], "-i", "--spec FILE; the port needs no flag: sluice generate eth0"),
    (&["generate"], "-o", "name the port without a flag, or a file: sluice generate pcap:out.pcap"),
    (&["generate"], "-w", "name the file as the port: sluice generate pcap:out.pcap"),
    (&["generate"], "-n", "--count N"),
    (&["generate"], "-b", "--rate RATE"),
    (&["generate"], "-R", "--rate RATE"),
    (&["generate"], "-l", "--size BYTES"),
    (&["generate"], "-s", "--src ADDRESS, --smac MAC"),
    (&["generate"], "-d", "--dst ADDRESS, --dmac MAC"),
];

const PORT: &str = "name the interface without a flag";

/// Puts the flag to use into the error for another tool's.
pub fn explain(mut error: clap::Error, command: Option<&str>) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return error };
    let is_meant = |(commands, known, _): &&(&[&str], &str, _)| {
        known == flag && command.is_some_and(|command| commands.contains(&command))
    };
    let tip = FLAGS.iter().find(is_meant).map(|(.., tip)| StyledStr::from(*tip));
    let tip = tip.map(|tip| ContextValue::StyledStrs(vec![tip]));
    // clap's tip and usage are those of the most similar flag.
    if tip.is_some() && error.get(ContextKind::SuggestedArg).is_some() {
        let flag = ContextValue::String(flag.clone());
        error = clap::Error::new(error.kind()).with_cmd(&Cli::command());
        error.insert(ContextKind::InvalidArg, flag);
    }
    // clap's tip, to pass the flag as a value, only helps before a command to run.
    if tip.is_some() || command != Some("lab") {
        error.insert(ContextKind::Suggested, tip.unwrap_or(ContextValue::None));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn flags_of_other_tools_are_refused_with_what_to_use() {
        for (commands, flag, tip) in FLAGS {
            for command in *commands {
                let error = Cli::try_parse_from(["sluice", command, flag, "1"]).err();
                let error = error.unwrap_or_else(|| panic!("{command} {flag} is known"));
                let text = explain(error, Some(command)).to_string();
                assert!(text.contains(&format!("tip: {tip}\n")), "{command} {flag}: {text}");
                assert_eq!(text.matches("tip:").count(), 1, "{text}");
            }
        }
    }

    #[test]
    fn an_unknown_flag_is_no_value() {
        for (words, has_tip) in [(&["count"][..], false), (&["lab", "exec", "left"], true)] {
            let line = [&["sluice"], words, &["-q"]].concat();
            let error = Cli::try_parse_from(line).err().expect("unknown");
            let text = explain(error, Some(words[0])).to_string();
            assert!(!text.contains("\n\n\n"), "{text}");
            assert_eq!(text.contains("as a value"), has_tip, "{text}");
        }
    }
}
