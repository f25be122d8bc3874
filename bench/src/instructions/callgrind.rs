//! Loops in user space, run by valgrind, which counts each instruction.
//!
//! A loop is run twice, for few packets and for many. What both have in common (starting, opening
//! ports, ending) goes with the difference; the rest, by the packets that the second had more, is what
//! a packet takes.

use std::time::Duration;

use super::{Length, Loop, Unit};
use crate::failure::Failure;
use crate::process::{BEGUN, Program, Running, find, missing};
use crate::process_output::Count;
use crate::rounds::BenchObserver;
use crate::suite::{self, StepContext};
use crate::testbed::End;

const VALGRIND: &str = "valgrind";
/// How long a run takes at most, on a busy machine, and of a command that is not optimised.
const LONG: Duration = Duration::from_secs(60);
/// Where valgrind says how many instructions there were, in all threads.
const INSTRUCTIONS: Count = Count::After("Collected :");

/// A loop.
pub struct InUserSpace {
    pub name: &'static str,
    /// The arguments of `sluice`.
    pub arguments: &'static [&'static str],
    /// For how many packets: few, and many.
    pub packets: [u32; 2],
    pub from: PacketSource,
}

/// Where the packets come from.
pub enum PacketSource {
    /// They make themselves.
    Nowhere,
    /// From the wire: they lie in the receiver's ring before it looks, so that nobody waits, and all
    /// batches are full.
    Wire,
}

impl Loop for InUserSpace {
    fn name(&self) -> &'static str {
        self.name
    }

    fn command(&self, _: &StepContext<'_>) -> Program {
        Program::sluice(self.arguments.iter().copied())
    }

    fn unit(&self) -> Unit {
        Unit::Packet
    }

    fn count(&self, place: &StepContext<'_>, watch: &dyn BenchObserver) -> Result<Length, Failure> {
        if find(VALGRIND).is_none() {
            return Err(Failure::of(missing(VALGRIND)));
        }
        let [few, many] = self.packets;
        let least = self.run(few, place, watch)?;
        let most = self.run(many, place, watch)?;
        let instructions = a_packet(most.saturating_sub(least), many - few);
        Ok(Length { instructions, bytes: None, ns: None })
    }
}

impl InUserSpace {
    /// Runs it for a number of packets, and returns the number of instructions.
    fn run(
        &self,
        packets: u32,
        place: &StepContext<'_>,
        watch: &dyn BenchObserver,
    ) -> Result<u64, Failure> {
        let program = self.command(place).and(["--count", &packets.to_string(), "--json"]);
        let running = match self.from {
            PacketSource::Nowhere => under_valgrind(program).start_in(None, place.receiver())?,
            PacketSource::Wire => {
                let program = under_valgrind(program.and(["--interval", "1s"]));
                let mut receiver = program.start(place.testbed, End::Right, place.receiver())?;
                receiver.until(&BEGUN, watch)?;
                receiver.hold();
                // More than it takes: some may be lost on a busy machine.
                let sent = (packets + packets / 4).to_string();
                let flags = ["--method", "live", "--count", &sent];
                let sender = suite::generate(place, place.left(), flags).program;
                sender.start(place.testbed, End::Left, None)?.over(LONG, watch)?;
                receiver.go_on();
                receiver
            }
        };
        instructions(running, watch)
    }
}

fn under_valgrind(program: Program) -> Program {
    program.by(VALGRIND, ["--tool=callgrind", "--callgrind-out-file=/dev/null"])
}

/// Waits for the end of a run; the instructions it took.
fn instructions(mut running: Running, watch: &dyn BenchObserver) -> Result<u64, Failure> {
    running.over(LONG, watch)?;
    let none = || Failure::of(format!("valgrind: {}", running.complaint()));
    INSTRUCTIONS.of(&running.said()).ok_or_else(none)
}

/// To hundredths: what is finer depends on when a signal comes, or a timer.
fn a_packet(instructions: u64, packets: u32) -> f64 {
    (instructions as f64 / f64::from(packets) * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_output::ProcessOutput;

    #[test]
    fn what_valgrind_says_is_found() {
        let err = "==71== Callgrind, a call-graph generating cache profiler\n\
                   ==71== Events    : Ir\n==71== Collected : 12345678\n==71== \n\
                   ==71== I   refs:      12,345,678\n";
        let said = ProcessOutput { out: "{\"command\":\"forward\"}\n".into(), err: err.into() };
        assert_eq!(INSTRUCTIONS.of(&said), Some(12_345_678));
    }

    #[test]
    fn what_a_packet_takes_is_what_more_packets_take_more() {
        assert_eq!(a_packet(4_212_345, 100_000), 42.12);
    }
}
