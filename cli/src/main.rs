//! The command `sluice`: packets between Linux and a program at the speed of the wire.
#![forbid(unsafe_code)]

mod args;
mod capture;
mod count;
mod exit;
mod lab;
mod notice;
mod print;
mod report;
mod run;
mod status;
mod top;
mod units;

use clap::{Parser, Subcommand};

/// Packets between Linux and a program at the speed of the wire, on the stock kernel
#[derive(Parser)]
#[command(name = "sluice", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Capture(capture::Args),
    Count(count::Args),
    Lab(lab::Args),
    Top(top::Args),
}

fn main() -> std::process::ExitCode {
    exit::with(match Cli::parse().command {
        Command::Capture(args) => capture::capture(args),
        Command::Count(args) => count::count(args),
        Command::Lab(args) => lab::run(args),
        Command::Top(args) => top::run(args),
    })
}
