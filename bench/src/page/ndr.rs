//! The result of `sluice bench ndr` as a page: for each size the throughput, then latency and loss by load.

use std::fmt::Write;

use super::{ACROSS, Bar, Escaped, Svg, add, document};
use crate::measurement::{Spread, of_share, short};
use crate::ndr::{NdrResults, OfSize};
use crate::report::Machine;
use crate::step::Setting;

/// Renders the result of a test.
pub fn ndr(results: &NdrResults, machine: &Machine, version: &str, date: &str) -> String {
    let goal = results.goal;
    let about = format!(
        "{machine}; sluice {version}; trials of {} s, throughput held for {} s at {} loss, to {}; {date}",
        goal.time.as_secs_f64(),
        goal.confirm.as_secs_f64(),
        of_share(goal.loss, 3),
        of_share(goal.resolution, 3),
    );
    let mut body = String::new();
    if !results.complete {
        add!(body, "<p>Stopped before the end.</p>");
    }
    results.sizes.iter().for_each(|it| of_size(it, &mut body));
    document("Throughput, latency and loss (RFC 2544)", date, &about, &body)
}

fn of_size(of_size: &OfSize, out: &mut String) {
    let OfSize { size, found, latency, loss, back_to_back } = of_size;
    let heading = match *size {
        Setting::MIXED => "IMIX".to_owned(),
        size => format!("Frames of {size} bytes"),
    };
    add!(out, "<h2>{heading}</h2>");
    let most = found.most_pps.max(f64::MIN_POSITIVE);
    heads(out, "throughput", ["Mpps", "lost", "", ""]);
    match &found.throughput {
        Some(it) => {
            let name = if it.sender_limits { "or more: the sender's limit" } else { "throughput" };
            row(out, name, it.pps, most, [of_share(it.lost, 3), String::new(), String::new()]);
        }
        None => {
            add!(out, "<div class=\"step\"><div class=\"name\">none found</div></div>");
        }
    }
    if !latency.is_empty() {
        heads(out, "latency, by share of the throughput", ["Mpps", "p50", "p99", "max"]);
    }
    for it in latency {
        let times = [it.latency.p50_ns, it.latency.p99_ns, it.latency.max_ns];
        let times = times.map(|ns| format!("{:.1} µs", ns as f64 / 1000.0));
        row(out, &of_share(it.of_throughput, 0), it.offered_pps, most, times);
    }
    if !loss.is_empty() {
        heads(out, "loss, by share of the highest rate", ["Mpps", "lost", "", ""]);
    }
    for it in loss {
        let lost = [of_share(it.lost, 3), String::new(), String::new()];
        row(out, &of_share(it.of_most, 0), it.offered_pps, most, lost);
    }
    if let Some(burst) = back_to_back {
        let more = if burst.longest_tried { " or more" } else { "" };
        add!(out, "<p>Longest burst at the highest rate: {} packets{more}.</p>", burst.packets);
    }
}

fn heads(out: &mut String, name: &str, values: [&str; 4]) {
    let values = values.map(|value| format!("<span class=\"value\">{value}</span>")).concat();
    add!(out, "<div class=\"heads\"><span>{name}</span><span></span>{values}</div>");
}

/// Writes a rate as a bar and a number, and three more values.
fn row(out: &mut String, name: &str, pps: f64, most: f64, values: [String; 3]) {
    let mpps = pps / 1e6;
    let spread = Spread { median: mpps, min: mpps, max: mpps };
    let bar = Bar { by: "sluice", mpps: spread, most: most / 1e6, across: ACROSS, height: 20.0 };
    let rate = short(mpps);
    add!(out, "<div class=\"step\"><div class=\"name\">{}</div>", Escaped(name));
    add!(out, "{}<span class=\"value\">{rate}</span>", Svg(&format!("{rate} Mpps"), &bar));
    for value in values {
        add!(out, "<span class=\"value\">{}</span>", Escaped(&value));
    }
    add!(out, "</div>");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ndr::search::{SearchResult, Throughput};
    use crate::ndr::trial::{BackToBack, Goal, Latency, LatencyAt, LossAt};

    #[test]
    fn a_page_has_all_results() {
        let second = Duration::from_secs(1);
        let goal = Goal { loss: 0.001, resolution: 0.005, time: second, confirm: 3 * second };
        let throughput = Throughput { pps: 1.25e6, lost: 0.0005, sender_limits: false };
        let latency = Latency { p50_ns: 1500, p99_ns: 22_500, p99_9_ns: 0, max_ns: 333_000 };
        let of_size = |size| OfSize {
            size,
            found: SearchResult { throughput: Some(throughput), most_pps: 2.5e6, trials: vec![] },
            latency: vec![LatencyAt { of_throughput: 0.9, offered_pps: 1.125e6, latency }],
            loss: vec![LossAt { of_most: 0.8, offered_pps: 2e6, lost: 0.25 }],
            back_to_back: Some(BackToBack { packets: 4321, longest_tried: true }),
        };
        let sizes =
            vec![of_size(60), of_size(Setting::MIXED), OfSize { size: 1514, ..OfSize::default() }];
        let results = NdrResults { goal, sizes, complete: false };
        let page = ndr(&results, &Machine::here(), "0.1.0", "2026-11-20");
        for part in [
            "Frames of 60 bytes",
            "IMIX",
            "Stopped",
            "none found",
            "<rect class=\"sluice\" width=\"500.0\"",
            ">1.25<",
            ">0.050 %<",
            ">90 %<",
            ">22.5 µs<",
            ">333.0 µs<",
            ">25.000 %<",
            "4321 packets or more",
        ] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        for name in ["div", "span", "svg", "p", "h2", "body"] {
            let opened = page.matches(&format!("<{name}>")).count()
                + page.matches(&format!("<{name} ")).count();
            assert_eq!(opened, page.matches(&format!("</{name}>")).count(), "{name}");
        }
    }
}
