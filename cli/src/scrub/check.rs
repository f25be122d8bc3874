//! `sluice scrub check`: validates a policy without an interface.

use std::io::Write as _;
use std::path::PathBuf;

use super::read_policy;
use crate::units::{show_bytes, show_count};

/// Options of `check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// The policy, in TOML
    #[arg(value_name = "FILE")]
    policy: PathBuf,
}

/// Checks a policy, and prints what it contains and needs.
pub fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let policy = read_policy(&args.policy)?;
    let tables = sluicegate_scrub::scrubber::build(&policy)?;
    let networks: usize = policy.sets.iter().map(|set| set.networks.len()).sum();
    let parts = [
        (policy.networks.len(), "protected networks", "protected network"),
        (policy.sets.len(), "sets", "set"),
        (networks, "networks in sets", "network in sets"),
        (policy.rules.len(), "rules", "rule"),
        (policy.limits().count(), "limits", "limit"),
    ];
    let parts = parts.map(|(count, many, one)| {
        format!("{} {}", show_count(count as u64), if count == 1 { one } else { many })
    });
    let (file, memory) = (args.policy.display(), show_bytes(tables.image.bytes() as u64));
    writeln!(std::io::stdout(), "{file}: valid: {}; {memory} of memory", parts.join(", "))?;
    Ok(())
}
