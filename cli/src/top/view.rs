//! The full-screen view: interfaces, the selected one's queues or drops, the CPUs.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Table};
use sluicegate::link::{CpuRates, Direction, InterfaceRates, QueueRates};

use super::interfaces::draw_interfaces;
use super::keys::ViewState;
use super::lines::{causes, percent, si_or_dash};
use super::losses::Loss;
use crate::units::show_si as si;

pub const DIM: Style = Style::new().add_modifier(Modifier::DIM);
pub const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const LOSS: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// The width of a column of numbers.
pub const NUMBER: u16 = 9;
/// The lines of a pane in addition to its rows: the title and the head of the table.
const PANE: u16 = 2;

const HELP: &[(&str, &str)] = &[
    ("↑ ↓", "select the interface whose queues are shown"),
    ("← →", "sort by another column; r reverses the order"),
    ("d ⏎", "the selected interface's drops by cause"),
    ("p", "pause and go on"),
    ("+ -", "longer and shorter intervals"),
    ("i", "show or hide interfaces without traffic"),
    ("u", "show or hide the queues"),
    ("c", "show or hide the CPUs"),
    ("q", "quit"),
    ("", ""),
    ("bit/s", "layer 2, without preamble, gap and FCS"),
    ("use", "share of the speed that the driver reports"),
    ("total", "a packet counts on each interface that it passes"),
    ("drops", "lost a second"),
    ("xdp", "dropped by an XDP program, on purpose"),
    ("CPUs", "of the whole host, in a network namespace too"),
    ("squeeze", "softirqs that ended with packets left"),
    ("-", "not counted; a veth counts by queue only what"),
    ("", "comes in while an XDP program is attached"),
];

/// Draws everything.
pub fn draw(frame: &mut Frame, state: &ViewState) {
    let selected = state.interfaces().get(state.selected_row()).copied();
    let queues = queue_rows(selected.map_or(&[][..], |interface| &interface.queues));
    let losses = state.rates.as_ref().zip(selected).filter(|_| state.drops);
    let losses = losses.map(|(rates, interface)| state.losses.of(rates, interface));
    let cpus = state.rates.as_ref().map_or(&[][..], |rates| &rates.cpus);
    let height = |shown: bool, rows: usize| {
        let most = frame.area().height / 3;
        let rows = u16::try_from(rows.max(1)).unwrap_or(u16::MAX);
        Constraint::Length(if shown { rows.saturating_add(PANE).min(most) } else { 0 })
    };
    let [below, cpus_height] = match &losses {
        // The drops take the room of both.
        Some(losses) => {
            let rows = u16::try_from(losses.len()).unwrap_or(u16::MAX).saturating_add(PANE);
            [Constraint::Length(rows.min(frame.area().height * 2 / 3)), Constraint::Length(0)]
        }
        None => [height(state.queues, queues.len()), height(state.cpus, cpus.len())],
    };
    let [head, top, middle, bottom, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        below,
        cpus_height,
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, state);
    draw_interfaces(frame, top, state);
    if let Some((losses, interface)) = losses.as_ref().zip(selected) {
        draw_losses(frame, middle, &interface.name, losses);
    } else if state.queues {
        draw_queues(frame, middle, selected, queues);
    }
    if state.cpus && losses.is_none() {
        draw_cpus(frame, bottom, cpus);
    }
    let keys = " ↑↓ select  ←→ sort  d drops  p pause  +- interval  i u c show  h help  q quit";
    frame.render_widget(Paragraph::new(keys).style(DIM), foot);
    if state.help {
        draw_help(frame);
    }
}

fn draw_head(frame: &mut Frame, area: Rect, state: &ViewState) {
    let place = match &state.netns {
        Some(netns) => format!("  netns {netns}"),
        None => String::new(),
    };
    let mut left = vec![Span::styled(" sluice top", BOLD), Span::raw(place)];
    if state.paused {
        left.push(Span::styled("  PAUSED", LOSS));
    }
    let right = format!("every {:?} ", state.interval);
    frame.render_widget(Paragraph::new(Line::from(left)), area);
    frame.render_widget(Paragraph::new(right).alignment(Alignment::Right), area);
}

/// Both directions of a queue.
type QueueRow<'a> = (u32, [Option<&'a QueueRates>; 2]);

fn queue_rows(queues: &[QueueRates]) -> Vec<QueueRow<'_>> {
    let mut rows: Vec<QueueRow> = Vec::new();
    for queue in queues {
        let place = rows.binary_search_by_key(&queue.queue, |row| row.0);
        let place = place.unwrap_or_else(|place| {
            rows.insert(place, (queue.queue, [None, None]));
            place
        });
        rows[place].1[usize::from(queue.direction == Direction::Tx)] = Some(queue);
    }
    rows
}

fn draw_queues(
    frame: &mut Frame,
    area: Rect,
    interface: Option<&InterfaceRates>,
    rows: Vec<QueueRow<'_>>,
) {
    let Some(interface) = interface else {
        return frame.render_widget(pane(" queues ".into()), area);
    };
    let mut title = format!(" queues of {}", interface.name);
    for (way, rates) in [("rx", &interface.rx), ("tx", &interface.tx)] {
        if rates.drops_total() > 0.0 {
            title += &format!(", {way} lost: {}", causes(&rates.drops));
        }
    }
    title += &unseen(rows.len(), area);
    if rows.is_empty() {
        let text = "its driver does not count by queue";
        let text = Paragraph::new(text).style(DIM).block(pane(title));
        return frame.render_widget(text, area);
    }
    let heads = [
        "queue",
        "rx pkt/s",
        "rx bit/s",
        "rx drop/s",
        "rx xdp/s",
        "tx pkt/s",
        "tx bit/s",
        "tx drop/s",
    ];
    let rows = rows.into_iter().map(|(queue, [rx, tx])| {
        vec![
            number(queue.to_string()),
            number(si_or_dash(rx.and_then(|q| q.packets))),
            number(si_or_dash(rx.and_then(|q| q.bits_l2))),
            loss(rx.and_then(|q| q.drops)),
            number(si_or_dash(rx.and_then(|q| q.xdp_drops))),
            number(si_or_dash(tx.and_then(|q| q.packets))),
            number(si_or_dash(tx.and_then(|q| q.bits_l2))),
            loss(tx.and_then(|q| q.drops)),
        ]
    });
    frame.render_widget(numbers_table(&heads, rows, title, area.width), area);
}

/// Draws the losses of an interface by cause.
fn draw_losses(frame: &mut Frame, area: Rect, interface: &str, losses: &[Loss]) {
    let more = unseen(losses.len(), area);
    let title = format!(" drops of {interface} by cause; counters may overlap{more}");
    let heads = [("drop/s", true), ("seen", true), ("counter of", false), ("cause", false)];
    let heads = heads.map(|(head, right)| cell(head.into(), DIM, right));
    let rows = losses.iter().map(|it| {
        let of = cell(it.counter_of.into(), DIM, false);
        let cause = cell(it.cause.clone(), Style::new(), false);
        Row::new([loss(Some(it.rate)), number(si(it.sum.round())), of, cause])
    });
    let (number, of) = (Constraint::Length(NUMBER), Constraint::Length(10));
    let table = Table::new(rows, [number, number, of, Constraint::Fill(1)]);
    frame.render_widget(table.header(Row::new(heads)).block(pane(title)), area);
}

fn draw_cpus(frame: &mut Frame, area: Rect, cpus: &[CpuRates]) {
    let mut cpus: Vec<&CpuRates> = cpus.iter().collect();
    let mut title = " CPUs of the whole host".to_owned();
    if cpus.len() > room(area) {
        // If not all fit, CPUs that handle packets come first.
        cpus.sort_by(|a, b| b.softirq.total_cmp(&a.softirq).then(b.busy.total_cmp(&a.busy)));
        title += " by softirq";
    }
    title += &unseen(cpus.len(), area);
    let heads = ["cpu", "busy", "softirq", "pkt/s", "NET_RX/s", "NET_TX/s", "drop/s", "squeeze/s"];
    let rows = cpus.into_iter().map(|cpu| {
        vec![
            number(cpu.cpu.to_string()),
            number(percent(cpu.busy)),
            number(percent(cpu.softirq)),
            number(si(cpu.processed)),
            number(si(cpu.net_rx)),
            number(si(cpu.net_tx)),
            loss(Some(cpu.dropped)),
            number(si(cpu.time_squeeze)),
        ]
    });
    frame.render_widget(numbers_table(&heads, rows, title, area.width), area);
}

/// Creates a table of numbers with the columns that fit completely.
fn numbers_table<'a>(
    heads: &[&'a str; 8],
    rows: impl Iterator<Item = Vec<Cell<'a>>>,
    title: String,
    width: u16,
) -> Table<'a> {
    const FIRST: u16 = 5;
    let columns = 1 + usize::from(width.saturating_sub(FIRST) / (NUMBER + 1));
    let mut widths = vec![Constraint::Length(NUMBER); 8];
    widths[0] = Constraint::Length(FIRST);
    widths.truncate(columns);
    let heads = heads.iter().map(|head| cell((*head).into(), DIM, true));
    let rows = rows.map(|cells| Row::new(cells.into_iter().take(columns)));
    Table::new(rows, widths).header(Row::new(heads.take(columns))).block(pane(title))
}

fn draw_help(frame: &mut Frame) {
    let rows = u16::try_from(HELP.len()).unwrap_or(u16::MAX);
    let [_, area, _] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(rows + 2), Constraint::Fill(1)])
            .areas(frame.area());
    let [_, area, _] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(62), Constraint::Fill(1)])
            .areas(area);
    let lines = HELP.iter().map(|(key, text)| {
        Line::from(vec![Span::styled(format!(" {key:<9}"), BOLD), Span::raw(*text)])
    });
    let block = Block::default().borders(Borders::ALL).title(" help: any key leaves ");
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
}

pub fn pane(title: String) -> Block<'static> {
    Block::default().borders(Borders::TOP).border_style(DIM).title(Span::styled(title, BOLD))
}

/// Returns the number of rows that fit a pane.
fn room(area: Rect) -> usize {
    area.height.saturating_sub(PANE).into()
}

/// Returns the end of a title: the number of hidden rows.
fn unseen(rows: usize, area: Rect) -> String {
    match rows.saturating_sub(room(area)) {
        0 => " ".into(),
        more => format!(" ({more} more) "),
    }
}

pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

pub fn number(text: String) -> Cell<'static> {
    cell(text, Style::new(), true)
}

/// Formats a number, in red if it is not zero.
pub fn loss(rate: Option<f64>) -> Cell<'static> {
    let style = if rate > Some(0.0) { LOSS } else { Style::new() };
    cell(si_or_dash(rate), style, true)
}

pub fn cell(text: String, style: Style, right: bool) -> Cell<'static> {
    let alignment = if right { Alignment::Right } else { Alignment::Left };
    Cell::from(Line::styled(text, style).alignment(alignment))
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use sluicegate::link::{DirectionRates, Rates};

    use super::*;

    /// Rates of two interfaces at work, one that has just been made, and a busy CPU.
    pub fn rates() -> Rates {
        let way = |packets: f64, missed: f64| DirectionRates {
            packets,
            bits_l2: packets * 480.0,
            drops: vec![("missed", missed), ("dropped", 0.0)],
            fifo: 0.0,
        };
        let interface = |name: &str, rx, tx, queues| InterfaceRates {
            name: name.into(),
            index: name.len() as u32,
            state: "up",
            rx,
            tx,
            queues,
            ..InterfaceRates::default()
        };
        let sends = QueueRates {
            direction: Direction::Tx,
            queue: 0,
            packets: Some(1.2e6),
            bits_l2: None,
            drops: None,
            xdp_drops: None,
        };
        let receives = QueueRates {
            direction: Direction::Rx,
            queue: 0,
            packets: Some(1.15e6),
            bits_l2: Some(5.52e8),
            drops: Some(7.0),
            xdp_drops: Some(3.0),
        };
        let mut new = interface("tap9", way(0.0, 0.0), way(0.0, 0.0), vec![]);
        new.reset = true;
        Rates {
            seconds: 1.0,
            interfaces: vec![
                interface("left0", way(0.0, 0.0), way(1.2e6, 0.0), vec![sends]),
                InterfaceRates {
                    speed: Some(1e9),
                    driver_losses: vec![("rx_queue_0_drops".into(), 7.0)],
                    ..interface("right0", way(1.15e6, 50_000.0), way(0.0, 0.0), vec![receives])
                },
                new,
            ],
            cpus: vec![CpuRates {
                cpu: 0,
                busy: 0.97,
                softirq: 0.91,
                net_rx: 18_000.0,
                processed: 1.15e6,
                time_squeeze: 12.0,
                ..CpuRates::default()
            }],
        }
    }

    fn drawn(state: &ViewState, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells = buffer.content().chunks(width.into());
        let line = |cells: &[ratatui::buffer::Cell]| {
            let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
            text.trim_end().to_owned()
        };
        cells.map(line).collect()
    }

    fn state() -> ViewState {
        let mut state = ViewState::new(Some("lab-right".into()), Duration::from_secs(1));
        state.update(rates());
        state
    }

    #[test]
    fn all_is_to_be_seen_on_80_columns_and_24_lines() {
        let lines = drawn(&state(), 80, 24);
        let text = lines.join("\n");
        assert!(lines[0].starts_with(" sluice top  netns lab-right"), "{text}");
        assert!(lines[0].ends_with("every 1s"), "{text}");
        for (sentence, row) in [
            ("the interface", "right0 1.15M 552M 50.0k 0 0 0 up"),
            ("a new one", "tap9 0 0 0 0 0 0 new"),
            ("all interfaces", "total 1.15M 552M 50.0k 1.20M 576M 0"),
            ("the first one's queue", "0 1.15M 552M 7 3 - - -"),
            ("the CPU", "0 97% 91% 1.15M 18.0k 0 0 12"),
        ] {
            let words: Vec<&str> = row.split(' ').collect();
            let there = lines.iter().any(|line| line.split_whitespace().eq(words.iter().copied()));
            assert!(there, "{sentence}: {row} in\n{text}");
        }
        assert!(text.contains("queues of right0, rx lost: missed 50.0k"), "{text}");
        assert!(lines[23].contains("q quit"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn a_wide_terminal_shows_utilisation_and_the_recent_rates() {
        let mut state = state();
        let mut less = rates();
        less.interfaces[1].rx.bits_l2 /= 2.0;
        state.update(less);
        for (sentence, width, row) in [
            ("with utilisation", 90, "right0 1.15M 276M 50.0k 0 0 0 up 50% 0%"),
            ("with the recent rates", 120, "right0 1.15M 276M 50.0k 0 0 0 up 50% 0% █▄"),
            ("unknown utilisation", 120, "left0 0 0 0 1.20M 576M 0 up - - ██"),
        ] {
            let lines = drawn(&state, width, 24);
            let words: Vec<&str> = row.split(' ').collect();
            let there = lines.iter().any(|line| line.split_whitespace().eq(words.iter().copied()));
            assert!(there, "{sentence}: {row} in\n{}", lines.join("\n"));
        }
    }

    #[test]
    fn drops_by_cause_take_the_place_of_queues_and_cpus() {
        let mut state = state();
        state.update(rates());
        state.drops = true;
        let lines = drawn(&state, 80, 24);
        let text = lines.join("\n");
        for row in [
            "50.0k 100k interface rx missed",
            "7 14 driver rx_queue_0_drops",
            "0 0 whole host softnet: backlog of a CPU full",
        ] {
            let words: Vec<&str> = row.split(' ').collect();
            let there = lines.iter().any(|line| line.split_whitespace().eq(words.iter().copied()));
            assert!(there, "{row} in\n{text}");
        }
        assert!(text.contains("drops of right0 by cause"), "{text}");
        assert!(!text.contains("queues of") && !text.contains("CPUs"), "{text}");
    }

    #[test]
    fn no_size_of_terminal_is_too_small_to_draw() {
        let mut state = state();
        for help in [false, true] {
            state.help = help;
            for (width, height) in [(1, 1), (10, 3), (20, 5), (80, 6), (300, 100)] {
                assert_eq!(drawn(&state, width, height).len(), usize::from(height));
            }
        }
    }

    #[test]
    fn a_column_without_room_is_left_out_rather_than_cut() {
        for (width, row) in [
            (80, "right0 1.15M 552M 50.0k 0 0 0 up"),
            (70, "right0 1.15M 552M 50.0k 0 0 0"),
            (50, "right0 1.15M 552M 50.0k 0"),
            (20, "right0 1.15M"),
            (12, "right0"),
        ] {
            let lines = drawn(&state(), width, 24);
            let words: Vec<&str> = row.split(' ').collect();
            let there = lines.iter().any(|line| line.split_whitespace().eq(words.iter().copied()));
            assert!(there, "{width} columns: {row} in\n{}", lines.join("\n"));
        }
        let text = drawn(&state(), 50, 24).join("\n");
        assert!(text.contains("97%       91%     1.15M     18.0k"), "{text}");
        assert!(!text.contains("NET_TX"), "{text}");
    }

    #[test]
    fn hidden_rows_are_counted_in_the_title() {
        let mut rates = rates();
        rates.cpus = (0..64)
            .map(|cpu| CpuRates { cpu, softirq: f64::from(cpu) / 100.0, ..CpuRates::default() })
            .collect();
        let mut state = state();
        state.update(rates);
        let lines = drawn(&state, 80, 24);
        let at = lines
            .iter()
            .position(|line| line.contains("CPUs of the whole host by softirq (58 more)"));
        let first = &lines[at.unwrap_or_else(|| panic!("{}", lines.join("\n"))) + 2];
        assert!(first.trim_start().starts_with("63 "), "the busiest first: {first}");
    }

    #[test]
    fn hidden_panes_leave_their_room_and_help_lies_over_all() {
        let mut state = state();
        (state.queues, state.cpus, state.paused) = (false, false, true);
        let text = drawn(&state, 80, 24).join("\n");
        assert!(!text.contains("queues of") && !text.contains("CPUs"), "{text}");
        assert!(text.contains("PAUSED"), "{text}");
        state.help = true;
        let text = drawn(&state, 80, 24).join("\n");
        for (key, what) in HELP {
            assert!(text.contains(key) && text.contains(what), "{key} in {text}");
        }
        let mut none = ViewState::new(None, Duration::from_secs(1));
        assert!(drawn(&none, 80, 24).join("\n").contains("first interval is running"));
        none.idle = false;
        none.update(Rates::default());
        assert!(drawn(&none, 80, 24).join("\n").contains("none with traffic"));
    }
}
