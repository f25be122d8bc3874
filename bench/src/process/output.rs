//! Output of programs, and the packet counts in it.

use serde::de::DeserializeOwned;
use serde_json::Value;

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
            _ => self.read(&said.out).or_else(|| self.read(&said.err)),
        }
    }

    /// All numbers after the words, in order: the rates of a program that reports them periodically. None for
    /// other kinds than [`After`](Self::After).
    pub fn all(self, said: &ProcessOutput) -> Vec<u64> {
        let Self::After(words) = self else { return Vec::new() };
        let texts = [&said.out, &said.err];
        texts.iter().flat_map(|text| text.split(words).skip(1)).filter_map(first_number).collect()
    }

    /// The number in a text.
    pub(crate) fn read(self, text: &str) -> Option<u64> {
        match self {
            Self::At(_) => None,
            Self::Before(words) => {
                first_number(text.lines().rev().find(|line| line.contains(words))?)
            }
            Self::After(words) => first_number(text.rsplit_once(words)?.1),
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
            ("in a table", SNMP, Count::Below("Udp:", "NoPorts"), Some(12)),
            ("in a result", SLUICE, Count::COUNTED, Some(7)),
            ("of the last result", SLUICE, Count::SENT, Some(8)),
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
        let said = ProcessOutput { out: String::new(), err: "7 packets captured".into() };
        assert_eq!(Count::Before("captured").of(&said), Some(7), "on the other output");
    }
}
