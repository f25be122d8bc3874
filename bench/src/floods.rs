//! Measures the goodput of a server while a flood hits it: without a filter, behind a bare drop, and behind the
//! scrubber.
//!
//! ```text
//!   first CPU                                               last CPU
//!   left: the attacker, by live frames ─┐
//!         the client                   ─┴→ right's queue: filter ─→ right: an HTTP server and iperf3
//! ```
//!
//! Flood and client share the only queue. The CPU that sends receives, too, as on any veth: the filter runs there. What it
//! passes is handed to the server's CPU (RPS), as behind a card with one queue.
//!
//! Attackers have addresses of 10.0.0.0/8, which the bare drop compares. The scrubber has the policy `web`, which does
//! not know them.

use std::time::{Duration, Instant};

use serde::Serialize;
use sluicegate::xdp::{ProgInfo, RunStatistics};

use crate::observer::{BenchObserver, Failure, Progress};
use crate::process::{
    BEGUN, Count, LabHost, ProcessOutput, Program, Ready, Running, is_installed, quoted,
};
use crate::suite::scrub::receives_answers;
use crate::testbed::{ADDRESS, Testbed, TestbedConfig, list};

/// The line by which the HTTP server of this project's command (`sluice bench http-server`) reports its start.
pub const SERVING: &str = "serving";
/// Ports of the servers: those of the policy `web`.
const HTTP: &str = "80";
const IPERF: &str = "443";
/// Time for a flood to reach its rate, and for the scrubber to notice it; also that in which `filter_ns` is measured. At
/// most the measuring time.
const LEAD: Duration = Duration::from_millis(1500);
/// The policy `web`, for a server with more new connections than one has on ordinary days: those of the client.
fn policy() -> String {
    let (usual, above) = ("above = \"20kpps\"", "above = \"100kpps\"");
    sluicegate_scrub::profiles::WEB.replace(usual, above)
}

/// Time for iperf3 to connect and to report, besides its measuring time.
const GRACE: u64 = 8;
/// The modest rate, in packets per second.
const MODEST: u64 = 1_000_000;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct FloodSettings {
    /// The measuring time of HTTP, and that of iperf3, in each turn.
    pub time: Duration,
    /// Names of floods; all if empty.
    pub floods: Vec<String>,
    /// Also measure iperf3.
    pub iperf: bool,
}

/// The results of a run.
#[derive(Debug, Default, Serialize)]
pub struct FloodResults {
    /// The measuring time of HTTP, and that of iperf3, in each turn.
    pub seconds: f64,
    /// Goodput without a flood and a filter.
    pub quiet: Option<Turn>,
    /// Each flood at each rate.
    pub rows: Vec<FloodRow>,
    /// False if it was stopped before the end.
    pub complete: bool,
}

/// A flood at one rate.
#[derive(Debug, Default, Serialize)]
pub struct FloodRow {
    /// Its name.
    pub flood: &'static str,
    /// The requested packets per second; absent at full speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_pps: Option<u64>,
    /// Without a filter.
    pub unfiltered: Option<Turn>,
    /// Behind an XDP program that drops the attackers' addresses and nothing else.
    pub bare: Option<Turn>,
    /// Behind the scrubber.
    pub scrub: Option<Turn>,
    /// The reason why a turn failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The goodput of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Turn {
    /// The flood's packets, in millions per second; absent without a flood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_mpps: Option<f64>,
    /// Nanoseconds that the filter's XDP program took for a packet of the flood, before the client began; absent without
    /// a flood or a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_ns: Option<f64>,
    /// Answered HTTP requests per second, each in a connection of its own.
    pub http_rps: f64,
    /// Received bits of iperf3, in Mbit/s; absent if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iperf_mbps: Option<f64>,
}

impl FloodRow {
    /// Returns the goodput behind the scrubber divided by that behind the bare drop: HTTP, then iperf3.
    pub fn ratios(&self) -> [Option<f64>; 2] {
        let ratio = |of: fn(&Turn) -> Option<f64>| {
            let bare = self.bare.as_ref().and_then(of).filter(|it| *it > 0.0)?;
            Some(self.scrub.as_ref().and_then(of)? / bare)
        };
        [ratio(|it| Some(it.http_rps)), ratio(|it| it.iperf_mbps)]
    }
}

/// The filter of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    None,
    Bare,
    Scrub,
}

/// A flood: its name, and streams of a specification.
struct Flood {
    name: &'static str,
    streams: Vec<String>,
}

/// A stream of IP packets from an attacker's addresses.
fn stream(size: u32, ip: &str, layers: &str) -> String {
    format!(
        "[[stream]]\nsize = {size}\nlayers = [\"ether\", \
         {{ ipv4 = {{ dst = \"{ADDRESS}\", id = \"0-65535\", {ip} }} }}, {layers}]\n"
    )
}

/// The addresses of attackers.
const ATTACKERS: &str = "10.0.0.0/8";
const RANDOM: &str = "src = \"10.0.0.0/8\"";
const FIXED: &str = "src = \"10.1.2.1..10.1.2.16\"";

fn tcp(source: &str, ports: &str, flags: &str) -> String {
    let fields = format!("{ports}, flags = \"{flags}\", seq = \"0-4294967295\"");
    stream(60, source, &format!("{{ tcp = {{ {fields} }} }}"))
}

/// An answer of a reflector that begins with these bytes, from one of 65,536.
fn answer(port: u16, size: u32, bytes: &str) -> String {
    let layers = format!(
        "{{ udp = {{ sport = {port}, dport = \"1024-65535\" }} }}, {{ raw = {{ hex = \"{bytes}\" }} }}, \"payload\""
    );
    stream(size, "src = \"10.7.0.0/16\", ttl = \"40-60\"", &layers)
}

/// All floods.
fn floods() -> Vec<Flood> {
    let to_web = "sport = \"1024-65535\", dport = 80";
    let syn = || tcp(RANDOM, to_web, "syn");
    let udp = || {
        let ports = "{ udp = { sport = \"1024-65535\", dport = \"1-65535\" } }, \"payload\"";
        stream(60, RANDOM, ports)
    };
    let dns = || answer(53, 1024, "0001 8180 0001 0005 0000 0000");
    let ntp = || answer(123, 468, "d700 032a 0006 0048");
    // A search result entry; the start of an HTTP answer.
    let cldap = || answer(389, 1500, "3084 0000 0bd5 0201 0764");
    let ssdp = || answer(1900, 1024, "4854 5450 2f31 2e31");
    let memcached = || answer(11211, 1400, "0000 0000 0001 0000 5641 4c55 45");
    let fragments = || {
        let first = stream(
            1514,
            &format!("{RANDOM}, flags = \"mf\""),
            "{ udp = { length = 2968 } }, \"payload\"",
        );
        let later = format!("{RANDOM}, frag = 185, protocol = \"udp\"");
        vec![first, stream(1514, &later, "\"payload\"")]
    };
    let one = |name, stream: String| Flood { name, streams: vec![stream] };
    let mixed = [vec![syn(), udp(), dns(), ntp(), memcached()], fragments()].concat();
    vec![
        one("syn-random", syn()),
        one("syn-fixed", tcp(FIXED, to_web, "syn")),
        one("syn-ack", tcp(RANDOM, "sport = 80, dport = \"1024-65535\"", "syn+ack")),
        one("ack", tcp(RANDOM, to_web, "ack")),
        one("udp", udp()),
        one("dns", dns()),
        one("ntp", ntp()),
        one("cldap", cldap()),
        one("ssdp", ssdp()),
        one("memcached", memcached()),
        Flood {
            name: "wsd-coap",
            streams: vec![answer(3702, 1024, "3c3f 786d 6c20"), answer(5683, 512, "6145 0001")],
        },
        Flood {
            name: "chargen-snmp",
            streams: vec![
                answer(19, 1024, "2021 2223 2425"),
                answer(161, 1024, "3082 03c8 0201 01"),
            ],
        },
        Flood { name: "fragments", streams: fragments() },
        one("icmp", stream(98, RANDOM, "\"icmp\", \"payload\"")),
        Flood { name: "mixed", streams: mixed },
    ]
}

/// The names of all floods.
pub fn names() -> Vec<&'static str> {
    floods().iter().map(|flood| flood.name).collect()
}

/// The specification of a flood's packets, as of `sluice generate --spec`; none if it has no such name.
pub fn spec(name: &str) -> Option<String> {
    let flood = floods().into_iter().find(|flood| flood.name == name)?;
    Some(flood.streams.join("\n"))
}

/// Measures in a lab of its own.
///
/// # Errors
/// A missing privilege; the run was stopped before the first measurement. The failure of a turn is in its row.
pub fn run(settings: &FloodSettings, watch: &dyn BenchObserver) -> Result<FloodResults, Failure> {
    let testbed = Testbed::make(TestbedConfig::PAIR)?;
    for (host, side) in [(LabHost::Left, &testbed.left), (LabHost::Right, &testbed.right)] {
        let Some(cpu) = cpu_of(&testbed, host) else { continue };
        testbed.run(&received_on(&side.interface, cpu).at(host))?;
    }
    // Answers reach the left: by a route, and by an XDP program there, without which a veth delivers none of XDP's.
    let route = Program::tool("ip", ["route", "add", ATTACKERS, "via", "198.18.0.1"]);
    testbed.run(&route.at(LabHost::Right))?;
    testbed.run(&receives_answers(&testbed.left.interface, ATTACKERS))?;
    std::fs::write(testbed.file("web.toml"), policy())
        .map_err(|error| Failure::of(format!("write the policy: {error}")))?;
    let seconds = settings.time.as_secs_f64();
    let mut results = FloodResults { seconds, ..FloodResults::default() };
    let iperf = settings.iperf && is_installed("iperf3");
    let context = Context { testbed: &testbed, time: settings.time, iperf, watch };
    match context.measure(settings, &mut results) {
        Ok(()) => results.complete = true,
        Err(Failure::Stopped) if results.quiet.is_some() => {}
        Err(failure) => return Err(failure),
    }
    Ok(results)
}

/// The command that makes a CPU handle the packets that an interface receives, after XDP.
fn received_on(interface: &str, cpu: usize) -> Program {
    let mask = cpu_mask(cpu);
    let script = format!("echo {mask} > /sys/class/net/{interface}/queues/rx-0/rps_cpus");
    Program::script("sh", script)
}

/// Writes a CPU as the kernel's masks do: in groups of 32 bits, the highest first.
fn cpu_mask(cpu: usize) -> String {
    format!("{:x}{}", 1_u32 << (cpu % 32), ",00000000".repeat(cpu / 32))
}

/// The CPU of a host's programs: the first one on the left, the last one on the right.
fn cpu_of(testbed: &Testbed, host: LabHost) -> Option<usize> {
    let cpus = match host {
        LabHost::Left => testbed.cpus.senders(1),
        _ => testbed.cpus.receivers(u32::MAX, 1),
    };
    cpus.last().copied()
}

struct Context<'a> {
    testbed: &'a Testbed,
    time: Duration,
    iperf: bool,
    watch: &'a dyn BenchObserver,
}

impl Context<'_> {
    fn measure(&self, settings: &FloodSettings, results: &mut FloodResults) -> Result<(), Failure> {
        let is_wanted = |it: &Flood| {
            settings.floods.is_empty() || settings.floods.iter().any(|name| name == it.name)
        };
        let floods: Vec<Flood> = floods().into_iter().filter(is_wanted).collect();
        let turns = 1 + floods.len() * 6;
        let mut done = 0;
        let mut begins = |step: &str| {
            self.watch.progress(&Progress { step, done, turns: Some(turns) });
            done += 1;
        };
        begins("no flood");
        results.quiet = Some(self.turn(None, Filter::None)?);
        for flood in &floods {
            let file = self.testbed.file(&format!("{}.toml", flood.name));
            let written = std::fs::write(&file, flood.streams.join("\n"));
            written.map_err(|error| Failure::of(format!("write {file}: {error}")))?;
            for rate_pps in [Some(MODEST), None] {
                let row = FloodRow { flood: flood.name, rate_pps, ..FloodRow::default() };
                results.rows.push(row);
                for filter in [Filter::None, Filter::Bare, Filter::Scrub] {
                    let rate = if rate_pps.is_some() { "1 Mpps" } else { "full speed" };
                    begins(&format!("{}, {rate}, {filter:?}", flood.name).to_lowercase());
                    let turn = self.turn(Some((&file, rate_pps)), filter);
                    let Some(row) = results.rows.last_mut() else { continue };
                    let slot = match filter {
                        Filter::None => &mut row.unfiltered,
                        Filter::Bare => &mut row.bare,
                        Filter::Scrub => &mut row.scrub,
                    };
                    match turn {
                        Ok(turn) => *slot = Some(turn),
                        Err(Failure::Stopped) => return Err(Failure::Stopped),
                        Err(failure) => {
                            row.failed = row.failed.take().or(Some(failure.to_string()))
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives a program the CPU of its host.
    fn pinned(&self, program: Program) -> Program {
        let cpu = cpu_of(self.testbed, program.host);
        program.on(cpu)
    }

    fn start(&self, program: Program) -> Result<Running, Failure> {
        self.testbed.start_ready(&program, self.watch)
    }

    /// Starts the filter, if there is one.
    fn filter(&self, filter: Filter) -> Result<Option<Running>, Failure> {
        let right = &self.testbed.right.interface;
        let (policy, socket) = (self.testbed.file("web.toml"), self.testbed.file("control"));
        let program = match filter {
            Filter::None => return Ok(None),
            Filter::Bare => {
                Program::sluice(["bench", "bpf-drop", right, "source", "--network", ATTACKERS])
                    .ready(Ready::Says("attached"))
            }
            Filter::Scrub => Program::sluice(["scrub", "run", right, "--policy", &policy])
                .and(["--control", &socket, "--json", "--interval", "200ms", "--learn", "0s"])
                .ready(Ready::Says("\"elapsed_s\"")),
        };
        self.start(self.pinned(program.at(LabHost::Right))).map(Some)
    }

    /// Starts the flood of a specification.
    fn flood(&self, file: &str, rate_pps: Option<u64>) -> Result<Running, Failure> {
        let cpus = list(self.testbed.cpus.senders(1));
        let dmac = self.testbed.right.mac()?.to_string();
        let program = Program::sluice(["generate", &self.testbed.left.interface, "--spec", file])
            .and(["--dmac", &dmac, "--threads", "1", "--cpus", &cpus])
            .and(["--json", "--interval", "200ms"])
            .ready(BEGUN);
        let rate = rate_pps.map(|pps| ["--rate".to_owned(), format!("{pps}pps")]);
        self.start(program.and(rate.into_iter().flatten()))
    }

    /// Measures the goodput under a flood and behind a filter.
    fn turn(&self, flood: Option<(&str, Option<u64>)>, filter: Filter) -> Result<Turn, Failure> {
        let server = Program::sluice(["bench", "http-server", "--port", HTTP]);
        let server = server.ready(Ready::Says(SERVING)).at(LabHost::Right);
        let http = self.start(self.pinned(server))?;
        let mut filter = self.filter(filter)?;
        let flood = flood.map(|(file, rate)| self.flood(file, rate)).transpose()?;
        let filter_ns = match (&filter, &flood) {
            (Some(filter), Some(_)) => Some(self.filter_ns(filter)?),
            _ => None,
        };
        if filter_ns.is_none() {
            self.watch.pause(LEAD.min(self.time))?;
        }
        let http_rps = self.http()?;
        let iperf_mbps = self.iperf.then(|| self.iperf()).transpose()?;
        filter.as_mut().map_or(Ok(()), Running::still_runs)?;
        let said = flood.map(Running::end).transpose()?;
        let offered = |said: &ProcessOutput| {
            let packets = Count::At("/accepted").of(said).or_else(|| Count::SENT.of(said))?;
            Some(packets as f64 / said.number("/elapsed_s")? / 1e6)
        };
        let offered_mpps = said.as_ref().and_then(offered);
        if said.is_some() && offered_mpps.is_none() {
            return Err(Failure::of("the flood did not say how many packets it sent"));
        }
        filter.map(Running::end).transpose()?;
        http.end()?;
        Ok(Turn { offered_mpps, filter_ns, http_rps, iperf_mbps })
    }

    /// Returns the time of a filter's program for a packet, with that of two reads of the clock.
    fn filter_ns(&self, filter: &Running) -> Result<f64, Failure> {
        // Programs that it calls count for the one that is attached. At tc there are only few packets.
        let most_runs = || -> Result<ProgInfo, Failure> {
            let programs = ProgInfo::of_process(filter.pid())?;
            let most = programs.into_iter().max_by_key(|it| it.runs);
            most.ok_or_else(|| Failure::of("the filter has no XDP program"))
        };
        // The kernel measures times only while this exists.
        let _statistics = RunStatistics::enable()?;
        self.watch.pause(LEAD.min(self.time))?;
        let before = most_runs()?;
        self.watch.pause(LEAD.min(self.time))?;
        let after = most_runs()?;
        let runs = after.runs.saturating_sub(before.runs);
        let ns = after.run_ns.saturating_sub(before.run_ns);
        match runs {
            0 => Err(Failure::of("the filter got no packets")),
            _ => Ok(ns as f64 / runs as f64),
        }
    }

    /// Returns answered requests per second.
    fn http(&self) -> Result<f64, Failure> {
        let (server, time) = (format!("{ADDRESS}:{HTTP}"), format!("{}ms", self.time.as_millis()));
        let client = Program::sluice(["bench", "http-get", &server, "--seconds", &time]);
        let mut client = self.testbed.start(&self.pinned(client))?;
        client.over(self.time, self.watch)?;
        let said = client.output();
        let rate = said.number("/requests").zip(said.number("/elapsed_s"));
        let none = || Failure::of(format!("the HTTP client: {}", client.complaint()));
        rate.map(|(requests, seconds)| requests / seconds).ok_or_else(none)
    }

    /// Returns what iperf3 has received, in Mbit/s; 0 if it does not get through.
    fn iperf(&self) -> Result<f64, Failure> {
        let server =
            Program::tool("iperf3", ["--server", "--one-off", "--port", IPERF, "--forceflush"]);
        let server = server.ready(Ready::Says("Server listening")).at(LabHost::Right);
        let server = self.start(self.pinned(server))?;
        let seconds = self.time.as_secs().max(1);
        let client = ["iperf3", "--client", ADDRESS, "--port", IPERF, "--json"];
        let client = client.map(quoted).join(" ");
        let limit = seconds + GRACE;
        // An end by the limit or by a lost connection is a goodput of 0.
        let script = format!(
            "timeout -k 1 {limit} {client} --connect-timeout 3000 --time {seconds} || true"
        );
        let mut client = self.testbed.start(&self.pinned(Program::script("iperf3", script)))?;
        let begun = Instant::now();
        client.over(Duration::from_secs(limit), self.watch)?;
        let elapsed = begun.elapsed().as_secs_f64();
        drop(server);
        let received = |of: &str| {
            let result: serde_json::Value = serde_json::from_str(&client.output().out).ok()?;
            result.pointer(&format!("/end/sum_received/{of}"))?.as_f64()
        };
        // Of a run that took longer than planned, the bytes count over the whole time.
        let bits = match elapsed < seconds as f64 + 1.0 {
            true => received("bits_per_second"),
            false => received("bytes").map(|bytes| bytes * 8.0 / elapsed),
        };
        Ok(bits.unwrap_or(0.0) / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_has_room_for_the_client() {
        assert!(policy().contains("above = \"100kpps\""));
    }

    #[test]
    fn masks_have_groups_of_32_bits() {
        assert_eq!(cpu_mask(0), "1");
        assert_eq!(cpu_mask(31), "80000000");
        assert_eq!(cpu_mask(65), "2,00000000,00000000");
    }

    #[test]
    fn floods_have_different_names() {
        let names: std::collections::BTreeSet<_> = names().into_iter().collect();
        assert_eq!(names.len(), floods().len());
    }

    #[test]
    fn the_scrubber_is_compared_with_the_bare_drop() {
        let turn = |http_rps, iperf_mbps| Some(Turn { http_rps, iperf_mbps, ..Turn::default() });
        let (bare, scrub) = (turn(1000.0, Some(4.0)), turn(900.0, Some(5.0)));
        let row = FloodRow { bare, scrub, ..FloodRow::default() };
        assert_eq!(row.ratios(), [Some(0.9), Some(1.25)]);
        let row = FloodRow { bare: turn(0.0, None), scrub, ..FloodRow::default() };
        assert_eq!(row.ratios(), [None, None], "nothing to compare with");
    }
}
