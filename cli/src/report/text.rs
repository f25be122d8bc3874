//! The report as text for people.

use std::io::{self, Write, stderr, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use super::parts::{DirectionReport, MemoryReport, Traffic};
use super::result::Report;
use crate::advice;
use crate::analysis;
use crate::ledger::{Section, remedies};
use crate::notice::{reader_left, write_printable};
use crate::streams;
use crate::units::{
    packets_word, show_bps, show_bytes, show_count, show_duration, show_percent, show_pps,
};

impl MemoryReport {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if self.packets > 0 {
            let period = show_duration(Duration::from_secs_f64(self.period_s));
            let (count, word) = (show_count(self.packets), packets_word(self.packets));
            writeln!(
                out,
                "  {count:>15} {word} of {period} in memory, not written (kill -USR2 or --trigger writes them)"
            )?;
        }
        if self.short {
            writeln!(
                out,
                "  memory was too small for the time to keep: raise --keep-bytes (and ulimit -v)"
            )?;
        }
        Ok(())
    }
}

impl DirectionReport {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Traffic { packets, pps, .. } = self.traffic;
        let how = match (self.swapped, self.copied) {
            (0, 0) => String::new(),
            (_, 0) => ", swapped".into(),
            (0, _) => ", copied".into(),
            (_, copied) => format!(", {} of them copied", show_count(copied)),
        };
        let (count, pps) = (show_count(packets), show_pps(pps));
        let (word, from, to) = (packets_word(packets), &self.from, &self.to);
        writeln!(out, "  {count:>15} {word:<7}  {pps:>12}   from {from} to {to}{how}")
    }
}

impl Report {
    /// Prints the report to standard output, or to stderr if packets go to standard output. A reader that left
    /// is no error.
    pub fn publish(&self, stdout_is_taken: bool, json: bool) -> anyhow::Result<()> {
        let unless_reader_left = |printed: io::Result<()>, output: BorrowedFd<'_>| {
            printed.or_else(|error| if reader_left(&error, output) { Ok(()) } else { Err(error) })
        };
        if stdout_is_taken {
            let printed = self.print(&mut stderr().lock(), json);
            return unless_reader_left(printed, stderr().as_fd()).context("write standard error");
        }
        let printed = self.print(&mut stdout().lock(), json).and_then(|()| stdout().flush());
        Ok(unless_reader_left(printed, stdout().as_fd())?)
    }

    /// Prints the report, as JSON or for people.
    pub fn print(&self, out: &mut impl Write, json: bool) -> io::Result<()> {
        if json {
            serde_json::to_writer(&mut *out, self)?;
            return writeln!(out);
        }
        write_printable(out, |text| self.print_text(text))
    }

    fn print_text(&self, out: &mut impl Write) -> io::Result<()> {
        let Traffic { packets, bytes, pps, bps_l2, .. } = self.traffic;
        let elapsed = show_duration(Duration::from_secs_f64(self.elapsed_s));
        let so_far = if self.so_far { "so far: " } else { "" };
        let read = if self.recorded.is_some() { "read in " } else { "" };
        writeln!(out, "{so_far}{}, {read}{elapsed}", self.port_and_method())?;
        let (count, word) = (show_count(packets), packets_word(packets));
        let bytes = show_count(bytes);
        if self.recorded.is_some_and(|recorded| recorded.duration().is_zero()) {
            writeln!(out, "  {count:>15} {word:<7}  {bytes} bytes")?;
        } else {
            let (pps, bps) = (show_pps(pps), show_bps(bps_l2));
            writeln!(out, "  {count:>15} {word:<7}  {pps:>12}   {bytes} bytes  {bps} (L2)")?;
        }
        if let Some(recorded) = self.recorded {
            writeln!(out, "  recorded {}", recorded.show())?;
        }
        for direction in &self.directions {
            direction.print(out)?;
        }
        for port in self.ports.iter().filter(|_| self.directions.is_empty()) {
            let count = show_count(port.traffic.packets);
            let way = if matches!(self.command, "generate" | "replay") { "to" } else { "from" };
            // A switch's ports have names.
            match port.details.get("name").and_then(Value::as_str) {
                Some(name) => writeln!(out, "  {count:>15} {way} {name} ({})", port.port)?,
                None => writeln!(out, "  {count:>15} {way} {}", port.port)?,
            }
        }
        let one = self.ports.is_empty() || !self.directions.is_empty();
        let threads = if one { self.threads.as_slice() } else { &[] };
        // Other ports make a queue for each thread.
        let has_queues = matches!(&self.backend[..], "xdp" | "mirror" | "memif");
        let unit = if has_queues { "queue" } else { "thread" };
        for thread in threads.iter().filter(|_| threads.len() > 1) {
            let cpu = thread.cpu.map_or_else(String::new, |cpu| format!(" on CPU {cpu}"));
            let busy = thread.busy * 100.0;
            let count = show_count(thread.packets);
            let number = thread.queue;
            writeln!(out, "  {count:>15} in {unit} {number}{cpu}, {busy:.0} % busy")?;
        }
        if let Some(files) = &self.files {
            let many = if files.count == 1 { "" } else { "s" };
            let deleted = match (files.deleted, files.to_delete) {
                (0, 0) => String::new(),
                (n, 0) => format!(", the oldest {n} deleted"),
                (0, more) => format!(", the oldest {more} to be deleted after their programs"),
                (n, more) => {
                    format!(", the oldest {n} deleted, {more} to be deleted after their programs")
                }
            };
            let (count, bytes) = (files.count, show_bytes(files.bytes));
            writeln!(out, "  {count} file{many}, {bytes}{deleted}: {}", files.path)?;
        }
        if let Some(memory) = &self.memory {
            memory.print(out)?;
        }
        streams::print(&self.streams, out)?;
        if let Some(missing) = &self.missing {
            missing.print(self.traffic.packets, out)?;
        }
        if let Some(pace) = &self.pace {
            pace.print(out)?;
        }
        if let Some(analysis) = &self.analysis {
            analysis::print(analysis, out)?;
        }
        if let Some(stats) = &self.stats {
            stats.print(out)?;
        }
        writeln!(out, "ledger")?;
        self.print_ledger(out)?;
        let Some(receiver) = &self.receiver else { return Ok(()) };
        writeln!(out, "ledger of {}", receiver.port_and_method())?;
        receiver.print_ledger(out)
    }

    fn print_ledger(&self, out: &mut impl Write) -> io::Result<()> {
        let ledger = &self.ledger;
        let share = |packets| show_percent(packets, ledger.total(Section::In));
        for (section, sign) in [
            (Section::In, "in"),
            (Section::Out, "out"),
            (Section::Omitted, "omit"),
            (Section::Loss, "lost"),
        ] {
            let always = matches!(section, Section::In | Section::Out);
            for entry in ledger.entries(section).filter(|entry| entry.packets > 0 || always) {
                let share =
                    if section == Section::In { String::new() } else { share(entry.packets) };
                print_row(out, sign, &show_count(entry.packets), &share, entry.name)?;
            }
        }
        let (lost, unexplained) = (ledger.total(Section::Loss), ledger.unexplained());
        if (lost, unexplained) == (0, 0) {
            print_row(out, "lost", "0", "", "nothing")?;
        }
        let uncertain = ledger.total(Section::Uncertain);
        if uncertain > 0 {
            let count = show_count(uncertain);
            print_row(out, "", &count, &share(uncertain), "uncertain: sent or lost")?;
        }
        let name = if self.so_far { "on its way, or unexplained" } else { "unexplained" };
        print_row(out, "", &unexplained.to_string(), "", name)?;
        for (loss, remedy) in remedies(ledger) {
            let remedy = advice::with_namespace(&remedy);
            writeln!(out, "  advice {}: {remedy}", loss.replace('_', " "))?;
        }
        // The interface's own count includes other senders' packets. It helps only if packets are
        // unexplained.
        let helps = |name| name != "card_received" || unexplained != 0;
        let notes = ledger.entries(Section::Note);
        for entry in notes.filter(|entry| entry.packets > 0 && helps(entry.name)) {
            print_row(out, "note", &show_count(entry.packets), "", entry.name)?;
        }
        Ok(())
    }
}

/// Prints a line of the ledger.
fn print_row(
    out: &mut impl Write,
    sign: &str,
    count: &str,
    share: &str,
    name: &str,
) -> io::Result<()> {
    writeln!(out, "  {sign:<5}{count:>17}{share:>9}  {}", name.replace('_', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_in_memory_are_printed_if_there_are_any() {
        let text = |packets, short| {
            let mut text = Vec::new();
            MemoryReport { packets, period_s: 2.0, short }.print(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert!(text(10, false).contains("10 packets of 2 s in memory"), "{}", text(10, false));
        assert_eq!(text(0, false), "");
        assert!(text(0, true).contains("--keep-bytes"));
    }
}
