//! `sluice lab`: hosts made of network namespaces and veth links.

/// Make, list and remove labs: hosts made of network namespaces, joined by veth links.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    Ok(())
}
