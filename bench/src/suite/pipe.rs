//! Between two programs: a call a packet, then memory that both have.
//!
//! The sender runs on the first CPU, the receiver on the next.

use std::time::Duration;

use super::{BEGUN, StepContext, generate};
use crate::process::{Program, Ready};
use crate::process_output::Count;
use crate::step::{Job, Order, Pipe, Step, Way};
use crate::testbed::{End, list};

/// Where `sluice` with `--json --interval` tells its rates.
const RATES: Count = Count::After("\"pps\":");

/// The steps, from the slowest to the fastest.
pub fn steps(place: &StepContext<'_>) -> Vec<Step> {
    let fifo = plain(place, "pipe").with(
        Order { end: End::Left, program: Program::tool("mkfifo", [&socket_file(place)]) },
        remove_socket(place),
    );
    vec![
        plain(place, "unix"),
        fifo,
        memif(
            place,
            "sluice",
            "memif, to a server",
            sends(place, "client"),
            receives(place, "server"),
        ),
        memif(
            place,
            "sluice",
            "memif, to a client",
            sends(place, "server"),
            receives(place, "client"),
        ),
        null(place),
    ]
}

/// One end of a memif pipe.
pub struct Member {
    /// Its role: `server` is the one that the other looks for.
    pub role: &'static str,
    /// Its program.
    pub job: Job,
}

/// A step between two ends of a memif pipe.
pub fn memif(
    place: &StepContext<'_>,
    by: &'static str,
    name: &str,
    sender: Member,
    receiver: Member,
) -> Step {
    let first = if sender.role == "server" { End::Left } else { End::Right };
    let pipe = Pipe { sender: Some(sender.job), receiver: receiver.job, first };
    let mut step = Step::new(by, name, place.plain(), Way::Pipe(pipe));
    // One that was killed leaves its file.
    step.prepare.push(remove_socket(place));
    step.tidy.push(remove_socket(place));
    step
}

/// The `sluice` that sends.
pub fn sends(place: &StepContext<'_>, role: &'static str) -> Member {
    let port = format!("memif:{}?role={role}", socket_file(place));
    let job = generate(place, &port, ["--cpus", &list(&place.cpus.senders(1))]);
    Member { role, job: Job { ready: has_socket(place), ..job } }
}

/// The `sluice` that receives.
pub fn receives(place: &StepContext<'_>, role: &'static str) -> Member {
    let port = format!("memif:{}?role={role}", socket_file(place));
    let flags = ["--json", "--interval", "200ms", "--wait", "spin"];
    let program = Program::sluice(["count", &port]).and(flags);
    let program = program.and(["--cpus", &list(&place.receivers(1))]);
    Member { role, job: Job { program, cpu: None, ready: has_socket(place), count: Some(RATES) } }
}

/// Where the two ends find each other.
pub fn socket_file(place: &StepContext<'_>) -> String {
    place.testbed.file("socket")
}

/// When a server can be found.
pub fn has_socket(place: &StepContext<'_>) -> Ready {
    Ready::Has(socket_file(place).into())
}

fn remove_socket(place: &StepContext<'_>) -> Order {
    Order { end: End::Left, program: Program::tool("rm", ["-f", &socket_file(place)]) }
}

/// By what programs have anyway, a call for each packet.
fn plain(place: &StepContext<'_>, kind: &'static str) -> Step {
    let (way, size) = (format!("{kind}:{}", socket_file(place)), place.setting.size.to_string());
    let end = |what| Program::sluice(["bench", "end", what, &way, "--size", &size]);
    let (name, first) = match kind {
        // Opened together: each end waits for the other.
        "pipe" => ("a pipe, a call a packet", Ready::After(Duration::ZERO)),
        _ => ("unix datagrams, a call a packet", has_socket(place)),
    };
    let sender =
        Job { program: end("send"), cpu: place.sender(), ready: first.clone(), count: None };
    let receiver =
        Job { program: end("receive"), cpu: place.receiver(), ready: first, count: Some(RATES) };
    let pipe = Pipe { sender: Some(sender), receiver, first: End::Right };
    let mut step = Step::new("sluice", name, place.plain(), Way::Pipe(pipe));
    step.tidy.push(remove_socket(place));
    step
}

/// No pipe at all, in one program: what remains is the cost of rings.
fn null(place: &StepContext<'_>) -> Step {
    let forward = ["forward", "null:", "null:", "--one-way", "--json", "--interval", "200ms"];
    // It has no end of its own.
    let program = Program::sluice(forward).and(["--duration", "1h"]);
    let receiver = Job { program, cpu: place.receiver(), ready: BEGUN, count: Some(RATES) };
    alone(place, "sluice", "null: to null:, in one program", receiver)
}

/// A step of one program, which makes what it takes.
pub fn alone(place: &StepContext<'_>, by: &'static str, name: &str, receiver: Job) -> Step {
    let pipe = Pipe { sender: None, receiver, first: End::Right };
    Step::new(by, name, place.plain(), Way::Pipe(pipe))
}
