//! A step of a suite: what runs at which end, and how its packets are counted.

use serde::{Deserialize, Serialize};

use crate::process::{Program, Ready, SLUICE};
use crate::process_output::Count;
use crate::testbed::End;

/// The parameters of a step. A parameter that it does not depend on is absent, so that nothing runs twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Bytes of a frame, without its check sequence.
    pub size: u32,
    /// Packets at a time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub batch: Option<u32>,
    /// Queues of each interface.
    pub queues: u32,
    /// CPUs that the measured program has.
    pub cores: u32,
    /// Rules that a packet is held against; the last one matches.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rules: Option<u32>,
}

impl Setting {
    /// A step's name with all that is particular about it: "recvmmsg, 60 B, batches of 8".
    pub fn title(&self, name: &str) -> String {
        let mut title = format!("{name}, {} B", self.size);
        let remark = self.remark();
        if !remark.is_empty() {
            title += ", ";
            title += &remark;
        }
        title
    }

    /// The parameters that differ from the plain ones: "2 cores, 100 rules".
    pub fn remark(&self) -> String {
        let plural = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let mut words = Vec::new();
        words.extend(self.batch.map(|n| format!("batches of {n}")));
        words.extend((self.queues > 1).then(|| plural(self.queues, "queue")));
        words.extend((self.cores > 1).then(|| plural(self.cores, "core")));
        words.extend(self.rules.map(|n| plural(n, "rule")));
        words.join(", ")
    }
}

/// A step of a suite.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name, in the words of the field: "recvmmsg".
    pub name: String,
    /// The owner of the program: "sluice", "linux" for the kernel alone, or a peer's name.
    pub by: &'static str,
    /// Its parameters.
    pub setting: Setting,
    /// Commands that run before.
    pub prepare: Vec<Order>,
    /// Commands that run afterwards, even after a failure.
    pub tidy: Vec<Order>,
    /// How it is measured.
    pub way: Way,
}

impl Step {
    /// One that needs no preparation.
    pub fn new(by: &'static str, name: impl Into<String>, setting: Setting, way: Way) -> Self {
        let (prepare, tidy) = (Vec::new(), Vec::new());
        Self { name: name.into(), by, setting, prepare, tidy, way }
    }

    /// Adds what is done before, and what undoes it.
    #[must_use]
    pub fn with(mut self, prepare: Order, tidy: Order) -> Self {
        self.prepare.push(prepare);
        self.tidy.insert(0, tidy);
        self
    }

    /// Returns true if it changes the configuration of an interface or a host. Pipes between programs,
    /// and preparations by Sluice itself, only create files.
    pub fn changes_host(&self) -> bool {
        let makes_files = matches!(self.way, Way::Pipe(_));
        !makes_files && self.prepare.iter().any(|order| order.program.name != SLUICE)
    }

    /// The programs it needs, by name.
    pub fn needs(&self) -> impl Iterator<Item = &str> {
        let orders = self.prepare.iter().map(|order| order.program.needs());
        orders
            .chain(self.way.jobs().into_iter().map(|job| job.program.needs()))
            .filter(|name| *name != SLUICE)
    }

    /// The shell command that does the same, at its end of the testbed and in the testbed's directory.
    pub fn command(&self) -> String {
        let orders = self.prepare.iter().map(|order| order.program.typed(None));
        // Two jobs run at the same time.
        let jobs: Vec<String> =
            self.way.jobs().into_iter().map(|job| job.program.typed(job.cpu)).collect();
        let jobs = (!jobs.is_empty()).then(|| jobs.join(" & "));
        orders.chain(jobs).collect::<Vec<_>>().join("; ")
    }
}

/// A program that changes something at one end, and ends.
#[derive(Clone, Debug)]
pub struct Order {
    /// Where.
    pub end: End,
    /// The program.
    pub program: Program,
}

/// A program that runs while it is measured.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program.
    pub program: Program,
    /// The CPU it is kept on; none where it sees to that itself.
    pub cpu: Option<usize>,
    /// When it is ready.
    pub ready: Ready,
    /// Where it says how many packets it has had, or tried to send; none where it does not.
    pub count: Option<Count>,
}

/// How a step is measured.
#[derive(Clone, Debug)]
pub enum Way {
    /// Packets are sent to the right end as fast as they can be, and what arrives there is counted.
    Receive(Intake),
    /// The job sends from the left end, and what comes is counted at the right one, in XDP.
    Send(Job),
    /// One program hands packets to another.
    Pipe(Pipe),
}

impl Way {
    /// The programs that run while it is measured, in the order in which they are started.
    pub fn jobs(&self) -> Vec<&Job> {
        match self {
            Self::Receive(intake) => intake.job.iter().collect(),
            Self::Send(job) => vec![job],
            Self::Pipe(pipe) if pipe.first == End::Left => {
                pipe.sender.iter().chain([&pipe.receiver]).collect()
            }
            Self::Pipe(pipe) => [&pipe.receiver].into_iter().chain(&pipe.sender).collect(),
        }
    }
}

/// Two programs and what is between them.
#[derive(Clone, Debug)]
pub struct Pipe {
    /// The sender; none if the receiver creates its own packets.
    pub sender: Option<Job>,
    /// The receiver, which reports its rate regularly: [`Job::count`] is the field of it, in packets a
    /// second.
    pub receiver: Job,
    /// The end that is started first: the other one connects to it.
    pub first: End,
}

/// The receiver of packets, and the source of their count.
#[derive(Clone, Debug)]
pub struct Intake {
    /// The program; none if the kernel does everything.
    pub job: Option<Job>,
    /// Where it runs: at the right end, or where packets are passed on.
    pub at: End,
    /// The source of the count, read before and after; none if the job reports it.
    pub tally: Option<Tally>,
    /// To whom packets are sent.
    pub to: To,
}

impl Intake {
    /// A job at the right end, which says itself how many it got.
    pub fn of(job: Job, to: To) -> Self {
        Self { job: Some(job), at: End::Right, tally: None, to }
    }

    /// The kernel alone, which is asked how many there were.
    pub fn told(tally: Tally, to: To) -> Self {
        Self { job: None, at: End::Right, tally: Some(tally), to }
    }

    /// A job in the middle, or the kernel alone, which passes on what is counted at the right end.
    pub fn relayed(job: Option<Job>, to: To) -> Self {
        Self { job, at: End::Middle, tally: Some(Tally::InXdp), to }
    }
}

/// To whom packets are sent, on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// An address without a host, as on a mirror port: the receiving host drops them early.
    Nobody,
    /// The host at the right end.
    Host,
    /// The host in the middle, which routes them to that one.
    Router,
}

/// The source of the number of packets that have arrived at the right end.
#[derive(Clone, Debug)]
pub enum Tally {
    /// A program, and where in its output the number is.
    Says(Program, Count),
    /// The XDP program there, which drops them.
    InXdp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_says_what_is_particular_about_it() {
        let plain = Setting { size: 60, queues: 1, cores: 1, ..Setting::default() };
        assert_eq!(plain.remark(), "");
        let all = Setting { size: 60, batch: Some(64), queues: 2, cores: 2, rules: Some(1) };
        assert_eq!(all.remark(), "batches of 64, 2 queues, 2 cores, 1 rule");
        assert_eq!(plain.title("recv"), "recv, 60 B");
        assert_eq!(all.title("recv"), "recv, 60 B, batches of 64, 2 queues, 2 cores, 1 rule");
    }

    #[test]
    fn what_runs_at_the_same_time_is_shown_so_and_in_its_order() {
        let program = |name: &str| Program::tool(name, [""; 0]);
        let job =
            |name| Job { program: program(name), cpu: None, ready: Ready::Says(""), count: None };
        let (sender, receiver) = (Some(job("send")), job("receive"));
        let way = Way::Pipe(Pipe { sender, receiver, first: End::Right });
        let order = |name| Order { end: End::Left, program: program(name) };
        let step = Step::new("sluice", "pipe", Setting::default(), way);
        assert_eq!(step.command(), "receive & send");
        assert_eq!(step.with(order("make"), order("rm")).command(), "make; receive & send");
        let way = Way::Receive(Intake::told(Tally::InXdp, To::Host));
        let step = Step::new("linux", "bridge", Setting::default(), way);
        assert_eq!(step.with(order("make"), order("rm")).command(), "make");
    }
}
