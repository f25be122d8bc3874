//! Checks and notices of ports, for all commands: packets that a port takes from the host, programs that hide
//! packets from it, and output files that are also inputs or other outputs.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, IsTerminal, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::sys::stat::makedev;
use sluicegate::error::{Error, Result};
use sluicegate::file::write::output_path;
use sluicegate::link::{self, Interface, netns};
use sluicegate::port::{Kind, Port, PortName};
use sluicegate::xdp::resident::{Action, Owner, Resident};

use crate::args::{Common, PortFlags};
use crate::notice;
use crate::pipe_reader;
use crate::report::Report;

/// Returns true if packets to the port go to standard output; then the result goes to stderr.
pub fn is_standard_output(port: &PortName) -> bool {
    port.kind() == Kind::Pcap && output_path(port.name().into()) == Path::new("-")
}

/// Prints the notices of a port that was opened to receive.
pub fn announce(port: &Port, common: &Common, report: &mut Report) {
    say_fallbacks(port, common.verbose);
    say_queues(port, common.threads, "receive");
    say_diverts(&port.name);
    announce_claims(&port.name, common.netns.as_deref(), report, true);
}

/// Prints a notice if a port has another number of queues than threads were requested.
pub fn say_queues(port: &Port, threads: Option<u32>, act: &str) {
    let (port, queues) = (port.name.short(), port.queues.len());
    if let Some(threads) = threads.filter(|&threads| threads as usize != queues) {
        let many = if queues == 1 { "one queue".into() } else { format!("{queues} queues") };
        notice::say(format_args!("{port} has {many}, so as many threads {act}, not {threads}"));
    }
}

/// Prints every fallback to a slower method, with its reason; if verbose, with the kernel's answer.
pub fn say_fallbacks(port: &Port, verbose: bool) {
    for fallback in &port.fallbacks {
        let (to, reason) = (fallback.to, &fallback.reason);
        // Names of port kinds end with a colon.
        let from = fallback.from.trim_end_matches(':');
        let detail = fallback.detail.as_ref().filter(|_| verbose);
        let detail = detail.map_or_else(String::new, |detail| format!(" ({detail})"));
        notice::say(format_args!(
            "{}: using {to} in place of {from}: {reason}{detail}",
            port.name.short()
        ));
    }
}

/// Explains, on a terminal, which packets the port takes from the host.
pub fn say_diverts(port: &PortName) {
    let takes = match port.kind() {
        Kind::Xdp => port.option("action") != Some("pass"),
        kind => kind == Kind::Host,
    };
    if !takes || !stderr().is_terminal() {
        return;
    }
    let name = port.name();
    match port.option("filter") {
        _ if port.kind() == Kind::Host => notice::say(format_args!(
            "{name}: while this runs, packets that the host sends there do not leave, except \
             forwarded ones"
        )),
        None | Some("") => notice::say(format_args!(
            "{name}: while this runs, the host receives no packets; filter= limits this to matching packets"
        )),
        Some(filter) => notice::say(format_args!(
            "{name}: while this runs, the host receives only packets that do not match '{filter}'"
        )),
    }
}

/// Gives a port the filter of a flag, unless it has one of its own.
pub fn apply_filter(port: &mut PortName, filter: Option<&str>) -> Result<()> {
    let Some(filter) = filter else { return Ok(()) };
    if port.set_default("filter", filter) || port.knows("filter") {
        return Ok(());
    }
    Err(Error::Usage(format!("{}: the port has no filter", port.short())))
}

/// Gives a port that receives the queues and the mode of flags, unless its name has its own.
pub fn apply_flags(port: &mut PortName, flags: &PortFlags) -> Result<()> {
    if let Some(mode) = &flags.mode
        && !port.set_default("mode", mode)
        && !port.knows("mode")
    {
        return Err(Error::Usage(format!(
            "{}: --mode is for xdp: and mirror: ports",
            port.short()
        )));
    }
    match &flags.queues {
        Some(queues) if !port.set_default_queues(queues) => {
            Err(Error::Usage(format!("{}: the port has no queues to select", port.short())))
        }
        _ => Ok(()),
    }
}

/// At the end of a run, prints and notes the claims that hide packets from a port and began after [`announce`].
pub fn announce_later(port: &PortName, netns: Option<&str>, report: &mut Report) {
    announce_claims(port, netns, report, false);
}

fn announce_claims(port: &PortName, netns: Option<&str>, report: &mut Report, errors: bool) {
    for hidden in hiding(port, netns, &mut report.owners, errors) {
        notice::say(&hidden);
        report.notices.push(hidden);
    }
}

/// Describes the claims, drops and forwards that hide packets from a `packet:` port, and the command that sees
/// these packets all the same. Leaves out those of `known` owners, and adds the others to them. With `errors`,
/// describes programs that this process cannot read, too.
fn hiding(
    port: &PortName,
    netns: Option<&str>,
    known: &mut Vec<Owner>,
    errors: bool,
) -> Vec<String> {
    if port.kind() != Kind::Packet {
        return Vec::new();
    }
    let interfaces = interfaces(port, netns).unwrap_or_default();
    let hidden = |interface: Interface| match owners(netns, &interface) {
        Ok(owners) => describe(owners, known, &interface.name),
        Err(error) => errors.then(|| {
            format!(
                "{}: an XDP program may take packets before packet: sees them: {error}",
                interface.name
            )
        }),
    };
    interfaces.into_iter().filter_map(hidden).collect()
}

/// The users of the interface's XDP program, none where it has no program.
///
/// # Errors
/// This process cannot read the program's state.
fn owners(netns: Option<&str>, interface: &Interface) -> Result<Vec<Owner>> {
    netns::run_in(netns, || {
        let Some(resident) = Resident::find(interface)? else { return Ok(Vec::new()) };
        Ok(resident.owned_stages()?.into_iter().map(|claimed| claimed.owner).collect())
    })
}

/// Describes the owners that hide packets and are not `known`, and adds them there; none if no owner does.
fn describe(mut owners: Vec<Owner>, known: &mut Vec<Owner>, interface: &str) -> Option<String> {
    owners.retain(|owner| !known.contains(owner));
    let hidden: Vec<String> = owners.iter().filter_map(hides).collect();
    known.extend(owners);
    (!hidden.is_empty()).then(|| {
        format!(
            "{interface}: XDP hides packets from packet: {}; `sluice capture mirror:{interface}` \
             captures all received packets",
            hidden.join(", ")
        )
    })
}

/// The packets that an owner hides from packet sockets; none if it passes all of them on.
fn hides(owner: &Owner) -> Option<String> {
    let verb = match owner.action {
        Action::Take => "takes",
        Action::Drop => "drops",
        Action::Forward => "forwards",
        Action::Scrub => "filters",
        Action::Pass | Action::Mirror => return None,
    };
    let packets = match owner.filter.as_str() {
        "" => "all".into(),
        filter => format!("'{filter}'"),
    };
    let Owner { command, pid, .. } = owner;
    Some(format!("{command} (process {pid}) {verb} {packets}"))
}

/// Returns true if a port receives from all interfaces.
pub fn is_any(port: &PortName) -> bool {
    port.kind() == Kind::Packet && port.name() == "any"
}

/// The interfaces that a port receives from now.
///
/// # Errors
/// The interface does not exist, or interfaces cannot be listed.
fn interfaces(port: &PortName, netns: Option<&str>) -> Result<Vec<Interface>> {
    match is_any(port) {
        true => link::interfaces(netns),
        false => Ok(vec![link::interface(netns, port.name())?]),
    }
}

/// Waits for standard input, if a port reads it, as [`pipe_reader::await_input`] does.
///
/// # Errors
/// The reader of standard output left first; the input cannot be polled.
pub fn await_input(port: &PortName) -> io::Result<()> {
    if port.kind() == Kind::Pcap {
        pipe_reader::await_input(Path::new(port.name()))
    } else {
        Ok(())
    }
}

/// Rejects an output file that is also the input of a port, by any name: a link, or a standard stream.
///
/// # Errors
/// The files are the same.
pub fn refuse_overwriting<'a>(
    sources: impl IntoIterator<Item = &'a PortName>,
    output: &Path,
) -> Result<()> {
    let files = sources.into_iter().filter(|source| source.kind() == Kind::Pcap);
    refuse_overwriting_files(files.map(|source| Path::new(source.name())), output)
}

/// Rejects an output file that is also an input, as [`refuse_overwriting`] does.
///
/// # Errors
/// The files are the same.
pub fn refuse_overwriting_files<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    output: &Path,
) -> Result<()> {
    let Some(written) = identity(output, stdout()) else { return Ok(()) };
    for input in inputs {
        if identity(input, stdin()) == Some(written) {
            return Err(Error::Usage(format!(
                "input {} and output {} are the same file; write to another one",
                input.display(),
                output.display()
            )));
        }
    }
    Ok(())
}

/// Returns true if a path to write is a regular file, which may not exist yet.
pub fn writes_file(output: &Path) -> bool {
    let is_new = output != Path::new("-") && !output.exists();
    is_new || identity(output, stdout()).is_some()
}

/// Rejects two files to write that are one, as [`is_one_output`] finds.
///
/// # Errors
/// The files are the same.
pub fn refuse_same_outputs(a: &Path, b: &Path) -> Result<()> {
    if !is_one_output(a, b) {
        return Ok(());
    }
    let (a, b) = (a.display(), b.display());
    Err(Error::Usage(format!("outputs {a} and {b} are the same file; write one of them elsewhere")))
}

/// Returns true if two paths to write are one file, pipe, socket or terminal, by any names. Neither may exist yet.
/// `/dev/null` keeps nothing, so it is never the same.
pub fn is_one_output(a: &Path, b: &Path) -> bool {
    let is_null = |it: &Metadata| it.file_type().is_char_device() && it.rdev() == makedev(1, 3);
    match (metadata(a, stdout()), metadata(b, stdout())) {
        (None, None) => a == b || new_identity(a).is_some_and(|it| Some(it) == new_identity(b)),
        (Some(a), Some(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()) && !is_null(&a),
        _ => false,
    }
}

/// Rejects the name of a file whose extension promises a compression that is not written.
pub fn refuse_extension(output: &Path) -> Result<()> {
    match output.extension().and_then(|extension| extension.to_str()) {
        Some(other @ ("bz2" | "xz")) => Err(Error::Usage(format!(
            "{}: cannot write .{other}; use .zst, .lz4 or .gz",
            output.display()
        ))),
        _ => Ok(()),
    }
}

/// Device and inode of a regular file; `-` is a stream. None if the file does not exist.
fn identity(path: &Path, stream: impl AsFd) -> Option<(u64, u64)> {
    let metadata = metadata(path, stream).filter(Metadata::is_file)?;
    Some((metadata.dev(), metadata.ino()))
}

/// Metadata of a file; `-` is a stream. None if the file does not exist.
fn metadata(path: &Path, stream: impl AsFd) -> Option<Metadata> {
    match path == Path::new("-") {
        true => File::from(stream.as_fd().try_clone_to_owned().ok()?).metadata().ok(),
        false => path.metadata().ok(),
    }
}

/// The directory's device and inode, and the name in it, of a file that does not exist.
fn new_identity(path: &Path) -> Option<(u64, u64, &OsStr)> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let metadata = directory.unwrap_or(Path::new(".")).metadata().ok()?;
    Some((metadata.dev(), metadata.ino(), path.file_name()?))
}

#[cfg(test)]
mod tests {
    use std::io::stdin;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn owner(action: Action, filter: &str) -> Owner {
        Owner {
            since_ns: 0,
            pid: 7,
            command: "sluice".into(),
            first_queue: 0,
            queues: 1,
            action,
            filter: filter.into(),
        }
    }

    #[test]
    fn owners_that_remove_packets_are_described_and_those_that_copy_are_not() {
        let remedy = "`sluice capture mirror:eth0` captures all received packets";
        for (sentence, owners, expected) in [
            ("nobody", vec![], None),
            ("those that pass packets on", vec![(Action::Mirror, ""), (Action::Pass, "udp")], None),
            ("a claim", vec![(Action::Take, "udp")], Some("sluice (process 7) takes 'udp'")),
            ("a forward", vec![(Action::Forward, "")], Some("sluice (process 7) forwards all")),
            ("a scrubber", vec![(Action::Scrub, "")], Some("sluice (process 7) filters all")),
            (
                "several",
                vec![(Action::Take, "udp"), (Action::Mirror, ""), (Action::Drop, "")],
                Some("sluice (process 7) takes 'udp', sluice (process 7) drops all"),
            ),
        ] {
            let owners: Vec<Owner> = owners.into_iter().map(|(it, text)| owner(it, text)).collect();
            let expected = expected
                .map(|hidden| format!("eth0: XDP hides packets from packet: {hidden}; {remedy}"));
            assert_eq!(describe(owners, &mut Vec::new(), "eth0"), expected, "{sentence}");
        }
    }

    #[test]
    fn an_owner_is_described_once() {
        let first = [owner(Action::Take, "udp"), owner(Action::Drop, "tcp")];
        let again = Owner { since_ns: 1, ..first[1].clone() };
        let mut known = Vec::new();
        assert!(describe(first.to_vec(), &mut known, "eth0").is_some());
        for (sentence, owners, described) in [
            ("the same", first.to_vec(), None),
            ("one has ended", first[1..].to_vec(), None),
            ("another has begun", vec![first[0].clone(), again], Some("drops 'tcp'")),
        ] {
            let text = describe(owners, &mut known, "eth0");
            assert_eq!(text.is_some(), described.is_some(), "{sentence}: {text:?}");
            let text = text.unwrap_or_default();
            assert!(text.contains(described.unwrap_or_default()), "{sentence}: {text}");
            assert!(!text.contains("takes 'udp'"), "{sentence}: {text}");
        }
    }

    #[test]
    fn a_file_is_known_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a.pcap"), "").unwrap();
        std::fs::write(path("b.pcap"), "").unwrap();
        std::fs::hard_link(path("a.pcap"), path("hard")).unwrap();
        std::os::unix::fs::symlink("a.pcap", path("soft")).unwrap();
        mkfifo(&path("pipe"), Mode::S_IRUSR).unwrap();
        let port = |name: &str| format!("pcap:{}", path(name).display()).parse().unwrap();
        let (a, b): (PortName, PortName) = (port("a.pcap"), port("b.pcap"));
        for (sentence, output, same) in [
            ("its own name", "a.pcap", true),
            ("a hard link", "hard", true),
            ("a symbolic link", "soft", true),
            ("a name with a detour", "./a.pcap", true),
            ("another file", "other.pcap", false),
        ] {
            assert_eq!(refuse_overwriting([&b, &a], &path(output)).is_err(), same, "{sentence}");
        }
        for (a, b, same) in [
            ("a.pcap", "hard", true),
            ("a.pcap", "./soft", true),
            ("a.pcap", "b.pcap", false),
            ("new.pcap", "./new.pcap", true),
            ("new.pcap", "other.pcap", false),
            ("new.pcap", "a.pcap", false),
            ("pipe", "./pipe", true),
            ("pipe", "a.pcap", false),
            ("/dev/null", "/dev/null", false),
        ] {
            assert_eq!(is_one_output(&path(a), &path(b)), same, "{a} and {b}");
        }
        assert!(refuse_overwriting([&a], &path("b.pcap")).is_ok());
        assert!(
            refuse_overwriting([&"null:".parse().unwrap()], &path("a.pcap")).is_ok(),
            "no file is read"
        );
        assert_eq!(identity(Path::new("/dev/null"), stdin()), None, "a device keeps nothing");
    }
}
