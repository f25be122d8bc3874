//! Metrics of a running scrubber.

use super::{SETS, Scrubber};
use crate::support::*;

#[test]
fn counters_are_metrics() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &["--monitor"]);
    scrubber.send(10, "203.0.113.9", "set", "bad");
    let prometheus = scrubber.ask(&["status", "--metrics"]);
    let sample = "sluice_scrub_packets_total{interfaces=\"right0\",stage=\"set\",name=\"bad\",verdict=\"drop\"} 10\n";
    assert!(prometheus.contains(sample), "{prometheus}");
    assert!(prometheus.contains("# TYPE sluice_scrub_packets_total counter\n"), "{prometheus}");
    assert!(prometheus.contains("sluice_scrub_monitor{interfaces=\"right0\"} 1\n"), "{prometheus}");
    let open = scrubber.ask(&["status", "--metrics=openmetrics"]);
    assert!(open.contains(sample) && open.ends_with("\n# EOF\n"), "{open}");
    assert!(open.contains("# TYPE sluice_scrub_packets counter\n"), "{open}");
    scrubber.refused(&["status", "--metrics", "--json"], "cannot be used with");
}
