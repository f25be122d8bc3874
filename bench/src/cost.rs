//! The cost of waiting: the CPU time of each way of receiving at modest rates, and the round trip
//! through each way of forwarding.
//!
//! At full speed no program waits. At 10,000 to 300,000 packets per second, the range of most programs, a
//! receiver's cost depends on how often it polls and how it is woken, and a forwarder's delay on how soon it
//! wakes.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::measure::Prepared;
use crate::measurement::Spread;
use crate::observer::{BenchObserver, Failure, Progress};
use crate::process::{BEGUN, Count, Program, Ready};
use crate::step::{Destination, Setting, Step};
use crate::suite::StepContext;
use crate::suite::forward::bridge;
use crate::suite::peers::{dumpcap, tcpdump};
use crate::testbed::{ADDRESS, NOBODY, Testbed, TestbedConfig, list};

/// Time from the first packets to the measurement, and about the time that a program takes to start.
const LEAD: Duration = Duration::from_secs(1);
/// Time between two pings: long enough for every forwarder to go to sleep.
const PING_INTERVAL: Duration = Duration::from_millis(5);
/// Pings before those that count.
const WARM_UP: u32 = 20;
/// The line by which the minimal relay of this project's command (`sluice bench relay`) reports its start.
pub const RELAYING: &str = "relaying";
/// All steps have 60 bytes, one queue and one core.
const SETTING: Setting = Setting { size: 60, batch: None, queues: 1, cores: 1, rules: None };

/// The rates, times and counts of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostSettings {
    /// Packets per second to send to receivers; 0 sends none.
    pub rates: Vec<u64>,
    /// The measuring time of a receiver at each rate, after one second of packets.
    pub time: Duration,
    /// Rounds; every forwarder has a turn in each.
    pub rounds: u32,
    /// Pings through each forwarder in a round.
    pub pings: u32,
}

/// The results of a run.
#[derive(Debug, Default, Serialize)]
pub struct CostResults {
    /// The measuring time of each receiver at a rate.
    pub seconds: f64,
    /// Each way of receiving.
    pub receiving: Vec<ReceiverCost>,
    /// Each way of forwarding.
    pub forwarding: Vec<ForwarderCost>,
    /// False if it was stopped before the end.
    pub complete: bool,
}

impl CostResults {
    /// Removes rows without figures and without a failure.
    fn leave_out_unmeasured(&mut self) {
        self.receiving.retain(|it| !it.rates.is_empty() || it.failed.is_some());
        self.forwarding.retain(|it| it.round_trips.is_some() || it.failed.is_some());
    }
}

/// The cost of a way of receiving.
#[derive(Debug, Serialize)]
pub struct ReceiverCost {
    /// Its name, in the terms of the field.
    pub step: String,
    /// The program: "sluice", or a peer's name.
    pub by: &'static str,
    /// The shell command.
    pub command: String,
    /// The CPU time at each rate.
    pub rates: Vec<AtRate>,
    /// The reason why it could not be measured at a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The cost of receiving at one rate.
#[derive(Debug, Serialize)]
pub struct AtRate {
    /// The requested packets per second.
    pub pps: u64,
    /// The CPU time of the program's threads, as a share of one CPU.
    pub cpu: f64,
    /// The total of packets sent.
    pub sent: u64,
    /// Packets that the program reports; absent if it reports none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
}

/// The cost of a way of forwarding.
#[derive(Debug, Serialize)]
pub struct ForwarderCost {
    /// Its name, in the terms of the field.
    pub step: String,
    /// The program: "sluice", or "linux" for the kernel alone.
    pub by: &'static str,
    /// The shell command.
    pub command: String,
    /// The round trips of all rounds.
    #[serde(flatten)]
    pub round_trips: Option<RoundTrips<Spread>>,
    /// The reason why it could not be measured in a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Times of round trips: a number each in one round, a [`Spread`] over all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundTrips<T> {
    /// Pings sent.
    pub pings: u32,
    /// Pings without an answer.
    pub lost: u32,
    /// The median.
    pub median_ms: T,
    /// The 99th percentile.
    pub p99_ms: T,
    /// The longest.
    pub max_ms: T,
}

/// Measures in its own labs.
///
/// # Errors
/// A missing privilege; the run was stopped before the first measurement. The failure of a program is in its
/// row.
pub fn run(settings: &CostSettings, watch: &dyn BenchObserver) -> Result<CostResults, Failure> {
    let mut results =
        CostResults { seconds: settings.time.as_secs_f64(), ..CostResults::default() };
    match measure(settings, watch, &mut results) {
        Ok(()) => results.complete = true,
        Err(Failure::Stopped) => {
            results.leave_out_unmeasured();
            if results.receiving.is_empty() && results.forwarding.is_empty() {
                return Err(Failure::Stopped);
            }
        }
        Err(failure) => return Err(failure),
    }
    Ok(results)
}

fn measure(
    settings: &CostSettings,
    watch: &dyn BenchObserver,
    results: &mut CostResults,
) -> Result<(), Failure> {
    let pair = Testbed::make(TestbedConfig::PAIR)?;
    let receivers = receivers(&StepContext { testbed: &pair, setting: SETTING });
    let line = Testbed::make(TestbedConfig::LINE)?;
    let forwarders = forwarders(&StepContext { testbed: &line, setting: SETTING });
    let turns =
        receivers.len() * settings.rates.len() + forwarders.len() * settings.rounds as usize;
    let mut done = 0;
    let mut begins = |step: &str| {
        watch.progress(&Progress { step, done, turns: Some(turns) });
        done += 1;
    };
    for it in &receivers {
        let (step, command) = (it.name.clone(), it.command());
        let mut row = ReceiverCost { step, by: it.by, command, rates: vec![], failed: None };
        for &pps in &settings.rates {
            begins(&format!("{}, {pps} packets a second", it.name));
            match at_rate(it, &pair, pps, settings.time, watch) {
                Ok(turn) => row.rates.push(turn),
                Err(Failure::Stopped) => {
                    results.receiving.push(row);
                    return Err(Failure::Stopped);
                }
                Err(failure) => row.failed = row.failed.or(Some(failure.to_string())),
            }
        }
        results.receiving.push(row);
    }
    let row = |it: &Step| {
        let (step, command) = (it.name.clone(), it.command());
        ForwarderCost { step, by: it.by, command, round_trips: None, failed: None }
    };
    results.forwarding = forwarders.iter().map(row).collect();
    let mut rounds = vec![Vec::new(); forwarders.len()];
    for _ in 0..settings.rounds {
        for ((it, row), rounds) in forwarders.iter().zip(&mut results.forwarding).zip(&mut rounds) {
            begins(&format!("round trip, {}", it.name));
            match through(it, &line, settings.pings, watch) {
                Ok(round_trips) => rounds.push(round_trips),
                Err(Failure::Stopped) => return Err(Failure::Stopped),
                Err(failure) => row.failed = row.failed.take().or(Some(failure.to_string())),
            }
            row.round_trips = RoundTrips::over(rounds);
        }
    }
    Ok(())
}

/// Returns the ways of receiving.
fn receivers(context: &StepContext<'_>) -> Vec<Step> {
    let right = context.right();
    let step = |by, name: &str, program: Program| {
        context.receives(by, name, Destination::Nobody, program.on(context.receiver()))
    };
    let sluice = |name, port: String| {
        step("sluice", name, context.count(&port, [""; 0]).set("--interval", "1s"))
    };
    vec![
        sluice("TPACKET_V3 ring", format!("packet:{right}")),
        sluice("mirror", format!("mirror:{right}")),
        sluice("XDP copies", format!("xdp:{right}?method=ring")),
        sluice("AF_XDP, copy mode", format!("xdp:{right}?mode=copy")),
        step("tcpdump", "tcpdump -w /dev/null", tcpdump(right, "/dev/null")),
        step("dumpcap", "dumpcap -w /dev/null", dumpcap(right)),
    ]
}

/// Measures a way of receiving at a rate.
fn at_rate(
    step: &Step,
    testbed: &Testbed,
    pps: u64,
    time: Duration,
    watch: &dyn BenchObserver,
) -> Result<AtRate, Failure> {
    step.missing().map_or(Ok(()), Err)?;
    let [program] = step.method.programs()[..] else {
        return Err(Failure::of("one program receives"));
    };
    let mut receiver = testbed.start_ready(program, watch)?;
    let rate = format!("{pps}pps");
    let sender = testbed.sender(testbed.cpus.senders(1), SETTING.size, NOBODY);
    let sender = sender.and(["--rate", &rate, "--interval", "200ms"]).ready(BEGUN);
    let mut sender = (pps > 0).then(|| testbed.start_ready(&sender, watch)).transpose()?;
    watch.pause(LEAD.min(time))?;
    let (begin, before_ns) = (Instant::now(), receiver.cpu_ns());
    watch.pause(time)?;
    let (elapsed, after_ns) = (begin.elapsed(), receiver.cpu_ns());
    receiver.still_runs()?;
    sender.as_mut().map_or(Ok(()), |it| it.still_runs())?;
    let sent = sender.map(|it| it.end()).transpose()?;
    // A packet ring delivers its last block within 10 ms, that of tcpdump within a second.
    watch.pause(Duration::from_millis(100))?;
    let said = receiver.end()?;
    Ok(AtRate {
        pps,
        cpu: after_ns.saturating_sub(before_ns) as f64 / elapsed.as_nanos() as f64,
        sent: sent.and_then(|said| Count::SENT.of(&said)).unwrap_or(0),
        received: program.count.and_then(|count| count.of(&said)),
    })
}

/// Returns the ways of forwarding.
fn forwarders(context: &StepContext<'_>) -> Vec<Step> {
    let Some(middle) = &context.testbed.middle else { return Vec::new() };
    let [from, to] = middle.each_ref().map(|side| &side.interface);
    let cpus = list(context.receivers(1));
    let step = |by, name, program| context.forwards(by, name, Destination::Host, program);
    let sluice = |ports: [String; 2]| {
        let flags = ["--cpus", &cpus, "--json", "--interval", "200ms"];
        Program::sluice(["forward", &ports[0], &ports[1]]).and(flags).ready(BEGUN)
    };
    let sleeps = |name, program: Program| step("sluice", name, Some(program.real_time()));
    let xdp = || [format!("xdp:{from}"), format!("xdp:{to}")];
    let [left, right] = xdp();
    let relay = Program::sluice(["bench", "relay", &left, &right, "--cpu", &cpus])
        .ready(Ready::Says(RELAYING));
    let [make, remove] = bridge(middle);
    vec![
        step("linux", "kernel bridge", None).with(make, remove),
        sleeps("minimal relay over AF_XDP, in poll(2)", relay),
        sleeps("AF_XDP swap", sluice(xdp())),
        // Live frames spin.
        step("sluice", "AF_XDP and live frames", Some(sluice(xdp().map(|it| it + "?send=live")))),
        sleeps("packet sockets", sluice([format!("packet:{from}"), format!("packet:{to}")])),
    ]
}

/// Sends pings through a way of forwarding.
fn through(
    step: &Step,
    testbed: &Testbed,
    pings: u32,
    watch: &dyn BenchObserver,
) -> Result<RoundTrips<f64>, Failure> {
    let _prepared = Prepared::new(testbed, step)?;
    let mut programs = Vec::new();
    for program in step.method.programs() {
        programs.push(testbed.start_ready(program, watch)?);
    }
    ping(testbed, WARM_UP, watch)?;
    let measured = ping(testbed, pings, watch);
    programs.iter_mut().try_for_each(|it| it.still_runs())?;
    programs.into_iter().try_for_each(|it| it.end().map(drop))?;
    measured
}

/// Sends pings from the left to the right.
fn ping(
    testbed: &Testbed,
    pings: u32,
    watch: &dyn BenchObserver,
) -> Result<RoundTrips<f64>, Failure> {
    let (count, interval) = (pings.to_string(), PING_INTERVAL.as_secs_f64().to_string());
    let program = Program::tool("ping", ["-n", "-W", "1", "-c", &count, "-i", &interval, ADDRESS]);
    let program = program.on(testbed.cpus.senders(1).first().copied()).real_time();
    let mut running = testbed.start(&program)?;
    running.over(PING_INTERVAL * pings, watch)?;
    RoundTrips::of(pings, &running.output().out)
        .ok_or_else(|| Failure::of(format!("no ping to {ADDRESS} was answered")))
}

impl RoundTrips<f64> {
    /// Parses the output of ping(8). Returns none if no ping was answered.
    fn of(pings: u32, said: &str) -> Option<Self> {
        let times = said.lines().filter_map(|line| {
            let (time, unit) = line.split_once("time=")?.1.split_once(' ')?;
            time.parse::<f64>().ok().filter(|_| unit.trim() == "ms")
        });
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        let (last, answered) = (times.len().checked_sub(1)?, times.len() as u32);
        let at = |share: f64| times[(last as f64 * share).round() as usize];
        Some(Self {
            pings,
            lost: pings.saturating_sub(answered),
            median_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms: times[last],
        })
    }
}

impl RoundTrips<Spread> {
    /// The round trips over several rounds; none without a round.
    fn over(rounds: &[RoundTrips<f64>]) -> Option<Self> {
        let spread = |of: fn(&RoundTrips<f64>) -> f64| Spread::of(rounds.iter().map(of));
        Some(Self {
            pings: rounds.iter().map(|it| it.pings).sum(),
            lost: rounds.iter().map(|it| it.lost).sum(),
            median_ms: spread(|it| it.median_ms)?,
            p99_ms: spread(|it| it.p99_ms)?,
            max_ms: spread(|it| it.max_ms)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_the_output_of_ping() {
        let line = |n: u32, ms: &str| {
            format!("64 bytes from 198.18.0.2: icmp_seq={n} ttl=64 time={ms} ms\n")
        };
        let mut said = String::from("PING 198.18.0.2 (198.18.0.2) 56(84) bytes of data.\n");
        said += &(1..=99).map(|n| line(n, "0.050")).collect::<String>();
        said += &line(100, "12.5");
        said += "\n--- 198.18.0.2 ping statistics ---\n102 packets transmitted, 100 received, 2% \
                 packet loss, time 500ms\nrtt min/avg/max/mdev = 0.050/0.1/12.5/0.1 ms\n";
        let expected =
            RoundTrips { pings: 102, lost: 2, median_ms: 0.05, p99_ms: 0.05, max_ms: 12.5 };
        assert_eq!(RoundTrips::of(102, &said), Some(expected));
        assert_eq!(RoundTrips::of(5, "PING 198.18.0.2\n"), None, "nothing was answered");
    }

    #[test]
    fn rounds_are_summed_and_their_times_spread() {
        let round = |max_ms| RoundTrips { pings: 9, lost: 1, median_ms: 1.0, p99_ms: 2.0, max_ms };
        let all = RoundTrips::over(&[5.0, 3.0, 17.0].map(round)).unwrap();
        assert_eq!((all.pings, all.lost), (27, 3));
        assert_eq!(all.max_ms, Spread { median: 5.0, min: 3.0, max: 17.0 });
        assert_eq!(RoundTrips::over(&[]), None);
    }
}
