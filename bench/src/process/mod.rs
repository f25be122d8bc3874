//! Programs, and the packet counts in their output.

mod running;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sluicegate::error::Error;

use crate::observer::Failure;
pub use running::{Ready, Running};

/// The name of this project's command.
pub const SLUICE: &str = "sluice";
/// Sign that `sluice --json --interval` has begun: the first line of an interval.
pub const BEGUN: Ready = Ready::Says("\"time_s\"");
/// Sign that a command counts: the threads of its queues start when all its sockets and programs are open.
pub const COUNTING: Ready = Ready::Runs("queue-");
/// Time for a program to get ready or to end.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A host of a testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabHost {
    /// The side that sends.
    Left,
    /// The side that receives.
    Right,
    /// Between them.
    Middle,
}

/// A program: its arguments, where it runs, when it is ready, and how it reports a packet count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name as typed: "sluice", "tcpdump".
    pub name: String,
    /// Arguments after the name.
    pub arguments: Vec<String>,
    /// The file, if it is not found by its name.
    file: Option<PathBuf>,
    /// Content of its standard input.
    input: Option<StdinText>,
    /// Another program that it needs, if it only starts that.
    needs: Option<&'static str>,
    /// The host it runs on.
    pub host: LabHost,
    /// The CPU it is pinned to; none if it may run on all, or pins its threads itself.
    cpu: Option<usize>,
    /// It runs at real-time priority.
    real_time: bool,
    /// The sign that it is ready.
    pub ready: Ready,
    /// Position of its packet count; none if it reports none.
    pub count: Option<Count>,
}

impl Program {
    /// A program that is found by its name. It runs on the left host, and is ready at once.
    pub fn tool<A: Into<String>>(name: &str, arguments: impl IntoIterator<Item = A>) -> Self {
        Self {
            name: name.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            file: None,
            input: None,
            needs: None,
            host: LabHost::Left,
            cpu: None,
            real_time: false,
            ready: Ready::AtOnce,
            count: None,
        }
    }

    /// This project's command: the file that runs.
    pub fn sluice<A: Into<String>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self { file: std::env::current_exe().ok(), ..Self::tool(SLUICE, arguments) }
    }

    /// A shell script around another program.
    pub fn script(needs: &'static str, text: String) -> Self {
        Self { needs: Some(needs), ..Self::tool("sh", ["-c".to_owned(), text]) }
    }

    /// Sets another program that it needs.
    #[must_use]
    pub fn needing(self, name: &'static str) -> Self {
        Self { needs: Some(name), ..self }
    }

    /// The command that has to be installed for it.
    pub fn needs(&self) -> &str {
        self.needs.unwrap_or(&self.name)
    }

    /// Sets a flag of the command, in place of an earlier value.
    #[must_use]
    pub fn set(mut self, flag: &str, value: &str) -> Self {
        match self.arguments.iter().position(|argument| argument == flag) {
            Some(at) => self.arguments[at + 1] = value.to_owned(),
            None => self.arguments.extend([flag.to_owned(), value.to_owned()]),
        }
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn and<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Runs the command by another program, `name`, after that program's `arguments`.
    #[must_use]
    pub fn by<A: Into<String>>(self, name: &str, arguments: impl IntoIterator<Item = A>) -> Self {
        let file = self.file.map_or(self.name, |file| file.display().to_string());
        let by = Self::tool(name, arguments).and([file]).and(self.arguments);
        Self { name: by.name, arguments: by.arguments, file: None, ..self }
    }

    /// Runs it at real-time priority, so that other programs do not delay it. Only for a program that sleeps:
    /// one that spins would keep its CPU from the others of the measurement.
    #[must_use]
    pub fn real_time(self) -> Self {
        Self { real_time: true, ..self }
    }

    /// Sets its standard input.
    #[must_use]
    pub fn reading(self, input: impl Into<StdinText>) -> Self {
        Self { input: Some(input.into()), ..self }
    }

    /// Sets the host it runs on.
    #[must_use]
    pub fn at(self, host: LabHost) -> Self {
        Self { host, ..self }
    }

    /// Pins it to a CPU.
    #[must_use]
    pub fn on(self, cpu: Option<usize>) -> Self {
        Self { cpu, ..self }
    }

    /// Sets the sign that it is ready.
    #[must_use]
    pub fn ready(self, ready: Ready) -> Self {
        Self { ready, ..self }
    }

    /// Sets the position of its packet count.
    #[must_use]
    pub fn counting(self, count: Count) -> Self {
        Self { count: Some(count), ..self }
    }

    /// Its name and arguments, quoted for a shell.
    pub fn shown(&self) -> String {
        let words = std::iter::once(&self.name).chain(&self.arguments);
        words.map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// A shell command that does the same, with its input, CPU and priority.
    pub fn typed(&self) -> String {
        let pinned = self.cpu.map_or_else(String::new, |cpu| format!("taskset -c {cpu} "));
        let priority = if self.real_time { "chrt -f 1 " } else { "" };
        let input = self.input.as_ref().map(|input| format!("{} | ", input.shell));
        format!("{}{pinned}{priority}{}", input.unwrap_or_default(), self.shown())
    }

    /// Starts it in a network namespace; by default in this process's own.
    ///
    /// # Errors
    /// It is not installed, or cannot be started; the namespace cannot be entered.
    pub fn start(&self, netns: Option<&str>) -> Result<Running, Failure> {
        let failed = |error| Error::start(self.shown(), error);
        let scratch = || tempfile::tempfile().map_err(failed);
        let (out, err) = (scratch()?, scratch()?);
        let stdin = match &self.input {
            None => Stdio::null(),
            Some(StdinText { text, .. }) => {
                let file = scratch()?;
                file.write_all_at(text.as_bytes(), 0).map_err(failed)?;
                file.into()
            }
        };
        let give = |file: &File| file.try_clone().map_err(failed);
        let mut command = Command::new(self.file.clone().unwrap_or_else(|| (&self.name).into()));
        command.args(&self.arguments).stdin(stdin).stdout(give(&out)?).stderr(give(&err)?);
        // Some programs leave files in their working directory.
        let folder = tempfile::tempdir().map_err(failed)?;
        command.current_dir(folder.path());
        let started = running::spawn(command, netns, self.cpu, self.real_time)?;
        Ok(Running { name: self.name.clone(), started, out, err, _folder: folder })
    }

    /// Runs it to its end, and returns its standard output.
    ///
    /// # Errors
    /// As [`start`](Self::start); it fails, or takes too long.
    pub fn run(&self, netns: Option<&str>) -> Result<String, Failure> {
        let mut running = self.start(netns)?;
        match running.wait(TIMEOUT)?.success() {
            true => Ok(running.output().out),
            false => Err(Failure::of(format!("run {}: {}", self.shown(), running.complaint()))),
        }
    }
}

/// A text, and the shell command that writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StdinText {
    /// The text.
    pub text: String,
    /// The command.
    pub shell: String,
}

impl From<String> for StdinText {
    fn from(text: String) -> Self {
        let shell = format!("printf %s {}", quoted(&text));
        Self { text, shell }
    }
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The name of netmap's programs in [`Program::needs`].
pub const NETMAP: &str = "netmap";

/// The path of one of netmap's programs, pkt-gen or bridge; none if it does not exist. They are not looked for in
/// PATH, because iproute2 has another `bridge`.
pub fn netmap_program(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("NETMAP_BIN").filter(|folder| !folder.is_empty())?;
    Some(PathBuf::from(folder).join(name)).filter(|path| path.is_file())
}

/// Returns true if a command is installed.
pub fn is_installed(command: &str) -> bool {
    if command == NETMAP {
        return ["pkt-gen", "bridge"].iter().all(|name| netmap_program(name).is_some());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
}

/// The error that a command is not installed, with its remedy.
pub fn missing(command: &str) -> String {
    format!("{command} is not installed: {}", remedy(command))
}

/// The command that installs a command.
pub fn remedy(command: &str) -> String {
    let package = match command {
        NETMAP => return "build pkt-gen and bridge, and name their folder in NETMAP_BIN".into(),
        "tc" | "ip" => "iproute2",
        "iptables-restore" => "iptables",
        "mkfifo" | "cat" | "rm" => "coreutils",
        "xdp-trafficgen" | "xdp-filter" => "xdp-tools",
        "nft" => "nftables",
        "dumpcap" => "wireshark-common",
        "trafgen" => "netsniff-ng",
        "dpdk-testpmd" => "dpdk-dev",
        other => other,
    };
    format!("apt-get install {package}")
}

/// Output of a program.
#[derive(Clone, Debug, Default)]
pub struct ProcessOutput {
    /// To its standard output.
    pub out: String,
    /// To its standard error.
    pub err: String,
}

impl ProcessOutput {
    /// Parses the last JSON object on standard output, which is the result of a command of this project.
    pub fn result<T: DeserializeOwned>(&self) -> Option<T> {
        let line = self.out.lines().rev().find(|line| line.starts_with('{'))?;
        serde_json::from_str(line).ok()
    }

    /// The number in that object at a path: "/ledger/out" (RFC 6901).
    pub fn number(&self, path: &str) -> Option<f64> {
        self.result::<Value>()?.pointer(path)?.as_f64()
    }
}

/// Position of a packet count in a program's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// At the beginning of the last line with these words: "123 packets captured".
    Before(&'static str),
    /// After the last occurrence of these words: "Packets captured: 123".
    After(&'static str),
    /// In the result of a command of this project, at this path.
    At(&'static str),
    /// The sum of the numbers at these paths; missing ones do not count.
    Sum(&'static [&'static str]),
    /// The last rate of netmap's pkt-gen: "14.881 Mpps (2.976 Mpkts 1.428 Gbps in 200000 usec)".
    PktGenRate,
    /// In a table whose lines begin with the first word, below the name in its first line (proc(5),
    /// /proc/net/snmp).
    Below(&'static str, &'static str),
}

impl Count {
    /// Packets that `sluice count` has counted.
    pub const COUNTED: Self = Self::At("/ledger/out");
    /// Packets that `sluice generate` has sent or tried to send.
    pub const SENT: Self = Self::At("/attempted");

    /// The number.
    pub fn of(self, said: &ProcessOutput) -> Option<u64> {
        match self {
            Self::At(path) => said.number(path).map(|n| n as u64),
            Self::Sum(paths) => {
                let numbers = paths.iter().filter_map(|path| said.number(path));
                numbers.map(|n| n as u64).reduce(|sum, n| sum + n)
            }
            _ => self.read(&said.out).or_else(|| self.read(&said.err)),
        }
    }

    /// All numbers, in order: the rates of a program that reports them periodically. None for other kinds than
    /// [`After`](Self::After) and [`PktGenRate`](Self::PktGenRate).
    pub fn all(self, said: &ProcessOutput) -> Vec<u64> {
        let texts = [&said.out, &said.err];
        match self {
            Self::After(words) => {
                let rests = texts.iter().flat_map(|text| text.split(words).skip(1));
                rests.filter_map(first_number).collect()
            }
            Self::PktGenRate => {
                let lines = texts.iter().flat_map(|text| text.lines());
                lines.filter_map(pkt_gen_rate).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The number in a text.
    pub(crate) fn read(self, text: &str) -> Option<u64> {
        match self {
            Self::At(_) | Self::Sum(_) => None,
            Self::Before(words) => {
                first_number(text.lines().rev().find(|line| line.contains(words))?)
            }
            Self::After(words) => first_number(text.rsplit_once(words)?.1),
            Self::PktGenRate => text.lines().rev().find_map(pkt_gen_rate),
            Self::Below(line, name) => {
                let mut lines = text.lines().filter_map(|it| it.strip_prefix(line));
                let (names, values) = (lines.next()?, lines.next()?);
                let at = names.split_whitespace().position(|it| it == name)?;
                first_number(values.split_whitespace().nth(at)?)
            }
        }
    }
}

/// The number that a text begins with; some write it with commas.
fn first_number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(text.len());
    text[..end].replace(',', "").parse().ok()
}

/// The rate in a line of pkt-gen's reports, whose number has three decimals and a unit prefix.
fn pkt_gen_rate(line: &str) -> Option<u64> {
    let (before, _) = line.split_once("pps (")?;
    let number = before.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &before[number.len()..] {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => return None,
    };
    let number: f64 = number.split_whitespace().next_back()?.parse().ok()?;
    Some((number * unit).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCPDUMP: &str = "12 packets captured\n123 packets captured\n\
                           130 packets received by filter\n7 packets dropped by kernel\n";
    const NETSNIFF_NG: &str = "Running!\n\n      886784  packets incoming (0 unread on exit)\n      \
                               886700  packets passed filter\n          84  packets failed filter\n";
    const IPTABLES: &str = "Chain PREROUTING (policy ACCEPT 3 packets, 900 bytes)\n    \
                            pkts      bytes target\n       0        0 DROP       udp dpt:20000\n  \
                            123456  5678976 DROP       udp dpt:9\n";
    const NFT: &str = "table ip t {\n\tcounter dropped {\n\t\tpackets 12 bytes 720\n\t}\n}\n";
    const DUMPCAP: &str = "File: /dev/null\nPackets captured: 287360\n\
                           Packets received/dropped on interface 'right0': 287360/0 (100.0%)\n";
    const TESTPMD: &str = "  RX-packets: 5  RX-missed: 0\n  RX-packets: 1234           RX-dropped: 6   \
                           RX-total: 1240\n  TX-packets: 0              TX-dropped: 0   TX-total: 0\n";
    const XDP_FILTER: &str = "  XDP_DROP       1,234 pkts           72 KiB\n  XDP_PASS   9 pkts\n";
    const TC: &str =
        "qdisc clsact ffff:\n Sent 512 bytes 8 pkt (dropped 5, overlimits 0 requeues 0) \n";
    const PKT_GEN: &str = "Receiving from netmap:right0: 1 queues, 1 threads and 1 cpus.\n\
        Received 1234567 packets 74074020 bytes 2500 events 60 bytes each in 1.00 seconds.\n\
        Speed: 1.235 Mpps Bandwidth: 592.592 Mbps (raw 829.629 Mbps). Average batch: 493.83 pkts\n";
    const PKT_GEN_REPORTS: &str = "204.632942 start_threads [2697] Ready...\n\
        204.8 receiver_body [2290] waiting for initial packets, poll returns 0 0\n\
        204.8 main_thread [2781] 0.000 pps (0.000 pkts 0.000 bps in 200147 usec) 0.00 avg_batch 0 min_space\n\
        205.0 main_thread [2781] 512.250 Kpps (102.463 Kpkts 49.182 Mbps in 200026 usec) 9.00 avg_batch 1 min_space\n\
        205.2 main_thread [2781] 14.881 Mpps (2.976 Mpkts 1.428 Gbps in 200001 usec) 512.00 avg_batch 99999 min_space\n";
    const SNMP: &str = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InErrors\nUdp: 7 12 0\n";
    const SLUICE: &str =
        "{\"time_s\":1,\"attempted\":3}\n{\"ledger\":{\"in\":9,\"out\":7},\"attempted\":8}\n";

    #[test]
    fn counts_are_found_where_programs_write_them() {
        let rows: &[(&str, &str, Count, Option<u64>)] = &[
            ("of several lines the last", TCPDUMP, Count::Before("captured"), Some(123)),
            ("with spaces before it", NETSNIFF_NG, Count::Before("passed filter"), Some(886_700)),
            ("of the last rule", IPTABLES, Count::Before("DROP"), Some(123_456)),
            ("in a counter", NFT, Count::After("packets "), Some(12)),
            ("behind words", DUMPCAP, Count::After("Packets captured:"), Some(287_360)),
            ("behind the last of several", TESTPMD, Count::After("RX-packets:"), Some(1234)),
            ("with commas", XDP_FILTER, Count::After("XDP_DROP"), Some(1234)),
            ("before a comma", TC, Count::After("(dropped"), Some(5)),
            ("of the whole run", PKT_GEN, Count::After("Received "), Some(1_234_567)),
            ("with a unit", PKT_GEN_REPORTS, Count::PktGenRate, Some(14_881_000)),
            ("only in a report", PKT_GEN, Count::PktGenRate, None),
            ("in a table", SNMP, Count::Below("Udp:", "NoPorts"), Some(12)),
            ("in a result", SLUICE, Count::COUNTED, Some(7)),
            ("of the last result", SLUICE, Count::SENT, Some(8)),
            ("in two places", SLUICE, Count::Sum(&["/ledger/out", "/attempted"]), Some(15)),
            ("in one of two", SLUICE, Count::Sum(&["/answered", "/attempted"]), Some(8)),
            ("in none of two", SLUICE, Count::Sum(&["/answered", "/dropped"]), None),
            ("a place that it has not", "{\"ledger\":{\"out\":7}}\n", Count::SENT, None),
            ("no rule", "Chain PREROUTING (policy ACCEPT 3 packets)", Count::Before("DROP"), None),
            ("no counter", "table ip t {}", Count::After("packets "), None),
            ("no such discipline", "qdisc noqueue", Count::After("(dropped"), None),
            ("nowhere", "nothing\n", Count::After("RX-packets:"), None),
            ("words without a number", "captured\n", Count::Before("captured"), None),
            ("no result", "", Count::SENT, None),
            ("no output", "", Count::COUNTED, None),
        ];
        for (sentence, out, count, expected) in rows {
            let said = ProcessOutput { out: (*out).into(), err: String::new() };
            assert_eq!(count.of(&said), *expected, "{sentence}");
        }
        let rates = ProcessOutput { out: "a: 7.5\na: -\na: 9\n".into(), err: String::new() };
        assert_eq!(Count::After("a:").all(&rates), [7, 9], "told again and again");
        let rates = ProcessOutput { out: PKT_GEN.into(), err: PKT_GEN_REPORTS.into() };
        assert_eq!(Count::PktGenRate.all(&rates), [0, 512_250, 14_881_000]);
        let said = ProcessOutput { out: String::new(), err: "7 packets captured".into() };
        assert_eq!(Count::Before("captured").of(&said), Some(7), "on the other output");
    }
}
