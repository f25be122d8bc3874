//! Reports on passed and dropped packets, as text and JSON.

use std::io::{self, Write, stdout};
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use serde_json::{Map, Value, json};
use sluicegate::error::{Error, Result};
use sluicegate_scrub::policy::Verdict;
use sluicegate_scrub::program::{Cookies, Count, Mode};
use sluicegate_scrub::scrubber::{Memory, NamedCause, NamedCount, Report};

use crate::advice::with_namespace;
use crate::notice::{say, try_say, write_printable};
use crate::units::{show_bytes, show_count, show_pps, show_si};

/// The state of a scrubber, for reports.
pub struct State<'a> {
    pub interfaces: &'a [String],
    pub policy: &'a PathBuf,
    pub mode: Mode,
    /// The mode of interfaces without a fallback.
    pub attach: &'static str,
    /// The interfaces that are not in native mode, and why.
    pub fallbacks: &'a [(String, String)],
    pub memory: Memory,
    /// Connections that the kernel has completed, and why it completes none now.
    pub handed_over: u64,
    pub cookies: Option<Cookies>,
    pub handover_obstacle: Option<String>,
    pub elapsed: Duration,
    pub report: Report,
    /// The time between the two last readings, and what was counted in it.
    pub recent: Option<(Duration, Report)>,
    /// The time left to confirm.
    pub unconfirmed: Option<Duration>,
}

/// Returns a verdict's name, also that of rules after which packets go on.
pub fn verdict_name(verdict: Option<Verdict>) -> &'static str {
    verdict.map_or("continue", Verdict::name)
}

/// Returns the state as a JSON object.
pub fn to_json(state: &State<'_>) -> Value {
    let rate = |of: &dyn Fn(&Report) -> u64| {
        state.recent.as_ref().map(|(time, recent)| of(recent) as f64 / time.as_secs_f64())
    };
    let count = |Count { packets, bytes }| {
        Map::from_iter([("packets".to_owned(), packets.into()), ("bytes".to_owned(), bytes.into())])
    };
    let total = |verdict| {
        let mut total = count(state.report.total(verdict));
        insert_rate(&mut total, rate(&|it| it.total(verdict).packets));
        Value::Object(total)
    };
    let counters = state.report.counts().into_iter().map(|named| {
        let NamedCount { stage, name, verdict, count: sum } = named;
        let mut object = Map::new();
        object.insert("stage".into(), stage.name().into());
        object.insert("name".into(), name.as_str().into());
        object.insert("verdict".into(), verdict_name(verdict).into());
        object.extend(count(sum));
        let cause = NamedCause { stage, name, verdict };
        insert_rate(&mut object, rate(&|it| it.find(&cause).packets));
        Value::Object(object)
    });
    let fallbacks = state.fallbacks.iter().map(
        |(interface, reason)| json!({"interface": interface, "reason": with_namespace(reason)}),
    );
    let mut value = json!({
        "command": "scrub status",
        "interfaces": state.interfaces,
        "mode": attach_mode(state),
        "fallbacks": fallbacks.collect::<Vec<_>>(),
        "policy": state.policy.display().to_string(),
        "memory_bytes": state.memory.total(),
        "handover": {"connections": state.handed_over},
        "monitor": state.mode.monitor,
        "sampling": {"dropped": state.mode.sample_dropped, "passed": state.mode.sample_passed},
        "elapsed_s": state.elapsed.as_secs_f64(),
        "passed": total(Verdict::Pass),
        "dropped": total(Verdict::Drop),
        "answered": total(Verdict::Answer),
        "counters": counters.collect::<Vec<_>>(),
    });
    if state.cookies == Some(Cookies::Kernel) {
        value["handover"]["kernel_cookies"] = true.into();
    }
    if let Some(obstacle) = &state.handover_obstacle {
        value["handover"]["obstacle"] = obstacle.as_str().into();
    }
    if let Some(left) = state.unconfirmed {
        value["confirm_within_s"] = left.as_secs_f64().into();
    }
    value
}

/// Inserts a rate, if it is known.
fn insert_rate(object: &mut Map<String, Value>, pps: Option<f64>) {
    object.extend(pps.map(|pps| ("pps".to_owned(), pps.into())));
}

/// Prints the state, from its JSON object.
pub fn print(state: &Value, out: &mut impl Write) -> io::Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let count = |value: &Value| show_count(value.as_u64().unwrap_or(0));
    let rate = |value: &Value| value.as_f64().map_or_else(String::new, show_si);
    let interfaces: Vec<_> =
        state["interfaces"].as_array().into_iter().flatten().map(text).collect();
    let mode = if state["monitor"] == true { ", monitor: nothing is dropped" } else { "" };
    writeln!(out, "{}, policy {}{mode}", interfaces.join(", "), text(&state["policy"]))?;
    if let Some(seconds) = state["confirm_within_s"].as_f64() {
        writeln!(out, "not confirmed: {seconds:.0} s left for `sluice scrub confirm`")?;
    }
    writeln!(out)?;
    let width =
        state["counters"].as_array().into_iter().flatten().map(|it| text(&it["name"]).len());
    let width = width.max().unwrap_or(0).max("name".len());
    let mut line = |cells: [String; 5]| {
        let [stage, name, verdict, packets, pps] = cells;
        let line = format!("{stage:<14} {name:<width$} {verdict:<9} {packets:>16} {pps:>9}");
        writeln!(out, "{}", line.trim_end())
    };
    line(["stage", "name", "verdict", "packets", "pps"].map(Into::into))?;
    for it in state["counters"].as_array().into_iter().flatten() {
        let [stage, name, verdict] = ["stage", "name", "verdict"].map(|key| text(&it[key]));
        line([stage, name, verdict, count(&it["packets"]), rate(&it["pps"])])?;
    }
    for (key, verdict) in [("passed", "pass"), ("dropped", "drop"), ("answered", "answer")] {
        let it = &state[key];
        line([
            "all".into(),
            String::new(),
            verdict.into(),
            count(&it["packets"]),
            rate(&it["pps"]),
        ])?;
    }
    Ok(())
}

/// Returns the state as a run's JSON object.
pub fn run_json(state: &State<'_>) -> Value {
    let mut value = to_json(state);
    value["command"] = "scrub run".into();
    value
}

/// Prints the result of a run, from its JSON object.
pub fn publish(value: &Value, as_json: bool) -> anyhow::Result<()> {
    let out = &mut stdout().lock();
    match as_json {
        true => writeln!(out, "{value}")?,
        false => write_printable(out, |text| print(value, text))?,
    }
    Ok(())
}

/// Returns the mode of the slowest interface.
fn attach_mode(state: &State<'_>) -> &'static str {
    if state.fallbacks.is_empty() { state.attach } else { "skb" }
}

/// Prints on stderr that the scrubber decides on packets.
pub fn say_ready(state: &State<'_>) {
    let monitor = if state.mode.monitor { "; monitor: nothing is dropped" } else { "" };
    try_say(format_args!(
        "ready: {} in {} mode, policy {}, up to {} of memory{monitor}",
        state.interfaces.join(", "),
        attach_mode(state),
        state.policy.display(),
        show_bytes(state.memory.total()),
    ));
}

/// Prints status lines by a thread, because a stopped terminal or a full pipe blocks it.
pub struct StatusLines {
    lines: SyncSender<String>,
    thread: JoinHandle<()>,
    as_json: bool,
}

impl StatusLines {
    /// Starts the thread, for lines on stderr, or for JSON on stdout.
    pub fn start(as_json: bool) -> Result<Self> {
        let (lines, printed) = sync_channel(1);
        let thread = Builder::new().name("lines".into()).spawn(move || {
            for line in printed {
                // A closed output does not stop the command.
                match as_json {
                    true => drop(writeln!(stdout(), "{line}")),
                    false => say(line),
                }
            }
        });
        let thread = thread.map_err(|error| Error::start("the thread for status lines", error))?;
        Ok(Self { lines, thread, as_json })
    }

    /// Prints a line about the last second. Skips it while an earlier one waits.
    pub fn print(&self, state: &State<'_>) {
        let line = match self.as_json {
            true => Some(run_json(state).to_string()),
            false => status_line(state),
        };
        if let Some(line) = line {
            let _ = self.lines.try_send(line);
        }
    }

    /// Waits until all lines are printed.
    pub fn finish(self) {
        drop(self.lines);
        let _ = self.thread.join();
    }
}

/// Returns a line about the last second.
fn status_line(state: &State<'_>) -> Option<String> {
    let (time, recent) = state.recent.as_ref()?;
    let pps = |verdict| show_pps(recent.total(verdict).packets as f64 / time.as_secs_f64());
    let most = recent.counts().into_iter().filter(|it| it.verdict == Some(Verdict::Drop));
    let most = most.max_by_key(|it| it.count.packets).filter(|it| it.count.packets > 0);
    let most =
        most.map(|it| format!("; most by {} {}", it.stage.name(), it.name)).unwrap_or_default();
    let answered = match recent.total(Verdict::Answer).packets {
        0 => String::new(),
        _ => format!(", answered {}", pps(Verdict::Answer)),
    };
    Some(format!("passed {}, dropped {}{answered}{most}", pps(Verdict::Pass), pps(Verdict::Drop)))
}
