//! Keys that change a run, on a terminal where its status is a live line.
//!
//! Only echo and line buffering are switched off: ^C, ^Z and the output of other programs work as usual. The
//! terminal is restored before ^Z stops the process, and changed again when the process continues in the
//! foreground.

use std::io::{IsTerminal, Read, Stdin, stdin};

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::{getpgrp, tcgetpgrp};

use crate::notice;

/// Help on the keys.
const KEYS: &str = "+ and - change by a tenth, * and / double and halve, p pauses, q ends";

/// A terminal whose keys are read one by one.
pub struct Keys {
    terminal: Stdin,
    /// SIGTSTP: ^Z.
    stops: SignalFd,
    /// The terminal's former settings, while they are changed.
    before: Option<Termios>,
}

impl Keys {
    /// Changes the terminal, if standard input is one, and explains the keys if there is a rate. Threads
    /// started afterwards leave SIGTSTP to this value.
    pub fn open(paced: bool) -> Option<Self> {
        let terminal = stdin();
        if !terminal.is_terminal() {
            return None;
        }
        let held = SigSet::from(Signal::SIGTSTP);
        held.thread_block().ok()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let Ok(stops) = SignalFd::with_flags(&held, flags) else {
            // It was not blocked before.
            let _ = held.thread_unblock();
            return None;
        };
        let mut keys = Self { terminal, stops, before: None };
        keys.take_terminal();
        if paced {
            notice::say(format_args!("keys: {KEYS}"));
        }
        Some(keys)
    }

    /// Returns the next key, if one was pressed. Stops the process on ^Z.
    pub fn take(&mut self) -> Option<u8> {
        if let Ok(Some(_)) = self.stops.read_signal() {
            self.stop();
        }
        if !self.is_ours() {
            return None;
        }
        self.take_terminal();
        let mut key = [0];
        // Returns at once without a key: see VMIN below.
        match self.before.is_some().then(|| self.terminal.lock().read(&mut key)) {
            Some(Ok(1)) => Some(key[0]),
            _ => None,
        }
    }

    /// Reports whether the process is in the foreground: a background process can neither read nor
    /// change the terminal.
    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.terminal).is_ok_and(|group| group == getpgrp())
    }

    /// Makes the terminal deliver keys one by one; again if a shell has restored its settings.
    fn take_terminal(&mut self) {
        let Ok(now) = tcgetattr(&self.terminal) else { return };
        if !self.is_ours() || !now.local_flags.contains(LocalFlags::ICANON) {
            return;
        }
        let mut ours = now.clone();
        ours.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        // Reads do not wait.
        ours.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        ours.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        if tcsetattr(&self.terminal, SetArg::TCSANOW, &ours).is_ok() {
            self.before = Some(now);
        }
    }

    /// Restores the terminal. In the background the shell already has it.
    fn give_back(&mut self) {
        if let Some(before) = self.before.take()
            && self.is_ours()
        {
            // An error could not be shown: the terminal is broken.
            let _ = tcsetattr(&self.terminal, SetArg::TCSANOW, &before);
        }
    }

    /// Stops the process until it may go on.
    fn stop(&mut self) {
        self.give_back();
        let set = SigSet::from(Signal::SIGTSTP);
        if set.thread_unblock().is_ok() {
            let _ = raise(Signal::SIGTSTP);
            let _ = set.thread_block();
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.give_back();
        // It fails only for an invalid set.
        let _ = SigSet::from(Signal::SIGTSTP).thread_unblock();
    }
}
