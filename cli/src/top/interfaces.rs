//! The table of interfaces: rates, state, and on a wide terminal utilisation and the recent rates.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Cell, Row, Table, TableState};
use sluicegate::link::InterfaceRates;

use super::history::{History, INTERVALS};
use super::keys::{COLUMNS, ViewState};
use super::lines::percent;
use super::view::{BOLD, DIM, NUMBER, cell, count, loss, number, pane};
use crate::units::show_si as si;

const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
const RECENT: Style = Style::new().fg(Color::Cyan);

/// The width of a name: more, if there is room.
const NAME: u16 = 10;
/// The width of an interface's state: "no carrier".
const STATE: u16 = 10;
/// The width of a utilisation: "100%".
const USE: u16 = 6;
/// The least width of the recent rates.
const MIN_RECENT: u16 = 8;

/// The columns that fit a width. A column that does not fit is left out, because half a number is wrong.
#[derive(Clone, Copy)]
struct Columns {
    /// Columns of [`COLUMNS`].
    numbers: usize,
    state: bool,
    utilisation: bool,
    /// The width of the recent rates of each direction; 0 if they are not shown.
    recent: u16,
}

impl Columns {
    fn of(width: u16) -> Self {
        let with_state = NAME + 6 * NUMBER + 1 + STATE;
        let with_use = with_state + 2 * (USE + 1);
        // Names may be longer.
        let recent = width.saturating_sub(with_use + 6) / 2;
        let recent = recent.saturating_sub(1).min(INTERVALS as u16);
        Self {
            numbers: usize::from((width.saturating_sub(NAME) / NUMBER).min(6)),
            state: width >= with_state,
            utilisation: width >= with_use,
            recent: if recent < MIN_RECENT { 0 } else { recent },
        }
    }

    fn widths(self) -> Vec<Constraint> {
        let mut widths = vec![Constraint::Fill(1)];
        widths.extend(std::iter::repeat_n(Constraint::Length(NUMBER - 1), self.numbers));
        widths.extend(self.state.then_some(Constraint::Length(STATE)));
        if self.utilisation {
            widths.extend([Constraint::Length(USE); 2]);
        }
        if self.recent > 0 {
            widths.extend([Constraint::Length(self.recent); 2]);
        }
        widths
    }
}

pub fn draw_interfaces(frame: &mut Frame, area: Rect, state: &ViewState) {
    let interfaces = state.interfaces();
    let title = match (&state.rates, interfaces.is_empty()) {
        (None, _) => " interfaces: the first interval is running ".to_owned(),
        (Some(_), true) => " interfaces: none with traffic ".to_owned(),
        (Some(_), false) => format!(" {} ", count(interfaces.len(), "interface")),
    };
    let columns = Columns::of(area.width);
    let rows = interfaces.iter().map(|interface| row(interface, columns, state.history()));
    let mut table = Table::new(rows, columns.widths())
        .header(heads(state, columns))
        .block(pane(title))
        .row_highlight_style(SELECTED);
    if interfaces.len() > 1 {
        table = table.footer(total(&interfaces, columns));
    }
    let selected = (!interfaces.is_empty()).then(|| state.selected_row());
    let mut position = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut position);
}

fn heads(state: &ViewState, columns: Columns) -> Row<'static> {
    let arrow = if state.reverse == state.sort.is_none() { "▼" } else { "▲" };
    let mut heads = vec![match state.sort {
        None => cell(format!("name {arrow}"), BOLD, false),
        Some(_) => cell("name".into(), DIM, false),
    }];
    let numbers = COLUMNS.iter().enumerate().take(columns.numbers);
    heads.extend(numbers.map(|(column, (head, _))| {
        // The arrow replaces the last letter, so that the column keeps its width.
        match state.sort == Some(column) {
            true => cell(format!("{}{arrow}", head[..7].trim_end_matches('/')), BOLD, true),
            false => cell((*head).into(), DIM, true),
        }
    }));
    heads.extend(columns.state.then(|| cell("state".into(), DIM, false)));
    if columns.utilisation {
        heads.extend(["rx use", "tx use"].map(|head| cell(head.into(), DIM, true)));
    }
    if columns.recent > 0 {
        heads.extend(["received", "sent"].map(|head| cell(head.into(), DIM, true)));
    }
    Row::new(heads)
}

fn row(interface: &InterfaceRates, columns: Columns, history: &History) -> Row<'static> {
    let mut cells = vec![cell(interface.name.clone(), Style::new(), false)];
    cells.extend(numbers(columns, |rate| rate(interface)));
    let state = if interface.reset { "new" } else { interface.state };
    cells.extend(columns.state.then(|| cell(state.into(), DIM, false)));
    if columns.utilisation {
        cells.extend([&interface.rx, &interface.tx].map(|rates| {
            let share = interface.utilisation(rates);
            number(share.map_or_else(|| "-".into(), percent))
        }));
    }
    if columns.recent > 0 {
        let recent = |way| history.line(interface.index, way, columns.recent.into());
        cells.extend([0, 1].map(|way| cell(recent(way), RECENT, false)));
    }
    Row::new(cells)
}

/// Returns the row of the sums over all interfaces shown.
fn total(interfaces: &[&InterfaceRates], columns: Columns) -> Row<'static> {
    let sum = |rate: fn(&InterfaceRates) -> f64| interfaces.iter().map(|it| rate(it)).sum();
    let mut cells = vec![cell("total".into(), BOLD, false)];
    cells.extend(numbers(columns, sum));
    Row::new(cells)
}

/// Returns the cells of the columns of numbers.
fn numbers(
    columns: Columns,
    value: impl Fn(fn(&InterfaceRates) -> f64) -> f64,
) -> impl Iterator<Item = Cell<'static>> {
    COLUMNS.into_iter().take(columns.numbers).map(move |(head, rate)| {
        let rate = value(rate);
        if head.ends_with("drops") { loss(Some(rate)) } else { number(si(rate)) }
    })
}
