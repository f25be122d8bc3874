//! Programs in the kernel: how long they are, as the verifier has left them.
//!
//! A packet meets only some of a program's instructions, and no counter says which; but the program is
//! the same whenever it is made anew, so one that has become longer shows. How long a run takes is told
//! beside it, from the kernel's run statistics.

use std::time::Duration;

use sluicegate::xdp::{ProgInfo, RunStatistics};

use super::{Length, Loop, Unit};
use crate::failure::Failure;
use crate::process::{BEGUN, Program};
use crate::rounds::BenchObserver;
use crate::suite::{self, StepContext};
use crate::testbed::End;

/// The receiving port while a sender's program is examined.
pub const DROP: &str = "xdp:right0?action=drop";
/// How long packets are sent meanwhile.
const SENDING: Duration = Duration::from_millis(300);

/// A program.
pub struct KernelProgram {
    pub name: &'static str,
    /// Its name in the kernel.
    pub program: &'static str,
    pub owner: Owner,
}

/// The owner of the program.
pub enum Owner {
    /// `sluice count` of this port.
    Receives(&'static str),
    /// `sluice generate` to this port, with these flags.
    Sends(&'static str, &'static [&'static str]),
}

impl Loop for KernelProgram {
    fn name(&self) -> &'static str {
        self.name
    }

    fn command(&self, place: &StepContext<'_>) -> Program {
        match self.owner {
            Owner::Receives(port) => Program::sluice(["count", port]),
            Owner::Sends(port, flags) => {
                suite::generate(place, port, flags.iter().copied()).program
            }
        }
    }

    fn unit(&self) -> Unit {
        Unit::Program
    }

    fn count(&self, place: &StepContext<'_>, watch: &dyn BenchObserver) -> Result<Length, Failure> {
        // Without it there are no times.
        let _statistics = RunStatistics::on();
        let (port, to, flags) = match self.owner {
            Owner::Receives(port) => (port, "left0", &["--method", "live"][..]),
            Owner::Sends(to, flags) => (DROP, to, flags),
        };
        let receiver = suite::count(place, port, [""; 0]).program;
        let mut receiver = receiver.start(place.testbed, End::Right, place.receiver())?;
        receiver.until(&BEGUN, watch)?;
        let sender = suite::generate(place, to, flags.iter().copied()).program;
        let sender = sender.and(["--interval", "100ms"]);
        let mut sender = sender.start(place.testbed, End::Left, None)?;
        sender.until(&BEGUN, watch)?;
        watch.pause(SENDING)?;
        let pid = match self.owner {
            Owner::Receives(_) => receiver.pid(),
            Owner::Sends(..) => sender.pid(),
        };
        length(self.program, &ProgInfo::by(pid)?)
    }
}

/// The length of a program, by its name among those of a process.
fn length(name: &str, programs: &[ProgInfo]) -> Result<Length, Failure> {
    let it = programs.iter().find(|it| it.name == name);
    let it = it.ok_or_else(|| Failure::of(format!("there is no program {name}")))?;
    // Those that others go on to have no runs of their own.
    let runs = std::iter::once(it).chain(programs.iter().max_by_key(|it| it.runs));
    let run = { runs }.find(|it| it.runs > 0);
    Ok(Length {
        instructions: f64::from(it.instructions),
        bytes: (it.bytes > 0).then_some(it.bytes),
        ns: run.map(|it| (it.run_ns as f64 / it.runs as f64).round()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_others_go_on_to_has_the_time_of_the_one_on_the_interface() {
        let loaded = |name: &str, instructions, runs, run_ns| ProgInfo {
            id: 1,
            name: name.into(),
            instructions,
            bytes: 0,
            runs,
            run_ns,
        };
        let programs = [loaded("ingress", 200, 10, 900), loaded("claim", 40, 0, 0)];
        let expected = Length { instructions: 40.0, bytes: None, ns: Some(90.0) };
        assert_eq!(length("claim", &programs).unwrap(), expected);
        assert_eq!(length("claim", &programs[1..]).unwrap().ns, None, "it never ran");
        let error = length("other", &programs).unwrap_err().to_string();
        assert_eq!(error, "there is no program other");
    }
}
