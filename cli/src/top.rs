//! `sluice top`: what the interfaces, their queues and the CPUs are doing.

/// Packets, bits and drops per interface, queue and CPU.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    Ok(())
}
