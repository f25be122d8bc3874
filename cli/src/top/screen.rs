//! The full-screen view's loop: draw, wait for a key, a signal or the next reading.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::keys::{KeyAction, ViewState};
use super::{Watch, view};
use crate::signals::Signals;

/// How late a signal is noticed at most while no key is pressed.
const LOOK: Duration = Duration::from_millis(100);

/// Shows the view until it is over. The terminal is given back as it was, after a panic too
/// (ratatui's hook).
pub fn run(watch: &mut Watch, signals: &Signals, netns: Option<String>) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let result = show(&mut terminal, watch, signals, netns);
    let restored = ratatui::try_restore();
    result?;
    Ok(restored?)
}

fn show(
    terminal: &mut DefaultTerminal,
    watch: &mut Watch,
    signals: &Signals,
    netns: Option<String>,
) -> anyhow::Result<()> {
    let mut state = ViewState::new(netns, watch.interval);
    terminal.draw(|frame| view::draw(frame, &state))?;
    while !watch.is_over() && !signals.take() {
        let left = watch.next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            state.update(watch.read()?);
        } else if !event::poll(left.min(LOOK))? {
            continue;
        } else if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match state.key(key) {
                KeyAction::Quit => break,
                KeyAction::Interval(interval) => watch.set_interval(interval),
                KeyAction::Suspend => suspend(terminal)?,
                KeyAction::Nothing => {}
            }
        }
        // After any other event too: a resize needs it.
        terminal.draw(|frame| view::draw(frame, &state))?;
    }
    Ok(())
}

/// Stops the command until the shell lets it go on; meanwhile the terminal is as it was.
fn suspend(terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    terminal.show_cursor()?;
    ratatui::try_restore()?;
    // The whole group, as the terminal does it: a `sudo` before us stops with us.
    kill(Pid::from_raw(0), Signal::SIGTSTP)?;
    *terminal = ratatui::try_init()?;
    Ok(())
}
