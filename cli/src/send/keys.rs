//! Keys that change a run, on a terminal where its status is a live line.
//!
//! The terminal stays one for lines and signals: only echo and the wait for a whole line are taken
//! off. So ^C, ^Z and what others write look as ever. Before a signal stops the process the terminal is
//! given back; when the process goes on, in the foreground again, it is taken anew. A signal that ends
//! the process ends the run, and with it the keys.

use std::io::{IsTerminal, Read, Stdin, stdin};

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::{getpgrp, tcgetpgrp};

use crate::notice;

/// Help on the keys.
const KEYS: &str = "+ and - a tenth, * and / double and half, p pause, q end";

/// A terminal whose keys are read one by one.
pub struct Keys {
    terminal: Stdin,
    /// SIGTSTP: ^Z.
    stops: SignalFd,
    /// How the terminal was, while it is taken.
    before: Option<Termios>,
}

impl Keys {
    /// Takes the terminal, if standard input is one, and says what the keys do where there is a rate.
    /// From now on threads that are started leave its signals to this.
    pub fn open(paced: bool) -> Option<Self> {
        let terminal = stdin();
        if !terminal.is_terminal() {
            return None;
        }
        let held = SigSet::from(Signal::SIGTSTP);
        held.thread_block().ok()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let Ok(stops) = SignalFd::with_flags(&held, flags) else {
            // It was not held before, and is not now.
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

    /// The next key, if one was pressed. Stops the process on ^Z.
    pub fn take(&mut self) -> Option<u8> {
        if let Ok(Some(_)) = self.stops.read_signal() {
            self.stop();
        }
        if !self.is_ours() {
            return None;
        }
        self.take_terminal();
        let mut key = [0];
        // Without a key there is nothing to read: see VMIN below.
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
        // A read does not wait.
        ours.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        ours.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        if tcsetattr(&self.terminal, SetArg::TCSANOW, &ours).is_ok() {
            self.before = Some(now);
        }
    }

    /// Gives the terminal back as it was. In the background it is the shell's already.
    fn give_back(&mut self) {
        if let Some(before) = self.before.take()
            && self.is_ours()
        {
            // What goes wrong with a terminal nobody can be told.
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
        // It can fail only for a set that is none.
        let _ = SigSet::from(Signal::SIGTSTP).thread_unblock();
    }
}
