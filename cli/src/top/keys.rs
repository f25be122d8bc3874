//! The state of the view, and the keys that change it.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use sluicegate::link::{InterfaceRates, Rates};

use super::history::History;
use super::losses::Losses;

/// A column of numbers of an interface: its head, and the rate.
type Column = (&'static str, fn(&InterfaceRates) -> f64);

/// The columns of numbers from left to right.
pub const COLUMNS: [Column; 6] = [
    ("rx pkt/s", |interface| interface.rx.packets),
    ("rx bit/s", |interface| interface.rx.bits_l2),
    ("rx drops", |interface| interface.rx.drops_total()),
    ("tx pkt/s", |interface| interface.tx.packets),
    ("tx bit/s", |interface| interface.tx.bits_l2),
    ("tx drops", |interface| interface.tx.drops_total()),
];

/// The state of the view.
#[derive(Default)]
pub struct ViewState {
    /// The namespace; `None` for the command's own.
    pub netns: Option<String>,
    /// The rates shown; none until the first interval has passed.
    pub rates: Option<Rates>,
    pub interval: Duration,
    /// The column of [`COLUMNS`] that sorts the interfaces; `None` sorts by name.
    pub sort: Option<usize>,
    pub reverse: bool,
    pub paused: bool,
    pub help: bool,
    pub queues: bool,
    pub cpus: bool,
    /// Shows the selected interface's drops by cause, in place of queues and CPUs.
    pub drops: bool,
    /// Also shows interfaces without traffic.
    pub idle: bool,
    /// The interface whose queues are shown; by default the first.
    pub selected: Option<String>,
    history: History,
    /// The history when the view was paused.
    paused_history: History,
    pub losses: Losses,
}

/// The action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    Nothing,
    Interval(Duration),
    /// Restore the terminal and stop, until the shell continues the process.
    Suspend,
    Quit,
}

/// The intervals that + and - step through, in ms.
const INTERVALS_MS: [u64; 9] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

impl ViewState {
    pub fn new(netns: Option<String>, interval: Duration) -> Self {
        let shown = Self { queues: true, cpus: true, idle: true, ..Self::default() };
        Self { netns, interval, sort: Some(0), ..shown }
    }

    /// Returns the recent rates to show.
    pub fn history(&self) -> &History {
        if self.paused { &self.paused_history } else { &self.history }
    }

    /// Sets new rates, unless the view is paused. Losses add up in a pause, too, and the history shows its rates
    /// afterwards.
    pub fn update(&mut self, rates: Rates) {
        self.history.add(&rates);
        self.losses.add(&rates);
        if !self.paused {
            self.rates = Some(rates);
        }
    }

    /// Returns the interfaces to show, in order: numbers descending, names ascending.
    pub fn interfaces(&self) -> Vec<&InterfaceRates> {
        let all = self.rates.iter().flat_map(|rates| &rates.interfaces);
        let shown = |rates: &&InterfaceRates| {
            self.idle || rates.rx.packets + rates.tx.packets + rates.rx.drops_total() > 0.0
        };
        let mut interfaces: Vec<&InterfaceRates> = all.filter(shown).collect();
        interfaces.sort_by(|a, b| {
            let rate = |interface| self.sort.map_or(0.0, |column| COLUMNS[column].1(interface));
            let order = rate(b).total_cmp(&rate(a)).then_with(|| a.name.cmp(&b.name));
            if self.reverse { order.reverse() } else { order }
        });
        interfaces
    }

    /// Returns the row of the selected interface.
    pub fn selected_row(&self) -> usize {
        let interfaces = self.interfaces();
        let name = self.selected.as_deref();
        interfaces.iter().position(|i| Some(i.name.as_str()) == name).unwrap_or(0)
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> KeyAction {
        // In raw mode the program handles the keys of the terminal. The key code already includes Shift; a
        // letter with another modifier is not one of the keys below.
        if !KeyModifiers::SHIFT.contains(key.modifiers) {
            return match (key.modifiers, key.code) {
                (KeyModifiers::CONTROL, KeyCode::Char('c')) => KeyAction::Quit,
                (KeyModifiers::CONTROL, KeyCode::Char('z')) => KeyAction::Suspend,
                _ => KeyAction::Nothing,
            };
        }
        if self.help && key.code != KeyCode::Char('q') {
            // Any key leaves the help.
            self.help = false;
            return KeyAction::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return KeyAction::Quit,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                self.paused_history = self.history.clone();
            }
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('u') => self.queues = !self.queues,
            KeyCode::Char('c') => self.cpus = !self.cpus,
            KeyCode::Char('d') | KeyCode::Enter => self.drops = !self.drops,
            KeyCode::Esc => self.drops = false,
            KeyCode::Char('i') => self.idle = !self.idle,
            KeyCode::Right | KeyCode::Char('s') => {
                let next = self.sort.map_or(0, |column| column + 1);
                self.sort = Some(next).filter(|next| *next < COLUMNS.len());
            }
            KeyCode::Left | KeyCode::Char('S') => {
                self.sort = self.sort.unwrap_or(COLUMNS.len()).checked_sub(1);
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected_row() + 1),
            KeyCode::Up | KeyCode::Char('k') => {
                self.select(self.selected_row().saturating_sub(1));
            }
            KeyCode::Char('+' | '=') => return self.set_interval(true),
            KeyCode::Char('-') => return self.set_interval(false),
            _ => {}
        }
        KeyAction::Nothing
    }

    fn select(&mut self, row: usize) {
        let interfaces = self.interfaces();
        let row = row.min(interfaces.len().saturating_sub(1));
        self.selected = interfaces.get(row).map(|interface| interface.name.clone());
    }

    fn set_interval(&mut self, longer: bool) -> KeyAction {
        let mut steps = INTERVALS_MS.iter().map(|ms| Duration::from_millis(*ms));
        let next = if longer {
            steps.find(|step| *step > self.interval)
        } else {
            steps.rfind(|step| *step < self.interval)
        };
        match next {
            Some(interval) => {
                self.interval = interval;
                KeyAction::Interval(interval)
            }
            None => KeyAction::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::rates;
    use super::*;

    fn press(state: &mut ViewState, code: KeyCode) -> KeyAction {
        state.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn names(state: &ViewState) -> Vec<&str> {
        state.interfaces().iter().map(|interface| interface.name.as_str()).collect()
    }

    #[test]
    fn interfaces_are_sorted_by_the_column_chosen() {
        let mut state = ViewState::new(None, Duration::from_secs(1));
        state.update(rates());
        assert_eq!(names(&state), ["right0", "left0", "tap9"], "received packets first");
        press(&mut state, KeyCode::Left);
        assert_eq!(state.sort, None);
        assert_eq!(names(&state), ["left0", "right0", "tap9"]);
        press(&mut state, KeyCode::Char('r'));
        assert_eq!(names(&state), ["tap9", "right0", "left0"], "reversed");
        press(&mut state, KeyCode::Char('i'));
        assert_eq!(names(&state), ["right0", "left0"], "without the idle one");
        press(&mut state, KeyCode::Left);
        assert_eq!(state.sort, Some(5), "from the first column to the last");
    }

    #[test]
    fn the_selection_stays_with_its_interface() {
        let mut state = ViewState::new(None, Duration::from_secs(1));
        state.update(rates());
        press(&mut state, KeyCode::Down);
        assert_eq!(state.selected.as_deref(), Some("left0"));
        state.sort = None;
        assert_eq!(state.selected_row(), 0, "it is elsewhere now");
        for _ in 0..9 {
            press(&mut state, KeyCode::Down);
        }
        assert_eq!(state.selected.as_deref(), Some("tap9"), "no further than the last");
        state.update(Rates::default());
        assert_eq!(state.selected_row(), 0, "the selected row was removed");
        press(&mut state, KeyCode::Up);
        assert_eq!(state.selected, None);
    }

    #[test]
    fn keys_pause_change_the_interval_help_and_quit() {
        let mut state = ViewState::new(None, Duration::from_secs(1));
        press(&mut state, KeyCode::Char('p'));
        state.update(rates());
        let recent = |state: &ViewState| state.history().line(rates().interfaces[0].index, 1, 8);
        assert!(state.rates.is_none() && recent(&state).is_empty(), "paused");
        press(&mut state, KeyCode::Char('p'));
        let before = recent(&state);
        assert!(!before.trim().is_empty(), "the pause's rates are shown after it");
        press(&mut state, KeyCode::Char('p'));
        state.update(rates());
        assert_eq!(recent(&state), before, "it does not move in a pause");
        let two = Duration::from_secs(2);
        assert_eq!(press(&mut state, KeyCode::Char('+')), KeyAction::Interval(two));
        for _ in 0..20 {
            press(&mut state, KeyCode::Char('-'));
        }
        assert_eq!(state.interval, Duration::from_millis(100), "no shorter than the shortest");
        assert_eq!(press(&mut state, KeyCode::Char('-')), KeyAction::Nothing);
        for (key, drops) in [('d', true), ('d', false), ('\n', true), ('\x1b', false)] {
            press(
                &mut state,
                match key {
                    '\n' => KeyCode::Enter,
                    '\x1b' => KeyCode::Esc,
                    letter => KeyCode::Char(letter),
                },
            );
            assert_eq!(state.drops, drops, "{key:?}");
        }
        press(&mut state, KeyCode::Char('?'));
        assert!(state.help);
        press(&mut state, KeyCode::Char('p'));
        assert!(!state.help && state.paused, "a key leaves the help and does nothing else");
        assert_eq!(press(&mut state, KeyCode::Char('q')), KeyAction::Quit);
    }

    #[test]
    fn modifiers_make_a_key_another_one() {
        use KeyModifiers as With;
        let (control, alt) = (With::CONTROL, With::ALT);
        for (sentence, code, held, asked) in [
            ("^C ends it", KeyCode::Char('c'), control, KeyAction::Quit),
            ("^Z stops it", KeyCode::Char('z'), control, KeyAction::Suspend),
            ("^Q is no q", KeyCode::Char('q'), control, KeyAction::Nothing),
            ("^P is no p", KeyCode::Char('p'), control, KeyAction::Nothing),
            ("^H is no h", KeyCode::Char('h'), control, KeyAction::Nothing),
            ("Alt-q is no q", KeyCode::Char('q'), alt, KeyAction::Nothing),
            ("^Alt-C is no ^C", KeyCode::Char('c'), control | alt, KeyAction::Nothing),
            ("^↓ is no ↓", KeyCode::Down, control, KeyAction::Nothing),
        ] {
            let mut state = ViewState::new(None, Duration::from_secs(1));
            state.update(rates());
            assert_eq!(state.key(KeyEvent::new(code, held)), asked, "{sentence}");
            let changed = state.paused || state.help || state.selected.is_some();
            assert!(!changed, "{sentence}");
        }
        let mut state = ViewState::new(None, Duration::from_secs(1));
        state.key(KeyEvent::new(KeyCode::Char('S'), With::SHIFT));
        assert_eq!(state.sort, None, "a capital is a letter by itself");
        state.key(KeyEvent::new(KeyCode::Char('?'), With::SHIFT));
        assert!(state.help);
        assert_eq!(state.key(KeyEvent::new(KeyCode::Char('z'), control)), KeyAction::Suspend);
        assert!(state.help, "help is still there when it goes on");
    }
}
