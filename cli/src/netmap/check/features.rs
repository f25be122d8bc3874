//! The features that `check` tries, each with its packets.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd::pipe;
use sluicegate::error::Error;
use sluicegate::port::{Directions, OpenOptions, Port};
use sluicegate_netmap::abi::bodies::{modes, register_flags};
use sluicegate_netmap::engine::{Backend, Engine, EngineOptions, NetmapFile};
use sluicegate_netmap::shared::{RemoteFile, Server};

use super::lab::{Checker, FILTER, PACKETS, ROUND_TRIPS};
use super::{CheckError, Outcome, keep_line};
use crate::netmap::{library, run};
use crate::units::show_count;

/// The longest sleep of a program between two looks at the host's sockets.
const HOST_INTERVAL: Duration = Duration::from_millis(1);

/// Tries one feature.
type Check = fn(&Checker) -> Outcome;

/// The checks, in the order of their results.
pub(super) const CHECKS: [(&str, Check); 10] = [
    ("preload library", preload),
    ("VALE switch", vale),
    ("pipe", pipes),
    ("monitor", monitor),
    ("server", server),
    ("AF_XDP", af_xdp),
    ("live frames", live_frames),
    ("packet sockets", packet_sockets),
    ("host rings", host_rings),
    ("filter", filter),
];

/// Starts a program that opens `/dev/netmap`, as a user does.
fn preload(_: &Checker) -> Outcome {
    let library = library::find()?;
    let sluice = std::env::current_exe().map_err(|error| Error::start("sluice", error))?;
    let mut command = Command::new(sluice);
    command.args(["netmap", "run", "--server", "off", "--log", "error", "--", "/bin/sh", "-c"]);
    let output = command.arg(": < /dev/netmap").stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::start("/bin/sh", error))?;
    // The dynamic linker prints why it did not load the library, and starts the program without it.
    if output.status.success() && output.stderr.is_empty() {
        return Ok(library.display().to_string());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim().trim_start_matches("sluice: ").replace('\n', "; ");
    match output.status.code() {
        Some(3) => Err(CheckError::Missing(text)),
        _ => Err(CheckError::Failed(text)),
    }
}

fn vale(checker: &Checker) -> Outcome {
    between(checker, ["vale0:a", "vale0:b"])
}

fn pipes(checker: &Checker) -> Outcome {
    between(checker, ["check{1", "check}1"])
}

/// Sends from port to port of an engine.
fn between(checker: &Checker, names: [&str; 2]) -> Outcome {
    let engine = private_engine();
    let open = |name| checker.open(engine.open(), name, modes::ALL_NIC, 0);
    let (mut from, mut to) = (open(names[0])?, open(names[1])?);
    checker.pass(&mut from, &mut to)?;
    Ok(format!("{} packets", show_count(PACKETS.into())))
}

/// Makes an engine without interfaces.
fn private_engine() -> Arc<Engine> {
    Engine::new(EngineOptions { log: Some(keep_line), ..EngineOptions::default() })
}

fn monitor(checker: &Checker) -> Outcome {
    let engine = private_engine();
    let open = |flags| checker.open(engine.open(), "vale0:a", modes::ALL_NIC, flags);
    let (mut sender, mut monitor) = (open(0)?, open(register_flags::MONITOR_TX)?);
    checker.pass(&mut sender, &mut monitor)?;
    Ok(format!("{} packets seen", show_count(PACKETS.into())))
}

fn server(checker: &Checker) -> Outcome {
    let folder = run::private_folder()?;
    let outcome = by_server(checker, &folder.join("socket"));
    let _ = std::fs::remove_dir(&folder);
    outcome
}

fn by_server(checker: &Checker, path: &Path) -> Outcome {
    let (end, keep) = pipe()?;
    let server = Server::bind(path, None, EngineOptions::default())?;
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(&[end.as_fd()], |error| keep_line(&error.to_string())));
        // Dropping it ends the server.
        let _keep = keep;
        let open = |name| {
            let file = RemoteFile::open(path, false, keep_line)?.ok_or(Errno::ENOENT)?;
            checker.open(file, name, modes::ALL_NIC, 0)
        };
        let (mut from, mut to) = (open("vale0:a")?, open("vale0:b")?);
        checker.pass(&mut from, &mut to)?;
        Ok(format!("{} packets by a VALE switch", show_count(PACKETS.into())))
    })
}

fn af_xdp(checker: &Checker) -> Outcome {
    let (usage, netns) = (Directions::Both, Some(checker.lab()?.netns("right")));
    let options = OpenOptions { usage, netns, ..OpenOptions::default() };
    let mode = match Port::open(&"xdp:right0/0?timestamp=off".parse()?, &options)?.mode {
        Some("native-zero-copy") => "native mode, zero-copy",
        Some("native-copy") => "native mode, copies",
        _ => "skb mode, copies",
    };
    Ok(format!("{mode}: {}", both_ways(checker, Backend::Xdp)?))
}

fn packet_sockets(checker: &Checker) -> Outcome {
    both_ways(checker, Backend::Packet)
}

/// Receives from the other host, and sends to it.
fn both_ways(checker: &Checker, backend: Backend) -> Outcome {
    let engine = checker.engine(Some(backend), None)?;
    let mut program = checker.open(engine.open(), "right0", modes::ALL_NIC, 0)?;
    let mut other = checker.other_host()?;
    checker.pass(&mut other, &mut program)?;
    checker.pass(&mut program, &mut other)?;
    let packets = show_count(PACKETS.into());
    Ok(format!("{packets} sent, {packets} received"))
}

fn live_frames(checker: &Checker) -> Outcome {
    let engine = checker.engine(Some(Backend::Live), None)?;
    let flags = register_flags::TX_RINGS_ONLY;
    let mut program = checker.open(engine.open(), "right0", modes::ALL_NIC, flags)?;
    checker.pass(&mut program, &mut checker.other_host()?)?;
    Ok(format!("{} sent", show_count(PACKETS.into())))
}

/// Passes everything between the interface and its host.
fn host_rings(checker: &Checker) -> Outcome {
    let engine = checker.engine(None, None)?;
    let program = checker.open(engine.open(), "right0", modes::NIC_SW, 0)?;
    let port = &program.port;
    // The lab's interface has one queue, so ring 1 is the host's.
    let rings = [(port.rx(0), port.tx(1)), (port.rx(1), port.tx(0))];
    checker.round_trips(|| {
        port.poll(PollFlags::POLLIN, checker.signals.as_fd(), HOST_INTERVAL)?;
        for (from, to) in rings {
            let (from, to) = from.zip(to).ok_or(Errno::ENXIO)?;
            // As on a card, a full ring loses packets.
            while let Some(packet) = from.take() {
                to.put(&packet);
            }
        }
        Ok(port.file().txsync()?)
    })?;
    Ok(format!("{ROUND_TRIPS} datagrams of the host answered through the program"))
}

/// Takes only matching packets.
fn filter(checker: &Checker) -> Outcome {
    let engine = checker.engine(None, Some(FILTER))?;
    let mut program = checker.open(engine.open(), "right0", modes::ALL_NIC, 0)?;
    checker.pass(&mut checker.other_host()?, &mut program)?;
    checker.round_trips(|| {
        program.port.poll(PollFlags::POLLIN, checker.signals.as_fd(), HOST_INTERVAL)?;
        match program.port.rx(0).and_then(|ring| ring.take()) {
            Some(_) => Err(CheckError::Failed("the program got a packet of the host".into())),
            None => Ok(()),
        }
    })?;
    let packets = show_count(PACKETS.into());
    Ok(format!("{packets} received, {ROUND_TRIPS} datagrams of the host answered"))
}
