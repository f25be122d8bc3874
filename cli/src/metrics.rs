//! Metrics as text, in the formats of Prometheus and OpenMetrics:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>,
//! <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>.

use std::fmt::{Display, Write as _};

/// A format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricsFormat {
    /// Prometheus, 0.0.4
    #[default]
    Prometheus,
    /// OpenMetrics, 1.0.0
    Openmetrics,
}

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows. Its samples are named with the suffix `_total`.
    Counter,
    /// It has any value.
    Gauge,
}

/// The text of metrics.
#[derive(Debug)]
pub struct Metrics {
    format: MetricsFormat,
    text: String,
    /// The name of the present family's samples.
    name: String,
}

impl Metrics {
    pub fn new(format: MetricsFormat) -> Self {
        Self { format, text: String::new(), name: String::new() }
    }

    /// Begins a family; its name has no suffix.
    pub fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        let (suffix, kind) = match kind {
            MetricKind::Counter => ("_total", "counter"),
            MetricKind::Gauge => ("", "gauge"),
        };
        self.name = format!("{name}{suffix}");
        // The name of an OpenMetrics family lacks the suffix of its samples.
        let (named, help) = match self.format {
            MetricsFormat::Prometheus => (self.name.as_str(), escaped(help, false)),
            MetricsFormat::Openmetrics => (name, escaped(help, true)),
        };
        let _ = writeln!(self.text, "# HELP {named} {help}\n# TYPE {named} {kind}");
    }

    /// Adds a sample of the present family.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.text += &self.name;
        for (at, (name, label)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{name}=\"{}\"", escaped(label, true));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    /// Returns the text.
    pub fn finish(mut self) -> String {
        if self.format == MetricsFormat::Openmetrics {
            self.text += "# EOF\n";
        }
        self.text
    }
}

/// Escapes a text. The help of Prometheus keeps its quotes.
fn escaped(text: &str, quotes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped += r"\\",
            '\n' => escaped += r"\n",
            '"' if quotes => escaped += "\\\"",
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: MetricsFormat) -> String {
        let mut metrics = Metrics::new(format);
        metrics.family("sluice_packets", MetricKind::Counter, "Packets of a \"rule\"\nor\\set");
        metrics.sample(&[("name", "a\"b\\c\nd"), ("verdict", "drop")], 7);
        metrics.family("sluice_up", MetricKind::Gauge, "One");
        metrics.sample(&[], 0.5);
        metrics.finish()
    }

    #[test]
    fn both_formats_are_written() {
        let sample = "sluice_packets_total{name=\"a\\\"b\\\\c\\nd\",verdict=\"drop\"} 7\n";
        let gauge = "# HELP sluice_up One\n# TYPE sluice_up gauge\nsluice_up 0.5\n";
        let help = "# HELP sluice_packets_total Packets of a \"rule\"\\nor\\\\set\n# TYPE sluice_packets_total counter\n";
        assert_eq!(text(MetricsFormat::Prometheus), format!("{help}{sample}{gauge}"));
        let help = "# HELP sluice_packets Packets of a \\\"rule\\\"\\nor\\\\set\n# TYPE sluice_packets counter\n";
        assert_eq!(text(MetricsFormat::Openmetrics), format!("{help}{sample}{gauge}# EOF\n"));
    }
}
