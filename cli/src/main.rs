//! The command `sluice`: packets between Linux and a program at the speed of the wire.
#![forbid(unsafe_code)]

mod exit;
mod lab;
#[expect(dead_code)]
mod print;
mod top;

use clap::{Parser, Subcommand};

/// Capture, count, generate and forward packets on the stock kernel.
#[derive(Parser)]
#[command(name = "sluice", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Lab(lab::Args),
    Top(top::Args),
}

fn main() -> std::process::ExitCode {
    exit::with(match Cli::parse().command {
        Command::Lab(args) => lab::run(args),
        Command::Top(args) => top::run(args),
    })
}
