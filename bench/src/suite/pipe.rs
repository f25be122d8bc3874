//! Between two programs: from a system call per packet to shared memory.
//!
//! The sender runs on the first CPU, the receiver on the next.

use super::{BEGUN, StepContext, remove};
use crate::process::{Count, LabHost, Program, Ready};
use crate::step::{Method, Pipe, Step};
use crate::testbed::list;

/// Position of the rates of `sluice --json --interval`.
const RATES: Count = Count::After("\"pps\":");

/// The steps, from the slowest to the fastest.
pub fn steps(context: &StepContext<'_>) -> Vec<Step> {
    let socket = socket_file(context);
    let mut fifo = calls(context, "a pipe, a call a packet", "pipe", Ready::AtOnce);
    fifo.prepare.push(Program::tool("mkfifo", [&socket]));
    let mut steps = vec![
        calls(context, "unix datagrams, a call a packet", "unix", Ready::Has(socket.into())),
        fifo,
    ];
    for (name, sender, receiver) in
        [("memif, to a server", "client", "server"), ("memif, to a client", "server", "client")]
    {
        let [from, to] = [sends(context, sender), receives(context, receiver)];
        steps.push(memif(context, "sluice", name, sender, [from, to]));
    }
    // No pipe, in one program: what remains is the cost of rings. It has no end of its own.
    let null = Program::sluice(["forward", "null:", "null:", "--one-way", "--duration", "1h"])
        .and(["--json", "--interval", "200ms"])
        .on(context.receiver())
        .ready(BEGUN)
        .counting(RATES);
    steps.push(alone(context, "sluice", "null: to null:, in one program", null));
    steps
}

/// A step between two programs of a memif pipe: `[sender, receiver]`. The server is started first.
pub fn memif(
    context: &StepContext<'_>,
    by: &'static str,
    name: &str,
    sender_role: &str,
    programs: [Program; 2],
) -> Step {
    let first = if sender_role == "server" { LabHost::Left } else { LabHost::Right };
    let [sender, receiver] = programs.map(|it| it.ready(Ready::Has(socket_file(context).into())));
    let mut step = piped(context, by, name, Some(sender), receiver, first);
    // A server that was killed leaves its file.
    step.prepare.push(remove(&socket_file(context)));
    step
}

/// The `sluice` that sends into a memif pipe.
pub fn sends(context: &StepContext<'_>, role: &str) -> Program {
    context.generate(&port(context, role), ["--cpus", &list(context.senders(1))])
}

/// The `sluice` that receives from a memif pipe.
pub fn receives(context: &StepContext<'_>, role: &str) -> Program {
    Program::sluice(["count", &port(context, role), "--json", "--interval", "200ms"])
        .and(["--wait", "spin", "--cpus", &list(context.receivers(1))])
        .counting(RATES)
}

fn port(context: &StepContext<'_>, role: &str) -> String {
    format!("memif:{}?role={role}", socket_file(context))
}

/// The file by which the two programs find each other.
pub fn socket_file(context: &StepContext<'_>) -> String {
    context.testbed.file("socket")
}

/// A step with a system call for each packet.
fn calls(context: &StepContext<'_>, name: &str, kind: &str, ready: Ready) -> Step {
    let file = format!("{kind}:{}", socket_file(context));
    let size = context.setting.size.to_string();
    let end = |what, cpu| {
        let program = Program::sluice(["bench", "end", what, &file, "--size", &size]);
        program.on(cpu).ready(ready.clone())
    };
    let sender = end("send", context.sender());
    let receiver = end("receive", context.receiver()).counting(RATES);
    piped(context, "sluice", name, Some(sender), receiver, LabHost::Right)
}

/// A step of one program that creates its own packets.
pub fn alone(context: &StepContext<'_>, by: &'static str, name: &str, receiver: Program) -> Step {
    piped(context, by, name, None, receiver, LabHost::Right)
}

/// A step between two programs, or of one that creates its own packets.
pub fn piped(
    context: &StepContext<'_>,
    by: &'static str,
    name: &str,
    sender: Option<Program>,
    receiver: Program,
    first: LabHost,
) -> Step {
    let pipe = Pipe { sender, receiver: receiver.at(LabHost::Right), first };
    let step = Step::new(by, name, context.plain(), Method::Pipe(pipe.into()));
    step.then(remove(&socket_file(context)))
}
