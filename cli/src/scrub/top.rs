//! `sluice scrub top`: the rates of a running scrubber, on the full screen.

use std::collections::VecDeque;
use std::io::{IsTerminal as _, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use serde_json::Value;
use sluicegate::control::Client;
use sluicegate::error::Error;

use super::control::{Request, exchange};
use super::{ClientArgs, SocketArgs};
use crate::screen::{POLL_INTERVAL, full_screen, suspend};
use crate::signals::Signals;
use crate::top::history::{INTERVALS, block};
use crate::top::view::{BOLD, DIM, NUMBER, cell, number, pane};
use crate::units::{show_count, show_percent, show_si};

/// Time between two questions.
const INTERVAL: Duration = Duration::from_secs(1);

/// Options of `top`.
#[derive(clap::Args)]
pub struct TopArgs {
    #[command(flatten)]
    socket: SocketArgs,
}

/// Shows the rates until a key or a signal ends it.
pub fn top(args: &TopArgs) -> anyhow::Result<()> {
    let path = args.socket.path()?;
    let mut view = View::default();
    view.update(status(&path)?);
    if !stdout().is_terminal() {
        let problem = "top needs a terminal; in scripts: sluice scrub status --json";
        return Err(Error::Usage(problem.into()).into());
    }
    let signals = Signals::catch()?;
    full_screen(|terminal| show(terminal, &mut view, &path, &signals))
}

/// Returns a scrubber's state. Each question has its own connection, because a suspended command loses it.
fn status(path: &Path) -> anyhow::Result<Value> {
    let status = Request::Status { metrics: None, client: ClientArgs::default() };
    exchange(&mut Client::connect(path)?, &status)
}

fn show(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    path: &Path,
    signals: &Signals,
) -> anyhow::Result<()> {
    let mut next = Instant::now() + INTERVAL;
    terminal.draw(|frame| view.draw(frame))?;
    while !signals.take() {
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            view.update(status(path)?);
            next = Instant::now() + INTERVAL;
        } else if !event::poll(left.min(POLL_INTERVAL))? {
            continue;
        } else if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            let control = key.modifiers == KeyModifiers::CONTROL;
            match key.code {
                KeyCode::Char('c') if control => break,
                KeyCode::Char('z') if control => suspend(terminal)?,
                KeyCode::Char('q') if key.modifiers.is_empty() => break,
                _ => {}
            }
        }
        // Also drawn after other events, because a resize needs it.
        terminal.draw(|frame| view.draw(frame))?;
    }
    Ok(())
}

/// Keys of the totals.
const TOTALS: [&str; 3] = ["passed", "dropped", "answered"];

/// The state of the view.
#[derive(Default)]
struct View {
    status: Value,
    /// The recent rates of the [`TOTALS`].
    history: VecDeque<[f64; 3]>,
}

impl View {
    fn update(&mut self, status: Value) {
        if self.history.len() == INTERVALS {
            self.history.pop_front();
        }
        self.history.push_back(TOTALS.map(|key| pps(&status[key])));
        self.status = status;
    }

    /// Returns the counters of packets that do not pass: rates descending, then counts.
    fn stoppers(&self) -> Vec<&Value> {
        let counters = self.status["counters"].as_array().into_iter().flatten();
        let stops = |it: &&Value| it["verdict"] == "drop" || it["verdict"] == "answer";
        let mut stoppers: Vec<_> = counters.filter(stops).collect();
        stoppers.sort_by(|a, b| {
            let packets = |it: &Value| it["packets"].as_u64();
            pps(b).total_cmp(&pps(a)).then_with(|| packets(b).cmp(&packets(a)))
        });
        stoppers
    }

    /// Returns a total: its rate, its count, and its recent rates.
    fn total(&self, at: usize, width: usize) -> Line<'static> {
        let (key, total) = (TOTALS[at], &self.status[TOTALS[at]]);
        let recent = || self.history.iter().skip(self.history.len().saturating_sub(width));
        let highest = recent().flatten().copied().fold(0.0, f64::max);
        let blocks: String = recent().map(|it| block(it[at], highest)).collect();
        let packets = show_count(total["packets"].as_u64().unwrap_or(0));
        Line::from(vec![
            Span::raw(format!(" {key:<8}")),
            Span::styled(format!("{:>8}", show_si(pps(total))), BOLD),
            Span::raw(format!(" pps {packets:>20} packets  {blocks}")),
        ])
    }

    fn draw(&self, frame: &mut Frame) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let heights = [Constraint::Length(5), Constraint::Min(2), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(heights).areas(frame.area());
        let interfaces = self.status["interfaces"].as_array().into_iter().flatten();
        let interfaces: Vec<_> = interfaces.map(text).collect();
        let mode =
            if self.status["monitor"] == true { "  MONITOR: nothing is dropped" } else { "" };
        let about = format!("  {}, {}{mode}", interfaces.join(", "), text(&self.status["policy"]));
        let width = usize::from(head.width).saturating_sub(52).min(INTERVALS);
        let lines = vec![
            Line::from(vec![Span::styled(" sluice scrub top", BOLD), Span::raw(about)]),
            self.total(0, width),
            self.total(1, width),
            self.total(2, width),
        ];
        frame.render_widget(Paragraph::new(lines), head);
        let all = pps(&self.status["dropped"]) + pps(&self.status["answered"]);
        let heads = [("pps", true), ("share", true), ("packets", true), ("verdict", false)];
        let heads = heads.into_iter().chain([("stage", false), ("name", false)]);
        let heads = heads.map(|(head, right)| cell(head.into(), DIM, right));
        let rows = self.stoppers().into_iter().map(|it| {
            Row::new([
                number(show_si(pps(it))),
                number(show_percent(pps(it).round() as u64, all.round() as u64)),
                number(show_count(it["packets"].as_u64().unwrap_or(0))),
                cell(text(&it["verdict"]), Style::new(), false),
                cell(text(&it["stage"]), Style::new(), false),
                cell(text(&it["name"]), Style::new(), false),
            ])
        });
        let widths = [NUMBER, NUMBER, 16, 7, 14].map(Constraint::Length).into_iter();
        let table = Table::new(rows, widths.chain([Constraint::Fill(1)]));
        let table = table.header(Row::new(heads)).block(pane(" dropped or answered by ".into()));
        frame.render_widget(table, body);
        frame.render_widget(Paragraph::new(" q quit").style(DIM), foot);
    }
}

fn pps(value: &Value) -> f64 {
    value["pps"].as_f64().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_sorted_by_rate() {
        let counter = |name: &str, verdict: &str, pps: f64| json!({"stage": "rule", "name": name, "verdict": verdict, "packets": 5000, "pps": pps});
        let status = |dropped: f64| {
            json!({
                "interfaces": ["eth0", "eth1"], "policy": "/etc/p.toml", "monitor": false,
                "passed": {"packets": 7, "pps": 100.0},
                "dropped": {"packets": 1_234_567, "pps": dropped},
                "answered": {"packets": 8, "pps": 100.0},
                "counters": [
                    counter("few", "drop", 100.0),
                    counter("passes", "pass", 7.0),
                    counter("most", "drop", 300.0),
                    counter("challenge", "answer", 100.0),
                ],
            })
        };
        let mut view = View::default();
        [50.0, 400.0].into_iter().for_each(|it| view.update(status(it)));
        let mut terminal = Terminal::new(TestBackend::new(80, 12)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |row: u16| -> String { (0..80).map(|it| buffer[(it, row)].symbol()).collect() };
        let rows: Vec<_> = (0..12).map(|it| row(it).trim_end().to_owned()).collect();
        assert_eq!(rows[0], " sluice scrub top  eth0, eth1, /etc/p.toml");
        assert_eq!(rows[1], " passed       100 pps                    7 packets  ▂▂");
        assert_eq!(rows[2], " dropped      400 pps            1,234,567 packets  ▁█");
        assert_eq!(rows[3], " answered     100 pps                    8 packets  ▂▂");
        assert_eq!(rows[7], "      300      60 %            5,000 drop    rule           most");
        assert_eq!(rows[8], "      100      20 %            5,000 drop    rule           few");
        assert_eq!(
            rows[9],
            "      100      20 %            5,000 answer  rule           challenge"
        );
        assert_eq!(rows[10], "");
    }
}
