//! Messages of a command on stderr beside its result, the answers on its control socket, and its exit
//! status: 0 done, 1 failed while running, 2 wrong usage, 3 missing privilege or kernel feature. A
//! reader that closes the pipe, or a terminal that hangs up, is no failure: that is 0 too.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write, stderr, stdout};
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::tcgetattr;
use serde_json::{Value, json};
use sluicegate::control::Answer;
use sluicegate::error::{Error, ErrorKind};
use sluicegate::filter;
use sluicegate_bench::Failure;

use crate::advice;

/// Prints a message on stderr. A closed stderr does not stop the command.
pub fn say(text: impl Display) {
    let text = text.to_string();
    let _ = writeln!(stderr(), "sluice: {}", printable(&advice::with_namespace(&text)));
}

/// Prints a message as [`say`] does, but skips it if stderr would block: a terminal was stopped, or a pipe is full.
pub fn try_say(text: impl Display) {
    let stderr = stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut fds, PollTimeout::ZERO) != Ok(0) {
        say(text);
    }
}

/// Escapes control characters, such as those in a file's name, which a terminal would obey. Lines and tabs
/// stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(obeyed) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match obeyed(c) {
            true => escaped += &format!("\\x{:02x}", u32::from(c)),
            false => escaped.push(c),
        }
    }
    escaped.into()
}

/// Writes a text for people, with control characters escaped: names may have any.
pub fn write_printable(
    out: &mut impl Write,
    text: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    text(&mut bytes)?;
    out.write_all(printable(&String::from_utf8_lossy(&bytes)).as_bytes())
}

/// Returns the command line with control characters escaped, if it has any. clap prints words as they are.
pub fn printable_line() -> Option<Vec<OsString>> {
    let mut changed = false;
    let mut escape = |word: OsString| match word.to_str().map(printable) {
        Some(Cow::Owned(escaped)) => {
            changed = true;
            escaped.into()
        }
        _ => word,
    };
    let line = std::env::args_os().map(&mut escape).collect();
    changed.then_some(line)
}

/// Prints the error of a command line, and ends the process.
pub fn end_with_usage(error: &clap::Error) -> ! {
    let is_text = |word: &OsString| word.to_str().is_some();
    match std::env::args_os().find(|word| !is_text(word)) {
        Some(word) if error.kind() == clap::error::ErrorKind::InvalidUtf8 => {
            say(format_args!(
                "{word:?} is not UTF-8; only files to write, and those of edit, may have such names: make a link \
                 with another name (ln -s), or pipe the file to pcap:-"
            ));
            std::process::exit(error.exit_code())
        }
        // Help and the version are results.
        _ if !error.use_stderr() => {
            let printed = error.print().and_then(|()| stdout().flush());
            let code = exit_code(printed.map_err(anyhow::Error::from));
            std::process::exit(if code == ExitCode::SUCCESS { 0 } else { 1 })
        }
        _ => error.exit(),
    }
}

/// Returns true if writing to `output` failed because its reader left: a pipe was closed, or a
/// terminal hung up. The command does not fail then.
pub fn reader_left(error: &io::Error, output: impl AsFd) -> bool {
    match error.kind() {
        io::ErrorKind::BrokenPipe => true,
        // Every request to a terminal that hung up fails with this error (drivers/tty/tty_io.c,
        // hung_up_tty_ioctl).
        _ => {
            error.raw_os_error() == Some(Errno::EIO as i32)
                && matches!(tcgetattr(output), Err(Errno::EIO))
        }
    }
}

/// The exit status of a command that was run for the user.
#[derive(Debug, thiserror::Error)]
#[error("exit status {0}")]
pub struct ExitStatus(pub u8);

/// Prints an error of a command.
pub fn say_error(error: &anyhow::Error) {
    match (error.downcast_ref::<Error>(), error.downcast_ref::<io::Error>()) {
        // An error of another stream has a context that names it.
        (_, Some(e)) if error.chain().len() == 1 => say(format_args!("write standard output: {e}")),
        // Sluice's own messages already contain their cause.
        (Some(ours), _) => say(ours),
        _ => say(format_args!("{error:#}")),
    }
}

/// Prints an error, and turns it into the exit status.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if let Some(ExitStatus(status)) = error.downcast_ref() {
        return ExitCode::from(*status);
    }
    if error.downcast_ref().is_some_and(|error| reader_left(error, stdout())) {
        return ExitCode::SUCCESS;
    }
    say_error(&error);
    let ours = error.downcast_ref::<Error>();
    if let Some(place) = ours.and_then(filter::explain) {
        let _ = writeln!(stderr(), "{place}");
    }
    let kind = ours.map(Error::kind).or_else(|| error.downcast_ref().and_then(Failure::kind));
    let kind = kind.or_else(|| error.downcast_ref::<FailedAnswer>().and_then(|it| it.1));
    let known = kind.and_then(|kind| KINDS.iter().find(|it| it.0 == kind));
    known.map_or(ExitCode::FAILURE, |it| it.2.into())
}

/// Returns an answer of one line.
pub fn answer(line: impl ToString) -> Answer {
    Answer { line: line.to_string(), ..Answer::default() }
}

/// Kinds of errors with their name in answers and their exit status. Others are "runtime", 1.
const KINDS: [(ErrorKind, &str, u8); 2] =
    [(ErrorKind::Usage, "usage", 2), (ErrorKind::Privilege, "privilege", 3)];

/// Returns the answer to a request that failed.
pub fn failure(error: &Error) -> Value {
    let kind = KINDS.iter().find(|it| it.0 == error.kind()).map_or("runtime", |it| it.1);
    json!({"error": advice::with_namespace(&error.to_string()), "kind": kind})
}

/// The error in an answer, and its kind if the exit status is not 1.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FailedAnswer(String, Option<ErrorKind>);

/// Makes the error from an answer's texts.
pub fn failed_answer(error: &str, kind: Option<&str>) -> FailedAnswer {
    FailedAnswer(error.into(), KINDS.iter().find(|it| Some(it.1) == kind).map(|it| it.0))
}

/// Flags by their former and their present names.
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
pub fn explain_renamed(mut error: clap::Error) -> clap::Error {
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
    fn only_control_characters_other_than_lines_and_tabs_are_escaped() {
        for (text, printed) in [
            ("Ünïcode\tin\ntwo lines", "Ünïcode\tin\ntwo lines"),
            ("\x1b[31m.pcap\r", r"\x1b[31m.pcap\x0d"),
            ("\u{9b}2J\x7f", r"\x9b2J\x7f"),
        ] {
            assert_eq!(printable(text), printed);
        }
    }

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
            let said = explain_renamed(error).to_string();
            assert!(said.contains(&format!("'{new}'")), "{said}");
        }
    }
}
