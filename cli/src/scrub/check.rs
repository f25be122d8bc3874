//! `sluice scrub check`: validates a policy without an interface.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::json;
use sluicegate_scrub::scrubber::{LIMIT_KEYS, Memory, build};

use super::read_policy;
use super::run::limit_keys;
use crate::units::{show_bytes, show_count};

/// Options of `check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// The policy, in TOML
    #[arg(value_name = "FILE")]
    policy: PathBuf,

    /// The `--limit-keys` of `run`, to compute its memory
    #[arg(long, value_name = "N", default_value_t = LIMIT_KEYS, value_parser = limit_keys)]
    limit_keys: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Checks a policy, and prints what it contains and needs.
pub fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let policy = read_policy(&args.policy)?;
    let memory = Memory::of(&build(&policy)?, args.limit_keys)?;
    let protected: usize = policy.networks.iter().map(|it| it.networks.len()).sum();
    let networks: usize = policy.sets.iter().map(|set| set.networks.len()).sum();
    let parts = [
        ("protected_networks", protected, "protected networks", "protected network"),
        ("sets", policy.sets.len(), "sets", "set"),
        ("networks", networks, "networks in sets", "network in sets"),
        ("rules", policy.rules.len(), "rules", "rule"),
        ("limits", policy.limits().count(), "limits", "limit"),
    ];
    let out = &mut std::io::stdout();
    if args.json {
        let mut object = json!({
            "command": "scrub check",
            "policy": args.policy.display().to_string(),
            "tables_bytes": memory.tables,
            "memory_bytes": memory.total(),
        });
        for (key, count, ..) in parts {
            object[key] = count.into();
        }
        writeln!(out, "{object}")?;
        return Ok(());
    }
    let parts = parts.map(|(_, count, many, one)| {
        format!("{} {}", show_count(count as u64), if count == 1 { one } else { many })
    });
    let (file, parts) = (args.policy.display(), parts.join(", "));
    let [tables, total] = [memory.tables, memory.total()].map(show_bytes);
    writeln!(out, "{file}: valid: {parts}; {tables} of tables, up to {total} of memory")?;
    Ok(())
}
