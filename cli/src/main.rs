//! The command `sluice`: packets between Linux and a program at high rates.
#![forbid(unsafe_code)]

mod advice;
mod analysis;
mod args;
mod bench;
mod capture;
mod claims;
mod completion;
mod count;
mod counters;
mod edit;
mod file_flags;
mod forward;
mod generate;
mod habits;
mod interface_counters;
mod lab;
mod ledger;
mod manual;
mod metrics;
mod netmap;
mod new_file;
mod notice;
mod pacing;
mod pipe_reader;
mod port_kinds;
mod ports;
mod print;
mod privileges;
mod recorded;
mod replay;
mod report;
mod rewriting;
mod run;
mod screen;
mod scrub;
mod send;
mod signals;
mod stats;
mod status;
mod streams;
mod switch;
mod target;
mod text_file;
mod top;
mod units;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

const EXAMPLES: &str = "\
A first look, as root:
  sluice lab up
  sluice capture left0 --netns lab-left --count 4 &
  sluice lab exec left -- ping -c 3 198.18.0.2
  sluice lab down

SIGINT, SIGTERM, SIGHUP and SIGQUIT end a command with its files complete and its
ledger printed. SIGINT or SIGQUIT, 200 ms or more after the first signal, ends it at
once. SIGUSR1 prints the ledger so far, SIGUSR2 makes capture --keep write its packets.

Exit status: 0 success, 1 failed while running, 2 wrong usage, 3 missing privilege or
kernel feature, 130 ended at once.";

/// Receive, generate, forward and switch packets on Linux
#[derive(Parser)]
#[command(name = "sluice", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Attach(claims::AttachArgs),
    Bench(bench::Args),
    Capture(capture::Args),
    Claims(claims::ClaimsArgs),
    Count(count::Args),
    Detach(claims::DetachArgs),
    Edit(Box<edit::Args>),
    Forward(forward::Args),
    Generate(Box<generate::Args>),
    Lab(lab::Args),
    #[command(hide = true)]
    Manual(manual::Args),
    Netmap(netmap::Args),
    Ports(port_kinds::Args),
    Replay(replay::Args),
    Scrub(scrub::Args),
    Switch(Box<switch::Args>),
    Top(top::Args),
}

fn main() -> std::process::ExitCode {
    completion::answer(Cli::command);
    let parsed = Cli::command().try_get_matches().and_then(|matches| {
        advice::set_netns(&matches);
        Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))
    });
    let cli = parsed.unwrap_or_else(|error| {
        let command = std::env::args_os().nth(1).and_then(|word| word.into_string().ok());
        let printable = notice::printable_line().and_then(|line| Cli::try_parse_from(line).err());
        let error = printable.unwrap_or(error);
        let error = habits::explain(notice::explain_renamed(error), command.as_deref());
        notice::end_with_usage(&error)
    });
    notice::exit_code(run(cli.command))
}

fn run(command: Command) -> anyhow::Result<()> {
    // Commands that these start would inherit it.
    if !matches!(command, Command::Lab(_) | Command::Netmap(_) | Command::Bench(_)) {
        privileges::gain_no_more()?;
    }
    // A bench starts its programs with no signal blocked.
    if !matches!(command, Command::Lab(_) | Command::Netmap(_)) {
        signals::hold_harmless()?;
    }
    match command {
        Command::Attach(args) => claims::attach(args),
        Command::Bench(args) => bench::run(args),
        Command::Capture(args) => capture::capture(args),
        Command::Claims(args) => claims::claims(args),
        Command::Count(args) => count::count(args),
        Command::Detach(args) => claims::detach(args),
        Command::Edit(args) => edit::edit(*args),
        Command::Forward(args) => forward::forward(args),
        Command::Generate(args) => generate::generate(*args),
        Command::Lab(args) => lab::run(args),
        Command::Manual(args) => manual::run(&args, Cli::command()),
        Command::Netmap(args) => netmap::run(args),
        Command::Ports(_) => port_kinds::run(),
        Command::Replay(args) => replay::replay(args),
        Command::Scrub(args) => scrub::scrub(args),
        Command::Switch(args) => switch::switch(*args),
        Command::Top(args) => top::run(args),
    }
}
