//! The state of a scrubber as metrics.

use serde_json::Value;

use crate::metrics::{MetricKind, Metrics, MetricsFormat};

/// Returns the metrics of a state's JSON object.
pub fn text(state: &Value, format: MetricsFormat) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let interfaces: Vec<_> =
        state["interfaces"].as_array().into_iter().flatten().map(text).collect();
    let interfaces = interfaces.join(",");
    let interfaces = ("interfaces", interfaces.as_str());
    let mut metrics = Metrics::new(format);
    let families = [
        ("sluice_scrub_packets", "Packets by the stage and name that counted them.", "packets"),
        (
            "sluice_scrub_bytes",
            "Bytes of these packets, without the frame check sequence.",
            "bytes",
        ),
    ];
    for (family, help, key) in families {
        metrics.family(family, MetricKind::Counter, help);
        for it in state["counters"].as_array().into_iter().flatten() {
            let [stage, name, verdict] = ["stage", "name", "verdict"].map(|key| text(&it[key]));
            let labels = [interfaces, ("stage", &stage), ("name", &name), ("verdict", &verdict)];
            metrics.sample(&labels, it[key].as_u64().unwrap_or(0));
        }
    }
    metrics.family(
        "sluice_scrub_uptime_seconds",
        MetricKind::Gauge,
        "Time since the start of the scrubber.",
    );
    metrics.sample(&[interfaces], state["elapsed_s"].as_f64().unwrap_or(0.0));
    let monitor = "1 if nothing is dropped, because the scrubber only monitors.";
    metrics.family("sluice_scrub_monitor", MetricKind::Gauge, monitor);
    metrics.sample(&[interfaces], u8::from(state["monitor"] == true));
    metrics.finish()
}
