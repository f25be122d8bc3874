//! Flags that had another name before: the error for the old name shows the new one.

use clap::error::{ContextKind, ContextValue, Error};

const FLAGS: [(&str, &str); 9] = [
    ("--back-dmac", "--reverse-dmac"),
    ("--back-smac", "--reverse-smac"),
    ("--back-vlan", "--reverse-vlan"),
    ("--catch-up", "--max-lag"),
    ("--learn-limit", "--max-macs"),
    ("--only-in", "--rx-only"),
    ("--only-out", "--tx-only"),
    ("--order-window", "--reorder-window"),
    ("--yes-send-on", "--allow-default-route"),
];

/// Puts the new name into the error for an old one, in place of the most similar name.
pub fn explain(mut error: Error) -> Error {
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => flag.split('=').next().unwrap_or_default(),
        _ => return error,
    };
    if let Some((_, new)) = FLAGS.iter().find(|(old, _)| *old == flag) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String((*new).to_owned()));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::Cli;

    #[test]
    fn an_old_name_is_refused_and_the_new_one_shown() {
        for (old, new) in FLAGS {
            let long = &new[2..];
            let commands = Cli::command();
            let knows = commands.get_subcommands().find(|command| {
                command.get_arguments().any(|argument| argument.get_long() == Some(long))
            });
            let command = knows.expect(new).get_name().to_owned();
            let error = Cli::try_parse_from(["sluice", &command, old, "1"]).err().expect(old);
            let said = explain(error).to_string();
            assert!(said.contains(&format!("'{new}'")), "{said}");
        }
    }
}
