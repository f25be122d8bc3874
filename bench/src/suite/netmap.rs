//! Programs written for netmap, which run unmodified by `sluice netmap run`: netmap's own pkt-gen and bridge.
//!
//! The steps are in the suites of their peers, and packets are counted as there. pkt-gen's own count is that of a
//! receiver at its end; in a pipe, it is the rate of each of its reports. The backend is named, because the default
//! depends on the number of CPUs.

use super::pipe::piped;
use super::{StepContext, SuiteKind};
use crate::process::{Count, LabHost, NETMAP, Program, Ready, SLUICE, netmap_program, quoted};
use crate::step::{Destination, Method, Setting, Step};
use crate::testbed::{ADDRESS, NOBODY};

/// Receives by XDP, as `sluice count xdp:`.
pub const RX: &str = "netmap pkt-gen rx";
/// As [`RX`], with a server.
pub const RX_SHARED: &str = "netmap pkt-gen rx, shared";
/// Sends live frames, as `sluice generate live:`.
pub const TX: &str = "netmap pkt-gen tx";
/// Forwards between AF_XDP sockets, as `sluice forward`.
pub const BRIDGE: &str = "netmap bridge";
/// Two processes with a pipe between them.
pub const PIPE: &str = "netmap pkt-gen to pkt-gen, pipe";
/// Two processes at a switch.
pub const VALE: &str = "netmap pkt-gen to pkt-gen, VALE switch";

/// The longest frame that pkt-gen sends: it compares it with the MTU.
const MAX_BYTES: u32 = 1500;

/// Returns true for the name of one of these steps.
pub fn is_step(name: &str) -> bool {
    [RX, RX_SHARED, TX, BRIDGE, PIPE, VALE].contains(&name)
}

/// The steps of a suite.
pub fn steps(kind: SuiteKind, context: &StepContext<'_>) -> Vec<Step> {
    match kind {
        _ if context.setting.size > MAX_BYTES => Vec::new(),
        SuiteKind::Rx => vec![rx(context, RX, &[]), rx(context, RX_SHARED, &["--shared"])],
        SuiteKind::Tx if context.testbed.cpus.count() > 1 => vec![tx(context)],
        SuiteKind::Forward => bridge(context).into_iter().chain([vale(context)]).collect(),
        SuiteKind::Pipe => vec![pair(context, PIPE, ["bench{1", "bench}1"]), vale(context)],
        SuiteKind::Tx | SuiteKind::Drop | SuiteKind::Scrub => Vec::new(),
    }
}

fn rx(context: &StepContext<'_>, name: &str, options: &[&str]) -> Step {
    // Without its transmit rings, which would take a CPU.
    let port = format!("netmap:{}/R", context.right());
    let options = ["--backend", "live"].iter().chain(options).copied();
    let program = run(options, "pkt-gen")
        .and(["-i", &port, "-f", "rx", "-w", "0"])
        .on(context.receiver())
        .ready(Ready::Says("Ready..."))
        .counting(Count::After("Received "));
    context.receives(SLUICE, name, Destination::Nobody, program)
}

/// pkt-gen fills a ring, and a thread of the library sends it, each on its CPU.
fn tx(context: &StepContext<'_>) -> Step {
    let cpus = context.senders(2);
    let port = format!("netmap:{}/T", context.left());
    let program = run(["--backend", "live"], "pkt-gen").and(["-i", &port]);
    let program = sends(context, program, cpus.last().copied());
    let setting = Setting { cores: cpus.len() as u32, ..context.plain() };
    Step::new(SLUICE, TX, setting, Method::Send(program))
}

fn bridge(context: &StepContext<'_>) -> Option<Step> {
    let middle = context.testbed.middle.as_ref()?;
    let [from, to] = middle.each_ref().map(|side| format!("netmap:{}", side.interface));
    let program = run(["--backend", "xdp"], "bridge")
        .and(["-i", &from, "-i", &to, "-w", "0"])
        .on(context.receiver())
        .ready(Ready::Says("Ready to go"));
    Some(context.forwards(SLUICE, BRIDGE, Destination::Host, Some(program)))
}

fn vale(context: &StepContext<'_>) -> Step {
    pair(context, VALE, ["vale0:a", "vale0:b"])
}

/// pkt-gen on two ports of one server, in a process each. The receiver starts the server, which ends with it.
fn pair(context: &StepContext<'_>, name: &str, [from, to]: [&str; 2]) -> Step {
    // The server removes its folder.
    let folder = context.testbed.file("netmap");
    let socket = format!("{folder}/socket");
    let server = ["--server", &socket];
    let receiver = pin(
        run(server, "pkt-gen").and(["-i", to, "-f", "rx", "-w", "0", "-T", "200"]),
        context.receiver(),
    );
    let serve = Program::sluice(["netmap", "serve", "--socket", &socket, "--until-exit"]);
    let [serve, receive] = [serve.by("env", [""; 0]), receiver.by("exec", [""; 0])];
    let script =
        format!("mkdir -p {} && {} $$ && {}", quoted(&folder), serve.shown(), receive.shown());
    let receiver =
        Program::script(NETMAP, script).ready(Ready::Says("Ready...")).counting(Count::PktGenRate);
    let sender = run(server, "pkt-gen").and(["-i", from]);
    let sender = sends(context, sender, context.sender());
    let ended = format!("while test -e {}; do sleep 0.02; done", quoted(&folder));
    piped(context, SLUICE, name, Some(sender), receiver, LabHost::Right)
        .then(Program::script("sleep", ended))
}

/// A `sluice netmap run` of one of netmap's programs.
fn run<'a>(options: impl IntoIterator<Item = &'a str>, name: &str) -> Program {
    let program = netmap_program(name).map_or(name.into(), |path| path.display().to_string());
    let options = ["netmap", "run"].into_iter().chain(options);
    Program::sluice(options).and(["--", &program]).needing(NETMAP)
}

/// Makes a pkt-gen send the packets of `sluice generate` at full speed, by a thread on this CPU.
fn sends(context: &StepContext<'_>, program: Program, cpu: Option<usize>) -> Program {
    let (from, to) = ("198.18.0.1:9", format!("{ADDRESS}:9"));
    let size = context.setting.size.to_string();
    let program = program.and(["-f", "tx", "-w", "0", "-l", &size]);
    pin(program.and(["-s", from, "-d", &to, "-D", NOBODY]), cpu)
}

/// Pins the only thread of a pkt-gen that handles packets.
fn pin(program: Program, cpu: Option<usize>) -> Program {
    program.and(["-c", "0", "-a", &cpu.unwrap_or(0).to_string()])
}
