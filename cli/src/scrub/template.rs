//! `sluice scrub template`: policies to start from.

use std::io::Write as _;

use clap::ValueEnum;
use sluicegate_scrub::profiles;

/// Options of `template`.
#[derive(clap::Args)]
pub struct TemplateArgs {
    /// Purpose of the policy
    #[arg(value_name = "web|server")]
    template: Template,
}

#[derive(Clone, Copy, ValueEnum)]
enum Template {
    /// Web servers: HTTP over TCP, and QUIC
    Web,
    /// Servers of any kind under attack; strict
    Server,
}

/// Prints a policy.
pub fn template(args: &TemplateArgs) -> anyhow::Result<()> {
    let text = match args.template {
        Template::Web => profiles::WEB,
        Template::Server => profiles::SERVER,
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
